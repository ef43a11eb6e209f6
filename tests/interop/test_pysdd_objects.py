"""PySDD: weighted counts of all models, by enumeration and by its own counter."""

import itertools
import math

import numpy as np
import pytest

import certimap as cm

sdd = pytest.importorskip("pysdd.sdd")


def formula(seed: int, n: int = 6):
    """Return a manager and a random formula of it in clauses."""
    rng = np.random.default_rng(seed)
    manager = sdd.SddManager(var_count=n)
    node = manager.true()
    clauses = []
    for _ in range(5):
        clause = [int(v) * int(s) for v, s in zip(rng.permutation(n)[:3] + 1, rng.choice([-1, 1], 3), strict=True)]
        clauses.append(clause)
        part = manager.false()
        for literal in clause:
            part = part | manager.literal(literal)
        node = node & part
    return manager, node, clauses


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("in_logs", [True, False])
def test_weighted_models(seed, in_logs):
    _, node, clauses = formula(seed)
    rng = np.random.default_rng(seed)
    weights = {literal: float(rng.random()) for v in range(1, 7) for literal in (-v, v)}
    counter = node.wmc(log_mode=in_logs)
    for literal, weight in weights.items():
        counter.set_literal_weight(literal, math.log(weight) if in_logs else weight)
    ours = cm.from_object(counter)
    count = counter.propagate()
    assert cm.log_evidence(ours) == pytest.approx(count if in_logs else math.log(count))
    worth = {}
    for world in itertools.product((False, True), repeat=6):
        holds = all(any(world[abs(x) - 1] == (x > 0) for x in clause) for clause in clauses)
        worth[world] = math.prod(weights[v if yes else -v] for v, yes in enumerate(world, 1)) if holds else 0.0
    best = max(worth, key=lambda world: worth[world])
    result = cm.map_query(counter, epsilon=0)
    assert tuple(result.assignment.values()) == best
    assert result.log_joint == pytest.approx(math.log(worth[best]))


def test_a_node_counts_its_models():
    _, node, _ = formula(1)
    assert math.exp(cm.log_evidence(node)) == pytest.approx(node.global_model_count())


def test_constants():
    manager = sdd.SddManager(var_count=3)
    assert cm.log_evidence(manager.true()) == pytest.approx(math.log(8))
    with pytest.raises(cm.ModelError, match="is false"):
        cm.from_object(manager.false())
    with pytest.raises(cm.ModelError, match="SddManager cannot be read"):
        cm.from_object(manager)
