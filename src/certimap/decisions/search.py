"""The search for the best policy: local search for answers, backward induction for bounds, and branching."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from certimap.core.arrays import Array, spread
from certimap.core.control import Control
from certimap.decisions.diagram import BYTES, Diagram, ExpectationPlan, Potential, Worth
from certimap.decisions.induction import InductionPlan, OptionValues, induced, order_of, planned, together
from certimap.errors import TooLarge

ULP = 1.01 * 2.0**-53
DIRECT, PACE = 2.0**28.5, 2.0**26  # entries that are summed before anything else: at most, and per second left
ROWS, MOST_ROWS, LIMITS = 4, 64, (4.0, 12.0, 20.0)  # random orders, and log base 2 of limits of their cliques
SPLITS = (math.inf, 18.0)  # log base 2 of limits of decisions' tables
LISTED = 2.0**16  # entries of all tables together, up to which policies are searched
NODES = 64  # boxes that are split before a larger plan is tried
CLIMB = 1e-12  # relative gain below which a climb ends
Boxed = tuple[float, int, dict[int, Potential]]  # a bound, negative, a number, and options that tables may take


class PolicyUpdating:
    """Single-policy updating (Lauritzen and Nilsson 2001): the best table of one decision after another."""

    def __init__(
        self, whole: Diagram, worths: Sequence[Worth], sees: Mapping[int, tuple[int, ...]], control: Control
    ) -> None:
        self._diagram = d = whole.copy()
        self._sees, self._control = sees, control
        for decision, own in sees.items():
            d.set_parents(decision, own)
            shape = [d.sizes[v] for v in (*own, decision)]
            self._set(decision, np.full(shape, 1.0 / shape[-1]))
        self._parts = dict[int, list[tuple[Worth, ExpectationPlan]]]()
        for decision, own in sees.items():
            some = [w for w in worths if not d.below(decision).isdisjoint(w.scope)]
            self._parts[decision] = [(w, d.planned(w.scope, {*own, decision})) for w in some]
        self._last = [(w, d.planned(w.scope, ())) for w in worths]
        self.n_entries = math.fsum(sums.n_entries for some in self._parts.values() for _, sums in some)

    def _set(self, decision: int, values: Array) -> None:
        scope = (*self._sees[decision], decision)
        self._diagram.tables[decision] = Potential(scope, values, frozenset((decision,)))

    def choose(self, decision: int, best: Array) -> None:
        """Give a decision a table: the best option for all that it sees."""
        self._set(decision, (best[..., None] == np.arange(self._diagram.sizes[decision])).astype(np.float64))

    def value(self) -> Worth:
        """Return the expected utility of all tables together."""
        return together(self._diagram, self._last, (), self._control)

    def turn(self) -> tuple[Worth, dict[int, OptionValues]]:
        """Update every table once, last decisions first; return the value and the options at each turn."""
        options = dict[int, OptionValues]()
        for decision in reversed(list(self._sees)):
            scope = (*self._sees[decision], decision)
            whole = together(self._diagram, self._parts[decision], scope, self._control)
            values = whole.values
            if decision in self._diagram.options:
                values[..., ~self._diagram.options[decision]] = -np.inf
            options[decision] = OptionValues(scope[:-1], values, whole.shift)
            self.choose(decision, values.argmax(axis=-1))
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
        self._sees, self._is_listed = {d: diagram.parents[d] for d in own}, False
        masks = {d: Potential((d,), flags.astype(np.float64)) for d, flags in diagram.options.items()}
        self._open: list[Boxed] = [(-self.upper, 0, masks)]
        self._n_boxes, self._closed, self._memory = 0, 0.0, 0
        self._updating: PolicyUpdating | None = None

    def run(self) -> Iterator[None]:
        """Search until the sides are close enough, or nothing is left to do; yield when they may have moved.

        Raises TimeUp, and TooLarge where the next plan does not fit into memory.
        """
        whole, is_exact, is_direct = self._whole_plan()
        if not (is_exact and is_direct):
            yield from self._climb(math.inf)
        for plan in () if is_direct else self._smaller_plans(whole, is_exact):
            yield from self._branch(plan, NODES, self._is_listed and not is_exact, False)
            if not self._is_listed:
                yield from self._climb(plan.n_entries)
        yield from self._branch(whole, math.inf, self._is_listed and not is_exact, is_exact)

    def _prune(self) -> None:
        """Take from what decisions see whatever no utility that they bear on depends on, given the rest."""
        diagram, changed = self._diagram, True
        while changed:
            changed = False
            for d in self._own:
                own, below = diagram.parents[d], diagram.below(d)
                parts = [diagram.requisite(s, {*own, d})[1] for s in self._scopes if not below.isdisjoint(s)]
                kept = [v for v in own if any(v in part for part in parts)]
                changed |= len(kept) < len(own)
                diagram.set_parents(d, kept)
        self._sees = {d: diagram.parents[d] for d in self._own}
        self._is_listed = math.fsum(2.0 ** diagram.log2((*s, d)) for d, s in self._sees.items()) <= LISTED

    def _order(self, limit: float, row: int) -> dict[int, set[int]]:
        self._control.check("planning sums")
        return order_of(self._diagram, self._scopes, self._sees, limit, row)

    def _one_by_one(self) -> tuple[InductionPlan, bool]:
        """Return a plan by what decisions see, later ones first, and whether none of them depends on open ones.

        Then it is exact (soluble diagrams: Lauritzen and Nilsson 2001; relevance: Koller and Milch 2003).
        """
        plan = planned(self._diagram, self._scopes, dict(reversed(self._sees.items())), {})
        sums = [part for some in (*(some for _, _, some in plan.stages), plan.last) for _, part in some]
        return plan, all(self._sees.keys().isdisjoint(part.nodes) for part in sums)

    def _fits(self, plan: InductionPlan) -> bool:
        return BYTES * 2.0**plan.log2_largest <= self._control.memory_limit

    def _whole_plan(self) -> tuple[InductionPlan, bool, bool]:
        """Return a plan of any cost, whether it is exact, and whether it is cheap; prune unless it is both."""
        most = min(DIRECT, self._control.seconds_left * PACE)
        plan, is_exact = self._one_by_one()
        if is_exact and plan.n_entries <= most and self._fits(plan):
            return plan, True, True
        self._prune()
        if not is_exact:
            plan, is_exact = self._one_by_one()
        if not is_exact:
            own, orders = self._sees if self._is_listed else {}, [self._order(math.inf, k) for k in range(ROWS)]
            plans = [planned(self._diagram, self._scopes, order, own) for order in orders]
            plan = min(plans, key=lambda p: p.n_entries)
        return plan, is_exact, plan.n_entries <= most and self._fits(plan)

    def _smaller_plans(self, whole: InductionPlan, is_exact: bool) -> Iterator[InductionPlan]:
        """Yield plans that cost less than the whole, cheap ones first, in which decisions see more."""
        own, found = self._sees if self._is_listed and not is_exact else {}, list[InductionPlan]()
        end = 0.9 * self._control.seconds_left
        for row, limit in itertools.product(range(MOST_ROWS), LIMITS):
            left = self._control.seconds_left
            if left < end and any(plan.n_entries < left * PACE for plan in found):
                break
            order = self._order(limit, row)
            plans = [planned(self._diagram, self._scopes, order, own, split) for split in SPLITS]
            found += filter(self._fits, plans)
        last = 0.0
        for plan in sorted(found, key=lambda p: p.n_entries):
            if 2.0 * last < plan.n_entries < whole.n_entries:
                last = plan.n_entries
                yield plan

    def _branch(self, plan: InductionPlan, most: float, splits: bool, is_exact: bool) -> Iterator[None]:
        """Bound the box with the largest bound, and where `splits`, split at most so many."""
        while self._open and most > 0.0 and not self._is_enough(self.lower, self.upper):
            most = most - 1.0 if splits else 0.0
            value, options = induced(self._diagram, self._worths, plan, self._open[0][2], self._control)
            bound, parts = min(_high(value), -self._open[0][0]), [self._open[0][2]]
            if is_exact:
                self._record(value, options)
            if splits:
                parts = [] if self._is_enough(self.lower, bound) else (yield from self._split(options))
                if not parts and plan.is_split and not self._is_enough(self.lower, bound):
                    return  # another plan may tell its policies apart
            heapq.heappop(self._open)
            for masks in parts:
                self._n_boxes += 1
                heapq.heappush(self._open, (-bound, self._n_boxes, masks))
            self._closed = self._closed if parts else max(self._closed, bound)
            self.upper = min(self.upper, max(self.lower, self._closed, -self._open[0][0] if self._open else 0.0))
            yield

    def _split(self, options: Mapping[int, OptionValues]) -> Generator[None, None, list[dict[int, Potential]]]:
        """Value the nearest policy to options of decisions that know more; split where it differs most."""
        updating, masks = self._updating, self._open[0][2]
        assert updating is not None
        most, parts = 0.0, list[dict[int, Potential]]()
        for d, (scope, values, _) in options.items():
            hidden = tuple(i for i, v in enumerate(scope) if v not in self._sees[d])
            kept = [v for v in scope if v in self._sees[d]]
            loss = (values.max(axis=-1, keepdims=True) - values).mean(axis=hidden)
            loss = loss.transpose([*(kept.index(v) for v in self._sees[d]), len(kept)])
            updating.choose(d, best := loss.argmin(axis=-1))
            least = loss.min(axis=-1)
            at = np.unravel_index(int(least.argmax()), least.shape)
            if least[at] > most:
                most, option, scope = float(least[at]), np.eye(loss.shape[-1])[int(best[at])], (*self._sees[d], d)
                taken = np.ones(loss.shape) * (
                    spread(masks[d].values, masks[d].scope, scope) if d in masks else 1.0
                )
                left = taken.copy()
                taken[at] *= option
                left[at] *= 1.0 - option
                parts = [{**masks, d: Potential(scope, mask)} for mask in (taken, left) if mask[at].any()]
        if _low(updating.value()) > self.lower:
            yield from self._turns(updating)
        return parts

    def _climb(self, most: float) -> Iterator[None]:
        """Improve a policy by single tables, if that sums at most so many entries at a time.

        Where policies are not listed, a decision sees its own information and some of the rest, the last known;
        two variables more each time.
        """
        sees = dict(self._sees)
        for d, known in () if self._is_listed else sees.items():
            rest = [v for v in known if v not in self._own[d]]
            forgotten = rest[: max(len(rest) - self._memory, 0)]
            sees[d] = tuple(v for v in known if v not in forgotten)
        updating = PolicyUpdating(self._diagram, self._worths, sees, self._control)
        if updating.n_entries <= most:
            self._updating, self._memory = updating, self._memory + 2
            with suppress(TooLarge):
                yield from self._turns(updating)

    def _turns(self, updating: PolicyUpdating) -> Iterator[None]:
        """Update tables until none gains."""
        found, value = -1.0, Worth((), np.zeros(()))
        while float(value.values) > found + CLIMB * found:
            found = float(value.values)
            value, options = updating.turn()
            self._record(value, options)
            yield

    def _record(self, value: Worth, options: dict[int, OptionValues]) -> None:
        if (low := _low(value)) > self.lower or not self.tables:
            self.lower, self.tables = max(low, self.lower), options


def _low(value: Worth) -> float:
    """Return a lower bound on the exact value of a computed expected utility."""
    return float(value.values) * (1.0 - ULP * value.n_rounded) - value.lost


def _high(value: Worth) -> float:
    """Return an upper bound on the exact value of a computed expected utility."""
    return float(value.values) * (1.0 + ULP * value.n_rounded) + value.lost
