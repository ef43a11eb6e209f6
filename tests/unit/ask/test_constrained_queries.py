"""Queries under constraints, against every joint state."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

import certimap as cm
from certimap.ask.replay import asked, replay
from certimap.errors import ImpossibleEvidence, NoAnswer, QueryError, SolverError
from certimap.networks import Factor

SOLVERS = ("auto", "exhaustive", "frontier", "hbfs", "set_elimination", "aobb", "bucket_elimination", "pac")


def network(rng, *, is_markov=False, zeros=0.2):
    """Return a random network of 4 to 6 variables with 2 or 3 text labels."""
    n = int(rng.integers(4, 7))
    domain = cm.Domain(cm.Categorical(f"v{i}", tuple("abc"[: rng.integers(2, 4)])) for i in range(n))
    factors = []
    for i in range(n):
        parents = rng.choice(i, min(i, int(rng.integers(0, 3))), replace=False).tolist() if i else []
        shape = [int(domain.n_states[v]) for v in (*parents, i)]
        table = rng.random(shape) * (rng.random(shape) > zeros) + 1e-3
        factors.append(Factor((*parents, i), table / table.sum(axis=-1, keepdims=True)))
    return cm.MarkovNetwork(domain, factors) if is_markov else cm.BayesianNetwork(domain, factors)


def constraint(rng, domain, names):
    """Return a random constraint on some of the variables, and its test of an assignment."""

    def pick(of):
        return {n: domain[n].states[rng.integers(domain[n].n_states)] for n in of}

    some = rng.choice(names, int(rng.integers(1, min(4, len(names)) + 1)), replace=False).tolist()
    k, kind = int(rng.integers(0, 3)), int(rng.integers(0, 8))
    if kind < 3:
        compare = (int.__le__, int.__ge__, int.__eq__)[kind]
        make = (cm.AtMost, cm.AtLeast, cm.Exactly)[kind]
        return make(k, some, "b"), lambda x: compare(sum(x[n] == "b" for n in some), k)
    if kind == 3:
        states = pick(some)
        return cm.Never(states), lambda x: any(x[n] != s for n, s in states.items())
    if kind == 4:
        first, second = pick(some), pick(rng.choice(names, 1).tolist())
        return cm.Implies(
            first, second
        ), lambda x: any(x[n] != s for n, s in first.items()) or all(x[n] == s for n, s in second.items())
    if kind == 5:
        two = rng.choice(names, 2, replace=False).tolist()
        return cm.AllDifferent(two), lambda x: x[two[0]] != x[two[1]]
    if kind == 6:
        weights = {n: {s: float(rng.integers(-2, 4)) for s in domain[n].states} for n in some}
        low = float(rng.integers(-2, 3))
        return cm.Linear(
            weights, at_least=low, at_most=low + 2
        ), lambda x: low <= sum(weights[n][x[n]] for n in some) <= low + 2
    rows = [tuple(pick(some).values()) for _ in range(rng.integers(1, 5))]
    return cm.Allowed(some, rows), lambda x: tuple(x[n] for n in some) in rows


def question(rng, domain):
    """Return query variables, evidence, constraints, and a test of all constraints."""
    names = list(domain.names)
    rng.shuffle(names)
    n_query = int(rng.integers(2, len(names)))
    query, rest = names[:n_query], names[n_query:]
    observed = rest[: rng.integers(0, len(rest) + 1)]
    evidence = {n: domain[n].states[rng.integers(domain[n].n_states)] for n in observed}
    pairs = [constraint(rng, domain, [*query, *observed]) for _ in range(rng.integers(1, 4))]
    return query, evidence, [c for c, _ in pairs], lambda x: all(test(x) for _, test in pairs)


def truth(model, query, evidence, test):
    """Return ln p(q | e) of every feasible assignment of positive probability, best first; None if p(e) = 0."""
    domain = model.domain
    points = np.array(list(itertools.product(*map(range, domain.n_states))), np.int16)
    logs = model.log_joint(points)
    held = np.ones(len(points), bool)
    for name, label in evidence.items():
        held &= points[:, domain.index(name)] == domain[name].index(label)
    points, logs = points[held], logs[held]
    total = np.logaddexp.reduce(logs)
    if total == -np.inf:
        return None
    columns = [domain.index(n) for n in query]
    sums: dict[tuple[int, ...], float] = {}
    for point, value in zip(points, logs, strict=True):
        q = tuple(point[columns].tolist())
        sums[q] = np.logaddexp(sums.get(q, -np.inf), value)
    found = []
    for q, value in sums.items():
        labels = {n: domain[n].states[s] for n, s in zip(query, q, strict=True)}
        if value > -np.inf and test({**labels, **evidence}):
            found.append((labels, float(value - total)))
    return sorted(found, key=lambda pair: -pair[1])


def check(model, query, evidence, constraints, test, **settings):
    """Compare one answer with the truth; return it, or None where there is none."""
    best = truth(model, query, evidence, test)
    try:
        found = cm.map_query(model, query, evidence, constraints=constraints, rng=0, **settings)
    except ImpossibleEvidence:
        assert best is None
        return None
    except NoAnswer:
        assert not best
        return None
    assert best
    value = {tuple(a.values()): v for a, v in best}[tuple(found.assignment.values())]
    assert found.log_prob == pytest.approx(value, abs=1e-9)
    assert found.log_upper_bound >= best[0][1] - 1e-9
    if found.certified:
        assert value >= best[0][1] + np.log1p(-found.certificate.epsilon) - 1e-9
    if found.certificate.kind == "exact" and found.top is not None:
        values = [v for _, v in found.top if v > -np.inf]
        assert values == pytest.approx([v for _, v in best[: len(found.top)]], abs=1e-9)
    return found


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(6))
def test_answers_are_the_best_of_those_that_satisfy_the_constraints(solver, seed):
    rng = np.random.default_rng([seed, 1])
    for _ in range(4):
        model = network(rng, is_markov=bool(rng.integers(2)))
        query, evidence, constraints, test = question(rng, model.domain)
        more = {} if solver in ("bucket_elimination", "aobb") else {"top_k": 3}
        try:
            found = check(model, query, evidence, constraints, test, solver=solver, **more)
        except SolverError:
            assert solver in ("frontier", "set_elimination", "bucket_elimination", "hbfs", "aobb")
            continue
        assert found is None or found.certified or solver == "pac"


FAULTS = [f"f{i}" for i in range(5)]


def diagnosis(alarm="yes"):
    """Return a network of five faults and three noisy-or alarms, and evidence."""
    states = {n: ["no", "yes"] for n in [*FAULTS, "a0", "a1", "a2"]}
    parents = {"a0": FAULTS[:3], "a1": FAULTS[1:4], "a2": FAULTS[2:]}
    tables = {f: [0.9 - 0.02 * i, 0.1 + 0.02 * i] for i, f in enumerate(FAULTS)}
    tables |= {a: cm.NoisyOr(dict.fromkeys(names, 0.8), leak=0.01) for a, names in parents.items()}
    return cm.BayesianNetwork.from_cpts(states, parents, tables), {"a0": alarm, "a1": "no", "a2": alarm}


def test_probabilities_stay_those_of_the_unconstrained_network():
    model, evidence = diagnosis()
    free = cm.map_query(model, FAULTS, evidence, top_k=32)
    values = {tuple(a.values()): v for a, v in free.top}
    for proof in (False, True):  # the first lists the answers, the second counts in the network
        found = cm.map_query(
            model, FAULTS, evidence, constraints=[cm.AtMost(1, FAULTS, "yes")], top_k=3, proof=proof
        )
        assert found.log_evidence == pytest.approx(free.log_evidence)
        assert found.certificate.kind == "exact"
        assert [v for _, v in found.top] == pytest.approx([values[tuple(a.values())] for a, _ in found.top])
        assert all(list(a.values()).count("yes") <= 1 for a, _ in found.top)
        assert found.log_prob == pytest.approx(found.top[0][1])
        assert found.log_joint == pytest.approx(found.log_prob + found.log_evidence)
        assert found.log_upper_bound >= found.log_prob - 1e-9
        assert found.history[-1].log_prob == pytest.approx(found.log_prob)


def test_an_observed_variable_counts_with_its_state():
    model, evidence = diagnosis()
    rules = [cm.AtMost(1, FAULTS, "yes")]
    found = cm.map_query(model, FAULTS[1:], evidence | {"f0": "yes"}, constraints=rules)
    assert set(found.assignment.values()) == {"no"}
    with pytest.raises(NoAnswer, match="observed states"):
        cm.map_query(model, FAULTS[2:], evidence | {"f0": "yes", "f1": "yes"}, constraints=rules)


@pytest.mark.parametrize("settings", [{}, {"solver": "hbfs"}, {"solver": "exhaustive"}, {"proof": True}])
def test_no_answer_is_told_from_impossible_evidence(settings):
    model = cm.BayesianNetwork.from_cpts(
        {"a": ["no", "yes"], "b": ["no", "yes"], "c": ["no", "yes"]}, {"b": ["a"]},
        {"a": [0.5, 0.5], "b": [[1.0, 0.0], [0.0, 1.0]], "c": [1.0, 0.0]},
    )  # fmt: skip
    with pytest.raises(NoAnswer, match="AllDifferent"):
        cm.map_query(model, ["a", "b"], constraints=[cm.AllDifferent(["a", "b"])], **settings)
    with pytest.raises(ImpossibleEvidence):
        cm.map_query(model, ["a", "b"], {"c": "yes"}, constraints=[cm.AllDifferent(["a", "b"])], **settings)


def test_hidden_variables_take_no_constraint():
    model, evidence = diagnosis()
    with pytest.raises(QueryError, match="a constraint on hidden variables is evidence"):
        cm.map_query(model, FAULTS[1:], evidence, constraints=[cm.Never(f0="yes", f1="yes")])


def test_results_replay_explain_and_rows_keep_the_constraints():
    pandas = pytest.importorskip("pandas")
    model, evidence = diagnosis()
    rules = [cm.AtMost(1, FAULTS, "yes"), cm.Never(f2="yes", f0="no")]
    found = cm.map_query(model, FAULTS, evidence, constraints=rules, rng=1)
    assert found.constraints == tuple(rules)
    record = json.loads(found.to_json()) | {"asked": asked(model, FAULTS, evidence, {"constraints": rules})}
    assert record["constraints"][0] == {"kind": "AtMost", "k": 1, "names": FAULTS, "state": "yes"}
    assert replay(model, json.loads(json.dumps(record))).same
    explained = found.explain()
    assert explained.answer.assignment == found.assignment
    assert list(explained.lead.runner_up.values()).count("yes") <= 1
    rows = pandas.DataFrame([evidence, diagnosis("no")[1]])
    for n_jobs in (None, 2):
        answers = cm.map_query(model, FAULTS, rows, constraints=rules, rng=1, n_jobs=n_jobs)
        assert answers[0].assignment == found.assignment
        assert answers[0].log_prob == pytest.approx(found.log_prob)


def test_a_posterior_takes_constraints():
    model, evidence = diagnosis()
    posterior = cm.condition(model, FAULTS, evidence)
    rules = [cm.AtMost(1, FAULTS, "yes")]
    found = cm.map_query(posterior, constraints=rules)
    assert found.assignment == cm.map_query(model, FAULTS, evidence, constraints=rules).assignment


def test_workers_share_one_query_under_constraints():
    model, evidence = diagnosis()
    rules = [cm.AtMost(1, FAULTS, "yes")]
    found = cm.map_query(model, FAULTS, evidence, constraints=rules, n_jobs=2, solver="frontier")
    assert found.assignment == cm.map_query(model, FAULTS, evidence, constraints=rules).assignment


def test_a_mass_is_a_share_of_all_assignments():
    model, evidence = diagnosis()
    rules, whole = [cm.AtMost(1, FAULTS, "yes")], cm.log_evidence(model, evidence)
    for solver in ("auto", "set_elimination", "hbfs"):
        found = cm.map_query(model, FAULTS, evidence, constraints=rules, top_mass=1.0, solver=solver)
        logs = [cm.log_evidence(model, {**evidence, **states}) - whole for states, _ in found.top]
        assert [value for _, value in found.top] == pytest.approx(logs)
        assert len(found.top) == len(FAULTS) + 1
        assert found.top_mass.held == pytest.approx(sum(map(math.exp, logs)))
        assert found.top_mass.fewest is None


@pytest.mark.parametrize("solver", ["auto", "hbfs"])
def test_an_external_bound_is_of_the_joint_probability(solver):
    model, evidence = diagnosis()
    rules = {"constraints": [cm.AtMost(1, FAULTS, "yes")], "solver": solver}
    found = cm.map_query(model, FAULTS, evidence, **rules)
    with pytest.raises(SolverError, match="log_joint"):
        cm.map_query(model, FAULTS, evidence, upper_bound={"source": "x", "log_prob": -0.1}, **rules)
    bound = {"source": "x", "log_joint": found.log_joint + 1e-7}
    assert cm.map_query(model, FAULTS, evidence, upper_bound=bound, **rules).log_prob == found.log_prob


def test_a_network_with_counters_keeps_the_ceiling_of_its_network():
    from certimap.core.query import make_query
    from certimap.networks.constrained import constrained
    from certimap.networks.posterior import log_largest_joint

    model, evidence = diagnosis()
    query = make_query(model.domain, FAULTS, evidence, constraints=[cm.AtMost(1, FAULTS, "yes")])
    assert log_largest_joint(*constrained(model, query)) == log_largest_joint(model, query) < 1e-6


def test_printed_answers_say_under_which_constraints_they_are_best():
    found = cm.map_query(
        cm.read("examples/asia.bif"), ["lung", "bronc"], {"xray": "yes"}, constraints=[cm.Never(lung="yes")], rng=0
    )
    text = repr(found)
    assert "Never({'lung': 'yes'})" in text
    assert "no assignment that satisfies the constraints is more probable" in text
    assert "no assignment is more probable" not in text


def test_a_run_that_found_no_answer_in_time_shows_none():
    """Three constraints with labels enough for each, not for all of them: only a search can tell."""
    names = [f"x{i}" for i in range(14)]
    model = cm.BayesianNetwork.from_cpts(
        {name: [str(i) for i in range(9)] for name in names}, {}, {name: [1.0 / 9.0] * 9 for name in names}
    )
    rules = [cm.AllDifferent(part) for part in (names[:9], names[5:], [*names[:5], *names[9:13]])]
    with pytest.raises(cm.SolverError, match="before it found an assignment that satisfies the constraints"):
        cm.map_query(model, constraints=rules, max_nodes=5, solver="hbfs")


def test_a_sudoku_is_its_rules():
    """Uniform states: 27 constraints leave one answer, which is proved to be the only one."""
    grid = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
    names = [f"r{r}c{c}" for r in range(9) for c in range(9)]
    model = cm.BayesianNetwork.from_cpts(
        {n: list("123456789") for n in names}, {}, {n: [1 / 9] * 9 for n in names}
    )
    rows = [names[9 * r : 9 * r + 9] for r in range(9)]
    boxes = [[rows[3 * a + i][3 * b + j] for i in range(3) for j in range(3)] for a in range(3) for b in range(3)]
    units = [*rows, *map(list, zip(*rows, strict=True)), *boxes]
    clues = {name: label for name, label in zip(names, grid, strict=True) if label != "."}
    rules = [cm.AllDifferent(unit) for unit in units]
    found = cm.map_query(model, None, clues, constraints=rules, top_k=2, time_limit=600)
    filled = clues | found.assignment
    assert all(len({filled[name] for name in unit}) == 9 for unit in units)
    assert found.certificate.kind == "exact"
    assert len(found.top) == 1
    with pytest.raises(NoAnswer):
        cm.map_query(model, None, clues | {"r0c2": "2"}, constraints=rules, time_limit=600)
