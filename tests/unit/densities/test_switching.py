"""Linear-Gaussian networks with more configurations than can be listed: paths of states, merged under a bound."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

import certimap as cm
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.densities.switching import Paths, SwitchingPosterior, advance
from certimap.errors import QueryError, TooLarge
from certimap.solvers import path_merging
from certimap.solvers.path_merging import PathMerging

LG = cm.LinearGaussian


def random_network(rng: np.random.Generator) -> tuple[cm.LinearGaussianNetwork, list[str], dict[str, object]]:
    """Regimes with up to two regimes before as parents, labels of them, one to three real variables per step."""
    n_steps, k, d = int(rng.integers(2, 6)), int(rng.integers(2, 4)), int(rng.integers(1, 4))
    states = {f"s{t}": list(range(k)) for t in range(n_steps)}
    order, alike = int(rng.integers(0, 3)), rng.random() < 0.3
    parents = {f"s{t}": [f"s{t - j}" for j in range(1, order + 1) if t >= j] for t in range(n_steps)}
    tables = {v: rng.dirichlet(np.full(k, 0.7), size=(k,) * len(parents[v])) for v in states}
    tables["s0"][tables["s0"] < 0.05] = 0.0
    tables["s0"] /= tables["s0"].sum()
    seen: dict[str, object] = {}
    for t in range(0, n_steps, 2):  # a label is observed, or summed out
        states[f"m{t}"], parents[f"m{t}"] = list(range(k)), [f"s{t}"]
        tables[f"m{t}"] = rng.dirichlet(np.ones(k), size=k)
        if rng.random() < 0.5:
            seen[f"m{t}"] = int(rng.integers(k))
    nodes: list[cm.LinearGaussian] = []

    def add(name: str, above: list[str], regime: str | None) -> None:
        shape = () if regime is None else (k,)
        intercept, sd = rng.normal(0, 1, shape), np.exp(rng.normal(-0.5, 0.9, shape))
        coefficients = rng.normal(0, 0.7, (*shape, len(above)))
        if alike and regime is not None:
            coefficients, sd = np.broadcast_to(coefficients[0], coefficients.shape), np.full(shape, sd[0])
        nodes.append(LG(name, [*above, *([] if regime is None else [regime])], intercept, coefficients, sd))

    for t in range(n_steps):
        for i in range(d):
            above = [f"x{t - 1}_{j}" for j in range(d)] if t else []
            above += [f"x{t}_{i - 1}"] if i and rng.random() < 0.5 else []
            add(f"x{t}_{i}", above, f"s{t}" if rng.random() < 0.7 else None)
        for j in range(int(rng.integers(0, 3))):
            add(f"y{t}_{j}", [f"x{t}_{int(rng.integers(d))}"], f"s{t}" if rng.random() < 0.4 else None)
            if rng.random() < 0.85:
                seen[f"y{t}_{j}"] = float(rng.normal(0, 2))
        if rng.random() < 0.1:
            seen[f"x{t}_0"] = float(rng.normal())
    query = [f"s{t}" for t in range(n_steps)]
    if rng.random() < 0.2:
        seen[query.pop(int(rng.integers(len(query))))] = int(rng.choice(np.flatnonzero(tables["s0"])))
    return cm.LinearGaussianNetwork(nodes, cm.BayesianNetwork.from_cpts(states, parents, tables)), query, seen


def chain(
    n_steps: int, sensor: float = 0.3, spread: tuple[float, float] = (0.2, 2.0)
) -> tuple[cm.LinearGaussianNetwork, list[str], dict[str, float]]:
    """A noisy sensor of a value that is calm or wild."""
    states = {f"s{t}": ["calm", "wild"] for t in range(n_steps)}
    parents = {f"s{t}": [f"s{t - 1}"] for t in range(1, n_steps)}
    tables = {f"s{t}": [[0.9, 0.1], [0.2, 0.8]] if t else [0.5, 0.5] for t in range(n_steps)}
    nodes = [LG("x0", ["s0"], 0.0, (), spread)]
    nodes += [LG(f"x{t}", [f"x{t - 1}", f"s{t}"], 0.0, [[0.9], [0.5]], spread) for t in range(1, n_steps)]
    nodes += [LG(f"y{t}", [f"x{t}"], 0.0, [1.0], sensor) for t in range(n_steps)]
    rng, half = np.random.default_rng(1), n_steps // 2
    y = np.concatenate([rng.normal(0, 0.3, half), rng.normal(0, 2, n_steps - half)])
    network = cm.LinearGaussianNetwork(nodes, cm.BayesianNetwork.from_cpts(states, parents, tables))
    return network, list(states), {f"y{t}": float(y[t]) for t in range(n_steps) if t % 7 != 3}


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_paths_agree_with_the_list_of_all_configurations(seed: int) -> None:
    """Values lie between both sides, the certificate holds, and so do bounds of sweeps with too few paths."""
    rng = np.random.default_rng(seed)
    network, query, seen = random_network(rng)
    asked = make_query(network.domain, query, seen)
    listed = network.components(asked)
    logs, slack = listed.log_weights + listed.log_evidence, listed.log_slack + 1e-10
    found = cm.map_query(network, query, seen, solver="path_merging")
    states = [found.assignment[v] for v in query]
    (own,) = logs[np.all(listed.states == states, axis=1)]
    assert found.log_joint_upper_bound >= logs.max() - slack
    assert found.log_joint <= own + slack
    assert own >= logs.max() + math.log1p(-found.certificate.epsilon) - 1e-9 - slack
    posterior = SwitchingPosterior(network, asked)
    lower, upper = posterior.log_prob_interval(listed.states)
    near = logs > logs.max() - 30.0
    assert np.all((lower <= logs + slack)[near])
    assert np.all((upper >= logs - slack)[near])


def best_by_future(posterior: SwitchingPosterior, k: int, paths: Paths) -> np.ndarray:
    """The largest final log, with what paths are raised by, for each choice of the states that follow."""
    for step in posterior.steps[k:]:
        paths = advance(step, paths, 1)
    sizes = [step.n_states for step in posterior.steps[k:]]
    future = np.ravel_multi_index(tuple(paths.states[:, k:].T), sizes) if sizes else np.zeros(len(paths.logs), int)
    best = np.full(math.prod(sizes), -np.inf)
    np.maximum.at(best, future, paths.logs + paths.raised)
    return best


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(1, 1), (2, 3), (1000, 64)]))
def test_whatever_follows_the_paths_that_are_left_cover_the_others(seed: int, limits: tuple[int, int]) -> None:
    """At every step, for every choice of later states; from a poor answer, so that much is left to cover."""
    network, query, seen = random_network(np.random.default_rng(seed))
    posterior = SwitchingPosterior(network, make_query(network.domain, query, seen))
    poor = float(posterior.log_prob(posterior.beam(1)).min()) - 20.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path_merging, "ROUNDS", limits[1])
        merger = path_merging._Merger(posterior, Control(), poor, limits[0])
        merger.ceiling = math.inf if seed % 2 else merger.ceiling  # then every path too many is merged

        def prune(k: int, paths: Paths) -> Paths:
            before = best_by_future(posterior, k, paths)
            paths = merger(k, paths)
            assert np.all(before <= np.maximum(best_by_future(posterior, k, paths), merger.lost) + 1e-9)
            return paths

        posterior.sweep(prune)


@pytest.mark.parametrize("shift", [1e-6, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.0 + 1e-9, 1.3])
def test_the_price_of_a_cover_is_that_of_the_tail(shift: float, scale: float) -> None:
    """In one dimension the mass where the ratio exceeds e^c is known; the price is at most a little above it."""
    first, second = (
        Paths(np.zeros((1, 0), np.int64), np.array([w]), np.full((1, 1, 1), m), np.full((1, 1, 1), v),
              np.zeros(1), np.zeros((1, 0, 1)))
        for w, m, v in ((-3.0, shift, scale), (0.0, 0.0, 1.0))
    )  # fmt: skip
    (price,) = path_merging.costs(first, second, np.array([36.0]))

    def log_mass(c: float) -> float:
        """ln of the first Gaussian's mass where its log exceeds the second's by more than c."""
        above = log_first - 3.0 - log_second > c
        return float(logsumexp(log_first[above]) + math.log(x[1] - x[0])) if above.any() else -math.inf

    x = np.linspace(-40.0, 40.0, 20_001)
    log_first, log_second = stats.norm.logpdf(x, shift, math.sqrt(scale)), stats.norm.logpdf(x)
    low, high = -100.0, 1000.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if log_mass(middle) <= -36.0 else (middle, high)
    assert low - 0.02 <= price <= low + 0.3 * (low + 3.0) + 0.02


def test_many_regimes_are_exact() -> None:
    """2^80 configurations; the answer beats every change of one or two neighbouring regimes."""
    network, query, seen = chain(80)
    found = cm.map_query(network, query, seen)
    assert found.solver == "path_merging"
    assert found.certificate.kind is cm.CertificateKind.EXACT
    assert found.log_prob is None
    assert found.log_joint_upper_bound - found.log_joint < 1e-9
    best = np.array([found.assignment[v] == "wild" for v in query], np.int64)
    others = np.repeat(best[None], 160, axis=0)
    for t in range(80):
        others[t, t] ^= 1
        others[80 + t, t : t + 2] ^= 1
    values = SwitchingPosterior(network, make_query(network.domain, query, seen)).log_prob(others)
    assert np.all(values < found.log_joint)


def test_a_run_without_time_for_a_sweep_has_a_bound() -> None:
    network, query, seen = chain(60)
    posterior = SwitchingPosterior(network, make_query(network.domain, query, seen))
    best = cm.map_query(network, query, seen).log_joint
    assert posterior.log_ceiling > best
    before = posterior.log_ceiling
    posterior.look_ahead(12, 16, Control())
    assert best < posterior.log_ceiling < before


def test_regimes_that_are_summed_out_are_refused_with_their_name() -> None:
    network, query, seen = chain(20)
    with pytest.raises(TooLarge, match="every variable like 's3' has to be queried or observed"):
        cm.map_query(network, [v for v in query if v != "s3"], seen)


def test_standard_deviations_too_far_apart_are_refused() -> None:
    network, query, seen = chain(15, sensor=1e-9)
    with pytest.raises(QueryError, match="lost in rounding"):
        cm.map_query(network, query, seen)


def test_impossible_evidence_is_named() -> None:
    network, query, seen = chain(15)
    tables = {f"s{t}": [[1.0, 0.0], [0.0, 1.0]] if t else [0.5, 0.5] for t in range(15)}
    parents = {f"s{t}": [f"s{t - 1}"] for t in range(1, 15)}
    states = {f"s{t}": ["calm", "wild"] for t in range(15)}
    rigid = cm.LinearGaussianNetwork(network.nodes, cm.BayesianNetwork.from_cpts(states, parents, tables))
    assert len(set(cm.map_query(rigid, query, seen).assignment.values())) == 1
    with pytest.raises(cm.ImpossibleEvidence):
        cm.map_query(rigid, query[2:14], {**seen, "s0": "calm", "s14": "wild", "s1": "calm"})


def test_the_solver_refuses_other_models() -> None:
    coin = cm.BayesianNetwork.from_cpts({"a": [0, 1]}, {}, {"a": [0.5, 0.5]})
    with warnings.catch_warnings(), pytest.raises(cm.SolverError, match="SwitchingPosterior"):
        cm.map_query(coin, ["a"], solver=PathMerging())
