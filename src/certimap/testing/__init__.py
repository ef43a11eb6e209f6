"""Conformance tests for posteriors and solvers of third parties."""

from certimap.core.function_posterior import FunctionPosterior
from certimap.testing.models import (
    BoundedTable,
    IntervalTable,
    TablePosterior,
    random_boxes,
    random_circuit,
    random_domain,
    random_table,
)
from certimap.testing.posterior_cases import (
    BoundCases,
    DecodeCases,
    DrawCases,
    MassCases,
    PosteriorCases,
    ProbeCases,
    TwoSidedCases,
    check_posterior,
)
from certimap.testing.solver_cases import DensityCases, SolverCases, check_solver

__all__ = [
    "BoundCases",
    "BoundedTable",
    "DecodeCases",
    "DensityCases",
    "DrawCases",
    "FunctionPosterior",
    "IntervalTable",
    "MassCases",
    "PosteriorCases",
    "ProbeCases",
    "SolverCases",
    "TablePosterior",
    "TwoSidedCases",
    "check_posterior",
    "check_solver",
    "random_boxes",
    "random_circuit",
    "random_domain",
    "random_table",
]
