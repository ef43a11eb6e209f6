"""Models of other libraries become models of certimap: the readers of objects, their tools, and the check.

The converted model and the original object must agree at a few points. Half of them are drawn from the converted
model, which makes them possible there. The other half draw each variable independently, which can reveal parts
lost in conversion. No kernel runs for this.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from os import fspath
from typing import Any, overload

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.nodewise import chosen, circuit_values, drawn_point
from certimap.core.arguments import is_path, plain_scalar
from certimap.core.arrays import Floats, Ints
from certimap.core.logs import log_sum
from certimap.core.model import Model
from certimap.core.named import at
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.errors import CertimapError, ModelError, QueryError
from certimap.io.files import TABLES, suffix_of
from certimap.networks.network import Network


@dataclass(frozen=True)
class Wishes:
    """The user's further arguments."""

    steps: int | None = None  # the length of a sequence model
    names: Sequence[str] | None = None  # of the variables, for objects without names
    observations: Any = None  # of one sequence


@dataclass(frozen=True, eq=False)
class Reading:
    """A converted model, and the means to compare it with the original object.

    `theirs` returns the library's own log values at points, shape (n, n_variables): positions of states, and real
    values; it ignores the columns of hidden variables. None for a library without such values.
    """

    model: Model
    theirs: Callable[[Floats], Any] | None = None
    # the circuit, network or mixture to compare, if not `model`: a shorter sequence, p of all real variables
    compared: Model | None = None
    states: Sequence[int] | None = None  # of each variable to compare, if the library rejects others
    hidden: Collection[int] = ()  # positions of discrete variables that the library sums out


def kind_of(x: object) -> str:
    """Return the name of an object's class for errors: library.Class."""
    return f"{library_of(x)}.{type(x).__name__}"


def library_of(x: object) -> str:
    """Return the package of an object's class: of its nearest class here or in a known library, else its own."""
    packages = [cls.__module__.partition(".")[0] for cls in type(x).__mro__]
    return next((name for name in packages if name in READERS or name == "certimap"), packages[0])


def classes_of(x: object) -> tuple[str, ...]:
    """Return the names of an object's classes, the nearest first."""
    return tuple(cls.__name__ for cls in type(x).__mro__)


def attribute(x: Any, *names: str) -> Any:
    """Return an attribute, which may be nested; ModelError if it is absent, as in an unsupported version."""
    try:
        return attrgetter(".".join(names))(x)
    except AttributeError:
        told = f"this {kind_of(x)} has no attribute {'.'.join(names)!r}"
        raise ModelError(
            f"{told}; this version of its library keeps it elsewhere, and nothing is guessed"
        ) from None


def fitted(x: Any, name: str) -> Any:
    """Return an attribute that only fitted objects have; ModelError if it is absent."""
    try:
        return getattr(x, name)
    except AttributeError:
        text = f"this {kind_of(x)} has no {name}: it is not fitted (call fit first)"
        raise ModelError(f"{text}, or this version of its library keeps it elsewhere") from None


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


def named(wishes: Wishes, own: Sequence[str], x: Any) -> list[str]:
    """Return the user's names for variables, else `own`; ModelError for a wrong number of names, or duplicates."""
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


READERS = {  # module and function here, by the package of an object's class
    "pgmpy": "networks:read_pgmpy",
    "pyagrum": "networks:read_pyagrum",
    "pyAgrum": "networks:read_pyagrum",
    "pomegranate": "sequences:read_pomegranate",
    "hmmlearn": "sequences:read_hmmlearn",
    "sklearn_crfsuite": "sequences:read_crf",
    "torchcrf": "sequences:read_crf",
    "spflow": "tensors:read_spflow",
    "cirkit": "tensors:read_cirkit",
    "pysdd": "pysdd_nodes:convert",
    "sklearn": "sklearn_models:convert",
    "arfpy": "arfpy_forests:convert",
    "numpyro": "programs:read_numpyro",
    "pymc": "programs:read_pymc",
}
LIBRARIES = "pgmpy, pyagrum, pomegranate, hmmlearn, spflow, cirkit, PySDD, sklearn, arfpy, PyMC, NumPyro and CRFs"
_SEQUENCES = ("HMM", "CRF", "DynamicBayesianNetwork", "BayesNet", "MarkovChain")  # or parts of models of them


@overload
def from_object(
    x: Any, *, steps: int | None = None, names: Sequence[str] | None = None, observations: Any = None
) -> Model: ...
@overload
def from_object(x: Any, *, observations: Any, lengths: Sequence[int]) -> list[Model]: ...
def from_object(
    x: Any, *, steps: int | None = None, names: Sequence[str] | None = None, observations: Any = None,
    lengths: Sequence[int] | None = None,
) -> Model | list[Model]:  # fmt: skip
    """Return a model of another library as one of certimap.

    - `x`: a model of certimap, which is returned unchanged, or a complete one of the libraries whose classes the
      page *Coming from pgmpy, ...* lists, as errors do; of NumPyro, a handler around a model.
    - `steps`: the number of steps of a dynamic network (see `unroll`), or of a hidden Markov model whose
      observations are variables (not every kind allows it).
    - `names`: variable names, in order, for objects with numbered variables (pomegranate, spflow, cirkit, PySDD,
      scikit-learn without feature names); by default "0", "1", ...
    - `observations`: one sequence, read as a chain of its states (`linear_chain`): rows of features for hmmlearn,
      of NaN where missing (`log_joint` is ln p(states, observations)); the features of each step for a CRF of
      sklearn-crfsuite; emissions, shape (steps, K), for one of pytorch-crf.
    - `lengths`: of several sequences, one after the other in `observations`: a list of models is returned.

    The model is a `BayesianNetwork`, `LinearGaussianNetwork`, `MarkovNetwork`, `Circuit` or `GaussianMixture` with
    a copy of the object's current parameters. States have the object's labels, or numbers from 0. Raises
    ModelError for an unsupported object or library version, an object that is not fitted or lacks parameters, and
    arguments that do not apply; also if the object's own library disagrees with the converted model about an
    assignment's value.

    Cost: linear in the parameters, and eight evaluations by the object's own library. Parameters in single
    precision are widened and distributions rescaled to add to 1; logs thus differ from the library's own by its
    rounding.
    """
    if lengths is not None:
        ends, n = [0, *itertools.accumulate(lengths)], 0 if observations is None else len(observations)
        if min(lengths, default=0) < 1 or ends[-1] != n:
            raise ModelError(f"lengths is {list(lengths)}; expected numbers from 1 that add to {n} observations")
        rows: Any = observations
        spans = itertools.starmap(slice, itertools.pairwise(ends))
        return [from_object(x, steps=steps, names=names, observations=rows[own]) for own in spans]
    if isinstance(x, Model):
        if steps is not None or names is not None or observations is not None:
            raise ModelError(f"a {type(x).__name__} is a model of certimap already; other arguments do not apply")
        return x
    reader = READERS.get(library_of(x))
    if reader is None:
        raise ModelError(_no_model(x, f"a {kind_of(x)} is no model that can be read; models of {LIBRARIES} are"))
    wishes = Wishes(steps, None if names is None else list(names), observations)
    given = (steps is not None) + (observations is not None)
    if given > any(any(kind in name for kind in _SEQUENCES) for name in classes_of(x)):
        of = "a hidden Markov model takes one of them, a CRF observations, a dynamic network steps, others neither"
        raise ModelError(f"steps or observations are given with a {kind_of(x)}; {of}")
    convert = at(f"certimap.interop.{reader}")
    try:
        reading: Reading = convert(x, wishes)
    except CertimapError:
        raise
    except Exception as error:  # incomplete objects raise any error
        raise _incomplete(x, "read", error, ", as its library makes it") from error
    check_agreement(reading, x)
    return reading.model


def _incomplete(x: Any, verb: str, error: Exception, end: str = "") -> ModelError:
    said = " ".join(str(error).split()) or "no message"
    what = f"this {kind_of(x)} cannot be {verb} ({type(error).__name__}: {said})"
    return ModelError(f"{what}; expected a complete model{end}")


def as_model(x: Any) -> Model:
    """Return a model of certimap, that of a fitted estimator of `certimap.learn`, or a converted foreign one.

    Raises QueryError where `x` is none of them; conversion as by `from_object`.
    """
    x = learned(x)
    if isinstance(x, Model):
        return x
    if library_of(x) not in READERS:
        expected = f"expected a circuit, a network, a fitted model, a posterior, or a model of {LIBRARIES}"
        raise QueryError(_no_model(x, f"a {type(x).__name__} is no model; {expected}"))
    return from_object(x)


def learned(x: Any) -> Any:
    """Return the model of a fitted estimator of certimap, and anything else unchanged."""
    if isinstance(x, type) or library_of(x) != "certimap" or not hasattr(x, "fit"):
        return x
    if not isinstance(getattr(x, "model_", None), Model):
        raise QueryError(f"this {type(x).__name__} has learned no model yet; call its fit(data) first")
    return x.model_


def _no_model(x: Any, otherwise: str) -> str:
    """Describe an object that is not a model, and name the function that takes it."""
    if is_path(x):
        path = fspath(x)
        if suffix_of(path) in TABLES:
            return f"{path!r} is the path of a table, and no model; cm.learn.hclt(data) learns one from its rows"
        return f"{path!r} is a text or path, and no model; cm.read({path!r}) reads a model from a file"
    kind = type(x).__name__
    if hasattr(x, "columns") or hasattr(x, "__dataframe__") or isinstance(x, dict | np.ndarray):
        return f"a {kind} is a table, and no model; cm.learn.hclt(data) learns one from its rows"
    if isinstance(x, type) and issubclass(x, Model):
        return f"the class {x.__name__} itself is no model; expected an object of it"
    return otherwise


AGREEMENT = 1e-3  # tolerance in nats: large circuits in single precision
UNDERFLOW = -80.0  # nats, relative to other parts, below which single precision may call a value 0
N_POINTS = 8


def check_agreement(reading: Reading, x: Any) -> None:
    """Compare a converted model with the values of the object's own library at a few points.

    Raises ModelError, with the assignment, if values differ by more than `AGREEMENT` nats (times 1 + |log|), only
    one is impossible, or one is NaN; also if the library itself fails.
    """
    if reading.theirs is None:
        return
    model = reading.model if reading.compared is None else reading.compared
    states = model.domain.n_states if reading.states is None else np.asarray(reading.states, np.int64)
    points = _points(model, states, np.random.default_rng(0))
    ours, found = _values(model, points, sorted(reading.hidden)), _asked(reading.theirs, points, x)
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


def _asked(theirs: Callable[[Floats], Any], points: Floats, x: Any) -> Floats:
    """Return the library's own values at points."""
    try:
        found = np.asarray(theirs(points), np.float64).reshape(-1)
    except ModelError:
        raise
    except Exception as error:  # libraries raise any error for objects that they cannot evaluate
        raise _incomplete(x, "evaluated by its own library", error) from None
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
    assert isinstance(model, GaussianMixture)
    return model.log_density(points)
