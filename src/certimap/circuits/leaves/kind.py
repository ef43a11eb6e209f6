"""The definition of a kind of real leaf, with the model of a column that learners fit, and the table of kinds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.rounding import LEAST_SCALE, SMALLEST_NORMAL
from certimap.errors import ModelError

if TYPE_CHECKING:
    from certimap.circuits.circuit import CircuitBuilder

MAX_PARAMETERS = 4
LEAST_LOG = -1e250  # replaces logs that would overflow: possible, but extremely improbable
MOST_SCALE = 1e290
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
NUMBERS, FROM_ZERO, COUNTS = "numbers", "numbers from 0", "whole numbers from 0"
ABOVE_ZERO, SHARES = "numbers above 0", "numbers between 0 and 1"
LEAST_SD = 0.01  # in standard deviations of the column: narrower leaves would overfit single rows


def zero(_a: float, _b: float, _c: float, _d: float, _x: float, _y: float) -> float:
    return 0.0


def nearest_to_mean(mean: float, _b: float, _c: float, _d: float, low: float, high: float) -> float:
    """Return the first parameter, or the end of [low, high] nearest to it."""
    return min(max(mean, low), high)


def _no_least(_a: float, _b: float, _c: float, _d: float, _low: float, _high: float) -> float:
    return -np.inf


def _no_largest(_a: float, _b: float, _c: float, _d: float, _low: float, _high: float) -> float:
    return np.inf


@dataclass(frozen=True)
class LeafFunctions:
    """A kind of leaf's functions for kernels: plain functions of numbers that numba can compile.

    Each takes four parameters of the leaf first (unused ones are 0), then two numbers. All logs are natural. The
    density has one peak in every interval, and falls away from it on both sides. For a kind on whole numbers it is
    the probability of a number, and -inf (in logs) between them. A log of -inf means impossible; the log of a
    possible but extremely improbable value is at least `LEAST_LOG`.

    - `log_density`: (a, b, c, d, x, x): ln of the density at x.
    - `log_mass`: (a, b, c, d, low, high): ln of the mass of [low, high], low < high; either may be infinite, and
      both tails keep their digits.
    - `peak`: (a, b, c, d, low, high): the maximiser of the density in [low, high].
    - `scale`: (a, b, c, d, 0, 0): a length over which the density changes, a standard deviation for instance.
    - `draw`: (a, b, c, d, low, high, stream): a draw from the density inside [low, high], with random numbers from
      `certimap.kernels.random.uniform(stream_of(stream))`.
    - `slope`: (a, b, c, d, x, x): the derivative of ln of the density at x. It and the next two are optional, and
      help searches near a maximum.
    - `least_curvature`, `largest_curvature`: (a, b, c, d, low, high): bounds on the second derivative of ln of the
      density in [low, high]; -inf and inf if the interval contains a kink, or a point of density 0.
    """

    log_density: Callable[..., float]
    log_mass: Callable[..., float]
    peak: Callable[..., float]
    scale: Callable[..., float]
    draw: Callable[..., float]
    slope: Callable[..., float] = zero
    least_curvature: Callable[..., float] = _no_least
    largest_curvature: Callable[..., float] = _no_largest


@dataclass(frozen=True)
class LeafKind:
    """A kind of leaf over a real variable.

    - `name`: its name in files: `NAME ID VAR PARAMETER ...` is its line in `.spn`.
    - `parameters`: the names of its parameters, one to four.
    - `accepts`: whether parameters are valid, given as arrays of one entry per leaf.
    - `expected`: a description of valid parameters, for error messages.
    - `functions`: its functions, or a function that returns them. They are first needed when a circuit with such a
      leaf is evaluated.
    - `support`: returns the ends of the interval outside which the density is 0, given the parameters as arrays;
      None for the whole line. Sums over disjoint supports are histograms, whose bounds are their largest bars.
    - `is_whole`: whether it is a distribution on whole numbers: intervals are then split between them.
    - `roundings`: error of its log masses, in units of the last place of 1, in addition to 4 units of the log
      itself.
    - `code`: its number in circuits: of this package's kinds, a negative one that stays (the Gaussian has 1, as
      `NodeKind` has it); 0 for the next free one.
    - `family`: the model of a column that learners fit with such leaves; None without.
    """

    name: str
    parameters: tuple[str, ...]
    accepts: Callable[..., Flags]
    expected: str
    functions: LeafFunctions | Callable[[], LeafFunctions]
    support: Callable[..., tuple[Floats, Floats]] | None = None
    is_whole: bool = False
    roundings: float = 16.0
    code: int = 0
    family: type[LeafFamily] | None = None

    def loaded(self) -> LeafFunctions:
        """Return its functions."""
        return self.functions if isinstance(self.functions, LeafFunctions) else self.functions()


def positive(*values: Floats) -> Flags:
    """Return where all of some scales are positive and such that inverses and widths are numbers."""
    return np.all([(x >= LEAST_SCALE) & (x <= MOST_SCALE) for x in values], axis=0)


def is_gaussian(mean: Floats, sd: Floats) -> Flags:
    """Return where a mean is finite, and a scale valid."""
    return np.isfinite(mean) & positive(sd)


def between(*parameters: Floats) -> tuple[Floats, Floats]:
    """Return the support of a kind whose last two parameters are its ends."""
    return parameters[-2], parameters[-1]


def from_zero_to_one(*parameters: Floats) -> tuple[Floats, Floats]:
    """Return the support of a kind on numbers from 0 to 1."""
    return np.zeros_like(parameters[0]), np.ones_like(parameters[0])


def from_zero(*parameters: Floats) -> tuple[Floats, Floats]:
    """Return the support of a kind on nonnegative numbers."""
    return np.zeros_like(parameters[0]), np.full_like(parameters[0], np.inf)


_kinds: dict[int, LeafKind] = {}


def register_leaf(kind: LeafKind) -> None:
    """Add a kind to the table, for builders, kernels and files alike.

    Raises ModelError if the name is taken or invalid, or if there are no parameters or more than four.
    """
    taken = {known.name for known in leaf_kinds().values()}
    if not kind.name.isidentifier() or kind.name in ("indicator", "l", *taken):
        raise ModelError(f"a kind of leaf is called {kind.name!r}; expected a name that is not taken")
    if not 1 <= len(kind.parameters) <= MAX_PARAMETERS:
        raise ModelError(
            f"leaf kind {kind.name!r} has {len(kind.parameters)} parameters; expected 1 to {MAX_PARAMETERS}"
        )
    _kinds[min(_kinds) - 1] = kind


def leaf_kinds() -> dict[int, LeafKind]:
    """Return all kinds by code: this package's, one `KIND` in each file of this folder, and registered ones."""
    if not _kinds:
        names = (module.name for module in iter_modules([str(Path(__file__).parent)]))
        modules = (import_module(f"{__package__}.{name}") for name in names)
        own = [module.KIND for module in modules if hasattr(module, "KIND")]
        _kinds.update({kind.code: kind for kind in sorted(own, key=lambda kind: -kind.code)})
    return _kinds


def leaf_kind(name: str) -> tuple[int, LeafKind]:
    """Return a kind and its code; raises ModelError for a name that is not in the table."""
    for code, kind in leaf_kinds().items():
        if kind.name == name:
            return code, kind
    known = ", ".join(repr(kind.name) for kind in _kinds.values())
    raise ModelError(f"{name!r} is no kind of leaf; expected one of {known}, or one that register_leaf added")


def function_table(codes: Iterable[int]) -> Ints:
    """Return the addresses of some kinds' functions, shape (rows, 8); the kind of code k has row 1 - k."""
    table = np.zeros((2 - min(leaf_kinds()), 8), np.int64)
    for code in {int(code) for code in codes}:
        table[1 - code] = _addresses(code)
    return table


@cache
def _addresses(code: int) -> list[int]:
    """Compile a kind's functions; return their addresses, in the order of the questions in `kernels/real.py`."""
    from certimap.kernels.pointers import address_of

    of = leaf_kinds()[code].loaded()
    first = [address_of(question) for question in (of.log_density, of.log_mass, of.peak, of.scale)]
    last = [address_of(question) for question in (of.slope, of.least_curvature, of.largest_curvature)]
    return [*first, address_of(of.draw, draws=True), *last]


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Mean and standard deviation of the whole column."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Floats) -> ColumnMoments:
        sd = float(values.std()) if len(values) else 0.0
        return cls(float(values.mean()) if len(values) else 0.0, sd if sd > 0.0 else 1.0)

    def means(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the smoothed mean of each component; the column's mean for a component without rows."""
        rows = weights.sum(axis=0) + smoothing
        sums = weights.T @ values + smoothing * self.mean
        return np.where(rows > 0.0, sums / np.maximum(rows, SMALLEST_NORMAL), self.mean)

    def both(self, values: Floats, weights: Floats, smoothing: float) -> tuple[Floats, Floats]:
        """Return the smoothed mean and variance of each component."""
        means = self.means(values, weights, smoothing)
        squares = np.einsum("nk,nk->k", weights, (values[:, None] - means) ** 2)
        return means, self.variances(squares, weights.sum(axis=0), smoothing)

    def variances(self, squares: Floats, totals: Floats, smoothing: float) -> Floats:
        """Return smoothed variances from weighted sums of squares, at least (LEAST_SD * sd)^2."""
        rows = np.maximum(totals + smoothing, SMALLEST_NORMAL)
        raw = np.where(totals + smoothing > 0.0, (squares + smoothing * self.sd**2) / rows, self.sd**2)
        return np.maximum(raw, (LEAST_SD * self.sd) ** 2)


class LeafFamily(ABC):
    """Model of one column in each component: fitting, densities, and leaves.

    `name`: its public name: a leaf kind, "histogram" or "categorical".
    `takes`: the values that it can hold: `NUMBERS`, `FROM_ZERO`, `ABOVE_ZERO`, `SHARES` or `COUNTS`.
    """

    name: ClassVar[str]
    takes: ClassVar[str] = NUMBERS

    def __init__(self, values: Floats) -> None:
        self.column = ColumnMoments.of(values)

    @abstractmethod
    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return parameters, shape (n_components, n_parameters), for weights of shape (n_rows, n_components).

        Every component also counts `smoothing` pseudo-rows distributed like the whole column.
        """

    @abstractmethod
    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs, shape (n_rows, n_components); -inf where a value is impossible."""

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add the leaf of one component's parameters, and return its node."""
        return builder.real(self.name, variable, *params.tolist())


class CountFamily(LeafFamily):
    """A family on whole numbers from 0. Its means are above 0, and the smaller the more rows there are."""

    takes = COUNTS

    def __init__(self, values: Floats) -> None:
        super().__init__(values)
        self.least = 1.0 / (len(values) + 1.0)

    def means(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the mean of each component, shape (n_components, 1)."""
        return np.maximum(self.column.means(values, weights, smoothing), self.least)[:, None]


def is_count(values: Floats) -> Flags:
    """Return which values are whole numbers from 0."""
    return (values >= 0.0) & (values == np.rint(values))


def special(name: str) -> Any:
    """Return a function of scipy.special, which has no types."""
    return vars(import_module("scipy.special"))[name]
