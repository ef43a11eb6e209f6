"""Which library an object comes from, and the module that reads it; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from os import fspath
from typing import Any

import numpy as np

from certimap.core.model import Model
from certimap.core.untyped import is_path
from certimap.errors import CertimapError, ModelError, QueryError
from certimap.interop.agreement import check_agreement
from certimap.interop.reading import Reading, Wishes, classes_of, kind_of, library_of
from certimap.io.files import TABLES, suffix_of

READERS = {
    "pgmpy": "pgmpy_models",
    "pyagrum": "pyagrum_models",
    "pyAgrum": "pyagrum_models",
    "pomegranate": "pomegranate_models",
    "hmmlearn": "hmmlearn_models",
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
        - PySDD: an `SddNode` (all models weigh the same) or a `WmcManager` (literals have its weights);
        - scikit-learn: `GaussianMixture`, `CategoricalNB`, `BernoulliNB`, `GaussianNB`;
        - arfpy: adversarial random forests (`arf`) after their `forde()`;

        or a model of certimap, which is returned as it is.
    steps
        The length of a hidden Markov model, which these need.
    names
        Names of the variables of objects that number theirs (pomegranate, spflow, cirkit, PySDD, scikit-learn
        without feature names), in order; by default "0", "1", ...

    Returns
    -------
    Model
        A `BayesianNetwork`, `LinearGaussianNetwork`, `MarkovNetwork`, `Circuit` or `GaussianMixture` with the
        object's parameters as they are now; later changes of the object do not reach it. States have the object's
        labels, or numbers from 0.

    Raises
    ------
    ModelError
        For an object of another kind, one that is not fitted or lacks parameters, a version that keeps them
        elsewhere, and arguments that do not apply; and where the object's own library gives some assignment
        another value than what was read of it.

    Notes
    -----
    Cost: linear in the parameters, and eight evaluations by the object's own library. Parameters in single
    precision are widened, and distributions rescaled to add to 1, so that logs differ from the library's own by
    its rounding.
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
    except Exception as error:  # half-made objects fail in as many ways as there are libraries
        said = " ".join(str(error).split()) or "no message"
        raise ModelError(
            f"this {kind_of(x)} cannot be read ({type(error).__name__}: {said}); expected a complete model, as "
            "its library makes it"
        ) from error
    check_agreement(reading, x)
    return reading.model


def as_model(x: Any) -> Model:
    """Return a model that a query can be put to: x itself, or what `from_object` makes of it.

    Parameters
    ----------
    x
        A model of certimap, a fitted estimator of `certimap.learn`, or a model of a library that is read.

    Returns
    -------
    Model

    Raises
    ------
    QueryError
        For anything that is no model of certimap nor of a library that is read.
    """
    x = learned(x)
    if isinstance(x, Model):
        return x
    if _reader_of(x) is None:
        expected = f"expected a circuit, a network, a fitted model, a posterior, or a model of {LIBRARIES}"
        raise QueryError(_no_model(x, f"a {type(x).__name__} is no model; {expected}"))
    return from_object(x)


def learned(x: Any) -> Any:
    """Return the model that a fitted estimator of certimap has learned, and anything else itself."""
    if isinstance(x, type) or library_of(x) != "certimap" or not hasattr(x, "fit"):
        return x
    if not isinstance(getattr(x, "model_", None), Model):
        raise QueryError(f"this {type(x).__name__} has learned no model yet; call its fit(data) first")
    return x.model_


def _no_model(x: Any, otherwise: str) -> str:
    """Say what an object is that was given as a model, and which function takes it."""
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
    """Return the module that reads an object: by the library of its class or of a class it derives from."""
    for cls in type(x).__mro__:
        reader = READERS.get(cls.__module__.partition(".")[0])
        if reader is not None:
            return reader
    return None
