"""The result of a frame of evidence rows: one answer per row, in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from certimap.core.named import needed
from certimap.core.result import MapResult, json_ready
from certimap.core.summary import aligned, log_text
from certimap.core.untyped import Record


@dataclass(frozen=True)
class FailedQuery:
    """The entry of a batch row that could not be answered.

    Attributes
    ----------
    label
        The row's label.
    error
        The name of the error's class, such as "ImpossibleEvidence".
    message
        The error's sentence.
    """

    label: Any
    error: str
    message: str

    def to_dict(self) -> Record:
        """Return the failure as JSON-ready data, by attribute."""
        return json_ready(asdict(self))

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as JSON text; `indent` is that of `json.dumps`."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


_SHOWN = 20  # rows of a list, when it is printed
Answer = TypeVar("Answer", bound="MapResult | FailedQuery")


class ResultList(list[Answer]):
    """The answers to a frame of evidence rows, in its order.

    Parameters
    ----------
    answers
        One per row.
    labels
        The rows' labels; None numbers them from 0.
    interrupted
        Whether Ctrl-C ended the batch.

    Attributes
    ----------
    labels
        The row labels, one per answer.
    interrupted
        Whether Ctrl-C ended the batch; rows not reached are absent.
    """

    def __init__(
        self, answers: Iterable[Answer] = (), labels: Sequence[Any] | None = None, *, interrupted: bool = False
    ) -> None:
        super().__init__(answers)
        self.labels: list[Any] = list(range(len(self))) if labels is None else list(labels)
        self.interrupted = interrupted

    def __repr__(self) -> str:
        n_failed = len(self.failures)
        head = f"{len(self)} answers" + (f", {n_failed} of them failures" if n_failed else "")
        rows = [
            (str(label), _line_of(answer))
            for label, answer in zip(self.labels[:_SHOWN], self[:_SHOWN], strict=False)
        ]
        more = [f"... ({len(self) - _SHOWN} more; to_frame() holds all)"] if len(self) > _SHOWN else []
        cut = ["interrupted: the rows that were not reached are absent"] if self.interrupted else []
        return "\n".join([head, *aligned(rows, indent="  "), *more, *cut])

    @property
    def failures(self) -> list[FailedQuery]:
        """The rows that could not be answered; each has its label and its error."""
        return [answer for answer in self if isinstance(answer, FailedQuery)]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame indexed by `labels`: query variables, logs (natural), certificate and cost.

        A failed row has the status "failed" and its message in the column `error`; its other cells are missing.
        Raises MissingDependency when pandas is not installed.
        """
        pd = needed("pandas", "a data frame needs pandas; pip install 'certimap[pandas]'")
        rows = [
            {"status": "failed", "error": answer.message}
            if isinstance(answer, FailedQuery)
            else {**answer.assignment, **_summary(answer), "error": None}
            for answer in self
        ]
        columns = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
        return pd.DataFrame(rows, index=self.labels, columns=columns or None)


def _line_of(answer: MapResult | FailedQuery) -> str:
    """Format an answer on one line."""
    if isinstance(answer, FailedQuery):
        return f"FAILED. {answer.message}"
    shown = ", ".join(f"{name}={label}" for name, label in list(answer.assignment.items())[:4])
    more = f", ... ({len(answer.assignment)} variables)" if len(answer.assignment) > 4 else ""
    return f"{shown}{more}  ln p = {log_text(answer.log_prob)}  {answer.certificate.kind.value}"


def _summary(result: MapResult) -> Record:
    certificate = result.certificate
    return {
        "log_prob": result.log_prob,
        "log_upper_bound": result.log_upper_bound,
        "log_evidence": result.log_evidence,
        "log_joint": result.log_joint,
        "kind": certificate.kind.value,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "rule": None if certificate.rule is None else certificate.rule.value,
        "status": result.status.value,
        "n_draws": result.n_draws,
        "n_evaluations": result.n_evaluations,
        "seconds": result.seconds,
        "seed": result.seed,
        "solver": result.solver,
    }
