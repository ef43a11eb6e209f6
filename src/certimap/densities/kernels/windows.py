"""Interval masses of variables that are summed out: logs, and derivatives in the conditional mean."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.leaves.gaussian import NARROW_WIDTH, log_normal_mass
from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.kernels.jit import jit
from certimap.kernels.mixture_bounds import EPS

FAR = 1e120  # standard deviations
SLACK = 1e-12  # error of logs near 1: truncation of the expansion for narrow intervals, and rounding


@jit()
def log_window_masses(
    means: NDArray[np.float64],
    sds: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    logs: NDArray[np.float64],
    slopes: NDArray[np.float64],
    slacks: NDArray[np.float64],
) -> None:
    """Fill in ln of the mass of [low, high] under Gaussians, its derivative in the mean, and the latter's error.

    `means` and the outputs have the shape (rows, K, h), `sds` (K, h), `low` and `high` (h,).
    """
    rows, n_components, n_windows = means.shape
    for row in range(rows):
        for k in range(n_components):
            for j in range(n_windows):
                sd = sds[k, j]
                left, right = (low[j] - means[row, k, j]) / sd, (high[j] - means[row, k, j]) / sd
                width = (high[j] - low[j]) / sd
                if left > FAR or right < -FAR:  # squares overflow
                    logs[row, k, j], slopes[row, k, j], slacks[row, k, j] = LEAST_LOG, 0.0, -LEAST_LOG
                    continue
                log_mass = log_normal_mass(left, right, width)
                logs[row, k, j] = log_mass
                nearest = -right if left > 0.0 else left
                if width * max(1.0, -nearest) < NARROW_WIDTH:
                    middle = 0.5 * (left + right)
                    share = width * width / 24.0
                    slope = middle - 2.0 * middle * share / (1.0 + (middle * middle - 1.0) * share)
                    slopes[row, k, j] = slope / sd
                    slacks[row, k, j] = SLACK * (1.0 + abs(slope)) / sd
                    continue
                lower = math.exp(-0.5 * left * left - 0.9189385332046727 - log_mass) if left > -math.inf else 0.0
                upper = math.exp(-0.5 * right * right - 0.9189385332046727 - log_mass) if right < math.inf else 0.0
                slopes[row, k, j] = (lower - upper) / sd
                slacks[row, k, j] = (SLACK + 8.0 * EPS * abs(log_mass)) * (1.0 + lower + upper) / sd
