"""What a kind of real leaf is, and the table of kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from certimap.errors import ModelError

MAX_PARAMETERS = 3
GAUSSIAN = 1  # the code of the first kind, as `NodeKind` has it; the kinds after it are -1, -2, ...


@dataclass(frozen=True)
class LeafFunctions:
    """What kernels ask a kind of leaf; plain functions of numbers that numba can compile.

    Each takes the leaf's parameters first, always three of them (0 where a kind has fewer), then two numbers.
    All logs are natural. The density has one peak in every interval, and falls away from it on both sides.

    Attributes
    ----------
    log_density
        (a, b, c, x, x): ln of the density at x.
    log_mass
        (a, b, c, low, high): ln of the mass of [low, high], low < high; either may be infinite, and both tails
        keep their digits.
    peak
        (a, b, c, low, high): where in [low, high] the density is largest.
    scale
        (a, b, c, 0, 0): a length over which the density changes, a standard deviation for instance.
    draw
        (a, b, c, low, high, stream): a draw from the density inside [low, high]; `stream` is what
        `certimap.kernels.random.uniform(stream_of(stream))` draws from.
    """

    log_density: Callable[..., float]
    log_mass: Callable[..., float]
    peak: Callable[..., float]
    scale: Callable[..., float]
    draw: Callable[..., float]


@dataclass(frozen=True)
class LeafKind:
    """A kind of leaf over a real variable.

    Attributes
    ----------
    name
        As files have it: `NAME ID VAR PARAMETER ...` is its line in `.spn`.
    parameters
        The names of its parameters, one to three.
    accepts
        Whether parameters are valid, given as arrays of one entry per leaf.
    expected
        What valid parameters are, for error messages.
    functions
        Returns its functions, or names the module of this package that has them as `FUNCTIONS`: they load numba,
        and are asked for when a circuit with such a leaf is first evaluated.
    """

    name: str
    parameters: tuple[str, ...]
    accepts: Callable[..., NDArray[np.bool_]]
    expected: str
    functions: Callable[[], LeafFunctions] | str


_kinds: list[LeafKind] = []


def register_leaf(kind: LeafKind) -> None:
    """Add a kind to the table, for builders, kernels and files alike.

    Raises ModelError when the name is taken or is none, or when there are no parameters or more than three.
    """
    if not kind.name.isidentifier() or kind.name in ("indicator", "l", *(k.name for k in _kinds)):
        raise ModelError(f"a kind of leaf is called {kind.name!r}; expected a name that is not taken")
    if not 1 <= len(kind.parameters) <= MAX_PARAMETERS:
        raise ModelError(
            f"leaf kind {kind.name!r} has {len(kind.parameters)} parameters; expected 1 to {MAX_PARAMETERS}"
        )
    _kinds.append(kind)
    function_table.cache_clear()


def leaf_kinds() -> dict[int, LeafKind]:
    """Return all kinds by code, in the order of registration."""
    return {GAUSSIAN if i == 0 else -i: kind for i, kind in enumerate(_kinds)}


def leaf_kind(name: str) -> tuple[int, LeafKind]:
    """Return a kind and its code; raises ModelError for a name that is not in the table."""
    for code, kind in leaf_kinds().items():
        if kind.name == name:
            return code, kind
    known = ", ".join(repr(kind.name) for kind in _kinds)
    raise ModelError(f"{name!r} is no kind of leaf; expected one of {known}, or one that register_leaf added")


@cache
def function_table() -> NDArray[np.int64]:
    """Return the addresses of all kinds' functions, shape (n_kinds + 1, 5); the kind of code k has row 1 - k."""
    from certimap.kernels.pointers import address_of

    table = np.zeros((len(_kinds) + 1, 5), np.int64)
    for code, kind in leaf_kinds().items():
        functions = (
            import_module(kind.functions).FUNCTIONS if isinstance(kind.functions, str) else kind.functions()
        )
        questions = (functions.log_density, functions.log_mass, functions.peak, functions.scale)
        table[1 - code, :4] = [address_of(question) for question in questions]
        table[1 - code, 4] = address_of(functions.draw, draws=True)
    return table


def _is_gaussian(mean: NDArray[np.float64], sd: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.isfinite(mean) & np.isfinite(sd) & (sd > 0)


register_leaf(
    LeafKind(
        "gaussian",
        ("mean", "sd"),
        _is_gaussian,
        "a finite mean and a finite positive sd",
        "certimap.circuits.leaves.gaussian",
    )
)
