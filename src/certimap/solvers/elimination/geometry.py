"""Shapes of a region tree as contexts and hidden states, and the bounds that eliminations tighten."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.solvers.elimination.sets import Floats, Link
from certimap.trees.regions import RegionTree


@dataclass(frozen=True, eq=False)
class Geometry:
    """The shapes of a region tree as (contexts, hidden states), computed once a posterior.

    A context is a configuration of queried variables. A separator position ((shared_query, shared_hidden),
    (rest_query, rest_hidden)) is context (shared_query, rest_query) and hidden state (shared_hidden,
    rest_hidden); a joint position adds the own variable to the one or the other.
    """

    tree: RegionTree
    shapes: list[tuple[int, int, int, int, int]]
    tables: list[Floats]
    links: list[Link | None]
    order_of_children: list[list[int]]
    is_query: NDArray[np.bool_]

    @classmethod
    def of(cls, tree: RegionTree) -> Geometry:
        """Compute the geometry of a tree."""
        a = tree.arrays
        dims = (a.shared_query, a.shared_hidden, a.rest_query, a.rest_hidden, a.own_states)
        shapes = [tuple(int(d[r]) for d in dims) for r in range(tree.n_regions)]
        tables = [a.tables[a.table_ptr[r] : a.table_ptr[r + 1]] for r in range(tree.n_regions)]
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
        order = [
            sorted((int(c) for c in tree.children_of(r)), key=lambda c: size[c]) for r in range(tree.n_regions)
        ]
        return cls(tree, shapes, tables, links, order, is_query)  # pyright: ignore[reportArgumentType]

    def counts(self, r: int) -> tuple[int, int]:
        """Return the contexts and hidden states of a region's separator."""
        sq, sh, rq, rh, _ = self.shapes[r]
        return sq * rq, sh * rh

    def joint_counts(self, r: int) -> tuple[int, int]:
        """Return the contexts and hidden states of a region's joint space."""
        sq, sh, _, _, k = self.shapes[r]
        return (sq * k, sh) if self.is_query[r] else (sq, sh * k)

    def to_contexts(self, r: int, message: Floats) -> Floats:
        """Reshape a separator vector to (contexts, hidden states)."""
        sq, sh, rq, rh, _ = self.shapes[r]
        return np.ascontiguousarray(message.reshape(sq, sh, rq, rh).transpose(0, 2, 1, 3)).reshape(
            sq * rq, sh * rh
        )

    def project(self, r: int, outside: Floats) -> Floats:
        """Carry a functional on a region's separator down to its joint space, through its table."""
        sq, sh, rq, rh, k = self.shapes[r]
        table = self.tables[r]
        if sq * sh * rq == 1:
            out = (outside.reshape(rh) @ table.reshape(rh, k)).reshape(1, 1, k)
        else:
            by_rest = np.einsum(
                "arsb,asrbv->rasv", outside.reshape(sq, rq, sh, rh), table.reshape(sq, sh, rq, rh, k)
            )
            out = by_rest.max(axis=0)
        if self.is_query[r]:
            return np.ascontiguousarray(out.transpose(0, 2, 1)).reshape(sq * k, sh)
        return out.reshape(sq, sh * k)


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
class Messages:
    """Upper bounds on every region's vectors, shape (contexts, hidden states) each, times exp(logs).

    They hold for all assignments whose probability exceeds the threshold.
    """

    values: list[Floats]
    logs: NDArray[np.float64]

    def copy(self) -> Messages:
        """Return a copy whose entries may be replaced."""
        return Messages(list(self.values), self.logs.copy())

    def tightened(self, other: Messages) -> Messages:
        """Return the smaller of two bounds, entry by entry."""
        values: list[Floats] = []
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for r, (mine, theirs) in enumerate(zip(self.values, other.values, strict=True)):
                shift = other.logs[r] - self.logs[r]
                scaled = np.exp(np.log(theirs) + shift) if abs(shift) > 500.0 else theirs * math.exp(shift)
                values.append(np.minimum(mine, scaled))
        return Messages(values, self.logs.copy())
