"""Queries of one model from several threads."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import certimap as cm
from certimap.core.cached import cached_property, guard

N_THREADS = 4
ASKED = [
    (["HYPOVOLEMIA", "LVFAILURE"], {"BP": "LOW"}),
    (["INTUBATION", "KINKEDTUBE", "DISCONNECT"], {"MINVOL": "LOW"}),
    (["ANAPHYLAXIS", "PULMEMBOLUS"], {"BP": "LOW", "HRBP": "HIGH"}),
    (["FIO2", "VENTMACH"], {"SAO2": "LOW"}),
]


def test_threads_that_share_a_model_get_the_answers_of_one_thread(examples):
    def answers(model, order):
        found = {}
        for i in order:
            result = cm.map_query(model, *ASKED[i])
            found[i] = (result.assignment, result.log_prob, result.log_upper_bound, result.log_evidence)
        return found

    expected = answers(cm.read(examples / "alarm.bif"), range(len(ASKED)))
    for shift in (0, 1):  # all threads ask for the same at once, or for different things
        model, start = cm.read(examples / "alarm.bif"), Barrier(N_THREADS)

        def work(t, model=model, start=start, shift=shift):
            start.wait()
            return answers(model, [(i + shift * t) % len(ASKED) for i in range(len(ASKED))])

        with ThreadPoolExecutor(N_THREADS) as pool:
            assert list(pool.map(work, range(N_THREADS))) == [expected] * N_THREADS


def test_all_threads_see_the_value_stored_first():
    start = Barrier(N_THREADS)

    class Slow:
        @cached_property
        def value(self):
            start.wait(60)  # all compute
            return object()

    slow = Slow()
    with ThreadPoolExecutor(N_THREADS) as pool:
        found = list(pool.map(lambda _: slow.value, range(N_THREADS)))
    assert all(value is slow.value for value in found)


def test_a_value_is_stored_under_the_lock():
    class Thing:
        value = cached_property(lambda _: 1)

    thing = Thing()
    with guard:
        thread = Thread(target=lambda: thing.value)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join()
    assert vars(thing) == {"value": 1}


FINALIZED = """
import gc, time
from threading import Barrier, Thread
import certimap as cm
from certimap.networks.reduction import reduce_network

class Waste:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0)  # another thread runs

gc.set_threshold(60)
domain = cm.Domain([cm.Categorical(f"V{i}", ["a", "b"]) for i in range(1001)])
start = Barrier(2)
for _ in range(20):
    model = cm.MarkovNetwork(domain, [cm.Factor((i,), [0.5, 0.25]) for i in range(1001)])
    def work():
        start.wait()
        for _ in range(3):
            Waste()
        reduce_network(model)
    threads = [Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f.scope == (i,) and f.is_positive and f.table[1] == 0.25 for i, f in enumerate(model.factors))
"""


def test_finalizers_that_let_a_second_thread_run_do_no_harm():
    """CPython 3.11 collects garbage while it makes the `__dict__` of an object, and crashed here."""
    done = subprocess.run([sys.executable, "-c", FINALIZED], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
