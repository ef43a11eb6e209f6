"""Every formula behind a certificate, as a pure function.

Symbols: p̂ best evaluated probability; τ(ε) = p̂ / (1 - ε); p̌ residual mass; p* the maximum; m a number
of draws; R the mass of the open boxes; w_k the weighted volume of a Hamming ball. An answer is false at ε
when p* > τ(ε), strictly. All logs are natural and every function works where p̂ is e^-4000. The direction
of rounding is always the safe one: p̂ and τ down; p̌, R and bounds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.result import Certificate, CertificateKind, Rule
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.errors import SolverError

LN2 = math.log(2.0)
SMALLEST = math.ulp(0.0)
SLACK = 1e-12


def slack(log_x: float, floor: float = SLACK) -> float:
    """Return a generous bound (nats) on the error of a log; `floor`: relative rounding error of its making."""
    return floor + 1e-15 * abs(log_x) if math.isfinite(log_x) else 0.0


def round_up(log_x: float, floor: float = SLACK) -> float:
    """Return a log (nats) moved up by its rounding error."""
    return log_x + slack(log_x, floor)


def round_down(log_x: float, floor: float = SLACK) -> float:
    """Return a log (nats) moved down by its rounding error."""
    return log_x - slack(log_x, floor)


def log_tau(log_p_hat: float, epsilon: float) -> float:
    """ln τ(ε) = ln p̂ - ln(1 - ε), in nats."""
    return log_p_hat - math.log1p(-epsilon)


def log_tau_within(log_p_hat: float, epsilon: float, tolerance: float) -> float:
    """ln max(τ(ε), p̂ (1 + tol)): the largest p* that still makes the answer right at ε, in nats."""
    return log_p_hat + max(-math.log1p(-epsilon), math.log1p(tolerance))


def log_closing_threshold(log_p_hat: float, epsilon: float, tolerance: float, floor: float = SLACK) -> float:
    """The largest log bound at which a box may close: later rounded up, it stays within τ of p̂ rounded down."""
    log_t = log_tau_within(log_p_hat, epsilon, tolerance)
    return log_t - 3.0 * slack(log_t, floor)


def log_p_check(evaluated: float, compensation: float = 0.0, floor: float = SLACK) -> float:
    """Rule 1: ln p̌ = ln(1 - Σ_{q in S} p(q|e)), rounded up, in nats; S are the distinct evaluated points, whose
    probabilities add to the compensated pair `evaluated`, `compensation`.
    """
    residual = (1.0 - evaluated) - compensation
    if evaluated < 0.5:  # else the subtraction is exact
        residual = math.nextafter(residual, 1.0)
    residual = max(residual, 0.0) + floor * min(max(evaluated, 0.0), 1.0)
    return min(math.log(residual), 0.0) if residual > 0.0 else -math.inf


def evidence_per_draw(log_t: float, log_r: float = 0.0) -> float:
    """Rules 2 and 6: -ln(1 - τ/R) in nats, rounded down (0 below e^-745); inf when τ >= R, against p* <= R."""
    ratio = log_t - log_r
    if ratio >= 0.0:
        return math.inf
    return -math.log1p(-math.exp(ratio))


def published_evidence_per_draw(log_t: float) -> float:
    """Rule 2 as published: τ in nats (m draws suffice when m τ >= ln(1/δ)); smaller than -ln(1 - τ)."""
    return math.exp(log_t) if log_t < 0.0 else math.inf


def martingale_evidence(
    log_t: float, log_t_within: float, log_r: Floats, log_closed: Floats, counts: Ints
) -> float:
    """Rule 6: Σ -ln(1 - τ/R_t), in nats, over the draws that count at τ.

    `log_t_within` is the largest ln p* for which the answer is still right (`log_tau_within`). Per group of draws,
    `log_r` is ln of the open mass drawn from, `log_closed` the largest log bound of a box closed before, and
    `counts` the number of draws; a group counts if that bound is within τ.
    """
    if not len(counts) or log_t == -math.inf:
        return 0.0
    usable = log_closed <= log_t_within
    ratio = log_t - log_r[usable]
    if np.any(ratio >= 0.0):
        return math.inf
    return float(np.sum(-np.log1p(-np.exp(ratio)) * counts[usable]))


def log_delta(evidence: float, top_k: int = 1) -> float:
    """Rules 3 and 8: ln δ = ln k - evidence, at most 0, in nats."""
    return min(0.0, math.log(top_k) - evidence)


def delta_of(log_d: float) -> float:
    """Return δ from ln δ; positive unless ln δ is -inf, so that no underflow claims certainty."""
    return 0.0 if log_d == -math.inf else max(min(math.exp(log_d), 1.0), SMALLEST)


def required_evidence(delta: float, top_k: int = 1) -> float:
    """ln(k/δ): the evidence (nats) at which a probabilistic stop is sound; inf for δ = 0."""
    return math.inf if delta <= 0.0 else math.log(top_k) - math.log(delta)


def log_draws_needed(log_t: float, delta: float, log_r: float = 0.0, top_k: int = 1) -> float:
    """Rule 2 solved for the number of draws at a fixed p̂: ln m; inf for δ = 0 unless τ >= R."""
    ratio = log_t - log_r
    if ratio >= 0.0:
        return 0.0
    need = required_evidence(delta, top_k)
    if ratio < -36.0:
        log_each = ratio
    else:  # a probability near 1 would round to 1; its complement keeps its digits
        log_missed = math.log(-math.expm1(ratio)) if ratio > -LN2 else math.log1p(-math.exp(ratio))
        log_each = math.log(-log_missed)
    return max(0.0, math.log(need) - log_each) if need > 0.0 else 0.0


def min_entropy_bits(log_u: float, log_p_hat: float) -> tuple[float, float]:
    """-log2 u <= h <= -log2 p̂: bounds, in bits, on the min-entropy h = -log2 p*."""
    return max(-log_u / LN2, 0.0), max(-log_p_hat / LN2, 0.0)


def draws_between(log_u: float, log_p_hat: float, epsilon: float, delta: float) -> tuple[float, float]:
    """Rule 2 solved for the number of draws at p* = u and at p* = p̂, as if the mode had been drawn."""
    logs = (log_draws_needed(log_tau(x, epsilon), delta) for x in (log_u, log_p_hat))
    fewest, most = (math.exp(x) if x < 700.0 else math.inf for x in logs)
    return fewest, most


def good_radius(epsilon: float, bits: float, radius: int) -> int:
    """Rule 4: k = min(r, floor(log2(1/(1-ε)) / L)), the radius in which every atom is ε-good."""
    if bits <= 0.0:
        raise SolverError(f"the Lipschitz constant is {bits}; expected a positive number of bits per variable")
    return math.floor(min(radius, -math.log1p(-epsilon) / LN2 / bits))


def log_shells(n_states: Sequence[int] | Ints, radius: int) -> Floats:
    """ln e_j(K_1 - 1, ..., K_n - 1), j = 0..radius: ln of the number of points at Hamming distance j."""
    shells = np.full(radius + 1, -np.inf)
    shells[0] = 0.0
    for k in n_states:
        if k > 1:
            shells[1:] = np.logaddexp(shells[1:], shells[:-1] + math.log(int(k) - 1))
    return shells


def log_ball_weight(n_states: Sequence[int] | Ints, bits: float, k: int) -> float:
    """Rule 4: ln w_k = ln Σ_{j=0..k} e_j 2^{-Lj}, rounded down, in nats."""
    terms = log_shells(n_states, k) - bits * LN2 * np.arange(k + 1)
    top = float(np.max(terms))
    return round_down(top + math.log(float(np.sum(np.exp(terms - top))))) if k else 0.0


def log_real_ball_weight(n: int, epsilon: float, bits: float, radius: float) -> float:
    """Rule 9: ln W, W = ∫_{‖x‖<=ρ} 2^{-L‖x‖} dx with ρ = min(r, log2(1/(1-ε)) / L), rounded down.

    In polar coordinates W = S_{n-1} γ(n, aρ) / a^n with a = L ln 2 and S_{n-1} the area of the unit sphere.
    """
    special: Any = import_module("scipy.special")  # slow to import, so only when needed
    if bits <= 0.0:
        raise SolverError(f"the Lipschitz constant is {bits}; expected a positive number of bits per unit")
    a = bits * LN2
    rho = min(radius, -math.log1p(-epsilon) / a)
    if rho <= 0.0:
        return -math.inf
    share = float(special.gammainc(n, a * rho))
    # γ(n, x) >= x^n e^-x / n, and close to it where it underflows
    floor = n * math.log(a * rho) - a * rho - math.log(n)
    log_share = math.log(share) + math.lgamma(n) if share > 0.0 else floor
    log_sphere = LN2 + 0.5 * n * math.log(math.pi) - math.lgamma(0.5 * n)
    return round_down(log_sphere + log_share - n * math.log(a))


def log_upper(log_p_hat: float, log_unseen: float, log_external: float) -> float:
    """Rule 7: the upper bound on ln p*: ln max(p̂, min(bound on unevaluated points, external proof))."""
    return max(log_p_hat, min(log_unseen, log_external))


def achieved_epsilon(log_p_hat: float, log_u: float, tolerance: float) -> float:
    """Return the smallest ε that an upper bound proves: 1 - p̂/u rounded up; 0 when u <= p̂ (1 + tol)."""
    if log_u <= log_p_hat + math.log1p(tolerance):
        return 0.0
    return min(-math.expm1(log_p_hat - log_u) * (1.0 + 1e-15), 1.0)


def certificate_between(
    lower: float, upper: float, floor: float, epsilon: float, tolerance: float, exact: float = 1e-9
) -> Certificate:
    """Judge an answer of a value of at least `lower` where none is above `upper`; both in units, of any sign.

    The gap is taken as a share of the larger side, of at least `floor`. It is exact up to the share `exact`, and
    certified up to `epsilon`, or where the gap itself is at most `tolerance`.
    """
    share = (upper - lower) / max(abs(lower), abs(upper), floor, SMALLEST_NORMAL)
    if share <= exact:
        return Certificate(CertificateKind.EXACT, 0.0, 0.0, epsilon, 0.0, Rule.BOUND, (), exact)
    if share <= epsilon or upper - lower <= tolerance:
        return Certificate(CertificateKind.EPSILON, share, 0.0, epsilon, 0.0, Rule.BOUND, (), exact)
    return Certificate(CertificateKind.NONE, epsilon, 1.0, epsilon, 0.0, None, (), exact)
