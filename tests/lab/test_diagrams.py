"""The benchmark of public influence diagrams says what the diagrams are worth."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import certimap as cm
from certimap_lab.bench.diagrams import diagram_files, run_diagrams
from certimap_lab.bench.records import BenchError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/oil.xdsl"


def test_a_diagram_is_decided_in_a_process_of_its_own(tmp_path: Path) -> None:
    oil = cm.read(EXAMPLE)
    cm.write(oil, tmp_path / "oil.uai")
    shutil.copy(tmp_path / "oil.uai", tmp_path / "alone.uai")  # no .id beside it: no diagram
    assert diagram_files(tmp_path) == [tmp_path / "oil.uai"]
    (row,) = run_diagrams(tmp_path, 10.0, lambda _: None).rows
    assert row[:3] == ["oil", "2", f"{cm.decide(oil).expected_utility:.6g} exact"]


def test_a_folder_without_diagrams_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BenchError, match=r"with an \.id file beside it"):
            diagram_files(folder)
