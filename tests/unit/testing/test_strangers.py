"""What others bring: a posterior that only bounds, with a prober of its own, and a solver by name.

Nothing here touches the package; whatever these need must be public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import certimap as cm
from certimap.core.box import Answers, Layout
from certimap.core.posterior import Bounds, Facts, Tightening
from certimap.core.result import CertificateKind, Rule
from certimap.solvers import registry
from certimap.solvers.box_search.frontier import Frontier
from certimap.testing import (
    BoundCases,
    BoundedTable,
    DrawCases,
    IntervalTable,
    MassCases,
    PosteriorCases,
    ProbeCases,
    SolverCases,
    TablePosterior,
    TwoSidedCases,
    check_posterior,
    random_table,
)


class Pairs:
    """ln p(q, e) = sum of a_i x_i + sum of w_ij x_i x_j over binary variables: too wide to normalise."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.unary = rng.normal(size=n)
        self.pair = np.triu(rng.normal(size=(n, n)), 1)
        self.domain = cm.Domain.of_sizes([2] * n)
        self.facts = Facts.of(self.domain, is_normalised=False)
        self.questions: list[str] = []

    def log_prob(self, points):
        x = points.astype(float)
        return x @ self.unary + np.einsum("bi,ij,bj->b", x, self.pair, x)

    def prober(self):
        return PairProber(self)


class PairProber:
    """Bounds each term by itself; tightened, it gives half of each pair to either of its variables."""

    def __init__(self, posterior: Pairs) -> None:
        self.posterior, self.layout = posterior, Layout.of(posterior.domain)
        self.work, self.n_bytes, self.is_shifted = 1000, 0, False

    def bound(self, mask):
        """Upper bounds of boxes, shape (batch,), rounded up."""
        zero, one = mask[:, 0::2] > 0, mask[:, 1::2] > 0
        unary, pair = self.posterior.unary, self.posterior.pair
        must, may = one & ~zero, one
        if not self.is_shifted:
            singles = np.where(may, np.where(must, unary, np.maximum(unary, 0.0)), 0.0).sum(axis=1)
            both_may = may[:, :, None] & may[:, None, :]
            both_must = must[:, :, None] & must[:, None, :]
            pairs = np.where(both_may, np.where(both_must, pair, np.maximum(pair, 0.0)), 0.0).sum(axis=(1, 2))
            value = singles + pairs
        else:
            half = 0.5 * (pair + pair.T)
            gain = np.where(may[:, None, :], np.where(must[:, None, :], half, np.maximum(half, 0.0)), 0.0)
            on = unary + gain.sum(axis=2)
            value = np.where(must, on, np.where(may, np.maximum(on, 0.0), 0.0)).sum(axis=1)
        return np.where((zero | one).all(axis=1), value + 1e-9, -np.inf)

    def probe(self, boxes):
        self.posterior.questions.append("probe")
        each = np.full(boxes.mask.shape, -np.inf)
        for column in range(boxes.mask.shape[1]):
            held = boxes.mask.copy()
            held[:, column ^ 1] = 0
            each[:, column] = np.where(boxes.mask[:, column] > 0, self.bound(held), -np.inf)
        bound = self.bound(boxes.mask)
        splits = np.full((len(boxes), len(self.layout.domain)), np.nan)
        share, share_each = self.layout.log_share(boxes), self.layout.log_share_each(boxes)
        return Answers(share, bound, share_each, np.minimum(each, bound[:, None]), splits)

    def starts(self):
        self.posterior.questions.append("starts")
        return (self.posterior.unary > 0).astype(np.int16)[None]

    def climb(self, points):
        self.posterior.questions.append("climb")
        points = np.array(points)
        for x in points:
            for i in range(len(x)):
                other = x.copy()
                other[i] ^= 1
                if self.posterior.log_prob(other[None])[0] > self.posterior.log_prob(x[None])[0]:
                    x[i] ^= 1
        return points

    def tighten(self, work, log_factor, within, log_threshold):
        self.posterior.questions.append("tighten")
        done, self.is_shifted = self.is_shifted, True
        return Tightening(0 if done else 1000, is_paused=True, is_complete=True)


class TestPairs(PosteriorCases, ProbeCases):
    def make_posterior(self):
        return Pairs(5, 3)


def test_a_stranger_s_posterior_is_searched_by_its_prober_alone():
    posterior = Pairs(14, 1)
    points = np.stack(np.unravel_index(np.arange(2**14), [2] * 14), axis=1).astype(np.int16)
    best = float(posterior.log_prob(points).max())
    result = cm.map_query(posterior, solver="frontier", epsilon=0.0, delta=0.0, rng=0)
    assert (result.certificate.kind, result.certificate.rule) == (CertificateKind.EXACT, Rule.BOUND)
    assert result.certificate.assumptions == ()
    assert result.log_joint == pytest.approx(best)
    assert result.log_prob is None
    assert {"probe", "starts", "tighten"} <= set(posterior.questions)
    cm.map_query(posterior, solver=Frontier(caps=False), epsilon=0.0, delta=0.0, rng=0)
    assert "climb" in posterior.questions


def test_auto_takes_the_search_for_what_only_bounds():
    result = cm.map_query(
        BoundedTable(random_table(np.random.default_rng(2), cm.Domain.of_sizes([2] * 17))), rng=0
    )
    assert result.solver == "frontier"
    assert result.certified


class TestBoundedTable(PosteriorCases, BoundCases):
    def make_posterior(self):
        return BoundedTable(random_table(np.random.default_rng(4)))


class TestIntervalTable(PosteriorCases, BoundCases, TwoSidedCases):
    def make_posterior(self):
        table = random_table(np.random.default_rng(5))
        return IntervalTable(table, np.random.default_rng(6).uniform(0.0, 0.5, len(table.points)))

    def log_truth(self, posterior, points):
        return posterior.table.log_prob(points) + posterior.log_scale


class TestFullTable(PosteriorCases, DrawCases, MassCases, BoundCases):
    def make_posterior(self):
        return random_table(np.random.default_rng(7))


def test_certificates_from_two_sided_values_are_true():
    n_certified = 0
    for seed in range(60):
        rng = np.random.default_rng([31, seed])
        table = random_table(rng)
        posterior = IntervalTable(table, rng.choice([0.0, 0.05, 0.5]) * rng.random(len(table.points)))
        truth = table.log_prob(table.points) - 7.0
        epsilon = float(rng.choice([0.0, 0.1, 0.5]))
        solver = str(rng.choice(["frontier", "exhaustive"]))
        result = cm.map_query(posterior, solver=solver, epsilon=epsilon, delta=0.0, rng=seed)
        assert result.log_joint_upper_bound >= truth.max() - 1e-9
        if result.certified:
            n_certified += 1
            found = truth[table.rows(posterior.domain.encode(result.assignment)[None])[0]]
            assert found >= truth.max() + math.log1p(-result.certificate.epsilon) - 1e-9
    assert 30 < n_certified < 60


class TooLow(BoundedTable):
    def log_bound(self, boxes):
        return super().log_bound(boxes) - 0.1


class Unstable(TablePosterior):
    def log_prob(self, points):
        return super().log_prob(points) + 1e-8 * len(points)


def test_each_failure_has_a_name():
    table = TablePosterior([2, 3], [0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
    with pytest.raises(AssertionError, match="log_bound is below a point of its box"):
        check_posterior(TooLow(table))
    with pytest.raises(AssertionError, match="depends on the batch"):
        check_posterior(Unstable([2, 2], [0.1, 0.2, 0.3, 0.4]))


@dataclass(frozen=True)
class BeamState:
    posterior: Any
    done: bool = False


@dataclass(frozen=True)
class Beam(cm.Solver):
    """Sets one variable after another to the states of largest bound; proves nothing."""

    width: int = 4
    name: ClassVar[str] = "my_beam"
    needs: ClassVar = (Bounds,)
    family: ClassVar = "heuristic"
    heuristic: ClassVar[bool] = True

    def init(self, posterior, control, rng, boxes=None):
        return BeamState(posterior)

    def step(self, state, ledger):
        domain = state.posterior.domain
        boxes = cm.Boxes.full(domain)
        for i in range(len(domain)):
            each = state.posterior.log_bound_each(boxes)[:, domain.offsets[i] : domain.offsets[i + 1]]
            rows, states = np.unravel_index(np.argsort(-each, axis=None, kind="stable")[: self.width], each.shape)
            mask = boxes.mask[rows].copy()
            mask[:, domain.offsets[i] : domain.offsets[i + 1]] = False
            mask[np.arange(len(rows)), domain.offsets[i] + states] = True
            boxes = cm.Boxes(domain, mask)
        columns = np.nonzero(boxes.mask)[1].reshape(len(boxes), len(domain))
        ledger.candidates((columns - domain.offsets[:-1]).astype(np.int16))
        return replace(state, done=True)


class TestBeam(SolverCases):
    n_posteriors = 6

    def make_solver(self):
        return Beam()


def test_a_stranger_s_solver_goes_by_its_name(monkeypatch):
    monkeypatch.setattr(registry, "_SOLVERS", dict(registry._SOLVERS))
    registry.register("my_beam", Beam, width=2)
    table = random_table(np.random.default_rng(1), cm.Domain.of_sizes([3, 2, 2]))
    result = cm.map_query(table, solver="my_beam")
    assert (result.solver, result.status) == ("my_beam", "heuristic")
    warm = cm.map_query(table, solver="frontier", warm_start="my_beam", rng=0)
    assert warm.certified
