"""Maximum a posteriori inference with a proof of how good the answer is.

Names are loaded when first used, so that importing the package is quick and compiles nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "Boxes": "certimap.box",
    "Categorical": "certimap.domain",
    "Domain": "certimap.domain",
    "Real": "certimap.domain",
    "Query": "certimap.query",
    "make_query": "certimap.query",
    "CertimapError": "certimap.errors",
    "ImpossibleEvidence": "certimap.errors",
    "MissingDependency": "certimap.errors",
    "ModelError": "certimap.errors",
    "ParseError": "certimap.errors",
    "QueryError": "certimap.errors",
    "SolverError": "certimap.errors",
    "UnbalancedBooks": "certimap.errors",
    "TooLarge": "certimap.errors",
    "Certificate": "certimap.result",
    "CertificateKind": "certimap.result",
    "FailedQuery": "certimap.result",
    "HistoryEntry": "certimap.result",
    "MapResult": "certimap.result",
    "ResultList": "certimap.result",
    "Rule": "certimap.result",
    "Status": "certimap.result",
    "Circuit": "certimap.circuits.circuit",
    "CircuitBuilder": "certimap.circuits.circuit",
    "BayesianNetwork": "certimap.networks",
    "Factor": "certimap.networks",
    "MarkovNetwork": "certimap.networks",
    "FunctionPosterior": "certimap.function_posterior",
    "Posterior": "certimap.posterior",
    "BoxPosterior": "certimap.posterior",
    "Limits": "certimap.limits",
    "Model": "certimap.model",
    "Facts": "certimap.posterior",
    "Solver": "certimap.solvers.base",
    "MapImputer": "certimap.imputer",
    "NoisyMax": "certimap.networks.noisy",
    "NoisyOr": "certimap.networks.noisy",
    "hidden_markov_model": "certimap.networks.builders",
    "naive_bayes": "certimap.networks.builders",
    "from_object": "certimap.interop",
    "to_networkx": "certimap.interop.networkx_graphs",
    "to_pgmpy": "certimap.interop.pgmpy_models",
    "log_evidence": "certimap.inference",
    "log_likelihood": "certimap.inference",
    "marginals": "certimap.inference",
    "sample": "certimap.inference",
    "Forecast": "certimap.forecast",
    "LipschitzEstimate": "certimap.forecast",
    "estimate_lipschitz": "certimap.forecast",
    "forecast": "certimap.forecast",
    "condition": "certimap.api",
    "map_query": "certimap.api",
    "read": "certimap.api",
}
_OPTIONAL = ("MapImputer",)  # derives from scikit-learn's classes, which `from certimap import *` must not need
_MODULES = frozenset(
    {
        "bench",
        "certify",
        "circuits",
        "conversions",
        "datasets",
        "errors",
        "interop",
        "io",
        "learn",
        "networks",
        "plots",
        "solvers",
        "testing",
        "trees",
    }
)

__all__ = [
    "BayesianNetwork",
    "BoxPosterior",
    "Boxes",
    "Categorical",
    "Certificate",
    "CertificateKind",
    "CertimapError",
    "Circuit",
    "CircuitBuilder",
    "Domain",
    "Factor",
    "Facts",
    "FailedQuery",
    "FunctionPosterior",
    "HistoryEntry",
    "ImpossibleEvidence",
    "Limits",
    "MapResult",
    "MarkovNetwork",
    "MissingDependency",
    "Model",
    "ModelError",
    "NoisyMax",
    "NoisyOr",
    "ParseError",
    "Posterior",
    "Query",
    "QueryError",
    "Real",
    "ResultList",
    "Rule",
    "Solver",
    "SolverError",
    "Status",
    "TooLarge",
    "UnbalancedBooks",
    "__version__",
    "condition",
    "from_object",
    "hidden_markov_model",
    "log_evidence",
    "log_likelihood",
    "make_query",
    "map_query",
    "marginals",
    "naive_bayes",
    "read",
    "sample",
    "to_networkx",
    "to_pgmpy",
]

if TYPE_CHECKING:
    from certimap.api import condition, map_query, read
    from certimap.box import Boxes
    from certimap.circuits.circuit import Circuit, CircuitBuilder
    from certimap.domain import Categorical, Domain, Real
    from certimap.errors import (
        CertimapError,
        ImpossibleEvidence,
        MissingDependency,
        ModelError,
        ParseError,
        QueryError,
        SolverError,
        TooLarge,
        UnbalancedBooks,
    )
    from certimap.function_posterior import FunctionPosterior
    from certimap.imputer import MapImputer as MapImputer
    from certimap.inference import log_evidence, log_likelihood, marginals, sample
    from certimap.interop import from_object
    from certimap.interop.networkx_graphs import to_networkx
    from certimap.interop.pgmpy_models import to_pgmpy
    from certimap.limits import Limits
    from certimap.model import Model
    from certimap.networks import BayesianNetwork, Factor, MarkovNetwork
    from certimap.networks.builders import hidden_markov_model, naive_bayes
    from certimap.networks.noisy import NoisyMax, NoisyOr
    from certimap.posterior import BoxPosterior, Facts, Posterior
    from certimap.query import Query, make_query
    from certimap.result import (
        Certificate,
        CertificateKind,
        FailedQuery,
        HistoryEntry,
        MapResult,
        ResultList,
        Rule,
        Status,
    )
    from certimap.solvers.base import Solver


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"certimap.{name}")
    else:
        raise AttributeError(f"module 'certimap' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_OPTIONAL, *_MODULES})
