"""PAC-MAP by random draws: until they certify the best one (pi_R), or a fixed number of them (pi_B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.posterior import Capability, Draws, Masses, Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Family, Judging, Solver

FIRST_CHUNK = 64
LARGEST_CHUNK = 16384
EDGES_PER_CHUNK = 200_000_000


class DrawStream:
    """Independent draws from p(q | e), made in chunks whose sizes and generators depend only on the seed.

    Chunks start small and double, up to a size that takes a fraction of a second.
    """

    def __init__(self, posterior: Draws, rng: np.random.Generator, boxes: Boxes | None = None) -> None:
        if boxes is not None and not isinstance(posterior, Masses):
            raise SolverError(
                "draws inside a box need a posterior that knows masses of boxes, and a "
                f"{type(posterior).__name__} does not"
            )
        self._posterior, self._boxes = posterior, boxes
        self._rng = rng
        self._chunk = FIRST_CHUNK
        n_edges = int(posterior.facts.work)
        self.largest = max(FIRST_CHUNK, min(LARGEST_CHUNK, EDGES_PER_CHUNK // n_edges))
        self._held: Points = np.empty((0, len(posterior.domain)), posterior.domain.point_dtype)

    def next_batch(self, batch: int | None, ledger: Ledger) -> int:
        """Return how many draws to make now: `batch`, else up to the next chunk boundary, within the limit."""
        n = len(self._held) or self._chunk if batch is None else batch
        return n if ledger.remaining_draws is None else min(n, ledger.remaining_draws)

    def take(self, n: int) -> Points:
        """Return the next n draws, shape (n, n_variables)."""
        parts = [self._held]
        n_held = len(self._held)
        while n_held < n:
            rng = self._rng.spawn(1)[0]
            part = self._posterior.sample(self._chunk, rng, self._boxes)
            parts.append(part)
            n_held += len(part)
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


def check_batch(batch: int | None) -> None:
    if batch is not None and batch < 1:
        raise SolverError(f"batch is {batch}; expected a positive number of draws")


class Drawing(Solver):
    """The base of solvers that take draws from one stream."""

    needs: ClassVar[tuple[Capability, ...]] = (Draws,)
    family: ClassVar[Family] = "sampling"

    def init(
        self, posterior: Draws, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> DrawState:
        return DrawState(DrawStream(posterior, rng, boxes))


@dataclass(frozen=True)
class Pac(Drawing):
    """Draw from the posterior until a residual-mass or draw-count rule certifies the best point seen.

    Expected cost is about ln(1/delta)/p* draws, so it suits posteriors whose mode holds noticeable mass.
    Source: the purely random policy of PAC-MAP. `rule="published"` stops at the draw that the paper prescribes,
    "sharp" (default) a little earlier with the same guarantee.

    `batch`: draws per batch; None: growing batches. The answer does not depend on it. `rule`: "sharp" or
    "published". `max_draws`: limit if the user gives no `max_samples`. None: 10 million without a `time_limit`,
    unlimited with one.
    """

    batch: int | None = None
    rule: Literal["sharp", "published"] = "sharp"
    max_draws: int | None = None

    name: ClassVar[str] = "pac"

    def __post_init__(self) -> None:
        check_batch(self.batch)

    def judging(self) -> Judging:
        return Judging(self.rule, max_draws=self.max_draws)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse densities, for which draws alone prove nothing."""
        return unsuited_to_densities(self.name, posterior)

    def step(self, state: DrawState, ledger: Ledger) -> DrawState:
        ledger.draws(state.stream.take(state.stream.next_batch(self.batch, ledger)))
        return DrawState(state.stream, done=ledger.remaining_draws == 0)


DEFAULT_DRAWS = 100_000


@dataclass(frozen=True)
class FixedDraws(Drawing):
    """The base of methods with a fixed number of draws.

    `n_draws`: the number of draws. None: `max_samples`, or 100,000 without it. `batch`: draws per batch; None:
    growing batches. The answer does not depend on it.
    """

    n_draws: int | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        check_batch(self.batch)
        if self.n_draws is not None and self.n_draws < 1:
            raise SolverError(f"n_draws is {self.n_draws}; expected a positive number of draws")

    def judging(self) -> Judging:
        n_draws = DEFAULT_DRAWS if self.n_draws is None else self.n_draws
        return Judging(early_stop=False, max_draws=n_draws)

    def step(self, state: DrawState, ledger: Ledger) -> DrawState:
        n = state.stream.next_batch(self.batch, ledger)
        if self.n_draws is not None:
            n = min(n, self.n_draws - ledger.n_draws)
        ledger.draws(state.stream.take(n))
        enough = self.n_draws is not None and ledger.n_draws >= self.n_draws
        return DrawState(state.stream, enough or ledger.remaining_draws == 0)


@dataclass(frozen=True)
class FixedBudget(FixedDraws):
    """Make a fixed number of draws; `result.pareto` holds the admissible pairs (epsilon, delta).

    No pair has to be chosen beforehand: all pairs are valid together. Cost is linear in the number of draws.
    Source: the fixed-budget policy of PAC-MAP; dominated pairs are left out.
    """

    name: ClassVar[str] = "budget"


@dataclass(frozen=True)
class UniformExploration(FixedDraws):
    """Draw a fixed number of points and return the best, with the certificate that the draws happen to support.

    Source: uniform exploration, Alg. 0 of PAC-MAP.
    """

    name: ClassVar[str] = "uniform_exploration"
