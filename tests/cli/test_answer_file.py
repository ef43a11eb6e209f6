"""`certimap solve MODEL --rows FILE.csv -o ANSWERS.csv`: one line per row, whole or not at all."""

from __future__ import annotations

import csv
import gzip
import json
import signal
import subprocess
import sys

import pytest

import certimap as cm
from certimap.cli.main import main
from certimap.errors import TooLarge

ROWS = "xray,asia,lung,bronc\nyes,no,,\nmaybe,no,,\nno\nno,yes,yes,no\n"


def lines_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_row_has_a_line(capsys, examples, tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS)
    out = tmp_path / "answers.csv"
    model = str(examples / "asia.bif")
    code = main(["solve", model, "--rows", str(tmp_path / "rows.csv"), "-o", str(out)])
    captured = capsys.readouterr()
    assert code == 3
    assert captured.out == ""
    assert "2 of 4 rows answered" in captured.err
    lines = lines_of(out)
    assert [line["row"] for line in lines] == ["1", "2", "3", "4"]
    assert [line["status"] == "failed" for line in lines] == [False, True, True, False]
    assert "'maybe' is no state" in lines[1]["error"]
    result = cm.map_query(cm.read(model), None, {"xray": "yes", "asia": "no"})
    assert {name: lines[0][name] for name in result.assignment} == result.assignment
    assert float(lines[0]["log_prob"]) == result.log_prob
    assert lines[0]["kind"] == "exact"
    assert lines[3]["lung"] == "yes"  # observed here, asked for elsewhere


def test_some_variables_and_gzip(examples, tmp_path):
    (tmp_path / "rows.csv").write_text("xray\nyes\nno\n")
    out = tmp_path / "answers.csv.gz"
    assert (
        main(["solve", str(examples / "asia.bif"), "-q", "lung", "--rows", f"{tmp_path}/rows.csv", "-o", str(out)])
        == 0
    )

    text = gzip.decompress(out.read_bytes()).decode()
    assert text.splitlines()[0].startswith("row,lung,log_prob")
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-o", "nowhere/a.csv"], "no folder"),
        (["-o", "a.csv", "--json"], "--json"),
    ],
)
def test_what_cannot_be_written_is_said_first(capsys, examples, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    assert main(["solve", str(examples / "asia.bif"), *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_unknown_column_fails_at_once(capsys, examples, tmp_path):
    (tmp_path / "rows.csv").write_text("xray,smoked\nyes,no\n")
    out = tmp_path / "answers.csv"
    assert main(["solve", str(examples / "asia.bif"), "--rows", str(tmp_path / "rows.csv"), "-o", str(out)]) == 2
    assert "'smoked' is no variable" in capsys.readouterr().err
    assert not out.exists()


# Starts the command as its script does, and counts the rows that it answers on standard error.
TELLING = """
import sys
import certimap.ask.batch as batch
answered, n = batch._judged, 0
def told(*given):
    global n
    n += 1
    print("row", n, file=sys.stderr, flush=True)
    return answered(*given)
batch._judged = told
from certimap.cli.__main__ import run
sys.exit(run())
"""


def test_ctrl_c_leaves_a_whole_file_or_none(examples, tmp_path):
    n = 20_000
    (tmp_path / "rows.csv").write_text("HR\n" + "LOW\n" * n)
    out = tmp_path / "answers.csv"
    command = ["solve", str(examples / "alarm.bif"), "--rows", str(tmp_path / "rows.csv"), "-o", str(out)]
    child = subprocess.Popen([sys.executable, "-c", TELLING, *command], stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    while child.stderr.readline() not in ("row 20\n", ""):
        pass
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=600)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []
    assert child.returncode == 130
    if out.exists():
        lines = lines_of(out)
        assert len(lines) == n
        assert lines[-1]["status"] == "not reached"
        assert "interrupted with" in said


def test_explanations_go_with_answers(examples, tmp_path, capsys):
    given = ["solve", str(examples / "asia.bif"), "-q", "lung", "-e", "xray=yes,asia=no,dysp=yes", "--explain"]
    assert main([*given, "-o", f"{tmp_path}/answer.json"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("Lead over the runner-up") == 1
    assert "without xray  lung=no  (proved: exact)" in printed
    held = json.loads((tmp_path / "answer.json").read_text())
    assert held["explanation"]["lead"]["runner_up"] == {"lung": "no"}
    assert main([*given, "-o", f"{tmp_path}/answers.csv"]) == 2
    assert "is a table, which holds no explanations; expected a .json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (TooLarge("too wide"), 3, "case 1 is not explained: too wide"),
        (KeyboardInterrupt(), 130, "the explanation of case 1 was interrupted"),
    ],
)
def test_an_answer_is_there_though_its_explanation_is_not(examples, capsys, monkeypatch, problem, code, said):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr(cm.MapResult, "explain", fail)
    assert main(["solve", str(examples / "asia.bif"), "-e", "xray=yes", "--explain", "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out)["certificate"]["kind"] == "exact"
    assert said in captured.err
