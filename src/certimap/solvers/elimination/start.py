"""A first incumbent: draws, then hill climbing by flips of one or several variables."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes, Points

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.trees.bucket_tree import BucketTreePosterior


def climb(
    posterior: BucketTreePosterior, ledger: Ledger, starts: Points, max_work: int
) -> Generator[int, None, None]:
    """Improve points until no flip of one variable helps; everything evaluated goes to the ledger.

    Each round asks once for every one-variable change of all points, then tries all improving changes of a
    point together, the better half of them, and the best alone. Ends when nothing helps or `max_work` is
    spent; yields the work of each round, in table entries.
    """
    points = starts.copy()
    values = ledger.candidates(points)
    active = np.arange(len(points))
    offsets = posterior.domain.offsets[:-1]
    cost = 3 * posterior.region_tree.n_entries
    spent = 0
    while len(active) and spent < max_work:
        each = posterior.log_mass_each(Boxes.of_points(posterior.domain, points[active]))
        best = np.maximum.reduceat(each, offsets, axis=1)
        trials: list[Points] = []
        owners: list[int] = []
        for row, i in enumerate(active):
            gains = best[row] - values[i]
            order = np.argsort(-gains, kind="stable")
            order = order[gains[order] > 1e-10]
            for n in sorted({len(order), (len(order) + 1) // 2, min(1, len(order))} - {0}):
                trials.append(_changed(points[i], order[:n], each[row], posterior))
                owners.append(int(i))
        if not trials:
            return
        found = ledger.candidates(np.array(trials))
        moved: set[int] = set()
        for trial, owner, value in zip(trials, owners, found, strict=True):
            if value > values[owner] + 1e-10:
                points[owner], values[owner] = trial, value
                moved.add(owner)
        active = np.array(sorted(moved), np.int64)
        work = cost * len(best) + posterior.region_tree.n_entries * len(trials)
        spent += work
        yield work


def _changed(
    point: Points, variables: NDArray[np.int64], each: NDArray[np.float64], posterior: BucketTreePosterior
) -> Points:
    """Return a point with some variables moved to their best states."""
    out = point.copy()
    offsets = posterior.domain.offsets
    for v in variables:
        out[v] = int(np.argmax(each[offsets[v] : offsets[v + 1]]))
    return out
