"""What a kind of real leaf is, and the table of kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from certimap.errors import ModelError

MAX_PARAMETERS = 4
LEAST_LOG = -1e250  # what a log that would overflow counts as: possible, however far out
GAUSSIAN = 1  # the code of the first kind, as `NodeKind` has it; the kinds after it are -1, -2, ...


def _no_slope(_a: float, _b: float, _c: float, _d: float, _x: float, _y: float) -> float:
    return 0.0


def _no_least(_a: float, _b: float, _c: float, _d: float, _low: float, _high: float) -> float:
    return -np.inf


def _no_largest(_a: float, _b: float, _c: float, _d: float, _low: float, _high: float) -> float:
    return np.inf


@dataclass(frozen=True)
class LeafFunctions:
    """What kernels ask a kind of leaf; plain functions of numbers that numba can compile.

    Each takes the leaf's parameters first, always four of them (0 where a kind has fewer), then two numbers.
    All logs are natural. The density has one peak in every interval, and falls away from it on both sides. That of
    a kind of whole numbers is the probability of a number, and -inf (in logs) between them. A log of -inf says
    that something is impossible; what is merely far out is at least `LEAST_LOG`.

    Attributes
    ----------
    log_density
        (a, b, c, d, x, x): ln of the density at x.
    log_mass
        (a, b, c, d, low, high): ln of the mass of [low, high], low < high; either may be infinite, and both tails
        keep their digits.
    peak
        (a, b, c, d, low, high): where in [low, high] the density is largest.
    scale
        (a, b, c, d, 0, 0): a length over which the density changes, a standard deviation for instance.
    draw
        (a, b, c, d, low, high, stream): a draw from the density inside [low, high]; `stream` is what
        `certimap.kernels.random.uniform(stream_of(stream))` draws from.
    slope
        (a, b, c, d, x, x): the derivative of ln of the density at x. It and the next two are for searches near a
        maximum, which do without them where a kind has none.
    least_curvature, largest_curvature
        (a, b, c, d, low, high): bounds on the second derivative of ln of the density in [low, high]; -inf and inf
        where the interval holds a kink, or a place where the density is 0.
    """

    log_density: Callable[..., float]
    log_mass: Callable[..., float]
    peak: Callable[..., float]
    scale: Callable[..., float]
    draw: Callable[..., float]
    slope: Callable[..., float] = _no_slope
    least_curvature: Callable[..., float] = _no_least
    largest_curvature: Callable[..., float] = _no_largest


@dataclass(frozen=True)
class LeafKind:
    """A kind of leaf over a real variable.

    Attributes
    ----------
    name
        As files have it: `NAME ID VAR PARAMETER ...` is its line in `.spn`.
    parameters
        The names of its parameters, one to four.
    accepts
        Whether parameters are valid, given as arrays of one entry per leaf.
    expected
        What valid parameters are, for error messages.
    functions
        Returns its functions, or names the module of this package that has them as `FUNCTIONS`: they load numba,
        and are asked for when a circuit with such a leaf is first evaluated.
    support
        Returns the ends of the interval outside of which the density is 0, given the parameters as arrays; None
        for the whole line. Sums over disjoint supports are histograms, whose bounds are their largest bars.
    is_whole
        Whether it is a distribution of whole numbers: intervals are then split between them.
    roundings
        How far its log masses may be off, in units of the last place of 1, beside 4 of the log itself.
    """

    name: str
    parameters: tuple[str, ...]
    accepts: Callable[..., NDArray[np.bool_]]
    expected: str
    functions: Callable[[], LeafFunctions] | str
    support: Callable[..., tuple[NDArray[np.float64], NDArray[np.float64]]] | None = None
    is_whole: bool = False
    roundings: float = 16.0

    def loaded(self) -> LeafFunctions:
        """Return its functions, which load numba."""
        return import_module(self.functions).FUNCTIONS if isinstance(self.functions, str) else self.functions()


_kinds: list[LeafKind] = []


def register_leaf(kind: LeafKind) -> None:
    """Add a kind to the table, for builders, kernels and files alike.

    Raises ModelError when the name is taken or is none, or when there are no parameters or more than four.
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
    """Return the addresses of all kinds' functions, shape (n_kinds + 1, 8); the kind of code k has row 1 - k."""
    from certimap.kernels.pointers import address_of

    table = np.zeros((len(_kinds) + 1, 8), np.int64)
    for code, kind in leaf_kinds().items():
        functions = kind.loaded()
        questions = (functions.log_density, functions.log_mass, functions.peak, functions.scale)
        table[1 - code, :4] = [address_of(question) for question in questions]
        table[1 - code, 4] = address_of(functions.draw, draws=True)
        derivatives = (functions.slope, functions.least_curvature, functions.largest_curvature)
        table[1 - code, 5:] = [address_of(question) for question in derivatives]
    return table
