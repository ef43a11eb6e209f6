"""Evidence intervals are closed: where one ends at the end of a leaf's support, the density there counts."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ImpossibleEvidence

CASES = [
    ([("laplace", -0.7, 1.0), ("exponential", 1.0)], (-1.0, 0.0), 0.0),
    ([("uniform", 0.2, 1.2), ("uniform", 1.0, 2.0)], (0.0, 1.0), 1.0),
    ([("exponential", 1.0), ("truncated_gaussian", 1.1, 1.0, 0.1, 2.1)], (-1.9, 0.1), 0.1),
    ([("gaussian", 3.0, 1.0), ("uniform", 0.0, 0.5)], (0.5, 4.0), 0.5),
    ([("gaussian", 0.0, 1e-3), ("uniform", 1.0, 1.0 + 1e-9)], (0.9, 1.0), 1.0),
]


def mixture(leaves, n=1):
    builder = cm.CircuitBuilder(cm.Domain([cm.Real(f"x{d}") for d in range(n)]))
    parts = []
    for kind, *params in leaves:
        nodes = [builder.real(kind, d, *params) for d in range(n)]
        parts.append(builder.product(nodes) if n > 1 else nodes[0])
    builder.sum(parts, [-math.log(len(parts))] * len(parts))
    return builder.build()


@pytest.mark.parametrize("solver", ["auto", "frontier", "soo"])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("leaves", "ends", "where"), CASES)
def test_the_end_counts_for_solver_oracle_and_checker(leaves, ends, where, n, solver):
    model = mixture(leaves, n)
    evidence = {f"x{d}": ends for d in range(n)}
    posterior = cm.condition(model, None, evidence)
    whole = cm.condition(model)
    points = np.random.default_rng(0).uniform(*ends, (50, n))
    points = np.concatenate([points, np.full((1, n), where)])
    shift = posterior.facts.log_evidence
    assert posterior.log_prob(points) + shift == pytest.approx(whole.log_prob(points), abs=1e-9)
    result = cm.map_query(
        model, None, evidence, solver=solver, epsilon=0.01, delta=0.0, rng=0, max_nodes=3000, proof=True
    )
    assert result.log_joint_upper_bound >= whole.log_prob(np.full((1, n), where))[0] - 1e-12
    if solver != "soo":
        assert result.log_joint >= whole.log_prob(points).max() - 0.011
        assert n == 2 or list(result.assignment.values()) == [where]
        assert cm.check(model, result.proof)


def test_an_interval_that_only_touches_the_support_is_impossible():
    with pytest.raises(ImpossibleEvidence):
        cm.condition(mixture([("exponential", 1.0)]), None, {"x0": (-1.0, 0.0)})
    model = mixture([("exponential", 1.0), ("gaussian", 0.0, 1.0)], 2)
    hidden = cm.condition(model, ["x1"], {"x0": (-1.0, 0.0)})
    only = cm.condition(mixture([("gaussian", 0.0, 1.0)], 2), ["x1"], {"x0": (-1.0, 0.0)})
    points = np.linspace(-2.0, 2.0, 9)[:, None]
    assert hidden.log_prob(points) == pytest.approx(only.log_prob(points))


def test_masses_and_draws_have_nothing_of_an_end():
    posterior = cm.condition(mixture(CASES[0][0]), None, {"x0": (-1.0, 0.0)})
    draws = posterior.sample(2000, np.random.default_rng(0))
    assert np.all((draws >= -1.0) & (draws < 0.0))
    edges = np.linspace(-1.0, 0.0, 5)
    boxes = cm.core.box.Boxes.full(posterior.domain, 4)
    boxes.low[:, 0], boxes.high[:, 0] = edges[:-1], edges[1:]
    assert np.exp(posterior.log_mass(boxes)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("solver", ["max_product", "independent", "budget", "auto", "frontier"])
@pytest.mark.parametrize("ends", [(4.0, 4.5), (3.5, 4.0), (0.0, 0.5), (4.0, 11.3)])
def test_proofs_of_counts_in_intervals(solver, ends):
    """Of one number, and of several whose ends are numbers themselves."""
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Categorical("c", (0, 1))]))
    parts = [
        builder.product([builder.real("poisson", 0, mean), builder.categorical(1, np.log([p, 1.0 - p]).tolist())])
        for mean, p in ((4.0, 0.3), (9.0, 0.8))
    ]
    builder.sum(parts, np.log([0.4, 0.6]).tolist())
    model = builder.build()
    result = cm.map_query(model, None, {"x": ends}, solver=solver, epsilon=0.3, delta=0.0, rng=0, proof=True)
    if result.certificate.kind != "none":
        assert cm.check(model, result.proof)
    else:
        assert result.no_proof


def test_a_part_that_excludes_the_evidence_adds_no_rounding_error():
    """A guess on the circuit as it is leaves out the leaf that excludes the value, as conditioning does."""
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical("c", (0, 1)), cm.Real("x")]))
    parts = [((0.75, 0.25), (0.0, 1.0)), ((0.125, 0.875), (2.0, 3.0))]
    build.sum(
        [build.product([build.categorical(0, probs=p), build.real("uniform", 1, *ends)]) for p, ends in parts],
        weights=(0.5, 0.5),
    )
    result = cm.map_query(build.build(), ["c"], {"x": 2.0}, solver="guess", progress=False)
    assert result.assignment == {"c": 1}
    assert result.log_prob == pytest.approx(np.log(0.875), abs=1e-12)
