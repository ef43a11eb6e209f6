"""`certimap solve --output FILE.csv`: the answers to many rows as one table, whole or not at all."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from certimap.cli.output import CUT_SHORT, SOME_FAILED
from certimap.core.progress import Progress
from certimap.core.result import MapResult
from certimap.core.result_list import FailedQuery
from certimap.errors import CertimapError, QueryError
from certimap.io.files import write_text

if TYPE_CHECKING:
    from certimap.ask.batch import BatchRow

FACTS = ("log_prob", "log_upper_bound", "log_evidence", "kind", "epsilon", "delta", "status", "error")


def check_folder(path: Path) -> None:
    """Reject a file in a missing folder, before any computation."""
    if not path.resolve().parent.is_dir():
        raise QueryError(f"answers go to {str(path)!r}, and {str(path.parent)!r} is no folder")


def write_answers(path: Path, rows: Sequence[BatchRow], answers: Iterable[MapResult | FailedQuery]) -> int:
    """Answer rows, show progress, and write one line per row; return the exit code.

    A line has the row's number, its variables, natural logs, the certificate, and the error of a failed row.
    Variables have the answer's labels, or the row's evidence for variables queried only by other rows. Ctrl-C ends
    the batch; later rows have the status "not reached". The exit code is 0, 3 if rows failed, or 130 after Ctrl-C.
    """
    found: list[MapResult | FailedQuery] = []
    interrupted = False
    with Progress("rows", len(rows)) as bar:
        try:
            for answer in answers:
                found.append(answer)
                bar.step(f"{len(found)} of {len(rows)}")
        except KeyboardInterrupt:
            if not found:
                raise
            interrupted = len(found) < len(rows)
    write_text(path, _table(rows, found))
    failed = [str(row.label) for row, answer in zip(rows, found, strict=False) if isinstance(answer, FailedQuery)]
    said = f"{len(found) - len(failed)} of {len(rows)} rows answered in {path}"
    if failed:
        shown = ", ".join(failed[:8]) + (", ..." if len(failed) > 8 else "")
        said += f", {len(failed)} failed (row {shown})"
    if interrupted:
        said += f", interrupted with {len(rows) - len(found)} to go"
    print(f"certimap: {said}", file=sys.stderr)
    return CUT_SHORT if interrupted else SOME_FAILED if failed else 0


def _table(rows: Sequence[BatchRow], found: Sequence[MapResult | FailedQuery]) -> str:
    """Return the lines of all rows, including rows not reached."""
    asked = dict.fromkeys(n for a in found if isinstance(a, MapResult) for n in a.assignment)
    facts = {name: name if name not in asked else f"{name} of the answer" for name in ("row", *FACTS)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([facts["row"], *asked, *(facts[name] for name in FACTS)])
    for k, row in enumerate(rows):
        answer = found[k] if k < len(found) else None
        known: Mapping[str, Any] = _observed(row)
        if isinstance(answer, MapResult):
            known = {**known, **answer.assignment}
        writer.writerow([row.label, *(known.get(name, "") for name in asked), *_facts(answer)])
    return text.getvalue()


def _observed(row: BatchRow) -> dict[str, Any]:
    """Return a row's evidence: labels and numbers."""
    with suppress(CertimapError):
        evidence: Mapping[str, Any] = row.ask()[1]
        forms = (Mapping, list, tuple, set, frozenset)
        return {name: v for name, v in evidence.items() if v is not None and not isinstance(v, forms)}
    return {}


def _facts(answer: MapResult | FailedQuery | None) -> list[Any]:
    """Return the values of the columns `FACTS`; numbers in full precision."""
    if answer is None:
        return [""] * (len(FACTS) - 2) + ["not reached", ""]
    if isinstance(answer, FailedQuery):
        return [""] * (len(FACTS) - 2) + ["failed", answer.message]
    certificate = answer.certificate
    logs = (answer.log_prob, answer.log_upper_bound, answer.log_evidence)
    numbers = ["" if value is None else repr(float(value)) for value in logs]
    return [*numbers, certificate.kind.value, certificate.epsilon, certificate.delta, answer.status.value, ""]
