"""Region trees: the conditional tables of an elimination tree, as flat arrays.

A *bucket* eliminates one variable: its table is over its separator (the variables shared with the rest of
the tree) and its own variable. After conditioning, every bucket holds P(own variable | separator, evidence).
A message upward is then the probability of a box below given the separator's state, and buckets without a
query variable below are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.control import WorkClock
from certimap.core.region_tree import RegionArrays, RegionTree
from certimap.core.rounding import SAFE_EXPONENT, ULP
from certimap.trees.wide import Floats, Ints, Wide

ENTRIES_PER_TABLE = 150  # fixed cost of making a table, in table entries
WORK_OF_MAPS = 4  # cost of mapping an entry to a child's, in table entries


@dataclass
class Bucket:
    """One bucket of an elimination tree: `table` has one axis per separator variable, in order, then `own`."""

    own: int
    separator: tuple[int, ...]
    table: Wide
    parent: int = -1

    @property
    def scope(self) -> tuple[int, ...]:
        """The axes of the table."""
        return (*self.separator, self.own)


def condition(
    buckets: Sequence[Bucket], queried: Iterable[int], pace: WorkClock | None = None
) -> tuple[list[Bucket], float, float]:
    """Like `conditionals`, but return the log partition function as one number."""
    kept, totals, log_error = conditionals(buckets, queried, pace)
    return kept, sum(float(total.logs()) for total in totals), log_error


def conditionals(
    buckets: Sequence[Bucket], queried: Iterable[int], pace: WorkClock | None = None
) -> tuple[list[Bucket], list[Wide], float]:
    """Turn tables into conditional probabilities and drop buckets without a query variable below.

    `buckets` come children first; `queried` variables are kept; `pace` is charged each table's entries before it
    is built. Returns the kept buckets, with tables that sum to 1 over the last axis (or to 0 for impossible
    separator states); the totals of the roots, over their separators; and a bound on the rounding error of ln p of
    any point, in nats.

    A message multiplies the parent's table and divides the child's, so its error occurs in both. These errors
    cancel along each path through the tree except at the root: ln p of a point is off by at most twice the total's
    error, and one division per bucket.
    """
    pace, keep_variables = pace or WorkClock.unhurried(), set(queried)
    children: list[list[int]] = [[] for _ in buckets]
    messages: list[Wide | None] = []
    log_error = 0.0
    totals: list[Wide] = []
    tables: list[Wide] = []
    useful = [b.own in keep_variables for b in buckets]
    for i, bucket in enumerate(buckets):
        parts = [bucket.table]
        pace.ahead(ENTRIES_PER_TABLE + bucket.table.size * (2 + len(children[i])))
        for c in children[i]:
            message = messages[c]
            assert message is not None
            parts.append(message.spread(buckets[c].separator, bucket.scope))
            messages[c] = None
        table = bucket.table if len(parts) == 1 else Wide.product(parts, bucket.table.shape)
        shares, total = table.shares()
        messages.append(total)
        tables.append(shares)
        if bucket.parent >= 0:
            children[bucket.parent].append(i)
            useful[bucket.parent] |= useful[i]
        else:
            totals.append(total)
            log_error += 2.0 * total.log_error
    kept = [i for i in range(len(buckets)) if useful[i]]
    place = {i: p for p, i in enumerate(kept)}
    out = [Bucket(buckets[i].own, buckets[i].separator, tables[i], place.get(buckets[i].parent, -1)) for i in kept]
    return out, totals, log_error + len(buckets) * ULP


def contract_chains(
    buckets: Sequence[Bucket], queried: Iterable[int], pace: WorkClock | None = None
) -> list[Bucket]:
    """Sum out hidden variables that only one child contains, unless tables would grow.

    Tables whose products might underflow stay unchanged: contraction only saves work.
    """
    pace, keep_variables = pace or WorkClock.unhurried(), set(queried)
    alive: list[Bucket | None] = [Bucket(b.own, b.separator, b.table, b.parent) for b in buckets]
    children: list[set[int]] = [set() for _ in buckets]
    for i, bucket in enumerate(buckets):
        if bucket.parent >= 0:
            children[bucket.parent].add(i)
    for i in range(len(buckets)):
        upper = alive[i]
        if upper is None or upper.own in keep_variables or len(children[i]) != 1:
            continue
        (c,) = children[i]
        lower = alive[c]
        assert lower is not None
        below = (alive[g] for g in children[c])
        if any(region is not None and upper.own in region.separator for region in below):
            continue
        separator = (
            *upper.separator,
            *(v for v in lower.separator if v != upper.own and v not in upper.separator),
        )
        shape = {v: s for b in (upper, lower) for v, s in zip(b.scope, b.table.shape, strict=True)}
        size = lower.table.shape[-1] * int(np.prod([shape[v] for v in separator], dtype=np.int64))
        if size > upper.table.size + lower.table.size:
            continue
        pace.ahead(ENTRIES_PER_TABLE + size * upper.table.shape[-1])
        if min(upper.table.smallest_exponent, lower.table.smallest_exponent) < SAFE_EXPONENT:
            continue
        table = _summed_out(upper, lower, separator)
        alive[i] = Bucket(lower.own, separator, Wide.of_values(table), upper.parent)
        children[i] = children[c]
        for g in children[c]:
            grandchild = alive[g]
            assert grandchild is not None
            grandchild.parent = i
        alive[c] = None
    kept = [i for i, b in enumerate(alive) if b is not None]
    place = {i: p for p, i in enumerate(kept)}
    return [
        Bucket(b.own, b.separator, b.table, place.get(b.parent, -1))
        for b in (alive[i] for i in kept)
        if b is not None
    ]


def _summed_out(upper: Bucket, lower: Bucket, separator: tuple[int, ...]) -> Floats:
    """Sum the upper bucket's own variable out of the product of both tables."""
    left, right = upper.table.values(), lower.table.values()
    if lower.separator == (upper.own,):
        return left @ right  # the usual link of a chain
    label = {v: n for n, v in enumerate((*separator, upper.own, lower.own))}
    subscripts = [
        "".join(ascii_letters[label[v]] for v in scope)
        for scope in (upper.scope, lower.scope, (*separator, lower.own))
    ]
    return np.asarray(np.einsum("{},{}->{}".format(*subscripts), left, right, optimize=True), np.float64)


def make_tree(
    buckets: Sequence[Bucket],
    positions: Mapping[int, int],
    offsets: Ints,
    log_evidence: float,
    log_error: float = 0.0,
    pace: WorkClock | None = None,
) -> RegionTree:
    """Lay conditioned buckets out as arrays; `pace` is charged each table's entries before it is built.

    `positions` maps query variables to their positions in the query's domain, whose `offsets` give their
    mask columns. Several roots are joined under a region with one state.
    """
    pace, buckets = pace or WorkClock.unhurried(), list(buckets)
    roots = [i for i, b in enumerate(buckets) if b.parent < 0]
    if len(roots) != 1:
        for i in roots:
            buckets[i].parent = len(buckets)
        buckets.append(Bucket(-1, (), Wide.of_values(np.ones(1))))
    children: list[list[int]] = [[] for _ in buckets]
    for i, bucket in enumerate(buckets):
        if bucket.parent >= 0:
            children[bucket.parent].append(i)
    layout = _Layout(buckets, children, positions)
    columns = [int(offsets[positions[b.own]]) if b.own in positions else -1 for b in buckets]
    tables, mantissas, exponents = _laid_out([layout.table(i) for i in range(len(buckets))], pace)
    slots = [(i, c) for i in range(len(buckets)) for c in children[i]]
    maps: list[tuple[Ints, Ints, Ints]] = []
    for i, c in slots:
        pace.ahead(ENTRIES_PER_TABLE + WORK_OF_MAPS * buckets[i].table.size)
        maps.append(layout.child_maps(i, c))
    slot = np.full(len(buckets), -1, np.int64)
    for s, (_, c) in enumerate(slots):
        slot[c] = s
    dims = np.array([layout.dims(i) for i in range(len(buckets))], np.int64).reshape(-1, 4)
    own = np.array([b.table.shape[-1] for b in buckets], np.int64)
    joint = dims[:, 0] * dims[:, 1] * own
    arrays = RegionArrays(
        own_states=own,
        shared_query=np.ascontiguousarray(dims[:, 0]),
        shared_hidden=np.ascontiguousarray(dims[:, 1]),
        rest_query=np.ascontiguousarray(dims[:, 2]),
        rest_hidden=np.ascontiguousarray(dims[:, 3]),
        column=np.array(columns, np.int64),
        table_ptr=_pointers(b.table.size for b in buckets),
        tables=tables,
        mantissas=mantissas,
        exponents=exponents,
        child_ptr=_pointers(len(c) for c in children),
        children=np.array([c for _, c in slots], np.int64),
        map_ptr=_pointers(len(m[0]) for m in maps),
        gather=_joined(m[0] for m in maps),
        scatter=_joined(m[1] for m in maps),
        scatter_break=_joined(m[2] for m in maps),
        message_ptr=_pointers(np.prod(dims, axis=1)),
        joint_ptr=_pointers(joint),
    )
    variable = np.array([positions.get(b.own, -1) for b in buckets], np.int64)
    parent = np.array([b.parent for b in buckets], np.int64)
    return RegionTree(arrays, parent, slot, variable, log_evidence, log_error)


def _laid_out(tables: Sequence[Wide], pace: WorkClock) -> tuple[Floats, Floats, Ints]:
    """Join tables as doubles, and as mantissas and exponents unless doubles hold all entries."""
    parts: list[Floats] = []
    for table in tables:
        pace.ahead(ENTRIES_PER_TABLE + table.size)
        parts.append(table.values().ravel())
    linear = np.concatenate(parts)
    if min(t.smallest_exponent for t in tables) >= SAFE_EXPONENT:
        return linear, linear, np.empty(0, np.int64)
    mantissas = np.concatenate([t.mantissa.ravel() for t in tables])
    return linear, mantissas, np.concatenate([t.exponent.ravel() for t in tables])


def _pointers(sizes: Iterable[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64))]).astype(np.int64)


def _joined(parts: Iterable[NDArray[Any]]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *parts])


class _Layout:
    """Orders the axes of every region and maps joint positions to children's separators."""

    def __init__(
        self, buckets: Sequence[Bucket], children: Sequence[Sequence[int]], positions: Mapping[int, int]
    ) -> None:
        self.buckets = buckets
        self.positions = positions
        self.sizes = {v: n for b in buckets for v, n in zip(b.scope, b.table.shape, strict=True)}
        self.shared: list[tuple[list[int], list[int]]] = []
        self.rest: list[tuple[list[int], list[int]]] = []
        for bucket, below in zip(buckets, children, strict=True):
            known = {v for c in below for v in buckets[c].separator}
            self.shared.append(self._split(v for v in bucket.separator if v in known))
            self.rest.append(self._split(v for v in bucket.separator if v not in known))

    def _split(self, variables: Iterable[int]) -> tuple[list[int], list[int]]:
        both = sorted(variables)
        return [v for v in both if v in self.positions], [v for v in both if v not in self.positions]

    def _count(self, variables: Iterable[int]) -> int:
        count = 1
        for v in variables:
            count *= self.sizes[v]
        return count

    def dims(self, i: int) -> tuple[int, int, int, int]:
        """Return the state counts of (shared_query, shared_hidden, rest_query, rest_hidden)."""
        (a, b), (c, d) = self.shared[i], self.rest[i]
        return self._count(a), self._count(b), self._count(c), self._count(d)

    def separator(self, i: int) -> list[int]:
        """Return a region's separator in layout order."""
        return [*self.shared[i][0], *self.shared[i][1], *self.rest[i][0], *self.rest[i][1]]

    def table(self, i: int) -> Wide:
        """Return a region's table in layout order."""
        bucket = self.buckets[i]
        order = [bucket.scope.index(v) for v in (*self.separator(i), bucket.own)]
        return bucket.table.view(lambda values: np.transpose(values, order))

    def child_maps(self, i: int, c: int) -> tuple[Ints, Ints, Ints]:
        """Return gather, scatter and scatter_break of child c of region i."""
        bucket = self.buckets[i]
        axes = [*self.shared[i][0], *self.shared[i][1], bucket.own]
        shape = [self.sizes[v] for v in axes]
        size = self._count(axes)
        states = dict(zip(axes, np.unravel_index(np.arange(size), shape), strict=True))
        separator = self.separator(c)
        gather = self._ravel(separator, states, size)
        excess = self._ravel([v for v in axes if v in self.positions and v not in separator], states, size)
        scatter = np.lexsort((np.arange(size), excess, gather))
        breaks = np.zeros(size, np.int64)
        same = gather[scatter][1:] == gather[scatter][:-1]
        breaks[1:] = np.where(same, excess[scatter][1:] != excess[scatter][:-1], 2)
        breaks[0] = 2
        return gather, scatter.astype(np.int64), breaks

    def _ravel(self, variables: Sequence[int], states: Mapping[int, Ints], size: int) -> Ints:
        index = np.zeros(size, np.int64)
        for v in variables:
            index = index * self.sizes[v] + states[v]
        return index
