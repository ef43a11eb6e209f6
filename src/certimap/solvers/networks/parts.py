"""Subproblems of an integer problem: each with its bound and its best assignment, each advanced piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from certimap.control import Control
from certimap.networks.max_elimination import EliminationPlan, plan
from certimap.networks.orders import best_order
from certimap.networks.problem import FLOOR, HARD, Problem, components, value_at
from certimap.networks.simplify import Simplified, impossible, simplify
from certimap.solvers.networks.phases import Phase, first_phase

States = dict[int, int]


@dataclass
class Context:
    """Settings and limits that all parts share, and what they have used.

    Attributes
    ----------
    quick_entries
        Eliminate straight away what takes at most so many table entries.
    max_entries
        Never eliminate what takes more.
    max_bytes
        Memory for a search or an elimination.
    top_k
        How many best assignments are wanted; above 1 every assignment above `threshold` is reported.
    margin
        Units within which the value of a component is good enough.
    threshold
        With `top_k` above 1: units at or below which nothing is of interest.
    seed
        Of the local search.
    n_nodes, work
        Search nodes and table entries visited so far.
    """

    control: Control
    workers: int
    quick_entries: float
    max_entries: float
    max_bytes: int
    top_k: int
    seed: int
    margin: int = 0
    threshold: int = HARD
    n_nodes: int = 0
    work: int = 0
    _n_keys: int = 0

    @property
    def lists_all(self) -> bool:
        """Whether every good assignment is wanted, not only a best one."""
        return self.top_k > 1

    def next_key(self) -> np.uint64:
        """Return the key of the next stream of random numbers."""
        self._n_keys += 1
        return np.uint64((self.seed + 0x9E3779B97F4A7C15 * self._n_keys) % 2**64)

    def fits(self, elimination: EliminationPlan) -> bool:
        """Whether an elimination keeps to the limits."""
        n_bytes = max(elimination.n_bytes, elimination.n_bytes_kept) if self.lists_all else elimination.n_bytes
        return elimination.n_entries <= self.max_entries and n_bytes <= self.max_bytes


class Reduction:
    """A problem simplified and split into components whose values add up.

    Parameters
    ----------
    known
        An assignment to start from.

    Raises
    ------
    ImpossibleEvidence
        When every assignment has probability 0.
    """

    def __init__(self, problem: Problem, context: Context, known: Mapping[int, int] | None = None) -> None:
        self.simplified: Simplified = simplify(problem, keep_all=context.lists_all)
        small = self.simplified.problem
        # Where all good assignments are wanted, the problem stays whole: else those of parts would be combined.
        self._is_whole = context.lists_all
        self.constant = 0 if self._is_whole else int(small.constant)
        split = ([small] if small.sizes else []) if self._is_whole else components(small)
        start = None if known is None else self.simplified.encode(known)
        self.parts = [Component(part, context, start) for part in split]

    @property
    def bound(self) -> int:
        """Units that no assignment exceeds (none but those reported, where all good ones are)."""
        if self._is_whole:
            return self.parts[0].bound if self.parts else HARD
        return self.constant + sum(p.bound for p in self.parts)

    @property
    def value(self) -> int:
        """Units of the best assignment known; `HARD` while there is none."""
        values = [p.value for p in self.parts]
        return HARD if any(v <= FLOOR for v in values) else self.constant + sum(values)

    @property
    def states(self) -> States:
        """The best assignment known."""
        merged: States = {}
        for part in self.parts:
            merged |= part.states
        return self.simplified.decode(merged)

    @property
    def is_done(self) -> bool:
        return all(p.is_done for p in self.parts)

    @property
    def n_bytes(self) -> int:
        return sum(p.phase.n_bytes for p in self.parts)

    def advance(self, context: Context) -> None:
        """Do a piece of work on the part with the largest gap, those without an assignment first."""
        waiting = [p for p in self.parts if not p.is_done]
        if waiting:
            max(waiting, key=lambda p: (p.value <= FLOOR, p.bound - p.value)).advance(context)

    def drain(self) -> list[States]:
        """Return, once, the assignments to report where all are wanted."""
        if not self.parts:
            return [self.simplified.decode({})]
        return [self.simplified.decode(states) for part in self.parts for states in part.drain()]


class Component:
    """A connected problem with the best assignment known, an upper bound, and the phase that its solution is in.

    Attributes
    ----------
    closed
        The largest bound of what has been cut, in units.
    """

    def __init__(self, problem: Problem, context: Context, known: Mapping[int, int] | None) -> None:
        self.problem = problem
        scopes = [t.scope for t in problem.tables]
        self.plan = plan(problem, best_order(scopes, problem.sizes, control=context.control))
        self.value = HARD
        self.states: States = {}
        self.closed = HARD
        self._lists_all = context.lists_all
        self._found: list[States] = []
        if known is not None:
            self.offer({v: known[v] for v in problem.sizes})
        self.phase: Phase = first_phase(self, context)

    @property
    def bound(self) -> int:
        """Units that no assignment exceeds (none but those reported, where all good ones are)."""
        unseen = max(self.closed, self.phase.open_bound)
        return unseen if self._lists_all else max(unseen, self.value)

    @property
    def is_done(self) -> bool:
        return self.phase.is_done

    def advance(self, context: Context) -> None:
        """Do a piece of work."""
        self.phase = self.phase.advance(self, context)
        if self.is_done and self.value <= FLOOR and not context.lists_all:
            raise impossible()

    def offer(self, states: Mapping[int, int]) -> None:
        """Take an assignment of the problem's variables as the best one if it is."""
        variables = list(self.problem.sizes)
        value = int(value_at(self.problem, np.array([[states[v] for v in variables]]), variables)[0])
        if value > max(self.value, FLOOR):
            self.value, self.states = value, dict(states)

    def report(self, states: Mapping[int, int]) -> None:
        """Note an assignment that is to be reported whether it is the best or not."""
        self._found.append(dict(states))

    def drain(self) -> list[States]:
        found, self._found = self._found, []
        return found
