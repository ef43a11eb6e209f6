"""p(q | e) of a mixture of Gaussians, and its prober for searches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.posterior import Facts
from certimap.core.probing import SteadyProber
from certimap.core.search_boxes import Answers, Layout, SearchBoxes
from certimap.densities.gaussian_mixture import DEVIATIONS, GaussianMixture, largest_error
from certimap.densities.kernels.normals import NormalArrays, bound_normals
from certimap.errors import QueryError
from certimap.kernels.mixture_bounds import EPS, room_for
from certimap.kernels.parallel import default_workers, for_blocks

Floats = NDArray[np.float64]
BLOCK = 64  # boxes a thread takes at a time
MAX_ROUNDS = 1000
CLIMBED_ENTRIES = 20_000_000  # limit on entries of precisions times rows per step of a climb
N_STARTS = 64  # component means that start climbs


class NormalsPosterior:
    """The density of the query variables, possibly restricted to intervals.

    With intervals it is unnormalised: `log_prob` is then ln p(q, e) inside them, and p(e) is unknown, since the
    mass of a box under a full covariance has no closed form. `mixture` is p(q | observed values), in the query's
    order, `log_evidence` ln of the density of the observed values, `low` and `high` (n,) the intervals, infinite
    without one.
    """

    def __init__(
        self, mixture: GaussianMixture, log_evidence: float, low: Floats, high: Floats, workers: int | None
    ) -> None:
        self.mixture, self.workers = mixture, default_workers() if workers is None else workers
        self.low, self.high = low, high
        self.log_shift = log_evidence if self.is_restricted else 0.0
        n, k = len(mixture.domain), len(mixture.log_weights)
        errors = mixture.errors(DEVIATIONS)
        # Inside intervals any component may be the highest.
        of_evidence = float(errors.max()) if self.is_restricted else largest_error(mixture.log_tops, errors)
        self.facts = Facts.of(
            mixture.domain,
            log_evidence=None if self.is_restricted else log_evidence,
            is_normalised=not self.is_restricted,
            work=k * n * n,
            log_slack=EPS * ((n + 8.0) * n * (50.0 + float(mixture.conditions.max())) + k + abs(self.log_shift))
            + of_evidence,
        )

    @property
    def domain(self) -> Domain:
        """The query variables."""
        return self.mixture.domain

    @property
    def is_restricted(self) -> bool:
        """Whether a query variable is restricted to an interval."""
        return bool(np.any(np.isfinite(self.low)) or np.any(np.isfinite(self.high)))

    def log_prob(self, points: Points) -> Floats:
        """Return ln of the density at each row, shape (batch,); -inf outside the intervals."""
        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != len(self.domain):
            raise QueryError(f"points have shape {points.shape}; expected (batch, {len(self.domain)})")
        inside = np.all((points >= self.low) & (points <= self.high), axis=1)
        return np.where(inside, self.log_density(points) + self.log_shift, -np.inf)

    def log_density(self, points: Floats) -> Floats:
        """Return ln of the density at points, without the shift and ignoring intervals."""
        return self.mixture.log_density(points)

    def prober(self) -> NormalsProber:
        """Return a prober of boxes."""
        return NormalsProber(self)


class SampledNormals(NormalsPosterior):
    """`NormalsPosterior` without intervals, with draws."""

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables); rejects boxes, whose masses are unknown."""
        if boxes is not None:
            raise QueryError("draws inside boxes need their masses, which a full covariance has in no closed form")
        mixture = self.mixture
        weights = np.exp(mixture.log_weights)
        which = rng.choice(len(weights), size=n, p=weights / weights.sum())
        normal = rng.standard_normal((n, len(self.domain)))
        points = np.empty_like(normal)
        for k in np.unique(which):
            rows = which == k
            points[rows] = mixture.means[k] + np.linalg.solve(mixture.factors[k], normal[rows].T).T
        return points


class NormalsProber(SteadyProber):
    """Probes by the bounds of `kernels/mixture_bounds.py`, climbs by expectation-maximisation."""

    def __init__(self, posterior: NormalsPosterior) -> None:
        mixture = posterior.mixture
        factors = np.ascontiguousarray(mixture.factors)
        precisions = np.einsum("kde,kdf->kef", factors, factors)
        sizes = np.einsum("kde,kdf->kef", np.abs(factors), np.abs(factors))
        k, n = mixture.means.shape
        off = 1e-9 + 8.0 * n * EPS * mixture.conditions  # error of the factors relative to the covariances
        sds = np.sqrt(np.diagonal(mixture.covariances, axis1=1, axis2=2)) * (1.0 + off)[:, None]
        tops = mixture.log_tops + posterior.log_shift
        # All writable: read-only arrays would need another compilation.
        arrays = (tops, mixture.means, factors, precisions, sizes, sds)
        self.normals = NormalArrays(*(np.require(x, np.float64, ["C", "W"]) for x in arrays))
        layout = Layout.of(mixture.domain, sds.min(axis=0), within=(posterior.low, posterior.high))
        super().__init__(posterior, layout, 8 * k * n * n)
        self.of = posterior
        self.n_bytes = 8 * k * (3 * n * n + 3 * n + 1)
        self._control = Control()  # without limits
        self._rows_at_once = max(1, CLIMBED_ENTRIES // (k * n * n))

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound boxes; one variable of each gets a split."""
        k, n = self.normals.means.shape
        batch = len(boxes)
        low = np.clip(boxes.low, self.of.low, self.of.high)
        high = np.clip(boxes.high, self.of.low, self.of.high)
        outside = np.any((boxes.low > self.of.high) | (boxes.high < self.of.low), axis=1)
        log_bound, halves = np.empty(batch), np.empty((batch, 2))
        splits, middles = np.empty((batch, n)), np.empty((batch, n))

        def task(start: int, stop: int) -> None:
            rows = slice(start, stop)
            room = room_for(k, n, True)
            bound_normals(
                self.normals,
                low[rows],
                high[rows],
                self.layout.scales,
                room,
                log_bound[rows],
                halves[rows],
                splits[rows],
                middles[rows],
            )

        for_blocks(task, batch, BLOCK, self.of.workers)
        columns = boxes.mask.shape[1]
        each = np.repeat(log_bound[:, None], columns, axis=1)
        at, chosen = np.nonzero(~np.isnan(splits))
        each[at, 2 * chosen], each[at, 2 * chosen + 1] = halves[at].T
        log_bound[outside], each[outside] = -np.inf, -np.inf
        unknown = np.full(batch, np.nan)
        return Answers(unknown, log_bound, np.full((batch, columns), np.nan), each, splits, middles)

    def heed(self, control: Control) -> None:
        self._control = control

    def starts(self) -> Points:
        """Return the points reached by climbing from the components' means."""
        order = np.argsort(-self.normals.log_tops, kind="stable")[:N_STARTS]
        return self.climb(self.normals.means[order])

    def climb(self, points: Points) -> Points:
        """Return the point reached by climbing from each row: every step raises the density.

        Rows stay where they are when time is up. With many components, few rows climb at once, so that a step
        takes a fraction of a second.
        """
        at: Floats = np.clip(np.asarray(points, np.float64), self.of.low, self.of.high)
        for start in range(0, len(at), self._rows_at_once):
            if self._control.should_stop:
                break
            rows = slice(start, start + self._rows_at_once)
            at[rows] = self._climbed(at[rows])
        return at

    def _climbed(self, at: Floats) -> Floats:
        """Return the points reached by expectation-maximisation from rows inside the intervals.

        Each step maximises its quadratic function by coordinate ascent inside the intervals.
        """
        low, high = self.of.low, self.of.high
        weighted = np.einsum("kde,ke->kd", self.normals.precisions, self.normals.means)
        for _ in range(MAX_ROUNDS):
            logs = self.of.mixture.log_components(at)
            shares = np.exp(logs - log_sum(logs, 1)[:, None])
            matrix = np.einsum("bk,kde->bde", shares, self.normals.precisions)
            target = shares @ weighted
            before = at.copy()
            for d in range(at.shape[1]):
                pull = target[:, d] - np.einsum("be,be->b", matrix[:, d], at) + matrix[:, d, d] * at[:, d]
                goal = pull / matrix[:, d, d]
                at[:, d] = np.clip(np.where(np.isfinite(goal), goal, at[:, d]), low[d], high[d])
            if np.all(np.abs(at - before) <= 1e-12 * (1.0 + np.abs(at))) or self._control.should_stop:
                break
        return at
