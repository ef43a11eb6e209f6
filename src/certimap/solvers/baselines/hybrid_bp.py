"""Hybrid belief propagation: max-messages for query variables, sum-messages for the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from certimap.circuits.posterior import CircuitPosterior
from certimap.core.posterior import Capability, Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Family, Solver

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.circuits.messages import Propagation
    from certimap.core.box import Boxes
    from certimap.core.control import Control


@dataclass(frozen=True)
class PropagationState:
    """Messages, and the number of sweeps done."""

    propagation: Propagation
    n_sweeps: int = 0
    done: bool = False


@dataclass(frozen=True)
class HybridBeliefPropagation(Solver):
    """Message passing on the circuit as a network of binary variables (Mauá et al. 2020), decoded every sweep.

    Nuisance variables are summed out before. Query variables send mixed-product messages (Liu and Ihler 2013). The
    method is loopy and proves nothing: decoded assignments are scored exactly, and the best is reported.

    `iterations`: largest number of sweeps up and down; the published experiments make 5. `damping`: the weight of
    the old message in the mean of logs that replaces it, from 0 to below 1. `min_change`: stop when no belief
    changes by more than this many nats.
    """

    iterations: int = 5
    damping: float = 0.0
    min_change: float = 1e-6

    name: ClassVar[str] = "hybrid_bp"
    needs: ClassVar[tuple[Capability, ...]] = (CircuitPosterior,)
    family: ClassVar[Family] = "heuristic"
    heuristic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise SolverError(f"iterations={self.iterations!r}; expected at least 1")
        if not 0.0 <= self.damping < 1.0:
            raise SolverError(f"damping={self.damping!r}; expected a number from 0 to below 1")
        if not self.min_change >= 0.0:
            raise SolverError(f"min_change={self.min_change!r}; expected a number of nats, at least 0")

    def unsuited(self, posterior: Posterior) -> str | None:
        if posterior.domain.is_discrete:
            return None
        return f"solver {self.name!r} needs categorical query variables; use solver='frontier'"

    def init(
        self, posterior: CircuitPosterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> PropagationState:
        self.refuse_boxes(boxes)
        return PropagationState(posterior.propagation(self.damping))

    def step(self, state: PropagationState, ledger: Ledger) -> PropagationState:
        points, change = state.propagation.advance()
        ledger.candidates(points)
        n_sweeps = state.n_sweeps + 1
        return replace(state, n_sweeps=n_sweeps, done=n_sweeps >= self.iterations or change <= self.min_change)
