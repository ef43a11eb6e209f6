"""`certimap learn` on a table as it lies there: what it says of columns, held-out rows and the output."""

# pyright: basic

from __future__ import annotations

import re

import pytest

import certimap as cm
from certimap.cli.main import main


@pytest.fixture
def table(tmp_path):
    lines = [f"{k};{'*' if k % 7 == 0 else k % 40};{'ja' if k % 2 else 'nein'};{k % 2 * 10},5{k % 10};x{k % 3}"
             for k in range(100)]  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("id;age;ok;spend;city\n" + "\n".join(lines) + "\n")
    return path


def test_columns_and_held_out_rows_are_said(table, tmp_path, capsys):
    model = tmp_path / "m.npz"
    options = ["--missing", "*,-", "--kinds", "city=categorical", "--drop", "age", "--rng", "0"]
    assert main(["learn", str(table), "-o", str(model), *options, "--method", "mixture"]) == 0
    err = capsys.readouterr().err
    assert re.search(r"^id +left out +0, 1 +all different: it numbers the rows$", err, re.MULTILINE)
    assert re.search(r"^age +left out .* 15 +not asked for$", err, re.MULTILINE)
    assert re.search(r"^spend +number +0.5 to 10.59 +decimal commas$", err, re.MULTILINE)
    gain = re.search(r"a row is (\S+) nats more probable than by independent columns", err)
    assert gain is not None
    assert float(gain[1]) > 0.3
    assert cm.read(model).domain.names == ("ok", "spend", "city")
    assert main(["info", str(model)]) == 0
    assert re.search(r"^age +left out .* 15 +not asked for$", capsys.readouterr().out, re.MULTILINE)


def test_the_best_of_a_few_is_named(table, tmp_path, capsys):
    command = ["learn", str(table), "-o", str(tmp_path / "m.npz"), "--columns", "ok,city", "--method", "auto"]
    assert main([*command, "--rng", "0"]) == 0
    err = capsys.readouterr().err
    best = re.search(r"m.npz: .* by (\S+)$", err, re.MULTILINE)
    scores = re.findall(r"^  (-\S+)  (\S+)$", err, re.MULTILINE)
    assert best is not None
    assert scores[0][1] == best[1]
    assert {name for _, name in scores} == {"independence", "mixture", "learnspn", "hclt"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-o", "m.bif"], "a model of learnspn cannot be written to m.bif: .bif holds Bayesian networks"),
        (["-o", "m.nnf", "--method", "chow-liu"], "cannot be written"),
        (["-o", "m.spn", "--method", "gaussian-mixture"], "cannot be written"),
        (["-o", "m.what"], "'.what' names no model format"),
        (["-o", "nowhere/m.npz"], "'nowhere' is no folder"),
        (["-o", "m.npz", "--decimal", ";"], "--decimal is ';'"),
        (["-o", "m.npz", "--kinds", "citi=real"], "kinds names the column 'citi'"),
    ],
)
def test_what_cannot_work_is_said_before_learning(options, said, table, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", str(table), *options]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.txt", "city -> ok\n\nok -> spend\n"),
        ("s", "city,ok\nok,spend"),
        ("s.json", '{"ok": ["city"], "spend": ["ok"]}'),
    ],
)
def test_the_tables_of_a_given_structure_are_learned(name, text, table, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    command = ["learn", str(table), "-o", str(tmp_path / "m.bif"), "--structure", str(tmp_path / name)]
    assert main([*command, "--kinds", "spend=categorical,city=categorical", "--set", "prior=ml"]) == 0
    assert re.search(r"a row is \S+ nats more probable than by independent columns", capsys.readouterr().err)
    model = cm.read(tmp_path / "m.bif")
    assert isinstance(model, cm.BayesianNetwork)
    assert [[model.domain.names[p] for p in own] for own in model.parents] == [[], ["city"], ["ok"]]
    again = ["learn", str(table), "-o", str(tmp_path / "n.bif"), "--structure", str(tmp_path / "m.bif")]
    assert main([*again, "--kinds", "spend=categorical,city=categorical", "--no-held-out"]) == 0


def test_sequences_of_a_file_share_the_tables_of_slices(tmp_path):
    rows = [f"{one},{'ab'[t % 2]}" for one in "uvw" for t in range(9)]
    (tmp_path / "rows.csv").write_text("\n".join(["one,x", *rows]))
    (tmp_path / "s.txt").write_text("x[0] -> x[1]\n")
    command = ["learn", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "m.npz"), "--structure"]
    assert main([*command, str(tmp_path / "s.txt"), "--set", "sequence=one", "--set", "prior=ml"]) == 0
    model = cm.read(tmp_path / "m.npz")
    assert isinstance(model, cm.BayesianNetwork)
    assert model.factors[model.domain.index("x[1]")].table.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_structure_is_searched_for_by_score(table, tmp_path, capsys):
    command = ["learn", str(table), "-o", str(tmp_path / "m.bif"), "--method", "bic", "--columns", "ok,spend,city"]
    kinds = ["--kinds", "spend=categorical,city=categorical"]
    assert main([*command, *kinds, "--set", 'required=[["city","ok"]]', "--rng", "0"]) == 0
    assert re.search(r"a row is \S+ nats more probable", capsys.readouterr().err)
    model = cm.read(tmp_path / "m.bif")
    assert isinstance(model, cm.BayesianNetwork)
    assert model.domain.index("city") in model.parents[model.domain.index("ok")]
    assert main([*command, "--columns", "spend,ok"]) == 2
    assert "column 'spend' is real; expected categorical columns" in capsys.readouterr().err
