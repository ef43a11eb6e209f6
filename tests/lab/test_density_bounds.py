"""A few of the densities whose bounds `certimap bench density-bounds` checks by the thousand."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from scipy.stats import norm

from certimap.circuits.prober import MixtureProber
from certimap_lab.bench import density_bounds as module


def test_no_place_is_above_its_bound() -> None:
    findings = module.check_density_bounds(9, first=30)
    assert findings.failures == []
    assert set(findings.n_models.values()) == {3}
    assert findings.n_tight["diagonal"] > 12


def test_bounds_that_are_too_low_by_a_rounding_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = MixtureProber.probe

    def lowered(self, boxes):
        answers = probe(self, boxes)
        answers.log_bound[:] -= 1e-11 + 1e-13 * np.abs(answers.log_bound)
        return answers

    monkeypatch.setattr(MixtureProber, "probe", lowered)
    findings = module.check_density_bounds(6)
    assert any("(diagonal)" in text for text in findings.failures)
    assert not any("(full)" in text for text in findings.failures)


def test_the_exact_density_is_that_of_scipy() -> None:
    log_weights = np.log([0.25, 0.75])
    mixture = module._Diagonal(
        log_weights, np.array([[0.0, 1.0], [2.0, -1.0]]), np.array([[1.0, 0.5], [2.0, 3.0]])
    )
    point = np.array([0.3, 0.9])
    parts = norm.logpdf(point, mixture.means, mixture.sds).sum(axis=1) + log_weights
    assert float(mixture.exact(point) - Decimal(float(np.logaddexp(*parts)))) == pytest.approx(0.0, abs=1e-14)
