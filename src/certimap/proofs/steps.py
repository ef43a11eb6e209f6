"""Proofs by steps, for networks too wide for the checker's own elimination.

Made after the answer, whose value is the threshold from the start, and by the checker's own arithmetic: each step
is recorded as it is made on the network that the checker will see.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Reduced
from certimap.checker.steps import (
    ABSORB,
    CLOSE,
    DROP,
    ELIMINATE,
    MAX_ENTRIES,
    REPLACE,
    SHIFT,
    SPLIT,
    Flags,
    Network,
    Scope,
)
from certimap.control import Control, TimeUp
from certimap.networks.costs import Costs
from certimap.networks.elimination_plan import EliminationPlan, plan
from certimap.networks.kernels.dual_ascent import ascend
from certimap.networks.orders import best_order
from certimap.networks.problem import HARD, Problem, Table

SMALL_TABLE, SMALL_SCOPE = 64, 4  # tables that eliminating a variable may make whatever it replaces
QUICK_ENTRIES, MOST_ENTRIES = 2.0**22, 2.0**28  # of eliminations before, and after, costs have been moved
SWEEPS, SHARE, MAX_ASCENTS = 20, 0.01, 15
INNER_ASCENTS = 2  # below a split
REACH = 4.0  # gaps below the largest entry of a table, down to which the ascent keeps entries apart
COST_BITS = 46  # of the integers that the ascent moves, so that sums of thousands stay exact
MARGIN = 1e-13  # relative; how far below the threshold states are dropped, lest the checker see them above it
MAX_SPLITS = 20_000
Arrays = dict[str, NDArray[Any]]


class _Open(Exception):
    """No proof is found within the limits."""


@dataclass(eq=False)
class _Script:
    """The steps made so far."""

    threshold: float
    control: Control
    max_bytes: int
    quick_entries: float = QUICK_ENTRIES
    most_entries: float = MOST_ENTRIES
    steps: list[int] = field(default_factory=list[int])
    shifts: list[NDArray[np.float64]] = field(default_factory=list[NDArray[np.float64]])
    kept: list[Flags] = field(default_factory=list[Flags])
    n_bytes: int = 0

    @property
    def arrays(self) -> Arrays:
        empty: list[NDArray[Any]] = [np.zeros(0)]
        return {
            "steps": np.array(self.steps, np.int32),
            "shifts": np.concatenate(self.shifts or empty),
            "kept": np.packbits(np.concatenate(self.kept or [np.zeros(0, np.bool_)])),
        }

    def look(self) -> None:
        if self.control.is_late or self.n_bytes + 4 * len(self.steps) > self.max_bytes:
            raise _Open

    def shift(self, network: Network, shifts: NDArray[np.float64]) -> None:
        self.steps.append(SHIFT)
        self.shifts.append(shifts)
        self.n_bytes += shifts.nbytes
        network.shift(shifts)

    def drop(self, network: Network, each: dict[int, NDArray[np.float64]]) -> Network | None:
        """Drop the states that can be; return the same network where none can, and None where nothing is left."""
        level = self.threshold - MARGIN * (1.0 + abs(self.threshold))
        kept = {v: each[v] > level for v in sorted(network.sizes)}
        if all(flags.all() for flags in kept.values()):
            return network
        self.steps.append(DROP)
        self.kept.append(np.concatenate(list(kept.values())))
        self.n_bytes += len(self.kept[-1]) // 8 + 1
        return network.keep(kept) if all(flags.any() for flags in kept.values()) else None

    def eliminate(self, network: Network, v: int) -> None:
        self.look()
        self.steps += [ELIMINATE, v]
        network.eliminate(v)

    def replace(self, network: Network, v: int, by: Scope) -> None:
        self.look()
        self.steps += [REPLACE, v, sorted(network.near[v]).index(by)]
        network.replace(v, by)


def steps_of(
    checked: Reduced,
    threshold: float,
    control: Control,
    max_bytes: int,
    *,
    quick_entries: float = QUICK_ENTRIES,
    most_entries: float = MOST_ENTRIES,
) -> Arrays | None:
    """Return the steps that close a problem at a threshold (nats), or None where none are found in time.

    What is left of a part is eliminated where that takes at most `quick_entries` table entries, and after costs
    have been moved `most_entries`; where it takes more, the part is split.
    """
    script = _Script(threshold, control, max_bytes, quick_entries, most_entries)
    waiting = [(Network.of(checked), 0)]
    n_splits = 0
    try:
        while waiting:
            network, depth = waiting.pop()
            parts = _settled(script, network, depth)
            n_splits += bool(parts)
            if n_splits > MAX_SPLITS:
                return None
            waiting += [(part, depth + 1) for part in parts[::-1]]
    except (_Open, TimeUp):
        return None
    return script.arrays


def _settled(script: _Script, network: Network, depth: int) -> list[Network]:
    """Close a part, or split it into several, which are returned."""
    for _ in range(MAX_ASCENTS if depth == 0 else INNER_ASCENTS):
        left = _reduced(script, network)
        if left is None:
            return []
        network = left
        found = _plan(network)
        if _fits(network, found, script.quick_entries):
            return _eliminated(script, network, found)
        bound = network.bound()
        script.shift(network, _ascended(network, bound - script.threshold))
        after, each = network.bounds()
        if after <= script.threshold:
            script.steps.append(CLOSE)
            return []
        n_before = sum(network.sizes.values())
        left = script.drop(network, each)
        if left is None:
            return []
        network = left
        if n_before - sum(network.sizes.values()) <= SHARE * n_before and bound - after <= SHARE * (
            after - script.threshold
        ):
            break
    left = _reduced(script, network)
    if left is None:
        return []
    problem = _problem(left)
    found = plan(problem, best_order([t.scope for t in problem.tables], problem.sizes, control=script.control))
    if _fits(left, found, script.most_entries):
        return _eliminated(script, left, found)
    v = _splitting(left, script.threshold)
    script.look()
    script.steps += [SPLIT, v]
    return [left.keep({v: flags}) for flags in np.eye(left.sizes[v], dtype=np.bool_)]


def _reduced(script: _Script, network: Network) -> Network | None:
    """Sum hidden variables out, drop states, eliminate and replace variables, until nothing is left to do.

    None where the part is closed.
    """
    while True:
        if network.hidden:
            _sum_out(script, network)
        bound, each = network.bounds()
        if bound <= script.threshold:
            script.steps.append(CLOSE)
            return None
        left = script.drop(network, each)
        if left is None:
            return None
        is_smaller, network = left is not network, left
        n_before = len(network.sizes)
        _eliminate_cheap(script, network)
        script.steps.append(ABSORB)
        network.absorb()
        _replace_functions(script, network)
        if not is_smaller and len(network.sizes) == n_before:
            return network


def _sum_out(script: _Script, network: Network) -> None:
    """Sum out what is hidden, smallest tables first."""
    while network.hidden:
        v = min(network.hidden, key=lambda u: (_bucket_size(network, u), u))
        if _bucket_size(network, v) > MAX_ENTRIES:
            raise _Open
        script.eliminate(network, v)


def _bucket_size(network: Network, v: int) -> int:
    return math.prod(network.sizes[u] for u in network.scope_around(v))


def _eliminate_cheap(script: _Script, network: Network) -> None:
    """Eliminate variables while that does not make tables grow."""
    waiting = [(0, v) for v in sorted(network.sizes)]
    heapq.heapify(waiting)
    while waiting:
        _, v = heapq.heappop(waiting)
        if v not in network.sizes:
            continue
        bucket = network.scope_around(v)
        before = network.sizes[v] + sum(network.tables[s].size for s in network.near[v])
        after = math.prod(network.sizes[u] for u in bucket if u != v)
        if after <= before or (len(bucket) <= SMALL_SCOPE and after <= SMALL_TABLE):
            script.eliminate(network, v)
            for u in bucket:
                if u != v:
                    heapq.heappush(waiting, (len(network.near[u]), u))


def _replace_functions(script: _Script, network: Network) -> None:
    """Replace variables that a table makes a function of others, where that does not make tables grow."""
    for v in sorted(network.sizes):
        growths = {s: _growth(network, v, s) for s in sorted(network.near[v])}
        fitting = [(growth, s) for s, growth in growths.items() if growth is not None]
        if fitting:
            script.replace(network, v, min(fitting)[1])


def _growth(network: Network, v: int, by: Scope) -> int | None:
    """Return by how many entries tables grow when one replaces a variable; None where it does not, or they do."""
    values = network.tables[by]
    after, before = values.size // network.sizes[v], values.size
    for other in network.near[v] - {by}:
        union = {*by, *other} - {v}
        if len(union) > len(by) + SMALL_SCOPE:
            return None
        after += math.prod(network.sizes[u] for u in union)
        before += network.tables[other].size
    is_function = after <= before and not np.any((values > -np.inf).sum(axis=by.index(v)) > 1)
    return after - before if is_function else None


def _problem(network: Network) -> Problem:
    """Return a network as a problem; for its scopes and sizes."""
    tables = [Table(scope, logs) for scope, logs in network.tables.items()]
    return Problem(network.sizes, frozenset(network.sizes), tuple(tables))


def _plan(network: Network) -> EliminationPlan:
    return plan(_problem(network))


def _fits(network: Network, found: EliminationPlan, most: float) -> bool:
    pairs = zip(found.order, found.separators, strict=True)
    largest = max((math.prod(network.sizes[u] for u in (v, *s)) for v, s in pairs), default=1)
    return found.n_entries <= most and largest <= MAX_ENTRIES


def _eliminated(script: _Script, network: Network, found: EliminationPlan) -> list[Network]:
    for v in found.order:
        script.eliminate(network, v)
    if network.bound() > script.threshold:
        raise _Open  # there is a better assignment, or rounding takes more than the tolerance
    script.steps.append(CLOSE)
    return []


def _ascended(network: Network, gap: float) -> NDArray[np.float64]:
    """Return shifts that lower the bound, found by sweeps over integers.

    Entries far below the largest of their table, zeros among them, are raised to what no good assignment reaches.
    """
    reach = REACH * max(gap, 1e-6)
    unit = 2.0 ** (math.ceil(math.log2(reach)) - COST_BITS)
    tables: list[Table] = []
    for scope, logs in (*network.tables.items(), *(((v,), own) for v, own in network.own.items())):
        tables.append(Table(scope, np.rint(np.maximum(logs - logs.max(), -reach) / unit).astype(np.int64)))
    problem = Problem(network.sizes, frozenset(network.sizes), tuple(tables), 0, 0.0, unit)
    variables = sorted(network.sizes)
    costs = Costs(problem, variables)
    dual = costs.dual()
    incumbent = np.zeros(len(variables) + 1, np.int64)
    incumbent[0] = HARD
    for _ in range(MAX_ASCENTS):
        before = int(dual.bound[0])
        ascend(costs.arrays, dual, SWEEPS, 0.0, HARD, False, 0, incumbent)
        if (before - int(dual.bound[0])) * unit <= SHARE * gap:
            break
    moved = dual.tables - costs.arrays.tables
    ptr, parts = costs.arrays.table_ptr, dict[Scope, list[NDArray[Any]]]()
    for k, (scope, logs) in enumerate(network.tables.items()):
        move = moved[ptr[k] : ptr[k + 1]].reshape(logs.shape) * unit
        lines = [move[(0,) * axis + (slice(None),) + (0,) * (logs.ndim - axis - 1)] for axis in range(logs.ndim)]
        parts[scope] = [lines[0], *(line - line[0] for line in lines[1:])]
    return np.concatenate([part for scope in sorted(parts) for part in parts[scope]] or [np.zeros(0)])


def _splitting(network: Network, threshold: float) -> int:
    """Return the variable whose states' bounds are, together, the least above the threshold."""
    bound, each = network.bounds()
    gaps = {v: float(np.sum((found - threshold) / (bound - threshold))) for v, found in each.items()}
    return min(gaps, key=lambda v: (gaps[v], -len(network.near[v]), v))
