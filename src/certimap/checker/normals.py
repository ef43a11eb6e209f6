"""Mixtures of Gaussians with full covariances, and linear-Gaussian networks, which are such mixtures.

No inverse of a covariance matrix C is trusted: W is any lower triangular matrix for which the absolute row sums of
W C W' - 1, with a bound on its rounding, are at most `off` < 1. Then d'C^-1 d lies between |W d|^2 / (1 + off) and
|W d|^2 / (1 - off), and det C between (1 -+ off)^n over the squared product of W's diagonal. C omits the variables
that are summed out; observed variables are coordinates fixed in every box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from certimap.checker.leaves import HALF_LOG_2PI
from certimap.checker.mixtures import Majorants
from certimap.checker.models import FLOAT, Arrays, CheckBudget, Question, Rejected, reduce, refuse_huge, tables_of
from certimap.checker.network import value_at
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum

WORKING = 8  # copies of all covariances held at once
MOST_OFF = 1e-3
MOST_CONFIGURATIONS = 4096


@dataclass(frozen=True, eq=False)
class NormalMoments:
    """K Gaussians over m variables, with bounds (`_off`) on the errors of their means and covariances."""

    log_weights: Floats  # right to `slack` nats
    tables: Floats  # 0 or -inf per categorical state
    means: Floats
    means_off: Floats
    covariances: Floats
    covariances_off: Floats
    slack: float


@dataclass(frozen=True, eq=False)
class Normals:
    """Gaussians over the real query variables, then the observed ones; `roots` holds each W, `off` its bound."""

    tables: Floats
    tops: Floats  # (K,), logs of weighted densities at the means, rounded up
    lowest_tops: Floats
    means: Floats
    means_off: Floats
    roots: Floats
    off: Floats
    sds: Floats  # (K, n), rounded up
    values: Floats
    within: Floats

    @classmethod
    def of(cls, given: NormalMoments, within: Floats, values: Floats) -> Normals:
        """Find roots of the covariances; reject one too nearly singular for floating point."""
        cov, m = given.covariances, given.means.shape[1]
        try:
            lower = np.linalg.cholesky(cov)
            roots = np.tril(np.linalg.solve(lower, np.broadcast_to(np.eye(m), cov.shape))).astype(np.float64)
        except np.linalg.LinAlgError:
            raise Rejected("a covariance matrix is not positive definite in floating point") from None
        turned, sizes = roots.swapaxes(1, 2), np.abs(roots)
        rest = np.abs(np.matmul(np.matmul(roots, cov), turned) - np.eye(m))
        known = 4.0 * (m + 2.0) * UNIT * np.abs(cov) + given.covariances_off
        rest = rest + np.matmul(np.matmul(sizes, known), sizes.swapaxes(1, 2)) + 4.0 * UNIT
        off = rest.sum(axis=2).max(axis=1, initial=0.0) * (1.0 + 1e-9)
        diagonal = np.diagonal(roots, axis1=1, axis2=2)
        if not np.all(off <= MOST_OFF) or not np.all(diagonal > 0.0):
            raise Rejected("a covariance matrix is too nearly singular for the checker")
        logs = np.log(diagonal)
        tops = given.log_weights + logs.sum(axis=1) - m * HALF_LOG_2PI
        slack = (4.0 * m + 16.0) * UNIT * (np.abs(given.log_weights) + np.abs(logs).sum(axis=1) + m) + given.slack
        n = m - len(values)
        variances = (np.diagonal(x, axis1=1, axis2=2) for x in (cov, given.covariances_off))
        sds = np.sqrt(np.add(*variances)[:, :n])
        highest, lowest = tops - 0.5 * m * np.log1p(-off) + slack, tops - 0.5 * m * np.log1p(off) - slack
        means = given.means, given.means_off
        return cls(given.tables, highest, lowest, *means, roots, off, sds * (1.0 + 16.0 * UNIT), values, within)

    @property
    def n_real(self) -> int:
        return self.sds.shape[1]

    @property
    def work(self) -> int:
        n_parts, m = self.means.shape
        return n_parts * (8 + 6 * m + 6 * self.n_real * (m + self.n_real)) + 4 * self.tables.size

    def log_value(self, point: Floats, states: Ints, columns: Ints) -> float:
        """Return the log density at a point, rounded down; reject a point outside the query's intervals."""
        if not np.all((self.within[:, 0] <= point) & (point <= self.within[:, 1])):
            raise Rejected("the answer lies outside of what a variable is confined to")
        d, z, err = self._whitened(point[None])
        size = np.abs(z[0]) + err[0]
        away = 0.5 * (size * size).sum(axis=1) / (1.0 - self.off)
        slack = 8.0 * (d.shape[2] + 2.0) * UNIT * (np.abs(self.lowest_tops) + away + 1.0)
        factors = self.tables[:, columns[:-1] + states].sum(axis=1)
        return float(log_sum(self.lowest_tops - away - slack + factors, 0, -1))

    def _whitened(self, points: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the differences d from the means, W d, and a bound on the error of W d: (B, K, m) each."""
        given = np.broadcast_to(self.values, (len(points), len(self.values)))
        d = np.concatenate([points, given], axis=1)[:, None] - self.means
        size, roots = np.abs(d), np.abs(self.roots)
        known = (2.0 * d.shape[2] + 8.0) * UNIT * size + self.means_off
        return d, np.einsum("kij,bkj->bki", self.roots, d), np.einsum("kij,bkj->bki", roots, known)

    def start(self, threshold: float) -> tuple[Floats, Floats] | None:
        """Return a box outside which all Gaussians are far enough away to close; None if no box is needed."""
        total = float(log_sum(self.tops, 0))
        if total <= threshold:
            return None
        reach = math.sqrt(2.0 * (total - threshold)) * (1.0 + 1e-9) + 1e-9
        reaches = self.sds * reach + self.means_off[:, : self.n_real]
        means = self.means[:, : self.n_real]
        low = np.maximum((means - reaches).min(axis=0), self.within[:, 0])
        high = np.minimum((means + reaches).max(axis=0), self.within[:, 1])
        return None if np.any(low > high) else (low, high)

    def majorants(self, low: Floats, high: Floats) -> Majorants:
        """Bound the Gaussians; each is its own majorant, up to rounding."""
        n, m = self.n_real, self.means.shape[1]
        middle = low + 0.5 * (high - low)
        reach = (np.maximum(high - middle, middle - low) * (1.0 + 4.0 * UNIT))[:, None]
        _, z, err = self._whitened(middle)
        shrink = ((1.0 - self.off) * (1.0 - 8.0 * UNIT))[:, None]  # at most 1 / (1 + off)
        scaled = self.roots[:, :, :n] * reach[:, :, None]  # (B, K, m, n)
        sizes = np.abs(scaled).sum(axis=3)
        slope = -np.einsum("bki,bkij->bkj", z, scaled) * shrink
        bend = -np.matmul(scaled.swapaxes(2, 3), scaled) * shrink[:, :, None]
        far = np.abs(z) + sizes
        size = np.abs(self.tops) + 1.0 + (far * far).sum(axis=2)
        loose = (err * far).sum(axis=2) + (4.0 * m + 16.0) * UNIT * size
        value = self.tops - 0.5 * shrink[:, 0] * (z * z).sum(axis=2) + loose
        nearest = np.maximum(np.abs(z) - err - sizes * (1.0 + (m + 8.0) * UNIT), 0.0)
        means, means_off = self.means[:, :n], self.means_off[:, :n]
        beside = np.maximum(low[:, None] - means, means - high[:, None]) - means_off
        beside = np.maximum(beside, 0.0) / self.sds
        farthest = (beside * beside).max(axis=2, initial=0.0)
        away = np.maximum((nearest * nearest).sum(axis=2) * shrink[:, 0], farthest)
        peak = self.tops - 0.5 * away * (1.0 - (4.0 * m + 16.0) * UNIT) + UNIT * (np.abs(self.tops) + 1.0)
        rise = value + np.abs(slope).sum(axis=2) * (1.0 + 16.0 * UNIT)
        return Majorants(value, np.minimum(peak, rise), slope, bend)

    def cut(self, variable: int, low: float, high: float) -> float | None:
        """Return None: a Gaussian has no kink."""
        return None


def normals_of(kind: str, arrays: Arrays, question: Question, intervals: Floats, budget: CheckBudget) -> Normals:
    """Read a model of Gaussians under a query; `intervals` has the interval or (twice) value of real variables."""
    real = np.flatnonzero(question.sizes == 0)
    fits = intervals.shape == (len(question.sizes), 2) and not np.any(np.isnan(intervals))
    if not fits or not np.all(intervals[real, 0] <= intervals[real, 1]):
        raise Rejected("the proof's intervals do not fit the model")
    is_queried = np.isin(real, question.queried)
    seen = ~is_queried & (intervals[real, 0] == intervals[real, 1])
    if not np.all(np.isfinite(intervals[real[seen]])):
        raise Rejected("a value that is observed is not finite")
    if np.any(~is_queried & ~seen & (np.isfinite(intervals[real]).any(axis=1))):
        text = "the checker knows no masses of intervals of a Gaussian with covariances; query the variable"
        raise Rejected(text)
    asked = [v for v in question.queried.tolist() if v in real]
    wanted = [*asked, *real[seen].tolist()]
    moments = (_network if kind == "linear-gaussian" else _mixture)(arrays, question, wanted, budget)
    if not (np.all(np.isfinite(moments.means)) and np.all(np.isfinite(moments.covariances))):
        raise Rejected("a mean or a covariance is not finite")
    return Normals.of(moments, intervals[asked], intervals[real[seen], 0])


def _mixture(arrays: Arrays, question: Question, wanted: list[int], budget: CheckBudget) -> NormalMoments:
    logs, means, cov = (np.asarray(arrays[name], np.float64) for name in ("log_weights", "means", "covariances"))
    n = len(question.sizes)
    budget.need(WORKING * FLOAT * len(logs) * len(wanted) ** 2, "the covariances")
    refuse_huge(logs, "the mixture")
    if means.shape != (len(logs), n) or cov.shape != (len(logs), n, n) or np.any(cov != cov.swapaxes(1, 2)):
        raise Rejected("the mixture's arrays are no weights, means and symmetric matrices of one size")
    means, cov = means[:, wanted], cov[:, wanted][:, :, wanted]
    nothing = np.zeros((len(logs), 0))
    return NormalMoments(logs, nothing, means, np.zeros_like(means), cov, np.zeros_like(cov), 0.0)


@dataclass(frozen=True, eq=False)
class _Node:
    """A real variable: its parents, and arrays with an axis for each discrete one."""

    discrete: list[int]
    real: list[int]
    intercept: Floats
    coefficients: Floats
    sd: Floats


def _nodes(arrays: Arrays, sizes: Ints) -> dict[int, _Node]:
    """Read the real variables of a network, which follow the discrete ones."""
    found: dict[int, _Node] = {}
    parents: list[int] = arrays["parents"].tolist()
    at: dict[str, int] = dict.fromkeys(("intercepts", "coefficients", "sds"), 0)

    def take(name: str, shape: list[int]) -> Floats:
        start = at[name]
        at[name] = start + math.prod(shape)
        return np.asarray(arrays[name][start : at[name]], np.float64).reshape(shape)

    first = int(np.count_nonzero(sizes))
    for v, count in enumerate(arrays["parent_counts"].tolist(), first):
        above, parents = parents[:count], parents[count:]
        discrete, real = [u for u in above if sizes[u]], [u for u in above if not sizes[u]]
        shape = [int(sizes[u]) for u in discrete]
        intercepts, coefficients = take("intercepts", shape), take("coefficients", [*shape, len(real)])
        found[v] = _Node(discrete, real, intercepts, coefficients, take("sds", shape))
    if len(found) != len(sizes) - first or np.any(sizes[:first] == 0) or any(at[k] != len(arrays[k]) for k in at):
        raise Rejected("the network's arrays do not fit its variables")
    return found


def _ordered(nodes: Mapping[int, _Node], wanted: Sequence[int]) -> list[int]:
    """Return variables and all their real ancestors, parents first; refuse a cycle."""
    needed, order, waiting = set(wanted), list[int](), list(wanted)
    while waiting:
        more = set(nodes[waiting.pop()].real) - needed
        needed |= more
        waiting += more
    while len(order) < len(needed):
        ready = [v for v in sorted(needed - set(order)) if set(nodes[v].real) <= set(order)]
        if not ready:
            raise Rejected("the network has a directed cycle")
        order += ready
    return order


def _network(arrays: Arrays, question: Question, wanted: list[int], budget: CheckBudget) -> NormalMoments:
    """Write a linear-Gaussian network as a mixture: a Gaussian per configuration of the discrete variables."""
    nodes = _nodes(arrays, question.sizes)
    order = _ordered(nodes, wanted)
    states, logs, slack = _configurations(arrays, question, [u for v in order for u in nodes[v].discrete], budget)
    place = {v: k for k, v in enumerate(order)}
    n_parts, m = len(logs), len(order)
    budget.need(WORKING * FLOAT * n_parts * m * m, "the covariances")
    # x = mean + factor noise, the noise standard normal; `_off` bounds the rounding of both
    mean, factor = np.zeros((n_parts, m)), np.zeros((n_parts, m, m))
    mean_off, factor_off = np.zeros_like(mean), np.zeros_like(factor)
    for k, v in enumerate(order):
        budget.look()
        node, at = nodes[v], tuple(states[u] for u in nodes[v].discrete)
        above = [place[u] for u in node.real]
        weight = np.broadcast_to(node.coefficients[at], (n_parts, len(above)))
        size, step = np.abs(weight), (2.0 * len(above) + 8.0) * UNIT
        mean[:, k] = node.intercept[at] + np.einsum("bp,bp->b", weight, mean[:, above])
        known = np.einsum("bp,bp->b", size, np.abs(mean[:, above])) + np.abs(node.intercept[at])
        mean_off[:, k] = np.einsum("bp,bp->b", size, mean_off[:, above]) * (1.0 + step) + step * known
        factor[:, k] = np.einsum("bp,bpe->be", weight, factor[:, above])
        known = np.einsum("bp,bpe->be", size, np.abs(factor[:, above]))
        factor_off[:, k] = np.einsum("bp,bpe->be", size, factor_off[:, above]) * (1.0 + step) + step * known
        if not np.all(node.sd[at] > 0.0):
            raise Rejected("the network has a standard deviation that is not positive")
        factor[:, k, k] = node.sd[at]
    chosen = [place[v] for v in wanted]
    factor, factor_off = factor[:, chosen], factor_off[:, chosen]
    size, other = np.abs(factor), factor_off.swapaxes(1, 2)
    off = np.matmul(size, other) + np.matmul(factor_off, size.swapaxes(1, 2)) + np.matmul(factor_off, other)
    off = (off + (m + 8.0) * UNIT * np.matmul(size, size.swapaxes(1, 2))) * (1.0 + 1e-9)
    tables = _tables(question, states, n_parts)
    cov = np.matmul(factor, factor.swapaxes(1, 2))
    return NormalMoments(logs, tables, mean[:, chosen], mean_off[:, chosen], cov, off, slack)


def _tables(question: Question, states: Mapping[int, Ints], n_parts: int) -> Floats:
    """Return, per configuration, 0 for its states of the discrete query variables and -inf for other states."""
    parts = [np.zeros((n_parts, 0))]
    for v in question.queried.tolist():
        if question.sizes[v]:
            parts.append(np.where(np.arange(int(question.sizes[v])) == states[v][:, None], 0.0, -np.inf))
    return np.concatenate(parts, axis=1)


def _configurations(
    arrays: Arrays, question: Question, parents: list[int], budget: CheckBudget
) -> tuple[dict[int, Ints], Floats, float]:
    """Return configurations of discrete variables, logs of their joint probabilities with the evidence, slack."""
    sizes = question.sizes
    n_discrete = int(np.count_nonzero(sizes))
    used = sorted({*parents, *(v for v in question.queried.tolist() if sizes[v])})
    possible = {v: np.flatnonzero(question.weights_of(v) > -np.inf) for v in range(n_discrete)}
    if math.prod(len(possible[v]) for v in used) > MOST_CONFIGURATIONS:
        raise Rejected(f"the discrete variables have more than {MOST_CONFIGURATIONS} configurations")
    grid = np.meshgrid(*(possible[v] for v in used), indexing="ij")
    states = {v: axis.reshape(-1).astype(np.int64) for v, axis in zip(used, grid, strict=True)}
    if not n_discrete:
        return states, np.zeros(1), 0.0
    free = [v for v in used if len(possible[v]) > 1 or v in question.queried]
    asked = Question(sizes[:n_discrete], np.array(free, np.int64), question.log_weights)
    problem = reduce(*tables_of("bayesian", sizes[:n_discrete], arrays), asked)
    rows: list[list[int]] = np.stack([states[v] for v in free], axis=1).tolist() if free else [[]]
    ends = np.array([[value_at(problem, row, side, budget=budget) for side in (-1, 1)] for row in rows])
    keep = ends[:, 1] > -np.inf
    if not np.any(keep):
        raise Rejected("the evidence has probability 0")
    low, high = ends[keep].T
    if not np.all(np.isfinite(low)):
        raise Rejected("a configuration of discrete variables has a probability too small to be told")
    logs = 0.5 * (low + high)
    slack = float((high - low).max()) + 4.0 * UNIT * float(np.abs(logs).max())
    return {v: x[keep] for v, x in states.items()}, logs, slack
