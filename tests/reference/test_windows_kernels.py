"""Masses of intervals of Gaussians, and their slopes, against quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
from windows_twin import log_mass_and_slope

from certimap.densities.kernels.normals import FAR, log_window_masses

INF = math.inf


def by_kernel(means, sd, low, high):
    shape = (len(means), 1, 1)
    out = [np.empty(shape) for _ in range(3)]
    log_window_masses(np.reshape(means, shape), np.array([[sd]]), np.array([low]), np.array([high]), *out)
    return [x.reshape(-1) for x in out]


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize("sd", [1.0, 0.01, 300.0])
@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-1.0, 1.0),
        (0.5, 0.7),
        (2.0, INF),
        (-INF, -3.0),
        (0.0, 1e-3),
        (0.0, 9e-4),
        (1.0, 1.0 + 1e-7),
        (-50.0, 80.0),
    ],
)
def test_logs_and_slopes_are_those_of_quadrature(low, high, sd):
    means = np.array([-2000.0, -35.0, -4.0, -0.3, 0.0, 0.45, 3.0, 29.9, 400.0]) * sd
    logs, slopes, slacks = by_kernel(means, sd, low * sd, high * sd)
    for mean, log_mass, slope, slack in zip(means, logs, slopes, slacks, strict=True):
        true = log_mass_and_slope(mean, sd, low * sd, high * sd)
        assert log_mass == pytest.approx(true[0], rel=1e-11, abs=1e-9)
        assert slope == pytest.approx(true[1], rel=1e-8, abs=(slack + 1e-9) / sd)
        assert 0.0 < slack < 1e-5 * (1.0 + abs(slope) + 1.0 / sd) * max(1.0, 1.0 / (high - low))


def test_what_floats_cannot_square_is_far_out_and_said_to_be_unknown():
    logs, slopes, slacks = by_kernel(np.array([-2.0 * FAR, 0.0]), 1.0, 1.0, 2.0)
    assert logs[0] == -1e250
    assert slopes[0] == 0.0
    assert slacks[0] == 1e250
    assert logs[1] > -2.0
