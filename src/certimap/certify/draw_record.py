"""The draws of a run: their evidence, a Lipschitz assumption, and whether they agree with the oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from certimap.certify import bounds
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Domain
from certimap.errors import SolverError

FALSE_ALARMS = 1e-6  # probability that a correct sampler is ever rejected
OVER_ONE = 1e-6  # slack for a sum of probabilities above 1: far more than rounding
OUT_OF_REACH = 2.0**40  # draws; more are never made, and one more would hardly change the evidence


@dataclass(frozen=True)
class Lipschitz:
    """log2 p*/p(q) <= bits * distance(q, q*) for all q within `radius` of the mode q*.

    The distance counts changed variables in a discrete domain, and is Euclidean in a real one.
    """

    domain: Domain
    bits: float
    radius: float
    _weights: dict[float, float] = field(default_factory=dict[float, float], compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.bits > 0.0:
            raise SolverError(f"lipschitz is {self.bits}; expected a positive number of bits")
        if not self.domain.is_discrete and self.domain.total_states:
            needs = "a Lipschitz constant needs query variables of one kind, all categorical or all real"
            raise SolverError(f"{needs}; leave it out or query one kind")

    def log_weight(self, epsilon: float) -> float:
        """Return ln w_k (ln W in a real domain), natural, rounded down."""
        if epsilon not in self._weights:
            if self.domain.is_discrete:
                k = bounds.good_radius(epsilon, self.bits, int(self.radius))
                weight = bounds.log_ball_weight(self.domain.n_states, self.bits, min(k, len(self.domain)))
            else:
                weight = bounds.log_real_ball_weight(len(self.domain), epsilon, self.bits, self.radius)
            self._weights[epsilon] = weight
        return self._weights[epsilon]

    def draws_needed(self, epsilon: float, delta: float, log_best: float) -> float:
        """Return the number of draws that certify a mode of height `log_best` (ln); inf beyond floats."""
        log_m = self._log_draws(epsilon, delta, log_best)
        return math.exp(log_m) if log_m < 700.0 else math.inf

    def _log_draws(self, epsilon: float, delta: float, log_best: float) -> float:
        return bounds.log_draws_needed(bounds.log_tau(log_best, epsilon) + self.log_weight(epsilon), delta)

    def describe(self, epsilon: float, delta: float, log_best: float) -> tuple[str, ...]:
        """Describe the assumption, and in a real domain the number of draws needed at the density found."""
        if self.domain.is_discrete:
            where = f"within Hamming distance {int(self.radius)} of the most probable assignment"
            return (f"{where}, log2 p falls by at most {self.bits:g} bits per changed variable",)
        log_m = self._log_draws(epsilon, delta, log_best)
        return (
            f"within distance {self.radius:g} of the mode, log2 of its density falls by at most "
            f"{self.bits:g} bits per unit, and that ball lies inside the domain; at the density found this "
            f"takes about 10^{log_m / math.log(10.0):.1f} draws",
        )


class Agreement:
    """Counts how often a draw hits the best point known before it, and bets against that point's probability.

    The bet is a likelihood ratio: a Beta(1/2, 1/2) mixture over the frequency, against p. With the right sampler
    it is a martingale that starts at 1, and ever reaches 1 / `FALSE_ALARMS` with probability at most
    `FALSE_ALARMS` (Ville's inequality).
    """

    def __init__(self) -> None:
        self._draws: dict[int, int] = {}  # draws made while a point was the best known
        self._hits: dict[int, int] = {}
        self._best, self._log_best = -1, -math.inf

    def see(self, ids: Ints, log_probs: Floats) -> None:
        """Take draws in order: positions of points, and their ln p; both shape (n,)."""
        values = np.concatenate([[self._log_best], log_probs])
        points = np.concatenate([[self._best], ids])
        highest = np.maximum.accumulate(values)
        rises = np.concatenate([[True], values[1:] > highest[:-1]])
        best = points[np.maximum.accumulate(np.where(rises, np.arange(len(values)), 0))]
        self._best, self._log_best = int(best[-1]), float(highest[-1])
        for point in np.unique(best[:-1]).tolist():
            if point >= 0:
                rows = best[:-1] == point
                self._draws[point] = self._draws.get(point, 0) + int(np.sum(rows))
                self._hits[point] = self._hits.get(point, 0) + int(np.sum(ids[rows] == point))

    def contradiction(self, log_probs: Floats) -> tuple[int, int, int] | None:
        """If the bet is won, return (point, hits, draws) of the largest ratio; `log_probs` by position."""
        parts = {i: _log_ratio(n, self._hits[i], float(log_probs[i])) for i, n in self._draws.items()}
        if not parts or math.fsum(parts.values()) < -math.log(FALSE_ALARMS):
            return None
        loudest = max(parts, key=parts.__getitem__)
        return loudest, self._hits[loudest], self._draws[loudest]


def _log_ratio(n: int, hits: int, log_p: float) -> float:
    """Return ln of the likelihood ratio of `hits` in n draws: the mixture against probability p."""
    mixture = math.lgamma(hits + 0.5) + math.lgamma(n - hits + 0.5) - math.lgamma(n + 1.0) - math.log(math.pi)
    log_q = math.log1p(-math.exp(log_p)) if log_p < 0.0 else -math.inf
    expected = (hits * log_p if hits else 0.0) + ((n - hits) * log_q if n > hits else 0.0)
    return mixture - expected


class DrawRecord:
    """Counts draws, grouped by the open mass drawn from and the largest bound closed before.

    `published` counts tau per draw, as in the paper, instead of -ln(1 - tau). `tolerance`: relative error up to
    which an answer counts as right. `slack`: rounding error of logs (nats). Without `is_evidence` draws depend on
    each other, and prove nothing.
    """

    def __init__(self, published: bool, tolerance: float, slack: float, is_evidence: bool = True) -> None:
        self.n = 0
        self.groups: list[tuple[float, float, int]] = []  # (ln R, largest ln bound closed before, draws)
        self._splits: list[list[tuple[DrawRecord, float]]] = []  # draws inside boxes that make up the space
        self._published = published
        self._tolerance, self._slack, self._is_evidence = tolerance, slack, is_evidence
        self._columns: tuple[Floats, Floats, Ints] | None = None

    @property
    def is_partial(self) -> bool:
        """Whether some draw came from less than the whole space."""
        return any(log_r != 0.0 for log_r, _, _ in self.groups) or bool(self._splits)

    def add(self, log_r: float, log_closed: float, n: int) -> None:
        """Add n draws; they join the last group if mass and bound are the same."""
        self.n += n
        if self.groups and self.groups[-1][:2] == (log_r, log_closed):
            n += self.groups.pop()[2]
        self.groups.append((log_r, log_closed, n))
        self._columns = None

    def append(self, other: DrawRecord) -> None:
        """Add the draws of an independent run over the same space."""
        for log_r, log_closed, n in other.groups:
            self.add(log_r, log_closed, n)
        self._splits += other._splits
        self.n += sum(part.n for split in other._splits for part, _ in split)

    def split(self, parts: Sequence[tuple[DrawRecord, float]]) -> None:
        """Add draws of searches of disjoint boxes that make up the space, with bounds on ln p of what they left.

        A better point lies in one box, and only the draws in that box missed it. So the total evidence is the
        least of any part, except parts whose bound already rules out a better point.
        """
        self._splits.append(list(parts))
        self.n += sum(part.n for part, _ in parts)

    def evidence(self, log_kth: float, epsilon: float, log_weight: float | None = None) -> float:
        """Evidence (nats) at ε against any point better than the k-th best; `log_weight`: ln w under the Lipschitz
        assumption, where all draws count equally.
        """
        if not self._is_evidence or log_kth == -math.inf or not (self.groups or self._splits):
            return 0.0
        if log_weight is not None or self._published:
            return self.n * self._each(log_kth, epsilon, 0.0, log_weight)
        return self._earlier(log_kth, epsilon, len(self.groups))

    def needed(
        self,
        need: float,
        log_kth: float,
        epsilon: float,
        log_r: float,
        log_closed: float,
        log_weight: float | None,
    ) -> float:
        """Return how many further draws at `log_r` raise the evidence to `need`; inf if no number does."""
        if not self._is_evidence:
            return math.inf
        each = self._each(log_kth, epsilon, log_r, log_weight)
        if each == math.inf:
            return 0
        joins = bool(self.groups) and self.groups[-1][:2] == (log_r, log_closed)
        if log_weight is not None or self._published:
            n_before, base = self.n, 0.0
        else:
            n_before = self.groups[-1][2] if joins else 0
            base = self._earlier(log_kth, epsilon, len(self.groups) - joins)
            if log_closed > bounds.log_tau_within(log_kth, epsilon, self._tolerance):
                each = 0.0
        if base >= need:
            return 0
        if each <= 0.0 or need == math.inf:
            return math.inf
        total = (need - base) / each  # inf where `each` is tiny
        if not total < OUT_OF_REACH:
            return math.inf
        n = max(math.ceil(total) - 1 - n_before, 0)
        while base + (n_before + n) * each < need:
            n += 1
        return n

    def _each(self, log_kth: float, epsilon: float, log_r: float, log_weight: float | None) -> float:
        log_t = bounds.round_down(bounds.log_tau(log_kth, epsilon), self._slack) + (log_weight or 0.0)
        if self._published:
            return bounds.published_evidence_per_draw(log_t)
        return bounds.evidence_per_draw(log_t, log_r)

    def _earlier(self, log_kth: float, epsilon: float, n_groups: int) -> float:
        """Evidence (nats) of the first groups."""
        if self._columns is None:
            log_r, log_closed, counts = zip(*self.groups, strict=True) if self.groups else ((), (), ())
            self._columns = np.array(log_r), np.array(log_closed), np.array(counts, np.int64)
        log_t = bounds.round_down(bounds.log_tau(log_kth, epsilon), self._slack)
        within = bounds.log_tau_within(log_kth, epsilon, self._tolerance)
        r, closed, n = self._columns
        own = bounds.martingale_evidence(log_t, within, r[:n_groups], closed[:n_groups], n[:n_groups])
        return own + sum(
            min(math.inf if bound <= within else part.evidence(log_kth, epsilon) for part, bound in split)
            for split in self._splits
        )


@dataclass(frozen=True)
class Batch:
    """A batch of evaluated draws that the ledger has not absorbed yet."""

    n_rows: int  # the number of draws
    first_rows: Ints  # shape (n_new,): the draws that brought a new point, in order
    # shape (n_new,): the evaluated mass after each new point, and its compensation; empty if masses do not apply
    sums: Floats
    lost: Floats
    log_r: float  # ln of the open mass that the draws came from
