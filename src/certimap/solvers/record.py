"""What a run reports beside its answer: its history, its part of a proof, equal answers, and located modes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.certify.recorder import Recorder
from certimap.checker import Proof
from certimap.core.box import Points
from certimap.core.domain import Label, Real
from certimap.core.posterior import Posterior
from certimap.core.result import Certificate, CertificateKind, HistoryEntry, Rule
from certimap.solvers.base import Solver

MAX_ENTRIES = 512
SHOW_AFTER_SECONDS = 0.5
MAX_PEAKS = 64  # points of the answer's height that are compared
N_BETWEEN = 15  # places between two points where a dip is tested
DIP = 100.0  # tolerances by which the density must dip between two peaks


def is_on_terminal() -> bool:
    """Whether standard error is a terminal, where progress is shown by default."""
    return sys.stderr is not None and sys.stderr.isatty()


class History:
    """Records a run's moments, at most 512 (every other one is dropped then), and closes the progress line."""

    def __init__(
        self, ledger: Ledger, started: float, progress: bool | Callable[[HistoryEntry], None] | None = None
    ) -> None:
        self.entries: list[HistoryEntry] = []
        self._ledger, self._started = ledger, started
        self._stride, self._n_calls, self._n_nodes = 1, 0, 0
        self._listener = progress if callable(progress) else None
        is_shown = progress is True or (progress is None and is_on_terminal())
        self._line = _ProgressLine(started) if is_shown else None

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        if self._line is not None:
            self._line.close()

    def record(self, n_nodes: int | None = None, *, force: bool = False) -> None:
        """Record this moment unless thinning skips it; None repeats the last count of search nodes."""
        self._n_calls += 1
        if n_nodes is not None:
            self._n_nodes = n_nodes
        if not force and self._n_calls % self._stride and self._listener is None and self._line is None:
            return
        entry = self._moment()
        if self._listener is not None:
            self._listener(entry)
        if self._line is not None:
            self._line.show(entry)
        if force or self._n_calls % self._stride == 0:
            self.entries.append(entry)
        if len(self.entries) > MAX_ENTRIES:
            del self.entries[1::2]
            self._stride *= 2

    def _moment(self) -> HistoryEntry:
        ledger = self._ledger
        open_mass = ledger.log_residual if ledger.log_open_mass is None else ledger.log_open_mass
        return HistoryEntry(
            seconds=time.perf_counter() - self._started,
            n_draws=ledger.n_draws,
            n_evaluations=ledger.n_evaluations,
            log_prob=ledger.best_log_prob,
            log_upper_bound=ledger.log_upper_bound,
            log_open_mass=open_mass,
            n_nodes=self._n_nodes,
        )


class _ProgressLine:
    """One line on standard error, shown if a run takes a while."""

    def __init__(self, started: float) -> None:
        self._started, self._last = started, 0.0
        self._status: Any = None

    def show(self, entry: HistoryEntry) -> None:
        now = time.perf_counter()
        if now - self._started < SHOW_AFTER_SECONDS or now - self._last < 0.1:
            return
        self._last = now
        upper = f"{entry.log_upper_bound:.4f}" if math.isfinite(entry.log_upper_bound) else "unknown"
        counts = f"{entry.n_draws:,} draws, {entry.n_evaluations:,} evaluations, {entry.seconds:.0f} s"
        text = f"best ln p {entry.log_prob:.4f}, upper bound {upper}, {counts}"
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()


def draft(ledger: Ledger, certificate: Certificate, recorder: Recorder) -> Proof:
    """Return the method and arrays for checking a certificate, or the reason why there is no proof."""
    reason = _refusal(certificate)
    if reason is not None:
        return unproved(reason)
    if certificate.rule in (Rule.DRAWS, Rule.FRONTIER) and certificate.delta > 0.0:
        log_open, log_closed, counts = map(np.array, zip(*ledger.draw_groups, strict=True))
        record = {"log_open": log_open, "log_closed": log_closed, "counts": counts.astype(np.int64)}
        return Proof({"method": "draws", "rule": ledger.rule}, record)
    if certificate.rule is Rule.ENUMERATION:
        return Proof({"method": "enumeration"}, {})
    if certificate.rule is Rule.RESIDUAL:
        points = ledger.atoms.points(np.arange(ledger.atoms.n))
        return Proof({"method": "residual"}, {"points": points})
    if recorder.layout is None:
        return Proof({"method": "bound"}, {})
    found = {} if recorder.is_full else recorder.trace() | recorder.tree(recorder.layout)
    if recorder.is_full:
        return unproved(f"the search has more splits than max_proof={recorder.max_bytes:,} bytes hold")
    return Proof({"method": "boxes"}, found)


def draft_of_parts(certificate: Certificate) -> Proof:
    """Return `draft` for a query that several workers searched in parts: the whole must be proved again."""
    reason = _refusal(certificate)
    if reason is None and certificate.delta > 0.0:
        reason = (
            "draws from parts that are searched side by side have no common record; leave executor and n_jobs out"
        )
    return Proof({"method": "bound"}, {}) if reason is None else unproved(reason)


def _refusal(certificate: Certificate) -> str | None:
    """Return why a certificate cannot be proved, or None."""
    if certificate.kind is CertificateKind.NONE:
        return "the run earned no certificate; raise its limits"
    if certificate.assumptions and certificate.rule is not Rule.EXTERNAL:
        return f"the certificate rests on an assumption ({certificate.assumptions[0]})"
    return None


def unproved(reason: str) -> Proof:
    """Return a placeholder proof that holds the reason why there is none."""
    return Proof({"method": "none", "no_proof": reason}, {})


def ties_of(ledger: Ledger, solver: Solver) -> list[dict[str, Label]] | None:
    """Return the other assignments (peaks, of a density) as probable as the answer; None unless all are known."""
    best = ledger.best_log_prob
    margin = math.log1p(ledger.tolerance)
    if best == -math.inf or ledger.atoms.two_sided:
        return None
    is_density = ledger.posterior.facts.is_density
    if not is_density and ledger.log_unseen_bound >= best - margin:
        return None
    ids = np.flatnonzero(ledger.atoms.log_probs >= best - margin)
    ids = ids[ids != ledger.best[0][1]]
    if not len(ids):
        return None if is_density else []
    points = ledger.atoms.points(ids)
    if is_density:
        answer = ledger.best_point
        assert answer is not None
        points = _other_peaks(ledger.posterior, answer, points[:MAX_PEAKS], best - DIP * margin)
    ties = [solver.decode(ledger.posterior, point) for point in points]
    return None if is_density and not ties else ties


def _other_peaks(posterior: Posterior, answer: Points, points: Points, log_low: float) -> Points:
    """Return the points on separate peaks: the density dips between each two of them."""
    kept = [answer]
    for point in points:
        if all(_is_apart(posterior, point, other, log_low) for other in kept):
            kept.append(point)
    return np.array(kept[1:]).reshape(-1, len(answer))


def _is_apart(posterior: Posterior, a: Points, b: Points, log_low: float) -> bool:
    discrete = posterior.domain.n_states > 0
    if np.any(a[discrete] != b[discrete]):
        return True
    shares = np.arange(1, N_BETWEEN + 1)[:, None] / (N_BETWEEN + 1)
    return bool(np.min(posterior.log_prob(a + shares * (b - a))) < log_low)


def located_by(ledger: Ledger) -> dict[str, tuple[float, float]] | None:
    """Return the intervals, by variable name, that hold all modes."""
    if ledger.located is None:
        return None
    ends = zip(ledger.domain, *ledger.located, strict=True)
    return {v.name: (float(low), float(high)) for v, low, high in ends if isinstance(v, Real)}
