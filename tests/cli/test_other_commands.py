"""`certimap info`, `convert` and `learn`, and the table reader behind them."""

# pyright: basic

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest

import certimap as cm
from certimap.cli.main import main
from certimap.cli.options import EvidenceOptions, parse_settings, parse_size, split_list, spread
from certimap.core.result import Certificate, CertificateKind
from certimap.core.summary import certificate_sentence, probability_text
from certimap.learn import prepare


def test_a_group_of_options_is_spread_over_the_command_that_takes_it():
    seen = []

    def command(case: EvidenceOptions, n: int = 3) -> None:
        seen.append((case, n))

    spread_out = spread(command)
    assert list(inspect.signature(spread_out).parameters) == [*(f.name for f in fields(EvidenceOptions)), "n"]
    spread_out(**dict.fromkeys((f.name for f in fields(EvidenceOptions)), None) | {"query": ["a"], "n": 5})
    assert seen[0][0].query == ["a"]
    assert seen[0][1] == 5


def test_info_of_a_network_reports_width_and_size(capsys, examples):
    assert main(["info", str(examples / "alarm.bif"), "--query", "HISTORY", "--evidence", "HRBP=HIGH"]) == 0
    text = capsys.readouterr().out
    for part in ("variables", "37", "induced width", "estimated circuit edges", "HRBP", "LOW, NORMAL, HIGH"):
        assert part in text
    assert main(["info", str(examples / "alarm.bif"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["variables"] == 37
    assert facts["induced_width"] == 4
    assert list(facts["domain"]["HISTORY"]) == ["TRUE", "FALSE"]


def test_info_of_a_circuit_reports_its_properties(capsys, examples):
    assert main(["info", str(examples / "mixture.spn"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["smooth"] is True
    assert facts["decomposable"] is True
    assert facts["deterministic"] is False


def test_info_on_a_query_counts_what_is_left(capsys, examples):
    assert main(["info", str(examples / "asia.bif"), "-q", "lung", "-e", "xray=yes,asia=no", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["query_variables"], facts["observed_variables"], facts["summed_out_variables"]) == (1, 2, 5)


@pytest.mark.parametrize("suffix", [".uai", ".npz", ".uai.gz"])
def test_convert_keeps_the_answer(capsys, examples, tmp_path, suffix):
    target = tmp_path / f"asia{suffix}"
    assert main(["convert", str(examples / "asia.bif"), str(target)]) == 0
    before = cm.map_query(cm.read(examples / "asia.bif"), epsilon=0, rng=0)
    after = cm.map_query(cm.read(target), epsilon=0, rng=0)
    assert after.log_prob == pytest.approx(before.log_prob, abs=1e-12)


def test_convert_refuses_what_a_format_cannot_hold(capsys, examples, tmp_path):
    assert main(["convert", str(examples / "mixture.spn"), str(tmp_path / "mixture.bif")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_learn_turns_a_table_into_a_model(capsys, tmp_path):
    rng = np.random.default_rng(0)
    weather = rng.choice(["dry", "wet"], 400, p=[0.7, 0.3])
    umbrella = np.where(rng.random(400) < np.where(weather == "wet", 0.9, 0.1), "yes", "no")
    rows = "\n".join(f"{w},{u},{t}" for w, u, t in zip(weather, umbrella, rng.integers(0, 3, 400), strict=True))
    (tmp_path / "table.csv").write_text(f"weather,umbrella,tea\n{rows}\n")
    model = tmp_path / "model.npz"
    assert (
        main(["learn", str(tmp_path / "table.csv"), "-o", str(model), "--method", "chow-liu", "--rng", "0"]) == 0
    )
    capsys.readouterr()
    assert main(["solve", str(model), "-q", "weather", "-e", "umbrella=yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["assignment"] == {"weather": "wet"}
    table = str(tmp_path / "table.csv")
    picture = ["learn", table, "-o", str(model), "--method", "region-graph", "--set", "max_steps=2"]
    assert main([*picture, "--set", "shape=[1,3]", "--set", "n_nodes=2"]) == 0
    assert main([*picture, "--set", "shape=3"]) == 2
    assert "shape is 3; expected height and width of a picture of 3 pixels" in capsys.readouterr().err
    assert main(["learn", table, "-o", str(model), "--set", "colour=1"]) == 2
    assert "colour" in capsys.readouterr().err


def test_the_bench_commands_are_listed_only_when_asked_for(capsys):
    assert main(["bench", "--help"]) == 0
    assert "twenty" in capsys.readouterr().out


def test_without_the_lab_one_sentence_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("certimap.cli.main._LAB", "a_package_that_nobody_has")
    assert main(["bench", "twenty"]) == 2
    said = capsys.readouterr().err
    assert "pip install -e . -e lab" in said
    assert len(said.splitlines()) == 1
    assert main(["--help"]) == 0
    assert "bench" not in capsys.readouterr().out


def test_columns_are_typed_by_what_they_hold(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,b,"c, d",e\n1,0.5,x,\n2,,"y, z",3\n')
    columns = prepare(path, columns=["a", "b", "c, d", "e"])
    assert list(columns) == ["a", "b", "c, d", "e"]
    assert columns["a"].dtype == np.int64
    assert np.isnan(columns["b"][1])
    assert columns["c, d"].tolist() == ["x", "y, z"]
    assert columns["e"].tolist() == [None, 3]
    (tmp_path / "u.data").write_text("0,1\n1,1\n")
    assert {k: v.tolist() for k, v in prepare(tmp_path / "u.data").items()} == {"0": [0, 1], "1": [1, 1]}


def test_small_parsers():
    assert split_list('a, "b, c" ,d') == ["a", "b, c", "d"]
    assert parse_settings(["radius=2", "rule=published", "early_stop=false"]) == {
        "radius": 2,
        "rule": "published",
        "early_stop": False,
    }
    assert parse_size("1.5G") == 1_500_000_000
    assert parse_size("200MB") == 200_000_000
    assert parse_size("17") == 17


def test_probabilities_far_below_the_floating_point_range_are_shown():
    assert probability_text(-4000.0) == "e^-4000"
    assert probability_text(0.0) == "1"
    assert probability_text(None) == "unknown"


@pytest.mark.parametrize("kind", list(CertificateKind))
def test_every_kind_of_certificate_has_its_sentence(kind):
    sentence = certificate_sentence(Certificate(kind, 0.01, 0.02, 0.01, 0.05))
    assert sentence.startswith(
        {"exact": "exact", "epsilon": "certain", "pac": "probable", "none": "none"}[kind.value]
    )


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_an_interrupt_returns_what_was_earned_by_then(tmp_path):
    tables = "\n".join(["2 .6 .4"] + ["4 .7 .3 .4 .6"] * 199)
    scopes = "\n".join(["1 0"] + [f"2 {i} {i + 1}" for i in range(199)])
    (tmp_path / "chain.uai").write_text(f"BAYES\n200\n{' '.join(['2'] * 200)}\n200\n{scopes}\n{tables}\n")
    script = (
        "import sys; from certimap.cli.main import main\n"
        "import certimap.solvers.sampling as pac; step = pac.Pac.step\n"
        "def told(*arguments):\n    print('drawing', file=sys.stderr, flush=True); return step(*arguments)\n"
        "pac.Pac.step = told; sys.exit(main())"
    )
    command = [sys.executable, "-c", script, "solve", str(tmp_path / "chain.uai"), "--solver", "pac", "--json"]
    process = subprocess.Popen(
        [*command, "--time-limit", "100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "drawing" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err
    assert process.returncode == 0
    data = json.loads(out)
    assert data["status"]["code"] == "interrupted"
    assert data["certificate"]["kind"] == "none"
