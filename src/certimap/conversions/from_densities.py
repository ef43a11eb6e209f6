"""The representation of a mixture of Gaussians: its conditional in closed form."""

from __future__ import annotations

from certimap.conversions.rows import Case, Estimate, Row
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.posterior import NormalsPosterior
from certimap.posterior import Posterior, Probes


def _size(case: Case[GaussianMixture]) -> Estimate:
    k, n = case.model.means.shape
    return Estimate(f"{k} components of {n} variables", k * n * n, fits=True)


def _conditioned(case: Case[GaussianMixture]) -> Posterior:
    return NormalsPosterior.of(case.model, case.query, case.limits.workers)


ROWS = (Row("mixture of Gaussians", GaussianMixture, frozenset({Probes, NormalsPosterior}), _size, _conditioned),)
