"""The representations of a network: a maximisation, a compiled circuit, the tree of an elimination order."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions.network_to_circuit import Compiler, is_large
from certimap.conversions.network_to_tree import elimination_order, largest_table, tree_of_reduced
from certimap.conversions.rows import (
    OF_CIRCUIT,
    OF_ELIMINATION,
    OF_MAXIMISATION,
    OF_TREE,
    Case,
    Estimate,
    Row,
)
from certimap.core.control import Pace
from certimap.core.posterior import Bounds, BoxPosterior, Posterior, Probes, TwoSided
from certimap.core.query import make_query
from certimap.errors import TooLarge
from certimap.kernels.parallel import default_workers
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.conditional import Total
from certimap.networks.elimination import Elimination, plan_elimination
from certimap.networks.elimination_plan import EliminationPlan, plan
from certimap.networks.elimination_posterior import EliminationPosterior
from certimap.networks.mpe_posterior import MAX_SUMMED, WORK_PER_TABLE, MpePosterior
from certimap.networks.network import Network
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import Prepared, prepared_of
from certimap.networks.reduction import Reduced, reduce_network
from certimap.networks.simplify import sum_out
from certimap.networks.sum_elimination import sum_all
from certimap.networks.two_sided import PART_WORK, TwoSidedNetworkPosterior
from certimap.trees.regions import ENTRIES_PER_TABLE

OF_RELAXATION = frozenset({Bounds, Probes, NetworkPosterior})
OF_TWO_SIDES = OF_RELAXATION | {TwoSided, TwoSidedNetworkPosterior}
# What building a tree takes, measured on grids; a tree that would not be ready in time is not begun.
SECONDS_PER_ENTRY = 5e-7
STAGES = 4  # products, conditioning, contraction, laying out
MAX_POINT_WORK = 2.0**26  # table entries that the value of one point may cost
# Work up to which a tree of conditional tables is made at once: rows of evidence share it, at less than one
# elimination per row takes while it is this small (public BIF networks of 20 to 76 variables, 120 rows each).
SMALL_TREE = 2.0**14
QUICKLY_SUMMED = 2**16  # entries of the largest table that summing nuisance out for an elimination may make
QUICKLY_MAXIMISED = 2.0**24  # entries over all products of that elimination: a few tenths of a second
FREE_SUM = 2.0**18  # table entries for which p(e) is summed though only a maximum is asked for


def reduced_of(case: Case[Network]) -> Reduced:
    return case.shared("reduced", lambda: reduce_network(case.model, case.query, control=case.limits.control))


def elimination_of(case: Case[Network]) -> Elimination:
    """Return the order that both representations use."""
    reduced = reduced_of(case)
    scopes, control = [f.scope for f in reduced.factors], case.limits.control
    return case.shared(
        "elimination", lambda: plan_elimination(scopes, reduced.sizes, reduced.query, control=control)
    )


def _circuit_size(case: Case[Network]) -> Estimate:
    elimination = elimination_of(case)
    return Estimate(
        elimination.describe(), elimination.n_edges, not is_large(elimination, case.limits.edges_allowed)
    )


def _circuit(case: Case[Network]) -> Posterior:
    control = case.limits.control
    circuit = Compiler(reduced_of(case), elimination_of(case), case.query.query_domain, control).circuit()
    return CircuitPosterior.from_circuit(
        circuit, make_query(circuit.domain), workers=case.limits.workers, origin=(case.model, case.query)
    )


def _tree_size(case: Case[Network]) -> Estimate:
    elimination = elimination_of(case)
    largest = largest_table(reduced_of(case), elimination)
    entries, limits = 2.0 ** min(elimination.log2_size, 1000.0), case.limits
    text = f"induced width {elimination.induced_width}, {entries:.3g} table entries, at most {largest:.3g} in one"
    return Estimate(text, entries, entries <= limits.entries_allowed and largest <= limits.table_allowed)


def _tree(case: Case[Network]) -> BoxPosterior:
    reduced, limits, estimate = reduced_of(case), case.limits, _tree_size(case)
    order = elimination_order(reduced, elimination_of(case))
    doing = f"building an elimination tree ({estimate.text})"
    with Pace(limits.control, doing, SECONDS_PER_ENTRY).piece(_tree_work(case)):
        pace = Pace(limits.control, doing, SECONDS_PER_ENTRY / STAGES)
        return tree_of_reduced(
            reduced, case.query, order, max_table=limits.table_allowed, workers=limits.workers, pace=pace
        )


def _tree_work(case: Case[Network]) -> float:
    """Return what building the tree takes, in table entries."""
    elimination = elimination_of(case)
    return 2.0 ** min(elimination.log2_size, 1000.0) + ENTRIES_PER_TABLE * len(elimination.order)


def _sums_nothing(case: Case[Network]) -> bool:
    reduced = reduced_of(case)
    queried = set(reduced.query)
    return all(queried.issuperset(f.scope) for f in reduced.factors)


def _prepared(case: Case[Network]) -> Prepared:
    return case.shared("prepared", lambda: prepared_of(reduced_of(case)))


def _quickly_summed(case: Case[Network]) -> tuple[Prepared, EliminationPlan] | None:
    """Return what is to be maximised and an order for it; None where nuisance does not sum into small tables."""

    def make() -> tuple[Prepared, EliminationPlan] | None:
        prepared = _prepared(case)
        problem = prepared.problem
        if not problem.nuisance:
            known = elimination_of(case)
            pairs = zip(known.order, known.separators, strict=True)
            return prepared, plan(problem, [(v, near) for v, near in pairs if v in problem.sizes])
        case.limits.control.check("summing nuisance variables out")
        problem = sum_out(problem, QUICKLY_SUMMED, case.limits.control)
        if problem.nuisance:
            return None
        order = plan(problem)
        return (replace(prepared, problem=problem), order) if order.n_entries <= QUICKLY_MAXIMISED else None

    return case.shared("quickly summed", make)


def _elimination_size(case: Case[Network]) -> Estimate:
    tree = _tree_size(case)
    found = _quickly_summed(case) if tree.fits else None
    if found is None:
        return Estimate("nuisance variables that do not sum into small tables", tree.work, fits=False)
    prepared, order = found
    text = f"{order.n_entries:.3g} table entries to maximise"
    return Estimate(
        text, WORK_PER_TABLE * len(prepared.problem.tables), order.n_bytes <= case.limits.control.memory_limit
    )


def _eliminates(case: Case[Network]) -> bool:
    """Whether a tree of conditional tables would take long to make."""
    return _tree_work(case) > SMALL_TREE


def _elimination(case: Case[Network]) -> Posterior:
    found = _quickly_summed(case)
    if found is None:
        raise TooLarge("nuisance variables are left that do not sum into small tables; use another representation")
    prepared, order = found
    if isinstance(case.model, BayesianNetwork) and not case.query.log_weights.any():
        total = Total(0.0, 0.0)
    else:
        total = sum_all(prepared.problem, order, case.limits.control)
    return EliminationPosterior(case.query, prepared, order, total, partial(_tree, case), case.limits.workers)


def _relaxed_size(case: Case[Network]) -> Estimate:
    work = _relaxed(case).point_work
    text = f"{work:.3g} table entries per point, where nuisance is summed out"
    return Estimate(text, work, work <= MAX_POINT_WORK)


def _relaxed(case: Case[Network]) -> NetworkPosterior:
    return case.shared("relaxed", lambda: _posterior_of(case, NetworkPosterior))


def _posterior_of(case: Case[Network], kind: type[NetworkPosterior]) -> NetworkPosterior:
    limits = case.limits
    return kind.of_network(
        case.model, case.query, workers=limits.workers or default_workers(), control=limits.control
    )


def _two_sided_size(case: Case[Network]) -> Estimate:
    text = f"values of points between two sides, each in {PART_WORK:.3g} table entries"
    return Estimate(text, PART_WORK, fits=True)


def _two_sided(case: Case[Network]) -> Posterior:
    return _posterior_of(case, TwoSidedNetworkPosterior)


def _summed(case: Case[Network]) -> Prepared:
    """Return the problem with nuisance variables summed out while their tables stay small."""
    limits = case.limits

    def make() -> Prepared:
        prepared = _prepared(case)
        limits.control.check("summing nuisance variables out")
        return replace(prepared, problem=sum_out(prepared.problem, MAX_SUMMED, limits.control))

    return case.shared("summed", make)


def _maximisation_size(case: Case[Network]) -> Estimate:
    problem = _summed(case).problem
    left = len(problem.nuisance)
    text = f"{len(problem.query)} variables to maximise, tables of {problem.n_entries:,} entries together"
    found = f"{left} nuisance variables that do not sum out" if left else text
    return Estimate(found, WORK_PER_TABLE * len(problem.tables), not left)


def _maximisation(case: Case[Network]) -> Posterior:
    return MpePosterior(case.query, _summed(case), _log_evidence(case), case.limits.workers)


def _log_evidence(case: Case[Network]) -> float | None:
    """Return ln p(e) where it takes next to nothing beside the maximisation."""
    if isinstance(case.model, BayesianNetwork) and not case.query.log_weights.any():
        return 0.0
    problem = replace(_summed(case).problem, query=frozenset())
    if plan(problem).n_entries > FREE_SUM:
        return None
    total = sum_out(problem, int(FREE_SUM), case.limits.control)
    return None if total.sizes else float(total.constant)


def _is_maximisation(case: Case[Network]) -> bool:
    """Whether nothing is summed, or nothing else fits."""
    return _sums_nothing(case) or not (_tree_size(case).fits or _circuit_size(case).fits)


TREE = Row("elimination tree", Network, OF_TREE, _tree_size, _tree)
ROWS = (
    Row("compiled circuit", Network, OF_CIRCUIT, _circuit_size, _circuit),
    TREE,
    Row("elimination", Network, OF_ELIMINATION, _elimination_size, _elimination, _eliminates),
    Row("maximisation", Network, OF_MAXIMISATION, _maximisation_size, _maximisation, _is_maximisation),
    Row("relaxed network", Network, OF_RELAXATION, _relaxed_size, _relaxed),
    Row("relaxed network, two-sided", Network, OF_TWO_SIDES, _two_sided_size, _two_sided),
)
