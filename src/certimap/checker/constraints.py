"""Constraints on the answer: automata that the checker builds for itself, and the narrowing that they allow.

An automaton reads some query variables one after the other. Each joint state leads along one path. It ends in -1
unless the constraint holds. Removing states of a box that are on no other path removes no feasible point.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from certimap.checker.models import FLOAT, CheckBudget, PlainTable, Question, ReducedModel, Rejected, Stored
from certimap.checker.numbers import Flags, Ints, run_starts

MOST_STATES, STATE_COST = 2**16, 256  # of an automaton after a variable; bytes of each while it is built
MOST_POINTS, TOGETHER = 2**24, 4096  # feasible points of a listing, and of one of its batches
Step = Callable[[Any, int, int], Hashable]  # state, which variable, which of its states; None leads to nothing
Spec = tuple[list[int], Hashable, Step]  # places of variables, and the state before the first
Term = tuple[int, int, float]  # a variable's place, one of its states, and its weight
SAFE = "safe"  # the state of a constraint that holds whatever follows


@dataclass(frozen=True, eq=False)
class PlainAutomaton:
    """The places of query variables, and for each a table (states before, variable's states): next state, or -1.

    Places ascend. Each table has a last row of -1, so that -1 stays -1.
    """

    places: list[int]
    tables: list[Ints]

    @classmethod
    def of(cls, spec: Spec, labels: Sequence[Sequence[int]], n: int, budget: CheckBudget) -> PlainAutomaton:
        """Build it without states that lead nowhere, and variables after the first n, whose labels are single."""
        places, start, step = spec
        layer, tables = [start], list[Ints]()
        for i, place in enumerate(places):
            found: dict[Hashable, int] = {}
            budget.hold(FLOAT * (len(layer) + 1) * (len(labels[place]) + 4), "the automaton of a constraint")
            table = np.full((len(layer) + 1, len(labels[place])), -1, np.int64)
            for row, state in enumerate(layer):
                budget.need(STATE_COST * len(found), "the automaton of a constraint")
                for k in labels[place]:
                    after = step(state, i, k)
                    if after is not None:
                        table[row, k if place < n else 0] = found.setdefault(after, len(found))
                if len(found) > MOST_STATES:
                    raise Rejected(f"the automaton of a constraint would have more than {MOST_STATES} states")
            layer = list(found)
            if place < n:
                tables.append(table)
            elif tables:
                tables[-1] = table[:, 0][tables[-1]]
        if not layer:
            raise Rejected("no assignment satisfies one of the constraints")
        alive = np.arange(len(layer) + 1) < len(layer)
        for i, table in reversed(list(enumerate(tables))):
            table = np.where(alive, np.cumsum(alive) - 1, -1)[table]
            alive = np.any(table >= 0, axis=1)
            tables[i] = table[np.append(np.flatnonzero(alive), -1)]
        return cls([place for place in places if place < n], tables)

    def path(self, points: Ints) -> list[Ints]:
        """Return the state of each point after each variable, -1 once the constraint cannot hold."""
        out = [np.zeros(len(points), np.int64)]
        for place, table in zip(self.places, self.tables, strict=True):
            out.append(table[out[-1], points[:, place]])
        return out[1:]

    def narrowed(self, boxes: Flags, starts: Ints) -> Flags:
        """Remove from boxes the states on no path; `starts` holds each query variable's first column."""
        reached, steps, out = np.ones((len(boxes), 1), np.bool_), list[tuple[Any, ...]](), boxes.copy()
        for place, table in zip(self.places, self.tables, strict=True):
            span = slice(starts[place], starts[place] + table.shape[1])
            before, label = np.nonzero(table >= 0)
            after, possible = table[before, label], reached[:, before] & boxes[:, span][:, label]
            steps.append((span, len(table), before, label, after, possible))
            reached = _any_of(possible, after, int(table.max()) + 1)
        for span, n, before, label, after, possible in reversed(steps):
            possible &= reached[:, after]
            out[:, span] &= _any_of(possible, label, span.stop - span.start)
            reached = _any_of(possible, before, n)
        return out

    def as_tables(self, variables: Sequence[int], first: int) -> tuple[list[PlainTable], list[int]]:
        """Return tables of 0 and -inf over variables and counters, from number `first`, and the sizes of counters.

        A counter holds the state after a variable; the last variable needs none, and two variables share a table.
        """
        scope, last = [variables[place] for place in self.places], len(self.tables) - 1
        if last == 1:
            return [_allowing((*scope,), self.tables[1][self.tables[0][0]] >= 0)], []
        sizes, tables = [int(table.max()) + 1 for table in self.tables[:-1]], list[PlainTable]()
        for i, (v, table) in enumerate(zip(scope, self.tables, strict=True)):
            is_step = table[:-1] >= 0 if i == last else table[:-1, :, None] == np.arange(sizes[i])
            around = (*[first + i - 1][: i > 0], v, *[first + i][: i < last])
            tables.append(_allowing(around, is_step if i else is_step[0]))
        return tables, sizes


def _allowing(scope: tuple[int, ...], flags: Flags) -> PlainTable:
    return PlainTable(scope, np.where(flags, 0.0, -np.inf))


def _told(said: Any) -> str:
    return json.dumps(said)[:200]


def _any_of(flags: Flags, group: Ints, n: int) -> Flags:
    """Return, per row and group, whether any flag of the group is set."""
    out, order = np.zeros((len(flags), n), np.bool_), np.argsort(group, kind="stable")
    firsts = np.flatnonzero(np.diff(group[order], prepend=-1))
    if len(firsts):
        out[:, group[order][firsts]] = np.logical_or.reduceat(flags[:, order], firsts, axis=1)
    return out


@dataclass(frozen=True, eq=False)
class PlainRules:
    """All constraints of a query; everything satisfies none."""

    automata: list[PlainAutomaton]
    budget: CheckBudget

    @classmethod
    def of(
        cls, said: Sequence[Stored], variables: Sequence[Stored], question: Question, budget: CheckBudget
    ) -> PlainRules:
        """Read constraints on query variables and on observed ones; reject what is none."""
        queried: list[int] = question.queried.tolist()
        asked = set(queried)
        possible = [np.flatnonzero(question.weights_of(v) > -np.inf).tolist() for v in range(len(variables))]
        fixed = [v for v, labels in enumerate(possible) if len(labels) == 1 and v not in asked]
        labels = [*(range(k) for k in question.query_sizes.tolist()), *(possible[v] for v in fixed)]
        reader = _Reader([variables[v] for v in (*queried, *fixed)], budget)
        specs = (spec for one in said for spec in reader.read(**one))
        automata = (PlainAutomaton.of(spec, labels, len(queried), budget) for spec in specs)
        return cls([automaton for automaton in automata if automaton.places], budget)

    def satisfied(self, points: Ints) -> Flags:
        """Return which points, as states of the query variables, satisfy every constraint."""
        paths = (automaton.path(points)[-1] for automaton in self.automata)
        return np.logical_and.reduce([state >= 0 for state in paths] or [np.ones(len(points), np.bool_)])

    def narrowed(self, boxes: Flags, starts: Ints) -> Flags:
        """Remove states that no feasible point of a box has, until no constraint removes any."""
        n_steps = max((sum(table.size for table in a.tables) for a in self.automata), default=0)
        self.budget.need(4.0 * len(boxes) * n_steps, "the boxes that constraints narrow")
        while True:
            before = boxes
            for automaton in self.automata:
                self.budget.look()
                boxes = automaton.narrowed(boxes, starts)
            if np.array_equal(before, boxes):
                return boxes

    def points(self, sizes: Ints, together: int = TOGETHER) -> Iterator[Ints]:
        """Yield all feasible points in order, at most `together` at once; reject more than MOST_POINTS.

        Ways through the automata are counted from the end, so that each point is found by its number alone.
        """
        columns = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        box = self.narrowed(np.ones((1, columns[-1]), np.bool_), columns[:-1])[0]
        states = np.zeros((1, len(self.automata) + 1), np.int64)  # the last state is of no automaton
        steps = list[tuple[Ints, Ints, Ints]]()  # of each variable: states before it, its labels, states after
        n_states, n_held = list[int](), 0
        for place, own in enumerate(map(np.flatnonzero, np.split(box, columns[1:-1]))):
            n_held += 4 * states.size * len(own)
            self.budget.need(FLOAT * n_held, "the joint states of constraints")
            before, labels = np.repeat(np.arange(len(states)), len(own)), np.tile(own, len(states))
            after = states[before]
            for a, automaton in enumerate(self.automata):
                if place in automaton.places:
                    table = automaton.tables[automaton.places.index(place)]
                    after[:, a] = table[after[:, a], labels]
            alive = np.all(after >= 0, axis=1)
            n_states.append(len(states))
            states, end = np.unique(after[alive], axis=0, return_inverse=True)
            steps.append((before[alive], labels[alive], end.reshape(-1)))
        counts, ways = np.ones(len(states)), list[tuple[Ints, Ints]]()
        for before, _, after in reversed(steps):
            last = np.cumsum(counts[after])
            if np.any(last > MOST_POINTS):
                raise Rejected(f"the constraints leave more than {MOST_POINTS} assignments to list")
            first = last - counts[after]
            counts = np.bincount(before, counts[after], n_states.pop())
            ways.append((first.astype(np.int64), run_starts(np.bincount(before))))
        for at in range(0, int(counts.sum()), together):
            self.budget.look()
            left, state = np.arange(at, min(at + together, int(counts.sum()))), np.zeros(1, np.int64)
            out = np.empty((len(left), len(steps)), np.int64)
            for place, (_, labels, after) in enumerate(steps):
                first, starts = ways[-1 - place]
                left = left + first[starts[state]]
                step = np.searchsorted(first, left, side="right") - 1
                left, out[:, place], state = left - first[step], labels[step], after[step]
            yield out

    def extended(self, problem: ReducedModel, answers: Ints) -> tuple[ReducedModel, Ints]:
        """Return a network of the feasible points alone, its counters queried too; and the answers there."""
        tables, sizes, columns = list(problem.tables), list(problem.sizes), [answers.T]
        for automaton in self.automata:
            more, counters = automaton.as_tables(problem.queried, len(sizes))
            columns += [states[None] for states in automaton.path(answers)[: len(counters)]]
            tables, sizes = tables + more, sizes + counters
        queried = [*problem.queried, *range(len(problem.sizes), len(sizes))]
        found = ReducedModel(tables, sizes, queried, problem.log_constant, problem.log_slack)
        return found, np.concatenate(columns).T


class _Reader:
    """Reads constraints as JSON; a damaged one raises an error, as all damaged proofs do."""

    def __init__(self, variables: Sequence[Stored], budget: CheckBudget) -> None:
        self.place, self.budget = {v["name"]: k for k, v in enumerate(variables)}, budget
        self.states = [list(v.get("states", ())) for v in variables]

    def read(self, kind: str, **given: Any) -> Iterable[Spec]:
        """Return the automata that together are one constraint, to be built."""
        known: dict[str, Callable[..., Iterable[Spec]]] = {
            **dict.fromkeys(("AtMost", "AtLeast", "Exactly"), partial(self._counted, kind)),
            "Never": self._never,
            "Implies": self._implies,
            "AllDifferent": self._different,
            "Linear": self._linear,
            "Allowed": self._allowed,
        }
        if kind not in known:
            raise Rejected(f"a constraint is of the kind {_told(kind)}, which the checker does not know")
        return known[kind](**given)

    def _places(self, names: Sequence[Any]) -> list[int]:
        places = [self.place.get(name, -1) for name in names]
        if not places or len(set(places)) < len(places) or not all(p >= 0 and self.states[p] for p in places):
            expected = "expected categorical variables, queried or observed"
            raise Rejected(f"a constraint is on {_told(names)}; {expected}")
        return places

    def _position(self, place: int, label: Any) -> int:
        if label not in self.states[place]:
            raise Rejected(f"a constraint names {_told(label)}, which is no state of its variable")
        return self.states[place].index(label)

    def _terms(self, pairs: Sequence[Any]) -> list[Term]:
        """Return a term of weight 1 for each pair of a name and a label."""
        places = self._places([name for name, _ in pairs])
        return [
            (place, self._position(place, label), 1.0) for place, (_, label) in zip(places, pairs, strict=True)
        ]

    def _counted(self, kind: str, k: int, names: Sequence[str], state: Any) -> Iterator[Spec]:
        if type(k) is not int or k < 0:
            raise Rejected(f"a constraint counts to {_told(k)}; expected a whole number of at least 0")
        terms = self._terms([(name, state) for name in names])
        yield self._sum(terms, None if kind == "AtMost" else k, None if kind == "AtLeast" else k)

    def _never(self, states: Sequence[Any]) -> Iterator[Spec]:
        yield self._sum(self._terms(states), None, len(states) - 1)

    def _implies(self, premise: Sequence[Any], conclusion: Sequence[Any]) -> Iterator[Spec]:
        terms = self._terms(premise)
        for place, at, _ in self._terms(conclusion):  # never the premise and another state
            others = [(place, k, 1.0) for k in range(len(self.states[place])) if k != at]
            yield self._sum([*terms, *others], None, len(terms))

    def _linear(self, weights: Sequence[Any], at_most: float | None, at_least: float | None) -> Iterator[Spec]:
        places = self._places([name for name, _ in weights])
        terms = [(place, 0, 0.0) for place in places]
        for place, (_, entries) in zip(places, weights, strict=True):
            terms += [(place, at, w) for at, w in {self._position(place, x): w for x, w in entries}.items()]
        yield self._sum(terms, at_least, at_most)

    def _sum(self, terms: Sequence[Term], low: float | None, high: float | None) -> Spec:
        """Return the automaton that adds the weights of states up to a number between two bounds."""
        places = sorted({place for place, _, _ in terms})
        added = [[Fraction(0)] * len(self.states[place]) for place in places]
        for place, at, weight in terms:
            added[places.index(place)][at] += Fraction(float(weight))
        least, most = ([sum(map(pick, added[i + 1 :])) for i in range(len(added))] for pick in (min, max))
        floor = -math.inf if low is None else Fraction(float(low))
        ceiling = math.inf if high is None else Fraction(float(high))

        def step(total: Any, i: int, at: int) -> Any:
            if total == SAFE:
                return SAFE
            total += added[i][at]
            below, above = total + least[i], total + most[i]  # with what follows
            if below > ceiling or above < floor:
                return None
            return SAFE if floor <= below and above <= ceiling else total

        return places, Fraction(0), step

    def _different(self, names: Sequence[str]) -> Iterator[Spec]:
        for pair in itertools.combinations(self._places(names), 2):
            first, second = (self.states[place] for place in pair)
            points = itertools.product(range(len(first)), range(len(second)))
            yield self._along(list(pair), (p for p in points if first[p[0]] != second[p[1]]))

    def _allowed(self, names: Sequence[str], rows: Sequence[Any]) -> Iterator[Spec]:
        places = self._places(names)
        yield self._along(places, ([self._position(*x) for x in zip(places, row, strict=True)] for row in rows))

    def _along(self, places: list[int], points: Iterable[Sequence[int]]) -> Spec:
        """Return the automaton of the listed points: its states are their first parts."""
        known: set[tuple[int, ...]] = set()
        order = sorted(range(len(places)), key=places.__getitem__)
        for point in points:
            self.budget.need(STATE_COST * len(known) * len(places), "the rows of a constraint")
            known.update(tuple(point[k] for k in order[:i]) for i in range(1, len(places) + 1))

        def step(path: Any, i: int, at: int) -> Hashable:
            longer = (*path, at)
            return None if longer not in known else longer if i + 1 < len(places) else SAFE

        return sorted(places), (), step
