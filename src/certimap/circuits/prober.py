"""Prober of a circuit: one compiled upward and downward pass per box, with the caps of its sum nodes."""

from __future__ import annotations

import numpy as np

from certimap.circuits import walks
from certimap.circuits.caps import Caps, PlanView, empty_table, small_pool
from certimap.circuits.kernels.climb import climb_rows
from certimap.circuits.kernels.probe import probe_rows
from certimap.circuits.plan import Plan
from certimap.core.arrays import Array, Floats
from certimap.core.box import Points
from certimap.core.control import Control
from certimap.core.posterior import Tightening
from certimap.core.search_boxes import Answers, Layout, SearchBoxes
from certimap.kernels.parallel import for_blocks

BLOCK = 8  # boxes a thread takes at a time


class PlanProber:
    """Probes a plan; `tighten` finds the maxima of its subcircuits, which cap all later bounds.

    The answers do not depend on the number of `workers`. `log_caps` (n_nodes,) are known upper bounds on every
    node in any box, natural logs; None for none yet.
    """

    def __init__(self, plan: Plan, workers: int, log_caps: Floats | None = None) -> None:
        self.plan, self.workers = plan, workers
        self.view = PlanView.of(plan)
        arrays, ends = self.view.arrays, (self.view.low, self.view.high)
        self.layout = Layout.of(plan.domain, arrays.scales, arrays.is_whole, within=ends)
        self.work = 4 * self.view.n_edges
        self.caps: Caps | None = None
        self._control = Control()  # without limits
        self._max_trace = 0
        self._log_caps = empty_table(self.view).caps if log_caps is None else log_caps

    @property
    def n_bytes(self) -> int:
        return 0 if self.caps is None else self.caps.n_bytes

    def probe(self, boxes: SearchBoxes) -> Answers:
        batch, columns = len(boxes), self.view.n_columns
        log_mass, log_bound = np.empty(batch), np.empty(batch)
        each_mass, each_bound = np.empty((batch, columns)), np.empty((batch, columns))
        splits = np.empty((batch, len(self.view.domain)))
        intervals = (boxes.low, boxes.high)
        if self.view.domain.is_discrete:  # never read, but the kernel expects one row per box
            intervals = (np.zeros((batch, 1)), np.zeros((batch, 1)))

        def task(start: int, stop: int) -> None:
            rows = slice(start, stop)
            probe_rows(
                self.view.arrays,
                self._log_caps,
                self.view.roundings,
                boxes.mask[rows],
                intervals[0][rows],
                intervals[1][rows],
                log_mass[rows],
                log_bound[rows],
                each_mass[rows],
                each_bound[rows],
                splits[rows],
            )

        for_blocks(task, batch, BLOCK, self.workers)
        if not self.view.domain.is_discrete:
            log_mass[:], each_mass[:] = np.nan, np.nan
        return Answers(log_mass, log_bound, each_mass, each_bound, splits)

    def heed(self, control: Control) -> None:
        self._control = control

    def starts(self) -> Points:
        """Return the root's best point from the caps; without caps, max-product's point."""
        if self.caps is None:
            return walks.max_product(self.plan)
        point = self.caps.best_point()
        return np.empty((0, len(self.plan.domain)), self.plan.domain.point_dtype) if point is None else point

    def climb(self, points: Points) -> Points:
        """Return the points reached by hill climbing, shape (batch, n).

        Categorical variables go to their best state given the others, real ones take mean-shift steps. One
        upward and one downward pass per round.
        """
        view = self.view
        work = np.array(points, np.float64)
        table, pool = empty_table(view), small_pool(view)
        for row in range(len(work)):
            if self._control.should_stop:
                break
            climb_rows(view.arrays, table, view.low, view.high, pool, work[row : row + 1])
        return work.astype(view.domain.point_dtype)

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Search sum nodes bottom-up for their maxima; each further round allows a node more boxes."""
        if self.caps is None:
            self.caps = Caps(self.view, log_factor, max_trace=self._max_trace)
            self._log_caps = self.caps.log_caps
        elif self.caps.round_done:
            if self.caps.complete:
                return Tightening(0, True, True)
            self.caps.start_round()
        self.caps.log_factor = log_factor
        before = self.caps.work
        self.caps.advance(work)
        return Tightening(self.caps.work - before, self.caps.round_done, self.caps.complete)

    def keep_trace(self, max_bytes: int) -> None:
        self._max_trace = max_bytes

    def trace(self) -> dict[str, Array] | None:
        if self.caps is None:
            return {}
        if not self.caps.is_traced:
            return None
        nodes, kinds, columns = self.caps.trace()
        if not len(nodes):
            return {}
        return {
            "cap_nodes": self.plan.sum_numbers[nodes].astype(np.int32),
            "cap_splits": kinds,
            "cap_kept": columns,
        }
