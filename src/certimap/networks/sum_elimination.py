"""The sum of a product of tables, p(e): by elimination, or bounds on it where that is too wide."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.control import Control, TimeUp, WorkClock
from certimap.core.rounding import SAFE_LOG2
from certimap.errors import ImpossibleEvidence
from certimap.kernels.parallel import default_workers
from certimap.networks.conditional import PointEvaluator, Total, climbed, ordered_parts
from certimap.networks.elimination_plan import Buckets, EliminationPlan, Pieces, Run, cheap_plan, eliminated, plan
from certimap.networks.kernels.buckets import DONE, IMPOSSIBLE, UNSAFE, sum_buckets
from certimap.networks.problem import ROUNDING, Problem, by_degree, problem_of, restrict
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.split_tree import PassClock, SplitTree, limit, nuisance_first
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener
from certimap.networks.simplify import impossible

if TYPE_CHECKING:
    from certimap.core.query import Query
    from certimap.networks.network import Network

LN2 = math.log(2.0)
SECONDS_PER_ENTRY = 3e-9  # to multiply one of a table, or to add it to a sum
FAR = 64  # powers of two that a message may be off its scale until it is multiplied
ENTRIES_PER_SUM = 5_000  # fixed cost of a sum over one variable, in entries


def log_evidence(
    problem: Problem, *, known: EliminationPlan | None = None, most_entries: float = math.inf,
    control: Control | None = None,
) -> Total | None:  # fmt: skip
    """Return the log (nats) of the sum of a problem over all its variables: ln p(e), by one elimination.

    `known`: an order of all its variables. None if the sum visits more than `most_entries` entries of products, or
    messages exceed the memory. Raises ImpossibleEvidence when the sum is 0, and TimeUp when `control` says so.
    """
    control = control or Control()
    found = known or plan(replace(problem, query=frozenset()), control=control)
    if found.n_entries > most_entries or found.n_bytes_summed > control.memory_limit:
        return None
    return sum_all(problem, found, control)


def log_evidence_of(network: Network, query: Query, control: Control | None = None) -> float:
    """Return ln p(e) of a network (for a Markov network, the log of its sum) under a query's evidence.

    Raises ImpossibleEvidence when it is -inf, TooLarge when what the sum holds at once does not fit into memory,
    and TimeUp when `control` asks to stop.
    """
    control = control or Control()
    problem = problem_of(network, query, control=control).problem
    order = plan(replace(problem, query=frozenset()), control=control)
    control.reserve(order.n_bytes_summed, "what a sum of this network holds at once")
    return sum_all(problem, order, control).log_value


def sum_all(
    problem: Problem, order: EliminationPlan, control: Control | None = None, workers: int | None = None
) -> Total:
    """Sum a problem over all its variables, including query variables.

    Where a product might leave the range of doubles, in logs. Cost: `order.n_entries` multiplications per table.
    Raises ImpossibleEvidence when the total is 0, and TimeUp when `control` asks to stop.
    """
    pace = WorkClock(control or Control(), "summing for p(e)", SECONDS_PER_ENTRY)
    joined = problem.joined
    if np.any(joined.tops == -np.inf):
        raise impossible()
    top = joined.each(joined.tops)
    least = joined.lowest() - joined.tops
    found = _Pass(problem, order, np.exp(joined.values - top), least / LN2 - 1.0, workers or default_workers())
    for run in found.buckets.runs():
        pace.ahead(ENTRIES_PER_SUM + found.inputs_per_sum * run.n_entries)
        outcome = found.small(run) if run.is_small else found.large(run.first)
        if outcome == IMPOSSIBLE:
            raise impossible()
        if outcome == UNSAFE:
            return sum_in_logs(problem)
    exponent, n_rounded = found.totals.tolist()
    constants = [float(problem.constant), *joined.tops.tolist(), *found.log_roots.tolist()]
    value = math.fsum([*constants, exponent * LN2])
    reach = sum(abs(c) for c in constants) + abs(exponent * LN2)
    # Roundings of half a unit that an entry goes through at most: of its tables, and of all sums.
    n_rounded += len(problem.tables) + float((2.0 + np.abs(least)).sum())
    return Total(value, problem.log_slack + 2.0 * ROUNDING * (n_rounded + reach))


def sum_in_logs(problem: Problem, control: Control | None = None) -> Total:
    """Return the log of the sum over all variables, by an elimination that goes to logs where it must."""
    everything = replace(problem, query=frozenset())
    evaluator = PointEvaluator(everything, (), parts=ordered_parts(everything, control))
    total = float(evaluator.log_values(np.zeros((1, 0), np.int64))[0])
    if total == -math.inf:
        raise impossible()
    return Total(total, evaluator.log_slack)


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


EXACT_WORK = 2.0**31  # table entries up to which a sum is computed directly: about ten seconds
EXACT_SHARE = 0.5  # of the time left that this may take
PART_WORK = 2.0**24  # table entries up to which a partial sum is computed
ROUNDS = 24  # largest number of steps in which all variables are fixed
DEFAULT_I_BOUND, DEFAULT_ITERATIONS = 10, 30


class EvidenceBounds(NamedTuple):
    """Lower and upper bounds on ln p(e); equal up to rounding if the sum was exact."""

    lower: float
    upper: float


def log_partition(
    problem: Problem, *, i_bound: int = DEFAULT_I_BOUND, iterations: int = DEFAULT_ITERATIONS,
    control: Control | None = None,
) -> EvidenceBounds:  # fmt: skip
    """Bound the log of the sum of a product of tables over all its variables, queried or not.

    Above: buckets of more than `i_bound` + 1 variables are split, copies get weights that add up to 1 (Hoelder's
    inequality), and each iteration is a quasi-Newton step on weights and cost shifts. Below: variables are fixed
    at states read off the relaxed maximum, those in most tables first, until the sum over the others fits; each
    term of a sum of nonnegative numbers is at most the sum.

    Cost: about three passes over the split tables per iteration, and one conditional elimination of at most
    2^24 entries. The time of `control` ends it early, with bounds that hold as well. Raises TooLarge when split
    tables do not fit into memory.
    """
    control = control or Control()
    everything = replace(problem, query=frozenset())
    most = min(EXACT_WORK, EXACT_SHARE * control.seconds_left / SECONDS_PER_ENTRY)
    with suppress(TimeUp):
        total = log_evidence(everything, most_entries=most, control=control)
        if total is not None:
            return EvidenceBounds(total.log_value - total.log_slack, total.log_value + total.log_slack)
    fits = limit(problem.sizes, i_bound=i_bound)
    relaxed = SplitTree.of(everything, nuisance_first(everything), fits, control.memory_limit)
    clock = PassClock(control)
    upper, tightener = relaxed.bound(clock=clock), Tightener(relaxed, clock)
    for _ in range(iterations):
        if control.should_stop or not tightener.run(TEMPERATURES[-1], 1):
            break
        upper = min(upper, relaxed.bound())
    return EvidenceBounds(_lower(everything, min(i_bound, DEFAULT_I_BOUND), control), upper)


def _lower(everything: Problem, i_bound: int, control: Control) -> float:
    """Return the log of a partial sum, rounded down; -inf if the fixed states are impossible."""
    maximised = replace(everything, query=frozenset(everything.sizes))
    fits = limit(everything.sizes, i_bound=i_bound)
    states = decode(SplitTree.of(maximised, nuisance_first(maximised), fits, control.memory_limit))
    found = climbed(everything, states, PART_WORK, lambda: control.should_stop)
    ordered = by_degree(everything, everything.sizes)
    step = max(1, math.ceil(len(ordered) / ROUNDS))
    for n_fixed in (*range(0, len(ordered) + 1, step), len(ordered)):
        part = restrict(everything, {v: np.array([found[v]]) for v in ordered[:n_fixed]})
        known = cheap_plan(part, PART_WORK if n_fixed < len(ordered) else math.inf)
        try:
            total = None if known is None else log_evidence(part, known=known)
        except ImpossibleEvidence:
            return -math.inf
        if total is not None:
            return total.log_value - total.log_slack
    raise AssertionError("nothing is left to sum, and the sum has no value")
