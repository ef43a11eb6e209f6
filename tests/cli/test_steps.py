"""Sequences on the shell: a network of two slices, and evidence with a row per step."""

from __future__ import annotations

import json

import pytest

import certimap as cm
from certimap.cli.main import main


@pytest.fixture
def model(tmp_path):
    made = cm.hidden_markov_model(
        [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.2, 0.8]], 2,
        states=["dry", "wet"], names=("sky[{}]", "umbrella[{}]"), symbols=["no", "yes"],
    )  # fmt: skip
    made.write(tmp_path / "m.npz")
    return made, tmp_path


def asked(capsys, *arguments):
    assert main(["solve", *arguments, "--json", "--epsilon", "0"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_a_row_per_step(model, capsys):
    made, folder = model
    (folder / "seen.csv").write_text("umbrella,sky\nyes,\n,\nno,dry\nyes,\n")
    found = asked(capsys, str(folder / "m.npz"), "--by-step", str(folder / "seen.csv"))
    seen = {"umbrella[0]": "yes", "umbrella[2]": "no", "sky[2]": "dry", "umbrella[3]": "yes"}
    expected = cm.map_query(cm.unroll(made, 4), None, seen, epsilon=0)
    assert found["assignment"] == expected.assignment
    assert found["log_prob"] == pytest.approx(expected.log_prob)


def test_more_steps_than_rows_and_an_intervention(model, capsys):
    made, folder = model
    (folder / "seen.csv").write_text("step,umbrella\n3,yes\n0,no\n")
    seen = {"umbrella[3]": "yes", "umbrella[0]": "no"}
    for more, steps in ([], 4), (["--steps", "6"], 6):
        options = ["--by-step", str(folder / "seen.csv"), *more, "--do", "sky[2]=wet"]
        found = asked(capsys, str(folder / "m.npz"), *options)
        network = cm.unroll(made, steps).do({"sky[2]": "wet"})
        assert found["assignment"] == cm.map_query(network, None, seen, epsilon=0).assignment


def test_answers_with_a_row_per_step(model, capsys):
    _, folder = model
    (folder / "seen.csv").write_text("umbrella,sky\nyes,\n,\nno,\n")
    answer = folder / "answer.csv"
    found = asked(capsys, str(folder / "m.npz"), "--by-step", str(folder / "seen.csv"), "--steps", "3")
    options = ["--steps", "3", "--by-step", str(folder / "seen.csv"), "--output", str(answer)]
    assert main(["solve", str(folder / "m.npz"), *options]) == 0
    lines = [line.split(",") for line in answer.read_text().splitlines()]
    assert lines[0] == ["step", "sky", "umbrella"]
    read = {
        f"{name}[{row[0]}]": x for row in lines[1:] for name, x in zip(lines[0][1:], row[1:], strict=True) if x
    }
    assert read == found["assignment"]
    assert "certificate" in capsys.readouterr().out


def test_answers_replay(model, capsys):
    _, folder = model
    (folder / "seen.csv").write_text("umbrella\nyes\nno\n")
    model_file, answer = str(folder / "m.npz"), str(folder / "answer.json")
    options = ["--by-step", str(folder / "seen.csv"), "--do", "sky[1]=dry", "--rng", "1", "--output", answer]
    assert main(["solve", model_file, *options]) == 0
    assert main(["replay", answer, model_file]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rain\nyes\n", "rain[0]"),
        ("umbrella\nyes\n\nno\n", "a column 'step'"),
        ("umbrella\nnever\n", "never"),
        ("step,umbrella\n0,no\n0,no\n", "two values"),
    ],
)
def test_tables_that_do_not_fit(model, capsys, text, message):
    _, folder = model
    (folder / "seen.csv").write_text(text)
    assert main(["solve", str(folder / "m.npz"), "--by-step", str(folder / "seen.csv")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "seen.csv" in error
