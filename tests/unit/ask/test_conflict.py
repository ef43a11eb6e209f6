"""Observations that contradict each other: impossible together, possible without any one of them."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.ask.session import conflict


@pytest.fixture(autouse=True)
def _with_all_the_time(monkeypatch):
    """Searches that are cut short say less: tests must not depend on how fast the machine is."""
    monkeypatch.setattr("certimap.ask.session.PATIENCE", 600.0)
    monkeypatch.setattr("certimap.ask.session.FIRST", 600.0)


EVIDENCE = {"smoke": "yes", "tub": "yes", "either": "no", "xray": "no"}


def probability(network, evidence):
    """p(evidence) by enumeration; a value is a label, or a set of labels."""
    total = 0.0
    for states in itertools.product(*(v.states for v in network.domain)):
        row = dict(zip(network.domain.names, states, strict=True))
        if all(row[n] in v if isinstance(v, set) else row[n] == v for n, v in evidence.items()):
            total += float(np.exp(network.log_joint(network.domain.encode(row)[None])[0]))
    return total


def random_network(seed, n=5):
    """A network of binary and ternary variables, with many zeros in its tables."""
    rng = np.random.default_rng(seed)
    sizes = {f"v{i}": int(rng.integers(2, 4)) for i in range(n)}
    names, parents, tables = list(sizes), {}, {}
    for i, name in enumerate(names):
        parents[name] = names[max(0, i - 2) : i]
        rows = rng.dirichlet(np.ones(sizes[name]), [sizes[p] for p in parents[name]])
        rows = rows * (rng.random(rows.shape) < 0.6) + 1e-12 * (rng.random(rows.shape) < 0.0)
        rows[..., 0] += (rows.sum(axis=-1) == 0.0) * 1.0
        tables[name] = rows / rows.sum(axis=-1, keepdims=True)
    return cm.BayesianNetwork.from_cpts({k: range(v) for k, v in sizes.items()}, parents, tables)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_conflict_is_impossible_and_smallest(seed, as_circuit):
    network = random_network(seed)
    rng = np.random.default_rng([seed, 1])
    chosen = rng.choice(network.domain.names, size=int(rng.integers(1, 5)), replace=False).tolist()
    evidence = {}
    for name in chosen:
        states = network.domain[name].states
        some = {s for s in states if rng.random() < 0.5} or {states[0]}
        evidence[name] = some if rng.random() < 0.3 else int(rng.choice(states))
    model = network.compile() if as_circuit else network
    found = conflict(model, evidence)
    if probability(network, evidence) > 0.0:
        assert found is None
        return
    named, is_smallest = found
    assert is_smallest
    assert probability(network, named) == 0.0
    for name in named:
        assert probability(network, {n: v for n, v in named.items() if n != name}) > 0.0


@pytest.mark.parametrize(
    "ask",
    [
        lambda m, e: cm.map_query(m, ["lung"], e),
        lambda m, e: cm.map_query(m, None, e),
        lambda m, e: cm.marginals(m, ["lung"], e),
        lambda m, e: cm.marginals(m, ["tub"], e),
        lambda m, e: cm.sample(m, 3, e),
        lambda m, e: cm.log_evidence(m, e),
        lambda m, e: cm.condition(m, ["lung"], e),
        lambda m, e: cm.map_query(m, ["lung"], pd.DataFrame([e])),
    ],
)
@pytest.mark.parametrize("as_circuit", [False, True])
def test_every_door_names_the_observations(ask, as_circuit):
    asia = cm.read("examples/asia.bif")
    if as_circuit:
        asia = asia.compile()
    with pytest.raises(cm.ImpossibleEvidence, match=r"tub='yes', either='no' contradict each other$"):
        ask(asia, EVIDENCE)


def test_bounds_on_impossible_evidence_name_the_observations():
    with pytest.raises(cm.ImpossibleEvidence, match="tub='yes', either='no' contradict each other"):
        cm.log_evidence_bounds(cm.read("examples/asia.bif"), EVIDENCE)


def test_what_is_impossible_by_itself_and_models_without_weight():
    certain = cm.BayesianNetwork.from_cpts({"a": [0, 1], "b": [0, 1]}, {}, {"a": [1.0, 0.0], "b": [0.5, 0.5]})
    with pytest.raises(cm.ImpossibleEvidence, match="a=1 is impossible by itself"):
        cm.map_query(certain, None, {"a": 1, "b": 0})
    weightless = cm.MarkovNetwork(cm.Domain.of_sizes([2, 2]), [cm.Factor((0,), [0.0, 0.0])])
    with pytest.raises(cm.ImpossibleEvidence, match="gives no assignment any weight"):
        cm.map_query(weightless, ["1"])


def test_a_search_that_is_cut_short_says_so():
    asia = cm.read("examples/asia.bif")
    conflict(asia, EVIDENCE)  # compiles what it needs
    assert conflict(asia, EVIDENCE, patience=0.0) == (EVIDENCE, False)
    assert conflict(asia, {"tub": "yes", "smoke": None}) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["network", "circuit", "markov"]))
def test_scores_and_contributions_are_those_of_enumeration(seed, kind):
    network = random_network(seed)
    rng = np.random.default_rng([seed, 2])
    chosen = rng.choice(network.domain.names, size=int(rng.integers(1, 5)), replace=False).tolist()
    row = network.domain.decode(network.sample(1, rng)[0])
    evidence = {name: row[name] if rng.random() < 0.9 else int(rng.integers(2)) for name in chosen}
    doubled = cm.MarkovNetwork(network.domain, [*network.factors, cm.Factor((), 2.0)])
    found = cm.conflict({"network": network, "circuit": network.compile(), "markov": doubled}[kind], evidence)
    if probability(network, evidence) == 0.0:
        assert found.score == -np.inf
        assert found.is_minimal
        assert probability(network, found.observations) == 0.0
        assert not found.contributions
        return

    def log_p(part):
        return float(np.log(probability(network, part)))

    alone = {name: log_p({name: value}) for name, value in evidence.items()}
    assert found.score == pytest.approx(log_p(evidence) - sum(alone.values()), abs=1e-9)
    assert not found.observations
    rest = {name: log_p({n: v for n, v in evidence.items() if n != name}) for name in evidence}
    expected = {name: log_p(evidence) - rest[name] - alone[name] for name in evidence}
    assert dict(found.contributions) == pytest.approx(expected, abs=1e-9)
    assert list(found.contributions.values()) == sorted(found.contributions.values())


def test_conflicts_of_every_kind_of_evidence():
    asia = cm.read("examples/asia.bif")
    found = cm.conflict(asia, {"lung": "yes", "smoke": "no", "xray": "no", "asia": None})
    assert next(iter(found.contributions)) == "lung"
    assert found.to_frame().columns.tolist() == ["variable", "contribution"]
    assert found.to_frame()["variable"].tolist() == list(found.contributions)
    assert cm.conflict(asia, {}).score == 0.0
    assert cm.conflict(asia, EVIDENCE).observations == {"tub": "yes", "either": "no"}
    assert cm.conflict(asia.do(smoke="no"), {"smoke": "yes", "xray": "no"}).observations == {"smoke": "yes"}
    stated = {"either": {"probability": [0.0, 1.0]}, "bronc": "no", "lung": "yes"}
    assert list(cm.conflict(asia, stated).observations) == ["either", "lung"]
    soft = cm.conflict(asia, {"either": {"probability": [0.2, 0.8]}, "lung": "no"})
    assert -np.inf < soft.score
    real = cm.LinearGaussianNetwork([cm.LinearGaussian("x"), cm.LinearGaussian("y", ["x"], 0.0, [2.0], 0.5)])
    both = cm.conflict(real, {"x": 2.0, "y": -4.0})
    assert both.score == pytest.approx(
        cm.log_evidence(real, {"x": 2.0, "y": -4.0})
        - sum(cm.log_evidence(real, {name: value}) for name, value in {"x": 2.0, "y": -4.0}.items())
    )
    with pytest.raises(cm.errors.QueryError, match="'lunge' is no variable"):
        cm.conflict(asia, {"lunge": "yes"})
