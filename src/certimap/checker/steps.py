"""Proofs by steps: tables reparametrised by shifts, states dropped, variables eliminated or replaced, and splits.

A shift of a table adds a function of one of its variables to it and subtracts the same from the variable's own
table: the sum over all tables stays what it is at every point, and the sum of their maxima, a bound, may fall. Any
numbers do. Where the tables around a variable are too large together, they are put into groups, and each
eliminates a copy of the variable: max_x Π f_i <= Π max_x f_i where it is queried, and where it is hidden, by
Hölder's inequality, Σ_x Π f_i <= Π (Σ_x f_i^(1/w_i))^(w_i), with weights that add up to 1. The file says which
steps to make; each is exact, or raises values only, or is verified, so that none has to be believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.clock import Clock
from certimap.checker.models import Arrays, Reduced, Rejected
from certimap.checker.network import Flags, Network, parts_of
from certimap.checker.numbers import UNIT, Floats, up

CLOSE, SHIFT, DROP, ELIMINATE, REPLACE, ABSORB, SPLIT, DIVIDE, GROUP, TRY, BACK, MAXIMISE = range(12)
LARGEST_SHIFT = 1e100  # nats; no sum of them overflows, nor what is divided by a weight
LEAST_WEIGHT = 1e-12  # of a copy of a hidden variable


class _Reader:
    """Numbers of a proof in the order in which its steps use them."""

    def __init__(self, arrays: Arrays) -> None:
        self.steps = np.asarray(arrays["steps"]).astype(np.int64).ravel()
        self.shifts = np.asarray(arrays["shifts"]).astype(np.float64).ravel()
        self.kept = np.unpackbits(np.asarray(arrays["kept"], np.uint8)).astype(np.bool_)
        if not np.all(np.abs(self.shifts) <= LARGEST_SHIFT):
            raise Rejected(f"a shift is no number of at most {LARGEST_SHIFT:g}")
        self._at = [0, 0, 0]

    def step(self) -> int:
        return int(self._next(0, self.steps, 1)[0])

    def variable(self, network: Network) -> int:
        """Return the open variable that a step is about."""
        v = self.step()
        if v not in network.sizes:
            raise Rejected(f"a step is about variable {v}, which is not open")
        return v

    def shift(self, n: int) -> Floats:
        return self._next(1, self.shifts, n)

    def flags(self, n: int) -> Flags:
        return self._next(2, self.kept, n)

    def grouped(self, network: Network, v: int) -> tuple[list[int], list[Floats], list[float]]:
        """Read how a variable is eliminated in groups: that of each table, shifts, and where hidden weights."""
        groups: list[int] = self._next(0, self.steps, len(network.near[v])).tolist()
        n = max(groups, default=0) + 1
        if min(groups, default=0) < 0 or n > len(groups) + 1:
            raise Rejected(f"variable {v} is eliminated in groups that are none")
        shifts = [self.shift(network.sizes[v]) for _ in range(n - 1)]
        weights = np.ones(n)
        if v in network.hidden:
            given = self.shift(n)
            total = math.fsum(given)
            weights = given / (total if total > 0.0 else math.inf) * (1.0 + 16.0 * UNIT)  # together at least 1
            if not np.all(weights >= LEAST_WEIGHT):
                raise Rejected(f"variable {v} is summed out with the weights {given.tolist()}")
        return groups, shifts, weights.tolist()

    def _next(self, k: int, values: NDArray[Any], n: int) -> NDArray[Any]:
        start = self._at[k]
        self._at[k] = start + n
        if self._at[k] > len(values):
            raise Rejected("the proof ends before all parts are closed")
        return values[start : start + n]

    def end(self) -> None:
        """Refuse what is left over."""
        if self._at[:2] != [len(self.steps), len(self.shifts)] or not 0 <= len(self.kept) - self._at[2] < 8:
            raise Rejected("the proof has steps beyond the last part")


def check_steps(
    problem: Reduced, boxes: Sequence[Sequence[Flags]], arrays: Arrays, threshold: float, clock: Clock
) -> str | None:
    """Make the steps of a proof in boxes of the query, one after the other.

    Return the sentence about a step that does not hold, or None if all parts close.
    """
    given, n_closed = _Reader(arrays), 0
    waiting = [(network, threshold) for network in parts_of(problem, boxes)[::-1]]
    while waiting:
        parts, said = _closed(*waiting.pop(), given, clock)
        if said is not None:
            return f"part {n_closed} does not hold: {said}"
        n_closed += not parts
        waiting += parts[::-1]
    given.end()
    return None


Parts = list[tuple[Network, float]]  # each with the level that it has to be closed at


def _closed(network: Network, threshold: float, given: _Reader, clock: Clock) -> tuple[Parts, str | None]:
    """Make steps until a part is closed, or is split into several, which are returned."""
    tried: Network | None = None  # what goes on after steps that are made on a copy
    while True:
        clock.look()
        step = given.step()
        if step == CLOSE:
            bound = network.bound()
            return [], None if bound <= threshold else f"its bound is {bound:.12g}, above {threshold:.12g}"
        if step == SHIFT:
            network.shift(given.shift(sum(sum(shape) for _, shape in network.shapes)))
        elif step == DROP:
            left, said = _left(network, threshold, given)
            if left is None:
                return [], said
            network = left
        elif step == ABSORB:
            network.absorb()
        elif step == TRY and tried is None:
            tried, network = network, network.copy()
        elif step == BACK and tried is not None:
            tried, network = None, tried.without_lost(network)
        elif step == DIVIDE and tried is None:
            return _divided(network, threshold, given)
        elif step == SPLIT and tried is None:
            return _parts(network, threshold, given)
        elif step in (ELIMINATE, REPLACE, GROUP, MAXIMISE):
            _without(network, step, given)
        else:
            return [], f"there is no step of the kind {step} here"


def _without(network: Network, step: int, given: _Reader) -> None:
    """Eliminate or replace a variable, or maximise a hidden one."""
    v = given.variable(network)
    if step == ELIMINATE:
        network.eliminate(v)
    elif step == GROUP:
        network.eliminate(v, *given.grouped(network, v))
    else:
        near, k = sorted(network.near[v]), given.step()
        if not 0 <= k < len(near):
            raise Rejected(f"a step about variable {v} names a table that it is not in")
        (network.replace if step == REPLACE else network.maximise)(v, near[k])


def _left(network: Network, threshold: float, given: _Reader) -> tuple[Network | None, str | None]:
    """Drop states; None where nothing is left, or a state is above the threshold."""
    _, each = network.bounds()
    kept = {v: given.flags(len(found)) for v, found in each.items()}
    for v, flags in kept.items():
        if not np.all(flags | (each[v] <= threshold)):
            worst = float(each[v][~flags].max())
            return None, f"a state of variable {v} is dropped at {worst:.12g}, above {threshold:.12g}"
    return (network.keep(kept) if all(flags.any() for flags in kept.values()) else None), None


def _divided(network: Network, threshold: float, given: _Reader) -> tuple[Parts, str | None]:
    """Give each component a level of its own: what none exceeds adds up to what their product does not."""
    found = network.components()
    levels = given.shift(len(found)).tolist()
    total = float(up(math.fsum([*network.constants, *levels])))
    if not total <= threshold:
        return [], f"the levels of its components add up to {total:.12g}, above {threshold:.12g}"
    return list(zip(found, levels, strict=True)), None


def _parts(network: Network, threshold: float, given: _Reader) -> tuple[Parts, str | None]:
    """Split a part by the states of a variable."""
    v = given.variable(network)
    if v in network.hidden:
        return [], f"it is split on variable {v}, which is summed out"
    return [(part, threshold) for part in network.split(v)], None
