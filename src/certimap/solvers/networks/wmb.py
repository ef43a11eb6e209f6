"""Weighted mini-buckets: one relaxation of a given i-bound, tightened by cost shifting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from certimap.control import TimeUp
from certimap.errors import SolverError
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.partition import limit, nuisance_first
from certimap.networks.relaxation.pass_clock import PassClock
from certimap.networks.relaxation.split_tree import SplitTree
from certimap.networks.relaxation.tighten import Tightener
from certimap.posterior import Capability
from certimap.solvers.base import Effort, Family, Solver
from certimap.solvers.networks.relaxed import RELAXATION, point_of

if TYPE_CHECKING:
    from certimap.box import Boxes
    from certimap.certify.ledger import Ledger
    from certimap.control import Control

TEMPERATURES = (0.1, 0.01, 0.001)


@dataclass(eq=False)
class MiniBucketState:
    """The relaxation, and how many iterations it has had."""

    posterior: NetworkPosterior
    clock: PassClock
    tree: SplitTree
    tightener: Tightener | None = None
    n_done: int = 0
    done: bool = False


@dataclass(frozen=True)
class WeightedMiniBuckets(Solver):
    """Eliminate along a nuisance-first order, splitting buckets of more than `i_bound` + 1 variables.

    Copies of nuisance variables get weights that add up to 1 (Hoelder's inequality), copies of query variables are
    maximised; each iteration is a quasi-Newton step on cost shifts and weights, whose bound is convex. The best
    bound stands as a proof; the assignment is read off the relaxation state by state. With an i-bound of at least
    the width nothing is split and the answer is exact.

    Sources: Dechter and Rish (2003); Liu and Ihler (2011), 'Bounding the partition function using Hoelder's
    inequality'; Ping, Liu and Ihler (2015) for marginal MAP. Cost: about three passes over all tables per
    iteration.

    Parameters
    ----------
    i_bound
        The most variables in a message: tables have at most one more, apart from those of the model itself.
    iterations
        Quasi-Newton steps; 0 takes the plain mini-bucket bound.
    """

    i_bound: int = 10
    iterations: int = 10

    name: ClassVar[str] = "wmb"
    needs: ClassVar[tuple[Capability, ...]] = (NetworkPosterior,)
    family: ClassVar[Family] = "elimination"

    def __post_init__(self) -> None:
        if self.i_bound < 1 or self.iterations < 0:
            raise SolverError(
                f"i_bound is {self.i_bound} and iterations {self.iterations}; an i_bound of "
                "at least 1 and iterations not below 0 are expected"
            )

    def init(
        self,
        posterior: NetworkPosterior,
        control: Control,
        rng: np.random.Generator,
        boxes: Boxes | None = None,
    ) -> MiniBucketState:
        self.refuse_boxes(boxes)
        problem = posterior.problem
        tree = SplitTree.of(
            problem,
            nuisance_first(problem, control=control),
            limit(problem.sizes, i_bound=self.i_bound),
            control.memory_limit,
        )
        return MiniBucketState(posterior, PassClock(control), tree)

    def effort(self, state: MiniBucketState) -> Effort:
        return Effort(n_bytes=state.tree.n_bytes, work=state.n_done * state.tree.n_entries)

    def step(self, state: MiniBucketState, ledger: Ledger) -> MiniBucketState:
        """Bound and decode as things stand, then take a share of the iterations."""
        if state.tightener is not None:
            temperature = TEMPERATURES[min(3 * state.n_done // max(self.iterations, 1), 2)]
            n_steps = min(max(1, self.iterations // 6), self.iterations - state.n_done)
            state.tightener.run(temperature, n_steps)
            state.n_done += n_steps
        else:
            state.tightener = Tightener(state.tree, state.clock)
        s = state.tightener.scratch
        split_bound = state.tree.bound(scratch=s, clock=state.clock)
        ledger.upper_bound(min(split_bound, state.posterior.log_ceiling), RELAXATION)
        ledger.candidates(point_of(state.posterior, decode(state.tree, scratch=s, clock=state.clock)))
        if state.tightener.is_cut:
            raise TimeUp("shifting costs")
        state.done = state.n_done >= self.iterations or not state.tree.is_split
        return state
