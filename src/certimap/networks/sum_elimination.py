"""The sum of a product of tables, p(e): by elimination, or bounds on it where that is too wide."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from certimap.core.control import Control, TimeUp
from certimap.errors import ImpossibleEvidence
from certimap.networks.conditional import PointEvaluator, climbed, ordered_parts
from certimap.networks.elimination_plan import EliminationPlan, cheap_plan, plan
from certimap.networks.problem import Problem, by_degree, problem_of, restrict
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.split_tree import PassClock, SplitTree, limit, nuisance_first
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener
from certimap.networks.simplify import impossible
from certimap.networks.sum_pass import SECONDS_PER_ENTRY, Total, passed

if TYPE_CHECKING:
    from certimap.core.query import Query
    from certimap.networks.network import Network


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
    found = passed(problem, order, control, workers)
    if found is None:
        return sum_in_logs(problem)
    if found.log_value == -math.inf:
        raise impossible()
    return found


def sum_in_logs(problem: Problem, control: Control | None = None) -> Total:
    """Return the log of the sum over all variables, by an elimination that goes to logs where it must."""
    everything = replace(problem, query=frozenset())
    evaluator = PointEvaluator(everything, (), parts=ordered_parts(everything, control))
    total = float(evaluator.log_values(np.zeros((1, 0), np.int64))[0])
    if total == -math.inf:
        raise impossible()
    return Total(total, evaluator.log_slack)


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
