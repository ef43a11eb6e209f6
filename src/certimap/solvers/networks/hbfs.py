"""MPE in networks of any width: exact reductions, dual ascent, elimination and hybrid best-first search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from certimap.control import Control
from certimap.errors import SolverError
from certimap.kernels.parallel import default_workers
from certimap.networks.problem import FLOOR, HARD, below_nats, in_nats, to_integers
from certimap.networks.simplify import impossible
from certimap.solvers.networks.parts import Effort, Reduction

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.networks.mpe_posterior import MpePosterior

DEFAULT_BYTES = 4 * 2**30


@dataclass
class HybridState:
    """The tree of subproblems, and what has been reported of it."""

    posterior: MpePosterior
    root: Reduction | None
    effort: Effort
    unit: float
    reported: int = HARD

    @property
    def done(self) -> bool:
        return self.root is not None and self.root.is_done

    @property
    def n_nodes(self) -> int:
        return self.effort.n_nodes

    @property
    def n_bytes(self) -> int:
        return 0 if self.root is None else self.root.n_bytes

    @property
    def work(self) -> int:
        return self.effort.work


@dataclass(frozen=True)
class HybridBestFirst:
    """Maximise a product of tables exactly, in any network whose nuisance variables can be summed out.

    The problem is rounded up to integers and reduced; components whose elimination is cheap are eliminated. For
    the others costs are moved between tables until the sum of their maxima, an upper bound, stalls (sequential
    reweighted sweeps), while tabu search finds good assignments; states that cannot beat these go; what is left is
    reduced again and searched, or eliminated once the search has cost as much as that would.

    Parameters
    ----------
    quick_entries
        Eliminate a component at once when that takes at most so many table entries.
    max_entries
        Never eliminate one that takes more. 0 (with `quick_entries` 0) leaves everything to the search.
    exact_work
        Table entries to visit before epsilon, rather than exactness, decides what is cut.

    Notes
    -----
    After Allouche et al., "Anytime hybrid best-first search with tree decomposition for weighted CSP" (2015), and
    Kolmogorov, "A new look at reweighted message passing" (2015). All costs are exact integers.
    """

    quick_entries: float = 2.0**24
    max_entries: float = 2.0**34
    exact_work: int = 200_000_000

    name: ClassVar[str] = "hbfs"
    view: ClassVar[str] = "problem"
    requires: ClassVar[frozenset[str]] = frozenset({"point"})

    def __post_init__(self) -> None:
        for name in ("quick_entries", "max_entries", "exact_work"):
            if not getattr(self, name) >= 0:
                raise SolverError(f"{name} is {getattr(self, name)}; a number not below 0 is expected")

    def init(self, posterior: MpePosterior, rng: np.random.Generator) -> HybridState:
        effort = Effort(
            Control(),
            default_workers(),
            self.quick_entries,
            self.max_entries,
            DEFAULT_BYTES,
            1,
            int(rng.integers(2**63)),
        )
        return HybridState(posterior, None, effort, 1.0)

    def step(self, state: HybridState, ledger: Ledger) -> HybridState:
        effort = state.effort
        effort.control.deadline = ledger.deadline
        if state.root is None:
            effort.top_k = ledger.top_k
            problem = to_integers(state.posterior.problem)
            state.unit = problem.unit
            state.root = Reduction(problem, effort)
        else:
            self._set_levels(state, ledger)
            state.root.advance(effort)
        self._report(state, ledger)
        return state

    def _set_levels(self, state: HybridState, ledger: Ledger) -> None:
        """Set what is close enough: for the k best by the ledger's threshold, else by a margin per component."""
        effort, root = state.effort, state.root
        assert root is not None
        is_exact = effort.work < self.exact_work
        if effort.lists_all:
            log_level = ledger.log_exact_threshold if is_exact else ledger.log_threshold
            effort.threshold = max(effort.threshold, below_nats(log_level, state.unit))
        elif not is_exact and ledger.epsilon > 0.0:
            effort.margin = math.floor(-math.log1p(-ledger.epsilon) / state.unit / max(1, len(root.parts)))

    def _report(self, state: HybridState, ledger: Ledger) -> None:
        root = state.root
        assert root is not None
        if state.effort.lists_all:
            points = [state.posterior.point(states) for states in root.drain()]
            if points:
                ledger.candidates(np.array(points))
            if root.is_done and ledger.best_point is None:
                raise impossible()
        elif root.value > max(state.reported, FLOOR):
            state.reported = root.value
            ledger.candidates(state.posterior.point(root.states)[None, :])
        ledger.frontier(0.0, in_nats(root.bound, state.unit))
