"""Dual ascent sweeps and local search on an integer problem, before a search begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.networks.costs import Costs
from certimap.networks.kernels.dual_ascent import DualState, ascend
from certimap.networks.kernels.local_search import kick_search, tabu_search
from certimap.networks.problem import FLOOR, HARD

Ints = NDArray[np.int64]

STALLED = 1e-3  # sweeps end when one gains less than this share of all that came before
TENURE, STEPS_PER_VARIABLE = 10, 20
TABU_WORK = 20_000_000  # scores looked at in one piece of local search, but at least a few steps
KICK_WORK = 10_000_000
PERTURBED = 0.05


def sweep(costs: Costs, dual: DualState, incumbent: Ints, n_sweeps: int, threshold: int | None = None) -> bool:
    """Shift costs until progress stalls; return False if no relevant assignment is left.

    Relevant assignments are better than the incumbent (value and states), or above `threshold` (units, less the
    constant) if it is given. The states of the incumbent are kept.
    """
    level = HARD if threshold is None else max(HARD, threshold)
    return bool(ascend(costs.arrays, dual, n_sweeps, STALLED, level, threshold is None, -1, incumbent) < 0)


def climb(costs: Costs, dual: DualState, incumbent: Ints, key: np.uint64) -> int:
    """Improve the incumbent: tabu search from it, from perturbed copies and from decoded costs, then kicks.

    `key` seeds it. Returns the work, in table entries.
    """
    net = costs.arrays
    n = len(net.n_states)
    soft_tables, soft_unary = costs.softened()
    work = 0
    rng = np.random.default_rng(int(key))
    starts = [np.where(dual.is_done, dual.alive[net.offset[:-1]], dual.best)]
    if incumbent[0] > FLOOR:
        moved = incumbent[1:].copy()
        changed = rng.random(n) < PERTURBED
        moved[changed] = (rng.random(n) * net.n_states).astype(np.int64)[changed]
        starts = [incumbent[1:].copy(), moved, *starts]
    n_steps = min(STEPS_PER_VARIABLE * n, max(n, TABU_WORK // max(1, len(net.unary))))
    tenure = min(TENURE, n // 3)
    for number, states in enumerate(starts):
        key = np.uint64((int(key) + number) % 2**64)
        work += int(tabu_search(net, soft_tables, soft_unary, states, n_steps, tenure, key, incumbent))
    if incumbent[0] > FLOOR:
        states = incumbent[1:].copy()
        work += int(
            kick_search(
                net, soft_tables, soft_unary, dual.alive, dual.n_alive, states, KICK_WORK, key, incumbent
            )
        )  # fmt: skip
    return work
