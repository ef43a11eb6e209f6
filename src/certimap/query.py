"""Turning a user's query and evidence into positions, weights and values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from certimap.domain import Categorical, Domain, Label, Real, as_real
from certimap.errors import QueryError


@dataclass(frozen=True, eq=False)
class Query:
    """A MAP query over a model's domain, in positions.

    Attributes
    ----------
    domain
        The model's domain.
    variables
        int64: positions of the query variables, in the user's order.
    log_weights
        float64, shape (total_states,): natural-log evidence weight of every state: 0 where nothing is
        known, -inf for states that the evidence excludes, ln of the likelihood for soft evidence.
    values
        Observed real variables, position to value (a density is taken there).
    intervals
        Real variables restricted to an interval, position to (low, high).
    observed
        Positions with hard evidence (one state, or one real value).
    """

    domain: Domain
    variables: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    values: Mapping[int, float]
    intervals: Mapping[int, tuple[float, float]]
    observed: frozenset[int]

    @property
    def query_domain(self) -> Domain:
        """The domain of the query variables, in the user's order."""
        return self.domain.subset(int(i) for i in self.variables)

    @property
    def nuisance(self) -> list[int]:
        """Positions that are neither queried nor observed."""
        queried = {int(i) for i in self.variables}
        return [i for i in range(len(self.domain)) if i not in queried and i not in self.observed]


def make_query(domain: Domain, variables: Sequence[str] | str | None = None, evidence: Any = None) -> Query:
    """Check a query against a domain.

    Parameters
    ----------
    domain
        The model's variables.
    variables
        Names of the query variables; None means all that have no hard evidence, which may be none.
    evidence
        A mapping or a pandas Series from names to: a label (hard evidence; None and NaN mean
        unobserved); a set of labels (restricts); a sequence or array of one likelihood a state, or a
        mapping from labels to likelihoods (weighs); a number for a real variable, or a (low, high)
        tuple for an interval.

    Raises
    ------
    QueryError
        For an unknown name or state, a query variable with hard evidence, an empty query, or weights
        that are negative, not finite, or all zero.
    """
    log_weights = np.zeros(domain.total_states)
    values: dict[int, float] = {}
    intervals: dict[int, tuple[float, float]] = {}
    observed: set[int] = set()
    for name, value in _items(evidence):
        if _is_missing(value):
            domain.index(name)
            continue
        i = domain.index(name)
        variable = domain.variables[i]
        if isinstance(variable, Real):
            if isinstance(value, tuple):
                intervals[i] = _interval(variable, cast("tuple[Any, ...]", value))
            else:
                values[i] = as_real(variable, value)
                observed.add(i)
            continue
        weights, hard = _state_weights(variable, value)
        log_weights[domain.offsets[i] : domain.offsets[i + 1]] = weights
        if hard:
            observed.add(i)
    positions = _query_positions(domain, variables, observed)
    return Query(domain, positions, log_weights, values, intervals, frozenset(observed))


def check_names(domain: Domain, variables: Sequence[str] | str | None, observed: Iterable[Any]) -> None:
    """Refuse what would fail every row of a table of evidence: a query or a column that names no variable."""
    if variables is not None:
        _query_positions(domain, variables, set())
    for name in observed:
        domain.index(name)


def _items(evidence: Any) -> Iterable[tuple[Any, Any]]:
    if evidence is None:
        return ()
    if isinstance(evidence, Mapping):
        return cast("Mapping[Any, Any]", evidence).items()
    if hasattr(evidence, "items") and hasattr(evidence, "index"):
        return cast("Iterable[tuple[Any, Any]]", evidence.items())
    raise QueryError(
        f"evidence of type {type(evidence).__name__} was given; a mapping from names to values or a pandas Series "
        "is accepted"
    )


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)  # NaN, NaT and pandas.NA (which raises below)
    except (TypeError, ValueError):
        return type(value).__name__ == "NAType"


def _interval(variable: Real, value: tuple[Any, ...]) -> tuple[float, float]:
    if len(value) == 2:
        low, high = (float(x) for x in value)
        low, high = max(low, variable.low), min(high, variable.high)
        if low < high:
            return low, high
    raise QueryError(
        f"the interval {value!r} of variable {variable.name!r} is empty or no pair; "
        f"(low, high) with low < high inside [{variable.low}, {variable.high}] is accepted"
    )


def _state_weights(variable: Categorical, value: Any) -> tuple[NDArray[np.float64], bool]:
    """Return the log weight of each state, and whether one state is observed for certain."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Label, Any]", value)
        likelihood = np.zeros(variable.n_states)
        for label, weight in pairs.items():
            likelihood[variable.index(label)] = float(weight)
        return _log_likelihood(variable, likelihood), False
    if isinstance(value, set | frozenset):
        labels = cast("set[Label]", value)
        if not labels:
            raise QueryError(f"the evidence on variable {variable.name!r} is an empty set of states")
        weights = np.full(variable.n_states, -math.inf)
        for label in labels:
            weights[variable.index(label)] = 0.0
        return weights, False
    if isinstance(value, np.ndarray) and cast("NDArray[Any]", value).ndim == 0:
        value = cast("NDArray[Any]", value).item()
    is_vector = isinstance(value, list | np.ndarray) or (isinstance(value, tuple) and value not in variable.states)
    if is_vector:
        likelihood = np.asarray(value, dtype=np.float64)
        if likelihood.shape != (variable.n_states,):
            raise QueryError(
                f"the likelihood of variable {variable.name!r} has shape {likelihood.shape}; "
                f"one weight for each of its {variable.n_states} states is accepted"
            )
        return _log_likelihood(variable, likelihood), False
    weights = np.full(variable.n_states, -math.inf)
    weights[variable.index(cast("Label", value))] = 0.0
    return weights, True


def _log_likelihood(variable: Categorical, likelihood: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.all(np.isfinite(likelihood)) or np.any(likelihood < 0) or not np.any(likelihood > 0):
        raise QueryError(
            f"the likelihood of variable {variable.name!r} is {likelihood.tolist()}; "
            "finite weights that are not negative and not all zero are accepted"
        )
    with np.errstate(divide="ignore"):
        return np.log(likelihood)


def _query_positions(
    domain: Domain, variables: Sequence[str] | str | None, observed: set[int]
) -> NDArray[np.int64]:
    if variables is None:
        return np.array([i for i in range(len(domain)) if i not in observed], np.int64)
    names = [variables] if isinstance(variables, str) else list(variables)
    if not names:
        raise QueryError("the query names no variable; at least one is needed")
    positions = [domain.index(name) for name in names]
    for i in positions:
        if i in observed:
            raise QueryError(
                f"variable {domain.names[i]!r} is queried and has evidence; it can be one or the other"
            )
    if len(set(positions)) != len(positions):
        doubled = next(n for n in names if names.count(n) > 1)
        raise QueryError(f"variable {doubled!r} is queried twice; name it once")
    return np.array(positions, np.int64)
