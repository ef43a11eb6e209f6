"""Bucket elimination: the exact answer where the tables of the constrained order fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from certimap.core.posterior import Capability, Posterior
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.partition import nuisance_first, split
from certimap.networks.relaxation.pass_clock import PassClock
from certimap.networks.relaxation.split_tree import SplitTree, tree_bytes
from certimap.solvers.base import Effort, Family, Solver
from certimap.solvers.networks.relaxed import RELAXATION, point_of

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.core.box import Boxes
    from certimap.core.control import Control


@dataclass(eq=False)
class EliminationState:
    """Whether the one step has been made."""

    posterior: NetworkPosterior
    control: Control
    n_bytes: int = 0
    done: bool = False


@dataclass(frozen=True)
class BucketElimination(Solver):
    """Sum nuisance variables out, then maximise over query variables, each group in an order of least fill.

    Exact in one pass. The tables of the constrained order decide whether it fits; their size is known before
    memory is taken, and a problem that is too large is refused. Only the best assignment is found, not the k best.

    Source: Dechter (1999), 'Bucket elimination: a unifying framework for reasoning'. Cost: two passes over the
    tables.
    """

    name: ClassVar[str] = "bucket_elimination"
    needs: ClassVar[tuple[Capability, ...]] = (NetworkPosterior,)
    family: ClassVar[Family] = "elimination"

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse a problem whose tables exceed the memory of the run."""
        if not isinstance(posterior, NetworkPosterior):
            return None
        problem = posterior.problem
        needed = tree_bytes(problem, split(problem, nuisance_first(problem), lambda scope: True))
        if needed > posterior.control.memory_limit:
            return (
                f"solver 'bucket_elimination' would need 2^{math.log2(needed):.1f} bytes for the tables of "
                "this query; use solver='auto' or 'wmb', or raise max_memory"
            )
        return None

    def init(
        self,
        posterior: NetworkPosterior,
        control: Control,
        rng: np.random.Generator,
        boxes: Boxes | None = None,
    ) -> EliminationState:
        self.refuse_boxes(boxes)
        return EliminationState(posterior, control)

    def effort(self, state: EliminationState) -> Effort:
        return Effort(n_bytes=state.n_bytes)

    def step(self, state: EliminationState, ledger: Ledger) -> EliminationState:
        """Eliminate, and read the assignment off."""
        problem = state.posterior.problem
        tree = SplitTree.of(problem, nuisance_first(problem), lambda scope: True, state.control.memory_limit)
        state.n_bytes = tree.n_bytes
        s, clock = tree.scratch(), PassClock(state.control)
        ledger.upper_bound(tree.bound(scratch=s, clock=clock), RELAXATION)
        ledger.candidates(point_of(state.posterior, decode(tree, scratch=s, clock=clock)))
        state.done = True
        return state
