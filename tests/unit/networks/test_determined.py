"""Hidden variables that the query determines are maximised: values and answers are those of the sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import certimap as cm
from certimap.networks.mpe_posterior import functions_of, maximised, with_functions
from certimap.networks.problem import Problem, Table, value_at


def gates(seed: int, n_inputs: int, n_gates: int) -> cm.BayesianNetwork:
    """Return random gates of two, three of them noisy, below inputs that are independent."""
    r = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(n_inputs)]
    states = {v: [0, 1] for v in names}
    tables: dict[str, object] = {v: [1 - (p := r.uniform(0.1, 0.9)), p] for v in names}
    parents: dict[str, list[str]] = {}
    for g in range(n_gates):
        v, noise = f"g{g}", 0.1 if g % 4 == 3 else 0.0
        parents[v] = r.choice(names, 2, replace=False).tolist()
        on = r.integers(2, size=(2, 2)) * (1 - 2 * noise) + noise
        states[v], tables[v] = [0, 1], np.stack([1 - on, on], axis=-1).tolist()
        names.append(v)
    return cm.BayesianNetwork.from_cpts(states, parents, tables)


@pytest.mark.parametrize("seed", range(12))
def test_answers_are_those_of_enumeration(seed: int) -> None:
    model = gates(seed, 4, 7)
    query, rest = [f"x{i}" for i in range(4)], {"g6": 1}
    points = np.array(list(itertools.product((0, 1), repeat=11)))
    logs = np.where(points[:, 10] == 1, model.log_joint(points), -np.inf)
    joint = np.logaddexp.reduce(logs.reshape(16, 128), axis=1)
    if joint.max() == -np.inf:
        return
    for solver in ("hbfs", "auto"):
        found = cm.map_query(model, query, rest, solver=solver, epsilon=0, delta=0, rng=0)
        assert found.certificate.kind.value == "exact"
        assert found.log_joint == pytest.approx(joint.max(), abs=1e-9)
        top = cm.map_query(model, query, rest, solver=solver, top_k=3, epsilon=0, delta=0, rng=0).top
        assert top is not None
        best = np.sort(joint - np.logaddexp.reduce(joint))[::-1][: len(top)]
        assert [log for _, log in top if log is not None] == pytest.approx(best.tolist(), abs=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_sums_are_maxima_where_functions_are_found(seed: int) -> None:
    r = np.random.default_rng(seed)
    sizes = {v: int(r.integers(2, 4)) for v in range(6)}
    tables: list[Table] = []
    for _ in range(8):
        scope = tuple(r.choice(6, int(r.integers(1, 4)), replace=False).tolist())
        logs = r.normal(size=[sizes[v] for v in scope])
        if r.random() < 0.7:  # at most one state of the last variable
            kept = r.integers(0, logs.shape[-1] + 1, logs.shape[:-1])
            logs = np.where(np.arange(logs.shape[-1]) == kept[..., None], logs, -np.inf)
        tables.append(Table(scope, logs))
    problem = Problem(sizes, frozenset({0, 1}), tuple(tables))
    functions = functions_of(problem)
    assert problem.query.isdisjoint(f.variable for f in functions)
    points = np.array(list(itertools.product(*(range(n) for n in sizes.values()))))
    values = value_at(problem, points, list(sizes))
    columns = [*problem.query, *(f.variable for f in functions)]
    rows, variables = with_functions(functions, points[:, list(problem.query)], list(problem.query))
    assert variables == columns
    possible = values > -np.inf
    assert np.array_equal(rows[possible], points[possible][:, columns])
    assert maximised(problem, functions).nuisance == frozenset(sizes) - set(columns)


def test_a_noisy_gate_is_not_determined() -> None:
    noisy = Table((0, 1), np.log([[0.9, 0.1], [0.2, 0.8]]))
    sure = Table((0, 2), np.array([[0.0, -np.inf], [-np.inf, 0.0]]))
    problem = Problem(dict.fromkeys(range(3), 2), frozenset({0}), (noisy, sure))
    assert [f.variable for f in functions_of(problem)] == [2]
