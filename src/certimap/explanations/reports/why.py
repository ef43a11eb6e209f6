"""The part of a report that explains the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from certimap.core.domain import Label
from certimap.core.result import CertificateKind
from certimap.explanations import Explanation, Swing, Tolerance
from certimap.explanations.reports.tables import escaped, table


def why(explained: Explanation) -> str:
    """Return an explanation as HTML, each part with its certificate."""
    parts: list[str] = []
    if explained.superseded is not None:
        text = "Another assignment is more probable than the one above. The following explains that one."
        parts.append(f"<p><strong>{text}</strong></p>")
    parts += [_lead(explained), _swings(explained)]
    free = explained.log_odds_free
    if free > 0.0:
        text = (
            f"The odds of any one table entry may change by a factor of {_times(free)}; the answer stays (proved)."
        )
        parts.append(f"<p>{text}</p>")
    if explained.tolerances:
        head = ("table entry", "is", "may move from", "to", "proof")
        rows = [_range(t) for t in explained.tolerances]
        parts.append(table("How far single table entries may move before the answer changes", head, rows))
    return "".join(parts)


def _lead(explained: Explanation) -> str:
    lead = explained.lead
    if lead is None:
        return "<p>There is no other assignment.</p>"
    answer = explained.answer.assignment if explained.superseded is None else None
    if lead.nats == math.inf:
        return f"<p>No other assignment is possible ({_proof(lead.kind)}).</p>"
    changes = {n: s for n, s in lead.runner_up.items() if answer is None or s != answer[n]}
    where = f"the next best, which has {escaped(_changes(changes))}"
    if lead.nats == 0.0:
        return f"<p>It is exactly as probable as {where} ({_proof(lead.kind)}).</p>"
    return f"<p>It is {_times(lead.nats)} times as probable as {where} ({_proof(lead.kind)}).</p>"


def _swings(explained: Explanation) -> str:
    """Show the answer without each observation, and with alternative states that change it."""
    if not explained.removed:
        return ""
    text = _table_of("The answer without one of the observations", "without", explained.removed)
    if explained.changed:
        return text + _table_of("Other states that would change the answer", "with", explained.changed)
    return f"{text}<p>No other state of a single observation changes the answer.</p>"


def _table_of(caption: str, word: str, swings: Sequence[Swing]) -> str:
    rows = [
        (
            s.variable if s.state is None else f"{s.variable} = {s.state}",
            "the evidence is impossible" if s.kind is None else _changes(s.changes) or "the answer stays",
            "" if s.kind is None else _proof(s.kind),
        )
        for s in swings
    ]
    return table(caption, (word, "the answer has", "proof"), rows)


def _range(t: Tolerance) -> tuple[str, ...]:
    given = _changes(t.given)
    entry = f"P({t.variable} = {t.state}{' | ' if given else ''}{given})"
    return entry, f"{t.value:.4g}", f"{t.low:.4g}", f"{t.high:.4g}", _proof(t.kind)


def _changes(changes: Mapping[str, Label]) -> str:
    return ", ".join(f"{name} = {label}" for name, label in changes.items())


def _times(nats: float) -> str:
    return f"{math.exp(nats):.4g}" if nats < 600.0 else f"e^{nats:.4g}"


def _proof(kind: CertificateKind) -> str:
    return "proved" if kind is CertificateKind.EXACT else "not proved"
