"""The ledger: keeps what a run has seen, judges draws in order, and knows what that proves."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes, Points
from certimap.certify import bounds
from certimap.certify.books import Books, log_whole, measure_of
from certimap.certify.checks import as_rows, check_settings
from certimap.certify.draw_record import DrawRecord
from certimap.certify.evaluated import EVALUATION_ROWS, Evaluated
from certimap.certify.lipschitz import Lipschitz
from certimap.certify.sources import Source, is_own
from certimap.certify.stopping import Batch, stopping_row
from certimap.control import Control
from certimap.errors import SolverError
from certimap.posterior import Posterior


class Ledger:
    """Receives the events of one run and alone knows what they certify.

    Solvers call `draws`, `candidates`, `settle`, `close`, `frontier`, `upper_bound`, `enumerated` and
    `assume_lipschitz`; they read `log_threshold`, `satisfied`, `remaining_draws` and so on. The oracle is
    called here, once a distinct point. All logs are natural.

    Parameters
    ----------
    posterior
        Asked for its facts, `log_prob` (both sides where it is `TwoSided`), and nothing else.
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
    boxes
        One box: certify the most probable assignments inside it alone. None means the whole space.
    trusting
        Whom a proof rests on where the books cannot be checked (a search over real variables): the certificate
        then names it. None where that is this package.
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
        boxes: Boxes | None = None,
        trusting: str | None = None,
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
        self._evaluated = Evaluated(posterior, self.top_k, self.control)
        self.atoms, self._ranking = self._evaluated.atoms, self._evaluated.ranking
        self.trusting = trusting
        measure = measure_of(posterior)
        self._books = Books(measure, log_whole(posterior, measure, boxes))
        self.n_draws_to_best: int | None = None
        self.log_closed_bound = -math.inf
        self.log_open_mass: float | None = None
        self.log_frontier_bound = math.inf
        self.external: tuple[float, str, bool] | None = None
        self.is_enumerated = False
        self.lipschitz: Lipschitz | None = None
        self._draws = DrawRecord(published=rule == "published", tolerance=tolerance, slack=self._slack)
        self._stopped = False

    # --- events ------------------------------------------------------------------------------------------

    def draws(self, points: Points, log_open_mass: float | None = None) -> NDArray[np.float64]:
        """Take i.i.d. draws, in order, made at ln R = `log_open_mass`; return ln p of those kept.

        None stands for everything. The draws must come from p(. | e, open boxes), in proportion to mass (an
        allocation a_j to parts of mass M_j counts as R = max M_j/a_j), with the open set fixed before any value
        was known, and must be reported before what they lead to is closed. They are judged one by one: from the
        draw that earns the certificate asked for on, draws are forgotten, so that the stop depends on no batch
        size.

        Raises UnbalancedBooks when R and what has been closed leave something out.
        """
        points = as_rows(points, self.domain)[: self.remaining_draws]
        log_r = self._rounded_mass(self._books.log_total if log_open_mass is None else float(log_open_mass))
        if log_r != 0.0 and (self.lipschitz is not None or self.rule == "published"):
            raise SolverError(
                "draws from open boxes cannot be combined with a Lipschitz constant or the published rule; "
                "use solver='frontier' without them, or 'smooth_pac'"
            )
        self._books.check_drawn(log_r)
        if self._stopped or not len(points):
            return np.empty(0)
        with self.control.atomically():
            n_before = self.atoms.n
            ids = self._evaluated.evaluate(points)
            earlier = np.maximum.accumulate(np.concatenate([[n_before - 1], ids[:-1]]))
            first_rows = np.flatnonzero(ids > earlier)
            sums, lost = self._evaluated.running_sums(n_before)
            stop = None
            if self.early_stop:
                changes = self._evaluated.changes(n_before)
                batch = Batch(len(points), first_rows, sums, lost, log_r)
                stop = stopping_row(self, self._draws, self._slack, changes, batch)
            n_kept = len(points) if stop is None else stop + 1
            self._stopped = stop is not None
            n_new = int(np.searchsorted(first_rows, n_kept))
            log_probs = self.atoms.log_probs[ids[:n_kept]].copy()
            self.atoms.truncate(n_before + n_new)
            if self._evaluated.absorb(n_before, sums, lost):
                self._note_best(n_before, first_rows)
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
                ids = self._evaluated.evaluate(points[start : start + EVALUATION_ROWS])
                sums, lost = self._evaluated.running_sums(n_before)
                parts.append(self.atoms.log_probs[ids])
                if self._evaluated.absorb(n_before, sums, lost):
                    self._note_best(n_before, None)
        return np.concatenate(parts) if parts else np.empty(0)

    def settle(self, points: Points) -> NDArray[np.float64]:
        """Evaluate points and close the boxes that hold them alone; return their ln p, shape (batch,)."""
        log_probs = self.candidates(points)
        if not self.domain.is_discrete or not len(log_probs):
            return log_probs
        new = self._evaluated.settle(self.atoms.insert(as_rows(points, self.domain)))
        if self._books.measure == "mass":
            self._books.close(self.atoms.log_probs[new])
        elif len(new):
            self._books.close(math.log(len(new)) - self.domain.log_size)
        return log_probs

    def close(
        self, log_bound: float | NDArray[np.float64], log_measure: float | NDArray[np.float64] | None = None
    ) -> None:
        """Close boxes: everything in them has p at most exp(`log_bound`).

        Parameters
        ----------
        log_bound
            Natural log, one for all boxes or one each.
        log_measure
            ln of their probability where the posterior knows it (`Masses`), else of their share of all joint
            states; None only where a variable is real.

        Raises
        ------
        UnbalancedBooks
            When the measure is missing where it applies.
        """
        self._books.close(log_measure)
        if np.size(log_bound):
            self.log_closed_bound = max(
                self.log_closed_bound, bounds.round_up(float(np.max(log_bound)), self._slack)
            )

    def frontier(self, log_open_measure: float | None, log_open_bound: float) -> None:
        """State the boxes open now: ln of their total measure (as in `close`) and of the largest bound.

        Both are -inf when none is open. What is neither open now nor closed before must have been settled.

        Raises
        ------
        UnbalancedBooks
            When closed, settled and open boxes do not make up the space, or when the probability that is not
            evaluated yet cannot lie at points as improbable as the bounds say.
        """
        self._books.check_open(log_open_measure)
        open_bound = bounds.round_up(float(log_open_bound), self._slack)
        log_open_mass = log_open_measure if self._books.measure == "mass" else None
        if log_open_mass is not None:
            open_bound = min(open_bound, bounds.round_up(log_open_mass, self._slack))
        unseen = max(self.log_closed_bound, open_bound)
        self._books.check_room(unseen, self._evaluated.left, self.atoms.n, self.domain.log_size)
        self.log_open_mass = log_open_mass
        # Whatever is not evaluated was closed before, or is open now: true at this moment, so true for good.
        self.log_frontier_bound = min(self.log_frontier_bound, unseen)

    def upper_bound(self, value: float, source: Source | str) -> None:
        """Take a proof from elsewhere that ln p* <= `value`.

        What comes from no `Source` of this package is an assumption, which the certificate names.
        """
        value = bounds.round_up(float(value), self._slack)
        if self.external is None or value < self.external[0]:
            name = source.name if isinstance(source, Source) else str(source)
            self.external = (value, name, is_own(source))

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
        evaluated = self._evaluated
        return bounds.log_p_check(evaluated.mass, evaluated.compensation, self._slack) if self.has_masses else 0.0

    @property
    def log_unseen_bound(self) -> float:
        """The smallest bound on ln p of every point not evaluated; inf when there is none."""
        if self.is_enumerated:
            return -math.inf
        return min(self.log_frontier_bound, self.log_residual if self.has_masses else math.inf)

    @property
    def log_evaluated_rival(self) -> float:
        """The largest upper side of a value that is known between two sides, the answers' own not counted; -inf
        where values are exact.
        """
        return self._evaluated.log_rival

    @property
    def log_closed_measure(self) -> float:
        """ln of the measure (see `close`) of all that is closed or settled."""
        return self._books.log_closed

    @property
    def log_upper_bound(self) -> float:
        """The smallest proved upper bound on ln p* (inf when there is none)."""
        external = math.inf if self.external is None else self.external[0]
        seen = bounds.round_up(self._evaluated.log_upper, self._slack)
        if self.has_masses:
            seen = min(seen, 0.0)
        return bounds.log_upper(self.best_log_prob, max(self.log_unseen_bound, seen), external)

    @property
    def log_rival_bound(self) -> float:
        """The smallest bound on ln p of every point outside the top_k answers' reach, proofs included."""
        external = math.inf if self.external is None else self.external[0]
        return min(max(self.log_unseen_bound, self.log_evaluated_rival), external)

    @property
    def assumed_coverage(self) -> tuple[str, ...]:
        """What a proof by closed boxes assumes: nothing where the books were checked, or are this package's."""
        if self.trusting is None or self._books.measure != "none":
            return ()
        return (f"the boxes that {self.trusting} reported cover the whole space",)

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
        bounds_known = (
            self.log_closed_bound,
            self.log_closed_measure,
            self.log_open_mass,
            self.log_frontier_bound,
        )
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

        `smooth` uses the Lipschitz assumption. 0 (no support) where masses do not apply, and where a point that
        has been evaluated may be too probable (its value being known between two sides only).
        """
        if not (smooth or self.has_masses):
            return 0.0
        if self.log_evaluated_rival > bounds.log_tau_within(self.log_kth_best, epsilon, self.tolerance):
            return 0.0
        weight = self.lipschitz.log_weight(epsilon) if smooth and self.lipschitz is not None else None
        return bounds.log_delta(self._draws.evidence(self.log_kth_best, epsilon, weight), self.top_k)

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _note_best(self, n_before: int, first_rows: NDArray[np.int64] | None) -> None:
        """Remember how many draws it took to the best point."""
        row = -1 if first_rows is None else int(first_rows[self._ranking.pairs[0][1] - n_before])
        self.n_draws_to_best = self.n_draws + row + 1

    def _rounded_mass(self, log_mass: float) -> float:
        """Round ln R up; a mass within rounding of 1 is 1, and an uneven allocation may give more than 1."""
        if abs(log_mass) <= self._slack:
            return 0.0
        log_mass = bounds.round_up(log_mass, self._slack)
        return 0.0 if abs(log_mass) <= self._slack else log_mass
