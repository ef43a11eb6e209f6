"""A slow twin of masses of intervals of a Gaussian, by quadrature.

The derivative of ln of the mass in the mean m is (mean of the Gaussian cut to the interval - m) / sd^2.
"""

from __future__ import annotations

import math

from scipy import integrate


def log_mass_and_slope(mean: float, sd: float, low: float, high: float) -> tuple[float, float]:
    """Return ln of the mass, and its derivative in the mean."""
    left, right, width = (low - mean) / sd, (high - mean) / sd, (high - low) / sd
    # The densest point, and how far the interval goes on either side of it (their difference loses no digits).
    densest, before, after = (left, 0.0, width) if left > 0.0 else (0.0, -left, right)
    if right < 0.0:
        densest, before, after = right, width, 0.0
    reach = 40.0 / max(1.0, abs(densest))  # beyond, nothing is left
    start, stop = -min(before, reach), min(after, reach)

    def height(t: float) -> float:
        return math.exp(-densest * t - 0.5 * t * t)

    cuts = [c for c in (-0.3 * reach, 0.0, 0.3 * reach) if start < c < stop]
    options = {"epsabs": 0.0, "epsrel": 1e-13, "limit": 400, "points": cuts or None}
    total = integrate.quad(height, start, stop, **options)[0]
    first = integrate.quad(lambda t: t * height(t), start, stop, **options)[0]
    log_mass = math.log(total) - 0.5 * densest**2 - 0.5 * math.log(2.0 * math.pi)
    return log_mass, (densest + first / total) / sd
