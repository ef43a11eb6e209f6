"""Answers of other programs in a run of the Twenty Datasets."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import certimap as cm
from certimap.testing import random_circuit
from certimap_lab.bench.answers import read_answers, score_answers
from certimap_lab.bench.records import BenchError, read_records, write_json
from certimap_lab.bench.trial import TrialRunner, TrialSettings
from certimap_lab.bench.twenty import Plan, run_twenty


@pytest.fixture
def plan(tmp_path):
    """A run whose one model is there already."""
    model = random_circuit(np.random.default_rng(1), cm.Domain.of_sizes([2] * 8))
    (tmp_path / "models").mkdir()
    cm.io.write(model, tmp_path / "models" / "nltcs-learnspn.npz")
    write_json(tmp_path / "models" / "nltcs-learnspn.json", {"dataset": "nltcs", "circuit": "learnspn"})
    settings = TrialSettings(epsilon=0.0, delta=0.0)
    return Plan(tmp_path, None, ("nltcs",), splits=("50/50",), solvers=("auto",), n_queries=1, settings=settings)


def place():
    return {"circuit": "learnspn", "dataset": "nltcs", "split": "50/50", "query": 0}


def test_answers_are_scored_and_bounds_are_assumptions(plan, tmp_path):
    run_twenty(plan)
    own = read_records(tmp_path / "trials.jsonl")[0]
    best = {**place(), "solver": "daoopt", "assignment": own["assignment"], "seconds": 2.5}
    other = {**place(), "solver": "greedy", "assignment": [1 - x for x in own["assignment"]]}
    path = tmp_path / "answers.jsonl"
    bound = own["log_prob"] + 1e-12
    path.write_text("\n".join(map(json.dumps, ({**best, "log_upper_bound": bound}, other))) + "\n")
    entered = Plan(**{**plan.__dict__, "answers": path})
    run_twenty(entered)
    run_twenty(entered)  # what is there already is kept
    records = {r["solver"]: r for r in read_records(tmp_path / "trials.jsonl")}
    assert len(read_records(tmp_path / "trials.jsonl")) == 3
    assert records["daoopt"]["log_prob"] == pytest.approx(own["log_prob"])
    assert records["daoopt"]["seconds_solving"] == 2.5
    assert records["daoopt"]["certificate"]["kind"] == "exact"
    assert records["daoopt"]["certificate"]["assumptions"] == ["the upper bound from daoopt holds"]
    assert records["greedy"]["certificate"]["kind"] == "none"
    assert records["greedy"]["log_prob"] < own["log_prob"] or math.isinf(records["greedy"]["log_prob"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"solver": "pac"}, "is a solver of certimap"),
        ({"assignment": None}, "answers.jsonl:1"),
        ({"assignment": [0]}, "4 are expected"),
        ({"assignment": [0, 0, 0, 7]}, "7"),
        ({"split": "60/60"}, "no split"),
        ({"dataset": "absent"}, "absent"),
        ({"colour": 3}, "has 'colour'"),
        ({"seconds": -1}, "seconds is -1"),
    ],
)
def test_mistakes_name_the_line(plan, tmp_path, change, said):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({**place(), "solver": "x", "assignment": [0, 0, 0, 0], **change}) + "\n")
    with pytest.raises(BenchError, match=said):
        list(score_answers(path, TrialRunner(plan.model_dir, plan.settings)))


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(BenchError, match="is no file"):
        read_answers(tmp_path / "none.jsonl")
