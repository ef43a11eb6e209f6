"""What a ledger has earned: its certificate, and the pairs (epsilon, delta) that hold."""

from __future__ import annotations

import math

import numpy as np

from certimap.certify import bounds
from certimap.certify.findings import Findings
from certimap.core.result import Certificate, CertificateKind, Rule

N_PAIRS = 33


def pareto_front(ledger: Findings) -> list[tuple[float, float]]:
    """Return admissible pairs by rising epsilon; none needs an assumption.

    Each delta is the smallest that the draws support at its epsilon. For every d0, the probability that any
    pair with delta <= d0 is false is at most d0, whenever the run stopped. The curve is given at the requested
    epsilon and on an even grid. The last pair is the one proved for certain, if any upper bound is known.
    """
    certain = certain_epsilon(ledger)
    if certain == 0.0:
        return [(0.0, 0.0)]
    grid = {float(e) for e in np.linspace(0.0, certain, N_PAIRS, endpoint=False)}
    if ledger.epsilon < certain:
        grid.add(ledger.epsilon)
    front: list[tuple[float, float]] = []
    for epsilon in sorted(grid):
        delta = bounds.delta_of(ledger.log_delta(epsilon))
        if delta < (front[-1][1] if front else 1.0):
            front.append((epsilon, delta))
        if delta == 0.0:
            return front
    if certain < 1.0:
        front.append((certain, 0.0))
    return front


def certain_epsilon(ledger: Findings) -> float:
    """Return the smallest epsilon that holds for certain; 1 when nothing is proved."""
    if ledger.log_rival_bound == math.inf:
        return 1.0
    return bounds.achieved_epsilon(ledger.log_kth_best, ledger.log_rival_bound, ledger.tolerance)


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
        rule = Rule.FRONTIER if any(log_r != 0.0 for log_r, _, _ in ledger.draw_groups) else Rule.DRAWS
        return _certificate(ledger, _kind(log_plain), ledger.epsilon, bounds.delta_of(log_plain), rule)
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
