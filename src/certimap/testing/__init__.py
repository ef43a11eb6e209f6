"""What third parties need to test posteriors and solvers of their own."""

from certimap.function_posterior import FunctionPosterior
from certimap.testing.check_posterior import check_posterior, random_boxes
from certimap.testing.check_solver import check_solver
from certimap.testing.models import random_circuit, random_domain, random_table
from certimap.testing.posteriors import TablePosterior

__all__ = [
    "FunctionPosterior",
    "TablePosterior",
    "check_posterior",
    "check_solver",
    "random_boxes",
    "random_circuit",
    "random_domain",
    "random_table",
]
