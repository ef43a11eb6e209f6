"""Proofs by steps, for networks too wide for the checker's own elimination.

Made after the answer, whose value is the threshold from the start, and by the checker's own arithmetic: each step
is recorded as it is made on the network that the checker will see.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Reduced
from certimap.checker.steps import (
    ABSORB,
    CLOSE,
    DIVIDE,
    DROP,
    ELIMINATE,
    FLAT,
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
from certimap.networks.elimination import min_fill
from certimap.networks.elimination_plan import EliminationPlan, plan
from certimap.networks.kernels.dual_ascent import ascend
from certimap.networks.orders import best_order
from certimap.networks.problem import HARD, Problem, Table

SMALL_TABLE, SMALL_SCOPE = 64, 4  # tables that eliminating a variable may make whatever it replaces
QUICK_ENTRIES, MOST_ENTRIES = 2.0**24, 2.0**32  # of eliminations before, and after, costs have been moved
MADE_ENTRIES = 2.0**20  # of an elimination that is made by the writer, too
ROUNDING_SHARE = 0.1  # of the tolerance, that rounding may take where it is not made
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
    slack: float = 0.0  # of the level above the answer's value
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

    def drop(self, part: _Part, each: dict[int, NDArray[np.float64]]) -> bool:
        """Drop the states that can be; False where nothing is left."""
        level = self.threshold - MARGIN * (1.0 + abs(self.threshold))
        kept = {v: found > level for v, found in each.items()}
        if all(flags.all() for flags in kept.values()):
            return True
        self.steps.append(DROP)
        self.kept.append(np.concatenate(list(kept.values())))
        self.n_bytes += len(self.kept[-1]) // 8 + 1
        if not all(flags.any() for flags in kept.values()):
            return False
        part.keep(kept)
        return True

    def divide(self, levels: list[float]) -> None:
        """Give each component a level of its own."""
        self.steps.append(DIVIDE)
        self.shifts.append(np.array(levels))
        self.n_bytes += 8 * len(levels)

    def eliminate(self, network: Network, v: int) -> None:
        self.look()
        self.steps += [ELIMINATE, v]
        network.eliminate(v)

    def replace(self, network: Network, v: int, by: Scope) -> None:
        self.look()
        self.steps += [REPLACE, v, sorted(network.near[v]).index(by)]
        network.replace(v, by)


@dataclass(eq=False)
class _Part:
    """What waits to be closed at a level (nats), so much above what the answer is worth, below so many splits.

    `answer` has states of the answer, by variable; None where the part has lost it, or there is none.
    """

    network: Network
    level: float
    slack: float = -math.inf
    answer: dict[int, int] | None = None
    depth: int = 0

    def keep(self, kept: Mapping[int, Flags]) -> None:
        """Keep some states alone."""
        if self.answer is not None:
            lost = any(v in self.answer and not flags[self.answer[v]] for v, flags in kept.items())
            moved = {v: int(flags[: self.answer[v]].sum()) for v, flags in kept.items() if v in self.answer}
            self.answer = None if lost else self.answer | moved
        self.network = self.network.keep(kept)


def steps_of(
    checked: Reduced,
    threshold: float,
    control: Control,
    max_bytes: int,
    *,
    point: Sequence[int] | None = None,
    quick_entries: float = QUICK_ENTRIES,
    most_entries: float = MOST_ENTRIES,
) -> Arrays | None:
    """Return the steps that close a problem at a threshold (nats), or None where none are found in time.

    What is left of a part is eliminated where that takes at most `quick_entries` table entries, and after costs
    have been moved `most_entries`; where it takes more, the part is split. With a point worth the threshold, or
    just less, components get levels of their own.
    """
    script = _Script(threshold, control, max_bytes, quick_entries, most_entries)
    answer = None if point is None else dict(zip(checked.queried, point, strict=True))
    whole = Network.of(checked)
    slack = -math.inf
    if answer is not None and not whole.hidden:
        slack = threshold - math.fsum([*whole.constants, _value(whole, answer)])
    waiting, n_splits = [_Part(whole, threshold, slack, answer)], 0
    try:
        while waiting:
            part = waiting.pop()
            script.threshold, script.slack = part.level, part.slack
            parts = _settled(script, part)
            is_split = any(found.depth > part.depth for found in parts)
            if is_split and not n_splits:
                at_once = _whole(checked, script)
                if at_once is not None:
                    return at_once
            n_splits += is_split
            if n_splits > MAX_SPLITS:
                return None
            waiting += parts[::-1]
    except (_Open, TimeUp):
        return None
    return script.arrays


def _whole(checked: Reduced, script: _Script) -> Arrays | None:
    """Return the elimination of a problem as it is, which may be narrower than what reductions leave."""
    network = Network.of(checked)
    alone = _Script(script.threshold, script.control, script.max_bytes, slack=script.slack)
    is_done = not network.hidden and _is_eliminated(
        alone, network, _best_plan(script, network, script.most_entries)
    )
    return alone.arrays if is_done else None


def _settled(script: _Script, part: _Part) -> list[_Part]:
    """Close a part, or split it into several, which are returned."""
    if not part.network.hidden and part.network.bound() <= script.threshold:
        script.steps.append(CLOSE)
        return []
    if _is_eliminated(script, part.network, _plan(part.network, script.quick_entries)):
        return []
    for _ in range(INNER_ASCENTS if part.depth else MAX_ASCENTS):
        if not _reduced(script, part):
            return []
        network = part.network
        components = _divided(script, part)
        if components:
            return components
        if _is_eliminated(script, network, _plan(network, script.quick_entries)):
            return []
        bound = network.bound()
        script.shift(network, _ascended(network, bound - script.threshold))
        after, each = network.bounds()
        if after <= script.threshold:
            script.steps.append(CLOSE)
            return []
        n_before = sum(network.sizes.values())
        if not script.drop(part, each):
            return []
        if n_before - sum(part.network.sizes.values()) <= SHARE * n_before and bound - after <= SHARE * (
            after - script.threshold
        ):
            break
    if not _reduced(script, part):
        return []
    components = _divided(script, part)
    return components or _eliminated_or_split(script, part)


def _divided(script: _Script, part: _Part) -> list[_Part]:
    """Return the components of a part where it has several, each to be closed just above the answer's value."""
    answer, whole = part.answer, part.network
    found = [] if answer is None else whole.components()
    if answer is None or len(found) < 2:
        return []
    values = [_value(network, answer) for network in found]
    needed = [
        network.bound() - value + MARGIN * (1.0 + abs(value)) for network, value in zip(found, values, strict=True)
    ]
    slack = script.threshold - math.fsum([*whole.constants, *values])
    slack -= MARGIN * (1.0 + abs(script.threshold) + math.fsum(map(abs, values)))
    open_ones, share = len(found), slack / len(found)
    for need in sorted(needed):  # those that close with less leave it to the others
        if need > share:
            break
        open_ones, slack = open_ones - 1, slack - need
        share = slack / max(open_ones, 1)
    if not share > 0.0:
        return []
    levels = [value + min(need, share) for value, need in zip(values, needed, strict=True)]
    script.divide(levels)
    parts = zip(found, levels, values, strict=True)
    return [_Part(network, level, level - value, answer, part.depth) for network, level, value in parts]


def _value(network: Network, answer: Mapping[int, int]) -> float:
    """Return what a point is worth, but for constants."""
    tables = [logs[tuple(answer[v] for v in scope)] for scope, logs in network.tables.items()]
    return math.fsum([*tables, *(logs[answer[v]] for v, logs in network.own.items())])


def _reduced(script: _Script, part: _Part) -> bool:
    """Sum hidden variables out, drop states, eliminate and replace variables, until nothing is left to do.

    False where the part is closed.
    """
    while True:
        if part.network.hidden:
            _sum_out(script, part.network)
        bound, each = part.network.bounds()
        if bound <= script.threshold:
            script.steps.append(CLOSE)
            return False
        before = part.network
        if not script.drop(part, each):
            return False
        is_smaller, network = part.network is not before, part.network
        n_before = len(network.sizes)
        _eliminate_cheap(script, network)
        script.steps.append(ABSORB)
        network.absorb()
        _replace_functions(script, network)
        if not is_smaller and len(network.sizes) == n_before:
            return True


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


def _plan(network: Network, most: float) -> EliminationPlan | None:
    """Return a quick order if it takes at most so many table entries."""
    scopes = list(network.tables)
    order = min_fill(scopes, network.sizes, most_entries=most)
    found = plan(_problem(network), order) if len(order) == len(network.sizes) else None
    return found if found is not None and _fits(network, found, most) else None


def _fits(network: Network, found: EliminationPlan, most: float) -> bool:
    pairs = zip(found.order, found.separators, strict=True)
    largest = max((math.prod(network.sizes[u] for u in (v, *s)) for v, s in pairs), default=1)
    return found.n_entries <= most and largest <= MAX_ENTRIES


def _best_plan(script: _Script, network: Network, most: float) -> EliminationPlan | None:
    """Return a good order if it takes at most so many table entries."""
    problem = _problem(network)
    order = best_order([t.scope for t in problem.tables], problem.sizes, control=script.control)
    found = plan(problem, order)
    return found if _fits(network, found, most) else None


def _is_eliminated(script: _Script, network: Network, found: EliminationPlan | None) -> bool:
    """Eliminate what is left of a part, if there is an order for it.

    A large elimination is not made: it is exact, so that it closes what an answer that is certified leaves, where
    rounding is far below what the level is above the answer.
    """
    if found is None or network.hidden:
        return False
    script.look()
    if found.n_entries > MADE_ENTRIES and _rounding(network) < ROUNDING_SHARE * script.slack:
        script.steps += [step for v in found.order for step in (ELIMINATE, v)]
    else:
        for v in found.order:
            script.eliminate(network, v)
        if network.bound() > script.threshold:
            raise _Open  # there is a better assignment, or rounding takes more than the tolerance
    script.steps.append(CLOSE)
    return True


def _rounding(network: Network) -> float:
    """Return what rounding in eliminations takes, about."""
    tables = [*network.tables.values(), *network.own.values()]
    tops = math.fsum(abs(float(logs.max())) for logs in tables)
    return 2.0**-50 * (4.0 + max(map(len, network.near.values()), default=0)) * (tops + abs(network.bound()))


def _eliminated_or_split(script: _Script, part: _Part) -> list[_Part]:
    """Eliminate what is left of a part, or split it."""
    network = part.network
    if _is_eliminated(script, network, _best_plan(script, network, script.most_entries)):
        return []
    v = _splitting(network, script.threshold)
    script.look()
    script.steps += [SPLIT, v]
    parts: list[_Part] = []
    for flags in np.eye(network.sizes[v], dtype=np.bool_):
        below = _Part(network, part.level, part.slack, part.answer, part.depth + 1)
        below.keep({v: flags})
        parts.append(below)
    return parts


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
    moved, ptr = dual.tables - costs.arrays.tables, costs.arrays.table_ptr.tolist()
    moves = {scope: moved[ptr[k] : ptr[k + 1]] for k, scope in enumerate(network.tables)}
    starts, at = dict[Scope, int](), 0
    for scope, shape in network.shapes:
        starts[scope], at = at, at + sum(shape)
    out = np.zeros(at)
    for scopes, stack in network.stacks:
        move = np.array([moves[scope] for scope in scopes]).reshape(stack.shape).astype(np.float64)
        lines = _lines(move * unit)
        alone, at = _flattening(stack), np.array([starts[scope] for scope in scopes])
        for line, flat in zip(lines, alone, strict=True):
            out[at[:, None] + np.arange(line.shape[1])] = np.where(np.isnan(flat), line, flat)
            at += line.shape[1]
    return out


def _lines(stack: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return functions of one variable each that add up to tables; the tables are such sums."""
    corner = stack[(slice(None), *[0] * (stack.ndim - 1))]
    lines: list[NDArray[np.float64]] = []
    for axis in range(1, stack.ndim):
        line = np.moveaxis(stack, axis, 1)[(slice(None), slice(None), *[0] * (stack.ndim - 2))]
        lines.append(line - corner[:, None] * (axis > 1))
    return lines


def _flattening(stack: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return shifts that leave tables flat which are sums of functions of one variable each; NaN for others.

    With all of it at the variables the bound is no higher, and the variables are apart.
    """
    with np.errstate(invalid="ignore"):
        lines = _lines(stack)
        rest = stack
        for axis, line in enumerate(lines):
            rest = rest - np.expand_dims(line, [k + 1 for k in range(len(lines)) if k != axis])
        is_sum = np.abs(rest).max(axis=tuple(range(1, stack.ndim))) <= 0.25 * FLAT
        return [np.where(is_sum[:, None], -line, np.nan) for line in lines]


def _splitting(network: Network, threshold: float) -> int:
    """Return the variable whose states' bounds are, together, the least above the threshold."""
    bound, each = network.bounds()
    gaps = {v: float(np.sum((found - threshold) / (bound - threshold))) for v, found in each.items()}
    return min(gaps, key=lambda v: (gaps[v], -len(network.near[v]), v))
