"""Constraints and their automata, against every joint state."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from certimap.core import rules as automata
from certimap.core.constraints import (
    AllDifferent,
    Allowed,
    AtLeast,
    AtMost,
    Constraint,
    Exactly,
    Implies,
    Linear,
    Never,
    constraints_of,
)
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.rules import Automaton, Rules
from certimap.errors import NoAnswer, QueryError

LABELS = ("a", "b", "c")


@st.composite
def domains(draw):
    sizes = draw(st.lists(st.integers(2, 3), min_size=2, max_size=5))
    return Domain(Categorical(f"v{i}", LABELS[:k]) for i, k in enumerate(sizes))


def some(draw, domain, least=1):
    return draw(st.lists(st.sampled_from(domain.names), min_size=least, max_size=4, unique=True))


def states(draw, domain):
    return {name: draw(st.sampled_from(domain[name].states)) for name in some(draw, domain)}


@st.composite
def constraints(draw, domain):
    """One constraint and the test of its meaning."""
    kind = draw(st.integers(0, 7))
    if kind < 3:
        k, names, label = draw(st.integers(0, 3)), some(draw, domain), draw(st.sampled_from("ab"))
        made = (AtMost, AtLeast, Exactly)[kind](k, names, label)
        compare = (int.__le__, int.__ge__, int.__eq__)[kind]
        return made, lambda x: compare(sum(x[n] == label for n in names), k)
    if kind == 3:
        first = states(draw, domain)
        return Never(first), lambda x: not all(x[n] == s for n, s in first.items())
    if kind == 4:
        first, second = states(draw, domain), states(draw, domain)

        def holds(x, side):
            return all(x[n] == s for n, s in side.items())

        return Implies(first, second), lambda x: not holds(x, first) or holds(x, second)
    if kind == 5:
        names = some(draw, domain, 2)
        return AllDifferent(names), lambda x: len({x[n] for n in names}) == len(names)
    if kind == 6:
        numbers = st.sampled_from([0.5, 1.0, -1.0, 2.0, 0.25])
        weights = {n: {s: draw(numbers) for s in domain[n].states[:2]} for n in some(draw, domain)}
        low, high = draw(st.sampled_from([(None, 1.0), (0.5, None), (-1.0, 2.0)]))

        def total(x):
            return sum(w.get(x[n], 0.0) for n, w in weights.items())

        return Linear(
            weights, at_most=high, at_least=low
        ), lambda x: (high is None or total(x) <= high) and (low is None or total(x) >= low)
    names = some(draw, domain)
    row = st.tuples(*(st.sampled_from(domain[n].states) for n in names))
    rows = draw(st.lists(row, min_size=1, max_size=5))
    return Allowed(names, rows), lambda x: tuple(x[n] for n in names) in rows


@st.composite
def cases(draw):
    domain = draw(domains())
    return domain, draw(st.lists(constraints(domain), min_size=1, max_size=3))


def everything(domain):
    return np.array(list(itertools.product(*(range(v.n_states) for v in domain))), np.int16)


@given(cases(), st.integers(0, 2**31))
def test_rules_agree_with_the_meaning_of_the_constraints(case, seed):
    domain, pairs = case
    points = everything(domain)
    wanted = np.array([all(test(domain.decode(p)) for _, test in pairs) for p in points])
    try:
        rules = Rules.of(domain, [c for c, _ in pairs])
    except QueryError:
        assert not np.any(wanted)
        return
    assert np.array_equal(rules.satisfied(points), wanted)
    assert np.array_equal(rules.listed(10**6)[:], points[wanted])
    assert rules.most == np.sum(wanted)
    assert not np.any(wanted) or rules.listed(int(np.sum(wanted)) - 1) is None
    rng = np.random.default_rng(seed)
    mask = rng.random((6, domain.total_states)) < 0.7
    narrow = rules.narrowed(mask)
    columns = domain.offsets[:-1] + points.astype(np.int64)
    for before, after in zip(mask, narrow, strict=True):
        answers = columns[np.all(before[columns], axis=1) & wanted]
        least = np.zeros(domain.total_states, bool)
        least[answers.ravel()] = True
        assert np.all(after <= before)
        assert np.all(least <= after)
        if len(rules.automata) == 1:
            scope = np.isin(np.repeat(domain.names, domain.n_states), pairs[0][0].order)
            assert np.array_equal(after[scope], least[scope]) or not np.all(np.any(before[columns], axis=0))
    assert np.array_equal(rules.listed(10**6, mask[0])[:], points[wanted & np.all(mask[0][columns], axis=1)])


@given(cases())
def test_observed_variables_are_folded_in(case):
    domain, pairs = case
    first = domain.variables[0]
    rest = domain.subset(range(1, len(domain)))
    points = everything(domain)
    wanted = [p[1:] for p in points if p[0] == 0 and all(test(domain.decode(p)) for _, test in pairs)]
    try:
        rules = Rules.of(rest, [c for c, _ in pairs], [Categorical(first.name, first.states[:1])])
    except QueryError:
        assert not wanted
        return
    assert np.array_equal(rules.listed(10**6)[:], np.array(wanted, np.int16).reshape(-1, len(rest)))


@given(cases())
def test_json_and_the_printed_call_give_the_constraint_back(case):
    for constraint, _ in case[1]:
        record = json.loads(json.dumps(constraint.to_dict()))
        (again,) = constraints_of([record])
        assert again == constraint
        assert hash(again) == hash(constraint)
        assert eval(repr(constraint)) == constraint
        assert repr(again) == repr(constraint)


def test_tables_number_states_by_first_appearance_without_dead_ones():
    variables = [Categorical(n, ("no", "yes")) for n in "abc"]
    rule = Exactly(2, ["a", "b", "c"], "yes")
    (part,) = rule.parts
    found = Automaton.of(part, variables, rule)
    assert [t.tolist() for t in found.tables] == [[[0, 1]], [[-1, 0], [0, 1]], [[-1, 0], [0, -1]]]


def test_mappings_stand_for_pairs_in_json():
    assert constraints_of([{"kind": "Never", "states": {"lung": "yes"}}]) == (Never(lung="yes"),)
    given = {"kind": "Linear", "weights": {"x": {"a": 2}}, "at_most": 5}
    assert constraints_of(given) == (Linear({"x": {"a": 2.0}}, at_most=5),)


DOMAIN = Domain([Categorical("a", ("no", "yes")), Categorical("b", ("no", "yes")), Real("r")])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AtMost(-1, ["a"], "yes"), "-1"),
        (lambda: AtMost(1, "a", "yes"), "'a'"),
        (lambda: AtMost(1, [], "yes"), "no variable"),
        (lambda: Exactly(1, ["a", "a"], "yes"), "twice"),
        (lambda: Never(), "no variable"),
        (lambda: Never(3), "3"),
        (lambda: Implies({"a": "yes"}, 3), "conclusion"),
        (lambda: AllDifferent(["a"]), "'a'"),
        (lambda: Linear({"a": {"yes": float("nan")}}, at_most=1), "nan"),
        (lambda: Linear({"a": {"yes": 1.0}}), "at_most"),
        (lambda: Linear({"a": 3}, at_most=1), "'a'"),
        (lambda: Allowed(["a", "b"], [("yes",)]), "'yes'"),
        (lambda: Allowed(["a"], []), "no row"),
        (lambda: constraints_of([{"kind": "AtMots"}]), "did you mean 'AtMost'"),
        (lambda: constraints_of([{"kind": "AtMost", "n": 3}]), "k, names, state"),
        (lambda: constraints_of([3]), "3"),
        (lambda: Rules.of(DOMAIN, [AtMost(1, ["a", "b"], "maybe")]), "'maybe'"),
        (lambda: Rules.of(DOMAIN, [AtMost(1, ["h"], "yes")]), "is evidence"),
        (lambda: Rules.of(DOMAIN, [Never(r=1)]), "real variable 'r'"),
        (lambda: Rules.of(DOMAIN, [AtLeast(3, ["a", "b"], "yes")]), "no assignment satisfies"),
        (lambda: Rules.of(DOMAIN.subset([0]), [Never(b="yes")], [Categorical("b", ("yes",))]), "observed"),
    ],
)
def test_bad_constraints_are_refused_in_one_sentence(make, words):
    with pytest.raises(QueryError) as error:
        make()
    assert words in str(error.value)


def test_too_many_pigeons_are_refused():
    domain = Domain.of_sizes([3] * 4)
    with pytest.raises(QueryError, match="no assignment satisfies"):
        Rules.of(domain, [AllDifferent(domain.names)])
    few, more = tuple("abcdefghij"), tuple("abcdefghijpq")  # 12 labels of 12 variables, 10 of 11 of them
    domain = Domain([*(Categorical(f"x{i}", few) for i in range(11)), Categorical("y", more)])
    with pytest.raises(NoAnswer, match="AllDifferent"):
        Rules.of(domain, [AllDifferent(domain.names)])
    enough = domain.subset(range(1, 12))
    rule, less = AllDifferent(enough.names), np.arange(enough.total_states) < enough.total_states - 2
    Rules.of(enough, [rule])
    with pytest.raises(NoAnswer, match="labels that are left"):
        Rules.of(enough, [rule, Never(y="p"), Never(y="q")])
    with pytest.raises(NoAnswer, match="labels that are left"):
        Rules.of(enough, [rule], possible=less)
    observed = [Categorical("x0", ("a",)), Categorical("y", ("b",))]  # 12 variables, 10 labels
    with pytest.raises(NoAnswer, match="labels that are left"):
        Rules.of(domain.subset(range(1, 11)), [AllDifferent(domain.names)], observed)


def test_too_many_sums_are_refused(monkeypatch):
    monkeypatch.setattr(automata, "MOST_STATES", 100)
    domain = Domain.of_sizes([2] * 12)
    weights = {name: {1: float(np.sqrt(2 + i))} for i, name in enumerate(domain.names)}
    with pytest.raises(QueryError, match="more than 100 states"):
        Rules.of(domain, [Linear(weights, at_most=20.0)])


def test_two_hundred_variables_are_listed_quickly():
    domain = Domain.of_sizes([2] * 200)
    found = Rules.of(domain, [AtMost(2, domain.names, 1)])
    assert found.most == 1 + 200 + 19900
    assert len(found.listed(30000)) == found.most


def test_joint_states_that_take_much_memory_are_neither_counted_nor_listed(monkeypatch):
    domain = Domain.of_sizes([2] * 6)
    rules = Rules.of(domain, [Exactly(1, domain.names[:4], 1), AtMost(2, domain.names[2:], 1)])
    assert len(rules.listed(2**6)) == rules.most == rules.listable > 0
    monkeypatch.setattr(automata, "MOST_NUMBERS", 10)
    again = Rules.of(domain, rules.constraints)
    assert again.most == np.inf
    assert again.listed(2**6) is again.listable is None


def test_constraints_are_constraints():
    assert all(issubclass(kind, Constraint) for kind in (AtMost, AllDifferent, Linear))
