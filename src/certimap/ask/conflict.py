"""Finds observations that contradict each other: a minimal impossible set."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.core.arguments import is_missing
from certimap.core.control import Control, Limits, TimeUp
from certimap.core.model import Model
from certimap.core.query import Evidence, Query, items_of, make_query
from certimap.errors import ImpossibleEvidence, QueryError, TooLarge
from certimap.solvers.registry import wants_of

SUMMED = "set_elimination"  # its representation (a tree, else a circuit) sums exactly
PATIENCE = 3.0  # seconds for naming a conflict after the evidence was found impossible, and
FIRST = 10.0  # seconds for the first sum, which may compile kernels
MOST_NAMED = 8  # observations of a conflict that an error names


def conflict(
    model: Model, evidence: Any, control: Control | None = None, patience: float = math.inf
) -> tuple[Evidence, bool] | None:
    """Return observations that contradict each other, and whether they are minimal; None if there are none.

    The observations are a part of the evidence that has probability 0 by itself, and is possible without any one
    of them if it is minimal. The part is empty if the model gives every assignment weight 0. None if the evidence
    is possible, or if this cannot be decided before the control's deadline, or within `patience` seconds after the
    first sum. Large parts of the n observations are removed first, so that about k ln n sums find k of them.
    """
    control = Control() if control is None else control
    kept = {name: value for name, value in items_of(evidence) if not is_missing(value)}
    try:
        if not _is_impossible(model, kept, control):
            return None
    except (TimeUp, TooLarge, MemoryError):
        return None
    if patience < math.inf:
        control.deadline = Control.starting_now(min(patience, control.seconds_left)).deadline
    size = len(kept)
    while size:
        names = list(kept)
        for start in range(0, len(names), size):
            left_out = set(names[start : start + size])
            rest = {name: value for name, value in kept.items() if name not in left_out}
            try:
                control.check("looking for a conflict")
                if len(rest) < len(kept) and _is_impossible(model, rest, control):
                    kept = rest
            except (TimeUp, TooLarge, MemoryError):
                return kept, False
        size = size // 2 if size > 1 else 0
    return kept, True


def with_conflict(error: ImpossibleEvidence, model: Any, evidence: Any, limits: Limits) -> ImpossibleEvidence:
    """Return an error that names the contradicting observations, or the given error if none are found."""
    if not isinstance(model, Model):  # a posterior, whose evidence is fixed
        return error
    seconds = min(FIRST, limits.control.seconds_left)
    control = replace(limits.control, deadline=Control.starting_now(seconds).deadline)
    found = conflict(model, evidence, control, PATIENCE) if seconds > 0.0 else None
    if found is None:
        return error
    observations, is_smallest = found
    if not observations:
        return ImpossibleEvidence("the model gives no assignment any weight, whatever the evidence")
    shown = [f"{name}={value!r}" for name, value in list(observations.items())[:MOST_NAMED]]
    if len(observations) > MOST_NAMED:
        shown.append(f"and {len(observations) - MOST_NAMED} more")
    text = ", ".join(shown)
    if len(observations) == 1:
        return ImpossibleEvidence(f"the evidence has probability zero: {text} is impossible by itself")
    ending = "" if is_smallest else "; some of them alone may, which there was no time to find out"
    return ImpossibleEvidence(f"the evidence has probability zero: {text} contradict each other{ending}")


def _is_impossible(model: Model, evidence: Evidence, control: Control) -> bool:
    """Whether evidence has probability 0; if sums are too large, False may mean unknown."""
    from certimap.conversions import condition

    query = _cheap_query(model, evidence)
    limits = Limits(control=control)
    try:
        condition(model, query, wants=wants_of(SUMMED), limits=limits)
    except ImpossibleEvidence:
        return True
    except QueryError:  # too far out to tell
        return False
    except TooLarge:
        try:
            condition(model, make_query(model.domain, None, evidence), limits=limits)
        except ImpossibleEvidence:
            return True
    return False


def _cheap_query(model: Model, evidence: Evidence) -> Query:
    """Return a query for the one variable with the fewest states, so that all others are summed out."""
    query = make_query(model.domain, None, evidence)
    if not len(query.variables):
        return query
    sizes = model.domain.n_states[query.variables]
    asked = query.variables[int(np.argmin(np.where(sizes > 0, sizes, np.iinfo(np.int64).max)))]
    return replace(query, variables=np.array([asked], np.int64))
