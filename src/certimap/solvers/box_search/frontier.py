"""Branch and bound on boxes, with probing, tightening of bounds, and draws from the open boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from certimap.certify.bounds import log_draws_needed, log_tau
from certimap.certify.ledger import Ledger
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Layout, Points, rounded_up
from certimap.core.control import Control, TimeUp
from certimap.core.posterior import Bounds, Draws, Masses, Posterior, Prober, Probes
from certimap.core.probing import has_masses, prober_of
from certimap.solvers.base import Effort, Judging, Solver
from certimap.solvers.box_search.open_boxes import Expansion, OpenBoxes, OpenRows, expand

N_STARTS = 4
SECONDS_PER_DRAWN_EDGE = 3e-9  # to draw and to score a point, per edge of a circuit
EXACT_FACTOR = 1e-10  # nats: initial gap within which a tightened bound counts as exact
TIGHTEN_WORK = 400_000_000  # edge visits before the first search; at least the work of 100 boxes
APART = 1.0 / 64.0  # of `width`: if all open boxes are this short but their hull is not, they hold several modes
HOPELESS = math.log(1e9)  # ln of the needed draws beyond which they get only a small share of work


def sample_open(state: FrontierState, n: int, *, unpack: bool) -> Points:
    """Draw n points from the open boxes by mass; if these are too many to `unpack`, pick a box for each first."""
    if unpack:
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
    """Report the prober's starts, then draws; without starts, climb from the best draws."""
    posterior, starts = state.posterior, state.prober.starts()
    if len(starts):
        ledger.candidates(starts)
    if not isinstance(posterior, Draws):
        return
    left = ledger.remaining_draws
    n = n_draws if left is None else min(left, n_draws)
    edges = max(state.prober.work // 4, 1)
    if not n or state.control.should_stop or n * edges * SECONDS_PER_DRAWN_EDGE > state.control.seconds_left:
        return
    points: Points = posterior.sample(n, state.rng)
    state.work += 2 * n * edges
    log_probs = ledger.candidates(points)
    if not len(points) or len(starts):
        return
    order = np.argsort(-log_probs, kind="stable")[:N_STARTS]
    ledger.candidates(state.prober.climb(points[order]))


def fill_up(state: FrontierState, ledger: Ledger) -> None:
    """Add impossible points to the list if fewer than `top_k` points have positive probability."""
    domain = state.posterior.domain
    if not domain.is_discrete or ledger.rules is not None:
        return
    for _ in range(64):
        if len(ledger.best) >= ledger.top_k:
            return
        points: Points = state.rng.integers(domain.n_states, size=(4 * ledger.top_k, len(domain)))
        ledger.candidates(points)


@dataclass(frozen=True)
class Pace:
    """Step sizes of a search; no certificate depends on them."""

    step_work: int = 40_000_000  # edge visits of one step, a fraction of a second
    max_batch: int = 512  # boxes expanded together
    open_bytes: int = 1_000_000_000  # of open boxes, beyond which, without a user's limit, it goes depth first
    long_list: int = 50_000_000  # total columns of the open boxes beyond which they are not unpacked for a draw
    min_draws: int = 64  # in one batch
    max_draws: int = 16384


@dataclass(eq=False)
class FrontierState:
    """The state of a search; `work` is in edge visits."""

    posterior: Any
    control: Control
    prober: Prober
    rng: np.random.Generator
    open: OpenBoxes
    stage: Literal["start", "tighten", "search"] = "start"
    is_tight: bool = True
    log_factor: float = EXACT_FACTOR
    stuck: float = -math.inf
    work: int = 0
    draw_credit: float = 0.0
    draw_at: float = 1.0
    stage_work: int = 0
    budget: int = 0
    batch: int = 1
    n_nodes: int = 0
    climb_at: int = 0
    n_steps: int = 0
    done: bool = False

    @property
    def layout(self) -> Layout:
        return self.prober.layout


@dataclass(frozen=True)
class Frontier(Solver, name="frontier", needs=(Probes | Bounds,), family="search"):
    """Search a partition of the query space into boxes, best first, until no open box can win.

    The posterior's prober bounds a box and every (variable, state) of it at once. On a circuit it uses the mass,
    and the circuit with its leaves at their maxima in the box, in one upward and one downward pass. States that
    cannot beat the best point are dropped. Before the search the prober tightens: on circuits it finds every sum
    node's own maximum, bottom-up, which caps the node's value in every box and usually settles queries on learned
    sum-product networks. Deterministic circuits close at the first box. Draws from the open boxes may certify the
    rest.

    Sources: probing and best-first search as in integer programming; bounds after Huang, Chavira and
    Darwiche (2006) and Mei, Jiang and Tu (2018); the caps and the rule for draws are this project's (see
    `docs/what-a-certificate-means.md`). Cost: about 4 visits of every edge of the circuit per box.

    `draw_share`: share of the work for draws from the open boxes, in [0, 1); 0: no draws.
    `first_draws`: draws from the whole space before the search.
    `exact_work`: edge visits (some tenths of a second) spent on the exact answer in a discrete domain before
    epsilon and draws may settle the query; 0: stop at the first certificate that meets the request.
    `caps`: whether to tighten bounds before the search (on circuits, by the maxima of subcircuits).
    `incumbent`: whether to look for a good answer before the search.
    `width`: in a real domain: continue beyond epsilon until every mode lies in a box with sides of at most this
    length, in the units of the variables, or until modes are separated; `result.located` is that box. None: stop
    at epsilon.
    `pace`: step sizes.
    """

    draw_share: float = 0.2
    first_draws: int = 256
    exact_work: int = 400_000_000
    caps: bool = True
    incumbent: bool = True
    width: float | None = None
    pace: Pace = field(default_factory=Pace)
    ranges = "draw_share [0, 1); first_draws [0, inf); exact_work [0, inf]; width (0, inf]"

    def judging(self) -> Judging:
        return Judging(early_stop=self.width is None)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Return why a posterior cannot be searched, or None."""
        if self.width is not None and posterior.domain.is_discrete:
            return "width is of real query variables, and the query has none; leave it out"
        if not posterior.domain.is_discrete and not isinstance(posterior, Probes):
            lack = f"only where the posterior has a prober(), and a {type(posterior).__name__} has none"
            return f"solver 'frontier' splits real variables {lack}; use solver='soo' or 'budget'"
        return None

    def init(
        self, posterior: Probes | Bounds, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> FrontierState:
        prober = prober_of(posterior, control)
        layout, n_real = prober.layout, 0 if posterior.domain.is_discrete else len(posterior.domain)
        opened = OpenBoxes(int(layout.offsets[-1]), n_real)
        bound = np.full(1, 0.0 if has_masses(posterior) else posterior.facts.log_ceiling)
        whole = layout.full() if boxes is None else layout.of_boxes(boxes)
        measure = np.zeros(1) if boxes is None else _measure(posterior, layout, boxes)
        opened.push(OpenRows(whole, bound, measure, np.zeros(1, np.int32)))
        return FrontierState(posterior, control, prober, rng, opened)

    def effort(self, state: FrontierState) -> Effort:
        return Effort(state.n_nodes, state.open.n_bytes + state.prober.n_bytes, state.work)

    def step(self, state: FrontierState, ledger: Ledger) -> FrontierState:
        state.n_steps += 1
        try:
            if state.stage == "start":
                self._start(state, ledger)
            elif state.stage == "tighten":
                self._tighten(state, ledger)
            else:
                self._search(state, ledger)
        except TimeUp:
            self._report(state, ledger, is_last=True)
            raise
        return state

    def _start(self, state: FrontierState, ledger: Ledger) -> None:
        """Look for a good answer, then bound the whole space; continue with tightening if still unsettled."""
        if ledger.recorder is not None:
            ledger.recorder.layout = state.layout
        if not state.posterior.domain.is_discrete:
            self._bound_whole(state, ledger)
        if self.incumbent:
            first_answers(state, ledger, self.first_draws)
        state.stage = "search"
        if state.control.should_stop:
            return
        self._expand_batch(state, ledger, 1)
        self._report(state, ledger)
        if self._tightens(state, ledger) and len(state.open):
            state.log_factor = EXACT_FACTOR if self._aims_for_exact(state) else _factor(ledger)
            state.stage, state.stage_work = "tighten", 0
            state.budget = max(TIGHTEN_WORK, 100 * state.prober.work)

    def _bound_whole(self, state: FrontierState, ledger: Ledger) -> None:
        """Bound the whole space, so that a density has a finite bound even if the time ends here."""
        bounds = state.prober.probe(state.open.boxes(slice(None))).log_bound
        state.n_nodes += len(bounds)
        state.work += len(bounds) * state.prober.work
        state.open.cap(float(bounds.max(initial=-math.inf)))
        self._report(state, ledger)

    def _tighten(self, state: FrontierState, ledger: Ledger) -> None:
        """Let the prober tighten; when it pauses or its share of work is used up, search."""
        if ledger.recorder is not None:
            ledger.recorder.tightens(state.prober)
        came_to = state.prober.tighten(
            self.pace.step_work, state.log_factor, state.open.hull(), self._threshold(state, ledger)
        )
        state.work += came_to.work
        state.stage_work += came_to.work
        state.is_tight = came_to.is_complete
        if came_to.log_bound < state.open.log_bound:
            state.open.cap(came_to.log_bound)
            self._prune(state, ledger)
            self._report(state, ledger)
        leaves = came_to.is_paused or state.stage_work > state.budget
        if self.incumbent and (came_to.has_starts or (leaves and came_to.work)):
            starts = state.prober.starts()
            if len(starts):
                ledger.candidates(starts)
                self._prune(state, ledger)
        if leaves:
            state.stage, state.stage_work = "search", 0
            if not came_to.work:
                self._search(state, ledger)
        if not state.done and (not len(state.open) or state.control.should_stop):
            self._report(state, ledger)

    def _search(self, state: FrontierState, ledger: Ledger) -> None:
        """Expand batches of boxes for one step's work, then draw from the open boxes."""
        start = state.work
        while len(state.open) and state.work - start < self.pace.step_work:
            self._expand_batch(state, ledger, self._batch_size(state, ledger))
            if self.width is not None:
                self._report(state, ledger)
                if state.done:
                    return
            if state.control.should_stop or state.control.nodes_left(state.n_nodes) == 0:
                break
            if not self._aims_for_exact(state) and self._wants_draws(state, ledger):
                self._report(state, ledger)
                self._draw(state, ledger)
                if ledger.satisfied:
                    return
        state.stage_work += state.work - start
        self._report(state, ledger)
        tightens = not state.is_tight and self._tightens(state, ledger)
        if not state.done and tightens and state.stage_work > state.budget:
            state.log_factor = _factor(ledger)
            state.stage, state.stage_work = "tighten", 0
            state.budget *= 4

    def _batch_size(self, state: FrontierState, ledger: Ledger) -> int:
        """Return how many boxes to expand together; it grows as far as the step's work allows."""
        affordable = max(8, self.pace.step_work // (4 * state.prober.work))
        state.batch = min(2 * state.batch, self.pace.max_batch, affordable)
        if self._is_full(state):
            return min(state.batch, 32)
        nodes_left = state.control.nodes_left(state.n_nodes)
        return state.batch if nodes_left is None else max(1, min(state.batch, nodes_left))

    def _is_full(self, state: FrontierState) -> bool:
        """Whether the open boxes use up their memory; the search then goes depth first."""
        limit = self.pace.open_bytes if state.control.max_memory is None else state.control.max_memory // 2
        return state.open.bytes_each * (len(state.open) + 4096) > limit

    def _expand_batch(self, state: FrontierState, ledger: Ledger, count: int) -> None:
        """Take boxes off the open list, expand them, and report the results."""
        layout = state.layout  # when modes are located, the widest box comes first
        scales = None if self.width is None else np.where(layout.is_real, layout.scales, np.inf)
        rows = state.open.take(count, self._is_full(state), scales)
        threshold = self._threshold(state, ledger)
        try:
            found = expand(state.prober, rows, threshold, ledger.recorder)
        except TimeUp:
            state.open.push(rows)
            raise
        state.n_nodes += found.n_probed
        spent = found.n_probed * state.prober.work
        state.work += spent
        state.draw_credit += self.draw_share / (1.0 - self.draw_share) * spent
        for children in found.children:
            state.open.push(children)
        self._take_in(state, ledger, found)
        self._prune(state, ledger)

    def _take_in(self, state: FrontierState, ledger: Ledger, found: Expansion) -> None:
        """Report closed boxes and points to the ledger."""
        before = ledger.best_log_prob
        if found.points:
            ledger.settle(np.concatenate(found.points))
        if found.closed != (-math.inf, -math.inf):
            ledger.close(*found.closed)
        state.stuck = max(state.stuck, found.stuck)
        is_real = not state.posterior.domain.is_discrete  # real boxes never become points
        if found.hints and (self.incumbent or is_real):
            hints = np.concatenate(found.hints)[:N_STARTS]
            ledger.candidates(hints)
            if state.n_nodes >= max(state.climb_at, 0 if is_real else 32) or (
                state.n_steps > 2 and ledger.best_log_prob > before
            ):
                state.climb_at = state.n_nodes + state.n_nodes // 4
                ledger.candidates(state.prober.climb(hints[:1]))

    def _prune(self, state: FrontierState, ledger: Ledger) -> None:
        """Close the open boxes that can no longer win."""
        mass, bound = state.open.prune(self._threshold(state, ledger))
        if bound > -math.inf or mass > -math.inf:
            ledger.close(bound, mass)

    def _report(self, state: FrontierState, ledger: Ledger, *, is_last: bool = False) -> None:
        """Report the open boxes, but no bound that would end the run below the aim; without any all is done."""
        full = state.control.nodes_left(state.n_nodes) == 0
        ends = is_last or full or state.control.should_stop
        bound, mass = max(state.open.log_bound, state.stuck), min(state.open.log_mass, 0.0)
        if self._aims_for_exact(state) and len(state.open) and not ends:
            settles = ledger.delta > 0.0 or min(bound, mass) <= ledger.log_threshold
            if ledger.epsilon > 0.0 and settles:
                return
        ledger.frontier(mass, bound)
        if self.width is not None:
            self._locate(state, ledger, self.width)
        if not len(state.open):
            fill_up(state, ledger)
            state.done = True

    def _locate(self, state: FrontierState, ledger: Ledger, width: float) -> None:
        """Report the hull of the open boxes and the best point; done if its sides are short enough."""
        best = ledger.best_point
        if best is None or state.stuck > ledger.log_strict_threshold:
            return
        low, high = np.array(best, np.float64), np.array(best, np.float64)
        if len(state.open):
            hull = state.open.hull()
            low, high = np.minimum(low, hull.low[0]), np.maximum(high, hull.high[0])
        ledger.locate(low, high)
        short = bool(np.all((high - low)[state.layout.is_real] <= width))
        # If each open box is far shorter than `width` but their hull is not, modes lie apart.
        apart = state.open.longest(state.layout.is_real) <= APART * width
        state.done = state.done or ((short or apart) and ledger.satisfied)

    def _aims_for_exact(self, state: FrontierState) -> bool:
        """Whether to search beyond epsilon: only early on, and not for real variables, where it takes too long."""
        return state.work < self.exact_work and state.posterior.domain.is_discrete

    def _tightens(self, state: FrontierState, ledger: Ledger) -> bool:
        """Whether to let the prober tighten; a proof over real variables cannot record it."""
        return self.caps and (ledger.recorder is None or state.posterior.domain.is_discrete)

    def _threshold(self, state: FrontierState, ledger: Ledger) -> float:
        """Return the largest bound (nats) at which a box may close."""
        if self.width is not None:
            return ledger.log_strict_threshold
        return ledger.log_exact_threshold if self._aims_for_exact(state) else ledger.log_threshold

    def _wants_draws(self, state: FrontierState, ledger: Ledger) -> bool:
        """Whether the work set aside for draws is enough for a batch."""
        if not self.draw_share or not len(state.open) or not has_masses(state.posterior):
            return False
        if not isinstance(state.posterior, Draws) or ledger.remaining_draws == 0:
            return False
        return state.draw_credit >= self._draw_cost(state, self.pace.min_draws) * state.draw_at

    def _draw(self, state: FrontierState, ledger: Ledger) -> None:
        """Draw from the union of the open boxes, in proportion to mass, and report the draws."""
        log_mass = ledger.log_open_mass
        assert log_mass is not None
        edges = max(state.prober.work // 4, 1)
        paid = state.draw_credit / (2 * edges) - len(state.open)
        n = int(min(max(paid, self.pace.min_draws), self.pace.max_draws))
        if self._is_long(state):
            n = self.pace.min_draws
        if ledger.remaining_draws is not None:
            n = min(n, ledger.remaining_draws)
        state.work += self._draw_cost(state, n)
        state.draw_credit = 0.0
        points = sample_open(state, n, unpack=not self._is_long(state))
        before = ledger.best_log_prob
        if ledger.delta > 0.0:
            ledger.draws(points, min(log_mass, 0.0))
        else:
            ledger.candidates(points)
        log_t = log_tau(ledger.log_kth_best, ledger.epsilon)
        log_needed = log_draws_needed(log_t, ledger.delta, log_mass, ledger.top_k)
        state.draw_at = 8.0 if log_needed > HOPELESS else 1.0
        if ledger.best_log_prob > before and not ledger.satisfied:
            best = ledger.best_point
            assert best is not None
            ledger.candidates(state.prober.climb(best[None]))
        self._prune(state, ledger)

    def _draw_cost(self, state: FrontierState, n: int) -> int:
        """Return the work of n draws from the open boxes: box masses, draws and values."""
        n_masses = n if self._is_long(state) else len(state.open)
        return max(state.prober.work // 4, 1) * (n_masses + 2 * n)

    def _is_long(self, state: FrontierState) -> bool:
        """Whether the open boxes are too many to be unpacked together."""
        return len(state.open) * state.open.n_columns > self.pace.long_list


def _measure(posterior: Posterior, layout: Layout, boxes: Boxes) -> Floats:
    """Return ln of the measure of boxes (see `Answers`) before they are probed."""
    if has_masses(posterior) and isinstance(posterior, Masses):
        return rounded_up(posterior.log_mass(boxes), posterior.facts.log_slack)
    return layout.log_share(layout.of_boxes(boxes)) if posterior.domain.is_discrete else np.zeros(len(boxes))


def _factor(ledger: Ledger) -> float:
    """Return the gap (nats) at which a tightened bound is close enough for epsilon."""
    return max(EXACT_FACTOR, 1e-3 * ledger.epsilon)
