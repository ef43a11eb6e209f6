"""Ordered variables with names and states. Labels are translated to positions only here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from certimap.core.arguments import is_missing, shown
from certimap.core.arrays import Array, Ints
from certimap.core.cached import cached_property
from certimap.errors import ModelError, QueryError, did_you_mean

Label = Hashable
OTHER = "(other)"  # the state of labels that were too rare to have states of their own
MAX_STATES = 32767  # points are stored as int16
_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)


def _shown(values: Sequence[object], limit: int = 8) -> str:
    """List values for an error message, cut after `limit`."""
    text = ", ".join(repr(v) for v in values[:limit])
    return text if len(values) <= limit else f"{text}, ... ({len(values)} in all)"


def _as_whole(text: str) -> str:
    """Drop the point of a whole number: 1.0 becomes 1."""
    found = _WHOLE.fullmatch(text)
    return found[1] if found else text


_FOLDS: tuple[Callable[[str], str], ...] = (str, _as_whole, str.casefold)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise ModelError(f"a variable is named {name!r}; expected a str")


@dataclass(frozen=True)
class Categorical:
    """A discrete variable: a name and its state labels, in order.

    Labels are compared as dictionary keys, so `True`, `1`, `np.int64(1)` and `1.0` are the same
    label; a position is never taken for a label.

    `name`: its name in evidence, queries and answers.
    `states`: its labels, at least one, each once: anything hashable.
    """

    name: str
    states: tuple[Label, ...]

    def __post_init__(self) -> None:
        _check_name(self.name)
        states: Any = self.states
        if isinstance(states, bytes) or not isinstance(states, Sequence):
            raise ModelError(f"variable {self.name!r} has the states {states!r}; expected a tuple of labels")
        if not self.states:
            raise ModelError(f"variable {self.name!r} has no states; at least one is needed")
        if len(self.states) > MAX_STATES:
            raise ModelError(
                f"variable {self.name!r} has {len(self.states)} states; expected at most {MAX_STATES}"
            )
        if any(is_missing(label) for label in self.states):
            raise ModelError(
                f"variable {self.name!r} has a state labelled None or NaN, which means 'unobserved' in evidence; "
                "expected another label, such as 'none'"
            )
        if len(self._positions) != len(self.states):
            raise ModelError(f"variable {self.name!r} has a doubled state among {_shown(self.states)}")

    @property
    def n_states(self) -> int:
        return len(self.states)

    def renamed(self, name: str) -> Categorical:
        """Return a variable of the same states called `name`; both share one table of them."""
        made = object.__new__(Categorical)
        vars(made).update(vars(self), name=name)
        return made

    @cached_property
    def _positions(self) -> dict[Label, int]:
        return {label: i for i, label in enumerate(self.states)}

    def __contains__(self, label: Label) -> bool:
        return label in self._positions

    def index(self, label: Label) -> int:
        """Return the position of a `label`; raises QueryError when it is not a state of the variable."""
        try:
            return self._positions[label]
        except (KeyError, TypeError):
            raise QueryError(
                f"{shown(label)} is no state of variable {self.name!r}; {self._meant(label)}"
            ) from None

    def parse(self, text: str) -> Label:
        """Return the label that a `text` from a shell or a file names.

        A label equal to the text wins; otherwise the one label that prints as the text. `1.0` and `1` count as the
        same text, and so do words that differ in case only. Raises QueryError when the text names no state, or
        several.
        """
        if text in self._positions:
            return self.states[self._positions[text]]
        for fold, groups in zip(_FOLDS, self._groups, strict=True):
            if len(found := groups.get(fold(text), [])) == 1:
                return found[0]
        return self.states[self.index(text)]

    @cached_property
    def _groups(self) -> list[dict[str, list[Label]]]:
        """The states that print alike, by their text under each of `_FOLDS`."""
        found: list[dict[str, list[Label]]] = [{} for _ in _FOLDS]
        for state in self.states:
            for fold, groups in zip(_FOLDS, found, strict=True):
                groups.setdefault(fold(str(state)), []).append(state)
        return found

    def _meant(self, label: object) -> str:
        """Return a hint: the state that prints the same, else near misses, else the list of states."""
        by_text, by_number, _ = self._groups
        same = by_number.get(_as_whole(str(label)), [])
        if len(same) == 1:
            kind = "text" if isinstance(same[0], str) else f"of type {type(same[0]).__name__}"
            return f"its states are {kind}: give {same[0]!r}"
        return f"its states are {_shown(self.states)}{did_you_mean(str(label), by_text)}"


@dataclass(frozen=True)
class Real:
    """A continuous variable: a name and a closed interval of values.

    `name`: its name in evidence, queries and answers.
    `low`, `high`: the interval's ends; infinite by default.
    `is_whole`: whether answers are whole numbers: the best number found is rounded, and judged anew.
    """

    name: str
    low: float = -math.inf
    high: float = math.inf
    is_whole: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        ends: tuple[Any, Any] = (self.low, self.high)
        if not all(isinstance(end, int | float | np.number) for end in ends):
            raise ModelError(f"variable {self.name!r} has the ends {ends!r}; expected two numbers")
        if not self.low < self.high:
            raise ModelError(
                f"variable {self.name!r} has the interval [{self.low}, {self.high}]; low must be below high"
            )

    @property
    def n_states(self) -> int:
        return 0

    def parse(self, text: str) -> float:
        """Return the number that a `text` names; raises QueryError when it names none."""
        with suppress(ValueError):
            if "_" not in text and not math.isnan(number := float(text)):
                return number
        raise QueryError(f"{text!r} is no value of variable {self.name!r}; expected a number")


Variable = Categorical | Real


class Domain:
    """Ordered variables; immutable.

    - `variables`: the variables, in order.
    - `n_states`: int64, shape (n,): the number of states of each; 0 marks a real variable.
    - `offsets`: int64, shape (n + 1,): variable i owns columns `offsets[i]:offsets[i+1]` of every array of shape
      (..., total_states).
    - `interventions`: the label (the number of a real variable, which is then no variable any more) that `do` set,
      by name.
    """

    def __init__(self, variables: Iterable[Variable], interventions: Mapping[str, Label] | None = None) -> None:
        self.variables: tuple[Variable, ...] = tuple(variables)
        self.interventions: dict[str, Label] = dict(interventions or {})
        for v in self.variables:
            if not isinstance(v, Categorical | Real):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModelError(f"{v!r} is no variable; expected a Categorical or a Real")
        self._index: dict[str, int] = {v.name: i for i, v in enumerate(self.variables)}
        if len(self._index) != len(self.variables):
            names = [v.name for v in self.variables]
            doubled = next(n for n in names if names.count(n) > 1)
            raise ModelError(f"variable {doubled!r} is declared twice; names must be distinct")
        self.n_states: Ints = np.array([v.n_states for v in self.variables], np.int64)
        self.offsets: Ints = np.concatenate([[0], np.cumsum(self.n_states)]).astype(np.int64)
        self.n_states.setflags(write=False)
        self.offsets.setflags(write=False)

    @classmethod
    def of_sizes(cls, sizes: Iterable[int]) -> Domain:
        """Build variables "0", "1", ... of the given `sizes`, with states 0..K-1, as in UAI and .spn files."""
        return cls(Categorical(str(i), tuple(range(k))) for i, k in enumerate(sizes))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.variables)

    @cached_property
    def total_states(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def is_discrete(self) -> bool:
        """Whether every variable is categorical."""
        return bool(np.all(self.n_states > 0))

    @cached_property
    def point_dtype(self) -> np.dtype[Any]:
        """The dtype of points: int16 state positions, or float64 when a variable is real."""
        return np.dtype(np.int16) if self.is_discrete else np.dtype(np.float64)

    @cached_property
    def log_size(self) -> float:
        """The natural log of the number of joint states; inf with a real variable."""
        return float(np.sum(np.log(self.n_states))) if self.is_discrete else math.inf

    @property
    def done(self) -> str:
        """The interventions as text, such as do(smoke='no'); empty without any."""
        pairs = ", ".join(f"{name}={label!r}" for name, label in self.interventions.items())
        return f"do({pairs})" if pairs else ""

    def __len__(self) -> int:
        return len(self.variables)

    def __iter__(self) -> Iterator[Variable]:
        return iter(self.variables)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> Variable:
        return self.variables[self.index(name)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.variables == other.variables

    def __hash__(self) -> int:
        return hash(self.variables)

    def __repr__(self) -> str:
        return f"Domain({_shown(self.names)})"

    def index(self, name: object) -> int:
        """Return the position of the variable `name`; raises QueryError, with near misses, if there is none."""
        if isinstance(name, str) and name in self._index:
            return self._index[name]
        text = str(name)
        if text in self.interventions:
            raise QueryError(f"{name!r} is no variable any more: {self.done} set it")
        if not isinstance(name, str) and text in self._index:
            raise QueryError(f"{name!r} is no variable of the model; names are text: give {text!r}")
        meant = f"its variables are {_shown(self.names)}{did_you_mean(text, self._index)}"
        raise QueryError(f"{name!r} is no variable of the model; {meant}")

    def subset(self, positions: Iterable[int]) -> Domain:
        """Return the domain of the variables at `positions`, in the given order."""
        return Domain(self.variables[i] for i in positions)

    def encode(self, assignment: dict[str, Label]) -> Array:
        """Return a full `assignment` of labels (numbers for real variables) by name as one point, shape (n,).

        A point holds state positions, and is float64 where a variable is real. Raises QueryError for a variable
        without a label, and for unknown labels.
        """
        missing = [n for n in self.names if n not in assignment]
        if missing:
            raise QueryError(f"the assignment lacks a value for {_shown(missing)}")
        for name in assignment:
            self.index(name)
        point = np.empty(len(self), self.point_dtype)
        for i, variable in enumerate(self.variables):
            value = assignment[variable.name]
            if isinstance(variable, Categorical):
                point[i] = variable.index(value)
            else:
                point[i] = as_real(variable, value)
        return point

    def decode(self, point: Array) -> dict[str, Label]:
        """Return the labels by name of one `point`: state positions (values of real variables), shape (n,)."""
        return {
            v.name: v.states[int(x)]
            if isinstance(v, Categorical)
            else (int(x) if v.is_whole and x == np.rint(x) else float(x))
            for v, x in zip(self.variables, point, strict=True)
        }


def as_real(variable: Real, value: Any) -> float:
    """Convert a user's value to a number inside the variable's interval, or raise QueryError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not variable.low <= number <= variable.high:
        raise QueryError(
            f"{value!r} is no value of variable {variable.name!r}; "
            f"expected a number in [{variable.low}, {variable.high}]"
        )
    return number
