"""Region trees (bucket trees) as plain arrays: conditional tables along a tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from certimap.core.arrays import Floats, Ints

T = TypeVar("T")


class RegionArrays(NamedTuple):
    """The arrays of a region tree, as the kernels read them; see `RegionTree` for their meaning."""

    own_states: Ints
    shared_query: Ints
    shared_hidden: Ints
    rest_query: Ints
    rest_hidden: Ints
    column: Ints
    table_ptr: Ints
    tables: Floats
    mantissas: Floats
    exponents: Ints
    child_ptr: Ints
    children: Ints
    map_ptr: Ints
    gather: Ints
    scatter: Ints
    excess: Ints
    message_ptr: Ints
    joint_ptr: Ints


@dataclass(frozen=True, eq=False)
class RegionTree:
    """A rooted tree of regions, children first, the root last; the root's separator is empty."""

    # arrays for the kernels. Region r has the joint space (shared, own). The separator consists of `shared`
    # variables, which its children know too, and `rest`. In both, query variables come first (slowest), so a joint
    # position is ((shared_query, shared_hidden), own) and a separator position is ((shared_query, shared_hidden),
    # (rest_query, rest_hidden)). `tables` holds P(own | separator, e) in the order (separator, own). `mantissas`
    # and `exponents` (empty if all are 0) hold the same without loss. `column` is the first column of a queried
    # own variable in masks, or -1. `gather[map_ptr[c] + joint position]` is the separator position of the child in
    # slot c, and `scatter` there the same followed by the configuration, of `excess[c]` many, of the queried
    # variables of the joint space that the separator lacks.
    arrays: RegionArrays
    parent: Ints  # int64, shape (n,): the parent of each region (-1 for the root) and its slot among all children
    slot: Ints
    variable: Ints  # int64, shape (n,): the query variable (position in the query's domain) of each region, or -1
    log_evidence: float  # natural log of the normalising constant that conditioning divided out
    log_error: float = 0.0  # a bound, in nats, on the effect of rounding in the tables on ln p of a point or box
    # cache of values that depend on the shape alone (see `of_shape`); trees of one shape may share it
    known: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __repr__(self) -> str:
        return f"RegionTree({self.n_regions} regions, {self.n_entries} table entries)"

    @property
    def is_delicate(self) -> bool:
        """Whether some positive entry is so small that products of doubles may underflow."""
        return len(self.arrays.exponents) > 0

    @property
    def n_regions(self) -> int:
        return len(self.parent)

    @property
    def n_entries(self) -> int:
        """The number of table entries, which is the work of one pass for one row."""
        return len(self.arrays.tables)

    @property
    def is_visible(self) -> bool:
        """Whether every region of more than one state has a query variable: bounds are then attained."""
        return bool(np.all((self.variable >= 0) | (self.arrays.own_states == 1)))

    def of_shape(self, name: str, make: Callable[[], T]) -> T:
        """Return the cached result of `make` under `name`; the result must not depend on the tables."""
        if name not in self.known:
            self.known[name] = make()
        return self.known[name]

    def joint_size(self, region: int) -> int:
        """Return the number of joint states that a region's children see."""
        return int(self.arrays.joint_ptr[region + 1] - self.arrays.joint_ptr[region])

    def children_of(self, region: int) -> Ints:
        """Return a region's children."""
        a = self.arrays
        return a.children[a.child_ptr[region] : a.child_ptr[region + 1]]

    def entropy(self) -> float:
        """Return the entropy of all regions' variables in nats, by a pass that adds up H(own | separator)."""
        a, below = self.arrays, list[Floats]()
        for r, own in enumerate(a.own_states.tolist()):
            table = a.tables[a.table_ptr[r] : a.table_ptr[r + 1]].reshape(-1, own)
            held: Floats = np.zeros(self.joint_size(r))
            for slot in range(a.child_ptr[r], a.child_ptr[r + 1]):
                start = a.map_ptr[slot]
                held = held + below[int(a.children[slot])][a.gather[start : start + len(held)]]
            rest = a.rest_query[r] * a.rest_hidden[r]
            inner = np.repeat(held.reshape(-1, own), rest, axis=0) - np.log(np.where(table > 0.0, table, 1.0))
            below.append(np.sum(table * inner, axis=1))
        return float(below[-1][0])
