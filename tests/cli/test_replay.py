"""Recorded answers come out again, and what differs is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import certimap as cm
from certimap.ask.replay import read_records, replay
from certimap.cli.main import main
from certimap.io.native import fingerprint

QUERIES = {
    "all by itself": ["asia.bif"],
    "evidence": ["asia.bif", "-q", "lung,bronc", "-e", "xray=yes,asia=no"],
    "evidence of every form": ["asia.bif", "-q", "lung,bronc", "--evidence-file", "@soft.json"],
    "draws": ["alarm.bif", "-q", "HR,BP", "--solver", "pac", "--delta", "0.2", "--epsilon", "0.3"],
    "draws that end at a limit": ["alarm.bif", "--solver", "smooth_pac", "--max-samples", "700"],
    "a search cut at a node": ["alarm.bif", "--solver", "frontier", "--max-nodes", "3", "--delta", "0"],
    "settings and the k best": ["alarm.bif", "-q", "HR,BP", "--solver", "pac", "--set", "batch=7", "--top-k", "3"],
    "a preset": ["asia.bif", "-q", "lung", "--preset", "paper_pac"],
    "warm starts": ["asia.bif", "--solver", "pac", "--warm-start", "max_product", "--warm-start", "@start.json"],
    "real variables": ["mixture.spn", "--epsilon", "0.1"],
    "a limit that does not bind": [
        "asia.bif",
        "--time-limit",
        "60",
        "--max-memory",
        "1G",
        "--max-edges",
        "100000",
    ],
    "many cases": ["asia.bif", "-q", "lung,bronc", "--evidence-file", "@rows.csv"],
    "many cases under draws": ["asia.bif", "-q", "lung", "--evidence-file", "@rows.csv", "--solver", "budget"],
}


@pytest.fixture
def files(tmp_path, examples):
    soft = {"xray": {"likelihood": [0.3, 0.1]}, "dysp": ["yes", "no"], "lung": {"log_likelihood": [-0.1, -900.5]}}
    (tmp_path / "soft.json").write_text(json.dumps(soft | {"tub": {"states": ["no"]}}))
    (tmp_path / "rows.csv").write_text("xray,dysp\nyes,no\nno,?\nyes,yes\n")
    names = cm.read(examples / "asia.bif").domain.names
    (tmp_path / "start.json").write_text(json.dumps(dict.fromkeys(names, "no")))
    return tmp_path


def solve(files, examples, arguments, seed="11"):
    """Solve, write a record, and return its path and the model's."""
    where = [str(files / a[1:]) if a.startswith("@") else a for a in arguments[1:]]
    model, record = str(examples / arguments[0]), str(files / "r.json")
    assert main(["solve", model, *where, "--rng", seed, "-o", record]) == 0
    return record, model


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_answer_comes_out_again_for_any_number_of_workers(files, examples, capsys, name, workers):
    record, model = solve(files, examples, QUERIES[name])
    capsys.readouterr()
    code = main(["replay", record, model, "--workers", workers])
    said = capsys.readouterr().out
    assert "the same as recorded" in said, said
    assert code == 0
    assert "note" not in said


def test_what_is_printed_is_what_is_written(files, examples, capsys):
    for arguments in (["asia.bif", "-q", "lung"], QUERIES["many cases"]):
        where = [str(files / a[1:]) if a.startswith("@") else a for a in arguments[1:]]
        model, record = str(examples / arguments[0]), files / "r.json"
        capsys.readouterr()
        assert main(["solve", model, *where, "--rng", "1", "--json", "-o", str(record)]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(record.read_text())


def changed(record, change):
    held = json.loads(Path(record).read_text())
    change(held)
    Path(record).write_text(json.dumps(held))


DIFFERENCES = {
    "another answer": (lambda r: r["assignment"].update(lung="yes"), 'assignment.lung was "yes" and is "no"'),
    "another bound": (lambda r: r.update(log_upper_bound=-0.5), "log_upper_bound was -0.5"),
    "another certificate": (lambda r: r["certificate"].update(kind="pac"), 'certificate.kind was "pac"'),
    "an entry too many": (lambda r: r.update(colour="red"), 'colour was "red" and is null'),
    "other evidence": (lambda r: r["asked"]["evidence"].update(xray={"state": 1}), "log_prob was"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_what_differs_is_said_and_exits_1(files, examples, capsys, name):
    change, sentence = DIFFERENCES[name]
    record, model = solve(files, examples, ["asia.bif", "-q", "lung,bronc", "-e", "xray=yes"])
    changed(record, change)
    capsys.readouterr()
    assert main(["replay", record, model]) == 1
    said = capsys.readouterr().out
    assert sentence in said
    assert "DIFFERENT" in said


def test_another_version_or_processor_is_said_and_is_no_difference(files, examples, capsys):
    record, model = solve(files, examples, ["asia.bif"])
    changed(record, lambda r: r["asked"]["machine"].update(certimap="0.0.1", processor="an abacus"))
    changed(record, lambda r: r.update(version="0.0.1", seconds=1e9))
    capsys.readouterr()
    assert main(["replay", record, model]) == 0
    said = capsys.readouterr().out
    assert "note: certimap was 0.0.1 and is" in said
    assert "note: processor was an abacus and is" in said


def test_a_run_that_a_limit_cut_short_is_named(files, examples, capsys):
    record, model = solve(files, examples, ["alarm.bif", "--solver", "pac", "--max-samples", "9"])
    for change, code in (({"code": "time_limit"}, "time_limit"), ({"code": "interrupted"}, "interrupted")):
        changed(record, lambda r, change=change: r["status"].update(change))
        capsys.readouterr()
        assert main(["replay", record, model]) == 1
        assert f"note: the recorded run was cut short ({code})" in capsys.readouterr().out
    changed(record, lambda r: r.update(note="the time was up while counting"))
    main(["replay", record, model])
    assert "note: the recorded run was cut short (the time was up while counting)" in capsys.readouterr().out
    record, model = solve(files, examples, ["alarm.bif", "--solver", "pac", "--max-samples", "3000000"])
    assert main(["replay", record, model, "--time-limit", "0.01"]) == 1
    assert "note: this run was cut short (" in capsys.readouterr().out


def broken_records(good):
    yield "{", "JSON"
    yield "[1, 2]", "answer 1 is no result"
    yield json.dumps({k: v for k, v in good.items() if k != "asked"}), "does not say what was asked"
    for name in ("model", "query", "evidence", "settings", "machine"):
        yield json.dumps({**good, "asked": {**good["asked"], name: 3}}), f"'{name}'"
    yield json.dumps({**good, "seed": None}), "'seed'"
    yield json.dumps({**good, "asked": {**good["asked"], "settings": {"colour": 1}}}), "'colour'"
    for form in ({"state": 7}, {"state": True}, {"wheel": 1}, {}, 5, {"states": [0, "x"]}, {"log_weights": [0.0]}):
        yield json.dumps({**good, "asked": {**good["asked"], "evidence": {"xray": form}}}), "'xray'"
    yield json.dumps({**good, "asked": {**good["asked"], "query": ["nobody"]}}), "'nobody'"


def test_bad_input_is_one_sentence_and_exits_2(files, examples, capsys):
    record, model = solve(files, examples, ["asia.bif", "-q", "lung,bronc"])
    good = json.loads((files / "r.json").read_text())
    for text, sentence in broken_records(good):
        (files / "bad.json").write_text(text)
        capsys.readouterr()
        assert main(["replay", str(files / "bad.json"), model]) == 2, text
        captured = capsys.readouterr()
        assert sentence in captured.err, text
        assert len(captured.err.splitlines()) == 1
    assert main(["replay", record, str(examples / "alarm.bif")]) == 2
    assert "another model" in capsys.readouterr().err


def test_the_fingerprint_is_of_the_content(examples, tmp_path):
    asia = cm.read(examples / "asia.bif")
    cm.io.write(asia, tmp_path / "asia.npz")
    assert fingerprint(cm.read(tmp_path / "asia.npz")) == fingerprint(asia)
    text = (examples / "asia.bif").read_text()
    (tmp_path / "b.bif").write_text(text.replace("0.99", "0.98999999999999999", 1))
    assert fingerprint(cm.read(tmp_path / "b.bif")) == fingerprint(asia)  # the same float
    (tmp_path / "c.bif").write_text(text.replace("0.01, 0.99", "0.010000000000000002, 0.99", 1))
    assert fingerprint(cm.read(tmp_path / "c.bif")) != fingerprint(asia)
    assert fingerprint(cm.read(examples / "mixture.spn")).startswith("sha256:")


def test_a_failed_case_is_passed_over(files, examples, capsys):
    (files / "rows.csv").write_text("xray\nyes\nmaybe\n")
    model, record = str(examples / "asia.bif"), str(files / "r.json")
    assert main(["solve", model, "-q", "lung", "--evidence-file", str(files / "rows.csv"), "-o", record]) == 3
    capsys.readouterr()
    assert main(["replay", record, model]) == 0
    assert "1 of 1 answers" in capsys.readouterr().out


def test_replay_from_python(files, examples):
    record, model = solve(files, examples, ["asia.bif", "-q", "lung"])
    (held,) = read_records(record)
    done = replay(cm.read(model), held, workers=2)
    assert done.same
    assert done.result.assignment == held["assignment"]
