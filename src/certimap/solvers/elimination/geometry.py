"""Sets of vectors along a tree of regions: their frames, bounds and products, and the geometry of regions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Flags, Floats, Ints, Ints16
from certimap.core.control import Control
from certimap.core.region_tree import RegionTree
from certimap.core.rounding import SAFE
from certimap.kernels.wide import ZERO, WideArrays, extent
from certimap.solvers.elimination.kernels import vector_sets as kernels
from certimap.solvers.elimination.kernels.dominance import DROPPED, skyband, unmixed
from certimap.solvers.elimination.kernels.vector_sets import Shape
from certimap.trees.wide import Wide

NO_OFFSETS: Ints = np.empty((0, 0), np.int64)
LARGEST_EXPONENT = 400  # exponents are capped here; entries that matter are at most 2^129
LARGEST = 2.0**LARGEST_EXPONENT
ROUNDS = 200  # of play before the search for a dominating mixture is given up
MIXING_PIECE, MOST_MIXING = 100_000_000, 20_000_000_000  # multiplications in one call, and for one set


@dataclass(frozen=True, eq=False)
class ExponentFrame:
    """The unit 2^(exponent + offset) of entries, by context and hidden state: the largest possible is about 1."""

    exponent: int = 0  # the exponent of the whole set
    # int64, shape (contexts, hidden states); empty if all are 0, which is usual
    offsets: Ints = field(default_factory=lambda: NO_OFFSETS)

    @classmethod
    def of(cls, bound: Wide) -> ExponentFrame:
        """Choose a frame for vectors that are at most `bound`, shape (contexts, hidden states)."""
        offsets = np.empty(bound.shape, np.int64)
        base, is_wide = kernels.frame(bound.pair, offsets)
        return cls(base, offsets) if is_wide else cls(base)

    @property
    def is_flat(self) -> bool:
        """Whether one exponent serves all entries."""
        return self.offsets.size == 0

    def scaled(self, functional: Wide, bound: Wide) -> tuple[Floats, int]:
        """Return a functional as doubles for vectors up to `bound`, and the exponent of its unit (`ZERO` of 0)."""
        out = np.empty(functional.shape)
        top = int(kernels.scaled(functional.pair, self.offsets, bound.mantissa, out))
        return out, top if top == ZERO else top + self.exponent

    def times(self, other: ExponentFrame, link: Link) -> ExponentFrame:
        """Return the frame of products with a child's vectors."""
        exponent = self.exponent + other.exponent
        if other.is_flat:
            return ExponentFrame(exponent, self.offsets)
        spread = other.offsets[link.context[:, None], link.hidden[None, :]]
        return ExponentFrame(exponent, spread if self.is_flat else self.offsets + spread)

    def factors_to(self, other: ExponentFrame) -> Floats:
        """Return the factors that convert entries to another frame, shape (contexts, hidden states)."""
        difference = np.zeros((1, 1), np.int64) + (self.exponent - other.exponent)
        if not self.is_flat:
            difference = difference + self.offsets
        if not other.is_flat:
            difference = difference - other.offsets
        return np.ldexp(1.0, np.clip(difference, -2000, LARGEST_EXPONENT))


def compact(index: NDArray[np.integer], n: int) -> NDArray[np.integer]:
    """Store an index into n items in the fewest bytes."""
    return index.astype(np.min_scalar_type(max(n - 1, 0)))


@dataclass(eq=False)
class VectorSet:
    """Partial assignments below a region, as nonnegative vectors over hidden states, grouped by context."""

    values: Floats  # shape (rows, hidden states), in units of `frame`
    ptr: Ints  # shape (contexts + 1,): rows `ptr[c]:ptr[c + 1]` belong to context c
    relaxed: Flags  # shape (rows,): whether the row is a bound, made of merged rows, instead of a value
    frame: ExponentFrame
    pointers: list[tuple[int, NDArray[np.integer]]]  # by child multiplied so far: its row for each row
    state: Ints16 | None = None  # shape (rows,): of the region's own query variable; None before it is decided
    # whether nothing has underflowed: the frame is flat, and each vector was made of products of two numbers that
    # are 0 or at least `SAFE`
    is_whole: bool = True

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n_bytes(self) -> int:
        """Memory held, in bytes."""
        held = self.values.nbytes + self.relaxed.nbytes + sum(p.nbytes for _, p in self.pointers)
        return held + (0 if self.state is None else self.state.nbytes)

    @property
    def crowding(self) -> float:
        """Average number of rows per nonempty context."""
        return len(self) / max(1, int(np.count_nonzero(np.diff(self.ptr))))

    def release(self) -> None:
        """Free the vectors, which only the parent's product needs; keep the pointers for decoding."""
        self.values = np.empty((len(self.values), 0))
        self.relaxed = np.empty(0, np.bool_)

    def keep(self, alive: Flags) -> VectorSet:
        """Return the set of live rows."""
        if alive.all():
            return self
        kept = np.concatenate([[0], np.cumsum(alive)])
        return self._take(np.flatnonzero(alive), self.values[alive], kept[self.ptr])

    def _take(self, rows: Ints, values: Floats, ptr: Ints) -> VectorSet:
        pointers = [(c, p[rows]) for c, p in self.pointers]
        state = None if self.state is None else self.state[rows]
        return VectorSet(values, ptr, self.relaxed[rows], self.frame, pointers, state, self.is_whole)

    def scores(self, functional: Floats, threshold: float = -1.0) -> tuple[Floats, Flags]:
        """Return each row's value under its context's functional, and whether it exceeds the threshold."""
        alive, scores = np.empty(len(self), np.bool_), np.empty(len(self))
        kernels.filter_rows(self.values, self.ptr, functional, threshold, alive, scores)
        return scores, alive

    def above(self, functional: Floats, threshold: float) -> tuple[VectorSet, Floats]:
        """Drop rows whose value under their context's functional is at most `threshold`; return scores too."""
        scores, alive = self.scores(functional, threshold)
        return self.keep(alive), scores[alive]

    def undominated(self, k: int) -> tuple[VectorSet, Flags]:
        """Drop rows that k others of their context dominate; also return the mask of kept rows."""
        by = np.full(len(self), -1)
        if len(self) > k:
            skyband(self.values, self.ptr, k, by)
        return self.keep(by < 0), by < 0

    def unmixed(self, control: Control) -> tuple[VectorSet, Flags, int]:
        """Drop rows that a mixture of others dominates; also return the mask of kept rows and the work."""
        state, order, at = np.zeros(len(self), np.int8), np.empty(len(self), np.int64), np.zeros(2, np.int64)
        work, picked = 0, np.empty((0, ROUNDS), np.int32)
        while at[0] < len(self.ptr) - 1 and work < MOST_MIXING:
            control.check("comparing vectors with mixtures of others")
            work += unmixed(self.values, self.ptr, ROUNDS, MIXING_PIECE, state, order, at, picked)
        alive = state != DROPPED
        return self.keep(alive), alive, work

    def merged(self, scores: Floats, limit: int) -> tuple[VectorSet, Ints]:
        """Keep the best rows, merge similar others, to about `limit`; also return the old row of each new one."""
        n_contexts = int(np.count_nonzero(np.diff(self.ptr)))
        n_exact = min(len(self), max(limit // 2, 0))
        cutoff = -np.inf if n_exact >= len(self) else float(np.partition(scores, -n_exact - 1)[-n_exact - 1])
        n_cells = max(limit - n_exact - n_contexts, 1)
        cell = max(2, -(-(len(self) - n_exact) // n_cells))
        values, ptr, source = np.empty_like(self.values), np.empty_like(self.ptr), np.empty(len(self), np.int64)
        n = kernels.merge_rows(self.values, self.ptr, scores, cutoff, cell, values, ptr, source)
        source = source[:n]
        several = source < 0
        rows = np.where(several, -1 - source, source)
        out = self._take(rows, values[:n].copy(), ptr)
        out.relaxed |= several
        return out, rows

    def maxima(self) -> Wide:
        """Return the pointwise maximum of each context, shape (contexts, hidden states)."""
        out = np.empty((len(self.ptr) - 1, self.values.shape[1]))
        kernels.context_maxima(self.values, self.ptr, out)
        frame = self.frame
        return Wide.of_values(out, frame.exponent if frame.is_flat else frame.exponent + frame.offsets)

    def rescaled(self) -> VectorSet:
        """Scale the largest value to about 1, by a power of two; note whether the smallest is safe to multiply."""
        largest, smallest = extent(self.values.reshape(-1))
        places = math.frexp(largest)[1] if largest > 0.0 else 0
        places = places if abs(places) > 60 else 0
        self.is_whole = self.is_whole and math.ldexp(smallest, -places) >= SAFE
        if places:
            self.values = np.ldexp(self.values, -places)
            self.frame = replace(self.frame, exponent=self.frame.exponent + places)
        return self


def ones(n_contexts: int, n_hidden: int, alive: Flags) -> VectorSet:
    """Return the set that holds a vector of ones in every live context."""
    ptr = np.concatenate([[0], np.cumsum(alive)]).astype(np.int64)
    n = int(ptr[-1])
    return VectorSet(np.ones((n, n_hidden)), ptr, np.zeros(n, np.bool_), ExponentFrame(), [])


@dataclass(frozen=True, eq=False)
class Link:
    """The map from a parent's joint space to a child's contexts and hidden states."""

    context: Ints  # shape (joint contexts,): the child's context in each joint context
    hidden: Ints  # shape (joint hidden states,): the child's hidden state in each
    counts: tuple[int, int]  # the child's numbers of contexts and hidden states

    def fold(self, matrix: Wide, child: Wide) -> Wide:
        """Multiply a matrix over the joint space by one over the child's (contexts, hidden states)."""
        out = Wide.empty(matrix.shape)
        kernels.fold(matrix.pair, child.pair, self.context, self.hidden, out.pair)
        return out

    def reduce(self, functional: Wide) -> Wide:
        """Reduce a functional on the joint space to the child: sum hidden states, maximise over contexts."""
        out = Wide.empty(self.counts)
        kernels.reduce(functional.pair, self.context, self.hidden, out.pair)
        return out


class ProductOverflowError(Exception):
    """More pairs pass the threshold than may be built at once."""


def product(
    left: VectorSet, right: VectorSet, child: int, link: Link,
    functional: Floats, threshold: float, max_pairs: int, bound: Wide,
) -> tuple[VectorSet, Floats, int]:  # fmt: skip
    """Multiply two sets, keeping the pairs whose value under the functional exceeds the threshold.

    The functional applies to products in the frame `left.frame.times(right.frame, link)`. `bound`, on the joint
    space, is an upper bound on the products that matter. Returns the product, its scores, and the number of dot
    products. Raises ProductOverflowError when more than `max_pairs` pairs pass the threshold.
    """
    room = min(max_pairs, max(1024, 2 * (len(left) + len(right))))
    total_work, sets = 0, (kernels.VectorRows(left.values, left.ptr), kernels.VectorRows(right.values, right.ptr))
    while True:
        rows = np.empty(room, np.int64), np.empty(room, np.int64)
        found = kernels.Pairs(*rows, np.empty(room), np.empty(len(left.ptr), np.int64))
        n, work = kernels.select_pairs(*sets, link.context, link.hidden, functional, threshold, found)
        total_work += work
        if n >= 0:
            break
        if room >= max_pairs:
            raise ProductOverflowError
        room = min(max_pairs, 8 * room)
    left_rows, right_rows, scores, ptr = found.left[:n], found.right[:n], found.scores[:n], found.ptr
    values = np.empty((n, left.values.shape[1]))
    kernels.multiply_pairs(left.values, right.values, left_rows, right_rows, link.hidden, values)
    pointers = [(c, p[left_rows]) for c, p in left.pointers]
    pointers.append((child, compact(right_rows, len(right))))
    relaxed = left.relaxed[left_rows] | right.relaxed[right_rows]
    given = left.frame.times(right.frame, link)
    frame = ExponentFrame.of(bound)
    if frame.is_flat and given.is_flat:
        frame = given
    else:
        factors = np.broadcast_to(given.factors_to(frame), bound.shape)
        values *= factors[np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))]
        np.minimum(values, LARGEST, out=values)
    is_whole = left.is_whole and right.is_whole and given.is_flat and frame.is_flat
    return VectorSet(values, ptr, relaxed, frame, pointers, None, is_whole), scores, total_work


@dataclass(frozen=True, eq=False)
class Geometry:
    """The shapes of a region tree as (contexts, hidden states), computed once per posterior.

    A context is a configuration of query variables. A separator position has context (shared_query, rest_query)
    and hidden state (shared_hidden, rest_hidden). A joint position adds the own variable to the context if it is
    queried, else to the hidden state.
    """

    tree: RegionTree
    shapes: list[Shape]
    links: dict[int, Link]  # by region; the root has none
    order_of_children: list[list[int]]
    is_query: Flags
    longest_sum: int  # the most operations on a path from the root, in computing a score

    @classmethod
    def of(cls, tree: RegionTree) -> Geometry:
        """Return the geometry of a tree, which trees of the same shape share."""
        return cls(tree, *tree.of_shape("geometry", lambda: _worked_out(tree)))

    def joint_counts(self, r: int) -> tuple[int, int]:
        """Return the contexts and hidden states of a region's joint space."""
        sq, sh, _, _, k = self.shapes[r]
        return (sq * k, sh) if self.is_query[r] else (sq, sh * k)

    def to_contexts(self, r: int, message: Wide) -> Wide:
        """Reshape a separator vector to (contexts, hidden states)."""
        sq, sh, rq, rh, _ = self.shapes[r]
        axes, counts = (sq, sh, rq, rh), (sq * rq, sh * rh)
        if sh == 1 or rq == 1:
            return message.view(lambda x: x.reshape(counts))
        return message.view(lambda x: np.ascontiguousarray(x.reshape(axes).transpose(0, 2, 1, 3)).reshape(counts))

    def project(self, r: int, outside: Wide) -> Wide:
        """Carry a functional on a region's separator down to its joint space, through its table."""
        out = Wide.empty(self.joint_counts(r))
        kernels.project(outside.pair, self._wide_table(r), self.shapes[r], bool(self.is_query[r]), out.pair)
        return out

    def _wide_table(self, r: int) -> WideArrays:
        a = self.tree.arrays
        own = slice(a.table_ptr[r], a.table_ptr[r + 1])
        return WideArrays(a.mantissas[own], a.exponents[own] if self.tree.is_delicate else a.exponents)

    def table_from(self, r: int, inside: ExponentFrame, bound: Wide) -> tuple[Floats, ExponentFrame]:
        """Return a region's table for vectors in the frame `inside`, and the frame of results up to `bound`."""
        table, outside = self._wide_table(r), ExponentFrame.of(bound)
        if inside.is_flat and outside.is_flat and not self.tree.is_delicate:
            return table.mantissa, ExponentFrame(inside.exponent)
        out, shift = np.empty(len(table.mantissa)), inside.exponent - outside.exponent
        offsets, is_query = (inside.offsets, outside.offsets), bool(self.is_query[r])
        kernels.framed_table(table, self.shapes[r], is_query, offsets, shift, LARGEST_EXPONENT, out)
        return out, outside


def _worked_out(tree: RegionTree) -> tuple[list[Shape], dict[int, Link], list[list[int]], Flags, int]:
    """Return all fields of a tree's geometry except the tree."""
    a = tree.arrays
    dims = (a.shared_query, a.shared_hidden, a.rest_query, a.rest_hidden, a.own_states)
    shapes: list[Shape] = list(zip(*(d.tolist() for d in dims), strict=True))
    is_query = tree.variable >= 0
    size = np.ones(tree.n_regions, np.int64)
    links: dict[int, Link] = {}
    for r in np.flatnonzero(tree.parent >= 0).tolist():
        parent, start = int(tree.parent[r]), a.map_ptr[tree.slot[r]]
        size[parent] += size[r]
        gather = a.gather[start : start + tree.joint_size(parent)]
        links[r] = _link(shapes[r], shapes[parent], bool(is_query[parent]), gather)
    order = [sorted((int(c) for c in tree.children_of(r)), key=lambda c: size[c]) for r in range(tree.n_regions)]
    return shapes, links, order, is_query, _longest_sum(tree, shapes, is_query)


def _longest_sum(tree: RegionTree, shapes: list[Shape], is_query: Flags) -> int:
    longest: list[int] = [0] * tree.n_regions
    parents: list[int] = tree.parent.tolist()
    for r in range(tree.n_regions - 1, -1, -1):
        above = longest[parents[r]] if parents[r] >= 0 else 0
        _, sh, _, rh, k = shapes[r]
        joint_hidden = sh if is_query[r] else sh * k
        longest[r] = above + sh * rh + 2 * joint_hidden + 2 * len(tree.children_of(r))
    return max(longest)


def _link(shape: tuple[int, ...], parent_shape: tuple[int, ...], parent_is_query: bool, gather: Ints) -> Link:
    sq, sh, rq, rh, _ = shape
    psq, psh, _, _, k = parent_shape
    shared, rest = gather // (rq * rh), gather % (rq * rh)
    context = (shared // sh) * rq + rest // rh
    hidden = (shared % sh) * rh + rest % rh
    # axes: query states of the parent's separator, its hidden states, its own query states, its own hidden states
    by_joint = (psq, psh, k, 1) if parent_is_query else (psq, psh, 1, k)
    contexts = np.ascontiguousarray(context.reshape(by_joint)[:, 0, :, 0].ravel())
    return Link(contexts, np.ascontiguousarray(hidden.reshape(by_joint)[0, :, 0, :].ravel()), (sq * rq, sh * rh))


def smaller(a: Wide, b: Wide) -> Wide:
    """Return the smaller of two bounds, entry by entry."""
    is_a = (a.exponent < b.exponent) | ((a.exponent == b.exponent) & (a.mantissa <= b.mantissa))
    return Wide(np.where(is_a, a.mantissa, b.mantissa), np.where(is_a, a.exponent, b.exponent))
