"""The search for the best policy: local search for answers, backward induction for bounds, and branching."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np

from certimap.core.arrays import Array, spread
from certimap.core.control import Control
from certimap.decisions.diagram import BYTES, Diagram, ExpectationPlan, Potential, Worth
from certimap.decisions.induction import (
    InductionOrder,
    InductionPlan,
    OptionValues,
    induced,
    order_of,
    planned,
    together,
    total,
)
from certimap.errors import TooLarge

ULP = 1.01 * 2.0**-53
DIRECT, PACE = 2.0**28.5, 2.0**26  # entries that are summed before anything else: at most, and per second left
RUNGS = (20.0, 23.0, 26.0, 28.0, 30.0, 32.0, 34.0)  # log base 2 of entries of plans, one after another
ROWS, MOST_ROWS, LIMITS = 4, 16, (4.0, 8.0, 12.0, 16.0, 20.0, 24.0)  # random orders, and limits of their cliques
MISJUDGED, SPLIT = 2.0, 6.0  # log base 2 by which orders may seem dearer, and decisions' tables are smaller
CANDIDATES, TRIED = 3, 16  # plans that are run, and made, at a rung
LISTED = 2.0**16  # entries of all tables together, up to which policies are searched
NODES = 64  # boxes between two rungs
CLIMB = 1e-12  # relative gain below which a climb ends


class PolicyUpdating:
    """Single-policy updating (Lauritzen and Nilsson 2001): the best table of one decision after another.

    `diagram` is changed: decisions see what `sees` says, and have tables, first of options at random.
    """

    def __init__(
        self, diagram: Diagram, worths: Sequence[Worth], sees: Mapping[int, tuple[int, ...]], control: Control
    ) -> None:
        self._diagram, self._worths, self._sees, self._control = diagram, worths, sees, control
        for decision, own in sees.items():
            diagram.set_parents(decision, own)
            shape = [diagram.sizes[v] for v in (*own, decision)]
            self._set(decision, np.full(shape, 1.0 / shape[-1]))
        self._parts = {d: self._plans({*own, d}, diagram.below(d)) for d, own in sees.items()}
        self._last = self._plans(set(), set(diagram.sizes))

    def _plans(self, known: set[int], near: set[int]) -> list[tuple[Worth, ExpectationPlan]]:
        own = [w for w in self._worths if not (w.scope and near.isdisjoint(w.scope))]
        return [(w, self._diagram.planned(w.scope, known)) for w in own if w.scope or not known]

    def _set(self, decision: int, values: Array) -> None:
        self._diagram.tables[decision] = Potential(
            (*self._sees[decision], decision), values, frozenset((decision,))
        )

    def choose(self, decision: int, best: Array) -> None:
        """Give a decision a table: the best option for all that it sees."""
        self._set(decision, (best[..., None] == np.arange(self._diagram.sizes[decision])).astype(np.float64))

    def options(self, decision: int) -> OptionValues:
        """Return the values of a decision's options for all that it sees, given all other tables."""
        scope = (*self._sees[decision], decision)
        parts = [self._diagram.expected(worth, sums, self._control) for worth, sums in self._parts[decision]]
        values = together(self._diagram, parts, scope, self._control)
        if decision in self._diagram.options:
            values[..., ~self._diagram.options[decision]] = -np.inf
        return OptionValues(self._sees[decision], values)

    def value(self) -> Worth:
        """Return the expected utility of all tables together."""
        return total(self._diagram, self._last, self._control)

    def turn(self) -> tuple[Worth, dict[int, OptionValues]]:
        """Update every table once, last decisions first; return the value and the options at each turn."""
        options = dict[int, OptionValues]()
        for decision in reversed(list(self._sees)):
            options[decision] = self.options(decision)
            self.choose(decision, options[decision].values.argmax(axis=-1))
        return self.value(), options


class PolicySearch:
    """Two sides of the best expected utility (of shifted utilities), and the policy that earns the lower one.

    Boxes are sets of policies: options that tables may still take. Each is bounded by backward induction in which
    decisions know more than they do; where the best options differ by what a decision does not know, it is split.

    `lower`, `upper`: the sides. `tables`: the values of options by decision, whose best ones are the policy; empty
    where no policy has been valued.
    """

    def __init__(
        self, diagram: Diagram, worths: Sequence[Worth], own: Mapping[int, Collection[int]], control: Control,
        is_enough: Callable[[float, float], bool],
    ) -> None:  # fmt: skip
        self._diagram, self._worths, self._own, self._control = diagram, worths, own, control
        self._is_enough, self._scopes = is_enough, [w.scope for w in worths]
        self.lower, self.upper = 0.0, math.fsum(float(w.values.max()) for w in worths) * (1.0 + 4.0 * ULP)
        self.tables = dict[int, OptionValues]()
        self._prune()
        self._sees = {d: diagram.parents[d] for d in own}
        self._is_listed = math.fsum(2.0 ** diagram.log2((*s, d)) for d, s in self._sees.items()) <= LISTED
        masks = {d: Potential((d,), flags.astype(np.float64)) for d, flags in diagram.options.items()}
        self._open, self._n_boxes, self._closed = [(-self.upper, 0, masks)], 0, 0.0
        self._updating: PolicyUpdating | None = None

    def run(self) -> Iterator[None]:
        """Search until the sides are close enough, or nothing is left to do; yield when they may have moved.

        Raises TimeUp, and TooLarge where not even a bound fits into memory.
        """
        whole, is_exact = self._whole_plan()
        is_direct = whole is not None and whole.n_entries <= min(DIRECT, self._control.seconds_left * PACE)
        if not (is_exact and is_direct):
            yield from self._climb(0)
        plan = whole
        for more, bits in enumerate(() if is_direct else RUNGS, 1):
            if self._is_enough(self.lower, self.upper) or (whole and whole.n_entries <= 2.0**bits):
                break
            bounds = list[tuple[float, int, InductionPlan]]()
            for n, candidate in enumerate(self._plans(bits, is_exact)):
                bounds.append((self._bounded(candidate)[0], n, candidate))
                self._replace(bounds[-1][0], [self._open[0][2]])
                yield
            if bounds and not is_exact and self._is_listed:
                plan = min(bounds)[-1]
                yield from self._branch(plan, NODES)
            if not self._is_listed:
                yield from self._climb(2 * more)
        if self._is_enough(self.lower, self.upper) or (plan := whole or plan) is None:
            return
        if is_exact or not self._is_listed:
            value, options = induced(self._diagram, self._worths, plan, self._open[0][2], self._control)
            if is_exact:
                self._record(value, options)
            self._replace(min(self.upper, _high(value)), [self._open[0][2]])
            yield
        else:
            yield from self._branch(plan, math.inf)

    def _prune(self) -> None:
        """Take from what decisions see whatever no utility that they bear on depends on, given the rest."""
        diagram, changed = self._diagram, True
        while changed:
            changed = False
            for d in self._own:
                own, below = diagram.parents[d], diagram.below(d)
                parts = (diagram.requisite(s, {*own, d})[1] for s in self._scopes if not below.isdisjoint(s))
                kept = set[int]().union(*parts)
                if not kept.issuperset(own):
                    changed = True
                    diagram.set_parents(d, [v for v in own if v in kept])

    def _order(self, limit: float, row: int) -> InductionOrder:
        self._control.check("planning sums")
        return order_of(self._diagram, self._scopes, self._sees, limit, row)

    def _whole_plan(self) -> tuple[InductionPlan | None, bool]:
        """Return the cheapest plan that sums hidden variables first and fits, and whether it is exact."""
        orders, most = [self._order(math.inf, row) for row in range(ROWS)], 2.0 * self._control.memory_limit
        for own in ({}, self._sees if self._is_listed else {}):
            made = (planned(self._diagram, self._scopes, order, own, most) for order in orders)
            plans = [plan for plan in made if plan is not None and self._fits(plan)]
            exact = [p for p in plans if all(set(s.scope) <= set(self._sees[s.decision]) for s in p.stages)]
            if exact or own or not self._is_listed:
                return min(exact or plans, key=lambda p: p.n_entries, default=None), bool(exact)
        return None, False

    def _fits(self, plan: InductionPlan) -> bool:
        return BYTES * 2.0**plan.log2_largest <= self._control.memory_limit

    @cached_property
    def _orders(self) -> list[InductionOrder]:
        """Orders by falling cost, in which some hidden variables are seen by decisions."""
        orders = [self._order(limit, row) for row in range(MOST_ROWS) for limit in LIMITS]
        return sorted(orders, key=lambda order: -order.log2_work)

    def _plans(self, bits: float, is_exact: bool) -> Iterator[InductionPlan]:
        """Yield some of the dearest plans of at most 2^`bits` entries."""
        own, n, tried = self._sees if self._is_listed and not is_exact else {}, 0, 0
        for order in self._orders:
            if order.log2_work > bits + MISJUDGED or n == CANDIDATES or tried == TRIED:
                continue
            tried += 1
            for split in (math.inf, bits - SPLIT):
                plan = planned(self._diagram, self._scopes, order, own, 2.0**bits, split)
                if plan is not None and self._fits(plan):
                    n += 1
                    yield plan
                    break

    def _bounded(self, plan: InductionPlan) -> tuple[float, dict[int, OptionValues]]:
        """Bound the values of the policies of the first box; return the values of options too."""
        value, options = induced(self._diagram, self._worths, plan, self._open[0][2], self._control)
        return min(_high(value), -self._open[0][0]), options

    def _replace(self, bound: float, parts: Sequence[dict[int, Potential]]) -> None:
        """Put parts of the first box in its place; without any, no policy of it is better than `bound`."""
        heapq.heappop(self._open)
        for masks in parts:
            self._n_boxes += 1
            heapq.heappush(self._open, (-bound, self._n_boxes, masks))
        self._closed = self._closed if parts else max(self._closed, bound)
        top = -self._open[0][0] if self._open else 0.0
        self.upper = min(self.upper, max(self.lower, self._closed, top))

    def _branch(self, plan: InductionPlan, most: float) -> Iterator[None]:
        """Split at most so many boxes, the one with the largest bound first, until the sides are close."""
        while self._open and most > 0.0 and not self._is_enough(self.lower, self.upper):
            most -= 1.0
            bound, options = self._bounded(plan)
            parts = [] if self._is_enough(self.lower, bound) else (yield from self._split(options))
            if not parts and plan.is_split and not self._is_enough(self.lower, bound):
                return  # another plan may tell its policies apart
            self._replace(bound, parts)
            yield

    def _split(self, options: Mapping[int, OptionValues]) -> Generator[None, None, list[dict[int, Potential]]]:
        """Value the nearest policy to options of decisions that know more; split where it differs most."""
        updating, masks = self._updating, self._open[0][2]
        assert updating is not None
        most, parts = 0.0, list[dict[int, Potential]]()
        for d, (scope, values) in options.items():
            hidden = tuple(i for i, v in enumerate(scope) if v not in self._sees[d])
            loss = (values.max(axis=-1, keepdims=True) - values).mean(axis=hidden)
            kept = [v for v in scope if v in self._sees[d]]
            loss = loss.transpose([*(kept.index(v) for v in self._sees[d]), len(kept)])
            updating.choose(d, best := loss.argmin(axis=-1))
            least = loss.min(axis=-1)
            at = np.unravel_index(int(least.argmax()), least.shape)
            if least[at] > most:
                most, option = float(least[at]), np.eye(loss.shape[-1])[int(best[at])]
                allowed = np.ones(loss.shape)
                if d in masks:
                    allowed = allowed * spread(masks[d].values, masks[d].scope, (*self._sees[d], d))
                taken, left = allowed.copy(), allowed
                taken[at] *= option
                left[at] *= 1.0 - option
                parts = [{**masks, d: Potential((*self._sees[d], d), m)} for m in (taken, left) if m[at].any()]
        if _low(updating.value()) > self.lower:
            yield from self._climb_on(updating)
        return parts

    def _climb(self, more: int) -> Iterator[None]:
        """Improve a policy by single tables. Where policies are not listed, a decision sees its own information
        and `more` variables of the rest, the last known.
        """
        sees = dict(self._sees)
        if not self._is_listed:
            for d, known in sees.items():
                rest = [v for v in known if v not in self._own[d]]
                sees[d] = tuple(v for v in known if v in self._own[d] or v in rest[max(len(rest) - more, 0) :])
        own = self._diagram
        copy = Diagram(own.sizes, dict(own.parents), dict(own.tables), own.observed, own.options)
        self._updating = PolicyUpdating(copy, self._worths, sees, self._control)
        with suppress(TooLarge):
            yield from self._climb_on(self._updating)

    def _climb_on(self, updating: PolicyUpdating) -> Iterator[None]:
        """Update tables in turn until none gains."""
        found = -math.inf
        while True:
            value, options = updating.turn()
            self._record(value, options)
            yield
            if float(value.values) <= found + CLIMB * abs(found):
                return
            found = float(value.values)

    def _record(self, value: Worth, options: dict[int, OptionValues]) -> None:
        if (low := _low(value)) > self.lower or not self.tables:
            self.lower, self.tables = max(low, 0.0), options
            self.upper = max(self.upper, self.lower)


def _low(value: Worth) -> float:
    """Return a lower bound on the exact value of a computed expected utility."""
    return float(value.values) * (1.0 - ULP * value.n_rounded) - value.lost


def _high(value: Worth) -> float:
    """Return an upper bound on the exact value of a computed expected utility."""
    return float(value.values) * (1.0 + ULP * value.n_rounded) + value.lost
