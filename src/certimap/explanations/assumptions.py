"""How far one probability may move before the best policy of an influence diagram changes.

When an entry theta of a row moves and the rest of the row is scaled along, the expected utility of any policy,
times p(evidence), is linear in theta, and that of the best policy is convex. Each end of the range in which a
policy stays best is found from outside, as for answers (`certimap.explanations.questions`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from certimap.ask.decide import decided, like
from certimap.ask.inference import log_evidence
from certimap.core.arguments import keywords_hinted
from certimap.core.domain import Label
from certimap.core.query import names_of
from certimap.core.result import CertificateKind
from certimap.decisions.policy import Policy
from certimap.errors import QueryError
from certimap.explanations.questions import CLOSE, EDGE, MAX_STEPS, End, TableEntry, Tolerance, tolerance
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
    rest = [name for name in names if model.domain[name] and name not in model.decisions]
    joint = BayesianNetwork(model.domain, [*model.cpts, *_rules(policy)], model.hidden)
    moving, found = _Moving(policy, joint, time_limit), list[Tolerance]()
    for factor in (joint.factors[model.domain.index(name)] for name in rest):
        is_moved = (factor.table > EDGE) & (factor.table < 1.0 - EDGE)
        if factor.shape[-1] == 2:
            is_moved[..., 1] = False  # moves with the other
        for *row, state in np.argwhere(is_moved).tolist():
            found.append(tolerance(joint, TableEntry(factor.scope[-1], tuple(row), state), moving.side))
    return sorted(found, key=lambda t: min(t.value - t.low, t.high - t.value))


@dataclass(frozen=True)
class _Moving:
    """A policy in a network of which one entry moves, and the network in which decisions follow the policy."""

    policy: Policy
    joint: BayesianNetwork
    time_limit: float | None

    def best(self, entry: TableEntry, theta: float, policy: Policy | None = None) -> Policy:
        """Return the best policy where an entry is theta; or the given one, for its expected utility."""
        model, factors = self.policy.network, entry.moved(self.joint, theta).factors
        moved = [factors[f.scope[-1]] for f in model.cpts]
        made = like(model, [*moved, *_rules(policy)], {}) if policy else like(model, moved, model.decisions)
        return decided(made, self.policy.evidence, None if policy else self.time_limit)

    def side(self, entry: TableEntry, far: float) -> End:
        """Return where another policy overtakes, {} for a rival if there is one, and what is proved."""
        start, theta, rival = entry.value(self.joint), far, None
        networks = [entry.moved(self.joint, t) for t in (start, far)]
        chances = [math.exp(log_evidence(network, self.policy.evidence)) for network in networks]

        def line(policy: Policy) -> list[float]:
            ends = zip(chances, (start, far), strict=True)
            return [p * self.best(entry, t, policy).expected_utility for p, t in ends]

        def at(ends: Sequence[float]) -> float:
            share = (theta - start) / (far - start)
            return (1.0 - share) * ends[0] + share * ends[1]

        own, close = line(self.policy), CLOSE * sum(float(np.ptp(u.values)) for u in self.policy.network.utilities)
        for _ in range(MAX_STEPS):
            best, chance = self.best(entry, theta), at(chances)
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
        own, n = domain.index(name), int(domain.n_states[domain.index(name)])
        if (table := policy.tables.get(name)) is None:
            rules.append(Factor([own], np.full(n, 1.0 / n)))
        else:
            scope = [*(domain.index(v.name) for v in table.known), own]
            rules.append(Factor(scope, np.eye(n)[table.values.argmax(axis=-1)]))
    return rules
