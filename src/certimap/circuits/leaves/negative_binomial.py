"""Negative binomial leaves: counts of a given mean whose variance is mean + mean^2 / size."""

from __future__ import annotations

import numpy as np

from certimap.circuits.leaves.kind import CountFamily, LeafFunctions, LeafKind, from_zero, is_count, special
from certimap.circuits.leaves.poisson import draw, log_density, log_mass, peak, scale
from certimap.core.arrays import Flags, Floats

LEAST_SIZE, MOST_SIZE, MOST_SD = 1e-3, 1e8, 1e4


class NegativeBinomial(CountFamily):
    """Negative binomial distributions of counts, with the mean and variance of the rows."""

    name = "negative_binomial"

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (mean, size) per component."""
        means, variances = self.column.both(values, weights, smoothing)
        means = np.clip(means, self.least, 0.1 * MOST_SD**2)
        more = variances - means
        least = np.maximum(means**2 / (0.9 * MOST_SD**2), LEAST_SIZE)
        return np.stack(
            [means, np.clip(means**2 / np.maximum(more, means**2 / MOST_SIZE), least, MOST_SIZE)], axis=1
        )

    def log_density(self, values: Floats, params: Floats) -> Floats:
        (mean, size), k, log_gamma = params.T, np.maximum(values, 0.0)[:, None], special("gammaln")
        ways = np.asarray(log_gamma(k + size) - log_gamma(size) - log_gamma(k + 1.0), np.float64)
        logs = ways - size * np.log1p(mean / size) - k * np.log1p(size / mean)
        return np.where(is_count(values)[:, None], logs, -np.inf)


def _is_valid(mean: Floats, size: Floats) -> Flags:
    sd = np.sqrt(mean + mean * (mean / size))
    return (mean >= 1e-12) & (size >= LEAST_SIZE) & (size <= MOST_SIZE) & (sd <= MOST_SD)


KIND = LeafKind(
    "negative_binomial",
    ("mean", "size"),
    _is_valid,
    "a mean of at least 1e-12, a size from .001 to 1e8, and a standard deviation of at most 1e4",
    LeafFunctions(log_density, log_mass, peak, scale, draw),
    code=-11,
    support=from_zero,
    is_whole=True,
    roundings=32768.0,
    family=NegativeBinomial,
)
