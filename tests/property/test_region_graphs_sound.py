"""Queries to random region graphs against enumeration, limits that stop the search half-way included."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap_lab.bench.random_circuits import random_region_graph

SHAPES = [(2, 2, 2), (2, 3, 2), (3, 3, 2), (1, 6, 2), (2, 4, 2), (2, 2, 4), (2, 3, 3)]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(SHAPES),
    st.integers(1, 4),
    st.sampled_from([None, 1, 2]),
    st.sampled_from(["frontier", "set_elimination", "auto"]),
)
def test_bounds_hold_and_exact_answers_are_best(seed, shape, n_nodes, step, solver):
    height, width, n_states = shape
    rng = np.random.default_rng(seed)
    circuit = random_region_graph(height, width, n_nodes, step=step, seed=seed, n_states=n_states)
    names = circuit.domain.names
    observed = rng.permutation(len(names))[: int(rng.integers(0, len(names) // 2 + 1))]
    evidence = {names[i]: int(rng.integers(n_states)) for i in observed}
    query = [name for name in names if name not in evidence]
    hidden = query[int(rng.integers(1, len(query) + 1)) :]
    query = [name for name in query if name not in hidden]
    posterior = cm.condition(circuit, query, evidence)
    points = np.array(np.unravel_index(np.arange(n_states ** len(query)), (n_states,) * len(query))).T
    best = float(posterior.log_prob(points).max())
    max_nodes = None if rng.random() < 0.5 else int(rng.integers(1, 6))
    if solver == "set_elimination" and not is_structured(circuit, query, evidence):
        solver = "frontier"
    result = cm.map_query(
        circuit, query, evidence, epsilon=0.0, delta=0.0, solver=solver, max_nodes=max_nodes, rng=0, progress=False
    )
    assert result.log_upper_bound >= best - 1e-9
    assert result.log_prob <= best + 1e-9
    if result.certified:
        assert result.log_prob >= best - 1e-9
    else:
        assert max_nodes is not None


def is_structured(circuit, query, evidence):
    try:
        cm.map_query(circuit, query, evidence, solver="set_elimination", rng=0, progress=False)
    except cm.SolverError:
        return False
    return True
