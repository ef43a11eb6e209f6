"""The exact distribution of a query: as tables, or by elimination where tables are too large.

Both answer the same questions about p(q, e), in Decimal arithmetic (see `exact.arithmetic`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from certimap_lab.hostile.exact import ONE, ZERO, Exact

Masks = Sequence[NDArray[np.bool_]]  # for each query variable, the states that a box holds
ExactFactor = tuple[tuple[int, ...], Exact]
LARGEST_JOINT = 100_000


class Truth(Protocol):
    """What is known without rounding about p(q, e)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of states of each query variable."""
        ...

    @property
    def total(self) -> Decimal:
        """p(e), or the unnormalised total."""
        ...

    @property
    def best_point(self) -> tuple[int, ...]:
        """A point with the largest p(q, e)."""
        ...

    def value(self, point: Sequence[int]) -> Decimal:
        """Return p(q, e)."""
        ...

    def box(self, masks: Masks) -> tuple[Decimal, Decimal]:
        """Return the mass of a box, and the largest p(q, e) inside."""
        ...

    def kth(self, k: int) -> Decimal | None:
        """Return the k-th largest p(q, e), or None where it is not known."""
        ...


class TableTruth:
    """A product of tables over disjoint query variables.

    Parameters
    ----------
    sizes
        The number of states of each query variable.
    parts
        Positions of query variables with the table over them, one axis per variable; together they cover all.
    """

    def __init__(self, sizes: Sequence[int], parts: Sequence[ExactFactor]) -> None:
        self.sizes = tuple(sizes)
        self._parts = list(parts)
        self.total = _product(table.sum() for _, table in self._parts)
        self.best_point = self._best_point()

    def _best_point(self) -> tuple[int, ...]:
        point = [0] * len(self.sizes)
        for variables, table in self._parts:
            best = np.unravel_index(int(np.argmax(table)), table.shape)
            for v, state in zip(variables, best, strict=True):
                point[v] = int(state)
        return tuple(point)

    def value(self, point: Sequence[int]) -> Decimal:
        return _product(table[tuple(int(point[v]) for v in variables)] for variables, table in self._parts)

    def box(self, masks: Masks) -> tuple[Decimal, Decimal]:
        mass = largest = ONE
        for variables, table in self._parts:
            inside = table[np.ix_(*(masks[v] for v in variables))] if variables else table.reshape(1)
            if not inside.size:
                return ZERO, ZERO
            mass, largest = mass * inside.sum(), largest * inside.max()
        return mass, largest

    def kth(self, k: int) -> Decimal | None:
        best: list[Decimal] = [ONE]
        for _, table in self._parts:
            own = heapq.nlargest(k, table.reshape(-1).tolist())
            best = heapq.nlargest(k, (a * b for a in best for b in own))
        return best[k - 1] if k <= len(best) else ZERO


class EliminationTruth:
    """A product of factors over many variables, of which the queried ones are maximised last.

    Exact wherever the tables of the elimination stay small; meant for trees and chains.

    Parameters
    ----------
    n_states
        The number of states of every variable.
    factors
        Scopes with tables of Decimals, evidence included.
    query
        The query variables, in the user's order.
    """

    def __init__(self, n_states: Sequence[int], factors: Sequence[ExactFactor], query: Sequence[int]) -> None:
        self._n_states, self._query = list(n_states), list(query)
        self.sizes = tuple(n_states[v] for v in query)
        queried = set(query)
        # Nuisance variables are summed once; each question works on what is left.
        nuisance = [v for v in range(len(n_states)) if v not in queried]
        self._factors = eliminate(_squeezed(factors), nuisance, n_states, largest=False)
        self.total = _scalar(eliminate(self._factors, self._query, n_states, largest=False))
        self.best_point = self._best_point()

    def _best_point(self) -> tuple[int, ...]:
        choices: list[tuple[int, ExactFactor]] = []
        eliminate(self._factors, self._query, self._n_states, largest=True, choices=choices)
        state: dict[int, int] = {}
        for variable, (scope, table) in reversed(choices):  # the variable is the table's last axis
            state[variable] = int(np.argmax(table[tuple(state[v] for v in scope[:-1])]))
        return tuple(state[v] for v in self._query)

    def value(self, point: Sequence[int]) -> Decimal:
        state = dict(zip(self._query, (int(x) for x in point), strict=True))
        return _product(table[tuple(state[v] for v in scope)] for scope, table in self._factors)

    def box(self, masks: Masks) -> tuple[Decimal, Decimal]:
        inside: list[ExactFactor] = []
        for v, mask in zip(self._query, masks, strict=True):
            weights = np.empty(len(mask), np.object_)
            weights[:] = [ONE if m else ZERO for m in mask.tolist()]
            inside.append(((v,), weights))
        both = (
            eliminate(self._factors + inside, self._query, self._n_states, largest=largest)
            for largest in (False, True)
        )
        mass, largest = (_scalar(left) for left in both)
        return mass, largest

    def kth(self, k: int) -> Decimal | None:
        return self.value(self.best_point) if k == 1 else None


def table_of(n_states: Sequence[int], factors: Sequence[ExactFactor], query: Sequence[int]) -> TableTruth:
    """Sum all but the query variables out of a product of factors."""
    queried = set(query)
    nuisance = [v for v in range(len(n_states)) if v not in queried]
    left = eliminate(_squeezed(factors), nuisance, n_states, largest=False)
    sizes = [n_states[v] for v in query]
    _, table = _multiplied(left, tuple(query), n_states)
    return TableTruth(sizes, [(tuple(range(len(query))), table)])


def _squeezed(factors: Sequence[ExactFactor]) -> list[ExactFactor]:
    """Leave variables with one state out of scopes: they join what has nothing to do with each other."""
    return [
        (tuple(v for v, k in zip(scope, table.shape, strict=True) if k > 1), np.asarray(np.squeeze(table), object))
        for scope, table in factors
    ]


def eliminate(
    factors: Sequence[ExactFactor],
    variables: Iterable[int],
    n_states: Sequence[int],
    *,
    largest: bool,
    choices: list[tuple[int, ExactFactor]] | None = None,
) -> list[ExactFactor]:
    """Sum variables out, or maximise over them, one with the fewest neighbours first.

    `choices` receives every variable with the table that it was maximised in.
    """
    left = dict(enumerate(factors))
    members: dict[int, set[int]] = {v: set() for v in range(len(n_states))}
    for name, (scope, _) in left.items():
        for v in scope:
            members[v].add(name)
    queue = [(_degree(left, members[v]), v) for v in variables]
    heapq.heapify(queue)
    fresh = len(left)
    while queue:
        degree, v = heapq.heappop(queue)
        now = _degree(left, members[v])
        if now > degree:  # the queue keeps what a variable had when it was last looked at
            heapq.heappush(queue, (now, v))
            continue
        own = [left.pop(name) for name in sorted(members[v])]
        scope = tuple(sorted({u for s, _ in own for u in s} - {v}))
        joint = _multiplied(own, (*scope, v), n_states)
        if choices is not None:
            choices.append((v, joint))
        table = joint[1].max(axis=-1) if largest else joint[1].sum(axis=-1)
        for u in scope:
            members[u] -= members[v]
            members[u].add(fresh)
        left[fresh] = (scope, np.asarray(table, np.object_))
        fresh += 1
    return list(left.values())


def _degree(left: dict[int, ExactFactor], names: set[int]) -> int:
    return len({u for name in names for u in left[name][0]})


def _multiplied(factors: Sequence[ExactFactor], scope: tuple[int, ...], n_states: Sequence[int]) -> ExactFactor:
    """Multiply factors into one table over a scope that holds all of theirs."""
    n_entries = math.prod(n_states[v] for v in scope)
    if n_entries > LARGEST_JOINT:
        raise ValueError(f"the exact table over {len(scope)} variables would have {n_entries} entries")
    table = np.full([n_states[v] for v in scope], ONE, np.object_)
    for own, values in factors:
        order = sorted(range(len(own)), key=lambda axis: scope.index(own[axis]))
        held = set(own)
        shape = [n_states[v] if v in held else 1 for v in scope]
        table = table * values.transpose(order).reshape(shape)
    return scope, table


def _scalar(factors: Sequence[ExactFactor]) -> Decimal:
    return _product(table.reshape(-1)[0] for _, table in factors)


def _product(values: Iterable[Decimal]) -> Decimal:
    return math.prod(values, start=ONE)
