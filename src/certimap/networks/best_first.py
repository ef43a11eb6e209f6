"""Hybrid best-first search: depth-first dives with limited backtracks below the open node of largest bound.

After Allouche, de Givry, Katsirelos, Schiex and Zytnicki, "Anytime hybrid best-first search with tree
decomposition for weighted CSP" (2015). Each dive leaves its open branches to the list.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from certimap.networks.costs import Costs
from certimap.networks.kernels.depth_first import (
    BACKTRACKS,
    DEPTH,
    FAILED,
    FINISHED,
    FOUND,
    LAST,
    NODES,
    PAUSED,
    TOO_DEEP,
    replay,
    search,
)
from certimap.networks.kernels.dual_ascent import DualState
from certimap.networks.problem import HARD

Ints = NDArray[np.int64]
Decisions = (
    tuple["Decisions", int, int, bool] | None
)  # the decisions before, variable, state, whether it is ruled out

FIRST_LIMIT, LARGEST_LIMIT, GROWTH = 20, 5_000, 1.2
DIVES_BEFORE_GROWTH = 10
NODE_SWEEPS, NODE_SHARE = 3, 0.05
REPLAY_SWEEPS, REPLAY_SHARE = 10, 0.01
LEAD_CAP = 50.0  # nats
BYTES_PER_OPEN_NODE = 300
MAX_LEVELS = 4_000


class BestFirstSearch:
    """The open nodes of a search and the current dive.

    `costs`, `dual`: the problem and its state at the root, after sweeps.
    `max_bytes`: memory of the stack and of the list of open nodes; when the list is full, dives run to their end.
    `lists_all`: report every full assignment above the threshold, not only improvements.
    `open_bound`: the largest bound of a node that is open or being searched; `HARD` when none is left.
    `closed_bound`: the largest threshold at which a branch was cut.
    """

    def __init__(self, costs: Costs, dual: DualState, *, max_bytes: int, lists_all: bool) -> None:
        self.costs = costs
        self.dual = dual
        self.lists_all = lists_all
        self.root = copy_of(dual)
        n_levels = min(MAX_LEVELS, len(costs.arrays.unary) + 1, max_bytes // 2 // costs.bytes_per_level)
        self.stack = costs.stack(max(4, n_levels))
        self.max_open = max(100, max_bytes // 2 // BYTES_PER_OPEN_NODE)
        self.n_bytes_stack = len(self.stack.bound) * costs.bytes_per_level
        self.limit = FIRST_LIMIT
        self.closed_bound = HARD
        self.n_dives = 0
        self._heap: list[tuple[int, int, Decisions]] = [(-int(dual.bound[0]), 0, None)]
        self._count = 0
        self._dive: tuple[int, Decisions] | None = None
        self._leaf = np.zeros(len(costs.variables) + 1, np.int64)
        self._lead_cap = max(1, round(LEAD_CAP / costs.problem.unit))

    @property
    def open_bound(self) -> int:
        listed = -self._heap[0][0] if self._heap else HARD
        return max(listed, HARD if self._dive is None else self._dive[0])

    @property
    def is_done(self) -> bool:
        return self._dive is None and not self._heap

    @property
    def n_nodes(self) -> int:
        return int(self.stack.counters[NODES])

    @property
    def n_bytes(self) -> int:
        return self.n_bytes_stack + len(self._heap) * BYTES_PER_OPEN_NODE

    @property
    def work(self) -> int:
        """Table entries visited so far."""
        return int(self.dual.n_touched[0])

    def advance(self, max_work: int, threshold: int, margin: int, incumbent: Ints) -> Ints | None:
        """Search for about `max_work` more table entries; return a leaf (value and states) if one is reported.

        `incumbent` (value and states) is updated; see the kernels for `threshold` and `margin`.
        """
        until = self.work + max_work
        while self.work < until:
            level = max(threshold, int(incumbent[0]) + margin)
            if self._dive is None and not self._begin(level, threshold, margin, incumbent):
                if self.is_done:
                    return None
                continue
            self.closed_bound = max(self.closed_bound, level)
            status = search(
                self.costs.arrays,
                self.dual,
                self.stack,
                self.limit,
                max(1, until - self.work),
                NODE_SWEEPS,
                NODE_SHARE,
                self._lead_cap,
                threshold,
                margin,
                incumbent,
                self.lists_all,
                self._leaf,
            )
            self.closed_bound = max(self.closed_bound, int(incumbent[0]) + margin)
            if status == FOUND:
                return self._leaf.copy()
            if status != PAUSED:
                self._end(status)
        return None

    def _begin(self, level: int, threshold: int, margin: int, incumbent: Ints) -> bool:
        """Start a dive at the best open node; return False if it is closed, or none is left."""
        if not self._heap:
            return False
        bound, _, decisions = heapq.heappop(self._heap)
        self.closed_bound = max(self.closed_bound, level)
        if -bound <= level:
            self._heap.clear()  # the others have smaller bounds
            return False
        _restore(self.dual, self.root)
        variables, states, is_right = _unrolled(decisions)
        alive = replay(
            self.costs.arrays,
            self.dual,
            variables,
            states,
            is_right,
            REPLAY_SWEEPS,
            REPLAY_SHARE,
            threshold,
            not self.lists_all,
            margin,
            incumbent,
        )
        self.closed_bound = max(self.closed_bound, int(incumbent[0]) + margin)
        if not alive:
            return False
        # The smaller of two bounds bounds the node, but only its own bound goes with the costs of its states.
        self._dive = (min(int(self.dual.bound[0]), -bound), decisions)
        counters = self.stack.counters
        counters[DEPTH] = counters[BACKTRACKS] = counters[FAILED] = 0
        counters[LAST] = -1
        return True

    def _end(self, status: int) -> None:
        """Put the nodes that a dive leaves open into the list."""
        assert self._dive is not None
        bound, decisions = self._dive
        self._dive = None
        self.n_dives += 1
        if status == FINISHED:
            return
        stack = self.stack
        for k in range(int(stack.counters[DEPTH])):
            v, s, is_right = int(stack.variable[k]), int(stack.state[k]), bool(stack.is_right[k])
            if not is_right:
                self._push(min(bound, int(stack.bound[k])), (decisions, v, s, True))
            decisions = (decisions, v, s, is_right)
        if status == TOO_DEEP:
            self._push(min(bound, int(self.dual.bound[0])), decisions)
        if len(self._heap) >= self.max_open:
            self.limit = 2**62
        elif self.n_dives > DIVES_BEFORE_GROWTH:
            self.limit = min(LARGEST_LIMIT, int(self.limit * GROWTH) + 1)

    def _push(self, bound: int, decisions: Decisions) -> None:
        self._count += 1
        heapq.heappush(self._heap, (-bound, self._count, decisions))


def _unrolled(decisions: Decisions) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    steps: list[tuple[int, int, bool]] = []
    while decisions is not None:
        decisions, v, s, is_right = decisions
        steps.append((v, s, is_right))
    steps.reverse()
    variables = np.array([v for v, _, _ in steps], np.int64)
    states = np.array([s for _, s, _ in steps], np.int64)
    return variables, states, np.array([r for _, _, r in steps], np.bool_)


def copy_of(dual: DualState) -> DualState:
    return DualState._make(x.copy() for x in dual)


def _restore(dual: DualState, saved: DualState) -> None:
    for name in ("tables", "unary", "alive", "n_alive", "is_done", "bound"):
        getattr(dual, name)[...] = getattr(saved, name)
