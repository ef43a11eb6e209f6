"""Hostile models put to every solver: the first of the many that `certimap bench hostile` checks."""

from __future__ import annotations

import pytest

from certimap_lab.hostile import FAMILIES, check_seed

N_EACH = 8


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_false_is_said(family: str) -> None:
    first = list(FAMILIES).index(family)
    for number in range(N_EACH):
        report = check_seed(first + number * len(FAMILIES))
        assert report.n_checks
        shown = [f"--only {report.seed} {failure.kind}: {failure.text}" for failure in report.failures[:5]]
        assert not report.failures, "\n".join(shown)
