"""A posterior under constraints: all other assignments keep their probability, and are no answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.box import Answers, Boxes, Points, SearchBoxes
from certimap.core.control import Control
from certimap.core.posterior import (
    Bounds,
    Capability,
    Decodes,
    Draws,
    Guesses,
    LogInterval,
    Masses,
    Posterior,
    Prober,
    Probes,
    Tightening,
    TwoSided,
)
from certimap.core.probing import climb, flipped, heeding, prober_of

if TYPE_CHECKING:
    from certimap.core.rules import Rules

N_TRIED = 64  # draws from which an assignment that satisfies the constraints is made


class ConstrainedPosterior:
    """A posterior p(q | e) in which only those assignments are answers that satisfy constraints.

    `log_prob` is -inf for the others. Draws and masses are those of the unconstrained posterior: they include the
    others. Of its capabilities it has draws, masses, a prober and decoded points, where that has them.

    `whole`: the unconstrained posterior. `rules`: the constraints, compiled on its domain.
    """

    def __init__(self, whole: Posterior, rules: Rules) -> None:
        self.whole: Any = whole
        self.rules, self.domain, self.facts = rules, whole.domain, whole.facts

    def __getattr__(self, name: str) -> Any:
        """Return a method of a capability if the unconstrained posterior has it, else raise AttributeError."""
        capability = _CAPABILITY_OF.get(name)
        if capability is None or not isinstance(self.whole, capability):
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")
        own = vars(ConstrainedPosterior).get(f"_{name}")
        return getattr(self.whole, name) if own is None else own.__get__(self)

    def log_prob(self, points: Points) -> Floats:
        """Return the unconstrained `log_prob` of each row, shape (batch,); -inf for rows that are no answers."""
        return np.where(self.rules.satisfied(points), self.whole.log_prob(points), -np.inf)

    def possible_point(self) -> Points:
        """Return the best of a few answers, or none if none was found, shape (at most 1, n)."""
        rng, whole, domain = np.random.default_rng(0), self.whole, self.domain
        tried = [whole.sample(N_TRIED, rng)] if isinstance(whole, Draws) else []
        if domain.is_discrete:
            tried.append(rng.integers(0, domain.n_states, (N_TRIED, len(domain))).astype(domain.point_dtype))
        elif isinstance(whole, Probes):
            tried.append(prober_of(whole).starts())
        points = self.repaired(np.concatenate(tried)) if tried else np.empty((0, len(domain)))
        return points[np.argsort(-whole.log_prob(points), kind="stable")[:1]]

    def repaired(self, points: Points) -> Points:
        """Return points changed so that they are answers; a point is left out where that fails.

        Variable by variable, a state is kept if it fits those before it, else the first one that fits replaces it.
        """
        points, rows, offsets = np.array(points), np.arange(len(points)), self.domain.offsets
        mask = np.ones((len(points), self.domain.total_states), np.bool_)
        for i in np.flatnonzero(self.domain.n_states).tolist() if len(points) else []:
            mask = self.rules.narrowed(mask)
            own = mask[:, offsets[i] : offsets[i + 1]]  # a view
            state = points[:, i].astype(np.int64)
            state = np.where(own[rows, state], state, np.argmax(own, axis=1))
            own[:], own[rows, state], points[:, i] = False, True, state
        return points[self.rules.satisfied(points)]

    def _prober(self) -> ConstrainedProber:
        return ConstrainedProber(self, prober_of(self.whole))

    def _log_prob_interval(self, points: Points) -> LogInterval:
        is_answer = self.rules.satisfied(points)
        return LogInterval(*(np.where(is_answer, side, -np.inf) for side in self.whole.log_prob_interval(points)))

    def _log_mass_each(self, boxes: Boxes) -> Floats:
        """Return masses, and -inf for states that no answer has; of points, for neighbours that are none."""
        if self.domain.is_discrete and np.all(boxes.counts() == 1):
            points = np.nonzero(boxes.mask)[1].reshape(len(boxes), len(self.domain)) - self.domain.offsets[:-1]
            allowed = self.rules.satisfied(flipped(self.domain, points)).reshape(boxes.mask.shape)
        else:
            allowed = self.rules.narrowed(boxes.mask)
        return np.where(allowed, self.whole.log_mass_each(boxes), -np.inf)


_CAPABILITY_OF: dict[str, Capability] = {
    "log_prob_interval": TwoSided,
    "sample": Draws,
    "log_mass": Masses,
    "log_mass_each": Masses,
    "prober": Probes | Bounds,
    **dict.fromkeys(("modes", "max_product", "argmax_product", "beam"), Decodes),
    "guess": Guesses,
}


class ConstrainedProber:
    """Bounds the answers in boxes: a state that no answer has gets the bound -inf, and keeps its mass."""

    def __init__(self, posterior: ConstrainedPosterior, whole: Prober) -> None:
        self.posterior, self.whole, self.layout, self.work = posterior, whole, whole.layout, whole.work

    @property
    def n_bytes(self) -> int:
        return self.whole.n_bytes

    def heed(self, control: Control) -> None:
        heeding(self.whole, control)

    def probe(self, boxes: SearchBoxes) -> Answers:
        found, mask = self.whole.probe(boxes), self.layout.public(boxes).mask
        left = np.ones(found.each_bound.shape, np.bool_)
        left[:, ~self.layout.is_real[self.layout.variable_of]] = narrowed = self.posterior.rules.narrowed(mask)
        is_empty = np.any(mask, axis=1) & ~np.any(narrowed, axis=1)
        each = np.where(left & ~is_empty[:, None], found.each_bound, -np.inf)
        return replace(found, log_bound=np.where(is_empty, -np.inf, found.log_bound), each_bound=each)

    def starts(self) -> Points:
        return self.posterior.repaired(self.whole.starts())

    def climb(self, points: Points) -> Points:
        """Return answers reached from each row, of which some may lead to none."""
        points = self.posterior.repaired(points)
        if self.layout.domain.is_discrete:
            return climb(self.posterior, points)
        risen = self.whole.climb(points)  # real variables may have moved alone
        return np.concatenate([points, risen[self.posterior.rules.satisfied(risen)]])

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        return self.whole.tighten(work, log_factor, within, log_threshold)
