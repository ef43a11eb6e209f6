"""A read-only view of a run's observations and proofs, for solvers and certificates."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from certimap.certify import bounds
from certimap.certify.draw_record import Agreement, Batch, DrawRecord, Lipschitz
from certimap.certify.evaluated import Evaluated
from certimap.certify.recorder import Recorder
from certimap.core.arguments import check_number, check_whole
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.posterior import Masses, Posterior, TwoSided
from certimap.errors import SolverError, UnbalancedBooks

if TYPE_CHECKING:
    from certimap.core.rules import Rules

Measure = Literal["mass", "share", "none"]
Proof = tuple[float, str, bool]  # ln of an upper bound, prover, whether it is this package's
BALANCE = 1e-4  # of the whole; more than the rounding error of a sum over very many boxes
_WORDS: dict[str, str] = {"mass": "probability of the box", "share": "box's share of all joint states"}


def check_settings(epsilon: float, delta: float, top_k: int, rule: str, tolerance: float = 0.0) -> None:
    """Refuse settings that request no valid certificate."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0.0 <= check_number(name, value, "a number in [0, 1)") < 1.0:
            raise SolverError(f"{name} is {value}; expected a number in [0, 1)")
    if not 0.0 <= check_number("tolerance", tolerance, "a number not below 0") < np.inf:
        raise SolverError(f"tolerance is {tolerance}; expected a number not below 0")
    check_whole("top_k", top_k, "a positive number of answers", low=1)
    if rule not in ("sharp", "published"):
        raise SolverError(f"rule is {rule!r}; expected 'sharp' or 'published'")


def _check_box(boxes: Boxes | None, domain: Domain) -> None:
    """Refuse anything but a single non-empty box, or None."""
    if boxes is None:
        return
    if len(boxes) != 1:
        raise SolverError(f"{len(boxes)} boxes were given to search; expected one, or None for the whole space")
    if not np.all(boxes.counts()[:, domain.n_states > 0]):
        raise SolverError("the box to search leaves a variable no state; at least one of each is expected")


class Books:
    """Adds up the measure of closed boxes, and checks that open boxes cover the rest.

    `measure`: "mass", the "share" of all joint states, or "none" where a variable is real: it accepts everything.
    `log_total`: ln of that of closed and open boxes together. `log_slack`: the error (nats) of ln of a mass.
    """

    def __init__(self, measure: Measure, log_total: float = 0.0, log_slack: float = 0.0) -> None:
        self.measure: Measure = measure
        self.balance = BALANCE + (2.0 * log_slack if measure == "mass" else 0.0)
        self.log_total = log_total
        self.log_closed = -math.inf

    @classmethod
    def of(cls, posterior: Posterior, boxes: Boxes | None, log_slack: float) -> Books:
        """Return the books of a search of a box, or of everything: of its mass where that is known."""
        if not posterior.domain.is_discrete:
            return cls("none")
        if posterior.facts.has_masses and isinstance(posterior, Masses) and not isinstance(posterior, TwoSided):
            return cls("mass", 0.0 if boxes is None else float(posterior.log_mass(boxes)[0]), log_slack)
        parts = 1.0 if boxes is None else boxes.counts()[0] / posterior.domain.n_states
        return cls("share", float(np.sum(np.log(parts))), log_slack)

    def close(self, log_measure: float | Floats | None) -> None:
        """Add closed boxes by ln of their measure; raise UnbalancedBooks if it is missing where it applies."""
        if self.measure == "none":
            return
        if log_measure is None or np.any(np.isnan(log_measure)):
            wanted = f"ln of the {_WORDS[self.measure]}"
            raise UnbalancedBooks(f"a box was closed without its {self.measure}; expected {wanted}")
        if np.size(log_measure):
            total = float(np.logaddexp.reduce(np.atleast_1d(log_measure)))
            self.log_closed = float(np.logaddexp(self.log_closed, total))

    def check_open(self, log_open: float | None) -> None:
        """Raise UnbalancedBooks unless open and closed measure make up the whole, within 1e-4 and rounding."""
        if self.measure == "none":
            return
        covered = self._covered(log_open)
        if not abs(covered - 1.0) <= self.balance:
            raise self._refused(covered, "the boxes reported closed or open")

    @property
    def log_drawn(self) -> float:
        """ln of the mass that draws come from before any box is closed; raises UnbalancedBooks if unknown."""
        if self.measure == "share" and self.log_total != 0.0:
            raise UnbalancedBooks("draws inside a box need a posterior that knows masses of boxes")
        return self.log_total

    def check_drawn(self, log_r: float) -> None:
        """Raise UnbalancedBooks if draws came from less than the unclosed mass; `log_r` is ln of their mass."""
        if log_r < self.log_total:
            if self.measure != "mass":
                raise UnbalancedBooks("draws from a part of the space need a posterior that knows masses of boxes")
            covered = self._covered(log_r)
            if not covered >= 1.0 - self.balance:
                raise self._refused(covered, "the boxes drawn from and those reported closed")

    def check_room(self, log_unseen: float, left: float, n_seen: int, log_size: float) -> None:
        """Raise UnbalancedBooks if a bound on ln p of unevaluated points is below their average; `left` is their
        total probability, `n_seen` the number of evaluated points, `log_size` ln of the number of all points.
        """
        left -= 1e-9
        if self.measure != "mass" or self.log_total != 0.0 or left <= 0.0:
            return
        share_seen = math.exp(math.log(n_seen) - log_size) if n_seen else 0.0
        log_average = math.log(left) - log_size - math.log1p(-min(share_seen, 1.0 - 1e-15))
        if log_unseen < log_average - BALANCE:
            raise UnbalancedBooks(
                f"nothing that was not evaluated is said to exceed ln p = {log_unseen:.6g}, but the points there "
                f"have ln p = {log_average:.6g} on average; true upper bounds are expected"
            )

    def _covered(self, log_open: float | None) -> float:
        """Return the share of the whole that closed and open boxes hold; `log_open` is ln of the open measure."""
        if log_open is None:
            raise UnbalancedBooks(f"open boxes were reported without their {self.measure}")
        log_held = float(np.logaddexp(self.log_closed, log_open))
        if log_held == self.log_total:  # an impossible box (both -inf) counts as covered
            return 1.0
        return math.exp(min(log_held - self.log_total, 700.0))

    def _refused(self, covered: float, which: str) -> UnbalancedBooks:
        held = f"{which} hold {covered:.6g} of the space by {self.measure}"
        return UnbalancedBooks(f"{held}; boxes that cover it once, 1 in all, are expected")


class Findings:
    """The request, the observations and the proofs of a run; only a `Ledger` adds to them. All logs are natural.

    `epsilon`, `delta`, `top_k` and `tolerance` are the request (see `certimap.solvers.request.Request`). Of the
    posterior, only facts and `log_prob` (`log_prob_interval` if it is `TwoSided`) are used.

    `rule`: "sharp" counts -ln(1 - tau) per draw, "published" counts tau.
    `max_draws`: draws beyond this number are ignored.
    `early_stop`: False keeps every draw, for methods with a fixed number of draws.
    `control`: the limits of the run; an interrupt waits while the ledger writes.
    `boxes`: a single box, to certify the most probable assignments inside it. None: the whole space.
    `trusting`: the name of a user's solver whose books cannot be checked (a search over real variables); the
    certificate states this assumption. None for this package's solvers.
    `recorder`: records the search for a proof file; None if no proof was requested.
    `checks_draws`: whether to compare how often points are drawn with their probabilities; see `Agreement`.
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
        recorder: Recorder | None = None,
        checks_draws: bool = False,
    ) -> None:
        check_settings(epsilon, delta, top_k, rule, tolerance)
        _check_box(boxes, posterior.domain)
        self.posterior, self.domain = posterior, posterior.domain
        self.epsilon, self.delta, self.tolerance = float(epsilon), float(delta), tolerance
        self.rule: Literal["sharp", "published"] = rule
        self.max_draws, self.early_stop = max_draws, early_stop
        self.top_k = int(min(top_k, math.exp(min(self.domain.log_size, 60.0)) + 0.5))
        if self.top_k > 1 and self.rules is not None and self.domain.is_discrete:
            self.top_k = int(max(1, min(self.top_k, self.rules.most)))
        self.control = Control() if control is None else control
        self.boxes = boxes
        facts = posterior.facts
        # If p(e) is unknown or p is a density, no rule that compares a point with the mass 1 applies.
        self.has_masses = facts.has_masses
        # The oracle's rounding error. If it exceeds the tolerance, no answer is called exact.
        self._slack = max(bounds.SLACK, facts.log_slack)
        self._evaluated = Evaluated(posterior, self.top_k, self.control)
        self.atoms, self._ranking = self._evaluated.atoms, self._evaluated.ranking
        self.trusting, self.recorder = trusting, recorder
        self._books = Books.of(posterior, boxes, self._slack)
        self.n_draws_to_best: int | None = None
        self.log_closed_bound = -math.inf
        self.log_open_mass: float | None = None
        self.log_frontier_bound = math.inf
        self.external: Proof | None = None
        self.is_enumerated = False
        self.lipschitz: Lipschitz | None = None
        self.located: tuple[Floats, Floats] | None = None
        is_evidence = facts.has_independent_draws
        self._draws = DrawRecord(rule == "published", tolerance, self._slack, is_evidence)
        self._agreement = Agreement() if checks_draws and is_evidence and self.has_masses else None
        self._stopped = False

    def attached(self, posterior: Any) -> Self:
        """Return this with its posterior, or without it, None, as it travels from one process to another."""
        self.posterior = self._evaluated.posterior = posterior
        return self

    @property
    def rules(self) -> Rules | None:
        """The constraints on answers, or None."""
        return self.posterior.rules if isinstance(self.posterior, ConstrainedPosterior) else None

    @property
    def n_draws(self) -> int:
        """The number of draws."""
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
        return self._threshold(self.epsilon)

    def _threshold(self, epsilon: float) -> float:
        best = self.log_kth_best
        if best == -math.inf:
            return best
        return bounds.log_closing_threshold(best, epsilon, self.tolerance, self._slack)

    @property
    def log_exact_threshold(self) -> float:
        """The same while the answer stays exact; searches turn to epsilon only for expensive work."""
        return self._threshold(0.0)

    @property
    def log_strict_threshold(self) -> float:
        """The largest bound (nats) at which a box surely holds no mode, despite rounding."""
        best = self.best_log_prob
        return best - 3.0 * bounds.slack(best, self._slack) if best > -math.inf else best

    @property
    def remaining_draws(self) -> int | None:
        """How many more draws are allowed; None without a limit."""
        return None if self.max_draws is None else max(0, self.max_draws - self.n_draws)

    @property
    def log_residual(self) -> float:
        """ln p̌, rounded up; 0 if masses do not apply."""
        evaluated = self._evaluated
        return bounds.log_p_check(evaluated.mass, evaluated.compensation, self._slack) if self.has_masses else 0.0

    @property
    def log_unseen_bound(self) -> float:
        """The smallest bound on ln p of all unevaluated points; inf without a bound."""
        if self.is_enumerated:
            return -math.inf
        return min(self.log_frontier_bound, self.log_residual if self.has_masses else math.inf)

    @property
    def log_evaluated_rival(self) -> float:
        """Upper bound on ln p of evaluated points that are no answers: of two-sided values, or the last answer."""
        return max(self._evaluated.log_rival, bounds.round_up(self.log_kth_best, self._slack))

    @property
    def log_measure(self) -> float:
        """ln of the measure (see `Ledger.close`) of the searched space: 0 for the whole space."""
        return self._books.log_total

    @property
    def log_closed_measure(self) -> float:
        """ln of the measure (see `Ledger.close`) of all closed or settled boxes."""
        return self._books.log_closed

    @property
    def _log_external(self) -> float:
        return math.inf if self.external is None else self.external[0]

    @property
    def log_upper_bound(self) -> float:
        """The smallest proved upper bound on ln p*; inf without one."""
        seen = bounds.round_up(self._evaluated.log_upper, self._slack)
        if self.has_masses:
            seen = min(seen, 0.0)
        return bounds.log_upper(self.best_log_prob, max(self.log_unseen_bound, seen), self._log_external)

    @property
    def log_rival_bound(self) -> float:
        """The least bound on ln p of all points but the answers, with the rounding of the answers' own values."""
        rival = max(self.log_unseen_bound, self.log_evaluated_rival)
        return bounds.round_up(min(rival, self._log_external), self._slack)

    @property
    def assumed_coverage(self) -> tuple[str, ...]:
        """The assumptions of a proof by closed boxes: none if the books are checked or this package's."""
        if self.trusting is None or self._books.measure != "none":
            return ()
        return (f"the boxes that {self.trusting} reported cover the whole space",)

    @property
    def satisfied(self) -> bool:
        """Whether the requested certificate is earned."""
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
        """A summary of the run so far, equal before and after a step that brought nothing new."""
        known = (self.log_closed_bound, self.log_closed_measure, self.log_open_mass, self.log_frontier_bound)
        return (self.n_draws, self.n_evaluations, *known, self.external, self.is_enumerated)

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

    def log_delta(self, epsilon: float, *, smooth: bool = False) -> float:
        """ln δ(ε): the failure probability that the draws support at ε, valid at any moment, for all ε at once.

        `smooth` uses the Lipschitz assumption. 0 (no support) if masses do not apply, or if an evaluated point,
        known only between two bounds, may be too probable.
        """
        if not (smooth or self.has_masses):
            return 0.0
        rival = bounds.round_up(self.log_evaluated_rival, self._slack)
        if rival > bounds.log_tau_within(self.log_kth_best, epsilon, self.tolerance):
            return 0.0
        weight = self.lipschitz.log_weight(epsilon) if smooth and self.lipschitz is not None else None
        return bounds.log_delta(self._draws.evidence(self.log_kth_best, epsilon, weight), self.top_k)

    def _stopping_row(self, changes: Sequence[tuple[int, float, float]], batch: Batch) -> int | None:
        """Return the first draw to earn the requested certificate, or None; `changes` as of `Ranking.changes`."""
        stretches = [(0, self.log_kth_best, self._evaluated.log_rival)]
        stretches += [(int(batch.first_rows[i]), log_kth, log_rival) for i, log_kth, log_rival in changes]
        ends = [*(start for start, _, _ in stretches[1:]), batch.n_rows]
        log_proved = min(self.log_unseen_bound, self._log_external)
        for (start, log_kth, log_rival), end in zip(stretches, ends, strict=True):
            if log_kth == -math.inf or start >= end:
                continue
            log_rival = max(log_rival, bounds.round_up(log_kth, self._slack))
            within = bounds.log_tau_within(log_kth, self.epsilon, self.tolerance)
            if bounds.round_up(log_rival, self._slack) > within:
                continue  # an evaluated point may be too probable; draws cannot rule that out
            evidence = (self._evidence_row(log_kth, batch.log_r, smooth=smooth) for smooth in (False, True))
            row = min(self._proof_row(bounds.round_down(within, self._slack), log_proved, batch), *evidence)
            if max(start, row) < end:
                return int(max(start, row))
        return None

    def _proof_row(self, within: float, log_proved: float, batch: Batch) -> float:
        """Return the first row after which certain proofs suffice, or inf; the answer may be worth `within`."""
        sums, lost = batch.sums, batch.lost
        if log_proved <= within:
            return 0
        if not self.has_masses or not len(sums) or bounds.log_p_check(sums[-1], lost[-1], self._slack) > within:
            return math.inf

        def suffices(i: int) -> bool:  # the residual only falls
            return bounds.log_p_check(sums[i], lost[i], self._slack) <= within

        return int(batch.first_rows[bisect_left(range(len(sums) - 1), True, key=suffices)])

    def _evidence_row(self, log_kth: float, log_r: float, *, smooth: bool) -> float:
        """Return the first row after which the draws' evidence suffices, or inf."""
        if not (self.lipschitz is not None if smooth else self.has_masses):
            return math.inf
        need = bounds.required_evidence(self.delta, self.top_k) * (1.0 + 1e-12)
        weight = self.lipschitz.log_weight(self.epsilon) if smooth and self.lipschitz is not None else None
        return self._draws.needed(need, log_kth, self.epsilon, log_r, self.log_closed_bound, weight) - 1
