"""A slow twin of the bounds of second order on mixtures, by the formula of `docs/what-a-certificate-means.md`.

No rounding is added, and quadratic functions are maximised by scipy, where the kernels bound them. So a kernel's
bound is never below the twin's but for the digits that both round, and close to it. Covariances are full.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

FAR = 4.0
TOO_FAR = 300.0
HALVINGS = 6


def log_tops(covariances, log_weights):
    """ln of each weighted component at its mean."""
    n = covariances.shape[1]
    return log_weights - 0.5 * np.linalg.slogdet(covariances)[1] - 0.5 * n * math.log(2.0 * math.pi)


def parts_of(means, covariances, log_weights, low, high):
    """Logs at the middle and largest logs, slopes and bends in box coordinates, of independent Gaussians."""
    middle, radius = 0.5 * (low + high), 0.5 * (high - low)
    tops, precisions = log_tops(covariances, log_weights), np.linalg.inv(covariances)
    apart = middle - means
    values = tops - 0.5 * np.einsum("kd,kde,ke->k", apart, precisions, apart)
    slopes = -np.einsum("kde,ke->kd", precisions, apart) * radius
    bends = -precisions * np.outer(radius, radius)
    peaks = [v + largest_in_cube(s, -b) for v, s, b in zip(values, slopes, bends, strict=True)]
    return values, np.array(peaks), slopes, bends


def log_sum(logs):
    top = max(logs)
    return top + math.log(sum(math.exp(x - top) for x in logs))


def kappa(z):
    """(e^z - 1 - z) / (z^2 / 2), by its series where digits would cancel."""
    return 1.0 + z / 3.0 + z * z / 12.0 if z < 1e-3 else 2.0 * (math.exp(z) - 1.0 - z) / (z * z)


def largest_in_cube(slope, matrix, half=None):
    """Max of slope t - t M t / 2 over [-1, 1]^n, of a part of it with (variable, low, high); M is positive."""
    sides = [(-1.0, 1.0)] * len(slope)
    if half is not None:
        sides[half[0]] = half[1:]
    found = optimize.minimize(
        lambda t: 0.5 * t @ matrix @ t - slope @ t,
        np.array([0.5 * sum(side) for side in sides]),
        jac=lambda t: matrix @ t - slope,
        bounds=sides,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-12},
    )
    return -float(found.fun)


def largest_quadratic(slope, matrix, half=None):
    """The same where M need not be: by about the least share of what makes it diagonally dominant."""
    off = np.maximum(0.0, (1.0 + 1e-9) * (np.abs(matrix).sum(1) - np.abs(np.diag(matrix))) - np.diag(matrix))

    def is_positive(share):
        shifted = matrix + share * np.diag(off)
        return np.linalg.eigvalsh(shifted).min() > 1e-11 * np.abs(np.diag(shifted)).sum()

    below, share = 0.0, 0.0
    if not is_positive(0.0):
        share = 1.0
        for _ in range(HALVINGS):
            between = 0.5 * (below + share)
            below, share = (below, between) if is_positive(between) else (between, share)
    return largest_in_cube(slope, matrix + share * np.diag(off), half) + 0.5 * share * float(off.sum())


def log_bound(means, covariances, log_weights, low, high, half=None):
    """The lower of the sum of the components' own peaks and of the bound of second order, natural log."""
    value, peak, slope, bend = parts_of(means, covariances, log_weights, low, high)
    plain, middle = log_sum(peak), log_sum(value)
    near = peak - value <= FAR
    if not near.any():
        return plain
    share, outside = np.exp(value[near] - middle), float(np.exp(peak[~near] - middle).sum())
    inside = float(share.sum())
    if inside <= 1e-3 * outside:
        return plain
    share, slope, bend = share / inside, slope[near], bend[near]
    mean_bend = np.einsum("k,kde->de", share, bend)
    straight = np.abs(slope - share @ slope).sum(1)
    more = 0.5 * (bend - mean_bend)
    bent = np.abs(more).sum((1, 2))
    if (straight + bent).max() > TOO_FAR:
        return plain
    diagonal = np.diagonal(more, axis1=1, axis2=2)
    lift = np.exp(bent - np.abs(diagonal).sum(1) + np.maximum(diagonal, 0.0).sum(1))
    factors = np.array([kappa(s + b) for s, b in zip(straight, bent, strict=True)])
    lifted, remainder = float(share @ lift), float(share @ (factors * (straight * bent + 0.5 * bent * bent)))
    if lifted < 1.0 + remainder:
        share = share * lift / lifted
        factor, scale = lifted, 1.0
        straight = np.abs(slope - share @ slope).sum(1)
        factors = np.array([kappa(s) for s in straight])
    else:
        factor, scale = 1.0 + remainder, 1.0 / (1.0 + remainder)
    off = slope - share @ slope
    square = (off * (share * factors)[:, None]).T @ off
    rise = largest_quadratic(share @ slope, -scale * square - mean_bend, half)
    return min(plain, middle + log_sum([math.log(inside * factor) + rise, math.log(max(outside, 1e-300))]))


def highest(means, covariances, log_weights, low, high, n_points):
    """ln of the largest value of a mixture on a grid of a box, ends included."""
    axes = [np.linspace(a, b, n_points) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(low))
    apart = points[:, None] - means
    squares = np.einsum("bkd,kde,bke->bk", apart, np.linalg.inv(covariances), apart)
    logs = log_tops(covariances, log_weights) - 0.5 * squares
    top = logs.max(1, keepdims=True)
    return float((top[:, 0] + np.log(np.exp(logs - top).sum(1))).max())


def local_top(means, covariances, log_weights, low, high, start):
    """Ln of a mixture at a point, and at what scipy's local search in [low, high] reaches from there."""
    tops, precisions = log_tops(covariances, log_weights), np.linalg.inv(covariances)

    def value(point):
        apart = point - means
        return log_sum(tops - 0.5 * np.einsum("kd,kde,ke->k", apart, precisions, apart))

    found = optimize.minimize(
        lambda x: -value(x),
        start,
        bounds=list(zip(low, high, strict=True)),
        method="L-BFGS-B",
        options={"ftol": 1e-15},
    )
    return value(start), -float(found.fun)
