"""Conversions between representations, and the choice of a representation for a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from certimap.conversions.choose import (
    Case,
    Choice,
    Estimate,
    Option,
    Row,
    condition,
    condition_quickly,
    plan,
    register,
)
from certimap.core.named import at

if TYPE_CHECKING:
    from certimap.conversions.network_rows import trees_of_rows as trees_of_rows
    from certimap.conversions.network_to_circuit import compile_query as compile_query

_LATER = {"trees_of_rows": "network_rows", "compile_query": "network_to_circuit"}

__all__ = [
    "Case",
    "Choice",
    "Estimate",
    "Option",
    "Row",
    "compile_query",
    "condition",
    "condition_quickly",
    "plan",
    "register",
    "trees_of_rows",
]


def __getattr__(name: str) -> Any:
    """Load rarely needed names on first use."""
    if name in _LATER:
        return at(f"{__name__}.{_LATER[name]}:{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
