"""A clock that jumps, forwards or back, ends a run early or late, and leaves every claim true."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from certimap_lab.volume import judge, make_case


@pytest.mark.parametrize("jump", [1e6, -1e6])
def test_claims_hold_whatever_the_clock_says(monkeypatch, jump):
    rng = np.random.default_rng(8)
    true = time.perf_counter
    offset = [0.0]

    def jumping():
        if rng.random() < 0.02:
            offset[0] += jump * rng.random()
        return true() + offset[0]

    monkeypatch.setattr(time, "perf_counter", jumping)
    for number, family in enumerate(["Bayesian networks", "circuits", "one above many", "stopped searches"] * 2):
        case = make_case(9, number, family)
        case.settings.update(time_limit=30.0, max_samples=1000)
        verdict = judge(case)
        assert verdict.false_proofs == []


def test_a_clock_that_stands_still_is_no_error(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)
    case = make_case(9, 0, "Bayesian networks")
    case.settings.update(time_limit=math.inf, max_samples=100)
    assert judge(case).false_proofs == []
