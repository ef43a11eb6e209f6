"""A first incumbent: hill climbing by changes of one or several variables; a list of neighbours of the best."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes, Points
from certimap.core.posterior import Regions

BATCH = 64


@dataclass(eq=False)
class Climb:
    """Hill climbs; all evaluated points go to the ledger.

    Each round computes all one-variable changes of the points that moved last. For each point it then tries all
    improving changes together, the better half of them, and the best alone.
    """

    points: Points
    values: NDArray[np.float64]
    active: NDArray[np.int64]

    @classmethod
    def from_points(cls, points: Points, values: NDArray[np.float64] | None = None) -> Climb:
        """Start from points with known ln p."""
        known = np.empty(0) if values is None else values.copy()
        return cls(points.copy(), known, np.arange(len(points)))

    @property
    def is_done(self) -> bool:
        """Whether no one-variable change improves any point."""
        return not len(self.active)

    def round(self, posterior: Regions, ledger: Ledger) -> int:
        """Improve the points; return the work, in table entries."""
        offsets = posterior.domain.offsets[:-1]
        each = posterior.log_mass_each(Boxes.of_points(posterior.domain, self.points[self.active]))
        best = np.maximum.reduceat(each, offsets, axis=1)
        trials: list[Points] = []
        owners: list[int] = []
        for row, i in enumerate(self.active):
            gains = best[row] - self.values[i]
            order = np.argsort(-gains, kind="stable")
            order = order[gains[order] > 1e-10]
            for n in sorted({len(order), (len(order) + 1) // 2, min(1, len(order))} - {0}):
                trials.append(_changed(self.points[i], order[:n], each[row], posterior))
                owners.append(int(i))
        moved: set[int] = set()
        if trials:
            found = ledger.candidates(np.array(trials))
            for trial, owner, value in zip(trials, owners, found, strict=True):
                if value > self.values[owner] + 1e-10:
                    self.points[owner], self.values[owner] = trial, value
                    moved.add(owner)
        self.active = np.array(sorted(moved), np.int64)
        return posterior.region_tree.n_entries * (3 * len(best) + len(trials))


@dataclass(eq=False)
class Neighbours:
    """A list of the best points, grown by one-variable changes of its points, best first.

    The k-th best known point sets the threshold of the search, so that a good list saves most of its work.
    """

    expanded: set[int] = field(default_factory=set[int])
    is_done: bool = False

    def round(self, posterior: Regions, ledger: Ledger) -> int:
        """Evaluate promising one-variable changes of the best unexpanded points; return the work."""
        waiting = [atom for _, atom in ledger.best if atom not in self.expanded][:BATCH]
        if not waiting:
            self.is_done = True
            return 0
        self.expanded.update(waiting)
        domain = posterior.domain
        points = ledger.atoms.points(np.array(waiting, np.int64))
        each = posterior.log_mass_each(Boxes.of_points(domain, points))
        last = ledger.log_kth_best
        rows, columns = np.nonzero(each > last)
        if len(rows) > 4 * ledger.top_k:  # keep those that can enter the list
            kept = np.argpartition(-each[rows, columns], ledger.top_k)[: ledger.top_k]
            rows, columns = rows[kept], columns[kept]
        variable = np.searchsorted(domain.offsets, columns, side="right") - 1
        trials = points[rows]
        trials[np.arange(len(rows)), variable] = columns - domain.offsets[variable]
        changed = np.any(trials != points[rows], axis=1)
        if changed.any():
            ledger.candidates(np.unique(trials[changed], axis=0))
        return posterior.region_tree.n_entries * (3 * len(points) + int(changed.sum()))


def _changed(point: Points, variables: NDArray[np.int64], each: NDArray[np.float64], posterior: Regions) -> Points:
    """Return a copy of a point with some variables moved to their best states."""
    out = point.copy()
    offsets = posterior.domain.offsets
    for v in variables:
        out[v] = int(np.argmax(each[offsets[v] : offsets[v + 1]]))
    return out
