"""`certimap bench hostile`, on a model of each family."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

import certimap as cm
from certimap.cli.main import main
from certimap.core.result import CertificateKind, Status
from certimap.errors import TooLarge
from certimap_lab.hostile import check, check_seed
from certimap_lab.hostile.answers import check_claims
from certimap_lab.hostile.report import CaseReport


def test_models_are_checked_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin hostile -->\n<!-- end hostile -->\n")
    assert main(["bench", "hostile", "--models", "17", "--jobs", "1", "--into", str(page)]) in (0, 1)
    shown = capsys.readouterr()
    assert "| all | 17 |" in shown.out
    assert "| all | 17 |" in page.read_text()
    assert "17 of 17 models" in shown.err
    assert main(["bench", "hostile", "--models", "0"]) == 2


def test_one_model_is_checked_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "hostile", "--only", "14"]) == 0
    assert "checks on a model of the family 'function'" in capsys.readouterr().out


def test_too_little_time_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TooLarge("no assignment was evaluated by then")

    monkeypatch.setattr(check, "map_query", refuse)
    monkeypatch.setattr(check, "run", refuse)
    assert check_seed(0).failures
    monkeypatch.setattr(check, "SECONDS", 0.0)
    monkeypatch.setattr(check, "SECONDS_OF_HEURISTICS", 0.0)
    report = check_seed(0)
    assert not report.failures
    assert report.n_late > 10


def test_a_certificate_within_epsilon_is_demanded_where_logs_do_not_round_by_more() -> None:
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", ("no", "yes"))]))
    build.categorical(0, probs=[0.3, 0.7])
    made = cm.map_query(build.build(), ["a"])
    without = replace(made.certificate, kind=CertificateKind.NONE, requested_epsilon=0.001)

    def n_failures(gap: float, log_slack: float, status: Status = Status.EXHAUSTED) -> int:
        report, allowed = CaseReport(0, "leaf"), -math.log1p(-0.001)
        stopped = replace(
            made,
            certificate=without,
            status=status,
            top=None,
            log_upper_bound=math.log(0.7) + allowed + gap,
        )
        check_claims(report, stopped, Decimal("0.7"), Decimal("0.7"), log_slack, "a search")
        return len(report.failures)

    assert n_failures(-1e-6, 0.0) == n_failures(3e-12, 0.0) == n_failures(-9e-4, 1e-5) == 1
    assert n_failures(1e-6, 0.0) == n_failures(-1e-6, 0.001) == n_failures(3e-12, 1e-5) == 0
    assert n_failures(3e-12, 0.0, Status.NODE_LIMIT) == 0
    assert n_failures(-1e-6, 0.0, Status.NODE_LIMIT) == 1
