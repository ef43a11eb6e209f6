"""The ledger: keeps what a run has seen, judges draws in order, and knows what that proves."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from certimap.box import Points
from certimap.certify import bounds
from certimap.certify.atoms import AtomStore
from certimap.certify.checks import as_rows, check_log_probs, check_settings
from certimap.certify.draw_record import DrawRecord
from certimap.certify.lipschitz import Lipschitz
from certimap.certify.ranking import Ranking
from certimap.certify.stopping import Batch, stopping_row
from certimap.control import Control
from certimap.errors import SolverError
from certimap.posterior import Posterior

EVALUATION_ROWS = 65536


class Ledger:
    """Receives the events of one run and alone knows what they certify.

    Solvers call `draws`, `candidates`, `close`, `frontier`, `upper_bound`, `enumerated` and
    `assume_lipschitz`; they read `log_threshold`, `satisfied`, `remaining_draws` and so on. The oracle is
    called here, once a distinct point. All logs are natural.

    Parameters
    ----------
    posterior
        Asked for `log_prob` only.
    epsilon, delta
        The certificate asked for; `epsilon=0` asks for exactness within the tolerance, `delta=0` forbids
        probabilistic stops.
    top_k
        How many of the most probable points the certificate covers.
    tolerance
        Relative: "exact" means p* <= p̂ (1 + tolerance).
    rule
        "sharp" counts -ln(1 - tau) a draw, "published" counts tau.
    max_draws
        Draws beyond this number are not taken.
    early_stop
        False: keep every draw, as a method with a fixed number of draws must.
    control
        Of the run; an interrupt waits while the ledger writes.
    """

    def __init__(
        self,
        posterior: Posterior,
        *,
        epsilon: float = 0.01,
        delta: float = 0.01,
        top_k: int = 1,
        tolerance: float = 1e-9,
        rule: Literal["sharp", "published"] = "sharp",
        max_draws: int | None = None,
        early_stop: bool = True,
        control: Control | None = None,
    ) -> None:
        check_settings(epsilon, delta, top_k, rule)
        self.posterior = posterior
        self.domain = posterior.domain
        self.epsilon, self.delta, self.tolerance = float(epsilon), float(delta), tolerance
        self.rule = rule
        self.max_draws = max_draws
        self.early_stop = early_stop
        self.top_k = int(min(top_k, math.exp(min(self.domain.log_size, 60.0)) + 0.5))
        self.control = Control() if control is None else control
        facts = posterior.facts
        # p(e) unknown (ratios only) or a density: nothing that weighs a point against the mass 1 applies.
        self.has_masses = facts.has_masses
        # The oracle's own rounding error; a worst-case figure, so capped well within the tolerance.
        self._slack = min(max(bounds.SLACK, facts.log_slack), max(bounds.SLACK, 0.2 * tolerance))
        self.atoms = AtomStore(self.domain)
        self.n_draws_to_best: int | None = None
        self.log_closed_bound = -math.inf
        self.log_closed_mass = -math.inf
        self.log_open_mass: float | None = None
        self.log_frontier_bound = math.inf
        self.external: tuple[float, str] | None = None
        self.is_enumerated = False
        self.lipschitz: Lipschitz | None = None
        self._sum, self._compensation = 0.0, 0.0
        self._ranking = Ranking(self.top_k)
        self._draws = DrawRecord(published=rule == "published", tolerance=tolerance, slack=self._slack)
        self._stopped = False

    # --- events ------------------------------------------------------------------------------------------

    def draws(self, points: Points, log_open_mass: float = 0.0) -> NDArray[np.float64]:
        """Take i.i.d. draws, in order, made at ln R = `log_open_mass`; return ln p of those kept.

        The draws must come from p(. | e, open boxes), in proportion to mass (an allocation a_j to parts of mass
        M_j counts as R = max M_j/a_j), with the open set fixed before any value was known, and
        must be reported before what they lead to is closed. They are judged one by one: from the draw that
        earns the certificate asked for on, draws are forgotten, so that the stop depends on no batch size.
        """
        points = as_rows(points, self.domain)[: self.remaining_draws]
        log_r = self._rounded_mass(float(log_open_mass))
        if log_r != 0.0 and (self.lipschitz is not None or self.rule == "published"):
            raise SolverError(
                "draws from open boxes cannot be combined with a Lipschitz constant or the published rule; "
                "use solver='frontier' without them, or 'smooth_pac'"
            )
        if self._stopped or not len(points):
            return np.empty(0)
        with self.control.atomically():
            n_before = self.atoms.n
            ids = self._evaluate(points)
            earlier = np.maximum.accumulate(np.concatenate([[n_before - 1], ids[:-1]]))
            first_rows = np.flatnonzero(ids > earlier)
            sums, lost = self._running_sums(n_before)
            stop = None
            if self.early_stop:
                changes = self._ranking.changes(self.atoms.log_probs[n_before:])
                batch = Batch(len(points), first_rows, sums, lost, log_r)
                stop = stopping_row(self, self._draws, self._slack, changes, batch)
            n_kept = len(points) if stop is None else stop + 1
            self._stopped = stop is not None
            n_new = int(np.searchsorted(first_rows, n_kept))
            log_probs = self.atoms.log_probs[ids[:n_kept]].copy()
            self.atoms.truncate(n_before + n_new)
            self._absorb(n_before, first_rows[:n_new], sums, lost)
            self._draws.add(log_r, self.log_closed_bound, n_kept)
            if self.has_masses and log_r < 0.0:
                self.log_frontier_bound = min(self.log_frontier_bound, max(self.log_closed_bound, log_r))
        return log_probs

    def candidates(self, points: Points) -> NDArray[np.float64]:
        """Take points from anywhere; return their ln p, shape (batch,). They never count as draws."""
        points = as_rows(points, self.domain)
        parts: list[NDArray[np.float64]] = []
        for start in range(0, len(points), EVALUATION_ROWS):
            with self.control.atomically():
                n_before = self.atoms.n
                ids = self._evaluate(points[start : start + EVALUATION_ROWS])
                sums, lost = self._running_sums(n_before)
                parts.append(self.atoms.log_probs[ids])
                self._absorb(n_before, None, sums, lost)
        return np.concatenate(parts) if parts else np.empty(0)

    def close(
        self, log_bound: float | NDArray[np.float64], log_mass: float | NDArray[np.float64] | None = None
    ) -> None:
        """Close boxes: everything in them has p at most exp(`log_bound`), or has been evaluated (-inf)."""
        if np.size(log_bound):
            self.log_closed_bound = max(
                self.log_closed_bound, bounds.round_up(float(np.max(log_bound)), self._slack)
            )
        if log_mass is not None and np.size(log_mass):
            total = float(np.logaddexp.reduce(np.atleast_1d(log_mass)))
            self.log_closed_mass = float(np.logaddexp(self.log_closed_mass, total))

    def frontier(self, log_open_mass: float, log_open_bound: float) -> None:
        """State the boxes open now: ln of their total mass and of the largest bound (-inf when none is)."""
        self.log_open_mass = float(log_open_mass)
        open_bound = bounds.round_up(float(log_open_bound), self._slack)
        if self.has_masses:
            open_bound = min(open_bound, bounds.round_up(self.log_open_mass, self._slack))
        # Whatever is not evaluated was closed before, or is open now: true at this moment, so true for good.
        self.log_frontier_bound = min(self.log_frontier_bound, max(self.log_closed_bound, open_bound))

    def upper_bound(self, value: float, source: str) -> None:
        """Take a proof from elsewhere that ln p* <= `value`."""
        value = bounds.round_up(float(value), self._slack)
        if self.external is None or value < self.external[0]:
            self.external = (value, source)

    def enumerated(self) -> None:
        """State that every point of the space has been evaluated (checked)."""
        if not self.domain.is_discrete or self.atoms.n != math.prod(int(k) for k in self.domain.n_states):
            raise SolverError(f"{self.atoms.n} points were evaluated, which is not the whole space")
        self.is_enumerated = True

    def assume_lipschitz(self, bits: float, radius: float) -> None:
        """Assume rule 4 (rule 9 in a real domain): `bits` per changed variable (or unit) within `radius`."""
        if self.lipschitz is None:
            if self._draws.is_partial:
                raise SolverError("a Lipschitz constant cannot be combined with draws from open boxes")
            self.lipschitz = Lipschitz(self.domain, bits, radius)

    # --- what solvers read -------------------------------------------------------------------------------

    @property
    def n_draws(self) -> int:
        """The number of draws taken."""
        return self._draws.n

    @property
    def n_evaluations(self) -> int:
        """The number of distinct points evaluated."""
        return self.atoms.n

    @property
    def best_log_prob(self) -> float:
        """ln p̂; -inf before anything is evaluated."""
        return self._ranking.best

    @property
    def best_point(self) -> Points | None:
        """The best point evaluated, shape (n,), or None."""
        return self.atoms.points(np.array([self._ranking.pairs[0][1]]))[0] if self._ranking.pairs else None

    @property
    def log_kth_best(self) -> float:
        """ln of the top_k-th best probability; -inf while fewer points are known."""
        return self._ranking.last

    @property
    def log_threshold(self) -> float:
        """The largest bound (nats) at which a box may close."""
        best = self.log_kth_best
        return (
            bounds.log_closing_threshold(best, self.epsilon, self.tolerance, self._slack)
            if best > -math.inf
            else best
        )

    @property
    def log_exact_threshold(self) -> float:
        """The largest bound (nats) at which a box may close and leave the answer exact.

        Searches work at it while that is cheap, so that epsilon only cuts what is dear.
        """
        best = self.log_kth_best
        return bounds.log_closing_threshold(best, 0.0, self.tolerance, self._slack) if best > -math.inf else best

    @property
    def remaining_draws(self) -> int | None:
        """How many draws the limit leaves; None when there is none."""
        return None if self.max_draws is None else max(0, self.max_draws - self.n_draws)

    @property
    def log_residual(self) -> float:
        """ln p̌, rounded up; 0 where masses do not apply."""
        return bounds.log_p_check(self._sum, self._compensation, self._slack) if self.has_masses else 0.0

    @property
    def log_unseen_bound(self) -> float:
        """The smallest bound on ln p of every point not evaluated; inf when there is none."""
        if self.is_enumerated:
            return -math.inf
        return min(self.log_frontier_bound, self.log_residual if self.has_masses else math.inf)

    @property
    def log_upper_bound(self) -> float:
        """The smallest proved upper bound on ln p* (inf when there is none)."""
        external = math.inf if self.external is None else self.external[0]
        return bounds.log_upper(self.best_log_prob, self.log_unseen_bound, external)

    @property
    def log_rival_bound(self) -> float:
        """The smallest bound on ln p of every point outside the top_k answers' reach, proofs included."""
        external = math.inf if self.external is None else self.external[0]
        return min(self.log_unseen_bound, external)

    @property
    def satisfied(self) -> bool:
        """Whether the certificate asked for is earned."""
        if self._stopped:
            return True
        if not self._ranking.is_full:
            return False
        within = bounds.log_tau_within(self.log_kth_best, self.epsilon, self.tolerance)
        if self.log_rival_bound <= within:
            return True
        log_asked = math.log(self.delta) if self.delta > 0.0 else -math.inf
        return self.log_delta(self.epsilon) <= log_asked or (
            self.lipschitz is not None and self.log_delta(self.epsilon, smooth=True) <= log_asked
        )

    @property
    def progress(self) -> tuple[object, ...]:
        """What the run has brought so far; the same before and after a step that brought nothing new."""
        bounds_known = (self.log_closed_bound, self.log_closed_mass, self.log_open_mass, self.log_frontier_bound)
        return (self.n_draws, self.n_evaluations, *bounds_known, self.external, self.is_enumerated)

    @property
    def n_bytes(self) -> int:
        """The memory that the ledger holds, in bytes."""
        return self.atoms.n_bytes

    @property
    def best(self) -> list[tuple[float, int]]:
        """(ln p, position in `atoms`) of the top_k best, best first."""
        return list(self._ranking.pairs)

    @property
    def draw_groups(self) -> list[tuple[float, float, int]]:
        """(ln R, largest ln bound closed before, number of draws) of every group of draws."""
        return list(self._draws.groups)

    # --- what the draws prove ----------------------------------------------------------------------------

    def log_delta(self, epsilon: float, *, smooth: bool = False) -> float:
        """ln δ(ε): the failure probability that the draws support at ε, valid at any moment, for all ε at once.

        `smooth` uses the Lipschitz assumption. 0 (no support) where masses do not apply.
        """
        if not (smooth or self.has_masses):
            return 0.0
        weight = self.lipschitz.log_weight(epsilon) if smooth and self.lipschitz is not None else None
        return bounds.log_delta(self._draws.evidence(self.log_kth_best, epsilon, weight), self.top_k)

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _absorb(
        self,
        n_before: int,
        first_rows: NDArray[np.int64] | None,
        sums: NDArray[np.float64],
        lost: NDArray[np.float64],
    ) -> None:
        """Enter the new points into the best list and the evaluated mass."""
        log_probs = self.atoms.log_probs[n_before:]
        if not len(log_probs):
            return
        if len(sums):
            self._sum, self._compensation = float(sums[len(log_probs) - 1]), float(lost[len(log_probs) - 1])
        if self._ranking.add(log_probs, n_before):
            row = -1 if first_rows is None else int(first_rows[self._ranking.pairs[0][1] - n_before])
            self.n_draws_to_best = self.n_draws + row + 1

    def _evaluate(self, points: Points) -> NDArray[np.int64]:
        """Return the positions of points, after asking the oracle about the new ones."""
        n_before = self.atoms.n
        ids = self.atoms.insert(points)
        try:
            for start in range(n_before, self.atoms.n, EVALUATION_ROWS):
                rows = slice(start, min(start + EVALUATION_ROWS, self.atoms.n))
                with self.control.interruptible():  # an interrupt may break into the oracle, not the bookkeeping
                    log_probs = np.asarray(self.posterior.log_prob(self.atoms.points(rows)), np.float64)
                check_log_probs(log_probs, rows.stop - rows.start, self.has_masses)
                self.atoms.set_log_probs(start, log_probs)
        except BaseException:
            self.atoms.truncate(n_before)
            raise
        return ids

    def _running_sums(self, n_before: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the compensated sum of evaluated probabilities after each new point."""
        log_probs = self.atoms.log_probs[n_before:]
        sums, lost = np.empty(len(log_probs)), np.empty(len(log_probs))
        if self.has_masses and len(log_probs):
            from certimap.kernels.hashing import running_sums

            running_sums(log_probs, self._sum, self._compensation, sums, lost)
            return sums, lost
        return sums[:0], lost[:0]

    def _rounded_mass(self, log_mass: float) -> float:
        """Round ln R up; a mass within rounding of 1 is 1, and an uneven allocation may give more than 1."""
        if abs(log_mass) <= self._slack:
            return 0.0
        log_mass = bounds.round_up(log_mass, self._slack)
        return 0.0 if abs(log_mass) <= self._slack else log_mass
