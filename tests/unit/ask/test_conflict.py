"""Observations that contradict each other: impossible together, possible without any one of them."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.ask import conflicts
from certimap.ask.conflicts import conflict
from certimap.core.control import Control


@pytest.fixture(autouse=True)
def _with_all_the_time(monkeypatch):
    """Searches that are cut short say less: tests must not depend on how fast the machine is."""
    monkeypatch.setattr("certimap.ask.conflicts.PATIENCE", 600.0)
    monkeypatch.setattr("certimap.ask.conflicts.FIRST", 600.0)


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
    assert found.is_minimal
    assert found.is_smallest
    assert found.observations.items() <= evidence.items()
    assert probability(network, found.observations) == 0.0
    for names in itertools.combinations(evidence, len(found.observations) - 1):
        assert probability(network, {name: evidence[name] for name in names}) > 0.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.frozensets(st.sampled_from("abcdefghi"), min_size=1), min_size=1, max_size=8))
def test_no_smaller_set_contradicts_itself(impossible):
    """Against all parts of the evidence, where any of several sets of observations is impossible."""
    asked = []

    def is_impossible(model, evidence, control):
        asked.append(frozenset(evidence))
        return any(part <= evidence.keys() for part in impossible)

    everything = dict.fromkeys("abcdefghi", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conflicts, "_is_impossible", is_impossible)
        found = conflict(None, everything)
        assert found.is_minimal
        assert found.is_smallest
        assert found.observations.keys() in impossible
        assert len(found.observations) == min(map(len, impossible))
        assert len(asked) < 200
        patch.setattr(conflicts, "MOST_SUMS", 0)
        early = conflict(None, everything)
    assert early.is_minimal
    assert not any(part < early.observations.keys() for part in impossible)
    assert not early.is_smallest or len(early.observations) == len(found.observations)


def test_the_smallest_set_is_named_where_a_larger_one_is_minimal():
    names, table = ["a1", "a2", "a3"], np.zeros((2, 2, 2, 2))
    table[..., 0], table[1, 1, 1] = 1.0, (0.0, 1.0)
    fair = {name: [0.5, 0.5] for name in ("b", *names)}
    model = cm.BayesianNetwork.from_cpts(
        {name: [0, 1] for name in (*fair, "all", "c")}, {"all": names, "c": ["b"]},
        {**fair, "all": table, "c": np.eye(2)},
    )  # fmt: skip
    evidence = {"b": 1, "a1": 1, "a2": 1, "a3": 1, "all": 0, "c": 0}
    search = conflicts._Search(model, evidence, Control())
    assert search.minimal() == ([*names, "all"], True)
    found = cm.conflict(model, evidence)
    assert found.observations == {"b": 1, "c": 0}
    assert found.is_smallest
    with pytest.raises(cm.ImpossibleEvidence, match=r": b=1, c=0 contradict each other$"):
        cm.map_query(model, None, evidence)


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
    assert conflict(asia, EVIDENCE, patience=0.0) == (EVIDENCE, False, False)
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
