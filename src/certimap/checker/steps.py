"""Proofs by steps: tables reparametrised by shifts, states dropped, variables eliminated or replaced, and splits.

A shift adds a function of one variable to a table and subtracts it from the variable's own table: the value at a
point stays, while the sum of all maxima, a bound, may fall. If the product of a variable's tables is too large,
groups of tables eliminate a copy of it each: max_x Π f_i <= Π max_x f_i, and by Hölder's inequality
Σ_x Π f_i <= Π (Σ_x f_i^(1/w_i))^(w_i), with weights that add up to 1. The file lists the steps. Each is exact,
only raises values, or is verified, so that none needs trust.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Arrays, CheckBudget, ReducedModel, Rejected
from certimap.checker.network import PlainNetwork, parts_of
from certimap.checker.numbers import UNIT, Flags, Floats, up

CLOSE, SHIFT, DROP, ELIMINATE, REPLACE, ABSORB, SPLIT, DIVIDE, GROUP, TRY, BACK, MAXIMISE = range(12)
LARGEST_SHIFT = 1e100  # nats; no sum of shifts overflows, not even divided by a weight
ENDS = "the proof ends before all parts are closed"
LEAST_WEIGHT = 1e-12  # of a copy of a hidden variable


def shares(given: Floats) -> Floats:
    """Normalise a file's weights for the copies of a hidden variable; their sum is at least 1."""
    total = math.fsum(given)
    return given / (total if total > 0.0 else math.inf) * (1.0 + 16.0 * UNIT)


class _Reader:
    """Reads the numbers of a proof in the order in which its steps use them."""

    def __init__(self, arrays: Arrays) -> None:
        self.steps, self.shifts, self.kept = arrays["steps"], arrays["shifts"], arrays["kept"]
        kinds = [a.dtype.kind for a in (self.steps, self.shifts)]
        if kinds != ["i", "f"] or self.kept.dtype != np.uint8 or {self.steps.ndim, self.kept.ndim} != {1}:
            raise Rejected("the steps are no whole numbers, the shifts no logs, or the states kept no bits")
        if self.shifts.ndim != 1 or not np.all((self.shifts <= LARGEST_SHIFT) & (self.shifts >= -LARGEST_SHIFT)):
            raise Rejected(f"a shift is no number of at most {LARGEST_SHIFT:g}")
        self._at = [0, 0, 0]
        self.n_closed = 0  # parts closed so far

    def refusal(self, said: str) -> Rejected:
        """Return the error for a step that fails in the current part."""
        return Rejected(f"part {self.n_closed} does not hold: {said}")

    def step(self) -> int:
        return int(self._next(0, self.steps, 1)[0])

    def variable(self, network: PlainNetwork) -> int:
        """Read the variable of a step; reject one that is not open."""
        v = self.step()
        if v not in network.sizes:
            raise Rejected(f"a step is about variable {v}, which is not open")
        return v

    def shift(self, n: int) -> Floats:
        return self._next(1, self.shifts, n)

    def flags(self, n: int) -> Flags:
        start = self._at[2]
        self._at[2] = start + n
        if self._at[2] > 8 * len(self.kept):
            raise Rejected(ENDS)
        bits = np.unpackbits(self.kept[start // 8 : (start + n + 7) // 8])
        return bits[start % 8 : start % 8 + n].astype(np.bool_)

    def grouped(self, network: PlainNetwork, v: int) -> tuple[list[int], list[Floats], list[float]]:
        """Read an elimination in groups: each table's group, the shifts, and the weights (all 1 if queried)."""
        groups: list[int] = self._next(0, self.steps, len(network.near[v])).tolist()
        n = max(groups, default=0) + 1
        if min(groups, default=0) < 0 or n > len(groups) + 1:
            raise Rejected(f"variable {v} is eliminated in groups that are none")
        shifts = [self.shift(network.sizes[v]) for _ in range(n - 1)]
        weights = np.ones(n)
        if v in network.hidden:
            weights = shares(self.shift(n))
            if not np.all(weights >= LEAST_WEIGHT):
                raise Rejected(f"variable {v} is summed out with weights that are no positive shares")
        return groups, shifts, weights.tolist()

    def _next(self, k: int, values: NDArray[Any], n: int) -> NDArray[Any]:
        start = self._at[k]
        self._at[k] = start + n
        if self._at[k] > len(values):
            raise Rejected(ENDS)
        return values[start : start + n]

    def end(self) -> None:
        """Reject numbers left over."""
        if self._at[:2] != [len(self.steps), len(self.shifts)] or not 0 <= 8 * len(self.kept) - self._at[2] < 8:
            raise Rejected("the proof has steps beyond the last part")


Parts = Iterator[tuple[PlainNetwork, float]]  # each with the level at which it must close
Waiting = tuple[Parts, int]  # with the bytes of the network that they come from


def check_steps(
    problem: ReducedModel, boxes: Sequence[Sequence[Flags]], arrays: Arrays, threshold: float, budget: CheckBudget
) -> None:
    """Apply the steps of a proof to boxes of the query, one after the other; reject a step that fails."""
    given = _Reader(arrays)
    waiting: list[Waiting] = [(((network, threshold) for network in parts_of(problem, boxes, budget)), 0)]
    while waiting:
        part = next(waiting[-1][0], None)
        if part is None:
            budget.hold(-waiting.pop()[1], "")
            continue
        held = budget.held
        below = _closed(*part, given, budget)
        budget.held = held
        if below is None:
            given.n_closed += 1
        else:
            budget.hold(below[1], "the parts that wait")
            waiting.append(below)
    given.end()


def _closed(network: PlainNetwork, threshold: float, given: _Reader, budget: CheckBudget) -> Waiting | None:
    """Apply steps until a part closes or splits; return its parts, and None if it closes."""
    tried: PlainNetwork | None = None  # the network to return to after steps on a copy
    before = budget.held
    while True:
        budget.need(network.n_bytes, "a part of the network")
        step = given.step()
        if step == CLOSE:
            bound = network.bound()
            if not bound <= threshold:
                raise given.refusal(f"its bound is {bound:.12g}, above {threshold:.12g}")
            return None
        if step == SHIFT:
            network.shift(given.shift(network.shift_layout[1]))
        elif step == DROP:
            left = _left(network, threshold, given)
            if left is None:
                return None
            network = left
        elif step == ABSORB:
            network.absorb()
        elif step == TRY and tried is None:
            tried, network, before = network, network.copy(), budget.held
            budget.hold(tried.n_bytes, "a copy of a part of the network")
        elif step == BACK and tried is not None:
            tried, network, budget.held = None, tried.without_lost(network), before
        elif step == DIVIDE and tried is None:
            return _divided(network, threshold, given)
        elif step == SPLIT and tried is None:
            v = given.variable(network)
            if v in network.hidden:
                raise given.refusal(f"it is split on variable {v}, which is summed out")
            return ((part, threshold) for part in network.split(v)), network.n_bytes
        elif step in (ELIMINATE, REPLACE, GROUP, MAXIMISE):
            _without(network, step, given)
        else:
            raise given.refusal(f"there is no step of the kind {step} here")


def _without(network: PlainNetwork, step: int, given: _Reader) -> None:
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


def _left(network: PlainNetwork, threshold: float, given: _Reader) -> PlainNetwork | None:
    """Drop states, and reject the drop of a state that is too good; return None if nothing is left."""
    _, each = network.bounds()
    kept = {v: given.flags(len(found)) for v, found in each.items()}
    for v, flags in kept.items():
        if not np.all(flags | (each[v] <= threshold)):
            worst = float(each[v][~flags].max())
            raise given.refusal(f"a state of variable {v} is dropped at {worst:.12g}, above {threshold:.12g}")
    return network.keep(kept) if all(flags.any() for flags in kept.values()) else None


def _divided(network: PlainNetwork, threshold: float, given: _Reader) -> Waiting:
    """Give each component its own level; the levels must add up to at most the threshold."""
    found = network.components()
    levels = given.shift(len(found)).tolist()
    total = float(up(math.fsum([*network.constants, *levels])))
    if not total <= threshold:
        raise given.refusal(f"the levels of its components add up to {total:.12g}, above {threshold:.12g}")
    return zip(found, levels, strict=True), sum(part.n_bytes for part in found)
