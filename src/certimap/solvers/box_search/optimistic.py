"""Optimistic searches of real variables: cells cut in three where the density may be highest (DOO, SOO, HOO)."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from certimap.core.posterior import Posterior, Probes
from certimap.errors import SolverError
from certimap.solvers.base import Effort, Family, Solver
from certimap.solvers.box_search.cell_tree import PARTS, CellTree, is_bounded

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.core.box import Boxes
    from certimap.core.control import Control

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
STEP_CELLS = 64  # cells cut in one step, at least


@dataclass(eq=False)
class OptimisticState:
    """The tree, and what a method remembers beside it."""

    tree: CellTree
    control: Control
    rng: np.random.Generator
    n_cut: int = 0
    counts: list[int] = field(default_factory=list[int])
    log_sums: list[float] = field(default_factory=list[float])
    worths: list[float] = field(default_factory=list[float])
    log_scale: float = -math.inf
    done: bool = False


@dataclass(frozen=True)
class Optimistic(Solver):
    """The base of the three methods: a partition into cells that is refined where a method says.

    The density is evaluated at the middle of each cell. Where the posterior bounds boxes, the largest bound of any
    cell that is not cut bounds the mode, and certifies.
    """

    name: ClassVar[str] = "optimistic"
    family: ClassVar[Family] = "search"

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse states, counts, and domains without ends where nothing bounds what lies outside."""
        domain = posterior.domain
        if np.any(domain.n_states):
            name = domain.names[int(np.flatnonzero(domain.n_states)[0])]
            return f"solver {self.name!r} cuts real variables, and {name!r} is categorical; use solver='frontier'"
        if not len(domain):
            return f"solver {self.name!r} needs a query variable; use solver='auto'"
        if isinstance(posterior, Probes):
            whole = posterior.prober().layout.is_whole
            if np.any(whole):
                name = domain.names[int(np.flatnonzero(whole)[0])]
                return f"solver {self.name!r} cuts densities, and {name!r} is a count; use solver='frontier'"
        elif not is_bounded(posterior):
            return (
                f"solver {self.name!r} needs real variables with two ends (certimap.Real(name, low, high)) where "
                f"the posterior bounds no boxes, as a {type(posterior).__name__}; use solver='budget' without them"
            )
        return None

    def init(
        self, posterior: Posterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> OptimisticState:
        self.refuse_boxes(boxes)
        return OptimisticState(CellTree.of(posterior, self._bits, control), control, rng)

    @property
    def _bits(self) -> float | None:
        return None

    def effort(self, state: OptimisticState) -> Effort:
        return Effort(state.tree.n, state.tree.n_bytes, state.tree.n)

    def step(self, state: OptimisticState, ledger: Ledger) -> OptimisticState:
        if not state.tree.n:
            state.tree.plant(ledger)
        else:
            self._refine(state, ledger)
        self._report(state, ledger)
        return state

    @abstractmethod
    def _refine(self, state: OptimisticState, ledger: Ledger) -> None:
        """Cut some cells; note where nothing is left to cut."""

    def _open(self, state: OptimisticState, ledger: Ledger) -> Ids:
        """Return the leaves that can be cut and may hold something better."""
        tree = state.tree
        leaves = tree.leaves()
        return leaves[~tree.is_stuck[leaves] & (tree.log_optimism[leaves] > ledger.log_threshold)]

    def _report(self, state: OptimisticState, ledger: Ledger) -> None:
        """State what the leaves prove: by their bounds, and under the assumption of a Lipschitz constant."""
        tree = state.tree
        leaves = tree.leaves()
        if tree.prober is not None:
            ledger.frontier(None, float(np.max(tree.log_bound[leaves])))
        if tree.bits is not None:
            assumed = (
                f"log2 of the density falling by at most {tree.bits:g} bits per unit of distance from its mode"
            )
            ledger.upper_bound(float(np.max(tree.log_optimism[leaves])), assumed)


@dataclass(frozen=True)
class Doo(Optimistic):
    """Deterministic optimistic optimisation: cut the cell where the density may be highest.

    With `lipschitz=L`, log2 of the density is assumed to fall by at most L bits per unit of Euclidean distance
    from its mode, so that the cell which holds the mode is worth at most p(centre) 2^(L radius); bounds of
    boxes, where the posterior has them, are used beside that or alone. The search ends with a certificate as
    soon as no cell may be better by more than epsilon.

    Its regret after n cuts is at most the largest value that any cell may have, less the best found, which is
    what the result's upper bound says; under the Lipschitz condition it falls like n^(-1/d), d the near-
    optimality dimension, and like a power of e where d = 0 (Munos 2011, theorem 1). Cost: two evaluations and
    three bounds per cut.

    Parameters
    ----------
    lipschitz
        In bits per unit of distance; None relies on bounds of boxes alone.
    """

    lipschitz: float | None = None

    name: ClassVar[str] = "doo"

    def __post_init__(self) -> None:
        if self.lipschitz is not None and not 0.0 < self.lipschitz < math.inf:
            raise SolverError(f"lipschitz is {self.lipschitz}; expected a positive number of bits per unit")

    @property
    def _bits(self) -> float | None:
        return self.lipschitz

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse what `Optimistic` does, and a search with nothing to be optimistic about."""
        if self.lipschitz is None and not isinstance(posterior, Probes):
            return (
                "solver 'doo' needs lipschitz= where the posterior bounds no boxes, as a "
                f"{type(posterior).__name__}; use solver='soo' without one"
            )
        return super().unsuited(posterior)

    def _refine(self, state: OptimisticState, ledger: Ledger) -> None:
        best = self._open(state, ledger)
        if len(best) > STEP_CELLS:
            order = np.argsort(-state.tree.log_optimism[best], kind="stable")
            best = best[order[: max(STEP_CELLS, len(best) // 8)]]
        if not len(best):
            state.done = True
            return
        state.tree.cut(ledger, best)
        state.n_cut += len(best)


@dataclass(frozen=True)
class Soo(Optimistic):
    """Simultaneous optimistic optimisation: cut the best cell of each depth that beats all of smaller depths.

    Nothing need be known of how fast the density falls. With depth limited to the square root of the number of
    cuts (times the number of variables), the regret after n cuts is that of a cell at a depth which grows like
    the square root of n: n^(-1/d) up to logs, and e^(-c sqrt n) where the near-optimality dimension d is 0
    (Munos 2011, theorem 2). Without bounds of boxes it proves nothing; with them it certifies as `doo` does.
    Cost: two evaluations per cut.

    Parameters
    ----------
    max_cuts
        After so many the search ends.
    """

    max_cuts: int = 20_000

    name: ClassVar[str] = "soo"

    def __post_init__(self) -> None:
        if self.max_cuts < 1:
            raise SolverError(f"max_cuts is {self.max_cuts}; expected a positive number")

    def _refine(self, state: OptimisticState, ledger: Ledger) -> None:
        tree, before = state.tree, state.n_cut
        while state.n_cut - before < STEP_CELLS and not state.done:
            chosen = self._sweep(state, ledger)
            tree.cut(ledger, chosen)
            state.n_cut += len(chosen)
            state.done = not len(chosen) or state.n_cut >= self.max_cuts
            if state.control.should_stop:
                return

    def _sweep(self, state: OptimisticState, ledger: Ledger) -> Ids:
        """Return one leaf per depth, as far as it is at least as good as those of smaller depths."""
        tree = state.tree
        leaves = self._open(state, ledger)
        deepest = len(tree.layout.domain) * (1 + math.isqrt(state.n_cut))
        if len(leaves):  # where bounds closed all that is shallow, the shallowest is as deep as it must be
            leaves = leaves[tree.depth[leaves] <= max(deepest, int(np.min(tree.depth[leaves])))]
        order = leaves[np.lexsort((-tree.value[leaves], tree.depth[leaves]))]
        _, first = np.unique(tree.depth[order], return_index=True)
        chosen = order[first]
        best = np.maximum.accumulate(tree.value[chosen])
        return chosen[tree.value[chosen] >= best]


@dataclass(frozen=True)
class Hoo(Optimistic):
    """Hierarchical optimistic optimisation: a bandit over the tree of cells, played at points drawn inside them.

    A cell's worth is the mean of the densities at points drawn in it (as shares of the best known), plus sqrt(2
    ln n / draws), plus `spread` `falloff`^depth for what the density may rise inside; it is never more than the
    largest of its children's. Made for values that are noisy; here they are exact, so it is the slowest of the
    three, a yardstick. Its cumulative regret after n plays is of order n^((d+1)/(d+2)) up to logs in
    expectation, d the near-optimality dimension, so that a play's is of order n^(-1/(d+2)) (Bubeck et al. 2011,
    theorem 6). It proves what bounds of boxes prove. Cost: one evaluation per play, and a path of the tree.

    Parameters
    ----------
    plays
        After so many the search ends; the confidence terms are those of this horizon.
    spread, falloff
        How far a share may rise inside the whole space, and by what factor less at each depth; None takes
        3^(-2/n) for n variables, as near a smooth maximum.
    """

    plays: int = 20_000
    spread: float = 1.0
    falloff: float | None = None

    name: ClassVar[str] = "hoo"

    def __post_init__(self) -> None:
        if self.plays < 1 or not self.spread > 0.0 or not (self.falloff is None or 0.0 < self.falloff < 1.0):
            raise SolverError(
                f"plays is {self.plays}, spread {self.spread} and falloff {self.falloff}; expected a positive "
                "number of plays, a positive spread, and a falloff between 0 and 1"
            )

    def _refine(self, state: OptimisticState, ledger: Ledger) -> None:
        for _ in range(STEP_CELLS):
            if state.n_cut >= self.plays or state.control.should_stop:
                break
            self._play(state, ledger)
            state.n_cut += 1
        state.done = state.n_cut >= self.plays or not len(self._open(state, ledger))

    def _play(self, state: OptimisticState, ledger: Ledger) -> None:
        """Walk down to the cell of the largest worth, evaluate a point in it, and tell all cells above."""
        tree = state.tree
        self._extend(state)
        path = [0]
        while state.counts[path[-1]]:
            cell = path[-1]
            if tree.first_child[cell] < 0:
                if tree.is_stuck[cell] or not len(tree.cut(ledger, np.array([cell]))):
                    break
                self._extend(state)
            first = int(tree.first_child[cell])
            path.append(max(range(first, first + PARTS), key=state.worths.__getitem__))
        reward = float(ledger.candidates(tree.inside(path[-1], state.rng))[0])
        for cell in path:
            state.counts[cell] += 1
            state.log_sums[cell] = float(np.logaddexp(state.log_sums[cell], reward))
        if ledger.best_log_prob > state.log_scale:
            state.log_scale = ledger.best_log_prob
            path = list(range(tree.n))
        for cell in reversed(path):
            self._judge(state, cell)

    def _extend(self, state: OptimisticState) -> None:
        """Make room for the tree's new cells, which nobody has played."""
        new = state.tree.n - len(state.counts)
        state.counts += [0] * new
        state.log_sums += [-math.inf] * new
        state.worths += [math.inf] * new

    def _judge(self, state: OptimisticState, cell: int) -> None:
        """Work a cell's worth out; children come after their parents."""
        n = state.counts[cell]
        if not n:
            return
        falloff = 3.0 ** (-2.0 / len(state.tree.layout.domain)) if self.falloff is None else self.falloff
        mean = math.exp(min(state.log_sums[cell] - math.log(n) - state.log_scale, 0.0))
        worth = mean + math.sqrt(2.0 * math.log(self.plays + 1.0) / n)
        worth += self.spread * falloff ** int(state.tree.depth[cell])
        first = int(state.tree.first_child[cell])
        below = math.inf if first < 0 else max(state.worths[first : first + PARTS])
        state.worths[cell] = min(worth, below)
