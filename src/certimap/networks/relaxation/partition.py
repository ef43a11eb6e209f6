"""Mini-buckets: an elimination in which a bucket that would be too large is split into several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from certimap.core.control import Control
from certimap.networks.orders import min_fill
from certimap.networks.problem import Problem

Fits = Callable[[tuple[int, ...]], bool]


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

    def fits(scope: tuple[int, ...]) -> bool:
        if i_bound is not None and len(scope) > i_bound + 1:
            return False
        entries = 1
        for v in scope:
            entries *= sizes[v]
            if entries > max_entries:
                return False
        return True

    return fits


def nuisance_first(problem: Problem, log2_limit: float = math.inf, *, control: Control | None = None) -> list[int]:
    """Order variables by least fill, nuisance before query while its cliques have at most 2^log2_limit entries."""
    scopes = [t.scope for t in problem.tables]
    found = min_fill(scopes, problem.sizes, problem.nuisance, log2_limit, control=control)
    assert found is not None  # no order is too dear
    return list(found.order)


def split(problem: Problem, order: Sequence[int], fits: Fits) -> list[Region]:
    """Eliminate variables in an order; a bucket's functions share a region while its scope `fits`.

    Functions are placed largest first, each into the first region that has room; one that is too large alone gets
    a region of its own. Cost: small against the tables.

    Returns the regions, children before parents.
    """
    place = {v: i for i, v in enumerate(order)}
    buckets: list[list[_Function]] = [[] for _ in order]
    for k, table in enumerate(problem.tables):
        if table.scope:
            buckets[min(place[v] for v in table.scope)].append((frozenset(table.scope), True, k))
    regions: list[Region] = []
    for i, v in enumerate(order):
        for group in _mini_buckets(buckets[i], v, fits):
            rest = sorted(group.scope - {v}, key=lambda u: (u not in problem.query, -place[u]))
            regions.append(Region(v, tuple(rest), tuple(group.tables), tuple(group.children)))
            if rest:
                buckets[min(place[u] for u in rest)].append((frozenset(rest), False, len(regions) - 1))
        buckets[i] = []
    return regions


def _mini_buckets(functions: Sequence[_Function], own: int, fits: Fits) -> list[_Group]:
    """Group a bucket's functions."""
    groups: list[_Group] = []
    for scope, is_table, k in sorted(functions, key=lambda f: (-len(f[0]), f[1], f[2])):
        group = next((g for g in groups if scope <= g.scope or fits(tuple(g.scope.union(scope)))), None)
        if group is None:
            group = _Group(set(scope), [], [])
            groups.append(group)
        group.scope.update(scope)
        (group.tables if is_table else group.children).append(k)
    return groups or [_Group({own}, [], [])]


def parents_of(regions: Sequence[Region]) -> list[int]:
    """Return the region that receives each region's message, -1 for roots."""
    parent = [-1] * len(regions)
    for r, region in enumerate(regions):
        for c in region.children:
            parent[c] = r
    return parent
