"""A circuit over real variables turned into one over the cells of a partition, by exact masses of its leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.kernels.cells import fill_cell_masses
from certimap.circuits.leaves.kind import function_table, leaf_kinds
from certimap.circuits.plan import Plan
from certimap.core.arrays import Floats
from certimap.core.domain import Domain
from certimap.core.rounding import ULP

# Lower limit on ln of the mass of a possible cell: binary exponents of products of thousands of masses then stay
# whole numbers. Raised masses lie below any p* that is not itself e^-1e9.
LEAST_LOG_MASS = -1e9
Edges = Sequence[Floats | None]


def cut_plan(plan: Plan, cells: Domain, edges: Edges) -> tuple[Circuit, float]:
    """Replace the density of every real leaf by a table of its masses in its variable's cells.

    `cells` are the plan's variables, with one state per cell for real ones; `edges` holds the rising ends of each
    real variable's cells, one more than cells, and None for others. Returns a circuit over `cells`, in which the
    value of a point is the mass of a box, and a bound on the error (nats) of log masses, apart from errors
    relative to their size.
    """
    is_real = plan.domain.n_states[plan.leaf_var] == 0
    starts, first = np.unique(plan.leaf_start[is_real], return_index=True)
    variables = plan.leaf_var[is_real][first].astype(np.int64)
    n_cells = cells.n_states[variables]
    first_cell = np.concatenate([[0], np.cumsum(n_cells)]).astype(np.int64)
    ends = [np.zeros(0) if e is None else np.asarray(e, np.float64) for e in edges]
    first_edge = np.concatenate([[0], np.cumsum([len(e) for e in ends])]).astype(np.int64)[variables]
    masses = np.empty(int(first_cell[-1]))
    fill_cell_masses(
        function_table(np.unique(plan.log_tables[starts])),
        plan.log_tables,
        starts,
        first_edge,
        first_cell,
        np.concatenate(ends),
        LEAST_LOG_MASS,
        masses,
    )
    moved = np.array(plan.leaf_start)
    moved[is_real] = len(plan.log_tables) + first_cell[np.searchsorted(starts, plan.leaf_start[is_real])]
    logs = np.concatenate([plan.log_tables, masses])
    made = replace(plan, domain=cells, leaf_start=moved, log_tables=logs, tables=np.exp(logs))
    roundings = max(kind.roundings for kind in leaf_kinds().values())
    return made.to_circuit(), plan.log_error + ULP * roundings * int(np.sum(plan.domain.n_states == 0))
