"""Annealed Gibbs sampling: chains redraw one variable at a time at falling temperature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.posterior import Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Effort, Family, Solver
from certimap.solvers.baselines.neighbours import first_points


@dataclass(frozen=True)
class ChainState:
    """Chains: their current points, and the number of sweeps done."""

    posterior: Posterior
    rng: np.random.Generator
    points: Points
    n_sweeps: int = 0
    done: bool = False


@dataclass(frozen=True)
class AnnealedGibbs(Solver):
    """Chains redraw each variable from p^(1/T) given all others while the temperature T falls from sweep to sweep.

    Visited points count as candidates, never as draws, because they are not independent. Runs on any posterior of
    categorical variables; a sweep costs one evaluation per chain and state of each variable.

    Parameters
    ----------
    chains
        The number of chains, started from draws (uniform points without a sampler).
    sweeps
        The number of times that each variable of a chain is redrawn.
    hot, cold
        Temperatures of the first and the last sweep; between them it falls by a constant factor.
    """

    chains: int = 32
    sweeps: int = 20
    hot: float = 1.0
    cold: float = 0.05

    name: ClassVar[str] = "mcmc"
    family: ClassVar[Family] = "heuristic"
    heuristic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.chains, self.sweeps) < 1:
            raise SolverError(f"chains={self.chains!r}, sweeps={self.sweeps!r}; expected at least 1 of each")
        if not 0.0 < self.cold <= self.hot < np.inf:
            raise SolverError(f"hot={self.hot!r}, cold={self.cold!r}; expected 0 < cold <= hot")

    def unsuited(self, posterior: Posterior) -> str | None:
        if posterior.domain.is_discrete:
            return None
        return f"solver {self.name!r} needs categorical query variables; use solver='frontier'"

    def effort(self, state: ChainState) -> Effort:
        return Effort(work=state.n_sweeps)

    def init(
        self, posterior: Posterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> ChainState:
        self.refuse_boxes(boxes)
        return ChainState(posterior, rng, first_points(posterior, self.chains, rng))

    def step(self, state: ChainState, ledger: Ledger) -> ChainState:
        if state.n_sweeps == 0:
            ledger.candidates(state.points)
        progress = state.n_sweeps / max(self.sweeps - 1, 1)
        temperature = self.hot * (self.cold / self.hot) ** progress
        points = state.points.copy()
        for variable in state.rng.permutation(len(state.posterior.domain)).tolist():
            _redraw(state.posterior, points, variable, temperature, state.rng)
            if ledger.control.should_stop:
                break
        ledger.candidates(points)
        n_sweeps = state.n_sweeps + 1
        return replace(state, points=points, n_sweeps=n_sweeps, done=n_sweeps >= self.sweeps)


def _redraw(
    posterior: Posterior, points: Points, variable: int, temperature: float, rng: np.random.Generator
) -> None:
    """Redraw one variable of every chain, in place; if all states have probability 0, its state stays."""
    k = int(posterior.domain.n_states[variable])
    rows = np.repeat(points, k, axis=0)
    rows[:, variable] = np.tile(np.arange(k), len(points))
    log_probs = posterior.log_prob(rows).reshape(len(points), k) / temperature
    largest = log_probs.max(axis=1, keepdims=True)
    possible = largest[:, 0] > -np.inf
    shares = np.cumsum(np.exp(log_probs[possible] - largest[possible]), axis=1)
    thresholds = rng.random(len(points))[possible] * shares[:, -1]
    points[possible, variable] = np.minimum(np.sum(thresholds[:, None] >= shares, axis=1), k - 1)
