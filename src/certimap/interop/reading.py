"""Shared code of the readers of other libraries: attributes, arrays, names, and the check of a conversion.

The converted model and the original object must agree at a few points. Half of them are drawn from the converted
model, which makes them possible there. The other half draw each variable independently, which can reveal parts
lost in conversion. No kernel runs for this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.nodewise import chosen, circuit_values, drawn_point
from certimap.core.arguments import is_sequence, plain_scalar, shown
from certimap.core.arrays import Floats, Ints
from certimap.core.logs import log_sum
from certimap.core.model import Model
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import MissingDependency, ModelError, QueryError
from certimap.networks.network import Network

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


AGREEMENT = 1e-3  # tolerance in nats: large circuits in single precision
UNDERFLOW = -80.0  # nats, relative to other parts, below which single precision may call a value 0
N_POINTS = 8


def check_agreement(reading: Reading, x: Any) -> None:
    """Compare a converted model with the library's own values at a few points.

    `reading`: the converted model. `x`: the object. Raises ModelError if values differ by more than `AGREEMENT`
    nats (times 1 + |log|), only one is impossible, or one is NaN; names the assignment. Also if the library itself
    fails.
    """
    model = reading.model if reading.compared is None else reading.compared
    states = model.domain.n_states if reading.states is None else np.asarray(reading.states, np.int64)
    points = _points(model, states, np.random.default_rng(0))
    ours = _values(model, points, sorted(reading.hidden))
    found = _asked(reading, points, x)
    same = (ours == found) | (np.isneginf(found) & (ours < UNDERFLOW))
    near = np.isfinite(ours) & np.isfinite(found)
    same[near] |= np.abs(ours[near] - found[near]) <= AGREEMENT * (1.0 + np.abs(ours[near]))
    if np.all(same):
        return
    at = int(np.flatnonzero(~same)[0])
    labels = list(model.domain.decode(points[at]).items())
    shown = ", ".join(f"{name}={label!r}" for i, (name, label) in enumerate(labels) if i not in reading.hidden)
    shown = shown if len(shown) <= 300 else f"{shown[:300]}..."
    raise ModelError(
        f"this {kind_of(x)} gives the assignment {shown} the log value {found[at]:.6g}, and what was read of it "
        f"{ours[at]:.6g}; this object, or this version of its library, is not understood, and nothing is guessed"
    )


def _asked(reading: Reading, points: Floats, x: Any) -> Floats:
    """Return the library's own values at points."""
    try:
        found = np.asarray(reading.theirs(points), np.float64).reshape(-1)
    except ModelError:
        raise
    except Exception as error:  # libraries raise any error for objects that they cannot evaluate
        said = " ".join(str(error).split()) or "no message"
        raise ModelError(
            f"this {kind_of(x)} cannot be evaluated by its own library ({type(error).__name__}: {said}); expected "
            "a complete model"
        ) from None
    if len(found) != len(points):
        raise ModelError(f"this {kind_of(x)} gave {len(found)} values for {len(points)} assignments")
    return found


def _points(model: Model, states: Ints, rng: np.random.Generator) -> Floats:
    """Return points, the first half drawn from the model; columns of states are below `states`."""
    drawn = np.array([_drawn(model, rng) for _ in range(N_POINTS // 2)])
    free = rng.permuted(drawn, axis=0)  # each column independently
    discrete = states > 0
    free[:, discrete] = rng.integers(states[discrete], size=(len(free), int(discrete.sum())))
    drawn[:, discrete] = np.minimum(drawn[:, discrete], states[discrete] - 1)
    return np.concatenate([drawn, free])


def _drawn(model: Model, rng: np.random.Generator) -> Floats:
    if isinstance(model, Circuit):
        return drawn_point(model, rng)
    if isinstance(model, Network):
        return _filled(model, rng)
    if isinstance(model, LinearGaussianNetwork):
        return _propagated(model, rng)
    assert isinstance(model, GaussianMixture)
    k = rng.choice(len(model.log_weights), p=np.exp(model.log_weights - log_sum(model.log_weights)))
    return rng.multivariate_normal(model.means[k], model.covariances[k])


def _filled(network: Network, rng: np.random.Generator) -> Floats:
    """Draw a point variable by variable, parents first, each by the factors whose scope it completes."""
    order: Sequence[int] = getattr(network, "topological_order", range(len(network.domain)))
    rank = {v: k for k, v in enumerate(order)}
    completed: dict[int, list[int]] = {}
    for k, factor in enumerate(network.factors):
        if factor.scope:
            completed.setdefault(max(factor.scope, key=rank.__getitem__), []).append(k)
    point = np.zeros(len(network.domain), np.int64)
    for v in order:
        rows = np.tile(point, (int(network.domain.n_states[v]), 1))
        rows[:, v] = np.arange(len(rows))
        log_weights = np.zeros(len(rows))
        for k in completed.get(v, ()):
            log_weights += network.factors[k].log_value(rows)
        point[v] = chosen(log_weights, rng)
    return point.astype(np.float64)


def _propagated(network: LinearGaussianNetwork, rng: np.random.Generator) -> Floats:
    """Return a draw from a network of real variables."""
    assert network.discrete is None  # no supported library has others
    point = np.zeros(len(network.domain))
    for i, parents, intercept, coefficients, sd in network.equations():
        point[i] = intercept + coefficients @ point[parents] + sd * rng.normal()
    return point


def _values(model: Model, points: Floats, hidden: list[int]) -> Floats:
    """Return the logs of a model's values, hidden variables summed out; shape (n,)."""
    if isinstance(model, Circuit):
        points = points.copy()
        points[:, hidden] = np.nan
        return circuit_values(model, points)
    if isinstance(model, Network):
        sizes = [int(model.domain.n_states[v]) for v in hidden]
        paths = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes or (1,)), axis=1)
        rows = np.repeat(points.astype(np.int64), len(paths), axis=0)
        rows[:, hidden] = np.tile(paths, (len(points), 1))[:, : len(hidden)]
        return log_sum(model.log_joint(rows).reshape(len(points), -1), 1)
    if isinstance(model, LinearGaussianNetwork):
        total = np.zeros(len(points))
        for i, parents, intercept, coefficients, sd in model.equations():
            total += log_normal(points[:, i], intercept + points[:, parents] @ coefficients, sd)
        return total
    assert isinstance(model, GaussianMixture)
    return model.log_density(points)
