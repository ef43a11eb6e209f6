"""Small influence diagrams at random, judged against every policy in whole numbers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np

from certimap.ask.decide import decide
from certimap.core.arrays import Ints
from certimap.core.domain import Categorical, Label
from certimap.decisions import search
from certimap.decisions.network import DecisionNetwork
from certimap.decisions.policy import Policy
from certimap.errors import ImpossibleEvidence

PARTS = 16  # probabilities are whole numbers of sixteenths, so that doubles hold them
MOST_POLICIES, MOST_STATES = 20_000, 1024
CLOSE = 1e-9


@dataclass(frozen=True)
class DecisionCase:
    """A network, evidence, and the exact value of every policy.

    `values`: over policies, one axis per open decision: expected utility times the probability of the evidence,
    times PARTS to the number of chance variables. `total`: that probability in the same units.
    `configurations`: for each open decision, the names of what it knows.
    """

    network: DecisionNetwork
    evidence: dict[str, Any]
    values: Ints
    total: int
    configurations: dict[str, tuple[str, ...]]

    @property
    def best(self) -> Fraction:
        return Fraction(int(self.values.max()), self.total)

    def value_of(self, policy: Policy) -> Fraction:
        """Return the exact expected utility of a policy."""
        places = list[int]()
        for name, known in self.configurations.items():
            place, options = 0, _states(self.network, name)
            for labels in itertools.product(*(_states(self.network, v) for v in known)):
                given = {**self.evidence, **dict(zip(known, labels, strict=True))}
                place = place * len(options) + options.index(policy.choose(name, given))
            places.append(place)
        return Fraction(int(self.values[tuple(places)]), self.total)


def _states(network: DecisionNetwork, name: str) -> list[Label]:
    variable = network.domain[name]
    return list(variable.states) if isinstance(variable, Categorical) else []


def random_decisions(rng: np.random.Generator) -> DecisionCase:
    """Return a diagram of two to nine variables, with perfect recall or limited memory, and some evidence."""
    while (case := _attempt(rng)) is None:
        pass
    return case


def _attempt(rng: np.random.Generator) -> DecisionCase | None:
    n_decisions = int(rng.integers(1, 4))
    kinds = rng.permutation([True] * n_decisions + [False] * int(rng.integers(1, 6))).tolist()
    names = [f"{'d' if kind else 'c'}{i}" for i, kind in enumerate(kinds)]
    sizes = rng.choice([1, 2, 3], len(names), p=[0.03, 0.77, 0.2]).tolist()
    if math.prod(sizes) > MOST_STATES:
        return None
    states = {name: [f"s{k}" for k in range(size)] for name, size in zip(names, sizes, strict=True)}
    parents, tables, decisions = dict[str, list[str]](), dict[str, Any](), dict[str, list[str]]()
    limited = bool(rng.random() < 0.5)
    for i, name in enumerate(names):
        earlier = [v for v in names[:i] if not kinds[i] or limited or v[0] == "c"]
        above = [v for v in earlier if rng.random() < min(1.0, 1.6 / max(len(earlier), 1))][:3]
        if kinds[i]:
            decisions[name] = above
            continue
        parents[name] = above
        tables[name] = _rows([len(states[v]) for v in above], sizes[i], rng) / PARTS
    utilities = dict[str, Any]()
    for k in range(int(rng.integers(1, 4))):
        scope = [str(v) for v in rng.choice(names, min(int(rng.integers(0, 4)), len(names)), replace=False)]
        table = rng.integers(-20, 21, [len(states[v]) for v in scope]) * (
            rng.random([len(states[v]) for v in scope]) < 0.8
        )
        utilities[f"u{k}"] = (scope, table)
    network = DecisionNetwork.from_cpts(states, parents, tables, decisions, utilities, limited)
    return _enumerated(network, _evidence(network, parents, rng))


def _rows(shape: list[int], size: int, rng: np.random.Generator) -> Ints:
    """Return rows of whole numbers that add up to PARTS; some have zeros, some a single entry."""
    shares = rng.choice([0.15, 1.0], p=[0.4, 0.6])
    rows = rng.multinomial(PARTS, rng.dirichlet(np.full(size, shares), math.prod(shape)))
    return rows.reshape([*shape, size])


def _evidence(network: DecisionNetwork, parents: dict[str, list[str]], rng: np.random.Generator) -> dict[str, Any]:
    """Return evidence on a decision or on what no open decision causes."""
    found = dict[str, Any]()
    for name in network.decisions:
        if rng.random() < 0.08:
            found[name] = "s0"
    below = {name for name in network.decisions if name not in found}
    for name in parents:  # in topological order
        if below & set(parents[name]):
            below.add(name)
        elif rng.random() < 0.12:
            found[name] = "s0" if rng.random() < 0.6 else {"states": ["s0", _states(network, name)[-1]]}
    return found


def _enumerated(network: DecisionNetwork, evidence: dict[str, Any]) -> DecisionCase | None:
    """Value every policy; None if they are too many."""
    domain = network.domain
    rows = np.array(list(np.ndindex(*domain.n_states)), np.int64)
    weight, worth = np.ones(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for factor in network.cpts:
        weight *= np.rint(factor.table[tuple(rows[:, v] for v in factor.scope)] * PARTS).astype(np.int64)
    for name, value in evidence.items():
        labels: list[str] = [value] if isinstance(value, str) else value["states"]
        allowed = [_states(network, name).index(label) for label in labels]
        weight *= np.isin(rows[:, domain.index(name)], allowed)
    for utility in network.utilities:
        worth += np.rint(utility.values[tuple(rows[:, v] for v in utility.scope)]).astype(np.int64)
    open_ = {name: network.information(name) for name in network.decisions if name not in evidence}
    tables, total = list[Any](), weight.copy()
    for name, known in open_.items():
        shape = [domain[v].n_states for v in known]
        n_rows, n = math.prod(shape), domain[name].n_states
        if n**n_rows * math.prod(len(t) for t in tables) > MOST_POLICIES:
            return None
        at = np.zeros(len(rows), np.int64)
        for v, size in zip(known, shape, strict=True):
            at = at * size + rows[:, domain.index(v)]
        policies = np.array(list(itertools.product(range(n), repeat=n_rows)), np.int64)
        tables.append(policies[:, at] == rows[:, domain.index(name)])
        total = total * (rows[:, domain.index(name)] == 0)
    values = (weight * worth)[None]
    for table in tables:  # policies so far, times those of one more decision
        values = (values[:, None, :] * table[None]).reshape(-1, len(rows))
    return DecisionCase(
        network, evidence, values.sum(axis=1).reshape([len(t) for t in tables]), int(total.sum()), open_
    )


def searched_in_steps(most_listed: float = search.LISTED) -> AbstractContextManager[object]:
    """Have small diagrams searched as large ones are: by plans of several sizes, split tables, and branching.

    `most_listed`: entries of tables up to which policies are searched; with less, decisions forget.
    """
    limits: dict[str, Any] = {"LIMITS": (0.0, 1.0, 2.0, 4.0), "SPLITS": (math.inf, 3.0), "LISTED": most_listed}
    return patch.multiple(search, DIRECT=0.0, **limits)


def count_false(number: int, seed: int, say: Callable[[str], object]) -> Counter[str]:
    """Judge diagrams, each searched as small ones, as large ones, and with less memory; count false claims."""
    found = Counter[str]()
    for k in range(number):
        case = random_decisions(np.random.default_rng([seed, k]))
        found["limited memory" if case.network.limited_memory else "perfect recall"] += 1
        found["impossible evidence"] += case.total == 0
        found["policies"] += case.values.size
        said = list(judge_decisions(case))
        for most_listed in (search.LISTED, 1.0):
            with searched_in_steps(most_listed):
                said += judge_decisions(case, epsilon=0.0)
        found["false claims"] += len(said)
        for text in said:
            say(f"diagram {k}: {text}")
    return found


def judge_decisions(case: DecisionCase, **settings: Any) -> Iterator[str]:
    """Decide, and yield what is false about the policy."""
    if case.total == 0:
        try:
            decide(case.network, case.evidence, **settings)
        except ImpossibleEvidence:
            return
        yield "evidence of probability 0 is accepted"
        return
    policy = decide(case.network, case.evidence, **settings)
    low, high = Fraction(policy.expected_utility), Fraction(policy.upper_bound)
    if low > case.best:
        yield f"a policy of {float(low)!r} is claimed; the best has {float(case.best)!r}"
    if high < case.best:
        yield f"a bound of {float(high)!r} is claimed; the best policy has {float(case.best)!r}"
    own = case.value_of(policy)
    if low > own:
        yield f"the policy has {float(own)!r}; {float(low)!r} is claimed"
    kind = policy.certificate.kind.value
    if kind == "exact" and float(high - low) > CLOSE * 100.0:
        yield f"the sides {float(low)!r} and {float(high)!r} are called exact"
    if not settings and kind != "exact":
        yield f"a small diagram is {kind}: {float(low)!r} to {float(high)!r}"
