"""Automata of constraints: what joint states they allow, how many, and what is left of boxes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from itertools import compress
from typing import Any

import numpy as np

from certimap.core.arguments import shown
from certimap.core.arrays import Flags, Ints, Ints32, pointers
from certimap.core.box import Points
from certimap.core.constraints import AllDifferent, Constraint
from certimap.core.domain import Categorical, Domain
from certimap.core.named import Named
from certimap.errors import NoAnswer, QueryError

MOST_STATES = 2**16  # of an automaton, after any variable
STEPS_PER_ANSWER = 4  # labels tried per variable of each answer that may be listed, after which listing gives up
MOST_COUNTED = 2**21  # answers that `auto` lists, where their number is known, and
MOST_LISTED = 2**16  # where they have to be listed to be counted
LARGE = 2**17  # states of a batch of points, from which compiled code checks them
_ACCEPTED: Any = Named("certimap.kernels.listing:accepted")
_LIST: Any = Named("certimap.kernels.listing:list_answers")


@dataclass(frozen=True, eq=False)
class Automaton:
    """A constraint on given variables.

    Attributes
    ----------
    variables
        The variables, in the order in which they are read.
    tables
        int32, per variable, shape (states before it, its labels): the number of the state after it, or -1 where no
        answer reads so. State 0 is the start. Every state has a way from the start and a way to an accepted state,
        and every state after the last variable is accepted; without any answer, all tables are empty.
    """

    variables: tuple[Categorical, ...]
    tables: tuple[Ints32, ...]

    @classmethod
    def of(cls, constraint: Constraint, variables: Sequence[Categorical]) -> Automaton:
        """Build it for one of a constraint's `parts`; raises QueryError where it needs too many states.

        States are numbered in order of first appearance, over the states before them and then over the labels.
        """
        machine = constraint.machine
        layer: dict[Any, int] = {machine.start: 0}
        tables: list[Ints32] = []
        for i, v in enumerate(variables):
            hopeful = machine.hopeful(variables[i + 1 :])
            table = np.full((len(layer), v.n_states), -1, np.int32)
            after: dict[Any, int] = {}
            for state, row in layer.items():
                for position, label in enumerate(v.states):
                    found = machine.step(state, v.name, label)
                    if found is not None and hopeful(found):
                        table[row, position] = after.setdefault(found, len(after))
                if len(after) > MOST_STATES:
                    raise QueryError(
                        f"{shown(constraint)} needs more than {MOST_STATES} states to be followed; expected fewer "
                        "variables, or weights with fewer different sums (whole numbers)"
                    )
            tables.append(table)
            layer = after
        alive = np.array([machine.accepts(state) for state in layer], np.bool_)
        for i in reversed(range(len(tables))):
            numbers = np.append(np.where(alive, np.cumsum(alive) - 1, -1), -1).astype(np.int32)
            table = numbers[tables[i]]
            alive = np.any(table >= 0, axis=1)
            tables[i] = table[alive]
        return cls(tuple(variables), tuple(tables))

    def __len__(self) -> int:
        return len(self.tables)

    @property
    def is_empty(self) -> bool:
        return bool(self.tables) and len(self.tables[0]) == 0

    def without(self, names: Iterable[str]) -> Automaton:
        """Return it without variables that have one state only."""
        left_out, kept = set(names), list[tuple[Categorical, Ints32]]()
        for v, table in zip(self.variables, self.tables, strict=True):
            if v.name not in left_out:
                kept.append((v, table))
            elif kept:
                kept[-1] = kept[-1][0], np.append(table[:, 0], np.int32(-1))[kept[-1][1]]
        return Automaton(tuple(v for v, _ in kept), tuple(table for _, table in kept))

    def count(self) -> int:
        """Return the number of joint states that it accepts, exactly."""
        counts = [1] * (1 + int(self.tables[-1].max(initial=0)) if self.tables else 1)
        for table in reversed(self.tables):
            rows: list[list[int]] = table.tolist()
            counts = [sum(counts[t] for t in row if t >= 0) for row in rows]
        return counts[0] if counts else 0


@dataclass(frozen=True)
class Rules:
    """Constraints on the states of the query variables.

    Attributes
    ----------
    domain
        The query variables.
    constraints
        The constraints, as given.
    observed
        The observed variables that the constraints name, each with its observed state alone.
    automata
        One per part of a constraint, over query variables in the domain's order.
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
                names = sorted(part.order, key=place.__getitem__)
                found = Automaton.of(part, [variable_of[name] for name in names])
                if found.is_empty:
                    with_those = " with the observed states" if known.keys() & {*part.order} else ""
                    raise NoAnswer(f"no assignment satisfies {shown(constraint)}{with_those}")
                if left := found.without(known):
                    automata.append(left)
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
        """Whether its variables can all have different labels, by a matching of variables with labels.

        `mask` is bool, shape (total_states,): the states to choose from.
        """
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
                _Layer(i := self.domain.index(v.name), int(self.domain.offsets[i]), table)
                for v, table in zip(automaton.variables, automaton.tables, strict=True)
            ]
            for automaton in self.automata
        ]

    @cached_property
    def _readers(self) -> tuple[Ints, Ints, Ints32]:
        """The automata for kernels: what reads each variable, and all tables (see `certimap.kernels.listing`)."""
        readers, tables, start = [list[tuple[int, int, int]]() for _ in self.domain], list[Ints32](), 0
        for a, layers in enumerate(self._layers):
            for layer in layers:
                table = layer.padded[:-1]
                readers[layer.variable].append((a, start, table.shape[1]))
                tables.append(table.ravel())
                start += table.size
        rows = np.array([r for own in readers for r in own], np.int64).reshape(-1, 3)
        return pointers(map(len, readers)), rows, np.concatenate([*tables, np.empty(0, np.int32)])

    def satisfied(self, points: Points) -> Flags:
        """Return whether each point satisfies all constraints, shape (batch,).

        `points` hold state positions of the query variables, shape (batch, n).
        """
        out = np.ones(len(points), np.bool_)
        if points.size >= LARGE and self.domain.is_discrete:
            _, rows, flat = self._readers
            steps = rows[np.argsort(rows[:, 1])]  # by start: automaton by automaton
            variables = np.array([layer.variable for layers in self._layers for layer in layers], np.int64)
            given = np.column_stack([variables, steps[:, 1:]]), flat, np.asarray(points, np.int16)
            _ACCEPTED(pointers(map(len, self._layers)), *given, out)
            return out
        for layers in self._layers:
            state = np.zeros(len(points), np.int32)
            for layer in layers:
                state = layer.padded[state, points[:, layer.variable].astype(np.int64)]
            out &= state >= 0
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
    def most(self) -> int:
        """An upper bound on the number of answers; exact where no variable is in two automata."""
        total, used = math.prod(int(n) for n in self.domain.n_states), set[str]()
        size = [math.prod(v.n_states for v in a.variables) for a in self.automata]
        share = [Fraction(a.count(), n) for a, n in zip(self.automata, size, strict=True)]
        out = Fraction(total)
        for i in sorted(range(len(size)), key=share.__getitem__):
            names = {v.name for v in self.automata[i].variables}
            if not names & used:
                used |= names
                out *= share[i]
        return int(out)

    @cached_property
    def is_counted(self) -> bool:
        """Whether no variable is in two automata."""
        names = [v.name for automaton in self.automata for v in automaton.variables]
        return len(names) == len(set(names))

    @cached_property
    def listable(self) -> int | None:
        """The number of answers, where there are few enough for `auto` to list them; else None."""
        limit = MOST_COUNTED if self.is_counted else MOST_LISTED
        count = self.count(limit)
        return count if count is not None and count <= limit else None

    def count(self, limit: int) -> int | None:
        """Return the number of answers, or None where it takes more than `limit` partial ones to tell."""
        if self.is_counted:
            return self.most
        found = self.listed(limit)
        return None if found is None else len(found)

    def listed(self, limit: int, mask: Flags | None = None) -> Points | None:
        """Return all answers as points, shape (count, n), in order; None where there are more than `limit`.

        `mask` is bool, shape (total_states,): the states to choose from, None for all. Discrete domains only.
        None also where constraints share variables and leave so many partial answers without a whole one that
        finding them takes many times the work of listing `limit` answers.
        """
        full = np.ones(self.domain.total_states, np.bool_) if mask is None else mask
        left = self.narrowed(full[None])[0]
        if not len(self.domain) or not np.all(np.logical_or.reduceat(left, self.domain.offsets[:-1])):
            return np.empty((int(not len(self.domain)), len(self.domain)), np.int16)
        label_ptr = np.append(0, np.cumsum(left))[self.domain.offsets].astype(np.int64)
        labels = np.flatnonzero(left) - np.repeat(self.domain.offsets[:-1], np.diff(label_ptr))
        reader_ptr, rows, flat = self._readers
        states = np.zeros((len(self.domain) + 1, len(self.automata)), np.int32)
        points = np.empty((min(limit, self.most), len(self.domain)), np.int16)
        given = label_ptr, labels.astype(np.int16), reader_ptr, rows, flat, label_ptr[:-1].copy(), states
        count = _LIST(*given, points, STEPS_PER_ANSWER * limit * len(self.domain))
        if count > len(points):
            return None
        return points[:count].copy() if 2 * count < len(points) else points[:count]


def categorical(domain: Domain, name: str) -> Categorical:
    """Return a variable that a constraint names; raises QueryError for an unknown or real one."""
    variable = domain[name]
    if not isinstance(variable, Categorical):
        raise QueryError(f"a constraint names the real variable {name!r}; expected categorical variables")
    return variable


class _Layer:
    """One table of an automaton, prepared for batches."""

    def __init__(self, variable: int, offset: int, table: Ints32) -> None:
        self.variable = variable  # its position in the domain
        self.padded = np.vstack([table, np.full((1, table.shape[1]), -1, np.int32)])  # -1 stays -1
        source, label = np.nonzero(table >= 0)
        target = table[source, label]
        self.arcs = source, offset + label, target  # those out of one state follow each other
        self.out = np.searchsorted(source, np.arange(len(table)))
        self.by_target = np.argsort(target, kind="stable")
        self.into = np.searchsorted(target[self.by_target], np.arange(int(target.max(initial=-1)) + 1))
        self.by_label = np.argsort(label, kind="stable")
        ordered = label[self.by_label]
        self.first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        self.columns = offset + ordered[self.first]
        self.span = slice(offset, offset + table.shape[1])


def _narrow(mask: Flags, layers: list[_Layer]) -> None:
    """Take states that one automaton excludes out of the boxes, in place; boxes without answers are emptied."""
    reached = [np.ones((len(mask), 1), np.bool_)]
    for layer in layers:
        source, column, _ = layer.arcs
        passable = (reached[-1][:, source] & mask[:, column])[:, layer.by_target]
        reached.append(np.logical_or.reduceat(passable, layer.into, axis=1))
    useful = reached[-1]
    mask[~np.any(useful, axis=1)] = False
    for layer, before in zip(reversed(layers), reversed(reached[:-1]), strict=True):
        source, column, target = layer.arcs
        passable = useful[:, target] & mask[:, column]
        useful = np.logical_or.reduceat(passable, layer.out, axis=1)
        supported = (passable & before[:, source])[:, layer.by_label]
        mask[:, layer.span] &= False if not len(layer.columns) else _placed(supported, layer)


def _placed(supported: Flags, layer: _Layer) -> Flags:
    """Return which labels any arc supports, shape (batch, labels)."""
    out = np.zeros((len(supported), layer.span.stop - layer.span.start), np.bool_)
    out[:, layer.columns - layer.span.start] = np.logical_or.reduceat(supported, layer.first, axis=1)
    return out
