"""Proofs for networks whose elimination rests on which vectors are dropped.

The checker's own elimination runs here, on the checker's tables and in its order, and what becomes of each vector
is written down. Kernels find the vectors that dominate others and the combinations that do; functions of the
checker judge them before they are written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.buckets import Buckets
from certimap.checker.clock import Clock
from certimap.checker.graph import Flags
from certimap.checker.kept import (
    Box,
    Followed,
    Script,
    Step,
    boxes_beside,
    is_exceeded,
    passes_over,
    room_below,
)
from certimap.checker.models import Reduced, Rejected
from certimap.checker.numbers import Floats, Ints
from certimap.checker.vectors import TIE, Vectors, groups_of, joined, scores_of
from certimap.solvers.elimination.kernels import mixtures
from certimap.solvers.elimination.kernels.dominance import skyband
from certimap.solvers.elimination.kernels.witnesses import dominators

LIMITS = (64, 2048, 16384)  # vectors that a set may have, one elimination after the other
ROUNDS = 200  # of play for a combination
BUDGET = 10**12  # multiplications of one set, more than there ever are; the clock ends what takes too long
MARGIN = 0.2  # of the allowance, by which more vectors are listed than the checker will ask for
Arrays = dict[str, NDArray[Any]]


@dataclass(eq=False)
class Recording(Followed):
    """An elimination that prunes its sets, and keeps the steps; `room` is the bytes that these may still take."""

    room: float = np.inf
    steps: list[Step] = field(default_factory=list[Step])

    def decided(self, parts: Iterator[Vectors], acting: Floats, is_done: bool) -> tuple[Vectors, Step]:
        listed, held, scores, at = list[Ints](), list[Vectors](), list[Floats](), 0
        for part in parts:
            worth = scores_of(part, acting)
            rows = np.flatnonzero(worth > self.threshold)
            listed.append(rows + at)
            held.append(part.take(rows))
            scores.append(worth[rows])
            at += len(part.context)
            self.room -= 4.0 * len(rows)
            if self.room < 0.0:
                raise Rejected("the kept vectors would take more bytes than a proof may")
        found = joined(held, acting.shape[1])
        step = self._pruned(found, np.concatenate([*listed, np.empty(0, np.int64)]), scores, is_done)
        self.steps.append(step)
        return found, step

    def _pruned(self, found: Vectors, listed: Ints, scores: list[Floats], is_done: bool) -> Step:
        n, crowd = len(found.context), 4 * self.limit
        nothing = np.empty(0, np.int64)
        dominated, by, mixed, lengths, members, counts = (nothing,) * 6
        groups = np.arange(n)
        if n > 1 and (is_done or n > crowd):
            order = np.argsort(found.context, kind="stable")
            values, ptr = linear(found, order)
            dominated, by, alive = self._dominated(found, values, ptr, order)
            if is_done:
                mixed, lengths, members, counts = self._mixed(found, values, ptr, order, alive)
            kept = np.ones(n, np.bool_)
            kept[dominated] = kept[mixed] = False
            groups = np.arange(int(kept.sum()))
        else:
            kept = np.ones(n, np.bool_)
        if len(groups) > max(self.limit if is_done else crowd, 2 * len(np.unique(found.context))):
            self.n_merged += 1
            groups = groups_of(found.take(kept), self.limit, np.concatenate(scores)[kept])
        return Step(listed, dominated, by, mixed, lengths, members, counts, groups)

    def _dominated(self, found: Vectors, values: Floats, ptr: Ints, order: Ints) -> tuple[Ints, Ints, Flags]:
        """Return rows that others dominate, these others, and which of the sorted rows are left."""
        alive, by = np.ones(len(order), np.bool_), np.empty(len(order), np.int64)
        self.clock.look()
        skyband(values, ptr, 1, alive)
        dominators(values, ptr, alive, by)
        rows = np.flatnonzero(by >= 0)
        rows = rows[room_below(found, order[rows], order[by[rows]]) >= -TIE]
        left = np.ones(len(order), np.bool_)
        left[rows] = False
        return order[rows], order[by[rows]], left

    def _mixed(
        self, found: Vectors, values: Floats, ptr: Ints, order: Ints, alive: Flags
    ) -> tuple[Ints, Ints, Ints, Ints]:
        """Return rows that combinations of others dominate, and these: lengths, members and counts."""
        nothing = np.empty(0, np.int64)
        order, values = order[alive], values[alive]
        ptr = np.concatenate([[0], np.cumsum(alive)])[ptr]
        state, places, at = np.zeros(len(order), np.int8), np.empty(len(order), np.int64), np.zeros(2, np.int64)
        while at[0] < len(ptr) - 1:
            self.clock.look()
            mixtures.unmixed(values, ptr, ROUNDS, BUDGET, state, places, at)
        rows = np.flatnonzero(state == mixtures.DROPPED)
        if not len(rows):
            return nothing, nothing, nothing, nothing
        picked = np.empty((len(rows), ROUNDS), np.int32)
        mixtures.combinations(values, ptr, state, rows, picked)
        owner, members, counts = counted(picked)
        lengths = np.bincount(owner, minlength=len(rows))
        some = lengths > 0
        rows, lengths = rows[some], lengths[some]
        fits = is_exceeded(found, order[rows], lengths, order[members], counts)
        entries = np.repeat(fits, lengths)
        return order[rows[fits]], lengths[fits], order[members[entries]], counts[entries]


def linear(found: Vectors, order: Ints) -> tuple[Floats, Ints]:
    """Return rows in an order of contexts, each entry divided by the largest there, and where contexts begin."""
    values, contexts = found.values[order], found.context[order]
    starts = np.flatnonzero(np.diff(contexts, prepend=-1))
    tops = np.maximum.reduceat(values, starts, axis=0)
    tops = np.where(np.isfinite(tops), tops, 0.0)
    ptr = np.append(starts, len(order))
    return np.exp(values - np.repeat(tops, np.diff(ptr), axis=0)), ptr


def counted(picked: NDArray[np.int32]) -> tuple[Ints, Ints, Ints]:
    """Return who picks whom, and how often it counts: the pick of round t counts t times."""
    is_round = np.cumsum(picked < 0, axis=1) == 0
    owner, place = np.nonzero(is_round)
    n = int(picked.max(initial=0)) + 1
    pairs, inverse = np.unique(owner * n + picked[owner, place], return_inverse=True)
    counts = np.bincount(inverse, place + 1.0, minlength=len(pairs)).astype(np.int64)
    return pairs // n, pairs % n, counts


def written(steps: list[Step], passes: list[int]) -> Arrays:
    """Return steps as the arrays of a proof."""
    columns: dict[str, list[Ints]] = {name: [] for name in Script.NAMES}
    for step in steps:
        parts = (step.dominated, step.by, step.mixed, step.lengths, step.members, step.counts, step.groups)
        for name, part in zip(columns, (np.diff(step.listed, prepend=-1), *parts), strict=True):
            columns[name].append(part)
    sizes = np.array([[len(part) for part in column] for column in columns.values()], np.int64).T
    arrays = {name: np.concatenate([*parts, np.empty(0, np.int64)]) for name, parts in columns.items()}
    narrow = {name: a.astype(np.min_scalar_type(int(a.max(initial=0)))) for name, a in arrays.items()}
    return {"sizes": sizes.reshape(len(steps), len(columns)), "passes": np.array(passes, np.int64), **narrow}


def size_of(steps: list[Step]) -> int:
    """Return about how many bytes steps take in a proof, before they are packed."""
    return 4 * sum(
        len(s.listed) + 2 * (len(s.dominated) + len(s.mixed) + len(s.members)) + len(s.groups) for s in steps
    )


def recorded(
    checked: Reduced,
    points: Sequence[Sequence[int]],
    epsilon: float,
    tolerance: float,
    seconds: float,
    max_bytes: int,
) -> Arrays | None:
    """Return kept vectors of eliminations that exclude better assignments than some; None where none was found.

    Parameters
    ----------
    checked
        The network under the evidence.
    points
        The answers, states of the query variables. Several are left out of the space.
    epsilon, tolerance
        What the answers, the last of them, are claimed to be good for.
    seconds, max_bytes
        What may be taken.
    """
    tree, clock = Buckets.of(checked), Clock.starting_now(seconds)
    answers = [
        [np.arange(checked.sizes[v]) == state for v, state in zip(checked.queried, point, strict=True)]
        for point in points
    ]
    slack = math.log1p(tolerance)
    allowance = 0.5 * slack
    log_value = min(tree.bound(answer, -1) for answer in answers)
    level = log_value - math.log1p(-epsilon) + slack - (1.0 + MARGIN) * allowance
    steps, passes = list[Step](), list[int]()
    for whole in boxes_beside(tree, answers):
        limits = iter(LIMITS)
        runs: list[Recording] = []
        room = max_bytes - size_of(steps)

        def begin(
            box: Box,
            messages: list[Floats],
            limits: Iterator[int] = limits,
            runs: list[Recording] = runs,
            room: int = room,
        ) -> Recording | None:
            limit = next(limits, None)
            if limit is None:
                return None
            room -= sum(size_of(run.steps) for run in runs)
            runs.append(Recording(tree, box, messages, level, limit, clock, room=room))
            return runs[-1]

        try:
            n_passes, bound = passes_over(tree, whole, level, allowance, begin)
        except Rejected:
            return None
        if bound > -np.inf:
            return None
        passes.append(n_passes)
        steps += [step for run in runs for step in run.steps]
    return written(steps, passes)
