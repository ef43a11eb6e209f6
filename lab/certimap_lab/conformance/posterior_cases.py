"""Cases for posteriors: one class per capability, to subclass in a test module, or all in one call.

A test module derives a class whose name begins with "Test" from the applicable case classes, and overrides
`make_posterior`; pytest then runs every case separately:

    class TestMine(PosteriorCases, BoundCases):
        def make_posterior(self):
            return MyPosterior(...)
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from certimap.core.arrays import Flags, Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.core.posterior import Bounds, Capability, Decodes, Draws, Masses, Probes, TwoSided
from certimap.testing.models import (
    all_points,
    check_draws,
    inside,
    log_sums,
    maxima,
    random_boxes,
    require,
    run_cases,
    same,
    with_column,
)

MAX_STATES = 20_000


class Cases:
    """Base class of all cases: the posterior, and its values by enumeration.

    Override `make_posterior`; also `log_truth` if the posterior's values are two-sided.
    """

    seed: int = 0  # seed of the boxes and of the draws
    n_boxes: int = 8  # numbers of random boxes to check, and of draws to compare with the probabilities
    n_samples: int = 4000
    atol: float = 1e-9  # allowed difference of logs, in nats

    def make_posterior(self) -> Any:
        """Return the posterior, over categorical variables with at most 20,000 joint states."""
        raise NotImplementedError

    def log_truth(self, posterior: Any, points: Points) -> Floats:
        """Return the most exact ln p of points, shape (batch,)."""
        return np.asarray(posterior.log_prob(points), np.float64)

    def enumerated(self) -> tuple[Any, Points, Floats]:
        """Return the posterior, all its points, and their ln p."""
        posterior = self.make_posterior()
        domain: Domain = posterior.domain
        require(domain.is_discrete, "the conformance suite enumerates, so every variable must be categorical")
        require(domain.log_size <= math.log(MAX_STATES), f"the domain has more than {MAX_STATES} joint states")
        points = all_points(domain)
        return posterior, points, self.log_truth(posterior, points)

    def boxes(self, domain: Domain) -> Boxes:
        """Return random boxes, the first of which is the whole space."""
        return random_boxes(domain, np.random.default_rng(self.seed), self.n_boxes)

    def columns(self, method: Callable[[Any, Boxes], Any]) -> Iterator[tuple[Floats, Flags, Floats]]:
        """Yield a method's answers on boxes with each state set, the points that they hold, and all ln p."""
        posterior, points, log_probs = self.enumerated()
        boxes = self.boxes(posterior.domain)
        answer = np.asarray(method(posterior, boxes))
        require(answer.shape == boxes.mask.shape, f"the answer for each state has shape {answer.shape}")
        for column in range(posterior.domain.total_states):
            yield answer[:, column], inside(with_column(boxes, column), points), log_probs


class PosteriorCases(Cases):
    """Requirements for every posterior."""

    def test_facts_stay_the_same(self) -> None:
        posterior = self.make_posterior()
        require(posterior.facts == posterior.facts, "facts change from call to call")
        masses = posterior.facts.is_normalised and not posterior.facts.is_density
        require(posterior.facts.has_masses <= masses, "has_masses needs a normalised posterior that is no density")
        require(posterior.facts.work >= 1.0, "work is below 1")

    def test_there_is_one_value_per_point(self) -> None:
        posterior, points, _ = self.enumerated()
        log_probs = np.asarray(posterior.log_prob(points), np.float64)
        require(log_probs.shape == (len(points),), f"log_prob returns shape {log_probs.shape}")
        require(not np.any(np.isnan(log_probs)), "log_prob returns NaN")

    def test_values_do_not_depend_on_the_batch(self) -> None:
        posterior, points, _ = self.enumerated()
        log_probs = np.asarray(posterior.log_prob(points), np.float64)
        one_by_one = np.concatenate([posterior.log_prob(points[i : i + 1]) for i in range(min(len(points), 50))])
        alike = same(one_by_one, log_probs[:50], self.atol)
        require(alike, "log_prob of a point depends on the batch that it is in")

    def test_probabilities_add_to_1(self) -> None:
        posterior, _, log_probs = self.enumerated()
        if posterior.facts.is_normalised:
            total = float(np.sum(np.exp(log_probs)))
            is_right = total < 1.0 + 1e-6 if isinstance(posterior, TwoSided) else abs(total - 1.0) < 1e-6
            require(is_right, f"the probabilities add to {total}")


class TwoSidedCases(Cases):
    """A posterior with lower and upper bounds for values; override `log_truth`, too."""

    def test_the_truth_lies_between_the_sides(self) -> None:
        posterior, points, log_truth = self.enumerated()
        lower, upper = posterior.log_prob_interval(points)
        require(lower.shape == upper.shape == (len(points),), "a side has another shape than (batch,)")
        require(bool(np.all(lower <= log_truth + self.atol)), "a lower side is above the truth")
        require(bool(np.all(upper >= log_truth - self.atol)), "an upper side is below the truth")

    def test_log_prob_is_the_lower_side(self) -> None:
        posterior, points, _ = self.enumerated()
        lower = posterior.log_prob_interval(points).lower
        require(same(posterior.log_prob(points), lower, self.atol), "log_prob is not the lower side")


class DrawCases(Cases):
    """A posterior that can be sampled."""

    def test_draws_replay_and_follow_the_probabilities(self) -> None:
        posterior, points, log_probs = self.enumerated()
        probs = np.exp(log_probs - np.logaddexp.reduce(log_probs))
        check_draws(posterior, points, probs, None, self.n_samples, self.seed)

    def test_draws_inside_boxes_follow_the_probabilities_there(self) -> None:
        """Compare draws from the union of two disjoint boxes; required with masses."""
        posterior, points, log_probs = self.enumerated()
        domain: Domain = posterior.domain
        widest = int(np.argmax(domain.n_states))
        if domain.n_states[widest] < 2 or not isinstance(posterior, Masses):
            return
        mask = np.ones((2, domain.total_states), np.bool_)
        start, end = int(domain.offsets[widest]), int(domain.offsets[widest + 1])
        mask[:, start:end] = False
        mask[0, start] = mask[1, end - 1] = True
        union = Boxes(domain, mask)
        held = np.any(inside(union, points), axis=0)
        probs = np.exp(log_probs - np.logaddexp.reduce(log_probs))
        if float(np.sum(probs[held])) > 1e-12:
            check_draws(posterior, points, np.where(held, probs, 0.0), union, self.n_samples, self.seed)


class MassCases(Cases):
    """A posterior with probabilities of boxes."""

    def test_masses_are_sums(self) -> None:
        posterior, points, log_probs = self.enumerated()
        boxes = self.boxes(posterior.domain)
        masses = log_sums(inside(boxes, points), log_probs)
        require(same(posterior.log_mass(boxes), masses, self.atol), "log_mass differs from the sum over a box")

    def test_masses_of_columns_are_sums(self) -> None:
        for answer, held, log_probs in self.columns(lambda posterior, boxes: posterior.log_mass_each(boxes)):
            require(same(answer, log_sums(held, log_probs), self.atol), "log_mass_each differs from log_mass")


class BoundCases(Cases):
    """A posterior that bounds its values in a box."""

    def test_bounds_are_above_every_point(self) -> None:
        posterior, points, log_probs = self.enumerated()
        boxes = self.boxes(posterior.domain)
        above = posterior.log_bound(boxes) >= maxima(inside(boxes, points), log_probs) - self.atol
        require(bool(np.all(above)), "log_bound is below a point of its box")

    def test_bounds_of_columns_are_above_every_point(self) -> None:
        for answer, held, log_probs in self.columns(lambda posterior, boxes: posterior.log_bound_each(boxes)):
            above = answer >= maxima(held, log_probs) - self.atol
            require(bool(np.all(above)), "log_bound_each is below a point of its box")


class ProbeCases(Cases):
    """A posterior with a prober of its own."""

    def test_answers_hold_before_and_after_tightening(self) -> None:
        posterior, points, log_probs = self.enumerated()
        prober, boxes = posterior.prober(), self.boxes(posterior.domain)
        asked, held = prober.layout.of_boxes(boxes), inside(boxes, points)
        by_mass = posterior.facts.has_masses and isinstance(posterior, Masses)
        measures = log_sums(held, log_probs) if by_mass else prober.layout.log_share(asked)
        for _ in range(4):
            answers = prober.probe(asked)
            above = answers.log_bound >= maxima(held, log_probs)
            require(bool(np.all(above)), "a bound is below a point of its box")
            require(same(answers.log_mass, measures, 1e-6), "log_mass is not the measure of its box")
            inner = np.where(asked.mask > 0, answers.each_bound, -np.inf)
            require(bool(np.all(inner <= answers.log_bound[:, None] + self.atol)), "a column exceeds its box")
            for column in range(posterior.domain.total_states):
                rows = boxes.mask[:, column]
                highest = maxima(inside(with_column(boxes, column), points), log_probs)[rows]
                above = answers.each_bound[rows, column] >= highest
                require(bool(np.all(above)), "a column's bound is below a point of it")
            if prober.tighten(100_000, 1e-6, prober.layout.full(), -np.inf).is_complete:
                return

    def test_starts_and_climbs_are_points_and_climbs_never_fall(self) -> None:
        posterior, points, log_probs = self.enumerated()
        prober = posterior.prober()
        rng = np.random.default_rng(self.seed)
        possible = points[np.isfinite(log_probs)]
        from_here = np.concatenate([possible[rng.integers(len(possible), size=4)], prober.starts()])
        reached = prober.climb(from_here)
        require(reached.shape == from_here.shape, f"climb returns shape {reached.shape}")
        gained = self.log_truth(posterior, reached) >= self.log_truth(posterior, from_here) - self.atol
        require(bool(np.all(gained)), "a climb ended below its start")

    def test_a_prober_pickles_between_questions(self) -> None:
        posterior = self.make_posterior()
        prober = posterior.prober()
        prober.tighten(1000, 1e-3, prober.layout.full(), -np.inf)
        again = pickle.loads(pickle.dumps(prober))
        boxes = prober.layout.of_boxes(self.boxes(posterior.domain))
        alike = same(again.probe(boxes).log_bound, prober.probe(boxes).log_bound, 0.0)
        require(alike, "a pickled prober answers anew")


class DecodeCases(Cases):
    """A posterior that decodes good points from its structure."""

    def test_decoding_ends_at_points(self) -> None:
        posterior, points, _ = self.enumerated()
        for found in (posterior.modes(), posterior.max_product(), posterior.argmax_product()):
            require(found.shape == (1, points.shape[1]), f"decoding returns shape {found.shape}")
            in_range = (found >= 0) & (found < posterior.domain.n_states)
            require(bool(np.all(in_range)), "decoding ends at a state out of range")


CAPABILITIES: tuple[Capability, ...] = (Draws, Masses, Bounds, Probes, Decodes)
CASES = (DrawCases, MassCases, BoundCases, ProbeCases, DecodeCases)


def check_posterior(
    posterior: Any, *, rng: int = 0, n_boxes: int = 8, n_samples: int = 4000, atol: float = 1e-9
) -> None:
    """Check a discrete `posterior` against enumeration; raise AssertionError with a sentence on a failure.

    Runs the cases of this module for every capability of the posterior, which has at most 20,000 joint states of
    categorical variables. If its values are two-sided, the true values are unknown, and only the cases without
    capabilities run: subclass the others and override `log_truth`. `rng` is the seed of `n_boxes` random boxes and
    of `n_samples` draws, which are compared with the probabilities; logs may differ by `atol` nats.
    """
    pairs = zip(CAPABILITIES, CASES, strict=True)
    offered: list[type[Cases]] = [cases for capability, cases in pairs if isinstance(posterior, capability)]
    if isinstance(posterior, TwoSided):
        offered = [TwoSidedCases]
    for cases in (PosteriorCases, *offered):
        suite = cases()
        suite.make_posterior = lambda: posterior
        suite.seed, suite.n_boxes, suite.n_samples, suite.atol = rng, n_boxes, n_samples, atol
        run_cases(suite)
