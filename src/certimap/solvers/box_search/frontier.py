"""Branch and bound on boxes, with probing, caps of subcircuits, and draws from what is still open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from certimap.box import Points
from certimap.errors import SolverError
from certimap.posterior import Bounds, Capability, Draws
from certimap.solvers.base import Effort, Family, Solver
from certimap.solvers.box_search.expand import Expansion, expand
from certimap.solvers.box_search.open_boxes import OpenBoxes
from certimap.solvers.box_search.probe import Layout, PlanProber, PosteriorProber, Prober, has_masses, slack

if TYPE_CHECKING:
    from certimap.box import Boxes
    from certimap.certify.ledger import Ledger
    from certimap.circuits.caps import Caps
    from certimap.control import Control
    from certimap.posterior import Posterior

STEP_WORK = 40_000_000  # edge visits of one step, a fraction of a second
OPEN_BYTES = 1_000_000_000  # where the user sets no max_memory
EXACT_FACTOR = 1e-10  # nats within which a cap counts as its node's maximum, at first
MIN_DRAWS = 64  # in one batch
N_STARTS = 4
MAX_BATCH = 512
LONG_LIST = 50_000_000  # columns of all open boxes together
MAX_DRAWS = 16384  # in one batch
HOPELESS = 1e9  # draws needed at the present open mass beyond which only a small share of work goes to them


@dataclass(eq=False)
class FrontierState:
    """Where a search stands; `work` is in edge visits."""

    posterior: Any
    control: Control
    layout: Layout
    prober: Prober
    caps: Caps | None
    rng: np.random.Generator
    open: OpenBoxes
    stage: str = "start"
    stuck: float = -math.inf
    work: int = 0
    draw_credit: float = 0.0
    draw_at: float = 1.0
    stage_work: int = 0
    budget: int = 0
    batch: int = 1
    n_nodes: int = 0
    n_steps: int = 0
    done: bool = False


@dataclass(frozen=True)
class Frontier(Solver):
    """Search a partition of the query space into boxes, best first, until what is open cannot win.

    A box is bounded by its mass and by the circuit with its leaves at their maxima in the box; one upward
    and one downward pass bound every (variable, state) at once, and states that cannot beat the best point
    are dropped. On circuits every sum node's own maximum is found first, bottom-up, and caps its value in
    every box: on learned sum-product networks that alone usually settles the query. Deterministic circuits
    close at the first box. Meanwhile draws from the open boxes alone certify what stays open.

    Sources: probing and best-first search as in integer programming; bounds after Huang, Chavira and
    Darwiche (2006) and Mei, Jiang and Tu (2018); the caps and the rule for draws are this project's (see
    `docs/what-a-certificate-means.md`). Cost: about 4 edge visits a box, for every edge of the circuit.

    Parameters
    ----------
    draw_share
        Share of the work that goes to draws from the open boxes, in [0, 1); 0 makes none.
    first_draws
        Draws from the whole space before the search.
    exact_work
        Edge visits (some tenths of a second) spent aiming for the exact answer in a discrete domain, before
        epsilon and draws may settle the query; 0 stops at the first certificate that was asked for.
    caps
        Whether to find the maxima of subcircuits first.
    incumbent
        Whether to look for a good answer before the search; False leaves that to the search itself.
    """

    draw_share: float = 0.2
    first_draws: int = 256
    exact_work: int = 400_000_000
    caps: bool = True
    incumbent: bool = True

    name: ClassVar[str] = "frontier"
    needs: ClassVar[tuple[Capability, ...]] = (Bounds,)
    family: ClassVar[Family] = "search"

    def __post_init__(self) -> None:
        if not 0.0 <= self.draw_share < 1.0:
            raise SolverError(f"draw_share is {self.draw_share}; a number in [0, 1) is accepted")
        if self.first_draws < 0 or self.exact_work < 0:
            raise SolverError(
                f"first_draws is {self.first_draws} and exact_work {self.exact_work}; neither may be negative"
            )

    def unsuited(self, posterior: Posterior) -> str | None:
        """Return why a posterior cannot be searched, or None."""
        if not posterior.domain.is_discrete and getattr(posterior, "plan", None) is None:
            return (
                "solver 'frontier' splits real variables on circuits only, and this posterior is not one; "
                "use solver='pac'"
            )
        return None

    def init(
        self, posterior: Posterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> FrontierState:
        layout = Layout.of(posterior.domain)
        opened = OpenBoxes(int(layout.offsets[-1]), 0 if posterior.domain.is_discrete else len(posterior.domain))
        state = FrontierState(posterior, control, layout, PosteriorProber(posterior, layout), None, rng, opened)
        plan = getattr(posterior, "plan", None)
        if plan is not None:
            from certimap.circuits.caps import PlanView, empty_table

            view = PlanView.of(plan)
            workers = int(getattr(posterior, "workers", 1))
            state.prober = PlanProber(view, empty_table(view).caps, workers)
            state.layout = Layout.of(posterior.domain, view.arrays.scales)
        bound = np.full(1, 0.0 if has_masses(posterior) else np.inf)
        opened.push(layout.full(), bound, np.zeros(1), np.zeros(1, np.int32))
        return state

    def effort(self, state: FrontierState) -> Effort:
        held = state.open.n_bytes + (0 if state.caps is None else state.caps.n_bytes)
        return Effort(state.n_nodes, held, state.work)

    def step(self, state: FrontierState, ledger: Ledger) -> FrontierState:
        state.n_steps += 1
        if state.stage == "start":
            self._start(state, ledger)
        elif state.stage == "caps":
            self._advance_caps(state, ledger)
        else:
            self._search(state, ledger)
        return state

    # --- before the search -------------------------------------------------------------------------------

    def _start(self, state: FrontierState, ledger: Ledger) -> None:
        """Look for a good answer, then bound the whole space; go for caps unless that settles it."""
        if self.incumbent:
            first_answers(state, ledger, self.first_draws)
        state.stage = "search"
        self._expand_batch(state, ledger, 1)
        self._report(state, ledger)
        if self.caps and isinstance(state.prober, PlanProber) and len(state.open):
            from certimap.circuits.caps import Caps

            state.caps = Caps(state.prober.view, EXACT_FACTOR if self._aims_for_exact(state) else _factor(ledger))
            state.prober.log_caps = state.caps.log_caps
            state.stage, state.stage_work = "caps", 0
            state.budget = max(400_000_000, 400 * state.prober.view.n_edges)

    def _advance_caps(self, state: FrontierState, ledger: Ledger) -> None:
        """Work on the caps; when they are done, or have had their share of work, search."""
        assert state.caps is not None
        before = state.caps.work
        state.caps.advance(STEP_WORK)
        spent = state.caps.work - before
        state.work += spent
        state.stage_work += spent
        if state.caps.round_done or state.stage_work > state.budget:
            point = state.caps.best_point() if self.incumbent else None
            if point is not None:
                ledger.candidates(point)
                self._prune(state, ledger)
            state.stage, state.stage_work = "search", 0

    # --- the search --------------------------------------------------------------------------------------

    def _search(self, state: FrontierState, ledger: Ledger) -> None:
        """Expand batches of boxes for one step's work, then draw from what is open."""
        start = state.work
        while len(state.open) and state.work - start < STEP_WORK:
            self._expand_batch(state, ledger, self._batch_size(state, ledger))
            if state.control.should_stop or state.control.nodes_left(state.n_nodes) == 0:
                break
            if not self._aims_for_exact(state) and self._wants_draws(state, ledger):
                self._report(state, ledger)
                self._draw(state, ledger)
                if ledger.satisfied:
                    return
        state.stage_work += state.work - start
        self._report(state, ledger)
        if (
            not state.done
            and state.caps is not None
            and state.stage_work > state.budget
            and not state.caps.complete
        ):
            state.caps.log_factor = _factor(ledger)
            if state.caps.round_done:
                state.caps.start_round()
            state.stage, state.stage_work = "caps", 0
            state.budget *= 4

    def _batch_size(self, state: FrontierState, ledger: Ledger) -> int:
        """Return how many boxes to expand together: more and more, as far as the step's work allows."""
        state.batch = min(2 * state.batch, MAX_BATCH, max(8, STEP_WORK // (4 * state.prober.work)))
        if self._is_full(state):
            return min(state.batch, 32)
        nodes_left = state.control.nodes_left(state.n_nodes)
        return state.batch if nodes_left is None else max(1, min(state.batch, nodes_left))

    @staticmethod
    def _is_full(state: FrontierState) -> bool:
        """Whether the open boxes take up their memory; the search then goes depth first."""
        limit = OPEN_BYTES if state.control.max_memory is None else state.control.max_memory // 2
        return state.open.bytes_each * (len(state.open) + 4096) > limit

    def _expand_batch(self, state: FrontierState, ledger: Ledger, count: int) -> None:
        """Take boxes off the open list, expand them, and report what that closed and found."""
        boxes, bounds, _, depths = state.open.take(count, self._is_full(state))
        found = expand(state.layout, state.prober, boxes, bounds, depths, self._threshold(state, ledger))
        state.n_nodes += found.n_probed
        spent = found.n_probed * state.prober.work
        state.work += spent
        state.draw_credit += self.draw_share / (1.0 - self.draw_share) * spent
        for children in found.children:
            state.open.push(children.boxes, children.bounds, children.masses, children.depths)
        self._take_in(state, ledger, found)
        self._prune(state, ledger)

    def _take_in(self, state: FrontierState, ledger: Ledger, found: Expansion) -> None:
        """Pass on closed boxes and points to the ledger."""
        before = ledger.best_log_prob
        if found.points:
            ledger.candidates(np.concatenate(found.points))
            ledger.close(-math.inf, found.point_mass)
        if found.closed != (-math.inf, -math.inf):
            ledger.close(found.closed[0], found.closed[1] if has_masses(state.posterior) else None)
        state.stuck = max(state.stuck, found.stuck)
        is_real = not state.posterior.domain.is_discrete  # where boxes never become points
        if found.hints and (self.incumbent or is_real):
            hints = np.concatenate(found.hints)[:N_STARTS]
            ledger.candidates(hints)
            if is_real or (state.n_steps > 2 and ledger.best_log_prob > before):
                ledger.candidates(state.prober.climb(hints[:1]))

    def _prune(self, state: FrontierState, ledger: Ledger) -> None:
        """Close the open boxes that can no longer win."""
        mass, bound = state.open.prune(self._threshold(state, ledger))
        if bound > -math.inf or mass > -math.inf:
            ledger.close(bound, mass if has_masses(state.posterior) else None)

    def _report(self, state: FrontierState, ledger: Ledger) -> None:
        """State the open boxes to the ledger; without any the search is done.

        While the search aims for the exact answer it keeps an epsilon to itself, lest the run end on it.
        """
        full = state.control.nodes_left(state.n_nodes) == 0
        if self._aims_for_exact(state) and len(state.open) and not (full or state.control.should_stop):
            return
        bound = max(state.open.log_bound, state.stuck)
        mass = state.open.log_mass if has_masses(state.posterior) else 0.0
        rounded = float(mass + slack(np.array([mass]))[0])
        ledger.frontier(rounded if rounded < 0.0 else 0.0, bound)
        if not len(state.open):
            _fill_up(state, ledger)
            state.done = True

    def _aims_for_exact(self, state: FrontierState) -> bool:
        """Whether the search is young enough to go on past epsilon, which costs little where it is easy.

        In a real domain it costs much: intervals around a maximum shrink step by step.
        """
        return state.work < self.exact_work and state.posterior.domain.is_discrete

    def _threshold(self, state: FrontierState, ledger: Ledger) -> float:
        """Return the largest bound (nats) at which a box may close."""
        return ledger.log_exact_threshold if self._aims_for_exact(state) else ledger.log_threshold

    # --- draws -------------------------------------------------------------------------------------------

    def _wants_draws(self, state: FrontierState, ledger: Ledger) -> bool:
        """Whether the share of work set aside for draws pays for a batch of them."""
        if not self.draw_share or not len(state.open) or not has_masses(state.posterior):
            return False
        if not isinstance(state.posterior, Draws) or ledger.remaining_draws == 0:
            return False
        return state.draw_credit >= _draw_cost(state, MIN_DRAWS) * state.draw_at

    def _draw(self, state: FrontierState, ledger: Ledger) -> None:
        """Draw from the union of the open boxes, in proportion to mass, and report it as such."""
        log_mass = ledger.log_open_mass
        assert log_mass is not None
        edges = max(state.prober.work // 4, 1)
        n = int(min(max(state.draw_credit / (2 * edges) - len(state.open), MIN_DRAWS), MAX_DRAWS))
        if _is_long(state):
            n = MIN_DRAWS
        if ledger.remaining_draws is not None:
            n = min(n, ledger.remaining_draws)
        state.work += _draw_cost(state, n)
        state.draw_credit = 0.0
        points = sample_open(state, n)
        before = ledger.best_log_prob
        if ledger.delta > 0.0:
            ledger.draws(points, min(log_mass, 0.0))
        else:
            ledger.candidates(points)
        needed = math.log(1.0 / max(ledger.delta, 1e-300)) * math.exp(min(log_mass - before, 700.0))
        state.draw_at = 8.0 if needed > HOPELESS or ledger.delta == 0.0 else 1.0
        if ledger.best_log_prob > before and not ledger.satisfied:
            best = ledger.best_point
            assert best is not None
            ledger.candidates(state.prober.climb(best[None]))
        self._prune(state, ledger)


def _factor(ledger: Ledger) -> float:
    """Return how close (nats) a cap must come to its node's maximum where epsilon is to be used."""
    return max(EXACT_FACTOR, 1e-3 * ledger.epsilon)


def _draw_cost(state: FrontierState, n: int) -> int:
    """Return the work of n draws from the open boxes: masses of boxes, the draws, and their values."""
    return max(state.prober.work // 4, 1) * ((n if _is_long(state) else len(state.open)) + 2 * n)


def _is_long(state: FrontierState) -> bool:
    """Whether the open boxes are too many to be unpacked together."""
    return len(state.open) * state.open.n_columns > LONG_LIST


def sample_open(state: FrontierState, n: int) -> Points:
    """Draw n independent points from the union of the open boxes, in proportion to mass.

    From a long list each draw first picks its box, by the masses that the search knows, then a point inside.
    """
    if not _is_long(state):
        boxes = state.layout.public(state.open.boxes(slice(None)))
        return state.posterior.sample(n, state.rng, boxes=boxes)
    shares = np.exp(state.open.log_masses - state.open.log_mass)
    picks = state.rng.choice(len(shares), size=n, p=shares / shares.sum())
    points: Points = np.empty((n, len(state.layout.domain)), state.layout.domain.point_dtype)
    for pick in np.unique(picks):
        rows = np.flatnonzero(picks == pick)
        box = state.layout.public(state.open.boxes(np.array([pick])))
        points[rows] = state.posterior.sample(len(rows), state.rng, boxes=box)
    return points


def first_answers(state: FrontierState, ledger: Ledger, n_draws: int) -> None:
    """Report the answers of quick heuristics: max-product on circuits, draws, climbs from the best of these."""
    posterior = state.posterior
    if isinstance(state.prober, PlanProber):
        ledger.candidates(posterior.max_product())
    if not isinstance(posterior, Draws):
        return
    left = ledger.remaining_draws
    n = n_draws if left is None else min(left, n_draws)
    if not n:
        return
    points: Points = posterior.sample(n, state.rng)
    state.work += 2 * n * max(state.prober.work // 4, 1)
    log_probs = ledger.candidates(points)
    if not len(points) or isinstance(state.prober, PlanProber):
        return
    order = np.argsort(-log_probs, kind="stable")[:N_STARTS]
    ledger.candidates(state.prober.climb(points[order]))


def _fill_up(state: FrontierState, ledger: Ledger) -> None:
    """Where fewer points than `top_k` have positive probability, add impossible ones to the list."""
    domain = state.posterior.domain
    if not domain.is_discrete:
        return
    for _ in range(64):
        if len(ledger.best) >= ledger.top_k:
            return
        points: Points = state.rng.integers(domain.n_states, size=(4 * ledger.top_k, len(domain)))
        ledger.candidates(points)
