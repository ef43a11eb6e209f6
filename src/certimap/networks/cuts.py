"""Exact reductions of binary pairwise problems by cuts: the roof dual bound, and fixed states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from certimap.core.control import Control
from certimap.networks.integers import FineIntegers, above_nats, to_fine_integers
from certimap.networks.problem import FLOOR, HARD, Problem, Table
from certimap.networks.roof import OPEN, Binary, Bools, Ints, Roof, is_balanced, roof, settled
from certimap.networks.simplify import KeptStates, Simplified, impossible

FEWEST_VARIABLES = 12  # fewer are eliminated sooner


def is_binary(problem: Problem) -> bool:
    """Whether every variable of a problem has two states and every table one or two variables."""
    joined = problem.joined
    if not len(problem.tables):
        return False
    return bool(np.diff(joined.scopes[0]).max() <= 2 and np.all(joined.shapes == 2)) and not problem.nuisance


def binary_of(problem: Problem, values: Ints) -> tuple[Ints, Binary]:
    """Return the variables of a binary pairwise problem, and its tables, added up per pair.

    `values` are all entries of its tables, as integers.
    """
    joined = problem.joined
    pointers, scopes = joined.scopes
    variables = np.array(sorted(problem.sizes), np.int64)
    places, starts = np.searchsorted(variables, scopes), joined.starts
    is_pair = np.diff(pointers) == 2
    own, first = starts[~is_pair], pointers[:-1]
    unary = _summed(values[own[:, None] + np.arange(2)], places[first[~is_pair]], len(variables))
    ends = np.stack([places[first[is_pair]], places[first[is_pair] + 1]], axis=1)
    pairs = values[starts[is_pair][:, None] + np.arange(4)].reshape(-1, 2, 2)
    turned = ends[:, 0] > ends[:, 1]
    pairs[turned] = pairs[turned].transpose(0, 2, 1)
    keys, at = np.unique(ends.min(axis=1) * len(variables) + ends.max(axis=1), return_inverse=True)
    pairs = _summed(pairs.reshape(-1, 4), at, len(keys)).reshape(-1, 2, 2)
    return variables, Binary(unary, np.stack(np.divmod(keys, len(variables)), axis=1), pairs)


def _summed(rows: Ints, at: Ints, n: int) -> Ints:
    """Add up rows by number; an entry that is impossible in one row is impossible in the sum."""
    total, hard = np.zeros((n, rows.shape[1]), np.int64), np.zeros((n, rows.shape[1]), np.bool_)
    np.add.at(total, at, np.where(rows > FLOOR, rows, 0))
    np.logical_or.at(hard, at, rows <= FLOOR)
    return np.where(hard, HARD, total)


def solved(problem: Problem, control: Control | None = None) -> tuple[dict[int, int], float] | None:
    """Return a best assignment and its bound (nats) if a minimum cut finds it, because no cycle is frustrated.

    `problem`: of floats, without nuisance variables. `control`: looked at between flows.
    """
    balanced = _balanced(problem)
    if balanced is None:
        return None
    fine, variables, model = balanced
    found = roof(model, control)
    states, _ = settled(found)
    if np.any(states == OPEN):
        return None
    bound = above_nats(fine.constant + found.constant, fine.unit)
    return dict(zip(variables.tolist(), states.tolist(), strict=True)), bound


def is_settled(problem: Problem) -> bool:
    """Whether a minimum cut finds a best assignment of a problem of floats: see `solved`, without the flow."""
    return _balanced(problem) is not None


def _balanced(problem: Problem) -> tuple[FineIntegers, Ints, Binary] | None:
    """Return a binary pairwise problem in integers, its variables and tables; None if a cycle is frustrated."""
    if not is_binary(problem):
        return None
    joined = problem.joined
    degree = int(np.unique(joined.scopes[1], return_counts=True)[1].max(initial=0))
    spans = np.where(joined.tops > -np.inf, joined.tops - joined.lowest(), 0.0)
    fine = to_fine_integers(problem, 4 * (degree + 1), max(float(spans.max(initial=0.0)), 1.0))
    variables, model = binary_of(problem, fine.values)
    return (fine, variables, model) if is_balanced(model) else None


def cut(problem: Problem, control: Control | None = None) -> Simplified:
    """Move the costs of a binary pairwise problem to minimise their bound, and fix persistent states.

    Where states agree best (or do so after those of some variables are swapped) nothing is left open. Other
    problems are returned as they are. Cost: see `roof`.

    `problem`: of integers. `control`: looked at between flows. Raises ImpossibleEvidence when a variable has no
    possible state left.
    """
    if len(problem.sizes) < FEWEST_VARIABLES or not is_binary(problem):
        return Simplified(problem)
    variables, model = binary_of(problem, problem.joined.values)
    if bool((model.unary.max(axis=1) <= FLOOR).any()):
        raise impossible()
    found = roof(model, control)
    states, loss = settled(found)
    fixed = np.flatnonzero(states != OPEN)
    steps = tuple(
        KeptStates(v, s) for v, s in zip(variables[fixed].tolist(), states[fixed].reshape(-1, 1), strict=True)
    )
    left = _left(problem, variables, found, states)
    return Simplified(replace(left, constant=int(left.constant) + loss), steps)


def _left(problem: Problem, variables: Ints, found: Roof, states: Ints) -> Problem:
    """Return the problem over the open variables after fixing the others."""
    model = found.model
    unary, is_open = model.unary.copy(), states == OPEN
    left, right = model.ends[:, 0], model.ends[:, 1]
    constant, rows = int(problem.constant) + found.constant, np.arange(len(model.pairs))
    here, there = np.maximum(states[left], 0), np.maximum(states[right], 0)
    _add(unary, left, model.pairs[rows, :, there], is_open[left] & ~is_open[right])
    _add(unary, right, model.pairs[rows, here], ~is_open[left] & is_open[right])
    both = ~is_open[left] & ~is_open[right]
    taken = [unary[np.arange(len(states)), np.maximum(states, 0)][~is_open], model.pairs[rows, here, there][both]]
    if any((t <= FLOOR).any() for t in taken):  # and so is everything else, for what is taken is as good
        raise impossible()
    constant += sum(int(t.sum()) for t in taken)
    kept = np.flatnonzero(is_open[left] & is_open[right])
    names = variables.tolist()
    tables = [Table((names[i],), unary[i]) for i in np.flatnonzero(is_open).tolist()]
    ends = model.ends[kept].tolist()
    tables += [Table((names[i], names[j]), t) for (i, j), t in zip(ends, model.pairs[kept], strict=True)]
    sizes = {names[i]: 2 for i in np.flatnonzero(is_open).tolist()}
    return replace(problem, sizes=sizes, query=frozenset(sizes), tables=tuple(tables), constant=constant)


def _add(unary: Ints, at: Ints, rows: Ints, which: Bools) -> None:
    added = _summed(rows[which], at[which], len(unary))
    unary[:] = np.where((unary > FLOOR) & (added > FLOOR), unary + added, HARD)
