"""Trials of the Twenty Datasets on executors: the same records, whoever runs them."""

from __future__ import annotations

import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest

import certimap as cm
from certimap.errors import MissingDependency
from certimap.testing import random_circuit
from certimap_lab.bench.records import read_records, write_json
from certimap_lab.bench.trial import TrialSettings
from certimap_lab.bench.twenty import Plan, run_twenty
from certimap_lab.cli.bench import executor_named


class Dying(Executor):
    """Does each task when it is handed out; the first ones die."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths

    def submit(self, fn, /, *args, **kwargs) -> Future:
        future: Future = Future()
        if self.deaths:
            self.deaths -= 1
            future.set_exception(RuntimeError("the worker died"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def plan(folder, solvers=("pac", "auto")):
    """A run whose two models are there already."""
    (folder / "models").mkdir(parents=True)
    for k, name in enumerate(("nltcs", "plants")):
        model = random_circuit(np.random.default_rng(k), cm.Domain.of_sizes([2] * 8))
        cm.io.write(model, folder / "models" / f"{name}-learnspn.npz")
        write_json(folder / "models" / f"{name}-learnspn.json", {"dataset": name, "circuit": "learnspn"})
    settings = TrialSettings(epsilon=0.1, delta=0.1, time_limit=None)
    names = ("nltcs", "plants")
    return Plan(folder, None, names, splits=("50/50",), solvers=solvers, n_queries=3, settings=settings)


def told(folder):
    fields = ("dataset", "query", "solver", "assignment", "log_prob", "certificate", "rng", "error")
    return sorted(tuple(repr(r.get(name)) for name in fields) for r in read_records(folder / "trials.jsonl"))


def test_records_are_the_same_for_any_executor(tmp_path):
    run_twenty(plan(tmp_path / "here"))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(3) as three:
        run_twenty(plan(tmp_path / "one"), executor=one)
        run_twenty(plan(tmp_path / "three"), executor=three)
    run_twenty(plan(tmp_path / "dying"), executor=Dying(1))
    with pytest.warns(RuntimeWarning, match="done by the calling process"):
        run_twenty(plan(tmp_path / "dead"), executor=Dying(10**6))
    here = told(tmp_path / "here")
    assert len(here) == 12
    for other in ("one", "three", "dying", "dead"):
        assert told(tmp_path / other) == here


def test_a_trial_that_fails_is_on_record(tmp_path):
    asked = plan(tmp_path, ("auto",))
    (tmp_path / "models" / "nltcs-learnspn.npz").write_bytes(b"damaged")
    with ThreadPoolExecutor(2) as executor:
        summary = run_twenty(asked, executor=executor)
    records = read_records(tmp_path / "trials.jsonl")
    assert summary["n_trials"] == 6
    assert sum("error" in r for r in records) == 3


@pytest.mark.parametrize("text", ["slurm:x", "dask:", "dask"])
def test_what_names_no_executor_is_refused(text):
    with pytest.raises(cm.SolverError, match="expected dask:ADDRESS"), executor_named(text):
        pass


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingDependency, match="pip install distributed"), executor_named("dask:tcp://x:1"):
        pass
