"""Makes the certificate of a result from a ledger."""

from __future__ import annotations

import math

from certimap.certify import bounds
from certimap.certify.findings import Findings
from certimap.certify.pareto import certain_epsilon
from certimap.core.result import Certificate, CertificateKind, Rule


def issue(ledger: Findings) -> Certificate:
    """Return the strongest certificate that meets the request, else one of kind none with the supported delta.

    Certain proofs come before probable ones, and proofs without assumptions before proofs with them.
    """
    certain = certain_epsilon(ledger)
    if certain == 0.0 or certain <= ledger.epsilon:
        kind = CertificateKind.EXACT if certain == 0.0 else CertificateKind.EPSILON
        rule, assumptions = _proof(ledger)
        return _certificate(ledger, kind, certain, 0.0, rule, assumptions)
    log_requested = math.log(ledger.delta) if ledger.delta > 0.0 else -math.inf
    log_plain = ledger.log_delta(ledger.epsilon)
    if log_plain <= log_requested:
        return _certificate(
            ledger, _kind(log_plain), ledger.epsilon, bounds.delta_of(log_plain), _draw_rule(ledger)
        )
    if ledger.lipschitz is not None:
        log_smooth = ledger.log_delta(ledger.epsilon, smooth=True)
        if log_smooth <= log_requested:
            said = ledger.lipschitz.describe(ledger.epsilon, ledger.delta, ledger.best_log_prob)
            delta = bounds.delta_of(log_smooth)
            return _certificate(ledger, _kind(log_smooth), ledger.epsilon, delta, Rule.LIPSCHITZ, said)
    return _certificate(ledger, CertificateKind.NONE, ledger.epsilon, bounds.delta_of(log_plain))


def _proof(ledger: Findings) -> tuple[Rule, tuple[str, ...]]:
    """Name the rule behind the smallest upper bound."""
    if ledger.is_enumerated:
        return Rule.ENUMERATION, ()
    residual = ledger.log_residual if ledger.has_masses else math.inf
    external = math.inf if ledger.external is None else ledger.external[0]
    smallest = min(residual, ledger.log_frontier_bound, external)
    if ledger.log_frontier_bound == smallest:
        return Rule.BOUND, ledger.assumed_coverage
    if residual == smallest:
        return Rule.RESIDUAL, ()
    assert ledger.external is not None
    _, source, is_own = ledger.external
    return (Rule.BOUND, ()) if is_own else (Rule.EXTERNAL, (f"the upper bound from {source} holds",))


def _draw_rule(ledger: Findings) -> Rule:
    return Rule.FRONTIER if any(log_r != 0.0 for log_r, _, _ in ledger.draw_groups) else Rule.DRAWS


def _kind(log_delta: float) -> CertificateKind:
    return CertificateKind.EPSILON if log_delta == -math.inf else CertificateKind.PAC


def _certificate(
    ledger: Findings,
    kind: CertificateKind,
    epsilon: float,
    delta: float,
    rule: Rule | None = None,
    assumptions: tuple[str, ...] = (),
) -> Certificate:
    return Certificate(kind, epsilon, delta, ledger.epsilon, ledger.delta, rule, assumptions, ledger.tolerance)
