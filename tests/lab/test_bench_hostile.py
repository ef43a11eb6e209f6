"""`certimap bench hostile`, on a model of each family."""

from __future__ import annotations

from pathlib import Path

import pytest

from certimap.cli.main import main
from certimap.errors import TooLarge
from certimap_lab.hostile import check, check_seed


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
