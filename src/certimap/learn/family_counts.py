"""Expected counts of variables with their parents (families): what rows lack is summed out exactly, in batches."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints, spread
from certimap.core.logs import log_of
from certimap.errors import DataError, TooLarge
from certimap.networks.orders import best_order

ENTRIES = 2**21  # of all cliques that are held at once
MOST_LOG2, EFFORT = 26.0, 1e6  # log base 2 of the entries per row; the search for an order, see `best_order`
Scope = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Batch:
    """Distinct rows that lack the same variables."""

    rows: Ints  # the first one of each kind
    weights: Floats
    places: list[
        tuple[int, Scope, Ints]
    ]  # a family's table, its missing variables, entries by row and by their states
    cliques: list[Scope]  # each variable with its separator, in elimination order
    sizes: Sequence[int]

    def add_to(self, counts: Sequence[Floats], logs: Sequence[Floats]) -> float:
        """Add expected counts to flat tables, and return ln of the likelihood of the rows."""
        step, total = max(1, ENTRIES // sum(math.prod(self.sizes[v] for v in c) for c in self.cliques)), 0.0
        for part in (slice(first, first + step) for first in range(0, len(self.rows), step)):
            inputs: dict[Scope, Floats] = {}
            for k, free, at in self.places:
                inputs[free] = inputs.get(free, 0.0) + logs[k][at[part]]
            values, shares = self._passes(inputs)
            if np.any(values == -np.inf):
                row = self.rows[part][values == -np.inf][0]
                raise DataError(f"row {row} is impossible under the tables to start from; expected others")
            total += float(values @ self.weights[part])
            for k, free, at in self.places:
                weighted = shares[free] * self.weights[part, None]
                counts[k][:] += np.bincount(at[part].ravel(), weighted.ravel(), len(counts[k]))
        return total

    def _passes(self, inputs: dict[Scope, Floats]) -> tuple[Floats, dict[Scope, Floats]]:
        """Return ln of each row's likelihood, and the posterior of each scope, shape (n, states)."""
        place = {clique[0]: i for i, clique in enumerate(self.cliques)}
        home = {scope: min(place[v] for v in scope) for scope in inputs}
        total: Floats = np.zeros(len(next(iter(inputs.values()))))
        joints = [np.ones((len(total), *(self.sizes[v] for v in clique))) for clique in self.cliques]
        for scope, value in inputs.items():
            top = value.max(axis=1)
            total += top
            scaled = np.exp(value.T - np.where(top > -np.inf, top, 0.0)).T.reshape(
                -1, *(self.sizes[v] for v in scope)
            )
            joints[home[scope]] *= spread(scaled, (-1, *scope), (-1, *self.cliques[home[scope]]))
        messages: list[Floats] = []
        for clique, joint in zip(self.cliques, joints, strict=True):
            message = joint.sum(axis=1)
            top = message.max(axis=tuple(range(1, message.ndim)), keepdims=True)
            total += log_of(top.ravel())
            message /= np.where(top > 0.0, top, 1.0)
            joint /= np.where(top > 0.0, top, 1.0)[:, None]
            messages.append(message)
            if len(clique) > 1:
                above = place[clique[1]]
                joints[above] *= spread(message, (-1, *clique[1:]), (-1, *self.cliques[above]))
        for clique, joint, message in zip(self.cliques[::-1], joints[::-1], messages[::-1], strict=True):
            if len(clique) > 1:
                wanted = self._marginal(joints, place[clique[1]], clique[1:])
                joint *= (wanted / np.where(message > 0.0, message, 1.0))[:, None]
        return total, {s: self._marginal(joints, k, s).reshape(len(total), -1) for s, k in home.items()}

    def _marginal(self, joints: list[Floats], k: int, scope: Scope) -> Floats:
        kept = [v for v in self.cliques[k] if v in scope]
        out = joints[k].sum(axis=tuple(i for i, v in enumerate(self.cliques[k], 1) if v not in scope))
        return out.transpose(0, *(1 + kept.index(v) for v in scope))


class FamilyCounts:
    """The families of a structure in the rows of a table.

    `scopes`: the parents of each column, which are earlier ones, and itself. `codes`: states by row and column, -1
    where missing. `sizes`: the number of states of each column. `shares`: the table of each family, its own by
    default. Raises TooLarge for sums beyond memory.
    """

    def __init__(
        self,
        scopes: Sequence[Scope],
        codes: Ints,
        weights: Floats,
        sizes: Sequence[int],
        shares: Sequence[int] = (),
    ) -> None:
        self.shares = shares or range(len(scopes))
        self.scopes, self._codes, self._weights, self._sizes = scopes, codes, weights, sizes
        self._held = np.zeros((len(scopes), len(scopes)), np.bool_)  # families by columns
        for k, scope in enumerate(scopes):
            self._held[k, list(scope)] = True
        missing = codes < 0
        self.n_rows = float(weights.sum())
        of_hidden = np.flatnonzero(self._held @ missing.all(axis=0)).tolist()
        self.latent = sorted({self.shares[k] for k in of_hidden})  # tables of hidden variables
        barren = missing.copy()  # and no known cell depends on it
        for scope in reversed(scopes):
            barren[:, list(scope[:-1])] &= barren[:, scope[-1:]]
        whole = ~barren
        self._batches = [self._batch(*key, rows) for key, rows in self._groups(missing & ~barren, barren).items()]
        for _, touched, rows in self._batches:
            whole[rows[:, None], touched] = False
        lengths = {k: math.prod(sizes[v] for v in scope) for k, scope in zip(self.shares, scopes, strict=True)}
        self.complete = [np.zeros(lengths[k]) for k in range(len(lengths))]
        for v, (k, scope) in enumerate(zip(self.shares, scopes, strict=True)):
            rows = np.flatnonzero(whole[:, v])
            at = self._at(scope, rows, ()).ravel()
            self.complete[k] += np.bincount(at, weights[rows], len(self.complete[k]))

    def expected(self, logs: Sequence[Floats]) -> tuple[list[Floats], float]:
        """Return flat expected counts under the logs of flat tables, and ln of the likelihood of the rows."""
        counts = [c.copy() for c in self.complete]
        value = sum(float(c[c > 0.0] @ table[c > 0.0]) for c, table in zip(counts, logs, strict=True))
        return counts, value + sum(batch.add_to(counts, logs) for batch, _, _ in self._batches)

    def _at(self, scope: Scope, rows: Ints, free: Scope) -> Ints:
        """Return where rows lie in the flat table of a family, by states of its missing variables."""
        sizes = [self._sizes[v] for v in scope]
        strides = dict(zip(scope, np.cumprod([1, *sizes[:0:-1]])[::-1].tolist(), strict=True))
        at: Ints = self._codes[rows][:, list(scope)] @ [0 if v in free else strides[v] for v in scope]
        for v in free:
            at = np.add.outer(at, strides[v] * np.arange(self._sizes[v]))
        return at.reshape(len(rows), math.prod(at.shape[1:]))

    def _groups(self, lacks: Flags, barren: Flags) -> dict[tuple[Scope, Scope], Ints]:
        """Return the rows of each group of missing variables, with the families that it touches."""
        graphs: Any = import_module("scipy.sparse.csgraph")
        found = defaultdict[tuple[Scope, Scope], list[Ints]](list)
        links = self._held.T.astype(np.float32) @ self._held.astype(np.float32)
        patterns, which = np.unique(np.hstack([lacks, barren]), axis=0, return_inverse=True)
        order, ends = np.argsort(which.ravel(), kind="stable"), np.cumsum(np.bincount(which.ravel()))
        for pattern, rows in zip(patterns, np.split(order, ends[:-1]), strict=True):
            left, dead = np.flatnonzero(pattern[: len(links)]), pattern[len(links) :]
            labels = graphs.connected_components(links[np.ix_(left, left)], directed=False)[1]
            for group in np.unique(labels):
                part = left[labels == group]
                touched = np.flatnonzero(self._held[:, part].any(axis=1) & ~dead)
                found[tuple(part.tolist()), tuple(touched.tolist())].append(rows)
        return {key: np.concatenate(rows) for key, rows in found.items()}

    def _batch(self, lost: Scope, touched: Scope, rows: Ints) -> tuple[_Batch, Scope, Ints]:
        """Lay out rows that lack the same group of variables."""
        frees = {k: tuple(v for v in lost if self._held[k, v]) for k in touched}
        order = best_order(frees.values(), {v: self._sizes[v] for v in lost}, effort=EFFORT)
        if order.log2_size > MOST_LOG2:
            raise TooLarge(f"summing out what row {rows[0]} lacks takes 2^{order.log2_size:.0f} entries, too many")
        known = self._codes[rows[:, None], sorted({v for k in touched for v in self.scopes[k]})]
        _, first, same = np.unique(known, axis=0, return_index=True, return_inverse=True)
        one = rows[first]
        places = [(self.shares[k], free, self._at(self.scopes[k], one, free)) for k, free in frees.items()]
        weights = np.bincount(same.ravel(), self._weights[rows]).astype(np.float64)
        return _Batch(one, weights, places, [(v, *s) for v, s in order.cliques], self._sizes), touched, rows
