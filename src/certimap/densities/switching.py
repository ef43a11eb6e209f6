"""Linear-Gaussian networks with many discrete variables, which join one after the other in steps.

A path has a state for each discrete variable so far. Over the live real variables, which later ones depend on, it
is a weighted Gaussian that each equation updates in closed form (Kalman 1960), rounded up or down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Array, Floats, Ints
from certimap.core.box import Points
from certimap.core.control import Control
from certimap.core.posterior import Facts, LogInterval
from certimap.core.query import Query
from certimap.densities.gaussian_mixture import EPS, LOG_2PI
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import ImpossibleEvidence, QueryError, TooLarge
from certimap.networks.network import Network
from certimap.networks.problem import Prepared, problem_of
from certimap.networks.simplify import sum_out

UNIT = 0.5 * EPS
MOST_STATES = 2**16  # joint states of live discrete variables, and entries of a table after summing
MOST_REALS = 64  # live real variables
NEARBY = 8  # observed variables that may be next in the order
ROUNDING = 1e-9  # nats that are added to bounds on what follows, of which no digit counts


class Update(NamedTuple):
    """The equation of a real variable that joins; arrays have an axis for each of `columns`."""

    columns: list[int]
    intercept: Floats
    coefficients: Floats
    sd: Floats
    parents: list[int]  # their places among the live real variables
    value: float | None  # if it is observed
    kept: list[int]  # places of the real variables that stay live


class Joining(NamedTuple):
    """A step: a discrete variable joins (None at the start), with the tables and equations that it completes."""

    variable: int | None
    n_states: int
    tables: list[tuple[list[int], Array]]  # columns, and logs
    updates: list[Update]
    live: list[int]  # columns of the discrete variables that later steps depend on
    shape: tuple[int, ...]  # their numbers of states
    n_reals: int  # live real variables afterwards


@dataclass(frozen=True, eq=False)
class Paths:
    """Weighted Gaussians, one per path, m in all; places may depend on r unknown numbers."""

    states: Ints  # a column for each step, shape (m, k)
    logs: Floats  # ln of the weights, shape (m,)
    means: Floats  # linear functions of the unknown numbers, the constant last: shape (m, d, r + 1)
    covariances: Floats  # shape (m, d, d)
    raised: Floats  # nats by which paths that this one stands for may exceed it, shape (m,)
    roots: Floats  # triangles of the least squares for the unknown numbers, shape (m, r, r + 1)

    def part(self, rows: Ints) -> Paths:
        """Return some of the paths."""
        return Paths(*(array[rows] for array in vars(self).values()))

    @classmethod
    def start(cls, states: Ints, d: int) -> Paths:
        """Return weights 1 for each row of states, and d real variables at unknown places."""
        m = len(states)
        means = np.tile(np.eye(d, d + 1), (m, 1, 1))
        return cls(states, np.zeros(m), means, np.zeros((m, d, d)), np.zeros(m), np.zeros((m, d, d + 1)))


def advance(step: Joining, paths: Paths, side: int, given: Ints | None = None) -> Paths:
    """Return the possible paths after a step, or with the states `given`, one for each path.

    `side`: 1 or -1 rounds so that weighted Gaussians lie above or below the true ones everywhere: covariances grow
    or shrink by their error. 0 rounds logs up by a generous guess. Raises QueryError where no digit is sure.
    """
    n = 1 if given is not None else step.n_states
    now = paths.part(np.repeat(np.arange(len(paths.logs)), n))
    new = np.tile(np.arange(n), len(paths.logs)) if given is None else given
    states, logs = np.column_stack([now.states, new]), now.logs
    for columns, table in step.tables:
        logs = logs + table[tuple(states[:, c] for c in columns)]
    now = replace(now, states=states, logs=logs)
    if given is None:
        now = now.part(np.flatnonzero(logs > -np.inf))
    off = np.zeros((3, len(now.logs)))
    off[2] = UNIT * (1 + len(step.tables)) * np.abs(np.where(now.logs > -np.inf, now.logs, 0.0))
    for update in step.updates:
        now, off = _updated(update, now, off, side)
    if not side:
        return now
    d = now.means.shape[1]
    scale = off[0] + 2.0 * UNIT * d / narrowest(now.covariances)
    by = scale + off[1]
    if not np.all(by < 0.5):
        raise QueryError(
            "standard deviations of the network are too far apart: a covariance of its real variables, given what "
            "is observed, is lost in rounding; give the smallest sd a larger value"
        )
    logs = now.logs + side * (off[2] + 0.5 * d * (by + scale) / (1.0 - by) + 0.5 * off[1])
    return replace(now, logs=logs, covariances=now.covariances * (1.0 + side * by)[:, None, None])


def narrowest(covariances: Floats) -> Floats:
    """Return lower bounds on the least eigenvalues of correlation matrices; positive."""
    d = covariances.shape[1]
    if d < 2:
        return np.ones(len(covariances))
    spread = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    alike = covariances / (spread[:, :, None] * spread[:, None])
    least: Any = np.linalg.eigvalsh(alike)[:, 0]
    found: Floats = np.maximum(least - 8.0 * d * UNIT, UNIT)
    return found


def _updated(update: Update, paths: Paths, off: Floats, side: int) -> tuple[Paths, Floats]:
    """Let a real variable join, and others leave; `off` as in `_off`."""
    rows, at, kept = tuple(paths.states[:, c] for c in update.columns), update.parents, update.kept
    m, d, _ = paths.means.shape
    a = np.broadcast_to(update.coefficients[rows], (m, len(at)))
    b, sd = (np.broadcast_to(x[rows], (m,)) for x in (update.intercept, update.sd))
    mean = np.einsum("mp,mpr->mr", a, paths.means[:, at])
    mean[:, -1] += b
    cross = np.einsum("mp,mpe->me", a, paths.covariances[:, at])
    variance = sd**2 + (a * cross[:, at]).sum(axis=1)
    if side:
        off = _off(update, paths, off, (a, b, sd), (mean[:, -1], variance))
    if update.value is None:
        covariances = np.empty((m, d + 1, d + 1))
        covariances[:, :d, :d] = paths.covariances
        covariances[:, d, :d], covariances[:, :d, d], covariances[:, d, d] = cross, cross, variance
        now = replace(paths, means=np.concatenate([paths.means, mean[:, None]], axis=1), covariances=covariances)
    else:
        error, root = -mean, np.sqrt(variance)[:, None]
        error[:, -1] += update.value
        left, roots = _fitted(error / root, paths.roots)
        half = cross / root
        guess = 0.0 if side else 64.0 * UNIT * (d + 1.0) * (variance / sd**2) * (1.0 + left**2)
        now = replace(
            paths,
            logs=paths.logs - 0.5 * (LOG_2PI + np.log(variance) + left**2) + guess,
            means=paths.means + cross[:, :, None] * (error / variance[:, None])[:, None],
            covariances=paths.covariances - half[:, :, None] * half[:, None, :],
            roots=roots,
        )
    return replace(now, means=now.means[:, kept], covariances=now.covariances[:, kept][:, :, kept]), off


def _fitted(rows: Floats, roots: Floats) -> tuple[Floats, Floats]:
    """Rotate new equations into the triangles of least squares; return what does not fit, and the triangles."""
    roots = roots.copy()
    for k in range(roots.shape[1]):
        old, x, y = roots[:, k].copy(), roots[:, k, k].copy(), rows[:, k]
        length = np.hypot(x, y)
        scale = np.where(length > 0.0, length, 1.0)
        c, s = np.where(length > 0.0, x / scale, 1.0)[:, None], (y / scale)[:, None]
        roots[:, k], rows = c * old + s * rows, c * rows - s * old
    return rows[:, -1], roots


def _off(
    update: Update, paths: Paths, off: Floats, equation: tuple[Floats, ...], found: tuple[Floats, Floats]
) -> Floats:
    """Add an update's rounding to `off`: shares of covariances, standard deviations of means, nats of weights.

    It is the backward error of each product and sum, in the units of the Gaussian after the update.
    """
    (a, b, sd), (mean, variance), at = equation, found, update.parents
    means, d = paths.means[:, :, -1], paths.means.shape[1]
    spread = np.sqrt(np.diagonal(paths.covariances, axis1=1, axis2=2))
    unit, least = UNIT * (len(at) + 2.0), narrowest(paths.covariances)
    size = np.abs(b) + (np.abs(a) * np.abs(means[:, at])).sum(axis=1)
    reach = (np.abs(a) * spread[:, at]).sum(axis=1)  # at least the standard deviation of the linear function
    if update.value is None:
        gain = reach / sd
        scale = unit * (2.0 + 2.0 * gain**2 + gain * np.sqrt(d / least))
        return off + np.array([scale, unit * size / sd, np.zeros_like(sd)])
    error = np.abs(update.value - mean)
    far, ratio = error / np.sqrt(variance), variance / sd**2
    of_variance, of_error = 2.0 * unit * (1.0 + reach**2 / variance), unit * (size + abs(update.value))
    # No mean moves by more than `spread` times the standardised error.
    moved = UNIT * (np.abs(means) / spread + 4.0 * far[:, None]) + (unit * reach * error / variance)[:, None]
    place = np.sqrt(ratio / least * np.square(moved).sum(axis=1)) + (of_error + of_variance * error) / sd
    share = 6.0 * UNIT + of_variance + 2.0 * unit * reach / np.sqrt(variance)
    weight = 0.5 * (off[0] + of_variance) * (1.0 + far**2) + UNIT * (4.0 + far**2 + np.abs(paths.logs))
    weight += (off[1] + of_error / np.sqrt(variance)) * far
    return off + np.array([d / least * ratio * share, off[0] * far + place, weight])


class SwitchingPosterior:
    """p(states, observed values) of discrete query variables, real ones summed out: one filter per point.

    Discrete variables that real ones depend on are queried or observed. p(evidence) would sum over all paths.
    """

    def __init__(self, network: LinearGaussianNetwork, query: Query) -> None:
        known = _prepared(network, query)
        self.domain, self.log_constant = query.query_domain, float(known.problem.constant)
        self.steps = _Order(network, query, known).steps
        column = {step.variable: c for c, step in enumerate(self.steps)}
        # the column and the possible states of each query variable
        asked: list[int] = query.variables.tolist()
        self._places: list[tuple[int, Ints]] = [(column.get(v, 0), known.states[v]) for v in asked]
        work = 200.0 * sum(1 + len(step.updates) for step in self.steps)
        self.facts = Facts.of(self.domain, is_normalised=False, work=work, log_slack=known.problem.log_slack)
        self.log_futures: list[Floats] = [
            np.full((), np.inf),
            *(np.full(step.shape, np.inf) for step in self.steps),
        ]
        self.log_futures[-1] = np.zeros(())
        self.look_ahead(1, 1, Control())

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q, e) of each row, rounded down, shape (batch,); -inf where it is zero."""
        return self._weights(points, -1)

    def log_prob_interval(self, points: Points) -> LogInterval:
        """Return ln p(q, e) of each row, rounded down and up, shape (batch,) each."""
        return LogInterval(self._weights(points, -1), self._weights(points, 1))

    def _weights(self, points: Points, side: int) -> Floats:
        given = np.zeros((len(points), len(self.steps)), np.int64)
        possible, paths = np.ones(len(points), np.bool_), self._start(len(points))
        for j, (c, states) in enumerate(self._places):
            column = points[:, j]
            given[:, c] = np.minimum(np.searchsorted(states, column), len(states) - 1)
            possible &= np.isin(column, states)
        for step, column in zip(self.steps, given.T, strict=True):
            paths = advance(step, paths, side, column)
        return np.where(possible, paths.logs, -np.inf)

    def _start(self, m: int) -> Paths:
        return replace(Paths.start(np.zeros((m, 0), np.int64), 0), logs=np.full(m, self.log_constant))

    def points(self, paths: Paths) -> Points:
        """Return the points of complete paths."""
        columns = [states[paths.states[:, c]] for c, states in self._places]
        return np.column_stack(columns).astype(self.domain.point_dtype)

    def sweep(self, prune: Callable[[int, Paths], Paths]) -> Paths:
        """Return the paths after all steps, rounded up; `prune(k, paths)` returns those kept before step k."""
        paths = self._start(1)
        for k, step in enumerate(self.steps, 1):
            paths = prune(k, advance(step, paths, 1))
        return paths

    def beam(self, width: int) -> Points:
        """Return the points of paths if at most `width` are kept; ImpossibleEvidence if none is possible."""

        def prune(k: int, paths: Paths) -> Paths:
            ahead = self.ahead(k, paths)
            rows = np.argsort(-ahead, kind="stable")[:width]
            return paths.part(rows[ahead[rows] > -np.inf])

        paths = self.sweep(prune)
        if not len(paths.logs):
            raise ImpossibleEvidence("the evidence has probability 0 under every configuration")
        return self.points(paths)

    def groups(self, k: int, paths: Paths) -> Ints:
        """Return numbers of the joint states of live discrete variables before step k."""
        last = self.steps[k - 1]
        places = tuple(paths.states[:, last.live].T) if k else ()
        return np.zeros(len(paths.logs), np.int64) + (np.ravel_multi_index(places, last.shape) if places else 0)

    def ahead(self, k: int, paths: Paths) -> Floats:
        """Return upper bounds on the final weights of paths, and of all they stand for, before step k."""
        return paths.logs + paths.raised + self.log_futures[k].ravel()[self.groups(k, paths)] + ROUNDING

    @property
    def log_ceiling(self) -> float:
        """An upper bound on all values."""
        return float(self.ahead(0, self._start(1))[0])

    def look_ahead(self, length: int, width: int, control: Control) -> None:
        """Tighten the bounds on what follows each step: look at `length` steps together.

        Real variables may be anywhere before. Of more than `width` paths the ones that are bounded best end.
        """
        for k in reversed(range(len(self.steps))):
            control.check("looking ahead")
            future, end = self.log_futures[k], min(k + length, len(self.steps))
            states = np.zeros((future.size, k), np.int64)
            if future.ndim:
                states[:, self.steps[k - 1].live] = np.stack(
                    np.unravel_index(np.arange(future.size), future.shape), 1
                )
            highest = np.full(future.size, -np.inf)
            paths = Paths.start(states, self.steps[k - 1].n_reals if k else 0)
            for j in range(k, end):
                paths = advance(self.steps[j], paths, 0)
                origins, bounds = self.groups(k, paths), self.ahead(j + 1, paths)
                order = np.lexsort((-bounds, origins))
                place = np.arange(len(order)) - np.searchsorted(origins[order], origins[order])
                stays = (place < width) & (j + 1 < end)
                np.maximum.at(highest, origins[order[~stays]], bounds[order[~stays]])
                paths = paths.part(order[stays & (bounds[order] > highest[origins[order]])])
            self.log_futures[k] = np.minimum(future, highest.reshape(future.shape))


def _prepared(network: LinearGaussianNetwork, query: Query) -> Prepared:
    """Return the discrete model under evidence, with the states of all parents of real variables."""
    used, free = network.discrete_parts(query)
    assert isinstance(network.discrete, Network)
    domain = network.discrete.domain
    observed, weights = frozenset(i for i in query.observed if i < len(domain)), query.log_weights
    prepared = problem_of(network.discrete, Query(domain, np.array(free, np.int64), weights, {}, {}, observed))
    problem = sum_out(prepared.problem, MOST_STATES)
    if problem.nuisance:
        raise TooLarge(
            f"summing out variable {domain.names[min(problem.nuisance)]!r} takes a table of more than "
            f"{MOST_STATES} entries; query it, or observe it"
        )
    seen = {i: np.array([np.argmax(weights[domain.offsets[i] :])]) for i in used if i in observed}
    return replace(prepared, problem=problem, states={**prepared.states, **seen})


class _Order:
    """Makes the steps: next joins an observed variable, with its parents, that leaves the fewest live ones."""

    def __init__(self, network: LinearGaussianNetwork, query: Query, known: Prepared) -> None:
        self.network, self.values, self.known = network, query.values, known
        sizes, reals = known.problem.sizes, network.closure(list(query.values))
        nodes = [(i, network.by_position[i]) for i in reals]
        self.above = {i: [*(v for v in node.discrete if v in sizes), *node.real] for i, node in nodes}
        # what a variable is needed for: sets of variables that must have joined
        self.uses: dict[int, list[Sequence[int]]] = {v: [] for v in (*sizes, *reals)}
        for scope in (*((i, *above) for i, above in self.above.items()), *(t.scope for t in known.problem.tables)):
            for v in scope:
                self.uses[v].append(scope)
        self.joined, self.live = set[int](), list[int]()
        groups: list[tuple[int | None, list[int]]] = [(None, [])]
        while left := [i for i in (*reals, *sizes) if i not in self.joined]:
            goals = [self._missing(i) for i in [i for i in left if i in self.values][:NEARBY]]
            near = {u for v in self.live for scope in self.uses[v] for u in scope if u in sizes}
            choices = [*goals, *([v] for v in sorted(near - self.joined))] or [[left[0]]]
            found = min(choices, key=lambda found: (len(self._needed(found)), len(found)))
            for v in found:
                self._join(v)
                groups += [(v, [])] if v in sizes else []
                groups[-1][1].extend([] if v in sizes else [v])
        self.columns = {v: c for c, (v, _) in enumerate(groups) if v is not None}
        self.steps = self._steps(groups)

    def _needed(self, found: Sequence[int]) -> list[int]:
        """Return the unobserved variables that are needed after some more have joined."""
        joined = self.joined.union(found)
        hidden = [v for v in (*self.live, *found) if v not in self.values]
        return [v for v in hidden if any(not joined.issuperset(scope) for scope in self.uses[v])]

    def _join(self, v: int) -> None:
        self.live = self._needed([v])
        self.joined.add(v)

    def _missing(self, goal: int) -> list[int]:
        """Return a variable and its ancestors that have not joined, parents first."""
        found, waiting = dict[int, None](), [goal]
        while waiting:
            left = [p for p in self.above.get(waiting[-1], ()) if p not in self.joined and p not in found]
            if left:
                waiting += left
            else:
                found[waiting.pop()] = None
        return list(found)

    def _steps(self, groups: Sequence[tuple[int | None, list[int]]]) -> list[Joining]:
        steps, sizes, tables = list[Joining](), self.known.problem.sizes, self.known.problem.tables
        self.joined, self.live = set[int](), list[int]()
        for variable, reals in groups:
            if variable is not None:
                self._join(variable)
            updates = [self._update(i) for i in reals]
            done = [t for t in tables if variable in t.scope and self.joined.issuperset(t.scope)]
            self.live = self._needed([])
            live = [v for v in self.live if v in sizes]
            shape, n_reals = tuple(sizes[v] for v in live), len(self.live) - len(live)
            if math.prod(shape) > MOST_STATES or n_reals > MOST_REALS:
                raise TooLarge(
                    f"{n_reals} real variables and {math.prod(shape)} joint states of discrete ones have to be "
                    f"kept together; expected at most {MOST_REALS} and {MOST_STATES}: observe some of them"
                )
            of_tables = [([self.columns[v] for v in t.scope], t.log_values) for t in done]
            n_states, columns = 1 if variable is None else sizes[variable], [self.columns[v] for v in live]
            steps.append(Joining(variable, n_states, of_tables, updates, columns, shape, n_reals))
        return steps

    def _update(self, i: int) -> Update:
        """Return the equation of a real variable over the live variables alone."""
        node, values = self.network.by_position[i], self.values
        sizes, states = self.known.problem.sizes, self.known.states
        arrays = [node.intercept, node.coefficients, node.sd]
        for axis, v in reversed(list(enumerate(node.discrete))):
            arrays = [np.take(x, states[v] if v in sizes else states[v][0], axis) for x in arrays]
        intercept, coefficients, sd = arrays
        intercept = intercept + coefficients @ np.array([values.get(p, 0.0) for p in node.real])
        hidden = [j for j, p in enumerate(node.real) if p not in values]
        reals = [v for v in self.live if v not in sizes]
        parents, now = [reals.index(node.real[j]) for j in hidden], [*reals, i]
        self._join(i)
        kept = [j for j, v in enumerate(now) if v in self.live]
        columns = [self.columns[v] for v in node.discrete if v in sizes]
        return Update(columns, intercept, coefficients[..., hidden], sd, parents, values.get(i), kept)
