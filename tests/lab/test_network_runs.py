"""Runs on networks: solvers, peers, what is recorded and what the tables say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import certimap
from certimap import io
from certimap.cli.main import main
from certimap_lab.bench.network_cases import NetworkCase, uai_cases
from certimap_lab.bench.network_comparison import network_comparison_tables
from certimap_lab.bench.network_tables import by_case, gap_series, network_tables, open_cases
from certimap_lab.bench.networks import NetworkPlan, gap_of, is_proved, moments, run_networks, standing
from certimap_lab.bench.paper import paper
from certimap_lab.bench.peers import PEERS, PeerServer, installed_peers
from certimap_lab.bench.ranks import Trials, winners
from certimap_lab.bench.records import BenchError, Record, read_records
from certimap_lab.bench.report import write_report
from certimap_lab.bench.trial import Method, TrialSettings

CHAIN = "MARKOV\n3\n2 2 2\n2\n2 0 1\n2 1 2\n4\n.9 .1 .2 .8\n4\n.7 .3 .4 .6\n"


def chain(tmp_path: Path) -> Path:
    (tmp_path / "chain.uai").write_text(CHAIN)
    (tmp_path / "chain.uai.evid").write_text("1 2 1\n")
    return tmp_path


def record(case: str, solver: str, value: float | None, upper: float | None, **fields: Any) -> Record:
    kind = "exact" if value is not None and value == upper else "none"
    made: Record = {
        "case": case,
        "solver": solver,
        "query": ["a", "b"],
        "best_log_joint": None,
        "proven_optimal": False,
        "log_joint": value,
        "log_joint_upper_bound": upper,
        "certificate": {"kind": kind},
        "status": "certified" if kind == "exact" else "time_limit",
        "seconds": 10.0,
        "history": [] if upper is None else [[0.2, None, upper + 5.0], [3.0, value, upper]],
    }
    return made | fields


def test_methods_have_settings() -> None:
    method = Method.parse("wmb:i_bound=5:iterations=3")
    assert (method.solver, dict(method.options)) == ("wmb", {"i_bound": 5, "iterations": 3})
    assert method.arguments(TrialSettings())["i_bound"] == 5
    for text in ("wmb:i_bound=deep", "wmb:i_bound", "wmb:depth=3", "wmb:i_bound=0", "auto:i_bound=3", "auto+"):
        with pytest.raises(BenchError):
            Method.parse(text)


def test_a_run_is_recorded_and_goes_on(tmp_path: Path) -> None:
    cases = tuple(uai_cases(chain(tmp_path)))
    plan = NetworkPlan(cases, tmp_path / "run", ("auto", "wmb:i_bound=1"), settings=TrialSettings(0.0, 0.0))
    records = run_networks(plan)
    assert [r["solver"] for r in records] == ["auto", "wmb:i_bound=1"]
    auto = records[0]
    assert auto["log_joint"] == pytest.approx(auto["log_joint_upper_bound"])
    assert (auto["query"], auto["best_log_joint"], is_proved(auto)) == (None, None, True)
    said: list[str] = []
    run_networks(plan, report=said.append)
    assert said == []
    assert len(read_records(tmp_path / "run" / "networks.jsonl")) == 2
    with pytest.raises(BenchError, match="begun with epsilon"):
        run_networks(NetworkPlan(cases, tmp_path / "run", ("ijgp",)))
    report = write_report(tmp_path / "run", formats=("md",))
    assert "Networks, case by case" in report.summary


def test_the_command_prints_answers_and_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "uai", "--dir", str(chain(tmp_path)), "--solvers", "auto,wmb:i_bound=2", "--jobs", "2"]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert "| chain | 2 |" in printed
    assert printed.count("**proved") == 2


def test_tables_compare_with_the_best_known() -> None:
    records = [
        record("x", "auto", -5.0, -5.0),
        record("x", "wmb:i_bound=5", -6.0, -4.0),
        record("x", "wmb", None, -2.0, history=[]),
        record("y", "auto", -3.0, -1.0, best_log_joint=-4.0, above_best=1.0),
        record("y", "wmb", -9.0, -1.5, best_log_joint=-4.0, above_best=-5.0, history=[]),
        record("x", "peer:other", None, None, error="MemoryError: no more"),
    ]
    cases = by_case(records)
    assert [standing(cases["x"][s]) for s in ("auto", "wmb:i_bound=5", "wmb")] == ["best", "below", "none"]
    assert standing(cases["y"]["auto"]) == "better"
    assert [gap_of(r) for r in records] == [0.0, 2.0, None, 2.0, 7.5, None]
    assert open_cases(cases) == ["x", "y"]
    assert gap_series(cases["x"])["wmb:i_bound=5"] == [(0.2, 6.0), (3.0, 1.0)]
    tables = {t.name: t for t in network_tables(records, ["other is left out"])}
    summary = tables["networks-summary"]
    assert summary.rows[-2][:3] == ["auto", "2", "1"]
    assert "other is left out" in summary.notes
    text = tables["networks-cases"].to_markdown()
    assert "**proved, 10.0**" in text
    assert "gap 2.00, 10.0, below 1.00" in text
    assert "MemoryError: no more" in text
    left = tables["networks-bounds"]
    assert [r[0:3:2] for r in left.rows] == [["x", "wmb:i_bound=5"], ["x", "wmb"], ["y", "wmb"], ["y", "auto"]]
    assert "1 of 5 trials ended with a proof of exactness; 2 of the others with a bound below" in left.notes[0]
    time_row = next(r for r in tables["networks-time"].rows if r[1] == "wmb:i_bound=5")
    assert time_row[2:8] == ["6.00", "6.00", "6.00", "1.00", "1.00", "1.00"]
    assert network_tables([]) == []


def test_moments_keep_what_moved() -> None:
    network = certimap.BayesianNetwork.from_cpts({"a": [0, 1]}, {}, {"a": [0.25, 0.75]})
    result = certimap.map_query(network, rng=0)
    kept = list(moments(result))
    assert kept[-1][1:] == (pytest.approx(result.log_joint), pytest.approx(result.log_joint_upper_bound))


def test_a_missing_peer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found, missing = installed_peers(("pgmpy", "toulbar2"))
    assert found == ()
    assert missing[0] == "pgmpy is left out: it is not installed (pip install pgmpy)"
    with pytest.raises(BenchError, match="'merlin' is no peer"):
        installed_peers(("merlin",))


@pytest.mark.parametrize("peer", sorted(PEERS))
def test_peers_find_the_best_answer_of_a_small_network(peer: str, tmp_path: Path) -> None:
    pytest.importorskip(PEERS[peer].module)
    names = ["a", "b", "c", "d"]
    tables = {"a": [0.3, 0.7], **{name: [[0.6, 0.4], [0.25, 0.75]] for name in names[1:]}}
    parents = {names[i]: [names[i - 1]] for i in range(1, 4)}
    model = certimap.BayesianNetwork.from_cpts(dict.fromkeys(names, ("no", "yes")), parents, tables)
    io.write(model, tmp_path / "net.bif")
    server = PeerServer(None, 20.0)
    for query in (None, ("a", "d")):
        case = NetworkCase("net", str(tmp_path / "net.bif"), query, {"b": "no"})
        answer = server(case, peer)
        if peer == "toulbar2" and query is not None:
            assert answer["unsuited"]
            continue
        best = certimap.map_query(model, query and list(query), {"b": "no"}, epsilon=0)
        assert answer["log_joint"] == pytest.approx(best.log_joint, abs=1e-6), answer
        assert is_proved({"solver": f"peer:{peer}"} | answer)


def test_what_a_peer_raises_is_its_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(asked: Any) -> Any:
        raise MemoryError("no\nmore")

    monkeypatch.setitem(PEERS, "pgmpy", type(PEERS["pgmpy"])("json", "pgmpy", fail))
    answer = PeerServer(None, None)(uai_cases(chain(tmp_path))[0], "pgmpy")
    assert answer == {"error": "MemoryError: no more", "unsuited": False}
    json.dumps(answer)


def test_published_network_figures_agree_with_themselves() -> None:
    figures = paper()["networks"]
    for split in figures["splits"]:
        counted = dict.fromkeys(figures["times_ranked_highest"][split], 0)
        for by_split in figures["average_rank"].values():
            for method in winners(by_split.get(split, {})):
                counted[method] += 1
        assert counted == figures["times_ranked_highest"][split]
    for figure in ("average_rank", "seconds"):
        assert len(figures[figure]) == 16
        assert sum("20/80" in by_split for by_split in figures[figure].values()) == 13


def test_runs_on_trees_stand_beside_the_published_ones() -> None:
    trials = Trials.of(
        {
            "circuit": "chow-liu",
            "dataset": "nltcs",
            "split": "10/90",
            "query": q,
            "solver": s,
            "assignment": [0],
            "log_prob": -1.0,
            "seconds_solving": 0.5,
        }
        for q in range(2)
        for s in ("aobb", "auto")
    )
    tables = {t.name: t for t in network_comparison_tables(trials, "chow-liu")}
    assert tables["paper-network-ranks-10-90"].to_markdown().count("**1.0 (1.8)**") == 1
    assert tables["paper-network-runtimes-10-90"].rows[0][1:] == ["0.500 (0.0155)", "0.500"]
    (row,) = tables["paper-network-agreement-chow-liu"].rows
    assert row[:5] == ["10/90", "16", "16", "16", "11"]
    assert network_comparison_tables(trials, "learnspn") == []
