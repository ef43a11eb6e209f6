"""The parts of the bound on mixtures, called as plain functions: none is below the truth in exact arithmetic.

Compiled, they cannot be called from outside of kernels, so that this file runs with NUMBA_DISABLE_JIT=1 alone.
"""

from __future__ import annotations

import itertools
import math
import os
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from certimap.kernels.mixture_bounds import (
    EPS,
    half_bounds,
    has_root,
    kappa,
    largest_quadratic,
    log_sum_of,
    mixture_bound,
    room_for,
    tangent_bound,
)

pytestmark = [
    pytest.mark.nojit,
    pytest.mark.skipif(not os.environ.get("NUMBA_DISABLE_JIT"), reason="calls parts of kernels"),
]


def test_kappa_bounds_its_function_everywhere_below() -> None:
    with mpmath.workdps(60):
        for z in [0.0, *np.exp(np.linspace(-20, 6, 200)).tolist(), 1.9999999, 2.0, 2.0000001, 300.0]:
            y = mpmath.mpf(z)
            true = 2 * (mpmath.exp(y) - 1 - y) / y**2 if z else mpmath.mpf(1)
            assert true <= kappa(z) * (1 + 4 * mpmath.mpf(EPS)) <= true * mpmath.mpf("1.03")


def exact(matrix: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in row] for row in matrix]


def is_positive_definite(matrix: np.ndarray) -> bool:
    """Whether a symmetric matrix is positive definite, by elimination in rationals."""
    rows = exact(matrix)
    for i in range(len(rows)):
        if rows[i][i] <= 0:
            return False
        for j in range(i + 1, len(rows)):
            share = rows[j][i] / rows[i][i]
            rows[j] = [x - share * y for x, y in zip(rows[j], rows[i], strict=True)]
    return True


def random_matrix(rng: np.random.Generator, n: int) -> np.ndarray:
    """A symmetric matrix; many are singular but for a little, up or down."""
    half = rng.normal(size=(n, int(rng.integers(max(n - 1, 1), n + 2))))
    matrix = half @ half.T + float(rng.choice([0.0, 1e-14, 1e-11, 1e-3, -1e-13, -1e-6, -0.5])) * np.eye(n)
    return 0.5 * (matrix + matrix.T)


def test_a_matrix_with_a_root_is_positive_definite() -> None:
    rng, counts = np.random.default_rng(0), [0, 0]
    for _ in range(300):
        matrix = random_matrix(rng, int(rng.integers(1, 5)))
        lower = np.zeros_like(matrix)
        if has_root(matrix, lower):
            assert is_positive_definite(matrix)
            lower = np.tril(lower)
            assert np.allclose(lower @ lower.T, matrix, rtol=1e-6, atol=1e-9)
        counts[has_root(matrix, lower)] += 1
    assert min(counts) > 50
    assert not has_root(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-12]]), np.zeros((2, 2)))
    assert has_root(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-11]]), np.zeros((2, 2)))


def quadratic(slope: np.ndarray, matrix: np.ndarray, at: tuple[float, ...]) -> Fraction:
    t, s, m = [Fraction(x) for x in at], [Fraction(float(x)) for x in slope], exact(matrix)
    places = range(len(t))
    return sum((s[i] * t[i] - sum(t[i] * m[i][j] * t[j] for j in places) / 2 for i in places), Fraction(0))


def tries(slope: np.ndarray, matrix: np.ndarray, sides: list[tuple[float, float]]) -> Fraction:
    """The largest exact value at points that matter: the best of a grid, and where a few ascents lead."""
    grid = np.array(list(itertools.product(*(np.linspace(a, b, 5) for a, b in sides))))
    values = grid @ slope - 0.5 * np.einsum("ti,ij,tj->t", grid, matrix, grid)
    point = grid[np.argmax(values)].copy()
    for _ in range(30):
        for i, (low, high) in enumerate(sides):
            pull = slope[i] - matrix[i] @ point + matrix[i, i] * point[i]
            point[i] = min(max(pull / matrix[i, i], low), high) if matrix[i, i] > 0 else point[i]
    return max(quadratic(slope, matrix, tuple(p.tolist())) for p in (grid[np.argmax(values)], point))


def cases(count: int):
    for t in range(count):
        rng = np.random.default_rng([31, t])
        n = int(rng.integers(1, 4))
        yield rng, n, rng.normal(size=n) * 10.0 ** rng.uniform(-3, 1), random_matrix(rng, n)


def test_a_tangent_bounds_a_concave_function_and_its_halves() -> None:
    for rng, n, slope, matrix in cases(120):
        if not has_root(matrix, np.zeros((n, n))):
            continue
        variable = int(rng.integers(-1, n))
        low, high = [(-1.0, 0.0), (0.0, 1.0)][int(rng.integers(2))]
        sides = [(low, high) if i == variable else (-1.0, 1.0) for i in range(n)]
        at = rng.uniform(-1.0, 1.0, n)
        value, size = tangent_bound(slope, matrix, at, variable, low, high)
        assert Fraction(value) + Fraction(EPS * (4.0 * n + 16.0) * size) >= tries(slope, matrix, sides)
        if n == 1:  # one step leads to the top
            assert value == pytest.approx(float(tries(slope, matrix, sides)), abs=1e-9)


def test_the_largest_of_any_quadratic_function_is_bounded() -> None:
    for _, n, slope, matrix in cases(200):
        before = matrix.copy()
        room = room_for(1, n, True)
        value, error = largest_quadratic(slope, matrix, room)
        assert Fraction(value) + Fraction(error) >= tries(slope, before, [(-1.0, 1.0)] * n)
        added = np.diag(matrix) - np.diag(before)
        assert np.all(added >= 0.0)
        assert np.array_equal(matrix - np.diag(np.diag(matrix)), before - np.diag(np.diag(before)))
        assert room.kept[4] == pytest.approx(0.5 * added.sum(), rel=1e-12, abs=1e-15)
        assert room.kept[4] >= 0.5 * added.sum() * (1.0 - 1e-12) - 1e-15 * np.abs(np.diag(before)).sum()
        if is_positive_definite(before - 1e-6 * np.eye(n)):
            assert not added.any()


def test_sums_of_logs() -> None:
    assert log_sum_of(np.full(3, -math.inf)) == -math.inf
    assert log_sum_of(np.array([-900.0, -math.inf, -900.0])) == pytest.approx(-900.0 + math.log(2.0))


class Mixture:
    """A mixture given by values, slopes and curvatures, which is to be bounded on [-1, 1]^n."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.k, self.n, self.is_full = int(rng.integers(1, 6)), int(rng.integers(1, 4)), bool(rng.integers(2))
        k, n = self.k, self.n
        radius = 10.0 ** (rng.uniform(-5.0, 0.2) if rng.random() < 0.3 else rng.uniform(-1.0, 0.2))
        self.value = rng.normal(-3.0, 1.5, k) + float(rng.choice([0.0, -500.0]))
        self.slope = rng.normal(size=(k, n)) * radius
        if rng.random() < 0.5:  # far from a maximum, where bends count as lifts
            self.slope = 3.0 * self.slope + rng.normal(size=n)
        bend = rng.normal(size=(k, n, n + 1)) * radius
        self.bend = -np.einsum("kij,klj->kil", bend, bend) * float(rng.choice([1.0, 0.1, -0.2]))
        self.bend = 0.5 * (self.bend + np.swapaxes(self.bend, 1, 2))
        if not self.is_full:
            self.bend *= np.eye(n)
        self.spread = np.abs(rng.normal(size=(k, n))) * radius**2 * float(rng.choice([0.0, 0.0, 0.3]))
        if rng.random() < 0.4:
            self.spread[rng.integers(k)] = math.inf
        if rng.random() < 0.2:
            self.value[rng.integers(k)] -= 40.0
        known = np.where(np.isfinite(self.spread), self.spread, 0.0)
        diagonal = np.diagonal(self.bend, axis1=1, axis2=2)
        rise = np.abs(self.slope).sum(1) + 0.5 * (np.maximum(diagonal, 0.0) + known).sum(1)
        rise += 0.5 * (np.abs(self.bend).sum((1, 2)) - np.abs(diagonal).sum(1))
        if rng.random() < 0.3:  # some are said to rise a lot
            rise[rng.integers(k)] += 6.0
        self.peak = (self.value + rise) + 1e-15 * (np.abs(self.value) + rise + 1.0)
        self.worst = self.bend + known[:, :, None] * np.eye(n)

    def fill(self):
        x = room_for(self.k, self.n, self.is_full)
        x.log_value[:], x.log_peak[:], x.slope[:], x.spread[:] = self.value, self.peak, self.slope, self.spread
        x.bend[:] = self.bend.reshape(self.k, -1) if self.is_full else np.diagonal(self.bend, axis1=1, axis2=2)
        return x

    def is_above(self, bound: float, sides: list[tuple[float, float]]) -> bool:
        """Whether the mixture is nowhere above a bound, at the highest place that a grid and ascents find."""
        points = np.array(list(itertools.product(*(np.linspace(a, b, 9) for a, b in sides))))
        for _ in range(3):
            logs = self.value + points @ self.slope.T
            logs += 0.5 * np.einsum("ti,kij,tj->tk", points, self.worst, points)
            sums = np.logaddexp.reduce(logs, axis=1)
            best = points[np.argmax(sums)]
            points = np.array([np.clip(best + step, *np.transpose(sides)) for step in self.steps(best, sides)])
        with mpmath.workdps(50):
            total = mpmath.mpf(0)
            t = [mpmath.mpf(float(x)) for x in best]
            for k in range(self.k):
                log = mpmath.mpf(float(self.value[k]))
                for i in range(self.n):
                    log += mpmath.mpf(float(self.slope[k, i])) * t[i]
                    log += (
                        mpmath.fsum(mpmath.mpf(float(self.worst[k, i, j])) * t[i] * t[j] for j in range(self.n))
                        / 2
                    )
                total += mpmath.exp(log)
            return mpmath.log(total) <= mpmath.mpf(bound)

    def steps(self, best: np.ndarray, sides: list[tuple[float, float]]) -> list[np.ndarray]:
        grid = itertools.product(*(np.linspace(a - b, b - a, 5) / 8.0 for a, b in sides))
        return [np.zeros(self.n), *(np.array(step) for step in grid)]


def test_no_mixture_is_above_its_bound_or_those_of_its_halves() -> None:
    n_second = 0
    for t in range(100):
        rng = np.random.default_rng([37, t])
        mixture = Mixture(rng)
        x = mixture.fill()
        bound = mixture_bound(x)
        whole = [(-1.0, 1.0)] * mixture.n
        assert mixture.is_above(bound, whole)
        n_second += x.kept[0] > 0.0
        v = int(rng.integers(mixture.n))
        for half, side in zip(half_bounds(x, v, bound), ((-1.0, 0.0), (0.0, 1.0)), strict=True):
            assert half <= bound
            assert mixture.is_above(half, [side if i == v else whole[i] for i in range(mixture.n)])
    assert n_second > 50


CHOSEN = {  # values, slopes and bends of components of one variable
    "a lift moves the mean slope": ([math.log(0.5)] * 2, [1.0, -1.0], [-4.0, 4.0]),
    "a share of almost nothing has a steep slope": ([0.0, -28.0], [0.0, 25.0], [0.0, -80.0]),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_mixtures_are_below_their_bounds(name: str) -> None:
    mixture = Mixture(np.random.default_rng(0))
    value, slope, bend = (np.array(numbers) for numbers in CHOSEN[name])
    mixture.k, mixture.n, mixture.is_full = len(value), 1, False
    mixture.value, mixture.slope = value, slope[:, None]
    mixture.bend = mixture.worst = bend[:, None, None]
    mixture.spread = np.zeros((len(value), 1))
    highest = [
        max(t * s + 0.5 * t * t * b for t in np.linspace(-1, 1, 2001)) for s, b in zip(slope, bend, strict=True)
    ]
    mixture.peak = value + highest + 1e-6
    x = mixture.fill()
    assert mixture.is_above(mixture_bound(x), [(-1.0, 1.0)])
    assert x.kept[0] > 0.0


def test_a_mixture_that_is_constant_has_no_bound_below_its_value() -> None:
    rng = np.random.default_rng(7)
    with mpmath.workdps(60):
        for known in (0.0, math.inf):  # spreads: with an expansion and without one
            for _ in range(40):
                k = int(rng.integers(1, 9))
                x = room_for(k, 1, False)
                x.log_value[:] = x.log_peak[:] = rng.normal(-float(rng.choice([0.0, 30.0, 700.0])), 3.0, k)
                x.spread[:] = known
                exact_log = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(float(v))) for v in x.log_value))
                assert exact_log <= mpmath.mpf(float(mixture_bound(x))) <= exact_log + mpmath.mpf("1e-11")


def test_scores_are_no_numbers_below_zero() -> None:
    for t in range(50):
        x = Mixture(np.random.default_rng([41, t])).fill()
        mixture_bound(x)
        assert np.all(x.score >= 0.0)
