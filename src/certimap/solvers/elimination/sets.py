"""Sets of vectors over a separator's hidden states, with pointers that decode each to an assignment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.solvers.elimination.kernels import vector_sets as kernels
from certimap.solvers.elimination.kernels.dominance import skyband

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def compact(index: NDArray[np.integer], n: int) -> NDArray[np.integer]:
    """Store an index into n items in the fewest bytes."""
    return index.astype(np.min_scalar_type(max(n - 1, 0)))


@dataclass(eq=False)
class VectorSet:
    """Partial assignments below a region, as nonnegative vectors over hidden states, grouped by context.

    Attributes
    ----------
    values
        float64, shape (rows, hidden states), to be multiplied by exp(`log_scale`).
    ptr
        int64, shape (contexts + 1,): rows `ptr[c]:ptr[c + 1]` belong to context c.
    relaxed
        bool, shape (rows,): the row is the maximum of several, or made of such: a bound, not a value.
    pointers
        For each child of the region multiplied so far: (child, row of the child's set for each row here).
    state
        int16, shape (rows,): the state of the region's own query variable, or None before it is decided.
    """

    values: Floats
    ptr: Ints
    relaxed: NDArray[np.bool_]
    log_scale: float
    pointers: list[tuple[int, NDArray[np.integer]]]
    state: NDArray[np.int16] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n_bytes(self) -> int:
        """Memory held, in bytes."""
        held = self.values.nbytes + self.relaxed.nbytes + sum(p.nbytes for _, p in self.pointers)
        return held + (0 if self.state is None else self.state.nbytes)

    @property
    def crowding(self) -> float:
        """Rows for each context that has any."""
        return len(self) / max(1, int(np.count_nonzero(np.diff(self.ptr))))

    def release(self) -> None:
        """Forget the vectors, which only the parent's product needs; what decodes rows stays."""
        self.values = np.empty((len(self.values), 0))
        self.relaxed = np.empty(0, np.bool_)

    def keep(self, alive: NDArray[np.bool_]) -> VectorSet:
        """Return the rows that are alive."""
        if alive.all():
            return self
        kept = np.concatenate([[0], np.cumsum(alive)])
        return self._take(np.flatnonzero(alive), self.values[alive], kept[self.ptr])

    def _take(self, rows: Ints, values: Floats, ptr: Ints) -> VectorSet:
        return VectorSet(
            values,
            ptr,
            self.relaxed[rows],
            self.log_scale,
            [(c, p[rows]) for c, p in self.pointers],
            None if self.state is None else self.state[rows],
        )

    def above(self, functional: Floats, threshold: float) -> tuple[VectorSet, Floats]:
        """Drop rows whose value under their context's functional is at most `threshold`; return scores too."""
        alive = np.empty(len(self), np.bool_)
        scores = np.empty(len(self))
        kernels.filter_rows(self.values, self.ptr, functional, threshold, alive, scores)
        return self.keep(alive), scores[alive]

    def undominated(self, k: int, factor: float) -> tuple[VectorSet, NDArray[np.bool_]]:
        """Drop rows that k others of their context dominate up to `factor`; return the mask of the kept, too."""
        alive = np.ones(len(self), np.bool_)
        if len(self) > k:
            skyband(self.values, self.ptr, k, factor, alive)
        return self.keep(alive), alive

    def merged(self, scores: Floats, limit: int) -> tuple[VectorSet, Ints]:
        """Shrink to about `limit` rows: the best by score stay, the others merge into pointwise maxima.

        Every row of the old set is at most some row of the new one. Returns the row of the old set that
        each new row points to, too.
        """
        n_contexts = int(np.count_nonzero(np.diff(self.ptr)))
        n_exact = min(len(self), max(limit // 2, 0))
        cutoff = -np.inf if n_exact >= len(self) else float(np.partition(scores, -n_exact - 1)[-n_exact - 1])
        n_cells = max(limit - n_exact - n_contexts, 1)
        cell = max(2, -(-(len(self) - n_exact) // n_cells))
        values = np.empty_like(self.values)
        ptr = np.empty_like(self.ptr)
        source = np.empty(len(self), np.int64)
        n = kernels.merge_rows(self.values, self.ptr, scores, cutoff, cell, values, ptr, source)
        source = source[:n]
        several = source < 0
        rows = np.where(several, -1 - source, source)
        out = self._take(rows, values[:n].copy(), ptr)
        out.relaxed |= several
        return out, rows

    def maxima(self) -> Floats:
        """Return the pointwise maximum of each context, shape (contexts, hidden states)."""
        out = np.empty((len(self.ptr) - 1, self.values.shape[1]))
        kernels.context_maxima(self.values, self.ptr, out)
        return out

    def rescaled(self) -> VectorSet:
        """Scale the largest value to 1."""
        top = float(self.values.max(initial=0.0))
        if top > 0.0 and top != 1.0:
            self.values /= top
            self.log_scale += float(np.log(top))
        return self


def ones(n_contexts: int, n_hidden: int, alive: NDArray[np.bool_]) -> VectorSet:
    """Return the set that holds the vector of ones in every context that is alive."""
    ptr = np.concatenate([[0], np.cumsum(alive)]).astype(np.int64)
    n = int(ptr[-1])
    return VectorSet(np.ones((n, n_hidden)), ptr, np.zeros(n, np.bool_), 0.0, [])


@dataclass(frozen=True, eq=False)
class Link:
    """How a child's contexts and hidden states lie in its parent's joint space.

    Attributes
    ----------
    context
        int64, shape (joint contexts,): the child's context in each joint context.
    hidden
        int64, shape (joint hidden states,): the child's hidden state in each.
    n_contexts, n_hidden
        The child's counts.
    """

    context: Ints
    hidden: Ints
    n_contexts: int
    n_hidden: int

    def extend(self, matrix: Floats) -> Floats:
        """Turn a matrix over (contexts, hidden states) of the child into one over the joint space."""
        return matrix[self.context[:, None], self.hidden[None, :]]

    def reduce(self, functional: Floats) -> Floats:
        """Reduce a functional on the joint space to the child: sum hidden states, maximise over contexts."""
        if len(self.hidden) == self.n_hidden:
            summed = np.empty((functional.shape[0], self.n_hidden))
            summed[:, self.hidden] = functional
        else:
            summed = np.zeros((functional.shape[0], self.n_hidden))
            np.add.at(summed.T, self.hidden, functional.T)
        if len(self.context) == self.n_contexts == 1:
            return summed
        out = np.zeros((self.n_contexts, self.n_hidden))
        np.maximum.at(out, self.context, summed)
        return out


class ProductOverflowError(Exception):
    """More pairs survive than may be built at once."""


def product(
    left: VectorSet,
    right: VectorSet,
    child: int,
    link: Link,
    functional: Floats,
    threshold: float,
    max_pairs: int,
) -> tuple[VectorSet, Floats, int]:
    """Multiply two sets, keeping the pairs whose value under the functional exceeds the threshold.

    Returns
    -------
    The product, its scores, and the number of dot products done.

    Raises
    ------
    ProductOverflowError
        When more than `max_pairs` pairs survive.
    """
    room = min(max_pairs, max(1024, 2 * (len(left) + len(right))))
    total_work = 0
    while True:
        left_rows, right_rows = np.empty(room, np.int64), np.empty(room, np.int64)
        scores = np.empty(room)
        ptr = np.empty(len(left.ptr), np.int64)
        n, work = kernels.select_pairs(
            left.values,
            left.ptr,
            right.values,
            right.ptr,
            link.context,
            link.hidden,
            functional,
            threshold,
            left_rows,
            right_rows,
            scores,
            ptr,
        )
        total_work += work
        if n >= 0:
            break
        if room >= max_pairs:
            raise ProductOverflowError
        room = min(max_pairs, 8 * room)
    left_rows, right_rows = left_rows[:n], right_rows[:n]
    values = np.empty((n, left.values.shape[1]))
    kernels.multiply_pairs(left.values, right.values, left_rows, right_rows, link.hidden, values)
    pointers = [(c, p[left_rows]) for c, p in left.pointers]
    pointers.append((child, compact(right_rows, len(right))))
    relaxed = left.relaxed[left_rows] | right.relaxed[right_rows]
    out = VectorSet(values, ptr, relaxed, left.log_scale + right.log_scale, pointers)
    return out, scores[:n], total_work
