"""Constraints on the answer of a query, as data.

A constraint says which joint states of some categorical variables may be an answer: weights of states add up to a
number within bounds, or the states are one of some rows, or two labels differ. `certimap.core.rules` makes
automata of these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, cast

from certimap.core.arguments import (
    Record,
    check_number,
    check_whole,
    is_dict,
    is_iterable,
    is_list,
    is_mapping,
    is_sequence,
    is_tuple,
    plain_scalar,
    shown,
)
from certimap.core.domain import Label
from certimap.errors import QueryError, did_you_mean

Pairs = tuple[tuple[Any, Any], ...]  # names with labels or weights, in order: what a constraint holds
States = Mapping[str, Label] | Pairs


class WeightSum(NamedTuple):
    """States of variables have weights, the others 0, which add up to a number from `low` to `high`."""

    weights: Mapping[str, Mapping[Label, int]]
    low: float  # whole numbers, or infinite
    high: float

    @property
    def names(self) -> Sequence[str]:
        """The variables."""
        return list(self.weights)


class RowSet(NamedTuple):
    """Variables have the states of one of some rows."""

    names: Sequence[str]
    rows: Iterable[Sequence[Label]]


class Different(NamedTuple):
    """Two variables have different labels."""

    names: Sequence[str]


Part = WeightSum | RowSet | Different


@dataclass(frozen=True)
class Constraint:
    """A rule that an answer satisfies or not; each kind says which.

    Constraints compare and hash by their contents, print as the call that makes them, and have a JSON form
    (`to_dict`, `constraints_of`). A bad shape raises QueryError.
    """

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the variables, in order, each once."""
        return tuple(dict.fromkeys(name for name, _ in self.labels))

    @property
    def labels(self) -> Iterable[tuple[str, Label]]:
        """The labels that the constraint names, with their variables."""
        return ()

    @property
    def parts(self) -> Iterable[Part]:
        """What says the same as the constraint, together."""
        raise NotImplementedError

    def to_dict(self) -> Record:
        """Return the JSON form: the kind and its arguments."""
        arguments = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"kind": type(self).__name__, **arguments}

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _plain(value: Any) -> Any:
    """Return a JSON form: tuples become lists."""
    return [_plain(v) for v in value] if is_tuple(value) else value


def _label(value: Any) -> Any:
    """Return a label; a list (of a JSON file) becomes a tuple."""
    return tuple(_label(v) for v in value) if is_list(value) else plain_scalar(value)


def _names(place: str, names: Any) -> tuple[str, ...]:
    """Check a list of distinct names, at least one."""
    if isinstance(names, str) or not is_iterable(names):
        raise QueryError(f"{place} has the names {shown(names)}; expected a list of names of variables")
    found = tuple(names)
    if not found:
        raise QueryError(f"{place} names no variable; at least one is needed")
    for name in found:
        if not isinstance(name, str):
            raise QueryError(f"{place} has the name {shown(name)}; expected text")
        if found.count(name) > 1:
            raise QueryError(f"{place} names variable {name!r} twice; name it once")
    return found


def _pairs(place: str, given: Any, expected: str = "a mapping from names to labels") -> Pairs:
    """Check a mapping, or the pairs of one."""
    pairs = list(given.items()) if is_mapping(given) else given
    if not is_sequence(pairs) or not all(is_sequence(p) and len(p) == 2 for p in pairs):
        raise QueryError(f"{place} has {shown(given)}; expected {expected}")
    return tuple((_label(key), _label(value)) for key, value in pairs)


def _states(place: str, given: Any) -> Pairs:
    """Check a mapping from names to labels, at least one."""
    pairs = _pairs(place, given)
    _names(place, [name for name, _ in pairs])
    return pairs


def _finite(place: str, value: Any) -> float:
    number = float(check_number(place, value, "a finite number", QueryError))
    if not math.isfinite(number):
        raise QueryError(f"{place} is {value!r}; expected a finite number")
    return number


@dataclass(frozen=True)
class _Counted(Constraint):
    """A number of variables with one label, at least 0; the label is a state of each of the variables."""

    k: int
    names: Sequence[str]
    state: Label
    _at_least: ClassVar[bool] = True  # whether the number is at least k, and
    _at_most: ClassVar[bool] = True  # at most k

    def __post_init__(self) -> None:
        place = type(self).__name__
        k = check_whole(f"the number of {place}", self.k, "a whole number, at least 0", QueryError)
        self._set(k=k, names=_names(place, self.names), state=_label(self.state))

    @property
    def labels(self) -> Iterable[tuple[str, Label]]:
        return ((name, self.state) for name in self.names)

    @property
    def parts(self) -> Iterable[Part]:
        low, high = self.k if self._at_least else -math.inf, self.k if self._at_most else math.inf
        return [WeightSum({name: {self.state: 1} for name in self.names}, low, high)]


class AtMost(_Counted):
    """At most `k` (a whole number from 0) of the variables `names` have the label `state`, which each has."""

    _at_least = False


class AtLeast(_Counted):
    """At least `k` (a whole number from 0) of the variables `names` have the label `state`, which each has."""

    _at_most = False


class Exactly(_Counted):
    """Exactly `k` (a whole number from 0) of the variables `names` have the label `state`, which each has."""


@dataclass(frozen=True)
class Implies(Constraint):
    """Where variables have the states of the `premise`, they have those of the `conclusion` (labels by name)."""

    premise: States
    conclusion: States

    def __post_init__(self) -> None:
        premise = _states("the premise of Implies", self.premise)
        self._set(premise=premise, conclusion=_states("the conclusion of Implies", self.conclusion))

    def __repr__(self) -> str:
        return f"Implies({dict(self.premise)!r}, {dict(self.conclusion)!r})"

    @property
    def labels(self) -> Iterable[tuple[str, Label]]:
        return (*dict(self.premise).items(), *dict(self.conclusion).items())

    @property
    def parts(self) -> Iterable[Part]:
        """A state of the premise weighs as much as the whole conclusion, whose states take 1 off each."""
        weights: dict[str, dict[Label, int]] = {name: {} for name in self.order}
        weight = len(self.conclusion)
        for side, added in ((self.premise, weight), (self.conclusion, -1)):
            for name, label in dict(side).items():
                weights[name][label] = weights[name].get(label, 0) + added
        return [WeightSum(weights, -math.inf, weight * len(self.premise) - weight)]


@dataclass(frozen=True, init=False)
class Never(Constraint):
    """Variables never have all of the `states` (labels by name; `more` as keywords) together."""

    states: States

    def __init__(self, states: States = (), /, **more: Label) -> None:
        given = list(states.items()) if is_mapping(states) else states
        self._set(states=_states("Never", [*given, *more.items()] if is_sequence(given) else given))

    def __repr__(self) -> str:
        return f"Never({dict(self.states)!r})"

    @property
    def labels(self) -> Iterable[tuple[str, Label]]:
        return dict(self.states).items()

    @property
    def parts(self) -> Iterable[Part]:
        return [WeightSum({name: {label: 1} for name, label in self.labels}, -math.inf, len(self.states) - 1)]


@dataclass(frozen=True)
class AllDifferent(Constraint):
    """No two of the variables `names`, at least two, have the same label."""

    names: Sequence[str]

    def __post_init__(self) -> None:
        names = _names("AllDifferent", self.names)
        if len(names) < 2:
            raise QueryError(f"AllDifferent has the names {shown(names)}; expected two or more")
        self._set(names=names)

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.names)

    @property
    def parts(self) -> Iterable[Part]:
        return map(Different, itertools.combinations(self.names, 2))


@dataclass(frozen=True)
class Linear(Constraint):
    """The weights of the variables' states add up to a number within the bounds.

    Sums are exact: a float is taken at its exact value, so that .1 + .2 exceeds .3.

    `weights`: a mapping from names to mappings from labels to finite numbers; the other labels weigh 0.
    `at_most`, `at_least`: the bounds, finite; one may be None.
    """

    weights: Mapping[str, Mapping[Any, float]] | Pairs
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        pairs = _pairs("Linear", self.weights, "a mapping from names to the weights of labels")
        _names("Linear", [name for name, _ in pairs])
        form = "a mapping from labels to numbers"
        read = {name: _pairs(f"Linear, for variable {name!r},", found, form) for name, found in pairs}
        self._set(
            weights=tuple(
                (n, tuple((label, _finite(f"the weight of {n}={label!r}", w)) for label, w in found))
                for n, found in read.items()
            )
        )
        if self.at_most is None and self.at_least is None:
            raise QueryError("Linear has no bound; expected at_most, at_least or both")
        self._set(**{name: _finite(f"{name} of Linear", x) for name, x in self._ends.items()})

    def __repr__(self) -> str:
        ends = "".join(f", {name}={x!r}" for name, x in self._ends.items())
        return f"Linear({self._weights!r}{ends})"

    @property
    def _ends(self) -> dict[str, float]:
        """The bounds that are given, by name."""
        ends = {"at_most": self.at_most, "at_least": self.at_least}
        return {name: x for name, x in ends.items() if x is not None}

    @property
    def _weights(self) -> dict[str, dict[Label, float]]:
        return {name: dict(found) for name, found in cast(Pairs, self.weights)}

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self._weights)

    @property
    def labels(self) -> Iterable[tuple[str, Label]]:
        return ((name, label) for name, found in self._weights.items() for label in found)

    @property
    def parts(self) -> Iterable[Part]:
        """Weights and bounds are multiplied by the number that makes all of them whole."""
        ends, weights = self._ends, self._weights
        numbers = [w for found in weights.values() for w in found.values()]
        scale = math.lcm(*(Fraction(x).denominator for x in (*numbers, *ends.values())))
        whole = {n: {x: int(Fraction(w) * scale) for x, w in found.items()} for n, found in weights.items()}
        bounds = {name: int(Fraction(x) * scale) for name, x in ends.items()}
        return [WeightSum(whole, bounds.get("at_least", -math.inf), bounds.get("at_most", math.inf))]


@dataclass(frozen=True)
class Allowed(Constraint):
    """The variables `names` have the labels of one of the `rows`, at least one, of one label per variable."""

    names: Sequence[str]
    rows: Iterable[Sequence[Label]]

    def __post_init__(self) -> None:
        names = _names("Allowed", self.names)
        rows = [_label(list(row)) if is_iterable(row) else row for row in cast(Iterable[Any], self.rows)]
        if not rows:
            raise QueryError("Allowed has no row; at least one is needed")
        for row in rows:
            if not is_tuple(row) or len(row) != len(names):
                raise QueryError(f"Allowed has the row {shown(row)}; expected one label for each of {names}")
        self._set(names=names, rows=tuple(dict.fromkeys(rows)))

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.names)

    @property
    def labels(self) -> Iterable[tuple[str, Label]]:
        return ((name, label) for row in self.rows for name, label in zip(self.names, row, strict=True))

    @property
    def parts(self) -> Iterable[Part]:
        return [RowSet(self.names, self.rows)]


_KINDS = {k.__name__: k for k in (AtMost, AtLeast, Exactly, Never, Implies, AllDifferent, Linear, Allowed)}


def constraints_of(items: Any) -> tuple[Constraint, ...]:
    """Return constraints from a list of them or of their JSON forms (see `Constraint.to_dict`).

    Mappings may stand for lists of pairs: `{"kind": "Never", "states": {"lung": "yes", "bronc": "yes"}}`. Raises
    QueryError for anything else.
    """
    if isinstance(items, Constraint) or is_dict(items):
        items = [items]
    if not is_sequence(items):
        raise QueryError(f"the constraints are {shown(items)}; expected a list of constraints")
    return tuple(item if isinstance(item, Constraint) else _from_record(item) for item in items)


def _from_record(record: Any) -> Constraint:
    """Return the constraint of one JSON form."""
    kind = record.get("kind") if is_dict(record) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        meant = did_you_mean(str(kind), _KINDS)
        raise QueryError(f"{shown(record)} is no constraint; its 'kind' is one of {', '.join(_KINDS)}{meant}")
    arguments = {name: value for name, value in cast(Record, record).items() if name != "kind"}
    try:
        return Never(arguments.pop("states"), **arguments) if kind == "Never" else _KINDS[kind](**arguments)
    except (TypeError, KeyError):
        expected = ", ".join(f.name for f in fields(_KINDS[kind]))
        raise QueryError(f"{shown(record)} is no constraint; {kind} takes {expected}") from None
