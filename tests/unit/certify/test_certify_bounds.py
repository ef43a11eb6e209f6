"""Each formula against a direct computation that shares no code with it, and at p = e^-4000."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate

from certimap.certify import bounds
from certimap.errors import SolverError

TINY = -4000.0


@pytest.mark.parametrize("p_hat", [0.3, 0.04, 1e-9])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5])
def test_tau_and_the_evidence_of_a_draw(p_hat, epsilon):
    log_t = bounds.log_tau(math.log(p_hat), epsilon)
    tau = p_hat / (1 - epsilon)
    assert math.exp(log_t) == pytest.approx(tau, rel=1e-12)
    assert bounds.evidence_per_draw(log_t) == pytest.approx(-math.log(1 - tau), rel=1e-6)
    assert bounds.evidence_per_draw(log_t, math.log(0.7)) == pytest.approx(-math.log(1 - tau / 0.7), rel=1e-6)
    assert bounds.published_evidence_per_draw(log_t) == pytest.approx(tau, rel=1e-12)
    assert bounds.published_evidence_per_draw(log_t) <= bounds.evidence_per_draw(log_t)


def test_a_threshold_above_the_open_mass_is_certain():
    assert bounds.evidence_per_draw(math.log(0.5), math.log(0.5)) == math.inf
    assert bounds.evidence_per_draw(0.1) == math.inf
    assert bounds.log_delta(math.inf) == -math.inf
    assert bounds.delta_of(-math.inf) == 0.0


def test_draws_needed_counts_what_the_rule_needs():
    log_t = bounds.log_tau(math.log(0.97 / 35), 0.05)
    assert math.ceil(math.exp(bounds.log_draws_needed(log_t, 0.05))) == 102
    assert bounds.log_draws_needed(log_t, 0.0) == math.inf
    assert bounds.log_draws_needed(0.5, 0.0) == 0.0


def test_nothing_underflows_at_e_to_the_minus_4000():
    log_t = bounds.log_tau(TINY, 0.01)
    assert log_t == pytest.approx(TINY - math.log(0.99), abs=1e-9)
    assert bounds.evidence_per_draw(log_t) >= 0.0
    assert bounds.evidence_per_draw(log_t, TINY + 1.0) == pytest.approx(
        -math.log1p(-math.exp(-1.0) / 0.99), rel=1e-9
    )
    assert bounds.log_draws_needed(log_t, 0.01) == pytest.approx(-log_t + math.log(math.log(100)), rel=1e-12)
    assert bounds.achieved_epsilon(TINY, TINY + math.log(2.0), 1e-9) == pytest.approx(0.5, rel=1e-9)
    evidence = bounds.martingale_evidence(
        log_t, log_t, np.array([TINY + 2.0]), np.array([-np.inf]), np.array([10])
    )
    assert evidence == pytest.approx(-10 * math.log1p(-math.exp(-2.0) / 0.99), rel=1e-9)
    assert bounds.log_upper(TINY, TINY + 3.0, math.inf) == TINY + 3.0


def test_delta_never_underflows_to_certainty():
    assert bounds.delta_of(-1e6) > 0.0
    assert bounds.delta_of(0.0) == 1.0


def test_residual_mass_rounds_up_and_stays_below_one():
    assert bounds.log_p_check(0.0) == 0.0
    assert math.exp(bounds.log_p_check(0.25)) == pytest.approx(0.75, rel=1e-11)
    assert bounds.log_p_check(0.25) >= math.log(0.75)
    assert bounds.log_p_check(1.0 + 1e-15) < math.log(1e-11)
    for evaluated in (3.270718268278228e-14, 1e-16, 7.3e-10):
        assert bounds.log_p_check(evaluated, floor=0.0) >= math.log1p(-evaluated)


def test_the_residual_never_falls_below_what_the_sum_may_be_off_by():
    for evaluated in (1.0, 1.0 + 1e-15, 1.0 - 1e-16):
        assert bounds.log_p_check(evaluated) >= math.log(1e-12)
    assert bounds.log_p_check(0.5, 0.0, 1e-9) == pytest.approx(math.log(0.5 + 0.5e-9), abs=1e-15)
    assert bounds.log_p_check(2.0, 0.0, 1e-9) == pytest.approx(math.log(1e-9))


def test_what_the_sum_lost_is_added_to_it_again():
    assert math.exp(bounds.log_p_check(1.0, -1e-6)) == pytest.approx(1e-6, rel=1e-5)
    assert math.exp(bounds.log_p_check(1.0 - 3e-6, 2e-6)) == pytest.approx(1e-6, rel=1e-5)
    assert bounds.log_p_check(1.0, 1e-6) == pytest.approx(math.log(1e-12))


def test_groups_count_only_where_what_was_closed_before_could_not_hide_the_mode():
    log_r = np.log([1.0, 0.5])
    log_closed = np.array([-np.inf, math.log(0.2)])
    counts = np.array([3, 4])
    low, high = math.log(0.1), math.log(0.2)
    assert bounds.martingale_evidence(low, low, log_r, log_closed, counts) == pytest.approx(-3 * math.log(0.9))
    both = bounds.martingale_evidence(high, high, log_r, log_closed, counts)
    assert both == pytest.approx(-3 * math.log(0.8) - 4 * math.log(0.6))


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (3, 2, 4), (1, 5, 2)])
@pytest.mark.parametrize("radius", [0, 1, 2, 3])
def test_ball_weights_against_a_listing_of_the_ball(sizes, radius):
    bits = 0.3
    points = np.array(list(itertools.product(*(range(k) for k in sizes))))
    distances = (points != 0).sum(axis=1)
    weight = sum(2.0 ** (-bits * d) for d in distances if d <= radius)
    assert math.exp(bounds.log_ball_weight(sizes, bits, radius)) == pytest.approx(weight, rel=1e-9)
    shells = np.exp(bounds.log_shells(sizes, radius))
    assert shells == pytest.approx([np.sum(distances == j) for j in range(radius + 1)], abs=1e-9)


def test_weight_of_the_smallest_ball_is_one():
    assert bounds.log_ball_weight((2, 2, 2), 1.0, 0) == 0.0  # the sum starts at distance 0


def test_good_radius_follows_epsilon():
    assert bounds.good_radius(0.5, 1.0, 3) == 1
    assert bounds.good_radius(0.75, 1.0, 3) == 2
    assert bounds.good_radius(0.99, 0.1, 3) == 3
    assert bounds.good_radius(0.0, 0.1, 3) == 0
    with pytest.raises(SolverError, match="positive number of bits"):
        bounds.good_radius(0.1, 0.0, 3)


def test_every_point_of_the_ball_is_good_and_no_larger_ball_is():
    rng = np.random.default_rng(0)
    for epsilon, bits in zip(rng.random(300), rng.uniform(0.05, 2.0, 300), strict=True):
        k = bounds.good_radius(epsilon, bits, 40)
        assert 2.0 ** (-bits * k) >= (1.0 - epsilon) * (1.0 - 1e-12)
        assert k == 40 or 2.0 ** (-bits * (k + 1)) < (1.0 - epsilon) * (1.0 + 1e-12)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("radius", [5.0, 0.4])  # beyond where points stop being good, and before
def test_real_ball_weight_against_quadrature(n, radius):
    epsilon, bits = 0.5, 0.7
    rho = min(radius, 1.0 / bits)
    area = {1: 2.0, 2: 2 * math.pi, 3: 4 * math.pi}[n]
    weight, _ = integrate.quad(lambda x: area * x ** (n - 1) * 2.0 ** (-bits * x), 0, rho)
    assert math.exp(bounds.log_real_ball_weight(n, epsilon, bits, radius)) == pytest.approx(weight, rel=1e-8)
    assert bounds.log_real_ball_weight(n, 0.0, bits, radius) == -math.inf


def test_real_ball_weight_in_many_dimensions_does_not_underflow():
    assert -1e5 < bounds.log_real_ball_weight(400, 0.01, 5.0, 1.0) < -1000


@pytest.mark.parametrize("n", [150, 400])
def test_real_ball_weight_against_fifty_digits_where_floats_underflow(n):
    """The weight may only be too small there, for draws count by it."""
    epsilon, bits, radius = 0.3, 2.0, 1.0
    a = mpmath.mpf(bits) * mpmath.log(2)
    with mpmath.workdps(50):
        rho = min(mpmath.mpf(radius), -mpmath.log(1 - mpmath.mpf(epsilon)) / a)
        sphere = 2 * mpmath.pi ** (mpmath.mpf(n) / 2) / mpmath.gamma(mpmath.mpf(n) / 2)
        true = float(mpmath.log(sphere * mpmath.gammainc(n, 0, a * rho) / a**n))
    got = bounds.log_real_ball_weight(n, epsilon, bits, radius)
    assert true - 0.01 <= got <= true


def test_constants_that_are_no_lengths_are_refused():
    for bits in (0.0, -1.0):
        with pytest.raises(SolverError, match="positive number of bits per unit"):
            bounds.log_real_ball_weight(2, 0.1, bits, 1.0)


@pytest.mark.parametrize("top_k", [1, 4])
@pytest.mark.parametrize("log_r", [0.0, math.log(0.3), TINY])
def test_draws_needed_are_those_that_the_evidence_of_one_adds_up_to(log_r, top_k):
    log_t = log_r + math.log(0.02)
    each, need = bounds.evidence_per_draw(log_t, log_r), bounds.required_evidence(0.05, top_k)
    assert bounds.log_draws_needed(log_t, 0.05, log_r, top_k) == pytest.approx(math.log(need / each), rel=1e-12)
    assert bounds.log_draws_needed(log_r, 0.05, log_r) == 0.0
    assert bounds.log_draws_needed(log_t, 0.9999, log_r) == 0.0  # one draw, and never less
    assert bounds.log_draws_needed(-1.0, 1.0) == 0.0
    assert bounds.log_draws_needed(-1e-17, 1e-9) == 0.0  # exp(-1e-17) is 1 in doubles
    assert bounds.log_draws_needed(-1e-12, 1e-300) == pytest.approx(
        math.log(300 * math.log(10) / 27.631), rel=1e-4
    )
    assert bounds.log_draws_needed(math.log(0.5), 0.6) == 0.0


def test_the_published_count_is_certain_only_where_the_threshold_reaches_one():
    assert bounds.published_evidence_per_draw(0.0) == math.inf
    assert bounds.published_evidence_per_draw(0.5) == math.inf
    assert bounds.published_evidence_per_draw(-1e-9) == pytest.approx(1.0)


def test_a_less_exact_oracle_closes_boxes_lower():
    for floor in (1e-12, 1e-10):
        threshold = bounds.log_closing_threshold(-2.0, 0.01, 1e-9, floor)
        assert bounds.log_tau_within(-2.0, 0.01, 1e-9) - threshold == pytest.approx(3 * floor, rel=0.01)


def test_a_bound_at_the_closing_threshold_stays_within_tau_once_rounded_up():
    for log_best in (-0.1, -30.0, TINY):
        for epsilon in (0.0, 0.01):
            threshold = bounds.log_closing_threshold(log_best, epsilon, 1e-9)
            assert bounds.round_up(threshold) <= bounds.log_tau_within(log_best, epsilon, 1e-9)


def test_several_answers_cost_the_log_of_their_number():
    assert bounds.required_evidence(0.1, 5) == pytest.approx(math.log(50))
    assert math.exp(bounds.log_delta(math.log(50), 5)) == pytest.approx(0.1)
    assert bounds.required_evidence(0.0) == math.inf
