"""An elimination in flat arrays, so that one compiled pass handles thousands of small buckets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.core.axes import spread
from certimap.networks.elimination_plan import MOST_LOG2, SMALL_PRODUCT, EliminationPlan, first_places
from certimap.networks.kernels.buckets import BucketArrays
from certimap.networks.problem import Problem, Table, Values

Ints = NDArray[np.int64]
ENTRIES_PER_RUN = 2**22  # entries of products between two checks of the clock


class Run(NamedTuple):
    """Consecutive buckets: small ones, or a single large one."""

    # first, last: bucket numbers `first` to `last` - 1
    first: int
    last: int
    is_small: bool  # whether a compiled pass handles them all
    n_entries: float  # total entries of their products


class Buckets:
    """The buckets of an elimination, the tables that each bucket multiplies, and room for its messages.

    Parameters
    ----------
    problem
        The tables.
    plan
        The elimination order.

    Attributes
    ----------
    arrays
        Arrays for the kernels. Tables and messages of up to `SMALL_PRODUCT` entries share a buffer.
    n_buffered
        Entries of that buffer.
    n_tables
        The number of tables. Tables are the first pieces; the others are the buckets' messages.
    is_small
        Which buckets a compiled pass may handle.
    largest
        The entries of the largest small product.
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
            *_grouped(inputs, len(n_states)),
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
    """The entries of all tables and messages of one pass: an array per large message, one for all others.

    Parameters
    ----------
    buckets
        The buckets of the pass.
    tables
        The concatenated entries of all tables.

    Attributes
    ----------
    buffer
        All entries except large messages.
    """

    def __init__(self, buckets: Buckets, tables: Values) -> None:
        self._buckets = buckets
        self.buffer: Values = np.empty(buckets.n_buffered, tables.dtype)
        self.buffer[: len(tables)] = tables
        self._large: dict[int, Values] = {}

    def put(self, i: int, message: Values) -> None:
        """Store the message of a bucket."""
        start = int(self._buckets.arrays.start[self._buckets.n_tables + i])
        if start < 0:
            self._large[i] = message
        else:
            self.buffer[start : start + message.size] = message.reshape(-1)

    def get(self, piece: int) -> Table:
        """Return a table, or the message of a bucket."""
        a, i = self._buckets.arrays, piece - self._buckets.n_tables
        scope = self._buckets.tables[piece].scope if i < 0 else self._buckets.plan.separators[i]
        if i in self._large:
            return Table(scope, self._large[i])
        shape = a.sizes[a.members[a.first[piece] : a.last[piece]]].tolist()
        start = int(a.start[piece])
        return Table(scope, self.buffer[start : start + math.prod(shape)].reshape(shape))

    def inputs(self, i: int) -> list[Table]:
        """Return the tables that a bucket multiplies, axes in elimination order."""
        found: list[Table] = []
        for scope, values in map(self.get, self._buckets.inputs(i)):
            ordered = tuple(v for v in self._buckets.scope(i) if v in scope)
            found.append(Table(ordered, np.ascontiguousarray(spread(values, scope, ordered))))
        return found

    def drop_inputs(self, i: int) -> None:
        """Free the large messages that a bucket has multiplied."""
        for piece in self._buckets.inputs(i):
            self._large.pop(piece - self._buckets.n_tables, None)


def _grouped(group: Ints, n_groups: int) -> tuple[Ints, Ints]:
    """Return the start of each group's members, and all members in group order; -1 means no group."""
    pointers = np.zeros(n_groups + 1, np.int64)
    np.cumsum(np.bincount(group[group >= 0], minlength=n_groups), out=pointers[1:])
    members = np.argsort(group, kind="stable")
    return pointers, members[len(members) - int(pointers[-1]) :]
