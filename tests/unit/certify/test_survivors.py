"""Changes of single places in `certify` that no other test noticed: each of these tests fails on some."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

import certimap as cm
from certimap.certify import bounds
from certimap.certify.draw_record import DrawRecord
from certimap.certify.evaluated import Evaluated, Ranking
from certimap.certify.ledger import Ledger, issue
from certimap.core.control import Control
from certimap.core.result import CertificateKind
from certimap.testing import TablePosterior
from certimap.testing.models import BoundedTable, IntervalTable


def at(*states: int) -> np.ndarray:
    return np.array(states, np.int16)[:, None]


@pytest.mark.parametrize("log_x", [-4000.0, -1.0, -1e-13, 0.0, 3.0])
def test_rounding_goes_to_its_own_side(log_x):
    assert bounds.round_down(log_x) < log_x < bounds.round_up(log_x)
    assert bounds.round_down(-math.inf) == bounds.round_up(-math.inf) == -math.inf
    assert bounds.slack(-math.inf) == bounds.slack(math.inf) == 0.0


def test_a_residual_of_nothing_is_impossible_and_none_is_above_one():
    assert bounds.log_p_check(1.0, 0.0, 0.0) == -math.inf
    assert bounds.log_p_check(0.0, -0.1) == 0.0


def test_one_answer_is_what_is_asked_for_unless_said():
    assert bounds.log_delta(3.0) == -3.0
    assert bounds.required_evidence(0.1) == pytest.approx(math.log(10.0))
    assert bounds.log_delta(0.1, top_k=3) == 0.0
    assert bounds.delta_of(0.5) == 1.0


def test_no_fewer_than_one_draw_is_needed_and_none_where_nothing_is_asked():
    assert bounds.log_draws_needed(-0.01, 0.5) == 0.0
    assert bounds.log_draws_needed(-3.0, 1.0) == 0.0
    assert math.exp(bounds.log_draws_needed(-3.0, 0.5)) == pytest.approx(
        math.log(2.0) / bounds.evidence_per_draw(-3.0)
    )
    assert bounds.draws_between(-1.0, -800.0, 0.0, 0.01)[1] == math.inf


def test_min_entropy_is_in_bits_and_never_negative():
    assert bounds.min_entropy_bits(math.log(0.5), math.log(0.125)) == pytest.approx((1.0, 3.0))
    assert bounds.min_entropy_bits(0.1, 0.2) == (0.0, 0.0)


def test_the_epsilon_that_a_bound_proves_is_rounded_up():
    rng = np.random.default_rng(0)
    with localcontext() as context:
        context.prec = 60
        for log_u, gap in zip(rng.uniform(-50, 0, 400), np.exp(rng.uniform(-15, 1, 400)), strict=True):
            log_p = float(log_u) - float(gap)
            exact = 1 - (Decimal(log_p) - Decimal(float(log_u))).exp()
            given = bounds.achieved_epsilon(log_p, float(log_u), 0.0)
            assert exact <= Decimal(given) <= exact * (1 + Decimal("2e-15"))
    assert bounds.achieved_epsilon(-2000.0, 0.0, 1e-9) == 1.0
    assert bounds.achieved_epsilon(-math.inf, -3.0, 1e-9) == 1.0
    assert bounds.achieved_epsilon(-math.inf, -math.inf, 1e-9) == 0.0


def test_evidence_is_never_short_of_what_is_asked_for():
    """A stop at the needed evidence, but for its last digit, would be too early."""
    for delta in (0.3, 0.1, 0.05, 0.01):
        for p_hat in (0.02, 0.1, 0.3):
            rest = (1.0 - p_hat) / 99
            ledger = Ledger(TablePosterior([100], [p_hat, *[rest] * 99]), epsilon=0.0, delta=delta)
            ledger.draws(at(*[0] * 2000))
            evidence = ledger.n_draws * bounds.evidence_per_draw(math.log(p_hat))
            assert evidence >= math.log(1.0 / delta) * (1.0 - 1e-13)
            assert evidence - bounds.evidence_per_draw(math.log(p_hat)) < math.log(1.0 / delta) * (1.0 + 2e-12)


@pytest.mark.slow
def test_points_of_real_domains_close_nothing():
    build = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    build.gaussian(0, 0.0, 1.0)
    ledger = Ledger(cm.condition(build.build()), epsilon=0.1, delta=0.0)
    before = ledger.log_closed_measure
    assert len(ledger.settle(np.array([[0.3]]))) == 1
    assert ledger.log_closed_measure == before
    assert ledger.candidates(np.empty((0, 1))).shape == (0,)


def test_a_mass_within_rounding_of_one_is_one():
    ledger = Ledger(TablePosterior([4], [0.4, 0.3, 0.2, 0.1]), epsilon=0.0, delta=0.1)
    ledger.draws(at(1), -1.5 * bounds.SLACK)
    assert ledger.draw_groups[0][0] == 0.0


def test_what_is_tried_between_draws_counts_with_the_draws_so_far():
    ledger = Ledger(TablePosterior([4], [0.4, 0.3, 0.2, 0.1]), epsilon=0.0, delta=0.01)
    ledger.draws(at(3, 2, 3))
    assert ledger.n_draws_to_best == 2
    ledger.candidates(at(1))
    assert ledger.n_draws_to_best == 3
    ledger.draws(at(2, 0))
    assert ledger.n_draws_to_best == 5


def test_merged_runs_keep_the_loosest_closed_bound_and_the_tightest_proof():
    posterior = TablePosterior([4], [0.4, 0.3, 0.2, 0.1])
    first, second = (Ledger(posterior, epsilon=0.0, delta=0.01) for _ in range(2))
    first.draws(at(2, 2))
    second.draws(at(1))
    second.close(math.log(0.4), math.log(0.4))
    second.frontier(math.log(0.6), math.log(0.45))
    merged = Ledger.merge([first, second])
    assert merged.log_closed_bound == second.log_closed_bound > first.log_closed_bound
    assert merged.log_frontier_bound == second.log_frontier_bound < first.log_frontier_bound
    assert merged.n_draws_to_best == second.n_draws_to_best
    assert merged.log_open_mass is None
    assert not merged.is_enumerated
    listed = Ledger(posterior, epsilon=0.0, delta=0.01)
    listed.candidates(at(0, 1, 2, 3))
    listed.enumerated()
    assert Ledger.merge([first, listed]).is_enumerated


def test_an_answer_that_no_draw_supports_is_not_certified_at_delta_zero():
    ledger = Ledger(TablePosterior([4], [0.4, 0.3, 0.2, 0.1]), epsilon=0.0, delta=0.0)
    ledger.draws(at(0, 0, 0))
    assert not ledger.satisfied
    assert issue(ledger).kind is CertificateKind.NONE
    assert Ledger(TablePosterior([2], [0.5, 0.5]), epsilon=0.0, delta=0.1).log_threshold == -math.inf
    assert Ledger(TablePosterior([2], [0.5, 0.5]), epsilon=0.0, delta=0.1).log_exact_threshold == -math.inf


def test_a_solver_of_another_package_is_trusted_by_name_where_books_are_not_kept():
    build = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    build.gaussian(0, 0.0, 1.0)
    posterior = cm.condition(build.build())
    theirs = Ledger(posterior, epsilon=0.1, delta=0.0, trusting="solver 'theirs'")
    assert theirs.assumed_coverage == ("the boxes that solver 'theirs' reported cover the whole space",)
    assert Ledger(posterior, epsilon=0.1, delta=0.0).assumed_coverage == ()
    discrete = TablePosterior([2], [0.5, 0.5])
    assert Ledger(discrete, epsilon=0.1, delta=0.0, trusting="solver 'theirs'").assumed_coverage == ()
    assert Ledger.merge([theirs, theirs]).assumed_coverage == theirs.assumed_coverage


def test_the_stop_does_not_come_a_hair_too_early():
    each = bounds.evidence_per_draw(math.log(0.1))
    for m in (5, 20, 43):
        short, enough = (math.exp(-m * each * (1.0 + change)) for change in (5e-13, -5e-12))
        for delta, n in ((short, m + 1), (enough, m)):
            ledger = Ledger(TablePosterior([91], [0.1, *[0.01] * 90]), epsilon=0.0, delta=delta)
            ledger.draws(at(*[0] * 100))
            assert ledger.n_draws == n


def record(**settings) -> DrawRecord:
    return DrawRecord(published=settings.pop("published", False), tolerance=1e-9, slack=1e-12, **settings)


def counted(draws: DrawRecord, need: float, log_p: float, log_r: float, log_closed: float) -> int:
    """Return how many draws it takes, one at a time, until what is recorded suffices."""
    for n in range(10_000):
        if draws.evidence(log_p, 0.0) >= need:
            return n
        draws.add(log_r, log_closed, 1)
    raise AssertionError


@pytest.mark.parametrize("log_p", [math.log(0.9), math.log(0.3), math.log(0.02)])
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("before", [[], [(0.0, -math.inf, 3)], [(0.0, -9.0, 2), (0.0, -8.0, 4)]])
@pytest.mark.parametrize("log_r", [0.0, math.log(0.95), math.log(0.4)])
def test_draws_needed_are_those_that_are_recorded_one_by_one(log_p, published, before, log_r):
    if (published and log_r) or log_p >= log_r:
        return  # the published rule has no draws from parts; above the open mass no draw is needed
    draws, again = record(published=published), record(published=published)
    for group in before:
        draws.add(*group)
        again.add(*group)
    found = draws.needed(4.6, log_p, 0.0, log_r, -8.0, None)
    assert max(found, 0) == counted(again, 4.6, log_p, log_r, -8.0)


def test_draws_that_are_no_evidence_are_never_enough():
    draws = record(is_evidence=False)
    assert draws.needed(1.0, -1.0, 0.0, 0.0, -math.inf, None) == math.inf
    draws.add(0.0, -math.inf, 1000)
    assert draws.evidence(-1.0, 0.0) == draws.evidence(-1.0, 0.0, -0.5) == 0.0


def test_draws_inside_parts_are_counted_when_records_are_joined():
    one, part, whole = record(), record(), record()
    part.add(-0.5, -math.inf, 7)
    one.split([(part, -math.inf), (part, -math.inf)])
    whole.add(0.0, -math.inf, 5)
    whole.append(one)
    assert whole.n == 5 + 14


def test_thresholds_lie_on_their_side_of_the_best_and_are_nothing_without_one():
    ledger = Ledger(TablePosterior([2, 2], [0.4, 0.3, 0.2, 0.1]), epsilon=0.1, delta=0.0)
    assert ledger.log_threshold == ledger.log_exact_threshold == ledger.log_strict_threshold == -math.inf
    ledger.candidates(np.array([[0, 1]], np.int16))
    best = ledger.best_log_prob
    assert ledger.log_strict_threshold < best < ledger.log_exact_threshold < ledger.log_threshold
    assert ledger.log_exact_threshold == pytest.approx(best, abs=2e-9)


def test_bounds_that_nothing_is_known_of_are_infinite():
    ledger = Ledger(BoundedTable(TablePosterior([3], [0.5, 0.3, 0.2])), epsilon=0.0, delta=0.0)
    ledger.candidates(at(1))
    assert ledger.log_residual == 0.0
    assert ledger.log_upper_bound == ledger.log_rival_bound == math.inf


def test_draws_earn_what_is_asked_for_without_a_lipschitz_constant():
    ledger = Ledger(TablePosterior([4], [0.9, 0.05, 0.03, 0.02]), epsilon=0.0, delta=0.3, early_stop=False)
    ledger.draws(at(0))
    assert not Ledger(ledger.posterior, epsilon=0.0, delta=0.3, early_stop=False).satisfied
    ledger.draws(at(*[0] * 30))
    assert ledger.log_delta(0.0) <= math.log(0.3)
    assert ledger.satisfied


def evaluated(posterior) -> Evaluated:
    return Evaluated(posterior, 1, Control())


def test_what_is_left_counts_what_the_sum_has_lost():
    found = evaluated(TablePosterior([2], [0.6, 0.4]))
    found.mass, found.compensation = 0.75, 0.125
    assert found.left == 0.125


def test_values_without_masses_add_to_nothing():
    found = evaluated(BoundedTable(TablePosterior([3], [0.5, 0.3, 0.2])))
    found.evaluate(at(0, 1, 2))
    sums, lost = found.running_sums(0)
    assert len(sums) == len(lost) == 0
    found.absorb(0, sums, lost)
    assert found.mass == found.compensation == 0.0


def test_upper_sides_below_lower_ones_are_refused():
    table = TablePosterior([3], [0.5, 0.3, 0.2])
    with pytest.raises(cm.SolverError, match="returned the sides"):
        evaluated(IntervalTable(table, np.array([0.0, -0.5, 0.0]))).evaluate(at(0, 1, 2))


def test_points_are_adopted_in_pieces_with_their_marks(monkeypatch):
    monkeypatch.setattr("certimap.certify.evaluated.EVALUATION_ROWS", 4)
    table = TablePosterior([11], np.arange(1.0, 12.0) / 66.0)
    one, other = evaluated(table), evaluated(table)
    for found, points in ((one, at(3, 9)), (other, at(*range(11)))):
        found.absorb(0, *[found.evaluate(points), found.running_sums(0)][1])
    settled = other.settle(np.array([1, 3, 6, 9]))
    assert settled.tolist() == [1, 3, 6, 9]
    one.adopt(other)
    assert one.atoms.n == 11
    assert one.mass == pytest.approx(1.0)
    marks = one.settle(one.atoms.insert(at(*range(11))))
    assert sorted(one.atoms.points(marks)[:, 0].tolist()) == [0, 2, 4, 5, 7, 8, 10]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_points_of_two_sides_are_ranked_by_the_lower_and_rivals_of_the_answers_by_the_upper(size):
    rng = np.random.default_rng(size)
    for n_before in (0, 1, 3, 6):
        lower = rng.normal(size=n_before + 8)
        upper = lower + rng.exponential(size=len(lower))
        ranking = Ranking(size)
        ranking.add(lower[:n_before], 0)
        kept = [i for _, i in ranking.pairs]
        rival = max((float(upper[i]) for i in range(n_before) if i not in kept), default=-math.inf)
        wanted = []
        for at in range(8):
            order = np.argsort(-lower[: n_before + at + 1])
            log_kth = lower[order[size - 1]] if len(order) >= size else -math.inf
            state = (log_kth, max(upper[order[size:]], default=-math.inf))
            wanted += [] if wanted and wanted[-1][1:] == state else [(at, *state)]
        assert ranking.changes(lower[n_before:], upper[n_before:], upper[kept], rival) == wanted
        exact = dict.fromkeys((at, log_kth) for at, log_kth, _ in wanted if log_kth > ranking.last)
        found = ranking.changes(lower[n_before:], None, lower[kept], -math.inf)
        assert [(at, last) for at, last, _ in found if last > ranking.last] == changes_of(exact)


def changes_of(places):
    """Return the pairs of (place, value) at which the value is another one than before."""
    pairs = list(places)
    return [pair for before, pair in zip([(None, None), *pairs], pairs, strict=False) if before[1] != pair[1]]
