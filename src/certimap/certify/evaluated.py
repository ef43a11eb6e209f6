"""The evaluated points of a run: a packed set, the k best, and the sum of their probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from certimap.certify.draw_record import OVER_ONE
from certimap.core.arrays import Flags, Floats, Ints, Words, grown
from certimap.core.box import Points
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.posterior import Posterior, TwoSided
from certimap.errors import ModelError, SolverError

EVALUATION_ROWS = 65536


def _check_log_probs(log_probs: Floats, n: int, has_masses: bool) -> None:
    """Refuse oracle values that are not natural logs of probabilities."""
    if log_probs.shape != (n,):
        raise SolverError(f"log_prob returned shape {log_probs.shape} for {n} points; expected ({n},)")
    right = log_probs <= 1e-9 if has_masses else log_probs < np.inf  # false for NaN
    if not right.all():
        raise SolverError(f"log_prob returned {log_probs[~right][0]}; expected logs of probabilities, at most 0")


def _check_uppers(lower: Floats, upper: Floats) -> None:
    """Refuse upper bounds that lie below the lower ones."""
    if upper.shape != lower.shape:
        raise SolverError(f"log_prob_interval returned the shapes {lower.shape} and {upper.shape}; expected one")
    wrong = ~(upper >= lower)
    if np.any(wrong):
        sides = f"{lower[wrong][0]} and {upper[wrong][0]}"
        raise SolverError(f"log_prob_interval returned the sides {sides}; expected a lower, then an upper one")


class AtomStore:
    """Distinct points in the order of their first appearance, with their log-probabilities.

    Points are packed to one bit per variable if all are binary, to one byte if no variable has more than 256
    states; rows are padded to 8-byte words. Memory per point: its words, a log-probability and a hash slot.
    """

    def __init__(self, domain: Domain, *, two_sided: bool = False, constrained: bool = False) -> None:
        self.domain, self.constrained = domain, constrained
        self.two_sided = two_sided
        largest = int(np.max(domain.n_states, initial=1))
        # the dtype of a row's items; None for bits
        self._kind: Any = np.uint8 if 2 < largest <= 256 else None if largest <= 2 else np.int16
        self._kind = self._kind if domain.is_discrete else np.float64
        n_bits = 1 if self._kind is None else 8 * np.dtype(self._kind).itemsize
        self._n_bytes_row = (len(domain) * n_bits + 7) // 8
        self._n_words = max(1, (self._n_bytes_row + 7) // 8)
        self.n = 0
        self.is_answer = np.empty(1024 if constrained else 0, np.bool_)
        self._kept = np.empty((1024, self._n_words), np.uint64)
        self._log_probs = np.empty(1024)
        self._log_uppers = np.empty(1024) if two_sided else self._log_probs
        self._log_masses = np.empty(1024) if constrained else self._log_probs
        self._table = np.full(4096, -1, np.int32)

    @property
    def log_probs(self) -> Floats:
        """ln p of every point, shape (n,): a view."""
        return self._log_probs[: self.n]

    @property
    def log_uppers(self) -> Floats:
        """Upper bounds on ln p, shape (n,): a view; equal to `log_probs` if values are exact."""
        return self._log_uppers[: self.n]

    @property
    def log_masses(self) -> Floats:
        """ln p of every point, shape (n,): a view; unlike `log_probs`, also of points that are no answers."""
        return self._log_masses[: self.n]

    @property
    def n_answers(self) -> int:
        """The number of points that satisfy the constraints, if there are any."""
        return int(np.count_nonzero(self.is_answer[: self.n])) if self.constrained else self.n

    @property
    def n_bytes(self) -> int:
        return self._kept.nbytes + self._log_probs.nbytes + self._table.nbytes

    def insert(self, points: Points) -> Ints:
        """Find or add points; return positions, shape (batch,). New ones come in order from `n`, without value."""
        from certimap.kernels.hashing import insert_rows

        rows = self._pack(points)
        self._reserve(self.n + len(rows))
        ids = np.empty(len(rows), np.int64)
        with np.errstate(over="ignore"):
            self.n = int(insert_rows(rows, len(rows), self.n, self._kept, self._table, ids))
        return ids

    def set_log_probs(
        self, start: int, log_probs: Floats, log_uppers: Floats, is_answer: Flags | None = None
    ) -> None:
        """Store lower and upper bounds on ln p from position `start` on; under constraints, of answers alone."""
        rows = slice(start, start + len(log_probs))
        if self.constrained and is_answer is not None:
            self._log_masses[rows], self.is_answer[rows] = log_probs, is_answer
            log_probs, log_uppers = (np.where(is_answer, x, -np.inf) for x in (log_probs, log_uppers))
        self._log_probs[rows] = log_probs
        if self.two_sided:
            self._log_uppers[rows] = log_uppers

    def truncate(self, n: int) -> None:
        """Remove all points from position n on."""
        if n < self.n:
            self.n = n
            self._refill(len(self._table))

    def points(self, ids: Ints | slice) -> Points:
        """Return stored points, shape (batch, n)."""
        words, n = self._kept[: self.n][ids], len(self.domain)
        raw = np.ascontiguousarray(words).view(np.uint8)[:, : self._n_bytes_row]
        if self._kind is None:
            return np.unpackbits(raw, axis=1, count=n).astype(np.int16)
        items = np.ascontiguousarray(raw).view(self._kind).reshape(len(raw), n)
        return items.astype(self.domain.point_dtype, copy=False)

    def _pack(self, points: Points) -> Words:
        packed = np.zeros((len(points), self._n_words * 8), np.uint8)
        if self._kind is None:
            items = np.packbits(points.astype(np.bool_), axis=1)
        else:
            items = np.ascontiguousarray(points, self._kind) + self._kind(0)  # -0.0 and 0.0 are one point
        packed[:, : self._n_bytes_row] = items.view(np.uint8).reshape(len(points), self._n_bytes_row)
        return packed.view(np.uint64)

    def _reserve(self, n: int) -> None:
        if n > len(self._log_probs):
            size = max(n, len(self._log_probs) + len(self._log_probs) // 2)
            self._kept, log_uppers = grown(self._kept, size, self.n), self._log_uppers
            self._log_probs = grown(self._log_probs, size, self.n)
            self._log_uppers = grown(log_uppers, size, self.n) if self.two_sided else self._log_probs
            self.is_answer = grown(self.is_answer, size, self.n) if self.constrained else self.is_answer
            self._log_masses = grown(self._log_masses, size, self.n) if self.constrained else self._log_probs
        if 2 * n > len(self._table):
            self._refill(1 << (2 * n).bit_length())

    def _refill(self, size: int) -> None:
        from certimap.kernels.hashing import rebuild_table

        self._table = np.full(size, -1, np.int32)
        with np.errstate(over="ignore"):
            rebuild_table(self._kept, self.n, self._table)


class Ranking:
    """(ln p, position) of the `size` best points, best first, ties by appearance; `possible`: of p > 0 alone."""

    def __init__(self, size: int, *, possible: bool = False) -> None:
        self.size, self.possible = size, possible
        self.pairs: list[tuple[float, int]] = []

    @property
    def is_full(self) -> bool:
        return len(self.pairs) == self.size

    @property
    def best(self) -> float:
        """ln p of the best; -inf when empty."""
        return self.pairs[0][0] if self.pairs else -math.inf

    @property
    def last(self) -> float:
        """ln p of the last place; -inf while a place is free."""
        return self.pairs[-1][0] if self.is_full else -math.inf

    def add(self, log_probs: Floats, start: int) -> bool:
        """Add new points at positions `start`, `start` + 1, ...; return whether the best changed."""
        chosen = self.is_full or self.possible
        contenders = np.flatnonzero(log_probs > self.last) if chosen else np.arange(len(log_probs))
        contenders = contenders[np.argsort(-log_probs[contenders], kind="stable")[: self.size]]
        old = self.pairs[0] if self.pairs else None
        new = [(float(log_probs[i]), start + int(i)) for i in contenders]
        self.pairs = sorted([*self.pairs, *new], key=lambda pair: (-pair[0], pair[1]))[: self.size]
        return bool(self.pairs) and self.pairs[0] != old

    def changes(
        self, log_probs: Floats, log_uppers: Floats | None, kept_uppers: Floats, log_rival: float
    ) -> list[tuple[int, float, float]]:
        """Return how adding new points one by one would change the ranking.

        `log_probs`, `log_uppers`: bounds on the new points; the latter None if values are exact. `kept_uppers`,
        `log_rival`: upper bounds of the ranked points, and the largest of a known unranked one. Every change is
        (index of a new point; from then on: ln p of the last place, largest upper bound of unranked points).
        """
        is_exact = log_uppers is None
        uppers = np.full_like(log_probs, -np.inf) if log_uppers is None else log_uppers
        pairs = zip(self.pairs, kept_uppers.tolist(), strict=True)
        kept = [(value, -math.inf if is_exact else upper) for (value, _), upper in pairs]
        found: list[tuple[int, float, float]] = []
        for at in np.flatnonzero(log_probs > self.last).tolist() if is_exact else range(len(log_probs)):
            kept = sorted([*kept, (float(log_probs[at]), float(uppers[at]))], key=lambda sides: -sides[0])
            log_rival = max(log_rival, *(upper for _, upper in kept[self.size :]), -math.inf)
            kept = kept[: self.size]
            last = kept[-1][0] if len(kept) == self.size else -math.inf
            if not found or found[-1][1:] != (last, log_rival):
                found.append((at, last, log_rival))
        return found


class Evaluated:
    """Evaluates each distinct point once, and keeps the values. All logs are natural.

    `atoms`: the points. `ranking`: the best points, by the lower bounds on their values. `log_rival`: the largest
    upper bound of an unranked point; -inf if values are exact, because then none exceeds the last ranked. `mass`,
    `compensation`: the sum of probabilities (lower bounds) as a compensated pair; 0 if masses do not apply.
    """

    def __init__(self, posterior: Posterior, top_k: int, control: Control) -> None:
        self.posterior, self.control = posterior, control
        self.has_masses = posterior.facts.has_masses
        under, two_sided = isinstance(posterior, ConstrainedPosterior), isinstance(posterior, TwoSided)
        self.atoms = AtomStore(posterior.domain, two_sided=two_sided, constrained=under)
        self.ranking = Ranking(top_k, possible=under)
        self.log_rival = -math.inf
        self.mass, self.compensation = 0.0, 0.0
        self._settled = np.zeros(0, np.bool_)

    @property
    def log_upper(self) -> float:
        """The largest upper bound of all points; -inf without points."""
        if not self.atoms.two_sided:
            return self.ranking.best
        return max(self.log_rival, float(np.max(self._ranked_uppers, initial=-math.inf)))

    @property
    def left(self) -> float:
        """The total probability of unevaluated points, if masses apply; rounded to nearest."""
        return 1.0 - self.mass - self.compensation

    @property
    def _ranked_uppers(self) -> Floats:
        return self.atoms.log_uppers[np.array([i for _, i in self.ranking.pairs], np.int64)]

    def evaluate(self, points: Points) -> Ints:
        """Evaluate the new points, and return the positions of all; new ones count once they are absorbed."""
        n_before = self.atoms.n
        ids = self.atoms.insert(points)
        # Stored reals may differ from the given ones in the sign of a zero.
        are_all_new = self.atoms.n - n_before == len(points) <= EVALUATION_ROWS and points.dtype == np.int16
        try:
            for start in range(n_before, self.atoms.n, EVALUATION_ROWS):
                rows = slice(start, min(start + EVALUATION_ROWS, self.atoms.n))
                asked = points if are_all_new else self.atoms.points(rows)
                with self.control.interruptible():  # interrupts may stop the oracle, but not the bookkeeping
                    lower, upper = self._ask(asked)
                _check_log_probs(lower, rows.stop - rows.start, self.has_masses)
                if upper is not lower:
                    _check_uppers(lower, upper)
                posterior = self.posterior
                under = isinstance(posterior, ConstrainedPosterior)
                self.atoms.set_log_probs(start, lower, upper, posterior.rules.satisfied(asked) if under else None)
        except BaseException:
            self.atoms.truncate(n_before)
            raise
        return ids

    def _ask(self, points: Points) -> tuple[Floats, Floats]:
        """Return lower and upper bounds on ln p; the same array twice if values are exact."""
        posterior = self.posterior
        if isinstance(posterior, ConstrainedPosterior):  # points that are no answers count with their mass
            posterior = posterior.whole
        if isinstance(posterior, TwoSided):
            lower, upper = posterior.log_prob_interval(points)
            return np.asarray(lower, np.float64), np.asarray(upper, np.float64)
        log_probs = np.asarray(posterior.log_prob(points), np.float64)
        return log_probs, log_probs

    def running_sums(self, n_before: int) -> tuple[Floats, Floats]:
        """Return the compensated sum of evaluated probabilities after each new point."""
        log_probs = self.atoms.log_masses[n_before:]
        sums, lost = np.empty(len(log_probs)), np.empty(len(log_probs))
        if self.has_masses and len(log_probs):
            from certimap.kernels.hashing import running_sums

            running_sums(log_probs, self.mass, self.compensation, sums, lost)
            return sums, lost
        return sums[:0], lost[:0]

    def changes(self, n_before: int) -> list[tuple[int, float, float]]:
        """Return the changes from absorbing the new points one by one; see `Ranking.changes`."""
        uppers = self.atoms.log_uppers[n_before:] if self.atoms.two_sided else None
        return self.ranking.changes(self.atoms.log_probs[n_before:], uppers, self._ranked_uppers, self.log_rival)

    def absorb(self, n_before: int, sums: Floats, lost: Floats) -> bool:
        """Add the new points to the ranking and the sum; return whether the best changed."""
        log_probs = self.atoms.log_probs[n_before:]
        if not len(log_probs):
            return False
        if len(sums):
            self.mass, self.compensation = float(sums[len(log_probs) - 1]), float(lost[len(log_probs) - 1])
            if self.mass + self.compensation > 1.0 + OVER_ONE:
                raise ModelError(
                    f"the probabilities that this {type(self.posterior).__name__} gives to {self.atoms.n} "
                    f"distinct assignments add to {self.mass + self.compensation:.6g}; expected at most 1 "
                    "(natural logs of normalised probabilities, or normalised=False)"
                )
        ranked = [i for _, i in self.ranking.pairs]
        is_better = self.ranking.add(log_probs, n_before)
        if self.atoms.two_sided:
            rivals = np.setdiff1d([*ranked, *range(n_before, self.atoms.n)], [i for _, i in self.ranking.pairs])
            highest = float(np.max(self.atoms.log_uppers[rivals.astype(np.int64)], initial=-math.inf))
            self.log_rival = max(self.log_rival, highest)
        return is_better

    def settle(self, ids: Ints) -> Ints:
        """Mark points as settled; return the newly settled ones."""
        known = np.zeros(self.atoms.n, np.bool_)
        known[: len(self._settled)] = self._settled
        new = np.unique(ids[~known[ids]])
        known[new] = True
        self._settled = known
        return new

    def adopt(self, other: Evaluated) -> None:
        """Copy the points of another run, with their values and marks, without new evaluations."""
        for start in range(0, other.atoms.n, EVALUATION_ROWS):
            rows = slice(start, min(start + EVALUATION_ROWS, other.atoms.n))
            n_before = self.atoms.n
            ids = self.atoms.insert(other.atoms.points(rows))
            new = ids >= n_before  # distinct among themselves, so in order
            log_probs, log_uppers = other.atoms.log_masses[rows][new], other.atoms.log_uppers[rows][new]
            is_answer = other.atoms.is_answer[rows][new] if self.atoms.constrained else None
            self.atoms.set_log_probs(n_before, log_probs, log_uppers, is_answer)
            self.absorb(n_before, *self.running_sums(n_before))
            self.settle(ids[: max(len(other._settled) - start, 0)][other._settled[rows]])
