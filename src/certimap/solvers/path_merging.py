"""The most probable states of a switching linear-Gaussian network: paths that another one covers are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from certimap.certify.ledger import Ledger, own_source
from certimap.core.arrays import Floats
from certimap.core.control import Control
from certimap.densities.switching import UNIT, Paths, SwitchingPosterior, narrowest
from certimap.solvers.base import Effort, WholeSpaceSolver

MERGING = own_source("path merging")
FREE = 3e-10  # nats that mergers may cost in all before the limit on paths forces them
POWERS = (0.3, 1.0, 3.0)  # of the power that is best if covariances are alike, tried for each pair
FAR = 36.0  # nats below the best answer at which mass does not count
# Of each sweep: paths that are kept, steps that are looked ahead, and paths that are followed there.
SWEEPS = ((256, 10, 16), (512, 40, 64), (4096, 60, 128), (32768, 200, 512))
PATIENCE = 3  # sweeps that a bound may take to become exact
ROUNDS = 64  # paths of the same live states with which each path is compared
BEAM = 64


def costs(paths: Paths, others: Paths, far: Floats) -> Floats:
    """Return by how many nats the future weights of `paths` may exceed the ones of `others`, row by row.

    Where the ratio r of two Gaussians with weights exceeds e^c, the mass of the first is at most the integral of
    the first times (r / e^c)^t, for any power t > 0 (Chernoff 1952), which is a Gaussian integral. The smallest c
    is returned for which this mass is e^-`far`; if r is bounded everywhere, its largest log is enough.
    """
    m, d, _ = paths.means.shape
    log_ratio = paths.logs - others.logs
    if not d:
        return log_ratio
    roots = np.linalg.cholesky(others.covariances)
    whiten = np.linalg.inv(roots)
    inside = whiten @ paths.covariances @ np.swapaxes(whiten, 1, 2)
    off = np.einsum("mde,me->md", whiten, (paths.means - others.means)[:, :, 0])
    scales, rounding = inside[:, 0], np.full(m, 4.0 * UNIT)
    if d > 1:
        scales, axes = np.linalg.eigh(inside)
        off = np.einsum("mde,md->me", axes, off)
        rounding = 8.0 * d * d * UNIT * scales.max(axis=1) / narrowest(others.covariances)
    scales = np.maximum(scales, 0.0) + rounding[:, None]
    off = np.abs(off) + (rounding * np.linalg.norm(off, axis=1))[:, None]
    logs = np.log(scales)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        squares = np.where(off == 0.0, 0.0, off**2 / (1.0 - scales))
        everywhere = np.where(np.all(scales <= 1.0, axis=1), 0.5 * (squares - logs).sum(axis=1), np.inf)
        widest = scales.max(axis=1)
        most = np.where(widest > 1.0, 0.9 / (widest - 1.0), np.inf)
        guess = np.sqrt(2.0 * far / ((off**2).sum(axis=1) + 0.5 * (logs**2).sum(axis=1) + 1e-30))
        best = everywhere
        for factor in POWERS:
            t = np.minimum(guess * factor, most)[:, None]
            rest = 1.0 + t - t * scales
            mass = 0.5 * (t * (1.0 + t) * off**2 / rest - np.log(rest) - t * logs).sum(axis=1)
            best = np.fmin(best, (far + mass) / t[:, 0])
    return log_ratio + best + d * rounding / scales.min(axis=1)


@dataclass(eq=False)
class MergingState:
    """The search so far: sweeps done, and the least bound."""

    posterior: SwitchingPosterior
    control: Control
    n_sweeps: int = 0
    log_bound: float = math.inf
    done: bool = False


@dataclass(frozen=True)
class PathMerging(
    WholeSpaceSolver, name="path_merging", needs=(SwitchingPosterior,), family="elimination", is_seeded=False
):
    """Extend paths of states variable by variable, and leave out paths that another one covers.

    A path covers another with the same live states if its weighted Gaussian over the live real variables lies
    above the other's, apart from places whose mass does not count: it is then as good whatever follows. Of too
    many paths, some are merged at a price in nats, which the bound pays. Each sweep has more paths, and looks
    farther ahead. Cost: per variable, the number of paths times that of states, times up to 64 comparisons.
    """

    def start(self, posterior: SwitchingPosterior, control: Control, rng: np.random.Generator) -> MergingState:
        return MergingState(posterior, control)

    def effort(self, state: MergingState) -> Effort:
        width = SWEEPS[min(state.n_sweeps, len(SWEEPS) - 1)][0]
        return Effort(n_bytes=32 * width * len(state.posterior.steps), work=state.n_sweeps)

    def step(self, state: MergingState, ledger: Ledger) -> MergingState:
        """Make a sweep, after a narrow beam that finds a first answer."""
        posterior, control = state.posterior, state.control
        width, length, looked = SWEEPS[state.n_sweeps]
        try:
            if not state.n_sweeps:
                ledger.candidates(posterior.beam(BEAM))
            posterior.look_ahead(length, looked, control)
            merger = _Merger(posterior, control, ledger.best_log_prob, width)
            paths = posterior.sweep(merger)
        finally:
            state.log_bound = min(state.log_bound, posterior.log_ceiling)
            if control.should_stop:
                ledger.upper_bound(state.log_bound, MERGING)
        ledger.candidates(posterior.points(paths.part(np.argsort(-paths.logs, kind="stable")[:BEAM])))
        state.log_bound = min(state.log_bound, merger.bound(paths))
        state.n_sweeps += 1
        state.done = not merger.is_forced or state.n_sweeps == len(SWEEPS)
        # A bound that is good enough, though not exact, waits for wider sweeps.
        if state.done or state.n_sweeps >= PATIENCE or state.log_bound > ledger.log_threshold:
            ledger.upper_bound(state.log_bound, MERGING)
        return state


class _Merger:
    """Leaves out the paths that others cover, in one sweep."""

    def __init__(self, posterior: SwitchingPosterior, control: Control, best: float, width: int) -> None:
        self.posterior, self.control, self.best, self.width = posterior, control, best, width
        self.free = FREE / len(posterior.steps)
        self.is_forced, self.lost, self.ceiling = False, best, posterior.log_ceiling

    def bound(self, paths: Paths) -> float:
        """Return an upper bound on ln of the weight of every path, from the ones that are left."""
        highest = float(np.max(paths.logs + paths.raised, initial=self.lost))
        return float(np.logaddexp(highest, self.best - FAR + math.log(len(self.posterior.steps))))

    def __call__(self, k: int, paths: Paths) -> Paths:
        self.control.check("merging paths")
        ahead = self.posterior.ahead(k, paths)
        rows = np.flatnonzero(ahead > self.best)
        rows = rows[np.argsort(-paths.logs[rows], kind="stable")]
        paths, ahead, n = paths.part(rows), ahead[rows], len(rows)
        groups, far = self.posterior.groups(k, paths), ahead - self.best + FAR
        raised, left, leads = paths.raised.copy(), np.ones(n, np.bool_), np.zeros(n, np.bool_)
        price, sums, host = np.full(n, np.inf), np.zeros(n), np.zeros(n, np.int64)
        lead = np.zeros(int(groups.max(initial=0)) + 1, np.int64)
        for _ in range(ROUNDS):
            open_ = np.flatnonzero(left & ~leads)
            first = open_[np.unique(groups[open_], return_index=True)[1]]
            lead[groups[first]], leads[first] = first, True
            others = open_[~leads[open_]]
            if not len(others):
                break
            hosts = lead[groups[others]]
            total = raised[others] + costs(paths.part(others), paths.part(hosts), far[others])
            extra = total - raised[hosts]
            is_free = extra <= self.free
            np.maximum.at(raised, hosts[is_free], total[is_free])
            left[others[is_free]] = False
            better = ~is_free & (extra < price[others])
            at = others[better]
            price[at], sums[at], host[at] = extra[better], total[better], hosts[better]
        followers = np.flatnonzero(left & ~leads)
        forced = followers[np.argsort(price[followers], kind="stable")[: max(int(left.sum()) - self.width, 0)]]
        if len(forced):
            self.is_forced = True
            # A path whose host would have to be raised to the ceiling ends here.
            ends = ahead[host[forced]] - paths.raised[host[forced]] + sums[forced] >= self.ceiling
            self.lost = float(np.max(ahead[forced[ends]], initial=self.lost))
            np.maximum.at(raised, host[forced[~ends]], sums[forced[~ends]])
            left[forced] = False
            left &= self.lost < self.ceiling
        return replace(paths, raised=raised).part(np.flatnonzero(left))
