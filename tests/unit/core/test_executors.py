"""Rows shared out over executors: the same answers, whoever finds them, and whatever happens to a worker."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

import certimap as cm
from certimap.core import executors
from certimap.core.executors import SMALL, Spread, process_pool
from certimap.errors import ImpossibleEvidence, SolverError


class Inline(Executor):
    """Workers that live in this process, each with a memory of its own; some die, some are slow."""

    def __init__(self, n_workers: int = 3, deaths: int = 0) -> None:
        self.n_workers, self.deaths, self.n_payloads, self.n_calls = n_workers, deaths, 0, 0
        self._memories: list[dict] = [{} for _ in range(n_workers)]

    def submit(self, fn, /, *args, **kwargs) -> Future:
        future: Future = Future()
        self.n_calls += 1
        if self.deaths:
            self.deaths -= 1
            future.set_exception(RuntimeError("the worker died"))
            return future
        key, data, function, task = args
        memory = self._memories[self.n_calls % self.n_workers]
        self.n_payloads += data is not None
        if data is not None:
            memory[key] = pickle.loads(data)
        known = key in memory
        value = function(memory[key], pickle.loads(pickle.dumps(task))) if known else None
        future.set_result(executors._Answer(f"w{self.n_calls % self.n_workers}", known, value))
        return future


def scaled(payload, task):
    return payload[0] * task


@pytest.fixture
def asia():
    return cm.read("examples/asia.bif")


def frame(n=40, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"xray": rng.choice(["yes", "no"], n), "dysp": rng.choice(["yes", "no"], n)})


def told(results):
    return [(r.assignment, r.log_prob, r.certificate, r.seed) for r in results]


@pytest.mark.parametrize("size", [1, SMALL])
@pytest.mark.parametrize("n_workers", [1, 4])
def test_every_worker_gets_the_payload_and_answers_come_in_order(size, n_workers):
    executor = Inline(n_workers)
    payload = (3, b"x" * size)
    assert list(Spread(executor, scaled, payload).results(20, lambda i: i)) == [3 * i for i in range(20)]
    if size == SMALL:
        assert executor.n_payloads <= 2 * n_workers


def test_a_task_knows_the_answers_that_its_window_lets_it_know():
    taken: list[int] = []
    known: list[int] = []

    def make(i):
        known.append(len(taken))
        return i

    for value in Spread(Inline(), scaled, (1,), window=3).results(8, make):
        taken.append(value)
    assert known == [0, 0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("deaths", [1, 5])
def test_what_a_worker_loses_is_done_again(deaths):
    executor = Inline(deaths=deaths)
    if deaths == 1:
        assert list(Spread(executor, scaled, (2,)).results(4, lambda i: i)) == [0, 2, 4, 6]
    else:
        with pytest.warns(RuntimeWarning, match="done by the calling process"):
            assert list(Spread(executor, scaled, (2,)).results(4, lambda i: i)) == [0, 2, 4, 6]


def test_rows_have_the_same_answers_on_any_executor(asia):
    rows = frame()
    alone = cm.map_query(asia, ["lung", "bronc"], rows, rng=5)
    with ThreadPoolExecutor(2) as threads:
        shared = cm.map_query(asia, ["lung", "bronc"], rows, rng=5, executor=threads)
    assert (
        told(shared) == told(alone) == told(cm.map_query(asia, ["lung", "bronc"], rows, rng=5, executor=Inline()))
    )
    assert list(shared.labels) == list(rows.index)
    shared[3].explain()  # it knows its model and its question


def test_a_row_that_fails_is_its_own_failure_elsewhere_too():
    states = {"a": ["x", "y"], "b": ["x", "y"]}
    model = cm.BayesianNetwork.from_cpts(states, {"b": ["a"]}, {"a": [0.5, 0.5], "b": [[1.0, 0.0], [1.0, 0.0]]})
    rows = pd.DataFrame({"b": ["x", "y", "x", "z"]})
    kept = cm.map_query(model, ["a"], rows, executor=Inline(), errors="keep", rng=0)
    assert [type(r).__name__ for r in kept] == ["MapResult", "FailedQuery", "MapResult", "FailedQuery"]
    assert [r.error for r in kept.failures] == ["ImpossibleEvidence", "QueryError"]
    with pytest.raises(ImpossibleEvidence, match="row 1"):
        cm.map_query(model, ["a"], rows, executor=Inline(), rng=0)


def test_settings_say_what_they_expect(asia):
    for wrong, says in (({"n_jobs": 0}, "n_jobs is 0"), ({"executor": 3}, "executor is a int"),
                        ({"executor": Inline(), "n_jobs": 2}, "both given")):  # fmt: skip
        with pytest.raises(SolverError, match=says):
            cm.map_query(asia, ["lung"], frame(2), **wrong)


def die_once(payload, task):
    """Kill the worker at the first task that finds the file missing."""
    if task == 2 and not os.path.exists(payload):
        with open(payload, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_process_that_is_killed_loses_nothing(tmp_path):
    with process_pool(2) as pool, pytest.warns(RuntimeWarning, match="was lost"):
        found = list(Spread(pool, die_once, str(tmp_path / "dead")).results(6, lambda i: i))
    assert found == list(range(6))


def test_processes_of_this_machine_answer_as_one(asia):
    rows = frame(6)
    alone = cm.map_query(asia, ["lung"], rows, rng=1)
    assert told(cm.map_query(asia, ["lung"], rows, rng=1, n_jobs=2)) == told(alone)


def test_rows_from_processes_bring_their_proofs(asia, monkeypatch):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 600.0)  # however busy the machine is
    rows = frame(3)
    results = cm.map_query(asia, ["lung", "bronc"], rows, rng=1, epsilon=0.0, proof=True, n_jobs=2)
    assert len(results) == len(rows)
    for result, row in zip(results, rows.to_dict("records"), strict=True):
        alone = cm.map_query(asia, ["lung", "bronc"], row, rng=result.seed, epsilon=0.0, proof=True)
        assert cm.check(asia, result.proof).accepted
        assert np.array_equal(result.proof.arrays["log_weights"], alone.proof.arrays["log_weights"])
        label = next(s for s in asia.domain["lung"].states if s != result.assignment["lung"])
        forged = cm.Proof(
            {**result.proof.meta, "answer": {**result.assignment, "lung": label}}, result.proof.arrays
        )
        assert not cm.check(asia, forged).accepted


def interrupt_the_caller(payload, task):
    if task == 1:
        threading.Event().wait(0.2)
        os.kill(payload, signal.SIGINT)
        threading.Event().wait(0.5)
    return task


def test_ctrl_c_keeps_what_was_taken():
    found = []

    def take(pool):
        for value in Spread(pool, interrupt_the_caller, os.getpid()).results(3, lambda i: i):
            found.append(value)

    with ProcessPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        take(pool)
    assert found == [0]
