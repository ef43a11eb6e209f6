"""Leaf families that a column may have, the choice among them by held-out rows, and bars for discrete learners.

Learners of discrete tables cut real columns into bars, which become piecewise uniform densities in the circuit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.leaves.family import COUNTS, FROM_ZERO, NUMBERS, LeafFamily, is_count
from certimap.circuits.leaves.kind import leaf_kinds
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import DataError
from certimap.learn.leaf_families import Histogram, States
from certimap.learn.table import MISSING, DataTable


def _families() -> dict[str, type[LeafFamily]]:
    """Return the families of real columns by name."""
    fitted = {kind.name: kind.family for kind in leaf_kinds().values() if kind.family is not None}
    return fitted | {Histogram.name: Histogram}


def families_of(table: DataTable, i: int, wanted: Sequence[str] | None) -> list[LeafFamily]:
    """Return the families that column `i` of the training rows may have, the plainest first.

    `wanted`: a family's name, or several to choose from; None for all that can hold the column. Raises DataError
    for an unknown name, and for a family that cannot hold the column's values.
    """
    values = table.observed(i)
    variable = table.domain.variables[i]
    if not isinstance(variable, Real):
        if wanted is not None:
            raise DataError(
                f"leaves names the column {variable.name!r}, which is categorical; name real columns and counts"
            )
        return [States(values, variable.n_states)]
    hint, families = table.whole.get(i), _families()
    if wanted is not None:
        names: list[str] = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
        for name in names:
            _check(name, families, variable.name, values)
    else:
        takes = [COUNTS] if hint == "count" or (hint == "whole" and np.all(is_count(values))) else []
        takes += [] if hint == "count" else [NUMBERS, FROM_ZERO] if np.all(values >= 0.0) else [NUMBERS]
        names = [name for kind in takes for name, family in families.items() if family.takes == kind]
    return [families[name](values) for name in names]


def densest(judged: Sequence[Floats]) -> int:
    """Return the index of the largest log densities: 0 unless another's mean lead exceeds its standard error."""
    best, lead = 0, 0.0
    for k, logs in enumerate(judged[1:], 1):
        with np.errstate(invalid="ignore"):
            gains = logs - judged[0]
        gains = np.where(np.isnan(gains), 0.0, gains)  # impossible under both
        mean = float(gains.mean())
        if mean > lead and (mean == np.inf or mean > float(gains.std()) / len(gains) ** 0.5):
            best, lead = k, mean
    return best


def check_leaves(leaves: Mapping[str, Any] | None, domain: Domain) -> None:
    """Raise DataError if `leaves` names a column that does not exist."""
    for name in leaves or {}:
        if name not in domain:
            raise DataError(f"leaves names the column {name!r}, which the table does not have")


def _check(name: str, families: Mapping[str, type[LeafFamily]], column: str, values: Floats) -> None:
    if name not in families:
        raise DataError(f"the leaves of column {column!r} are {name!r}; expected one of {', '.join(families)}")
    takes = families[name].takes
    held = is_count(values) if takes == COUNTS else values >= (0.0 if takes == FROM_ZERO else -np.inf)
    if not np.all(held):
        raise DataError(f"column {column!r} holds {values[~held][0]:g}; {name} leaves take {takes}")


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars into which the real columns of a table are cut at quantiles.

    A distribution over bars is a piecewise constant density over values, with the same likelihood up to the bars'
    widths. Learning over bars thus equals learning with histogram leaves exactly. `domain`: the variables as users
    know them. `cut`: the variables with the numbers of bars as the states of real ones. `histograms`: the bars of
    each real column.
    """

    domain: Domain
    cut: Domain
    histograms: dict[int, Histogram]

    @classmethod
    def of(cls, table: DataTable, rows_per_bar: float = 1.0) -> Bars:
        """Cut each real column into sqrt(rows) bars, 32 at most.

        `rows_per_bar` first divides the rows, for learners with one table per pair of columns and thus few rows
        per entry.
        """
        real = [i for i, v in enumerate(table.domain) if isinstance(v, Real)]
        histograms = {i: Histogram(table.observed(i), rows_per_bar) for i in real}
        variables = [
            Categorical(v.name, tuple(range(len(histograms[i].edges) - 1))) if i in histograms else v
            for i, v in enumerate(table.domain)
        ]
        return cls(table.domain, Domain(variables), histograms)

    def coded(self, table: DataTable) -> DataTable:
        """Replace values by bars; values outside all bars go to the nearest."""
        if not self.histograms:
            return table
        codes = np.empty(table.points.shape, np.int16)
        missing = table.missing
        for i in range(len(self.domain)):
            values = np.where(missing[:, i], 0.0, table.points[:, i])
            if i in self.histograms:
                edges = self.histograms[i].edges
                values = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
            codes[:, i] = np.where(missing[:, i], MISSING, values)
        return DataTable(self.cut, codes)

    def to_circuit(self, circuit: Circuit) -> Circuit:
        """Turn a circuit over bars into one over values; leaves over bars become histograms with wide tails."""
        if not self.histograms:
            return circuit
        builder = CircuitBuilder(self.domain)
        ids: list[int] = []
        for node in range(circuit.n_nodes):
            variable, params = int(circuit.leaf_var[node]), circuit.params_of(node)
            if variable in self.histograms:
                ids.append(self.histograms[variable].add(builder, variable, np.exp(params)))
                continue
            below: list[int] = circuit.children_of(node).tolist()
            weights = circuit.log_weights[circuit.child_ptr[node] : circuit.child_ptr[node + 1]].tolist()
            ids.append(builder.add(int(circuit.kind[node]), [ids[c] for c in below], weights, variable, params))
        return builder.build(normalised=False)
