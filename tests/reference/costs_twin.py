"""Slow twins of the kernels on integer costs: whole arrays and dictionaries, one variable at a time."""

from __future__ import annotations

import itertools

import numpy as np

HARD, FLOOR = -(2**60), -(2**59)


class DualTwin:
    """Dual ascent on tables kept as arrays with one axis per variable, in the order of `variables`."""

    def __init__(self, tables, unary):
        self.tables = [(scope, values.copy()) for scope, values in tables]
        self.unary = {v: u.copy() for v, u in unary.items()}
        self.alive = {v: list(range(len(u))) for v, u in unary.items()}
        self.done = dict.fromkeys(unary, False)
        self.bound = 0

    def open_sides(self, scope, i):
        others = [u for u in scope if u != i and len(self.alive[u]) > 1]
        return any(u < i for u in others), any(u > i for u in others)

    def maxima(self, k, i):
        scope, values = self.tables[k]
        part = values[np.ix_(*(self.alive[u] for u in scope))]
        axis = scope.index(i)
        return part.max(axis=tuple(a for a in range(len(scope)) if a != axis))

    def add(self, k, i, amounts):
        scope, values = self.tables[k]
        at = np.ix_(*(self.alive[u] for u in scope))
        shape = [-1 if u == i else 1 for u in scope]
        moved = values[at] + np.array(amounts, np.int64).reshape(shape)
        values[at] = np.where(moved > FLOOR, moved, HARD)

    def visit(self, i, is_forward, threshold):
        """Return how many states were dropped; None when nothing can be above the threshold."""
        alive = self.alive[i]
        own = [k for k, (scope, _) in enumerate(self.tables) if i in scope]
        pulled = {k: self.maxima(k, i) for k in own}
        total = {}
        for place, s in enumerate(alive):
            parts = [int(self.unary[i][s]), *(int(p[place]) for p in pulled.values())]
            total[s] = HARD if any(p <= FLOOR for p in parts) else sum(parts)
        top = max(total.values())
        if top <= FLOOR:
            return None
        self.bound += top
        if self.bound <= threshold:
            return None
        sides = {k: self.open_sides(self.tables[k][0], i) for k in own}
        before, after = sum(b for b, _ in sides.values()), sum(a for _, a in sides.values())
        cost = {s: c - top if c > FLOOR else c for s, c in total.items()}
        kept = [s for s in alive if cost[s] > FLOOR and self.bound + cost[s] > threshold]
        n_push = after if is_forward else before
        n_shares = max(before, after) if n_push and len(kept) > 1 else 0
        share = {s: -((-cost[s]) // n_shares) if n_shares else 0 for s in kept}
        places = [alive.index(s) for s in kept]
        n_dropped = len(alive) - len(kept)
        self.alive[i] = kept
        for k in own:
            takes = n_shares and (sides[k][1] if is_forward else sides[k][0])
            shift = [(share[s] if takes else 0) - int(pulled[k][p]) for s, p in zip(kept, places, strict=True)]
            self.add(k, i, shift)
        for s in alive:
            self.unary[i][s] = cost[s] - n_push * share[s] if s in share else cost[s]
        self.done[i] = len(kept) == 1
        return n_dropped

    def sweep(self, threshold):
        """Go forth and back; return the variable at which nothing was left, or -1."""
        n = len(self.unary)
        for is_forward in (True, False):
            for i in range(n) if is_forward else range(n - 1, -1, -1):
                if not self.done[i] and self.visit(i, is_forward, threshold) is None:
                    return i
        return -1


def value(tables, unary, states):
    """Return the sum of all costs at an assignment; `HARD` where one is."""
    parts = [int(u[states[v]]) for v, u in unary.items()]
    parts += [int(values[tuple(states[v] for v in scope)]) for scope, values in tables]
    return HARD if any(p <= FLOOR for p in parts) else sum(parts)


def all_values(tables, unary):
    """Return the value of every possible assignment."""
    found = {}
    for states in itertools.product(*(range(len(u)) for u in unary.values())):
        total = value(tables, unary, states)
        if total > FLOOR:
            found[states] = total
    return found


def steepest(tables, unary, states, n_steps):
    """Take the best single change of finite costs, up or down, so many times; return the best assignment seen."""
    states, best = list(states), (value(tables, unary, states), tuple(states))
    for _ in range(n_steps):
        gains = []
        for v, u in unary.items():
            for s in range(len(u)):
                if s != states[v]:
                    moved = [*states[:v], s, *states[v + 1 :]]
                    gains.append((value(tables, unary, moved), v, s))
        if not gains:
            break
        total, v, s = max(gains)
        states[v] = s
        best = max(best, (total, tuple(states)), key=lambda pair: pair[0])
    return best


def supported(tables, unary, alive):
    """Return the states left of each variable once those without a possible partner in some table are gone."""
    alive = {v: list(states) for v, states in alive.items()}
    changes = True
    while changes:
        changes = False
        for scope, values in tables:
            for axis, v in enumerate(scope):
                others = [[None] if u == v else alive[u] for u in scope]
                kept = [
                    s
                    for s in alive[v]
                    if unary[v][s] > FLOOR
                    and any(
                        values[tuple(s if k == axis else t for k, t in enumerate(row))] > FLOOR
                        for row in itertools.product(*others)
                    )
                ]
                if len(kept) < len(alive[v]):
                    alive[v], changes = kept, True
    return alive
