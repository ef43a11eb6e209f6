"""Mixtures of Gaussians with full covariances, with their marginals and conditionals in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.cached import cached_property
from certimap.core.domain import Domain, Real, as_real
from certimap.core.logs import log_sum
from certimap.core.model import Model
from certimap.core.rounding import LEAST_VARIANCE
from certimap.errors import ModelError, QueryError

LOG_2PI = math.log(2.0 * math.pi)
ENTRIES_AT_ONCE = 1 << 23  # limit on the size of an array of points, components and variables
EPS = 2.0**-52
DEVIATIONS = 40.0  # no density within e^-745 of the highest lies farther from a mean
FARTHEST = 1e150  # standard deviations, whose square is a number
NEGLIGIBLE = 750.0  # nats below the highest component at which another's share is 0 in floats


class GaussianMixture(Model):
    """A density over real variables: a weighted sum of Gaussians, each with its own covariance matrix.

    Queries, evidence (values, and intervals of query variables) and certified modes work as for circuits; other
    variables are integrated out. Immutable.

    - `weights`: positive, shape (K,); they are divided by their sum.
    - `means`: shape (K, n).
    - `covariances`: symmetric positive definite matrices, shape (K, n, n).
    - `names`: one name per variable; None for "0", "1", ...

    Raises ModelError for shapes that do not fit, numbers that are not finite, weights that are not positive, and
    covariances that are not symmetric positive definite.
    """

    def __init__(
        self, weights: ArrayLike, means: ArrayLike, covariances: ArrayLike, names: Sequence[str] | None = None
    ) -> None:
        weights, means, covariances = (np.array(x, np.float64) for x in (weights, means, covariances))
        shape = means.shape
        if len(shape) != 2 or weights.shape != shape[:1] or covariances.shape != (*shape, shape[1]):
            raise ModelError(
                f"weights, means and covariances have the shapes {weights.shape}, {means.shape} and "
                f"{covariances.shape}; expected (K,), (K, n) and (K, n, n)"
            )
        if not means.size or not np.all(np.isfinite(means)) or not np.all((weights > 0) & np.isfinite(weights)):
            raise ModelError("expected at least one component and one variable, finite means and positive weights")
        transposed = np.swapaxes(covariances, 1, 2)
        with np.errstate(invalid="ignore"):
            is_like = np.abs(covariances - transposed) <= 1e-9 * np.abs(transposed)
        wrong = np.flatnonzero(~np.all(is_like & np.isfinite(covariances), axis=(1, 2)))
        if len(wrong):
            raise ModelError(f"covariance {wrong[0]} is not symmetric and finite; expected a covariance matrix")
        domain = Domain(Real(name) for name in (names or map(str, range(means.shape[1]))))
        if len(domain) != means.shape[1]:
            raise ModelError(f"{len(domain)} names were given for {means.shape[1]} variables; expected one each")
        symmetric = 0.5 * (covariances + transposed)
        self._fill(domain, np.log(weights) - math.log(float(weights.sum())), means, symmetric)

    def _fill(
        self,
        domain: Domain,
        log_weights: Floats,
        means: Floats,
        covariances: Floats,
        factors: Floats | None = None,
    ) -> None:
        self.domain, self.log_weights, self.means, self.covariances = domain, log_weights, means, covariances
        # what rounding moved each component's log weight by (nats), and its mean (in standard deviations)
        self.log_errors: Floats = np.zeros(len(log_weights))
        self.shifts: Floats = np.zeros(len(log_weights))
        self.factors: Floats = _inverse_roots(covariances) if factors is None else factors
        for array in (self.log_weights, self.means, self.covariances, self.factors):
            array.setflags(write=False)

    def __repr__(self) -> str:
        return f"GaussianMixture({len(self.log_weights)} components, {len(self.domain)} variables)"

    def log_density(self, points: ArrayLike) -> Floats:
        """Return ln of the density at `points` (batch, n), variables in the domain's order: shape (batch,)."""
        points = np.asarray(points, np.float64)
        at_once = max(1, ENTRIES_AT_ONCE // self.means.size)
        parts = [points[start : start + at_once] for start in range(0, max(len(points), 1), at_once)]
        return np.concatenate([log_sum(self.log_components(part), 1) for part in parts])

    def log_components(self, points: Floats) -> Floats:
        """Return ln of each weighted component's density at `points`, shape (batch, n): shape (batch, K).

        Cost: about K n^2 / 2 operations per point.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.einsum("kde,bke->bkd", self.factors, points[:, None] - self.means)
            logs = self.log_tops - 0.5 * np.square(scaled).sum(axis=2)
        return np.where(logs > LEAST_LOG, logs, LEAST_LOG)  # squares may overflow, and inf - inf is NaN

    @property
    def log_tops(self) -> Floats:
        """ln of each weighted component's density at its mean, shape (K,)."""
        roots = np.log(np.diagonal(self.factors, axis1=1, axis2=2)).sum(axis=1)
        return self.log_weights + roots - 0.5 * len(self.domain) * LOG_2PI

    @cached_property
    def conditions(self) -> Floats:
        """Condition numbers of the factors in units of standard deviations, shape (K,), for rounding errors.

        A variable's unit has no influence on rounding in a Cholesky factorisation.
        """
        return _conditions(self.factors, self.covariances)

    def marginal(self, variables: Sequence[str]) -> GaussianMixture:
        """Return the mixture of `variables`, at least one name, in this order; others are integrated out."""
        at = [self.domain.index(name) for name in variables]
        if at == list(range(len(self.domain))):
            return self
        own = self.covariances[:, at][:, :, at]
        return self._with(self.log_weights, self.means[:, at], own, variables)

    def part(self, components: Ints) -> GaussianMixture:
        """Return some of the `components`, by number, with unchanged weights, which then add to less than 1."""
        logs, means, covariances = (a[components] for a in (self.log_weights, self.means, self.covariances))
        made = self._with(logs, means, covariances, self.domain.names)
        made.log_errors, made.shifts = self.log_errors[components], self.shifts[components]
        return made

    def given(self, evidence: Mapping[str, float]) -> tuple[GaussianMixture, float]:
        """Return p(the others | evidence), and ln of the density of the `evidence`: some values by name.

        Raises QueryError if the values lie so far out that the logs of all components are beyond the range of
        floats.
        """
        seen = [self.domain.index(name) for name in evidence]
        rest = [i for i in range(len(self.domain)) if i not in seen]
        if not rest:
            raise QueryError("evidence on every variable leaves nothing to ask; expected one variable without")
        if not seen:
            return self, 0.0
        variables = [cast(Real, self.domain.variables[i]) for i in seen]
        values = np.array([as_real(v, x) for v, x in zip(variables, evidence.values(), strict=True)])
        across, observed = self.covariances[:, rest][:, :, seen], self.covariances[:, seen][:, :, seen]
        roots = _inverse_roots(observed)
        off = values - self.means[:, seen]
        half = np.einsum("kde,kfe->kfd", roots, across)  # covariances with the whitened evidence
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.einsum("kde,ke->kd", roots, off)
            means = self.means[:, rest] + np.einsum("kfd,kd->kf", half, scaled)
            dets = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
            logs = self.log_weights + dets - 0.5 * np.square(scaled).sum(axis=1) - 0.5 * len(seen) * LOG_2PI
        told = np.isfinite(means).all(axis=1) & np.isfinite(logs)
        logs, means = np.where(told, logs, -np.inf), np.where(told[:, None], means, self.means[:, rest])
        log_evidence = float(log_sum(logs))
        if log_evidence == -np.inf:
            raise QueryError("the values observed are too far out: the log of their density is beyond floats")
        covariances = self.covariances[:, rest][:, :, rest] - np.einsum("kfd,kgd->kfg", half, half)
        given = self._with(logs - log_evidence, means, covariances, [self.domain.names[i] for i in rest])
        reach, share = _rounding(roots, observed, np.where(told[:, None], off, 0.0))
        moved = np.einsum("kfd,kd->kf", np.abs(half), reach) * share[:, None] + EPS * np.abs(means)
        lengths = np.linalg.norm(reach, axis=1)
        given.log_errors = self.errors(lengths) + share * np.square(lengths) + EPS * np.abs(dets)
        given.shifts = given.whitened(moved) + self.shifts * (1.0 + EPS)
        return given, log_evidence

    @classmethod
    def of_factors(
        cls, names: Sequence[str], means: Floats, factors: Floats, log_errors: Floats, shifts: Floats
    ) -> GaussianMixture:
        """Build Gaussians, each of weight 1, from their `means` and lower triangular inverse roots `factors`.

        `names` are of the variables; `log_errors` and `shifts`, one number per Gaussian, say what rounding moved.
        """
        roots = np.linalg.solve(factors, np.broadcast_to(np.eye(len(names)), factors.shape))
        made, covariances = cls.__new__(cls), roots @ np.swapaxes(roots, 1, 2)
        _refuse_extremes(covariances)
        made._fill(Domain(Real(name) for name in names), np.zeros(len(means)), means, covariances, factors)
        made.log_errors, made.shifts = log_errors, shifts
        return made

    def replaced(self, logs: Floats, means: Floats, covariances: Floats, by: Floats) -> GaussianMixture:
        """Return a mixture of the same variables with other `logs` of weights, `means` and `covariances`.

        The weights may add to anything, and the means, shape (K, n), are known up to `by`.
        """
        made = self._with(logs, means, covariances, self.domain.names)
        made.shifts = self.shifts + made.whitened(by)
        return made

    def whitened(self, sizes: Floats) -> Floats:
        """Return bounds on the lengths of vectors up to `sizes`, in standard deviations, shape (K,)."""
        return np.linalg.norm(np.einsum("kde,ke->kd", np.abs(self.factors), sizes), axis=1)

    def errors(self, reach: Floats | float) -> Floats:
        """Return bounds on errors of log densities at a distance `reach` from the means, in nats, shape (K,)."""
        return self.log_errors + reach * self.shifts + np.square(self.shifts)

    def to_arrays(self) -> dict[str, Floats]:
        """Return the arrays for files by name: `log_weights`, `means` and `covariances`."""
        return {"log_weights": self.log_weights, "means": self.means, "covariances": self.covariances}

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, Array]) -> GaussianMixture:
        """Build a mixture over a `domain` from the `arrays` of `to_arrays`, equal to the last digit.

        Raises ModelError for arrays that are not a mixture.
        """
        parts = ("log_weights", "means", "covariances")
        logs, means, covariances = (np.array(arrays[name], np.float64) for name in parts)
        made = cls(np.ones(len(logs)), means, covariances, domain.names)
        if logs.ndim != 1 or not np.all(np.isfinite(logs)) or abs(float(log_sum(logs))) > 1e-6:
            raise ModelError("log_weights are no natural logs of weights that add to 1")
        if made.domain != domain:
            raise ModelError(f"the variables are {domain.names}; expected real ones without limits")
        made._fill(domain, logs, made.means.copy(), made.covariances.copy())
        return made

    def _with(self, logs: Floats, means: Floats, covariances: Floats, names: Sequence[str]) -> GaussianMixture:
        """Return a mixture over some of the variables, with this one's rounding errors."""
        made = GaussianMixture.__new__(GaussianMixture)
        domain = self.domain.subset(self.domain.index(name) for name in names)
        made._fill(domain, logs, means, covariances)
        made.log_errors, made.shifts = self.log_errors, self.shifts
        return made


def largest_error(logs: Floats, errors: Floats) -> float:
    """Return the largest error (nats) of components, shape (K,), without those far below the highest log."""
    counted = logs + errors >= np.max(logs - errors) - NEGLIGIBLE
    return float(errors[counted].max(initial=0.0))


def _rounding(roots: Floats, covariances: Floats, off: Floats) -> tuple[Floats, Floats]:
    """Return sizes of whitened vectors, shape (K, n), and the share of them that rounding may be, shape (K,)."""
    with np.errstate(over="ignore"):
        reach = np.einsum("kde,ke->kd", np.abs(roots), np.abs(off))
    share = EPS * (off.shape[1] + 8.0) * (4.0 + _conditions(roots, covariances))
    return np.minimum(reach, FARTHEST), share


def _conditions(factors: Floats, covariances: Floats) -> Floats:
    """Return condition numbers of inverse roots in units of standard deviations."""
    sds = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    return np.linalg.cond(factors * sds[:, None, :])


def _refuse_extremes(covariances: Floats) -> None:
    variances: Floats = np.diagonal(covariances, axis1=1, axis2=2)
    wrong = (variances > 0.0) & ~((variances >= LEAST_VARIANCE) & (variances <= 1.0 / LEAST_VARIANCE))
    if np.any(wrong):
        k, i = np.argwhere(wrong)[0]
        raise ModelError(
            f"covariance {k} has a variance of {variances[k, i]:g}; expected {LEAST_VARIANCE:g} to "
            f"{1.0 / LEAST_VARIANCE:g}: measure the variable in another unit"
        )


def _inverse_roots(covariances: Floats) -> Floats:
    """Return W with W C W' = 1 for each covariance matrix C, lower triangular."""
    _refuse_extremes(covariances)
    try:
        roots = np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        k = next(k for k, matrix in enumerate(covariances) if not _has_root(matrix))
        raise ModelError(
            f"covariance {k} is not positive definite; expected a matrix whose Gaussian has a density"
        ) from None
    identity = np.broadcast_to(np.eye(covariances.shape[1]), covariances.shape)
    return np.tril(np.linalg.solve(roots, identity)).astype(np.float64)


def _has_root(matrix: Floats) -> bool:
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True
