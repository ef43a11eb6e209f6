"""The data of an explanation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from certimap.core.domain import Label
from certimap.core.result import CertificateKind, MapResult, json_ready
from certimap.core.summary import aligned
from certimap.core.untyped import Record


@dataclass(frozen=True)
class Lead:
    """How far the answer is ahead of the next best assignment."""

    nats: float  # ln p(answer) - ln p(runner_up); 0 for a tie, inf if only the answer is possible
    runner_up: dict[str, Label]  # the second most probable assignment
    kind: CertificateKind  # the certificate of the two together


@dataclass(frozen=True)
class Swing:
    """The effect on the answer of removing one observation, or of changing it to another state."""

    variable: str  # the observed variable
    # the state put in its place; None if the observation is removed (and the variable summed out)
    state: Label | None
    changes: dict[str, Label]  # the new states of the query variables that change; empty if the answer stays
    kind: CertificateKind | None  # the certificate of the new answer; None if the changed evidence is impossible


@dataclass(frozen=True)
class Tolerance:
    """How far one entry of a conditional table may move before another assignment is as probable as the answer.

    The other entries of its row are scaled so that the row still adds to 1; all other rows stay.
    """

    variable: str  # the entry: P(variable = state | given)
    given: dict[str, Label]
    state: Label
    value: float  # the entry's present value
    # the answer stays the most probable from `low` to `high`; 0 or 1 if no value on that side changes it
    low: float
    high: float
    # the assignments that win below `low` and above `high`, by the states that differ; None if there is none
    rivals: tuple[dict[str, Label] | None, dict[str, Label] | None]
    kind: CertificateKind  # the certificate of the searches that found no better rival inside: exact, or weaker


@dataclass(frozen=True)
class Explanation:
    """The explanation of an answer; every part carries its certificate.

    Attributes
    ----------
    answer
        The result that is explained.
    lead
        The lead over the runner-up; None if there is no other assignment.
    removed
        A `Swing` for each observation, removed in turn.
    changed
        A `Swing` for each alternative state of an observation that changes the answer.
    log_odds_free
        Any one entry of any table may move by this much in log-odds (nats) without changing the answer: the lead,
        by the bound of Chan and Darwiche (2002). 0 where the runner-up is not proved, and for models without
        conditional tables.
    tolerances
        The exact range of the entries that matter most, for Bayesian networks.
    superseded
        The assignment to be explained, if another one, which is the answer here, proved to be more probable.
    """

    answer: MapResult
    lead: Lead | None
    removed: list[Swing]
    changed: list[Swing]
    log_odds_free: float
    tolerances: list[Tolerance]
    superseded: dict[str, Label] | None = None

    def to_dict(self) -> Record:
        """Return JSON-ready data: the answer's own under `answer`, and what `beside` returns."""
        return {"answer": self.answer.to_dict()} | self.beside()

    def beside(self) -> Record:
        """Return the part of `to_dict` without the answer; infinite numbers are None."""
        parts: Record = {
            "lead": None if self.lead is None else asdict(self.lead),
            "removed": [asdict(swing) for swing in self.removed],
            "changed": [asdict(swing) for swing in self.changed],
            "log_odds_free": self.log_odds_free,
            "tolerances": [asdict(tolerance) for tolerance in self.tolerances],
            "superseded": self.superseded,
        }
        return json_ready(parts)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, *, with_answer: bool = True) -> Iterable[str]:
        """Return the lines of the explanation, a section per question; `with_answer` includes the answer."""
        if self.superseded is not None:
            yield "Another assignment is more probable than the one to be explained; it is explained here."
            yield ""
        if with_answer or self.superseded is not None:
            yield "The answer"
            yield from aligned(((name, "=", str(label)) for name, label in self.answer.assignment.items()), "  ")
            yield f"  proved: {self.answer.certificate.kind}"
        if self.lead is not None:
            times = math.exp(min(self.lead.nats, 700.0))
            yield ""
            yield f"Lead over the runner-up: {times:.6g} times as probable (proved: {self.lead.kind})"
            yield from _differences(self.answer.assignment, self.lead.runner_up)
        yield ""
        yield "Observations that the answer hangs on"
        turning = [s for s in self.removed if s.changes]
        yield from _swings(turning, "without") if turning else ("  none: without any one of them it stays",)
        if self.changed:
            yield ""
            yield "Other states that would change it"
            yield from _swings(self.changed, "with")
        if self.log_odds_free > 0.0:
            yield ""
            yield f"Any one table entry may move by {self.log_odds_free:.4g} in log-odds"
        if self.tolerances:
            yield "Ranges of single entries in which the answer stays (the tightest first)"
            yield from aligned((_range(t) for t in self.tolerances), "  ")


def _differences(answer: dict[str, Label], other: dict[str, Label]) -> Iterable[str]:
    yield from aligned(
        ((name, f"{label}", "->", f"{other[name]}") for name, label in answer.items() if other[name] != label),
        "  ",
    )


def _swings(swings: Iterable[Swing], word: str) -> Iterable[str]:
    def row(swing: Swing) -> tuple[str, str, str]:
        what = swing.variable if swing.state is None else f"{swing.variable}={swing.state}"
        changes = ", ".join(f"{name}={label}" for name, label in swing.changes.items())
        return f"{word} {what}", changes, f"(proved: {swing.kind})"

    return aligned((row(s) for s in swings), "  ")


def _range(t: Tolerance) -> tuple[str, str, str]:
    given = ", ".join(f"{name}={label}" for name, label in t.given.items())
    entry = f"P({t.variable}={t.state}{' | ' if given else ''}{given})"
    return entry, f"= {t.value:.4g}", f"in [{t.low:.4g}, {t.high:.4g}] (proved: {t.kind})"
