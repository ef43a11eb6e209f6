"""MPE in networks of any width: exact reductions, dual ascent, elimination and hybrid best-first search."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Ints
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.networks.cuts import solved
from certimap.networks.elimination_plan import EliminationPlan, cheap_plan, most_added, plan
from certimap.networks.expansions import Expansions
from certimap.networks.mpe_posterior import MpePosterior
from certimap.networks.problem import (
    FLOOR,
    HARD,
    WIDE_REACH,
    Problem,
    above_nats,
    below_nats,
    in_nats,
    narrow_reach,
    restrict,
    to_fine_integers,
    to_integers,
)
from certimap.networks.simplify import impossible
from certimap.solvers.base import Effort, Solver
from certimap.solvers.networks import toulbar2
from certimap.solvers.networks.parts import Context, Reduction, order_of

LEAST_SHARE = 0.01  # of what epsilon grants, that is worth a search of its own
MOVES_SHARE = 0.25  # of all work, for moves of any variables to one state
OUTSIDE_FROM = 200_000_000  # table entries visited before another program is called: a second or two


@dataclass
class HybridState:
    """The tree of subproblems, what was reported of it, and the `share` of epsilon that its parts may use."""

    posterior: MpePosterior
    root: Reduction | None
    context: Context
    unit: float
    kept: dict[int, Ints]
    reported: int = HARD
    is_eliminated: bool = False
    is_whole: bool = True
    is_asked: bool = False
    whole: EliminationPlan | None = None  # of the problem before its reduction, which may spoil the best order
    is_planned: bool = False
    share: float = 1.0
    moves: Expansions | None = None
    moved_from: dict[int, int] = field(default_factory=dict[int, int])  # where the last moves began

    @property
    def done(self) -> bool:
        return self.is_eliminated or (self.root is not None and self.root.is_done)

    def point(self, assignment: dict[int, int]) -> Points:
        """Return the posterior's row for states of the problem that is solved."""
        inside = {v: int(states[assignment.get(v, 0)]) for v, states in self.kept.items()}
        return self.posterior.states.point(assignment | inside)


@dataclass(frozen=True)
class HybridBestFirst(Solver, name="hbfs", needs=(MpePosterior,), family="search"):
    """Maximise a product of tables exactly, in any network whose nuisance variables can be summed out.

    A problem of binary variables in pairs without a frustrated cycle is settled by a minimum cut. One whose
    elimination is cheap as it stands is eliminated. Others are rounded up to integers and reduced, by roof
    duality first if it is binary and in pairs; components whose elimination is cheap are eliminated. For others
    costs are moved between tables until the sum of their maxima, an upper bound, stalls (sequential reweighted
    sweeps), while tabu search finds good assignments; states that cannot beat these go; what is left is reduced
    again and searched, or eliminated once the search has cost as much as that would. A long search gives a part of
    its work to mini-bucket relaxations of what is left, with larger and larger tables, whose bound stands where it
    is the lower one.

    `quick_entries`: eliminate a component at once when that takes at most so many table entries.
    `max_entries`: never eliminate one that takes more. 0 (with `quick_entries` 0) leaves everything to the search.
    `exact_work`: table entries to visit before epsilon, rather than exactness, decides what is cut.
    `outside_share`: of the time left, what toulbar2 gets once in a long search that no elimination will end; its
    bound is named among the certificate's assumptions. `auto` sets it where the extra is installed and there is a
    time limit.

    After Allouche et al., "Anytime hybrid best-first search with tree decomposition for weighted CSP" (2015), and
    Kolmogorov, "A new look at reweighted message passing" (2015). All costs are exact integers. Cuts: Kolmogorov
    and Rother, "Minimizing nonsubmodular functions with graph cuts" (2007).
    """

    quick_entries: float = 2.0**24
    max_entries: float = 2.0**36
    exact_work: int = 200_000_000
    outside_share: float = 0.0

    ranges = "quick_entries, max_entries, exact_work [0, inf]; outside_share [0, 1)"

    def init(
        self, posterior: MpePosterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> HybridState:
        limits = self.quick_entries, self.max_entries, control.memory_limit
        context = Context(control, posterior.workers, *limits, top_k=1, seed=int(rng.integers(2**63)))
        kept = {} if boxes is None else posterior.kept(boxes)
        return HybridState(posterior, None, context, 1.0, kept, is_whole=boxes is None)

    def effort(self, state: HybridState) -> Effort:
        n_bytes = 0 if state.root is None else state.root.n_bytes
        return Effort(state.context.n_nodes, n_bytes, state.context.work)

    def step(self, state: HybridState, ledger: Ledger) -> HybridState:
        context = state.context
        if state.root is None:
            context.top_k = ledger.top_k
            if self._eliminates(state, ledger):
                return state
            problem = self._problem(state)
            state.unit = problem.unit
            state.root = Reduction(problem, context)
            state.moves = None if context.lists_all or state.done else Expansions.of(problem)
        else:
            self._set_levels(state, ledger)
            if self._eliminates_whole(state, ledger):
                return state
            state.root.advance(context)
            self._expand(state)
            self._report(state, ledger)
            self._ask_outside(state, ledger)
        self._report(state, ledger)
        if state.root.is_done and context.margin > 0 and not ledger.satisfied:
            # Parts have split since they were closed, and their margins add up to more than the ledger grants.
            state.share = 0.125 * state.share if state.share > LEAST_SHARE else 0.0
            context.margin = 0
            state.root = Reduction(self._problem(state), context, state.root.states)
        return state

    def _problem(self, state: HybridState) -> Problem:
        return restrict(to_integers(state.posterior.problem), state.kept)

    def _expand(self, state: HybridState) -> None:
        """Better what the bounds suggest by moves of many variables, for a share of all work."""
        moves, context, root = state.moves, state.context, state.root
        if moves is None or root is None or root.is_done or moves.work + moves.least > MOVES_SHARE * context.work:
            return
        start = root.suggested
        if start != state.moved_from:
            state.moved_from = start
            found = moves.better(start, context.control)
            if found is not None:
                root.offer(found)

    def _ask_outside(self, state: HybridState, ledger: Ledger) -> None:
        """Let toulbar2 try once, where the search has been long and no elimination is going to end it."""
        context, root = state.context, state.root
        assert root is not None
        control, is_whole = context.control, state.is_whole and not context.lists_all
        if state.is_asked or state.done or context.work < OUTSIDE_FROM or not self.outside_share or not is_whole:
            return
        state.is_asked = True
        if control.deadline is None or all(context.fits(p.plan) for p in root.parts if not p.is_done):
            return  # what is open is going to be eliminated, should its search take long
        problem = state.posterior.problem
        seconds = self.outside_share * control.seconds_left
        found = toulbar2.run_process(problem, seconds, control.memory_limit // 2, control)
        if "solution" in found:
            states = dict(zip(sorted(problem.sizes), found["solution"], strict=True))
            ledger.candidates(state.point(states)[None, :])
            root.offer(states)
        if "log_upper" in found:
            ledger.upper_bound(max(float(found["log_upper"]), ledger.best_log_prob), toulbar2.Toulbar2.name)

    def _eliminates(self, state: HybridState, ledger: Ledger) -> bool:
        """Eliminate the whole problem without looking for reductions first, where that is cheap."""
        problem, context = state.posterior.problem, state.context
        if state.kept or not problem.sizes or problem.n_entries > self.quick_entries:
            return False
        order = state.posterior.order
        if order is None and self._is_cut(state, ledger):
            return True
        order = order or cheap_plan(problem, self.quick_entries)
        if order is None or order.n_entries > self.quick_entries or not context.fits(order):
            return False
        if not context.lists_all:
            state.is_eliminated = self._is_maximised(state, ledger, order)
            return state.is_eliminated
        fine = to_fine_integers(problem, most_added(problem, order))
        found = context.maximum(problem, order, order.n_entries, fine)
        if found is None:
            return False
        ranked = list(itertools.islice(found.ranked(), context.top_k + 1))
        ledger.candidates(np.array([state.point(states) for _, states in ranked[: context.top_k]]))
        unseen = -math.inf if len(ranked) <= context.top_k else above_nats(ranked[-1][0], fine.unit)
        ledger.frontier(0.0, unseen)
        state.is_eliminated = True
        return True

    def _eliminates_whole(self, state: HybridState, ledger: Ledger) -> bool:
        """Eliminate the unreduced problem if cheaper: reductions may widen it (a 24x24 grid from 2^25 to 2^33)."""
        context, root, problem = state.context, state.root, state.posterior.problem
        assert root is not None
        if context.lists_all or state.kept or not context.n_nodes or not self.quick_entries:
            return False
        if not state.is_planned:
            state.is_planned, state.whole = True, plan(problem, order_of(problem, context))
        whole = state.whole
        if whole is None or not context.fits(whole) or context.work <= context.searched_before(whole):
            return False
        if whole.n_entries >= root.n_entries_left or root.is_done:
            return False
        state.whole = None  # it is tried once
        state.is_eliminated = self._is_maximised(state, ledger, whole)
        return state.is_eliminated

    def _is_cut(self, state: HybridState, ledger: Ledger) -> bool:
        """Answer by a minimum cut where that is exact."""
        found = None if state.context.lists_all else solved(state.posterior.problem, state.context.control)
        if found is None:
            return False
        ledger.candidates(state.point(found[0])[None, :])
        ledger.frontier(0.0, found[1], is_rounded=True)  # of integers, and of what logs are off by
        state.is_eliminated = True
        return True

    def _is_maximised(self, state: HybridState, ledger: Ledger, order: EliminationPlan) -> bool:
        """Report the maximum and its bound; False where units raise entries too far, or without time."""
        problem = state.posterior.problem
        for reach in dict.fromkeys((narrow_reach(problem), WIDE_REACH)):
            fine = to_fine_integers(problem, most_added(problem, order), reach)
            found = state.context.maximum(problem, order, order.n_entries, fine)
            if found is None:
                return False
            value = float(ledger.candidates(state.point(found.assignment())[None, :])[0])
            bound = above_nats(found.value, fine.unit)
            ledger.frontier(0.0, bound)
            rounding = len(problem.tables) * fine.unit + 4.0 * ledger.posterior.facts.log_slack
            if ledger.satisfied or bound <= value + rounding:
                return True
        return False

    def _set_levels(self, state: HybridState, ledger: Ledger) -> None:
        """Set what is close enough: for the k best by the ledger's threshold, else by a margin per component."""
        context, root = state.context, state.root
        assert root is not None
        is_exact = context.work < self.exact_work
        if context.lists_all:
            log_level = ledger.log_exact_threshold if is_exact else ledger.log_threshold
            context.threshold = max(context.threshold, below_nats(log_level, state.unit))
        elif not is_exact and root.value > FLOOR:
            # Each part may be off by the margin; together they must stay where the ledger certifies.
            room = below_nats(ledger.log_threshold, state.unit) - root.value
            context.margin = max(0, math.floor(state.share * room / max(1, root.n_parts)))

    def _report(self, state: HybridState, ledger: Ledger) -> None:
        root = state.root
        assert root is not None
        if state.context.lists_all:
            points = [state.point(states) for states in root.drain()]
            if points:
                ledger.candidates(np.array(points))
            if root.is_done and ledger.best_point is None:
                raise impossible()
        elif root.value > max(state.reported, FLOOR):
            state.reported = root.value
            ledger.candidates(state.point(root.states)[None, :])
        ledger.frontier(ledger.log_measure, in_nats(root.bound, state.unit))
