"""Automata of constraints: what joint states they allow, how many, and what is left of boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate, compress, zip_longest
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arguments import shown
from certimap.core.arrays import Flags, Ints, Ints32
from certimap.core.box import Points
from certimap.core.cached import cached_property
from certimap.core.constraints import AllDifferent, Constraint, Different, Part, WeightSum
from certimap.core.domain import Categorical, Domain
from certimap.errors import NoAnswer, QueryError

MOST_STATES = 2**16  # of an automaton, after any variable
MOST_NUMBERS = 2**24  # of all joint states that follow a variable, one per automaton each
MOST_LISTED = 2**21  # answers that `auto` lists


@dataclass(frozen=True, eq=False)
class Automaton:
    """A constraint on given variables.

    `variables`: the variables, in the order in which they are read.
    `tables`: int32, per variable, shape (states before it, its labels): the number of the state after it, or -1
    where no answer reads so. State 0 is the start, and after the last variable. Every state lies on a way between,
    and no two states are alike; without any answer, all tables are empty.
    """

    variables: tuple[Categorical, ...]
    tables: tuple[Ints32, ...]

    @classmethod
    def of(cls, part: Part, variables: Sequence[Categorical], of: Constraint) -> Automaton:
        """Build it for a part of a constraint; raises QueryError where it needs too many states.

        States are numbered in order of first appearance, over the states before them and then over the labels.
        """
        step, tables = _step_of(part, variables), list[Ints32]()
        layer: dict[Hashable, int] = {None: 0}
        for i, v in enumerate(variables):
            table = np.full((len(layer), v.n_states), -1, np.int32)
            after: dict[Hashable, int] = {}
            for state, row in layer.items():
                for position in range(v.n_states):
                    found = step(state, i, position)
                    if found is not None:
                        table[row, position] = after.setdefault(found, len(after))
                if len(after) > MOST_STATES:
                    raise QueryError(
                        f"{shown(of)} needs more than {MOST_STATES} states to be followed; expected fewer "
                        "variables, or weights with fewer different sums (whole numbers)"
                    )
            tables.append(table)
            layer = after
        number = np.array([0] * len(layer) + [-1], np.int32)  # the new one of each state
        for i, table in reversed(list(enumerate(tables))):
            table = number[table]
            alive = np.flatnonzero(np.any(table >= 0, axis=1))
            _, first, alike = np.unique(table[alive], axis=0, return_index=True, return_inverse=True)
            number = np.full(len(table) + 1, -1, np.int32)
            number[alive] = np.argsort(np.argsort(first))[alike.reshape(-1)]
            tables[i] = table[alive[np.sort(first)]]
        return cls(tuple(variables), tuple(tables))

    @property
    def is_empty(self) -> bool:
        return bool(self.tables) and len(self.tables[0]) == 0


Step = Callable[[Any, int, int], Hashable]  # state, which variable, which of its labels; None leads to no answer
WITHIN = "within"  # the state of what is satisfied whatever follows


def _step_of(part: Part, variables: Sequence[Categorical]) -> Step:
    """Return the step of an automaton that begins in the state None."""
    if isinstance(part, WeightSum):
        return _step_of_sum(part, variables)
    last, states = len(variables) - 1, [v.states for v in variables]
    if isinstance(part, Different):
        return lambda first, i, at: (states[i][at],) if i < last else _within(first != (states[i][at],))
    order = [list(part.names).index(v.name) for v in variables]
    rows = [tuple(row[k] for k in order) for row in part.rows]
    known = {row[:i] for row in rows for i in range(1, len(order) + 1)}

    def step(begun: Any, i: int, position: int) -> Hashable:
        longer = (*(begun or ()), states[i][position])
        return longer if i < last and longer in known else _within(longer in known)

    return step


def _within(is_satisfied: bool) -> Hashable:
    return WITHIN if is_satisfied else None


def _step_of_sum(part: WeightSum, variables: Sequence[Categorical]) -> Step:
    """Return the step of an automaton that adds weights."""
    added = [[part.weights[v.name].get(label, 0) for label in v.states] for v in variables]
    least, most = (list(accumulate(map(pick, reversed(added)), initial=0))[-2::-1] for pick in (min, max))

    def step(total: Any, i: int, position: int) -> Hashable:
        if total == WITHIN:
            return WITHIN
        total = (total or 0) + added[i][position]
        low, high = total + least[i], total + most[i]  # with what follows
        if low > part.high or high < part.low:
            return None
        return WITHIN if part.low <= low and high <= part.high else total

    return step


class _Paths(NamedTuple):
    """What automata read of some variables, from some joint states: one row per sequence of labels, in order."""

    source: Ints  # the number of the joint state before, ascending
    points: Points  # the labels
    target: Ints  # the number of the joint state after
    states: Ints  # the joint states after, distinct; shape (count, automata)


class AnswerList:
    """A list of answers in order, held as two lists of halves; `len` and slices, which are points."""

    def __init__(self, left: _Paths, right: _Paths) -> None:
        first, counts = _runs(right, len(left.states))
        self._halves = left.points, right.points
        self._ends = np.cumsum(counts[left.target])
        self._skip = first[left.target] - self._ends + counts[left.target]

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, rows: slice) -> Points:
        """Return some answers, shape (batch, n)."""
        numbers = np.arange(*rows.indices(len(self)))
        row = np.searchsorted(self._ends, numbers, side="right")
        left, right = self._halves
        return np.concatenate([left[row], right[numbers + self._skip[row]]], axis=1)


def _runs(paths: _Paths, n: int) -> tuple[Ints, Ints]:
    """Return the first row that begins in each of n joint states, and how many rows do."""
    counts = np.bincount(paths.source, minlength=n)
    return np.cumsum(counts) - counts, counts


@dataclass(frozen=True)
class Rules:
    """Constraints on the states of the query variables.

    - `domain`: the query variables.
    - `constraints`: the constraints, as given.
    - `observed`: the observed variables that the constraints name, each with its observed state alone.
    - `automata`: one per part of a constraint, over query variables in the domain's order.
    """

    domain: Domain
    constraints: tuple[Constraint, ...]
    observed: tuple[Categorical, ...] = ()
    automata: tuple[Automaton, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(
        cls,
        domain: Domain,
        constraints: Iterable[Constraint],
        observed: Sequence[Categorical] = (),
        possible: Flags | None = None,
    ) -> Rules:
        """Build the automata.

        `observed` holds observed variables, each with its observed state alone; `possible` says which states of
        the query variables the evidence leaves, shape (total_states,), None for all. Raises QueryError for a
        constraint on other variables or on real ones and for unknown labels of query variables, NoAnswer for a
        constraint that no joint state satisfies.
        """
        given, known = tuple(constraints), {v.name: v for v in observed}
        automata: list[Automaton] = []
        for constraint in given:
            for name in constraint.order:
                if name not in domain and name not in known:
                    raise QueryError(
                        f"{shown(constraint)} names variable {name!r}, which is not queried: a constraint on "
                        "hidden variables is evidence; query it too, or give evidence"
                    )
            for name, label in constraint.labels:
                if name not in known:
                    categorical(domain, name).index(label)
            place = {name: i for i, name in enumerate((*known, *domain.names))}
            variable_of = {name: known.get(name) or categorical(domain, name) for name in constraint.order}
            for part in constraint.parts:
                names, n_known = sorted(part.names, key=place.__getitem__), len(known.keys() & {*part.names})
                found = Automaton.of(part, [variable_of[name] for name in names], constraint)
                if found.is_empty:
                    with_those = " with the observed states" if n_known else ""
                    raise NoAnswer(f"no assignment satisfies {shown(constraint)}{with_those}")
                if n_known < len(names):  # observed ones come first, and have one state each
                    automata.append(Automaton(found.variables[n_known:], found.tables[n_known:]))
        used = {name for constraint in given for name in constraint.order}
        out = cls(domain, given, tuple(v for v in observed if v.name in used), tuple(automata))
        different = [constraint for constraint in given if isinstance(constraint, AllDifferent)]
        full = np.ones(domain.total_states, np.bool_) if possible is None else possible
        left = out.narrowed(full[None])[0] if different else full
        for constraint in different:
            if not out.have_room(constraint, left):
                raise NoAnswer(f"no assignment satisfies {shown(constraint)} with the labels that are left")
        return out

    def have_room(self, constraint: AllDifferent, mask: Flags) -> bool:
        """Whether a matching gives its variables different labels among the states in a mask, (total_states,)."""
        sparse, graphs = import_module("scipy.sparse"), import_module("scipy.sparse.csgraph")
        labels_of = {v.name: v.states for v in self.observed}
        for name in constraint.order:
            if name not in labels_of:
                i, v = self.domain.index(name), categorical(self.domain, name)
                labels_of[name] = tuple(
                    compress(v.states, mask[self.domain.offsets[i] : self.domain.offsets[i + 1]])
                )
        labels = list(dict.fromkeys(label for name in constraint.order for label in labels_of[name]))
        has = sparse.csr_array([[label in labels_of[name] for label in labels] for name in constraint.order])
        return bool(labels) and bool(np.all(graphs.maximum_bipartite_matching(has, perm_type="column") >= 0))

    @cached_property
    def _layers(self) -> list[list[_Layer]]:
        """The layers of every automaton."""
        return [
            [
                _Layer(int(self.domain.offsets[v]), table)
                for v, table in zip(variables, automaton.tables, strict=True)
            ]
            for variables, automaton in zip(self._variables, self.automata, strict=True)
        ]

    @cached_property
    def _tables(self) -> tuple[Ints, Ints]:
        """All tables as one, and the place in it where each automaton starts.

        An entry is the place of the next state's row; 1 after the last variable, 0 where there is no answer.
        """
        end = max((v.n_states for v in self.domain if isinstance(v, Categorical)), default=0)
        parts, starts = [np.zeros(end, np.int64)], list[int]()
        for automaton in self.automata:
            starts.append(end)
            for table, later in zip_longest(automaton.tables, automaton.tables[1:]):
                end += table.size
                row = 1 if later is None else end + table.astype(np.int64) * later.shape[1]
                parts.append(np.where(table >= 0, row, 0).ravel())
        return np.concatenate(parts), np.array(starts, np.int64)

    @cached_property
    def _variables(self) -> list[Ints]:
        """The positions of each automaton's variables."""
        return [np.array([self.domain.index(v.name) for v in a.variables], np.int64) for a in self.automata]

    def satisfied(self, points: Points) -> Flags:
        """Return whether points, state positions of shape (batch, n), satisfy all constraints, shape (batch,)."""
        out = np.ones(len(points), np.bool_)
        tables, starts = self._tables
        for start, variables in zip(starts, self._variables, strict=True):
            state = np.full(len(points), start)
            for v in variables:
                state = tables[state + points[:, v].astype(np.int64)]
            out &= state > 0
        return out

    def narrowed(self, mask: Flags) -> Flags:
        """Return the boxes without states that no answer inside them has.

        `mask` is bool, shape (batch, total_states). Every automaton alone leaves no state that it excludes; a row
        without any state holds no answer. A row with states may hold none either, where several constraints share
        variables.

        Cost: linear in the transitions, per box and round.
        """
        mask = mask.copy()
        while True:
            before = np.count_nonzero(mask)
            for layers in self._layers:
                _narrow(mask, layers)
            if len(self.automata) < 2 or np.count_nonzero(mask) == before:
                return mask

    @cached_property
    def most(self) -> float:
        """The number of answers; inf where automata have too many joint states. Discrete domains only."""
        labels, states = self._labels(None), self._start
        counts = np.ones(1, object)  # of the ways to each joint state: whole numbers of any size
        for i in range(len(self.domain)):
            step = self._read(i, labels, states)
            if step is None:
                return math.inf
            states, before = step.states, counts
            counts = np.zeros(len(states), object)
            np.add.at(counts, step.target, before[step.source])
        return int(counts.sum())

    @property
    def listable(self) -> int | None:
        """The number of answers, where there are few enough for `auto` to list them; else None."""
        return int(self.most) if self.most <= MOST_LISTED else None

    def listed(self, limit: int, mask: Flags | None = None) -> AnswerList | None:
        """Return all answers, in order; None where there are more than `limit`. Discrete domains only.

        `mask` is bool, shape (total_states,): the states to choose from, None for all. None also where constraints
        share variables and leave so many beginnings of answers without an end.

        Cost: half the answers' labels at most, and far less where joint states of the automata are few.
        """
        labels, middle, n = self._labels(mask), len(self.domain) // 2, len(self.domain)
        left = self._paths(0, middle, labels, self._start, limit)
        right = None if left is None else self._paths(middle, n, labels, left.states, limit)
        found = None if left is None or right is None else AnswerList(left, right)
        return None if found is None or len(found) > limit else found

    def _labels(self, mask: Flags | None) -> list[Points]:
        """Return each variable's states that some answer may have."""
        full = np.ones(self.domain.total_states, np.bool_) if mask is None else mask
        parts = np.split(self.narrowed(full[None])[0], self.domain.offsets[1:-1]) if len(self.domain) else []
        return [np.flatnonzero(part).astype(np.int16) for part in parts]

    @property
    def _start(self) -> Ints:
        """The joint state before the first variable; the last column is of no automaton."""
        return np.append(self._tables[1], 1)[None]

    def _paths(self, first: int, last: int, labels: list[Points], states: Ints, limit: int) -> _Paths | None:
        """List what is read of some variables; None where that takes over twice `limit` rows, or much memory."""
        if last - first == 1:
            return self._read(first, labels, states)
        if last == first:
            rows = np.arange(len(states))
            return _Paths(rows, np.empty((len(rows), 0), np.int16), rows, states)
        middle = (first + last) // 2
        left = self._paths(first, middle, labels, states, limit)
        right = None if left is None else self._paths(middle, last, labels, left.states, limit)
        if left is None or right is None:
            return None
        start, counts = _runs(right, len(left.states))
        own = counts[left.target]
        if own.sum() > 2 * limit:
            return None
        row = np.repeat(np.arange(len(own)), own)
        after = np.arange(len(row)) + np.repeat(start[left.target] - np.cumsum(own) + own, own)
        points = np.concatenate([left.points[row], right.points[after]], axis=1)
        return _Paths(left.source[row], points, right.target[after], right.states)

    def _read(self, i: int, labels: list[Points], states: Ints) -> _Paths | None:
        """List what is read of one variable; None where joint states take too much memory."""
        if states.size * len(labels[i]) > MOST_NUMBERS:
            return None
        row, label = np.divmod(np.arange(len(states) * len(labels[i])), max(1, len(labels[i])))
        after, label = states[row], labels[i][label]
        for a in self._readers[i]:
            after[:, a] = self._tables[0][after[:, a] + label]
        alive = np.flatnonzero(np.all(after, axis=1))
        after = np.ascontiguousarray(after[alive])
        keys = after.view(np.dtype((np.void, after.itemsize * after.shape[1])))[:, 0]
        _, first, target = np.unique(keys, return_index=True, return_inverse=True)
        return _Paths(row[alive], label[alive, None], target, after[first])

    @cached_property
    def _readers(self) -> list[list[int]]:
        """The automata that read each variable."""
        owned = [set(own.tolist()) for own in self._variables]
        return [[a for a, own in enumerate(owned) if v in own] for v in range(len(self.domain))]


def categorical(domain: Domain, name: str) -> Categorical:
    """Return a variable that a constraint names; raises QueryError for an unknown or real one."""
    variable = domain[name]
    if not isinstance(variable, Categorical):
        raise QueryError(f"a constraint names the real variable {name!r}; expected categorical variables")
    return variable


class _Groups:
    """Columns of flags, each in one of n groups."""

    def __init__(self, group: Ints, n: int) -> None:
        self._n, self._order = n, np.argsort(group, kind="stable")
        self._first = np.flatnonzero(np.diff(group[self._order], prepend=-1))
        self._group = group[self._order][self._first]

    def any(self, flags: Flags) -> Flags:
        """Return whether any flag of each group is set, shape (batch, n)."""
        out = np.zeros((len(flags), self._n), np.bool_)
        if len(self._first):
            out[:, self._group] = np.logical_or.reduceat(flags[:, self._order], self._first, axis=1)
        return out


class _Layer:
    """One table of an automaton as arcs, prepared for batches: from a state, by a label, to a state."""

    def __init__(self, offset: int, table: Ints32) -> None:
        self.span = slice(offset, offset + table.shape[1])
        self.source, self.label = np.nonzero(table >= 0)
        self.target = table[self.source, self.label].astype(np.int64)
        self.by_source, self.by_label = _Groups(self.source, len(table)), _Groups(self.label, table.shape[1])
        self.by_target = _Groups(self.target, int(self.target.max(initial=-1)) + 1)


def _narrow(mask: Flags, layers: list[_Layer]) -> None:
    """Take states that one automaton excludes out of the boxes, in place; boxes without answers are emptied."""
    reached, passable = [np.ones((len(mask), 1), np.bool_)], list[Flags]()
    for layer in layers:
        passable.append(reached[-1][:, layer.source] & mask[:, layer.span][:, layer.label])
        reached.append(layer.by_target.any(passable[-1]))
    useful = reached[-1]
    mask[~np.any(useful, axis=1)] = False
    for layer, open_ones in zip(reversed(layers), reversed(passable), strict=True):
        useful_ones = open_ones & useful[:, layer.target]
        mask[:, layer.span] &= layer.by_label.any(useful_ones)
        useful = layer.by_source.any(useful_ones)
