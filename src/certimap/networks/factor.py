"""Tables over a few discrete variables, multiplied and reduced without underflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index

import numpy as np
from numpy.typing import NDArray

from certimap.core.arguments import shown
from certimap.core.arrays import Floats, spread
from certimap.core.cached import cached_property, guard
from certimap.core.logs import add_to, log_of, log_sum
from certimap.errors import ModelError

SMALL_TABLE = 2**10  # entries of tables whose logs are taken together
MANY_FACTORS = 1000
MAX_SCOPE = 60  # numpy allows 64 axes


class Factor:
    """A nonnegative function of some discrete variables; immutable.

    `scope`: positions of the variables, one per axis.
    `table`: nonnegative and finite, one axis per variable, the last varying fastest; a number for an empty scope.

    `in_logs`: whether the entries are stored as natural logs (`from_log`), and `table` is computed from them.

    Raises ModelError for a duplicate variable, a scope of anything but positions, a table that is not an array of
    numbers or does not fit the scope, or an entry that is negative, NaN or infinite.
    """

    has_taken_logs = False  # whether `take_logs` has handled this factor
    has_taken_sign = False  # whether `take_signs` has

    def __init__(self, scope: Iterable[int], table: Sequence[object] | Floats | float) -> None:
        self.scope: tuple[int, ...] = _checked_scope(scope)
        try:
            values = np.array(table, np.float64)
        except (TypeError, ValueError):
            raise ModelError(
                f"the table of a factor over the variables {self.scope} is no array of numbers; expected one axis "
                "per variable, and rows of one length"
            ) from None
        if values.ndim != len(self.scope):
            raise ModelError(
                f"a factor over {len(self.scope)} variables has a table with {values.ndim} axes; expected one "
                "axis per variable"
            )
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            wrong = values[~(np.isfinite(values) & (values >= 0))].flat[0]
            raise ModelError(
                f"a factor over the variables {self.scope} has the entry {wrong}; "
                "expected finite numbers that are not negative"
            )
        values.setflags(write=False)
        self.in_logs = False
        self.table = values

    @classmethod
    def from_log(cls, scope: Iterable[int], log_table: Floats) -> Factor:
        """Build a factor from natural logs `log_table`, -inf for 0; `scope` and errors as in the constructor."""
        factor = cls.__new__(cls)
        factor.scope = _checked_scope(scope)
        values = np.array(log_table, np.float64)
        if values.ndim != len(factor.scope) or np.any(np.isnan(values)) or np.any(values == np.inf):
            raise ModelError(
                f"a factor over the variables {factor.scope} has a log table of shape {values.shape} or an entry "
                "that is NaN or +inf; expected one axis per variable, finite numbers or -inf"
            )
        values.setflags(write=False)
        factor.in_logs = True
        factor.log_table = values
        return factor

    def part(self, scope: tuple[int, ...], values: Floats) -> Factor:
        """Return a factor with some of this one's entries, held as it holds them; nothing is checked again.

        `scope`: the variables that are left. `values`: their entries, logs where this factor holds logs.
        """
        factor = Factor.__new__(Factor)  # attributes, no __dict__: thousands of dicts are work for the collector
        factor.scope, factor.in_logs = scope, self.in_logs
        values = values if values.base is None and values.flags.owndata else values.copy()
        values.setflags(write=False)
        if self.in_logs:
            factor.log_table = values
        else:
            factor.table = values
        return factor

    def over(self, scope: tuple[int, ...]) -> Factor:
        """Return a factor of the same numbers over the variables of `scope`; both share one array."""
        factor = self.part(scope, self.entries)
        factor.is_positive, factor.has_taken_sign = self.is_positive, True
        return factor

    @cached_property
    def table(self) -> Floats:
        """The values, float64; 0 or inf where the log is out of range."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_table)

    @cached_property
    def log_table(self) -> Floats:
        """The natural logs of the values, float64; -inf where a value is zero."""
        return log_of(self.table)

    @cached_property
    def is_positive(self) -> bool:
        """Whether no entry is zero."""
        return not self.entries.size or bool(self.entries.min() > (-np.inf if self.in_logs else 0.0))

    @property
    def entries(self) -> Floats:
        """The numbers that this factor was made of: values, or their logs."""
        return self.log_table if self.in_logs else self.table

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of states of each variable of the scope."""
        return self.log_table.shape if self.in_logs else self.table.shape

    def __repr__(self) -> str:
        return f"Factor(scope={self.scope}, shape={self.shape})"

    def multiply(self, other: Factor) -> Factor:
        """Return the product with `other`, over this scope and then the other's rest; cost: its table's size."""
        scope = (*self.scope, *(v for v in other.scope if v not in self.scope))
        mine, theirs = (spread(f.log_table, f.scope, scope) for f in (self, other))
        return Factor.from_log(scope, mine + theirs)

    def sum(self, variables: Iterable[int]) -> Factor:
        """Return the sum over `variables` (positions); raises ModelError for one outside the scope."""
        axes, scope = self._split(variables)
        return Factor.from_log(scope, log_sum(self.log_table, axes))

    def max(self, variables: Iterable[int]) -> Factor:
        """Return the maximum over `variables` (positions); raises ModelError for one outside the scope."""
        axes, scope = self._split(variables)
        return Factor.from_log(scope, self.log_table.max(axis=axes) if axes else self.log_table)

    def reduce(self, states: Mapping[int, int]) -> Factor:
        """Fix variables to `states`, by position; variables outside the scope are ignored."""
        index = tuple(states.get(v, slice(None)) for v in self.scope)
        scope = tuple(v for v in self.scope if v not in states)
        if self.in_logs:
            return Factor.from_log(scope, self.log_table[index])
        return Factor(scope, self.table[index])

    def log_value(self, points: NDArray[np.integer]) -> Floats:
        """Return natural logs at full assignments `points` of the *model*, (batch, n), shape (batch,)."""
        if not self.scope:
            return np.full(len(points), float(self.log_table))
        flat = np.zeros(len(points), np.int64)
        for variable, size in zip(self.scope, self.shape, strict=True):
            flat *= size
            flat += points[:, variable]
        return self.log_table.reshape(-1)[flat]

    def _split(self, variables: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        gone = set(variables)
        unknown = gone - set(self.scope)
        if unknown:
            raise ModelError(f"variable {min(unknown)} is not in the factor's scope {self.scope}")
        axes = tuple(i for i, v in enumerate(self.scope) if v in gone)
        return axes, tuple(v for v in self.scope if v not in gone)


def take_logs(factors: Iterable[Factor]) -> None:
    """Compute the logs of factors that lack them; for small factors, all entries at once."""
    missing = [f for f in factors if not (f.in_logs or f.has_taken_logs) and f.table.size <= SMALL_TABLE]
    logs = log_of(np.concatenate([np.empty(0), *(f.table.reshape(-1) for f in missing)]))
    end = 0
    with guard:
        for factor in missing:
            start, end = end, end + factor.table.size
            factor.log_table, factor.has_taken_logs = logs[start:end].reshape(factor.table.shape), True


def take_signs(factors: Sequence[Factor]) -> None:
    """Find out which of many factors have a zero, at once rather than one by one."""
    if len(factors) < MANY_FACTORS:
        return
    small = [f for f in factors if not f.has_taken_sign and 0 < f.entries.size <= SMALL_TABLE]
    if small:
        sizes = np.array([f.entries.size for f in small])
        entries = np.concatenate([f.entries.reshape(-1) for f in small])
        lowest = np.minimum.reduceat(entries, sizes.cumsum() - sizes)
        with guard:
            for factor, low in zip(small, lowest.tolist(), strict=True):
                factor.is_positive, factor.has_taken_sign = low > (-np.inf if factor.in_logs else 0.0), True


def add_logs(parts: Iterable[Floats], shape: tuple[int, ...]) -> Floats:
    """Add natural logs that broadcast to `shape`, with compensation: only the final sum is rounded."""
    total, lost = np.zeros(shape), np.zeros(shape)
    for value in parts:
        total = add_to(total, value, lost)
    return np.asarray(total + lost)


def _checked_scope(scope: Iterable[int]) -> tuple[int, ...]:
    try:
        values = tuple(index(v) for v in scope)
    except TypeError:
        raise ModelError(
            f"a factor has the scope {shown(scope)}; expected positions of variables, such as domain.index(name)"
        ) from None
    if any(v < 0 for v in values):
        raise ModelError(f"a factor has the scope {values}; expected positions of variables, from 0 on")
    if len(set(values)) != len(values):
        raise ModelError(f"a factor has the scope {values}; expected each variable once")
    if len(values) > MAX_SCOPE:
        raise ModelError(f"a factor has {len(values)} variables; expected at most {MAX_SCOPE}")
    return values
