"""ITSELF: a network trained by the circuit's own value."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import certimap as cm
from certimap.certify.ledger import Ledger
from certimap.errors import SolverError
from certimap.solvers.registry import make
from certimap.testing import check_solver, random_circuit, random_domain
from certimap_lab import itself
from certimap_lab import itself as room

QUICK = {"epochs": 3, "rows": 32, "refine_steps": 5, "hidden": (8,)}
needs_torch = pytest.mark.skipif(not room.is_installed(), reason="torch is not installed")


def chain(n: int = 10) -> cm.BayesianNetwork:
    """Each variable repeats the one before nine times of ten: what is observed tells what to answer."""
    names = [f"x{i}" for i in range(n)]
    tables = {"x0": [0.5, 0.5]} | {name: [[0.9, 0.1], [0.1, 0.9]] for name in names[1:]}
    parents = {names[i]: [names[i - 1]] for i in range(1, n)}
    return cm.BayesianNetwork.from_cpts({name: [0, 1] for name in names}, parents, tables)


def test_without_torch_it_is_refused_with_an_alternative(monkeypatch):
    monkeypatch.setattr(room, "is_installed", lambda: False)
    circuit = random_circuit(np.random.default_rng(0), cm.Domain.of_sizes([2, 2]))
    with pytest.raises(SolverError, match=r"certimap\[torch\].*solver='beam'"):
        cm.map_query(circuit, solver="itself")


def test_settings_out_of_range_are_refused():
    for setting in ({"batch": 0}, {"hidden": (0,)}, {"learning_rate": 0.0}, {"epochs": -1}):
        with pytest.raises(SolverError, match="expected"):
            make("itself", **setting)


@needs_torch
def test_it_conforms():
    rng = np.random.default_rng(1)
    posteriors = []
    for _ in range(4):
        circuit = random_circuit(rng, random_domain(rng, max_variables=5, max_states=3))
        names = circuit.domain.names
        posteriors.append(cm.condition(circuit, names[: int(rng.integers(1, len(names) + 1))], solver="itself"))
    check_solver(lambda: make("itself", **QUICK), posteriors=posteriors, max_samples=500)


@needs_torch
def test_states_pickle_on_the_way():
    circuit = random_circuit(np.random.default_rng(4), cm.Domain.of_sizes([2] * 6))
    found = []
    for pickled in (False, True):
        posterior = cm.condition(circuit, ["0", "1", "2"], {"4": 0}, solver="itself")
        ledger, solver = Ledger(posterior), make("itself", **QUICK)
        state = solver.init(posterior, ledger.control, np.random.default_rng(0))
        while not state.done:
            state = solver.step(pickle.loads(pickle.dumps(state)) if pickled else state, ledger)
        found.append((ledger.best_log_prob, ledger.best_point.tolist()))
        itself._KEPT.clear()
    assert found[0] == found[1]


@needs_torch
def test_a_network_learns_what_evidence_means():
    """Without a step on the query itself, both kinds of evidence get their own answer, the optimum."""
    model = chain()
    names = [f"x{i}" for i in range(1, 10)]
    for state in (0, 1):
        result = cm.map_query(model, names, {"x0": state}, solver="itself", refine_steps=0, epochs=20)
        assert set(result.assignment.values()) == {state}
        assert result.status == "heuristic"
        assert result.log_prob == pytest.approx(9 * math.log(0.9))


@needs_torch
def test_nuisance_is_summed():
    model = chain(8)
    result = cm.map_query(model, ["x2", "x7"], {"x0": 1}, solver="itself", epochs=10)
    best = cm.map_query(model, ["x2", "x7"], {"x0": 1}, epsilon=0, delta=0)
    assert result.log_prob == pytest.approx(best.log_prob)


@needs_torch
def test_one_network_serves_all_queries_of_a_partition_in_any_order():
    model, names = chain(), ["x3", "x4"]
    evidence = [{"x0": a, "x9": b} for a in (0, 1) for b in (0, 1)]
    settings = {"solver": "itself", **QUICK}
    first = [cm.map_query(model, names, e, rng=i, **settings).assignment for i, e in enumerate(evidence)]
    other = chain()
    second = [cm.map_query(other, names, e, **settings).assignment for e in reversed(evidence)]
    assert first == second[::-1]


@needs_torch
def test_time_that_is_up_in_training_leaves_an_answer():
    result = cm.map_query(chain(), ["x1"], {"x0": 1}, solver="itself", time_limit=0.0)
    assert result.log_prob is not None


@needs_torch
def test_a_device_without_room_hands_over_to_the_cpu_once(monkeypatch):
    import torch

    circuit = random_circuit(np.random.default_rng(4), cm.Domain.of_sizes([2] * 6))
    posterior = cm.condition(circuit, ["0", "1", "2"], {"4": 0}, solver="itself")
    ledger, solver = Ledger(posterior), make("itself", **QUICK)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))

    class Full:
        type = "cuda"

    def without_room(weights):
        state.plan.device = Full()
        raise torch.OutOfMemoryError

    monkeypatch.setattr(state.plan, "forward", without_room)
    with pytest.warns(UserWarning, match="the CPU goes on"):
        state = solver.step(state, ledger)
    assert state.plan.device == torch.device("cpu")
    assert not state.done


@needs_torch
def test_torch_s_own_random_numbers_are_left_alone():
    import torch

    torch.manual_seed(3)
    before = torch.get_rng_state()
    cm.map_query(chain(), ["x1"], {"x0": 1}, solver="itself", epochs=1)
    assert torch.equal(before, torch.get_rng_state())
