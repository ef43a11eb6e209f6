"""Tables of wide numbers: each entry has its own exponent, so that nothing underflows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from certimap.core.arrays import Array, Floats, Ints, spread
from certimap.core.logs import log_of
from certimap.kernels.wide import LN2, ZERO, WideArrays
from certimap.trees.kernels import wide_passes as kernels

_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")  # exact when multiplied by an integer below 2^21
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_UNIT = 2.0**-53
_MANY = 512  # mantissas multiplied before renormalisation to [1/2, 1)


@dataclass(frozen=True, eq=False)
class Wide:
    """Nonnegative numbers mantissa 2^exponent."""

    mantissa: Floats  # float64, in [1/2, 1) or 0
    exponent: Ints  # int64, the same shape; `ZERO` where the mantissa is 0
    log_error: float = 0.0  # a bound on the accumulated rounding error of the log of any entry, in nats

    @classmethod
    def of_values(cls, values: Floats, exponent: Ints | int = 0) -> Wide:
        """Convert doubles in units of 2^exponent exactly."""
        return cls(*_normal(np.asarray(values, np.float64), exponent))

    @classmethod
    def of_logs(cls, logs: Floats) -> Wide:
        """Convert natural logs; -inf becomes 0."""
        finite = np.isfinite(logs)
        logs = np.where(finite, logs, 0.0)
        exponent = np.rint(logs / LN2)
        mantissa = np.array(np.where(finite, np.exp((logs - exponent * _LN2_HIGH) - exponent * _LN2_LOW), 0.0))
        largest = float(np.max(np.abs(logs), initial=0.0))
        error = (largest + 3.0) * _UNIT if largest else 0.0
        return cls(*_normal(mantissa, exponent.astype(np.int64)), error)

    @classmethod
    def product(cls, tables: Sequence[Wide], shape: tuple[int, ...]) -> Wide:
        """Multiply tables that broadcast to `shape`."""
        if len(tables) == 1 and tables[0].shape == shape:
            return tables[0]
        if not tables:
            return cls.of_values(np.ones(shape))
        mantissa, exponent, error = np.empty(shape), np.empty(shape, np.int64), tables[0].log_error
        mantissa[...], exponent[...] = tables[0].mantissa, tables[0].exponent
        for i, table in enumerate(tables[1:]):
            mantissa *= table.mantissa
            exponent += table.exponent
            error += table.log_error + _UNIT
            if i % _MANY == _MANY - 1:
                mantissa, exponent = _normal(mantissa, exponent)
        return cls(*_normal(mantissa, exponent), error)

    @classmethod
    def empty(cls, shape: Sequence[int]) -> Wide:
        """Return room for numbers."""
        return cls(np.empty(shape), np.empty(shape, np.int64))

    @property
    def pair(self) -> WideArrays:
        """The numbers as kernels take them."""
        return WideArrays(self.mantissa, self.exponent)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table."""
        return self.mantissa.shape

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.mantissa.size

    @property
    def smallest_exponent(self) -> int:
        """The exponent of the smallest positive entry, 0 if none is below 1."""
        return int(np.min(self.exponent, where=self.mantissa > 0.0, initial=0))

    def view(self, change: Callable[[Array], Array]) -> Wide:
        """Apply a function that only moves entries (an index, a transposition, a new shape)."""
        return Wide(change(self.mantissa), change(self.exponent), self.log_error)

    def spread(self, scope: Sequence[int], target: Sequence[int]) -> Wide:
        """View a table over `scope` with the axes of `target`; axes not in `scope` have length one."""
        return self.view(lambda values: spread(values, scope, target))

    def values(self) -> Floats:
        """Return doubles; tiny numbers become denormals or 0."""
        return np.ldexp(self.mantissa, np.clip(self.exponent, -2000, 2000).astype(np.int32))

    def logs(self) -> Floats:
        """Return natural logs."""
        return np.asarray(log_of(self.mantissa) + self.exponent * LN2, np.float64)

    def shares(self) -> tuple[Wide, Wide]:
        """Divide the rows (last axis) by their sums; return the shares (0 in rows of zeros) and the sums."""
        *outer, n = self.shape
        share, total = Wide.empty(self.shape), Wide.empty(outer)
        rows = Wide(np.ascontiguousarray(self.mantissa), np.ascontiguousarray(self.exponent))
        given, found = (x.view(lambda values: values.reshape(-1, n)).pair for x in (rows, share))
        kernels.divide_rows(given, found, total.view(lambda values: values.reshape(-1)).pair)
        error = self.log_error + n * _UNIT
        return Wide(share.mantissa, share.exponent, error + _UNIT), Wide(total.mantissa, total.exponent, error)


def _normal(mantissa: Floats, exponent: Ints | int) -> tuple[Floats, Ints]:
    """Bring mantissas into [1/2, 1)."""
    found, places = np.frexp(mantissa)
    return found, np.where(found > 0.0, np.asarray(exponent, np.int64) + places, ZERO)


def as_wide(values: Floats | Wide) -> Wide:
    """Return doubles as wide numbers, and wide numbers unchanged."""
    return values if isinstance(values, Wide) else Wide.of_values(values)
