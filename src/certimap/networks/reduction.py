"""Reduction of a network by a query: absorb evidence, remove barren variables and impossible states."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from certimap.core.arrays import Array, Ints
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.query import Query, make_query
from certimap.errors import ImpossibleEvidence, ModelError
from certimap.networks.factor import Factor, take_signs

if TYPE_CHECKING:
    from certimap.networks.network import Network

POLL_EVERY = 64  # tables between two checks of the clock
_REDUCING = "absorbing the evidence"


class Bearing(NamedTuple):
    """A table with zeros, over all states of its scope: entries up to `zero` are impossible."""

    scope: tuple[int, ...]
    values: Array
    zero: float


@dataclass(frozen=True)
class Reduced:
    """Factors over the variables that are still open."""

    domain: Domain  # the network's domain; positions below are its
    factors: list[Factor]  # over the surviving states of open variables, as the network holds them
    sizes: dict[int, int]  # the number of surviving states of each open variable
    states: dict[int, Ints]  # which states survive, as positions, for each variable that is not barren
    query: tuple[int, ...]  # the query variables, in the user's order
    log_constants: list[float]  # natural logs of the factors that became constants

    @property
    def log_constant(self) -> float:
        """The sum of the logs of the constants, in nats."""
        return math.fsum(self.log_constants)


def reduce_network(model: Network, query: Query | None = None, *, control: Control | None = None) -> Reduced:
    """Absorb a query's evidence into a network's factors.

    `query`: None: query all variables without evidence. Raises TimeUp when `control` says so, and
    ImpossibleEvidence when a factor, or the states that factors leave to a variable, show that p(e) = 0.
    """
    domain = model.domain
    query, control = query or make_query(domain), control or Control()
    queried = tuple(int(i) for i in query.variables)
    factors, states = _with_evidence(model, query)
    take_signs(factors)
    bearing = [Bearing(f.scope, f.entries, -np.inf if f.in_logs else 0.0) for f in factors if not f.is_positive]
    if not consistent(bearing, states, lambda: control.check(_REDUCING)):
        raise _impossible(domain)
    n_states: list[int] = domain.n_states.tolist()
    cut = {v for v, left in states.items() if len(left) == 1 or len(left) < n_states[v]}
    taken = [f if cut.isdisjoint(f.scope) else _take(f, states) for f in factors]
    control.check(_REDUCING)
    log_constants = [float(f.log_table) for f in taken if not f.scope]
    if -math.inf in log_constants:
        raise _impossible(domain)
    open_variables = {v for f in taken for v in f.scope}
    sizes = {v: len(states[v]) for v in sorted(states) if len(states[v]) > 1 or v in open_variables}
    return Reduced(domain, [f for f in taken if f.scope], sizes, states, queried, log_constants)


def _with_evidence(model: Network, query: Query) -> tuple[list[Factor], dict[int, Ints]]:
    """Return the relevant factors, with soft evidence added, and the allowed states."""
    domain = model.domain
    weights = query.log_weights
    is_weighed = np.logical_or.reduceat(weights != 0.0, domain.offsets[:-1])
    is_soft = np.logical_or.reduceat((weights != 0.0) & (weights > -np.inf), domain.offsets[:-1])
    weighed: list[int] = np.flatnonzero(is_weighed).tolist()
    needed = model.relevant({*(int(i) for i in query.variables), *weighed})
    factors = [f for f, own in zip(model.factors, model.owners, strict=True) if own is None or own in needed]
    sizes: list[int] = domain.n_states.tolist()
    positions = {k: np.arange(k) for k in set(sizes)}  # variables of one size share an array
    allowed = {i: positions[sizes[i]] for i in sorted(needed)}
    left = np.flatnonzero(weights > -np.inf)
    bounds = np.searchsorted(left, domain.offsets)
    starts: list[int] = bounds.tolist()
    left -= np.repeat(domain.offsets[:-1], np.diff(bounds))
    for i in weighed:
        allowed[i] = left[starts[i] : starts[i + 1]]
    for i in np.flatnonzero(is_soft).tolist():
        factors.append(Factor.from_log((i,), weights[domain.offsets[i] : domain.offsets[i + 1]]))
    return factors, allowed


def touching(scopes: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """Return which scopes have each variable, by their positions; [] for other variables."""
    found = defaultdict[int, list[int]](list)
    for k, scope in enumerate(scopes):
        for v in scope:
            found[v].append(k)
    return found


def consistent(
    tables: Sequence[Bearing], states: dict[int, Ints], check: Callable[[], object] = float,
    changed: Iterable[int] | None = None, near: Mapping[int, Sequence[int]] | None = None,
) -> bool:  # fmt: skip
    """Drop states that some table makes impossible, until nothing changes (generalised arc consistency).

    `tables`: those with zeros. `states`: of each variable those left, replaced. `check`: called now and then.
    `changed`: the tables that may have lost support, by position; None for all. `near`: the result of `touching`,
    if known. Returns False where a variable has no state left.
    """
    near = touching(t.scope for t in tables) if near is None else near
    waiting, n_judged = deque(range(len(tables)) if changed is None else changed), 0
    is_waiting = set(waiting)
    while waiting:
        if n_judged % POLL_EVERY == 0:
            check()
        n_judged += 1
        k = waiting.popleft()
        is_waiting.discard(k)
        scope, values, zero = tables[k]
        possible = left_of(scope, values, states) > zero
        if possible.all():
            continue
        for axis, v in enumerate(scope):
            alive = possible.any(axis=tuple(a for a in range(len(scope)) if a != axis))
            if alive.all():
                continue
            states[v] = states[v][alive]
            if not len(states[v]):
                return False
            for other in near[v]:
                if other not in is_waiting:
                    is_waiting.add(other)
                    waiting.append(other)
            break
    return True


def left_of(scope: Sequence[int], values: Array, states: Mapping[int, Ints]) -> Array:
    """Return the part of a table over the states that are left."""
    for axis, v in enumerate(scope):
        if len(states[v]) < values.shape[axis]:
            values = values.take(states[v], axis=axis)
    return values


def _take(factor: Factor, states: dict[int, Ints]) -> Factor:
    """Restrict a factor to surviving states; a variable with one left leaves the scope."""
    table = factor.log_table if factor.in_logs else factor.table
    index = tuple(int(states[v][0]) if len(states[v]) == 1 else slice(None) for v in factor.scope)
    scope = tuple(v for v in factor.scope if len(states[v]) > 1)
    return factor.part(scope, left_of(scope, np.asarray(table[index]), states))


def _impossible(domain: Domain) -> ImpossibleEvidence:
    return ImpossibleEvidence(
        f"the evidence has probability zero under this network of {len(domain)} variables; "
        "expected evidence that some joint state allows"
    )


def ancestors(parents: Iterable[tuple[int, ...]], of: set[int]) -> set[int]:
    """Return the variables `of` with all their ancestors; `parents[i]` are the parents of variable i."""
    lists = list(parents)
    found = set(of)
    stack = list(of)
    while stack:
        v = stack.pop()
        if not 0 <= v < len(lists):
            raise ModelError(f"variable {v} is not in the network; expected 0 to {len(lists) - 1}")
        for parent in lists[v]:
            if parent not in found:
                found.add(parent)
                stack.append(parent)
    return found
