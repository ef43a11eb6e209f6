"""Proofs by steps, for networks too wide for the checker's own elimination.

The steps are made after the answer, whose value gives the threshold, by the checker's own arithmetic: each step is
recorded while it is applied to the checker's network.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from certimap.checker.models import ReducedModel
from certimap.checker.network import MAX_ENTRIES, PlainNetwork, Scope, parts_of
from certimap.checker.steps import ABSORB, CLOSE, ELIMINATE
from certimap.core.control import TimeUp
from certimap.networks.elimination_plan import EliminationPlan, cheap_plan, plan
from certimap.proofs.relaxations import MAX_ASCENTS, SHARE, ascended, cut, problem_of, summed_out
from certimap.proofs.script import MARGIN, Arrays, Box, Open, Script, ScriptPart

SMALL_TABLE, SMALL_SCOPE = 64, 4  # an elimination that makes a table this small is always allowed
MADE_ENTRIES = 2.0**20  # of an elimination that the writer runs as well
ROUNDING_SHARE = 0.1  # share of the slack that rounding may use in an elimination not run here
INNER_ASCENTS = 2  # below a split
MAX_SPLITS = 20_000


def steps_of(
    checked: ReducedModel, boxes: list[Box], script: Script, point: Sequence[int] | None = None
) -> Arrays | None:
    """Return steps that close boxes of a problem at a script's threshold; None if none are found in time.

    A part is eliminated if that takes at most `quick_entries` table entries, or `most_entries` after costs have
    been moved; otherwise it is split. Given a point at or just below the threshold, components get own levels.
    """
    answer = None if point is None else dict(zip(checked.queried, point, strict=True))
    networks = list(parts_of(checked, boxes))[::-1]
    waiting = [ScriptPart(network, script.threshold, answer=answer) for network in networks]
    for part in waiting:
        if part.point is not None and not part.network.hidden:
            part.slack = part.level - math.fsum([*part.network.constants, _value(part.network, part.point)])
    n_splits = 0
    try:
        while waiting:
            part = waiting.pop()
            script.threshold, script.slack = part.level, part.slack
            parts = _settled(script, part)
            is_split = any(found.depth > part.depth for found in parts)
            if is_split and not n_splits and len(boxes) == 1:
                at_once = _whole(checked, boxes, script)
                if at_once is not None:
                    return at_once
            n_splits += is_split
            if n_splits > MAX_SPLITS:
                return None
            waiting += parts[::-1]
    except (Open, TimeUp):
        return None
    return script.arrays


def _whole(checked: ReducedModel, boxes: list[Box], script: Script) -> Arrays | None:
    """Return the steps that eliminate an unreduced box, which may be narrower than a reduced one."""
    (network,) = parts_of(checked, boxes)
    alone = Script(script.threshold, script.control, script.max_bytes, slack=script.slack)
    if network.hidden or not _is_eliminated(alone, network, _best_plan(script, network, script.most_entries)):
        return None
    return alone.arrays


def _settled(script: Script, part: ScriptPart) -> list[ScriptPart]:
    """Close a part, or split it and return its parts."""
    _maximise_determined(script, part.network)
    if part.network.hidden:
        left = summed_out(script, part)
        if not isinstance(left, PlainNetwork):
            return left
        part.network = left
    if script.close(part.network):
        return []
    if _is_eliminated(script, part.network, _plan(part.network, script.quick_entries)):
        return []
    shifts = None if part.depth else cut(part.network)
    if shifts is not None:
        script.shift(part.network, shifts)
        if script.close(part.network):
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
        script.shift(network, ascended(network, bound - script.threshold))
        after, each = network.bounds()
        if after <= script.threshold:
            script.steps.append(CLOSE)
            return []
        n_before = sum(network.sizes.values())
        left = script.drop(network, each)
        if left is None:
            return []
        part.network, n_dropped = left, n_before - sum(left.sizes.values())
        if n_dropped <= SHARE * n_before and bound - after <= SHARE * (after - script.threshold):
            break
    if not _reduced(script, part):
        return []
    components = _divided(script, part)
    return components or _eliminated_or_split(script, part)


def _divided(script: Script, part: ScriptPart) -> list[ScriptPart]:
    """Return the components of a part if it has several, each with a level just above the answer's value."""
    answer, whole = part.point, part.network
    found = [] if answer is None else whole.components()
    if answer is None or len(found) < 2:
        return []
    values = [_value(network, answer) for network in found]
    pairs = zip(found, values, strict=True)
    needed = [network.bound() - value + MARGIN * (1.0 + abs(value)) for network, value in pairs]
    slack = script.threshold - math.fsum([*whole.constants, *values])
    slack -= MARGIN * (1.0 + abs(script.threshold) + math.fsum(map(abs, values)))
    open_ones, share = len(found), slack / len(found)
    for need in sorted(needed):  # components that need less leave the rest to the others
        if need > share:
            break
        open_ones, slack = open_ones - 1, slack - need
        share = slack / max(open_ones, 1)
    if not share > 0.0:
        return []
    levels = [value + min(need, share) for value, need in zip(values, needed, strict=True)]
    script.divide(levels)
    parts = zip(found, levels, values, strict=True)
    return [replace(part, network=one, level=level, slack=level - value, hint=None) for one, level, value in parts]


def _value(network: PlainNetwork, answer: Mapping[int, int]) -> float:
    """Return the log value of a point, without constants."""
    return math.fsum(t.logs[tuple(answer[v] for v in t.scope)] for t in network.factors)


def _reduced(script: Script, part: ScriptPart) -> bool:
    """Drop states, and eliminate and replace variables, until nothing changes; return False if the part closes."""
    while True:
        bound, each = part.network.bounds()
        if bound <= script.threshold:
            script.steps.append(CLOSE)
            return False
        left = script.drop(part.network, each)
        if left is None:
            return False
        is_smaller, part.network, network = left is not part.network, left, left
        n_before = len(network.sizes)
        _eliminate_cheap(script, network)
        script.steps.append(ABSORB)
        network.absorb()
        _replace_functions(script, network)
        if not is_smaller and len(network.sizes) == n_before:
            return True


def _eliminate_cheap(script: Script, network: PlainNetwork) -> None:
    """Eliminate variables as long as the tables do not grow."""
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


def _replace_functions(script: Script, network: PlainNetwork) -> None:
    """Replace variables that a table makes functions of others, unless the tables would grow."""
    for v in sorted(network.sizes):
        growths = {s: _growth(network, v, s) for s in sorted(network.near[v])}
        fitting = [(growth, s) for s, growth in growths.items() if growth is not None]
        if fitting:
            script.replace(network, v, min(fitting)[1])


def _maximise_determined(script: Script, network: PlainNetwork) -> None:
    """Maximise the hidden variables determined by queried ones: their sums have one term."""
    waiting = sorted(network.hidden)
    while waiting:
        v = waiting.pop()
        around = [s for s in sorted(network.near[v]) if not network.hidden - {v} & set(s)]
        fitting = [s for s in around if _determines(network, v, s)]
        if fitting:
            script.maximise(network, v, fitting[0])
            waiting += sorted(network.hidden & {u for scope in network.near[v] for u in scope} - set(waiting))


def _determines(network: PlainNetwork, v: int, by: Scope) -> bool:
    """Whether a table allows at most one state of `v` for each joint state of its other variables."""
    return not np.any((network.tables[by] > -np.inf).sum(axis=by.index(v)) > 1)


def _growth(network: PlainNetwork, v: int, by: Scope) -> int | None:
    """Return the change in table entries when table `by` replaces `v`; None if it cannot, or the tables grow."""
    values = network.tables[by]
    after, before = values.size // network.sizes[v], values.size
    for other in network.near[v] - {by}:
        union = {*by, *other} - {v}
        if len(union) > len(by) + SMALL_SCOPE:
            return None
        after += math.prod(network.sizes[u] for u in union)
        before += network.tables[other].size
    return after - before if after <= before and _determines(network, v, by) else None


def _plan(network: PlainNetwork, most: float) -> EliminationPlan | None:
    """Return a quickly found elimination plan if it takes at most `most` table entries."""
    found = cheap_plan(problem_of(network), most)
    return found if found is not None and _fits(network, found, most) else None


def _fits(network: PlainNetwork, found: EliminationPlan, most: float) -> bool:
    pairs = zip(found.order, found.separators, strict=True)
    largest = max((math.prod(network.sizes[u] for u in (v, *s)) for v, s in pairs), default=1)
    return found.n_entries <= most and largest <= MAX_ENTRIES


def _best_plan(script: Script, network: PlainNetwork, most: float) -> EliminationPlan | None:
    """Return a carefully found elimination plan if it takes at most `most` table entries."""
    found = plan(problem_of(network), control=script.control)
    return found if _fits(network, found, most) else None


def _is_eliminated(script: Script, network: PlainNetwork, found: EliminationPlan | None) -> bool:
    """Eliminate all variables of a part by a plan, if any; where rounding cannot matter, only record it."""
    if found is None or network.hidden:
        return False
    script.look()
    if found.n_entries > MADE_ENTRIES and _rounding(network) < ROUNDING_SHARE * script.slack:
        script.steps += [step for v in found.order for step in (ELIMINATE, v)]
    else:
        for v in found.order:
            script.eliminate(network, v)
        if network.bound() > script.threshold:
            raise Open  # there is a better assignment, or rounding takes more than the tolerance
    script.steps.append(CLOSE)
    return True


def _rounding(network: PlainNetwork) -> float:
    """Estimate the rounding error of an elimination (nats)."""
    tops = math.fsum(abs(float(t.logs.max())) for t in network.factors)
    return 2.0**-50 * (4.0 + max(map(len, network.near.values()), default=0)) * (tops + abs(network.bound()))


def _eliminated_or_split(script: Script, part: ScriptPart) -> list[ScriptPart]:
    """Eliminate all variables of a part, or split it."""
    network = part.network
    if _is_eliminated(script, network, _best_plan(script, network, script.most_entries)):
        return []
    v = _splitting(network, script.threshold)
    below = script.split(network, v)
    return [replace(part, network=network, depth=part.depth + 1, hint=None) for network in below]


def _splitting(network: PlainNetwork, threshold: float) -> int:
    """Return the variable whose states' bounds exceed the threshold least in sum."""
    bound, each = network.bounds()
    gaps = {v: float(np.sum((found - threshold) / (bound - threshold))) for v, found in each.items()}
    return min(gaps, key=lambda v: (gaps[v], -len(network.near[v]), v))
