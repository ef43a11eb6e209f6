"""Limited-memory quasi-Newton steps for smooth convex functions of thousands of parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from certimap.core.rounding import SMALLEST_NORMAL

Floats = NDArray[np.float64]
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

    # x, value, slope: the point, its value and gradient
    x: Floats
    value: float
    slope: Floats
    # changes, slope_changes: the last steps and the changes of the gradient
    changes: list[Floats] = field(default_factory=list[Floats])
    slope_changes: list[Floats] = field(default_factory=list[Floats])
    is_flat: bool = False  # whether the last step no longer helped

    @classmethod
    def start(cls, objective: Objective, x: Floats) -> QuasiNewton:
        """Begin at a point."""
        value, slope = objective(x)
        return cls(x, value, slope)

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
        """Take one step down; return False and set `is_flat` if the value fell by less than `least_gain`.

        Cost: one evaluation if the full step is accepted, which is usual.
        """
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
                self._accept(x, value, slope, least_gain)
                return not self.is_flat
            rise = value - self.value - length * slant  # the parabola through both values and the slope
            length *= min(0.5, max(0.1, -0.5 * length * slant / rise)) if np.isfinite(rise) and rise > 0.0 else 0.1
        if self.changes:
            self.changes, self.slope_changes = [], []
            return True
        self.is_flat = True
        return False

    def _accept(self, x: Floats, value: float, slope: Floats, least_gain: float) -> None:
        s, y = x - self.x, slope - self.slope
        if _dot(s, y) > 1e-12 * _dot(y, y):
            self.changes.append(s)
            self.slope_changes.append(y)
            if len(self.changes) > MEMORY:
                del self.changes[0], self.slope_changes[0]
        self.is_flat = self.value - value < least_gain
        self.x, self.value, self.slope = x, value, slope


def _dot(a: Floats, b: Floats) -> float:
    """Return a scalar product without BLAS, whose threads cost more than they save at these lengths."""
    return float(np.einsum("i,i->", a, b))
