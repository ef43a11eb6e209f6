"""Proofs by relaxation: an elimination whose variables are split into copies, and a tree of boxes that it bounds.

Where the bucket of a variable is too large, its functions are put into several regions, and each eliminates a copy
of the variable by itself: of a query variable max_x Π f_i <= Π max_x f_i, of another one, by Hölder's inequality,
Σ_x Π f_i <= Π (Σ_x f_i^(1/w_i))^(w_i) with weights that add up to 1. Shifts multiply the functions of the copies
by factors whose product is 1 in every state, which changes nothing but the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from certimap.checker.boxes import split_tree
from certimap.checker.buckets import MAX_TABLE
from certimap.checker.circuit import boxes_of
from certimap.checker.clock import Clock
from certimap.checker.graph import Flags
from certimap.checker.models import Arrays, Reduced, Rejected, Table, spread
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, up

BATCH_ENTRIES = 2_000_000
LEAST_WEIGHT = 1e-12  # of a copy: where logs are divided by less, entries that count are lost
LARGEST_SHIFT = 1e100  # nats; what is divided by a weight stays finite


@dataclass(frozen=True, eq=False)
class Region:
    """A copy of a variable with what it eliminates it from; `scope` has the variable first.

    `weight` is 0 where the variable is maximised.
    """

    own: int
    parent: int
    scope: list[int]
    tables: list[Table]
    children: list[int]
    weight: float
    shift: Floats


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Regions, children before parents, and what is added to the sum of their last messages (nats)."""

    regions: list[Region]
    sizes: list[int]
    queried: list[int]
    log_constant: float

    @classmethod
    def read(cls, arrays: Arrays, problem: Reduced) -> Relaxation:
        """Read a relaxation of a problem; refuse one that is none.

        Variables go in the order in which their copies are listed. Every table, and every message, must lie with a
        copy of that variable of its scope which goes first: only then is each bucket as a whole what is split.
        """
        own, parent, region_of = (
            np.asarray(arrays[name]).astype(np.int64) for name in ("own", "parent", "region")
        )
        weights, shifts = np.asarray(arrays["weights"], np.float64), np.asarray(arrays["shifts"], np.float64)
        listed: list[int] = own.tolist()
        place = {v: k for k, v in enumerate(dict.fromkeys(listed))}
        ranks = [place[v] for v in listed]
        if len(region_of) != len(problem.tables) or ranks != sorted(ranks) or not len(own):
            raise Rejected("the relaxation's regions do not fit the model")
        held: list[list[Table]] = [[] for _ in ranks]
        of_table: list[int] = region_of.tolist()
        for table, r in zip(problem.tables, of_table, strict=True):
            held[r].append(table)
        total = np.bincount(own, weights, minlength=int(own.max()) + 1)
        regions: list[Region] = []
        children: list[list[int]] = [[] for _ in ranks]
        done = 0
        for r, v in enumerate(listed):
            below = [set(regions[c].scope) - {regions[c].own} for c in children[r]]
            scope = set[int]().union({v}, *(t.scope for t in held[r]), *below)
            if not scope <= set(place) or min(scope, key=place.__getitem__) != v:
                raise Rejected(f"region {r} of the relaxation eliminates a variable out of turn")
            if sum(math.log(problem.sizes[u]) for u in scope) > math.log(MAX_TABLE) + 1e-9:
                raise Rejected(f"region {r} of the relaxation has more than {MAX_TABLE} entries")
            rest = sorted(scope - {v}, key=place.__getitem__)
            above = int(parent[r])
            if rest and (not r < above < len(own) or own[above] != rest[0]):
                raise Rejected(f"region {r} of the relaxation hands its message to the wrong variable")
            if rest:
                children[above].append(r)
            weight = 0.0
            if v not in problem.queried:
                weight = float(weights[r]) / float(total[v]) * (1.0 + 16.0 * UNIT)  # together at least 1
                if not LEAST_WEIGHT <= weight <= 2.0:
                    raise Rejected(f"region {r} of the relaxation has the weight {float(weights[r])}")
            n = problem.sizes[v]
            regions.append(
                Region(v, above if rest else -1, [v, *rest], held[r], [], weight, shifts[done : done + n])
            )
            done += n
        if done != len(shifts) or not np.all(np.abs(shifts) <= LARGEST_SHIFT):
            raise Rejected("the relaxation's shifts do not fit its regions")
        for region, c in zip(regions, children, strict=True):
            region.children.extend(c)
        shifted = sum(_excess([r.shift for r in regions if r.own == v]) for v in place)
        return cls(
            regions,
            problem.sizes,
            problem.queried,
            float(up(problem.log_constant + problem.log_slack + shifted, 8.0)),
        )

    def bounds(self, boxes: Sequence[Flags]) -> Floats:
        """Return upper bounds on the log values in boxes: per query variable its states, shape (batch, states)."""
        largest = max(math.prod(self.sizes[v] for v in r.scope) for r in self.regions)
        rows = max(1, BATCH_ENTRIES // largest)
        parts = [self._bounds([b[i : i + rows] for b in boxes]) for i in range(0, len(boxes[0]), rows)]
        return np.concatenate(parts)

    def _bounds(self, boxes: Sequence[Flags]) -> Floats:
        place = {v: k for k, v in enumerate(self.queried)}
        messages: list[Floats | None] = []
        total: Floats = np.full(len(boxes[0]), self.log_constant)
        for region in self.regions:
            inner = len(region.scope) - 1
            joint = region.shift.reshape(1, -1, *([1] * inner))
            for table in region.tables:
                joint = up(joint + spread(table, region.scope)[None])
            for c in region.children:
                joint = up(joint + self._message(messages, c, region.scope))
            if region.own in place:
                allowed = np.where(boxes[place[region.own]], 0.0, -np.inf)
                found = (joint + allowed.reshape(*allowed.shape, *([1] * inner))).max(axis=1)
            else:
                found = up(region.weight * log_sum(up(joint / region.weight), 1), 2.0)
            if region.parent < 0:
                total = up(total + found)
            messages.append(None if region.parent < 0 else found)
        return total

    def _message(self, messages: list[Floats | None], child: int, scope: Sequence[int]) -> Floats:
        """View a child's message, which nobody else needs, with the axes of a scope behind that of the batch."""
        found, messages[child] = messages[child], None
        assert found is not None
        inside = [-1, *self.regions[child].scope[1:]]
        return spread(Table(tuple(inside), found), [-1, *scope])


def _excess(shifts: list[Floats]) -> float:
    """Return the most by which shifts of copies together fall below 0 in some state, rounded up."""
    reach = float(np.sum(np.abs(shifts), axis=0).max()) if shifts else 0.0
    return float(np.max(-np.sum(shifts, axis=0))) + (4.0 + len(shifts)) * reach * UNIT


def check_relaxed(
    relaxation: Relaxation,
    arrays: Arrays,
    columns: Ints,
    answers: NDArray[np.int64],
    threshold: float,
    value_of: Callable[[list[int]], float],
    clock: Clock,
) -> str | None:
    """Close every box of a tree by the relaxation's bound; return the sentence about one that stays open, or None.

    The states of a variable that a box drops are a box of their own, or one each where that is needed. Boxes of
    one point may close by its value, `value_of`.
    """
    known = {box.tobytes() for box in boxes_of(answers, columns)}
    for node, (box, ending) in enumerate(split_tree(arrays, columns)):
        parts = _dropped(box, ~ending, columns) if np.any(ending) else [(box, -1)]
        parts = [(part, v) for part, v in parts if np.all(np.logical_or.reduceat(part, columns[:-1]))]
        while parts:
            clock.look()
            open_ones: list[tuple[Flags, int]] = []
            bounds = _bounds_of(relaxation, [part for part, _ in parts], columns)
            for (part, lost), bound in zip(parts, bounds, strict=True):
                if bound <= threshold or part.tobytes() in known:
                    continue
                states = _by_state(part, lost, columns) if lost >= 0 else []
                if len(states) > 1:
                    open_ones += [(state, -1) for state in states]
                elif not _closes(part, columns, threshold, value_of):
                    return f"box {node} does not close: its bound is {bound:.12g}, above {threshold:.12g}"
            parts = open_ones
    return None


def _dropped(box: Flags, kept: Flags, columns: Ints) -> list[tuple[Flags, int]]:
    """Split what a box holds beside the states kept of it: a box for each variable that loses some, and which."""
    out: list[tuple[Flags, int]] = []
    left = box.copy()
    for v, (start, stop) in enumerate(pairwise(columns.tolist())):
        part = left.copy()
        part[start:stop] &= ~kept[start:stop]
        if np.any(part[start:stop]):
            out.append((part, v))
        left[start:stop] &= kept[start:stop]
    return out


def _by_state(box: Flags, v: int, columns: Ints) -> list[Flags]:
    """Split a box by the states that it has of a variable."""
    out: list[Flags] = []
    for column in columns[v] + np.flatnonzero(box[columns[v] : columns[v + 1]]):
        part = box.copy()
        part[columns[v] : columns[v + 1]] = False
        part[column] = True
        out.append(part)
    return out


def _closes(box: Flags, columns: Ints, threshold: float, value_of: Callable[[list[int]], float]) -> bool:
    """Whether a box is a single point, of a value that is small enough."""
    if np.any(np.add.reduceat(box, columns[:-1], dtype=np.int64) > 1):
        return False
    return value_of([int(np.argmax(box[a:b])) for a, b in pairwise(columns.tolist())]) <= threshold


def _bounds_of(relaxation: Relaxation, boxes: list[Flags], columns: Ints) -> list[float]:
    if not boxes:
        return []
    stacked = np.stack(boxes)
    parts = [stacked[:, a:b] for a, b in pairwise(columns.tolist())]
    return relaxation.bounds(parts).tolist()
