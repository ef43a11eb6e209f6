"""Observations that contradict each other, by sums over parts of the evidence.

A part of impossible evidence is made minimal first. Each maximal possible part then says of a smallest impossible
one that it has an observation outside (an implicit hitting set). The fewest observations that meet all these
demands are either impossible together, and a smallest set, or they grow into the next maximal possible part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arguments import is_missing
from certimap.core.control import Control, Limits, TimeUp
from certimap.core.model import Model
from certimap.core.query import Evidence, Query, items_of, make_query, stated
from certimap.errors import ImpossibleEvidence, QueryError, TooLarge
from certimap.solvers.registry import wants_of

SUMMED = "set_elimination"  # its representation (a tree, else a circuit) sums exactly
PATIENCE = 3.0  # seconds for naming a conflict after the evidence was found impossible, and
FIRST = 10.0  # seconds for the first sum, which may compile kernels
MOST_NAMED = 8  # observations of a conflict that an error names
MOST_SUMS = 500  # after which no smaller set is looked for
_OUT = (TimeUp, TooLarge, MemoryError)


class Contradiction(NamedTuple):
    """A part of the evidence that has probability 0 by itself; empty if the model gives no assignment weight."""

    observations: Evidence
    is_minimal: bool  # whether it is possible without any one of them
    is_smallest: bool  # whether no part with fewer observations is impossible


def conflict(
    model: Model, evidence: Any, control: Control | None = None, patience: float = math.inf
) -> Contradiction | None:
    """Return observations that contradict each other; None if none are found.

    The search ends at the control's deadline, `patience` seconds after the first sum, or after `MOST_SUMS` sums.
    About k ln n of them make k of n observations minimal.
    """
    control = Control() if control is None else control
    given = {name: value for name, value in items_of(evidence) if not is_missing(value)}
    try:
        if not _is_impossible(model, given, control):
            return None
    except _OUT:
        return None
    if patience < math.inf:
        control.deadline = Control.starting_now(min(patience, control.seconds_left)).deadline
    search = _Search(model, given, control)
    names, is_minimal = search.minimal()
    is_smallest = is_minimal and len(names) < 2
    if is_minimal and not is_smallest:
        names, is_smallest = search.smallest(names)
    observations = {name: value for name, value in given.items() if name in names}
    return Contradiction(observations, is_minimal and search.is_sure, is_smallest and search.is_sure)


@dataclass
class _Search:
    """Looks for impossible parts of evidence that is impossible."""

    model: Model
    given: Evidence
    control: Control
    n_sums: int = 0
    is_sure: bool = True  # whether every sum was made

    def is_impossible(self, names: Iterable[str]) -> bool:
        self.control.check("looking for a conflict")
        self.n_sums += 1
        part, kept = set(names), self.given.items()
        found = _is_impossible(self.model, {name: value for name, value in kept if name in part}, self.control)
        self.is_sure &= found is not None
        return bool(found)

    def minimal(self) -> tuple[list[str], bool]:
        """Return a minimal impossible part and True, or one that may not be minimal and False."""
        kept = list(self.given)
        try:
            for block in _blocks(list(self.given)):
                rest = [name for name in kept if name not in block]
                if len(rest) < len(kept) and self.is_impossible(rest):
                    kept = rest
        except _OUT:
            return kept, False
        return kept, True

    def smallest(self, minimal: Sequence[str]) -> tuple[Sequence[str], bool]:
        """Return a smallest impossible part and True, or the minimal one and False where time or sums run out."""
        try:
            outside = [self.outside(set(minimal) - {name}) for name in minimal]
            while self.n_sums < MOST_SUMS:
                found = _meeting(outside, len(minimal) - 1)
                if found is None:
                    return minimal, True
                if self.is_impossible(found):
                    return found, True
                outside.append(self.outside(set(found)))
        except _OUT:
            pass
        return minimal, False

    def outside(self, possible: set[str]) -> list[str]:
        """Return the observations outside a maximal possible part that contains a given one."""
        for block in _blocks([name for name in self.given if name not in possible]):
            more = possible | block
            if len(possible) < len(more) < len(self.given) and not self.is_impossible(more):
                possible = more
        return [name for name in self.given if name not in possible]


def _blocks(names: Sequence[str]) -> Iterable[set[str]]:
    """Yield all names, then blocks of half as many and so on, then each name."""
    size = len(names)
    while size:
        yield from (set(names[start : start + size]) for start in range(0, len(names), size))
        size = size // 2 if size > 1 else 0


def _meeting(demands: Sequence[Sequence[str]], most: int) -> list[str] | None:
    """Return the fewest names of which each demand has one, or None if it takes more than `most`."""

    def more(chosen: list[str], n_left: int) -> list[str] | None:
        unmet = sorted((demand for demand in demands if not set(demand) & set(chosen)), key=len)
        apart: list[Sequence[str]] = []  # each takes a name of its own
        for demand in unmet:
            if all(set(demand).isdisjoint(other) for other in apart):
                apart.append(demand)
        if not unmet or len(apart) > n_left:
            return None if unmet else chosen
        found = (more([*chosen, name], n_left - 1) for name in unmet[0])
        return next((names for names in found if names is not None), None)

    found = (more([], size) for size in range(most + 1))
    return next((names for names in found if names is not None), None)


def with_conflict(error: ImpossibleEvidence, model: Any, evidence: Any, limits: Limits) -> ImpossibleEvidence:
    """Return an error that names the contradicting observations, or the given error if none are found."""
    if not isinstance(model, Model):  # a posterior, whose evidence is fixed
        return error
    seconds = min(FIRST, limits.control.seconds_left)
    control = replace(limits.control, deadline=Control.starting_now(seconds).deadline)
    found = conflict(model, evidence, control, PATIENCE) if seconds > 0.0 else None
    if found is None:
        return error
    observations = found.observations
    if not observations:
        return ImpossibleEvidence("the model gives no assignment any weight, whatever the evidence")
    shown = [f"{name}={value!r}" for name, value in list(observations.items())[:MOST_NAMED]]
    more = [f"and {len(observations) - MOST_NAMED} more"] if len(observations) > MOST_NAMED else []
    text = ", ".join([*shown, *more])
    if len(observations) == 1:
        return ImpossibleEvidence(f"the evidence has probability zero: {text} is impossible by itself")
    ending = "" if found.is_minimal else "; some of them alone may, which there was no time to find out"
    return ImpossibleEvidence(f"the evidence has probability zero: {text} contradict each other{ending}")


def _is_impossible(model: Model, evidence: Evidence, control: Control) -> bool | None:
    """Whether evidence has probability 0; None where sums are too large to tell."""
    from certimap.conversions import condition

    soft = stated(model.domain, evidence)
    possible = {name: {"likelihood": (own > 0.0).astype(np.float64)} for name, own in soft.items()}
    evidence, limits = {**evidence, **possible}, Limits(control=control)
    try:
        query = cheapest_query(model, evidence)
        condition(model, query, wants=wants_of(SUMMED), limits=limits)
    except ImpossibleEvidence:
        return True
    except QueryError:  # too far out to tell
        return None
    except TooLarge:
        try:
            condition(model, make_query(model.domain, None, evidence), limits=limits)
        except ImpossibleEvidence:
            return True
        return None
    return False


def cheapest_query(model: Model, evidence: Evidence) -> Query:
    """Return a query for the one variable with the fewest states, so that all others are summed out."""
    query = make_query(model.domain, None, evidence)
    if not len(query.variables):
        return query
    sizes = model.domain.n_states[query.variables]
    asked = query.variables[int(np.argmin(np.where(sizes > 0, sizes, np.iinfo(np.int64).max)))]
    return replace(query, variables=np.array([asked], np.int64))
