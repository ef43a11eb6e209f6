"""`certimap solve` from the shell: answers, JSON, files of evidence and queries, replay."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import certimap as cm
from certimap.cli.main import main

KEYS = {
    "assignment",
    "log_prob",
    "log_evidence",
    "log_upper_bound",
    "certificate",
    "status",
    "log_joint",
    "log_joint_upper_bound",
    "pareto",
    "ties",
    "n_draws",
    "n_draws_to_best",
    "n_evaluations",
    "seconds",
    "seed",
    "solver",
    "version",
    "asked",
    "history",
    "min_entropy_bits",
    "draws_needed",
}
CERTIFICATE_KEYS = {
    "kind",
    "epsilon",
    "delta",
    "requested_epsilon",
    "requested_delta",
    "rule",
    "assumptions",
    "tolerance",
}


def answer(capsys, *arguments: object):
    """Run `certimap ... --json` in this process and return what it printed, parsed."""
    code = main([*(str(a) for a in arguments), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """A network whose names and states hold commas, equals signs and blanks."""
    path = tmp_path / "labels.npz"
    domain = cm.Domain(
        [cm.Categorical("a,b", ("x=1", "x=1,y=2")), cm.Categorical("c", ("p q", "r")), cm.Categorical("n", (0, 1))]
    )
    builder = cm.CircuitBuilder(domain)
    one = builder.product([builder.indicator(0, 0), builder.indicator(1, 0), builder.indicator(2, 0)])
    two = builder.product([builder.indicator(0, 1), builder.indicator(1, 1), builder.indicator(2, 1)])
    builder.sum([one, two], [math.log(0.3), math.log(0.7)])
    cm.io.write(builder.build(), path)
    return path


def test_json_has_the_documented_keys_and_agrees_with_python(capsys, examples):
    data = answer(
        capsys, "solve", examples / "alarm.bif", "--query", "HISTORY,CVP", "--evidence", "HRBP=HIGH", "--rng", 5
    )
    assert set(data) == KEYS
    assert set(data.pop("asked")) == {"file", "model", "do", "query", "evidence", "settings", "machine"}
    assert set(data["certificate"]) == CERTIFICATE_KEYS
    assert set(data["status"]) == {"code", "message"}
    result = cm.map_query(cm.read(examples / "alarm.bif"), ["HISTORY", "CVP"], {"HRBP": "HIGH"}, rng=5)
    expected = result.to_dict()
    del data["seconds"], expected["seconds"]
    assert data.pop("history")["n_draws"][-1] == data["n_draws"]
    assert data == expected
    assert data["assignment"] == {"HISTORY": "FALSE", "CVP": "NORMAL"}
    assert data["certificate"]["kind"] == "exact"


def test_a_query_left_out_asks_for_everything_without_evidence(capsys, examples):
    data = answer(capsys, "solve", examples / "asia.bif", "-e", "xray=yes,asia=no", "--epsilon", 0)
    assert set(data["assignment"]) == {"tub", "smoke", "lung", "bronc", "either", "dysp"}


def test_options_repeat_and_evidence_files_add_up(capsys, examples, tmp_path):
    file = tmp_path / "evidence.json"
    file.write_text(json.dumps({"asia": "no", "dysp": None}))
    model = examples / "asia.bif"
    together = answer(capsys, "solve", model, "-q", "lung,bronc", "-e", "xray=yes,asia=no", "--rng", 0)
    apart = answer(
        capsys, "solve", model, "-q", "lung", "-q", "bronc", "-e", "xray=yes", "--evidence-file", file, "--rng", 0
    )
    assert together["assignment"] == apart["assignment"]
    assert together["log_prob"] == apart["log_prob"]


def test_names_and_labels_with_commas_and_equals_signs(capsys, labels):
    assert answer(capsys, "solve", labels, "-q", "c", "-e", "a,b=x=1,y=2")["assignment"] == {"c": "r"}
    assert answer(capsys, "solve", labels, "-q", "c", "-e", "a,b=x=1")["assignment"] == {"c": "p q"}
    assert answer(capsys, "solve", labels, "-q", "c", "-e", '"a,b=x=1,y=2",n=1')["assignment"] == {"c": "r"}
    assert answer(capsys, "solve", labels, "-q", "a,b")["assignment"] == {"a,b": "x=1,y=2"}
    assert answer(capsys, "solve", labels, "-q", '"a,b",n', "-e", "c=p q")["assignment"] == {"a,b": "x=1", "n": 0}


def test_each_row_of_a_csv_is_a_case(capsys, examples, tmp_path):
    file = tmp_path / "cases.csv"
    file.write_text("xray,asia,smoke\nyes,no,\nno,no,yes\n?,yes,no\n")
    data = answer(capsys, "solve", examples / "asia.bif", "-q", "lung,bronc", "--evidence-file", file, "--rng", 0)
    model = cm.read(examples / "asia.bif")
    rows = [
        {"xray": "yes", "asia": "no"},
        {"xray": "no", "asia": "no", "smoke": "yes"},
        {"asia": "yes", "smoke": "no"},
    ]
    assert [d["log_evidence"] for d in data] == pytest.approx(
        [cm.map_query(model, ["lung", "bronc"], row, rng=0).log_evidence for row in rows]
    )
    assert main(["solve", str(examples / "asia.bif"), "-q", "lung", "--evidence-file", str(file)]) == 0
    assert "case 3" in capsys.readouterr().out


def test_soft_evidence_in_json(capsys, examples, tmp_path):
    file = tmp_path / "soft.json"
    file.write_text(json.dumps({"xray": {"yes": 0.8, "no": 0.1}, "dysp": [0.5, 0.5]}))
    data = answer(capsys, "solve", examples / "asia.bif", "-q", "lung", "--evidence-file", file, "--rng", 0)
    model = cm.read(examples / "asia.bif")
    expected = cm.map_query(model, ["lung"], {"xray": {"yes": 0.8, "no": 0.1}, "dysp": [0.5, 0.5]}, rng=0)
    assert data["log_prob"] == expected.log_prob


@pytest.fixture
def uai(tmp_path: Path) -> Path:
    path = tmp_path / "two.uai.gz"
    path.write_bytes(gzip.compress(b"BAYES\n2\n2 3\n2\n1 0\n2 0 1\n2 .3 .7\n6 .7 .2 .1 .1 .3 .6\n"))
    return path


def test_uai_models_evidence_and_queries(capsys, uai, tmp_path):
    assert answer(capsys, "solve", uai)["assignment"] == {"0": 1, "1": 2}
    assert answer(capsys, "solve", uai)["log_prob"] == pytest.approx(math.log(0.42))
    (tmp_path / "one.evid").write_text("1 0 0\n")
    (tmp_path / "one.query").write_text("1 1\n")
    data = answer(
        capsys, "solve", uai, "--evidence-file", tmp_path / "one.evid", "--query-file", tmp_path / "one.query"
    )
    assert data["assignment"] == {"1": 0}
    assert data["log_evidence"] == pytest.approx(math.log(0.3))
    (tmp_path / "two.map").write_text("1\n0 0\n1\n0 1\n")
    both = answer(capsys, "solve", uai, "--query-file", tmp_path / "two.map")
    assert [d["assignment"] for d in both] == [{"1": 0}, {"1": 2}]


def test_numbers_of_uai_files_count_variables_and_states_whatever_they_are_called(capsys, examples, tmp_path):
    """Variables 3, 4 and 6 of Asia are lung, bronc and xray; state 0 of each is "yes"."""
    model = examples / "asia.bif"
    (tmp_path / "x.evid").write_text("2 6 0 0 1\n")
    (tmp_path / "x.query").write_text("2 4 3\n")
    (tmp_path / "x.map").write_text("4 3\n6 0 0 1\n")
    named = answer(capsys, "solve", model, "-q", "bronc,lung", "-e", "xray=yes,asia=no", "--rng", 0)
    numbered = [
        answer(
            capsys, "solve", model, "--rng", 0,
            "--evidence-file", tmp_path / "x.evid", "--query-file", tmp_path / "x.query",
        ),
        answer(capsys, "solve", model, "--query-file", tmp_path / "x.map", "--rng", 0),
    ]  # fmt: skip
    del named["seconds"], named["history"]
    for data in numbered:
        del data["seconds"], data["history"]
        assert data == named
    assert list(named["assignment"]) == ["bronc", "lung"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("x.evid", "1 8 0\n", "8 is no variable of the model; expected 0 to 7"),
        ("x.evid", "1 6 2\n", "2 is no state of variable 'xray'; expected 0 to 1"),
        ("x.query", "1 8\n", "8 is no variable of the model; expected 0 to 7"),
        ("x.map", "3\n6 2\n", "2 is no state of variable 'xray'; expected 0 to 1"),
    ],
)
def test_numbers_beyond_the_model_are_named(capsys, examples, tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    option = "--evidence-file" if name.endswith(".evid") else "--query-file"
    assert main(["solve", str(examples / "asia.bif"), option, str(tmp_path / name)]) != 0
    error = capsys.readouterr().err
    assert sentence in error
    assert name in error


def test_an_uncertified_answer_says_so_first_and_exits_with_0(capsys, examples):
    code = main(["solve", str(examples / "alarm.bif"), "--solver", "pac", "--max-samples", "5", "--rng", "0"])
    captured = capsys.readouterr()
    assert code == 0
    assert captured.out.startswith("NOT CERTIFIED. The draw limit was reached")


def test_top_k_lists_as_many_answers(capsys, examples):
    model = str(examples / "alarm.bif")
    data = answer(capsys, "solve", model, "-q", "HISTORY,CVP", "--top-k", 3, "--rng", 0)
    assert set(data) == KEYS | {"top"}
    assert len(data["top"]) == 3
    assert main(["solve", model, "-q", "HISTORY,CVP", "--top-k", "3"]) == 0
    assert "the 3 most probable" in capsys.readouterr().out


def test_warm_starts_from_a_name_and_from_an_earlier_answer(capsys, examples, tmp_path):
    model = examples / "asia.bif"
    first = answer(capsys, "solve", model, "--solver", "argmax_product", "--rng", 0)
    (tmp_path / "start.json").write_text(json.dumps(first))
    warm = answer(
        capsys, "solve", model, "--solver", "pac", "--max-samples", 1, "--rng", 0,
        "--warm-start", tmp_path / "start.json", "--warm-start", "independent",
    )  # fmt: skip
    assert warm["log_prob"] >= first["log_prob"] - 1e-12
    assert warm["n_draws"] <= 1


def test_solver_settings_presets_and_limits_reach_the_solver(capsys, examples):
    model = examples / "alarm.bif"
    query = ["-q", "HISTORY,CVP,PCWP", "--rng", 0]
    data = answer(capsys, "solve", model, *query, "--preset", "paper", "--max-memory", "1G", "--workers", 1)
    assert data["solver"] == "smooth_pac"
    data = answer(
        capsys, "solve", model, *query, "--solver", "smooth_pac", "--set", "radius=2", "--time-limit", 30
    )
    assert data["certificate"]["kind"] in ("exact", "epsilon", "pac")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "certimap.cli", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
    )


def test_a_seed_replays_in_fresh_processes_whatever_the_hash_seed(examples):
    arguments = ["solve", str(examples / "alarm.bif"), "--solver", "smooth_pac", "--rng", "7", "--json"]
    answers = []
    for hash_seed, workers in (("1", "1"), ("2", "2")):
        done = run(*arguments, "--max-samples", "3000", "--workers", workers, PYTHONHASHSEED=hash_seed)
        assert done.returncode == 0, done.stderr
        data = json.loads(done.stdout)
        del data["seconds"], data["history"]["seconds"]
        answers.append(data)
    assert answers[0] == answers[1]
    assert answers[0]["seed"] == 7


def test_a_reader_that_goes_away_is_no_error(examples):
    command = f"{sys.executable} -m certimap.cli solve {examples / 'alarm.bif'} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=600)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_what_a_solve_does_not_need_is_not_imported(examples):
    script = (
        "import sys; from certimap.cli.main import main; "
        f"main(['solve', {str(examples / 'asia.bif')!r}, '-q', 'lung', '--json']); "
        "sys.exit(','.join(sorted({'sklearn', 'matplotlib', 'pandas'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert [line for line in done.stderr.split("\n") if line and not line.startswith("compiling kernels")] == []


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"certimap {cm.__version__}\n"


def test_an_upper_bound_from_elsewhere_is_named(examples, capsys, tmp_path):
    model, query = str(examples / "asia.bif"), ["-q", "lung,bronc", "-e", "xray=yes"]
    main(["solve", model, *query, "--json", "--epsilon", "0", "--delta", "0"])
    exact = json.loads(capsys.readouterr().out)
    bound = f"a friend:log_joint={exact['log_joint']!r}"
    record = tmp_path / "answer.json"
    asked = ["--solver", "max_product", "--upper-bound", bound, "-o", str(record)]
    assert main(["solve", model, *query, "--json", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["certificate"]["assumptions"] in (["the upper bound from a friend holds"], [])
    assert found["asked"]["settings"]["upper_bound"] == {"source": "a friend", "log_joint": exact["log_joint"]}
    assert main(["replay", str(record), model]) == 0
    assert main(["solve", model, *query, "--upper-bound", "-12"]) == 2
    assert "SOURCE:log_joint=X" in capsys.readouterr().err
