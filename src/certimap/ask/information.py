"""What it is worth to see more before a decision, and how far a probability may move before the policy changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from certimap.ask.decide import decide
from certimap.ask.inference import log_evidence
from certimap.core.arguments import keywords_hinted
from certimap.core.domain import Categorical, Label
from certimap.core.query import items_of, names_of
from certimap.core.result import CertificateKind, Status
from certimap.core.summary import aligned
from certimap.decisions.network import DecisionNetwork
from certimap.decisions.policy import Policy
from certimap.errors import ImpossibleEvidence, ModelError, QueryError
from certimap.interop import as_model
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor

SAME = 1e-9  # share of the span of all utilities by which two expected utilities may differ and count as equal
MOST = 50  # crossings of lines on the way to an end


class InformationValue(NamedTuple):
    """What seeing a variable adds to the best expected utility: at least `low`, at most `high`."""

    low: float
    high: float


class InformationValues(dict[str, InformationValue]):
    """The worth of seeing each variable before a decision, the largest first."""

    def __repr__(self) -> str:
        rows = [("seeing", "is worth")]
        for name, worth in self.items():
            low, high = (f"{side:.6g}" for side in worth)
            rows.append((name, high if low == high or worth.high < SAME else f"{low} to {high}"))
        return "\n".join(aligned(rows))


@keywords_hinted()
def value_of_information(
    network: Any, decision: str, variables: Sequence[str] | str | None = None, evidence: Any = None, *,
    time_limit: float | None = None, max_memory: int | None = None,
) -> InformationValues:  # fmt: skip
    """Return the `InformationValue` of seeing each of the `variables` just before a `decision`, the largest first.

    - `network`, `evidence`, `max_memory`: as for `decide`. `time_limit`: seconds of each `decide`.
    - `variables`: names; None for every chance variable that is not known then, and that no decision from then on
      bears on.

    The worth is the difference of two best expected utilities, in their units; each has two sides. Raises
    QueryError for a variable that is known or observed, or that depends on the decision. Cost: one `decide` for
    each variable, and one more.
    """
    model = as_model(network)
    if not isinstance(model, DecisionNetwork):
        raise ModelError(f"a {type(model).__name__} has no decisions; expected a DecisionNetwork")
    known = {*model.information(decision), *model.decisions, *(name for name, _ in items_of(evidence))}
    asked = names_of(variables, "variables", QueryError) if variables is not None else ()
    informed: dict[str, DecisionNetwork] = {}
    for name in asked or [name for name in model.domain.names if name not in known | model.hidden]:
        if model.domain[name] and name in known:
            raise QueryError(f"{name!r} is a decision, observed, or known at {decision!r} already")
        try:
            seen = {**model.decisions, decision: (*model.decisions[decision], name)}
            informed[name] = _like(model, model.cpts, seen)
        except ModelError:
            if asked:
                text = f"{name!r} depends on decision {decision!r} or a later one, and cannot be seen before it"
                raise QueryError(text) from None
    now = _decided(model, evidence, time_limit, max_memory)
    found: dict[str, InformationValue] = {}
    for name, more in informed.items():
        then = _decided(more, evidence, time_limit, max_memory)
        sides = then.expected_utility - now.upper_bound, then.upper_bound - now.expected_utility
        found[name] = InformationValue(max(0.0, sides[0]), max(0.0, sides[1]))
    return InformationValues(sorted(found.items(), key=lambda item: -item[1].high))


def _like(model: DecisionNetwork, cpts: Iterable[Factor], seen: Mapping[str, Sequence[str]]) -> DecisionNetwork:
    """Return a network with other tables, or other decisions."""
    return DecisionNetwork(model.domain, cpts, seen, model.utilities, model.limited_memory, model.hidden)


def _decided(
    network: DecisionNetwork, evidence: Any, time_limit: float | None, max_memory: int | None = None
) -> Policy:
    """Return the best policy; Ctrl-C is passed on, as one search of many is no answer."""
    policy = decide(network, evidence, time_limit=time_limit, max_memory=max_memory)
    if policy.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return policy


class Strength(NamedTuple):
    """How far P(`variable` = `state` | `given`) may move, the rest of its row in proportion.

    - `probability`: now. `low`, `high`: between them the policy is proved to stay best.
    - `worse_below`, `worse_above`: beyond them another policy is better; infinite where none is known to be.
    """

    variable: str
    state: Label
    given: dict[str, Label]
    probability: float
    low: float
    high: float
    worse_below: float
    worse_above: float

    def __str__(self) -> str:
        given = ", ".join(f"{name}={label}" for name, label in self.given.items())
        head = f"P({self.variable}={self.state}{' | ' if given else ''}{given})"
        return f"{head} = {self.probability:.6g} may lie in [{self.low:.6g}, {self.high:.6g}]"


@keywords_hinted()
def strength_of_assumptions(
    policy: Policy, variables: Sequence[str] | str | None = None, *, time_limit: float | None = None
) -> list[Strength]:
    """Return how far each table entry of the `variables` may move before the policy changes, the weakest first.

    - `policy`: of `decide`, with the certificate exact. `variables`: names of chance variables; None for all.
    - `time_limit`: seconds of each `decide`.

    The expected utility of one policy is linear in one entry (with evidence, times p(e), which is linear too), and
    the best one is convex: each end is found where two lines cross, and the best policy there is no better. Rows
    with a 1 are left out, and the second of two states. Raises QueryError for a policy that is not exact. Cost:
    some ten calls of `decide` for each entry.
    """
    model = policy.network
    if policy.certificate.kind is not CertificateKind.EXACT:
        raise QueryError("the policy is not proved best; strength_of_assumptions expected the certificate exact")
    names = model.domain.names if variables is None else names_of(variables, "variables", QueryError)
    wanted, found = {model.domain.index(name) for name in names}, list[Strength]()
    for place, factor in enumerate(model.cpts):
        own = [v for i in factor.scope if isinstance(v := model.domain.variables[i], Categorical)]
        for index in np.ndindex(*factor.shape) if factor.scope[-1] in wanted else ():
            if factor.table[index[:-1]].max() == 1.0 or (index[-1] == 1 and factor.shape[-1] == 2):
                continue
            entry = _Entry(policy, place, index, time_limit)
            given, now = {v.name: v.states[k] for v, k in zip(own, index, strict=True)}, float(factor.table[index])
            (low, below), (high, above) = entry.end(now, 0.0), entry.end(now, 1.0)
            found.append(Strength(*given.popitem(), given, now, low, high, below, above))
    return sorted(found, key=lambda s: min(s.probability - s.worse_below, s.worse_above - s.probability))


@dataclass(frozen=True)
class _Entry:
    """One entry of the table at a place among the conditional tables, under a policy."""

    policy: Policy
    place: int
    index: tuple[int, ...]
    time_limit: float | None

    def moved(self, p: float) -> list[Factor]:
        """Return the conditional tables in which the entry is p."""
        cpts, row = list(self.policy.network.cpts), self.index[:-1]
        table = cpts[self.place].table.copy()
        table[row] *= (1.0 - p) / (1.0 - table[self.index])
        table[self.index] = p
        cpts[self.place] = Factor(cpts[self.place].scope, table)
        return cpts

    def best(self, p: float) -> Policy:
        model = self.policy.network
        return _decided(_like(model, self.moved(p), model.decisions), self.policy.evidence, self.time_limit)

    def value(self, policy: Policy, p: float) -> float:
        """Return the expected utility of a policy at p."""
        made = _like(policy.network, [*self.moved(p), *_rules(policy)], {})
        return _decided(made, policy.evidence, None).expected_utility

    def weight(self, p: float) -> float:
        """Return p(evidence) at p, on which no decision bears."""
        model = self.policy.network
        made = BayesianNetwork(model.domain, [*self.moved(p), *_rules(self.policy)], model.hidden)
        return math.exp(log_evidence(made, self.policy.evidence)) if self.policy.evidence else 1.0

    def end(self, now: float, far: float) -> tuple[float, float]:
        """Return up to where the policy stays best on the way to `far`, and from where on another is better."""
        worse = math.copysign(math.inf, far - now)
        same = SAME * sum(float(np.ptp(u.values)) for u in self.policy.network.utilities)
        for _ in range(MOST):
            try:
                best = self.best(far)
            except ImpossibleEvidence:  # at 0 or 1
                far += 1e-9 * (now - far)
                best = self.best(far)
            own = self.value(self.policy, far)
            if best.upper_bound <= own + same:
                return far, worse
            if best.expected_utility <= own + same:
                break
            ahead = self.weight(far) * (best.expected_utility - own)
            behind = self.weight(now) * max(0.0, self.value(self.policy, now) - self.value(best, now))
            worse = far = now + (far - now) * behind / (ahead + behind)
        return now, worse


def _rules(policy: Policy) -> list[Factor]:
    """Return what a policy does as conditional tables; an observed decision is made at random."""
    domain, rules = policy.network.domain, list[Factor]()
    for name in policy.network.decisions:
        own, table = domain.index(name), policy.tables.get(name)
        n_options = int(domain.n_states[own])
        scope = [] if table is None else [domain.index(v.name) for v in table.known]
        chosen = (
            np.full(n_options, 1.0 / n_options) if table is None else np.eye(n_options)[table.values.argmax(-1)]
        )
        rules.append(Factor([*scope, own], chosen))
    return rules
