"""An upper bound of a whole maximisation that a search goes by: mini-buckets, tightened while it runs."""

from __future__ import annotations

import math

from certimap.control import Control
from certimap.networks.problem import Problem
from certimap.networks.relaxation.partition import limit, nuisance_first
from certimap.networks.relaxation.pass_clock import PassClock
from certimap.networks.relaxation.split_tree import SplitTree
from certimap.networks.relaxation.tighten import Tightener

TABLE_ENTRIES = 2.0**13  # of the largest table
FROM_WORK = 100_000_000  # table entries that a search visits before it pays to bound the whole in another way
COST = 20.0  # visits of a search that take as long as an entry of a pass, with its powers and logs
SHARE = 0.5  # of the search's work
PASSES = 6  # over all entries, that an optimisation step and the bound after it cost, about
STEPS = ((0.1, 12), (0.01, 12), (0.001, 24))  # temperatures, and steps at each


class RootBound:
    """A split tree over all variables, whose bound falls from call to call.

    Dual ascent moves costs between tables as they are; where it stalls (grids), tables of a dozen variables bound
    several times closer, and the search proves too little before its end to catch up.

    Attributes
    ----------
    log_bound
        Nats that the problem's value does not exceed; inf before the first call of `follow` that is due.
    work
        What it has cost, in visits of a search.

    Raises
    ------
    TooLarge
        When the tables would take more than an eighth of the memory.
    TimeUp
        When the run should stop, here and in `follow`.
    """

    def __init__(self, problem: Problem, control: Control) -> None:
        fits = limit(problem.sizes, TABLE_ENTRIES)
        self._tree = SplitTree.of(
            problem, nuisance_first(problem, control=control), fits, control.memory_limit / 8.0
        )
        self._clock = PassClock(control)
        self._tightener = Tightener(self._tree, self._clock)
        self._temperatures = [t for t, n in STEPS for _ in range(n)] if self._tree.is_split else []
        self._n_done = 0
        self.log_bound = math.inf
        self.work = 0.0

    @property
    def n_bytes(self) -> int:
        """The memory of tables and messages."""
        return self._tree.n_bytes

    def follow(self, search_work: int) -> bool:
        """Take a step if the search has worked enough since the last one; return whether the bound fell."""
        is_first = self.log_bound == math.inf
        cost = COST * self._tree.n_entries * (1.0 if is_first else PASSES)
        is_finished = not is_first and self._n_done == len(self._temperatures)
        if is_finished or self.work + cost > SHARE * search_work:
            return False
        if not is_first:
            self._tightener.run(self._temperatures[self._n_done], 1)
            self._n_done += 1
        self.work += cost
        found, before = self._tree.bound(clock=self._clock), self.log_bound
        self.log_bound = min(found, before)
        return found < before
