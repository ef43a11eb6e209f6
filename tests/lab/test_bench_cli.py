"""`certimap bench`, end to end on two small tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from certimap.cli.main import main
from certimap_lab.bench.records import read_records
from certimap_lab.bench.trial import replay

SOLVERS = (
    "independent,max_product,argmax_product,pac,smooth_pac,smooth_pac+argmax_product,exhaustive,frontier,auto"
)


def write_tables(folder: Path) -> None:
    """Two datasets of 10 and 12 binary columns with two clusters of rows each."""
    for seed, (name, n) in enumerate({"small": 10, "other": 12}.items()):
        rng = np.random.default_rng(seed)
        centres = rng.uniform(0.1, 0.9, (2, n))
        for split, n_rows in (("train", 300), ("valid", 100), ("test", 100)):
            rows = (rng.random((n_rows, n)) < centres[rng.integers(0, 2, n_rows)]).astype(int)
            (folder / f"{name}.{split}.data").write_text("".join(",".join(map(str, r)) + "\n" for r in rows))


def arguments(data: Path, run: Path, **options: str) -> list[str]:
    given = {"datasets": "small,other", "splits": "50/50,50/25", "queries": "2", "solvers": SOLVERS} | options
    flags = [text for name, value in given.items() for text in (f"--{name}", value)]
    return ["bench", "twenty", "--data", str(data), "--out", str(run), "--time-limit", "20", *flags]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The data and a whole run on it."""
    data, run = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("run") / "run"
    write_tables(data)
    assert main(arguments(data, run, jobs="2")) == 0
    return data, run


def test_every_solver_answers_every_query(finished: tuple[Path, Path]) -> None:
    records = read_records(finished[1] / "trials.jsonl")
    assert len(records) == 2 * 2 * 2 * 9
    assert not [r["error"] for r in records if "error" in r]
    queries: dict[Any, set[str]] = {}
    for r in records:
        place = (r["dataset"], r["split"], r["query"])
        queries.setdefault(place, set()).add(json.dumps([r["query_variables"], r["evidence"], r["rng"]]))
    assert len(queries) == 8
    assert all(len(found) == 1 for found in queries.values())  # the same query for every solver
    assert len({next(iter(found)) for found in queries.values()}) == 8


def test_answers_are_right(finished: tuple[Path, Path]) -> None:
    records = read_records(finished[1] / "trials.jsonl")
    best = {(r["dataset"], r["split"], r["query"]): r["log_prob"] for r in records if r["solver"] == "exhaustive"}
    for r in records:
        truth = best[r["dataset"], r["split"], r["query"]]
        assert r["log_prob"] <= truth + 1e-9
        assert r["log_upper_bound"] >= truth - 1e-9
        if r["solver"] in ("exhaustive", "auto", "pac"):
            assert r["certificate"]["kind"] != "none"
            assert r["log_prob"] >= truth + np.log(0.99) - 1e-9


def test_circuits_say_how_they_were_learned(finished: tuple[Path, Path]) -> None:
    circuits = json.loads((finished[1] / "circuits.json").read_text())
    assert {(c["dataset"], c["circuit"]) for c in circuits} == {("small", "learnspn"), ("other", "learnspn")}
    for c in circuits:
        assert -12 * np.log(2) < c["test_log_likelihood"] < 0
        assert (c["train_rows_from"], c["n_train_rows"]) == ("train", 300)


def test_a_trial_replays(finished: tuple[Path, Path]) -> None:
    records = read_records(finished[1] / "trials.jsonl")
    for solver in ("pac", "smooth_pac+argmax_product"):
        record = next(r for r in records if r["solver"] == solver and r["dataset"] == "other")
        again = replay(finished[1] / "models", record)
        for field in ("assignment", "log_prob", "n_draws", "n_evaluations", "certificate"):
            assert again[field] == record[field]


def test_a_stopped_run_goes_on(
    finished: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed at a random moment, with a torn last line, it resumes and ends with the same answers."""
    data, whole = finished
    run = tmp_path / "run"
    command = [sys.executable, "-m", "certimap.cli", *arguments(data, run, models=str(whole / "models"))]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    trials = run / "trials.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (trials.is_file() and len(read_records(trials)) >= 5):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    n_before = len(read_records(trials))
    assert 5 <= n_before < 72
    with trials.open("ab") as file:
        file.write(b'{"circuit":"learnspn","data')
    assert main(arguments(data, run, models=str(whole / "models"))) == 0
    shown = capsys.readouterr()
    assert f"{n_before} done before" in shown.err
    assert "72 trials:" in shown.out

    def answers(folder: Path) -> dict[Any, Any]:
        names = ("dataset", "split", "query", "solver")
        return {tuple(r[n] for n in names): r["assignment"] for r in read_records(folder / "trials.jsonl")}

    assert answers(run) == answers(whole)
    assert len(read_records(trials)) == 72
    assert main(arguments(data, run, models=str(whole / "models"))) == 0
    assert len(read_records(trials)) == 72  # nothing left to do


def test_a_run_keeps_its_settings(finished: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(*finished, epsilon="0.1")) == 2
    assert "was begun with epsilon = 0.01, now it is 0.1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("solvers", "pac,nonsense", "'nonsense'"),
        ("circuits", "spn", "'spn' is no circuit"),
        ("splits", "80/80", "'80/80' is no split"),
        ("queries", "0", "1 or more"),
        ("datasets", "absent", "no model could be learned"),
    ],
)
def test_what_is_unknown_is_named(
    finished: tuple[Path, Path], tmp_path: Path, option: str, value: str, sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(arguments(finished[0], tmp_path / "run", **{option: value})) == 2
    assert sentence in capsys.readouterr().err


def test_tables_of_a_run(finished: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin twenty -->\n<!-- end twenty -->\n")
    out = tmp_path / "tables"
    code = main(
        ["bench", "tables", str(finished[1]), "--out", str(out), "--formats", "csv,md", "--into", str(page)]
    )
    assert code == 0
    shown = capsys.readouterr().out
    assert "## Average ranks, learnspn, 50 % Q, 25 % E, 25 % V" in shown
    assert "times ranked highest" in (out / "ranks-learnspn-50-25.csv").read_text()
    assert "How each answer was certified" in page.read_text()
    assert "Commands:" in page.read_text()
    assert main(["bench", "tables", str(tmp_path)]) == 2


def test_networks(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_data / "networks"
    cases = str(folder / "cases.json")
    asked = ["bench", "networks", "--cases", cases, "--only", "asia", "--out", str(tmp_path)]
    assert main([*asked, "--solvers", "auto,max_product"]) == 0
    records = read_records(tmp_path / "networks.jsonl")
    assert len(records) == 2 * len({r["case"] for r in records}) > 0
    for r in records:
        if r["solver"] == "auto":
            assert r["above_best"] == pytest.approx(0.0, abs=1e-9)
            assert r["certificate"]["kind"] in ("exact", "epsilon")
    out = capsys.readouterr().out
    assert "equal the best known" in out
    assert "| asia-mmap20-s0 |" in out
    assert main(["bench", "networks", "--cases", cases, "--only", "nowhere"]) == 2


def test_models_with_latent_variables(finished: tuple[Path, Path], tmp_path: Path) -> None:
    """Methods that walk circuits get the circuit of a hidden tree, and agree with the others on probabilities."""
    run = tmp_path / "run"
    options = {"datasets": "small", "circuits": "hclt2", "splits": "50/25", "solvers": "argmax_product,auto"}
    assert main(arguments(finished[0], run, **options)) == 0
    records = {(r["solver"], r["query"]): r for r in read_records(run / "trials.jsonl")}
    assert len(records) == 4
    for query in range(2):
        walked, proved = records["argmax_product", query], records["auto", query]
        assert proved["certificate"]["kind"] in ("exact", "epsilon")
        assert walked["log_evidence"] == pytest.approx(proved["log_evidence"], abs=1e-9)
        if walked["assignment"] == proved["assignment"]:
            assert walked["log_prob"] == pytest.approx(proved["log_prob"], abs=1e-9)
    again = replay(run / "models", records["argmax_product", 0])
    assert again["assignment"] == records["argmax_product", 0]["assignment"]


@pytest.mark.slow
def test_growth_is_measured_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin growth -->\n<!-- end growth -->\n")
    assert main(["bench", "networks", "--growth", "--sizes", "20,40", "--quiet", "--into", str(page)]) == 0
    printed = capsys.readouterr().out
    for shape in ("chain", "tree", "hmm"):
        assert f"| {shape} | 20 |" in printed
        assert f"| {shape} | 40 |" in page.read_text()
    assert printed.count("| exact |") == 6
    assert "| evidence rows of a network | 1,000 |" in printed


def test_large_circuits_are_measured_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin scale -->\n<!-- end scale -->\n")
    assert main(["bench", "scale", "--sizes", "20000", "--quiet", "--into", str(page)]) == 0
    row = next(line for line in page.read_text().splitlines() if "| 150 |" in line)
    assert "| exact |" in row
    assert "--" not in row
    assert main(["bench", "scale", "--sizes", "many"]) == 2
    assert "'many'" in capsys.readouterr().err
    assert main(["bench", "scale", "--sizes", "30"]) == 2
    assert "too few" in capsys.readouterr().err


def test_orders_are_compared_on_grids_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin orders -->\n<!-- end orders -->\n")
    assert main(["bench", "orders", "examples/asia.bif", "--sides", "3,15", "--quiet", "--into", str(page)]) == 0
    rows = {line.split(" | ")[0]: line.split(" | ") for line in page.read_text().splitlines() if " | " in line}
    assert rows["| asia"][1:4] == ["8", "3.0", "5.5"]
    assert float(rows["| grid 15x15"][4]) == 16.0 < float(rows["| grid 15x15"][2])
    assert rows["| torus 3x3"][1] == "9"
    assert main(["bench", "orders", "--sides", "many"]) == 2
    assert "'many'" in capsys.readouterr().err


def test_networks_need_cases_or_growth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "networks"]) == 2
    assert "--growth" in capsys.readouterr().err
    assert main(["bench", "networks", "--growth", "--sizes", "many"]) == 2
    assert "'many'" in capsys.readouterr().err
    assert main(["bench", "networks", "--growth", "--sizes", "3"]) == 2
