"""What the network formats share: conditional tables whose rows should add to 1."""

from __future__ import annotations

import warnings

import numpy as np

from certimap.io.files import AnyPath
from certimap.io.numbers import Numbers

EXACT = 1e-9  # rows this close to 1 are left as they are
SILENT = 1e-6 + 1e-12  # rows this close to 1 were rounded to single precision: renormalised without a word
ACCEPTED = 1e-3 + 1e-12  # rows this close to 1 are renormalised; sums of decimals at the limit are rounded


class RowNormaliser:
    """Renormalises rows that nearly add to 1, and warns once for all of a file."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self.n_rows = 0
        self.worst = 0.0

    def __call__(self, table: Numbers) -> tuple[Numbers, tuple[int, ...] | None]:
        """Return the table with its rows (last axis) adding to 1, and the first row that is too far off."""
        totals = table.values.sum(axis=-1)
        off = np.abs(totals - 1.0)
        if np.all(off <= EXACT):
            return table, None
        if np.any(off > ACCEPTED):
            return table, tuple(int(i) for i in np.argwhere(off > ACCEPTED)[0])
        self.n_rows += int(np.count_nonzero(off > SILENT))
        self.worst = max(self.worst, float(off.max()))
        divisor = np.where(off > EXACT, totals, 1.0)[..., None]
        logs = None if table.logs is None else table.logs - np.log(divisor)
        return Numbers(table.values / divisor, logs), None

    def warn(self) -> None:
        """Warn if any row was changed."""
        if self.n_rows and self.worst > SILENT:
            warnings.warn(
                f"{self.path}: {self.n_rows} rows of conditional tables were renormalised; "
                f"the farthest added to 1 only within {self.worst:.1e}",
                stacklevel=4,
            )
