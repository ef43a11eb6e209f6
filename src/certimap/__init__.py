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
    "condition": "certimap.api",
    "map_query": "certimap.api",
    "read": "certimap.api",
}
_MODULES = frozenset(
    {
        "bench",
        "certify",
        "circuits",
        "conversions",
        "datasets",
        "errors",
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
    "__version__",
    "condition",
    "make_query",
    "map_query",
    "read",
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
    )
    from certimap.function_posterior import FunctionPosterior
    from certimap.limits import Limits
    from certimap.model import Model
    from certimap.networks import BayesianNetwork, Factor, MarkovNetwork
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
    return sorted({*__all__, *_MODULES})
