"""First answers and small queries: the programs, the plain elimination beside them, and the tables."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap_lab.bench import start
from certimap_lab.bench.records import BenchError


@pytest.mark.parametrize("small", start.SMALL, ids=lambda s: s.name)
def test_the_plain_elimination_finds_the_answer(small, examples):
    model = cm.read(examples / small.file)
    variables = None if small.variables is None else list(small.variables)
    answer = cm.map_query(model, variables, small.evidence, rng=0, progress=False)
    found = start._plain(model, small)()
    if small.variables is None:
        assert found == pytest.approx(answer.log_joint, abs=1e-9)
    else:
        states = [model.domain[name].states[int(i)] for name, i in zip(small.variables, found, strict=True)]
        assert dict(zip(small.variables, states, strict=True)) == answer.assignment


def test_programs_run_and_are_timed(monkeypatch, examples, tmp_path):
    monkeypatch.chdir(examples.parent)
    monkeypatch.setattr(start, "PREPARE", "")
    monkeypatch.setattr(start.Scenario, "code", lambda self, folder: f"assert {self.model!r}\nprint('noise')")
    said = []
    found = start.first_answers(["asia, 2 of 8"], said.append)
    ((cold, warm),) = found.values()
    assert 0.0 < warm < 60.0
    assert cold > 0.0
    assert said[0].startswith("asia, 2 of 8: ")
    with pytest.raises(BenchError, match="expected scenarios among asia, 2 of 8, alarm"):
        start.first_answers(["asia"])
    monkeypatch.setattr(start.Scenario, "code", lambda self, folder: "raise ValueError('wrong')")
    with pytest.raises(BenchError, match="wrong"):
        start.first_answers(["asia, 2 of 8"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchError, match="project's folder"):
        start.first_answers()


def test_code_of_scenarios_compiles(tmp_path):
    compile(start.PREPARE, "prepare", "exec")
    for scenario in start.SCENARIOS:
        compile(scenario.code(tmp_path), scenario.name, "exec")


def test_tables_show_what_was_measured():
    first, small = start.start_tables(
        {"asia": (4.1, 0.7)}, {"asia": {"certimap": 0.25, "NumPy": 0.03, "pgmpy": None}}
    )
    assert "| asia | 4.10 | 0.70 |" in first.to_markdown()
    assert "| asia | 0.250 | 0.0300 | -- | -- |" in small.to_markdown()


def test_milliseconds_are_of_one_call():
    calls = []
    spent = start._milliseconds(lambda: calls.append(np.linalg.eigvals(np.eye(40))))
    assert 0.0 < spent < 1e3
    assert len(calls) > start.REPEATS
