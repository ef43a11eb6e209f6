"""Proofs by steps that eliminate copies, evaluate by an order, and lose states on a copy: true, or rejected."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.checker import Proof
from certimap.checker.models import Rejected
from certimap.checker.network import PlainNetwork, _power_sum, boxes_beside, parts_of, value_at
from certimap.checker.numbers import log_sum
from certimap.checker.steps import GROUP, _Reader
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.errors import ParseError
from certimap.networks import Factor, MarkovNetwork
from certimap.networks.relaxation.split_tree import nuisance_first
from certimap.proofs import reduced_network
from certimap.proofs.relaxations import Relaxed, Sums, covered, order_of_values, problem_of
from certimap.proofs.script import Script
from certimap.proofs.steps import steps_of
from certimap_lab.proofs import random_case, solved


def reduced(case):
    return reduced_network(case.model, make_query(case.model.domain, case.variables, case.evidence))


def values_of(case, checked):
    """Return ln p(q, e) of every point, one axis a query variable."""
    log_evidence = cm.map_query(case.model, case.variables, case.evidence, rng=0).log_evidence
    return case.log_values.reshape([checked.sizes[v] for v in checked.queried]) + log_evidence


@pytest.mark.parametrize("bits", [0.0, 2.0, 22.0])
@pytest.mark.parametrize("seed", [1, 3, 5, 7, 9])
def test_the_bounds_of_copies_are_true(seed, bits):
    case, rng = random_case(seed, hard=seed % 4 == 1), np.random.default_rng(seed)
    checked = reduced(case)
    values = values_of(case, checked)
    whole = PlainNetwork.of(checked)
    found = Relaxed.of(whole, nuisance_first(problem_of(whole), bits), bits)
    plain = whole.copy()
    found.eliminate(Script(math.inf, Control(), 10**8), plain)
    assert plain.bound() == pytest.approx(found.tree.bound(), abs=1e-9)
    found.tree.shifts[:] += rng.normal(0.0, 0.5, len(found.tree.shifts))
    for _ in range(10):
        box = [rng.random(k) < 0.7 for k in values.shape]
        if all(b.any() for b in box):
            (part,) = parts_of(checked, [box])
            found.eliminate(Script(math.inf, Control(), 10**8), part)
            assert part.bound() >= values[np.ix_(*box)].max() - 1e-12


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_groups_of_any_kind_raise_values_only(seed):
    """Variables go in any order, in any groups, by any shifts and weights."""
    rng = np.random.default_rng(seed)
    case = random_case(1 + 2 * (seed % 6))
    checked = reduced(case)
    values = values_of(case, checked)
    network = PlainNetwork.of(checked)
    for v in rng.permutation(sorted(network.sizes)).tolist():
        n_tables = len(network.near[v])
        groups = rng.integers(min(int(rng.integers(1, 4)), n_tables + 1), size=n_tables).tolist()
        n = max(groups, default=0) + 1
        weights = rng.dirichlet(np.ones(n)) if v in network.hidden else np.zeros(0)
        shifts = rng.normal(0.0, 2.0, ((n - 1), network.sizes[v]))
        numbers = np.concatenate([shifts.ravel(), weights])
        steps = np.array(groups, np.int32)
        given_ = _Reader({"steps": steps, "shifts": numbers, "kept": np.zeros(0, np.uint8)})
        network.eliminate(v, *given_.grouped(network, v))
    assert network.bound() >= values.max() - 1e-12


@pytest.mark.parametrize(
    "weights",
    [*([x, 1.0] for x in (-1.0, -1e308, 0.0, math.nan, math.inf, 1e-310, 1e-13)), [-1.0, 2.0], [0.0, 5e-324]],
)
def test_weights_that_are_none_are_rejected(weights):
    case = random_case(3, hard=True)
    network = PlainNetwork.of(reduced(case))
    v = next(v for v in sorted(network.hidden) if len(network.near[v]) > 1)
    groups = [0] + [1] * (len(network.near[v]) - 1)
    numbers = np.concatenate([np.zeros(network.sizes[v]), weights])
    with pytest.raises(Rejected, match=r"weights|a shift is no number"):
        _Reader({"steps": np.array(groups), "shifts": numbers, "kept": np.zeros(0, np.uint8)}).grouped(network, v)


def test_weights_add_up_to_one_whatever_the_file_says():
    case = random_case(3, hard=True)
    network = PlainNetwork.of(reduced(case))
    v = next(v for v in sorted(network.hidden) if len(network.near[v]) > 1)
    groups = [0] + [1] * (len(network.near[v]) - 1)
    for scale in (1e-6, 1.0, 1e6):
        numbers = np.concatenate([np.zeros(network.sizes[v]), [0.3 * scale, 0.7 * scale]])
        found = _Reader({"steps": np.array(groups), "shifts": numbers, "kept": np.zeros(0, np.uint8)})
        _, _, weights = found.grouped(network, v)
        assert weights == pytest.approx([0.3, 0.7])
        assert math.fsum(weights) >= 1.0


@pytest.mark.parametrize("groups", [[-1, 0], [0, 5], [3, 0]])
def test_a_table_is_in_one_group_or_the_proof_is_rejected(groups):
    case = random_case(3, hard=True)
    network = PlainNetwork.of(reduced(case))
    v = next(v for v in sorted(network.sizes) if len(network.near[v]) == 2)
    arrays = {"steps": np.array(groups), "shifts": np.zeros(0), "kept": np.zeros(0, np.uint8)}
    with pytest.raises(Rejected, match=r"groups that are none|ends before"):
        _Reader(arrays).grouped(network, v)


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.01, 1e-12])
def test_power_sums_round_upwards_and_lose_nothing(weight):
    logs = np.array([[-5.0, -5.0, -700.0], [-1e4, -1e4 - 1e-9, -1e300], [-np.inf, -np.inf, -np.inf]])
    found = _power_sum(logs.T, weight, 1)
    tops = logs.max(axis=1)
    with np.errstate(over="ignore"):
        exact = tops[:2] + weight * log_sum((logs - tops[:, None])[:2] / weight)
    assert np.all(found[:2] >= tops[:2])
    assert found[:2] == pytest.approx(exact, rel=1e-12)
    assert found[2] == -np.inf


@pytest.mark.parametrize("seed", [1, 3, 5, 7, 9, 11])
def test_values_of_points_are_rounded_down_in_any_order(seed):
    case, rng = random_case(seed), np.random.default_rng(seed)
    checked = reduced(case)
    values = values_of(case, checked)
    hidden = order_of_values(checked, Control())
    assert set(hidden) == {v for t in checked.tables for v in t.scope} - set(checked.queried)
    for order in (hidden, [], rng.permutation(hidden).tolist(), [*hidden, *hidden, 99, -1]):
        point = [int(rng.integers(k)) for k in values.shape]
        found = value_at(checked, point, -1, order)
        exact = float(values[tuple(point)])
        assert found <= exact + 1e-12
        assert found == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("seed", range(1, 24, 2))
def test_states_that_a_copy_loses_hold_nothing_above_the_threshold(seed):
    """Whatever is eliminated in groups on the copy, what goes from the network itself is worth no more."""
    case = random_case(seed, hard=True)
    checked = reduced(case)
    values = values_of(case, checked)
    threshold = float(values.max()) + 1e-9
    network = PlainNetwork.of(checked)
    script = Script(threshold, Control(), 10**8)
    found = Relaxed.of(network, nuisance_first(problem_of(network)), 2.0)
    tried = script.tried(network)
    found.eliminate(script, tried, hidden_only=True)
    _, each = tried.bounds()
    left = script.drop(tried, each)
    if left is None:
        return
    back = script.back(network, left)
    kept = values[np.ix_(*(back.states[v] for v in checked.queried))]
    assert kept.max() == values.max()


def test_answers_of_a_list_are_proved_beside_each_other():
    case = random_case(3, hard=True)
    checked = reduced(case)
    values = values_of(case, checked)
    order = np.argsort(values, axis=None)[::-1]
    answers = [[int(k) for k in np.unravel_index(at, values.shape)] for at in order[:3]]
    boxes = boxes_beside(checked, answers)
    covers = np.zeros(values.shape, np.int64)
    for box in boxes:
        covers[np.ix_(*box)] += 1
    assert sorted(np.argwhere(covers == 0).tolist()) == sorted(answers)
    assert covers.max() == 1
    third = float(np.sort(values, axis=None)[-3])
    for found in (
        steps_of(checked, boxes, Script(third + 1e-9, Control(), 10**8)),
        covered(checked, boxes, Script(third + 1e-9, Control(), 10**8, table_bits=(2.0,)))[0],
    ):
        names = [dict(zip(case.variables, a, strict=True)) for a in answers]
        labels = [{n: case.model.domain[n].states[a] for n, a in row.items()} for row in names]
        result = solved(case, "auto", seed=0)
        claim = {**result.proof.meta["claim"], "log_joint": None}
        meta = {**result.proof.meta, "method": "steps", "claim": claim, "answer": labels[0], "others": labels[1:]}
        given_ = {"log_weights": result.proof.arrays["log_weights"], "order": np.zeros(0, np.int32)}
        assert cm.check(case.model, Proof(meta, {**given_, **found})).accepted
        fewer = {**meta, "others": labels[2:]}
        assert not cm.check(case.model, Proof(fewer, {**given_, **found})).accepted


def test_a_plan_splits_until_hidden_variables_fit(monkeypatch):
    monkeypatch.setattr("certimap.proofs.relaxations.HANDY_BITS", 3.0)
    model = grid(5, 1.0)
    names = list(model.domain.names[::3])
    result = cm.map_query(model, names, epsilon=0, delta=0, rng=0)
    checked = reduced_network(model, make_query(model.domain, names, {}))
    whole = PlainNetwork.of(checked)
    hidden = order_of_values(checked, Control())
    plan = Sums.of(whole, [hidden], 30.0)
    assert plan.splits
    assert Sums.of(whole, [hidden], 3.0) is None
    point = [model.domain[n].states.index(result.assignment[n]) for n in names]
    script = Script(result.log_joint + 1e-9, Control(), 10**8, sum_bits=-1.0, table_bits=(0.0,))
    arrays = steps_of(checked, boxes_beside(checked, [point]), script)
    assert arrays is not None


def test_proofs_of_the_first_version_are_refused_by_a_sentence(tmp_path, monkeypatch):
    case = random_case(3)
    monkeypatch.setattr("certimap.checker.file.VERSION", 1)
    solved(case, "set_elimination").proof.write(tmp_path / "old.npz")
    monkeypatch.undo()
    with pytest.raises(ParseError, match="of the version 1; expected 2: have it written anew"):
        cm.check(case.model, tmp_path / "old.npz")


@pytest.fixture
def no_steps(monkeypatch):
    """Leave wide networks to relaxations."""
    monkeypatch.setattr("certimap.proofs.steps.steps_of", lambda *given, **more: None)


def grid(n, strength):
    rng = np.random.default_rng(3)
    factors = [Factor((i,), np.exp(rng.normal(0.0, 1.0, 2))) for i in range(n * n)]
    for i in range(n * n):
        for j in [i + 1] * (i % n < n - 1) + [i + n] * (i < n * (n - 1)):
            factors.append(Factor((i, j), np.exp(rng.normal(0.0, strength, (2, 2)))))
    return MarkovNetwork(cm.Domain.of_sizes([2] * (n * n)), factors)


@pytest.mark.slow
def test_a_grid_too_wide_to_be_eliminated_is_proved_or_bounded_in_time(monkeypatch, no_steps):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 5.0)
    monkeypatch.setattr("certimap.proofs.script.TABLE_BITS", (10.0,))
    model = grid(24, 0.4)
    result = cm.map_query(model, epsilon=0, delta=0, rng=0, proof=True)
    assert GROUP in result.proof.arrays["steps"]
    assert cm.check(model, result.proof).accepted


@pytest.mark.slow
def test_what_is_not_certified_gets_a_bound(monkeypatch):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 1.0)
    model = grid(24, 1.5)
    names = model.domain.names[::5]
    result = cm.map_query(model, names, epsilon=0, delta=0, rng=0, max_nodes=1, proof=True, solver="wmb")
    assert not result.certified
    claim = result.proof.meta["claim"]
    assert claim["log_upper"] >= result.log_joint
    verdict = cm.check(model, result.proof)
    assert verdict.message.startswith("accepted: no assignment is worth more than ln p(q, e) = ")
    lower = {**result.proof.meta, "claim": {**claim, "log_upper": claim["log_upper"] - 1e-6}}
    assert not cm.check(model, Proof(lower, result.proof.arrays)).accepted


def test_what_no_relaxation_closes_is_proved_to_a_bound_and_no_further(monkeypatch, no_steps):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 600.0)
    monkeypatch.setattr("certimap.proofs.script.TABLE_BITS", (3.0,))
    monkeypatch.setattr("certimap.proofs.relaxations.STEPS", 1)
    monkeypatch.setattr("certimap.proofs.relaxations._closed", lambda *given: False)
    model = grid(24, 0.4)
    result = cm.map_query(model, epsilon=0, delta=0, rng=0, proof=True)
    assert result.certificate.kind == "exact"
    assert result.proof.meta["claim"]["kind"] == "bound"
    assert "of a bound alone" in result.no_proof
    assert "Proof: it is of a bound alone" in str(result)
    verdict = cm.check(model, result.proof)
    assert verdict.message.startswith("accepted: no assignment is worth more than")
    assert verdict.unchecked == ("the solver's certificate (exact, epsilon 0): the file proves a bound alone",)
    claim = {**result.proof.meta["claim"], "log_upper": result.log_joint - 1e-6}
    assert not cm.check(model, Proof({**result.proof.meta, "claim": claim}, result.proof.arrays))


def test_a_bound_is_on_the_answers_of_a_list_too():
    """With the two best assignments cut out, a bound on the others alone passed for one on all."""
    domain = cm.Domain([cm.Categorical(name, ("no", "yes")) for name in "abc"])
    tables = [cm.Factor((k,), np.array([0.6, 0.4 - 0.1 * k])) for k in range(3)]
    model = cm.MarkovNetwork(domain, [*tables, cm.Factor((0, 1), np.ones((2, 2)))])
    found = cm.map_query(model, epsilon=0, delta=0, top_k=2, proof=True)
    points = [[domain[n].index(label) for n, label in answer.items()] for answer, _ in found.top]
    checked = reduced_network(model, make_query(domain))
    for boxes, log_upper, is_true in (
        (boxes_beside(checked, points), found.top[1][1] + found.log_joint - found.log_prob - 0.01, False),
        (boxes_beside(checked, points[:1]), found.log_joint + 0.01, True),
    ):
        script = Script(log_upper, Control.starting_now(60.0), 10**6)
        claim = {**found.proof.meta["claim"], "kind": "bound", "log_upper": log_upper}
        arrays = steps_of(checked, boxes, script)
        given = {"log_weights": found.proof.arrays["log_weights"], "order": np.zeros(0, np.int32), **arrays}
        meta = {**found.proof.meta, "method": "steps", "claim": claim}
        assert cm.check(model, Proof(meta, given)).accepted == is_true
