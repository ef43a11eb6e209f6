"""The representations of a network without a small tree: an elimination, a maximisation, and relaxations."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial

from certimap.conversions.choose import Case, Estimate, once
from certimap.conversions.from_networks import (
    TOO_WIDE,
    build_tree,
    elimination_of,
    is_left_to_cut,
    is_too_wide,
    reduced_of,
    tree_size,
)
from certimap.core.control import TimeUp, shown_bytes
from certimap.core.posterior import Posterior
from certimap.errors import TooLarge
from certimap.kernels.parallel import default_workers
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.conditional import relative_to
from certimap.networks.cuts import is_settled
from certimap.networks.elimination_plan import EliminationPlan, cheap_plan, plan
from certimap.networks.mpe_posterior import (
    MAX_SUMMED,
    WORK_PER_TABLE,
    EliminationPosterior,
    MpePosterior,
    functions_of,
    maximised,
)
from certimap.networks.network import Network
from certimap.networks.posterior import (
    PART_WORK,
    SECONDS_PER_POINT_ENTRY,
    NetworkPosterior,
    TwoSidedNetworkPosterior,
    log_largest_joint,
)
from certimap.networks.problem import Prepared, prepared_of, problem_of
from certimap.networks.simplify import Chosen, sum_out
from certimap.networks.streamed import StreamedPosterior
from certimap.networks.sum_elimination import log_evidence, sum_all
from certimap.networks.sum_pass import Total

MOST_STREAMED = 2.0**36  # limit on table entries of a sum over all variables: some minutes
MAX_POINT_WORK = 2.0**29  # limit on table entries for the value of one point: about a second
POINT_SHARE = 0.5  # of the time left, that one point may take at most
QUICKLY_SUMMED = 2**16  # limit on table entries when nuisance is summed out before an elimination
QUICKLY_MAXIMISED = 2.0**24  # entries over all products of that elimination: a few tenths of a second
FREE_SUM = 2.0**18  # limit on table entries for computing p(e) with a query for a maximum


@once
def _prepared(case: Case[Network]) -> Prepared:
    return prepared_of(reduced_of(case))


@once
def _posed(case: Case[Network]) -> tuple[Prepared, list[Chosen]]:
    """Return the query's problem, which also maximises functions of the query, and these functions."""
    prepared = _prepared(case)
    functions = functions_of(prepared.problem)
    return replace(prepared, problem=maximised(prepared.problem, functions)), functions


@once
def _quickly_summed(case: Case[Network]) -> tuple[Prepared, EliminationPlan] | None:
    """Return the maximisation problem and an order for it; None if summing nuisance needs large tables."""
    prepared, _ = _posed(case)
    problem = prepared.problem
    if not problem.nuisance:
        return prepared, plan(problem, elimination_of(case))
    case.limits.control.check("summing nuisance variables out")
    problem = sum_out(problem, QUICKLY_SUMMED, case.limits.control)
    if problem.nuisance:
        return None
    order = plan(problem)
    return (replace(prepared, problem=problem), order) if order.n_entries <= QUICKLY_MAXIMISED else None


def elimination_size(case: Case[Network]) -> Estimate:
    tree = tree_size(case)
    found = _quickly_summed(case) if tree.fits else None
    if found is None:
        return Estimate("nuisance variables that do not sum into small tables", tree.work, fits=False)
    prepared, order = found
    text, work = f"{order.n_entries:.3g} table entries to maximise", WORK_PER_TABLE * len(prepared.problem.tables)
    return Estimate(text, work, order.n_bytes <= case.limits.control.memory_limit)


def elimination(case: Case[Network]) -> Posterior:
    found = _quickly_summed(case)
    if found is None:
        raise TooLarge("nuisance variables are left that do not sum into small tables; use another representation")
    prepared, order = found
    is_one = isinstance(case.model, BayesianNetwork) and not case.query.log_weights.any()
    total = Total(0.0, 0.0) if is_one else sum_all(prepared.problem, order, case.limits.control)
    make_tree, functions = partial(build_tree, case), _posed(case)[1]
    return EliminationPosterior(case.query, prepared, order, total, make_tree, case.limits.workers, functions)


def relaxed_size(case: Case[Network]) -> Estimate:
    work = relaxed(case).point_work
    text = f"{work:.3g} table entries per point, where nuisance is summed out"
    seconds = POINT_SHARE * case.limits.control.seconds_left
    return Estimate(text, work, work <= min(MAX_POINT_WORK, seconds / SECONDS_PER_POINT_ENTRY))


def _prepared_soon(case: Case[Network]) -> Prepared:
    """Return what conditioning left of the network, not reduced if the time is up: no answer without it."""
    try:
        return _prepared(case)
    except TimeUp:
        return problem_of(case.model, case.query)


@once
def relaxed(case: Case[Network]) -> NetworkPosterior:
    workers, control = case.limits.workers or default_workers(), case.limits.control
    return NetworkPosterior.of_network(
        case.model, case.query, workers=workers, control=control, prepared=_prepared_soon(case)
    )


@once
def _streamed(case: Case[Network]) -> tuple[Prepared, EliminationPlan]:
    """Return the query's problem, and a good order for summing all variables, queried or not."""
    prepared = _prepared(case)
    return prepared, plan(replace(prepared.problem, query=frozenset()), control=case.limits.control)


def streamed_size(case: Case[Network]) -> Estimate:
    if is_too_wide(case):
        return TOO_WIDE
    order, limits = _streamed(case)[1], case.limits
    text = f"{order.n_entries:.3g} table entries to sum, {shown_bytes(order.n_bytes_summed)} at once"
    fits = order.n_bytes_summed <= limits.control.memory_limit and order.n_entries <= MOST_STREAMED
    most = math.inf if limits.max_edges is None else limits.max_edges
    return Estimate(text, order.n_entries, fits and order.largest <= most)


def streamed(case: Case[Network]) -> Posterior:
    limits, (prepared, order) = case.limits, _streamed(case)
    workers = limits.workers or default_workers()
    return StreamedPosterior.of_sum(prepared, order, case.query, workers, limits.control)


def as_network(case: Case[Network], log_total: float, log_slack: float) -> NetworkPosterior:
    """Return a tree's posterior as tables of its network, with the tree's ln p(e) and its error."""
    prepared, limits = _prepared(case), case.limits
    prepared = replace(prepared, problem=relative_to(prepared.problem, Total(log_total, log_slack)))
    domain, workers = case.query.query_domain, limits.workers or default_workers()
    ceiling = prepared.problem.log_slack
    return NetworkPosterior(domain, prepared, log_total, workers, limits.control, log_ceiling=ceiling)


def two_sided_size(case: Case[Network]) -> Estimate:
    return Estimate(f"values of points between two sides, each in {PART_WORK:.3g} table entries", PART_WORK, True)


def two_sided(case: Case[Network]) -> Posterior:
    known, limits = relaxed(case), case.limits
    if known.log_evidence is None or not case.query.log_weights.any():
        return TwoSidedNetworkPosterior(**{f.name: getattr(known, f.name) for f in fields(known)})
    # Without p(e): a lower side over p(e) would be read as the answer's probability.
    domain, workers = case.query.query_domain, limits.workers or default_workers()
    prepared, ceiling = _prepared_soon(case), log_largest_joint(case.model, case.query)
    return TwoSidedNetworkPosterior(domain, prepared, None, workers, limits.control, log_ceiling=ceiling)


@once
def _summed(case: Case[Network]) -> Prepared:
    """Return the problem with nuisance variables summed out as far as tables stay small."""
    prepared, control = _posed(case)[0], case.limits.control
    control.check("summing nuisance variables out")
    if is_left_to_cut(case):  # which needs no tables joined
        return prepared
    return replace(prepared, problem=sum_out(prepared.problem, MAX_SUMMED, control))


def maximisation_size(case: Case[Network]) -> Estimate:
    problem = _summed(case).problem
    left = len(problem.nuisance)
    text = f"{len(problem.query)} variables to maximise, tables of {problem.n_entries:,} entries together"
    found = f"{left} nuisance variables that do not sum out" if left else text
    return Estimate(found, WORK_PER_TABLE * len(problem.tables), not left)


def maximisation(case: Case[Network]) -> Posterior:
    return MpePosterior(case.query, _summed(case), _log_evidence(case), case.limits.workers, _posed(case)[1])


def _log_evidence(case: Case[Network]) -> float | None:
    """Return ln p(e) if its cost is negligible beside the maximisation."""
    if isinstance(case.model, BayesianNetwork) and not case.query.log_weights.any():
        return 0.0
    if is_too_wide(case) or is_left_to_cut(case):
        return None
    problem, nuisance = _summed(case).problem, _posed(case)[0].problem.nuisance
    known = cheap_plan(problem, FREE_SUM) if nuisance else plan(problem, elimination_of(case))
    if known is None:
        return None
    total = log_evidence(problem, known=known, most_entries=FREE_SUM, control=case.limits.control)
    return None if total is None else total.log_value


def may_be_cut(case: Case[Network], most_entries: float) -> bool:
    """Whether a minimum cut finds the maximum, and a quick order takes more table entries than `most_entries`."""
    problem = _posed(case)[0].problem
    return is_settled(problem) and (is_too_wide(case) or cheap_plan(problem, most_entries) is None)
