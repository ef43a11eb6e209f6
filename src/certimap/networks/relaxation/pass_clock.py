"""Passes over the regions of a split tree, cut into pieces with checks of the clock in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from certimap.core.control import Control, TimeUp, WorkClock
from certimap.networks.kernels.split_up import Scratch, TreeArrays

Floats = NDArray[np.float64]
Kind = Literal["up", "gradient", "down"]
PIECE = 2.0**26  # inputs read in one piece: a fraction of a second
SHORT = 2.0**23  # inputs of a pass too short for a check of the clock
SECONDS_PER_INPUT = 2e-10  # until a piece has been timed; less than any machine takes
DOING = "passing over the tables of a relaxation"


class PassClock:
    """Predicts whether a piece will end in time, from the pace of earlier pieces.

    Parameters
    ----------
    control
        The limits of the run; None for passes without a limit.
    """

    def __init__(self, control: Control | None = None) -> None:
        self.control = control or Control()
        self._paces: dict[Kind, WorkClock] = {
            kind: WorkClock(self.control, DOING, SECONDS_PER_INPUT) for kind in ("up", "gradient", "down")
        }

    def pieces(self, tree: TreeArrays, s: Scratch, kind: Kind) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of consecutive regions, from the leaves up for "up" and from the roots down else.

        A pass of a few hundredths of a second is not stopped, because an earlier improvement may depend on it.

        Raises
        ------
        TimeUp
            Instead of a piece that would end too late, and when the run should stop.
        """
        pieces = _cut(tree, s, kind == "up")
        if sum(n for _, _, n in pieces) <= SHORT:
            yield from ((first, last) for first, last, _ in pieces)
            return
        for first, last, n_inputs in pieces:
            with self._paces[kind].piece(n_inputs):
                yield first, last

    def check(self, tree: TreeArrays, n_passes: float) -> None:
        """Raise TimeUp when the run should stop, or `n_passes` upward passes would not end in time."""
        self.control.check(DOING)
        pace = self._paces["up"].seconds_per_unit
        if n_passes * float(inputs_of(tree).sum()) * pace > self.control.seconds_left:
            raise TimeUp(DOING)


def inputs_of(tree: TreeArrays, n_states: NDArray[np.int64] | None = None) -> Floats:
    """Return how many inputs one pass reads in each region, given the number of states of each variable."""
    sizes = (tree.n_states if n_states is None else n_states)[tree.axes].astype(np.float64)
    if not len(sizes):
        return np.zeros(0)
    n_inputs = (1 + tree.n_tables + tree.n_children).astype(np.float64)
    return np.multiply.reduceat(sizes, tree.axis_ptr[:-1]) * n_inputs


def _cut(tree: TreeArrays, s: Scratch, is_upward: bool) -> list[tuple[int, int, float]]:
    """Return the pieces of a pass over the states in `alive`: first and last region, and the inputs read."""
    ends = np.cumsum(inputs_of(tree, s.n_alive))
    if not len(ends):
        return []
    number = np.floor(np.concatenate([[0.0], ends[:-1]]) / PIECE)
    starts = np.flatnonzero(np.diff(number, prepend=-1.0))
    lasts = np.append(starts[1:], len(ends))
    before = np.append(0.0, ends)
    pieces = [(int(a), int(b), float(before[b] - before[a])) for a, b in zip(starts, lasts, strict=True)]
    return pieces if is_upward else pieces[::-1]
