"""Proofs by steps: exact or verified step by step, accepted as written, never accepted for a falsehood."""

from __future__ import annotations

from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof
from certimap.checker.models import CheckBudget, PlainTable, ReducedModel, Rejected
from certimap.checker.network import PlainNetwork, boxes_beside, maximised, summed, value_at
from certimap.checker.steps import (
    BACK,
    CLOSE,
    DIVIDE,
    ELIMINATE,
    GROUP,
    MAXIMISE,
    REPLACE,
    SPLIT,
    TRY,
    check_steps,
)
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.networks import Factor, MarkovNetwork
from certimap.proofs import reduced_network
from certimap.proofs import steps as step_proofs
from certimap.proofs.relaxations import ascended, cut
from certimap.proofs.script import Script
from certimap.testing.models import all_points, random_network
from certimap_lab.proofs import Case, by_steps, failures, random_case, solved


def everything(seed, zeros=0.2):
    """Return a query for all variables of a random network."""
    rng = np.random.default_rng(seed)
    domain = cm.Domain.of_sizes(int(k) for k in rng.integers(2, 4, 9))
    model = random_network(rng, domain, max_parents=3, zeros=zeros)
    posterior = cm.condition(model, solver="pac")
    return Case(model, list(model.domain.names), {}, posterior.log_prob(all_points(posterior.domain)))


def lattice(seed):
    """Return a query for all variables of a grid whose neighbours pull hard, both ways."""
    rng, n, rows = np.random.default_rng(seed), 4, 3
    factors = [Factor((i,), np.exp(rng.normal(0.0, 0.5, 2))) for i in range(n * rows)]
    for i in range(n * rows):
        for j in [i + 1] * (i % n < n - 1) + [i + n] * (i < n * (rows - 1)):
            pull = rng.normal(0.0, 2.0)
            factors.append(Factor((i, j), np.exp([[pull, -pull], [-pull, pull]])))
    model = MarkovNetwork(cm.Domain.of_sizes([2] * (n * rows)), factors)
    posterior = cm.condition(model, solver="pac")
    return Case(model, list(model.domain.names), {}, posterior.log_prob(all_points(posterior.domain)))


def network_of(case):
    query = make_query(case.model.domain, case.variables, case.evidence)
    return PlainNetwork.of(reduced_network(case.model, query))


@pytest.fixture
def nothing_is_cheap(monkeypatch):
    """Leave all to shifts and splits."""
    monkeypatch.setattr(step_proofs, "SMALL_SCOPE", 0)
    monkeypatch.setattr(step_proofs, "_eliminate_cheap", lambda script, network: None)
    monkeypatch.setattr(step_proofs, "_replace_functions", lambda script, network: None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_step_bounds_from_above(seed):
    case, rng = everything(seed), np.random.default_rng(seed)
    best = float(case.log_values.max())
    network = network_of(case)
    network.shift(rng.normal(0.0, 1.0, network.shift_layout[1]))
    bound, each = network.bounds()
    sizes = [case.model.domain[name].n_states for name in case.variables]
    values = case.log_values.reshape(sizes)
    assert bound >= best - 1e-12
    for v, found in each.items():
        beside = tuple(k for k in range(len(sizes)) if k != v)
        assert np.all(found >= values.max(axis=beside) - 1e-12)
    network.absorb()
    assert network.bound() >= best - 1e-12
    for v in rng.permutation(sorted(network.sizes)).tolist():
        network.eliminate(v)
        assert network.bound() >= best - 1e-12
    assert network.bound() == pytest.approx(best, abs=1e-11)


@pytest.mark.parametrize("block", [1, 8, 2**16])
@pytest.mark.parametrize("seed", range(20))
def test_an_elimination_in_blocks_is_never_below_the_exact_maximum(monkeypatch, seed, block):
    monkeypatch.setattr("certimap.checker.network.BLOCK", block)
    rng = np.random.default_rng(seed)
    sizes = {v: int(rng.integers(1, 5)) for v in range(5)}
    scopes = {(0,), *(tuple(sorted({0, *rng.permutation(5)[:k].tolist()})) for k in rng.integers(1, 5, 6))}
    scale = 10.0 ** rng.integers(-3, 7)  # sums of large numbers of both signs round the most
    tables = [PlainTable(s, rng.normal(0.0, scale, [sizes[v] for v in s])) for s in sorted(scopes)]
    tables[-1].logs[rng.random(tables[-1].logs.shape) < 0.3] = -np.inf
    scope = tuple(sorted({v for t in tables for v in t.scope}))
    found, constants = maximised(0, scope, tables, sizes, CheckBudget())
    assert set(found.scope) == set(scope) - {0}
    for point in np.ndindex(*found.logs.shape):
        at = dict(zip(found.scope, point, strict=True))
        values = [[t.logs[tuple({**at, 0: k}[v] for v in t.scope)] for t in tables] for k in range(sizes[0])]
        sums = [sum(map(Fraction, row)) for row in values if -np.inf not in row]
        if not sums or found.logs[point] == -np.inf:
            assert not sums
            assert found.logs[point] == -np.inf
            continue
        above = sum(map(Fraction, constants)) + Fraction(found.logs[point]) - max(sums)
        assert 0 <= above <= 1e-12 * scale


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("block", [1, 8, 2**16])
@pytest.mark.parametrize("seed", range(5))
def test_a_sum_in_blocks_is_on_its_side_of_the_exact_one(monkeypatch, seed, block, side):
    monkeypatch.setattr("certimap.checker.network.BLOCK", block)
    rng = np.random.default_rng(seed)
    sizes = {v: int(rng.integers(1, 5)) for v in range(5)}
    scopes = {(0,), *(tuple(sorted({0, *rng.permutation(5)[:k].tolist()})) for k in rng.integers(1, 5, seed))}
    tables = [PlainTable(s, rng.normal(0.0, 3.0, [sizes[v] for v in s])) for s in sorted(scopes)]
    tables[-1].logs[rng.random(tables[-1].logs.shape) < 0.3] = -np.inf
    scope = tuple(sorted({v for t in tables for v in t.scope}))
    found, constants = summed(0, scope, tables, sizes, CheckBudget(), 1.0, side)
    halves, beside = summed(0, scope, tables, sizes, CheckBudget(), 0.5)
    for point in np.ndindex(*found.logs.shape):
        at = dict(zip(found.scope, point, strict=True))
        values = [sum(t.logs[tuple({**at, 0: k}[v] for v in t.scope)] for t in tables) for k in range(sizes[0])]
        exact = np.logaddexp.reduce(values)
        assert exact == -np.inf or side * (found.logs[point] + sum(constants) - exact) >= -1e-14
        assert found.logs[point] + sum(constants) == pytest.approx(exact, rel=1e-12, abs=1e-12)
        square = 0.5 * np.logaddexp.reduce(2.0 * np.array(values))
        assert halves.logs[point] + sum(beside) == pytest.approx(square, rel=1e-12, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("most_entries", "relaxed"), [(0.0, False), (1e9, False), (0.0, True)])
@pytest.mark.parametrize("seed", range(1, 12, 2))
def test_steps_prove_answers_and_nothing_else(nothing_is_cheap, seed, most_entries, relaxed):
    case = everything(seed) if seed % 4 == 1 else random_case(seed, hard=True)
    proof = by_steps(case, solved(case, "auto", seed=seed).proof, most_entries, relaxed)
    assert failures(case, proof, np.random.default_rng(seed)) == []


def test_grids_need_shifts_and_splits(nothing_is_cheap):
    kinds: set[str] = set()
    for seed in range(6):
        case = lattice(seed)
        proof = by_steps(case, solved(case, "auto", seed=seed).proof, 0.0)
        assert failures(case, proof, np.random.default_rng(seed)) == []
        kinds |= {name for name in ("shifts", "kept") if len(proof.arrays[name])}
        if SPLIT in proof.arrays["steps"].tolist():
            kinds.add("splits")
    assert kinds == {"shifts", "kept", "splits"}


def test_a_variable_that_is_a_function_of_others_is_replaced_and_any_other_is_not():
    rng = np.random.default_rng(1)
    domain = cm.Domain.of_sizes([2, 3, 3, 2])
    is_function = np.zeros((2, 3, 3))
    is_function[rng.integers(0, 2, (3, 3)), *np.indices((3, 3))] = rng.random((3, 3)) + 0.1
    factors = [
        Factor((0, 1, 2), is_function),
        Factor((0, 3), rng.random((2, 2))),
        Factor((1, 3), rng.random((3, 2))),
    ]
    model = MarkovNetwork(domain, factors)
    names = list(domain.names)
    posterior = cm.condition(model, solver="pac")
    case = Case(model, names, {}, posterior.log_prob(all_points(posterior.domain)))
    best = cm.map_query(model, epsilon=0, delta=0, rng=0).log_joint
    network = network_of(case)
    network.replace(0, (0, 1, 2))
    assert set(network.tables) == {(1, 2), (1, 2, 3), (1, 3)}
    for v in (3, 2, 1):
        network.eliminate(v)
    assert network.bound() == pytest.approx(best, abs=1e-12)
    with pytest.raises(Rejected, match="several states"):
        network_of(case).replace(3, (0, 3))
    with pytest.raises(Rejected, match="not in"):
        network_of(case).replace(3, (0, 1, 2))


def gates_in_a_row(seed, noise=0.0):
    """Return a query for two of three inputs; gates, one after another, are hidden, and the last one is seen."""
    rng = np.random.default_rng(seed)
    states, parents, tables = {f"x{i}": [0, 1] for i in range(3)}, {}, {}
    tables = {v: [1 - (p := rng.uniform(0.2, 0.8)), p] for v in states}
    for k in range(5):
        on = rng.integers(2, size=(2, 2)) * (1 - 2 * noise) + noise
        states[f"g{k}"], tables[f"g{k}"] = [0, 1], np.stack([1 - on, on], axis=-1)
        parents[f"g{k}"] = rng.choice([v for v in states if v not in ("x2", f"g{k}")], 2, replace=False).tolist()
    model = cm.BayesianNetwork.from_cpts(states, parents, tables)
    names, evidence = ["x0", "x1"], {"g4": 0}
    posterior = cm.condition(model, names, evidence, solver="pac")
    return Case(model, names, evidence, posterior.log_prob(all_points(posterior.domain)))


@pytest.mark.parametrize("seed", range(8))
def test_what_queried_variables_determine_is_maximised(seed):
    try:
        case = gates_in_a_row(seed)
    except cm.ImpossibleEvidence:
        return
    query = make_query(case.model.domain, case.variables, case.evidence)
    checked = reduced_network(case.model, query)
    points = all_points(query.query_domain)
    network = PlainNetwork.of(checked)
    script = Script(0.0, Control(), 10**9)
    step_proofs._maximise_determined(script, network)
    assert network.hidden <= {2}  # the third input, which nothing mentions
    for v in sorted(network.sizes):
        network.eliminate(v)
    totals = [value_at(checked, point.tolist(), -1) for point in points]
    assert network.bound() == pytest.approx(max(totals), abs=1e-12)


def test_a_variable_that_is_not_determined_is_not_maximised():
    case = gates_in_a_row(3, noise=0.2)
    network = network_of(case)
    v = min(network.hidden)
    for by in sorted(network.near[v]):
        with pytest.raises(Rejected, match="maximised for a table"):
            network.maximise(v, by)
    queried = min(set(network.sizes) - network.hidden)
    with pytest.raises(Rejected, match="maximised for a table"):
        network.maximise(queried, min(network.near[queried]))


@pytest.mark.parametrize(
    "made",
    [
        [99],
        [CLOSE],
        [BACK],
        [TRY, TRY],
        [TRY, SPLIT, 0],
        [TRY, DIVIDE],
        [ELIMINATE, 99, CLOSE],
        [SPLIT, 99],
        [REPLACE, 0, 77],
        [REPLACE, 0, -1],
        [MAXIMISE, 0, 0],
        [MAXIMISE, 0, 77],
        [GROUP, 99],
        [SPLIT, 0],
        [GROUP, 0, -1],
        [GROUP, 0, 99],
        [GROUP, 0],
    ],
)
def test_steps_that_do_not_hold_are_rejected(made):
    case = everything(2, zeros=0.0)
    result = solved(case, "auto")
    arrays = {"steps": np.array(made, np.int32), "shifts": np.zeros(0), "kept": np.zeros(0, np.uint8)}
    arrays["order"] = np.zeros(0, np.int32)
    meta = {**result.proof.meta, "method": "steps"}
    proof = Proof(meta, {"log_weights": result.proof.arrays["log_weights"], **arrays})
    assert cm.check(case.model, proof).message.startswith("rejected: ")


def two_lattices(seed):
    """Return a problem of two parts that nothing joins, its best point, and what each part is worth there."""
    problems = [
        reduced_network(c.model, make_query(c.model.domain, c.variables, {})) for c in map(lattice, (seed, 9))
    ]
    n = len(problems[0].sizes)
    tables = [
        *problems[0].tables,
        *(PlainTable(tuple(v + n for v in t.scope), t.logs) for t in problems[1].tables),
    ]
    both = ReducedModel(tables, problems[0].sizes + problems[1].sizes, list(range(2 * n)), 0.0)
    points = [p for q in problems for p in [max(np.ndindex(*q.sizes), key=lambda p, q=q: worth(q, p))]]
    return both, [*points[0], *points[1]], [worth(q, p) for q, p in zip(problems, points, strict=True)]


def worth(problem, point):
    return sum(float(t.logs[tuple(point[v] for v in t.scope)]) for t in problem.tables)


def test_components_are_closed_at_levels_of_their_own(nothing_is_cheap):
    both, point, values = two_lattices(3)
    threshold = sum(values) + 1e-9
    script = Script(threshold, Control.starting_now(600.0), 10**8, quick_entries=0.0, most_entries=0.0)
    boxes = boxes_beside(both, [point])
    arrays = step_proofs.steps_of(both, boxes, script, point)
    steps, levels = arrays["steps"].tolist(), arrays["shifts"][:2]
    assert steps.count(DIVIDE) == 1
    assert levels == pytest.approx(values, abs=1e-8)

    def check(threshold, numbers):
        check_steps(both, boxes, {**arrays, "shifts": numbers}, threshold, CheckBudget())

    def refuse(threshold, numbers, why):
        with pytest.raises(Rejected, match=why):
            check(threshold, numbers)

    check(threshold, arrays["shifts"])
    for k in range(2):  # more for one alone, and at the cost of the other
        more, moved = arrays["shifts"].copy(), arrays["shifts"].copy()
        more[k] += 1e-6
        moved[k], moved[1 - k] = moved[k] + 1.0, moved[1 - k] - 1.0
        refuse(threshold, more, "add up to")
        refuse(threshold, moved, "does not hold")
    refuse(threshold - 1e-6, arrays["shifts"], "add up to")
    lowest = np.concatenate([[levels[0], -1e90], arrays["shifts"][2:]])
    refuse(threshold, lowest, "does not hold")
    refuse(threshold, np.concatenate([levels, [0.0], arrays["shifts"][2:]]), "does not hold")
    refuse(threshold, levels[:1], "ends before")


@pytest.mark.parametrize("step", [DIVIDE, SPLIT, TRY])
def test_on_a_copy_nothing_is_divided_or_split_or_copied_again(step):
    both, point, _ = two_lattices(3)
    given = {"steps": np.array([TRY, step, 0]), "shifts": np.full(2, 99.0), "kept": np.zeros(0, np.uint8)}
    with pytest.raises(Rejected, match=f"no step of the kind {step} here"):
        check_steps(both, boxes_beside(both, [point]), given, 1e3, CheckBudget())


@pytest.mark.parametrize("seed", range(4))
def test_components_with_hidden_variables_are_worth_what_all_is_worth(seed):
    """Bounds of components, by state too, are above what enumeration finds; lower levels prove nothing."""
    both, _, _ = two_lattices(seed)
    rng = np.random.default_rng(seed)
    problem = ReducedModel(both.tables, both.sizes, sorted(rng.permutation(24)[:16].tolist()), 0.5)
    bounds = []
    for part in PlainNetwork.of(problem).components():
        queried = [v for v in sorted(part.sizes) if v not in part.hidden]
        joint = np.zeros([2] * len(part.sizes))
        grids = dict(zip(sorted(part.sizes), np.indices(joint.shape), strict=True))
        for scope, logs in (*part.tables.items(), *(((v,), own) for v, own in part.own.items())):
            joint = joint + logs[tuple(grids[v] for v in scope)]
        sums = np.logaddexp.reduce(
            np.moveaxis(joint, [sorted(part.sizes).index(v) for v in queried], range(len(queried))).reshape(
                2 ** len(queried), -1
            ),
            axis=1,
        )
        exact = float(sums.max())
        first, each = part.bounds()
        assert first >= exact
        assert sorted(each) == queried
        for axis, v in enumerate(queried):
            by_state = np.moveaxis(sums.reshape([2] * len(queried)), axis, 0).reshape(2, -1).max(axis=1)
            assert np.all(each[v] >= by_state - 1e-12)
        for v in [*sorted(part.hidden), *queried]:
            part.eliminate(v)
        assert part.bound() == pytest.approx(exact, abs=1e-10)
        bounds.append(part.bound())
    steps = [DIVIDE]
    for part in PlainNetwork.of(problem).components():
        order = [*sorted(part.hidden), *(v for v in sorted(part.sizes) if v not in part.hidden)]
        steps += [*(x for v in order for x in (ELIMINATE, v)), CLOSE]
    arrays = {"steps": np.array(steps), "kept": np.zeros(0, np.uint8)}
    boxes = boxes_beside(problem, [[0] * 16])
    for slack, is_proof in ((1e-11, True), (-1e-6, False)):
        levels = np.array([bounds[0] + slack, bounds[1] + 1e-11])
        with nullcontext() if is_proof else pytest.raises(Rejected, match="does not hold"):
            check_steps(problem, boxes, {**arrays, "shifts": levels}, 0.5 + sum(bounds) + 1e-10, CheckBudget())


def test_what_a_table_joins_is_one_component():
    both, _, _ = two_lattices(3)
    whole = PlainNetwork.of(both)
    parts = whole.components()
    assert [sorted(part.sizes) for part in parts] == [list(range(12)), list(range(12, 24))]
    assert {scope for part in parts for scope in part.tables} == set(whole.tables)
    assert all(np.allclose(part.own[v], whole.own[v]) for part in parts for v in part.sizes)
    joined = PlainNetwork.of(
        ReducedModel([*both.tables, PlainTable((3, 20), np.eye(2))], both.sizes, both.queried, 0.0)
    )
    assert len(joined.components()) == 1
    flat = PlainNetwork.of(
        ReducedModel([*both.tables, PlainTable((3, 20), np.full((2, 2), 0.5))], both.sizes, both.queried, 0.0)
    )
    bound = flat.bound()
    flat.absorb()
    assert len(flat.components()) == 2
    assert bound <= flat.bound() <= bound + 1e-12


def test_tables_that_are_sums_of_functions_are_flattened():
    rng = np.random.default_rng(0)
    line = [rng.normal(0.0, 1.0, 3) for _ in range(4)]
    tables = [PlainTable((0, 1), line[0][:, None] + line[1]), PlainTable((1, 2), rng.normal(0.0, 1.0, (3, 3)))]
    network = PlainNetwork.of(ReducedModel(tables, [3, 3, 3], [0, 1, 2], 0.0))
    best = network.bound() - 1.0
    network.shift(ascended(network, network.bound() - best))
    network.absorb()
    assert set(network.tables) == {(1, 2)}


@pytest.mark.parametrize("seed", range(6))
def test_a_writer_that_drops_too_much_proves_nothing_false(monkeypatch, nothing_is_cheap, seed):
    case = lattice(seed)
    result = solved(case, "auto", seed=seed)
    sizes = [case.model.domain[name].n_states for name in case.variables]
    states = np.unravel_index(int(np.argsort(case.log_values)[-2]), sizes)
    second = {n: case.model.domain[n].states[int(a)] for n, a in zip(case.variables, states, strict=True)}
    drop = Script.drop

    def careless(self, part, each):
        return drop(self, part, {v: found - 20.0 for v, found in each.items()})

    monkeypatch.setattr(Script, "drop", careless)
    checked = reduced_network(case.model, make_query(case.model.domain, case.variables, case.evidence))
    second_value = float(np.sort(case.log_values)[-2]) + result.log_evidence
    script = Script(second_value, Control.starting_now(600.0), 10**8, quick_entries=0.0, most_entries=0.0)
    arrays = step_proofs.steps_of(checked, boxes_beside(checked, [states]), script)
    assert arrays is not None, "the broken writer wrote nothing, so that this tests nothing"
    meta = {**result.proof.meta, "method": "steps", "answer": second}
    meta["claim"] = {**meta["claim"], "log_joint": None}
    given = {"log_weights": result.proof.arrays["log_weights"], "order": np.zeros(0, np.int32)}
    proof = Proof(meta, {**given, **arrays})
    assert not case.is_true(proof)
    assert "is dropped at" in cm.check(case.model, proof).message


@pytest.mark.slow
def test_a_grid_too_wide_to_be_eliminated_is_proved_by_steps(monkeypatch):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 600.0)  # however busy the machine is
    n, rng = 24, np.random.default_rng(3)
    factors = [Factor((i,), np.exp(rng.normal(0.0, 1.0, 2))) for i in range(n * n)]
    for i in range(n * n):
        for j in [i + 1] * (i % n < n - 1) + [i + n] * (i < n * (n - 1)):
            factors.append(Factor((i, j), np.exp(rng.normal(0.0, 0.6, (2, 2)))))
    model = MarkovNetwork(cm.Domain.of_sizes([2] * (n * n)), factors)
    result = cm.map_query(model, epsilon=0, delta=0, rng=0, proof=True)
    assert result.proof.meta["method"] == "steps"
    assert cm.check(model, result.proof).message.startswith("accepted: no assignment is more probable")
    assert "did not end within" in cm.check(model, result.proof, time_limit=1e-6).message
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 2.0)
    small = cm.map_query(model, epsilon=0, delta=0, rng=0, proof=True, max_proof=1000)
    assert small.proof is None
    assert small.no_proof


@pytest.mark.parametrize("attracts", [False, True])
def test_flows_shift_costs_to_the_lowest_bound(attracts):
    rng, n = np.random.default_rng(11), 8
    factors = [Factor.from_log((v,), rng.normal(size=2)) for v in range(n * n)]
    for v in range(n * n):
        for u in [v + 1] * (v % n < n - 1) + [v + n] * (v < n * (n - 1)):
            pull = abs(rng.normal()) if attracts else rng.normal()
            factors.append(Factor.from_log((v, u), [[pull, -pull], [-pull, pull]]))
    model = MarkovNetwork(cm.Domain.of_sizes([2] * (n * n)), factors)
    best = cm.map_query(model, epsilon=0, delta=0, rng=0).log_joint
    network = PlainNetwork.of(reduced_network(model, make_query(model.domain)))
    before, shifts = network.bound(), cut(network)
    assert shifts is not None
    network.shift(shifts)
    assert best - 1e-9 <= network.bound() < before
    if attracts:
        assert network.bound() == pytest.approx(best, abs=1e-9)
    else:
        swept = PlainNetwork.of(reduced_network(model, make_query(model.domain)))
        swept.shift(ascended(swept, before - best))
        assert network.bound() <= swept.bound() + 1e-9


def test_flows_leave_zeros_and_small_networks_to_sweeps():
    assert cut(network_of(lattice(1))) is None
    assert cut(network_of(everything(1))) is None
