"""`certimap solve MODEL --rows FILE.csv -o ANSWERS.csv`: one line per row, whole or not at all."""

# pyright: basic

from __future__ import annotations

import csv
import gzip
import json
import math
import re
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
    assert [line["xray"] for line in lines] == ["yes", "maybe", "no", "no"]
    assert [line["status"] == "failed" for line in lines] == [False, True, True, False]
    assert "'maybe' is no state" in lines[1]["error"]
    result = cm.map_query(cm.read(model), None, {"xray": "yes", "asia": "no"})
    assert {name: lines[0][name] for name in result.assignment} == result.assignment
    assert float(lines[0]["log_prob"]) == result.log_prob
    assert lines[0]["certificate"] == "exact"
    assert float(lines[0]["probability"]) == pytest.approx(math.exp(result.log_prob or 0.0))
    assert lines[3]["lung"] == "yes"  # as it was in the table


def test_some_variables_and_gzip(examples, tmp_path):
    (tmp_path / "rows.csv").write_text("xray\nyes\nno\n")
    out = tmp_path / "answers.csv.gz"
    assert (
        main(["solve", str(examples / "asia.bif"), "-q", "lung", "--rows", f"{tmp_path}/rows.csv", "-o", str(out)])
        == 0
    )

    text = gzip.decompress(out.read_bytes()).decode()
    assert text.splitlines()[0].startswith("xray,lung,lung_probability,certificate,log_prob")
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
    command = ["solve", str(examples / "asia.bif"), "--rows", str(tmp_path / "rows.csv"), "-o", str(out)]
    assert main([*command, "--strict"]) == 2
    assert "'smoked' is no variable" in capsys.readouterr().err
    assert not out.exists()
    assert main(command) == 0
    assert "ignored, for the model has no such variables: 'smoked'" in capsys.readouterr().err
    (tmp_path / "rows.csv").write_text("smoked\nno\n")
    assert main(command) == 2


MODEL = "x;y;plan;when\n" + "".join(
    f"{k % 40};{k % 2 * 10},5{k % 10};{'ab'[k % 2]};0{k % 7 + 1}.05.2024\n" for k in range(80)
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned")
    (folder / "t.csv").write_text(MODEL)
    options = ["--method", "mixture", "--set", "n_components=2", "--kinds", "when=day", "--no-held-out"]
    assert main(["learn", str(folder / "t.csv"), "-o", str(folder / "m.npz"), "--rng", "0", *options]) == 0
    return folder / "m.npz"


def test_columns_that_are_asked_are_answered_beside_their_own(learned, tmp_path, capsys):
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    rows.write_text('note;plan;y;when\nfirst;a;0,51;01.05.2024\n"se;cond";;10,55;\nthird;B;10,55;\nlast;zz;0,5;\n')
    command = ["solve", str(learned), "--rows", str(rows), "-o", str(out), "--rng", "0"]
    assert main([*command, "-q", "plan"]) == 0
    lines = list(csv.DictReader(out.open(newline=""), delimiter=";"))
    assert [line["note"] for line in lines] == ["first", "se;cond", "third", "last"]
    assert [line["plan"] for line in lines] == ["a", "", "B", "zz"]
    assert [line["y"] for line in lines] == ["0,51", "10,55", "10,55", "0,5"]
    assert [line["plan_answer"] for line in lines][:2] == ["a", "b"]
    assert all(0.5 < float(line["plan_probability"].replace(",", ".")) <= 1.0 for line in lines[:2])
    assert {line["certificate"] for line in lines[:2]} == {"exact"}
    assert main([*command, "-q", "plan,when", "--time-limit", "5"]) == 0
    lines = list(csv.DictReader(out.open(newline=""), delimiter=";"))
    assert all(re.fullmatch(r"\d\d\.05\.2024", line["when_answer"]) for line in lines[:2])


def test_tables_between_tabs_go_in_and_out(examples, tmp_path):
    (tmp_path / "rows.tsv").write_text("xray\tdysp\nyes\tno\n")
    out = tmp_path / "out.tsv"
    command = ["solve", str(examples / "asia.bif"), "-q", "lung", "--rows", f"{tmp_path}/rows.tsv", "-o", str(out)]
    assert main(command) == 0
    assert out.read_text().startswith("xray\tdysp\tlung\tlung_probability\tcertificate")


def test_fill_answers_the_empty_cells_alone(learned, tmp_path, capsys):
    rows, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    rows.write_text("plan;y;x\na;0,51;3\n;10,55;4\nb;-;\n?;10,51;39\nzz;0,5;1\n")
    command = ["solve", str(learned), "--rows", str(rows), "-o", str(out), "--rng", "0", "--fill", "-q", "plan,y"]
    assert main(command) == 3
    assert "4 of 4" not in capsys.readouterr().err
    lines = list(csv.DictReader(out.open(newline=""), delimiter=";"))
    assert [line["plan"] for line in lines] == ["a", "b", "b", "b", "zz"]
    assert lines[0]["certificate"] == lines[0]["status"] == ""
    assert lines[4]["status"] == "failed"
    assert 9.0 < float(lines[2]["y"].replace(",", ".")) < 12.0
    assert lines[2]["x"] == ""
    assert main([*command, "--lenient"]) == 0
    lines = list(csv.DictReader(out.open(newline=""), delimiter=";"))
    assert [line["plan"] for line in lines] == ["a", "b", "b", "b", "zz"]  # what stands there stays


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
