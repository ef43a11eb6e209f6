"""Structures by score: against all structures of few variables, and what is required or forbidden."""

# pyright: basic

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln

import certimap as cm
from certimap.errors import DataError
from certimap.learn import bic
from certimap.learn.estimator import score_samples
from certimap.learn.table import decode


def drawn(seed, n=60):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2, n)
    b = np.where(rng.random(n) < 0.8, a, rng.integers(0, 3, n))
    c = np.where(rng.random(n) < 0.7, (a + b) % 2, rng.integers(0, 2, n))
    return {"a": a, "b": b, "c": c, "d": rng.integers(0, 2, n)}


def family_score(table, child, above, criterion):
    """Return the score of a variable with its parents, counted row by row."""
    k, n_rows, counts = len(set(table[child])), math.prod(len(set(table[p])) for p in above), {}
    for row in range(len(table[child])):
        own = counts.setdefault(tuple(table[p][row] for p in above), dict.fromkeys(set(table[child]), 0))
        own[table[child][row]] += 1
    if criterion == "bic":
        terms = [c * math.log(c / sum(own.values())) for own in counts.values() for c in own.values() if c]
        return sum(terms) - 0.5 * math.log(len(table[child])) * n_rows * (k - 1)
    each = 1.0 / (k * n_rows)
    whole = sum(gammaln(each * k) - gammaln(sum(own.values()) + each * k) for own in counts.values())
    return whole + sum(gammaln(c + each) - gammaln(each) for own in counts.values() for c in own.values())


def score_of(parents, known):
    return sum(known[child, frozenset(above)] for child, above in parents.items())


def structure_of(network):
    names = network.domain.names
    return {name: [names[p] for p in own] for name, own in zip(names, network.parents, strict=True)}


def all_structures(names):
    for order in itertools.permutations(names):
        choices = [
            [s for r in range(k + 1) for s in itertools.combinations(order[:k], r)] for k in range(len(order))
        ]
        yield from (dict(zip(order, chosen, strict=True)) for chosen in itertools.product(*choices))


STRUCTURES = list(all_structures("abcd"))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([5, 60]), st.sampled_from(["bic", "bdeu"]))
def test_few_variables_get_the_best_structure_of_all(seed, n, criterion):
    table = drawn(seed, n)
    found = bic(table, criterion=criterion, rng=0)
    pairs = [
        (c, s) for c in "abcd" for r in range(4) for s in itertools.combinations(sorted(set("abcd") - {c}), r)
    ]
    known = {(child, frozenset(above)): family_score(table, child, above, criterion) for child, above in pairs}
    best = max(score_of(parents, known) for parents in STRUCTURES)
    assert score_of(structure_of(found), known) == pytest.approx(best, abs=1e-9)
    expected = cm.learn.fit(structure_of(found), table)
    np.testing.assert_allclose(score_samples(found, table), score_samples(expected, table))


def test_edges_are_as_required_forbidden_and_ordered():
    table = drawn(1, 400)
    free = structure_of(bic(table, rng=0))
    assert any({"a", "b"} <= {child, *own} for child, own in free.items())
    found = structure_of(bic(table, required=[("d", "a"), ("c", "d")], forbidden=[("a", "b"), ("b", "a")], rng=0))
    assert "d" in found["a"]
    assert "c" in found["d"]
    assert "a" not in found["b"]
    assert "b" not in found["a"]
    place = {name: k for k, name in enumerate("dcba")}
    ordered = structure_of(bic(table, order="dcba", rng=0))
    assert all(place[p] < place[child] for child, own in ordered.items() for p in own)
    assert max(len(own) for own in structure_of(bic(table, max_parents=1, rng=0)).values()) == 1


def test_alarm_is_found_again_and_a_seed_repeats_it():
    network = cm.read("examples/alarm.bif")
    assert isinstance(network, cm.BayesianNetwork)
    rows = decode(network.sample(3000, rng=0), network.domain)
    found, again = (bic(rows, domain=network.domain, rng=1) for _ in range(2))
    assert structure_of(found) == structure_of(again)
    true, ours = ({frozenset((c, p)) for c, own in structure_of(n).items() for p in own} for n in (network, found))
    assert len(true & ours) >= 40  # of 46
    assert len(ours - true) <= 5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"criterion": "aic"}, "criterion is 'aic'"),
        ({"required": [("a", "e")]}, "names 'e', which is no column"),
        ({"required": [("a", "b"), ("b", "a")]}, "form a circle"),
        ({"max_parents": -1}, "max_parents"),
        ({"kinds": {"a": "real"}}, "column 'a' is real; expected categorical columns without missing cells"),
        ({"colour": 1}, "colour"),
    ],
)
def test_what_does_not_fit_is_named(settings, said):
    with pytest.raises((DataError, TypeError), match=said):
        bic(drawn(0), **settings)
    with pytest.raises(DataError, match="column 'b' lacks cells"):
        bic({"a": [0, 1, 1], "b": ["x", None, "y"]})
