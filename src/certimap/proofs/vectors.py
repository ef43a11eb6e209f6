"""Proofs for networks: records an elimination on sets of vectors.

The checker's own elimination runs here, on the checker's tables and in its order. Kernels find the vectors and the
combinations of vectors that dominate others; functions of the checker verify them before they are written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from certimap.checker.buckets import ProofBuckets
from certimap.checker.elimination import EliminationPart, exclude
from certimap.checker.models import CheckBudget, Rejected
from certimap.checker.vectors import (
    TIE,
    PlainVectors,
    Step,
    Vectors,
    VectorScript,
    grouped,
    groups_of,
    is_exceeded,
    room_below,
)
from certimap.core.arrays import Array, Flags, Floats, Ints, Ints32
from certimap.solvers.elimination.kernels.dominance import DROPPED, skyband, unmixed

ROUNDS = 200  # of play for a combination
FEW = 64  # with at most this many vectors in a set, no combinations are sought
BUDGET = 10**12  # multiplications per set: no real limit, for the clock ends a long search
MARGIN = 0.2  # of the allowance; vectors that much below the checker's level are listed too
NOTHING = np.empty(0, np.int64)
Arrays = dict[str, Array]


class VectorRecorder(PlainVectors):
    """Decides on boxes and vectors, and records the decisions in at most `room` bytes."""

    LIMITS = (1024, 16384)

    def __init__(self, level: float, room: float, budget: CheckBudget) -> None:
        super().__init__(level, budget)
        self.room, self.steps, self.acts = room, list[Step](), list[int]()

    def act(self, part: EliminationPart) -> int:
        """Close a box, eliminate it or split it, and record the action."""
        self.acts.append(super().act(part))
        return self.acts[-1]

    def begin(self) -> None:
        """Begin a step."""
        self.rows: list[Ints] = [NOTHING]
        self.n_rows = 0

    def listed(self, scores: Floats) -> Ints:
        """Return the next rows of a product that may exceed the threshold, and record them."""
        rows = np.flatnonzero(~(scores <= self.level))
        self.rows.append(rows + self.n_rows)
        self.n_rows += len(scores)
        self.room -= 4.0 * len(rows)
        if self.room < 0.0:
            raise Rejected("the kept vectors would take more bytes than a proof may")
        return rows

    def reduced(self, found: Vectors, acting: Floats) -> tuple[Vectors, float]:
        """Drop dominated vectors, and group the rest if there are too many; reduce products only if large."""
        n, n_contexts, is_done, lost = len(found.context), len(np.unique(found.context)), not self.n_rows, 0.0
        limit = self.limit if is_done else 4 * self.limit
        parts = [NOTHING] * 4
        if n > (n_contexts if is_done else limit):
            order = np.argsort(found.context, kind="stable")
            values, ptr = linear(found, order)
            gone, by, alive, lost = self._dominated(found, values, ptr, order)
            ones = np.ones(len(gone), np.int64)
            parts = [gone, ones, by, ones]
            if is_done and n - len(gone) > FEW:
                mixed = self._mixed(found, values, ptr, order, alive)
                parts = [np.concatenate(pair) for pair in zip(parts, mixed, strict=True)]
        step = Step(np.concatenate(self.rows), parts[0], parts[1], parts[2], parts[3], NOTHING)
        found = step.applied(found)
        if len(found.context) > max(limit, 2 * n_contexts):
            step = replace(step, groups=groups_of(found, self.limit, acting))
            found = grouped(found, step.groups)
        self.room -= 2.0 * sum(len(part) for part in parts) + len(step.groups)
        self.steps.append(step)
        return found, lost

    def _dominated(
        self, found: Vectors, values: Floats, ptr: Ints, order: Ints
    ) -> tuple[Ints, Ints, Flags, float]:
        """Return the dominated rows, their dominators, flags of sorted rows left, and the nats lost to ties."""
        by = np.full(len(order), -1)
        self.budget.look()
        skyband(values, ptr, 1, by)
        rows = np.flatnonzero(by >= 0)
        room = room_below(found, order[rows], order[by[rows]])
        rows = rows[room >= -TIE]
        left = np.ones(len(order), np.bool_)
        left[rows] = False
        lost = max(0.0, -float(np.min(room[room >= -TIE], initial=0.0)))
        return order[rows], order[by[rows]], left, lost

    def _mixed(
        self, found: Vectors, values: Floats, ptr: Ints, order: Ints, alive: Flags
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the rows dominated by combinations of others, and the combinations: lengths, members, counts."""
        order, values = order[alive], values[alive]
        ptr = np.concatenate([[0], np.cumsum(alive)])[ptr]
        state, places, at = np.zeros(len(order), np.int8), np.empty(len(order), np.int64), np.zeros(2, np.int64)
        picked = np.empty((len(order), ROUNDS), np.int32)
        while at[0] < len(ptr) - 1:
            self.budget.look()
            unmixed(values, ptr, ROUNDS, BUDGET, state, places, at, picked)
        rows = np.flatnonzero(state == DROPPED)
        owner, members, counts = counted(picked[rows])
        lengths = np.bincount(owner, minlength=len(rows))
        some = lengths > 1
        rows, lengths = rows[some], lengths[some]
        entries = some[owner]
        members, counts = members[entries], counts[entries]
        fits = is_exceeded(found, order[rows], lengths, order[members], counts)
        entries = np.repeat(fits, lengths)
        return order[rows[fits]], lengths[fits], order[members[entries]], counts[entries]


def linear(found: Vectors, order: Ints) -> tuple[Floats, Ints]:
    """Return rows sorted by context, each entry divided by its column's maximum, and the starts of contexts."""
    values, contexts = found.values[order], found.context[order]
    starts = np.flatnonzero(np.diff(contexts, prepend=-1))
    tops = np.maximum.reduceat(values, starts, axis=0)
    tops = np.where(np.isfinite(tops), tops, 0.0)
    ptr = np.append(starts, len(order))
    return np.exp(values - np.repeat(tops, np.diff(ptr), axis=0)), ptr


def counted(picked: Ints32) -> tuple[Ints, Ints, Ints]:
    """Return the picking rows, the picked rows, and their weights: the pick of round t counts t times."""
    is_round = np.cumsum(picked < 0, axis=1) == 0
    owner, place = np.nonzero(is_round)
    n = int(picked.max(initial=0)) + 1
    pairs, inverse = np.unique(owner * n + picked[owner, place], return_inverse=True)
    counts = np.bincount(inverse, place + 1.0, minlength=len(pairs)).astype(np.int64)
    return pairs // n, pairs % n, counts


def written(recorder: VectorRecorder) -> Arrays:
    """Return the record as the arrays of a proof; none if every box closes at once."""
    if not any(recorder.acts):
        return {}
    steps = recorder.steps
    parts = zip(*((s.listed, s.gone, s.lengths, s.members, s.counts, s.groups) for s in steps), strict=True)
    columns = {name: list(column) for name, column in zip(VectorScript.NAMES, parts, strict=True)}
    sizes = np.array([[len(part) for part in column] for column in columns.values()], np.int64).T
    columns["listed"] = [np.diff(part, prepend=-1) for part in columns["listed"]]
    arrays = {name: np.concatenate([*parts, NOTHING]) for name, parts in columns.items()}
    arrays |= {"plan": np.array(recorder.acts), "sizes": sizes.reshape(len(steps), len(columns))}
    return {name: a.astype(np.min_scalar_type(int(a.max(initial=0)))) for name, a in arrays.items()}


def recorded(
    tree: ProofBuckets, points: Sequence[Sequence[int]], epsilon: float, tolerance: float, max_bytes: int
) -> Arrays | None:
    """Return the record of eliminations that exclude assignments better than the answers; None if none is found.

    `tree` is the checker's bucket tree of the network under the evidence, with its budget. `points` are the
    answers as states of the query variables; the worst of them sets the threshold of the claim, and several are
    cut out of the space. The record has at most `max_bytes`.
    """
    budget = tree.budget
    answers = [
        [np.arange(tree.sizes[v]) == state for v, state in zip(tree.queried, point, strict=True)]
        for point in points
    ]
    slack = math.log1p(tolerance)
    allowance = 0.5 * slack
    log_value = min(tree.bound(answer, -1) for answer in answers)
    level = log_value - math.log1p(-epsilon) + slack - (1.0 + MARGIN) * allowance
    recorder = VectorRecorder(level, max_bytes, budget)
    try:
        exclude(tree, answers, level, allowance, recorder)
    except Rejected:
        return None
    return written(recorder)
