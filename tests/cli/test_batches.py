"""Many cases in the shell: a bad one spoils only itself, answers come as they are found, Ctrl-C ends the batch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import certimap as cm
from certimap.cli import main as shell
from certimap.cli.main import main

ROWS = "xray,asia,lung,bronc\nyes,no,,\nmaybe,no,,\nno\nno,yes,yes,no\n"


@pytest.fixture
def cases(tmp_path):
    path = tmp_path / "cases.csv"
    path.write_text(ROWS)
    return path


def test_a_bad_case_is_its_own(capsys, examples, cases):
    code = main(["solve", str(examples / "asia.bif"), "--evidence-file", str(cases)])
    captured = capsys.readouterr()
    assert code == 3
    assert [line for line in captured.out.splitlines() if line.startswith("case ")] == [
        f"case {number} ({cases}:{number + 1})" for number in (1, 2, 3, 4)
    ]
    assert "FAILED. 'maybe' is no state of variable 'xray'" in captured.out
    assert f"FAILED. {cases}:4: the row has 1 cells" in captured.out
    assert captured.err.splitlines()[-1] == "certimap: 2 of 4 cases answered, 2 failed (case 2, 3)"


def test_json_is_whole_with_a_failed_case(capsys, examples, cases):
    code = main(["solve", str(examples / "asia.bif"), "-q", "dysp", "--evidence-file", str(cases), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == 3
    assert [item.get("error") for item in data] == [None, "QueryError", "ParseError", None]
    assert data[1]["label"] == 2
    assert data[3]["assignment"].keys() == {"dysp"}


def test_errors_raise_ends_at_the_first(capsys, examples, cases):
    code = main(["solve", str(examples / "asia.bif"), "--evidence-file", str(cases), "--errors", "raise"])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out.count("case ") == 1
    assert captured.err.splitlines()[-1].startswith(f"certimap: {cases}:3: 'maybe' is no state")


def test_a_complete_case_has_nothing_left_to_ask(capsys, examples, tmp_path):
    model = cm.read(examples / "asia.bif")
    row = dict.fromkeys(model.domain.names, "yes")
    (tmp_path / "e.json").write_text(json.dumps(row))
    code = main(["solve", str(examples / "asia.bif"), "--evidence-file", str(tmp_path / "e.json"), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == 0
    assert data["assignment"] == {}
    assert data["log_prob"] == 0.0
    expected = float(model.log_joint(model.domain.encode(row))[0])
    assert data["log_evidence"] == pytest.approx(expected, abs=1e-9)


def test_what_would_fail_every_case_exits_with_2(capsys, examples, cases):
    for option in (["--solver", "oracle"], ["--epsilon", "7"], ["--set", "colour=red", "--solver", "pac"]):
        assert main(["solve", str(examples / "asia.bif"), "--evidence-file", str(cases), *option]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_ends_the_batch_with_what_is_done(examples, tmp_path, as_json):
    path = tmp_path / "many.csv"
    path.write_text("HRBP\n" + "HIGH\n" * 2000)
    command = [sys.executable, "-u", "-m", "certimap.cli", "solve", str(examples / "alarm.bif")]
    command += ["--evidence-file", str(path), *(["--json"] if as_json else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = process.stdout.readline()
    while '"version"' not in seen and "status" not in seen:
        seen += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    process.wait(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "of 2000 cases answered, interrupted with" in err.splitlines()[-1]
    if as_json:
        assert 0 < len(json.loads(seen + out)) < 2000


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (MemoryError(), 2, "memory ran out"),
        (OverflowError("too\nlarge"), 70, "OverflowError: too large"),
        (RecursionError("deep"), 70, "RecursionError"),
        (ValueError("three"), 70, "CERTIMAP_TRACEBACK=1"),
        (KeyError("x"), 70, "KeyError"),
        (cm.QueryError("one"), 2, "certimap: one"),
    ],
)
def test_errors_from_deep_inside_are_one_sentence(capsys, monkeypatch, error, code, sentence):
    def fail(**_):
        raise error

    monkeypatch.setattr(shell, "app", fail)
    monkeypatch.delenv(shell.TRACEBACK, raising=False)
    assert main(["solve"]) == code
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert len(captured.err.splitlines()) == 1
    monkeypatch.setenv(shell.TRACEBACK, "1")
    assert main(["solve"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_encoding_and_separator(capsys, tmp_path):
    domain = cm.Domain([cm.Categorical("fièvre", ("élevée", "nulle")), cm.Categorical("b", ("0", "1"))])
    model = cm.BayesianNetwork(domain, [cm.Factor((0,), [0.5, 0.5]), cm.Factor((0, 1), [[0.9, 0.1], [0.2, 0.8]])])
    path, rows = tmp_path / "m.bif", tmp_path / "e.csv"
    model.write(path)
    path.write_bytes(path.read_text(encoding="utf-8").encode("latin-1"))
    rows.write_bytes("fièvre/b\nnulle/\n".encode("latin-1"))
    arguments = ["solve", str(path), "--evidence-file", str(rows), "--json"]
    assert main(arguments) == 2
    assert "--encoding" in capsys.readouterr().err
    assert main([*arguments, "--encoding", "latin-1", "--separator", "/"]) == 0
    assert json.loads(capsys.readouterr().out)["assignment"] == {"b": "1"}
    assert main(["convert", str(path), str(tmp_path / "n.bif"), "--encoding", "latin-1"]) == 0
    assert cm.read(tmp_path / "n.bif").domain == domain
    assert main(["info", str(path), "--encoding", "latin-1", "-q", "b"]) == 0


def test_learn_says_what_was_read_and_scores_texts_by_the_model(capsys, tmp_path):
    train, test, out = tmp_path / "t.csv", tmp_path / "s.csv", tmp_path / "m.npz"
    train.write_text("a;b\n" + "1;x\n0;y\n1;y\n0;x\n" * 30)
    test.write_text("a;b\n1.0;x\n0;y\n")
    assert main(["learn", str(train), "-o", str(out), "--method", "chow-liu", "--test", str(test)]) == 0
    err = capsys.readouterr().err
    assert f"{train}: 120 rows, 2 columns (semicolon between cells): 'a', 'b'" in err
    assert "mean log-likelihood" in err
    assert cm.read(out).domain.names == ("a", "b")
