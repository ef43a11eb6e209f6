"""Circuits of thousands of variables, whose values are far below float64, against a plain pass in logs."""

from __future__ import annotations

import numpy as np
import pytest

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.plan import Plan
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap_lab.bench.random_circuits import random_learnspn

REL = 1e-12


def log_sum(terms: list[np.ndarray]) -> np.ndarray:
    stacked = np.array(terms)
    top = stacked.max(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(top > -np.inf, top + np.log(np.exp(stacked - np.where(top > -np.inf, top, 0)).sum(0)), top)


def log_pass(plan: Plan, mask: np.ndarray, *, bound: bool) -> np.ndarray:
    """The root's log mass (or bound) in boxes, shape (batch,), node by node in logs."""
    values: list[np.ndarray] = []
    offsets = plan.domain.offsets
    for node in range(plan.n_nodes):
        edges = range(plan.child_ptr[node], plan.child_ptr[node + 1])
        if plan.is_sum[node]:
            terms = [plan.log_weights[e] + values[plan.children[e]] for e in edges]
            values.append(np.max(terms, axis=0) if bound and plan.decides[node] >= 0 else log_sum(terms))
            continue
        value = np.zeros(len(mask))
        for leaf in range(plan.leaf_ptr[node], plan.leaf_ptr[node + 1]):
            v, start = plan.leaf_var[leaf], plan.leaf_start[leaf]
            logs = plan.log_tables[start : start + offsets[v + 1] - offsets[v]]
            inside = np.where(mask[:, offsets[v] : offsets[v + 1]], logs, -np.inf)
            value = value + (inside.max(axis=1) if bound else log_sum(list(inside.T)))
        for e in edges:
            value = value + values[plan.children[e]]
        values.append(value)
    return values[-1]


def whole(circuit: Circuit) -> CircuitPosterior:
    return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))


def uneven_mixture(n: int) -> Circuit:
    """Two components that disagree on every variable, shared sums below, and one that is e^-900 as likely."""
    builder = CircuitBuilder(Domain.of_sizes([2, 3] * (n // 2)))
    shared = []
    for v in range(n):
        size = 2 + v % 2
        one = builder.categorical(v, log_weights=[-1e-3, -7.0, -9.0][:size])
        other = builder.categorical(v, log_weights=[-300.0 if v % 7 == 0 else -6.0, -2e-3, -500.0][:size])
        shared.append(
            [
                builder.sum([one, other], log_weights=[-0.1, -2.3]),
                builder.sum([one, other], log_weights=[-800.0, 0.0]),
            ]
        )
    parts = [builder.product([pair[k] for pair in shared]) for k in (0, 1)]
    tail = builder.product([pair[v % 2] for v, pair in enumerate(shared)])
    builder.sum([*parts, tail], log_weights=[-0.5, -0.9, -900.0])
    return builder.build(normalised=False)


CIRCUITS = {
    "tree": lambda: random_learnspn(2500, 9000),
    "four states": lambda: random_learnspn(800, 4000, n_states=4),
    "uneven mixture": lambda: uneven_mixture(1000),
}


@pytest.mark.parametrize("name", CIRCUITS)
def test_deep_circuits_agree_with_logs(name: str) -> None:
    posterior = whole(CIRCUITS[name]())
    domain, rng = posterior.domain, np.random.default_rng(3)
    points = posterior.sample(20, rng)
    points[10:] = rng.integers(domain.n_states, size=(10, len(domain)))  # far below what is drawn
    singles = Boxes.of_points(domain, points)
    wider = singles.mask | (rng.random(singles.mask.shape) < 0.3)
    exact = log_pass(posterior.plan, singles.mask, bound=False)
    assert exact.min() < -1400
    assert posterior.log_prob(points) == pytest.approx(exact, rel=REL)
    for boxes in (singles, Boxes(domain, wider)):
        masses = log_pass(posterior.plan, boxes.mask, bound=False)
        bounds = log_pass(posterior.plan, boxes.mask, bound=True)
        assert posterior.log_mass(boxes) == pytest.approx(masses, rel=REL, abs=1e-10)
        answers = answers_in(posterior, boxes)
        got = answers.log_bound
        assert np.all(got >= bounds - REL * np.abs(bounds))
        assert got == pytest.approx(bounds, rel=1e-11, abs=1e-9)
        each_mass, each_bound = posterior.log_mass_each(boxes), answers.each_bound
        for v in rng.choice(len(domain), 6, replace=False):
            for state in range(int(domain.n_states[v])):
                column = int(domain.offsets[v]) + state
                held = boxes.mask.copy()
                held[:, domain.offsets[v] : domain.offsets[v + 1]] = False
                held[:, column] = True
                masses = log_pass(posterior.plan, held, bound=False)
                assert each_mass[:, column] == pytest.approx(masses, rel=REL, abs=1e-10)
                least = log_pass(posterior.plan, held, bound=True) - 1e-9
                assert np.all(each_bound[:, column] >= np.where(boxes.mask[:, column], least, -np.inf))


@pytest.mark.parametrize("name", CIRCUITS)
def test_a_row_is_rounded_alike_in_any_company(name: str) -> None:
    """Counts are powers of two: whether a block uses them for other rows changes no bit."""
    posterior = whole(CIRCUITS[name]())
    rng = np.random.default_rng(5)
    points = posterior.sample(24, rng)
    points[12:] = rng.integers(posterior.domain.n_states, size=(12, len(posterior.domain)))
    together = posterior.log_prob(points)
    assert np.array_equal(together, np.concatenate([posterior.log_prob(points[k : k + 1]) for k in range(24)]))


def test_real_leaves_in_deep_circuits() -> None:
    """A thousand Gaussians, some observed far out, beside categorical leaves."""
    n = 1000
    domain = Domain([Categorical("c", (0, 1, 2)), *(Real(f"x{i}") for i in range(n))])
    builder = CircuitBuilder(domain)
    rng = np.random.default_rng(1)
    means, sds = rng.normal(0, 1, (3, n)), np.exp(rng.normal(0, 2, (3, n)))
    parts = [
        builder.product(
            [builder.indicator(0, s), *(builder.gaussian(1 + i, means[s, i], sds[s, i]) for i in range(n))]
        )
        for s in range(3)
    ]
    builder.sum(parts, log_weights=np.log([0.2, 0.3, 0.5]).tolist())
    posterior = whole(builder.build(normalised=False))
    values = rng.normal(0, 1, (4, n)) * np.where(rng.random((4, n)) < 0.1, 60.0, 1.0)
    for s in range(3):
        points = np.column_stack([np.full(4, float(s)), values])
        z = (values - means[s]) / sds[s]
        exact = np.log([0.2, 0.3, 0.5][s]) - (0.5 * z**2 + np.log(sds[s]) + 0.5 * np.log(2 * np.pi)).sum(axis=1)
        assert posterior.log_prob(points) == pytest.approx(exact, rel=REL)
        boxes = Boxes.of_points(domain, points)
        assert np.all(answers_in(posterior, boxes).log_bound >= exact - REL * np.abs(exact))


def test_draws_inside_boxes_of_tiny_mass() -> None:
    """Draws in a box of mass e^-1500 and less follow the posterior there."""
    posterior = whole(uneven_mixture(600))
    domain = posterior.domain
    mask = np.zeros((1, domain.total_states), np.bool_)
    mask[0, domain.offsets[:-1] + np.where(np.arange(len(domain)) % 2, 2, 0)] = True  # every other state is rare
    mask[0, domain.offsets[:-1][:3] + 1] = True  # three variables free
    boxes = Boxes(domain, mask)
    assert posterior.log_mass(boxes)[0] < -500
    draws = posterior.sample(4000, np.random.default_rng(2), boxes=boxes)
    distinct, counts = np.unique(draws, axis=0, return_counts=True)
    shares = np.exp(posterior.log_prob(distinct) - posterior.log_mass(boxes)[0])
    assert shares.sum() == pytest.approx(1.0, abs=0.01)
    assert np.all(np.abs(counts / 4000 - shares) < 5 * np.sqrt(shares / 4000) + 1e-3)
