"""The representations of a network: a maximisation, a compiled circuit, the tree of an elimination order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from certimap.conversions.choose import ELIMINATION, MAXIMISATION, OF_CIRCUIT, OF_TREE, Case, Estimate, Row, once
from certimap.core.arrays import Floats, Ints
from certimap.core.control import Limits, WorkClock
from certimap.core.named import Named
from certimap.core.posterior import BoxPosterior, Draws, Masses, Offer, Posterior, Probes, TwoSided
from certimap.core.query import Query, make_query
from certimap.errors import TooLarge
from certimap.networks.elimination import Elimination
from certimap.networks.network import Network
from certimap.networks.orders import BITS, hidden_first, looks_too_wide, plan_elimination
from certimap.networks.reduction import Reduced, reduce_network
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.regions import ENTRIES_PER_TABLE, Factor, buckets_of_factors
from certimap.trees.wide import Wide


def elimination_order(reduced: Reduced, elimination: Elimination) -> list[int]:
    """Return the order of all open and queried variables."""
    return [*elimination.order, *(v for v in reduced.query if v not in reduced.sizes)]


def tree_of_reduced(
    reduced: Reduced,
    query: Query,
    order: Sequence[int],
    *,
    max_table: int,
    workers: int | None,
    pace: WorkClock | None = None,
) -> BucketTreePosterior:
    """Return the tree of a network reduced by a query, along an order of all its open and queried variables.

    `pace` is charged each table's entries before it is built, and may raise TimeUp. Raises ModelError before any
    table is built if one would have more than `max_table` entries, and ImpossibleEvidence.
    """
    factors, sizes = _tables(reduced)
    buckets, constant = buckets_of_factors(factors, sizes, order, max_table, pace)
    return BucketTreePosterior.from_buckets(buckets, constant, query, workers=workers, pace=pace)


def visible_tree(model: Network, query: Query, limits: Limits) -> BucketTreePosterior:
    """Return a tree over the query variables alone; raises TooLarge where the others sum to no small tables."""
    reduced, log2_most = reduce_network(model, query, control=limits.control), math.log2(limits.entries_allowed)
    scopes, limit = [f.scope for f in reduced.factors], [min(log2_most, math.log2(limits.table_allowed))]
    found = hidden_first(scopes, reduced.sizes, reduced.query, limit, log2_most, control=limits.control)
    if found is None:
        raise TooLarge(f"tables over the query variables alone take more than 2^{log2_most:.3g} entries")
    order = [*found[0], *(v for v in reduced.query if v not in reduced.sizes)]
    return tree_of_reduced(reduced, query, order, max_table=limits.table_allowed, workers=limits.workers)


def with_all_states(table: Floats, axis: int, states: Ints, size: int, zero: float) -> Floats:
    """Return a table over some states of a variable as one over all of them, the others with entries `zero`."""
    shape = list(table.shape)
    shape[axis] = size
    full = np.full(shape, zero)
    np.moveaxis(full, axis, 0)[states] = np.moveaxis(table, axis, 0)
    return full


def _tables(reduced: Reduced) -> tuple[list[Factor], dict[int, int]]:
    """Return factors with all states of query variables, and the sizes of variables."""
    n_states = reduced.domain.n_states
    out: list[Factor] = [((), Wide.of_logs(np.array(reduced.log_constant)))]
    sizes = dict(reduced.sizes)
    for v in reduced.query:
        sizes[v] = int(n_states[v])
        if len(reduced.states[v]) < sizes[v]:
            weights = np.zeros(sizes[v])
            weights[reduced.states[v]] = 1.0
            out.append(((v,), Wide.of_values(weights)))
    partial = {v for v in reduced.query if len(reduced.states[v]) < n_states[v]}
    for factor in reduced.factors:
        table, zero = (factor.log_table, -np.inf) if factor.in_logs else (factor.table, 0.0)
        for axis, v in enumerate(factor.scope):
            if v in partial:
                table = with_all_states(table, axis, reduced.states[v], sizes[v], zero)
        out.append((factor.scope, Wide.of_logs(table) if factor.in_logs else Wide.of_values(table)))
    return out, sizes


OF_MAXIMISATION = frozenset({MAXIMISATION})
OF_RELAXATION = frozenset({Probes, "certimap.networks.posterior:NetworkPosterior"})
_STREAMED = "certimap.networks.streamed:StreamedPosterior"
OF_TWO_SIDES = OF_RELAXATION | {TwoSided, "certimap.networks.posterior:TwoSidedNetworkPosterior"}
# Time for building a tree, measured on grids; a tree that would not be ready in time is not begun.
SECONDS_PER_ENTRY = 5e-7
STAGES = 4  # products, conditioning, contraction, laying out
# Work up to which a tree of conditional tables is made at once: rows of evidence share it, and up to this size
# that costs less than one elimination per row (public BIF networks of 20 to 76 variables, 120 rows each).
BYTES_PER_SCOPE = 500  # memory of a cached order, per scope
SMALL_TREE = 2.0**14
FEWEST_CUT = 150  # variables; with fewer, finding an order takes no longer than testing for a cut
FAR_BEYOND = 16.0  # times the allowed entries: no better order can make up for that
_MAY_BE_CUT = Named("certimap.conversions.from_wide_networks:may_be_cut")
_AS_NETWORK = Named("certimap.conversions.from_wide_networks:as_network")
TOO_WIDE = Estimate(f"tables of more than 2^{BITS:.0f} entries", 2.0**BITS, fits=False)


@once
def reduced_of(case: Case[Network]) -> Reduced:
    return reduce_network(case.model, case.query, control=case.limits.control)


@once
def elimination_of(case: Case[Network]) -> Elimination:
    """Return an order for the reduced network, shared by all evidence that reduces it to the same network.

    An order found late in a time limit is not cached: the search may have been cut short.
    """
    reduced, control = reduced_of(case), case.limits.control
    scopes = tuple(f.scope for f in reduced.factors)
    left = (scopes, tuple(reduced.sizes.items()), frozenset(reduced.query), control.time_limit)
    found = case.model.kept.get(left)
    if found is None:
        found = plan_elimination(scopes, reduced.sizes, reduced.query, control=control)
        if control.is_early:
            case.model.kept.put(left, found, BYTES_PER_SCOPE * len(scopes))
    return found


@once
def is_too_wide(case: Case[Network]) -> bool:
    """Whether a quick estimate finds tables far too large for any order."""
    reduced = reduced_of(case)
    return looks_too_wide([f.scope for f in reduced.factors], reduced.sizes)


def _circuit_size(case: Case[Network]) -> Estimate:
    from certimap.conversions.network_to_circuit import is_large

    if is_too_wide(case):
        return TOO_WIDE
    elimination = elimination_of(case)
    fits = not is_large(elimination, case.limits.edges_allowed)
    return Estimate(elimination.describe(), elimination.n_edges, fits)


def _circuit(case: Case[Network]) -> Posterior:
    from certimap.circuits.posterior import CircuitPosterior
    from certimap.conversions.network_to_circuit import Compiler

    control = case.limits.control
    circuit = Compiler(reduced_of(case), elimination_of(case), case.query.query_domain, control).circuit()
    return CircuitPosterior.from_circuit(
        circuit, make_query(circuit.domain), workers=case.limits.workers, origin=(case.model, case.query)
    )


def tree_size(case: Case[Network]) -> Estimate:
    """Return the size of the elimination order's tree."""
    if is_too_wide(case):
        return TOO_WIDE
    elimination, reduced = elimination_of(case), reduced_of(case)
    sizes = reduced.sizes | {v: int(reduced.domain.n_states[v]) for v in reduced.query}  # all states
    largest = max((math.prod(sizes[u] for u in (v, *near)) for v, near in elimination.cliques), default=1)
    entries, limits = 2.0 ** min(elimination.log2_size, 1000.0), case.limits
    text = f"induced width {elimination.induced_width}, {entries:.3g} table entries, at most {largest:.3g} in one"
    return Estimate(text, entries, entries <= limits.entries_allowed and largest <= limits.table_allowed)


def build_tree(case: Case[Network]) -> BoxPosterior:
    """Return the tree of the elimination order; raises TimeUp if it would not be ready in time."""
    reduced, limits, estimate = reduced_of(case), case.limits, tree_size(case)
    order = elimination_order(reduced, elimination_of(case))
    doing = f"building an elimination tree ({estimate.text})"
    with WorkClock(limits.control, doing, SECONDS_PER_ENTRY).piece(_tree_work(case)):
        pace = WorkClock(limits.control, doing, SECONDS_PER_ENTRY / STAGES)
        tree = tree_of_reduced(
            reduced, case.query, order, max_table=limits.table_allowed, workers=limits.workers, pace=pace
        )
    return replace(tree, as_network=partial(_AS_NETWORK, case, tree.log_evidence, tree.facts.log_slack))


def _tree_work(case: Case[Network]) -> float:
    """Return the work of building the tree, in table entries."""
    elimination = elimination_of(case)
    return 2.0 ** min(elimination.log2_size, 1000.0) + ENTRIES_PER_TABLE * len(elimination.order)


@once
def _sums_nothing(case: Case[Network]) -> bool:
    queried = set(reduced_of(case).query)
    return all(queried.issuperset(f.scope) for f in reduced_of(case).factors)


def _eliminates(case: Case[Network]) -> bool:
    """Whether a tree of conditional tables would take long to make."""
    return _has_tables(case) and (is_too_wide(case) or _tree_work(case) > SMALL_TREE)


def _has_tables(case: Case[Network]) -> bool:
    """Whether an order may be worth looking for, because no minimum cut answers sooner."""
    return not is_left_to_cut(case)


@once
def is_left_to_cut(case: Case[Network]) -> bool:
    """Whether a minimum cut finds the maximum, and a quick order needs far more entries than may be held."""
    sizes, scopes = reduced_of(case).sizes, [f.scope for f in reduced_of(case).factors]
    if len(sizes) < FEWEST_CUT or max(sizes.values()) > 2 or max(map(len, scopes), default=0) > 2:
        return False
    return _sums_nothing(case) and _MAY_BE_CUT(case, FAR_BEYOND * case.limits.entries_allowed)


def _is_maximisation(case: Case[Network]) -> bool:
    """Whether nothing is summed, or nothing else fits."""
    return _sums_nothing(case) or not (tree_size(case).fits or _circuit_size(case).fits)


def _row(
    name: str, offers: frozenset[Offer], make: str, suits: Callable[[Case[Network]], bool] = lambda case: True
) -> Row[Network]:
    """Return a row made in `from_wide_networks`, a module that queries with small trees never load."""
    size, build = (Named(f"certimap.conversions.from_wide_networks:{name}") for name in (f"{make}_size", make))
    return Row(name, Network, offers, size, build, suits)


TREE = Row("elimination tree", Network, OF_TREE, tree_size, build_tree, _has_tables, is_kept=True)
ROWS = (
    Row("compiled circuit", Network, OF_CIRCUIT, _circuit_size, _circuit, _has_tables, is_kept=True),
    TREE,
    _row("elimination", OF_MAXIMISATION | {ELIMINATION, Draws, Masses, Probes}, "elimination", _eliminates),
    _row("maximisation", OF_MAXIMISATION, "maximisation", _is_maximisation),
    _row("relaxed network", OF_RELAXATION, "relaxed"),
    _row("relaxed network, two-sided", OF_TWO_SIDES, "two_sided"),
    # last, and chosen only for its special capabilities: solvers that need no draws must not wait for the sum
    _row("streamed elimination", OF_RELAXATION | {Draws, Masses, _STREAMED}, "streamed", lambda case: False),
)
