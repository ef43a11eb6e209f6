"""Mini-buckets: an elimination that splits large buckets, as flat arrays with the shifts and weights of copies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Floats, Ints, pointers, spread
from certimap.core.cached import cached_property
from certimap.core.control import Control, TimeUp, WorkClock
from certimap.errors import TooLarge
from certimap.kernels.parallel import for_blocks
from certimap.networks.kernels import split_tree as kernels
from certimap.networks.kernels.split_tree import Scratch, TreeArrays
from certimap.networks.orders import min_fill
from certimap.networks.problem import Problem, product, strides_in

Fits = Callable[[tuple[int, ...]], bool]
Kind = Literal["up", "gradient", "down"]
Mask = NDArray[np.uint8]
PIECE = 2.0**26  # inputs read in one piece: a fraction of a second
SHORT = 2.0**23  # inputs of a pass too short for a check of the clock
SECONDS_PER_INPUT = 2e-10  # until a piece has been timed; less than any machine takes
DOING = "passing over the tables of a relaxation"


class PassClock:
    """Predicts whether a piece will end in time, from the pace of earlier pieces; None: there is no limit."""

    def __init__(self, control: Control | None = None) -> None:
        self.control = control or Control()
        self._paces: dict[Kind, WorkClock] = {
            kind: WorkClock(self.control, DOING, SECONDS_PER_INPUT) for kind in ("up", "gradient", "down")
        }

    def pieces(self, tree: TreeArrays, s: Scratch, kind: Kind) -> Iterator[tuple[int, int]]:
        """Yield (first, last) of consecutive regions, from the leaves up for "up" and from the roots down else.

        Raises TimeUp instead of a piece that would end too late, and when the run should stop, except in a pass of
        a few hundredths of a second, because an earlier improvement may depend on it.
        """
        pieces = _cut(tree, s, kind == "up")
        is_short = sum(n for _, _, n in pieces) <= SHORT
        for first, last, n_inputs in pieces:
            with nullcontext() if is_short else self._paces[kind].piece(n_inputs):
                yield first, last

    def check(self, tree: TreeArrays, n_passes: float) -> None:
        """Raise TimeUp when the run should stop, or `n_passes` upward passes would not end in time."""
        self.control.check(DOING)
        pace = self._paces["up"].seconds_per_unit
        if n_passes * float(inputs_of(tree).sum()) * pace > self.control.seconds_left:
            raise TimeUp(DOING)


def inputs_of(tree: TreeArrays, n_states: Ints | None = None) -> Floats:
    """Return how many inputs one pass reads in each region, given the number of states of each variable."""
    sizes = (tree.n_states if n_states is None else n_states)[tree.axes].astype(np.float64)
    if not len(sizes):
        return np.zeros(0)
    n_inputs = (1 + tree.n_tables + tree.n_children).astype(np.float64)
    return np.multiply.reduceat(sizes, tree.axis_ptr[:-1]) * n_inputs


def _cut(tree: TreeArrays, s: Scratch, is_upward: bool) -> list[tuple[int, int, float]]:
    """Return the pieces of a pass over the states in `alive`: first and last region, and the inputs read."""
    ends = np.cumsum(inputs_of(tree, s.n_alive))
    if not len(ends):
        return []
    number = np.floor(np.concatenate([[0.0], ends[:-1]]) / PIECE)
    starts = np.flatnonzero(np.diff(number, prepend=-1.0))
    lasts = np.append(starts[1:], len(ends))
    before = np.append(0.0, ends)
    pieces = [(int(a), int(b), float(before[b] - before[a])) for a, b in zip(starts, lasts, strict=True)]
    return pieces if is_upward else pieces[::-1]


@dataclass(frozen=True)
class Region:
    """A mini-bucket: it eliminates one copy of a variable."""

    own: int  # the variable
    # the other variables of its scope: queried ones first, then by the order of elimination, latest first
    separator: tuple[int, ...]
    tables: tuple[int, ...]  # positions of the problem's tables that it holds
    children: tuple[int, ...]  # positions of the regions whose messages it receives

    @property
    def scope(self) -> tuple[int, ...]:
        """The axes of the region."""
        return (*self.separator, self.own)


_Function = tuple[frozenset[int], bool, int]  # scope, whether it is a table, position


class _Group(NamedTuple):
    """A region in the making."""

    scope: set[int]
    tables: list[int]
    children: list[int]


def limit(sizes: Mapping[int, int], max_entries: float = math.inf, i_bound: int | None = None) -> Fits:
    """Return a test of scopes: at most `max_entries` joint states and at most `i_bound` + 1 variables."""
    width = math.inf if i_bound is None else i_bound + 1
    return lambda scope: len(scope) <= width and math.prod(sizes[v] for v in scope) <= max_entries


def nuisance_first(problem: Problem, log2_limit: float = math.inf, *, control: Control | None = None) -> list[int]:
    """Order variables by least fill, nuisance before query while its cliques have at most 2^log2_limit entries.

    Cliques of thousands of variables take minutes to follow, and tell no more than an order without them: the
    nuisance variables of that one come first then.
    """
    scopes, sizes = [t.scope for t in problem.tables], problem.sizes
    found = min_fill(scopes, sizes, problem.nuisance, log2_limit, most_entries=HOPELESS_CLIQUES, control=control)
    if found is not None:
        return list(found.order)
    free = min_fill(scopes, sizes, control=control)
    assert free is not None  # no order is too dear
    return sorted(free.order, key=problem.query.__contains__)


def split(problem: Problem, order: Sequence[int], fits: Fits) -> list[Region]:
    """Eliminate variables in an order; a bucket's functions share a region while its scope `fits`.

    Functions are placed largest first, each into the first region that has room; one that is too large alone gets
    a region of its own. Returns the regions, children before parents. Cost: small against the tables.
    """
    place = {v: i for i, v in enumerate(order)}
    buckets: list[list[_Function]] = [[] for _ in order]
    for k, table in enumerate(problem.tables):
        if table.scope:
            buckets[min(place[v] for v in table.scope)].append((frozenset(table.scope), True, k))
    regions: list[Region] = []
    for i, v in enumerate(order):
        groups: list[_Group] = []
        for scope, is_table, k in sorted(buckets[i], key=lambda f: (-len(f[0]), f[1], f[2])):
            group = next((g for g in groups if scope <= g.scope or fits(tuple(g.scope.union(scope)))), None)
            if group is None:
                group = _Group(set(scope), [], [])
                groups.append(group)
            group.scope.update(scope)
            (group.tables if is_table else group.children).append(k)
        for group in groups or [_Group({v}, [], [])]:
            rest = sorted(group.scope - {v}, key=lambda u: (u not in problem.query, -place[u]))
            regions.append(Region(v, tuple(rest), tuple(group.tables), tuple(group.children)))
            if rest:
                buckets[min(place[u] for u in rest)].append((frozenset(rest), False, len(regions) - 1))
        buckets[i] = []
    return regions


def parents_of(regions: Sequence[Region]) -> list[int]:
    """Return the region that receives each region's message, -1 for roots."""
    parent = {c: r for r, region in enumerate(regions) for c in region.children}
    return [parent.get(r, -1) for r in range(len(regions))]


@dataclass(eq=False)
class SplitTree:
    """A problem whose variables are split into copies, one per region that eliminates it.

    With copies of query variables maximised (weight 0), and those of a nuisance variable summed with weights that
    add up to 1, the product of the root messages is an upper bound on the problem's value, whatever the order of
    elimination and whatever the shifts of a variable's copies, as long as these add up to 0 in every state. Where
    no variable has two copies and nuisance variables go first, it is the value.
    """

    problem: Problem  # the bounded problem; its constant is not part of the arrays
    variables: tuple[int, ...]  # the problem's variables in the order of the arrays
    arrays: TreeArrays
    constant: float  # nats: the problem's constant and the tables' scales
    order: Ints  # positions in `variables`, the first eliminated first
    shifts: Floats  # the parameters of the relaxation: nats per copy and state, and one weight per region
    weights: Floats
    scales: Floats  # nats taken out of each region's table, which `constant` holds

    @classmethod
    def of(cls, problem: Problem, order: Sequence[int], fits: Fits, max_bytes: float = math.inf) -> SplitTree:
        """Split a problem along an elimination order; weights of copies are equal and shifts 0.

        Raises TooLarge when tables and messages would need more than `max_bytes`, before they are built.
        """
        regions = split(problem, order, fits)
        needed = tree_bytes(problem, regions)
        if needed > max_bytes:
            raise TooLarge(
                f"the split tree would take 2^{math.log2(needed):.1f} bytes; expected at most {max_bytes:.3g}"
            )
        return _Builder(problem, list(order), regions).build()

    @property
    def n_copies(self) -> Ints:
        """The number of copies of each variable."""
        return np.diff(self.arrays.copy_ptr)

    @property
    def is_split(self) -> bool:
        """Whether some variable has two copies."""
        return bool(np.any(self.n_copies > 1))

    @property
    def is_exact(self) -> bool:
        """Whether its bound is exact: no copies, and no nuisance variable above a query variable."""
        a = self.arrays
        hidden_above = (a.is_query[a.own] == 0) & (a.has_query == 1)
        return not self.is_split and not bool(np.any(hidden_above))

    @property
    def n_entries(self) -> int:
        """The joint states of all regions together: the work of one pass."""
        a = self.arrays
        return int(np.sum(np.diff(a.message_ptr) * a.n_states[a.own]))

    @property
    def n_bytes(self) -> int:
        """The memory of tables and the messages of one pass, in bytes."""
        return 8 * (len(self.arrays.tables) + 2 * int(self.arrays.message_ptr[-1]) + len(self.arrays.strides))

    def full_mask(self) -> Mask:
        """Return a mask of all states of all variables."""
        return np.ones(int(self.arrays.state_ptr[-1]), np.uint8)

    @cached_property
    def _room(self) -> int:
        """The most hidden states that the children of one region share with it, in all."""
        inputs = 1 + self.arrays.n_tables + self.arrays.n_children
        ends = np.concatenate([[0], np.cumsum(self.arrays.hidden)])
        return int(np.max(ends[self.arrays.start_ptr[:-1] + inputs] - ends[self.arrays.start_ptr[:-1]], initial=1))

    def scratch(self) -> Scratch:
        """Return buffers for one pass."""
        a = self.arrays
        n_messages, n_regions = int(a.message_ptr[-1]), len(a.own)
        inputs = 1 + a.n_tables + a.n_children
        n_inputs, n_axes = int(np.max(inputs, initial=1)), int(np.max(np.diff(a.axis_ptr), initial=1))
        return Scratch(
            np.zeros(n_messages), np.zeros(n_regions), np.zeros(n_regions), np.zeros(n_messages),
            np.zeros(n_regions), np.zeros(self._room), np.zeros(self._room), np.zeros(n_inputs, np.int64),
            np.zeros(n_axes, np.int64), np.zeros(int(np.max(a.n_states, initial=1))),
            np.zeros(int(a.state_ptr[-1]), np.int64), np.zeros(len(a.n_states), np.int64),
        )  # fmt: skip

    def bound(
        self, mask: Mask | None = None, scratch: Scratch | None = None, clock: PassClock | None = None
    ) -> float:
        """Return an upper bound (nats) on the problem's value within a mask, rounded up. Cost: one upward pass.

        Raises TimeUp when the `clock` foresees that it would end too late.
        """
        s = self.scratch() if scratch is None else scratch
        if not kernels.restrict_to(self.arrays, self.full_mask() if mask is None else mask, s):
            return -math.inf
        value = self.upward(self.weights, s, clock or PassClock())
        return value + self.constant + self.slack(s) if value > -math.inf else -math.inf

    def upward(self, weights: Floats, s: Scratch, clock: PassClock) -> float:
        """Send all messages of the states that `s` has alive; return the log of the root messages' product."""
        parts: list[float] = []
        for first, last in clock.pieces(self.arrays, s, "up"):
            part = kernels.upward(self.arrays, self.shifts, weights, s, first, last)
            if part == -math.inf:
                return part
            parts.append(float(part))
        return math.fsum(parts)

    def gradient(
        self, weights: Floats, s: Scratch, to_shifts: Floats, to_weights: Floats, clock: PassClock
    ) -> float:
        """Return the result of `upward` (all weights positive); write its derivatives by shifts and weights."""
        value = self.upward(weights, s, clock)
        to_shifts[:] = 0.0
        to_weights[:] = 0.0
        s.outside[:] = 0.0
        if value > -math.inf:
            for first, last in clock.pieces(self.arrays, s, "gradient"):
                kernels.gradient(self.arrays, self.shifts, weights, s, to_shifts, to_weights, first, last)
        return value

    def slack(self, s: Scratch) -> float:
        """Return a bound (nats) on the rounding error of the last pass."""
        return float(kernels.rounding(self.arrays, self.shifts, s)) + self.log_slack

    @property
    def log_slack(self) -> float:
        """Bound (nats) on the error of the constant and the tables."""
        return self.problem.log_slack + 1e-15 * (1.0 + abs(self.constant) + float(np.abs(self.scales).sum()))

    def probe(self, masks: Mask, workers: int = 1, clock: PassClock | None = None) -> tuple[Floats, Floats]:
        """Bound boxes, `masks` (batch, states of all variables), and all their queried states.

        Returns upper bounds in nats, rounded up: shape (batch,), and of every queried state within its box, shape
        (batch, states); -inf outside. Cost: about three upward passes per box. Raises TimeUp when `clock` says so.
        """
        bounds, each = np.empty(len(masks)), np.empty((len(masks), masks.shape[1]))
        clock = clock or PassClock()
        is_long = float(inputs_of(self.arrays).sum()) > PIECE

        def task(start: int, stop: int) -> None:
            rows = slice(start, stop)
            clock.check(self.arrays, 0.0)
            if is_long:
                for b in range(start, stop):
                    self.probe_in_pieces(masks[b], self.scratch(), bounds[b : b + 1], each[b], clock)
            else:
                part, by_copy = np.ascontiguousarray(masks[rows]), np.empty(len(self.shifts))
                kernels.probe(
                    self.arrays, self.shifts, self.weights, part, self.scratch(), by_copy, bounds[rows], each[rows]
                )

        for_blocks(task, len(masks), 1 if is_long else 8, workers)
        bounds += self.constant + self.log_slack
        each += self.constant + self.log_slack
        return bounds, np.minimum(each, bounds[:, None])

    def probe_in_pieces(self, mask: Mask, s: Scratch, bound: Floats, each: Floats, clock: PassClock) -> Floats:
        """Write the results of `probe` for one box without the constant; return the bounds of copies."""
        by_copy = np.full(len(self.shifts), -np.inf)
        bound[:], each[:] = -np.inf, -np.inf
        if not kernels.restrict_to(self.arrays, mask, s):
            return by_copy
        total = self.upward(self.weights, s, clock)
        if total == -math.inf:
            return by_copy
        slack = float(kernels.rounding(self.arrays, self.shifts, s))
        bound[:] = total + slack
        a = self.arrays
        for first, last in clock.pieces(a, s, "down"):
            kernels.downward(a, self.shifts, s, by_copy, first, last)
        kernels.combine(a, total + 4.0 * slack, by_copy, s, each)
        return by_copy


def tree_bytes(problem: Problem, regions: Sequence[Region]) -> float:
    """Return the memory of a tree's tables and messages, in bytes, before they are built."""
    total = 0.0
    for region in regions:
        entries = math.exp(min(sum(math.log(problem.sizes[v]) for v in region.separator), 600.0))
        held = {v for k in region.tables for v in problem.tables[k].scope}
        total += 16.0 * entries + (8.0 * math.prod(problem.sizes[v] for v in held) if held else 0.0)
    return total


class _Input(NamedTuple):
    """Where an input of a region starts, its axes, its child or -1, and the child's number of hidden states."""

    start: int
    axes: tuple[int, ...]
    child: int = -1
    hidden: int = 1


class _Builder:
    """Converts the regions of a partition to arrays."""

    def __init__(self, problem: Problem, order: list[int], regions: Sequence[Region]) -> None:
        self.problem, self.regions = problem, regions
        self.variables = tuple(sorted(order))
        self.place = {v: i for i, v in enumerate(self.variables)}
        self.order = np.array([self.place[v] for v in order], np.int64)
        self.tables: list[Floats] = []
        self.n_table_entries = 0
        self.scales = np.zeros(len(regions))

    def build(self) -> SplitTree:
        sizes, regions = self.problem.sizes, self.regions
        parent = np.array(parents_of(regions), np.int64)
        is_query = np.array([v in self.problem.query for v in self.variables], np.uint8)
        own = np.array([self.place[r.own] for r in regions], np.int64)
        has_query = is_query[own].copy()
        for r in range(len(regions)):
            if parent[r] >= 0:
                has_query[parent[r]] |= has_query[r]
        message_ptr = pointers(math.prod(sizes[v] for v in r.separator) for r in regions)
        each = [self._inputs(i, message_ptr) for i in range(len(regions))]
        inputs = list(itertools.chain.from_iterable(each))
        strides = [strides_in(r.scope, [i.axes for i in own], sizes) for r, own in zip(regions, each, strict=True)]
        n_states = np.array([sizes[v] for v in self.variables], np.int64)
        n_own = n_states[own]
        root = np.arange(len(regions))
        for r in range(len(regions) - 1, -1, -1):
            if parent[r] >= 0:
                root[r] = root[parent[r]]
        counts = np.bincount(own, minlength=len(self.variables))
        arrays = TreeArrays(
            n_states=n_states,
            state_ptr=pointers(n_states),
            is_query=is_query,
            own=own,
            axis_ptr=pointers(len(r.scope) for r in regions),
            axes=np.array([self.place[v] for r in regions for v in r.scope], np.int64),
            n_query_axes=np.array([sum(v in self.problem.query for v in r.separator) for r in regions], np.int64),
            n_tables=np.array([1 if r.tables else 0 for r in regions], np.int64),
            n_children=np.array([len(r.children) for r in regions], np.int64),
            start_ptr=pointers(map(len, each)),
            start=np.array([i.start for i in inputs], np.int64),
            stride_ptr=pointers(s.size for s in strides),
            strides=np.concatenate([np.empty(0, np.int64), *(s.ravel() for s in strides)]),
            children=np.array([i.child for i in inputs], np.int64),
            shift_ptr=pointers(n_own),
            message_ptr=message_ptr,
            parent=parent,
            has_query=has_query,
            tables=np.concatenate([np.empty(0), *self.tables]),
            hidden=np.array([i.hidden for i in inputs], np.int64),
            copies=np.lexsort((np.arange(len(regions)), root, own)).astype(np.int64),
            copy_ptr=pointers(counts),
            root=root,
        )
        constant, shifts = math.fsum([float(self.problem.constant), *self.scales]), np.zeros(int(n_own.sum()))
        weights = np.where(is_query[own] == 1, 0.0, 1.0 / np.maximum(counts[own], 1))
        return SplitTree(self.problem, self.variables, arrays, constant, self.order, shifts, weights, self.scales)

    def _inputs(self, r: int, message_ptr: Ints) -> list[_Input]:
        """Return a region's message, table and children."""
        region = self.regions[r]
        found = [_Input(int(message_ptr[r]), region.separator)]
        if region.tables:
            held = {v for k in region.tables for v in self.problem.tables[k].scope}
            axes = tuple(v for v in region.scope if v in held)
            found.append(_Input(self._add_table(r, axes), axes))
        for c in region.children:
            separator = self.regions[c].separator
            hidden = math.prod(self.problem.sizes[v] for v in separator if v not in self.problem.query)
            found.append(_Input(int(message_ptr[c]), separator, c, hidden))
        return found

    def _add_table(self, r: int, axes: tuple[int, ...]) -> int:
        """Keep the product of a region's tables, scaled; return where it starts."""
        held = [self.problem.tables[k] for k in self.regions[r].tables]
        if len(held) == 1:
            table = np.array(spread(held[0].log_values, held[0].scope, axes), np.float64)
        else:
            table = np.asarray(product(held, axes, self.problem.shape(axes)), np.float64)
        scale = float(table.max())
        if math.isfinite(scale):
            table -= scale
            self.scales[r] = scale
        self.tables.append(table.ravel())
        self.n_table_entries += table.size
        return self.n_table_entries - table.size


HOPELESS_CLIQUES = 2.0**1000  # joint states
CLIQUE_BITS = (22.0, 16.0, 10.0, 0.0)  # nuisance variables go first while their cliques are no larger


@dataclass(frozen=True)
class RelaxationPlan:
    """How large a relaxation may grow, and in what steps."""

    exact_entries: float = 2.0**23  # joint states of all regions up to which an elimination is left unsplit
    first_bits: float = (
        10.0  # log base 2 of the entries of the largest tables: at first, what a rise adds, at last
    )
    raise_bits: float = 3.0
    last_bits: float = 22.0
    steps: int = 40  # optimisation steps at each temperature


def exact_tree(problem: Problem, max_entries: float, control: Control | None = None) -> SplitTree | None:
    """Return the tree of nuisance-first elimination, whose bound is exact; None if it is too large."""
    return _unsplit(problem, nuisance_first(problem, control=control), max_entries)


def mixed_tree(problem: Problem, max_entries: float) -> SplitTree | None:
    """Return a tree without copies that eliminates some query before nuisance variables, or None if none fits.

    Its bound takes maxima inside sums for them; it may be tighter or looser than a split tree's bound.
    """
    if not problem.nuisance or not problem.query:
        return None
    trees = (_unsplit(problem, nuisance_first(problem, bits), max_entries) for bits in CLIQUE_BITS)
    return next((tree for tree in trees if tree is not None), None)


def split_tree(problem: Problem, bits: float, max_bytes: float = math.inf) -> SplitTree:
    """Return the relaxation of nuisance-first elimination with tables of at most 2^bits entries if they can.

    Raises TooLarge when all of it would take more than `max_bytes`.
    """
    return SplitTree.of(problem, nuisance_first(problem), limit(problem.sizes, 2.0**bits), max_bytes)


def _unsplit(problem: Problem, order: Sequence[int], max_entries: float) -> SplitTree | None:
    entries, regions = 0.0, split(problem, order, limit(problem.sizes, max_entries))
    if len({region.own for region in regions}) < len(regions):
        return None  # a region without copies would have more
    for region in regions:
        entries += math.exp(min(700.0, sum(math.log(problem.sizes[v]) for v in region.scope)))
        if entries > max_entries:
            return None
    return SplitTree.of(problem, order, lambda scope: True)
