"""Elimination of a product of tables: a tree of buckets in an order of the checker's own making."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Reduced, Rejected, Table, spread
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, up

MAX_TABLE = 2**22  # entries of one bucket


@dataclass(eq=False)
class Bucket:
    """A variable with its separator, query variables before hidden ones in both, and the product of its tables.

    `raised` is how far (nats) rounding may have raised the product above the truth. `inner` are the hidden
    variables that children have a say in; `maps` tells, for each child, its context in each of the bucket's, and
    its hidden state in each joint one of the bucket's hidden variables, and of the inner ones.
    """

    own: int
    query: list[int]
    hidden: list[int]
    separator_query: list[int]
    separator_hidden: list[int]
    table: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    raised: float = 0.0
    children: list[int] = field(default_factory=list[int])
    inner: list[int] = field(default_factory=list[int])
    maps: dict[int, tuple[Ints, Ints, Ints]] = field(default_factory=dict[int, tuple[Ints, Ints, Ints]])


def elimination_order(tables: Sequence[Table], sizes: Sequence[int], variables: Sequence[int]) -> list[int]:
    """Return an order in which each next variable makes the smallest table; among equals the first."""
    near: dict[int, set[int]] = {v: set() for v in variables}
    for table in tables:
        for v in table.scope:
            near[v].update(table.scope)
    for v in near:
        near[v].discard(v)
    logs = [math.log(k) for k in sizes]
    cost = {v: logs[v] + sum(logs[u] for u in near[v]) for v in near}
    waiting = [(cost[v], v) for v in near]
    heapify(waiting)
    order: list[int] = []
    while near:
        found, v = heappop(waiting)
        if v not in near or found != cost[v]:
            continue  # eliminated, or entered once more since
        order.append(v)
        around = near.pop(v)
        for u in around:
            near[u] |= around
            near[u] -= {u, v}
            cost[u] = logs[u] + sum(logs[w] for w in near[u])
            heappush(waiting, (cost[u], u))
    return order


def index_map(outer: Sequence[int], inner: Sequence[int], sizes: Sequence[int]) -> Ints:
    """Return, for each joint state of `outer`, the joint state of `inner`, a part of it."""
    shape = [sizes[v] for v in inner]
    inside = Table(tuple(inner), np.arange(math.prod(shape), dtype=np.float64).reshape(shape))
    full = np.broadcast_to(spread(inside, list(outer)), [sizes[v] for v in outer])
    return np.asarray(full, np.int64).reshape(-1)


@dataclass(frozen=True, eq=False)
class Layout:
    """An elimination before its tables are multiplied: per variable its scope, tables, and buckets below it."""

    order: list[int]
    scopes: list[set[int]]
    held: list[list[Table]]
    children: list[list[int]]

    @classmethod
    def of(cls, problem: Reduced) -> Layout:
        """Choose an order; refuse one whose tables would not fit. The last of `children` are the roots."""
        variables = sorted({v for t in problem.tables for v in t.scope} | set(problem.queried))
        order = elimination_order(problem.tables, problem.sizes, variables)
        place = {v: k for k, v in enumerate(order)}
        held: list[list[Table]] = [[] for _ in order]
        for table in problem.tables:
            held[min(place[v] for v in table.scope)].append(table)
        separators: list[set[int]] = [set() for _ in order]
        scopes: list[set[int]] = []
        children: list[list[int]] = [[] for _ in range(len(order) + 1)]
        for k, v in enumerate(order):
            scope = {v, *separators[k], *(u for t in held[k] for u in t.scope)}
            if sum(math.log(problem.sizes[u]) for u in scope) > math.log(MAX_TABLE) + 1e-9:
                raise Rejected(f"eliminating variable {v} would take a table of more than {MAX_TABLE} entries")
            rest = scope - {v}
            parent = min((place[u] for u in rest), default=len(order))
            if rest:
                separators[parent] |= rest
            children[parent].append(k)
            scopes.append(scope)
        return cls(order, scopes, held, children)


@dataclass(eq=False)
class Buckets:
    """A tree of buckets, children before parents; the last one joins the roots."""

    buckets: list[Bucket]
    sizes: list[int]
    queried: dict[int, int]
    log_constant: float

    @classmethod
    def of(cls, problem: Reduced) -> Buckets:
        """Lay out an elimination and multiply its tables; refuse one whose tables would not fit."""
        plan = Layout.of(problem)
        queried = {v: k for k, v in enumerate(problem.queried)}
        children = plan.children
        buckets = [
            _bucket(v, scope, queried, tables, problem.sizes)
            for v, scope, tables in zip(plan.order, plan.scopes, plan.held, strict=True)
        ]
        buckets.append(Bucket(-1, [], [], [], []))
        for bucket, below in zip(buckets, children, strict=True):
            bucket.children = below
            reached = {v for c in below for v in buckets[c].separator_hidden}
            bucket.inner = [v for v in bucket.hidden if v in reached]
            for c in below:
                child = buckets[c]
                bucket.maps[c] = (
                    index_map(bucket.query, child.separator_query, problem.sizes),
                    index_map(bucket.hidden, child.separator_hidden, problem.sizes),
                    index_map(bucket.inner, child.separator_hidden, problem.sizes),
                )
        return cls(buckets, problem.sizes, queried, problem.log_constant)

    def shape(self, bucket: Bucket) -> tuple[list[int], list[int]]:
        return [self.sizes[v] for v in bucket.query], [self.sizes[v] for v in bucket.hidden]

    def table_in(self, k: int, box: Sequence[NDArray[np.bool_]]) -> Floats:
        """Return a bucket's table over (contexts, hidden states), its own variable kept inside a box."""
        bucket = self.buckets[k]
        if bucket.own not in self.queried:
            return bucket.table
        states = index_map(bucket.query, [bucket.own], self.sizes)
        allowed = box[self.queried[bucket.own]][states]
        return np.where(allowed[:, None], bucket.table, -np.inf)

    def without_own(self, k: int, joint: Floats, side: int = 1) -> Floats:
        """Maximise or sum a bucket's own variable out of an array over (..., contexts, hidden states)."""
        bucket = self.buckets[k]
        if bucket.own < 0:
            return joint
        query, hidden = self.shape(bucket)
        if bucket.own in self.queried:
            axis = bucket.query.index(bucket.own)
            return joint.reshape([*query, -1]).max(axis=axis).reshape(-1, joint.shape[-1])
        axis = bucket.hidden.index(bucket.own)
        return log_sum(joint.reshape([-1, *hidden]), 1 + axis, side).reshape(len(joint), -1)

    def messages(self, box: Sequence[NDArray[np.bool_]], side: int = 1) -> list[Floats]:
        """Return, for each bucket, the largest sum below it by context and hidden state; the last is the bound."""
        out: list[Floats] = []
        for k, bucket in enumerate(self.buckets):
            joint = self.table_in(k, box)
            for c in bucket.children:
                contexts, states, _ = bucket.maps[c]
                joint = up(joint + out[c][np.ix_(contexts, states)], side)
            out.append(self.without_own(k, joint, side))
        return out

    def bound(self, box: Sequence[NDArray[np.bool_]], side: int = 1) -> float:
        """Return an upper bound on the log values in a box; of a point its value, rounded to a side."""
        found = float(up(self.messages(box, side)[-1][0, 0] + self.log_constant, side))
        return found if side > 0 else found - 2.0 * sum(bucket.raised for bucket in self.buckets)


def value_at(problem: Reduced, point: Sequence[int], side: int) -> float:
    """Return the log value of a point, rounded to a side, by eliminating the hidden variables alone."""
    fixed = dict(zip(problem.queried, point, strict=True))
    constants, tables = [problem.log_constant], list[Table]()
    for table in problem.tables:
        logs = np.asarray(table.logs[tuple(fixed.get(v, slice(None)) for v in table.scope)], np.float64)
        scope = tuple(v for v in table.scope if v not in fixed)
        if scope:
            tables.append(Table(scope, logs))
        else:
            constants.append(float(logs))
    log_constant = float(up(math.fsum(constants), side))
    return Buckets.of(Reduced(tables, problem.sizes, [], log_constant)).bound([], side)


def _bucket(v: int, scope: set[int], queried: dict[int, int], held: list[Table], sizes: Sequence[int]) -> Bucket:
    query = sorted(u for u in scope if u in queried)
    hidden = sorted(u for u in scope if u not in queried)
    every = [*query, *hidden]
    total, raised = np.zeros([sizes[u] for u in every]), 0.0
    for table in held:
        total = up(total + spread(table, every))
        raised += (2.0 + 4.0 * float(np.max(np.abs(total), where=np.isfinite(total), initial=0.0))) * UNIT
    n_contexts = math.prod(sizes[u] for u in query)
    keep = [[u for u in part if u != v] for part in (query, hidden)]
    return Bucket(v, query, hidden, keep[0], keep[1], total.reshape(n_contexts, -1), raised)
