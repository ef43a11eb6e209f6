"""Probers of circuits: one compiled upward and downward pass per box, with the caps of sum nodes.

Circuits that are small mixtures of products also get second-order bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from certimap.circuits import walks
from certimap.circuits.caps import Caps, PlanView, empty_table, small_pool
from certimap.circuits.kernels.climb import climb_rows
from certimap.circuits.kernels.mixture import LeafProducts, bound_mixture, climb_gaussians, find_peaks, slopes_for
from certimap.circuits.kernels.probe import probe_rows
from certimap.circuits.kernels.real import fill_peaks
from certimap.circuits.plan import Plan
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.box import Answers, Layout, Points, SearchBoxes
from certimap.core.control import Control
from certimap.core.posterior import Tightening
from certimap.kernels.mixture_bounds import room_for
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


MAX_COMPONENTS = 8000
MAX_MIXED = 2000  # limit with categorical query variables: caps, unused here, help with these
MAX_LEAVES = 64_000  # of all components together
MIXED_BLOCK = 64  # boxes a thread takes at a time, of a small mixture
N_STARTS = 64  # components whose peaks start climbs
N_SLOW_STARTS = 8  # number of starts if a step is a pass through the circuit


@dataclass(frozen=True, eq=False)
class FlatMixture:
    """A plan with its products multiplied out."""

    log_weights: Floats  # natural logs, shape (K,)
    starts: Ints  # start of the vector of each variable's leaf in the plan's tables, (K, n)


def flattened(plan: Plan) -> FlatMixture | None:
    """Multiply a plan out; None if that has no use, or gives too many components.

    It is useful if a variable has a density with known curvature. Whole numbers have none, and the bars of a
    histogram are better kept apart.
    """
    domain = plan.domain
    real = domain.n_states == 0
    if not np.any(real) or np.any(plan.is_whole) or np.any(real[plan.decides[plan.decides >= 0]]):
        return None
    most = MAX_COMPONENTS if np.all(real) else MAX_MIXED
    if _count(plan) > min(most, MAX_LEAVES // len(domain)):
        return None
    parts: list[tuple[Floats, Ints]] = []
    for i in range(plan.n_nodes):
        below: list[int] = plan.children[plan.child_ptr[i] : plan.child_ptr[i + 1]].tolist()
        if plan.is_sum[i]:
            weights: list[float] = plan.log_weights[plan.child_ptr[i] : plan.child_ptr[i + 1]].tolist()
            sums: list[Floats] = [parts[c][0] + w for c, w in zip(below, weights, strict=True)]
            parts.append((np.concatenate(sums), np.concatenate([parts[c][1] for c in below])))
            continue
        leaves = slice(plan.leaf_ptr[i], plan.leaf_ptr[i + 1])
        logs: Floats = np.zeros(1)
        starts: Ints = np.full((1, len(domain)), -1)
        starts[0, plan.leaf_var[leaves]] = plan.leaf_start[leaves]
        for c in below:
            logs = (logs[:, None] + parts[c][0]).ravel()
            starts = np.maximum(starts[:, None], parts[c][1]).reshape(len(logs), -1)
        parts.append((logs, starts))
    possible = parts[-1][0] > -np.inf
    return FlatMixture(parts[-1][0][possible], np.ascontiguousarray(parts[-1][1][possible]))


def _count(plan: Plan) -> float:
    counts = np.ones(plan.n_nodes)
    for i in range(plan.n_nodes):
        below = counts[plan.children[plan.child_ptr[i] : plan.child_ptr[i + 1]]]
        counts[i] = below.sum() if plan.is_sum[i] else below.prod()
    return float(counts[-1])


class MixtureProber(PlanProber):
    """Probes a plan by the bounds of `kernels/mixture_bounds.py`, for the plan multiplied out, and of
    `PlanProber`.
    """

    def __init__(self, plan: Plan, workers: int, flat: FlatMixture) -> None:
        super().__init__(plan, workers)
        self.flat = flat
        n = len(plan.domain)
        shape = flat.starts.shape
        leaves = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
        self._components = LeafProducts(flat.log_weights, flat.starts, *leaves, np.empty(n), np.empty(n))
        find_peaks(self.view.arrays, self._components)
        self.is_real = not np.any(plan.domain.n_states)
        self.is_gaussian = self.is_real and not np.any(np.isnan(self._components.precisions))
        self._log_tops = flat.log_weights + self._components.tops.sum(axis=1)
        self.work = len(flat.log_weights) * n * (2 + n // 4) + (0 if self.is_real else 4 * self.view.n_edges)

    def probe(self, boxes: SearchBoxes) -> Answers:
        batch, n = len(boxes), len(self.plan.domain)
        log_bound, halves = np.empty(batch), np.empty((batch, 2))
        splits, middles = np.empty((batch, n)), np.zeros((batch, n))

        def task(start: int, stop: int) -> None:
            rows = slice(start, stop)
            bound_mixture(
                self.view.arrays,
                self._components,
                boxes.mask[rows],
                boxes.low[rows],
                boxes.high[rows],
                room_for(len(self.flat.log_weights), n, False),
                log_bound[rows],
                halves[rows],
                splits[rows],
                middles[rows],
            )

        for_blocks(task, batch, MIXED_BLOCK, self.workers)
        columns = boxes.mask.shape[1]
        if self.is_real:
            each = np.repeat(log_bound[:, None], columns, axis=1)
            rows, chosen = np.nonzero(~np.isnan(splits))
            each[rows, 2 * chosen], each[rows, 2 * chosen + 1] = halves[rows].T
            unknown = np.full(batch, np.nan)
            return Answers(unknown, log_bound, np.full((batch, columns), np.nan), each, splits, middles)
        answers = super().probe(boxes)
        log_bound = np.minimum(log_bound, answers.log_bound)
        of_reals = self.layout.is_real[self.layout.variable_of]  # those answers are for halves at other splits
        each = np.where(of_reals, log_bound[:, None], np.minimum(answers.each_bound, log_bound[:, None]))
        return replace(answers, log_bound=log_bound, each_bound=each, splits=splits, middles=middles)

    def starts(self) -> Points:
        """Return max-product's point, and the points reached by climbing from the components' peaks."""
        first = super().starts()
        n_starts = N_STARTS if self.is_gaussian else N_SLOW_STARTS
        order = np.argsort(-self._log_tops, kind="stable")[:n_starts]
        return np.concatenate([first, self.climb(self._peaks(order))])

    def climb(self, points: Points) -> Points:
        """Return the points reached by climbing, shape (batch, n); with Gaussian leaves by Newton steps."""
        if not self.is_gaussian:
            return super().climb(points)
        work = np.array(points, np.float64)
        room = slopes_for(*self.flat.starts.shape)
        for row in range(len(work)):
            if self._control.should_stop:
                break
            one = work[row : row + 1]
            climb_gaussians(self._components, self._log_tops, self.view.low, self.view.high, room, one)
        return work

    def _peaks(self, rows: Ints) -> Points:
        """Return the points at the peaks of all leaves of some components, shape (len(rows), n)."""
        arrays, view = self.view.arrays, self.view
        points = np.empty((len(rows), len(self.plan.domain)))
        for v, size in enumerate(self.plan.domain.n_states):
            starts = self.flat.starts[rows, v]
            if size:
                points[:, v] = np.argmax(arrays.log_tables[starts[:, None] + np.arange(size)], axis=1)
            else:
                ends = np.full(len(rows), view.low[v]), np.full(len(rows), view.high[v])
                column = np.empty(len(rows))
                fill_peaks(arrays.functions, arrays.tables, starts, *ends, column)
                points[:, v] = column
        return points

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """There is nothing to tighten: second-order bounds are better than caps."""
        return Tightening(0, True, True)
