"""Elimination in a given order: its cost, its buckets in flat arrays, and large tables block by block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Array, Floats, Ints, spread
from certimap.core.control import Control
from certimap.core.logs import log_sum
from certimap.kernels.parallel import for_blocks
from certimap.networks.elimination import Elimination
from certimap.networks.kernels.buckets import CONSTANT, GATHERED, HARD, ROW, BucketArrays, reduce_out
from certimap.networks.orders import best_order, min_fill
from certimap.networks.problem import Joined, Problem, Table, flattened, product, strides_of

BLOCK = 2**17  # entries of a product that one thread holds at once: they stay in its cache
BLOCKS = 8  # such blocks, in memory, that all threads take with what they multiply
SMALL_TABLE = 2**12  # largest product, in entries, for multiplying tables beforehand
LEAST_ROW, LARGEST_ROW = 128, 2048  # a row that stays one may be shorter
ROWS_PER_TASK = 2**20  # entries of a product between two checks of the clock
MAX_TABLES = 6


def summed(
    parts: Sequence[tuple[tuple[int, ...], Floats]], kept: Sequence[int], dropped: Sequence[int],
    sizes: Mapping[int, int], workers: int = 1, *, in_logs: bool = False,
) -> Floats:  # fmt: skip
    """Return a product of functions, given with their scopes, summed over the variables `dropped`.

    The result is a new array with an axis per variable of `kept`; it does not depend on `workers`. Small parts are
    multiplied first. With `in_logs` parts and result are natural logs. Cost: one pass over the product per part.
    """
    outer, left = list[int](), math.prod(sizes[v] for v in (*kept, *dropped))
    for v in (*kept, *dropped):
        if left > BLOCK:
            outer.append(v)
            left //= sizes[v]
    inner = [v for v in kept if v not in outer]
    within = [v for v in dropped if v not in outer]
    by_size = sorted(parts, key=lambda part: part[1].size)
    views = [spread(values, scope, (*outer, *within, *inner)) for scope, values in by_size]
    shape, block = [sizes[v] for v in outer], [sizes[v] for v in (*within, *inner)]
    axes, add = tuple(range(len(within))), log_sum if in_logs else np.sum
    out = np.empty((math.prod(shape), *block[len(within) :]))

    def task(start: int, stop: int) -> None:
        for k in range(start, stop):
            at = np.unravel_index(k, shape) if shape else ()
            total: Floats = np.zeros(()) if in_logs else np.ones(())
            for view in views:
                piece = view[tuple(int(i) if n > 1 else 0 for i, n in zip(at, view.shape, strict=False))]
                total = total + piece if in_logs else total * piece
            out[k] = add(np.broadcast_to(total, block), axes)

    for_blocks(task, len(out), 1, workers)
    whole = out.reshape([sizes[v] for v in (*outer, *inner)])
    beyond = tuple(i for i, v in enumerate(outer) if v in dropped)
    return np.ascontiguousarray(add(whole, beyond)) if beyond else whole


class Eliminated(NamedTuple):
    """A message: its values and the states that attain them, if they are maxima, by its own order of variables."""

    table: Table
    best: Array  # empty if it is a sum
    top: float | int  # the largest value
    least: float | int  # the least positive value, inf where there is none


def eliminated(
    v: int, separator: Sequence[int], tables: Sequence[Table], sizes: Mapping[int, int], workers: int,
    check: Callable[[], object] = float, *, factor: float | None = None, overwrites: bool = False,
) -> Eliminated:  # fmt: skip
    """Maximise a variable out of a sum of integer tables, or with a factor sum it out of a product of floats.

    Row by row: products are never held. New variables take the axes of the one that goes, so that most rows of the
    largest table stay rows; it is written over, with `overwrites`, if it has as many entries as the message.
    `tables`: at least one. `check`: called between blocks. The result does not depend on `workers`.
    """
    is_sum = factor is not None
    largest = max(tables, key=lambda t: t.log_values.size)
    large = largest.scope
    at = large.index(v)
    scope = (*large[:at], *(u for u in separator if u not in large), *large[at + 1 :])
    n_inner, n_low, n_beyond = 0, 1, len(large) - 1 - at
    while n_inner < len(scope) and (not n_inner or n_low * sizes[scope[-1 - n_inner]] <= LARGEST_ROW):
        if n_inner == n_beyond and n_low >= LEAST_ROW:
            break
        n_low *= sizes[scope[-1 - n_inner]]
        n_inner += 1
    kept, inner = scope[: len(scope) - n_inner], scope[len(scope) - n_inner :]
    outer, together = [u for u in kept if u in large], [u for u in kept if u not in large]
    parts = [_in_rows(t, inner, sizes) for t in _multiplied(tables, sizes, is_sum)]
    steps = [strides_of(t.scope, sizes) for t in parts]
    rows, places = (np.array([_offsets(s, order, sizes) for s in steps]) for order in ((*outer, *together), inner))
    is_row = (places == np.arange(n_low)).all(axis=1)
    kinds = np.where(places.any(axis=1), np.where(is_row, ROW, GATHERED), CONSTANT)
    strides = np.array([s.get(v, 0) for s in steps])
    targets = _offsets(strides_of(kept, sizes), (*outer, *together), sizes)
    targets = targets.reshape(-1, math.prod(sizes[u] for u in together))
    flat = [t.log_values.reshape(-1) for t in parts]
    flat += [np.zeros(1, flat[0].dtype)] * (MAX_TABLES - len(flat))
    shape, n_groups = [sizes[u] for u in scope], len(targets)
    overwrites &= largest.log_values.size == math.prod(shape)
    out = (largest.log_values if overwrites else np.empty(shape, flat[0].dtype)).reshape(-1, n_low)
    best = np.empty((0, 0) if is_sum else out.shape, best_type(sizes[v]))
    extremes = np.full((n_groups, 2), (0.0, np.inf) if is_sum else (HARD, 0), out.dtype)

    def task(start: int, stop: int) -> None:
        check()
        reduce_out(
            start, stop, sizes[v], len(parts), tuple(flat), rows, strides, kinds, places,
            factor or 0.0, is_sum, targets, out, best, extremes,
        )  # fmt: skip

    for_blocks(task, n_groups, max(1, ROWS_PER_TASK // (n_low * sizes[v] * targets.shape[1])), workers)
    top, least = extremes[:, 0].max().item(), extremes[:, 1].min().item()
    return Eliminated(Table(scope, out.reshape(shape)), best if is_sum else best.reshape(shape), top, least)


def best_type(n_states: int) -> type[np.uint8] | type[np.uint16] | type[np.int64]:
    """Return the smallest type that holds a state."""
    return np.uint8 if n_states <= 256 else np.uint16 if n_states <= 65536 else np.int64


def _offsets(steps: Mapping[int, int], order: Sequence[int], sizes: Mapping[int, int]) -> Ints:
    """Return where the entries lie for all states of some variables."""
    found = np.zeros(1, np.int64)
    for u in order:
        found = (found[:, None] + steps.get(u, 0) * np.arange(sizes[u])).ravel()
    return found


def _in_rows(table: Table, inner: Sequence[int], sizes: Mapping[int, int]) -> Table:
    """Repeat a small table along the variables of a row that it lacks, unless it lacks all."""
    if table.log_values.size > SMALL_TABLE or set(inner).isdisjoint(table.scope):
        return table._replace(log_values=np.ascontiguousarray(table.log_values))
    full = (*(u for u in table.scope if u not in inner), *inner)
    shape = [sizes[u] for u in full]
    return Table(full, np.array(np.broadcast_to(spread(table.log_values, table.scope, full), shape), order="C"))


def _multiplied(tables: Sequence[Table], sizes: Mapping[int, int], is_sum: bool) -> list[Table]:
    """Multiply small tables, and more until at most `MAX_TABLES` are left."""

    def joined(a: Table, b: Table) -> Table:
        scope = (*a.scope, *(u for u in b.scope if u not in a.scope))
        if is_sum:
            return Table(scope, spread(a.log_values, a.scope, scope) * spread(b.log_values, b.scope, scope))
        return Table(scope, product((a, b), scope, [sizes[u] for u in scope]))

    def size(a: Table, b: Table) -> int:
        return math.prod(sizes[u] for u in {*a.scope, *b.scope})

    out: list[Table] = []
    for table in sorted(tables, key=lambda t: (t.log_values.size, t.scope)):
        k = next((k for k, other in enumerate(out) if size(other, table) <= SMALL_TABLE), None)
        if k is None:
            out.append(table)
        else:
            out[k] = joined(out[k], table)
    while len(out) > MAX_TABLES:
        _, i, j = min((size(a, b), i, j) for i, a in enumerate(out) for j, b in enumerate(out[:i]))
        a, b = out.pop(i), out.pop(j)
        out.append(joined(a, b))
    return out


SMALL_PRODUCT = 2**13  # largest product, in entries, that a compiled pass holds entirely
MOST_STRETCHES = 64
BITS, STATES_OF_BITS = np.array([1, 2, 4, 8, 16, 64]), np.array([2, 4, 16, 256, 65536])
MOST_LOG2 = 500.0  # sizes beyond any memory are not told apart


class Cliques(NamedTuple):
    """The cliques of an elimination order; variables are numbered by their places in it."""

    place: Ints  # the place of each variable, by its position in the model
    pointers: Ints  # for each place, the start of its clique among the members
    members: Ints  # the variable itself, then its separator
    parents: Ints  # for each place, the receiver of its message, or -1

    @classmethod
    def of(cls, order: Sequence[int], separators: Sequence[Sequence[int]]) -> Cliques:
        """Lay out variables and their separators, both in elimination order."""
        n = len(order)
        place = np.zeros(max(order, default=-1) + 1, np.int64)
        place[np.array(order, np.int64)] = np.arange(n)
        separator_ptr, flat = flattened(separators)
        pointers = separator_ptr + np.arange(n + 1)
        members = np.empty(len(flat) + n, np.int64)
        is_own = np.zeros(len(members), np.bool_)
        is_own[pointers[:-1]] = True
        members[is_own] = np.arange(n)
        members[~is_own] = place[flat]
        parents = np.full(n, -1, np.int64)
        has_parent = np.flatnonzero(np.diff(separator_ptr))
        parents[has_parent] = members[pointers[has_parent] + 1]
        return cls(place, pointers, members, parents)

    def log2_entries(self, n_states: Ints) -> Floats:
        """Return log base 2 of the joint states of each clique, given the states of the variable at each place."""
        if not len(n_states):
            return np.empty(0)
        return np.add.reduceat(np.log2(n_states)[self.members], self.pointers[:-1])


@dataclass(frozen=True)
class EliminationPlan:
    """An elimination order and its cost."""

    order: tuple[int, ...]  # variables, the first eliminated first
    separators: tuple[tuple[int, ...], ...]  # for each variable, the scope of its message, in elimination order
    n_entries: float  # table entries over all products: the work
    n_bytes: float  # the most memory held at once, best states included
    n_bytes_kept: float  # the memory of all messages together, which decoding the k best needs
    n_bytes_summed: float  # the most memory that a sum along it holds at once
    largest: float  # table entries of the largest product
    cliques: Cliques = field(repr=False, compare=False)  # the order laid out flat


def plan(
    problem: Problem, known: Elimination | EliminationPlan | None = None, control: Control | None = None
) -> EliminationPlan:
    """Return the plan of a known order, which may have extra variables; None: find a good order."""
    sizes = problem.sizes
    if known is None:
        known = best_order([t.scope for t in problem.tables], sizes, control=control)
    left = [(v, near) for v, near in zip(known.order, known.separators, strict=True) if v in sizes]
    order, separators = tuple(v for v, _ in left), tuple(tuple(u for u in near if u in sizes) for _, near in left)
    cliques = Cliques.of(order, separators)
    n_states = np.array([sizes[v] for v in order], np.int64)
    products = 2.0 ** np.minimum(cliques.log2_entries(n_states), MOST_LOG2)
    messages = products / np.maximum(n_states, 1)
    # A large message goes when it has been multiplied, or is written over by one of its size; small ones and all
    # best states go when decoding is over.
    is_small, goes, largest = products <= SMALL_PRODUCT, np.flatnonzero(cliques.parents >= 0), np.zeros(len(order))
    np.maximum.at(largest, cliques.parents[goes], messages[goes])
    overwritten = np.where((largest == messages) & (messages > SMALL_PRODUCT), messages, 0.0)
    taken = messages * (8.0 + np.where(is_small, 2.0, bits_of_state(n_states) / 8.0))
    held = _live(taken, np.where(is_small, 0.0, 8.0 * messages), cliques.parents) - 8.0 * overwritten
    most = float(held.max(initial=0.0)) + (8.0 + 2.0) * problem.n_entries
    blocks = np.minimum(3.0 * products, BLOCKS * BLOCK)
    live = _live(messages, messages, cliques.parents) - overwritten + blocks
    return EliminationPlan(
        order, separators, float(products.sum()), most, 8.0 * float(messages.sum()),
        8.0 * (float(live.max(initial=0.0)) + problem.n_entries), float(products.max(initial=0.0)), cliques,
    )  # fmt: skip


def _live(taken: Floats, freed: Floats, parents: Ints) -> Floats:
    """Return what is held while each bucket is computed: what messages take until they are freed."""
    released = np.zeros(len(taken))
    goes = np.flatnonzero(parents >= 0)
    np.add.at(released, parents[goes], freed[goes])
    return np.cumsum(taken) - (np.cumsum(released) - released)


def stretches(problem: Problem, plan: EliminationPlan, control: Control) -> list[int]:
    """Split an order into the fewest stretches for which a backward pass fits into memory; return the borders.

    The pass holds the live messages at each border, and all of one stretch at a time. Raises TooLarge.
    """
    n_states = np.array([problem.sizes[v] for v in plan.order], np.int64)
    products = 2.0 ** np.minimum(plan.cliques.log2_entries(n_states), MOST_LOG2)
    messages = products / np.maximum(n_states, 1)
    live = _live(messages, messages, plan.cliques.parents)
    cumulated = np.concatenate([[0.0], np.cumsum(messages)])
    blocks = min(3.0 * float(products.max(initial=0.0)), BLOCKS * BLOCK)
    n, least, chosen = len(messages), math.inf, [0, len(messages)]
    for k in range(1, MOST_STRETCHES + 1):
        goals = float(cumulated[-1]) * np.arange(1, k) / k
        borders = sorted({0, *(int(b) for b in np.searchsorted(cumulated, goals)), n})
        kept = sum(float(live[b - 1]) for b in borders[1:-1])
        longest = float(np.diff(cumulated[borders]).max(initial=0.0))
        n_bytes = 8.0 * (kept + 2.0 * longest + blocks + problem.n_entries)
        if n_bytes < least:
            least, chosen = n_bytes, borders
        if n_bytes <= control.memory_limit:
            break
    control.reserve(least, "the messages of an elimination")
    return chosen


def cheap_plan(problem: Problem, most_entries: float) -> EliminationPlan | None:
    """Return a quickly found order if it takes at most `most_entries` table entries, else None."""
    order = min_fill([t.scope for t in problem.tables], problem.sizes, most_entries=most_entries)
    found = None if order is None else plan(problem, order)
    return None if found is None or found.n_entries > most_entries else found


def most_added(problem: Problem, plan: EliminationPlan) -> int:
    """Return the largest number of tables, messages included, in one bucket."""
    if not plan.order:
        return 0
    parents = plan.cliques.parents
    counts = np.bincount(first_places(plan.cliques, problem.joined), minlength=len(plan.order))
    return int((counts + np.bincount(parents[parents >= 0], minlength=len(plan.order))).max())


def first_places(cliques: Cliques, joined: Joined) -> Ints:
    """Return the place of the first variable of each table to be eliminated, which is where it is multiplied."""
    pointers, scopes = joined.scopes
    return np.minimum.reduceat(cliques.place[scopes], pointers[:-1]) if len(joined.tables) else scopes


def bits_of_state(n_states: Ints | int) -> Ints:
    """Return how many bits hold one of so many states: a power of two."""
    return BITS[np.searchsorted(STATES_OF_BITS, n_states)]


ENTRIES_PER_RUN = 2**22  # entries of products between two checks of the clock


class Run(NamedTuple):
    """Consecutive buckets, number `first` to `last` - 1: small ones, or a single large one."""

    first: int
    last: int
    is_small: bool  # whether a compiled pass handles them all
    n_entries: float  # total entries of their products


class Buckets:
    """The buckets of an elimination, the tables that each bucket multiplies, and room for its messages.

    `arrays`: for the kernels. Tables and messages of up to `SMALL_PRODUCT` entries share a buffer of `n_buffered`.
    `n_tables`: tables are the first pieces; the others are the buckets' messages.
    `is_small`, `largest`: the buckets that a compiled pass may handle, and the entries of their largest product.
    """

    def __init__(self, problem: Problem, plan: EliminationPlan) -> None:
        self.plan, self.tables, cliques = plan, problem.tables, plan.cliques
        self.n_tables = len(self.tables)
        n_states = np.array([problem.sizes[v] for v in plan.order], np.int64)
        self._n_entries = np.rint(2.0 ** np.minimum(cliques.log2_entries(n_states), MOST_LOG2))
        n_message = np.rint(self._n_entries / n_states)
        self.is_small = self._n_entries <= SMALL_PRODUCT
        self.largest = int(self._n_entries[self.is_small].max(initial=1.0))
        is_kept = n_message <= SMALL_PRODUCT
        lengths = np.concatenate([problem.joined.sizes, np.where(is_kept, n_message, 0.0).astype(np.int64)])
        start = np.cumsum(lengths) - lengths
        self.n_buffered = int(lengths.sum())
        start[self.n_tables :][~is_kept] = -1
        scope_ptr, scopes = problem.joined.scopes
        inputs = np.concatenate([first_places(cliques, problem.joined), cliques.parents])
        self.arrays = BucketArrays(
            n_states,
            np.concatenate([cliques.place[scopes], cliques.members]),
            np.concatenate([scope_ptr[:-1], cliques.pointers[:-1] + 1 + len(scopes)]),
            np.concatenate([scope_ptr[1:], cliques.pointers[1:] + len(scopes)]),
            start,
            np.concatenate([[0], np.cumsum(np.bincount(inputs[inputs >= 0], minlength=len(n_states)))]),
            np.argsort(inputs, kind="stable")[np.count_nonzero(inputs < 0) :],
        )

    def scratch(self) -> Ints:
        """Return room for a pass."""
        return np.zeros((4, max(1, len(self.arrays.sizes))), np.int64)

    def runs(self) -> Iterator[Run]:
        """Yield the buckets in order: small ones together, up to `ENTRIES_PER_RUN`, each large one alone."""
        piece = np.floor(np.cumsum(self._n_entries) / ENTRIES_PER_RUN)
        breaks = ~self.is_small[1:] | ~self.is_small[:-1] | (piece[1:] != piece[:-1])
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist()] if len(self.is_small) else []
        for first, last in itertools.pairwise([*starts, len(self.is_small)]):
            yield Run(first, last, bool(self.is_small[first]), float(self._n_entries[first:last].sum()))

    def scope(self, i: int) -> tuple[int, ...]:
        """Return the variable of a bucket, followed by its separator."""
        return (self.plan.order[i], *self.plan.separators[i])

    def inputs(self, i: int) -> list[int]:
        """Return the pieces that a bucket multiplies, tables first."""
        return self.arrays.inputs[self.arrays.input_ptr[i] : self.arrays.input_ptr[i + 1]].tolist()


class Pieces:
    """The entries of all tables (given one after another) and messages of one pass: large messages lie apart."""

    def __init__(self, buckets: Buckets, tables: Array) -> None:
        self._buckets = buckets
        self.buffer: Array = np.empty(buckets.n_buffered, tables.dtype)
        self.buffer[: len(tables)] = tables
        self._large: dict[int, Table] = {}

    def put(self, i: int, message: Table) -> None:
        """Store the message of a bucket, its axes in any order."""
        start = int(self._buckets.arrays.start[self._buckets.n_tables + i])
        if start < 0:
            self._large[i] = message
        else:
            values = spread(message.log_values, message.scope, self._buckets.plan.separators[i])
            self.buffer[start : start + values.size] = values.reshape(-1)

    def get(self, piece: int) -> Table:
        """Return a table, or the message of a bucket."""
        a, i = self._buckets.arrays, piece - self._buckets.n_tables
        if i in self._large:
            return self._large[i]
        scope = self._buckets.tables[piece].scope if i < 0 else self._buckets.plan.separators[i]
        shape = a.sizes[a.members[a.first[piece] : a.last[piece]]].tolist()
        start = int(a.start[piece])
        return Table(scope, self.buffer[start : start + math.prod(shape)].reshape(shape))

    def inputs(self, i: int) -> list[Table]:
        """Return the tables that a bucket multiplies."""
        return list(map(self.get, self._buckets.inputs(i)))

    def drop_inputs(self, i: int) -> None:
        """Free the large messages that a bucket has multiplied."""
        for piece in self._buckets.inputs(i):
            self._large.pop(piece - self._buckets.n_tables, None)
