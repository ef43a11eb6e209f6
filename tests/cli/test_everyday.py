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


def test_interventions_on_the_shell(capsys, examples, tmp_path):
    model, cut = str(examples / "asia.bif"), str(tmp_path / "cut.npz")
    expected = cm.marginals(cm.read(model).do(tub="yes"), "lung", {"xray": "yes"})["lung"]["yes"]
    assert main(["marginals", model, "-q", "lung", "-e", "xray=yes", "--do", "tub=yes"]) == 0
    assert f"yes {expected:.6g}" in capsys.readouterr().out
    record, proof = str(tmp_path / "r.json"), str(tmp_path / "proof.npz")
    asking = ["-q", "lung", "-e", "xray=yes", "--do", "tub=yes,smoke=no"]
    assert main(["solve", model, *asking, "-o", record, "--proof", proof]) == 0
    assert "do(tub='yes', smoke='no')" in capsys.readouterr().out
    assert main(["replay", record, model]) == 0
    page = tmp_path / "r.html"
    assert main(["report", record, "-o", str(page)]) == 0
    assert "most probable together, after do(tub=" in page.read_text()
    assert main(["explain", model, *asking]) == 0
    assert "The answer after do(tub='yes', smoke='no')\n" in capsys.readouterr().out
    assert main(["check", model, proof]) == 1
    assert main(["check", model, proof, "--do", "tub=yes", "--do", "smoke=no"]) == 0
    assert main(["convert", model, cut, "--do", "tub=yes,smoke=no"]) == 0
    assert main(["check", cut, proof]) == 0
    assert main(["replay", record, cut]) == 0
    capsys.readouterr()
    assert main(["solve", model, "-q", "lung", "-e", "tub=no", "--do", "tub=yes"]) == 2
    assert capsys.readouterr().err == "certimap: the evidence 'no' on variable 'tub' contradicts do(tub='yes')\n"
    assert main(["solve", model, "-q", "lung", "--do", "tub"]) == 2


def test_conflicts_and_stated_probabilities_on_the_shell(capsys, examples, tmp_path):
    model, rows = str(examples / "asia.bif"), tmp_path / "rows.json"
    assert main(["conflict", model, "-e", "lung=yes,either=no,smoke=no"]) == 0
    assert (
        capsys.readouterr().out
        == "these observations have probability 0 together, and no fewer do:\n  lung    = yes\n  either  = no\n"
    )
    assert main(["conflict", model, "-e", "lung=yes,smoke=no", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["score"] == pytest.approx(-1.704748, abs=1e-6)
    assert main(["conflict", model, "-e", "lung=yes,smoke=no"]) == 0
    assert "smoke  -1.704748" in capsys.readouterr().out
    rows.write_text(json.dumps([{"bronc": {"probability": {"yes": 0.3, "no": 0.7}}}, {"xray": "no"}]))
    record = str(tmp_path / "r.json")
    assert main(["solve", model, "-q", "bronc", "--evidence-file", str(rows), "-o", record]) == 0
    assert "0.7  (ln p" in capsys.readouterr().out
    assert main(["replay", record, model]) == 0
