"""Shared code of the readers of other libraries' objects: attributes, arrays, names, conventions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from certimap.core.arguments import is_sequence, plain_scalar, shown
from certimap.core.arrays import Floats
from certimap.core.model import Model
from certimap.errors import MissingDependency, ModelError, QueryError

_HALF_LOG_2PI = 0.9189385332046727


@dataclass(frozen=True)
class Wishes:
    """The user's further arguments.

    `steps`: the length of a sequence model; None if not given. `names`: names of the variables, for objects
    without names.
    """

    steps: int | None = None
    names: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """A converted model, and the means to compare it with the original object.

    `model`: the converted model. `theirs`: returns the library's own log values at points, shape (n, n_variables):
    positions of states, and values of real variables; it ignores the columns of hidden variables. `compared`: the
    model to compare, a shorter sequence for instance; None for `model` itself. `states`: number of states of each
    variable to compare, if the library rejects the others. `hidden`: positions of discrete variables that the
    library sums out.
    """

    model: Model
    theirs: Callable[[Floats], Any]
    compared: Model | None = None
    states: Sequence[int] | None = None
    hidden: Collection[int] = ()


def library(function: str, module: str) -> Any:
    """Import a module of another library that a function needs."""
    try:
        return import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise MissingDependency(f"{function} needs {name}: pip install {name}") from None


def kind_of(x: object) -> str:
    """Return the name of an object's class for errors: library.Class."""
    return f"{library_of(x)}.{type(x).__name__}"


def library_of(x: object) -> str:
    """Return the package of an object's class."""
    return type(x).__module__.partition(".")[0]


def classes_of(x: object) -> tuple[str, ...]:
    """Return the names of an object's classes, the nearest first."""
    return tuple(cls.__name__ for cls in type(x).__mro__)


def attribute(x: Any, *names: str) -> Any:
    """Return the value of an attribute, which may be nested.

    Raises ModelError if it is absent, as in an unsupported version of the library.
    """
    value = x
    for name in names:
        try:
            value = getattr(value, name)
        except AttributeError:
            raise ModelError(
                f"a {kind_of(x)} without the attribute {'.'.join(names)!r} was given; this version of "
                f"{library_of(x)} keeps it elsewhere, and nothing is guessed"
            ) from None
    return value


def fitted(x: Any, name: str) -> Any:
    """Return an attribute that only fitted objects have; ModelError if it is absent."""
    try:
        return getattr(x, name)
    except AttributeError:
        library = {"sklearn": "scikit-learn"}.get(library_of(x), library_of(x))
        raise ModelError(
            f"this {kind_of(x)} has no {name}: it is not fitted (call fit first), or this version of {library} "
            "keeps it elsewhere"
        ) from None


def numbers(x: Any) -> Floats:
    """Return a tensor, an array or a list as float64; a new array."""
    if str(getattr(x, "dtype", "")) == "torch.bfloat16":  # unknown to numpy
        x = x.double()
    for step in ("detach", "cpu", "numpy"):
        if hasattr(x, step):
            x = getattr(x, step)()
    if np.iscomplexobj(x):
        raise ModelError("a parameter is complex; expected circuits of real numbers that are not negative")
    return np.array(x, np.float64)


def log_normal(values: Floats, means: Any, sds: Any) -> Floats:
    """Return the natural logs of normal densities."""
    return -0.5 * ((values - means) / sds) ** 2 - np.log(sds) - _HALF_LOG_2PI


def logs(values: Floats) -> Floats:
    """Return natural logs; -inf for 0."""
    with np.errstate(divide="ignore"):
        return np.log(values)


def log_softmax(logits: Floats, axis: int | tuple[int, ...]) -> Floats:
    """Return logs of weights that add to 1 along an axis, in double precision."""
    top = logits.max(axis=axis, keepdims=True)
    shifted = logits - np.where(np.isfinite(top), top, 0.0)
    return shifted - logs(np.exp(shifted).sum(axis=axis, keepdims=True))


def distributions(rows: Floats, what: str, slack: float = 1e-4) -> Floats:
    """Rescale rows (last axis) to sum 1 in double precision; their sums may differ from 1 by `slack`."""
    totals = rows.sum(axis=-1, keepdims=True)
    if not (np.all(np.isfinite(rows)) and np.all(rows >= 0.0) and np.all(np.abs(totals - 1.0) <= slack)):
        raise ModelError(
            f"{what} holds a row that is no distribution; expected rows of numbers that are not negative and add "
            "to 1"
        )
    return rows / totals


def named(wishes: Wishes, own: Sequence[str], x: Any) -> list[str]:
    """Return the user's names for variables, else `own`.

    Raises ModelError for a wrong number of names, or duplicates.
    """
    names = [str(name) for name in (own if wishes.names is None else wishes.names)]
    if len(names) != len(own):
        raise ModelError(f"names has {len(names)} entries; this {kind_of(x)} has {len(own)} variables")
    if len(set(names)) != len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise ModelError(f"two variables of this {kind_of(x)} are called {doubled!r}; names must be distinct")
    return names


def refuse(x: object, accepted: str) -> ModelError:
    """Return the error for an unsupported object."""
    return ModelError(f"a {kind_of(x)} cannot be read; {accepted}")


def labels_of(values: Any) -> tuple[Any, ...]:
    """Return state labels without the scalar types of numpy."""
    return tuple(plain_scalar(value) for value in values)


OUR_WAY = "evidence={'X': {'likelihood': [one weight per state]}} says the same"


def with_virtual_evidence(evidence: Any, virtual: Any) -> dict[str, Any]:
    """Join evidence with pgmpy's virtual evidence.

    `evidence`: a mapping or a Series from names to values, or None. `virtual`: tables over single variables
    (`TabularCPD`, `DiscreteFactor`) with likelihoods of the states. Returns evidence with a likelihood for each
    label of these variables. Raises QueryError for anything else, and for a variable that has evidence already.
    """
    if evidence is not None and hasattr(evidence, "iterrows"):
        raise QueryError(f"virtual_evidence does not go with a frame of evidence rows; {OUR_WAY} in each row")
    joined: dict[str, Any] = {}
    if evidence is not None:
        joined = {str(name): value for name, value in evidence.items()}
    tables = virtual if is_sequence(virtual) else [virtual]
    for table in tables:
        name, likelihood = _likelihood(table)
        if joined.get(name) is not None:
            raise QueryError(f"variable {name!r} has virtual evidence and evidence; expected one")
        joined[name] = likelihood
    return joined


def _likelihood(table: Any) -> tuple[str, dict[str, Any]]:
    if not all(hasattr(table, name) for name in ("variables", "values", "state_names")):
        raise QueryError(
            f"virtual evidence holds {shown(table)}; expected a table of pgmpy over one variable, and {OUR_WAY}"
        )
    variables = list(table.variables)
    if len(variables) != 1:
        told = ", ".join(str(v) for v in variables)
        raise QueryError(
            f"a table of virtual evidence is over several variables ({told}); expected one each (an observed "
            "child of them all, added to the network, says the same)"
        )
    labels = labels_of(table.state_names[variables[0]])
    weights = numbers(table.values).ravel().tolist()
    return str(variables[0]), {"likelihood": dict(zip(labels, weights, strict=True))}
