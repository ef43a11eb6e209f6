"""p(q | e) of a mixture of Gaussians, also with discrete query variables, and its probers for searches."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.box import Answers, Boxes, Layout, Points, SearchBoxes
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.posterior import Facts, Tightening
from certimap.core.probing import SteadyProber
from certimap.densities.gaussian_mixture import DEVIATIONS, GaussianMixture, largest_error
from certimap.densities.kernels.normals import NormalArrays, bound_normals
from certimap.densities.shares import shares_of
from certimap.errors import QueryError
from certimap.kernels.mixture_bounds import EPS, room_for
from certimap.kernels.parallel import default_workers, for_blocks

BLOCK = 64  # boxes a thread takes at a time
MAX_ROUNDS = 1000
CLIMBED_ENTRIES = 20_000_000  # limit on entries of precisions times rows per step of a climb
NEAR = 2.0  # standard deviations from a single mean within which values are compared with the highest
N_STARTS = 64  # component means that start climbs
LEAST_VARIABLES = 5  # from which on boxes of shares are worth a try: with fewer, boxes of the variables close soon


class NormalsPosterior:
    """The density of the query variables, possibly restricted to intervals.

    With intervals it is unnormalised: `log_prob` is then ln p(q, e) inside them, and p(e) is unknown, since the
    mass of a box under a full covariance has no closed form. `mixture` is p(q | observed values), in the query's
    order, `log_evidence` ln of these values' density, `low` and `high` (n,) the intervals, infinite without one.
    """

    def __init__(
        self, mixture: GaussianMixture, log_evidence: float, low: Floats, high: Floats, workers: int | None
    ) -> None:
        self.mixture, self.workers = mixture, default_workers() if workers is None else workers
        self.low, self.high = low, high
        self.log_shift = log_evidence if self.is_restricted else 0.0
        n, k = len(mixture.domain), len(mixture.log_weights)
        is_plain = k == 1 and not self.is_restricted  # far from its one mean no rounding matters
        errors = mixture.errors(NEAR if is_plain else DEVIATIONS)
        # Inside intervals any component may be the highest.
        of_evidence = float(errors.max()) if self.is_restricted else largest_error(mixture.log_tops, errors)
        of_values = (8.0 if is_plain else 50.0 * n) + (NEAR if is_plain else n) * float(mixture.conditions.max())
        self.facts = Facts.of(
            mixture.domain,
            log_evidence=None if self.is_restricted else log_evidence,
            is_normalised=not self.is_restricted,
            work=k * n * n,
            log_slack=EPS * ((n + 8.0) * of_values + k + abs(self.log_shift)) + of_evidence,
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
        points = _checked(points, self.domain)
        inside = np.all((points >= self.low) & (points <= self.high), axis=1)
        return np.where(inside, self.log_density(points) + self.log_shift, -np.inf)

    def log_density(self, points: Floats) -> Floats:
        """Return ln of the density at points, without the shift and ignoring intervals."""
        return self.mixture.log_density(points)

    def prober(self) -> NormalsProber:
        """Return a prober of boxes."""
        return NormalsProber(self)


def _checked(points: Points, domain: Domain) -> Floats:
    points = np.asarray(points, np.float64)
    if points.ndim != 2 or points.shape[1] != len(domain):
        raise QueryError(f"points have shape {points.shape}; expected (batch, {len(domain)})")
    return points


def _refuse(boxes: Boxes | None) -> None:
    if boxes is not None:
        raise QueryError("draws inside boxes need their masses, which a full covariance has in no closed form")


class SampledNormals(NormalsPosterior):
    """`NormalsPosterior` without intervals, with draws."""

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables); rejects boxes, whose masses are unknown."""
        _refuse(boxes)
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
    """Probes by the bounds of `kernels/mixture_bounds.py`, climbs by expectation-maximisation.

    If all covariances are equal, and the variables not few, it tightens by a search over the components' shares.
    """

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
        self.steepest: Floats = self.normals.precisions  # curvatures that climbs assume
        layout = Layout.of(mixture.domain, sds.min(axis=0), within=(posterior.low, posterior.high))
        super().__init__(posterior, layout, 8 * k * n * n)
        self.of = posterior
        self.n_bytes = 8 * k * (3 * n * n + 3 * n + 1)
        few = n < LEAST_VARIABLES or posterior.is_restricted
        self.shares = None if few else shares_of(tops, mixture.means, factors)
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
            box, out = (low[rows], high[rows]), (log_bound[rows], halves[rows], splits[rows], middles[rows])
            bound_normals(self.normals, *box, self.layout.scales, room_for(k, n, True), *out)

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

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Search for shares of components above the threshold."""
        if self.shares is None:
            return super().tighten(work, log_factor, within, log_threshold)
        done = self.shares.advance(work, log_threshold)
        return Tightening(done, not done, not done, self.shares.found is not None, self.shares.log_bound)

    def starts(self) -> Points:
        """Return the points reached by climbing from the components' means, or from a better point just found."""
        if self.shares is not None and self.shares.found is not None:
            return self.climb(self.shares.found[None])
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
        for _ in range(MAX_ROUNDS):
            logs, more = self._logs_and_slopes(at)
            shares = np.exp(logs - log_sum(logs, 1)[:, None])
            matrix = np.tensordot(shares, self.steepest, 1)
            off = shares[:, :, None] * (self.normals.means - at[:, None])
            slope = np.tensordot(off, self.normals.precisions, 2) + (shares[:, :, None] * more).sum(axis=1)
            before, at = at, stepped(at, slope, matrix, self.of.low, self.of.high)
            if np.all(np.abs(at - before) <= 1e-12 * (1.0 + np.abs(at))) or self._control.should_stop:
                break
        return at

    def _logs_and_slopes(self, at: Floats) -> tuple[Floats, Floats]:
        """Return ln of each component at points, (rows, K), and slopes beside its Gaussian's, (rows, K, n)."""
        return self.of.mixture.log_components(at), np.zeros((1, 1, 1))


def stepped(at: Floats, slope: Floats, matrix: Floats, low: Floats, high: Floats) -> Floats:
    """Coordinate ascent, inside limits, on a quadratic function with a slope and the curvature -`matrix`."""
    start = at
    at = at.copy()
    for d in range(at.shape[-1]):
        bend = np.einsum("...e,...e->...", matrix[..., d, :], at - start)
        goal = at[..., d] + (slope[..., d] - bend) / matrix[..., d, d]
        at[..., d] = np.clip(np.where(np.isfinite(goal), goal, at[..., d]), low[..., d], high[..., d])
    return at


class MixedNormals:
    """The probability of each discrete state times the density of the real query variables given it.

    `states` has one row per possible joint state, in the order of the discrete variables; for each, `parts` has
    p(real variables, state | observed values), a mixture whose weights add to p(state | values). `log_evidence` is
    ln of the probability, or density, of the evidence.
    """

    def __init__(self, domain: Domain, states: Ints, parts: list[NormalsPosterior], log_evidence: float) -> None:
        self.domain, self.states, self.parts = domain, states, parts
        self.discrete: Ints = np.flatnonzero(domain.n_states > 0)
        self.real: Ints = np.flatnonzero(domain.n_states == 0)
        self.facts = Facts.of(
            domain,
            log_evidence=None if parts[0].is_restricted else log_evidence,
            is_normalised=not parts[0].is_restricted,
            work=sum(part.facts.work for part in parts),
            log_slack=max(part.facts.log_slack for part in parts),
        )

    def log_prob(self, points: Points) -> Floats:
        """Return ln of probability times density at each row, shape (batch,); -inf if impossible."""
        points = _checked(points, self.domain)
        out = np.full(len(points), -np.inf)
        for state, part in zip(self.states, self.parts, strict=True):
            rows = np.flatnonzero(np.all(points[:, self.discrete] == state, axis=1))
            if len(rows):
                out[rows] = part.log_prob(points[np.ix_(rows, self.real)])
        return out

    def placed(self, k: int, values: Points) -> Points:
        """Return points of the query's variables from values of the real ones in state k."""
        out = np.empty((len(values), len(self.domain)))
        out[:, self.discrete], out[:, self.real] = self.states[k], values
        return out

    def prober(self) -> MixedProber:
        """Return a prober of boxes."""
        return MixedProber(self)


class SampledMixed(MixedNormals):
    """`MixedNormals` without intervals, with draws."""

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables); rejects boxes, whose masses are unknown."""
        _refuse(boxes)
        shares = np.array([float(np.exp(part.mixture.log_weights).sum()) for part in self.parts])
        which = rng.choice(len(shares), size=n, p=shares / shares.sum())
        points = np.empty((n, len(self.domain)))
        for k, part in enumerate(self.parts):
            rows = np.flatnonzero(which == k)
            assert isinstance(part, SampledNormals)
            points[rows] = self.placed(k, part.sample(len(rows), rng))
        return points


class MixedProber(SteadyProber):
    """Probes the mixture of each state in a box; the box's bound is the largest of theirs."""

    def __init__(self, posterior: MixedNormals) -> None:
        self.of = posterior
        self.parts: list[NormalsProber] = [part.prober() for part in posterior.parts]
        scales = np.ones(len(posterior.domain))
        scales[posterior.real] = np.min([part.layout.scales for part in self.parts], axis=0)
        low, high = np.full(len(scales), -np.inf), np.full(len(scales), np.inf)
        low[posterior.real], high[posterior.real] = posterior.parts[0].low, posterior.parts[0].high
        layout = Layout.of(posterior.domain, scales, within=(low, high))
        super().__init__(posterior, layout, sum(part.work for part in self.parts))
        self.n_bytes = sum(part.n_bytes for part in self.parts)
        # for each part and discrete variable, the column of its state
        self.columns = self.layout.offsets[posterior.discrete] + posterior.states

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound boxes; the mixture with the largest bound chooses the split of a real variable."""
        posterior, batch, n = self.of, len(boxes), len(self.of.domain)
        best, each = np.full(batch, -np.inf), np.full(boxes.mask.shape, -np.inf)
        splits, middles = np.full((batch, n), np.nan), np.full((batch, n), np.nan)
        is_real = self.layout.is_real[self.layout.variable_of]
        for part, columns in zip(self.parts, self.columns, strict=True):
            rows = np.flatnonzero(np.all(boxes.mask[:, columns] > 0, axis=1))
            if not len(rows):
                continue
            real, mask = np.ix_(rows, posterior.real), np.ones((len(rows), 2 * len(posterior.real)), np.uint8)
            answers = part.probe(SearchBoxes(mask, boxes.low[real], boxes.high[real]))
            for column in columns.tolist():
                each[rows, column] = np.maximum(each[rows, column], answers.log_bound)
            better = (answers.log_bound > best[rows]) | np.isnan(middles[real]).all(axis=1)
            best[rows] = np.maximum(best[rows], answers.log_bound)
            chosen = np.ix_(rows[better], posterior.real)
            splits[chosen] = answers.splits[better]
            middles[chosen] = (answers.splits if answers.middles is None else answers.middles)[better]
        each[:, is_real] = best[:, None]
        unknown = np.full(batch, np.nan)
        return Answers(unknown, best, np.full(each.shape, np.nan), each, splits, middles)

    def heed(self, control: Control) -> None:
        for part in self.parts:
            part.heed(control)

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Tighten the bounds of each state's mixture."""
        every = [part.tighten(work // len(self.parts), log_factor, within, log_threshold) for part in self.parts]
        done, paused, complete, starts, bounds = zip(*every, strict=True)
        return Tightening(sum(done), all(paused), all(complete), any(starts), max(bounds))

    def starts(self) -> Points:
        """Return the points reached by climbing from the components' means, in every state."""
        return np.concatenate([self.of.placed(k, part.starts()) for k, part in enumerate(self.parts)])

    def climb(self, points: Points) -> Points:
        """Return the point reached by expectation-maximisation from each row, with its state unchanged."""
        posterior = self.of
        out = np.array(points, np.float64)
        for k, state in enumerate(posterior.states):
            rows = np.flatnonzero(np.all(out[:, posterior.discrete] == state, axis=1))
            if len(rows):
                out[rows] = posterior.placed(k, self.parts[k].climb(out[np.ix_(rows, posterior.real)]))
        return out
