"""Minimum cuts of binary problems in pairs: exact where no cycle is frustrated, and roof duality elsewhere.

After Boros and Hammer, "Pseudo-Boolean optimization" (2002), and Kolmogorov and Rother, "Minimizing nonsubmodular
functions with graph cuts" (2007).
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from certimap.core.arrays import Flags, Ints
from certimap.core.cached import cached_property
from certimap.core.control import Control
from certimap.networks.problem import (
    FLOOR,
    HARD,
    FineIntegers,
    Joined,
    Problem,
    Table,
    above_nats,
    to_fine_integers,
)
from certimap.networks.simplify import KeptStates, Simplified, impossible

CAPACITY = 2**30 - 1  # of an arc in one flow: scipy counts in 32 bits, up to twice that left
LARGEST = 2**62  # of a capacity; what flows in all may be more
MAX_FLOWS = 8
SECONDS = 4e-9  # of a flow, times the number of arcs to the power 1.5: frustrated grids, measured
MAX_ROUNDS = 50  # of taking states back
SLIGHT = 2  # units that a table may rate a state lower
OPEN = -1  # in place of a state


class Binary(NamedTuple):
    """The sum of unary and pairwise tables of binary variables, in integers, `HARD` for ln 0; to be maximised."""

    unary: Ints  # shape (n, 2)
    ends: Ints  # the variables of each pair, the lower first, no pair twice; shape (m, 2)
    pairs: Ints  # shape (m, 2, 2)


class Roof(NamedTuple):
    """A model whose costs are moved to minimise the sum of its maxima, and the states that flows fix."""

    # a model with the same sum at every assignment, less `constant`; every table's largest entry is 0
    model: Binary
    constant: int  # an upper bound, in units
    # for each variable its state in some best assignment, or `OPEN` if flows do not determine it. Without a
    # frustrated cycle they determine all: a best assignment.
    states: Ints


def is_balanced(model: Binary) -> bool:
    """Whether no cycle is frustrated: with some variables' states swapped, states that agree are never worse."""
    return not _Arcs.of(*_finite_energies(model), model.ends).is_double.any()


def roof(model: Binary, control: Control | None = None) -> Roof:
    """Move costs by maximum flows.

    The flows only propose moves and states: moves are made on the exact integers, whatever they are, and `settled`
    verifies states. Cost: up to `MAX_FLOWS` maximum flows on n or 2n nodes.
    """
    arcs = _Arcs.of(*_finite_energies(model), model.ends)
    shifts, states = arcs.pushed(control or Control())
    # costs go from pairs to variables, in exact integers, and the largest entries to the constant
    first, second = (np.zeros((len(shifts), 2), np.int64) for _ in range(2))
    first[:, 1] = arcs.linear[:, 0] + shifts
    second[:, 1] = arcs.linear[:, 1]
    second[np.arange(len(shifts)), arcs.signs.astype(np.int64)] -= shifts
    pairs = _plus(model.pairs, first[:, :, None] + second[:, None, :])
    moved = np.zeros_like(model.unary)
    np.add.at(moved, model.ends, -np.stack([first, second], axis=1))
    unary, below = _lowered(_plus(model.unary, moved))
    flat, under = _lowered(pairs.reshape(-1, 4))
    return Roof(Binary(unary, model.ends, flat.reshape(-1, 2, 2)), below + under, states)


def _finite_energies(model: Binary) -> tuple[Ints, Ints]:
    """Return costs to be minimised, with a large finite cost for impossible entries."""
    degree = int(np.bincount(model.ends.ravel(), minlength=1).max(initial=0))
    parts = [model.unary.reshape(-1, 2), model.pairs.reshape(-1, 4)]
    spans = [np.where(p > FLOOR, p, 0).max(axis=1) - np.where(p > FLOOR, p, 0).min(axis=1) for p in parts]
    worst = min(1 + sum(map(_total, spans)), 2**57 // (4 * (degree + 1)))
    found: list[Ints] = []
    for table in parts:
        top = np.where(table > FLOOR, table, HARD).max(axis=1, keepdims=True)
        found.append(np.where(table > FLOOR, top - table, worst))
    return found[0], found[1].reshape(-1, 2, 2)


class _Arcs:
    """The arcs between literals: literal i means that variable i has state 1, literal n + i that it has state 0.

    A literal on the side of the source holds. Pair e costs `forth[e]` where its first literal holds and its second
    does not, and `back[e]` the other way round; its mirror, between the negated literals, says the same.
    """

    def __init__(self, terminal: Ints, ends: Ints, signs: Flags, forth: Ints, back: Ints, linear: Ints) -> None:
        self.terminal, self.ends, self.signs, self.forth, self.back = terminal, ends, signs, forth, back
        self.linear = linear  # what each pair adds to its variables' costs of the state 1, shape (m, 2)

    @classmethod
    def of(cls, unary: Ints, pairs: Ints, ends: Ints) -> _Arcs:
        curve = pairs[:, 0, 1] + pairs[:, 1, 0] - pairs[:, 0, 0] - pairs[:, 1, 1]
        signs = curve >= 0  # states that agree are better
        forth = np.abs(curve) // 2
        back = np.abs(curve) - forth
        first = pairs[:, 1, 0] - pairs[:, 0, 0] + np.where(signs, -forth, back)
        second = pairs[:, 0, 1] - pairs[:, 0, 0] + np.where(signs, -back, back)
        linear = np.stack([first, second], axis=1)
        terminal = unary[:, 1] - unary[:, 0]
        np.add.at(terminal, ends, linear)
        return cls(terminal, ends, signs, forth, back, linear)

    @cached_property
    def mirrored(self) -> tuple[Ints, Ints]:
        """The literals that arcs lead from and to: first the arcs of the pairs, then their mirrors."""
        n = len(self.terminal)
        first = self.ends[:, 0]
        second = self.ends[:, 1] + np.where(self.signs, 0, n)
        return np.concatenate([first, (second + n) % (2 * n)]), np.concatenate([second, (first + n) % (2 * n)])

    @cached_property
    def joins(self) -> Flags:
        """Which arcs have a capacity."""
        return np.tile(self.back > 0, 2)  # the larger of the two

    @cached_property
    def label(self) -> Ints:
        """The connected component of each literal."""
        sparse, graphs = _libraries()
        n, (tails, heads), has = len(self.terminal), self.mirrored, self.joins
        cover = sparse.csr_matrix((has[has], (tails[has], heads[has])), shape=(2 * n, 2 * n))
        return np.asarray(graphs.connected_components(cover, directed=False)[1])

    @property
    def is_double(self) -> Flags:
        """Which variables a frustrated cycle joins with their own negation."""
        n = len(self.terminal)
        return self.label[:n] == self.label[n:]

    def pushed(self, control: Control) -> tuple[Ints, Ints]:
        """Return what flows from the first literal of each pair to the second, shape (m,), and states."""
        n, m, label, (tails, heads) = len(self.terminal), len(self.ends), self.label, self.mirrored
        lower, is_double = np.minimum(label[:n], label[n:]), self.is_double
        used = np.concatenate([label[:n] == lower, label[n:] == lower])
        node, has = np.cumsum(used) - 1, used[tails] & self.joins
        forth, back = np.tile(self.forth, 2)[has], np.tile(self.back, 2)[has]
        terminal = np.concatenate([self.terminal, -self.terminal])[used]
        network = _Flows(node[tails[has]], node[heads[has]], forth, back, terminal)
        holds = np.zeros(2 * n, np.bool_)
        holds[used] = network.run(control)
        flows = np.zeros(2 * m, np.int64)
        flows[has] = network.flow
        total = flows[:m] + flows[m:]
        shifts = np.where(is_double[self.ends[:, 0]], total >> 1, total)
        states = np.where(holds[:n], 1, np.where(holds[n:], 0, OPEN))
        alone = np.where(used[:n], holds[:n], ~holds[n:])
        return shifts, np.where(is_double, states, alone)


class _Flows:
    """Maximum flows of capacities of 64 bits, made of flows of 32: each counts in the finest unit that is left.

    `tails`, `heads`, `forth`, `back`: arcs between nodes, with their capacities in both directions. `terminal`: of
    each node: the capacity of its arc to the sink, or, negative, of the one from the source.
    """

    def __init__(self, tails: Ints, heads: Ints, forth: Ints, back: Ints, terminal: Ints) -> None:
        n, is_in = len(terminal), terminal < 0
        self.n_arcs, self.source, self.sink = len(tails), n, n + 1
        nodes = np.arange(n)
        a = np.concatenate([tails, np.where(is_in, self.source, nodes)])
        b = np.concatenate([heads, np.where(is_in, nodes, self.sink)])
        self.capacity = np.concatenate([forth, np.abs(terminal), back, np.zeros(n, np.int64)])
        self.left = self.capacity.copy()
        self.rows, self.columns = np.concatenate([a, b]), np.concatenate([b, a])
        self.order = np.lexsort((self.columns, self.rows))
        self.pointers = np.cumsum(np.bincount(self.rows + 1, minlength=n + 3))
        self.indices = self.columns[self.order].astype(np.int32)

    def run(self, control: Control) -> Flags:
        """Let all flow that can; return which nodes the source still reaches. Looked at between flows."""
        most = min(_total(self.left[self.rows == self.source]), _total(self.left[self.columns == self.sink]))
        reached, seconds = self._reached(1), SECONDS * len(self.left) ** 1.5
        for _ in range(MAX_FLOWS):
            if most <= 0 or control.should_stop or seconds > control.seconds_left:
                break
            started = time.perf_counter()
            whole = np.minimum(self.left, min(most, LARGEST))
            unit = max(1, -(-int(whole.max()) // CAPACITY))
            most -= unit * self._push(whole // unit, unit)
            reached = self._reached(unit)
            if unit == 1:
                break
            if not reached[self.sink]:
                most = min(most, _total(self.left[reached[self.rows] & ~reached[self.columns]]))
            seconds = time.perf_counter() - started
        return reached[: self.source]

    def _push(self, whole: Ints, unit: int) -> int:
        """Push flow in whole units; return how many."""
        sparse, graphs = _libraries()
        shape = (len(self.pointers) - 1,) * 2
        graph = sparse.csr_matrix((whole[self.order].astype(np.int32), self.indices, self.pointers), shape=shape)
        flow = np.empty(len(whole), np.int64)
        flow[self.order] = graphs.maximum_flow(graph, self.source, self.sink).flow.data
        self.left -= flow * unit
        return _total(flow[self.rows == self.source])

    def _reached(self, unit: int) -> Flags:
        """Return which nodes arcs that can take a unit lead to from the source."""
        sparse, graphs = _libraries()
        n = len(self.pointers) - 1
        is_open = self.left[self.order] >= unit
        starts = np.concatenate([[0], np.cumsum(is_open)])[self.pointers]
        graph = sparse.csr_matrix((is_open[is_open], self.indices[is_open], starts), shape=(n, n))
        found = np.zeros(n, np.bool_)
        found[graphs.breadth_first_order(graph, self.source, return_predecessors=False)] = True
        return found

    @property
    def flow(self) -> Ints:
        """What flows along each arc, negative where it flows back."""
        return (self.capacity - self.left)[: self.n_arcs]


def _total(values: Ints) -> int:
    """Return a sum that 64 bits may not hold."""
    return (int((values >> 32).sum()) << 32) + int((values & (2**32 - 1)).sum())


def _plus(costs: Ints, moved: Ints) -> Ints:
    return np.where(costs > FLOOR, costs + moved, HARD)


def _lowered(rows: Ints) -> tuple[Ints, int]:
    """Subtract the largest entry from each row that has a possible entry; also return the sum of these."""
    tops = rows.max(axis=1, initial=HARD)
    tops = np.where(tops > FLOOR, tops, 0)
    return _plus(rows, -tops[:, None]), _total(tops)


def settled(found: Roof) -> tuple[Ints, int]:
    """Return the states that some best assignment has, `OPEN` for the others, and what taking them may lose.

    Variables take their states without loss where no table rates other ones higher, whatever the open variables
    are. This is verified on the costs where they are now. Moves by halves of a unit lose a unit or two each.

    Returns the states and a loss in units: with these states the sum is lower than the largest of all by no more
    than the loss.
    """
    model, states = found.model, found.states.copy()
    left, right = model.ends[:, 0], model.ends[:, 1]
    for _ in range(MAX_ROUNDS):
        here, there = states[left], states[right]
        losses = _losses(model.pairs, here, there)
        own = np.where(states == OPEN, 0, -model.unary[np.arange(len(states)), np.maximum(states, 0)])
        wrong = np.zeros(len(states), np.bool_)
        wrong[own > SLIGHT] = True
        wrong[left[losses > SLIGHT]] = True
        wrong[right[losses > SLIGHT]] = True
        wrong &= states != OPEN
        if not wrong.any():
            return states, _total(losses) + _total(own)
        states[wrong] = OPEN
    return np.full(len(states), OPEN), 0


def _losses(pairs: Ints, here: Ints, there: Ints) -> Ints:
    """Return how much less than the best each pair rates the states that its variables take, shape (m,)."""
    rows = np.arange(len(pairs))
    rated = np.where(pairs > FLOOR, pairs, HARD)
    at = rated.copy()  # what each entry becomes once the states are taken
    taken = here != OPEN
    at[taken] = at[rows[taken], here[taken]][:, None, :]
    taken = there != OPEN
    at[taken] = at[rows[taken], :, there[taken]][:, :, None]
    return np.where(rated > FLOOR, rated - at, 0).max(axis=(1, 2), initial=0)


def _libraries() -> tuple[Any, Any]:
    return import_module("scipy.sparse"), import_module("scipy.sparse.csgraph")


FEWEST_VARIABLES = 12  # fewer are eliminated sooner


def is_binary(problem: Problem) -> bool:
    """Whether every variable of a problem has two states and every table one or two variables."""
    joined = problem.joined
    if not len(problem.tables):
        return False
    return bool(np.diff(joined.scopes[0]).max() <= 2 and np.all(joined.shapes == 2)) and not problem.nuisance


def binary_of(problem: Problem, values: Ints) -> tuple[Ints, Binary]:
    """Return a binary pairwise problem's variables, and its tables (`values`: integers), added up per pair."""
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

    The bound includes the rounding of the problem's tables (`Problem.log_slack`). `problem`: of floats, without
    nuisance variables. `control`: looked at between flows.
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
    if problem.log_slack > 0.0:
        bound = math.nextafter(bound + problem.log_slack, math.inf)
    return dict(zip(variables.tolist(), states.tolist(), strict=True)), bound


def is_settled(problem: Problem) -> bool:
    """Whether a minimum cut finds a best assignment of a problem of floats: see `solved`, without the flow."""
    return _balanced(problem) is not None


Balanced = tuple[FineIntegers, Ints, Binary]

# what `_balanced` has found, for as long as the problem's tables are known
_BALANCED = WeakKeyDictionary[Joined, tuple[Problem, Balanced | None]]()


def _balanced(problem: Problem) -> Balanced | None:
    """Return a binary pairwise problem in integers, its variables and tables; None if a cycle is frustrated."""
    if not is_binary(problem):
        return None
    joined = problem.joined
    known, found = _BALANCED.get(joined, (None, None))
    if known is None or known.sizes is not problem.sizes or known.constant != problem.constant:
        pointers, scopes = joined.scopes
        spans = np.where(joined.tops > -np.inf, joined.tops - joined.lowest(), 0.0)
        reach = max(float(spans.max(initial=0.0)), 1.0)
        # What a variable's tables span together, four times, is the most that moves make of any entry but a
        # pair's, which grow sevenfold.
        most = float(np.bincount(scopes, np.repeat(spans, np.diff(pointers))).max(initial=0.0))
        fine = to_fine_integers(problem, math.ceil(4.0 * max(most, reach) / reach), reach)
        variables, model = binary_of(problem, fine.values)
        found = (fine, variables, model) if is_balanced(model) else None
        _BALANCED[joined] = replace(problem, tables=(), known=[]), found
    return found


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


def _add(unary: Ints, at: Ints, rows: Ints, which: Flags) -> None:
    added = _summed(rows[which], at[which], len(unary))
    unary[:] = np.where((unary > FLOOR) & (added > FLOOR), unary + added, HARD)
