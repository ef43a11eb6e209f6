"""Tightens a relaxation: moves costs between copies and changes weights to minimise a convex bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.control import TimeUp
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.errors import TooLarge
from certimap.networks.kernels import split_tree as kernels
from certimap.networks.problem import Problem
from certimap.networks.relaxation.split_tree import Fits, Mask, PassClock, SplitTree

Objective = Callable[[Floats], tuple[float, Floats]]
MEMORY = 12
SUFFICIENT = 1e-4  # share of the promised decrease that a step must bring
MAX_TRIALS = 12


@dataclass(eq=False)
class QuasiNewton:
    """L-BFGS (Nocedal 1980) with a backtracking line search; plain data between steps.

    scipy's routine for bounded problems takes several times as long as the passes that it requests, and loses its
    memory between calls; here the memory outlives pauses.
    """

    x: Floats  # the point, its value and gradient
    value: float
    slope: Floats
    changes: list[Floats] = field(default_factory=list[Floats])  # the last steps, and the changes of the gradient
    slope_changes: list[Floats] = field(default_factory=list[Floats])
    is_flat: bool = False  # whether the last step no longer helped

    def direction(self) -> Floats:
        """Return the quasi-Newton direction by the two-loop recursion."""
        d = -self.slope
        scales: list[float] = []
        pairs = list(zip(self.changes, self.slope_changes, strict=True))
        for s, y in reversed(pairs):
            scales.append(_dot(s, d) / _dot(s, y))
            d = d - scales[-1] * y
        if pairs:
            s, y = pairs[-1]
            d *= _dot(s, y) / _dot(y, y)
        for (s, y), scale in zip(pairs, reversed(scales), strict=True):
            d = d + (scale - _dot(y, d) / _dot(s, y)) * s
        return d

    def step(self, objective: Objective, least_gain: float = 1e-10) -> bool:
        """Take one step down, usually one evaluation; set `is_flat`, and return False, below `least_gain`."""
        d = self.direction()
        slant = _dot(d, self.slope)
        if slant >= 0.0:  # rounding spoiled the memory
            self.changes, self.slope_changes = [], []
            d = -self.slope
            slant = _dot(d, self.slope)
        length = 1.0 if self.changes else min(1.0, 1.0 / max(float(np.abs(d).max(initial=0.0)), SMALLEST_NORMAL))
        for _ in range(MAX_TRIALS):
            x = self.x + length * d
            value, slope = objective(x)
            if value <= self.value + SUFFICIENT * length * slant:
                s, y = x - self.x, slope - self.slope
                if _dot(s, y) > 1e-12 * _dot(y, y):
                    self.changes, self.slope_changes = [*self.changes, s], [*self.slope_changes, y]
                    del self.changes[:-MEMORY], self.slope_changes[:-MEMORY]
                self.is_flat = self.value - value < least_gain
                self.x, self.value, self.slope = x, value, slope
                return not self.is_flat
            rise = value - self.value - length * slant  # the parabola through both values and the slope
            length *= min(0.5, max(0.1, -0.5 * length * slant / rise)) if np.isfinite(rise) and rise > 0.0 else 0.1
        if self.changes:
            self.changes, self.slope_changes = [], []
            return True
        self.is_flat = True
        return False


def _dot(a: Floats, b: Floats) -> float:
    """Return a scalar product without BLAS, whose threads cost more than they save at these lengths."""
    return float(np.einsum("i,i->", a, b))


TEMPERATURES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
TRIED = 0.1  # temperature at which orders are compared
PASSES_LEFT = 6.0  # upward passes that a bound and a decoded point after the last step may take
LEAST_SHARE = 1e-4  # of a variable's weight that each copy keeps: a power sum of weight 0 has no derivative


class Tightener:
    """Minimises a tree's bound over shifts and weights, within the states of a mask.

    The maximum over a query variable's copy is smoothed to a power sum of weight `temperature`, which bounds it
    from above; at temperature 0 the shifts found give the bound itself. Shifts are kept to a mean of 0 over a
    variable's copies, weights to a sum of 1: any values give a valid bound, so an early stop is harmless.

    `tree`: the tree whose shifts and weights change. `clock`: steps end early enough to compute the final bound in
    time. `mask`: the allowed states. `is_cut`: whether the last run of steps ended because time ran short.
    """

    def __init__(self, tree: SplitTree, clock: PassClock | None = None, mask: Mask | None = None) -> None:
        self.tree, self.clock = tree, clock or PassClock()
        self.scratch = tree.scratch()
        self.search: QuasiNewton | None = None
        self.temperature = np.nan
        self.is_cut = False
        self.mask = tree.full_mask() if mask is None else mask
        self.is_possible = kernels.restrict_to(tree.arrays, self.mask, self.scratch)
        self._is_query = tree.arrays.is_query[tree.arrays.own] == 1
        # the shifts (of copies that are not alone, in alive states) and the weights that may change
        a = tree.arrays
        several = tree.n_copies[a.own] > 1
        sizes = a.n_states[a.own]
        region = np.repeat(np.arange(len(a.own)), sizes)
        state = np.arange(len(region)) - np.repeat(a.shift_ptr[:-1], sizes)
        joint = a.state_ptr[a.own[region]] + state
        self.shift_at = np.flatnonzero(several[region] & (self.mask[joint] > 0))
        _, group = np.unique(joint[self.shift_at], return_inverse=True)
        self.shift_group = group.astype(np.int64)
        self.weight_at = np.flatnonzero(several & ~self._is_query)
        _, group = np.unique(a.own[self.weight_at], return_inverse=True)
        self.weight_group = group.astype(np.int64)
        self.n_of_weight = np.bincount(self.weight_group)[self.weight_group] if len(group) else np.empty(0)

    @property
    def n_parameters(self) -> int:
        return len(self.shift_at) + len(self.weight_at)

    def narrow(self, mask: Mask) -> None:
        """Continue within fewer states; parameters of dropped states stay unchanged."""
        if np.array_equal(mask, self.mask):
            return
        self.mask = mask
        self.is_possible = kernels.restrict_to(self.tree.arrays, mask, self.scratch)
        self.search = None

    def run(self, temperature: float, n_steps: int) -> bool:
        """Take at most `n_steps` quasi-Newton steps; return whether more steps would help.

        Steps at the temperature of the last call continue from its end. Cost: about three passes per step. When
        time runs short, the best parameters so far are kept.
        """
        if not self.is_possible or not self.n_parameters:
            return False
        before = self.tree.shifts.copy(), self.tree.weights.copy()

        def objective(x: Floats) -> tuple[float, Floats]:
            self.clock.check(self.tree.arrays, PASSES_LEFT)
            return self.value(x, temperature)

        goes_on, self.is_cut = True, False
        try:
            if self.search is None or temperature != self.temperature:
                start = self.parameters()
                self.search = QuasiNewton(start, *objective(start))
                self.temperature = temperature
            for _ in range(n_steps):
                goes_on = self.search.step(objective)
                if not goes_on:
                    break
        except TimeUp:
            self.is_cut = True
            if self.search is None:  # not even the first value came in time
                self.tree.shifts[:], self.tree.weights[:] = before
                return True
        self.set_parameters(self.search.x)
        return goes_on

    def value(self, x: Floats, temperature: float) -> tuple[float, Floats]:
        """Return the smoothed bound (nats, without the tree's constant) and its gradient."""
        tree = self.tree
        self.set_parameters(x)
        weights = np.where(self._is_query, temperature, tree.weights)
        to_shifts, to_weights = np.empty(len(tree.shifts)), np.empty(len(weights))
        value = tree.gradient(weights, self.scratch, to_shifts, to_weights, self.clock)
        if value == -np.inf:
            return -1e300, np.zeros(len(x))
        own = to_shifts[self.shift_at]
        slope = np.empty(len(x))
        slope[: len(own)] = own - _group_means(own, self.shift_group)
        slope[len(own) :] = self._weight_slope(to_weights[self.weight_at])
        return float(value), slope

    def _weight_slope(self, slope: Floats) -> Floats:
        """Convert the derivative by weights to the derivative by their logits."""
        free = 1.0 - LEAST_SHARE * self.n_of_weight
        shares = (self.tree.weights[self.weight_at] - LEAST_SHARE) / free
        mean = np.bincount(self.weight_group, shares * slope)[self.weight_group] if len(slope) else slope
        return free * shares * (slope - mean)

    def parameters(self) -> Floats:
        shares = self.tree.weights[self.weight_at] - LEAST_SHARE
        return np.concatenate([self.tree.shifts[self.shift_at], np.log(np.maximum(shares, 1e-12))])

    def set_parameters(self, x: Floats) -> None:
        """Set the tree's shifts and weights from a point of the search."""
        n = len(self.shift_at)
        self.tree.shifts[self.shift_at] = x[:n] - _group_means(x[:n], self.shift_group)
        if len(self.weight_at):
            logits = x[n:]
            top = np.full(self.weight_group.max() + 1, -np.inf)
            np.maximum.at(top, self.weight_group, logits)
            shares = np.exp(logits - top[self.weight_group])
            shares /= np.bincount(self.weight_group, shares)[self.weight_group]
            self.tree.weights[self.weight_at] = LEAST_SHARE + (1.0 - LEAST_SHARE * self.n_of_weight) * shares


def _group_means(values: Floats, group: Ints) -> Floats:
    return (np.bincount(group, values) / np.bincount(group))[group] if len(values) else values


def least(
    problem: Problem,
    orders: Sequence[Sequence[int]],
    fits: Fits,
    max_bytes: float,
    clock: PassClock,
    n_steps: int = 0,
) -> tuple[Tightener, list[int]]:
    """Return the tree of the order that bounds least after some steps; the first one where time is short.

    What a tree bounds before any step tells little of what it will. Also returns the positions of the orders that
    were tried, the least bound first. Cost: `n_steps` at the temperature `TRIED`, and a pass, for each. Raises
    TooLarge as `SplitTree.of` does.
    """
    best: Tightener | None = None
    bounds = list[float]()
    for order in orders:
        try:
            found = Tightener(SplitTree.of(problem, order, fits, max_bytes), clock)
            if n_steps:
                found.run(TRIED, n_steps)
            bounds.append(found.tree.bound(scratch=found.scratch, clock=clock))
        except TimeUp:
            break
        except TooLarge:
            if best is None:
                raise
            break
        if best is None or bounds[-1] < min(bounds[:-1]):
            best = found
        if not found.tree.is_split:
            break
    ranked = sorted(range(len(bounds)), key=bounds.__getitem__)
    return best or Tightener(SplitTree.of(problem, orders[0], fits, max_bytes), clock), ranked or [0]
