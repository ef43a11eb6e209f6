"""What a model keeps between queries: bounded, dropped with the model, and without a say in any answer."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest

import certimap as cm
from certimap.core import control
from certimap.core import model as kept
from certimap.core.model import Kept
from certimap.testing import random_circuit


def network():
    rng = np.random.default_rng(0)
    sizes = {"A": 2, "B": 2, "C": 3, "D": 2, "E": 3}
    states = {v: [f"{v}{i}" for i in range(n)] for v, n in sizes.items()}
    parents = {child: [parent] for parent, child in zip("ABCD", "BCDE", strict=True)}
    tables = {v: rng.dirichlet(np.ones(n), [sizes[p] for p in parents.get(v, [])]) for v, n in sizes.items()}
    return cm.BayesianNetwork.from_cpts(states, parents, tables)


def circuit():
    return random_circuit(np.random.default_rng(5), cm.Domain.of_sizes([2, 3, 2, 2]))


def same(first, second):
    varying = ("seconds", "history", "origin", "version")
    kept_of = [{k: v for k, v in vars(r).items() if k not in varying} for r in (first, second)]
    return kept_of[0] == kept_of[1]


OF_NETWORK = [
    (["A"], {"E": "E0"}),
    (["A"], {"E": "E1"}),
    (["A", "B"], {"E": {"E0", "E1"}}),
    (["A", "B"], {"E": [0.2, 0.3, 0.5]}),
    (["B", "A"], {"E": "E1", "C": "C2"}),
    (None, {"E": "E1"}),
    (None, None),
]
OF_CIRCUIT = [(["0"], {"1": 2}), (["0", "2"], {"1": 1}), (["2", "0"], {"1": 1})]


@pytest.mark.parametrize(("make", "queries"), [(network, OF_NETWORK), (circuit, OF_CIRCUIT)])
def test_a_model_that_was_asked_answers_as_a_new_one(make, queries):
    asked = make()
    for _ in range(3):
        for variables, evidence in queries:
            answers = [cm.map_query(model, variables, evidence, rng=3) for model in (asked, make())]
            assert same(*answers)


def test_an_equal_query_gets_the_posterior_that_is_kept():
    model = network()
    first, again, other = (cm.condition(model, ["A"], {"E": e}) for e in ("E0", "E0", "E1"))
    assert again is first
    assert other is not first
    assert cm.condition(model, ["A"], {"E": "E0"}, workers=1) is not first
    assert cm.condition(model, ["A"], {"E": "E0"}, solver="wmb") is not first
    # A state in a set weighs what its label does, and only the label observes the variable.
    narrowed = cm.condition(model, None, {"E": {"E0"}})
    assert len(narrowed.domain) == 1 + len(cm.condition(model, None, {"E": "E0"}).domain)


def posteriors(model):
    return [thing for thing, _ in model.kept._things.values() if isinstance(thing, cm.Posterior)]


def test_limits_that_may_have_had_a_say_leave_nothing_behind(monkeypatch):
    model = network()
    monkeypatch.setattr(control, "EARLY", 0.0)
    cm.map_query(model, ["A"], {"E": "E0"}, max_memory=10**9, time_limit=100.0)
    cm.map_query(model, ["A"], {"E": "E0"}, time_limit=100.0)
    assert not model.kept._things
    cm.map_query(model, ["A"], {"E": "E0"}, max_memory=10**9)
    assert not posteriors(model)
    cm.map_query(model, ["A"], {"E": "E0"})
    assert posteriors(model)


def test_quick_work_under_a_time_limit_is_kept_for_that_limit(monkeypatch):
    model = network()
    monkeypatch.setattr(control, "EARLY", 1.0)
    for limit, n in ((100.0, 1), (100.0, 1), (99.0, 2), (None, 3), (98.0, 3)):
        cm.map_query(model, ["A"], {"E": "E0"}, time_limit=limit)
        assert len(posteriors(model)) == n


def test_what_is_kept_goes_with_the_model_and_never_travels():
    model = network()
    posterior = weakref.ref(cm.condition(model, ["A"], {"E": "E0"}))
    assert posterior() is not None
    for other in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        assert "kept" not in vars(other)
        assert other.kept is not model.kept
    del model, other
    gc.collect()
    assert posterior() is None


def test_what_was_not_used_for_longest_goes_first(monkeypatch):
    monkeypatch.setattr(kept, "MOST_BYTES", 800)
    things = Kept()
    for i in range(8):
        things.put(i, f"thing {i}", 100)
    assert things.get(0) == "thing 0"
    things.put(8, "thing 8", 100)
    assert things.get(1) is None
    assert things.get(0) == "thing 0"
    things.put(9, "too large", 101)
    assert things.get(9) is None
    things.put(0, "other", 50)
    assert things.get(0) == "other"
    monkeypatch.setattr(kept, "MOST_THINGS", 3)
    things.put(10, "last", 1)
    assert [things.get(i) is not None for i in range(11)].count(True) == 3


def test_threads_share_what_is_kept():
    model, found = network(), []

    def ask():
        for k, (variables, evidence) in enumerate(OF_NETWORK * 3):
            found.append((k % len(OF_NETWORK), cm.map_query(model, variables, evidence, rng=1)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * 3 * len(OF_NETWORK)
    for k, answer in found:
        assert same(next(a for other, a in found if other == k), answer)


def test_memory_is_looked_up_now_and_then(monkeypatch):
    looked = []
    monkeypatch.setattr(control, "default_max_memory", lambda: looked.append(1) or 10**9)
    monkeypatch.setattr(control, "_looked", [])
    assert {control.Control().memory_limit for _ in range(100)} == {10**9}
    assert len(looked) < 100
    monkeypatch.setattr(control, "_RECENT", -1.0)
    assert control.Control().memory_limit == 10**9
    assert len(looked) >= 2
