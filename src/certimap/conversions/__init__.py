"""From one representation to another, and the choice which of them answers a query."""

from certimap.conversions.choose import Choice, Option, condition, condition_quickly, plan
from certimap.conversions.network_rows import trees_of_rows
from certimap.conversions.network_to_circuit import compile_query, log_total
from certimap.conversions.rows import Case, Estimate, Row, register

__all__ = [
    "Case",
    "Choice",
    "Estimate",
    "Option",
    "Row",
    "compile_query",
    "condition",
    "condition_quickly",
    "log_total",
    "plan",
    "register",
    "trees_of_rows",
]
