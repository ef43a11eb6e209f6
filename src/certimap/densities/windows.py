"""Mixtures of Gaussians with variables that are summed out in intervals ("windows").

Given the queried variables q, a variable that is summed out is Gaussian around a linear function of q. The mass of
its interval is a log-concave function of this one number. So each component is a Gaussian in q times such masses.
A log-concave function lies below its tangent anywhere: in a box, a component is at most a Gaussian with the same
covariance and a shifted mean, and the bounds on mixtures of Gaussians apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.box import Answers, SearchBoxes
from certimap.core.logs import log_sum
from certimap.core.query import Query
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.kernels.normals import SLACK, NormalArrays, log_window_masses
from certimap.densities.posterior import NormalsPosterior, NormalsProber, stepped
from certimap.errors import ModelError
from certimap.kernels.mixture_bounds import EPS

INDEPENDENT = 1e-10  # smaller correlations are rounding errors
ROUNDS = 4  # rounds of climbing within a box to its point of tangency
CLOSE = 0.1  # of the gap between two sides of a density: boxes known that well above the upper side stay whole
NEAR = 0.5  # largest variation of conditional means, in standard deviations, for tangents at a box's middle


@dataclass(frozen=True, eq=False)
class Windows:
    """Intervals of h variables, independent given n others, in each of K components."""

    centres: Floats  # means of the n variables, shape (K, n)
    # means, weights: conditional means of the h variables at the centres, shape (K, h), and their change per unit
    # of each of the n, shape (K, h, n)
    means: Floats
    weights: Floats
    sds: Floats  # conditional standard deviations of the h variables, shape (K, h)
    # low, high: the intervals, shape (h,)
    low: Floats
    high: Floats
    log_slack: float  # a bound on the rounding error of logs of masses, in nats

    def part(self, components: Ints) -> Windows:
        """Return the windows of some components."""
        arrays = (self.centres, self.means, self.weights, self.sds)
        centres, means, weights, sds = (array[components] for array in arrays)
        return Windows(centres, means, weights, sds, self.low, self.high, self.log_slack)

    def log_masses(self, points: Floats) -> Floats:
        """Return ln of the windows' mass at points of shape (rows, K, n), or (rows, 1, n): shape (rows, K)."""
        return self.tangents(points)[0]

    def tangents(self, points: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return logs (rows, K), derivatives in conditional means (rows, K, h), their errors, and slopes in q."""
        means = self.means + np.einsum("khn,rkn->rkh", self.weights, points - self.centres)
        logs, slopes, slacks = np.empty_like(means), np.empty_like(means), np.empty_like(means)
        log_window_masses(np.ascontiguousarray(means), self.sds, self.low, self.high, logs, slopes, slacks)
        return logs.sum(axis=2), slopes, slacks, np.einsum("rkh,khn->rkn", slopes, self.weights)

    def highest(self, low: Floats, high: Floats) -> Floats:
        """Return upper bounds on ln of the windows' mass in boxes, which may be unbounded: shape (rows, K)."""
        sides = np.stack([low, high])[:, :, None, None]
        with np.errstate(invalid="ignore"):
            ends = self.weights * (sides - self.centres[:, None])
            middle = 0.5 * self.low + 0.5 * self.high
        ends = np.where(self.weights == 0.0, 0.0, ends)
        off = 1e-12 * np.where(np.isfinite(ends), np.abs(ends), 0.0).max(axis=0).sum(axis=-1)
        first, last = self.means + ends.min(axis=0).sum(axis=-1), self.means + ends.max(axis=0).sum(axis=-1)
        best = np.where(np.isnan(middle), 0.0, middle)  # the whole line: any point will do
        at = np.minimum(np.maximum(np.broadcast_to(best, first.shape), first - off), last + off)
        everything = ~np.isfinite(at)  # a half-line, of which unbounded means may be inside as deeply as one likes
        logs, rest, more = np.empty_like(at), np.empty_like(at), np.empty_like(at)
        safe = np.ascontiguousarray(np.where(everything, 0.0, at))
        log_window_masses(safe, self.sds, self.low, self.high, logs, rest, more)
        raised = logs + self.log_slack + SLACK * (1.0 + np.abs(logs))
        return np.where(everything, 0.0, np.minimum(raised, 0.0)).sum(axis=2)


def windows_of(joint: GaussianMixture, n: int, low: Floats, high: Floats) -> Windows:
    """Return the windows of a mixture's variables after the first n, given these; ModelError if they depend."""
    roots = joint.factors  # rows of the last variables: standard normal given earlier variables
    own = roots[:, n:, n:]
    sizes = np.diagonal(own, axis1=1, axis2=2)
    across = np.abs(own - sizes[:, :, None] * np.eye(own.shape[1])) / np.sqrt(sizes[:, :, None] * sizes[:, None])
    off = float(across.max())
    if off > INDEPENDENT:
        _, i, j = np.unravel_index(int(across.argmax()), across.shape)
        first, second = (joint.domain.names[n + int(x)] for x in (j, i))
        raise ModelError(
            f"variables {first!r} and {second!r} are restricted to intervals, not queried, and depend on each "
            "other given what is queried: the mass of both has no closed form; query one of them too, or give a "
            "value"
        )
    centres, means = np.ascontiguousarray(joint.means[:, :n]), np.ascontiguousarray(joint.means[:, n:])
    weights = np.ascontiguousarray(-roots[:, n:, :n] / sizes[:, :, None])
    slack = EPS * len(joint.domain) * (200.0 + 50.0 * float(joint.conditions.max())) + 100.0 * off
    return Windows(centres, means, weights, np.ascontiguousarray(1.0 / sizes), low, high, slack * len(low))


class WindowedNormals(NormalsPosterior):
    """The density of the query variables, with variables in intervals summed out: `hidden`.

    These intervals are not part of `log_evidence`; if their mass is unknown, the density is unnormalised.
    """

    def __init__(
        self,
        mixture: GaussianMixture,
        log_evidence: float,
        low: Floats,
        high: Floats,
        workers: int | None,
        hidden: Hidden,
    ) -> None:
        self.windows, self.log_mass = hidden
        # what the prober bounds, a density above this one but for e^log_rest; None for this one
        self.above: WindowedNormals | None = None
        self.log_rest = -np.inf
        inside = bool(np.any(np.isfinite(low)) or np.any(np.isfinite(high)))
        mass = 0.0 if inside or self.log_mass is None else self.log_mass
        super().__init__(mixture, log_evidence + mass, low, high, workers)
        self.log_shift = log_evidence if self.is_restricted else -mass
        self.facts = replace(self.facts, log_slack=self.facts.log_slack + 2.0 * self.windows.log_slack)

    @property
    def is_restricted(self) -> bool:
        """Whether the density is unnormalised because the mass of its intervals is unknown."""
        return self.log_mass is None or super().is_restricted

    def log_components(self, points: Floats) -> Floats:
        """Return ln of each component at points, windows included, without the shift: shape (batch, K)."""
        return self.mixture.log_components(points) + self.windows.log_masses(points[:, None])

    def log_density(self, points: Floats) -> Floats:
        """Return ln of the density at points, without the shift."""
        return log_sum(self.log_components(points), 1)

    def prober(self) -> WindowedProber:
        """Return a prober of boxes."""
        return WindowedProber(self) if self.above is None else WindowedProber(self.above, self)


class WindowedProber(NormalsProber):
    """Probes Gaussians that lie above the components in each box.

    `below` is the density whose boxes it bounds if `posterior` lies above that.
    """

    def __init__(self, posterior: WindowedNormals, below: WindowedNormals | None = None) -> None:
        super().__init__(posterior)
        self.below = below
        self.windows: Windows = posterior.windows
        self.whole: NormalArrays = self.normals
        self.work *= 4
        self.shares = None
        weights, sds = self.windows.weights, self.windows.sds
        # In the conditional mean, ln of a mass has at most the negative curvature of ln of a value's density.
        self.steepest: Floats = self.whole.precisions + np.einsum("khd,khe,kh->kde", weights, weights, sds**-2)

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound boxes, one after the other, each by its own Gaussians."""
        posterior = self.of
        low = np.clip(boxes.low, posterior.low, posterior.high)
        high = np.clip(boxes.high, posterior.low, posterior.high)
        tops, means = self._covers(low, high)
        found: list[Answers] = []
        for row in range(len(boxes)):
            self.normals = self.whole._replace(log_tops=tops[row], means=means[row])
            one = slice(row, row + 1)
            found.append(super().probe(SearchBoxes(boxes.mask[one], boxes.low[one], boxes.high[one])))
        self.normals = self.whole
        joined = _joined(found)
        return joined if self.below is None else self._moved(joined, low, high, self.below)

    def _moved(self, answers: Answers, low: Floats, high: Floats, below: WindowedNormals) -> Answers:
        """Return answers for the density below, boxes frozen whose bounds are hardly above its values there."""
        bounds = (np.logaddexp(x, below.log_rest) for x in (answers.log_bound, answers.each_bound))
        is_finite = np.all(np.isfinite(low) & np.isfinite(high), axis=1)
        first, last = (np.where(is_finite[:, None], x, 0.0) for x in (low, high))
        middles = 0.5 * first + 0.5 * last
        values, least = self.of.log_prob(middles), below.log_prob(middles)
        with np.errstate(invalid="ignore"):
            is_close = is_finite & (answers.log_bound - values <= CLOSE * (values - least))
        splits = np.where(is_close[:, None], np.nan, answers.splits)
        return replace(answers, **dict(zip(("log_bound", "each_bound"), bounds, strict=True)), splits=splits)

    def _covers(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return tops (rows, K) and means (rows, K, n) of Gaussians that lie above the components in boxes."""
        of, shape = self.whole, (len(low), *self.whole.means.shape)
        tops = of.log_tops + self.windows.highest(low, high)
        means: Floats = np.array(np.broadcast_to(of.means, shape))
        rows = np.flatnonzero(np.all(high - low < 1e300, axis=1))
        if len(rows):
            tops[rows], means[rows] = self._tangents(low[rows], high[rows])
        return np.ascontiguousarray(tops), np.ascontiguousarray(means)

    def _tangents(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        of, windows = self.whole, self.windows
        at = self._touching(low, high)
        reach = np.maximum(high[:, None] - at, at - low[:, None])
        logs, each, slacks, slope = windows.tangents(at)
        means = of.means + np.einsum("rkn,knm->rkm", slope, self.of.mixture.covariances)
        shift = means - of.means
        # What the Gaussian at `means` leaves of the tangent's slope, for its covariance is known up to rounding.
        rest = np.abs(slope - np.einsum("kde,rke->rkd", of.precisions, shift))
        sizes = np.einsum("kde,rke->rkd", of.sizes, np.abs(shift))
        n = float(of.means.shape[1])
        rest += EPS * (4.0 * n + 16.0) * (np.abs(slope) + sizes)
        rest += np.einsum("rkh,khn->rkn", slacks + 4.0 * EPS * np.abs(slacks), np.abs(windows.weights))
        moved = np.einsum("khn,rkn->rkh", np.abs(windows.weights), np.abs(at - windows.centres))
        of_means = EPS * (n + 8.0) * (np.abs(each) * (np.abs(windows.means) + moved)).sum(axis=2)
        before, after = self._half_squares(at - of.means), self._half_squares(at - means)
        tops = of.log_tops - before[0] + logs + after[0] + (rest * reach).sum(axis=2)
        size = np.abs(of.log_tops) + np.abs(logs) + before[1] + after[1]
        tops += windows.log_slack + SLACK * (windows.means.shape[1] + np.abs(logs)) + of_means
        return tops + EPS * (n * n + 8.0 * n + 64.0) * size, means

    def _half_squares(self, off: Floats) -> tuple[Floats, Floats]:
        """Return half the squared distances of points from the means, and sums of the sizes of their terms."""
        scaled = np.einsum("kde,rke->rkd", self.whole.factors, off)
        sizes = np.einsum("kde,rke->rkd", np.abs(self.whole.factors), np.abs(off))
        return 0.5 * np.square(scaled).sum(axis=2), np.square(sizes).sum(axis=2)

    def _touching(self, low: Floats, high: Floats) -> Floats:
        """Return the points of tangency, (rows, K, n): middles of small boxes, else near the highest point."""
        middle = 0.5 * low + 0.5 * high
        shape = (len(low), *self.whole.means.shape)
        moved = np.einsum("khn,rn->rkh", np.abs(self.windows.weights), 0.5 * (high - low)) / self.windows.sds
        small = np.all(moved <= NEAR, axis=2)
        at: Floats = np.clip(np.broadcast_to(self.whole.means, shape), low[:, None], high[:, None])
        for _ in range(ROUNDS):
            slope = self.windows.tangents(at)[3]
            pull = slope - np.einsum("kde,rke->rkd", self.whole.precisions, at - self.whole.means)
            at = stepped(at, pull, self.steepest[None], low[:, None], high[:, None])
        return np.where(small[:, :, None], middle[:, None], at)

    def _logs_and_slopes(self, at: Floats) -> tuple[Floats, Floats]:
        logs, _, _, slopes = self.windows.tangents(at[:, None])
        return self.of.mixture.log_components(at) + logs, slopes


def _joined(found: Sequence[Answers]) -> Answers:
    """Join the answers for single boxes."""
    filled = [replace(x, middles=x.splits if x.middles is None else x.middles) for x in found]
    return Answers(**{name: np.concatenate([vars(x)[name] for x in filled]) for name in vars(filled[0])})


class Hidden(NamedTuple):
    """Intervals of variables that are summed out.

    `log_mass` is ln of their probability given the observed values, None if unknown.
    """

    windows: Windows
    log_mass: float | None


def hidden_variables(query: Query) -> list[int]:
    """Return the variables restricted to an interval but not queried."""
    queried: list[int] = query.variables.tolist()
    return [i for i in sorted(query.intervals) if i not in queried]


def limits_of(query: Query, variables: list[int]) -> tuple[Floats, Floats]:
    """Return the ends of variables' intervals; infinite without an interval."""
    ends = np.array([query.intervals.get(i, (-np.inf, np.inf)) for i in variables], np.float64).reshape(-1, 2)
    return ends[:, 0].copy(), ends[:, 1].copy()
