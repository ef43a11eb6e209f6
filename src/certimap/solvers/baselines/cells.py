"""The most probable cell: a partition turns a density into probabilities, which discrete solvers certify."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Label
from certimap.core.posterior import Capability, Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Effort, Family, Judging, Solver
from certimap.solvers.baselines.boxes import BoxMasses, grown_boxes
from certimap.solvers.baselines.intervals import domain_of_cells, grid_edges, quantile_edges, real_positions
from certimap.solvers.registry import make, resolve


@dataclass
class CellState:
    """The solver that works on the cells, and its state."""

    solver: Solver
    state: Any

    @property
    def done(self) -> bool:
        return self.state.done


@dataclass(frozen=True)
class Cells(Solver):
    """Partition the real query variables into cells, and find the most probable cell.

    The exact masses of the cells make a distribution over finitely many states (categorical query variables keep
    theirs), to which every rule about probabilities applies. The answer is one interval per real variable. The
    certificate compares only the cells of this partition: the densest point may lie in another cell. Draws used to
    place the partition never count as evidence.

    Source: the discretisation that PAC-MAP proposes for continuous queries. Cost: one mass per leaf and cell, then
    the cost of a discrete query.

    Parameters
    ----------
    partition
        "grid": intervals of one width where all but 1e-4 of the mass at each end lies, and one beyond each end.
        "quantiles": intervals of equal mass, variable by variable. "tree": the leaves of a regression tree of
        scikit-learn that predicts ln of the density at draws.
    n_cells
        Intervals per real variable; for a tree, cells in all.
    width
        Width of a grid's intervals, in the units of the variables, one number or one per name; replaces
        `n_cells`.
    radius
        Make the cells of a grid fit into balls of this radius; replaces `width`. If log2 of the density falls by
        at most L bits per unit of distance, a radius of epsilon / L keeps it constant within about epsilon.
    n_draws
        Draws to grow a tree.
    by
        The solver for the query over cells: a name, a solver, or "auto".
    """

    partition: Literal["grid", "quantiles", "tree"] = "grid"
    n_cells: int = 32
    width: float | Mapping[str, float] | None = None
    radius: float | None = None
    n_draws: int = 4096
    by: str | Solver = "auto"

    name: ClassVar[str] = "cells"
    needs: ClassVar[tuple[Capability, ...]] = (CircuitPosterior,)
    family: ClassVar[Family] = "search"

    def __post_init__(self) -> None:
        if self.partition not in ("grid", "quantiles", "tree"):
            raise SolverError(f"partition is {self.partition!r}; expected 'grid', 'quantiles' or 'tree'")
        if self.n_cells < 2 or self.n_draws < 2:
            raise SolverError(f"n_cells is {self.n_cells} and n_draws {self.n_draws}; expected at least 2 each")
        if self.partition != "grid" and (self.width is not None or self.radius is not None):
            raise SolverError(
                f"width and radius are of grids; leave them out, or use partition='grid' ({self.partition!r})"
            )
        if self.width is not None and self.radius is not None:
            raise SolverError("width and radius were both given; one of them is expected")
        widths = self.width.values() if isinstance(self.width, Mapping) else (self.width, self.radius)
        for value in widths:
            if value is not None and not 0.0 < value < math.inf:
                raise SolverError(f"a width or radius of cells is {value}; expected a positive number")

    def judging(self) -> Judging:
        inner = make(self.by) if isinstance(self.by, str) and self.by != "auto" else self.by
        return inner.judging() if isinstance(inner, Solver) else Judging()

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse a query without real variables, and a `width` mapping that misses one."""
        places = real_positions(posterior.domain)
        if not places:
            return "solver 'cells' parts real variables, and the query has none; use solver='auto'"
        if isinstance(self.width, Mapping):
            missing = [posterior.domain.names[i] for i in places if posterior.domain.names[i] not in self.width]
            if missing:
                return f"width names no value for variable {missing[0]!r}; expected one per real query variable"
        return None

    def posed(self, posterior: CircuitPosterior, rng: np.random.Generator) -> Posterior:
        domain = posterior.domain
        layout = posterior.prober().layout
        if self.partition == "tree":
            return BoxMasses(posterior, grown_boxes(posterior, layout, self.n_cells, self.n_draws, rng))
        if self.partition == "quantiles":
            edges = quantile_edges(posterior, layout, self.n_cells, rng)
        else:
            n_real = len(real_positions(domain))
            width = self.width if self.radius is None else 2.0 * self.radius / math.sqrt(n_real)
            edges = grid_edges(posterior, layout, self.n_cells, width, rng)
        return posterior.cut(*domain_of_cells(domain, edges))

    def decode(self, posterior: Posterior, point: Points) -> dict[str, Label]:
        if isinstance(posterior, BoxMasses):
            return posterior.decode(int(point[0]))
        return posterior.domain.decode(point)

    def init(
        self, posterior: Posterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> CellState:
        self.refuse_boxes(boxes)
        inner = resolve(self.by, posterior)
        return CellState(inner, inner.init(posterior, control, rng))

    def effort(self, state: CellState) -> Effort:
        return state.solver.effort(state.state)

    def step(self, state: CellState, ledger: Ledger) -> CellState:
        return CellState(state.solver, state.solver.step(state.state, ledger))
