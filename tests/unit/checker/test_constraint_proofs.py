"""Proofs of answers under constraints: the checker counts for itself, and altered constraints are found out."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof
from certimap.checker.constraints import PlainRules
from certimap.checker.models import CheckBudget, PlainTable, Question, ReducedModel, Rejected
from certimap.checker.network import bounds_at, value_at
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap_lab.constraints import all_hold, forged, random_constraints
from certimap_lab.proofs import by_steps, each_solved, failures, random_case, solved


def rules_of(said, states, budget=None, observed=None):
    """Build the checker's automata on variables given with their labels; observed ones have one possible state."""
    variables = [{"name": name, "states": labels} for name, labels in states.items()]
    sizes = np.array([len(labels) for labels in states.values()])
    weights = [
        0.0 if (observed or {}).get(name, label) == label else -np.inf
        for name, labels in states.items()
        for label in labels
    ]
    queried = [k for k, name in enumerate(states) if name not in (observed or {})]
    question = Question(sizes, np.array(queried, np.int64), np.array(weights))
    return PlainRules.of(said, variables, question, budget or CheckBudget())


def one_holds(said, states):
    return any(all_hold([said], dict(zip(states, x, strict=True))) for x in itertools.product(*states.values()))


@pytest.mark.parametrize("seed", range(60))
def test_automata_accept_what_the_constraints_say(seed):
    rng = np.random.default_rng(seed)
    labels = [["a", "b", "c"], [0, 1], [True, False], ["b", "a"], ["c", "d", "a", "b"]]
    states = {f"v{k}": labels[int(rng.integers(5))] for k in range(5)}
    observed = {} if seed % 3 else {"v4": states["v4"][int(rng.integers(len(states["v4"])))]}
    possible = states | {name: [label] for name, label in observed.items()}
    said = [one for one in random_constraints(rng, states, 3) if one_holds(one, possible)][: 1 + seed % 3]
    queried = [name for name in states if name not in observed]
    points = list(itertools.product(*(range(len(states[name])) for name in queried)))
    wanted = np.array(
        [
            all_hold(said, observed | {n: states[n][k] for n, k in zip(queried, point, strict=True)})
            for point in points
        ]
    )
    rules = rules_of(said, states, observed=observed)
    points = np.array(points)
    np.testing.assert_array_equal(rules.satisfied(points), wanted)
    sizes = np.array([len(states[name]) for name in queried])
    listed = np.concatenate([np.zeros((0, len(queried)), np.int64), *rules.points(sizes)])
    assert sorted(listed.tolist()) == points[wanted].tolist()
    starts = np.concatenate([[0], np.cumsum(sizes)])
    boxes = rng.random((20, starts[-1])) < 0.6
    columns = points + starts[:-1]
    for box, left in zip(boxes, rules.narrowed(boxes, starts), strict=True):
        inside = columns[wanted & box[columns].all(axis=1)]
        needed = np.zeros_like(box)
        needed[inside.reshape(-1)] = True
        assert not np.any(needed & ~left)
        assert not np.any(left & ~box)
        if len(rules.automata) == 1 and len(inside):  # a single automaton leaves nothing too much
            np.testing.assert_array_equal(left, needed)


@pytest.mark.parametrize("seed", range(1, 12))
def test_proofs_under_constraints_hold_and_altered_ones_do_not(seed):
    case, rng = random_case(seed, constrained=True), np.random.default_rng(seed)
    for solver, result in each_solved(case, seed, rng):
        assert (result.proof is None) == (not result.certified), result.no_proof
        if result.proof is not None:
            assert failures(case, result.proof, rng) == []
        if solver == "auto" and seed % 2:
            assert failures(case, by_steps(case, result.proof, 4.0, relaxed=seed % 4 == 1), rng) == []


@pytest.mark.parametrize("seed", range(20))
def test_searches_under_constraints_are_proved_and_no_forged_ones(seed):
    """Many joint states: trees of boxes of circuits, vectors of networks, several answers."""
    case, rng = random_case(seed, hard=True, constrained=True), np.random.default_rng(seed)
    result = solved(case, "frontier" if seed % 2 == 0 else "auto", top_k=1 + seed % 3)
    assert result.certificate.kind == "exact"
    assert seed % 2 == 1 or result.proof.meta["method"] in ("boxes", "residual"), result.no_proof
    assert cm.check(case.model, result.proof, exact=seed % 4 == 0).accepted
    claim = {**result.proof.meta["claim"], "log_joint": None}
    for what, said in forged(rng, case.constraints, case.states):
        meta = {**result.proof.meta, "claim": claim, "constraints": said}
        proof = Proof(meta, result.proof.arrays)
        assert not cm.check(case.model, proof).accepted or case.is_true(proof), what


FAULTS = [f"f{k}" for k in range(5)]
AT_MOST = {"kind": "AtMost", "k": 2, "names": FAULTS, "state": "yes"}


@pytest.fixture(scope="module")
def faulty():
    """Five likely faults, of which at most two are answers, and the proof that f0 and f1 are the best two."""
    states = {name: ["no", "yes"] for name in FAULTS}
    chances = {name: [0.3 + 0.01 * k, 0.7 - 0.01 * k] for k, name in enumerate(FAULTS)}
    model = cm.BayesianNetwork.from_cpts(states, {}, chances)
    result = cm.map_query(model, FAULTS, {}, epsilon=0, delta=0, proof=True, constraints=[AT_MOST])
    assert [name for name in FAULTS if result.assignment[name] == "yes"] == ["f0", "f1"]
    return model, result.proof


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ([], "rejected"),
        ([{**AT_MOST, "k": 3}], "rejected"),
        ([{**AT_MOST, "k": 1}], "an answer does not satisfy the constraints"),
        ([{**AT_MOST, "state": "no"}], "an answer does not satisfy the constraints"),
        ([{**AT_MOST, "names": FAULTS[1:]}], "rejected"),
        ([{**AT_MOST, "kind": "AtLeast"}], "rejected"),
        ([AT_MOST, {"kind": "Never", "states": [["f0", "yes"]]}], "an answer does not satisfy the constraints"),
        ([AT_MOST, {"kind": "Never", "states": [["f0", "yes"], ["f0", "no"]]}], "a constraint is on"),
        ([{**AT_MOST, "kind": "Most"}], 'of the kind "Most"'),
        ([{**AT_MOST, "k": 2.0}], "a constraint counts to 2.0"),
        ([{**AT_MOST, "k": -1}], "a constraint counts to -1"),
        ([{**AT_MOST, "state": "maybe"}], 'a constraint names "maybe"'),
        ([{**AT_MOST, "names": ["f0", "g"]}], 'a constraint is on ["f0", "g"]'),
        ([{**AT_MOST, "more": 1}], "the proof is damaged (TypeError"),
        ([{"k": 2}], "the proof is damaged (TypeError"),
        ({"kind": "AtMost"}, "the proof is damaged (TypeError"),
        ([{"kind": "Linear", "weights": [["f0", [["yes", float("nan")]]]], "at_most": 1.0, "at_least": None}],
         "the proof is damaged (ValueError"),
        ([{"kind": "Linear", "weights": [["f0", [["yes", 1.0]]]], "at_most": "1e999999999", "at_least": None}],
         "the proof is damaged (OverflowError"),
        ([{"kind": "Allowed", "names": ["f0", "f1"], "rows": [["no"]]}], "the proof is damaged (ValueError"),
        ([{"kind": "Allowed", "names": ["f0", "f1"], "rows": []}], "no assignment satisfies one of the"),
    ],
)  # fmt: skip
def test_other_constraints_are_refused(faulty, changed, reason):
    model, proof = faulty
    assert cm.check(model, proof, exact=True).accepted
    assert json.dumps(AT_MOST) in cm.check(model, proof).asked
    verdict = cm.check(model, Proof({**proof.meta, "constraints": changed}, proof.arrays))
    assert not verdict.accepted
    assert reason in verdict.message


def test_automata_that_do_not_fit_are_refused():
    states = {f"v{k}": [0, 1] for k in range(20)}
    powers = [[name, [[1, 2.0**k]]] for k, name in enumerate(states)]
    huge = {"kind": "Linear", "weights": powers, "at_most": 2.0**19, "at_least": None}
    with pytest.raises(Rejected, match="more than 65536 states"):
        rules_of([huge], states)
    with pytest.raises(Rejected, match="the automaton of a constraint would take"):
        rules_of([huge], states, CheckBudget(n_bytes=100_000))
    with pytest.raises(Rejected, match="did not end within"):
        rules_of([huge], states, CheckBudget(seconds=0.0, end=0.0))


def test_rows_need_no_state_of_their_own(monkeypatch):
    monkeypatch.setattr("certimap.checker.constraints.MOST_STATES", 10)
    states = {name: list(range(8)) for name in "ab"}
    rules = rules_of([{"kind": "AllDifferent", "names": ["a", "b"]}], states)
    assert sum(map(len, rules.points(np.full(2, 8)))) == 56


def test_densities_of_labels_and_numbers_are_proved_under_constraints():
    domain = cm.Domain([cm.Categorical("c", ["a", "b", "d"]), cm.Categorical("e", ["a", "b"]), cm.Real("x")])
    build, logs = cm.CircuitBuilder(domain), np.log([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8]])
    parts = [
        build.product(
            [
                build.categorical(0, log_weights=logs[k].tolist()),
                build.categorical(1, log_weights=np.log([0.6, 0.4] if k else [0.3, 0.7]).tolist()),
                build.gaussian(2, float(k), 0.5),
            ]
        )
        for k in range(3)
    ]
    build.sum(parts, log_weights=np.log([0.5, 0.3, 0.2]).tolist())
    model = build.build(normalised=False)
    free = cm.map_query(model, epsilon=0, delta=0, proof=True)
    rule = cm.Never(c=free.assignment["c"], e=free.assignment["e"])
    found = cm.map_query(model, epsilon=0, delta=0, proof=True, constraints=[rule])
    assert found.log_prob < free.log_prob
    assert found.proof.meta["method"] == free.proof.meta["method"] == "mixture"
    assert cm.check(model, found.proof).accepted
    for said in ([], [cm.Never(c=found.assignment["c"]).to_dict()]):
        assert not cm.check(model, Proof({**found.proof.meta, "constraints": said}, found.proof.arrays)).accepted


@pytest.mark.parametrize("n_hidden", [0, 4])
def test_networks_too_wide_to_eliminate_are_listed(n_hidden):
    """Every two of 26 variables share a table, and one of them is in its second state."""
    rng, names = np.random.default_rng(2), [f"v{k}" for k in range(26)]
    domain = cm.Domain([cm.Categorical(name, ["no", "yes"]) for name in names])
    pairs = itertools.combinations(range(len(names)), 2)
    model = cm.MarkovNetwork(domain, [cm.Factor(pair, rng.gamma(1.0, size=(2, 2)) + 0.1) for pair in pairs])
    asked = names[n_hidden:]
    rule = cm.Exactly(1, asked, "yes")
    found = cm.map_query(model, asked, epsilon=0, delta=0, solver="exhaustive", proof=True, constraints=[rule])
    assert found.proof.meta["method"] == "listing"
    assert cm.check(model, found.proof).accepted
    claim = {**found.proof.meta["claim"], "log_joint": None}
    for name in asked:
        answer = {**dict.fromkeys(asked, "no"), name: "yes"}
        verdict = cm.check(
            model, Proof({**found.proof.meta, "answer": answer, "claim": claim}, found.proof.arrays)
        )
        assert verdict.accepted == (answer == found.assignment)
        assert verdict.accepted or "is worth more than the claim allows" in verdict.message


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_many_points_lie_just_above_their_values(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, 8).tolist()
    queried = rng.choice(8, 4, replace=False).tolist()
    scopes = [tuple(rng.choice(8, int(rng.integers(1, 4)), replace=False).tolist()) for _ in range(12)]
    scopes += [tuple(queried[:2]), (next(v for v in range(8) if v not in queried),)]
    shapes = [[sizes[v] for v in scope] for scope in scopes]
    logs = [np.where(rng.random(s) < 0.05, -np.inf, 10.0 ** (seed % 5) * rng.normal(size=s)) for s in shapes]
    problem = ReducedModel(list(map(PlainTable, scopes, logs)), sizes, queried, float(rng.normal()), 1e-14)
    points = np.array(list(itertools.product(*(range(sizes[v]) for v in queried))), np.int64)
    found = bounds_at(problem, points, rng.permutation(8)[:3].tolist())
    low, high = (np.array([value_at(problem, point, side) for point in points.tolist()]) for side in (-1, 1))
    assert np.all(found >= low)
    near = 1e-12 * (1.0 + np.abs(high[high > -np.inf]).max(initial=0.0))
    assert np.all((found <= high + near) | (high == -np.inf))
    assert np.array_equal(found == -np.inf, high == -np.inf)


def test_lists_of_assignments_are_limited(monkeypatch):
    rules = rules_of([{**AT_MOST, "k": 1}], {name: ["no", "yes"] for name in FAULTS})
    assert sum(len(points) for points in rules.points(np.full(5, 2), together=4)) == 6
    monkeypatch.setattr("certimap.checker.constraints.MOST_POINTS", 5)
    with pytest.raises(Rejected, match="more than 5 assignments"):
        list(rules.points(np.full(5, 2)))


@pytest.mark.parametrize(("n", "most", "is_circuit", "max_nodes"), [(60, 12, False, 5000), (24, 8, True, 100)])
def test_hidden_trees_are_searched_and_proved_with_counters(n, most, is_circuit, max_nodes):
    rng, k = np.random.default_rng(0), 3
    domain = cm.Domain([cm.Categorical(f"v{i}", ("no", "yes")) for i in range(n)])
    parent = np.array([-1, *(int(rng.integers(max(0, i - 3), i)) for i in range(1, n))])
    tables = rng.dirichlet(np.ones(k)), rng.dirichlet(np.full(k, 0.5), (n, k))
    model = HiddenChowLiuModel(domain, parent, *tables, [rng.dirichlet(np.ones(2), k) for _ in range(n)])
    model = model.to_circuit() if is_circuit else model
    rule = cm.AtMost(most, list(domain.names), "yes")
    found = cm.map_query(model, epsilon=0, delta=0, constraints=[rule], proof=True, max_nodes=max_nodes)
    assert found.certificate.kind == "exact"
    assert sum(label == "yes" for label in found.assignment.values()) <= most
    assert cm.check(model, found.proof).accepted
    assert not cm.check(model, Proof({**found.proof.meta, "constraints": []}, found.proof.arrays)).accepted
