"""The engine's kernels against their twins on small circuits; also runs with NUMBA_DISABLE_JIT=1."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_twin import RandomCircuits, Twin, all_points, normal_cdf
from scipy.special import log_ndtr

from certimap.circuits import properties
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.kernels import sample
from certimap.circuits.kernels.evaluate import assign_slots
from certimap.circuits.leaves import gaussian
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap.kernels import random

SEEDS = range(12)


def scopes_of(circuit: Circuit) -> list[frozenset[int]]:
    scopes: list[frozenset[int]] = []
    for node in range(circuit.n_nodes):
        if circuit.leaf_var[node] >= 0:
            scopes.append(frozenset([int(circuit.leaf_var[node])]))
        else:
            scopes.append(frozenset().union(*(scopes[c] for c in circuit.children_of(node))))
    return scopes


def supports_of(circuit: Circuit) -> list[dict[int, set[int]]]:
    """The states of each variable that can make a node nonzero, by the definition."""
    supports: list[dict[int, set[int]]] = []
    for node in range(circuit.n_nodes):
        kind, start = circuit.kind[node], int(circuit.child_ptr[node])
        if kind == NodeKind.CATEGORICAL:
            allowed = {s for s, w in enumerate(circuit.params_of(node)) if w > -math.inf}
            supports.append({int(circuit.leaf_var[node]): allowed})
            continue
        found: dict[int, set[int]] = {}
        for k, child in enumerate(circuit.children_of(node)):
            if kind == NodeKind.SUM and circuit.log_weights[start + k] == -math.inf:
                continue
            for v, states in supports[child].items():
                found[v] = found.get(v, set()) | states
        supports.append(found)
    return supports


@pytest.mark.parametrize("seed", SEEDS)
def test_decided_variables_are_decided(seed: int) -> None:
    circuit = RandomCircuits(seed, [2, 3, 2, 4], share=0.4).build()
    decided, supports = properties.decided_variables(circuit), supports_of(circuit)
    reachable = properties.structure(circuit).parents > 0
    for node in np.flatnonzero((circuit.kind == NodeKind.SUM) & reachable):
        start = int(circuit.child_ptr[node])
        kept = [c for k, c in enumerate(circuit.children_of(node)) if circuit.log_weights[start + k] > -math.inf]
        deciding = [
            v
            for v in supports[node]
            if len(kept) > 1
            and sum(len(supports[c][v]) for c in kept) == len(set().union(*(supports[c][v] for c in kept)))
        ]
        if decided[node] >= 0:
            assert decided[node] in deciding
        else:
            assert not deciding


@pytest.mark.parametrize("seed", SEEDS)
def test_random_circuits_are_smooth_and_decomposable(seed: int) -> None:
    circuit = RandomCircuits(seed, [2, 3, 2, 4], share=0.4).build()
    assert properties.is_smooth(circuit)
    assert properties.is_decomposable(circuit)
    scopes = scopes_of(circuit)
    wrong = np.array(circuit.children)
    products = np.flatnonzero(circuit.kind == NodeKind.PRODUCT)
    pairs = [p for p in products if circuit.child_ptr[p + 1] - circuit.child_ptr[p] > 1]
    node = pairs[seed % len(pairs)]
    first = int(circuit.child_ptr[node])
    wrong[first + 1] = wrong[first]  # one child twice: its variables overlap, the other's are lost
    if scopes[circuit.children[first]] == scopes[circuit.children[first + 1]]:
        return
    arrays = (circuit.kind, circuit.child_ptr, wrong, circuit.log_weights, circuit.leaf_var, circuit.param_ptr)
    broken = Circuit(circuit.domain, *arrays, circuit.params)
    if properties.structure(broken).parents[node]:
        assert not properties.is_decomposable(broken)
        found = properties.overlapping_product(broken)
        assert found is not None
        assert found[1] in scopes[broken.children_of(found[0])[0]]


@pytest.mark.parametrize("seed", SEEDS)
def test_evaluation_kernels_match_the_twin(seed: int) -> None:
    circuit = RandomCircuits(seed, [2, 3, 2], share=0.5).build()
    query = make_query(circuit.domain)
    twin = Twin(circuit, query)
    if twin.total == 0:
        return
    posterior = CircuitPosterior.from_circuit(circuit, query, workers=1)
    points = np.array(all_points(circuit.domain), np.int16)
    table = np.array([twin.prob(p) for p in points])
    np.testing.assert_allclose(np.exp(posterior.log_prob(points)), table, rtol=1e-12, atol=1e-300)
    mask = np.random.default_rng(seed).random((3, circuit.domain.total_states)) < 0.6
    boxes = Boxes(circuit.domain, mask)
    for row in range(3):
        sets = [set(np.flatnonzero(mask[row, a:b]).tolist()) for a, b in ((0, 2), (2, 5), (5, 7))]
        inside = np.array([all(x in s for x, s in zip(p, sets, strict=True)) for p in points])
        assert np.exp(posterior.log_mass(boxes)[row]) == pytest.approx(table[inside].sum(), rel=1e-12, abs=1e-300)
        if inside.any():
            assert np.exp(answers_in(posterior, boxes).log_bound[row]) >= table[inside].max()
    each = np.exp(posterior.log_mass_each(Boxes.of_points(circuit.domain, points[:1])))[0]
    for column, (i, state) in enumerate((i, s) for i, k in enumerate((2, 3, 2)) for s in range(k)):
        changed = list(points[0])
        changed[i] = state
        assert each[column] == pytest.approx(twin.prob(changed), rel=1e-12, abs=1e-300)
    draws = posterior.sample(50, np.random.default_rng(seed))
    assert all(twin.prob(p) > 0 for p in draws)


def test_slots_hold_only_what_is_still_needed() -> None:
    circuit = RandomCircuits(4, [2, 2, 3, 2, 2], share=0.5, zeros=0.0).build()
    plan = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain)).plan
    n_parents = np.bincount(plan.children, minlength=plan.n_nodes).astype(np.int32)
    slot, free = np.empty(plan.n_nodes, np.int32), np.empty(plan.n_nodes, np.int32)
    n_rows = assign_slots(plan.child_ptr, plan.children, n_parents.copy(), free, slot)
    holder: dict[int, int] = {}
    for node in range(plan.n_nodes):
        for child in plan.children[plan.child_ptr[node] : plan.child_ptr[node + 1]]:
            assert holder[int(slot[child])] == child
        holder[int(slot[node])] = node
    assert n_rows == len(holder) <= plan.n_nodes


def test_log_normal_functions() -> None:
    for x in (-80.0, -31.0, -30.0, -29.9, -5.0, -0.1, 0.0, 0.1, 3.0, 9.0):
        assert gaussian.log_normal_cdf(x) == pytest.approx(float(log_ndtr(x)), rel=1e-12)
    assert gaussian.log_normal_cdf(-math.inf) == -math.inf
    for low, high in ((-1.0, 2.0), (-math.inf, 0.3), (0.5, math.inf), (1.0, 1.5)):
        expected = math.log(normal_cdf(high) - normal_cdf(low))
        assert gaussian.log_normal_mass(low, high, high - low) == pytest.approx(expected, rel=1e-11)
    assert gaussian.log_normal_mass(1.0, 1.0, 0.0) == -math.inf
    assert gaussian.log_normal_mass(40.0, 41.0, 1.0) == pytest.approx(gaussian.log_normal_mass(-41.0, -40.0, 1.0))


def twin_stream(key: int, row: int, n: int) -> list[float]:
    """splitmix64 and xoshiro256++ in Python integers."""
    mask = (1 << 64) - 1
    word = key ^ ((row * 0xBF58476D1CE4E5B9) & mask)
    state = []
    for _ in range(4):
        word = (word + 0x9E3779B97F4A7C15) & mask
        z = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        state.append(z ^ (z >> 31))

    def rotate(x: int, k: int) -> int:
        return ((x << k) | (x >> (64 - k))) & mask

    out = []
    for _ in range(n):
        result = (rotate((state[0] + state[3]) & mask, 23) + state[0]) & mask
        t = (state[1] << 17) & mask
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= t
        state[3] = rotate(state[3], 45)
        out.append((result >> 11) * 2.0**-53)
    return out


def test_streams() -> None:
    words = np.empty(4, np.uint64)
    with np.errstate(over="ignore"):
        for key, row in ((0, 0), (12345, 7), (2**64 - 1, 2**40)):
            random.seed_row(np.uint64(key), row, words)
            assert [random.uniform(words) for _ in range(6)] == twin_stream(key, row, 6)


def test_picking() -> None:
    weights = np.array([0.1, 0.0, 0.2, 0.3, 0.05, 0.05, 0.1, 0.1, 0.05, 0.05])
    running = np.cumsum(weights)
    running[-1] = 1.0
    for u in np.linspace(0, 0.999, 77):
        expected = next(k for k in range(10) if u < running[k])
        assert sample.pick_edge(0, 10, running, u) == expected
        assert weights[sample.pick_state(0, 10, weights, u)] > 0
    assert sample.pick_state(0, 3, np.array([0.5, 0.5, 0.0]), 1.0 - 1e-17) == 1


@pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="is that run")
def test_without_compilation() -> None:
    """The same tests pass, without a warning, and a seed draws the same points, when nothing is compiled."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    quiet = ["-p", "no:cacheprovider", "-W", "error::RuntimeWarning"]
    command = [sys.executable, "-m", "pytest", "-q", *quiet, str(Path(__file__))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
