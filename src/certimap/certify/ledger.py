"""The ledger: receives a run's reports, judges draws in order, and alone issues certificates."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.certify import bounds
from certimap.certify.draw_record import Agreement, Batch, Lipschitz
from certimap.certify.evaluated import EVALUATION_ROWS
from certimap.certify.findings import Findings, Proof
from certimap.core.arguments import is_mapping
from certimap.core.arrays import Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.logs import checked_logs
from certimap.core.posterior import Facts
from certimap.core.result import Certificate, CertificateKind, Rule
from certimap.errors import ModelError, SolverError, UnbalancedBooks

_REQUEST = ("epsilon", "delta", "top_k", "tolerance", "rule", "early_stop")
_ALIKE = ("variables", "measures", *_REQUEST, "lipschitz")
_OWN: list[Source] = []  # by identity
_EXPECTED = "expected {'source': who proved it, 'log_prob': ln of a bound on p(q | e)}, or 'log_joint' for p(q, e)"
N_PAIRS = 33  # of epsilon and delta in a curve
MOST_LISTED = 2**22  # answers under constraints


def _check_alike(names: Sequence[str], settings: Sequence[Sequence[object]]) -> None:
    """Raise SolverError, naming the first difference, if ledgers have different settings."""
    for name, values in zip(names, zip(*settings, strict=True), strict=True):
        if any(value != values[0] for value in values):
            shown = ", ".join(dict.fromkeys(f"{value}" for value in values))
            raise SolverError(f"ledgers to be merged have different {name} ({shown}); the same are expected")


def is_partition(domain: Domain, parts: Sequence[Boxes | None], whole: Boxes | None) -> bool:
    """Whether the parts split the whole, counted exactly; False if each is the whole, else UnbalancedBooks."""
    full = Boxes.full(domain)
    target = full if whole is None else whole
    boxes = [full if part is None else part for part in parts]
    if all(_same(box, target) for box in boxes):
        return False
    if not domain.is_discrete:
        raise UnbalancedBooks("ledgers of parts of a space with real variables do not merge; each must cover all")
    masks = np.concatenate([box.mask for box in boxes])
    n_points = sum(Boxes(domain, masks).sizes())
    inside = not np.any(masks & ~target.mask)
    if not inside or n_points != target.sizes()[0] or not _are_disjoint(domain, masks):
        named = f"the boxes of {len(parts)} ledgers"
        raise UnbalancedBooks(f"{named} are neither the whole space each, nor a split of it into disjoint boxes")
    return True


def _same(one: Boxes, other: Boxes) -> bool:
    ends = ((one.low, other.low), (one.high, other.high))
    same_ends = all(a is None or b is None or np.array_equal(a, b) for a, b in ends)
    return np.array_equal(one.mask, other.mask) and same_ends


def _are_disjoint(domain: Domain, masks: np.ndarray) -> bool:
    """Whether no two boxes share a point; time quadratic in their number."""
    common = (
        np.logical_or.reduceat(masks[:i] & masks[i], domain.offsets[:-1], axis=1) for i in range(1, len(masks))
    )
    return not any(np.any(np.all(shared, axis=1)) for shared in common)


def _joint_proof(parts: Sequence[tuple[float, Proof | None]], log_seen: float) -> Proof | None:
    """Combine parts' (bound on unevaluated points, external proof) for the whole; None if none external helps."""
    used = [proof for log_unseen, proof in parts if proof is not None and proof[0] < log_unseen]
    if not used:
        return None
    value = max(min(log_unseen, math.inf if proof is None else proof[0]) for log_unseen, proof in parts)
    names = dict.fromkeys(name for _, name, _ in used)
    return max(value, log_seen), ", ".join(names), all(is_own for _, _, is_own in used)


class Ledger(Findings):
    """Receives the events of one run; see `Findings` for its parameters and properties.

    Solvers report events, and read `log_threshold`, `satisfied`, `remaining_draws` and so on. The ledger calls the
    oracle, once per distinct point. All logs are natural.
    """

    def draws(self, points: Points, log_open_mass: float | None = None) -> Floats:
        """Take i.i.d. draws, in order, made at ln R = `log_open_mass`; return ln p of those kept.

        None means the whole space. The draws must come from p(. | e, open boxes), in proportion to mass (an
        allocation a_j to parts of mass M_j counts as R = max M_j/a_j). The open set must be fixed before any value
        is known. Report draws before closing boxes because of them. Draws are judged one by one: those after the
        draw that earns the requested certificate are dropped, so that the stop depends on no batch size.

        Raises UnbalancedBooks when R and the closed boxes do not cover the space.
        """
        points = self._rows(points)[: self.remaining_draws]
        log_r = self._books.log_drawn if log_open_mass is None else float(log_open_mass)
        log_r = self._rounded_mass(float(checked_logs(log_r, "draws come from boxes of the mass")))
        if log_r != 0.0 and (self.lipschitz is not None or self.rule == "published"):
            both = "draws from open boxes cannot be combined with a Lipschitz constant or the published rule"
            raise SolverError(f"{both}; use solver='frontier' without them, or 'smooth_pac'")
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
                batch = Batch(len(points), first_rows, sums, lost, log_r)
                stop = self._stopping_row(self._evaluated.changes(n_before), batch)
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
        points = self._rows(points)
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
        new = self._evaluated.settle(self.atoms.insert(self._rows(points)))
        if self._books.measure == "mass":
            self._books.close(self.atoms.log_masses[new])
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
            highest = bounds.round_up(float(np.max(log_bound)), self._slack)
            self.log_closed_bound = max(self.log_closed_bound, highest)

    def frontier(self, log_open_measure: float | None, log_open_bound: float, *, is_rounded: bool = False) -> None:
        """State the open boxes: ln of their total measure (as in `close`) and their largest log bound.

        `is_rounded`: the bound holds for exact sums of the model's logs, whatever the oracle's rounding. Both logs
        are -inf when none is open. All other points must have been closed or settled. Raises UnbalancedBooks when
        closed, settled and open boxes do not make up the space, or the bounds are too low for what is not
        evaluated.
        """
        log_open_bound = float(checked_logs(float(log_open_bound), "open boxes were reported with the bound"))
        self._books.check_open(log_open_measure)
        open_bound = log_open_bound if is_rounded else bounds.round_up(log_open_bound, self._slack)
        log_open_mass = log_open_measure if self._books.measure == "mass" else None
        if log_open_mass is not None:
            open_bound = min(open_bound, bounds.round_up(log_open_mass, self._slack))
        unseen = max(self.log_closed_bound, open_bound)
        left = self._evaluated.left - self._slack
        if self.rules is None:  # else what is left may be no answer
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
        value = bounds.round_up(float(checked_logs(float(value), "an upper bound from elsewhere is")), self._slack)
        if self.external is None or value < self.external[0]:
            name = source.name if isinstance(source, Source) else str(source)
            self.external = (value, name, any(source is own for own in _OWN))
            self._drop_refuted()

    def enumerated(self) -> None:
        """State that every point of the space (or of the searched box) is evaluated; the ledger checks it."""
        n_points, n_seen, boxes, rules = -1, self.atoms.n, self.boxes, self.rules
        if self.domain.is_discrete:
            n_points = math.prod(self.domain.n_states.tolist()) if boxes is None else boxes.sizes()[0]
            if boxes is not None or rules is not None:
                n_seen = self.atoms.n_answers
                if boxes is not None:
                    points = self.atoms.points(slice(None))
                    n_seen = int(
                        np.sum(boxes.holds(points) & (True if rules is None else rules.satisfied(points)))
                    )
        if rules is not None:
            listed = None if boxes is None else rules.listed(max(MOST_LISTED, n_seen), boxes.mask[0])
            n_points = rules.most if boxes is None else -1 if listed is None else len(listed)
        if n_seen != n_points:
            raise SolverError(f"{n_seen} points were evaluated, which is not the whole space")
        self.is_enumerated = True

    def assume_lipschitz(self, bits: float, radius: float) -> None:
        """Assume rule 4 (rule 9 in a real domain): `bits` per changed variable (or unit) within `radius`."""
        if self.rules is not None:
            raise SolverError("a Lipschitz constant is of all assignments near a mode; constraints exclude some")
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
        _check_alike(_ALIKE, [ledger._asked for ledger in ledgers])
        splits = is_partition(first.domain, [ledger.boxes for ledger in ledgers], boxes)
        limits = [ledger.max_draws for ledger in ledgers if ledger.max_draws is not None]
        most = sum(limits) if len(limits) == len(ledgers) else None
        trusting = next((ledger.trusting for ledger in ledgers if ledger.trusting is not None), None)
        asked = {name: getattr(first, name) for name in _REQUEST}
        merged = cls(first.posterior, **asked, max_draws=most, control=control, boxes=boxes, trusting=trusting)
        for ledger in ledgers:
            merged._evaluated.adopt(ledger._evaluated)
        merged.log_closed_bound = max(ledger.log_closed_bound for ledger in ledgers)
        merged.n_draws_to_best = max(ledgers, key=lambda ledger: ledger.best_log_prob).n_draws_to_best
        (merged._join_parts if splits else merged._join_wholes)(ledgers)
        return merged

    def _rows(self, points: Points) -> Points:
        """Return points in the domain's dtype; refuse any other shape than (batch, n)."""
        points, n = np.asarray(points, self.domain.point_dtype), len(self.domain)
        if points.ndim != 2 or points.shape[1] != n:
            raise SolverError(f"points have shape {points.shape}; expected (batch, {n}), one column per variable")
        return points

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
        self.external = _joint_proof(list(zip(unseen, proofs, strict=True)), seen)

    def _check_agreement(self, agreement: Agreement) -> None:
        """Raise ModelError when points are drawn at rates that their probabilities contradict."""
        if (found := agreement.contradiction(self.atoms.log_probs)) is not None:
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
        rounded = bounds.round_up(log_mass, self._slack)
        return 0.0 if min(abs(log_mass), abs(rounded)) <= self._slack else rounded


@dataclass(frozen=True, eq=False)
class Source:
    """A prover of upper bounds in this package; compared by identity, not by name."""

    name: str


def own_source(name: str) -> Source:
    """Register a source whose bounds this package vouches for; called once, by the module that proves them."""
    source = Source(name)
    _OWN.append(source)
    return source


@dataclass(frozen=True)
class ExternalBound:
    """An external bound on ln p*; a certificate that uses it names the source among its assumptions."""

    source: str  # the name of the prover
    of: str  # "log_prob": it bounds max ln p(q | e). "log_joint": it bounds max ln p(q, e), unnormalised or not.
    log_value: float  # natural log of the bound

    @classmethod
    def read(cls, given: Any) -> ExternalBound | None:
        """Parse the argument `upper_bound=`; raise SolverError for anything but None and such a mapping."""
        if given is None:
            return None
        refused = SolverError(f"upper_bound is {given!r}; {_EXPECTED}")
        if not is_mapping(given) or len(given) != 2 or "source" not in given:
            raise refused
        of = next(name for name in given if name != "source")
        source, value = given["source"], given[of]
        if not (isinstance(source, str) and source.strip()) or of not in ("log_prob", "log_joint"):
            raise refused
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SolverError(f"upper_bound gives {value!r} for {of}; a finite natural log is expected")
        return cls(source, str(of), float(value))

    def on(self, facts: Facts) -> float:
        """Convert the bound to the scale of a posterior's `log_prob`, rounded up; raise SolverError if that needs
        p(e), which is unknown.
        """
        if (self.of == "log_prob") == facts.is_normalised:
            return self.log_value
        if facts.log_evidence is None:
            wanted = "log_prob" if facts.is_normalised else "log_joint"
            raise SolverError(
                f"the upper bound of {self.source} is of {self.of}, and p(e) is unknown here; give it of {wanted}"
            )
        shift = -facts.log_evidence if facts.is_normalised else facts.log_evidence
        return bounds.round_up(self.log_value + shift, max(bounds.SLACK, facts.log_slack))


def pareto_front(ledger: Findings) -> list[tuple[float, float]]:
    """Return admissible pairs (epsilon, delta) by rising epsilon; none needs an assumption.

    Each delta is the smallest that the draws support. For every d0, the probability that any pair with delta <= d0
    is false is at most d0, whenever the run stopped. The last pair is the one proved for certain, if any.
    """
    certain = _certain_epsilon(ledger)
    if certain == 0.0:
        return [(0.0, 0.0)]
    grid = {float(e) for e in np.linspace(0.0, certain, N_PAIRS, endpoint=False)}
    if ledger.epsilon < certain:
        grid.add(ledger.epsilon)
    front: list[tuple[float, float]] = []
    for epsilon in sorted(grid):
        delta = bounds.delta_of(ledger.log_delta(epsilon))
        if delta < (front[-1][1] if front else 1.0):
            front.append((epsilon, delta))
        if delta == 0.0:
            return front
    if certain < 1.0:
        front.append((certain, 0.0))
    return front


def _certain_epsilon(ledger: Findings) -> float:
    """Return the smallest epsilon that holds for certain; 1 when nothing is proved."""
    if ledger.log_rival_bound == math.inf:
        return 1.0
    return bounds.achieved_epsilon(ledger.log_kth_best, ledger.log_rival_bound, ledger.tolerance)


def issue(ledger: Findings) -> Certificate:
    """Return the strongest certificate that meets the request, else one of kind none with the supported delta."""
    certain = _certain_epsilon(ledger)
    if certain == 0.0 or certain <= ledger.epsilon:
        kind = CertificateKind.EXACT if certain == 0.0 else CertificateKind.EPSILON
        rule, assumptions = _proof(ledger)
        return _certificate(ledger, kind, certain, 0.0, rule, assumptions)
    log_requested = math.log(ledger.delta) if ledger.delta > 0.0 else -math.inf
    log_plain = ledger.log_delta(ledger.epsilon)
    if log_plain <= log_requested:
        rule = Rule.FRONTIER if any(log_r != 0.0 for log_r, _, _ in ledger.draw_groups) else Rule.DRAWS
        return _certificate(ledger, _kind(log_plain), ledger.epsilon, bounds.delta_of(log_plain), rule)
    if ledger.lipschitz is not None:
        log_smooth = ledger.log_delta(ledger.epsilon, smooth=True)
        if log_smooth <= log_requested:
            said = ledger.lipschitz.describe(ledger.epsilon, ledger.delta, ledger.best_log_prob)
            delta = bounds.delta_of(log_smooth)
            return _certificate(ledger, _kind(log_smooth), ledger.epsilon, delta, Rule.LIPSCHITZ, said)
    return _certificate(ledger, CertificateKind.NONE, ledger.epsilon, bounds.delta_of(log_plain))


def _proof(ledger: Findings) -> tuple[Rule, tuple[str, ...]]:
    """Name the rule behind the smallest upper bound."""
    if ledger.is_enumerated:
        return Rule.ENUMERATION, ()
    residual = ledger.log_residual if ledger.has_masses else math.inf
    external = math.inf if ledger.external is None else ledger.external[0]
    smallest = min(residual, ledger.log_frontier_bound, external)
    if ledger.log_frontier_bound == smallest:
        return Rule.BOUND, ledger.assumed_coverage
    if residual == smallest:
        return Rule.RESIDUAL, ()
    assert ledger.external is not None
    _, source, is_own = ledger.external
    return (Rule.BOUND, ()) if is_own else (Rule.EXTERNAL, (f"the upper bound from {source} holds",))


def _kind(log_delta: float) -> CertificateKind:
    return CertificateKind.EPSILON if log_delta == -math.inf else CertificateKind.PAC


def _certificate(
    ledger: Findings,
    kind: CertificateKind,
    epsilon: float,
    delta: float,
    rule: Rule | None = None,
    assumptions: tuple[str, ...] = (),
) -> Certificate:
    return Certificate(kind, epsilon, delta, ledger.epsilon, ledger.delta, rule, assumptions, ledger.tolerance)
