"""Checks of settings and of containers from outside; a bad value gets a one-sentence error."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from os import PathLike
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np

from certimap.errors import CertimapError, SolverError, did_you_mean

_Function = TypeVar("_Function", bound=Callable[..., Any])
_RANGE = re.compile(r"([\w, ]+) ([\[(])([^,]+), ([^\])]+)([\])])(?:; )?")
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")
# Keywords of `map_query` beside the model, the query and the settings of a named solver.
_WORDS = """
epsilon delta solver rng time_limit max_samples max_nodes max_memory warm_start upper_bound top_k top_mass
tolerance max_edges workers device constraints progress errors virtual_evidence show_progress proof max_proof
n_jobs executor extra unknown
"""
KEYWORDS = tuple(_WORDS.split())
_ELSEWHERE = {"seed": "rng", "random_state": "rng", "timeout": "time_limit", "threads": "workers", "n": "top_k"}


def check_number(name: str, value: Any, expected: str, error: type[CertimapError] = SolverError) -> float:
    """Return a setting that is a number (no bool, text or NaN); else raise `error` with what is `expected`."""
    number = plain_scalar(value)
    try:
        if isinstance(number, Real | int) and type(number) is not bool and not math.isnan(number):
            return number if isinstance(number, int) else float(number)
    except OverflowError:
        raise error(f"{name} is a number beyond floats; expected {expected}") from None
    raise error(f"{name} is {shown(value)}; expected {expected}")


def check_whole(
    name: str, value: Any, expected: str, error: type[CertimapError] = SolverError, low: int = 0
) -> int:
    """Return a setting as an int if it is whole (5.0 and 1e6 are) and at least `low`; else raise `error`."""
    number = check_number(name, value, expected, error)
    if not number >= low or math.isinf(number) or number != int(number):
        raise error(f"{name} is {shown(value)}; expected {expected}")
    return int(number)


@cache
def _ranges(kind: Any, text: str) -> list[tuple[str, float, float, bool, str]]:
    """Return each setting with its least and largest number, whether it may be several, and what is expected."""
    found: list[tuple[str, float, float, bool, str]] = []
    for names, bracket, low, high, end in _RANGE.findall(text):
        least = math.nextafter(float(low), math.inf) if bracket == "(" else float(low)
        most = math.nextafter(float(high), -math.inf) if end == ")" else float(high)
        for name in names.split(", "):
            given: str = kind.__dataclass_fields__[name].type
            expected = f"a {'' if 'float' in given else 'whole '}number in {bracket}{low}, {high}{end}"
            is_several = re.search("Sequence|Mapping|tuple", given) is not None
            expected += ", or several" * is_several + ", or None" * ("None" in given)
            found.append((name, least, most, is_several, expected))
    return found


def check_ranges(settings: object, ranges: str, error: type[CertimapError] = SolverError) -> None:
    """Raise `error` unless attributes of a dataclass are in `ranges`, such as "a, b [0, 1); c (0, inf)".

    Their annotations say whether they are whole numbers, may be several (in a list or by name), or None.
    """
    for name, least, most, is_several, expected in _ranges(type(settings), ranges):
        given = vars(settings)[name]
        values: Any = given.values() if is_mapping(given) else given
        is_list = is_several and is_iterable(values) and not isinstance(values, str)
        for value in (list(values) or [given]) if is_list else [given]:
            if value is None and expected.endswith("None"):
                continue
            number = check_number(name, value, expected, error)
            is_whole = isinstance(plain_scalar(value), int)
            if not least <= number <= most or not (is_whole or "whole" not in expected):
                raise error(f"{name} is {shown(value)}; expected {expected}")


def shown(value: Any) -> str:
    """Return a value as it is written in Python, on one line of at most 100 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."


def flag_checked(name: str, value: Any, error: type[CertimapError] = SolverError) -> None:
    """Raise an error unless a setting is True or False; a path given as one would be ignored."""
    if not isinstance(value, bool | np.bool_):
        raise error(f"{name} is {shown(value)}; expected True or False")


def seed_checked(rng: Any, error: type[CertimapError] = SolverError) -> None:
    """Raise an error unless `rng` is a seed, a numpy Generator or None."""
    if rng is None or isinstance(rng, np.random.Generator):
        return
    if isinstance(rng, bool) or not isinstance(rng, Integral) or rng < 0:
        raise error(f"rng is {shown(rng)}; expected a seed (an integer not below 0), a numpy Generator or None")


def meant_keyword(word: str, own: tuple[str, ...] | list[str] = ()) -> str:
    """Return a "did you mean" suffix for an unknown keyword, from those of `map_query` and `own`."""
    if word in _ELSEWHERE:
        return f"; did you mean {_ELSEWHERE[word]!r}?"
    return did_you_mean(word, (*own, *KEYWORDS))


def keywords_hinted(
    error: type[CertimapError] = SolverError, settings: str | None = None
) -> Callable[[_Function], _Function]:
    """Make a function raise `error` with the nearest keyword for one that it and class `settings` lack."""

    def hinted(function: _Function) -> _Function:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as reason:
                found = _UNKNOWN.search(str(reason))
                if found is None or found[1] not in kwargs:
                    raise
                known = list(inspect.signature(function).parameters)
                if settings is not None:
                    known += inspect.signature(function.__globals__[settings]).parameters
                meant = f"; did you mean {_ELSEWHERE[found[1]]!r}?" if _ELSEWHERE.get(found[1]) in known else ""
                hint = meant or did_you_mean(found[1], known)
            raise error(f"{function.__name__} takes no {found[1]!r}{hint}")

        return cast("_Function", call)

    return hinted


Record = dict[str, Any]  # an object of a JSON file


def _guard(*kinds: type) -> Callable[[object], Any]:
    return lambda value: isinstance(value, kinds)


# `isinstance`, after which a type checker knows the container, with entries of any type
is_list: Callable[[object], TypeGuard[list[Any]]] = _guard(list)
is_tuple: Callable[[object], TypeGuard[tuple[Any, ...]]] = _guard(tuple)
is_sequence: Callable[[object], TypeGuard[list[Any] | tuple[Any, ...]]] = _guard(list, tuple)
is_set: Callable[[object], TypeGuard[set[Any] | frozenset[Any]]] = _guard(set, frozenset)
is_dict: Callable[[object], TypeGuard[dict[Any, Any]]] = _guard(dict)
is_mapping: Callable[[object], TypeGuard[Mapping[Any, Any]]] = _guard(Mapping)
is_path: Callable[[object], TypeGuard[str | PathLike[str]]] = _guard(str, PathLike)


def is_records(value: object) -> TypeGuard[list[Mapping[Any, Any]]]:
    """Whether the value is a table as a list of mappings from names to values, one per row."""
    return is_list(value) and bool(value) and all(isinstance(row, Mapping) for row in value)


def has_names(data: Any) -> bool:
    """Whether a table has columns by name."""
    named = any(hasattr(data, attribute) for attribute in ("columns", "column_names", "__dataframe__"))
    return named or is_records(data) or isinstance(data, Mapping)


def is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether the value has entries; an array of no dimension has none."""
    return isinstance(value, Iterable) and not (isinstance(value, np.ndarray) and value.ndim == 0)


def is_missing(value: Any) -> bool:
    """Whether a value means 'unobserved': None, NaN, NaT or pandas.NA."""
    if value is None:
        return True
    try:
        return bool(value != value)  # NaN, NaT and pandas.NA (which raises below)
    except (TypeError, ValueError):
        return type(value).__name__ == "NAType"


def plain_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number or text; return anything else unchanged."""
    return value.item() if issubclass(type(value), np.generic) else value
