"""Rows and trials shared out over real dask clusters, of which a process is killed at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import numpy as np
import pytest

import certimap as cm
from certimap.testing import random_circuit
from certimap_lab.bench.records import read_records, write_json
from certimap_lab.bench.trial import TrialSettings
from certimap_lab.bench.twenty import Plan, run_twenty
from certimap_lab.cli.bench import executor_named

distributed = pytest.importorskip("distributed")
pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as workers:
        yield workers


def told(results):
    return [(r.assignment, r.log_prob, r.certificate, r.seed) for r in results]


def rows(n):
    return pd.DataFrame({"xray": ["yes", "no"] * (n // 2), "dysp": ["no"] * n})


def test_a_cluster_answers_as_one_process_does(cluster):
    asia = cm.read("examples/asia.bif")
    with distributed.Client(cluster) as client:
        shared = cm.map_query(asia, ["lung", "bronc"], rows(64), rng=3, executor=client)
    assert told(shared) == told(cm.map_query(asia, ["lung", "bronc"], rows(64), rng=3))


def test_a_worker_that_is_killed_loses_nothing(cluster):
    asia = cm.read("examples/asia.bif")
    with distributed.Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))
        killed = []

        def kill_once(row):
            if not killed:
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)
                time.sleep(0.2)
            return row

        frame = rows(256)
        executor = client.get_executor(pure=False)
        submit = executor.submit
        executor.submit = lambda *args, **kwargs: kill_once(submit(*args, **kwargs))
        shared = cm.map_query(asia, ["lung", "bronc"], frame, rng=4, executor=executor)
    assert killed
    assert told(shared) == told(cm.map_query(asia, ["lung", "bronc"], frame, rng=4))


@pytest.fixture
def scheduler(tmp_path, request):
    """The address of a scheduler with two workers, all started by command line, and the first worker's process.

    The parameter is how many workers a task may lose before dask gives it up.
    """
    allowed = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(request.param)}
    place = tmp_path / "scheduler.json"
    with ExitStack() as stack:

        def start(*words):
            command = [sys.executable, "-m", "dask", *words, "--host", "127.0.0.1", "--no-dashboard"]
            settings = {"cwd": tmp_path, "env": os.environ | allowed, "stderr": subprocess.DEVNULL}
            process = stack.enter_context(subprocess.Popen(command, **settings))
            stack.callback(process.kill)
            return process

        found = ("--scheduler-file", str(place))
        start("scheduler", "--port", "0", *found)
        one = ("--nworkers", "1", "--nthreads", "1", "--memory-limit", "2GB", "--no-nanny")
        first, _ = (start("worker", *found, *one) for _ in range(2))
        until(place.is_file)
        address = json.loads(place.read_text())["address"]
        with distributed.Client(address) as client:
            client.wait_for_workers(2, timeout=60)
        yield address, first


def until(is_so):
    for _ in range(1200):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("a minute was not enough")


def losing(worker, executor):
    """Stop a worker, so that it keeps whatever it is given, and kill it when another has done a task."""
    worker.send_signal(signal.SIGSTOP)
    submit = executor.submit

    def submit_watched(*args):
        future = submit(*args)
        future.add_done_callback(lambda _: worker.kill())
        return future

    executor.submit = submit_watched
    return executor


def held_by(client):
    """How many tasks the scheduler knows, and how many results its workers hold."""
    n_tasks = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    return n_tasks, sum(client.run(lambda dask_worker: len(dask_worker.data)).values())


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", [3], indirect=True)
def test_rows_outlive_a_worker_of_a_scheduler_which_keeps_nothing(scheduler):
    address, first = scheduler
    alarm = cm.read("examples/alarm.bif")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({n: rng.choice(alarm.domain[n].states, 512) for n in ("HRBP", "CVP", "SAO2")})
    asked = (alarm, ["LVFAILURE", "HYPOVOLEMIA", "KINKEDTUBE"], frame)
    with distributed.Client(address) as client:
        get_executor = client.get_executor
        client.get_executor = lambda **settings: losing(first, get_executor(**settings))
        with pytest.warns(RuntimeWarning, match="1 of 2 workers left the cluster"):
            shared = cm.map_query(*asked, rng=3, executor=client)
        until(lambda: held_by(client) == (0, 0))
    assert told(shared) == told(cm.map_query(*asked, rng=3))


def plan(folder):
    """A run whose model is there already."""
    (folder / "models").mkdir(parents=True)
    model = random_circuit(np.random.default_rng(0), cm.Domain.of_sizes([2] * 8))
    cm.io.write(model, folder / "models" / "nltcs-learnspn.npz")
    write_json(folder / "models" / "nltcs-learnspn.json", {"dataset": "nltcs", "circuit": "learnspn"})
    settings = TrialSettings(epsilon=0, delta=0, time_limit=None)
    solvers = ("frontier", "argmax_product")
    return Plan(folder, None, ("nltcs",), solvers=solvers, n_queries=8, settings=settings)


def told_of(folder):
    """The records of a run, less what a clock or a machine decides."""
    records = read_records(folder / "trials.jsonl")
    measured = ("seconds", "peak_memory")
    return [{name: value for name, value in r.items() if not name.startswith(measured)} for r in records]


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", [0], indirect=True)
def test_trials_that_a_scheduler_gives_up_are_handed_out_once_more(scheduler, tmp_path):
    address, first = scheduler
    run_twenty(plan(tmp_path / "here"))

    with pytest.warns(RuntimeWarning) as warned, executor_named(f"dask:{address}") as executor:
        run_twenty(plan(tmp_path / "there"), executor=losing(first, executor))
    assert [str(w.message).split(";")[0] for w in warned] == ["1 of 2 workers left the cluster"]
    assert len(told_of(tmp_path / "here")) == 64
    assert told_of(tmp_path / "there") == told_of(tmp_path / "here")


def test_loky_serves_as_it_is():
    loky = pytest.importorskip("loky")
    asia = cm.read("examples/asia.bif")
    with loky.ProcessPoolExecutor(2) as executor:
        shared = cm.map_query(asia, ["lung"], rows(8), rng=1, executor=executor)
    assert told(shared) == told(cm.map_query(asia, ["lung"], rows(8), rng=1))
