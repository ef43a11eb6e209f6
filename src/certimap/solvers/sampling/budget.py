"""Budget PAC-MAP (pi_B): a fixed number of draws, and all pairs (epsilon, delta) that they support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.solvers.sampling.uniform_exploration import FixedDraws


@dataclass(frozen=True)
class FixedBudget(FixedDraws):
    """Make a fixed number of draws; `result.pareto` holds the admissible pairs (epsilon, delta).

    No pair has to be chosen beforehand: all pairs are valid together. Cost is linear in the number of draws.
    Source: the fixed-budget policy of PAC-MAP; dominated pairs are left out.
    """

    name: ClassVar[str] = "budget"
