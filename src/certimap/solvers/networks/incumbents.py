"""The best assignment of a component as kernels keep it, and what it rules out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from certimap.networks.climbing import sweep
from certimap.networks.costs import Costs, DualState
from certimap.networks.problem import FLOOR, HARD
from certimap.solvers.networks.context import Context

if TYPE_CHECKING:
    from certimap.solvers.networks.parts import Component

Ints = NDArray[np.int64]


def level_of(component: Component, context: Context) -> int:
    """Return the units at or below which nothing matters."""
    return context.threshold if context.lists_all else max(HARD, component.value + context.margin)


def incumbent_of(component: Component, costs: Costs, context: Context) -> Ints:
    """Return the best assignment as the kernels keep it: value less constant, then states.

    None, where all good assignments are wanted: nothing may be cut for not being better than the best.
    """
    incumbent = np.zeros(len(costs.variables) + 1, np.int64)
    incumbent[0] = HARD
    if component.value > FLOOR and not context.lists_all:
        incumbent[0] = component.value - costs.constant
        incumbent[1:] = [component.states[v] for v in costs.variables]
    return incumbent


def take_incumbent(component: Component, costs: Costs, incumbent: Ints) -> None:
    """Hand what the kernels have found to the component."""
    if incumbent[0] > FLOOR and incumbent[0] + costs.constant > component.value:
        component.offer({v: int(s) for v, s in zip(costs.variables, incumbent[1:], strict=True)})


def ascended(costs: Costs, dual: DualState, incumbent: Ints, context: Context, n_sweeps: int) -> bool:
    """Sweep, and count the work; return False where nothing can matter."""
    threshold = context.threshold - costs.constant if context.lists_all else None
    before = int(dual.n_touched[0])
    matters = sweep(costs, dual, incumbent, n_sweeps, threshold)
    context.work += int(dual.n_touched[0]) - before
    return matters
