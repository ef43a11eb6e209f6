"""Constraints on the command line."""

from __future__ import annotations

import html
import json

import pytest

import certimap as cm
from certimap.cli.main import main


@pytest.fixture
def model(tmp_path):
    """A file of three independent variables; "yes" is the likelier state of each."""
    network = cm.BayesianNetwork.from_cpts(
        {n: ["no", "yes"] for n in "abc"}, {}, {"a": [0.2, 0.8], "b": [0.3, 0.7], "c": [0.4, 0.6]}
    )
    path = tmp_path / "model.bif"
    network.write(path)
    return path


def asked(capsys, *words):
    """Return the exit code, and the printed answer or error."""
    code = main(["solve", *map(str, words)])
    told = capsys.readouterr()
    return code, json.loads(told.out) if code == 0 else told.err


def test_short_forms_and_a_file_give_the_same_answer(model, tmp_path, capsys):
    path = tmp_path / "rules.json"
    rules = [cm.AtMost(2, ["a", "b", "c"], "yes"), cm.Never(a="yes", b="yes")]
    path.write_text(json.dumps([rule.to_dict() for rule in rules]))
    code, short = asked(capsys, model, "--at-most", "2:a,b,c=yes", "--never", "a=yes,b=yes", "--json", "--rng", 1)
    assert code == 0
    assert short["assignment"] == {"a": "yes", "b": "no", "c": "yes"}
    assert short["constraints"] == [rule.to_dict() for rule in rules] == short["asked"]["settings"]["constraints"]
    again = asked(capsys, model, "--constraints", path, "--json", "--rng", 1)[1]
    assert again["assignment"] == short["assignment"]
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(short))
    assert main(["replay", str(answer), str(model)]) == 0


def test_explanations_and_pages_keep_constraints_and_interventions(examples, tmp_path, capsys):
    asking = [str(examples / "asia.bif"), "-q", "lung,bronc", "-e", "dysp=yes", "--do", "smoke=yes"]
    rules = ["--never", "lung=no,bronc=yes", "--at-most", "1:lung,bronc=no"]
    assert main(["explain", *asking, *rules, "--entries", "0"]) == 0
    text = capsys.readouterr().out
    assert "The answer after do(smoke='yes')" in text
    assert "Under AtMost(k=1, names=('lung', 'bronc'), state='no')" in text
    assert "Under Never({'lung': 'no', 'bronc': 'yes'})" in text
    assert main(["explain", *asking, *rules, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answer"]["assignment"] == {"lung": "yes", "bronc": "yes"}
    assert found["lead"]["runner_up"] == {"lung": "yes", "bronc": "no"}  # others do not satisfy them
    answer, page = tmp_path / "answer.json", tmp_path / "page.html"
    assert main(["solve", *asking, *rules, "--explain", "--top-mass", "0.9", "-o", str(answer)]) == 0
    assert main(["report", str(answer), "-o", str(page)]) == 0
    shown = html.unescape(page.read_text())
    assert "after do(smoke='yes')" in shown
    assert "Never({'lung': 'no', 'bronc': 'yes'})" in shown
    p = cm.marginals(cm.read(examples / "asia.bif").do(smoke="yes"), "lung", {"dysp": "yes"})["lung"]["yes"]
    assert f"2 assignments hold {p:.6g} of the 0.9 asked for" in shown
    capsys.readouterr()
    assert main(["explain", *asking, "--never", "lung=no", "--never", "bronc=yes", "--entries", "0"]) == 0
    assert "No other assignment is possible under them" in capsys.readouterr().out
    assert main(["explain", *asking, "--never", "lung=maybe"]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--at-most", "a,b=yes"], "K:A,B,C=STATE"),
        (["--at-most", "1:a,d=yes"], "'d'"),
        (["--never", "a=maybe"], "'maybe'"),
        (["--constraints", "none.json"], "none.json: cannot be read: No such file"),
        (["--never", "a=no", "--never", "a=yes"], "no possible assignment"),
        (["--never", "a=no", "--at-most", "0:a,b=yes"], "no possible assignment"),
    ],
)
def test_bad_constraints_end_with_code_2(model, capsys, words, told):
    code, error = asked(capsys, model, *words)
    assert code == 2
    assert told in error
