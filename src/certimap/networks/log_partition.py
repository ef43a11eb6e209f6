"""Two sides of ln p(e) of a network too wide to sum: weighted mini-buckets above, a part of the sum below."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from certimap.core.control import Control
from certimap.networks.conditional import Evaluator, conditional_work
from certimap.networks.problem import Problem, restrict
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.partition import limit, nuisance_first
from certimap.networks.relaxation.pass_clock import PassClock
from certimap.networks.relaxation.split_tree import SplitTree
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener

EXACT_WORK = 2.0**24  # table entries up to which a sum is worked out as it stands
ROUNDS = 24  # in so many steps at most all variables are fixed
DEFAULT_I_BOUND, DEFAULT_ITERATIONS = 10, 30


class EvidenceBounds(NamedTuple):
    """Natural logs of numbers between which p(e) lies; equal but for rounding where it was summed exactly."""

    lower: float
    upper: float


def log_partition(
    problem: Problem,
    *,
    i_bound: int = DEFAULT_I_BOUND,
    iterations: int = DEFAULT_ITERATIONS,
    control: Control | None = None,
) -> EvidenceBounds:
    """Bound the log of the sum of a product of tables over all its variables, queried or not.

    Above: buckets of more than `i_bound` + 1 variables are split, copies get weights that add up to 1 (Hoelder's
    inequality), and each iteration is a quasi-Newton step on weights and cost shifts. Below: variables are fixed
    at states read off the relaxed maximum, those in most tables first, until the sum over the others fits; each
    term of a sum of nonnegative numbers is at most the sum.

    Cost: about three passes over the split tables per iteration, and one conditional elimination of at most
    2^24 entries. The time of `control` ends it early, with bounds that hold as well.

    Raises
    ------
    TooLarge
        When the split tables do not fit into memory.
    """
    control = control or Control()
    everything = replace(problem, query=frozenset())
    if conditional_work(everything) <= EXACT_WORK:
        return EvidenceBounds(*_summed(everything))
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
    """Return the log of a part of the sum, rounded down; -inf where the states found are impossible."""
    maximised = replace(everything, query=frozenset(everything.sizes))
    fits = limit(everything.sizes, i_bound=i_bound)
    states = decode(SplitTree.of(maximised, nuisance_first(maximised), fits, control.memory_limit))
    variables = sorted(everything.sizes)
    n_states = np.array([everything.sizes[v] for v in variables], np.int64)
    found = np.array([states.get(v, 0) for v in variables], np.int64)
    found = Evaluator(maximised, variables).climb(found, n_states, EXACT_WORK, lambda: control.should_stop)
    degree = dict.fromkeys(variables, 0)
    for table in everything.tables:
        for v in table.scope:
            degree[v] += 1
    by_degree = sorted(range(len(variables)), key=lambda i: (-degree[variables[i]], variables[i]))
    for n_fixed in range(0, len(variables) + 1, max(1, math.ceil(len(variables) / ROUNDS))):
        part = restrict(everything, {variables[i]: found[i : i + 1] for i in by_degree[:n_fixed]})
        if conditional_work(part) <= EXACT_WORK:
            return _summed(part)[0]
    return _summed(restrict(everything, {v: found[i : i + 1] for i, v in enumerate(variables)}))[0]


def _summed(everything: Problem) -> tuple[float, float]:
    evaluator = Evaluator(everything, ())
    value = float(evaluator.log_values(np.zeros((1, 0), np.int64))[0])
    return value - evaluator.log_slack, value + evaluator.log_slack
