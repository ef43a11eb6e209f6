"""Chooses the elimination to relax: one without copies if it fits, else the least split that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from certimap.core.control import Control
from certimap.networks.problem import Problem
from certimap.networks.relaxation.partition import limit, nuisance_first, split
from certimap.networks.relaxation.split_tree import SplitTree

CLIQUE_BITS = (22.0, 16.0, 10.0, 0.0)  # nuisance variables go first while their cliques are no larger


@dataclass(frozen=True)
class RelaxationPlan:
    """How large a relaxation may grow, and in what steps."""

    exact_entries: float = 2.0**23  # joint states of all regions up to which an elimination is left unsplit
    # first_bits, raise_bits, last_bits: log base 2 of the entries of the largest tables: at first, what a rise
    # adds, and at last
    first_bits: float = 10.0
    raise_bits: float = 3.0
    last_bits: float = 22.0
    steps: int = 40  # optimisation steps at each temperature


def first_tree(problem: Problem, max_entries: float, bits: float, control: Control | None = None) -> SplitTree:
    """Return the exact tree if it fits, else the split tree of the same order.

    Raises TimeUp when the `control` asks to stop before there is an order.
    """
    order = nuisance_first(problem, control=control)
    return _unsplit(problem, order, max_entries) or _split(problem, order, bits)


def exact_tree(problem: Problem, max_entries: float) -> SplitTree | None:
    """Return the tree of nuisance-first elimination, whose bound is exact; None if it is too large."""
    return _unsplit(problem, nuisance_first(problem), max_entries)


def mixed_tree(problem: Problem, max_entries: float) -> SplitTree | None:
    """Return a tree without copies that eliminates some query before nuisance variables, or None if none fits.

    Its bound takes maxima inside sums for them; it may be tighter or looser than a split tree's bound.
    """
    if not problem.nuisance or not problem.query:
        return None
    trees = (_unsplit(problem, nuisance_first(problem, bits), max_entries) for bits in CLIQUE_BITS)
    return next((tree for tree in trees if tree is not None), None)


def split_tree(problem: Problem, bits: float, max_bytes: float = math.inf) -> SplitTree:
    """Return the relaxation of nuisance-first elimination with tables of at most 2^bits entries if they can.

    Raises TooLarge when all of it would take more than `max_bytes`.
    """
    return _split(problem, nuisance_first(problem), bits, max_bytes)


def _split(problem: Problem, order: Sequence[int], bits: float, max_bytes: float = math.inf) -> SplitTree:
    return SplitTree.of(problem, order, limit(problem.sizes, 2.0**bits), max_bytes)


def _unsplit(problem: Problem, order: Sequence[int], max_entries: float) -> SplitTree | None:
    entries = 0.0
    for region in split(problem, order, lambda scope: True):
        entries += math.exp(sum(math.log(problem.sizes[v]) for v in region.scope))
        if entries > max_entries:
            return None
    return SplitTree.of(problem, order, lambda scope: True)
