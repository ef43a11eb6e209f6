"""Circuits that are mixtures of structured circuits with different trees, and their prober for searches."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.plan import Plan
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import PlanProber
from certimap.conversions.circuit_to_tree import tree_of_circuit
from certimap.core.box import Points
from certimap.core.control import Control
from certimap.core.posterior import Tightening
from certimap.core.rounding import LOG_FLOOR
from certimap.core.search_boxes import Answers, SearchBoxes
from certimap.kernels.parallel import for_blocks
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.tree_sum import TreeSum, is_simple

MAX_TREES = 64
MIN_DENSITY = 8  # edges per tree and variable; where they are fewer, the circuit's own bounds are cheaper
MAX_SPREAD = 4  # table entries of all trees per edge of the circuit
N_ROWS = 64  # rows per set
EDGES_PER_ENTRY = 6  # cost in edge visits of a set's row per table entry
BLOCK = 8  # boxes a thread takes at a time
Floats = NDArray[np.float64]


def trees_of_circuit(plan: Plan, control: Control | None = None) -> TreeSum | None:
    """Return a circuit as a sum of trees if its root is a sum of structured circuits, else None.

    Terms of the root's sum that share nodes belong to one tree.

    Parameters
    ----------
    plan
        The conditioned circuit.
    control
        Raises TimeUp if its deadline leaves too little time.

    Returns
    -------
    TreeSum or None
        Also None for more than 64 trees, trees of fewer than eight edges per variable on average, or more than
        four table entries per edge.

    Notes
    -----
    Cost: linear in the circuit's edges until the first part without a tree.
    """
    root = plan.n_nodes - 1
    parts = plan.children[plan.child_ptr[root] : plan.child_ptr[root + 1]]
    if not plan.domain.is_discrete or not plan.is_sum[root] or len(parts) < 2 or np.any(plan.decides >= 0):
        return None
    label = _connected(plan)
    labels = np.unique(label[parts])
    is_dense = plan.n_edges >= MIN_DENSITY * len(labels) * len(plan.domain)
    if not 2 <= len(labels) <= MAX_TREES or not is_dense:
        return None
    weights = plan.log_weights[plan.child_ptr[root] : plan.child_ptr[root + 1]]
    trees: list[BucketTreePosterior] = []
    log_weights, room = np.empty(len(labels)), MAX_SPREAD * plan.n_edges
    for i, number in enumerate(labels):
        here = label[parts] == number
        log_weights[i] = np.logaddexp.reduce(weights[here])
        part = _mixed(plan, label == number, parts[here], weights[here] - log_weights[i])
        tree = tree_of_circuit(part, max_table=room, control=control)
        if tree is None or not is_simple(tree):
            return None
        room -= tree.region_tree.n_entries
        trees.append(tree)
    return TreeSum(trees, log_weights)


def _connected(plan: Plan) -> NDArray[np.int32]:
    """Return each node's connected component in the circuit without its root."""
    sparse: Any = import_module("scipy.sparse")  # no types there
    inner = plan.parent_of_edge < plan.n_nodes - 1
    upper, lower = plan.parent_of_edge[inner], plan.children[inner]
    joins = sparse.coo_array((np.ones(len(upper), np.int8), (upper, lower)), shape=(plan.n_nodes, plan.n_nodes))
    return sparse.csgraph.connected_components(joins, directed=False)[1]


def _mixed(plan: Plan, keep: NDArray[np.bool_], parts: NDArray[np.int32], log_weights: Floats) -> Plan:
    """Return a plan of some nodes, under a root that is a weighted sum of some of them."""
    nodes = np.flatnonzero(keep)
    place = np.full(plan.n_nodes, -1, np.int32)
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    edges, leaves = keep[plan.parent_of_edge], keep[plan.parent_of_leaf]
    n_children = np.append(np.diff(plan.child_ptr)[nodes], len(parts))
    n_leaves = np.append(np.diff(plan.leaf_ptr)[nodes], 0)
    return replace(
        plan,
        is_sum=np.append(plan.is_sum[nodes], True),
        child_ptr=np.append(0, np.cumsum(n_children)),
        children=np.concatenate([place[plan.children[edges]], place[parts]]),
        weights=np.concatenate([plan.weights[edges], np.exp(log_weights)]),
        log_weights=np.concatenate([plan.log_weights[edges], log_weights]),
        leaf_ptr=np.append(0, np.cumsum(n_leaves)),
        leaf_var=plan.leaf_var[leaves],
        leaf_start=plan.leaf_start[leaves],
        decides=np.append(plan.decides[nodes], -1).astype(np.int32),
    )


class TreeMixturePosterior(CircuitPosterior):
    """p(q | e) of a circuit that is a mixture of trees: a circuit with sharper bounds for searches.

    Parameters
    ----------
    posterior
        The conditioned circuit.
    trees
        The same distribution as a sum of trees.
    control
        The control of the current run.
    """

    def __init__(self, posterior: CircuitPosterior, trees: TreeSum, control: Control) -> None:
        super().__init__(posterior.plan, posterior.log_evidence, posterior.workers, posterior.origin)
        self.trees, self.control = trees, control

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "trees": self.trees, "control": self.control}

    def prober(self) -> TreeMixtureProber:
        """Return a new prober, with nothing tightened yet."""
        return TreeMixtureProber(self.plan, self.workers, self.trees, self.control)


class TreeMixtureProber(PlanProber):
    """Probes a plan; after `tighten` has given a target, its trees also bound boxes.

    Parameters
    ----------
    plan, workers
        As in `PlanProber`.
    trees
        The plan as a sum of trees.
    control
        Checked between eliminations.
    """

    def __init__(self, plan: Plan, workers: int, trees: TreeSum, control: Control) -> None:
        super().__init__(plan, workers)
        self.trees, self.control = trees, control
        self.log_target = -np.inf
        self.found: Points | None = None
        self._elimination_work = EDGES_PER_ENTRY * N_ROWS * trees.n_entries
        self.work += self._elimination_work

    @property
    def _is_ready(self) -> bool:
        return self.log_target > LOG_FLOOR

    def probe(self, boxes: SearchBoxes) -> Answers:
        answers = super().probe(boxes)
        if not self._is_ready:
            return answers
        inside = boxes.mask > 0
        rows = np.flatnonzero(answers.log_bound > self.log_target)
        log_bound, each = answers.log_bound.copy(), answers.each_bound.copy()
        points = np.full((len(boxes), len(self.layout.domain)), np.nan)

        def task(start: int, stop: int) -> None:
            room = self.trees.room(N_ROWS)
            for row in rows[start:stop].tolist():
                found = self.trees.bound(inside[row], self.log_target, room, self.control)
                log_bound[row] = min(log_bound[row], found.log_bound)
                np.minimum(each[row], found.log_states, out=each[row])
                points[row] = found.points[found.largest]

        for_blocks(task, len(rows), BLOCK, self.workers)
        return replace(answers, log_bound=log_bound, each_bound=each, middles=points)

    def starts(self) -> Points:
        """Return max-product's point at first; later the points reached by climbing from the trees' maximisers."""
        return super().starts() if self.found is None else self.climb(self.found)

    def climb(self, points: Points) -> Points:
        return super().climb(np.ascontiguousarray(points))

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Bound all open boxes, and all later ones, by the trees; one call completes the tightening."""
        is_first = not self._is_ready
        self.log_target = log_threshold
        if not is_first or not self._is_ready or not len(within):
            return Tightening(0, True, True)
        room = self.trees.room(N_ROWS)
        bound = self.trees.bound(within.mask[0] > 0, log_threshold, room, self.control)
        self.found = bound.points
        return Tightening(self._elimination_work, True, True, True, bound.log_bound)
