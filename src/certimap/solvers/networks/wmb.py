"""Weighted mini-buckets: a relaxation of a given i-bound, tightened by cost shifting; exact without one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.control import Control, TimeUp
from certimap.core.posterior import Posterior
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.split_tree import PassClock, SplitTree, limit, nuisance_first, split, tree_bytes
from certimap.networks.relaxation.tighten import Tightener
from certimap.solvers.base import RELAXATION, Effort, WholeSpaceSolver

TEMPERATURES = (0.1, 0.1, 0.01, 0.001)  # of the quarters of the iterations
FEWER = 3  # variables in a message, and bits of a table, where time does not suffice for the tree before


@dataclass(eq=False)
class MiniBucketState:
    """The relaxation, and how many iterations it has had."""

    posterior: NetworkPosterior
    clock: PassClock
    tree: SplitTree
    n_less: int = 0  # how often the tables were made smaller
    tightener: Tightener | None = None
    n_done: int = 0
    work: int = 0
    done: bool = False


@dataclass(frozen=True)
class WeightedMiniBuckets(WholeSpaceSolver, name="wmb", needs=(NetworkPosterior,), family="elimination"):
    """Eliminate along a nuisance-first order, splitting buckets of more than `i_bound` + 1 variables.

    Copies of nuisance variables get weights that add up to 1 (Hoelder's inequality), copies of query variables are
    maximised; each iteration is a quasi-Newton step on cost shifts and weights, whose bound is convex. The best
    bound stands as a proof; the assignment is read off the relaxation state by state. With an i-bound of at least
    the width nothing is split and the answer is exact. Where the time left is too short for steps at an i-bound, a
    relaxation of a smaller one gets it.

    `bucket_elimination` is this method with `i_bound=None`: nothing is split, one pass is exact, and a query whose
    tables exceed the memory is refused before memory is taken. Only the best assignment is found, not the k best.

    Sources: Dechter (1999), 'Bucket elimination: a unifying framework for reasoning'; Dechter and Rish (2003); Liu
    and Ihler (2011), 'Bounding the partition function using Hoelder's inequality'; Ping, Liu and Ihler (2015) for
    marginal MAP. Cost: about three passes over all tables per iteration.

    `i_bound`: the most variables in a message: tables have at most one more, apart from those of the model itself.
    None splits nothing. `iterations`: quasi-Newton steps; 0 takes the plain mini-bucket bound. `bits`: log base 2
    of the most entries of a table, apart from those of the model itself: where variables have many states, it
    limits tables as no i-bound does.
    """

    i_bound: int | None = 10
    iterations: int = 10
    bits: float = math.inf
    ranges = "i_bound [1, inf); iterations [0, inf); bits [0, inf]"

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse a problem whose unsplit tables exceed the memory of the run."""
        if self.i_bound is not None or self.bits < math.inf or not isinstance(posterior, NetworkPosterior):
            return None
        problem = posterior.problem
        needed = tree_bytes(problem, split(problem, nuisance_first(problem), limit(problem.sizes)))
        if needed <= posterior.control.memory_limit:
            return None
        size = f"2^{math.log2(needed):.1f} bytes for its tables"
        return f"solver 'bucket_elimination' would need {size}; use solver='auto' or 'wmb', or raise max_memory"

    def start(self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator) -> MiniBucketState:
        return MiniBucketState(posterior, PassClock(control), self._tree(posterior, 0, control))

    def _tree(self, posterior: NetworkPosterior, n_less: int, control: Control) -> SplitTree:
        problem, less = posterior.problem, FEWER * n_less
        i_bound = None if self.i_bound is None else self.i_bound - less
        fits = limit(problem.sizes, 2.0 ** (self.bits - less), i_bound)
        return SplitTree.of(problem, nuisance_first(problem, control=control), fits, control.memory_limit)

    def effort(self, state: MiniBucketState) -> Effort:
        return Effort(n_bytes=state.tree.n_bytes, work=state.work)

    def foreseen(self, state: MiniBucketState) -> float:
        """Return the work of a step: entries of tables, for each of its iterations."""
        return float(max(1, self.iterations // 6) * state.tree.n_entries)

    def step(self, state: MiniBucketState, ledger: Ledger) -> MiniBucketState:
        """Bound and decode as things stand, then take a share of the iterations."""
        if state.tightener is not None:
            temperature = TEMPERATURES[4 * state.n_done // max(self.iterations, 1)]
            n_steps = min(max(1, self.iterations // 6), self.iterations - state.n_done)
            state.tightener.run(temperature, n_steps)
            state.n_done += n_steps
            state.work += n_steps * state.tree.n_entries
        else:
            state.tightener = Tightener(state.tree, state.clock)
        s = state.tightener.scratch
        split_bound = state.tree.bound(scratch=s, clock=state.clock)
        ledger.upper_bound(min(split_bound, state.posterior.log_ceiling), RELAXATION)
        ledger.candidates(state.posterior.point(decode(state.tree, scratch=s, clock=state.clock)))
        if state.tightener.is_cut:
            limits = self.bits if self.i_bound is None else min(self.bits, self.i_bound)
            state.n_less += 1
            if limits == math.inf or limits <= FEWER * state.n_less or state.clock.control.should_stop:
                raise TimeUp("shifting costs")
            state.tree = self._tree(state.posterior, state.n_less, state.clock.control)
            state.tightener, state.n_done = None, 0
            return state
        state.done = state.n_done >= self.iterations or not state.tree.is_split
        return state
