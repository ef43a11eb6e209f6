"""Real columns for learners of discrete tables: bars while learning, uniform densities in the circuit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.core.domain import Categorical, Domain, Real
from certimap.learn.leaf_families import Histogram
from certimap.learn.table import MISSING, DataTable


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
            variable = int(circuit.leaf_var[node])
            if circuit.kind[node] == NodeKind.CATEGORICAL:
                logs = circuit.params_of(node)
                if variable in self.histograms:
                    ids.append(self.histograms[variable].add(builder, variable, np.exp(logs)))
                else:
                    ids.append(builder.categorical(variable, log_weights=logs.tolist()))
                continue
            numbers: list[int] = circuit.children_of(node).tolist()
            children = [ids[c] for c in numbers]
            if circuit.kind[node] == NodeKind.PRODUCT:
                ids.append(builder.product(children))
            else:
                weights = circuit.log_weights[circuit.child_ptr[node] : circuit.child_ptr[node + 1]]
                ids.append(builder.sum(children, log_weights=weights.tolist()))
        return builder.build(normalised=False)
