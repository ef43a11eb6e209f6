"""Region tree shapes as (contexts, hidden states), and bounds that eliminations tighten."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.core.region_tree import RegionTree
from certimap.solvers.elimination.kernels import functionals
from certimap.solvers.elimination.sets import LARGEST_EXPONENT, ExponentFrame, Floats, Ints, Link
from certimap.trees.wide import Wide

Shape = tuple[int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class Geometry:
    """The shapes of a region tree as (contexts, hidden states), computed once per posterior.

    A context is a configuration of query variables. A separator position ((shared_query, shared_hidden),
    (rest_query, rest_hidden)) is context (shared_query, rest_query) and hidden state (shared_hidden,
    rest_hidden). A joint position adds the own variable to the context if it is queried, else to the hidden state.
    """

    tree: RegionTree
    shapes: list[Shape]
    links: list[Link | None]
    order_of_children: list[list[int]]
    is_query: NDArray[np.bool_]
    longest_sum: int  # the most operations on a path from the root, in computing a score

    @classmethod
    def of(cls, tree: RegionTree) -> Geometry:
        """Return the geometry of a tree, which trees of the same shape share."""
        return cls(tree, *tree.of_shape("geometry", lambda: _worked_out(tree)))

    def counts(self, r: int) -> tuple[int, int]:
        """Return the contexts and hidden states of a region's separator."""
        sq, sh, rq, rh, _ = self.shapes[r]
        return sq * rq, sh * rh

    def joint_counts(self, r: int) -> tuple[int, int]:
        """Return the contexts and hidden states of a region's joint space."""
        sq, sh, _, _, k = self.shapes[r]
        return (sq * k, sh) if self.is_query[r] else (sq, sh * k)

    def to_contexts(self, r: int, message: Wide) -> Wide:
        """Reshape a separator vector to (contexts, hidden states)."""
        sq, sh, rq, rh, _ = self.shapes[r]
        if sh == 1 or rq == 1:
            return message.view(lambda values: values.reshape(sq * rq, sh * rh))
        return message.view(
            lambda values: np.ascontiguousarray(values.reshape(sq, sh, rq, rh).transpose(0, 2, 1, 3)).reshape(
                sq * rq, sh * rh
            )
        )

    def project(self, r: int, outside: Wide) -> Wide:
        """Carry a functional on a region's separator down to its joint space, through its table."""
        table, exponents = self._wide_table(r)
        shape = self.joint_counts(r)
        out, out_exponents = np.empty(shape), np.empty(shape, np.int64)
        functionals.project(
            outside.mantissa,
            outside.exponent,
            table,
            exponents,
            self.shapes[r],
            bool(self.is_query[r]),
            out,
            out_exponents,
        )
        return Wide(out, out_exponents)

    def _wide_table(self, r: int) -> tuple[Floats, Ints]:
        a = self.tree.arrays
        start, stop = a.table_ptr[r], a.table_ptr[r + 1]
        return a.mantissas[start:stop], a.exponents[start:stop] if self.tree.is_delicate else a.exponents

    def table_from(self, r: int, inside: ExponentFrame, bound: Wide) -> tuple[Floats, ExponentFrame]:
        """Return a region's table rescaled for vectors in the frame `inside`, and the frame of the results.

        `bound` is an upper bound on each result that matters.
        """
        table, exponents = self._wide_table(r)
        outside = ExponentFrame.of(bound)
        if inside.is_flat and outside.is_flat and not self.tree.is_delicate:
            return table, ExponentFrame(inside.exponent)
        out = np.empty(len(table))
        functionals.framed_table(
            table,
            exponents,
            self.shapes[r],
            bool(self.is_query[r]),
            inside.offsets,
            outside.offsets,
            inside.exponent - outside.exponent,
            LARGEST_EXPONENT,
            out,
        )
        return out, outside


def _worked_out(
    tree: RegionTree,
) -> tuple[list[Shape], list[Link | None], list[list[int]], NDArray[np.bool_], int]:
    """Return all fields of a tree's geometry except the tree."""
    a = tree.arrays
    shapes: list[Shape] = [
        (sq, sh, rq, rh, k)
        for sq, sh, rq, rh, k in zip(
            a.shared_query.tolist(),
            a.shared_hidden.tolist(),
            a.rest_query.tolist(),
            a.rest_hidden.tolist(),
            a.own_states.tolist(),
            strict=True,
        )
    ]
    is_query = tree.variable >= 0
    size = np.ones(tree.n_regions, np.int64)
    links: list[Link | None] = []
    for r in range(tree.n_regions):
        parent = int(tree.parent[r])
        if parent < 0:
            links.append(None)
            continue
        size[parent] += size[r]
        start = a.map_ptr[tree.slot[r]]
        gather = a.gather[start : start + tree.joint_size(parent)]
        links.append(_link(shapes[r], shapes[parent], bool(is_query[parent]), gather))
    order = [sorted((int(c) for c in tree.children_of(r)), key=lambda c: size[c]) for r in range(tree.n_regions)]
    return shapes, links, order, is_query, _longest_sum(tree, shapes, is_query)


def _longest_sum(tree: RegionTree, shapes: list[Shape], is_query: NDArray[np.bool_]) -> int:
    longest: list[int] = [0] * tree.n_regions
    parents: list[int] = tree.parent.tolist()
    for r in range(tree.n_regions - 1, -1, -1):
        above = longest[parents[r]] if parents[r] >= 0 else 0
        _, sh, _, rh, k = shapes[r]
        joint_hidden = sh if is_query[r] else sh * k
        longest[r] = above + sh * rh + 2 * joint_hidden + 2 * len(tree.children_of(r))
    return max(longest)


def _link(
    shape: tuple[int, ...], parent_shape: tuple[int, ...], parent_is_query: bool, gather: NDArray[np.int64]
) -> Link:
    sq, sh, rq, rh, _ = shape
    psq, psh, _, _, k = parent_shape
    shared, rest = gather // (rq * rh), gather % (rq * rh)
    context = (shared // sh) * rq + rest // rh
    hidden = (shared % sh) * rh + rest % rh
    if parent_is_query:
        by_joint = (psq, psh, k)
        return Link(
            np.ascontiguousarray(context.reshape(by_joint)[:, 0, :].ravel()),
            np.ascontiguousarray(hidden.reshape(by_joint)[0, :, 0]),
            sq * rq,
            sh * rh,
        )
    by_joint = (psq, psh * k)
    return Link(
        np.ascontiguousarray(context.reshape(by_joint)[:, 0]),
        np.ascontiguousarray(hidden.reshape(by_joint)[0]),
        sq * rq,
        sh * rh,
    )


@dataclass(eq=False)
class RegionMessages:
    """Upper bounds on every region's vectors, shape (contexts, hidden states) each.

    They hold for all assignments whose probability exceeds the threshold.
    """

    values: list[Wide]

    def tightened(self, other: RegionMessages) -> RegionMessages:
        """Return the smaller of two bounds, entry by entry."""
        return RegionMessages(
            [_smaller(mine, theirs) for mine, theirs in zip(self.values, other.values, strict=True)]
        )


def _smaller(left: Wide, right: Wide) -> Wide:
    out, exponents = np.empty(left.shape), np.empty(left.shape, np.int64)
    functionals.smaller(
        np.ascontiguousarray(left.mantissa).reshape(-1),
        np.ascontiguousarray(left.exponent).reshape(-1),
        np.ascontiguousarray(right.mantissa).reshape(-1),
        np.ascontiguousarray(right.exponent).reshape(-1),
        out.reshape(-1),
        exponents.reshape(-1),
    )
    return Wide(out, exponents)
