"""Hidden variables in proofs by steps: sums them out at once, after splits, or after relaxations drop states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from certimap.checker.models import ReducedModel
from certimap.checker.network import MAX_ENTRIES, PlainNetwork, Scope
from certimap.core.control import Control
from certimap.networks.orders import best_order
from certimap.networks.relaxation.partition import nuisance_first
from certimap.proofs.ascent import SHARE, ascended
from certimap.proofs.relaxations import MARGIN, Relaxed, problem_of
from certimap.proofs.script import Open, Script, ScriptPart

MOST_BITS = 31.0  # log2 of the entries summed out over all parts of a split
HANDY_BITS = 22.0  # of a table that is not split further
TEMPERATURES, STEPS = (0.3, 0.1, 0.03, 0.01, 0.003), 30
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
    """Return a part's network without hidden variables, or the parts of a split; an empty list if it closes.

    If the sums do not fit, relaxations drop states first: small relaxations, then larger ones if splits would take
    too many table entries.
    """
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
    _, each = left.probe(network)
    v = min(each, key=lambda u: (float(np.sum(np.exp(each[u] - each[u].max()))), u))
    return [replace(part, network=below, depth=part.depth + 1, hint=left) for below in script.split(network, v)]


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
        for temperature in TEMPERATURES:
            found.tighten(network, temperature, STEPS, script.control)
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
