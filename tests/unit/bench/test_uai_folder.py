"""Folders of UAI instances: files beside the model, or a list of cases."""

from __future__ import annotations

import json
import math

import pytest

from certimap.bench.records import BenchError
from certimap.bench.uai import instances_of, run_uai, uai_summary, uai_table

TWO = "BAYES 2 2 3 2 1 0 2 0 1  2 .3 .7  6 .7 .2 .1 .1 .3 .6"


def test_files_beside_the_model(tmp_path):
    (tmp_path / "two.uai").write_text(TWO)
    (tmp_path / "two.uai.evid").write_text("1 0 0")
    (tmp_path / "two.uai.query").write_text("1 1")
    answers = run_uai(tmp_path)
    assert answers[0].result.assignment == {"1": 0}
    assert answers[0].result.log_joint == pytest.approx(math.log(0.21))
    assert answers[0].is_proved


def test_cases_and_their_reference(tmp_path):
    (tmp_path / "two.uai").write_text(TWO)
    case = {"id": "a", "model": "two.uai", "evidence": {"1": 1}, "best_log_joint": math.log(0.21), "proven": True}
    (tmp_path / "cases.json").write_text(json.dumps({"cases": [case | {"toulbar2_seconds": 1.0}]}))
    answers = run_uai(tmp_path, solver="hbfs")
    assert answers[0].result.log_joint == pytest.approx(math.log(0.21))
    assert "exact" in uai_table(answers).to_markdown()
    assert uai_summary(answers).endswith("1 are proved, 1 of these within 5 times its seconds plus 1.")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(BenchError, match=r"neither cases\.json nor"):
        instances_of(tmp_path)
