"""`certimap bench hostile`, on a model of each family."""

from __future__ import annotations

from pathlib import Path

import pytest

from certimap.cli.main import main


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
