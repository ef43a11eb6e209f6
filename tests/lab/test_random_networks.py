"""A few of the random networks that `certimap bench random-networks` checks by the thousand."""

from __future__ import annotations

import dataclasses

import pytest

from certimap_lab.bench import random_networks as module


def test_no_answer_and_no_bound_is_false():
    findings = module.check_networks(24, first=100)
    assert findings.failures == []
    assert findings.n_networks == 24
    assert findings.n_proved["auto"] > 10


def test_answers_above_and_bounds_below_the_optimum_are_found(monkeypatch: pytest.MonkeyPatch):
    answer = module._answer

    def moved(posterior, name, settings):
        result = answer(posterior, name, settings)
        if name == "aobb":
            return dataclasses.replace(result, log_joint=result.log_joint and result.log_joint + 1.0, log_prob=0.5)
        if name == "wmb":
            low = -1e3
            return dataclasses.replace(result, log_joint_upper_bound=low, log_upper_bound=low)
        return result

    monkeypatch.setattr(module, "_answer", moved)
    findings = module.check_networks(4)
    assert any("aobb: answers" in text for text in findings.failures)
    assert any("wmb i_bound=2: bounds" in text for text in findings.failures)
    assert not any("hbfs" in text for text in findings.failures)
