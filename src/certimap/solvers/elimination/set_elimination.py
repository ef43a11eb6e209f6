"""Exact marginal MAP by elimination on sets of vectors, made anytime by merging, splitting and draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.posterior import Capability, Regions
from certimap.errors import SolverError
from certimap.solvers.base import Effort, Family, Solver
from certimap.solvers.elimination.geometry import Geometry
from certimap.solvers.elimination.search import OpenBox, Search, SetSearchState

STEP_WORK = 20_000_000


@dataclass(frozen=True)
class SetElimination(Solver):
    """Dynamic programming on sets of vectors along a tree of regions.

    An assignment of the query variables below a region gives a vector over the hidden states of its separator.
    Sets of vectors are multiplied and mapped upward. A vector is dropped if an upper bound on its best completion
    is at most the threshold, or if another vector dominates it. The root's set holds complete assignments. If a
    set outgrows `limits`, similar vectors are merged into their maxima, which are bounds instead of values. A box
    whose bound stays too high is split by the states of one variable. Between eliminations, draws from the open
    boxes may earn the probabilistic certificate.

    Parameters
    ----------
    limits
        Largest rows per set in the successive eliminations of the whole space.
    split_limit
        Largest rows per set in the eliminations of parts of the space.
    n_starts, n_first_draws
        The number of hill climbs, and of draws from which their starts are chosen.
    draw_share
        The share of the work for draws, after the first elimination and if `delta` is positive.

    Notes
    -----
    Sources: Maua and de Campos (2012), "Anytime marginal MAP inference", for the sets; the outside bounds
    are this project's. Bounds carry a slack for rounding, far below the tolerance of "exact".
    """

    name: ClassVar[str] = "set_elimination"
    needs: ClassVar[tuple[Capability, ...]] = (Regions,)
    family: ClassVar[Family] = "elimination"

    limits: tuple[int, ...] = (256, 16384)
    split_limit: int = 4096
    n_starts: int = 4
    n_first_draws: int = 256
    draw_share: float = 0.2

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits) < 1 or self.split_limit < 1:
            raise SolverError(f"limits are {self.limits} and {self.split_limit}; expected positive numbers")
        if not 0.0 <= self.draw_share < 1.0:
            raise SolverError(f"draw_share is {self.draw_share}; expected a number in [0, 1)")
        if self.n_starts < 1 or self.n_first_draws < 1:
            raise SolverError("n_starts and n_first_draws must be positive")

    def init(
        self, posterior: Regions, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> SetSearchState:
        whole = Boxes.full(posterior.domain) if boxes is None else boxes
        state = SetSearchState(posterior, control, rng, Geometry.of(posterior.region_tree))
        log_mass = 0.0 if boxes is None else min(float(posterior.log_mass(boxes)[0]) + state.slack, 0.0)
        n_states = posterior.domain.total_states
        state.open = [OpenBox(whole.mask[0].copy(), log_mass, log_mass, None, np.zeros(n_states), 0)]
        return state

    def effort(self, state: SetSearchState) -> Effort:
        return Effort(state.n_nodes, state.held_bytes, state.work)

    def step(self, state: SetSearchState, ledger: Ledger) -> SetSearchState:
        """Work for a fraction of a second."""
        search, spent = Search(self, state, ledger), 0
        while not state.done:
            work = search.advance()
            spent += work
            state.work += work
            over = state.control.nodes_left(state.n_nodes) == 0
            if over or ledger.satisfied or spent >= STEP_WORK or state.control.should_stop:
                return state
        return state
