"""The prober of a posterior: its own, or one made of its bounds on boxes; and hill climbing on any posterior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from certimap.core.arrays import Flags, Floats
from certimap.core.box import Answers, Boxes, Layout, Points, SearchBoxes, rounded_up
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.posterior import Bounds, Masses, Posterior, Prober, Probes, Tightening


def prober_of(posterior: Probes | Bounds, control: Control | None = None) -> Prober:
    """Return the posterior's own prober, or one made of its bounds; its climbs obey the run's limits."""
    prober = posterior.prober() if isinstance(posterior, Probes) else BoxProber(posterior)
    if control is not None:
        heeding(prober, control)
    return prober


def heeding(prober: Prober, control: Control) -> None:
    """Let the climbs of a prober that may be long obey the run's limits."""
    heed: Callable[[Control], None] | None = getattr(prober, "heed", None)
    if heed is not None:
        heed(control)


def answers_in(posterior: Probes | Bounds, boxes: Boxes) -> Answers:
    """Bound some boxes once, without a search."""
    prober = prober_of(posterior)
    return prober.probe(prober.layout.of_boxes(boxes))


def log_bounds(posterior: Probes | Bounds, boxes: Boxes) -> Floats:
    """Return upper bounds on the points of some boxes, natural logs, shape (batch,)."""
    # without a prober, one call serves, and not one for every state of every variable
    if isinstance(posterior, Probes):
        return answers_in(posterior, boxes).log_bound
    return np.asarray(posterior.log_bound(boxes), np.float64)


def has_masses(posterior: Posterior) -> bool:
    """Whether the posterior knows masses of boxes that bound their points, so that searches use them."""
    return posterior.facts.has_masses and posterior.domain.is_discrete and isinstance(posterior, Masses)


class SteadyProber:
    """The common parts of probers without tightening: no starts, and climbs that change one variable at a time."""

    n_bytes: int = 0

    def __init__(self, posterior: Posterior, layout: Layout, work: int) -> None:
        self.posterior, self.layout, self.work = posterior, layout, work

    def starts(self) -> Points:
        return np.empty((0, len(self.layout.domain)), self.layout.domain.point_dtype)

    def climb(self, points: Points) -> Points:
        return climb(self.posterior, points)

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """There is nothing to tighten."""
        return Tightening(0, True, True)


class BoxProber(SteadyProber):
    """Probes a discrete posterior by `log_bound`, `log_bound_each` and, if they apply, its masses."""

    def __init__(self, posterior: Bounds) -> None:
        super().__init__(posterior, Layout.of(posterior.domain), 4 * int(posterior.facts.work))
        self.bounds = posterior

    def probe(self, boxes: SearchBoxes) -> Answers:
        posterior = self.bounds
        public = self.layout.public(boxes)
        each: Floats = np.where(public.mask, posterior.log_bound_each(public), -np.inf)
        bound: Floats = np.asarray(posterior.log_bound(public), np.float64)
        if isinstance(posterior, Masses) and posterior.facts.has_masses:
            slack = posterior.facts.log_slack
            mass = rounded_up(np.asarray(posterior.log_mass(public), np.float64), slack)
            each_mass = rounded_up(np.where(public.mask, posterior.log_mass_each(public), -np.inf), slack)
            bound = np.minimum(bound, mass)
            each = np.minimum(each, each_mass)
        else:
            mass, each_mass = self.layout.log_share(boxes), self.layout.log_share_each(boxes)
        splits = np.full((len(boxes), len(self.layout.domain)), np.nan)
        return Answers(mass, bound, each_mass, np.minimum(each, bound[:, None]), splits)


MAX_ROUNDS = 200
TOO_LITTLE = 1e-12  # nats: a smaller gain may be rounding, and climbs could cycle


def climb(posterior: Posterior, points: Points) -> Points:
    """Climb from each row of `points` in a discrete domain; return the points reached, shape (batch, n).

    Each round changes, in every point that still improves, the variable that gains most. Per point, a round costs
    one `log_mass_each`, or one `log_prob` per neighbour if the posterior has no masses.
    """
    points = np.array(points)
    active = np.arange(len(points))
    for _ in range(MAX_ROUNDS):
        changed, rises = best_changes(posterior, points[active])
        active = active[rises]
        if not len(active):
            break
        points[active] = changed[rises]
    return points


def best_changes(posterior: Posterior, points: Points) -> tuple[Points, Flags]:
    """Return each point with one variable changed for the largest probability, and whether that is larger."""
    domain, rows = posterior.domain, np.arange(len(points))
    each = log_probs_of_neighbours(posterior, points)
    now = np.take_along_axis(each, domain.offsets[:-1] + points.astype(np.int64), axis=1).min(axis=1)
    column = np.argmax(each, axis=1)
    rises = each[rows, column] > now + TOO_LITTLE * (1.0 + np.abs(np.where(np.isfinite(now), now, 0.0)))
    variable, changed = np.repeat(np.arange(len(domain)), domain.n_states)[column], np.array(points)
    changed[rows, variable] = column - domain.offsets[variable]
    return changed, rises


def log_probs_of_neighbours(posterior: Posterior, points: Points) -> Floats:
    """Return ln p of each point with each variable set to each state, shape (batch, total_states)."""
    domain = posterior.domain
    if isinstance(posterior, Masses):
        return posterior.log_mass_each(Boxes.of_points(domain, points))
    return posterior.log_prob(flipped(domain, points)).reshape(len(points), domain.total_states)


def flipped(domain: Domain, points: Points) -> Points:
    """Return each point with each variable set to each state in turn, shape (batch * total_states, n)."""
    variables = np.repeat(np.arange(len(domain)), domain.n_states)
    states = np.arange(domain.total_states) - domain.offsets[variables]
    rows = np.repeat(points, domain.total_states, axis=0)
    rows[np.arange(len(rows)), np.tile(variables, len(points))] = np.tile(states, len(points))
    return rows
