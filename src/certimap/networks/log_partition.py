"""Bounds on ln p(e) of a network too wide to sum: weighted mini-buckets above, a partial sum below."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from certimap.core.control import Control, TimeUp
from certimap.errors import ImpossibleEvidence
from certimap.networks.conditional import climbed
from certimap.networks.elimination_plan import cheap_plan
from certimap.networks.problem import Problem, by_degree, restrict
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.partition import limit, nuisance_first
from certimap.networks.relaxation.split_tree import PassClock, SplitTree
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener
from certimap.networks.sum_elimination import SECONDS_PER_ENTRY, log_evidence

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

    Raises TooLarge when the split tables do not fit into memory.
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
        total = _part_of_sum(part, PART_WORK if n_fixed < len(ordered) else math.inf)
        if total is not None:
            return total
    raise AssertionError("nothing is left to sum, and the sum has no value")


def _part_of_sum(part: Problem, most_entries: float) -> float | None:
    """Return the log of a sum, rounded down; None if it needs more than `most_entries` entries."""
    try:
        known = cheap_plan(replace(part, query=frozenset()), most_entries)
        total = None if known is None else log_evidence(part, known=known)
    except ImpossibleEvidence:
        return -math.inf
    return None if total is None else total.log_value - total.log_slack
