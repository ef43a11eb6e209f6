"""Region trees: buckets of factors or of latent trees, conditioned, as flat arrays.

A *bucket* eliminates one variable: its table is over its separator (the variables shared with the rest of the
tree) and its own variable. After conditioning it holds P(own variable | separator, evidence): a message upward is
the probability of a box below given the separator's state, and buckets without a query variable below are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters

import numpy as np

from certimap.core.arrays import Array, Floats, Ints, pointers
from certimap.core.control import WorkClock
from certimap.core.query import Query
from certimap.core.region_tree import RegionArrays, RegionTree
from certimap.core.rounding import SAFE_EXPONENT, ULP
from certimap.errors import ModelError
from certimap.trees.wide import Wide

ENTRIES_PER_TABLE = 150  # fixed cost of making a table, in table entries; clocks are charged before it is made
UNLIMITED = 2**62  # table entries
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


def conditionals(
    buckets: Sequence[Bucket], queried: Iterable[int], pace: WorkClock | None = None
) -> tuple[list[Bucket], list[Wide], float]:
    """Turn tables into conditional probabilities and drop buckets without a query variable below.

    `buckets` come children first; `queried` variables are kept. Returns the kept buckets, with tables that sum to
    1 over the last axis (or to 0 for impossible separator states); the totals of the roots, over their separators;
    and a bound on the rounding error of ln p of any point, in nats: a message multiplies the parent's table and
    divides the child's, so that errors cancel along each path except twice the total's, and one division per
    bucket.
    """
    pace, keep_variables = pace or WorkClock.unhurried(), set(queried)
    children: list[list[int]] = [[] for _ in buckets]
    messages: dict[int, Wide] = {}
    log_error = 0.0
    totals: list[Wide] = []
    tables: list[Wide] = []
    useful = [b.own in keep_variables for b in buckets]
    for i, bucket in enumerate(buckets):
        pace.ahead(ENTRIES_PER_TABLE + bucket.table.size * (2 + len(children[i])))
        parts = [messages.pop(c).spread(buckets[c].separator, bucket.scope) for c in children[i]]
        shares, total = Wide.product([bucket.table, *parts], bucket.table.shape).shares()
        messages[i] = total
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
    """Sum out hidden variables that only one child contains, unless tables would grow or products underflow."""
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
        separator = (*upper.separator, *(v for v in lower.separator if v not in upper.scope))
        shape = {v: s for b in (upper, lower) for v, s in zip(b.scope, b.table.shape, strict=True)}
        size = lower.table.shape[-1] * math.prod(shape[v] for v in separator)
        if size > upper.table.size + lower.table.size:
            continue
        pace.ahead(ENTRIES_PER_TABLE + size * upper.table.shape[-1])
        if min(upper.table.smallest_exponent, lower.table.smallest_exponent) < SAFE_EXPONENT:
            continue
        left, right = upper.table.values(), lower.table.values()
        if lower.separator == (upper.own,):
            table = left @ right  # the usual link of a chain
        else:
            label = dict(zip((*separator, upper.own, lower.own), ascii_letters, strict=False))
            scopes = (upper.scope, lower.scope, (*separator, lower.own))
            axes = ["".join(label[v] for v in scope) for scope in scopes]
            table = np.asarray(
                np.einsum(f"{axes[0]},{axes[1]}->{axes[2]}", left, right, optimize=True), np.float64
            )
        alive[i] = Bucket(lower.own, separator, Wide.of_values(table), upper.parent)
        children[i] = children[c]
        for g in children[c]:
            grandchild = alive[g]
            assert grandchild is not None
            grandchild.parent = i
        alive[c] = None
    kept = {i: b for i, b in enumerate(alive) if b is not None}
    place = {i: p for p, i in enumerate(kept)}
    return [Bucket(b.own, b.separator, b.table, place.get(b.parent, -1)) for b in kept.values()]


def make_tree(
    buckets: Sequence[Bucket], positions: Mapping[int, int], offsets: Ints, log_evidence: float,
    log_error: float = 0.0, pace: WorkClock | None = None,
) -> RegionTree:  # fmt: skip
    """Lay conditioned buckets out as arrays; several roots are joined under a region with one state.

    `positions`: of query variables in the query's domain, whose `offsets` give their mask columns.
    """
    pace, buckets = pace or WorkClock.unhurried(), list(buckets)
    roots = [b for b in buckets if b.parent < 0]
    if len(roots) != 1:
        for root in roots:
            root.parent = len(buckets)
        buckets.append(Bucket(-1, (), Wide.of_values(np.ones(1))))
    children: list[list[int]] = [[] for _ in buckets]
    for i, bucket in enumerate(buckets):
        if bucket.parent >= 0:
            children[bucket.parent].append(i)
    layout = _Layout(buckets, children, positions)
    columns = [int(offsets[positions[b.own]]) if b.own in positions else -1 for b in buckets]
    tables, mantissas, exponents = _laid_out([layout.table(i) for i in range(len(buckets))], pace)
    slots = [(i, c) for i in range(len(buckets)) for c in children[i]]
    maps: list[tuple[Ints, Ints, int]] = []
    for i, c in slots:
        pace.ahead(ENTRIES_PER_TABLE + WORK_OF_MAPS * buckets[i].table.size)
        maps.append(layout.child_maps(i, c))
    slot = np.full(len(buckets), -1, np.int64)
    slot[[c for _, c in slots]] = np.arange(len(slots))
    dims = np.array([layout.dims(i) for i in range(len(buckets))], np.int64).reshape(-1, 4)
    own = np.array([b.table.shape[-1] for b in buckets], np.int64)
    shared_query, shared_hidden, rest_query, rest_hidden = map(np.ascontiguousarray, dims.T)
    arrays = RegionArrays(
        own_states=own,
        shared_query=shared_query,
        shared_hidden=shared_hidden,
        rest_query=rest_query,
        rest_hidden=rest_hidden,
        column=np.array(columns, np.int64),
        table_ptr=pointers(b.table.size for b in buckets),
        tables=tables,
        mantissas=mantissas,
        exponents=exponents,
        child_ptr=pointers(len(c) for c in children),
        children=np.array([c for _, c in slots], np.int64),
        map_ptr=pointers(len(m[0]) for m in maps),
        gather=_joined(m[0] for m in maps),
        scatter=_joined(m[1] for m in maps),
        excess=np.array([m[2] for m in maps], np.int64),
        message_ptr=pointers(np.prod(dims, axis=1)),
        joint_ptr=pointers(shared_query * shared_hidden * own),
    )
    variable = np.array([positions.get(b.own, -1) for b in buckets], np.int64)
    parent = np.array([b.parent for b in buckets], np.int64)
    return RegionTree(arrays, parent, slot, variable, log_evidence, log_error)


def _laid_out(tables: Sequence[Wide], pace: WorkClock) -> tuple[Floats, Floats, Ints]:
    """Join tables as doubles, and as mantissas and exponents unless doubles hold all entries."""
    for table in tables:
        pace.ahead(ENTRIES_PER_TABLE + table.size)
    linear = np.concatenate([table.values().ravel() for table in tables])
    if min(t.smallest_exponent for t in tables) >= SAFE_EXPONENT:
        return linear, linear, np.empty(0, np.int64)
    mantissas = np.concatenate([t.mantissa.ravel() for t in tables])
    return linear, mantissas, np.concatenate([t.exponent.ravel() for t in tables])


def _joined(parts: Iterable[Array]) -> Ints:
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
        return math.prod(self.sizes[v] for v in variables)

    def dims(self, i: int) -> list[int]:
        """Return the state counts of [shared_query, shared_hidden, rest_query, rest_hidden]."""
        return [self._count(part) for part in (*self.shared[i], *self.rest[i])]

    def separator(self, i: int) -> list[int]:
        return [v for part in (*self.shared[i], *self.rest[i]) for v in part]

    def table(self, i: int) -> Wide:
        bucket = self.buckets[i]
        order = [bucket.scope.index(v) for v in (*self.separator(i), bucket.own)]
        return bucket.table.view(lambda values: np.transpose(values, order))

    def child_maps(self, i: int, c: int) -> tuple[Ints, Ints, int]:
        """Return gather and scatter of child c of region i, and how many configurations its separator lacks."""
        bucket = self.buckets[i]
        axes = [*self.shared[i][0], *self.shared[i][1], bucket.own]
        separator = self.separator(c)
        lacking = [v for v in axes if v in self.positions and v not in separator]
        gather, scatter = (self._places(axes, own) for own in (separator, [*separator, *lacking]))
        return gather, scatter, self._count(lacking)

    def _places(self, axes: Sequence[int], own: Sequence[int]) -> Ints:
        """Return the place that each joint state of `axes` has among the joint states of some of them."""
        strides, stride = dict.fromkeys(axes, 0), 1
        for v in reversed(own):
            strides[v], stride = stride, stride * self.sizes[v]
        places = np.zeros(1, np.int64)
        for v in axes:
            places = np.add.outer(places, strides[v] * np.arange(self.sizes[v])).ravel()
        return places


Factor = tuple[Sequence[int], Wide]


def buckets_of_factors(
    factors: Sequence[Factor], sizes: dict[int, int], order: Sequence[int], max_table: int,
    pace: WorkClock | None = None,
) -> tuple[list[Bucket], float]:  # fmt: skip
    """Build the bucket tree of an elimination order: the buckets, children first, and ln of the constant factors.

    Raises ModelError, before any is built, if a table would have more than `max_table` entries.
    """
    pace = pace or WorkClock.unhurried()
    place = {v: i for i, v in enumerate(order)}
    own: list[list[Factor]] = [[] for _ in order]
    constants: list[float] = []
    for scope, table in factors:
        if scope:
            own[min(place[v] for v in scope)].append((scope, table))
        else:
            constants.append(float(table.logs()))
    below: list[set[int]] = [set() for _ in order]
    separators: list[tuple[int, ...]] = []
    parents: list[int] = []
    largest = 0
    for i, v in enumerate(order):
        scope = below[i].union(*(set(s) for s, _ in own[i])) - {v}
        separator = tuple(sorted(scope, key=place.__getitem__))
        separators.append(separator)
        parents.append(place[separator[0]] if separator else -1)
        if separator:
            below[parents[i]] |= scope
        largest = max(largest, math.prod(sizes[u] for u in separator) * sizes[v])
    if largest > max_table:
        width = max(len(s) for s in separators)
        raise ModelError(
            f"the elimination tree has induced width {width} and a table of {largest:.3g} entries; "
            f"expected at most max_table={max_table}"
        )
    buckets: list[Bucket] = []
    for v, separator, parent, held in zip(order, separators, parents, own, strict=True):
        shape = tuple(sizes[u] for u in (*separator, v))
        pace.ahead(ENTRIES_PER_TABLE + math.prod(shape) * max(len(held), 1))
        parts = [values.spread(scope, (*separator, v)) for scope, values in held]
        buckets.append(Bucket(v, separator, Wide.product(parts, shape), parent))
    return buckets, math.fsum(constants)


def rooted(parent: Ints, root: int) -> tuple[list[int], Ints]:
    """Re-root a forest at `root`: return an order with parents first, and the new parents."""
    n = len(parent)
    near: list[list[int]] = [[] for _ in range(n)]
    for i in range(n):
        if parent[i] >= 0:
            near[i].append(int(parent[i]))
            near[int(parent[i])].append(i)
    new_parent = np.full(n, -1, np.int64)
    seen = np.zeros(n, np.bool_)
    order: list[int] = []
    starts = [root, *(i for i in range(n) if parent[i] < 0)]
    for start in starts:
        if seen[start]:
            continue
        seen[start] = True
        stack = [start]
        while stack:
            i = stack.pop()
            order.append(i)
            for j in near[i]:
                if not seen[j]:
                    seen[j] = True
                    new_parent[j] = i
                    stack.append(j)
    return order, new_parent


def centroid(parent: Ints, weight: Floats) -> int:
    """Return the node whose largest neighbouring subtree has the smallest weight; sets of vectors grow with it."""
    first = int(np.flatnonzero(parent < 0)[0])
    order, up = rooted(parent, first)
    total = weight.copy()
    for i in reversed(order):
        if up[i] >= 0:
            total[up[i]] += total[i]
    component = int(np.argmax(np.where(up < 0, total, -1.0)))
    heaviest, members = np.zeros(len(parent)), dict.fromkeys([component])
    for i in order:
        if up[i] >= 0:
            heaviest[up[i]] = max(heaviest[up[i]], total[i])
            if int(up[i]) in members:
                members[i] = None
    return min(members, key=lambda i: max(heaviest[i], total[component] - total[i]))


def buckets_of_latent_tree(
    parent: Ints, transitions: Sequence[Wide], priors: dict[int, Wide], latent_of: Ints, emissions: Sequence[Wide],
    query: Query, root: int | None = None, pace: WorkClock | None = None,
) -> list[Bucket]:  # fmt: skip
    """Build the buckets of a tree of latent variables, one bucket per latent and per query variable.

    The variables of `query.domain` keep their positions; latent i becomes variable n + i. Arguments as in
    `BucketTreePosterior.from_tree`; buckets come out children first.
    """
    pace = pace or WorkClock.unhurried()
    domain = query.domain
    n = len(domain)
    queried: list[int] = query.variables.tolist()
    weights = Wide.of_logs(query.log_weights)
    is_weighed = np.logical_or.reduceat(query.log_weights != 0.0, domain.offsets[:-1])
    # the only state of each variable under hard evidence (with weight 1), else -1
    starts, possible = domain.offsets[:-1], query.log_weights > -np.inf
    n_possible = np.add.reduceat(possible.astype(np.int64), starts)
    n_certain = np.add.reduceat((query.log_weights == 0.0).astype(np.int64), starts)
    first = np.flatnonzero(possible)[np.cumsum(n_possible) - n_possible] - starts
    only_state: list[int] = np.where((n_possible == 1) & (n_certain == 1), first, -1).tolist()

    def weighed(v: int) -> Wide:
        if not is_weighed[v]:
            return emissions[v]
        evidence = weights.view(lambda values: values[domain.offsets[v] : domain.offsets[v + 1]])
        return Wide.product([emissions[v], evidence], emissions[v].shape)

    parts: list[list[Wide]] = [[] for _ in parent]
    for i, prior in priors.items():
        parts[i].append(prior)
    for v in sorted(set(range(n)).difference(queried)):
        state = only_state[v]
        if state < 0:
            seen = weighed(v).shares()[1]
        else:
            seen = emissions[v].view(lambda values, state=state: values[:, state])
        parts[int(latent_of[v])].append(seen)
    unary = [
        Wide.product(part, (priors[i].shape[0] if parent[i] < 0 else transitions[i].shape[1],))
        for i, part in enumerate(parts)
    ]
    if root is None:
        count = np.bincount(latent_of[query.variables], minlength=len(parent)).astype(np.float64)
        root = centroid(parent, count)
    order, new_parent = rooted(parent, root)
    factors: list[Factor] = [((n + int(latent_of[v]), v), weighed(v)) for v in queried]
    for latent, up in ((i, int(new_parent[i])) for i in order):
        if up >= 0:
            edge = transitions[latent] if parent[latent] == up else transitions[up].view(lambda values: values.T)
            factors.append(((n + up, n + latent), edge))
        factors.append(((n + latent,), unary[latent]))
    sizes = {v: size for scope, table in factors for v, size in zip(scope, table.shape, strict=True)}
    return buckets_of_factors(factors, sizes, [*queried, *(n + i for i in reversed(order))], UNLIMITED, pace)[0]
