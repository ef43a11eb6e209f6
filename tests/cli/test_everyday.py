"""`certimap marginals` and `certimap sample`."""

from __future__ import annotations

import csv
import json

import pytest

import certimap as cm
from certimap.cli.main import main


def test_marginals_are_printed_and_add_to_one(capsys, examples):
    model = str(examples / "asia.bif")
    assert main(["marginals", model, "-q", "lung,bronc", "-e", "xray=yes,asia=no"]) == 0
    text = capsys.readouterr().out
    assert "lung   no 0.509726, yes 0.490274" in text
    assert "ln p(evidence) = -2.2178" in text
    assert main(["marginals", model, "-e", "xray=yes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["marginals"]) == {"asia", "tub", "smoke", "lung", "bronc", "either", "dysp"}
    for row in found["marginals"].values():
        assert sum(row.values()) == pytest.approx(1.0)


def test_samples_are_rows_that_replay(capsys, examples, tmp_path):
    model = str(examples / "asia.bif")
    assert main(["sample", model, "-n", "50", "-e", "xray=yes", "--rng", "4"]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "rows.csv"
    assert main(["sample", model, "-n", "50", "-e", "xray=yes", "--rng", "4", "-o", str(out)]) == 0
    assert out.read_text() == printed
    rows = list(csv.DictReader(printed.splitlines()))
    assert len(rows) == 50
    assert "xray" not in rows[0]
    asia = cm.read(model)
    assert all(row["lung"] in asia.domain["lung"].states for row in rows)


def test_mistakes_are_one_sentence(capsys, examples, tmp_path):
    model = str(examples / "asia.bif")
    for arguments in (
        ["marginals", model, "-q", "lunge"],
        ["sample", model, "-n", "-3"],
        ["marginals", model, "-e", "either=no,lung=yes"],
        ["sample", model, "-o", str(tmp_path / "no" / "rows.csv")],
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "Traceback" not in error
