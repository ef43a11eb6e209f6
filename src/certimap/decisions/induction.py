"""Backward induction: decisions are solved last ones first, each with all that may be known when it is made.

A plan may let a decision know more than it does, and may let groups of utilities each have the option that suits
them. Both only raise what it returns, which is the best expected utility where a plan does neither.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats, spread
from certimap.core.control import Control
from certimap.decisions.diagram import BYTES, MANY, Diagram, ExpectationPlan, Potential, Worth

NOISE = 3.0  # log base 2 by which random orders misjudge cliques
Known = Mapping[int, Collection[int]]  # by decision


class InductionPlan(NamedTuple):
    """What induction sums: by stage a decision, what its table is over, and the utilities that it bears on.

    `last`: the utilities that are left. `is_split`: whether a decision has several stages.
    """

    stages: list[tuple[int, tuple[int, ...], list[tuple[int, ExpectationPlan]]]]
    last: list[tuple[int, ExpectationPlan]]
    log2_largest: float
    n_entries: float
    is_split: bool


class OptionValues(NamedTuple):
    """What options of a decision (last axis) are expected to bring, over `scope`; -inf where one is ruled out.

    `shift`: what to add for units of utility.
    """

    scope: tuple[int, ...]
    values: Floats
    shift: float = 0.0


def order_of(
    diagram: Diagram, scopes: Sequence[Collection[int]], sees: Known, limit: float, row: int
) -> dict[int, set[int]]:
    """Return a greedy order: decisions, each after all that it causes, with all that may be known when it is made.

    A hidden variable is summed before the decisions that do not see it if its clique has at most 2^`limit` joint
    states, and else seen by some. `row`: of random numbers that cliques are misjudged by; 0 misjudges none.
    """
    needed, ahead = set[int](), [*diagram.observed, *(v for s in scopes for v in s)]
    while ahead:
        if (v := ahead.pop()) not in needed:
            needed.add(v)
            ahead += diagram.parents.get(v, ())
    left = needed - diagram.observed
    cliques = [set(s) & left for s in scopes] + [{v, *diagram.parents[v]} & left for v in needed if v not in sees]
    near = {v: {v}.union(*(s for s in cliques if v in s)) for v in left}
    noise = NOISE * np.random.default_rng(row).random(max(left, default=0) + 1) * bool(row)
    below = {d: diagram.below(d) & left - {d} for d in sees if d in left}
    weight = {v: diagram.log2(near[v]) + float(noise[v]) for v in left}
    found = dict[int, set[int]]()
    while left:
        open_ = below.keys() & left
        barred = {d for d in open_ if below[d] & left}.union(*(sees[d] for d in open_))
        free = sorted(left - barred, key=lambda v: (weight[v], v))
        v = next((u for u in free if u not in below and weight[u] <= limit), free[0])
        left.discard(v)
        if v in below:
            found[v] = set(left)
        around = near.pop(v) - {v}
        for u in around:
            near[u] = (near[u] | around) - {v}
            weight[u] = diagram.log2(near[u]) + float(noise[u])
    return found


def planned(
    diagram: Diagram, scopes: Sequence[Collection[int]], order: Known, own: Known, split: float = math.inf
) -> InductionPlan:
    """Return what backward induction along an order takes.

    `own`: variables over which a decision's table is made in any case. `split`: log base 2 of the entries of a
    decision's table, beyond which groups of utilities each have the option that suits them.
    """
    live, log2 = dict(enumerate(map(tuple, scopes))), diagram.log2
    stages, sizes = list[tuple[int, tuple[int, ...], list[tuple[int, ExpectationPlan]]]](), [0.0]
    for decision, known in order.items():
        below, groups = diagram.below(decision), list[tuple[set[int], list[tuple[int, ExpectationPlan]]]]()
        parts = [(k, diagram.planned(s, {*known, decision})) for k, s in live.items() if not below.isdisjoint(s)]
        for k, sums in sorted(parts, key=lambda part: -len(part[1].scope)):
            del live[k]
            scope = {decision, *sums.scope, *own.get(decision, ())}
            joined = next((g for g in groups if log2(g[0] | scope) <= split), None)
            if joined is None:
                groups.append(joined := (scope, []))
            joined[0].update(scope)
            joined[1].append((k, sums))
        for scope, some in groups:
            live[len(scopes) + len(stages)] = rest = tuple(sorted(scope - {decision}))
            stages.append((decision, rest, some))
            sizes.append(min(log2(scope), MANY))
    last = [(k, diagram.planned(s, ())) for k, s in live.items()]
    sums = [part for some in (*(some for _, _, some in stages), last) for _, part in some]
    entries = math.fsum([*(2.0**size for size in sizes), *(part.n_entries for part in sums)])
    largest = max([*sizes, *(part.log2_largest for part in sums)])
    return InductionPlan(stages, last, largest, entries, len({d for d, _, _ in stages}) < len(stages))


def induced(
    diagram: Diagram, worths: Sequence[Worth], plan: InductionPlan, allowed: Mapping[int, Potential],
    control: Control,
) -> tuple[Worth, dict[int, OptionValues]]:  # fmt: skip
    """Run a plan: return an upper bound on every expected utility, and the values of options.

    `allowed`: for decisions with options that are ruled out, a table with 0 for these.
    """
    live, options = dict(enumerate(worths)), dict[int, OptionValues]()
    for n, (decision, scope, some) in enumerate(plan.stages, len(worths)):
        whole = together(diagram, [(live.pop(k), sums) for k, sums in some], (*scope, decision), control)
        values = whole.values
        if decision in allowed:
            mask = allowed[decision]
            values = np.where(spread(mask.values, mask.scope, whole.scope) > 0.0, values, -np.inf)
        options.setdefault(decision, OptionValues(scope, values, whole.shift))
        live[n] = whole._replace(scope=scope, values=values.max(axis=-1))
    return together(diagram, [(live[k], sums) for k, sums in plan.last], (), control), options


def together(
    diagram: Diagram, parts: Sequence[tuple[Worth, ExpectationPlan]], scope: tuple[int, ...], control: Control
) -> Worth:
    """Return the sum of the expectations of utilities, over the variables of `scope`."""
    control.reserve(BYTES * 2.0 ** diagram.log2(scope), "the table of a decision")
    values, n_rounded, lost, shift = np.zeros([diagram.sizes[v] for v in scope]), 0.0, 0.0, 0.0
    for worth, sums in parts:
        part = diagram.expected(worth, sums, control)
        values += spread(part.values, part.scope, scope)
        n_rounded, lost, shift = max(n_rounded, part.n_rounded), lost + part.lost, shift + part.shift
    return Worth(scope, values, n_rounded + len(parts), lost, shift)
