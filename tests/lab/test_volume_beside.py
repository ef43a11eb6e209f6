"""What `bench truth` asks beside answers: nothing is found where all is well, and a mistake is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import certimap as cm
from certimap.ask.inference import log_evidence
from certimap.explanations import questions
from certimap_lab.volume import beside, make_case

FAMILIES = ("Bayesian networks", "Markov networks", "circuits", "hidden trees")


def cases(n, families=FAMILIES):
    """Yield the first n cases of which everything is asked."""
    found = (make_case(0, k, family).everything for k in range(1000) for family in families)
    some = (case for case in found if case is not None)
    return [case for case, _ in zip(some, range(n), strict=False)]


def test_nothing_is_false():
    for k, case in enumerate(cases(12)):
        assert beside.judge_beside(case, k) == []


def spoiled_marginals(*given):
    found = cm.marginals(*given)
    return {name: dict.fromkeys(row, 1.0 / len(row)) for name, row in found.items()}


def spoiled_gains(*given, **spoiled):
    return {name: replace(gain, **spoiled) for name, gain in cm.next_test(*given).items()}


def everything_contradicts(model, evidence):
    found = cm.conflict(model, evidence)
    return found if found.score > -math.inf else replace(found, observations=evidence)


def without_weights(network, evidence, assignment):
    return log_evidence(network, {**evidence, **assignment})


@pytest.mark.parametrize(
    ("where", "name", "spoiled", "said"),
    [
        (beside, "marginals", spoiled_marginals, "the marginal of"),
        (beside, "log_evidence", lambda *given: log_evidence(*given) + 1e-6, "log_evidence is"),
        (beside, "log_evidence_bounds", lambda *given, **more: (0.5, math.inf), "log_evidence_bounds are"),
        (beside, "log_likelihood", lambda *given: cm.log_likelihood(*given) - 1e-6, "has the log likelihood"),
        (beside, "conflict", lambda *given: replace(cm.conflict(*given), score=0.5), "the conflict is"),
        (beside, "conflict", everything_contradicts, "a smallest set"),
        (beside, "next_test", lambda *given: spoiled_gains(*given, information=0.5), "tells 0.5"),
        (beside, "next_test", lambda *given: spoiled_gains(*given, change=1.5), "changes the answer"),
        (questions, "_log_joint", without_weights, "the tolerance"),
    ],
)
def test_mistakes_are_found(monkeypatch, where, name, spoiled, said):
    monkeypatch.setattr(where, name, spoiled)
    found = (text for k, case in enumerate(cases(40, FAMILIES[:1])) for text in beside.judge_beside(case, k))
    assert any(said in text for text in found)
