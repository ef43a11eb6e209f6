"""Many queries to one network with the same observed variables, conditioned together along one order.

The rows of evidence become a further variable with an axis in every table, which is never eliminated. Each step of
an elimination thus runs once for all rows, with the same operations as for a single row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.conversions.choose import plan
from certimap.conversions.from_networks import TREE, elimination_of, elimination_order, reduced_of, with_all_states
from certimap.core.arrays import Floats, Ints
from certimap.core.control import Limits
from certimap.core.logs import log_of
from certimap.core.posterior import Capability
from certimap.core.query import Query
from certimap.core.region_tree import RegionTree
from certimap.core.rounding import SAFE_EXPONENT
from certimap.errors import CertimapError
from certimap.networks.factor import Factor
from certimap.networks.network import Network
from certimap.networks.reduction import Reduced
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.regions import Bucket, buckets_of_factors, conditionals, contract_chains, make_tree
from certimap.trees.wide import Wide

MAX_ENTRIES = 2**22  # limit on entries of all tables of rows conditioned together
RESERVED = 2  # reserved positions, for the constants 0 and 1


def trees_of_rows(
    network: Network, queries: Sequence[Query], *, wants: Sequence[Capability] | None, limits: Limits
) -> dict[int, BucketTreePosterior]:
    """Return the trees of queries to a `network` that can share their conditioning, by position in `queries`.

    `wants` and `limits` are as in `condition`. Each tree equals the result of conditioning its query alone. The
    caller must condition the other queries one by one: queries with soft evidence, without another query that
    shares variables and surviving states, with another chosen representation, or with impossible evidence.
    """
    groups: dict[Any, list[int]] = {}
    for i, query in enumerate(queries):
        n_excluded = sum(query.domain.n_states[v] - 1 for v in query.observed)  # by hard evidence alone
        if len(query.variables) and np.count_nonzero(query.log_weights) == n_excluded:
            groups.setdefault((query.variables.tobytes(), query.observed), []).append(i)
    found: dict[int, BucketTreePosterior] = {}
    for members in groups.values():
        if len(members) > 1:
            group = _Group(network, [queries[i] for i in members], wants, limits)
            found.update((members[i], tree) for i, tree in group.trees().items())
    return found


class _Group:
    """Queries with the same query variables and the same observed variables."""

    def __init__(
        self, network: Network, queries: Sequence[Query], wants: Sequence[Capability] | None, limits: Limits
    ) -> None:
        self.network, self.queries, self.wants, self.limits = network, queries, wants, limits
        first = queries[0]
        self.observed = first.observed
        told = {v for v in self.observed if network.domain.n_states[v] > 1}  # one state tells nothing
        needed = network.relevant({*first.variables.tolist(), *told})
        pairs = zip(network.factors, network.owners, strict=True)
        self.factors = [f for f, owner in pairs if owner is None or owner in needed]
        self.alive = np.stack([q.log_weights for q in queries]) > -np.inf
        self.possible = np.ones(len(queries), np.bool_)
        self._drop_impossible()
        self.state = {v: np.argmax(self.alive[:, self._columns(v)], axis=1) for v in self.observed}

    def _columns(self, v: int) -> slice:
        offsets = self.network.domain.offsets
        return slice(int(offsets[v]), int(offsets[v + 1]))

    def _drop_impossible(self) -> None:
        """Drop states that some factor makes impossible, in each row, until nothing changes."""
        factors = [f for f in self.factors if not f.is_positive and f.scope]
        changed = True
        while changed:
            changed = False
            for factor in factors:
                table = factor.log_table > -np.inf if factor.in_logs else factor.table > 0.0
                for axis, v in enumerate(factor.scope):
                    shape = [-1, *(1 for _ in factor.scope)]
                    shape[axis + 1] = factor.shape[axis]
                    table = table & self.alive[:, self._columns(v)].reshape(shape)
                for axis, v in enumerate(factor.scope):
                    others = tuple(a + 1 for a in range(len(factor.scope)) if a != axis)
                    left = table.any(axis=others)
                    if not np.array_equal(left, self.alive[:, self._columns(v)]):
                        self.alive[:, self._columns(v)] = left
                        changed = True
        self.possible = np.logical_or.reduceat(self.alive, self.network.domain.offsets[:-1], axis=1).all(axis=1)

    def trees(self) -> dict[int, BucketTreePosterior]:
        """Return the trees, by position among the queries, for rows that share their surviving states."""
        free = self.alive.copy()
        for v in self.observed:
            free[:, self._columns(v)] = True
        alike: dict[bytes, list[int]] = {}
        for i in np.flatnonzero(self.possible).tolist():
            alike.setdefault(free[i].tobytes(), []).append(i)
        found: dict[int, BucketTreePosterior] = {}
        for rows in alike.values():
            if len(rows) > 1:
                found.update(self._conditioned(rows))
        return found

    def _conditioned(self, rows: list[int]) -> dict[int, BucketTreePosterior]:
        try:
            choice = plan(self.network, self.queries[rows[0]], wants=self.wants, limits=self.limits)
        except CertimapError:
            return {}
        if choice.row is not TREE:
            return {}
        reduced, elimination = reduced_of(choice.case), elimination_of(choice.case)
        n_together = int(MAX_ENTRIES / 2.0 ** min(elimination.log2_size, 1000.0))
        found: dict[int, BucketTreePosterior] = {}
        if n_together > 1:
            order = elimination_order(reduced, elimination)
            for start in range(0, len(rows), n_together):
                part = rows[start : start + n_together]
                found |= zip(part, self._together(np.array(part), reduced, order), strict=False)
        return {i: tree for i, tree in found.items() if tree.log_evidence > -math.inf}

    def _together(self, rows: Ints, reduced: Reduced, order: list[int]) -> list[BucketTreePosterior]:
        """Condition some rows, all with the surviving states of `reduced`, along one order."""
        axis = len(self.network.domain)  # the variable that numbers the rows
        tables, sizes, constants = self._tables(rows, reduced, axis)
        buckets, _ = buckets_of_factors(tables, sizes | {axis: len(rows)}, [*order, axis], MAX_ENTRIES * 4)
        for bucket in buckets:
            bucket.parent = -1 if bucket.parent == len(buckets) - 1 else bucket.parent
        first = self.queries[int(rows[0])]
        positions = {v: i for i, v in enumerate(first.variables.tolist())}
        kept, totals, log_error = conditionals(buckets[:-1], positions)
        log_evidence = sum((total.logs() for total in totals), np.zeros(len(rows))) + constants
        domain = first.query_domain
        template, entries = _laid_out(contract_chains(kept, positions), positions, domain.offsets, axis)
        if template is None:
            return []
        trees: list[BucketTreePosterior] = []
        for own, value in zip(entries, log_evidence.tolist(), strict=True):
            arrays = template.arrays._replace(tables=own, mantissas=own, exponents=np.empty(0, np.int64))
            tree = replace(template, arrays=arrays, log_evidence=value, log_error=log_error)
            trees.append(BucketTreePosterior(domain, tree, self.limits.workers or 1))
        return trees

    def _tables(
        self, rows: Ints, reduced: Reduced, axis: int
    ) -> tuple[list[tuple[tuple[int, ...], Wide]], dict[int, int], Floats]:
        """Return tables with an axis for rows, the sizes of variables, and ln of each row's constant factor."""
        n_states = self.network.domain.n_states
        sizes = dict(reduced.sizes)
        partial: dict[int, Ints] = {}
        out: list[tuple[tuple[int, ...], Wide]] = []
        for v in reduced.query:
            sizes[v] = int(n_states[v])
            indicator = np.ones(sizes[v])
            if len(reduced.states[v]) < sizes[v]:
                partial[v] = reduced.states[v]
                indicator = np.zeros(sizes[v])
                indicator[reduced.states[v]] = 1.0
            elif v in reduced.sizes and any(v in f.scope for f in reduced.factors):
                continue
            out.append(((axis, v), Wide.of_values(np.broadcast_to(indicator, (len(rows), sizes[v])))))
        constants: list[Floats] = []
        for factor in self.factors:
            scope, values = self._restricted(factor, rows, reduced.states, partial)
            if scope:
                wide = Wide.of_logs(values) if factor.in_logs else Wide.of_values(values)
                out.append(((axis, *scope), wide))
            else:
                constants.append(values if factor.in_logs else log_of(values))
        summed = np.array([math.fsum(column) for column in zip(*constants, strict=True)]) if constants else 0.0
        return out, sizes, Wide.of_logs(np.broadcast_to(summed, (len(rows),)).astype(np.float64)).logs()

    def _restricted(
        self, factor: Factor, rows: Ints, states: Mapping[int, Ints], partial: Mapping[int, Ints]
    ) -> tuple[tuple[int, ...], Floats]:
        """Return a factor's open variables and its entries, shape (rows, states of each)."""
        table, zero = (factor.log_table, -np.inf) if factor.in_logs else (factor.table, 0.0)
        scope = tuple(v for v in factor.scope if len(states[v]) > 1)
        index: list[Ints] = []
        for v in factor.scope:
            shape = [1] * (1 + len(scope))
            if v in self.observed:
                shape[0] = len(rows)
                index.append(self.state[v][rows].reshape(shape))
                continue
            if v in scope:
                shape[1 + scope.index(v)] = len(states[v])
            index.append(states[v].reshape(shape))
        entries = table[tuple(index)] if index else table
        values = np.broadcast_to(entries, (len(rows), *(len(states[v]) for v in scope)))
        for at, v in enumerate(scope):
            if v in partial:
                values = with_all_states(values, at + 1, partial[v], int(self.network.domain.n_states[v]), zero)
        return scope, values


def _laid_out(
    buckets: Sequence[Bucket], positions: Mapping[int, int], offsets: Ints, axis: int
) -> tuple[RegionTree | None, Floats]:
    """Return the common layout of all rows, and the tables of each row in it, shape (rows, entries).

    None if a table exceeds the range of doubles. Laying out the entries' numbers gives the layout.
    """
    plain: list[Bucket] = []
    flat: list[Floats] = []
    n_entries = RESERVED
    for bucket in buckets:
        if bucket.table.smallest_exponent < SAFE_EXPONENT:
            return None, np.empty((0, 0))
        at = bucket.separator.index(axis)
        values = np.moveaxis(bucket.table.values(), at, 0)
        separator = (*bucket.separator[:at], *bucket.separator[at + 1 :])
        numbers = np.arange(n_entries, n_entries + values[0].size, dtype=np.float64).reshape(values.shape[1:])
        n_entries += values[0].size
        flat.append(values.reshape(len(values), -1))
        plain.append(Bucket(bucket.own, separator, Wide.of_values(numbers), bucket.parent))
    template = make_tree(plain, positions, offsets, 0.0)
    n_rows = len(flat[0])
    entries = np.concatenate([np.zeros((n_rows, 1)), np.ones((n_rows, RESERVED - 1)), *flat], axis=1)
    return template, np.ascontiguousarray(entries[:, template.arrays.tables.astype(np.int64)])
