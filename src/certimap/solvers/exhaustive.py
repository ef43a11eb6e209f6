"""Enumeration of a small query space."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes, Points
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Domain
from certimap.core.posterior import Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Judging, Solver

if TYPE_CHECKING:
    from certimap.core.rules import AnswerList

EDGES_PER_STEP = 200_000_000
LARGEST_STEP = 65536
CELLS_PER_STEP = 2**19  # of listed points: 1 MiB, which stays in the cache
LEAST_STEP = 64  # points per step, which kernels process together
LARGEST_KEPT = 2**20  # numbers in a cached list of points: 2 MiB


@dataclass(frozen=True)
class EnumerationState:
    """The number of joint states evaluated so far; `rows` lists them where constraints leave only some."""

    n_done: int
    n_total: int
    n_step: int
    boxes: Boxes | None
    rows: AnswerList | None = None

    @property
    def done(self) -> bool:
        return self.n_done >= self.n_total


@dataclass(frozen=True)
class Exhaustive(Solver, name="exhaustive", family="enumeration", is_seeded=False):
    """Evaluate every joint state of the query variables, at most `max_states`; the answer is exact.

    Under constraints, only the joint states that satisfy them count and are evaluated.
    """

    max_states: int = 2**22
    ranges = "max_states [1, inf)"

    def judging(self) -> Judging:
        return Judging(early_stop=False)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse real variables and spaces beyond `max_states`."""
        if not posterior.domain.is_discrete:
            return "solver 'exhaustive' cannot list values of a real variable; use solver='frontier' or 'budget'"
        if isinstance(posterior, ConstrainedPosterior):
            if posterior.rules.most <= self.max_states:
                return None
            most = f"max_states={self.max_states:,} joint states under the constraints"
            return f"solver 'exhaustive' may have to list more than {most}; use solver='auto' or raise max_states"
        if posterior.domain.log_size > math.log(self.max_states) + 1e-9:
            digits = posterior.domain.log_size / math.log(10)
            number = f"10^{digits:.1f} joint states, more than max_states={self.max_states:,}"
            return f"solver 'exhaustive' would evaluate {number}; use solver='auto' or raise max_states"
        return None

    def init(
        self, posterior: Posterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> EnumerationState:
        n_step = max(LEAST_STEP, min(LARGEST_STEP, EDGES_PER_STEP // int(posterior.facts.work)))
        if isinstance(posterior, ConstrainedPosterior):
            rows = posterior.rules.listed(self.max_states, None if boxes is None else boxes.mask[0])
            if rows is None:
                raise SolverError(f"more than max_states={self.max_states:,} have to be listed; raise it")
            n_step = min(n_step, max(LEAST_STEP, CELLS_PER_STEP // max(1, len(posterior.domain))))
            return EnumerationState(0, max(len(rows), 1), n_step, boxes, rows)
        n_total = math.prod(posterior.domain.n_states.tolist()) if boxes is None else boxes.sizes()[0]
        return EnumerationState(0, n_total, n_step, boxes)

    def step(self, state: EnumerationState, ledger: Ledger) -> EnumerationState:
        end = min(state.n_done + state.n_step, state.n_total)
        box, domain = state.boxes, ledger.domain
        if state.rows is not None:
            points = state.rows[state.n_done : end]
        else:
            points = listed(domain, state.n_done, end) if box is None else joint_states(box, state.n_done, end)
        ledger.candidates(points)
        if state.n_done == 0 and end < state.n_total and (box is None or box.mask.all()):
            _bound_whole(Boxes.full(domain), ledger)
        if end == state.n_total:
            ledger.enumerated()
        return replace(state, n_done=end)


def _bound_whole(box: Boxes, ledger: Ledger) -> None:
    """Report a relaxed network's bound on the whole, in case the time is too short for enumeration."""
    if ledger.posterior.facts.is_normalised:
        return
    from certimap.core.probing import log_bounds
    from certimap.networks.posterior import NetworkPosterior
    from certimap.solvers.base import RELAXATION

    if isinstance(ledger.posterior, NetworkPosterior):
        with suppress(TimeUp):
            bound = float(log_bounds(ledger.posterior, box)[0])
            ledger.upper_bound(max(bound, ledger.best_log_prob), RELAXATION)


def listed(domain: Domain, start: int, end: int) -> Points:
    """Return points number `start` to `end` - 1 like `joint_states`, read-only; short lists are cached."""
    if (end - start) * len(domain) > LARGEST_KEPT:
        return joint_states(Boxes.full(domain), start, end)
    return _kept(tuple(domain.n_states.tolist()), start, end)


@lru_cache(maxsize=16)
def _kept(sizes: tuple[int, ...], start: int, end: int) -> Points:
    points = joint_states(Boxes.full(Domain.of_sizes(sizes)), start, end)
    points.setflags(write=False)
    return points


def joint_states(box: Boxes, start: int, end: int) -> Points:
    """Return points number `start` to `end` - 1 of a box, the last variable varying fastest, shape (batch, n)."""
    domain = box.domain
    states = [np.flatnonzero(box.mask[0, a:b]) for a, b in pairwise(domain.offsets.tolist())]
    if not states:
        return np.empty((end - start, 0), domain.point_dtype)  # the one empty assignment
    places = np.unravel_index(np.arange(start, end), [len(allowed) for allowed in states])
    chosen = [allowed[place] for allowed, place in zip(states, places, strict=True)]
    return np.stack(chosen, axis=1).astype(domain.point_dtype)
