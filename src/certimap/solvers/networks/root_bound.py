"""An upper bound of what a search has to look through: mini-buckets, tightened and enlarged while it runs."""

from __future__ import annotations

import math

from certimap.core.control import Control, TimeUp
from certimap.errors import TooLarge
from certimap.networks.orders import band_orders, best_order
from certimap.networks.problem import FLOOR, Problem, above_units, to_floats
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.split_tree import PassClock, limit, nuisance_first
from certimap.networks.relaxation.tighten import TRIED, Tightener, least
from certimap.solvers.networks.and_or import NODE_WORK, AndOrSpace, Tour

TABLE_BITS = (10.0, 13.0, 16.0, 19.0)  # log base 2 of the entries of the largest table, tree after tree
STEPS = ((TRIED, 12), (0.03, 24), (0.003, 12))  # temperatures, and steps at each
FROM_WORK = 50_000_000  # table entries that a search visits before it pays to bound the whole in another way
TRIED_STEPS = 4  # with each order before the least is taken, and the better half kept for larger tables
COST = 0.8  # visits of a search that take as long as an entry of a pass, with its powers and logs
# of the search's work; the second where this bound is below the search's and no elimination is going to end it
SHARE, LEADING_SHARE = 0.5, 3.0
PASSES = 6  # over all entries, that an optimisation step and the bound after it cost, about
MOST_STEPS = 12  # between two bounds
STALLED = 0.02  # of the gap: a tree whose last steps gained no more makes way for a larger one
MEMORY_SHARE = 0.125
# of what a tightened tree has cost, for a search that it bounds; of what the next tree costs, for one of which so
# much is behind
TOUR_SHARE, SHARE_BESIDE, SOMEWHERE = 0.25, 2.0, 1e-5
TOUR_COST, TOUR_NODES = 0.1, 10_000  # visits that take as long as a unit of a tour's work; nodes at a time


class RootBound:
    """Split trees over all variables of an integer problem, whose bound falls from call to call.

    Dual ascent moves costs between tables as they are; where it stalls (grids, linkage), tables of a dozen
    variables bound several times closer, and the search proves too little before its end to catch up. Where the
    costs are what dual ascent has left, no tree bounds worse than it did.

    Each tightened tree bounds an AND/OR search for a share of its own cost. A search that gets somewhere goes on
    beside the making of the next tree, and the last tree's to the end.

    `bound`: units that the problem's value does not exceed. `work`: its cost so far, in visits of a search.
    `is_finished`: whether nothing more is tried: a search came to its end, or memory or time do not suffice.
    `is_solved`: whether nothing beats the best assignment known or `decoded`.
    """

    def __init__(self, problem: Problem, control: Control) -> None:
        self._problem, self._control = problem, control
        self._floats = to_floats(problem)
        # no rule tells which order's mini-buckets bound best: on a torus of 20x20 they differ by 2.6 nats
        scopes = [t.scope for t in problem.tables]
        whole = best_order(scopes, problem.sizes, control=control).order
        orders = [nuisance_first(self._floats, control=control), list(whole), *band_orders(scopes, problem.sizes)]
        self._orders = [list(order) for order in dict.fromkeys(map(tuple, orders))]
        self._clock = PassClock(control)
        self._n_trees, self.work, self.is_finished, self.is_solved = 0, 0.0, False, False
        self._tightener: Tightener | None = None
        self._temperatures: list[float] = []
        self._last = self.bound = int(problem.constant) + sum(int(t.log_values.max()) for t in problem.tables)
        self._tour: Tour | None = None  # under the last tightened tree
        # visits: of the present tree; that the search may make; of the next tree since the search began
        self._tree_work = self._room = self._beside = 0.0

    @property
    def n_bytes(self) -> int:
        """The memory of tables and messages."""
        return 0 if self._tightener is None else self._tightener.tree.n_bytes

    def follow(self, search_work: int, level: int, *, leads: bool) -> bool:
        """Take some steps if the search has worked enough since the last ones; return whether the bound fell.

        Bounds at or below `level` (units) are as good as any. `leads`: whether this bound is the one that counts.
        """
        granted, before, start = (LEADING_SHARE if leads else SHARE) * search_work, -1.0, self.bound
        try:
            while not self.is_finished and self.work > before and (leads or before < 0.0):
                before = self.work
                self._advance(granted - before, level)
        except (TimeUp, TooLarge):  # a search may still have time where a pass has not
            self.is_finished = self._tour is None or self._control.should_stop
            self._n_trees, self._temperatures = len(TABLE_BITS), []
        return self.bound < start

    def _advance(self, left: float, level: int) -> None:
        """Make the next tree, take steps on the present one, or search, where that costs at most `left`."""
        is_ready = not self._temperatures
        if self._tour is not None:
            is_last = is_ready and self._n_trees == len(TABLE_BITS)
            room = self._room + SHARE_BESIDE * self._beside * (self._tour.progress > SOMEWHERE)
            room = math.inf if is_last else room
            if room >= TOUR_COST * NODE_WORK:
                self._search(self._tour, min(left, room), level)
                return
        before = self.work
        if self._tightener is None or is_ready:
            bits = TABLE_BITS[self._n_trees]
            if COST * 2.0**bits * len(self._floats.sizes) > left and self.work > 0.0:  # about, and mostly less
                return
            fits, most = limit(self._floats.sizes, 2.0**bits), MEMORY_SHARE * self._control.memory_limit
            n_tried = TRIED_STEPS if len(self._orders) > 1 else 0
            self._tightener, ranked = least(self._floats, self._orders, fits, most, self._clock, n_tried)
            tree, n_passes = self._tightener.tree, (1 + PASSES * n_tried) * len(ranked)
            self._n_trees += 1
            self._orders = [self._orders[k] for k in ranked[: max(1, len(self._orders) // 2)]]
            self._temperatures = [t for t, n in STEPS for _ in range(n)][n_tried:] if tree.is_split else []
            self._tree_work, self.work = 0.0, self.work + COST * n_passes * tree.n_entries
        else:
            tree = self._tightener.tree
            cost = COST * PASSES * tree.n_entries
            temperature = self._temperatures[0]
            n_steps = min(MOST_STEPS, int(left / cost), self._temperatures.count(temperature))
            if not n_steps:
                return
            self._tightener.run(temperature, n_steps)
            del self._temperatures[:n_steps]
            self.work += n_steps * cost
        found = self._in_units(tree.bound(scratch=self._tightener.scratch, clock=self._clock))
        is_warm = len(self._temperatures) < sum(n for _, n in STEPS[1:])  # the first steps may raise it
        gain, self._last = self._last - found, found
        # as much again would leave it above an earlier tree's bound
        if is_warm and (gain <= STALLED * (found - level) or found - gain > self.bound):
            self._temperatures = []
        self.bound = min(self.bound, found)
        self._tree_work += self.work - before
        self._beside += self.work - before
        if not self._temperatures:
            self._tour = Tour(AndOrSpace(tree, self._clock))
            self._room, self._beside = TOUR_SHARE * self._tree_work, 0.0

    def _search(self, tour: Tour, left: float, level: int) -> None:
        """Search for work of at most `left`."""
        self._control.check("searching")
        spent, cost = TOUR_COST * tour.space.work, TOUR_COST * NODE_WORK
        if left < cost:
            return
        known = (level - self._problem.constant) * self._problem.unit if level > FLOOR else -math.inf
        tour.advance(TOUR_NODES, left / TOUR_COST, known, self._control)
        spent = max(TOUR_COST * tour.space.work - spent, cost)
        self.work, self._room = self.work + spent, self._room - spent
        if tour.is_done:
            self.is_finished = self.is_solved = True
            self.bound = min(self.bound, max(level, self._in_units(tour.bound)))

    def _in_units(self, log_value: float) -> int:
        return int(self._problem.constant) + above_units(log_value, self._problem.unit)

    def decoded(self) -> dict[int, int]:
        """Return an assignment found by the search or read off the present tree; `follow` has returned true."""
        assert self._tightener is not None
        found = None if self._tour is None else self._tour.found
        return found or decode(self._tightener.tree, scratch=self._tightener.scratch)
