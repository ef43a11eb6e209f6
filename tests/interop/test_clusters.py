"""Rows shared out over a real dask cluster of four processes, one of which is killed at work."""

from __future__ import annotations

import os
import signal
import time

import pytest

import certimap as cm

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


def test_loky_serves_as_it_is():
    loky = pytest.importorskip("loky")
    asia = cm.read("examples/asia.bif")
    with loky.ProcessPoolExecutor(2) as executor:
        shared = cm.map_query(asia, ["lung"], rows(8), rng=1, executor=executor)
    assert told(shared) == told(cm.map_query(asia, ["lung"], rows(8), rng=1))
