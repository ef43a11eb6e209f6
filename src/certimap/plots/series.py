"""The numbers behind figures of results and models, separate from drawing, for use by other tools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.core.arrays import Floats
from certimap.core.control import Control
from certimap.core.domain import Domain, Label, Real
from certimap.core.posterior import Posterior, Probes, Regions
from certimap.core.result import CertificateKind, MapResult
from certimap.errors import QueryError
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.network import Network
from certimap.solvers.box_search.frontier import Frontier, Pace
from certimap.solvers.elimination.set_elimination import SetElimination
from certimap.solvers.registry import resolve

Interval = tuple[float, float]
AGAINST: tuple[str, ...] = ("seconds", "n_draws", "n_nodes", "n_evaluations")


@dataclass(frozen=True)
class BoundSeries:
    """A run's two bounds on ln p* over time, in nats; all lists are as long as `x`.

    `x`: seconds, draws, boxes (search nodes), or assignments evaluated. `lower`, `upper`, `open_mass`: the best
    value found, the upper bound, and ln R: a bound on the probability of all assignments neither evaluated nor
    closed; inf without a bound.
    """

    x: list[float]
    lower: list[float]
    upper: list[float]
    open_mass: list[float]


def bound_series(result: MapResult, against: str = "seconds") -> BoundSeries:
    """Return a run's bounds from the first answer on.

    `result`, `against`: a result with a history; and "seconds", "n_draws", "n_nodes" (boxes of a search) or
    "n_evaluations". In nats. Raises QueryError if the history is empty or has no boxes for "n_nodes", or
    for any other `against`.
    """
    if against not in AGAINST:
        raise QueryError(f"against is {against!r}; expected {', '.join(AGAINST[:-1])} or {AGAINST[-1]}")
    entries = [e for e in result.history if math.isfinite(e.log_prob)]
    if not entries:
        raise QueryError("the result has no history to draw")
    if against == "n_nodes" and not entries[-1].n_nodes:
        raise QueryError(f"the run of {result.solver} searched no boxes; expected a search such as 'frontier'")
    return BoundSeries(
        [float(getattr(e, against)) for e in entries],
        [e.log_prob for e in entries],
        [e.log_upper_bound for e in entries],
        [e.log_open_mass for e in entries],
    )


def pareto_series(
    results: MapResult | Mapping[str, MapResult] | Mapping[str, Sequence[tuple[float, float]]],
) -> dict[str, tuple[list[float], list[float]]]:
    """Return the epsilons and the deltas of the admissible pairs of runs, by name.

    `results`: results or fronts by name, or a single result, which gets the name "".
    """
    named = {"": results} if isinstance(results, MapResult) else results
    fronts = {name: found.pareto if isinstance(found, MapResult) else found for name, found in named.items()}
    return {name: ([p[0] for p in pairs], [p[1] for p in pairs]) for name, pairs in fronts.items()}


@dataclass(frozen=True)
class Moments:
    """The times of finding and of certifying an answer.

    `found`, `certified`: seconds, draws or evaluations, from the history; `certified` is None without a
    certificate.
    """

    found: float
    certified: float | None


def moments(result: MapResult, against: str = "seconds") -> Moments:
    """Return the times of finding and of certifying the answer; `result`, `against` as in `bound_series`.

    A certificate from draws holds from the end of the run; one from bounds, as soon as the upper bound is within
    the certificate's epsilon of the answer. Raises QueryError as `bound_series` does.
    """
    series = bound_series(result, against)
    found = next(x for x, low in zip(series.x, series.lower, strict=True) if low >= series.lower[-1])
    certificate = result.certificate
    if certificate.kind is CertificateKind.NONE:
        return Moments(found, None)
    if certificate.kind is CertificateKind.PAC:
        return Moments(found, series.x[-1])
    allowed = -math.log1p(-certificate.epsilon) if certificate.epsilon < 1.0 else math.inf
    best = series.lower[-1] + allowed + certificate.tolerance
    pairs = zip(series.x, series.upper, strict=True)
    return Moments(found, max(found, next((x for x, upper in pairs if upper <= best), series.x[-1])))


@dataclass(frozen=True)
class RegretSeries:
    """Simple regret of a run's best answer, log2(p* / p) in bits, at each `x`."""

    x: list[float]
    bits: list[float]


def regret_series(result: MapResult, against: str = "n_draws") -> RegretSeries:
    """Return simple regret log2(p* / best found) along a run, from the first answer on.

    `result`, `against`: as in `bound_series`. Raises QueryError if p* is not proved, and as `bound_series` does.
    """
    if result.certificate.kind is not CertificateKind.EXACT:
        raise QueryError(
            f"the certificate is of kind {result.certificate.kind.value!r}, so that p* is not known; regret needs "
            "an exact one (epsilon=0, delta=0)"
        )
    series = bound_series(result, against)
    return RegretSeries(series.x, [(series.lower[-1] - low) / math.log(2.0) for low in series.lower])


@dataclass(frozen=True)
class Ranked:
    """One of the k best assignments, and its differences from the best."""

    log_prob: float
    changes: dict[str, Label]


def ranking(result: MapResult) -> list[Ranked]:
    """Return the k best assignments of a `result`, best first, each with ln p and its differences from the best.

    Raises QueryError if the result has no list (`map_query(..., top_k=)` makes one).
    """
    if not result.top:
        raise QueryError("the result does not list the k best assignments; ask for them with top_k")
    first = result.top[0][0]
    return [
        Ranked(log_prob, {name: label for name, label in assignment.items() if label != first[name]})
        for assignment, log_prob in result.top
    ]


@dataclass(frozen=True)
class NetworkPicture:
    """A picture of a network: each variable's place, edges and role in a query.

    `places`: (x, y) by name; parents stand above children, one layer per unit of y. `edges`, `directed`: pairs of
    names, from parent to child where `directed`. `roles`, `labels`: "evidence", "answer" or "hidden" by name; and
    the states of evidence and answer by name.
    """

    places: dict[str, tuple[float, float]]
    edges: list[tuple[str, str]]
    directed: bool
    roles: dict[str, str]
    labels: dict[str, str]


def network_graph(
    network: Network, result: MapResult | None = None, evidence: Mapping[str, Any] | None = None
) -> NetworkPicture:
    """Lay out a `network` in layers; mark the `evidence` (labels by name) and the answer of a `result`.

    A variable's layer is the length of its longest path from a root (in a Markov network: its distance from the
    first variable). Inside a layer, variables are ordered by their neighbours above.
    """
    names = network.domain.names
    directed = isinstance(network, BayesianNetwork)
    over = above(network)
    depth = [0] * len(names)
    order = network.topological_order if isinstance(network, BayesianNetwork) else range(len(names))
    for i in order:
        depth[i] = max((depth[p] + 1 for p in over[i]), default=0)
    places: dict[str, tuple[float, float]] = {}
    for layer in range(max(depth, default=0) + 1):
        members = [i for i in order if depth[i] == layer]
        wished = {i: float(np.mean([places[names[p]][0] for p in over[i]])) if over[i] else 0.0 for i in members}
        members.sort(key=lambda i: wished[i])
        middle = (len(members) - 1) / 2.0
        places |= {names[i]: (k - middle, -float(layer)) for k, i in enumerate(members)}
    edges = [(names[p], names[i]) for i in range(len(names)) for p in over[i]]
    given = dict(evidence or {})
    answer = {} if result is None else result.assignment
    roles = {n: "evidence" if n in given else "answer" if n in answer else "hidden" for n in names}
    labels = {name: str(label) for name, label in {**answer, **given}.items()}
    return NetworkPicture(places, edges, directed, roles, labels)


def above(network: Network) -> list[tuple[int, ...]]:
    """Return each variable's parents; in a Markov network, its neighbours with smaller numbers."""
    if isinstance(network, BayesianNetwork):
        return list(network.parents)
    before: list[set[int]] = [set() for _ in network.domain.names]
    for factor in network.factors:
        for i in factor.scope:
            before[i] |= {j for j in factor.scope if j < i}
    return [tuple(sorted(found)) for found in before]


@dataclass(frozen=True)
class CircuitSummary:
    """The composition of a circuit.

    `kinds`, `layers`: number of nodes of each kind, sums and products first; and at each height; leaves have
    height 0. `n_nodes`, `n_edges`, `n_variables`: sizes.
    """

    kinds: dict[str, int]
    layers: list[int]
    n_nodes: int
    n_edges: int
    n_variables: int


def circuit_summary(circuit: Circuit) -> CircuitSummary:
    """Count the nodes of a `circuit` by kind and by height; cost: linear in its edges."""
    words = {
        int(NodeKind.SUM): "sum",
        int(NodeKind.PRODUCT): "product",
        int(NodeKind.CATEGORICAL): "categorical leaf",
    }
    words |= {code: f"{kind.name} leaf" for code, kind in leaf_kinds().items()}
    height = np.zeros(circuit.n_nodes, np.int64)
    for node in range(circuit.n_nodes):  # children come before parents
        children = circuit.children_of(node)
        if len(children):
            height[node] = 1 + int(height[children].max())
    codes, numbers = np.unique(circuit.kind, return_counts=True)
    kinds = {words[code]: n for code, n in zip(codes.tolist(), numbers.tolist(), strict=True)}
    ordered = sorted(kinds.items(), key=lambda item: (item[0].endswith("leaf"), item[0]))
    return CircuitSummary(
        dict(ordered), np.bincount(height).tolist(), circuit.n_nodes, circuit.n_edges, len(circuit.domain)
    )


@dataclass(frozen=True)
class RegionSeries:
    """A region tree, and the sizes of set elimination's sets in each region.

    `parent`, `names`: the parent of each region, -1 for the root (the last); and its query variable, "" where a
    hidden one is summed out. `set_sizes`: the size of the largest set of vectors per region; 0 if none was needed
    or all were pruned. `places`: (x, y) per region; one layer per unit of y, the root at the top.
    """

    parent: list[int]
    names: list[str]
    set_sizes: list[int]
    places: list[tuple[float, float]]


def region_series(
    posterior: Regions, *, epsilon: float = 0.0, time_limit: float | None = 10.0, seed: int = 0
) -> RegionSeries:
    """Run set elimination on the region tree of a `posterior` and record the sizes of its sets.

    `epsilon`, `seed`: of the search. `time_limit`: seconds, after which sizes are not seen.
    """
    solver = SetElimination()
    control = Control.starting_now(time_limit)
    ledger = Ledger(posterior, epsilon=epsilon, delta=0.0, control=control)
    state = solver.init(posterior, control, np.random.default_rng(seed))
    while not state.done and not ledger.satisfied and not control.should_stop:
        state = solver.step(state, ledger)
    tree = posterior.region_tree
    domain: Domain = posterior.domain
    variables: list[int] = tree.variable.tolist()
    names: list[str] = ["" if v < 0 else domain.names[v] for v in variables]
    parent = tree.parent.tolist()
    sizes = [state.set_sizes.get(r, 0) for r in range(tree.n_regions)]
    return RegionSeries(parent, names, sizes, _tree_places(parent))


def _tree_places(parent: list[int]) -> list[tuple[float, float]]:
    """Lay out a tree with children first: leaves side by side, parents above the middle of their children."""
    n = len(parent)
    children: list[list[int]] = [[] for _ in range(n)]
    for child, p in enumerate(parent):
        if p >= 0:
            children[p].append(child)
    depth = [0] * n
    for r in range(n - 1, -1, -1):
        depth[r] = 0 if parent[r] < 0 else depth[parent[r]] + 1
    x = [0.0] * n
    n_leaves = 0
    stack = [(r, False) for r in range(n) if parent[r] < 0]
    while stack:
        r, is_back = stack.pop()
        if not children[r]:
            x[r] = float(n_leaves)
            n_leaves += 1
        elif is_back:
            x[r] = float(np.mean([x[c] for c in children[r]]))
        else:
            stack += [(r, True), *((c, False) for c in reversed(children[r]))]
    return [(x[r], -float(depth[r])) for r in range(n)]


@dataclass(frozen=True, eq=False)
class DensityGrid:
    """A density on a grid.

    `names`, `axes`: the one or two variables, and the grid values of each, shape (n_points,).
    `log_density`: natural logs, shape (n_points,) or (n_points, n_points), the first variable first.
    """

    names: tuple[str, ...]
    axes: tuple[Floats, ...]
    log_density: Floats


def density_grid(posterior: Posterior, intervals: Sequence[Interval], *, n_points: int = 201) -> DensityGrid:
    """Evaluate a `posterior` of one or two real variables on a grid of `n_points` per axis.

    `intervals`: (low, high) of each. Raises QueryError for other posteriors, and intervals that do not fit.
    """
    domain = posterior.domain
    if len(domain) not in (1, 2) or not all(isinstance(variable, Real) for variable in domain):
        raise QueryError(f"the query variables are {domain.names}; one or two real ones can be drawn")
    if len(intervals) != len(domain) or not all(low < high for low, high in intervals):
        raise QueryError(f"the intervals are {list(intervals)}; expected (low, high) for each of {domain.names}")
    axes = tuple(np.linspace(low, high, n_points) for low, high in intervals)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    values = posterior.log_prob(points.reshape(-1, len(domain)))
    return DensityGrid(domain.names, axes, values.reshape(points.shape[:-1]))


@dataclass(frozen=True, eq=False)
class OpenCells:
    """The open boxes in a search of a density.

    `low`, `high`, `log_bound`: the ends of each box, shape (batch, n_variables), and upper bounds on ln of the
    density in each, (batch,).
    """

    low: Floats
    high: Floats
    log_bound: Floats


def open_cells(posterior: Posterior, *, epsilon: float = 0.01, max_nodes: int = 200, rng: int = 0) -> OpenCells:
    """Search a `posterior` (target `epsilon`, seed `rng`) for `max_nodes` boxes; return those still open."""
    control = Control.starting_now(None, max_nodes=max_nodes)
    ledger = Ledger(posterior, epsilon=epsilon, delta=0.0, control=control)
    chosen = resolve(Frontier(pace=Pace(step_work=1)), posterior)
    assert isinstance(chosen, Frontier)
    assert isinstance(posterior, Probes)  # otherwise rejected above
    state = chosen.init(posterior, control, np.random.default_rng(rng))
    while not (state.done or ledger.satisfied or control.nodes_left(state.n_nodes) == 0):
        state = chosen.step(state, ledger)
    boxes = state.open.boxes(slice(None))
    return OpenCells(boxes.low, boxes.high, state.open.bounds.copy())
