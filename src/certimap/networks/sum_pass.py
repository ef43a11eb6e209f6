"""One pass that sums a product of tables over all variables, messages held only while they are needed."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.control import Control, WorkClock
from certimap.core.rounding import SAFE_LOG2
from certimap.kernels.parallel import default_workers
from certimap.networks.elimination_plan import Buckets, EliminationPlan, Pieces, Run, eliminated
from certimap.networks.kernels.buckets import DONE, IMPOSSIBLE, UNSAFE, sum_buckets
from certimap.networks.problem import ROUNDING, Problem

LN2 = math.log(2.0)
SECONDS_PER_ENTRY = 3e-9  # to multiply one of a table, or to add it to a sum
FAR = 64  # powers of two that a message may be off its scale until it is multiplied
ENTRIES_PER_SUM = 5_000  # fixed cost of a sum over one variable, in entries


class Total(NamedTuple):
    """The natural log of a total, and a bound (nats) on its rounding error."""

    log_value: float
    log_slack: float


def passed(
    problem: Problem, order: EliminationPlan, control: Control | None = None, workers: int | None = None
) -> Total | None:
    """Sum a problem over all its variables, including query variables; None where a product might leave the range
    of doubles. Cost and errors as in `sum_all`, but a sum of 0 has the log -inf.
    """
    pace = WorkClock(control or Control(), "summing for p(e)", SECONDS_PER_ENTRY)
    joined = problem.joined
    if np.any(joined.tops == -np.inf):
        return Total(-math.inf, 0.0)
    top = joined.each(joined.tops)
    least = joined.lowest() - joined.tops
    found = _Pass(problem, order, np.exp(joined.values - top), least / LN2 - 1.0, workers or default_workers())
    for run in found.buckets.runs():
        pace.ahead(ENTRIES_PER_SUM + found.inputs_per_sum * run.n_entries)
        outcome = found.small(run) if run.is_small else found.large(run.first)
        if outcome == IMPOSSIBLE:
            return Total(-math.inf, 0.0)
        if outcome == UNSAFE:
            return None
    exponent, n_rounded = found.totals.tolist()
    constants = [float(problem.constant), *joined.tops.tolist(), *found.log_roots.tolist()]
    value = math.fsum([*constants, exponent * LN2])
    reach = sum(abs(c) for c in constants) + abs(exponent * LN2)
    # Roundings of half a unit that an entry goes through at most: of its tables, and of all sums.
    n_rounded += len(problem.tables) + float((2.0 + np.abs(least)).sum())
    return Total(value, problem.log_slack + 2.0 * ROUNDING * (n_rounded + reach))


class _Pass:
    """Sums over one variable after another, messages scaled by powers of two.

    `tables`: all tables one after another, each scaled so that its largest entry is about 1; `log2_least`: at most
    log base 2 of the least positive entry of each. `log_roots`: natural logs of the sums that no other follows,
    powers of two apart. `totals`: the sum of all powers, and how many roundings an entry may have gone through.
    `inputs_per_sum`: tables and messages that a sum multiplies, in the mean, and two.
    """

    def __init__(
        self, problem: Problem, plan: EliminationPlan, tables: Floats, log2_least: Floats, workers: int
    ) -> None:
        n, self._workers = len(plan.order), workers
        self.buckets = Buckets(problem, plan)
        self._problem, self._pieces, self._scratch = problem, Pieces(self.buckets, tables), self.buckets.scratch()
        self._acc, self._log2_least = np.empty(self.buckets.largest), np.concatenate([log2_least, np.zeros(n)])
        self.log_roots, self.totals = np.zeros(n), np.zeros(2)
        self._shifts: dict[int, int] = {}  # of large messages: they are left as they are, times 2^shift
        self.inputs_per_sum = (len(problem.tables) + n) / max(n, 1) + 2.0

    def small(self, run: Run) -> int:
        """Sum over the variables of small buckets; return whether that was safe and possible."""
        return sum_buckets(
            run.first, run.last, self.buckets.arrays, self._scratch, SAFE_LOG2,
            self._acc, self._pieces.buffer, self._log2_least, self.log_roots, self.totals,
        )  # fmt: skip

    def large(self, i: int) -> int:
        """Sum over the variable of one large bucket; return whether that was safe and possible."""
        if float(self._log2_least[self.buckets.inputs(i)].sum()) < SAFE_LOG2:
            return UNSAFE
        tables, scope = self._pieces.inputs(i), self.buckets.scope(i)
        self.totals[1] += len(tables) + self._problem.sizes[scope[0]] + 1.0
        if not tables:  # no table mentions it
            self.log_roots[i] = math.log(self._problem.sizes[scope[0]])
            return DONE
        n, sizes = self.buckets.n_tables, self._problem.sizes
        factor = 2.0 ** -sum(self._shifts.pop(k - n, 0) for k in self.buckets.inputs(i))
        found = eliminated(scope[0], scope[1:], tables, sizes, self._workers, factor=factor, overwrites=True)
        self._pieces.drop_inputs(i)
        if found.top <= 0.0:
            return IMPOSSIBLE
        shift = math.frexp(found.top)[1]
        self.totals[0] += shift
        self._log2_least[n + i] = math.log2(found.least) - shift
        if len(scope) == 1:
            self.log_roots[i] = math.log(math.ldexp(found.top, -shift))
        elif self.buckets.arrays.start[n + i] >= 0 or abs(shift) > FAR:
            np.ldexp(found.table.log_values, -shift, out=found.table.log_values)
        else:
            self._shifts[i] = shift
        self._pieces.put(i, found.table)
        return DONE
