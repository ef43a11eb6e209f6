"""A slow twin of the bounds of second order on mixtures, by the formula of `docs/what-a-certificate-means.md`.

No rounding is added, and the quadratic part is maximised by scipy, where the kernel bounds it. So the kernel's
bound is never below the twin's but for the digits that both round, and close to it.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import optimize

FAR = 2.0
SHIFTS = (0.0, 0.25, 1.0)


def parts_of(means, sds, log_weights, low, high):
    """Logs at the middle and largest logs, slopes and bends in box coordinates, of independent Gaussians."""
    middle, radius = 0.5 * (low + high), 0.5 * (high - low)
    tops = log_weights - np.log(sds).sum(axis=1) - 0.5 * means.shape[1] * math.log(2.0 * math.pi)
    z = (middle - means) / sds
    beyond = np.maximum(np.maximum(low - means, means - high), 0.0) / sds
    return tops - 0.5 * (z**2).sum(1), tops - 0.5 * (beyond**2).sum(1), -z * radius / sds, -((radius / sds) ** 2)


def log_sum(logs):
    top = max(logs)
    return top + math.log(sum(math.exp(x - top) for x in logs))


def rest(z):
    """What the kernel adds for e^z - 1 - z - z^2/2, from its definition: z^3/6 over 1 - z/4 below 1."""
    return z**3 / 6.0 / (1.0 - z / 4.0) if z < 1.0 else math.exp(z) - 1.0 - z - z * z / 2.0


def largest_quadratic(slope, matrix):
    """Max of slope t - t M t / 2 over [-1, 1]^n, M concave by the smallest of three shifts of its diagonal."""
    off = np.maximum(0.0, (1.0 + 1e-9) * (np.abs(matrix).sum(1) - np.abs(np.diag(matrix))) - np.diag(matrix))
    for share in SHIFTS:
        shifted = matrix + share * np.diag(off)
        if share == 1.0 or np.linalg.eigvalsh(shifted).min() > 1e-11 * np.abs(np.diag(shifted)).sum():
            break
    best = -math.inf
    for start in itertools.product((-1.0, 0.0, 1.0), repeat=len(slope)):
        found = optimize.minimize(
            lambda t: 0.5 * t @ shifted @ t - slope @ t,
            np.array(start),
            jac=lambda t: shifted @ t - slope,
            bounds=[(-1.0, 1.0)] * len(slope),
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-12},
        )
        best = max(best, -float(found.fun))
    return best + 0.5 * share * float(off.sum())


def log_bound(means, sds, log_weights, low, high):
    """The lower of the sum of the components' own peaks and of the bound of second order, natural log."""
    value, peak, slope, bend = parts_of(means, sds, log_weights, low, high)
    plain, middle = log_sum(peak), log_sum(value)
    near = peak - value <= FAR
    if not near.any():
        return plain
    share, outside = np.exp(value[near] - middle), float(np.exp(peak[~near] - middle).sum())
    inside = float(share.sum())
    if inside <= 1e-3 * outside:
        return plain
    share = share / inside
    mean_slope, mean_bend = share @ slope[near], share @ bend[near]
    straight = np.abs(slope[near] - mean_slope).sum(1)
    bent = 0.5 * np.abs(bend[near] - mean_bend).sum(1)
    remainder = sum(p * (s * b + 0.5 * b * b + rest(s + b)) for p, s, b in zip(share, straight, bent, strict=True))
    off = slope[near] - mean_slope
    square = (share[:, None] * off).T @ off
    matrix = -square / (1.0 + remainder) - np.diag(mean_bend)
    rise = largest_quadratic(mean_slope, matrix)
    return min(plain, middle + math.log(inside * (1.0 + remainder) * math.exp(rise) + outside))


def highest(means, sds, log_weights, low, high, n_points):
    """ln of the largest value of a mixture on a grid of a box, ends included."""
    axes = [np.linspace(a, b, n_points) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(low))
    tops = log_weights - np.log(sds).sum(axis=1) - 0.5 * means.shape[1] * math.log(2.0 * math.pi)
    logs = tops - 0.5 * (((points[:, None] - means) / sds) ** 2).sum(2)
    top = logs.max(1, keepdims=True)
    return float((top[:, 0] + np.log(np.exp(logs - top).sum(1))).max())
