"""Building a tree of regions looks at the clock before every large table, whichever way it is built."""

from __future__ import annotations

import time

import numpy as np
import pytest

import certimap as cm
from certimap.conversions.choose import condition_quickly
from certimap.conversions.from_networks import tree_of_reduced
from certimap.core.control import Control, TimeUp, WorkClock
from certimap.core.query import make_query
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.networks.reduction import reduce_network


class Counting(Control):
    """Counts how often it is looked at; the time is up at look number `last`."""

    def __init__(self, last=10**9):
        super().__init__()
        self.n_looks, self.last = 0, last

    def check(self, doing):
        self.n_looks += 1
        if self.n_looks >= self.last:
            raise TimeUp(doing)


def grid(width, length):
    """A grid whose tables hold 2^(width + 1) entries, one per column and row."""
    rng = np.random.default_rng(3)
    index = np.arange(width * length).reshape(length, width)
    pairs = [*zip(index[:, :-1].ravel(), index[:, 1:].ravel(), strict=True)]
    pairs += [*zip(index[:-1].ravel(), index[1:].ravel(), strict=True)]
    factors = [cm.Factor((int(a), int(b)), rng.random((2, 2)) + 0.1) for a, b in pairs]
    return cm.MarkovNetwork(cm.Domain.of_sizes([2] * index.size), factors)


def hidden(n, k, seed=0):
    rng = np.random.default_rng(seed)
    parent = np.array([-1, *(rng.integers(0, i) for i in range(1, n))])
    return HiddenChowLiuModel(
        cm.Domain.of_sizes([3] * n),
        parent,
        rng.dirichlet(np.ones(k)),
        rng.dirichlet(np.ones(k), (n, k)),
        [rng.dirichlet(np.ones(3), k) for _ in range(n)],
    )


def build_of_network(control):
    network = grid(16, 4)
    query = make_query(network.domain)
    reduced = reduce_network(network, query)
    order = range(len(network.domain))  # row after row: every table but the last ones is large
    tree_of_reduced(reduced, query, order, max_table=2**20, workers=1, pace=WorkClock(control, "building", 1e-9))


def build_of_hidden_tree(control):
    model = hidden(12, 320)
    transitions, emissions, prior = model.wide_tables
    cm.trees.bucket_tree.BucketTreePosterior.from_tree(
        model.parent,
        transitions,
        {int(model.order[0]): prior},
        np.arange(12),
        emissions,
        make_query(model.domain),
        pace=WorkClock(control, "building", 1e-9),
    )


@pytest.mark.parametrize(("build", "n_large"), [(build_of_network, 40), (build_of_hidden_tree, 11)])
def test_the_clock_is_looked_at_for_every_large_table_in_every_stage(build, n_large):
    control = Counting()
    build(control)
    assert control.n_looks >= 3 * n_large
    for last in np.linspace(1, control.n_looks, 6).astype(int).tolist():
        with pytest.raises(TimeUp, match="building"):
            build(Counting(last))


def test_small_pieces_are_counted_together_and_their_pace_is_learned(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    control = Counting()
    control.deadline = 10.0
    pace = WorkClock(control, "working", 1e-9)
    for _ in range(1000):
        pace.ahead(1000)
        now[0] += 0.001  # a microsecond per unit
    assert 8 <= control.n_looks <= 12
    pace.ahead(5_000_000)  # five seconds more: done at 6
    now[0] += 5.0
    with pytest.raises(TimeUp, match="working"):
        pace.ahead(6_000_000)


def test_a_hidden_tree_that_cannot_be_conditioned_in_time_is_guessed():
    model = hidden(40, 60)
    result = cm.map_query(model, model.domain.names[::2], {"1": 2}, time_limit=0.0, rng=0)
    assert (result.solver, result.status) == ("guess", "time_limit")
    assert "hidden Chow-Liu tree" in result.note
    exact = cm.condition(model, model.domain.names[::2], {"1": 2})
    point = exact.domain.encode(result.assignment)[None]
    assert result.log_prob == pytest.approx(float(exact.log_prob(point)[0]), abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_a_guess_has_its_own_probability_and_evidence_its_weight(seed):
    model = hidden(6, 4, seed)
    evidence = {"1": 1, "3": [0.2, 0.0, 0.7], "4": {0, 2}, "5": {"likelihood": [0.5, 0.1, 0.3]}}
    asked = ["0", "2", "4"] if seed % 2 else ["0", "2", "3", "5"]
    query = make_query(model.domain, asked, evidence)
    guessed, exact = condition_quickly(model, query), cm.condition(model, asked, evidence)
    shape = tuple(guessed.domain.n_states.tolist())
    points = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), axis=1)
    values = exact.log_prob(points)
    np.testing.assert_allclose(guessed.log_prob(points), values, atol=1e-12)
    assert guessed.facts.log_evidence == pytest.approx(exact.log_evidence, abs=1e-12)
    best = float(exact.log_prob(guessed.guess())[0])
    assert best > np.median(values[np.isfinite(values)])


def test_entries_far_apart_are_not_lost():
    model = hidden(3, 2)
    transition, emission = model.transition.copy(), [e.copy() for e in model.emission]
    transition[1] = [[1.0, 0.0], [1e-300, 1.0 - 1e-300]]
    emission[1][0] = [1e-300, 0.5, 0.5]
    emission[1][1] = [1.0, 0.0, 0.0]
    far = HiddenChowLiuModel(model.domain, np.array([-1, 0, 1]), np.array([1.0, 0.0]), transition, emission)
    query = make_query(far.domain, ["0"], {"1": 0})
    points = np.arange(3)[:, None]
    np.testing.assert_allclose(
        condition_quickly(far, query).log_prob(points),
        cm.condition(far, ["0"], {"1": 0}).log_prob(points),
        atol=1e-12,
    )


def test_impossible_evidence_is_refused():
    model = hidden(3, 2)
    emission = [model.emission[0], np.array([[0.0, 0.5, 0.5]] * 2), model.emission[2]]
    never = HiddenChowLiuModel(model.domain, model.parent, model.root_prior, model.transition, emission)
    with pytest.raises(cm.ImpossibleEvidence):
        condition_quickly(never, make_query(never.domain, ["0"], {"1": 0}))
