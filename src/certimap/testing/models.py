"""Small random models with difficult features, and dense tables as posteriors, which enumerate every answer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.core.posterior import Facts, LogInterval
from certimap.errors import ModelError
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor


class TablePosterior:
    """A distribution given by its table; implements `BoxPosterior` by enumeration.

    - `domain`: categorical variables only; at most 2^22 joint states.
    - `probs`: nonnegative weights, shape (K_1, ..., K_n) or flat with the last variable fastest; normalised.
    - `log_evidence`: ln p(e) in nats, or None if unknown.
    - `looseness`: nats added to every `log_bound`, to imitate loose bounds.
    """

    def __init__(
        self,
        domain: Domain | Sequence[int],
        probs: Any,
        *,
        log_evidence: float | None = 0.0,
        looseness: float = 0.0,
    ) -> None:
        self.domain = domain if isinstance(domain, Domain) else Domain.of_sizes(domain)
        if not self.domain.is_discrete:
            raise ModelError("a table needs categorical variables only")
        weights: Floats = np.array(probs, np.float64).reshape(-1)
        n = int(np.prod(self.domain.n_states))
        if weights.shape != (n,) or not np.all(weights >= 0.0) or not 0.0 < weights.sum() < np.inf:
            raise ModelError(f"a table over {n} joint states needs as many nonnegative weights, not all zero")
        self.probs: Floats = weights / weights.sum()
        with np.errstate(divide="ignore"):
            self._log_probs = np.log(self.probs)
        self._facts, self.looseness = Facts.of(self.domain, log_evidence=log_evidence), looseness
        self.points: Points = all_points(self.domain)
        sizes = self.domain.n_states
        self._strides = np.array([int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))], np.int64)

    @property
    def facts(self) -> Facts:
        return self._facts

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, from the union of disjoint boxes if given."""
        probs = self.probs if boxes is None else self.probs * np.any(inside(boxes, self.points), axis=0)
        total: Floats = np.cumsum(probs)
        if not total[-1] > 0.0:
            raise ModelError("the boxes to sample from have no mass")
        u = rng.random(n) * float(total[-1])
        last = int(np.flatnonzero(probs)[-1])  # rounding never lands on a state without mass
        rows: Ints = np.searchsorted(total, u, side="right").astype(np.int64)
        return self.points[np.minimum(rows, last)]

    def log_prob(self, points: Points) -> Floats:
        return self._log_probs[self.rows(points)]

    def rows(self, points: Points) -> Ints:
        """Return the index of each point in the flat table, shape (batch,)."""
        return np.asarray(points, np.int64) @ self._strides

    def log_mass(self, boxes: Boxes) -> Floats:
        with np.errstate(divide="ignore"):
            return np.log(inside(boxes, self.points) @ self.probs)

    def log_bound(self, boxes: Boxes) -> Floats:
        best = np.where(inside(boxes, self.points), self._log_probs[None, :], -np.inf).max(axis=1, initial=-np.inf)
        return np.minimum(best + self.looseness, 0.0)

    def log_mass_each(self, boxes: Boxes) -> Floats:
        return self._each(boxes, self.log_mass)

    def log_bound_each(self, boxes: Boxes) -> Floats:
        return self._each(boxes, self.log_bound)

    def _each(self, boxes: Boxes, answer: Any) -> Floats:
        n_columns = self.domain.total_states
        found = [answer(with_column(boxes, column)) for column in range(n_columns)]
        return np.array(found, np.float64).reshape(n_columns, len(boxes)).T.copy()


class BoundedTable:
    """A table of ln p(q, e) with bounds on boxes only: no p(e), no masses, no draws.

    `table`: the distribution.
    `log_evidence`: ln p(e), included in `log_prob` and the bounds but not in `facts`.
    """

    def __init__(self, table: TablePosterior, log_evidence: float = -7.0) -> None:
        self.table, self.log_scale = table, log_evidence

    @property
    def domain(self) -> Domain:
        return self.table.domain

    @property
    def facts(self) -> Facts:
        return Facts.of(self.domain, is_normalised=False)

    def log_prob(self, points: Points) -> Floats:
        return self.table.log_prob(points) + self.log_scale

    def log_bound(self, boxes: Boxes) -> Floats:
        return self.table.log_bound(boxes) + self.log_scale

    def log_bound_each(self, boxes: Boxes) -> Floats:
        return self.table.log_bound_each(boxes) + self.log_scale


class IntervalTable(BoundedTable):
    """A `BoundedTable` with two-sided values, `gap` nats from the truth at each point.

    `table`, `log_evidence`: as in `BoundedTable`.
    `gap`: nonnegative, shape (n_points,) in the order of `table.points`.
    """

    def __init__(self, table: TablePosterior, gap: Floats, log_evidence: float = -7.0) -> None:
        super().__init__(table, log_evidence)
        self.gap = gap

    def log_prob(self, points: Points) -> Floats:
        return self.log_prob_interval(points).lower

    def log_prob_interval(self, points: Points) -> LogInterval:
        value = super().log_prob(points)
        gap = self.gap[self.table.rows(points)]
        return LogInterval(value - gap, value + gap)


def random_domain(rng: np.random.Generator, *, max_variables: int = 5, max_states: int = 4) -> Domain:
    """Return a domain of 1 to `max_variables` variables with 1 to `max_states` states each, by `rng`."""
    n = int(rng.integers(1, max_variables + 1))
    return Domain.of_sizes(int(k) for k in rng.integers(1, max_states + 1, n))


def random_table(rng: np.random.Generator, domain: Domain | None = None) -> TablePosterior:
    """Return a random table by `rng`, some with zeros or ties; without a `domain`, of random variables."""
    domain = random_domain(rng) if domain is None else domain
    n = int(np.prod(domain.n_states))
    probs = rng.gamma(rng.choice([0.1, 1.0, 20.0]), size=n)
    if rng.random() < 0.3:
        probs[rng.random(n) < 0.4] = 0.0
    if rng.random() < 0.3:
        probs = np.ceil(4.0 * probs / max(probs.max(), 1e-300))
    if not probs.sum() > 0.0:
        probs[int(rng.integers(n))] = 1.0
    return TablePosterior(domain, probs, looseness=float(rng.choice([0.0, 0.5])))


def random_circuit(
    rng: np.random.Generator, domain: Domain, *, n_components: int = 3, zeros: float = 0.2
) -> Circuit:
    """Return a random smooth and decomposable circuit over the categorical variables of a `domain`.

    Scopes are split at random, by `rng` alone. Parents share each scope's pool of `n_components` mixtures, so that
    the circuit is a graph, not a tree. `zeros` is the probability that a state is impossible in a leaf.
    """
    build = CircuitBuilder(domain)

    def leaf(variable: int) -> int:
        size = int(domain.n_states[variable])
        weights = rng.gamma(0.7, size=size) + 1e-9
        dropped = rng.random(size) < zeros
        dropped[int(rng.integers(size))] = False
        weights[dropped] = 0.0
        with np.errstate(divide="ignore"):
            return build.categorical(variable, log_weights=np.log(weights / weights.sum()))

    def pool(scope: list[int]) -> list[int]:
        if len(scope) == 1:
            return [leaf(scope[0]) for _ in range(n_components)]
        order = [scope[int(i)] for i in rng.permutation(len(scope))]
        cut = int(rng.integers(1, len(order)))
        left, right = pool(order[:cut]), pool(order[cut:])
        products = [
            build.product([left[int(rng.integers(len(left)))], right[int(rng.integers(len(right)))]])
            for _ in range(n_components + 1)
        ]
        return [mixture(products) for _ in range(n_components)]

    def mixture(children: list[int]) -> int:
        weights = rng.dirichlet(np.ones(len(children)))
        return build.sum(children, log_weights=[float(w) for w in np.log(weights + 1e-12)])

    mixture(pool(list(range(len(domain)))))
    return build.build(normalised=False)


def random_network(
    rng: np.random.Generator, domain: Domain, *, max_parents: int = 2, zeros: float = 0.1
) -> BayesianNetwork:
    """Return a random Bayesian network: each variable has up to `max_parents` earlier variables as parents."""
    factors: list[Factor] = []
    for child in range(len(domain)):
        n = int(rng.integers(0, min(child, max_parents) + 1))
        parents = sorted(int(p) for p in rng.choice(child, n, replace=False)) if n else []
        shape = [int(domain.n_states[v]) for v in (*parents, child)]
        table = rng.gamma(0.7, size=shape) + 1e-6
        dropped = rng.random(shape) < zeros
        dropped[..., int(rng.integers(shape[-1]))] = False
        table[dropped] = 0.0
        factors.append(Factor((*parents, child), table / table.sum(axis=-1, keepdims=True)))
    return BayesianNetwork(domain, factors)


def random_boxes(domain: Domain, rng: np.random.Generator, n: int) -> Boxes:
    """Return `n` random boxes of a `domain` by `rng`; none is empty, and the first is the whole space."""
    mask = rng.random((n, domain.total_states)) < rng.choice([0.3, 0.6, 0.9], (n, 1))
    for row in mask:
        for i in range(len(domain)):
            row[int(domain.offsets[i]) + int(rng.integers(int(domain.n_states[i])))] = True
    mask[0] = True
    return Boxes(domain, mask)


def check_draws(posterior: Any, points: Points, weights: Floats, boxes: Boxes | None, n: int, rng: int) -> None:
    """Require that equal seeds give equal draws, distributed as `weights`, shape (n_points,), not all zero."""
    drawn = posterior.sample(n, np.random.default_rng(rng), boxes)
    again = posterior.sample(n, np.random.default_rng(rng), boxes)
    place = "the whole space" if boxes is None else "a union of boxes"
    require(drawn.shape == (n, points.shape[1]), f"sample returns shape {drawn.shape}")
    require(bool(np.array_equal(drawn, again)), f"draws from {place} do not replay by seed")
    sizes = tuple(int(k) for k in posterior.domain.n_states)
    counts = np.bincount(np.ravel_multi_index(tuple(drawn.astype(np.int64).T), sizes), minlength=len(points))
    expected = n * weights / weights.sum()
    require(not np.any(counts[expected == 0.0]), f"a draw from {place} has probability 0 there")
    # Freeman-Tukey: squares of nearly standard normals, whatever the expected counts, halved.
    distance = float(np.sum((np.sqrt(counts) + np.sqrt(counts + 1.0) - np.sqrt(4.0 * expected + 1.0)) ** 2))
    df = max(1, int(np.sum(expected > 0.0)) - 1)
    close = df + 6.0 * math.sqrt(2.0 * df) + 20.0
    require(distance < close, f"draws from {place} do not follow the probabilities")


def all_points(domain: Domain) -> Points:
    """Return every joint state, shape (n_points, n_variables), the last variable varying fastest."""
    sizes = tuple(int(k) for k in domain.n_states)
    return np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1).astype(domain.point_dtype)


def with_column(boxes: Boxes, column: int) -> Boxes:
    """Return the boxes with the column's variable set to its state."""
    offsets = boxes.domain.offsets
    i = int(np.searchsorted(offsets, column, side="right")) - 1
    mask = boxes.mask.copy()
    mask[:, offsets[i] : offsets[i + 1]] = False
    mask[:, column] = True
    return Boxes(boxes.domain, mask)


def inside(boxes: Boxes, points: Points) -> Flags:
    """Return which points are in each box, shape (batch, n_points)."""
    found = np.ones((len(boxes), len(points)), np.bool_)
    for i in range(len(boxes.domain)):
        found &= boxes.mask[:, boxes.domain.offsets[i] + points[:, i].astype(np.int64)]
    return found


def log_sums(held: Flags, log_probs: Floats) -> Floats:
    """Return ln of the total probability of the points in each box, shape (batch,)."""
    return np.logaddexp.reduce(np.where(held, log_probs, -np.inf), axis=1)


def maxima(held: Flags, log_probs: Floats) -> Floats:
    """Return ln of the largest probability of a point in each box, shape (batch,)."""
    return np.where(held, log_probs, -np.inf).max(axis=1)


def same(a: Floats, b: Floats, atol: float) -> bool:
    """Whether logs agree within `atol` nats, infinite ones exactly."""
    a, b = np.asarray(a), np.asarray(b)
    finite = np.isfinite(b)
    return a.shape == b.shape and bool(
        np.array_equal(a[~finite], b[~finite]) and np.all(np.abs(a[finite] - b[finite]) <= atol)
    )


def run_cases(suite: object, *left_out: str) -> None:
    """Run the cases of a suite, its methods whose names begin with test_."""
    for name, case in inspect.getmembers(suite, inspect.ismethod):
        if name.startswith("test_") and name not in left_out:
            case()


def require(condition: bool, sentence: str) -> None:
    """Raise AssertionError with a sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)
