"""Optimistic searches over real variables: cut the cell in three where the density may be highest."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Flags, Floats, Ints, grown
from certimap.core.box import Layout, Points, SearchBoxes
from certimap.core.control import Control
from certimap.core.domain import Real
from certimap.core.posterior import Posterior, Probes
from certimap.core.probing import prober_of
from certimap.solvers.base import Effort, WholeSpaceSolver

PARTS = 3  # children per cut cell; the middle one keeps its parent's centre
REACH = 8.0  # scales from the outermost starts to the window's ends; widths from there to the cut of a tail
LN2 = math.log(2.0)
FARTHEST = 1e300  # of a first cut from 0
STEP_CELLS = 64  # cells cut in one step, at least


class CellTree:
    """Cells in the order of creation; the first is the whole space.

    `bits`: the Lipschitz constant that bounds cells, or None. `window`: the ends, shape (n,) each, of the region
    of an unbounded domain that is searched first. `n`: the number of cells, of which arrays have an entry each:
    `low`, `high`: shape (capacity, n). `value`: ln of the density at the centre.
    `log_bound`, `log_optimism`: ln of an upper bound on the density, inf without one; and with `bits`.
    `depth`, `is_stuck`: how often it was cut from the whole, and whether it is too narrow to cut.
    `first_child`: the first of `PARTS` consecutive children; -1 for a leaf.
    """

    def __init__(self, posterior: Posterior, bits: float | None, control: Control) -> None:
        self.bits, self.n, n = bits, 0, len(posterior.domain)
        self.prober = prober_of(posterior, control) if isinstance(posterior, Probes) else None
        self.layout = Layout.of(posterior.domain) if self.prober is None else self.prober.layout
        self.window: tuple[Floats, Floats] = np.full(n, -1.0), np.full(n, 1.0)
        starts = np.empty((0, n)) if self.prober is None else np.asarray(self.prober.starts(), np.float64)
        if len(starts):
            reach = np.minimum(REACH * self.layout.scales, FARTHEST)
            first, last = starts.min(axis=0) - reach, starts.max(axis=0) + reach
            self.window = np.maximum(first, -FARTHEST), np.minimum(last, FARTHEST)
        self.low: Floats = np.empty((0, n))
        self.high: Floats = np.empty((0, n))
        self.value: Floats = np.empty(0)
        self.log_bound: Floats = np.empty(0)
        self.log_optimism: Floats = np.empty(0)
        self.depth: Ints = np.empty(0, np.int64)
        self.first_child: Ints = np.empty(0, np.int64)
        self.is_stuck: Flags = np.empty(0, np.bool_)

    def leaves(self) -> Ints:
        """Return the cells that are not cut yet."""
        return np.flatnonzero(self.first_child[: self.n] < 0)

    def cut(self, ledger: Ledger, cells: Ints) -> Ints:
        """Cut leaves along their longest sides; return the children, `PARTS` per leaf that could be cut."""
        low, high = self.low[cells], self.high[cells]
        side, ends = self._places(low, high)
        rows = np.arange(len(cells))
        can = (low[rows, side] < ends[:, 0]) & (ends[:, 0] < ends[:, 1]) & (ends[:, 1] < high[rows, side])
        self.is_stuck[cells[~can]] = True
        cells, side, ends = cells[can], side[can], ends[can]
        if not len(cells):
            return cells
        low, high = (np.repeat(x[cells], PARTS, axis=0) for x in (self.low, self.high))
        first = np.arange(len(cells)) * PARTS
        high[first, side] = low[first + 1, side] = ends[:, 0]
        high[first + 1, side] = low[first + 2, side] = ends[:, 1]
        start = self.n
        self.first_child[cells] = start + first
        parents = np.repeat(cells, PARTS)
        self.add(ledger, low, high, self.depth[parents] + 1, self.log_bound[parents])
        return np.arange(start, self.n)

    def inside(self, cell: int, rng: np.random.Generator) -> Points:
        """Return a random point of a cell, uniform if the cell is bounded, shape (1, n)."""
        low, high = self._finite(self.low[cell], self.high[cell])
        share = rng.uniform(size=len(low))  # a convex combination, because the width of a cell may overflow
        return np.clip((1.0 - share) * low + share * high, low, high)[None, :]

    def centres(self, low: Floats, high: Floats) -> Points:
        """Return the centres of cells; an unbounded side is first cut off by `_finite`."""
        low, high = self._finite(low, high)
        return np.clip(0.5 * low + 0.5 * high, low, high)

    def _finite(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Replace infinite ends by the window's end, or by the side's other end beyond the window."""
        (start, end), has_low, has_high = self.window, np.isfinite(low), np.isfinite(high)
        bounded_low = np.where(has_low, low, np.where(has_high, np.minimum(start, high), start))
        return bounded_low, np.where(has_high, high, np.where(has_low, np.maximum(end, low), end))

    def _places(self, low: Floats, high: Floats) -> tuple[Ints, Floats]:
        """Return the side to cut of each cell, shape (batch,), and the two cut points, shape (batch, 2)."""
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = high - low
            side = np.argmax(lengths if self.bits is not None else lengths / self.layout.scales, axis=1)
        rows = np.arange(len(low))
        of_side = (low[rows, side], high[rows, side], *(x[side] for x in (*self.window, self.layout.scales)))
        ends = [_thirds(*given) for given in zip(*(x.tolist() for x in of_side), strict=True)]
        return side.astype(np.int64), np.array(ends, np.float64).reshape(-1, 2)

    def add(self, ledger: Ledger, low: Floats, high: Floats, depth: Ints, log_bound: Floats) -> None:
        """Evaluate and bound new cells."""
        batch = len(low)
        if self.n + batch > len(self.value):
            capacity = max(2 * len(self.value), self.n + batch, 1024)
            for name in ("low", "high", "value", "log_bound", "log_optimism", "depth", "first_child", "is_stuck"):
                setattr(self, name, grown(getattr(self, name), capacity, self.n))
        rows = slice(self.n, self.n + batch)
        self.low[rows], self.high[rows], self.depth[rows] = low, high, depth
        self.first_child[rows], self.is_stuck[rows] = -1, False
        self.value[rows] = ledger.candidates(self.centres(low, high))
        if self.prober is not None:
            mask = np.ones((batch, int(self.layout.offsets[-1])), np.uint8)
            found = self.prober.probe(SearchBoxes(mask, np.ascontiguousarray(low), np.ascontiguousarray(high)))
            log_bound = np.minimum(log_bound, found.log_bound)
        self.log_bound[rows] = log_bound
        self.log_optimism[rows] = log_bound
        if self.bits is not None:
            with np.errstate(over="ignore"):
                radius = 0.5 * np.sqrt(np.sum(np.square(high - low), axis=1)) * (1.0 + 1e-12)
            self.log_optimism[rows] = np.minimum(log_bound, self.value[rows] + self.bits * LN2 * radius)
        self.n += batch


def _thirds(low: float, high: float, start: float, end: float, scale: float) -> tuple[float, float]:
    """Return where to cut a side: in thirds, or a tail at the ends of the window, else off two pieces of it."""
    if math.isinf(low) and math.isinf(high):
        return start, end
    if math.isinf(low):
        first, second = _thirds(-high, math.inf, -end, -start, scale)
        return -second, -first
    if math.isfinite(high):
        third = high / PARTS - low / PARTS
        return low + third, high - third
    reach = REACH * max(end - start, scale, low - end)  # pieces grow with the distance from the window
    first = start if low < start else low + reach
    return first, end if low < end and end > first else low + 4.0 * reach


@dataclass(eq=False)
class OptimisticState:
    """The tree, and the method's own records."""

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
class Optimistic(WholeSpaceSolver, name="optimistic", family="search"):
    """The base of DOO, SOO and HOO: a partition into cells, refined where the method chooses.

    The density is evaluated at the centre of each cell. If the posterior bounds boxes, the largest bound of an
    uncut cell bounds the mode, and certifies.
    """

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse categorical variables, counts, and unbounded domains without bounds of boxes."""
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
        elif not all(isinstance(v, Real) and math.isfinite(v.low) and math.isfinite(v.high) for v in domain):
            return (
                f"solver {self.name!r} needs real variables with two ends (certimap.Real(name, low, high)) where "
                f"the posterior bounds no boxes, as a {type(posterior).__name__}; use solver='budget' without them"
            )
        return None

    def start(self, posterior: Posterior, control: Control, rng: np.random.Generator) -> OptimisticState:
        return OptimisticState(CellTree(posterior, None, control), control, rng)

    def effort(self, state: OptimisticState) -> Effort:
        tree = state.tree
        return Effort(tree.n, tree.low.nbytes * 2 + 40 * len(tree.value), tree.n)

    def step(self, state: OptimisticState, ledger: Ledger) -> OptimisticState:
        if not state.tree.n:
            whole = state.tree.layout.allowed()  # the part of the space that the evidence allows
            state.tree.add(ledger, whole.low, whole.high, np.zeros(1, np.int64), np.full(1, np.inf))
        else:
            self._refine(state, ledger)
        self._report(state, ledger)
        return state

    @abstractmethod
    def _refine(self, state: OptimisticState, ledger: Ledger) -> None:
        """Cut some cells; set `done` when no cell is left to cut."""

    def _open(self, state: OptimisticState, ledger: Ledger) -> Ints:
        """Return the leaves that can be cut and may hold a better point."""
        tree = state.tree
        leaves = tree.leaves()
        return leaves[~tree.is_stuck[leaves] & (tree.log_optimism[leaves] > ledger.log_threshold)]

    def _report(self, state: OptimisticState, ledger: Ledger) -> None:
        """Report the leaves' largest bound, and the one under the Lipschitz assumption."""
        tree = state.tree
        leaves = tree.leaves()
        if tree.prober is not None:
            ledger.frontier(None, float(np.max(tree.log_bound[leaves])))
        if tree.bits is not None:
            falls = f"by at most {tree.bits:g} bits per unit of distance from its mode"
            ledger.upper_bound(float(np.max(tree.log_optimism[leaves])), f"log2 of the density falling {falls}")


@dataclass(frozen=True)
class Doo(Optimistic, name="doo"):
    """Deterministic optimistic optimisation: cut the cell where the density may be highest.

    With `lipschitz=L`, log2 of the density is assumed to fall by at most L bits per unit of Euclidean distance
    from its mode, so that the density in the mode's cell is at most p(centre) 2^(L radius). Bounds of boxes are
    used too, or alone, if the posterior has them. The search ends with a certificate as soon as no cell can be
    better by more than epsilon.

    Its regret after n cuts is at most the result's upper bound less the best value found. Under the Lipschitz
    condition it falls like n^(-1/d), d the near-optimality dimension, and exponentially if d = 0 (Munos 2011,
    theorem 1). Cost: two evaluations and three bounds per cut.

    `lipschitz`: in bits per unit of distance; None: use bounds of boxes alone.
    """

    lipschitz: float | None = None
    ranges = "lipschitz (0, inf)"

    def start(self, posterior: Posterior, control: Control, rng: np.random.Generator) -> OptimisticState:
        return OptimisticState(CellTree(posterior, self.lipschitz, control), control, rng)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse the same as `Optimistic`, and a search with neither bounds of boxes nor a Lipschitz constant."""
        if self.lipschitz is None and not isinstance(posterior, Probes):
            where = f"where the posterior bounds no boxes, as a {type(posterior).__name__}"
            return f"solver 'doo' needs lipschitz= {where}; use solver='soo' without one"
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
class Soo(Optimistic, name="soo"):
    """Simultaneous optimistic optimisation: cut the best cell of each depth that beats all smaller depths.

    No knowledge of how fast the density falls is needed. Depth is limited to the square root of the number of cuts
    (times the number of variables). The regret after n cuts is then n^(-1/d) up to logs, and e^(-c sqrt n) if the
    near-optimality dimension d is 0 (Munos 2011, theorem 2). Without bounds of boxes it proves nothing; with them
    it certifies like `doo`. Cost: two evaluations per cut.

    `max_cuts`: the search ends after this number of cuts.
    """

    max_cuts: int = 20_000
    ranges = "max_cuts [1, inf)"

    def _refine(self, state: OptimisticState, ledger: Ledger) -> None:
        tree, before = state.tree, state.n_cut
        while state.n_cut - before < STEP_CELLS and not state.done:
            chosen = self._sweep(state, ledger)
            tree.cut(ledger, chosen)
            state.n_cut += len(chosen)
            state.done = not len(chosen) or state.n_cut >= self.max_cuts
            if state.control.should_stop:
                return

    def _sweep(self, state: OptimisticState, ledger: Ledger) -> Ints:
        """Return the best leaf of each depth that is at least as good as all leaves of smaller depths."""
        tree = state.tree
        leaves = self._open(state, ledger)
        deepest = len(tree.layout.domain) * (1 + math.isqrt(state.n_cut))
        if len(leaves):  # if bounds closed all shallow cells, the limit is the shallowest leaf
            leaves = leaves[tree.depth[leaves] <= max(deepest, int(np.min(tree.depth[leaves])))]
        order = leaves[np.lexsort((-tree.value[leaves], tree.depth[leaves]))]
        _, first = np.unique(tree.depth[order], return_index=True)
        chosen = order[first]
        best = np.maximum.accumulate(tree.value[chosen])
        return chosen[tree.value[chosen] >= best]


@dataclass(frozen=True)
class Hoo(Optimistic, name="hoo"):
    """Hierarchical optimistic optimisation: a bandit over the tree of cells, played at random points of cells.

    The worth of a cell is the mean density at points drawn in it (relative to the best known), plus sqrt(2
    ln n / draws), plus `spread` `falloff`^depth for a possible rise inside; it never exceeds the largest worth of
    its children. HOO is made for noisy values; here values are exact, so that it is the slowest of the three, a
    yardstick. Its expected cumulative regret after n plays is of order n^((d+1)/(d+2)) up to logs, d the
    near-optimality dimension, or n^(-1/(d+2)) per play (Bubeck et al. 2011, theorem 6). It proves only what bounds
    of boxes prove. Cost: one evaluation and one path of the tree per play.

    `plays`: the search ends after this number of plays, which is the horizon of the confidence terms. `spread`,
    `falloff`: the possible rise of the relative density in the whole space, and its factor per depth; None:
    3^(-2/n) for n variables, as near a smooth maximum.
    """

    plays: int = 20_000
    spread: float = 1.0
    falloff: float | None = None
    ranges = "plays [1, inf); spread (0, inf); falloff (0, 1)"

    def _refine(self, state: OptimisticState, ledger: Ledger) -> None:
        for _ in range(STEP_CELLS):
            if state.n_cut >= self.plays or state.control.should_stop:
                break
            self._play(state, ledger)
            state.n_cut += 1
        state.done = state.n_cut >= self.plays or not len(self._open(state, ledger))

    def _play(self, state: OptimisticState, ledger: Ledger) -> None:
        """Walk down to the cell of the largest worth, evaluate a point in it, and update its ancestors."""
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
        """Extend the records by the tree's new cells, without plays."""
        new = state.tree.n - len(state.counts)
        state.counts += [0] * new
        state.log_sums += [-math.inf] * new
        state.worths += [math.inf] * new

    def _judge(self, state: OptimisticState, cell: int) -> None:
        """Recompute a cell's worth from its children's."""
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
