"""The tables that set a run of the seven published methods beside the published figures."""

from __future__ import annotations

import math

import pytest

from certimap.cli.main import main
from certimap_lab.bench.records import BenchError, RecordFile, write_json
from certimap_lab.bench.reproduction import METHODS, reproduction


def trial(solver: str, query: int, log_prob: float, kind: str, split: str = "50/50") -> dict:
    return {
        "circuit": "learnspn",
        "dataset": "nips",
        "split": split,
        "query": query,
        "solver": solver,
        "assignment": [0],
        "log_prob": log_prob,
        "certificate": {"kind": kind},
        "status": "certified" if kind != "none" else "sample_limit",
        "seconds_conditioning": 0.5,
        "seconds_solving": 0.5,
    }


@pytest.fixture
def run(tmp_path):
    """Two queries; `pac` misses the optimum of one by 2 nats."""
    with RecordFile(tmp_path / "trials.jsonl") as file:
        for query in (0, 1):
            for solver in (*METHODS.values(), "auto"):
                worse = -2.0 if solver == "paper_pac" and query else 0.0
                file.append(trial(solver, query, -3.0 + worse, "exact" if solver == "auto" else "none"))
    write_json(
        tmp_path / "run.json", {"settings": {}, "machine": {}, "calls": [{"command": "certimap bench twenty"}]}
    )
    return tmp_path


def cells(text: str, table: str, method: str) -> list[str]:
    part = text[text.index(table) :]
    line = next(x for x in part.splitlines() if x.startswith(f"| {method} |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_ranks_gaps_and_times_stand_beside_the_published_ones(run, monkeypatch):
    monkeypatch.setattr("certimap_lab.bench.report.machine_line", lambda machine: "a machine")
    text = reproduction(run)
    assert cells(text, "Times ranked highest", "pac") == ["pac", "paper_pac", "0", "0", "4.00", "5.90"]
    assert cells(text, "Times ranked highest", "smooth_pac")[2:5] == ["1", "0", "1.00"]
    assert cells(text, "Answers beside", "pac") == ["pac", "2", "50", "1.00", "2.00", "100"]
    assert cells(text, "Answers beside", "itself") == ["itself", "2", "100", "0", "0", "100"]
    assert cells(text, "Seconds", "hbp") == ["hbp", "1.00", "0.471"]
    assert math.isclose(float(cells(text, "Seconds", "pac")[2]), 1873.0)


def test_a_run_of_other_methods_is_refused(tmp_path, capsys):
    with pytest.raises(BenchError, match="holds no trial"):
        reproduction(tmp_path)
    assert main(["bench", "reproduction", str(tmp_path)]) == 2
    assert "holds no trial" in capsys.readouterr().err
