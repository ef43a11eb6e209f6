"""Upper bounds of max-sum problems by elimination at full width, sums and maxima in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.control import Control, WorkClock
from certimap.core.logs import log_of
from certimap.core.rounding import MIXED_BITS, MIXED_TOP
from certimap.kernels.parallel import for_blocks
from certimap.kernels.wide import extent
from certimap.networks.kernels import mixed as kernels
from certimap.networks.problem import ROUNDING, Problem, Table, product, strides_of
from certimap.networks.relaxation.split_tree import Region, parents_of, split

PIECE = 2.0**25  # products between two checks of the clock
SHARED = 2.0**20  # products from which several threads share them
SECONDS_PER_PRODUCT = 4e-10
STEP_PRODUCTS = 2.0**14  # products that take as long as a step does beside its own
JOINED, JOINED_SHARE = 2.0**12, 0.0625  # entries of a product of tables, and the same of its clique's
DOING = "eliminating at full width"
# children around each of which messages are multiplied anew; inputs of which all pairs are tried
FEW, MANY = 8, 16
ONE = np.ones(1)
LN2 = math.log(2.0)
SLACK_BITS = 1e-6  # log base 2: more than rounding moves an entry in one step


class MixedMessage(NamedTuple):
    """A nonnegative function over a scope."""

    scope: tuple[int, ...]
    values: Floats  # its entries, first variable slowest, in units of 2^`exponent`
    exponent: int = 0
    # least, most: log base 2 of a lower bound on the positive entries, and of an upper bound on all entries
    least: float = 0.0
    most: float = 0.0


class Memory:
    """Memory of messages that are used up, for later ones: fresh pages cost more than what is written into them.

    `most`: bytes that may lie here unused.
    """

    LEAST = 2**14  # entries of a message that is worth it
    STEP = 4  # sizes per doubling

    def __init__(self, most: float = math.inf) -> None:
        self._most, self._held = most, 0
        self._spare: dict[int, list[Floats]] = {}

    def take(self, n: int) -> Floats:
        """Return room for `n` entries, uninitialised."""
        if n < self.LEAST:
            return np.empty(n)
        size = math.ceil(self.STEP * math.log2(n))
        for at in range(size, size + self.STEP):
            if spare := self._spare.get(at):
                found = spare.pop()
                self._held -= found.nbytes
                return found[:n]
        return np.empty(math.ceil(2.0 ** (size / self.STEP)))[:n]

    def give(self, values: Floats) -> None:
        """Take room back that nothing reads any more."""
        whole = values.base
        if whole is None or self._held + whole.nbytes > self._most:
            return
        self._held += whole.nbytes
        self._spare.setdefault(math.floor(self.STEP * math.log2(len(whole)) + 1e-9), []).append(whole)


class StateBounds(NamedTuple):
    """Upper bounds in nats, rounded up."""

    log_value: float  # the bound on the problem's value: the least over all buckets
    log_total: float  # the bound from the roots alone
    # by query variable and state, from the variable's own bucket, where it is eliminated last
    each: dict[int, Floats]


class MixedTree:
    """The bucket tree of an elimination order, in which hidden variables are summed and queried ones maximised.

    A maximum taken before a sum only raises the result, because a sum of maxima is at least the maximum of the
    sums. So any order gives an upper bound on the problem's value, and one with all sums first gives the value.
    Messages run towards the roots, and from there to the buckets of queried variables; a bound for every state of
    such a variable comes from its own bucket, where it goes last.

    Entries are scaled doubles; positive ones that are too small for a product are raised, zeros stay zeros.

    `problem`: of floats.
    `order`: all its variables, the first eliminated first.
    `control`: ends a pass by TimeUp.
    `workers`: threads that share large tables; the bounds do not depend on it.
    `memory`: where messages lie; trees that are used one after another may share it.
    """

    def __init__(
        self, problem: Problem, order: Sequence[int], control: Control | None = None, workers: int = 1,
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.workers = problem, workers
        self.clock = WorkClock(control or Control(), DOING, SECONDS_PER_PRODUCT)
        self.place = {v: i for i, v in enumerate(order)}
        self.regions = split(problem, order, lambda scope: True)
        self.parent = parents_of(self.regions)
        self.has_query = [r.own in problem.query for r in self.regions]
        for r, parent in enumerate(self.parent):
            if parent >= 0:
                self.has_query[parent] |= self.has_query[r]
        self.work = 0.0
        self._n_roundings, self._reach = 0, 0.0
        self._memory = memory or Memory()
        self._scopes = [tuple(sorted(r.separator, key=self.place.__getitem__)) for r in self.regions]

    def bounds(self) -> StateBounds:
        """Return bounds of the whole, and of each state of every queried variable, in up to three passes."""
        self._up()
        total = self._total()
        if total == -math.inf:
            return StateBounds(
                total, total, {v: np.full(self.problem.sizes[v], -np.inf) for v in self.problem.query}
            )
        found = {v: values + self.log_slack for v, values in self._down(total).items()}
        total += self.log_slack
        bound = min([total, *(float(values.max()) for values in found.values())])
        return StateBounds(bound, total, found)

    def total(self) -> float:
        """Return the bound of the whole from the roots alone, in one pass, in nats, rounded up."""
        self._up()
        return self._total() + self.log_slack

    def order_towards(self, v: int) -> list[int]:
        """Return an order in which all messages run to a variable's bucket, so that it is eliminated last."""
        goal = next(r for r, region in enumerate(self.regions) if region.own == v)
        path = [goal]
        while self.parent[path[-1]] >= 0:
            path.append(self.parent[path[-1]])
        on_path = set(path)
        order = [region.own for r, region in enumerate(self.regions) if r not in on_path]
        for r, child in zip(path[::-1], path[-2::-1], strict=False):
            order += self._sums_first(
                [u for u in (self.regions[r].own, *self._scopes[r]) if u not in self._scopes[child]]
            )
        return [*order, *self._sums_first(self._scopes[goal]), v]

    @property
    def n_bytes(self) -> float:
        """Peak memory of `bounds`, in bytes: waiting and kept messages, and the next one."""
        sizes = self.problem.sizes
        size = [math.prod(float(sizes[v]) for v in r.separator) for r in self.regions]
        held = most = 0.0
        for r, region in enumerate(self.regions):
            held += size[r]
            most = max(most, held)
            if not self._keeps(region):
                held -= sum(size[c] for c in region.children)
        return 8.0 * (most + 3.0 * max(size, default=0.0))

    def _keeps(self, region: Region) -> bool:
        """Whether the way down needs the messages that a region receives."""
        is_fork = len(region.children) > 1 and any(self.has_query[c] for c in region.children)
        return is_fork or region.own in self.problem.query

    def _up(self) -> None:
        """Send the messages towards the roots; keep the messages that `_down` needs."""
        self._messages: dict[int, MixedMessage] = {}
        self._locals: dict[int, list[MixedMessage]] = {}
        self._tops: list[float] = []  # nats taken out of the tables
        sizes = self.problem.sizes
        for r, region in enumerate(self.regions):
            # the region's own tables, in groups whose products are hardly larger than the tables
            most = max(JOINED, JOINED_SHARE * math.prod(float(sizes[v]) for v in region.scope))
            groups: list[tuple[frozenset[int], list[Table]]] = []
            for table in sorted((self.problem.tables[k] for k in region.tables), key=lambda t: -t.log_values.size):
                for at, (held, group) in enumerate(groups):
                    scope = held.union(table.scope)
                    if scope == held or math.prod(sizes[v] for v in scope) <= most:
                        groups[at] = scope, [*group, table]
                        break
                else:
                    groups.append((frozenset(table.scope), [table]))
            self._locals[r] = [self._local(group) for _, group in groups]
            inputs = self._inputs(r)
            self._messages[r] = self._eliminated(inputs, (region.own,), self._scopes[r])
            if not self._messages[r].values.any():
                for root in range(r, len(self.regions)):
                    if self.parent[root] < 0:
                        self._messages[root] = MixedMessage((), np.zeros(1))
                return
            if not self._keeps(region):
                for c in region.children:
                    self._memory.give(self._messages.pop(c).values)

    def _total(self) -> float:
        """Return the log of the product of the root messages, constants included."""
        self._roots = {r: _log(self._messages[r]) for r, parent in enumerate(self.parent) if parent < 0}
        total = math.fsum([float(self.problem.constant), *self._tops, *self._roots.values()])
        self._reach += abs(float(self.problem.constant)) + sum(abs(t) for t in self._tops)
        self._reach += sum(abs(t) for t in self._roots.values() if t > -math.inf)
        return total

    def _down(self, total: float) -> dict[int, Floats]:
        """Send messages from the roots to the buckets of queried variables; return the bounds of their states."""
        found: dict[int, Floats] = {}
        down: dict[int, MixedMessage] = {}
        others: dict[int, float] = {}  # nats of all roots but the region's own
        for r in range(len(self.regions) - 1, -1, -1):
            if not self.has_query[r]:
                continue
            region, scope = self.regions[r], self._scopes[r]
            if self.parent[r] < 0:
                others[r] = total - self._roots[r]
            above = [down.pop(r)] if r in down else []
            if region.own in self.problem.query:
                vector = self._eliminated([*self._inputs(r), *above], self._sums_first(scope), (region.own,))
                found[region.own] = log_of(vector.values) + (vector.exponent * LN2 + others[r])
            for c, inputs in self._each_without(region.children, [*self._locals[r], *above]):
                gone = self._sums_first([v for v in (region.own, *scope) if v not in self._scopes[c]])
                down[c] = self._eliminated(inputs, gone, self._scopes[c])
                others[c] = others[r]
            for used in [*above, *(self._messages.pop(c) for c in region.children if c in self._messages)]:
                self._memory.give(used.values)
        return found

    def _sums_first(self, variables: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(variables, key=lambda v: (v in self.problem.query, self.place[v])))

    def _each_without(
        self, children: Sequence[int], rest: list[MixedMessage]
    ) -> Iterator[tuple[int, list[MixedMessage]]]:
        """Yield each child that needs it with all messages but its own; those of many are multiplied by halves."""
        if not any(self.has_query[c] for c in children):
            return
        if len(children) <= FEW or self._scope_of(self._around(children, rest))[0] > SHARED:
            for c in children:
                if self.has_query[c]:
                    yield c, [*rest, *(self._messages[other] for other in children if other != c)]
            return
        half = len(children) // 2
        for inside, outside in ((children[:half], children[half:]), (children[half:], children[:half])):
            inputs = [*rest, *(self._messages[c] for c in outside)]
            scope = self._scope_of(self._around((), inputs))[1]
            yield from self._each_without(inside, [self._step(inputs, None, scope)])

    def _around(self, children: Sequence[int], rest: Sequence[MixedMessage]) -> Iterator[int]:
        """Return the variables of functions and of the messages of children."""
        return chain.from_iterable(m.scope for m in chain(rest, (self._messages[c] for c in children)))

    def _inputs(self, r: int) -> list[MixedMessage]:
        return [*self._locals[r], *(self._messages[c] for c in self.regions[r].children)]

    @property
    def log_slack(self) -> float:
        """Bound (nats) on the rounding error of the computation so far."""
        return self.problem.log_slack + 2.0 * ROUNDING * (self._n_roundings + self._reach + 8)

    def _local(self, tables: Sequence[Table]) -> MixedMessage:
        """Return the product of tables."""
        held = {v for t in tables for v in t.scope}
        scope = tuple(sorted(held, key=self.place.__getitem__))
        logs = np.asarray(product(tables, scope, self.problem.shape(scope)), np.float64).ravel()
        top = float(logs.max())
        if top == -math.inf:
            return MixedMessage(scope, np.zeros(logs.size))
        logs = logs - top
        self._tops.append(top)
        values = np.exp(logs)
        floor = 2.0**-MIXED_BITS
        self._n_roundings += len(tables) + 4
        lowest = -float(logs[logs > -np.inf].min())
        self._reach += min(lowest, MIXED_BITS) + abs(top)  # of the logs that were made
        values = np.where(logs > -np.inf, np.maximum(values, floor), 0.0)
        return MixedMessage(scope, values, 0, max(-lowest / LN2 - SLACK_BITS, -MIXED_BITS), SLACK_BITS)

    def _eliminated(
        self, inputs: Sequence[MixedMessage], gone: Sequence[int], scope: tuple[int, ...]
    ) -> MixedMessage:
        """Multiply functions and eliminate variables one by one; `scope` is the result's, in order."""
        if not gone:
            return self._step(inputs, None, scope)
        left = [v for v in gone if v not in scope]
        for i, v in enumerate(left):
            keep = {*scope, *left[i + 1 :]}
            out = tuple(sorted(keep, key=self.place.__getitem__)) if len(left) > i + 1 else scope
            found = self._step(inputs, v, out)
            if i > 0:
                self._memory.give(inputs[0].values)
            inputs = [found]
        return inputs[0]

    def _scope_of(self, variables: Iterable[int]) -> tuple[int, tuple[int, ...]]:
        """Return how many joint states some variables have, and the variables in order, each once."""
        scope = tuple(sorted(set(variables), key=self.place.__getitem__))
        return math.prod(self.problem.sizes[v] for v in scope), scope

    def _step(self, inputs: Sequence[MixedMessage], own: int | None, out: tuple[int, ...]) -> MixedMessage:
        """Multiply functions and eliminate at most one variable."""
        rest, made = list(inputs), list[MixedMessage]()
        while (
            len(rest) > MANY
        ):  # pairs of all of them take long: the smaller half is joined, the same scopes first
            rest.sort(key=lambda m: (m.values.size, m.scope))
            half = len(rest) // 2
            for first in range(0, half, kernels.MAX_INPUTS):
                some = rest[first : min(first + kernels.MAX_INPUTS, half)]
                made.append(self._step(some, None, self._scope_of(self._around((), some))[1]))
            rest = rest[half:] + made[-len(range(0, half, kernels.MAX_INPUTS)) :]
        while len(rest) > kernels.MAX_INPUTS:
            scope, first, second = min(
                (self._scope_of(m.scope + n.scope), i, j)
                for j, n in enumerate(rest)
                for i, m in enumerate(rest[:j])
            )
            made.append(self._step((rest[first], rest[second]), None, scope[1]))
            rest = [m for i, m in enumerate(rest) if i not in (first, second)] + made[-1:]
        sizes = self.problem.sizes
        scopes = tuple(m.scope for m in rest)
        plan = step_plan(scopes, own, out, tuple(sizes[v] for scope in (out, *scopes) for v in scope))
        a, b, c, d = [*(rest[k].values for k in plan.inputs), ONE, ONE, ONE, ONE][: kernels.MAX_INPUTS]
        values = self._memory.take(math.prod(sizes[v] for v in out))
        n_own = 1 if own is None else sizes[own]
        is_max = own is not None and own in self.problem.query
        n_products = float(values.size) * n_own
        self.work += n_products + STEP_PRODUCTS
        block = max(kernels.CHUNK, int(plan.n_inner * min(1.0, SHARED / n_products)))
        per_piece = max(block, int(plan.n_inner * min(1.0, PIECE / n_products)))

        def task(start: int, stop: int) -> None:
            kernels.combine((a, b, c, d), plan.moves, n_own, is_max, start, stop, values)

        for first in range(0, plan.n_inner, per_piece):
            n = min(per_piece, plan.n_inner - first)
            with self.clock.piece(n_products * n / plan.n_inner):
                for_blocks(lambda a, b, at=first: task(at + a, at + b), n, block, self.workers)
        self._n_roundings += n_own + len(rest) + 3
        least, most = sum(m.least for m in rest), sum(m.most for m in rest) + math.log2(n_own)
        for message in made:
            self._memory.give(message.values)
        found = MixedMessage(out, values, sum(m.exponent for m in rest), least - SLACK_BITS, most + SLACK_BITS)
        return found if least > -MIXED_BITS and abs(most) < MIXED_TOP else _settled(found)


def _settled(message: MixedMessage) -> MixedMessage:
    """Scale a function whose entries stray from 1, and raise positive ones that are too small for products."""
    top, low = extent(message.values)
    if top == 0.0:
        return message._replace(least=0.0, most=0.0)
    shift = math.frexp(top)[1]
    if shift or low < 2.0**-MIXED_BITS:
        kernels.settle(message.values, math.ldexp(1.0, -shift), 2.0**-MIXED_BITS)
    least = max(math.log2(low) - shift - SLACK_BITS, -MIXED_BITS)
    return message._replace(exponent=message.exponent + shift, least=least, most=SLACK_BITS)


def _log(message: MixedMessage) -> float:
    """Return the log (nats) of a function without variables."""
    value = float(message.values[0])
    return message.exponent * LN2 + math.log(value) if value > 0.0 else -math.inf


class StepPlan(NamedTuple):
    """How the kernel goes through a result: see `kernels.combine`; `inputs` puts the tables in its order."""

    inputs: list[int]
    n_inner: int
    moves: kernels.Moves


@lru_cache(2**14)  # the boxes of a search differ in few variables
def step_plan(
    scopes: tuple[tuple[int, ...], ...], own: int | None, out: tuple[int, ...], lengths: tuple[int, ...]
) -> StepPlan:
    """Merge the axes of a result into groups along which every table moves evenly.

    `lengths` are the states of the variables of `out` and of all scopes, one after another.
    """
    sizes = dict(zip(chain(out, *scopes), lengths, strict=True))
    columns = [strides_of(scope, sizes) for scope in scopes]
    target = strides_of(out, sizes)
    groups: list[tuple[int, list[int]]] = []  # length, strides of the tables and of the result
    for v in reversed(out):
        moves = [*(c.get(v, 0) for c in columns), target[v]]
        if groups and all(m == g * groups[-1][0] for m, g in zip(moves, groups[-1][1], strict=True)):
            groups[-1] = (groups[-1][0] * sizes[v], groups[-1][1])
        else:
            groups.append((sizes[v], moves))
    groups.reverse()
    longest = max(range(len(groups)), key=lambda g: groups[g][0], default=-1)
    n_inner, inner = groups.pop(longest) if groups else (1, [0] * (len(scopes) + 1))
    inputs = sorted(range(len(scopes)), key=lambda k: (inner[k] == 0, inner[k]))
    fill = [0] * (kernels.MAX_INPUTS - len(scopes))

    def row(moves: Sequence[int]) -> list[int]:
        return [*(moves[k] for k in inputs), *fill, moves[-1]]

    moves = kernels.Moves(
        np.array([n for n, _ in groups], np.int64),
        np.array([row(moves) for _, moves in groups], np.int64).reshape(len(groups), kernels.MAX_INPUTS + 1),
        np.array(row(inner), np.int64),
        np.array(row([*(0 if own is None else c.get(own, 0) for c in columns), 0]), np.int64),
    )
    return StepPlan(inputs, n_inner, moves)
