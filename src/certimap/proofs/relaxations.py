"""Proofs for networks too wide to be eliminated: a relaxation of the network as it is, and boxes it closes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.boxes import LEAF, SHRUNK
from certimap.checker.buckets import MAX_TABLE
from certimap.checker.models import Reduced
from certimap.checker.relaxed import Relaxation
from certimap.control import Control
from certimap.networks.problem import Problem, Table
from certimap.networks.relaxation.choose_tree import CLIQUE_BITS
from certimap.networks.relaxation.partition import limit, nuisance_first, split
from certimap.networks.relaxation.pass_clock import PassClock
from certimap.networks.relaxation.split_tree import SplitTree
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener

UNSPLIT_BITS = math.log2(MAX_TABLE)
MOST_ENTRIES = 2.0**23  # of all regions together
TABLE_BITS = (10.0, 14.0, 18.0)  # of the largest tables of relaxations with copies, one after the other
FEW_BOXES, MANY_BOXES, MOST_BOXES = 40, 1000, 10**9  # tried before a relaxation is tightened further
STEPS = 40  # of the optimiser at each temperature
TIGHTENING_SHARE = 0.4  # of the time
MARGIN = 1e-10  # relative; how far below the threshold boxes close here, so that the checker's rounding fits in
Arrays = dict[str, NDArray[Any]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A tightened tree, the regions that its tables lie in, and where the query's states are among its own."""

    tree: SplitTree
    region: NDArray[np.int64]
    columns: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, queried: list[int], order: list[int], bits: float) -> Relaxed | None:
        """Split a problem's buckets into tables of at most 2^bits entries; None where some cannot be so small."""
        fits = limit(problem.sizes, 2.0**bits)
        region = np.zeros(len(problem.tables), np.int64)
        n_entries = 0.0
        for r, found in enumerate(split(problem, order, fits)):
            region[list(found.tables)] = r
            entries = math.prod(float(problem.sizes[v]) for v in found.scope)
            n_entries += entries
            if entries > MAX_TABLE or n_entries > MOST_ENTRIES:
                return None
        tree = SplitTree.of(problem, order, fits)
        places = {v: i for i, v in enumerate(tree.variables)}
        starts = [int(tree.arrays.state_ptr[places[v]]) for v in queried]
        sizes = [problem.sizes[v] for v in queried]
        columns = np.concatenate([np.arange(start, start + k) for start, k in zip(starts, sizes, strict=True)])
        return cls(tree, region, columns, np.cumsum([0, *sizes]))

    @property
    def arrays(self) -> Arrays:
        """What a proof holds of it."""
        a = self.tree.arrays
        return {
            "own": np.array(self.tree.variables, np.int64)[a.own],
            "parent": a.parent,
            "region": self.region,
            "weights": self.tree.weights,
            "shifts": self.tree.shifts,
        }

    @cached_property
    def _scratch(self) -> Any:
        return self.tree.scratch()

    def probe(self, box: Mask) -> tuple[float, NDArray[np.float64]]:
        """Bound a box of the query and each of its states, in nats."""
        bounds, each = self.tree.probe(self._mask(box)[None])
        return float(bounds[0]), each[0, self.columns]

    def without(self, box: Mask, each: NDArray[np.float64], level: float) -> Mask:
        """Drop the states of a box that an upward pass with the state held bounds by a level, as the checker will.

        A downward pass, which gave the bounds in `each`, may know more where maxima lie inside of sums.
        """
        left = box & (each > level)
        if self.tree.problem.nuisance and not self.tree.is_exact:
            for start, stop in pairwise(self.offsets.tolist()):
                gone = start + np.flatnonzero(box[start:stop] & ~left[start:stop])
                if len(gone) and self._bound(box, start, stop, gone) > level:
                    for column in gone:
                        left[column] = (
                            len(gone) == 1 or self._bound(box, start, stop, gone[gone == column]) > level
                        )
        return left

    def _bound(self, box: Mask, start: int, stop: int, columns: NDArray[np.int64]) -> float:
        """Bound the part of a box that has some states alone of one variable."""
        held = box.copy()
        held[start:stop] = False
        held[columns] = True
        return self.tree.bound(self._mask(held), self._scratch)

    def _mask(self, box: Mask) -> NDArray[np.uint8]:
        mask = self.tree.full_mask()
        mask[self.columns] = box
        return mask


def relaxations(checked: Reduced, control: Control) -> Iterator[tuple[Relaxed, int]]:
    """Yield relaxations, cheap ones first, each whenever it has been tightened some more, in a share of the time.

    With each goes the number of boxes that are worth a try before the next; the one of the lowest bound comes once
    more at the end, with no such limit.
    """
    problem = problem_of(checked)
    limits = Control.starting_now(TIGHTENING_SHARE * control.seconds_left)
    orders = [nuisance_first(problem, bits) for bits in (CLIQUE_BITS if problem.nuisance else CLIQUE_BITS[:1])]
    best: tuple[float, Relaxed] | None = None
    small, *large = ((orders[0], bits) for bits in TABLE_BITS)
    for order, bits in [small, *((order, UNSPLIT_BITS) for order in orders), *large]:
        found = Relaxed.of(problem, checked.queried, order, bits)
        if found is None or (bits == UNSPLIT_BITS and found.tree.is_split):
            continue
        yield found, FEW_BOXES
        tightener = Tightener(found.tree, PassClock(limits))
        for temperature in TEMPERATURES if found.tree.is_split else ():
            if limits.is_late:
                break
            tightener.run(temperature, STEPS)
            yield found, FEW_BOXES if temperature > TEMPERATURES[-1] else MANY_BOXES
        bound = found.tree.bound()
        if best is None or bound < best[0]:
            best = (bound, found)
        if limits.is_late:
            break
    if best is not None:
        yield best[1], MOST_BOXES


def problem_of(checked: Reduced) -> Problem:
    """Return the checker's problem as one that can be relaxed, table by table."""
    open_variables = {v for t in checked.tables for v in t.scope} | set(checked.queried)
    tables = [Table(t.scope, t.logs) for t in checked.tables]
    return Problem(
        {v: checked.sizes[v] for v in sorted(open_variables)},
        frozenset(checked.queried),
        tuple(tables),
        checked.log_constant,
    )


def covered(checked: Reduced, threshold: float, control: Control, max_bytes: int) -> tuple[Arrays, float] | None:
    """Return a relaxation and a tree of boxes that it closes at a threshold (nats), and the threshold.

    Where none is found, the best relaxation and the bound that it has for all; None where no relaxation fits.
    """
    level = threshold - MARGIN * (1.0 + abs(threshold))
    last: Relaxed | None = None
    for found, n_boxes in relaxations(checked, control):
        tree = _closed(found, level, control, max_bytes, n_boxes)
        if tree is not None:
            return {**tree, **found.arrays}, threshold
        last = found
    return None if last is None else _whole(last, checked)


def _closed(found: Relaxed, level: float, control: Control, max_bytes: int, n_boxes: int) -> Arrays | None:
    """Return a tree of boxes that a relaxation closes at a level; None where it takes too many.

    Goes into depth, and splits on the variable whose states' bounds have the smallest sum.
    """
    offsets = found.offsets
    splits: list[int] = []
    kept: list[NDArray[np.uint8]] = []
    waiting: list[Mask] = [np.ones(int(offsets[-1]), np.bool_)]
    while waiting:
        box = waiting.pop()
        bound, each = found.probe(box) if np.any(box) else (-math.inf, np.zeros(len(box)))
        left = found.without(box, each, level)
        counts = np.add.reduceat(left, offsets[:-1], dtype=np.int64)
        if bound <= level or (np.array_equal(left, box) and np.all(counts == 1)):
            splits.append(LEAF)
            continue
        if control.is_late or len(splits) > n_boxes or len(kept) * (len(box) // 8 + 1) > max_bytes:
            return None
        if not np.array_equal(left, box):
            kept.append(np.packbits(left))
            splits.append(SHRUNK)
            waiting.append(left)
            continue
        v = _variable(left, each, counts, offsets)
        splits.append(v)
        for state in np.flatnonzero(left[offsets[v] : offsets[v + 1]])[::-1]:
            part = left.copy()
            part[offsets[v] : offsets[v + 1]] = False
            part[offsets[v] + state] = True
            waiting.append(part)
    return {"splits": np.array(splits, np.int32), "kept": np.concatenate([*kept, np.zeros(0, np.uint8)])}


def _variable(left: Mask, each: NDArray[np.float64], counts: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
    """Return the variable whose states' bounds have the smallest sum, of those that have several."""
    shares = np.where(left, np.exp(each - each[left].max()), 0.0)
    return int(np.argmin(np.where(counts > 1, np.add.reduceat(shares, offsets[:-1]), np.inf)))


def bounded(checked: Reduced, control: Control) -> tuple[Arrays, float] | None:
    """Return a relaxation with one box, and the bound (nats) that it proves."""
    tried = [found for found, _ in relaxations(checked, control)]
    return _whole(tried[-1], checked) if tried else None


def _whole(found: Relaxed, checked: Reduced) -> tuple[Arrays, float]:
    """Return a relaxation with the whole space for a box, and its bound by the checker's arithmetic."""
    arrays: Arrays = {"splits": np.full(1, LEAF, np.int32), "kept": np.zeros(0, np.uint8), **found.arrays}
    boxes = [np.ones((1, checked.sizes[v]), np.bool_) for v in checked.queried]
    return arrays, float(Relaxation.read(arrays, checked).bounds(boxes)[0])
