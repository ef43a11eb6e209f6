"""Bayesian networks: one conditional distribution a variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from certimap.box import Points
from certimap.domain import Categorical, Domain, Label
from certimap.errors import ModelError, QueryError, did_you_mean
from certimap.networks.factor import Factor
from certimap.networks.network import Network
from certimap.networks.noisy import NoisyMax, NoisyOr, Piece, expand, table_of_function
from certimap.networks.reduction import ancestors

ROW_TOLERANCE = 1e-8


class BayesianNetwork(Network):
    """A directed acyclic network of discrete variables.

    Parameters
    ----------
    domain
        The variables, all categorical.
    cpts
        One `Factor` a variable, in any order: its scope is the variable's parents followed by the
        variable itself, and its rows (last axis) add to 1 within 1e-8.
    hidden
        Names of helper variables that a query for everything leaves out.

    Raises
    ------
    ModelError
        For a variable without a table or with two, a row that does not add to 1, or a directed cycle.

    See Also
    --------
    from_cpts : builds a network from names and rows.
    """

    def __init__(self, domain: Domain, cpts: Iterable[Factor], hidden: Iterable[str] = ()) -> None:
        given = tuple(cpts)
        if any(not f.scope for f in given):
            raise ModelError("a conditional table has an empty scope; parents and then the variable are accepted")
        by_child = {f.scope[-1]: f for f in given}
        if len(by_child) != len(given):
            children = [f.scope[-1] for f in given]
            doubled = next(c for c in children if children.count(c) > 1)
            raise ModelError(f"variable {domain.names[doubled]!r} has two conditional tables; one is accepted")
        lacking = [domain.names[i] for i in range(len(domain)) if i not in by_child]
        if lacking:
            raise ModelError(f"variable {lacking[0]!r} has no conditional table; each variable needs one")
        self.hidden = frozenset(hidden)
        for name in sorted(self.hidden):
            if name not in domain:
                raise ModelError(f"{name!r} is hidden, and no variable of the network")
        order = tuple(range(len(domain)))
        super().__init__(domain, [by_child[i] for i in order], order)
        for i in order:
            _check_rows(domain, self.factors[i])
        self._topological_order: tuple[int, ...] = _topological(domain, self.parents)

    @classmethod
    def from_cpts(
        cls,
        variables: Mapping[str, Sequence[Label]],
        parents: Mapping[str, Sequence[str]],
        tables: Mapping[str, Any],
    ) -> BayesianNetwork:
        """Build a network from names.

        Parameters
        ----------
        variables
            State labels of each variable, in order.
        parents
            Names of the parents of a variable, in the order of its table's axes; a variable that is
            left out has none.
        tables
            For each variable an array with one axis per parent and the variable last; or a mapping from the
            parents' labels (a tuple; the label itself for one parent) to a row of probabilities; or a `NoisyOr` or
            `NoisyMax`, which needs no table over all parents; or a function of the parents' labels that returns
            the variable's.

        Raises
        ------
        ModelError
            For unknown names, missing or superfluous rows, and whatever the constructor refuses.

        Examples
        --------
        >>> network = BayesianNetwork.from_cpts(
        ...     {"W": ["dry", "wet"], "T": ["lo", "hi"]},
        ...     {"T": ["W"]},
        ...     {"W": [0.55, 0.45], "T": {"dry": [0.4, 0.6], "wet": [0.9, 0.1]}},
        ... )
        >>> network.domain.names
        ('W', 'T')
        """
        declared = {name: Categorical(name, tuple(states)) for name, states in variables.items()}
        for name in (*parents, *tables):
            if name not in declared:
                raise ModelError(
                    f"{name!r} is no variable of the network; its variables are {tuple(declared)}"
                    f"{did_you_mean(name, declared)}"
                )
        pieces: list[Piece] = []
        for name in declared:
            if name not in tables:
                raise ModelError(f"variable {name!r} has no conditional table; each variable needs one")
            for parent in parents.get(name, ()):
                if parent not in declared:
                    raise ModelError(f"{parent!r}, a parent of {name!r}, is no variable of the network")
            pieces += _pieces(declared, name, tuple(parents.get(name, ())), tables[name])
        helpers = [p.name for p in pieces if p.name not in declared]
        for name in helpers:
            declared[name] = Categorical(name, declared[name.partition(":max:")[0]].states)
        domain = Domain(declared.values())
        cpts = [Factor([domain.index(v) for v in (*p.parents, p.name)], p.table) for p in pieces]
        return cls(domain, cpts, helpers)

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the parents of each variable, in the order of its table's axes."""
        return tuple(f.scope[:-1] for f in self.factors)

    @property
    def topological_order(self) -> tuple[int, ...]:
        """Positions of all variables, parents before children."""
        return self._topological_order

    def relevant(self, variables: set[int]) -> set[int]:
        """Return some variables with all their ancestors; the others are barren for them."""
        return ancestors(self.parents, variables)

    def log_prob(self, points: Points) -> NDArray[np.float64]:
        """Return the natural log of the probability of full assignments, shape (batch,)."""
        return self.log_joint(points)

    def sample(self, n: int, rng: int | np.random.Generator | None = None) -> NDArray[np.int16]:
        """Draw `n` independent assignments, shape (n, n_variables), as state positions.

        Cost: n times the number of variables times their states.
        """
        generator = np.random.default_rng(rng)
        points = np.zeros((n, len(self.domain)), np.int16)
        for i in self.topological_order:
            factor = self.factors[i]
            rows = np.zeros(n, np.int64)
            for parent in factor.scope[:-1]:
                rows = rows * int(self.domain.n_states[parent]) + points[:, parent]
            cumulated = np.cumsum(factor.table.reshape(-1, factor.shape[-1]), axis=1)
            cumulated /= cumulated[:, -1:]
            uniform = generator.random(n)
            points[:, i] = (uniform[:, None] >= cumulated[rows]).sum(axis=1)
        return points


def _pieces(declared: Mapping[str, Categorical], name: str, parents: tuple[str, ...], table: Any) -> list[Piece]:
    """Return the conditional tables that a variable's description stands for."""
    child, above = declared[name], [declared[p] for p in parents]
    if isinstance(table, NoisyMax | NoisyOr):
        return expand(table, child, above)
    if isinstance(table, Mapping):
        own = Domain([*above, child])
        return [Piece(parents, name, _table_of_rows(own, range(len(own)), cast("Mapping[Any, Any]", table)))]
    if callable(table):
        return [Piece(parents, name, table_of_function(table, child, above))]
    return [Piece(parents, name, table)]


def _check_rows(domain: Domain, factor: Factor) -> None:
    totals = factor.table.sum(axis=-1)
    off = np.abs(totals - 1.0)
    if np.any(off > ROW_TOLERANCE):
        where = np.unravel_index(int(np.argmax(off)), off.shape)
        given = ", ".join(
            f"{domain.names[v]}={_label(domain, v, int(s))!r}" for v, s in zip(factor.scope, where, strict=False)
        )
        raise ModelError(
            f"the distribution of {domain.names[factor.scope[-1]]!r} given ({given}) adds to "
            f"{float(totals[where]):.10g}; 1 within {ROW_TOLERANCE:g} is accepted"
        )


def _label(domain: Domain, variable: int, state: int) -> Label:
    categorical = domain.variables[variable]
    return categorical.states[state] if isinstance(categorical, Categorical) else state


def _table_of_rows(domain: Domain, scope: Sequence[int], rows: Mapping[Any, Any]) -> NDArray[np.float64]:
    """Place rows, keyed by the labels of the parents, in a table."""
    shape = [int(domain.n_states[v]) for v in scope]
    child = domain.names[scope[-1]]
    table = np.full(shape, np.nan)
    for key, row in rows.items():
        labels = key if isinstance(key, tuple) and len(scope) != 2 else (key,)  # pyright: ignore[reportUnknownVariableType]
        if isinstance(key, tuple) and len(scope) == 2 and len(key) == 1:  # pyright: ignore[reportUnknownArgumentType]
            labels = key  # pyright: ignore[reportUnknownVariableType]
        if len(labels) != len(scope) - 1:  # pyright: ignore[reportUnknownArgumentType]
            raise ModelError(f"row {key!r} of {child!r} names {len(labels)} labels; one a parent is accepted")  # pyright: ignore[reportUnknownArgumentType]
        index = tuple(_position(domain, v, label) for v, label in zip(scope, labels, strict=False))  # pyright: ignore
        values = np.asarray(row, np.float64)
        if values.shape != (shape[-1],):
            raise ModelError(
                f"row {key!r} of {child!r} has shape {values.shape}; {shape[-1]} numbers are accepted"
            )
        table[index] = values
    if np.any(np.isnan(table)):
        missing = np.argwhere(np.isnan(table).any(axis=-1))[0]
        given = tuple(_label(domain, v, int(s)) for v, s in zip(scope, missing, strict=False))
        raise ModelError(f"the table of {child!r} has no row for {given}; every combination of parents needs one")
    return table


def _position(domain: Domain, variable: int, label: Label) -> int:
    categorical = domain.variables[variable]
    assert isinstance(categorical, Categorical)  # networks refuse real variables
    try:
        return categorical.index(label)
    except QueryError as error:
        raise ModelError(str(error)) from None


def _topological(domain: Domain, parents: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Order variables parents first, by position among those that are ready; refuse cycles."""
    import heapq

    waiting = [len(p) for p in parents]
    children: list[list[int]] = [[] for _ in parents]
    for i, own in enumerate(parents):
        for parent in own:
            children[parent].append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for child in children[i]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, child)
    if len(order) < len(parents):
        stuck = [domain.names[i] for i, n in enumerate(waiting) if n]
        raise ModelError(f"the parents form a cycle through {stuck[0]!r}; an acyclic network is accepted")
    return tuple(order)
