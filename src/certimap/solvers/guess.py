"""Heuristics that report one point in one step; the guess of a model that was not conditioned in time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Points
from certimap.core.control import Control
from certimap.core.posterior import Capability, Guesses, Posterior
from certimap.solvers.base import Family, WholeSpaceSolver


@dataclass(frozen=True)
class OneStepState:
    """The state of a heuristic that has its answer after one step."""

    posterior: Any
    done: bool = False


class Heuristic(WholeSpaceSolver):
    """The base of solvers that propose points without proof."""

    family: ClassVar[Family] = "heuristic"
    heuristic: ClassVar[bool] = True


class LabelHeuristic(Heuristic):
    """The base of heuristics that change labels one by one."""

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse real variables and counts."""
        if posterior.domain.is_discrete:
            return None
        return f"solver {self.name!r} needs categorical query variables; use solver='frontier'"


class OneStep(Heuristic):
    """The base of heuristics that end after one step."""

    def start(self, posterior: Posterior, control: Control, rng: np.random.Generator) -> OneStepState:
        return OneStepState(posterior)


class OnePoint(OneStep):
    """The base of heuristics that report one point; subclasses define `point`."""

    @abstractmethod
    def point(self, posterior: Any) -> Points:
        """Return the answer, shape (1, n)."""

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        ledger.candidates(self.point(state.posterior))
        return replace(state, done=True)


@dataclass(frozen=True)
class Guess(OnePoint):
    """Report the posterior's one guess; `auto` chooses this if a time limit cut conditioning short."""

    name: ClassVar[str] = "guess"
    needs: ClassVar[tuple[Capability, ...]] = (Guesses,)

    def point(self, posterior: Guesses) -> Points:
        return posterior.guess()
