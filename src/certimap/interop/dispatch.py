"""Find an object's library and the module that reads it, without heavy imports."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from os import fspath
from typing import Any

import numpy as np

from certimap.core.arguments import is_path
from certimap.core.model import Model
from certimap.errors import CertimapError, ModelError, QueryError
from certimap.interop.reading import Reading, Wishes, check_agreement, classes_of, kind_of, library_of
from certimap.io.files import TABLES, suffix_of

READERS = {
    "pgmpy": "pgmpy_models",
    "pyagrum": "pyagrum_models",
    "pyAgrum": "pyagrum_models",
    "pomegranate": "pomegranate_models",
    "hmmlearn": "sequences",
    "spflow": "spflow_modules",
    "cirkit": "cirkit_circuits",
    "pysdd": "pysdd_nodes",
    "sklearn": "sklearn_models",
    "arfpy": "arfpy_forests",
}
LIBRARIES = "pgmpy, pyagrum, pomegranate, hmmlearn, spflow, cirkit, PySDD, scikit-learn and arfpy"


def from_object(x: Any, *, steps: int | None = None, names: Sequence[str] | None = None) -> Model:
    """Turn a model of another library into one of certimap.

    Parameters
    ----------
    x
        One of

        - pgmpy: `DiscreteBayesianNetwork` (and `NaiveBayes`), `LinearGaussianBayesianNetwork`,
          `DiscreteMarkovNetwork`, `FactorGraph`;
        - pyagrum: `BayesNet`, `MarkovRandomField`, `CLG`;
        - pomegranate: `BayesianNetwork` of categorical distributions, `DenseHMM`, `SparseHMM`;
        - hmmlearn: `CategoricalHMM`, `GaussianHMM` and `GMMHMM` with diagonal or spherical covariances;
        - spflow: modules with one output, with Categorical, Bernoulli, Binomial and Normal leaves;
        - cirkit: circuits compiled to torch, with real weights that are not negative;
        - PySDD: an `SddNode` (equal weights for all models) or a `WmcManager` (with its weights of literals);
        - scikit-learn: `GaussianMixture`, `CategoricalNB`, `BernoulliNB`, `GaussianNB`;
        - arfpy: adversarial random forests (`arf`) after their `forde()`;

        or a model of certimap, which is returned unchanged.
    steps
        The number of steps; required for a hidden Markov model.
    names
        Variable names, in order, for objects with numbered variables (pomegranate, spflow, cirkit, PySDD,
        scikit-learn without feature names); by default "0", "1", ...

    Returns
    -------
    Model
        A `BayesianNetwork`, `LinearGaussianNetwork`, `MarkovNetwork`, `Circuit` or `GaussianMixture` with a copy
        of the object's current parameters. States have the object's labels, or numbers from 0.

    Raises
    ------
    ModelError
        For an unsupported object or library version, an object that is not fitted or lacks parameters, and
        arguments that do not apply; also if the object's own library disagrees with the converted model about an
        assignment's value.

    Notes
    -----
    Cost: linear in the parameters, and eight evaluations by the object's own library. Parameters in single
    precision are widened and distributions rescaled to add to 1; logs thus differ from the library's own by its
    rounding.
    """
    if isinstance(x, Model):
        if steps is not None or names is not None:
            raise ModelError(f"a {type(x).__name__} is a model of certimap already; steps and names do not apply")
        return x
    reader = _reader_of(x)
    if reader is None:
        raise ModelError(_no_model(x, f"a {kind_of(x)} is no model that can be read; models of {LIBRARIES} are"))
    wishes = Wishes(steps, None if names is None else list(names))
    if steps is not None and not any("HMM" in name for name in classes_of(x)):
        raise ModelError(f"steps is the length of a hidden Markov model; a {kind_of(x)} has none")
    convert = import_module(f"certimap.interop.{reader}").convert
    try:
        reading: Reading = convert(x, wishes)
    except CertimapError:
        raise
    except Exception as error:  # incomplete objects raise any error
        said = " ".join(str(error).split()) or "no message"
        raise ModelError(
            f"this {kind_of(x)} cannot be read ({type(error).__name__}: {said}); expected a complete model, as "
            "its library makes it"
        ) from error
    check_agreement(reading, x)
    return reading.model


def as_model(x: Any) -> Model:
    """Return a model for queries: x itself, or its conversion by `from_object`.

    `x`: a model of certimap, a fitted estimator of `certimap.learn`, or a model of a supported library. Raises
    QueryError for anything else.
    """
    x = learned(x)
    if isinstance(x, Model):
        return x
    if _reader_of(x) is None:
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


def _reader_of(x: Any) -> str | None:
    """Return the module that reads an object, chosen by the library of its class or a base class."""
    for cls in type(x).__mro__:
        reader = READERS.get(cls.__module__.partition(".")[0])
        if reader is not None:
            return reader
    return None
