"""The ledger: receives a run's reports, judges draws in order, and alone decides what is proved."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from certimap.certify import bounds
from certimap.certify.checks import as_rows
from certimap.certify.draw_record import Agreement, Batch, Lipschitz
from certimap.certify.evaluated import EVALUATION_ROWS
from certimap.certify.external import Proof, Source, is_own
from certimap.certify.findings import Findings
from certimap.core.arrays import Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.logs import checked_logs
from certimap.errors import ModelError, SolverError, UnbalancedBooks


def check_alike(names: Sequence[str], settings: Sequence[Sequence[object]]) -> None:
    """Raise SolverError, naming the first difference, if ledgers have different settings."""
    for name, values in zip(names, zip(*settings, strict=True), strict=True):
        if any(value != values[0] for value in values):
            shown = ", ".join(dict.fromkeys(f"{value}" for value in values))
            raise SolverError(f"ledgers to be merged have different {name} ({shown}); the same are expected")


def is_partition(domain: Domain, parts: Sequence[Boxes | None], whole: Boxes | None) -> bool:
    """Return True if the parts split the whole, False if each part is the whole; counted exactly.

    Raises UnbalancedBooks in any other case.
    """
    full = Boxes.full(domain)
    target = full if whole is None else whole
    boxes = [full if part is None else part for part in parts]
    if all(_same(box, target) for box in boxes):
        return False
    if not domain.is_discrete:
        raise UnbalancedBooks(
            "ledgers of parts of a space with real variables cannot be merged; each must cover all"
        )
    masks = np.concatenate([box.mask for box in boxes])
    n_points = sum(Boxes(domain, masks).sizes())
    inside = not np.any(masks & ~target.mask)
    if not inside or n_points != target.sizes()[0] or not _are_disjoint(domain, masks):
        raise UnbalancedBooks(
            f"the boxes of {len(parts)} ledgers are neither the space to be covered each, nor a split of it into "
            "disjoint boxes"
        )
    return True


def _same(one: Boxes, other: Boxes) -> bool:
    if not np.array_equal(one.mask, other.mask):
        return False
    if one.low is None or other.low is None or one.high is None or other.high is None:
        return True
    return np.array_equal(one.low, other.low) and np.array_equal(one.high, other.high)


def _are_disjoint(domain: Domain, masks: np.ndarray) -> bool:
    """Whether no two boxes share a point; time quadratic in their number."""
    for i in range(1, len(masks)):
        common = np.add.reduceat(masks[:i] & masks[i], domain.offsets[:-1], axis=1, dtype=np.int64)
        if np.any(np.all(common > 0, axis=1)):
            return False
    return True


def joint_proof(parts: Sequence[tuple[float, Proof | None]], log_seen: float) -> Proof | None:
    """Combine external proofs, one per part, into a bound on the whole; None if they add nothing.

    Each part has its ledger's own log bound on unevaluated points, and the external proof; `log_seen` is the
    largest upper bound of an evaluated point.
    """
    used = [proof for log_unseen, proof in parts if proof is not None and proof[0] < log_unseen]
    if not used:
        return None
    value = max(min(log_unseen, math.inf if proof is None else proof[0]) for log_unseen, proof in parts)
    names = dict.fromkeys(name for _, name, _ in used)
    return max(value, log_seen), ", ".join(names), all(is_own for _, _, is_own in used)


_REQUEST = ("epsilon", "delta", "top_k", "tolerance", "rule", "early_stop")
_ALIKE = ("variables", "measures", *_REQUEST, "lipschitz")


class Ledger(Findings):
    """Receives the events of one run; see `Findings` for its parameters and properties.

    Solvers call `draws`, `candidates`, `settle`, `close`, `frontier`, `upper_bound`, `enumerated` and
    `assume_lipschitz`; they read `log_threshold`, `satisfied`, `remaining_draws` and so on. The ledger calls the
    oracle, once per distinct point. All logs are natural.
    """

    # --- events ------------------------------------------------------------------------------------------

    def draws(self, points: Points, log_open_mass: float | None = None) -> Floats:
        """Take i.i.d. draws, in order, made at ln R = `log_open_mass`; return ln p of those kept.

        None means the whole space. The draws must come from p(. | e, open boxes), in proportion to mass (an
        allocation a_j to parts of mass M_j counts as R = max M_j/a_j). The open set must be fixed before any value
        is known. Report draws before closing boxes because of them. Draws are judged one by one: those after the
        draw that earns the requested certificate are dropped, so that the stop depends on no batch size.

        Raises UnbalancedBooks when R and the closed boxes do not cover the space.
        """
        points = as_rows(points, self.domain)[: self.remaining_draws]
        log_r = self._books.log_drawn if log_open_mass is None else float(log_open_mass)
        log_r = self._rounded_mass(float(checked_logs(log_r, "draws come from boxes of the mass")))
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
                stop = self._stopping_row(changes, batch)
            n_kept = len(points) if stop is None else stop + 1
            self._stopped = stop is not None
            n_new = int(np.searchsorted(first_rows, n_kept))
            log_probs = self.atoms.log_probs[ids[:n_kept]].copy()
            self.atoms.truncate(n_before + n_new)
            if self._evaluated.absorb(n_before, sums, lost):
                self._note_best(n_before, first_rows)
            self._draws.add(log_r, self.log_closed_bound, n_kept)
            if self._agreement is not None and log_r == 0.0 and not self.atoms.two_sided:
                self._agreement.see(ids[:n_kept], log_probs)
                self._check_agreement(self._agreement)
            if self.has_masses and log_r < 0.0:
                self.log_frontier_bound = min(self.log_frontier_bound, max(self.log_closed_bound, log_r))
        return log_probs

    def candidates(self, points: Points) -> Floats:
        """Evaluate points from any source; return their ln p, shape (batch,). They never count as draws."""
        points = as_rows(points, self.domain)
        parts: list[Floats] = []
        for start in range(0, len(points), EVALUATION_ROWS):
            with self.control.atomically():
                n_before = self.atoms.n
                ids = self._evaluated.evaluate(points[start : start + EVALUATION_ROWS])
                sums, lost = self._evaluated.running_sums(n_before)
                parts.append(self.atoms.log_probs[ids])
                if self._evaluated.absorb(n_before, sums, lost):
                    self._note_best(n_before, None)
        return np.concatenate(parts) if parts else np.empty(0)

    def settle(self, points: Points) -> Floats:
        """Evaluate points and close their single-point boxes; return their ln p, shape (batch,)."""
        log_probs = self.candidates(points)
        if not self.domain.is_discrete or not len(log_probs):
            return log_probs
        new = self._evaluated.settle(self.atoms.insert(as_rows(points, self.domain)))
        if self._books.measure == "mass":
            self._books.close(self.atoms.log_probs[new])
        elif len(new):
            self._books.close(math.log(len(new)) - self.domain.log_size)
        return log_probs

    def close(self, log_bound: float | Floats, log_measure: float | Floats | None = None) -> None:
        """Close boxes: every point in them has p at most exp(`log_bound`), one for all boxes or one per box.

        `log_measure` is ln of their probability if the posterior knows it (`Masses`), else of their share of all
        joint states; None only if a variable is real. Raises UnbalancedBooks when it is missing where it applies.
        """
        log_bound = checked_logs(log_bound, "boxes were closed at the bound")
        self._books.close(log_measure)
        if np.size(log_bound):
            self.log_closed_bound = max(
                self.log_closed_bound, bounds.round_up(float(np.max(log_bound)), self._slack)
            )

    def frontier(self, log_open_measure: float | None, log_open_bound: float, *, is_rounded: bool = False) -> None:
        """State the open boxes: ln of their total measure (as in `close`) and their largest log bound.

        `is_rounded`: the bound holds for exact sums of the model's logs, whatever the oracle's rounding.

        Both logs are -inf when none is open. All other points must have been closed or settled. Raises
        UnbalancedBooks when closed, settled and open boxes do not make up the space, or when the bounds are too
        low for the probability that is not yet evaluated.
        """
        log_open_bound = float(checked_logs(float(log_open_bound), "open boxes were reported with the bound"))
        self._books.check_open(log_open_measure)
        open_bound = log_open_bound if is_rounded else bounds.round_up(log_open_bound, self._slack)
        log_open_mass = log_open_measure if self._books.measure == "mass" else None
        if log_open_mass is not None:
            open_bound = min(open_bound, bounds.round_up(log_open_mass, self._slack))
        unseen = max(self.log_closed_bound, open_bound)
        left = self._evaluated.left - self._slack
        self._books.check_room(unseen, left, self.atoms.n, self.domain.log_size)
        self.log_open_mass = log_open_mass
        # Every unevaluated point is closed or open now, so this bound holds from now on.
        self.log_frontier_bound = min(self.log_frontier_bound, unseen)

    def locate(self, low: Floats, high: Floats) -> None:
        """State that every mode lies in [low, high], shape (n,) each; categorical entries are ignored.

        Every box outside must have been closed at a bound of at most `log_strict_threshold`.
        """
        self.located = (low.copy(), high.copy())

    def upper_bound(self, value: float, source: Source | str) -> None:
        """Take an external proof that ln p* <= `value`.

        A bound that comes from no `Source` of this package is an assumption, which the certificate names. It is
        dropped with a warning if an evaluated point, earlier or later, contradicts it.
        """
        value = float(checked_logs(float(value), "an upper bound from elsewhere is"))
        value = bounds.round_up(value, self._slack)
        if self.external is None or value < self.external[0]:
            name = source.name if isinstance(source, Source) else str(source)
            self.external = (value, name, is_own(source))
            self._drop_refuted()

    def enumerated(self) -> None:
        """State that every point of the space (or of the searched box) is evaluated; the ledger checks it."""
        n_points, n_seen = -1, self.atoms.n
        if self.domain.is_discrete:
            n_points = math.prod(self.domain.n_states.tolist()) if self.boxes is None else self.boxes.sizes()[0]
            if self.boxes is not None:
                n_seen = int(np.sum(self.boxes.holds(self.atoms.points(slice(None)))))
        if n_seen != n_points:
            raise SolverError(f"{n_seen} points were evaluated, which is not the whole space")
        self.is_enumerated = True

    def assume_lipschitz(self, bits: float, radius: float) -> None:
        """Assume rule 4 (rule 9 in a real domain): `bits` per changed variable (or unit) within `radius`."""
        if self.lipschitz is None:
            if not self.domain.is_discrete and not self.posterior.facts.is_density:
                raise SolverError("a Lipschitz constant is of labels or of densities, and a variable is a count")
            if self._draws.is_partial:
                raise SolverError("a Lipschitz constant cannot be combined with draws from open boxes")
            self.lipschitz = Lipschitz(self.domain, bits, radius)

    @classmethod
    def merge(
        cls, ledgers: Sequence[Ledger], boxes: Boxes | None = None, control: Control | None = None
    ) -> Ledger:
        """Merge the ledgers of several runs of one query with the same settings and independent draws.

        Either each run covers the whole space, and all draws add up; or their `boxes` split it, and the least
        evidence of any box counts. `boxes` is the space that they cover together. A search may continue with the
        merged ledger, after a split with the open boxes of all runs. Raises SolverError when settings differ, or
        the runs of a split assume a Lipschitz constant, and UnbalancedBooks when the boxes neither all equal the
        whole, nor split it.
        """
        if not ledgers:
            raise SolverError("no ledgers were given to be merged; at least one is expected")
        first = ledgers[0]
        check_alike(_ALIKE, [ledger._asked for ledger in ledgers])
        splits = is_partition(first.domain, [ledger.boxes for ledger in ledgers], boxes)
        limits = [ledger.max_draws for ledger in ledgers if ledger.max_draws is not None]
        merged = cls(
            first.posterior,
            **{name: getattr(first, name) for name in _REQUEST},
            max_draws=sum(limits) if len(limits) == len(ledgers) else None,
            control=control,
            boxes=boxes,
            trusting=next((ledger.trusting for ledger in ledgers if ledger.trusting is not None), None),
        )
        for ledger in ledgers:
            merged._evaluated.adopt(ledger._evaluated)
        merged.log_closed_bound = max(ledger.log_closed_bound for ledger in ledgers)
        merged.n_draws_to_best = max(ledgers, key=lambda ledger: ledger.best_log_prob).n_draws_to_best
        if splits:
            merged._join_parts(ledgers)
        else:
            merged._join_wholes(ledgers)
        return merged

    # --- bookkeeping ---------------------------------------------------------------------------------------

    @property
    def _asked(self) -> tuple[object, ...]:
        """The settings that merged runs must share; `_ALIKE` names them."""
        assumed = None if self.lipschitz is None else (self.lipschitz.bits, self.lipschitz.radius)
        return (self.domain, self._books.measure, *(getattr(self, name) for name in _REQUEST), assumed)

    def _join_wholes(self, ledgers: Sequence[Ledger]) -> None:
        """Combine the proofs of runs over the same space."""
        for ledger in ledgers:
            self._draws.append(ledger._draws)
        self.log_frontier_bound = min(ledger.log_frontier_bound for ledger in ledgers)
        self.is_enumerated = any(ledger.is_enumerated for ledger in ledgers)
        proofs = (ledger.external for ledger in ledgers if ledger.external is not None)
        self.external = min(proofs, key=lambda proof: proof[0], default=None)
        self.lipschitz = ledgers[0].lipschitz

    def _join_parts(self, ledgers: Sequence[Ledger]) -> None:
        """Combine the proofs of runs over disjoint boxes."""
        if ledgers[0].lipschitz is not None:
            raise SolverError("a Lipschitz constant cannot be combined with draws from parts of the space")
        unseen = [ledger.log_unseen_bound for ledger in ledgers]
        self._draws.split([(ledger._draws, bound) for ledger, bound in zip(ledgers, unseen, strict=True)])
        self._books.log_closed = float(np.logaddexp.reduce([ledger.log_closed_measure for ledger in ledgers]))
        open_masses = [ledger.log_open_mass for ledger in ledgers]
        known = [mass for mass in open_masses if mass is not None]
        self.log_open_mass = float(np.logaddexp.reduce(known)) if len(known) == len(open_masses) else None
        self.log_frontier_bound = max(unseen)
        self.is_enumerated = all(ledger.is_enumerated for ledger in ledgers)
        seen = bounds.round_up(self._evaluated.log_upper, self._slack)
        proofs = [ledger.external for ledger in ledgers]
        self.external = joint_proof(list(zip(unseen, proofs, strict=True)), seen)

    def _check_agreement(self, agreement: Agreement) -> None:
        """Raise ModelError when points are drawn at rates that their probabilities contradict."""
        found = agreement.contradiction(self.atoms.log_probs)
        if found is not None:
            point, hits, n = found
            label = self.domain.decode(self.atoms.points(np.array([point]))[0])
            raise ModelError(
                f"the sampler and log_prob of this {type(self.posterior).__name__} describe different "
                f"distributions: {label} came up {hits} times in {n} draws, and its probability is said to be "
                f"{math.exp(self.atoms.log_probs[point]):.6g}; independent draws from exp(log_prob) are expected"
            )

    def _note_best(self, n_before: int, first_rows: Ints | None) -> None:
        """Record how many draws it took to find the best point."""
        row = -1 if first_rows is None else int(first_rows[self._ranking.pairs[0][1] - n_before])
        self.n_draws_to_best = self.n_draws + row + 1
        self._drop_refuted()

    def _drop_refuted(self) -> None:
        """Drop an external upper bound that an evaluated probability exceeds."""
        if self.external is None or self.external[2] or self.best_log_prob <= self.external[0]:
            return
        warnings.warn(
            f"the upper bound of {self.external[1]} is refuted by an assignment that was evaluated; it is dropped",
            stacklevel=2,
        )
        self.external = None

    def _rounded_mass(self, log_mass: float) -> float:
        """Round ln R up; a mass within rounding of 1 is 1, and an uneven allocation may give more than 1."""
        if abs(log_mass) <= self._slack:
            return 0.0
        log_mass = bounds.round_up(log_mass, self._slack)
        return 0.0 if abs(log_mass) <= self._slack else log_mass
