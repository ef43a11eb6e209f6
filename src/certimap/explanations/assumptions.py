"""How far one probability may move before the best policy of an influence diagram changes.

When an entry theta of a row moves and the rest of the row is scaled along, the expected utility of any policy,
times p(evidence), is linear in theta, and that of the best policy is convex. Each end of the range in which a
policy stays best is found from outside, as for answers (`certimap.explanations.questions`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from certimap.ask.inference import log_evidence
from certimap.ask.information import decided, like
from certimap.core.arguments import keywords_hinted
from certimap.core.domain import Categorical, Label
from certimap.core.query import names_of
from certimap.core.result import CertificateKind
from certimap.decisions.policy import Policy
from certimap.errors import QueryError
from certimap.explanations.questions import CLOSE, EDGE, MAX_STEPS, TableEntry, Tolerance
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor


@keywords_hinted()
def strength_of_assumptions(
    policy: Policy, variables: Sequence[str] | str | None = None, *, time_limit: float | None = None
) -> list[Tolerance]:
    """Return how far each table entry of the `variables` may move before the policy changes, the tightest first.

    - `policy`: of `decide`, with the certificate exact. `variables`: names of chance variables; None for all.
    - `time_limit`: seconds of each `decide`.

    Each is a `Tolerance`; a rival is {} where another policy is better beyond an end. Entries of 0 and 1 are left
    out, and the second of two states. Raises QueryError for a policy that is not exact. Cost: some ten calls of
    `decide` for each entry.
    """
    model = policy.network
    if policy.certificate.kind is not CertificateKind.EXACT:
        raise QueryError("the policy is not proved best; strength_of_assumptions expected the certificate exact")
    names = model.domain.names if variables is None else names_of(variables, "variables", QueryError)
    wanted, found = {model.domain.index(name) for name in names}, list[Tolerance]()
    for factor in (f for f in model.cpts if f.scope[-1] in wanted):
        own = [v for i in factor.scope if isinstance(v := model.domain.variables[i], Categorical)]
        for *row, state in np.ndindex(*factor.shape):
            if not EDGE < (now := float(factor.table[(*row, state)])) < 1.0 - EDGE or (
                state == 1 and own[-1].n_states == 2
            ):
                continue
            moving = _Moving(policy, TableEntry(factor.scope[-1], tuple(row), state), time_limit)
            given = {v.name: v.states[k] for v, k in zip(own, row, strict=False)}
            (low, below, kind), (high, above, other) = moving.side(EDGE), moving.side(1.0 - EDGE)
            kind = kind if kind == other else CertificateKind.NONE
            ends = 0.0 if below is None else low, 1.0 if above is None else high
            found.append(Tolerance(own[-1].name, given, own[-1].states[state], now, *ends, (below, above), kind))
    return sorted(found, key=lambda t: min(t.value - t.low, t.high - t.value))


class _Moving:
    """A policy in a network of which one entry moves."""

    def __init__(self, policy: Policy, entry: TableEntry, time_limit: float | None) -> None:
        self.policy, self.entry, self.time_limit, self.model = policy, entry, time_limit, policy.network
        self.joint = BayesianNetwork(self.model.domain, [*self.model.cpts, *_rules(policy)], self.model.hidden)

    def best(self, theta: float, policy: Policy | None = None) -> Policy:
        """Return the best policy where the entry is theta; or the given one, for its expected utility."""
        decisions = {self.model.domain.index(name) for name in self.model.decisions}
        moved = self.entry.moved(self.joint, theta).factors
        cpts = [*(f for f in moved if f.scope[-1] not in decisions), *(_rules(policy) if policy else ())]
        made = like(self.model, cpts, {} if policy else self.model.decisions)
        return decided(made, self.policy.evidence, None if policy else self.time_limit)

    def side(self, far: float) -> tuple[float, dict[str, Label] | None, CertificateKind]:
        """Return where another policy overtakes, {} for a rival if there is one, and what is proved."""
        start, theta, rival = self.entry.value(self.joint), far, None
        chances, evidence = [1.0, 1.0], self.policy.evidence
        if evidence:
            chances = [math.exp(log_evidence(self.entry.moved(self.joint, t), evidence)) for t in (start, far)]

        def line(policy: Policy) -> list[float]:
            """Return the expected utility times p(evidence) at both ends."""
            return [p * self.best(t, policy).expected_utility for p, t in zip(chances, (start, far), strict=True)]

        def at(ends: Sequence[float]) -> float:
            share = (theta - start) / (far - start)
            return (1.0 - share) * ends[0] + share * ends[1]

        own, close = line(self.policy), CLOSE * sum(float(np.ptp(u.values)) for u in self.model.utilities)
        for _ in range(MAX_STEPS):
            best, chance = self.best(theta), at(chances)
            if best.upper_bound * chance <= at(own) + close * chance:
                return theta, rival, CertificateKind.EXACT
            other = line(best)
            ahead, behind = max(own[0] - other[0], 0.0), other[1] - own[1]
            if best.expected_utility * chance <= at(own) + close * chance or behind <= 0.0:
                break
            theta, rival = start + (far - start) * ahead / (ahead + behind), dict[str, Label]()
        return theta, rival, CertificateKind.NONE


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
