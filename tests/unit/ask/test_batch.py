"""Batches: a row's failure is its own, complete rows are answered, and Ctrl-C keeps what is done."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import certimap as cm
from certimap.ask.batch import BatchRow, collect, map_rows
from certimap.ask.session import Session
from certimap.solvers.request import Request

pd = pytest.importorskip("pandas")


@pytest.fixture
def network() -> cm.BayesianNetwork:
    """c is 1 where a and b are, and p(b = 1 | a = 0) is 0."""
    return cm.BayesianNetwork.from_cpts(
        {"a": ["no", "yes"], "b": [0, 1], "c": ["no", "yes"]},
        {"b": ["a"], "c": ["b"]},
        {
            "a": [0.7, 0.3],
            "b": {"no": [1.0, 0.0], "yes": [0.4, 0.6]},
            "c": {0: [0.9, 0.1], 1: [0.2, 0.8]},
        },
    )


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "a": ["yes", "no", "maybe", None, "yes"],
            "b": [1, 1, 0, 1, 1],
            "c": [None, None, None, None, "yes"],
        },
        index=["fine", "impossible", "unknown", "gaps", "complete"],
    )


def test_a_failed_row_is_its_own_result_with_keep(network, frame):
    results = cm.map_query(network, None, frame, errors="keep", rng=3, epsilon=0)
    assert results.labels == list(frame.index)
    assert [r.label for r in results.failures] == ["impossible", "unknown"]
    assert [type(r) for r in results] == [cm.MapResult, cm.FailedQuery, cm.FailedQuery, cm.MapResult, cm.MapResult]
    assert results[1].error == "ImpossibleEvidence"
    assert results[2].error == "QueryError"
    assert "'maybe'" in results[2].message
    assert json.loads(results[2].to_json())["label"] == "unknown"
    assert results[0].assignment == {"c": "yes"}
    assert results[3].assignment == {"a": "yes", "c": "yes"}
    assert not results.interrupted


@pytest.fixture
def runs(monkeypatch):
    """The seeds of all runs."""
    found = []
    run = Session.run
    monkeypatch.setattr(Session, "run", lambda *given: found.append(given[3]) or run(*given))
    return found


ALIKE = {"a": ["yes", "no", "yes", "yes"], "b": [0, 0, 0, None]}


def test_rows_that_ask_the_same_share_one_run(network, runs):
    frame = pd.DataFrame(ALIKE, dtype=object)
    results = cm.map_query(network, ["c"], frame, rng=3, top_k=2, proof=True)
    assert len(runs) == 3
    assert len({r.seed for r in results}) == 4
    for row, result in enumerate(results):
        alone = cm.map_query(network, ["c"], frame[row : row + 1], rng=result.seed, top_k=2)[0]
        for name in ("assignment", "log_prob", "log_evidence", "certificate", "top", "ties", "seed", "pareto"):
            assert getattr(result, name) == getattr(alone, name)
        assert result.origin.ask() == (["c"], {"a": ALIKE["a"][row], "b": ALIKE["b"][row]})
        assert cm.check(network, result.proof).accepted
    results[0].assignment.clear()
    results[0].history.clear()
    assert results[2].assignment
    assert results[2].history


def test_rows_do_not_share_runs_with_draws_limits_or_equal_looking_evidence(network, runs):
    frame = pd.DataFrame(ALIKE, dtype=object)
    cm.map_query(network, ["c"], frame, rng=3, solver="pac")
    cm.map_query(network, ["c"], frame, rng=3, warm_start="max_product")
    cm.map_query(network, ["c"], frame, rng=3, max_nodes=0, solver="frontier")
    listed = pd.DataFrame(
        {"b": [{"likelihood": np.array([1.0, 0.5])}, {"likelihood": np.array([1.0, 0.5 + 1e-12])}]}
    )
    cm.map_query(network, ["c"], listed, rng=3)
    assert len(runs) == 14


def test_a_failure_changes_no_other_row(network, frame):
    kept = cm.map_query(network, None, frame, errors="keep", rng=3, solver="pac", max_samples=50)
    good = frame.assign(a=["yes", "yes", "yes", None, "yes"])
    whole = cm.map_query(network, None, good, rng=3, solver="pac", max_samples=50)
    for k in (0, 3):
        assert kept[k].seed == whole[k].seed
        assert kept[k].n_draws == whole[k].n_draws


@pytest.mark.parametrize(
    ("rows", "name", "kind"), [([0, 1], "impossible", cm.ImpossibleEvidence), ([2], "unknown", cm.QueryError)]
)
def test_raise_names_the_row(network, frame, rows, name, kind):
    with pytest.raises(kind, match=f"row '{name}': "):
        cm.map_query(network, None, frame.iloc[rows])


def test_a_complete_row_is_the_empty_assignment(network, frame):
    result = cm.map_query(network, None, frame.iloc[4:], solver="pac", top_k=3)[0]
    assert result.assignment == {}
    assert result.log_prob == 0.0
    assert result.log_upper_bound == 0.0
    assert result.certificate.kind == "exact"
    assert result.log_evidence == pytest.approx(math.log(0.3 * 0.6 * 0.8), abs=1e-12)
    assert result.log_joint == result.log_evidence
    assert result.top == [({}, 0.0)]


def test_complete_evidence_of_every_kind_of_model(network):
    evidence = {"a": "yes", "b": 0, "c": "yes"}
    exact = math.log(0.3 * 0.4 * 0.1)
    markov = cm.MarkovNetwork(network.domain, [*network.factors, cm.Factor((), 5.0)])
    for model, expected in ((network, exact), (network.compile(), exact), (markov, exact + math.log(5.0))):
        assert cm.map_query(model, None, evidence).log_evidence == pytest.approx(expected, abs=1e-12)
        with pytest.raises(cm.ImpossibleEvidence, match="probability zero"):
            cm.map_query(model, None, {"a": "no", "b": 1, "c": "yes"})


def test_complete_evidence_with_real_variables():
    build = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Real("y")]))
    build.product([build.gaussian(0, 0.0, 1.0), build.gaussian(1, 2.0, 0.5)])
    result = cm.map_query(build.build(), None, {"x": 1.0, "y": 2.0})
    log_density = -0.5 - 0.5 * math.log(2 * math.pi) - math.log(0.5 * math.sqrt(2 * math.pi))
    assert result.log_evidence == pytest.approx(log_density, abs=1e-12)
    assert result.log_prob == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"solver": "oracle"}, "'oracle' is no solver"),
        ({"solver": "pac", "radius": 3}, "no setting 'radius'"),
        ({"radius": 3}, "no setting 'radius'"),
        ({"epsilon": 2}, "epsilon is 2"),
        ({"time_limit": -1}, "time_limit is -1"),
        ({"errors": "ignore"}, "errors is 'ignore'"),
    ],
)
def test_what_would_fail_every_row_is_raised_before_the_first(network, frame, change, message):
    with pytest.raises(cm.SolverError, match=message) as caught:
        cm.map_query(network, None, frame, **{"errors": "keep", **change})
    assert "row" not in str(caught.value)


def test_unknown_columns_and_queries_are_raised_before_the_first_row(network, frame):
    with pytest.raises(cm.QueryError, match="'d' is no variable"):
        cm.map_query(network, None, frame.rename(columns={"c": "d"}), errors="keep")
    with pytest.raises(cm.QueryError, match="'d' is no variable"):
        cm.map_query(network, ["d"], frame, errors="keep")
    with pytest.raises(cm.QueryError, match="posterior already"):
        cm.map_query(cm.condition(network), None, frame)


def test_a_frame_of_results_says_what_failed(network, frame):
    table = cm.map_query(network, None, frame, errors="keep").to_frame()
    assert list(table.index) == list(frame.index)
    assert list(table["status"]) == ["certified", "failed", "failed", "certified", "certified"]
    assert table["error"].isna().tolist() == [True, False, False, True, True]
    assert cm.ResultList().to_frame().empty


def conditioned_by(condition, quick, **settings):
    """Return a session whose queries are conditioned by the functions given."""

    class Conditioned(Session):
        def query(self, variables, evidence):
            return variables, evidence

        def posterior(self, query, control):
            return condition(*query, control)

        def quick_posterior(self, query, control):
            return quick(*query, control)

    return Conditioned(None, Request.of(**settings))


def test_memory_that_runs_out_in_a_row_is_that_rows_failure():
    def condition(variables, evidence, control):
        if evidence == "large":
            raise MemoryError
        return cm.FunctionPosterior(
            [2], lambda n, g: g.integers(0, 2, (n, 1)), lambda x: np.full(len(x), -math.log(2))
        )

    def no_fallback(variables, evidence, control):
        raise cm.TooLarge("nothing is quick")

    rows = [BatchRow(k, lambda size=size: (None, size), "") for k, size in enumerate(("large", "small"))]
    session = conditioned_by(condition, no_fallback)
    first, second = map_rows(session, rows, 0, "keep", progress=False)
    assert isinstance(first, cm.FailedQuery)
    assert "memory ran out" in first.message
    assert isinstance(second, cm.MapResult)
    with pytest.raises(cm.TooLarge, match="memory ran out"):
        list(map_rows(session, rows, 0, "raise", progress=False))


INTERRUPTED = """
import time, numpy as np, pandas as pd, certimap as cm

build = cm.CircuitBuilder(cm.Domain.of_sizes([4] * 30))
build.product([build.categorical(i, np.log(np.full(4, 0.25))) for i in range(30)])
frame = pd.DataFrame({"0": range(4)})
seen = 0

def tell(entry):
    print("working", flush=True)

results = cm.map_query(build.build(), None, frame, solver="pac", max_samples=10**9, rng=0, progress=tell)
assert results.interrupted and results.labels == [0], results.labels
assert len(results) == 1 and results[0].status == "interrupted"
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_the_first_interrupt_ends_the_batch_and_returns_the_rows_done():
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    *_, last = process.communicate(timeout=600)[0].splitlines()
    assert last == "done"
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_an_interrupt_ends_the_batch_even_where_the_row_has_its_proof():
    """Ctrl-C in the one step that proves the answer leaves that row certified; the next row is not begun."""
    domain = cm.Domain.of_sizes([2])
    to_send = [signal.SIGINT]

    def condition(variables, evidence, control):
        def log_prob(points):
            if to_send:
                os.kill(os.getpid(), to_send.pop())
            return np.log(np.where(points[:, 0] == 0, 0.25, 0.75))

        return cm.FunctionPosterior(domain, lambda n, g: g.integers(0, 2, (n, 1)), log_prob)

    rows = [BatchRow(k, lambda: (None, None), "") for k in range(3)]
    session = conditioned_by(condition, condition, solver="exhaustive")
    answers, interrupted = collect(map_rows(session, rows, 0, "keep", progress=False))
    assert interrupted
    assert len(answers) == 1
    assert answers[0].assignment == {"0": 1}
