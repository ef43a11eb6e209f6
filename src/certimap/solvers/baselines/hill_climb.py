"""Hill climbing: repeat the best change of one variable, from many starts."""

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
from certimap.solvers.baselines.neighbours import first_points, log_probs_of_neighbours

TOO_LITTLE = 1e-12  # nats: a smaller gain may be rounding, and climbs could cycle


@dataclass(frozen=True)
class ClimbState:
    """Climbs in progress: the points that still rise, and the number of starts left."""

    posterior: Posterior
    rng: np.random.Generator
    points: Points
    n_left: int
    n_steps: int = 0
    done: bool = False


@dataclass(frozen=True)
class HillClimb(Solver):
    """From several starts, repeats the one-variable change that raises the probability most, until none does.

    Starts are draws from the posterior (uniform points if it has no sampler). Runs on any posterior of
    categorical variables. A step costs two passes per point if masses are known, else one evaluation per state.

    Parameters
    ----------
    restarts
        The number of starts.
    batch
        The number of simultaneous climbs.
    """

    restarts: int = 32
    batch: int = 32

    name: ClassVar[str] = "hill_climb"
    family: ClassVar[Family] = "heuristic"
    heuristic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.restarts, self.batch) < 1:
            raise SolverError(f"restarts={self.restarts!r}, batch={self.batch!r}; expected at least 1 of each")

    def unsuited(self, posterior: Posterior) -> str | None:
        if posterior.domain.is_discrete:
            return None
        return f"solver {self.name!r} needs categorical query variables; use solver='frontier'"

    def effort(self, state: ClimbState) -> Effort:
        return Effort(work=state.n_steps)

    def init(
        self, posterior: Posterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> ClimbState:
        self.refuse_boxes(boxes)
        nothing = np.empty((0, len(posterior.domain)), posterior.domain.point_dtype)
        return ClimbState(posterior, rng, nothing, self.restarts)

    def step(self, state: ClimbState, ledger: Ledger) -> ClimbState:
        points, n_left = state.points, state.n_left
        if not len(points):
            n = min(self.batch, n_left)
            points, n_left = first_points(state.posterior, n, state.rng), n_left - n
            ledger.candidates(points)
        points = _risen(state.posterior, points)
        if len(points):
            ledger.candidates(points)
        return replace(
            state, points=points, n_left=n_left, n_steps=state.n_steps + 1, done=not len(points) and n_left == 0
        )


def _risen(posterior: Posterior, points: Points) -> Points:
    """Return each point after its best change; points that no change improves are left out."""
    domain = posterior.domain
    log_probs = log_probs_of_neighbours(posterior, points)
    rows = np.arange(len(points))
    now = log_probs[rows, domain.offsets[0] + points[:, 0].astype(np.int64)]
    best = np.argmax(log_probs, axis=1)
    rises = log_probs[rows, best] > now + TOO_LITTLE * (1.0 + np.abs(np.where(np.isfinite(now), now, 0.0)))
    variable = np.repeat(np.arange(len(domain)), domain.n_states)[best]
    changed = points.copy()
    changed[rows, variable] = best - domain.offsets[variable]
    return np.unique(changed[rises], axis=0)
