"""Beam search up a circuit: every node keeps the k best assignments from its children's beams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from certimap.circuits.kernels.decode import evaluate_wanted
from certimap.circuits.plan import Plan
from certimap.circuits.walks import make_scratch, walk_arrays
from certimap.core.arrays import Floats, Ints
from certimap.core.box import Points
from certimap.core.logs import log_sum

BLOCK = 64  # candidates that one walk of a subcircuit evaluates together


@dataclass(frozen=True, eq=False)
class BeamEntry:
    """A node's beam, best first: points (0 outside the node's scope) and ln of the node's value there."""

    points: Floats
    log_values: Floats


def beam(plan: Plan, width: int, should_stop: Callable[[], bool]) -> Points:
    """Return the root's beam, best first, shape (at most width, n).

    A sum ranks its children's assignments by its own value; once `should_stop` returns True, by its largest
    term, without evaluation.

    Cost: `width` times the cost of argmax-product; in a tree, depth times edges times candidates per sum.
    """
    search = _Beam(plan, width, should_stop)
    for node in range(plan.n_nodes):
        search.add(node)
    return search.kept[plan.n_nodes - 1].points.astype(plan.domain.point_dtype)


@dataclass(eq=False)
class _Beam:
    plan: Plan
    width: int
    should_stop: Callable[[], bool]
    kept: dict[int, BeamEntry] = field(default_factory=dict[int, BeamEntry])

    def __post_init__(self) -> None:
        self.nodes, self.peaks = walk_arrays(self.plan)
        self.scratch = make_scratch(self.plan, BLOCK)
        self.n_waiting = np.bincount(self.plan.children, minlength=self.plan.n_nodes)  # parents not yet processed

    def add(self, node: int) -> None:
        """Compute a node's beam, and drop beams with no parents left."""
        plan = self.plan
        below = plan.children[plan.child_ptr[node] : plan.child_ptr[node + 1]].tolist()
        if not plan.is_sum[node]:
            self.kept[node] = self._product(node, below)
        elif node not in self.kept:
            self._sums(node, below)
        for child in below:
            self.n_waiting[child] -= 1
            if self.n_waiting[child] == 0:
                del self.kept[child]

    def _product(self, node: int, below: list[int]) -> BeamEntry:
        """Combine the beams of children and leaves one by one, keeping the best combinations."""
        points, log_values = np.zeros((1, len(self.plan.domain))), np.zeros(1)
        parts = [self._leaf(leaf) for leaf in range(self.plan.leaf_ptr[node], self.plan.leaf_ptr[node + 1])]
        for part in (*parts, *(self.kept[child] for child in below)):
            pairs = (log_values[:, None] + part.log_values[None, :]).ravel()
            best = _largest(pairs, self.width)
            left, right = np.divmod(best, len(part.log_values))
            points, log_values = points[left] + part.points[right], pairs[best]  # scopes are disjoint
        return BeamEntry(points, log_values)

    def _leaf(self, leaf: int) -> BeamEntry:
        """Return the best states of a leaf, or the peak of its density."""
        plan = self.plan
        size = int(plan.domain.n_states[plan.leaf_var[leaf]])
        if size == 0:
            values, log_values = self.peaks.peak_at[leaf : leaf + 1], self.peaks.peak_log[leaf : leaf + 1]
        else:
            start = int(plan.leaf_start[leaf])
            table = plan.log_tables[start : start + size]
            values = _largest(table, self.width).astype(np.float64)
            log_values = table[values.astype(np.int64)]
        points = np.zeros((len(values), len(plan.domain)))
        points[:, plan.leaf_var[leaf]] = values
        return BeamEntry(points, log_values)

    def _sums(self, node: int, below: list[int]) -> None:
        """Compute the beams of all sums over the same children: they share candidates and evaluations."""
        stopped = self.should_stop()
        parts = [self.kept[child] for child in below]
        if stopped:
            candidates = np.concatenate([part.points for part in parts])
            owner = np.repeat(np.arange(len(parts)), [len(part.points) for part in parts])
            terms = np.full((len(parts), len(candidates)), -np.inf)
            terms[owner, np.arange(len(candidates))] = np.concatenate([part.log_values for part in parts])
        else:
            candidates = np.unique(np.concatenate([part.points for part in parts]), axis=0)
            terms = self._evaluated(node, candidates)
        member = node
        while member >= 0:
            first = self.plan.child_ptr[member]
            weights = self.plan.log_weights[first : first + len(below)]
            log_values = log_sum(terms + weights[:, None], 0)
            best = _largest(log_values, self.width)
            self.kept[member] = BeamEntry(candidates[best], log_values[best])
            member = int(self.peaks.next_in_group[member])

    def _evaluated(self, node: int, candidates: Floats) -> Floats:
        """Return ln of each child of a sum at each candidate, shape (n_children, n_candidates)."""
        n_children = int(self.plan.child_ptr[node + 1] - self.plan.child_ptr[node])
        out = np.empty((n_children, len(candidates)))
        self.scratch.wanted[:] = False
        self.scratch.wanted[:n_children] = True
        for start in range(0, len(candidates), BLOCK):
            block = candidates[start : start + BLOCK]
            self.scratch.points[: len(block)] = block
            evaluate_wanted(node, len(block), self.nodes, self.scratch)
            out[:, start : start + len(block)] = self.scratch.pair_log[:n_children, : len(block)]
        return out


def _largest(values: Floats, n: int) -> Ints:
    """Return the indices of the n largest values, largest first; ties in order of index."""
    return np.argsort(-values, kind="stable")[:n]
