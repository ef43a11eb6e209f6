"""Backward induction: decisions are solved last ones first, each with all that may be known when it is made.

A plan may let a decision know more than it does, and may let several utilities each have the option that suits
them. Both only raise what it returns, which is the best expected utility where a plan does neither.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats, spread
from certimap.core.control import Control
from certimap.decisions.diagram import BYTES, LEAST_BITS, Diagram, ExpectationPlan, Potential, Worth

NOISE = 3.0  # log base 2 by which random orders misjudge cliques


class Stage(NamedTuple):
    """A decision, what its table is over, and the utilities that it bears on, with how they are summed."""

    decision: int
    scope: tuple[int, ...]
    parts: tuple[tuple[int, ExpectationPlan], ...]


class InductionPlan(NamedTuple):
    """Stages in the order in which they are solved, what is summed at the end, and the cost.

    `is_split`: whether a decision has several stages, one for each group of utilities.
    """

    stages: tuple[Stage, ...]
    last: tuple[tuple[int, ExpectationPlan], ...]
    log2_largest: float
    n_entries: float
    is_split: bool


class OptionValues(NamedTuple):
    """What options of a decision (last axis) are expected to bring, over `scope`; -inf where one is ruled out."""

    scope: tuple[int, ...]
    values: Floats


class InductionOrder(NamedTuple):
    """Decisions, last ones first, each with all that may be known; and log base 2 of the cliques together."""

    decisions: tuple[tuple[int, frozenset[int]], ...]
    log2_work: float


def order_of(
    diagram: Diagram, scopes: Sequence[Collection[int]], sees: Mapping[int, Collection[int]],
    limit: float, row: int,
) -> InductionOrder:  # fmt: skip
    """Return a greedy order in which a decision goes after all that it causes.

    A hidden variable is summed before the decisions that do not see it if its clique has at most 2^`limit` joint
    states, and else seen by some. `row`: of random numbers that cliques are misjudged by; 0 misjudges none.
    """
    needed, ahead = set[int](), [*diagram.observed, *(v for s in scopes for v in s)]
    while ahead:
        if (v := ahead.pop()) not in needed:
            needed.add(v)
            ahead += diagram.parents.get(v, ())
    left = needed - diagram.observed
    cliques = [set(s) & left for s in scopes]
    cliques += [{v, *diagram.parents[v]} & left for v in needed if v not in sees]
    near = {v: set[int]().union(*(s for s in cliques if v in s)) | {v} for v in left}
    noise = NOISE * np.random.default_rng(row).random(max(left, default=0) + 1) * bool(row)
    below = {d: diagram.below(d) & left - {d} for d in sees if d in left}
    weight = {v: diagram.log2(near[v]) + float(noise[v]) for v in left}
    found, work = list[tuple[int, frozenset[int]]](), 1.0
    while left:
        open_ = below.keys() & left
        barred = set[int]().union(*(sees[d] for d in open_)) | {d for d in open_ if below[d] & left}
        free = sorted(left - barred, key=lambda v: (weight[v], v))
        v = next((u for u in free if u not in below and weight[u] <= limit), free[0])
        work += 2.0 ** min(diagram.log2(near[v]), LEAST_BITS)
        left.discard(v)
        if v in below:
            found.append((v, frozenset(left)))
        around = near.pop(v) - {v}
        for u in around:
            near[u] = (near[u] | around) - {v}
            weight[u] = diagram.log2(near[u]) + float(noise[u])
    return InductionOrder(tuple(found), math.log2(work))


def planned(
    diagram: Diagram, scopes: Sequence[Collection[int]], order: InductionOrder, own: Mapping[int, Collection[int]],
    most: float = math.inf, split: float = math.inf,
) -> InductionPlan | None:  # fmt: skip
    """Return what backward induction along an order takes; None above `most` entries.

    `own`: variables over which a decision's table is made in any case. `split`: log base 2 of the entries of a
    decision's table, beyond which groups of utilities each have the option that suits them.
    """
    live, n, log2 = dict(enumerate(tuple(s) for s in scopes)), len(scopes), diagram.log2
    stages, entries, largest = list[Stage](), 0.0, 0.0
    for decision, known in order.decisions:
        below, known = diagram.below(decision), known | {decision}
        groups = list[tuple[set[int], list[tuple[int, ExpectationPlan]]]]()
        parts = [(k, diagram.planned(s, known)) for k, s in live.items() if not below.isdisjoint(s)]
        for k, sums in sorted(parts, key=lambda part: -len(part[1].scope)):
            del live[k]
            scope = {decision, *sums.scope, *own.get(decision, ())}
            joined = next((g for g in groups if log2(g[0] | scope) <= split), None)
            if joined is None:
                groups.append(joined := (scope, []))
            joined[0].update(scope)
            joined[1].append((k, sums))
            entries, largest = entries + sums.n_entries, max(largest, sums.log2_largest)
        for scope, some in groups:
            live[n] = tuple(sorted(scope - {decision}))
            stages.append(Stage(decision, live[n], tuple(some)))
            entries, largest = entries + 2.0 ** min(log2(scope), LEAST_BITS), max(largest, log2(scope))
            n += 1
        if entries > most:
            return None
    last = tuple((k, diagram.planned(s, ())) for k, s in live.items())
    entries += math.fsum(sums.n_entries for _, sums in last)
    largest = max([largest, *(sums.log2_largest for _, sums in last)])
    is_split = len({stage.decision for stage in stages}) < len(stages)
    return InductionPlan(tuple(stages), last, largest, entries, is_split) if entries <= most else None


def induced(
    diagram: Diagram, worths: Sequence[Worth], plan: InductionPlan, allowed: Mapping[int, Potential],
    control: Control,
) -> tuple[Worth, dict[int, OptionValues]]:  # fmt: skip
    """Run a plan: return an upper bound on every expected utility, and the values of options.

    `allowed`: for decisions with options that are ruled out, a table with 0 for these.
    """
    live, n, options = dict(enumerate(worths)), len(worths), dict[int, OptionValues]()
    for stage in plan.stages:
        scope = (*stage.scope, stage.decision)
        parts = [diagram.expected(live.pop(k), sums, control) for k, sums in stage.parts]
        values = together(diagram, parts, scope, control)
        if stage.decision in allowed:
            mask = allowed[stage.decision]
            values = np.where(spread(mask.values, mask.scope, scope) > 0.0, values, -np.inf)
        options.setdefault(stage.decision, OptionValues(stage.scope, values))
        n_rounded = max(part.n_rounded for part in parts) + len(parts)
        lost = math.fsum(part.lost for part in parts)
        live[n] = Worth(stage.scope, values.max(axis=-1), n_rounded, lost)
        n += 1
    return total(diagram, [(live[k], sums) for k, sums in plan.last], control), options


def together(diagram: Diagram, parts: Sequence[Worth], scope: tuple[int, ...], control: Control) -> Floats:
    """Return the sum of expectations over the variables of `scope`."""
    control.reserve(BYTES * 2.0 ** diagram.log2(scope), "the table of a decision")
    values = np.zeros([diagram.sizes[v] for v in scope])
    for part in parts:
        values += spread(part.values, part.scope, scope)
    return values


def total(diagram: Diagram, parts: Sequence[tuple[Worth, ExpectationPlan]], control: Control) -> Worth:
    """Return the sum of the expectations of utilities, given the evidence alone."""
    found = [diagram.expected(worth, sums, control) for worth, sums in parts]
    value = np.array(math.fsum(float(w.values) for w in found))
    n_rounded = 1.0 + max((w.n_rounded for w in found), default=0.0)
    return Worth((), value, n_rounded, math.fsum(w.lost for w in found))
