"""The ledger's bookkeeping, and each rule where it starts to hold."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import certimap as cm
from certimap.certify.findings import Books
from certimap.certify.ledger import Ledger, Source, issue, own_source, pareto_front
from certimap.core.posterior import Facts, LogInterval
from certimap.core.result import CertificateKind, Rule
from certimap.testing import TablePosterior


def table(*probs: float) -> TablePosterior:
    return TablePosterior([len(probs)], probs)


def at(*states: int) -> np.ndarray:
    return np.array(states, np.int16)[:, None]


def exponential_table() -> tuple[TablePosterior, int]:
    """The published illustration: six binary variables, normalised exponential weights, p* = .104."""
    weights = np.random.default_rng(2024).exponential(size=64)
    mode = int(np.argmax(weights))
    weights[mode] = 0.104 / 0.896 * (weights.sum() - weights[mode])
    assert mode == int(np.argmax(weights))
    return TablePosterior([2] * 6, weights), mode


@pytest.mark.parametrize(("rule", "expected"), [("published", 44), ("sharp", 42)])
@pytest.mark.parametrize("batch", [1, 3, 10, 41, 1000])
def test_the_published_illustration_stops_at_the_same_draw_for_any_batch(rule, expected, batch):
    posterior, mode = exponential_table()
    ledger = Ledger(posterior, epsilon=0.01, delta=0.01, rule=rule)
    # The mode comes second, then draws of one other state, so that only the count decides.
    other = (mode + 1) % 64
    stream = posterior.points[[other, mode, *([other] * 998)]]
    for start in range(0, len(stream), batch):
        ledger.draws(stream[start : start + batch])
        if ledger.satisfied:
            break
    assert ledger.n_draws == expected
    assert ledger.n_evaluations == 2
    assert ledger.n_draws_to_best == 2
    certificate = issue(ledger)
    assert (certificate.kind, certificate.rule) == (CertificateKind.PAC, Rule.DRAWS)
    assert certificate.delta <= 0.01
    assert ledger.draws(stream[:5]).size == 0  # the run is over
    assert ledger.n_draws == expected


@pytest.mark.parametrize("top_k", [1, 3])
def test_stop_and_state_do_not_depend_on_batches(top_k):
    rng = np.random.default_rng(5)
    for trial in range(20):
        posterior = TablePosterior([6, 5], rng.gamma(0.5, size=30) + 1e-6)
        stream = posterior.sample(600, np.random.default_rng(trial))
        seen = []
        for batch in (1, 7, 64, 600):
            ledger = Ledger(posterior, epsilon=0.02, delta=0.05, top_k=top_k)
            for start in range(0, 600, batch):
                ledger.draws(stream[start : start + batch])
            seen.append(
                (ledger.n_draws, ledger.n_evaluations, ledger.best, ledger.log_residual, ledger.log_delta(0.02))
            )
        assert all(s == seen[0] for s in seen)
        assert ledger.satisfied


def test_the_stop_is_the_first_draw_that_satisfies():
    """Replayed one by one with the certificate issued from scratch after each draw."""
    rng = np.random.default_rng(8)
    for trial in range(10):
        posterior = TablePosterior([12], rng.gamma(1.0, size=12))
        stream = posterior.sample(400, np.random.default_rng(trial))
        judged = Ledger(posterior, epsilon=0.05, delta=0.1)
        judged.draws(stream)
        free = Ledger(posterior, epsilon=0.05, delta=0.1, early_stop=False)
        for n in range(1, judged.n_draws + 1):
            free.draws(stream[n - 1 : n])
            expected = CertificateKind.NONE if n < judged.n_draws else issue(judged).kind
            assert issue(free).kind is expected


def test_repeated_candidates_change_no_mass_and_are_no_draws():
    posterior = table(0.5, 0.3, 0.2)
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    ledger.candidates(at(*([1] * 64)))
    assert ledger.n_evaluations == 1
    assert ledger.n_draws == 0
    assert math.exp(ledger.log_residual) == pytest.approx(0.7)
    assert ledger.log_delta(0.0) == 0.0
    ledger.candidates(at(1, 1, 0))
    assert math.exp(ledger.log_residual) == pytest.approx(0.2)
    certificate = issue(ledger)
    assert (certificate.kind, certificate.rule) == (CertificateKind.EXACT, Rule.RESIDUAL)
    assert pareto_front(ledger) == [(0.0, 0.0)]


def test_only_new_atoms_are_evaluated():
    asked = []
    inner = table(0.5, 0.3, 0.2)

    def oracle(points):
        asked.extend(points[:, 0].tolist())
        return inner.log_prob(points)

    ledger = Ledger(cm.FunctionPosterior([3], inner.sample, oracle), epsilon=0.0, delta=0.0)
    ledger.draws(at(2, 2, 1, 2))
    ledger.candidates(at(1, 2))
    assert sorted(asked) == [1, 2]


def test_residual_mass_certifies_an_epsilon():
    ledger = Ledger(table(0.4, 0.42, 0.18), epsilon=0.1, delta=0.0)
    ledger.candidates(at(0))
    assert not ledger.satisfied
    ledger.candidates(at(2))
    assert ledger.satisfied
    certificate = issue(ledger)
    assert (certificate.kind, certificate.rule, certificate.delta) == (CertificateKind.EPSILON, Rule.RESIDUAL, 0.0)
    assert certificate.epsilon == pytest.approx(1 - 0.4 / 0.42)
    assert math.exp(ledger.log_upper_bound) == pytest.approx(0.42)


def test_closed_boxes_prove_what_their_bounds_say():
    ledger = Ledger(table(0.3, 0.31, 0.2, 0.19), epsilon=0.1, delta=0.0)
    ledger.candidates(at(0))
    assert not ledger.satisfied
    assert math.log(0.31) <= ledger.log_threshold <= math.log(0.3 / 0.9)
    ledger.close(np.log([0.31, 0.2]), np.log([0.31, 0.39]))
    ledger.close(-math.inf, math.log(0.3))
    assert not ledger.satisfied  # nothing says that no box is open
    ledger.frontier(-math.inf, -math.inf)
    assert ledger.satisfied
    certificate = issue(ledger)
    assert (certificate.kind, certificate.rule) == (CertificateKind.EPSILON, Rule.BOUND)
    assert certificate.epsilon == pytest.approx(1 - 0.3 / 0.31)
    assert math.exp(ledger.log_closed_measure) == pytest.approx(1.0)


def test_the_upper_bound_falls_with_the_frontier_and_never_rises():
    ledger = Ledger(table(0.2, 0.3, 0.5), epsilon=0.0, delta=0.0)
    ledger.settle(at(0))
    ledger.frontier(math.log(0.8), math.log(0.6))
    assert math.exp(ledger.log_upper_bound) == pytest.approx(0.6)
    ledger.close(math.log(0.3), math.log(0.25))
    ledger.frontier(math.log(0.55), math.log(0.7))
    assert math.exp(ledger.log_upper_bound) == pytest.approx(0.55)  # the open mass bounds too
    ledger.frontier(math.log(0.55), math.log(0.8))
    assert math.exp(ledger.log_upper_bound) == pytest.approx(0.55)


def test_external_bounds_name_their_source():
    ledger = Ledger(table(0.3, 0.3, 0.4), epsilon=0.0, delta=0.0)
    ledger.candidates(at(2))
    ledger.upper_bound(math.log(0.9), "a loose relaxation")
    ledger.upper_bound(math.log(0.4), "toulbar2")
    certificate = issue(ledger)
    assert (certificate.kind, certificate.rule) == (CertificateKind.EXACT, Rule.EXTERNAL)
    assert certificate.assumptions == ("the upper bound from toulbar2 holds",)


def test_a_source_of_this_package_needs_no_assumption():
    proof = own_source("a proof of the tests")
    ledger = Ledger(table(0.3, 0.3, 0.4), epsilon=0.0, delta=0.0)
    ledger.candidates(at(2))
    ledger.upper_bound(math.log(0.4), proof)
    assert (issue(ledger).rule, issue(ledger).assumptions) == (Rule.BOUND, ())
    ledger = Ledger(table(0.3, 0.3, 0.4), epsilon=0.0, delta=0.0)
    ledger.candidates(at(2))
    ledger.upper_bound(math.log(0.4), Source(proof.name))  # of the same name, but not the same
    assert issue(ledger).assumptions == ("the upper bound from a proof of the tests holds",)


def test_books_that_do_not_balance_are_refused():
    def fresh():
        ledger = Ledger(table(0.3, 0.31, 0.2, 0.19), epsilon=0.1, delta=0.0)
        ledger.settle(at(0))
        return ledger

    for closed, left_open in ((None, -math.inf), (0.5, -math.inf), (0.7, math.log(0.1)), (None, math.log(0.6))):
        ledger = fresh()
        if closed is not None:
            ledger.close(math.log(0.3), math.log(closed))
        with pytest.raises(cm.UnbalancedBooks, match="of the space by mass"):
            ledger.frontier(left_open, math.log(0.3))
        assert ledger.log_frontier_bound == math.inf
    with pytest.raises(cm.UnbalancedBooks, match="closed without its mass"):
        fresh().close(math.log(0.3))
    with pytest.raises(cm.UnbalancedBooks, match="drawn from"):
        fresh().draws(at(1), math.log(0.5))


def test_bounds_below_the_average_of_what_they_bound_are_refused():
    ledger = Ledger(table(0.3, 0.31, 0.2, 0.19), epsilon=0.1, delta=0.0)
    ledger.settle(at(0))
    ledger.close(math.log(0.1), math.log(0.7))  # three points of mass 0.7 in all
    with pytest.raises(cm.UnbalancedBooks, match="on average"):
        ledger.frontier(-math.inf, -math.inf)


def test_a_point_is_settled_once():
    ledger = Ledger(table(0.3, 0.31, 0.2, 0.19))
    ledger.settle(at(0, 0))
    ledger.settle(at(1, 0))
    assert math.exp(ledger.log_closed_measure) == pytest.approx(0.61)


def test_without_masses_books_are_kept_in_shares_of_the_points():
    inner = table(0.3, 0.3, 0.2, 0.2)
    posterior = cm.FunctionPosterior([4], inner.sample, lambda x: inner.log_prob(x) - 7.0, normalised=False)
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    ledger.settle(at(0))
    with pytest.raises(cm.UnbalancedBooks, match="of the space by share"):
        ledger.frontier(-math.inf, -math.inf)
    ledger.close(math.log(0.3) - 7.0, math.log(3 / 4))
    ledger.frontier(-math.inf, -math.inf)
    assert issue(ledger).kind is CertificateKind.EXACT


class Interval(TablePosterior):
    """A table whose values are known between two sides."""

    def __init__(self, *probs, gap):
        super().__init__([len(probs)], probs)
        self.gap = np.asarray(gap)

    def log_prob(self, points):
        return self.log_prob_interval(points).lower

    def log_prob_interval(self, points):
        value = super().log_prob(points)
        return LogInterval(value - self.gap[points[:, 0]], value + self.gap[points[:, 0]])


def test_the_lower_side_answers_and_the_upper_side_remains():
    ledger = Ledger(Interval(0.5, 0.3, 0.2, gap=[0.1, 0.3, 0.0]), epsilon=0.0, delta=0.0)
    ledger.candidates(at(0, 1, 2))
    ledger.enumerated()
    assert ledger.best_log_prob == pytest.approx(math.log(0.5) - 0.1)
    assert ledger.log_upper_bound == pytest.approx(math.log(0.5) + 0.1)
    assert issue(ledger).kind is CertificateKind.EXACT  # no rival reaches the lower side
    ledger = Ledger(Interval(0.5, 0.3, 0.2, gap=[0.3, 0.3, 0.0]), epsilon=0.0, delta=0.0)
    ledger.candidates(at(0, 1, 2))
    ledger.enumerated()
    certificate = issue(ledger)
    assert certificate.kind is CertificateKind.NONE
    assert pareto_front(ledger)[-1] == (pytest.approx(1.0 - 0.5 / 0.3 * math.exp(-0.6)), 0.0)


def test_no_number_of_draws_settles_a_rival_whose_upper_side_is_too_high():
    ledger = Ledger(Interval(0.5, 0.4, 0.1, gap=[0.2, 0.2, 0.0]), epsilon=0.01, delta=0.1)
    ledger.draws(at(*([0, 1] * 500)))
    assert (ledger.n_draws, ledger.satisfied) == (1000, False)
    assert ledger.log_delta(0.01) == 0.0
    assert ledger.log_delta(0.2) < math.log(0.1)
    for batch in (1, 3, 40):  # the stop depends on no batch size
        many = Interval(0.3, 0.2, *[0.05] * 10, gap=[0.1, 0.1, *[0.0] * 10])
        ledger = Ledger(many, epsilon=0.01, delta=0.1)
        for start in range(0, 40, batch):
            ledger.draws(at(*([1, 0] * 20))[start : start + batch])
        assert ledger.n_draws == 8


def test_draws_from_open_boxes_count_at_the_mass_they_were_drawn_at():
    probs = [0.02] * 50
    ledger = Ledger(table(*probs), epsilon=0.0, delta=0.05)
    ledger.candidates(at(0))
    ledger.close(math.log(0.02), math.log(0.9))
    ledger.frontier(math.log(0.1), math.log(0.05))
    n = math.ceil(math.log(0.05) / math.log1p(-0.02 / 0.1))
    ledger.draws(at(*([49] * (n - 1))), math.log(0.1))
    assert not ledger.satisfied
    ledger.close(math.log(0.02), math.log(0.06))
    ledger.frontier(math.log(0.04), math.log(0.05))
    assert not ledger.satisfied  # a smaller open mass does not lift draws already made
    ledger.draws(at(49, 49, 49), math.log(0.04))
    assert ledger.n_draws == n
    certificate = issue(ledger)
    assert (certificate.kind, certificate.rule) == (CertificateKind.PAC, Rule.FRONTIER)


def test_draws_made_after_a_box_closed_say_nothing_below_its_bound():
    ledger = Ledger(table(0.1, 0.12, *[0.01] * 78), epsilon=0.2, delta=0.01, early_stop=False)
    ledger.candidates(at(0))
    ledger.draws(at(5, 6, 7))
    ledger.close(math.log(0.12), math.log(0.5))
    ledger.draws(at(8, 9), math.log(0.5))
    tau = 0.1 / (1 - 0.2)
    both = 3 * math.log1p(-tau) + 2 * math.log1p(-tau / 0.5)
    assert ledger.log_delta(0.2) == pytest.approx(both)
    assert ledger.log_delta(0.1) == pytest.approx(3 * math.log1p(-0.1 / 0.9))
    assert ledger.draw_groups[0][2] == 3


def test_no_number_of_draws_makes_up_for_a_box_closed_above_the_threshold():
    """The box may hold the best point, and no draw made since can have hit it."""
    ledger = Ledger(table(0.1, 0.12, *[0.01] * 78), epsilon=0.1, delta=0.1)
    ledger.candidates(at(0))
    ledger.close(math.log(0.12), math.log(0.5))
    ledger.draws(at(*([8, 9] * 500)), math.log(0.5))
    assert (ledger.n_draws, ledger.satisfied) == (1000, False)
    assert ledger.log_delta(0.1) == 0.0
    assert issue(ledger).kind is CertificateKind.NONE
    wide = Ledger(table(0.1, 0.12, *[0.01] * 78), epsilon=0.2, delta=0.1)
    wide.candidates(at(0))
    wide.close(math.log(0.12), math.log(0.5))
    wide.draws(at(*([8, 9] * 500)), math.log(0.5))
    assert wide.n_draws == math.ceil(math.log(0.1) / math.log1p(-0.125 / 0.5))


def test_draws_before_such_a_box_count_and_those_after_do_not():
    def ledger_of(n_before, n_after):
        ledger = Ledger(table(0.1, 0.12, *[0.01] * 78), epsilon=0.1, delta=0.1)
        ledger.candidates(at(0))
        ledger.draws(at(*([5, 6] * (n_before // 2))))
        ledger.close(math.log(0.12), math.log(0.5))
        ledger.draws(at(*([8, 9] * (n_after // 2))), math.log(0.5))
        return ledger

    enough = math.ceil(math.log(0.1) / math.log1p(-0.1 / 0.9))
    assert ledger_of(enough + 1, 0).satisfied
    assert not ledger_of(enough - 2, 400).satisfied


def rounding_oracle(*probs):
    """An oracle whose logs are off upwards by less than a posterior may be off (1e-12)."""
    exact = table(*probs)
    return cm.FunctionPosterior([len(probs)], exact.sample, lambda x: np.minimum(exact.log_prob(x) + 4e-13, 0.0))


def test_the_second_best_is_not_proved_by_a_sum_that_rounding_made_whole():
    ledger = Ledger(rounding_oracle(1.0 - 3e-13, 1e-13, 2e-13), epsilon=0.0, delta=0.0, top_k=2)
    ledger.candidates(at(0, 1))
    assert ledger.log_residual >= math.log(2e-13)
    assert issue(ledger).kind is CertificateKind.NONE


def test_the_residual_is_what_exact_addition_leaves():
    n = 60_000
    small = np.full(n, 4e-17)  # below half a unit in the last place of the sum, which would lose them all
    values = np.log(np.concatenate([[0.5, 0.5 - 1e-10], small]))
    posterior = cm.FunctionPosterior(
        [3, 30_000], lambda n, rng: np.zeros((n, 2), int), lambda x: values[30_000 * x[:, 0].astype(int) + x[:, 1]]
    )
    ledger = Ledger(posterior)
    rows = np.arange(n + 2)
    ledger.candidates(np.stack([rows // 30_000, rows % 30_000], axis=1))
    left = 1.0 - math.fsum(np.exp(values))
    assert left == pytest.approx(1e-10 - n * 4e-17, rel=1e-5)
    assert math.exp(ledger.log_residual) == pytest.approx(left + 1e-12, rel=1e-3)


def test_a_threshold_above_an_open_mass_leaves_no_doubt():
    ledger = Ledger(table(0.3, 0.25, 0.25, 0.2), epsilon=0.0, delta=0.0, early_stop=False)
    ledger.candidates(at(0))
    ledger.settle(at(0))
    ledger.close(math.log(0.25), math.log(0.5))
    ledger.draws(at(3), math.log(0.2))
    assert ledger.log_delta(0.0) == -math.inf
    assert issue(ledger).kind is CertificateKind.EXACT


def test_an_uneven_allocation_counts_less():
    even = Ledger(table(*[0.02] * 50), epsilon=0.0, delta=0.05, early_stop=False)
    uneven = Ledger(table(*[0.02] * 50), epsilon=0.0, delta=0.05, early_stop=False)
    for ledger, log_r in ((even, 0.0), (uneven, math.log(1.5))):
        ledger.draws(at(1, 2, 3), log_r)
    assert uneven.log_delta(0.0) == pytest.approx(3 * math.log1p(-0.02 / 1.5))
    assert even.log_delta(0.0) < uneven.log_delta(0.0)


def test_lipschitz_draws_stop_sooner_and_the_certificate_says_why():
    probs = np.full(64, 1.0)
    posterior = TablePosterior([2] * 6, probs)
    counts = {}
    for bits in (None, 0.5):
        ledger = Ledger(posterior, epsilon=0.5, delta=0.05)
        if bits is not None:
            ledger.assume_lipschitz(bits, 2)
        ledger.draws(posterior.points[[7] * 1000])
        counts[bits] = ledger.n_draws
        certificate = issue(ledger)
        if bits is not None:
            assert certificate.rule is Rule.LIPSCHITZ
            assert "0.5 bits" in certificate.assumptions[0]
            assert ledger.log_delta(0.5) > math.log(0.05)  # the plain rule does not hold yet
    tau, weight = (1 / 64) / 0.5, 1 + 6 * 2**-0.5 + 15 * 2**-1.0
    assert counts[None] == math.ceil(math.log(0.05) / math.log1p(-tau))
    assert counts[0.5] == math.ceil(math.log(0.05) / math.log1p(-tau * weight))


def test_a_lipschitz_constant_and_open_boxes_are_never_combined():
    ledger = Ledger(table(0.5, 0.5), epsilon=0.1, delta=0.1)
    ledger.assume_lipschitz(1.0, 1)
    with pytest.raises(cm.SolverError, match="cannot be combined"):
        ledger.draws(at(0), math.log(0.5))
    ledger = Ledger(table(0.25, 0.25, 0.25, 0.25), epsilon=0.1, delta=0.001)
    ledger.close(math.log(0.25), math.log(0.1))
    ledger.draws(at(0), math.log(0.9))
    with pytest.raises(cm.SolverError, match="cannot be combined"):
        ledger.assume_lipschitz(1.0, 1)


def test_pareto_front_is_the_formula_and_admissible():
    probs = np.array([0.04, *[0.02] * 48])
    posterior = TablePosterior([49], probs)
    ledger = Ledger(posterior, epsilon=0.05, delta=0.001, early_stop=False)
    ledger.draws(at(3, 4, 3, 5, 6))
    front = pareto_front(ledger)
    p_hat, p_check = 0.02, 1 - 4 * 0.02
    for epsilon, delta in front[:-1]:
        assert delta == pytest.approx((1 - p_hat / (1 - epsilon)) ** 5, rel=1e-6)
        assert epsilon < 1 - p_hat / p_check
    assert front[-1] == (pytest.approx(1 - p_hat / p_check), 0.0)
    assert any(epsilon == 0.05 for epsilon, _ in front)
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(front))


def test_delta_zero_forbids_probabilistic_stops():
    ledger = Ledger(table(*[0.01] * 100), epsilon=0.5, delta=0.0)
    ledger.draws(at(*([3] * 20000)))
    assert ledger.n_draws == 20000
    assert issue(ledger).kind is CertificateKind.NONE
    assert 0.0 < issue(ledger).delta < 1e-100


def test_epsilon_zero_allows_a_probabilistic_stop():
    ledger = Ledger(table(*[0.01] * 100), epsilon=0.0, delta=0.05)
    ledger.draws(at(*([3] * 20000)))
    assert ledger.n_draws == math.ceil(math.log(0.05) / math.log(0.99))


def test_top_k_uses_the_kth_best():
    posterior = table(0.4, 0.3, 0.15, 0.1, 0.05)
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0, top_k=2)
    ledger.candidates(at(0))
    assert ledger.log_threshold == -math.inf
    ledger.candidates(at(3))
    assert math.exp(ledger.log_threshold) == pytest.approx(0.1)
    assert not ledger.satisfied
    ledger.candidates(at(1))
    assert ledger.satisfied  # .2 is left, less than .3
    assert [round(math.exp(v), 9) for v, _ in ledger.best] == [0.4, 0.3]
    assert len(Ledger(posterior, top_k=99).best) == 0
    assert Ledger(posterior, top_k=99).top_k == 5


def test_top_k_draws_pay_for_every_answer():
    one = Ledger(table(*[0.01] * 100), epsilon=0.0, delta=0.05)
    three = Ledger(table(*[0.01] * 100), epsilon=0.0, delta=0.05, top_k=3)
    stream = at(*([3, 4, 5] * 2000))
    one.draws(stream)
    three.draws(stream)
    assert one.n_draws == math.ceil(math.log(0.05) / math.log(0.99))
    assert three.n_draws == math.ceil(math.log(0.05 / 3) / math.log(0.99))


def test_densities_are_never_weighed_against_masses():
    domain = cm.Domain([cm.Real("x")])
    normal = cm.FunctionPosterior(
        domain,
        lambda n, rng: rng.normal(0, 1e-4, (n, 1)),
        lambda x: -0.5 * (x[:, 0] / 1e-4) ** 2 - math.log(1e-4 * math.sqrt(2 * math.pi)),
    )
    ledger = Ledger(normal, epsilon=0.01, delta=0.01)
    ledger.draws(normal.sample(500, np.random.default_rng(0)))
    assert ledger.best_log_prob > 0.0  # a density may exceed 1
    assert not ledger.satisfied
    assert ledger.log_delta(0.5) == 0.0
    assert ledger.log_upper_bound == math.inf
    assert pareto_front(ledger) == []
    ledger.frontier(None, ledger.best_log_prob + 0.5)
    assert ledger.log_upper_bound == pytest.approx(ledger.best_log_prob + 0.5)


def test_real_lipschitz_rule_stops_in_one_dimension():
    domain = cm.Domain([cm.Real("x")])
    laplace = cm.FunctionPosterior(
        domain, lambda n, rng: rng.laplace(0, 1, (n, 1)), lambda x: -np.abs(x[:, 0]) - math.log(2.0)
    )
    result = cm.map_query(laplace, solver="smooth_pac", lipschitz=1 / math.log(2), radius=10.0, epsilon=0.1, rng=0)
    assert result.certificate.rule == "lipschitz"
    assert "draws" in result.certificate.assumptions[0]
    assert result.log_prob >= math.log(0.5) + math.log(0.9)


def test_a_ratio_oracle_certifies_nothing_by_counting():
    inner = table(0.9, 0.05, 0.05)
    posterior = cm.FunctionPosterior([3], inner.sample, lambda x: inner.log_prob(x) - 7.0, normalised=False)
    result = cm.map_query(posterior, solver="pac", rng=0, max_samples=500)
    assert result.log_prob is None
    assert result.log_upper_bound is None
    assert result.log_joint == pytest.approx(math.log(0.9) - 7.0)
    assert result.certificate.kind == "none"
    assert result.certificate.delta == 1.0
    assert cm.map_query(posterior, solver="exhaustive").certificate.kind == "exact"


def test_a_failing_oracle_leaves_the_ledger_as_it_was():
    inner = table(0.5, 0.3, 0.2)
    fail = [False]

    def oracle(points):
        if fail[0]:
            raise KeyboardInterrupt
        return inner.log_prob(points)

    ledger = Ledger(cm.FunctionPosterior([3], inner.sample, oracle), epsilon=0.0, delta=0.0)
    ledger.draws(at(2, 2))
    fail[0] = True
    with pytest.raises(KeyboardInterrupt):
        ledger.draws(at(1, 2, 0))
    assert (ledger.n_draws, ledger.n_evaluations, ledger.control.busy) == (2, 1, False)
    fail[0] = False
    ledger.draws(at(1))
    assert (ledger.n_draws, ledger.n_evaluations) == (3, 2)
    assert math.exp(ledger.best_log_prob) == pytest.approx(0.3)


@pytest.mark.parametrize("answer", [[0.5], [math.nan], [[0.0]], [-1.0, -1.0]])
def test_an_oracle_that_is_no_log_probability_is_named(answer):
    posterior = cm.FunctionPosterior([2], lambda n, rng: np.zeros((n, 1), int), lambda x: np.array(answer))
    with pytest.raises(cm.CertimapError, match="log_prob returned"):
        Ledger(posterior).candidates(at(0))


def test_tiny_probabilities_keep_their_order_and_bounds():
    posterior = cm.FunctionPosterior([4], lambda n, rng: np.zeros((n, 1), int), lambda x: -4000.0 - x[:, 0])
    ledger = Ledger(posterior, epsilon=0.01, delta=0.0)
    ledger.candidates(at(1, 2))
    assert ledger.best_log_prob == -4001.0
    ledger.settle(at(1, 2))
    ledger.close(-4001.0 + 0.005, math.log(2 / 4))
    ledger.frontier(-math.inf, -math.inf)
    assert ledger.satisfied
    assert issue(ledger).epsilon == pytest.approx(-math.expm1(-0.005), rel=1e-6)


def test_settings_out_of_range_are_named():
    for settings in ({"epsilon": 1.0}, {"epsilon": -0.1}, {"delta": 1.0}, {"top_k": 0}, {"rule": "loose"}):
        with pytest.raises(cm.SolverError, match=next(iter(settings))):
            Ledger(table(1.0), **settings)


class Rough(TablePosterior):
    """A table whose oracle is known to be off by more than usual."""

    log_slack = 1e-10

    @property
    def facts(self):
        return Facts.of(self.domain, log_evidence=0.0, log_slack=self.log_slack)


def test_bounds_move_by_the_rounding_error_of_the_posterior():
    ledger = Ledger(Rough([4], [0.4, 0.3, 0.2, 0.1]), epsilon=0.0, delta=0.0)
    ledger.settle(at(0))
    ledger.close(-1.0, math.log(0.6))
    assert ledger.log_closed_bound == pytest.approx(-1.0 + 1e-10, abs=1e-14)
    ledger.upper_bound(-0.5, "somebody")
    assert ledger.external[0] == pytest.approx(-0.5 + 1e-10, abs=1e-14)
    assert ledger.log_threshold == pytest.approx(math.log(0.4) + math.log1p(1e-9) - 3e-10, abs=1e-14)
    assert math.exp(ledger.log_residual) == pytest.approx(0.6 + 0.4e-10, abs=1e-13)


def test_the_first_of_equal_proofs_is_named():
    ledger = Ledger(table(0.4, 0.6))
    ledger.upper_bound(-0.5, "the first")
    ledger.upper_bound(-0.5, "the second")
    assert ledger.external[1] == "the first"


def test_boxes_may_be_closed_by_none():
    ledger = Ledger(table(0.4, 0.6))
    ledger.close(np.zeros(0), np.zeros(0))
    assert (ledger.log_closed_bound, ledger.log_closed_measure) == (-math.inf, -math.inf)
    with pytest.raises(cm.UnbalancedBooks, match="without its mass"):
        ledger.close(np.array([-1.0, -1.0]), np.array([-1.0, math.nan]))


def test_real_variables_have_no_books_and_are_never_enumerated():
    normal = cm.FunctionPosterior(
        cm.Domain([cm.Real("x")]), lambda n, rng: rng.normal(size=(n, 1)), lambda x: -0.5 * x[:, 0] ** 2
    )
    ledger = Ledger(normal)
    assert ledger.settle(np.array([[0.5]])).tolist() == [-0.125]
    ledger.close(-3.0)
    ledger.close(-4.0, math.nan)
    assert ledger.log_closed_measure == -math.inf
    with pytest.raises(cm.SolverError, match="not the whole space"):
        ledger.enumerated()


def test_the_average_of_what_is_left_is_over_the_points_that_are_left():
    books = Books("mass")
    rest = math.log(0.5 / 90)  # half of the mass on ninety of a hundred points
    books.check_room(rest, 0.5, 10, math.log(100))
    with pytest.raises(cm.UnbalancedBooks, match="on average"):
        books.check_room(rest - 0.001, 0.5, 10, math.log(100))
    books.check_room(-50.0, 1e-10, 10, math.log(100))  # nothing is left but rounding
    books.check_room(-50.0, 1e-9, 10, math.log(100))
    Books("mass", log_total=-1.0).check_room(-50.0, 0.5, 10, math.log(100))  # a part of the space
    Books("share").check_room(-50.0, 0.5, 10, math.log(100))
    with pytest.raises(cm.UnbalancedBooks, match="on average"):  # every point is seen, and half of the mass is not
        books.check_room(-1.0, 0.5, 100, math.log(100))


def test_enumeration_is_checked_not_believed():
    ledger = Ledger(table(0.5, 0.5))
    ledger.candidates(at(0))
    with pytest.raises(cm.SolverError, match="not the whole space"):
        ledger.enumerated()


@pytest.mark.parametrize(
    "report",
    [
        lambda ledger: ledger.frontier(None, math.nan),
        lambda ledger: ledger.close(math.nan, -1.0),
        lambda ledger: ledger.close(np.array([-3.0, math.nan]), np.array([-1.0, -2.0])),
        lambda ledger: ledger.upper_bound(math.nan, "another program"),
        lambda ledger: ledger.draws(at(0), math.nan),
    ],
)
def test_a_bound_that_is_no_number_is_refused_and_proves_nothing(report):
    ledger = Ledger(cm.condition(cm.GaussianMixture([1.0], [[0.0]], [[[1.0]]])), epsilon=0.1, delta=0.0)
    ledger.candidates(np.array([[5.0]]))
    with pytest.raises(cm.errors.SolverError, match=r"nan; a natural log is expected"):
        report(ledger)
    assert not ledger.satisfied
    assert ledger.log_upper_bound == math.inf


def test_a_prober_that_answers_nan_is_refused():
    from certimap.core.box import Answers

    one, row = np.zeros(1), np.zeros((1, 2))
    for log_bound, each in ((np.array([math.nan]), row), (one, np.array([[0.0, math.nan]]))):
        with pytest.raises(cm.errors.SolverError, match=r"nan; a natural log is expected"):
            Answers(one, log_bound, row, each, one[None])


def test_books_of_inexact_masses_balance_within_their_rounding():
    books = Books("mass", log_slack=1e-3)
    books.close(math.log(0.5))
    books.check_open(math.log(0.4985))
    with pytest.raises(cm.UnbalancedBooks, match=r"hold 0\.99"):
        books.check_open(math.log(0.497))
