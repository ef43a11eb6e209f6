"""Exact marginal MAP by elimination on sets of vectors, made anytime by merging, splitting and draws."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes
from certimap.errors import SolverError
from certimap.posterior import Capability, Masses
from certimap.solvers.base import Effort, Family, Solver
from certimap.solvers.elimination.geometry import Geometry, Messages
from certimap.solvers.elimination.one_pass import Elimination, Outcome
from certimap.solvers.elimination.start import climb
from certimap.trees.bucket_tree import BucketTreePosterior

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.control import Control
    from certimap.posterior import Posterior

Floats = NDArray[np.float64]
STEP_WORK = 20_000_000
START_WORK = 200_000_000
DRAW_ROWS = 1024
HOPELESS_WORK = 1e13


@dataclass(eq=False)
class OpenBox:
    """A box that may hold a better assignment."""

    mask: NDArray[np.bool_]
    log_bound: float
    log_mass: float
    messages: Messages | None
    log_states: Floats
    limit: int


@dataclass(eq=False)
class EliminationState:
    """A search between two steps."""

    posterior: BucketTreePosterior
    control: Control
    rng: np.random.Generator
    geometry: Geometry
    open: list[OpenBox] = field(default_factory=list[OpenBox])
    search: Generator[int, None, None] | None = None
    done: bool = False
    work: int = 0
    draw_work: int = 0
    n_nodes: int = 0
    peak: int = 0
    n_merged: int = 0
    log_closed: float = -math.inf
    elimination: Elimination | None = None

    @property
    def held_bytes(self) -> int:
        """Memory held by sets and boxes."""
        held = 0 if self.elimination is None else self.elimination.n_bytes
        per_box = 8 * int(self.posterior.region_tree.arrays.message_ptr[-1])
        return held + per_box * len(self.open) // 2


@dataclass(frozen=True)
class SetElimination(Solver):
    """Dynamic programming on sets of vectors along a tree of regions.

    A choice of the query variables below a region is a vector over the hidden states of its separator.
    Sets of them are multiplied and mapped upward; a vector is dropped when the best that the outside can
    make of it stays at or below the threshold, or when another is at least it everywhere. Whole
    assignments come out at the root. Where a set outgrows `limits`, like vectors are merged into their
    maxima, which leaves a bound instead of a value; a box whose bound stays too high is split by the states
    of one variable. Between eliminations, draws from the open boxes may earn the probabilistic certificate.

    Parameters
    ----------
    limits
        Rows a set may have in the successive eliminations of the whole space.
    split_limit
        Rows a set may have in the eliminations of its parts.
    n_starts, n_first_draws
        Hill climbs, and draws to choose their starts from.
    draw_share
        The share of the work that goes into draws once the first eliminations have left something open and
        `delta` is positive.
    dominance_share
        The share of `epsilon` that is spent on dropping vectors which another one exceeds up to a factor.

    Notes
    -----
    Sources: Maua and de Campos (2012), "Anytime marginal MAP inference", for the sets; the outside bounds
    are this project's. A factor lost at every region multiplies over all regions (not only along a path), so
    `dominance_share` is divided by the number of products. Bounds carry a slack of about 1e-13 nats an
    operation for rounding, far below the tolerance of "exact".
    """

    name: ClassVar[str] = "set_elimination"
    needs: ClassVar[tuple[Capability, ...]] = (Masses,)
    family: ClassVar[Family] = "elimination"
    view: ClassVar[Literal["circuit", "tree"] | None] = "tree"

    limits: tuple[int, ...] = (256, 16384)
    split_limit: int = 4096
    n_starts: int = 4
    n_first_draws: int = 256
    draw_share: float = 0.2
    dominance_share: float = 0.0

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits) < 1 or self.split_limit < 1:
            raise SolverError(f"limits are {self.limits} and {self.split_limit}; positive numbers are accepted")
        if not (0.0 <= self.draw_share < 1.0 and 0.0 <= self.dominance_share < 1.0):
            raise SolverError(
                f"draw_share is {self.draw_share} and dominance_share {self.dominance_share}; [0, 1) is accepted"
            )
        if self.n_starts < 1 or self.n_first_draws < 1:
            raise SolverError("n_starts and n_first_draws must be positive")

    def unsuited(self, posterior: Posterior) -> str | None:
        """Return the sentence that refuses a posterior without regions, or None."""
        if isinstance(posterior, BucketTreePosterior):
            return None
        return (
            "solver 'set_elimination' needs a tree of regions (a network of moderate width, a hidden Markov "
            "model, a hidden Chow-Liu tree or a structured circuit), and this "
            f"{type(posterior).__name__} has none; use solver='frontier'"
        )

    def init(
        self, posterior: Posterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> EliminationState:
        """Return the first state; raise SolverError for a posterior without regions."""
        refusal = self.unsuited(posterior)
        if refusal is not None:
            raise SolverError(refusal)
        tree = cast(BucketTreePosterior, posterior)
        return EliminationState(tree, control, rng, Geometry.of(tree.region_tree))

    def effort(self, state: EliminationState) -> Effort:
        return Effort(state.n_nodes, state.held_bytes, state.work)

    def step(self, state: EliminationState, ledger: Ledger) -> EliminationState:
        """Work for a fraction of a second."""
        if state.search is None:
            state.search = _Search(self, state, ledger).run()
        spent = 0
        for work in state.search:
            spent += work
            state.work += work
            over = state.control.nodes_left(state.n_nodes) == 0
            if over or ledger.satisfied or spent >= STEP_WORK or state.control.should_stop:
                return state
        state.done = True
        return state


class _Search:
    """The search of one run: what `step` advances."""

    def __init__(self, settings: SetElimination, state: EliminationState, ledger: Ledger) -> None:
        self.settings, self.state, self.ledger = settings, state, ledger
        self.posterior = state.posterior
        n_products = len(state.geometry.links) * 2
        self.log_lost = settings.dominance_share * -math.log1p(-ledger.epsilon)
        self.factor = math.exp(self.log_lost / n_products) * (1.0 + 1e-13)
        self.slack = 4.0 * self.posterior.log_slack + 2e-13 * n_products

    def run(self) -> Generator[int, None, None]:
        """Incumbent, eliminations of the whole space, then boxes best first with draws between."""
        box = OpenBox(
            np.ones(self.posterior.domain.total_states, np.bool_),
            0.0,
            0.0,
            None,
            np.zeros(self.posterior.domain.total_states),
            0,
        )
        is_visible = self.ledger.top_k == 1 and self.posterior.region_tree.is_visible
        if is_visible and (yield from self._maximum(box)):
            return
        yield from self._incumbent()
        self.state.open = [box]
        for number, limit in enumerate(self.settings.limits):
            box.limit = limit
            yield from self._eliminate(box, aim_for_exact=number == 0)
            if not self.state.open:
                return
        self._replace(box, self._split(box))
        while self.state.open:
            box = max(self.state.open, key=lambda b: b.log_bound)
            box.limit = self.settings.split_limit
            yield from self._eliminate(box)
            if box in self.state.open:
                self._replace(box, self._split(box))

    def _maximum(self, box: OpenBox) -> Generator[int, None, bool]:
        """Decode the maximum of a query without hidden variables from the pass that bounds it.

        Returns whether that settled it: always but for tables whose entries differ by more than floats hold.
        """
        self.ledger.candidates(self.posterior.max_product())
        log_bound = float(self.posterior.log_bound(self._boxes(box.mask[None]))[0])
        yield 4 * self.posterior.region_tree.n_entries
        if log_bound > self.ledger.log_exact_threshold:
            return False
        box.log_bound = log_bound
        self.state.open = [box]
        self._prune()
        self._report()
        return True

    def _incumbent(self) -> Generator[int, None, None]:
        posterior, ledger = self.posterior, self.ledger
        affordable = START_WORK // (4 * posterior.region_tree.n_entries)
        n = max(1, min(self.settings.n_first_draws, max(16, affordable)))
        points = posterior.sample(n, self.state.rng)
        yield len(points) * self._draw_cost()
        distinct = np.unique(points, axis=0)
        values = ledger.candidates(distinct)
        best = np.argsort(-values, kind="stable")[: self.settings.n_starts]
        yield from climb(posterior, ledger, distinct[best], START_WORK)

    def _eliminate(self, box: OpenBox, *, aim_for_exact: bool = False) -> Generator[int, None, None]:
        """Eliminate a box; close it, or tighten it in place.

        The first, small elimination aims for the exact answer: where sets stay small that costs next to
        nothing, and a better answer within epsilon is not passed over.
        """
        state, ledger = self.state, self.ledger
        log_threshold = ledger.log_exact_threshold if aim_for_exact else ledger.log_threshold
        log_threshold -= self.slack + self.log_lost
        elimination = Elimination(
            state.geometry,
            box.mask,
            self._messages(box),
            log_threshold,
            box.limit,
            ledger.top_k,
            self.factor,
        )
        state.elimination = elimination
        run = elimination.run()
        while True:
            try:
                work = next(run)
            except StopIteration as stop:
                outcome = cast(Outcome, stop.value)
                break
            yield work
            yield from self._draw()
        state.n_nodes += 1
        state.n_merged += outcome.n_merged
        state.peak = max(state.peak, outcome.peak)
        log_bound = self._candidates(elimination, outcome, log_threshold)
        if elimination.is_delicate:  # only bounds that are computed in logarithms where need be
            outcome.n_merged += 1
            outcome.log_states = self.posterior.log_bound_each(self._boxes(box.mask[None]))[0]
            log_bound = float(self.posterior.log_bound(self._boxes(box.mask[None]))[0])
        else:
            box.messages = outcome.messages
        box.log_bound = min(box.log_bound, log_bound)
        is_settled = outcome.root is None and not elimination.is_delicate
        if is_settled or outcome.n_merged == 0 or box.log_bound <= ledger.log_threshold:
            self._close(box.log_bound, box.log_mass)
            state.open = [b for b in state.open if b is not box]
            self._prune()
        else:
            self._shrink(box, outcome.log_states, log_threshold)
        state.elimination = None
        self._report()
        yield elimination.work + self.posterior.region_tree.n_entries
        yield from self._draw()

    def _messages(self, box: OpenBox) -> Messages:
        """Return bounds inside the box: of a pass over it, and what earlier eliminations found."""
        message, logs = self.posterior.bound_messages(box.mask)
        geometry = self.state.geometry
        ptr = self.posterior.region_tree.arrays.message_ptr
        values = [geometry.to_contexts(r, message[ptr[r] : ptr[r + 1]]) for r in range(len(logs))]
        fresh = Messages(values, logs)
        return fresh if box.messages is None else fresh.tightened(box.messages)

    def _candidates(self, elimination: Elimination, outcome: Outcome, log_threshold: float) -> float:
        """Evaluate the best rows of the root; return a bound on what was not evaluated."""
        root = outcome.root
        if root is None:
            return log_threshold + self.slack + self.log_lost
        values = root.values[:, 0]
        order = np.argsort(-values, kind="stable")
        rows = order[: max(32, self.ledger.top_k)]
        self.ledger.candidates(elimination.decode(rows, len(self.posterior.domain)))
        left = [log_threshold]
        with np.errstate(divide="ignore"):
            logs = np.log(values) + root.log_scale
        if root.relaxed.any():
            left.append(float(logs[root.relaxed].max()))
        if len(logs) >= self.ledger.top_k:
            left.append(float(logs[order[self.ledger.top_k - 1]]))
        return max(left) + self.slack + self.log_lost

    def _close(self, log_bound: float, log_mass: float) -> None:
        self.ledger.close(log_bound, log_mass)

    def _prune(self) -> None:
        """Close every open box that the threshold has overtaken."""
        threshold = self.ledger.log_threshold
        closed = [b for b in self.state.open if b.log_bound <= threshold]
        if closed:
            self.ledger.close(np.array([b.log_bound for b in closed]), np.array([b.log_mass for b in closed]))
            self.state.open = [b for b in self.state.open if b.log_bound > threshold]

    def _shrink(self, box: OpenBox, log_states: Floats, log_threshold: float) -> None:
        """Drop the states of a box that cannot exceed the threshold."""
        box.log_states = np.where(box.mask, log_states + self.slack + self.log_lost, -np.inf)
        alive = box.mask & (log_states > log_threshold)
        if not np.array_equal(alive, box.mask):
            log_before, log_bound = box.log_mass, log_threshold + self.slack + self.log_lost
            box.mask = alive
            if not np.logical_or.reduceat(alive, self.posterior.domain.offsets[:-1]).all():
                self._close(log_bound, log_before)
                self.state.open = [b for b in self.state.open if b is not box]
                return
            box.log_mass = min(self._mass(alive[None])[0], log_before)
            self._close(log_bound, _log_difference(log_before, box.log_mass))
            box.log_bound = min(box.log_bound, box.log_mass)
            self._prune()

    def _boxes(self, masks: NDArray[np.bool_]) -> Boxes:
        return Boxes(self.posterior.domain, masks)

    def _mass(self, masks: NDArray[np.bool_]) -> list[float]:
        """ln of the masses of boxes, rounded up."""
        masses = self.posterior.log_mass(self._boxes(masks)) + self.slack
        return [min(float(m), 0.0) for m in masses]

    def _split(self, box: OpenBox) -> list[OpenBox]:
        """Split a box by the states of the variable whose parts' bounds have the smallest sum."""
        domain = self.posterior.domain
        counts = np.add.reduceat(box.mask.astype(np.int64), domain.offsets[:-1])
        bounds = np.minimum(box.log_states, box.log_bound)
        linear = np.where(box.mask, np.exp(bounds - box.log_bound), 0.0)
        sums = np.where(counts > 1, np.add.reduceat(linear, domain.offsets[:-1]), np.inf)
        variable = int(np.argmin(sums))
        if counts[variable] < 2:  # one point: evaluating it settles the box
            point = np.flatnonzero(box.mask) - domain.offsets[:-1]
            self.ledger.settle(point[None].astype(np.int16))
            return []
        start, stop = domain.offsets[variable], domain.offsets[variable + 1]
        columns = [c for c in range(start, stop) if box.mask[c]]
        masks = np.repeat(box.mask[None], len(columns), axis=0)
        masks[:, start:stop] = False
        masks[np.arange(len(columns)), columns] = True
        masses = self._mass(masks)
        return [
            OpenBox(masks[i], min(float(bounds[c]), masses[i]), masses[i], box.messages, box.log_states, box.limit)
            for i, c in enumerate(columns)
        ]

    def _replace(self, box: OpenBox, parts: list[OpenBox]) -> None:
        self.state.open = [b for b in self.state.open if b is not box] + parts
        self._prune()
        self._report()

    def _report(self) -> None:
        if not self.state.open:
            self.ledger.frontier(-math.inf, -math.inf)
            return
        self.ledger.frontier(self._open_mass(), max(b.log_bound for b in self.state.open))

    def _open_mass(self) -> float:
        total = float(np.logaddexp.reduce([b.log_mass for b in self.state.open])) + self.slack
        return min(total, 0.0)

    def _draw_cost(self) -> int:
        tree = self.posterior.region_tree
        return tree.n_entries + 50 * tree.n_regions

    def _draw(self) -> Generator[int, None, None]:
        """Draw from the open boxes until draws have had their share of the work."""
        state, ledger, share = self.state, self.ledger, self.settings.draw_share
        if ledger.delta <= 0.0 or state.n_nodes == 0 or not state.open or share == 0.0:
            return
        cost = self._draw_cost()
        while state.draw_work < share * (state.work + state.draw_work):
            log_mass = self._open_mass()
            ratio = math.exp(min(0.0, ledger.log_threshold - log_mass))
            needed = math.log(ledger.top_k / ledger.delta) / max(-math.log1p(-ratio), 1e-300) if ratio < 1 else 1.0
            if needed * cost > HOPELESS_WORK or ledger.remaining_draws == 0:
                return
            masks = np.stack([b.mask for b in state.open])
            points = self.posterior.sample(DRAW_ROWS, state.rng, self._boxes(masks))
            ledger.draws(points, log_mass)
            state.draw_work += DRAW_ROWS * cost
            yield 0
            if ledger.satisfied:
                return


def _log_difference(log_larger: float, log_smaller: float) -> float:
    """Return ln(exp(log_larger) - exp(log_smaller)); -inf where rounding leaves nothing."""
    if log_smaller >= log_larger:
        return -math.inf
    return log_larger + math.log(-math.expm1(log_smaller - log_larger))
