"""Relaxations in proofs by steps: variables whose buckets are too large are eliminated in groups of tables.

A mini-bucket tree, whose shifts and weights the solvers' code tightens, determines the groups. Hidden variables
are summed out at once, after splits, or after relaxations drop states. Steps of dual ascent shift costs between
tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import ReducedModel
from certimap.checker.network import FLAT, MAX_ENTRIES, PlainNetwork, Scope, parts_of
from certimap.core.arrays import Floats, Ints
from certimap.core.cached import cached_property
from certimap.core.control import Control
from certimap.networks.costs import Costs
from certimap.networks.cuts import Binary, roof
from certimap.networks.kernels.dual_ascent import SweepRule, ascend
from certimap.networks.orders import best_order
from certimap.networks.problem import HARD, Problem, Table
from certimap.networks.relaxation.split_tree import CLIQUE_BITS, PassClock, SplitTree, limit, nuisance_first, split
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener
from certimap.proofs.script import Arrays, Box, Open, Script, ScriptPart

SWEEPS, SHARE, MAX_ASCENTS = 20, 0.01, 15
REACH = 4.0  # the ascent distinguishes entries down to this many gaps below a table's largest entry
FEWEST_PAIRS = 50  # with fewer pairs, no flow is computed
FLOW_BITS = 50  # of the integers that flows move: of single tables, not of sums
COST_BITS = 46  # of the integers that the ascent moves, so that sums of thousands stay exact


def ascended(network: PlainNetwork, gap: float) -> Floats:
    """Return shifts that lower the bound, found by sweeps over integers."""
    return _as_shifts(network, _swept(network, gap)) if network.tables else np.zeros(0)


def cut(network: PlainNetwork) -> Floats | None:
    """Return the shifts of a maximum flow, which lower the bound most; None unless binary, finite and in pairs."""
    tables = list(network.tables.values())
    is_binary = all(n == 2 for n in network.sizes.values()) and all(t.ndim == 2 for t in tables)
    if not is_binary or network.hidden or len(tables) < FEWEST_PAIRS:
        return None
    rows = np.array([*(t.reshape(4) for t in tables), *(np.tile(own, 2) for own in network.own.values())])
    if not np.all(np.isfinite(rows)):
        return None
    rows -= rows.max(axis=1, keepdims=True)
    unit = 2.0 ** (math.ceil(math.log2(max(float(-rows.min()), 1e-6))) - FLOW_BITS)
    whole = np.rint(rows / unit).astype(np.int64)
    place = {v: i for i, v in enumerate(network.own)}
    ends = np.array([[place[v] for v in scope] for scope in network.tables])
    before = whole[: len(tables)].reshape(-1, 2, 2)
    after = roof(Binary(whole[len(tables) :, :2].copy(), ends, before)).model.pairs
    moves: Floats = (after - before).astype(np.float64) * unit
    return _as_shifts(network, dict(zip(network.tables, moves, strict=True)))


def _swept(network: PlainNetwork, gap: float) -> dict[Scope, Floats]:
    """Return the changes of tables after sweeps of dual ascent; entries far below the largest are raised first."""
    reach = REACH * max(gap, 1e-6)
    unit = 2.0 ** (math.ceil(math.log2(reach)) - COST_BITS)
    tables = tuple(
        Table(t.scope, np.rint(np.maximum(t.logs - t.logs.max(), -reach) / unit).astype(np.int64))
        for t in network.factors
    )
    problem = Problem(network.sizes, frozenset(network.sizes), tables, 0, 0.0, unit)
    variables = sorted(network.sizes)
    costs = Costs(problem, variables)
    dual = costs.dual()
    incumbent = np.zeros(len(variables) + 1, np.int64)
    incumbent[0] = HARD
    for _ in range(MAX_ASCENTS):
        before = int(dual.bound[0])
        ascend(costs.arrays, dual, SweepRule(SWEEPS, 0.0, HARD, 0, False, incumbent))
        if (before - int(dual.bound[0])) * unit <= SHARE * gap:
            break
    moved, ptr = dual.tables - costs.arrays.tables, costs.arrays.table_ptr.tolist()
    moves: Floats = moved.astype(np.float64) * unit
    tables = enumerate(network.tables.items())
    return {scope: moves[ptr[k] : ptr[k + 1]].reshape(logs.shape) for k, (scope, logs) in tables}


def _as_shifts(network: PlainNetwork, moves: Mapping[Scope, Floats]) -> Floats:
    """Return the changes of tables, each a sum of functions of one variable, as the numbers of a step."""
    starts, n = network.shift_layout
    out = np.zeros(n)
    for scopes, stack in network.stacks:
        lines = _lines(np.array([moves[scope] for scope in scopes]))
        alone, at = _flattening(stack), np.array([starts[scope] for scope in scopes])
        for line, flat in zip(lines, alone, strict=True):
            out[at[:, None] + np.arange(line.shape[1])] = np.where(np.isnan(flat), line, flat)
            at += line.shape[1]
    return out


def _lines(stack: Floats) -> list[Floats]:
    """Split tables that are sums of functions of one variable each into these functions."""
    corner = stack[(slice(None), *[0] * (stack.ndim - 1))]
    lines: list[Floats] = []
    for axis in range(1, stack.ndim):
        line = np.moveaxis(stack, axis, 1)[(slice(None), slice(None), *[0] * (stack.ndim - 2))]
        lines.append(line - corner[:, None] * (axis > 1))
    return lines


def _flattening(stack: Floats) -> list[Floats]:
    """Return shifts that flatten the sums of functions of one variable each; NaN for other tables."""
    with np.errstate(invalid="ignore"):
        lines = _lines(stack)
        rest = stack
        for axis, line in enumerate(lines):
            rest = rest - np.expand_dims(line, [k + 1 for k in range(len(lines)) if k != axis])
        is_sum = np.abs(rest).max(axis=tuple(range(1, stack.ndim))) <= 0.25 * FLAT
        return [np.where(is_sum[:, None], -line, np.nan) for line in lines]


MOST_ENTRIES = 2.0**25  # of all regions together
UNSPLIT_BITS = math.log2(MAX_ENTRIES)
FEW_BOXES, MANY_BOXES, MOST_BOXES = 80, 2000, 10**9  # boxes to try before a relaxation is tightened further
STEPS = 40  # of the optimiser at each temperature
TIGHTENING_SHARE = 0.4  # of the time
MOST_BYTES = 2**62
MARGIN = 1e-10  # relative; a tree's bound must be this far below the threshold, so that the checker's bound closes
Mask = NDArray[np.uint8]
States = dict[int, Floats]


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A mini-bucket tree of a network, usable for its parts; `states` are the network's remaining states."""

    tree: SplitTree
    states: dict[int, Ints]

    @classmethod
    def of(cls, network: PlainNetwork, order: list[int], bits: float) -> Relaxed | None:
        """Split a network's buckets into tables of at most 2^bits entries; None if some table stays too large."""
        problem = problem_of(network)
        fits = limit(problem.sizes, 2.0**bits)
        sizes = [math.prod(float(problem.sizes[v]) for v in r.scope) for r in split(problem, order, fits)]
        if max(sizes, default=0.0) > MAX_ENTRIES or sum(sizes) > MOST_ENTRIES:
            return None
        return cls(SplitTree.of(problem, order, fits), dict(network.states))

    def tighten(self, network: PlainNetwork, temperature: float, n_steps: int, control: Control) -> None:
        """Lower the bound of a part by moving costs and weights between copies."""
        Tightener(self.tree, PassClock(control), self._mask(network)).run(temperature, n_steps)

    @property
    def _regions(self) -> dict[int, list[tuple[set[int], Floats, float]]]:
        """The scope, shift and weight of each copy of each variable."""
        a, variables = self.tree.arrays, self.tree.variables
        out: dict[int, list[tuple[set[int], Floats, float]]] = {v: [] for v in variables}
        for r in range(len(a.own)):
            axes: list[int] = a.axes[a.axis_ptr[r] : a.axis_ptr[r + 1]].tolist()
            scope = {variables[k] for k in axes}
            shift = self.tree.shifts[a.shift_ptr[r] : a.shift_ptr[r + 1]]
            out[variables[int(a.own[r])]].append((scope, shift, float(self.tree.weights[r])))
        return out

    @cached_property
    def _scratch(self) -> Any:
        return self.tree.scratch()

    @cached_property
    def _starts(self) -> dict[int, int]:
        return dict(zip(self.tree.variables, self.tree.arrays.state_ptr.tolist(), strict=False))

    def _at(self, network: PlainNetwork, v: int) -> Ints:
        return np.searchsorted(self.states[v], network.states[v])

    def _mask(self, network: PlainNetwork) -> Mask:
        mask = np.zeros(int(self.tree.arrays.state_ptr[-1]), np.uint8)
        for v, start in self._starts.items():
            mask[start + self._at(network, v)] = 1
        return mask

    def bound(self, network: PlainNetwork) -> float:
        """Bound a part, in nats."""
        return self.tree.bound(self._mask(network), self._scratch)

    def probe(self, network: PlainNetwork) -> tuple[float, States]:
        """Bound a part, and each remaining state of its queried variables, in nats."""
        bounds, each = self.tree.probe(self._mask(network)[None])
        queried = [v for v in sorted(network.sizes) if v not in network.hidden]
        return float(bounds[0]), {v: each[0, self._starts[v] + self._at(network, v)] for v in queried}

    def eliminate(self, script: Script, network: PlainNetwork, hidden_only: bool = False) -> None:
        """Eliminate the variables of a part in the groups of the tree."""
        regions = self._regions
        order: list[int] = self.tree.order.tolist()
        for v in [self.tree.variables[k] for k in order]:
            if v not in network.sizes or (hidden_only and v not in network.hidden):
                continue
            copies, near = regions[v], sorted(network.near[v])
            groups = [next(k for k, (around, _, _) in enumerate(copies) if around.issuperset(s)) for s in near]
            used = sorted({0, *groups})
            if used == [0]:
                script.eliminate(network, v)
                continue
            shifts = [copies[k][1][self._at(network, v)] for k in used[1:]]
            weights = [copies[k][2] for k in used] if v in network.hidden else []
            if weights:
                weights[0] += max(0.0, 1.0 - sum(weights))  # the weights of copies without a table
            script.group(network, v, [used.index(k) for k in groups], shifts, weights)

    def closes(self, script: Script, network: PlainNetwork) -> bool:
        """Close a part by eliminating all its variables, if the checker's bound allows it."""
        mark, left = script.mark, network.copy()
        self.eliminate(script, left)
        if script.close(left):
            return True
        script.forget(mark)
        return False


def problem_of(network: PlainNetwork) -> Problem:
    """Return a network as a problem for the relaxation code, with the same tables."""
    tables = tuple(Table(t.scope, t.logs) for t in network.factors)
    return Problem(network.sizes, frozenset(network.sizes) - network.hidden, tables, math.fsum(network.constants))


def relaxations(network: PlainNetwork, script: Script) -> Iterator[tuple[Relaxed, int]]:
    """Yield relaxations as they tighten, with the boxes to try; the lowest comes once more, without a limit."""
    problem = problem_of(network)
    limits = Control.starting_now(TIGHTENING_SHARE * script.control.seconds_left)
    orders = [nuisance_first(problem, bits) for bits in (CLIQUE_BITS if problem.nuisance else CLIQUE_BITS[:1])]
    best: tuple[float, Relaxed] | None = None
    small, *large = ((orders[0], bits) for bits in script.table_bits)
    for order, bits in [small, *((order, UNSPLIT_BITS) for order in orders), *large]:
        found = Relaxed.of(network, order, bits)
        if found is None or (bits == UNSPLIT_BITS and found.tree.is_split):
            continue
        yield found, FEW_BOXES
        for temperature in TEMPERATURES if found.tree.is_split else ():
            if limits.is_late:
                break
            found.tighten(network, temperature, STEPS, limits)
            yield found, FEW_BOXES if temperature > TEMPERATURES[-1] else MANY_BOXES
        bound = found.bound(network)
        if best is None or bound < best[0]:
            best = (bound, found)
        if limits.is_late:
            break
    if best is not None:
        yield best[1], MOST_BOXES


def covered(checked: ReducedModel, boxes: list[Box], script: Script) -> tuple[Arrays, float] | None:
    """Return steps that close boxes by a relaxation, and their threshold; else the best bound with its steps."""
    last: Relaxed | None = None
    for found, n_boxes in relaxations(PlainNetwork.of(checked), script):
        script.forget((0, 0, 0, 0))
        try:
            if _closed(script, list(parts_of(checked, boxes)), found, n_boxes):
                return script.arrays, script.threshold
        except Open:
            pass
        last = found
    return None if last is None else _bounded(checked, last)


def _closed(script: Script, parts: list[PlainNetwork], found: Relaxed, n_boxes: int) -> bool:
    """Close parts depth first, splitting on the variable whose states' bounds have the smallest sum."""
    level = script.threshold - MARGIN * (1.0 + abs(script.threshold))
    waiting = parts[::-1]
    while waiting:
        script.look()
        network, n_boxes = waiting.pop(), n_boxes - 1
        if n_boxes < 0:
            return False
        bound, each = found.probe(network)
        if bound <= level and found.closes(script, network):
            continue
        if not each:  # a point closes by its value
            while network.hidden and network.size_around(v := network.smallest_hidden()) <= MAX_ENTRIES:
                script.eliminate(network, v)
            if network.hidden or not script.close(network):
                return False
            continue
        waiting += script.split(network, _narrowest(each))[::-1]
    return True


def _narrowest(each: States) -> int:
    """Return the variable whose states' bounds have the smallest sum, relative to the largest."""
    return min(each, key=lambda u: (float(np.sum(np.exp(each[u] - each[u].max()))), u))


def bounded(checked: ReducedModel, script: Script) -> tuple[Arrays, float] | None:
    """Return the steps of the best relaxation's bound on the whole problem, and that bound (nats)."""
    tried = [found for found, _ in relaxations(PlainNetwork.of(checked), script)]
    return _bounded(checked, tried[-1]) if tried else None


def _bounded(checked: ReducedModel, found: Relaxed) -> tuple[Arrays, float]:
    script = Script(math.inf, Control(), MOST_BYTES)
    (network,) = parts_of(checked, [[np.ones(checked.sizes[v], np.bool_) for v in checked.queried]])
    found.eliminate(script, network)
    script.close(network)
    return script.arrays, network.bound()


MOST_BITS = 31.0  # log2 of the entries summed out over all parts of a split
HANDY_BITS = 22.0  # of a table that is not split further
SUM_TEMPERATURES, SUM_STEPS = (0.3, 0.1, 0.03, 0.01, 0.003), 30
LEAST_DROPPED = 0.02  # share of states that a relaxation must drop for its steps to be kept
INNER_TEMPERATURE, INNER_STEPS = 0.003, 8  # below a split
ASCENTS = 6


@dataclass(frozen=True)
class Sums:
    """A plan: the queried variables to split on, the order of the hidden ones, and log2 of all table entries."""

    order: list[int]
    splits: list[int]
    log2_work: float

    @classmethod
    def of(cls, network: PlainNetwork, orders: Sequence[list[int]], most_bits: float) -> Sums | None:
        """Return the plan with the least work; None if it exceeds the limit."""
        found = [sums for order in orders if (sums := cls._along(network, order, most_bits)) is not None]
        return min(found, key=lambda sums: (sums.log2_work, len(sums.splits)), default=None)

    @classmethod
    def _along(cls, network: PlainNetwork, order: list[int], most_bits: float) -> Sums | None:
        """Split on queried variables of the largest table, the most useful first, until all tables fit."""
        splits: list[int] = []
        while True:
            work, bits, widest = _work(network, order, splits)
            if sum(math.log2(network.sizes[v]) for v in splits) > most_bits:
                return None
            queried = [v for v in widest if v not in network.hidden]
            if bits <= HANDY_BITS or not queried:
                return cls(order, splits, work) if 2.0**bits <= MAX_ENTRIES and work <= most_bits else None
            splits.append(min(queried, key=lambda v: (_work(network, order, [*splits, v])[0], v)))


def _work(network: PlainNetwork, order: Sequence[int], splits: Sequence[int]) -> tuple[float, float, Scope]:
    """Return log2 of all table entries over all parts, log2 of the largest table's entries, and its variables."""
    near: dict[int, set[int]] = {v: set() for v in network.sizes}
    for scope in network.tables:
        left = set(scope).difference(splits)
        for v in left:
            near[v] |= left
    bits = {v: math.log2(n) for v, n in network.sizes.items()}
    total, largest, widest = 0.0, 0.0, ()
    for v in order:
        scope = near.pop(v) | {v}
        size = sum(bits[u] for u in scope)
        total += 2.0 ** min(size, 900.0)
        if size > largest:
            largest, widest = size, tuple(sorted(scope))
        for u in scope - {v}:
            near[u] |= scope
            near[u].discard(v)
    return math.log2(max(total, 1.0)) + sum(bits[v] for v in splits), largest, widest


def hidden_order(hidden: dict[int, int], scopes: Sequence[Sequence[int]], control: Control) -> list[int]:
    """Return an elimination order of the hidden variables (with their sizes) at a point of the query."""
    inside = [[v for v in scope if v in hidden] for scope in scopes]
    return list(best_order([s for s in inside if s], hidden, control=control).order) if hidden else []


def order_of_values(checked: ReducedModel, control: Control) -> list[int]:
    """Return the elimination order in which a proof evaluates its answers."""
    hidden = sorted({v for t in checked.tables for v in t.scope}.difference(checked.queried))
    return hidden_order({v: checked.sizes[v] for v in hidden}, [t.scope for t in checked.tables], control)


def summed_out(script: Script, part: ScriptPart) -> PlainNetwork | list[ScriptPart]:
    """Return a part's network after its sums, or the parts of a split, none if it closes; relaxations may help."""
    network, hint = part.network, part.hint
    if isinstance(hint, Sums):
        return _as_planned(script, part, hint)
    orders = _orders(network, script.control)
    sums = Sums.of(network, orders, script.sum_bits)
    if sums is not None and not sums.splits:
        return _as_planned(script, part, sums)
    small, *large = script.table_bits
    left = _narrowed(script, network, hint, (small,))
    if isinstance(left, Relaxed):
        sums = Sums.of(network, orders, MOST_BITS)
        if sums is not None:
            return _as_planned(script, part, sums)
        if hint is None and large:
            left = _narrowed(script, network, None, large)
    if left is None:
        return []
    if isinstance(left, PlainNetwork):
        return summed_out(script, replace(part, network=left, hint=None)) if left.hidden else left
    below = script.split(network, _narrowest(left.probe(network)[1]))
    return [replace(part, network=one, depth=part.depth + 1, hint=left) for one in below]


def _orders(network: PlainNetwork, control: Control) -> list[list[int]]:
    hidden = {v: network.sizes[v] for v in sorted(network.hidden)}
    first = [v for v in nuisance_first(problem_of(network), control=control) if v in hidden]
    return [first, hidden_order(hidden, sorted(network.tables), control)]


def _as_planned(script: Script, part: ScriptPart, plan: Sums) -> PlainNetwork | list[ScriptPart]:
    """Split on the next variable of a plan, or sum out the hidden variables."""
    network = part.network
    splits = [v for v in plan.splits if v in network.sizes]
    if splits:
        rest = replace(plan, splits=splits[1:])
        below = script.split(network, splits[0])
        return [replace(part, network=network, depth=part.depth + 1, hint=rest) for network in below]
    for v in plan.order:
        if v in network.hidden:
            script.eliminate(network, v)
    return network


def _narrowed(
    script: Script, network: PlainNetwork, hint: Relaxed | None, table_bits: Sequence[float]
) -> PlainNetwork | Relaxed | None:
    """Return a network without the states that a relaxation drops; None if it closes, else a relaxation."""
    if hint is not None:
        hint.tighten(network, INNER_TEMPERATURE, INNER_STEPS, script.control)
        left = _tried(script, network, hint)
        return hint if left is network else left
    order = nuisance_first(problem_of(network), control=script.control)
    for bits in table_bits:
        found = Relaxed.of(network, order, bits)
        if found is None:
            continue
        hint, before = found, math.inf
        for temperature in SUM_TEMPERATURES:
            found.tighten(network, temperature, SUM_STEPS, script.control)
            left = _tried(script, network, found)
            if left is not network:
                return left
            bound = found.bound(network)
            if before - bound <= SHARE * (bound - script.threshold):
                break
            before = bound
    if hint is None:
        raise Open
    return hint


def _tried(script: Script, network: PlainNetwork, found: Relaxed) -> PlainNetwork | None:
    """Return a network without the states that a relaxation drops, if there are many; None if it closes."""
    script.look()
    level = script.threshold - MARGIN * (1.0 + abs(script.threshold))
    bound, each = found.probe(network)
    if bound <= level and found.closes(script, network):
        return None
    n_before = sum(network.sizes.values())
    if sum(int(np.sum(states <= level)) for states in each.values()) < LEAST_DROPPED * n_before:
        return network
    mark, tried = script.mark, script.tried(network)
    found.eliminate(script, tried, hidden_only=True)
    for _ in range(ASCENTS):
        bound = tried.bound()
        if script.close(tried):
            return None
        script.shift(tried, ascended(tried, bound - script.threshold))
        after, each = tried.bounds()
        if script.close(tried):
            return None
        left = script.drop(tried, each)
        if left is None:
            return None
        is_same, tried = left is tried, left
        if is_same and bound - after <= SHARE * (after - script.threshold):
            break
    left = network.without_lost(tried)
    if sum(left.sizes.values()) > (1.0 - LEAST_DROPPED) * n_before:
        script.forget(mark)
        return network
    return script.back(network, tried)
