"""PAC-MAP by random draws: until they certify (pi_R), a fixed number (pi_B), or with sweeps beside (pi_S)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.random import Generator

from certimap.certify import bounds
from certimap.certify.ledger import Ledger
from certimap.core.arrays import Ints
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.posterior import Draws, Masses, Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Judging, Solver

FIRST_CHUNK = 64
LARGEST_CHUNK = 16384
EDGES_PER_CHUNK = 200_000_000
DEFAULT_DRAWS = 100_000
ROWS_AT_ONCE = 16384
LARGEST_BALL = 1_000_000
SHORTEST_PERIOD = 250
POOL = 1024
GROUPS = 64


class DrawStream:
    """Independent draws from p(q | e), in chunks that double up to a limit and depend on the seed alone."""

    def __init__(self, posterior: Draws, rng: Generator, boxes: Boxes | None = None) -> None:
        if boxes is not None and not isinstance(posterior, Masses):
            kind = type(posterior).__name__
            raise SolverError(f"draws inside a box need masses of boxes, which a {kind} does not know")
        self._posterior, self._boxes, self._rng, self._chunk = posterior, boxes, rng, FIRST_CHUNK
        self.largest = max(FIRST_CHUNK, min(LARGEST_CHUNK, EDGES_PER_CHUNK // int(posterior.facts.work)))
        self._held: Points = np.empty((0, len(posterior.domain)), posterior.domain.point_dtype)

    def next_batch(self, batch: int | None, ledger: Ledger) -> int:
        """Return how many draws to make now: `batch`, else up to the next chunk boundary, within the limit."""
        n = len(self._held) or self._chunk if batch is None else batch
        return n if ledger.remaining_draws is None else min(n, ledger.remaining_draws)

    def take(self, n: int) -> Points:
        """Return the next n draws, shape (n, n_variables)."""
        parts = [self._held]
        while sum(map(len, parts)) < n:
            parts.append(self._posterior.sample(self._chunk, self._rng.spawn(1)[0], self._boxes))
            self._chunk = min(2 * self._chunk, self.largest)
        whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._held = whole[n:]
        return whole[:n]


@dataclass
class DrawState:
    """A stream of draws."""

    stream: DrawStream
    done: bool = False


def unsuited_to_densities(name: str, posterior: Posterior) -> str | None:
    """Return why a method that counts draws refuses this posterior (a density), or None."""
    if not posterior.facts.is_density:
        return None
    return (
        f"solver {name!r} weighs probabilities against the mass 1, and a density may exceed 1, so that draws "
        "alone certify nothing; use solver='smooth_pac' with lipschitz=, 'doo' with lipschitz=, 'frontier' "
        "(bounds) or 'cells' (the most probable cell), or 'budget' for an answer without a certificate"
    )


class Drawing(Solver, needs=(Draws,), family="sampling"):
    """The base of solvers that take draws from one stream."""

    n_draws: int | None = None
    batch: int | None = None

    def init(self, posterior: Draws, control: Control, rng: Generator, boxes: Boxes | None = None) -> DrawState:
        return DrawState(DrawStream(posterior, rng, boxes))

    def step(self, state: DrawState, ledger: Ledger) -> DrawState:
        n = state.stream.next_batch(self.batch, ledger)
        left = n if self.n_draws is None else self.n_draws - ledger.n_draws
        ledger.draws(state.stream.take(min(n, left)))
        return DrawState(state.stream, ledger.remaining_draws == 0 or ledger.n_draws == self.n_draws)


@dataclass(frozen=True)
class Pac(Drawing, name="pac"):
    """Draw from the posterior until a residual-mass or draw-count rule certifies the best point seen.

    Expected cost is about ln(1/delta)/p* draws, so it suits posteriors whose mode holds noticeable mass.
    Source: the purely random policy of PAC-MAP.

    `batch`: draws per batch; None: growing batches. The answer does not depend on it. `rule`: "published" stops at
    the draw that the paper prescribes, "sharp" a little earlier with the same guarantee. `max_draws`: limit if the
    user gives no `max_samples`. None: 10 million without a `time_limit`, unlimited with one.
    """

    batch: int | None = None
    rule: Literal["sharp", "published"] = "sharp"
    max_draws: int | None = None
    ranges = "batch [1, inf)"

    def judging(self) -> Judging:
        return Judging(self.rule, max_draws=self.max_draws)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse densities, for which draws alone prove nothing."""
        return unsuited_to_densities(self.name, posterior)


@dataclass(frozen=True)
class FixedBudget(Drawing, name="budget"):
    """Make a fixed number of draws; `result.pareto` holds the admissible pairs (epsilon, delta).

    No pair has to be chosen beforehand: all pairs are valid together. Cost is linear in the number of draws.
    Sources: the fixed-budget policy of PAC-MAP, dominated pairs left out, and uniform exploration, its Alg. 0.

    `n_draws`: the number of draws. None: `max_samples`, or 100,000 without it. `batch`: draws per batch; None:
    growing batches. The answer does not depend on it.
    """

    n_draws: int | None = None
    batch: int | None = None
    ranges = "batch, n_draws [1, inf)"

    def judging(self) -> Judging:
        return Judging(early_stop=False, max_draws=DEFAULT_DRAWS if self.n_draws is None else self.n_draws)


def ball_size(domain: Domain, radius: int) -> float:
    """Return the number of points within `radius` changed categorical variables, the centre included."""
    shells = bounds.log_shells(domain.n_states[domain.n_states > 0], min(radius, len(domain)))
    return float(np.exp(min(float(np.logaddexp.reduce(shells)), 700.0)))


def ball(domain: Domain, centre: Points, radius: int) -> Iterator[Points]:
    """Yield the points at distance 1 to `radius` from `centre`, shape (n,), in batches, nearest first."""
    changes = _changes(domain, centre, radius)
    while batch := list(itertools.islice(changes, ROWS_AT_ONCE)):
        points = np.repeat(centre[None, :], len(batch), axis=0)
        rows = np.repeat(np.arange(len(batch)), [len(change) for change in batch])
        flat = np.array([pair for change in batch for pair in change], np.int64)
        points[rows, flat[:, 0]] = flat[:, 1]
        yield points


def grouped(parts: Iterable[Points]) -> Iterator[Points]:
    """Join small batches into batches of about 16,384 rows."""
    held: list[Points] = []
    for part in parts:
        held.append(part)
        if sum(len(p) for p in held) >= ROWS_AT_ONCE:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _changes(domain: Domain, centre: Points, radius: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield every set of at most `radius` changes, as (variable, new state) pairs."""
    others = {
        int(i): [(int(i), s) for s in range(int(domain.n_states[i])) if s != int(centre[i])]
        for i in np.flatnonzero(domain.n_states > 1)
    }
    for distance in range(1, min(radius, len(others)) + 1):
        for variables in itertools.combinations(others, distance):
            yield from itertools.product(*(others[i] for i in variables))


@dataclass
class SmoothState:
    """A stream of draws, and the candidates whose balls are not swept yet."""

    stream: DrawStream
    period: int
    next_sweep: int
    n_balls: int = 1
    n_seen: int = 0
    pool: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    done: bool = False


@dataclass(frozen=True)
class SmoothPac(Solver, name="smooth_pac", needs=(Draws,), family="sampling"):
    """Draw like `pac`, and periodically evaluate all neighbours of the best candidate not swept yet.

    Sweeps find modes whose mass is too small to be drawn soon, and reduce the residual mass; they never count as
    draws. A Lipschitz constant lets the draws certify sooner; the certificate then states that assumption.
    Source: the smooth policy of PAC-MAP.

    `radius`: sweep all points within this many changed categorical variables. The Lipschitz assumption has the
    same radius (in a real domain, a Euclidean distance).
    `period`: draws between sweeps. None: the number of points in a ball, at least 250, so that sweeping costs no
    more than drawing; later sweeps then come in groups, after every 1/64 of the draws made so far.
    `lipschitz`: assume that log2 p falls by at most this many bits per changed variable (per unit of Euclidean
    distance in a real domain) around the mode; None: no assumption.
    `batch`, `rule`, `max_draws`: as in `Pac`.
    """

    radius: float = 1
    period: int | None = None
    lipschitz: float | None = None
    batch: int | None = None
    rule: Literal["sharp", "published"] = "sharp"
    max_draws: int | None = None
    ranges = "radius [0, inf); period, batch [1, inf); lipschitz (0, inf)"

    def judging(self) -> Judging:
        return Judging(self.rule, max_draws=self.max_draws)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse too large balls, densities without a Lipschitz constant, and the constant on mixed variables."""
        domain = posterior.domain
        sentence = unsuited_to_densities(self.name, posterior) if self.lipschitz is None else None
        if sentence is not None:
            return sentence
        if domain.total_states and ball_size(domain, int(self.radius)) > LARGEST_BALL:
            said = f"a Hamming ball of radius {int(self.radius)} over {len(domain)} variables"
            return f"{said} has more than {LARGEST_BALL:,} points; use a smaller radius or solver='pac'"
        if self.lipschitz is not None and not domain.is_discrete and domain.total_states:
            return (
                "a Lipschitz constant needs query variables of one kind, all categorical or all real; use "
                "solver='frontier', or 'budget' without a certificate"
            )
        if self.lipschitz is not None and not domain.is_discrete and not posterior.facts.is_density:
            return "a Lipschitz constant is of labels or of densities, and a query variable is a count; use 'pac'"
        return None

    def init(self, posterior: Draws, control: Control, rng: Generator, boxes: Boxes | None = None) -> SmoothState:
        draw_rng = rng.spawn(1)[0]
        domain = posterior.domain
        size = ball_size(domain, int(self.radius)) if domain.total_states else 1.0
        period = max(SHORTEST_PERIOD, int(size)) if self.period is None else self.period
        first = min(period, SHORTEST_PERIOD) if self.period is None else period
        return SmoothState(DrawStream(posterior, draw_rng, boxes), period, first)

    def step(self, state: SmoothState, ledger: Ledger) -> SmoothState:
        if self.lipschitz is not None:
            ledger.assume_lipschitz(self.lipschitz, self.radius)
        if ledger.n_draws >= state.next_sweep:
            self._sweep(state, ledger)
            pause = state.period
            if self.period is None:
                state.n_balls = max(1, ledger.n_draws // GROUPS // pause)
                pause *= state.n_balls
            state.next_sweep += pause
            return state
        n = min(state.stream.next_batch(self.batch, ledger), state.next_sweep - ledger.n_draws)
        ledger.draws(state.stream.take(n))
        state.done = ledger.remaining_draws == 0
        return state

    def _sweep(self, state: SmoothState, ledger: Ledger) -> None:
        """Evaluate the balls around the best candidates not swept yet."""
        log_probs = ledger.atoms.log_probs
        pool = np.concatenate([state.pool, np.arange(state.n_seen, len(log_probs))])
        state.n_seen = len(log_probs)
        if len(pool) > 4 * POOL:
            pool = pool[np.argsort(-log_probs[pool], kind="stable")[:POOL]]
        if not len(pool) or not ledger.domain.total_states:
            return
        chosen = np.argsort(-log_probs[pool], kind="stable")[: state.n_balls]
        centres = ledger.atoms.points(pool[chosen])
        state.pool = np.delete(pool, chosen)
        parts = itertools.chain.from_iterable(ball(ledger.domain, centre, int(self.radius)) for centre in centres)
        for points in grouped(parts):
            if ledger.control.should_stop or ledger.satisfied:
                return
            ledger.candidates(points)
