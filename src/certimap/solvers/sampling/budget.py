"""Budget PAC-MAP (pi_B): a fixed number of draws, and all pairs (epsilon, delta) that they support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.posterior import Capability, Draws
from certimap.errors import SolverError
from certimap.solvers.base import Family, Judging, Solver
from certimap.solvers.sampling.pac import DrawState, DrawStream, check_batch, next_batch

DEFAULT_DRAWS = 100_000


@dataclass(frozen=True)
class FixedDraws(Solver):
    """The base of methods with a fixed number of draws.

    `n_draws`: the number of draws. None: `max_samples`, or 100,000 without it. `batch`: draws per batch; None:
    growing batches. The answer does not depend on it.
    """

    n_draws: int | None = None
    batch: int | None = None

    needs: ClassVar[tuple[Capability, ...]] = (Draws,)
    family: ClassVar[Family] = "sampling"

    def __post_init__(self) -> None:
        check_batch(self.batch)
        if self.n_draws is not None and self.n_draws < 1:
            raise SolverError(f"n_draws is {self.n_draws}; expected a positive number of draws")

    def judging(self) -> Judging:
        n_draws = DEFAULT_DRAWS if self.n_draws is None else self.n_draws
        return Judging(early_stop=False, max_draws=n_draws)

    def init(
        self, posterior: Draws, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> DrawState:
        return DrawState(DrawStream(posterior, rng, boxes))

    def step(self, state: DrawState, ledger: Ledger) -> DrawState:
        n = next_batch(state.stream, self.batch, ledger)
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
