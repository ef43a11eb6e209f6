"""How far one entry of a conditional table may move before the answer changes: exactly, by a few more queries.

When an entry theta of a row moves and the rest of the row is scaled along, p(q, e) is linear in theta for every
assignment q. The largest of these lines over q is convex, so the range where the answer's line is the largest is
an interval. Each end is found from outside: a MAP query gives the best assignment at the far end of the side. If
it beats the answer, the two lines cross closer in, and the next query is made at the crossing. Each step finds a
line that crosses still closer, until none beats the answer: then the crossing is the end of the interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from certimap.ask.inference import log_evidence, marginals
from certimap.core.domain import Categorical, Label, Real
from certimap.core.query import make_query
from certimap.core.result import CertificateKind, MapResult
from certimap.errors import ImpossibleEvidence
from certimap.explanations.explanation import Lead, Tolerance
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor

if TYPE_CHECKING:
    from certimap.explanations.questions import Asking

Floats = NDArray[np.float64]
EDGE = 1e-9  # from 0 and 1: there a row may make the evidence impossible
CLOSE = 1e-9  # nats by which a rival must beat the answer; smaller leads are rounding
MAX_STEPS = 50  # lines tried per side; every step crosses closer in, so a handful suffices


@dataclass(frozen=True)
class TableEntry:
    """P(variable = state | parents at `row`), by positions."""

    variable: int
    row: tuple[int, ...]
    state: int

    def value(self, network: BayesianNetwork) -> float:
        return float(network.factors[self.variable].table[(*self.row, self.state)])

    def moved(self, network: BayesianNetwork, theta: float) -> BayesianNetwork:
        """Return the network with this entry at theta and the rest of its row scaled along."""
        table = network.factors[self.variable].table.copy()
        row = table[self.row]
        rest = 1.0 - row[self.state]
        row *= (1.0 - theta) / rest
        row[self.state] = theta
        factors = list(network.factors)
        factors[self.variable] = Factor(network.factors[self.variable].scope, table)
        return BayesianNetwork(network.domain, factors, network.hidden)


def tolerances_of(
    ask: Asking,
    network: BayesianNetwork,
    evidence: Mapping[str, Any],
    answer: MapResult,
    lead: Lead,
    n_entries: int,
) -> list[Tolerance]:
    """Return the exact ranges of the entries that tell answer and runner-up apart most, the tightest first."""
    now = _log_joint(network, evidence, answer.assignment)
    found = [
        _tolerance(ask, network, evidence, answer, now, entry)
        for entry in _telling(network, evidence, answer, lead, n_entries)
    ]
    return sorted(found, key=lambda t: min(t.value - t.low, t.high - t.value))


def _telling(
    network: BayesianNetwork, evidence: Mapping[str, Any], answer: MapResult, lead: Lead, n: int
) -> list[TableEntry]:
    """Return the n entries whose log-odds change the lead fastest, as far as single marginals tell."""
    if n == 0:
        return []
    domain = network.domain
    possible = [answer.assignment] if lead.nats == math.inf else [answer.assignment, lead.runner_up]
    with_each = [_chances(network, {**evidence, **q}) for q in possible]
    scored: list[tuple[float, TableEntry]] = []
    for i, factor in enumerate(network.factors):
        sizes = [int(domain.n_states[p]) for p in factor.scope[:-1]]
        for row in itertools.product(*map(range, sizes)):
            reached = [math.prod(c[p][s] for p, s in zip(factor.scope[:-1], row, strict=True)) for c in with_each]
            if max(reached) == 0.0:
                continue
            for state, theta in enumerate(factor.table[row].tolist()):
                if not EDGE < theta < 1.0 - EDGE:
                    continue
                first, *second = (r * (c[i][state] - theta) for r, c in zip(reached, with_each, strict=True))
                scored.append((abs(first - sum(second)), TableEntry(i, row, state)))
    scored.sort(key=lambda pair: -pair[0])
    return [entry for score, entry in scored[:n] if score > 0.0]


def _chances(network: BayesianNetwork, evidence: dict[str, Any]) -> list[Floats]:
    """Return P(state | evidence) of every variable, observed ones included."""
    found = marginals(network, network.domain.names, evidence)
    return [np.array([found[v.name][s] for s in _states(v)]) for v in network.domain]


def _states(variable: Categorical | Real) -> tuple[Label, ...]:
    assert isinstance(variable, Categorical)  # a network has no other
    return variable.states


def _tolerance(
    ask: Asking,
    network: BayesianNetwork,
    evidence: Mapping[str, Any],
    answer: MapResult,
    now: float,
    entry: TableEntry,
) -> Tolerance:
    """Return an entry's range; `now` is ln p(answer, evidence) at the entry's present value."""
    variable = network.domain.variables[entry.variable]
    parents = [network.domain.variables[p] for p in network.parents[entry.variable]]
    given = {p.name: _states(p)[s] for p, s in zip(parents, entry.row, strict=True)}
    sides = [_side(ask, network, evidence, answer, now, entry, far) for far in (EDGE, 1.0 - EDGE)]
    (low, below, kind_low), (high, above, kind_high) = sides
    kind = CertificateKind.EXACT if kind_low == kind_high == CertificateKind.EXACT else CertificateKind.NONE
    return Tolerance(
        variable.name,
        given,
        _states(variable)[entry.state],
        entry.value(network),
        0.0 if below is None else low,
        1.0 if above is None else high,
        (below, above),
        kind,
    )


def _side(
    ask: Asking,
    network: BayesianNetwork,
    evidence: Mapping[str, Any],
    answer: MapResult,
    now: float,
    entry: TableEntry,
    far: float,
) -> tuple[float, dict[str, Label] | None, CertificateKind]:
    """Return where a rival overtakes the answer on one side, the rival's changes, and the last certificate."""
    start, theta = entry.value(network), far
    rival: dict[str, Label] | None = None
    far_network = entry.moved(network, far)
    own = (now, _log_joint(far_network, evidence, answer.assignment))
    kind = CertificateKind.NONE
    for _ in range(MAX_STEPS):
        moved = entry.moved(network, theta)
        try:
            best = ask(evidence, moved)
        except ImpossibleEvidence:
            return theta, rival, CertificateKind.EXACT
        kind = best.certificate.kind
        if (
            best.log_joint is None
            or best.log_joint <= _between(own, (theta - start) / (far - start)) + CLOSE
            or best.assignment == rival
        ):
            break
        rival = best.assignment
        other = (_log_joint(network, evidence, rival), _log_joint(far_network, evidence, rival))
        theta = start + (far - start) * _crossing(own, other)
    changes = None if rival is None else {k: v for k, v in rival.items() if answer.assignment[k] != v}
    return theta, changes, kind


def _between(ends: tuple[float, float], share: float) -> float:
    """Return ln of the value on a line a share of the way between its ends, which are given as logs."""
    top = max(ends)
    if top == -math.inf:
        return top
    return top + math.log((1.0 - share) * math.exp(ends[0] - top) + share * math.exp(ends[1] - top))


def _crossing(own: tuple[float, float], other: tuple[float, float]) -> float:
    """Return where two lines cross, as a share of the way; each is given by ln of its values at both ends."""
    top = max(*own, *other)
    a, b, c, d = (math.exp(v - top) for v in (*own, *other))
    ahead, behind = a - c, d - b  # the answer leads at the start, the rival at the end
    return max(ahead, 0.0) / (max(ahead, 0.0) + behind)


def _log_joint(network: BayesianNetwork, evidence: Mapping[str, Any], assignment: Mapping[str, Label]) -> float:
    """Return ln p(assignment, evidence), on the scale of `MapResult.log_joint`; -inf where it is impossible.

    The assignment replaces evidence on the query variables; the log weights of the assigned states are added.
    """
    soft = make_query(network.domain, list(assignment), {k: v for k, v in evidence.items() if k in assignment})
    states = soft.query_domain.encode(dict(assignment))
    own = math.fsum(soft.log_weights[network.domain.offsets[soft.variables] + states])
    if own == -math.inf:
        return own
    try:
        return own + log_evidence(network, {**evidence, **assignment})
    except ImpossibleEvidence:
        return -math.inf
