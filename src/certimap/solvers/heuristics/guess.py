"""The answer of a model that there was no time to condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.core.box import Points
from certimap.core.posterior import Capability, Guesses
from certimap.solvers.heuristics.walk import OnePoint


@dataclass(frozen=True)
class Guess(OnePoint):
    """Report the posterior's one guess; `auto` chooses this if a time limit cut conditioning short."""

    name: ClassVar[str] = "guess"
    needs: ClassVar[tuple[Capability, ...]] = (Guesses,)

    def point(self, posterior: Guesses) -> Points:
        return posterior.guess()
