"""Circuits that are mixtures of structured circuits with different trees, and how a search asks them."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.box import Points
from certimap.circuits.plan import Plan
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import PlanProber
from certimap.control import Control
from certimap.conversions.circuit_to_tree import tree_of_circuit
from certimap.kernels.parallel import for_blocks
from certimap.posterior import Tightening
from certimap.rounding import LOG_FLOOR
from certimap.search_boxes import Answers, SearchBoxes
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.tree_sum import BoxBound, TreeSum, is_simple

MAX_TREES = 64
MIN_DENSITY = 8  # edges per tree and variable; where they are fewer, the circuit's own bounds are cheaper
MAX_SPREAD = 4  # table entries of all trees per edge of the circuit
FIRST_ROWS, MOST_ROWS = 64, 512  # of a set: at first, and after the last tightening
BOX_ROUNDS = 6
TIGHTEN_ROUNDS = 24  # between two looks at what the trees' maximisers are worth
STALE = 2  # such stretches without progress before the sets grow
PROGRESS = 1e-3  # nats
EDGES_PER_ENTRY = 6  # edge visits that a row of a set costs for each table entry
REMEMBERED = 256  # boxes whose shifts are kept
Floats = NDArray[np.float64]


def trees_of_circuit(plan: Plan, control: Control | None = None) -> TreeSum | None:
    """Return a circuit whose root adds structured circuits up as a sum of trees, or None where it is none.

    Parts of the root's sum that share nodes belong to one tree.

    Parameters
    ----------
    plan
        The conditioned circuit.
    control
        Its deadline is heeded; raises TimeUp when it leaves too little time.

    Returns
    -------
    TreeSum or None
        None also where there are more than 64 trees, trees of fewer than eight edges per variable on average, or
        more than four table entries per edge.

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
    """Number the parts of a circuit that hang together without its root; one number per node."""
    sparse: Any = import_module("scipy.sparse")  # no types there
    inner = plan.parent_of_edge < plan.n_nodes - 1
    upper, lower = plan.parent_of_edge[inner], plan.children[inner]
    joins = sparse.coo_array((np.ones(len(upper), np.int8), (upper, lower)), shape=(plan.n_nodes, plan.n_nodes))
    return sparse.csgraph.connected_components(joins, directed=False)[1]


def _mixed(plan: Plan, keep: NDArray[np.bool_], parts: NDArray[np.int32], log_weights: Floats) -> Plan:
    """Return the plan of some of a plan's nodes, under a root that adds up some of them."""
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
    """p(q | e) of a circuit that is a mixture of trees: as any circuit, with sharper bounds for searches.

    Parameters
    ----------
    posterior
        The conditioned circuit.
    trees
        The same as a sum of trees.
    control
        The run that its searches end with.
    """

    def __init__(self, posterior: CircuitPosterior, trees: TreeSum, control: Control) -> None:
        super().__init__(posterior.plan, posterior.log_evidence, posterior.workers, posterior.origin)
        self.trees, self.control = trees, control

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "trees": self.trees, "control": self.control}

    def prober(self) -> TreeMixtureProber:
        """Return how a search asks about boxes, with nothing tightened yet."""
        return TreeMixtureProber(self.plan, self.workers, self.trees, self.control)


class TreeMixtureProber(PlanProber):
    """Probes a plan, and bounds boxes by its trees beside, once `tighten` has said what there is to get below.

    The shifts between trees start from those of the smallest box known to hold the present one.

    Parameters
    ----------
    plan, workers
        As in `PlanProber`.
    trees
        The plan as a sum of trees.
    control
        Looked at between eliminations.
    """

    def __init__(self, plan: Plan, workers: int, trees: TreeSum, control: Control) -> None:
        super().__init__(plan, workers)
        self.trees, self.control = trees, control
        self.log_target = -np.inf
        self.n_rows, self.n_stale, self.log_best, self.is_complete = FIRST_ROWS, 0, np.inf, False
        self.found = np.empty((0, len(plan.domain)), plan.domain.point_dtype)
        self.masks: list[NDArray[np.bool_]] = []
        self.shifts: list[Floats] = []
        self.work += BOX_ROUNDS * self._round_work

    @property
    def _round_work(self) -> int:
        return EDGES_PER_ENTRY * self.n_rows * self.trees.n_entries

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + sum(shifts.nbytes for shifts in self.shifts)

    @property
    def _is_ready(self) -> bool:
        return self.log_target > LOG_FLOOR

    def probe(self, boxes: SearchBoxes) -> Answers:
        answers = super().probe(boxes)
        if not self._is_ready:
            return answers
        inside = boxes.mask > 0
        rows = np.flatnonzero(answers.log_bound > self.log_target)
        starts = [self._shifts_for(inside[row]) for row in rows]
        found: list[BoxBound | None] = [None] * len(rows)

        def task(start: int, stop: int) -> None:
            room = self.trees.room(self.n_rows)
            for i in range(start, stop):
                found[i] = self._bound(inside[rows[i]], starts[i], BOX_ROUNDS, room)

        for_blocks(task, len(rows), 1, self.workers)
        log_bound, each = answers.log_bound.copy(), answers.each_bound.copy()
        for row, bound in zip(rows.tolist(), found, strict=True):
            assert bound is not None
            log_bound[row] = min(log_bound[row], bound.log_bound)
            each[row] = np.minimum(each[row], bound.log_states)
            self._remember(inside[row], bound.shifts)
        return replace(answers, log_bound=log_bound, each_bound=each)

    def _bound(self, mask: NDArray[np.bool_], shifts: Floats, n_rounds: int, room: Any) -> BoxBound:
        return self.trees.bound(mask, shifts, self.log_target, n_rounds, room, self.control)

    def _shifts_for(self, mask: NDArray[np.bool_]) -> Floats:
        """Return the shifts of the smallest remembered box that holds this one."""
        best, size = self.trees.no_shifts, len(mask) + 1
        for known, shifts in zip(self.masks, self.shifts, strict=True):
            count = int(known.sum())
            if count < size and not np.any(mask & ~known):
                best, size = shifts, count
        return best

    def _remember(self, mask: NDArray[np.bool_], shifts: Floats) -> None:
        """Keep a box's shifts; the first, of all that is open, for good, the others until so many came later."""
        self.masks.append(mask)
        self.shifts.append(shifts)
        if len(self.masks) > REMEMBERED:
            del self.masks[1], self.shifts[1]

    def starts(self) -> Points:
        """Return max-product's point at first; later what climbing from the trees' maximisers reaches."""
        if not self.shifts:
            return super().starts()
        points, self.found = self.found, self.found[:0]
        return self.climb(points) if len(points) else points

    def climb(self, points: Points) -> Points:
        return super().climb(np.ascontiguousarray(points))

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Improve the shifts of what is open; pauses where they no longer improve, and then allows larger sets."""
        self._aim(log_threshold)
        mask = within.mask[0] > 0
        if not self._is_ready or not len(within) or self.is_complete:
            return Tightening(0, True, True)
        if self.n_stale == STALE:
            self.n_rows, self.n_stale, self.log_best = 4 * self.n_rows, 0, np.inf
            self.work = 4 * self.view.n_edges + BOX_ROUNDS * self._round_work
        start = self._shifts_for(mask)
        bound = self._bound(mask, start, TIGHTEN_ROUNDS, self.trees.room(self.n_rows))
        self.found = bound.points
        if self.masks:
            self.masks[0], self.shifts[0] = mask, bound.shifts
        else:
            self._remember(mask, bound.shifts)
        self.n_stale = 0 if bound.log_bound < self.log_best - PROGRESS else self.n_stale + 1
        self.log_best = min(self.log_best, bound.log_bound)
        self.is_complete = self.n_stale == STALE and self.n_rows >= MOST_ROWS
        is_paused = self.n_stale == STALE or bound.log_bound <= self.log_target
        return Tightening(TIGHTEN_ROUNDS * self._round_work, is_paused, self.is_complete, True, bound.log_bound)

    def _aim(self, log_target: float) -> None:
        """Take a new target, in units of which shifts are kept."""
        factor = np.exp(self.log_target - log_target) if self._is_ready else 1.0
        self.log_target = log_target
        self.shifts = [factor * shifts for shifts in self.shifts]
