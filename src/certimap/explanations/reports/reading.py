"""Turns records of `certimap solve --json` back into results."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from certimap.core.result import Certificate, CertificateKind, HistoryEntry, MapResult, Rule, Status
from certimap.core.untyped import Record
from certimap.errors import ParseError
from certimap.explanations import Explanation, Lead, Swing, Tolerance
from certimap.io.files import AnyPath


def result_of(record: Record, path: AnyPath) -> MapResult:
    """Return the result that a record was written from.

    Numbers that JSON holds as null are infinite where the result has them so, else None. Raises ParseError, naming
    the file, where an entry is missing or of another type.
    """
    try:
        certificate = dict(record["certificate"])
        certificate["kind"] = CertificateKind(certificate["kind"])
        certificate["rule"] = None if certificate["rule"] is None else Rule(certificate["rule"])
        certificate["assumptions"] = tuple(str(text) for text in certificate["assumptions"])
        for name in ("epsilon", "delta", "requested_epsilon", "requested_delta", "tolerance"):
            certificate[name] = float(certificate[name])
        kept: Record = {f.name: record[f.name] for f in fields(MapResult) if f.name in record}
        kept["certificate"] = Certificate(**certificate)
        kept["status"] = Status(record["status"]["code"])
        kept["pareto"] = [(float(epsilon), float(delta)) for epsilon, delta in record["pareto"]]
        kept["history"] = _history(record.get("history"))
        kept["assignment"] = dict(record["assignment"])
        for name in ("log_prob", "log_evidence", "log_joint", "log_upper_bound", "log_joint_upper_bound"):
            kept[name] = None if record[name] is None else float(record[name])
        kept["seconds"] = float(record["seconds"])
        for name in ("n_draws", "n_evaluations"):
            kept[name] = int(record[name])
        if record.get("top") is not None:
            kept["top"] = [(dict(assignment), _finite(value, -math.inf)) for assignment, value in record["top"]]
        return MapResult(**kept)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ParseError(
            f"holds a damaged result ({said}); expected what 'certimap solve -o' writes", path
        ) from None


def explanation_of(record: Record, result: MapResult, path: AnyPath) -> Explanation | None:
    """Return the explanation that a record holds beside its answer (`certimap solve --explain`), or None.

    Raises ParseError, naming the file, where it is damaged.
    """
    held = record.get("explanation")
    if held is None:
        return None
    try:
        lead = held["lead"]
        return Explanation(
            result,
            None
            if lead is None
            else Lead(_finite(lead["nats"], math.inf), dict(lead["runner_up"]), CertificateKind(lead["kind"])),
            [_swing(swing) for swing in held["removed"]],
            [_swing(swing) for swing in held["changed"]],
            float(held["log_odds_free"]),
            [_tolerance(tolerance) for tolerance in held["tolerances"]],
            None if held["superseded"] is None else dict(held["superseded"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ParseError(
            "holds a damaged explanation; expected what 'certimap solve --explain -o' writes", path
        ) from None


def _swing(held: Record) -> Swing:
    kind = None if held["kind"] is None else CertificateKind(held["kind"])
    return Swing(str(held["variable"]), held["state"], dict(held["changes"]), kind)


def _tolerance(held: Record) -> Tolerance:
    below, above = (None if rival is None else dict(rival) for rival in held["rivals"])
    value, low, high = (float(held[name]) for name in ("value", "low", "high"))
    given, kind = dict(held["given"]), CertificateKind(held["kind"])
    return Tolerance(str(held["variable"]), given, held["state"], value, low, high, (below, above), kind)


def _history(columns: Any) -> list[HistoryEntry]:
    """Turn columns back into moments; records of older versions have none, or no search nodes."""
    if columns is None:
        return []
    held = {"n_nodes": [0] * len(columns["seconds"]), **columns}
    rows = zip(*(held[f.name] for f in fields(HistoryEntry)), strict=True)
    return [
        HistoryEntry(
            float(seconds), int(draws), int(evaluations), _finite(best, -math.inf), _finite(upper, math.inf),
            _finite(mass, math.inf), int(nodes),
        )
        for seconds, draws, evaluations, best, upper, mass, nodes in rows
    ]  # fmt: skip


def _finite(value: Any, otherwise: float) -> float:
    return otherwise if value is None else float(value)
