"""What a query returns: plain data that pickles and goes to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum, StrEnum
from typing import Any, TypeVar

from certimap.checker.file import Proof
from certimap.domain import Categorical, Domain, Label
from certimap.errors import MissingDependency, ModelError
from certimap.summary import aligned, html_of, log_text, text_of
from certimap.untyped import is_dict, is_sequence


class CertificateKind(StrEnum):
    """How much is proved about an answer."""

    EXACT = "exact"
    EPSILON = "epsilon"
    PAC = "pac"
    NONE = "none"


class Rule(StrEnum):
    """The rule that earned a certificate."""

    RESIDUAL = "residual"
    DRAWS = "draws"
    LIPSCHITZ = "lipschitz"
    FRONTIER = "frontier"
    BOUND = "bound"
    ENUMERATION = "enumeration"
    EXTERNAL = "external"


class Status(StrEnum):
    """Why a run ended; the message tells what to do next."""

    CERTIFIED = "certified"
    HEURISTIC = "heuristic"
    TIME_LIMIT = "time_limit"
    SAMPLE_LIMIT = "sample_limit"
    NODE_LIMIT = "node_limit"
    MEMORY_LIMIT = "memory_limit"
    INTERRUPTED = "interrupted"
    EXHAUSTED = "exhausted"

    @property
    def message(self) -> str:
        """One sentence for the user."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.CERTIFIED: "The answer carries the certificate that was asked for.",
    Status.HEURISTIC: (
        "The method proves nothing beyond the bounds shown; use solver='auto' or warm-start 'pac' with "
        "this answer for a certificate."
    ),
    Status.TIME_LIMIT: (
        "The time limit was reached; raise time_limit, or accept a pair (epsilon, delta) of the Pareto front."
    ),
    Status.SAMPLE_LIMIT: (
        "The draw limit was reached; raise max_samples, or accept a pair (epsilon, delta) of the Pareto front."
    ),
    Status.NODE_LIMIT: (
        "The node limit was reached; raise max_nodes, or accept a pair (epsilon, delta) of the Pareto front."
    ),
    Status.MEMORY_LIMIT: (
        "The memory limit was reached; raise max_memory, or accept a pair (epsilon, delta) of the Pareto front."
    ),
    Status.INTERRUPTED: ("The run was interrupted; the answer carries exactly what it had earned by then."),
    Status.EXHAUSTED: (
        "The method ran to its end without the certificate asked for; try solver='auto', or accept a pair "
        "(epsilon, delta) of the Pareto front."
    ),
}


@dataclass(frozen=True)
class Certificate:
    """What is proved: p(answer | e) >= (1 - epsilon) p*, with probability at least 1 - delta.

    `epsilon` and `delta` are the pair achieved; when `kind` is none, `epsilon` is the one requested
    and `delta` the failure probability that the run supports there (1 when it supports nothing).
    """

    kind: CertificateKind
    epsilon: float
    delta: float
    requested_epsilon: float
    requested_delta: float
    rule: Rule | None = None
    assumptions: tuple[str, ...] = ()
    tolerance: float = 1e-9


@dataclass(frozen=True)
class HistoryEntry:
    """One moment of a run; logs are natural."""

    seconds: float
    n_draws: int
    n_evaluations: int
    log_prob: float
    log_upper_bound: float
    log_open_mass: float


def _known(entry: HistoryEntry) -> tuple[float, float, float]:
    """Return what was known at a moment, without what it had cost."""
    return entry.log_prob, entry.log_upper_bound, entry.log_open_mass


@dataclass(frozen=True)
class MapResult:
    """The answer of a MAP query.

    Attributes
    ----------
    assignment
        Labels by variable name, in query order.
    log_prob
        ln p(q | e) in nats; None where p(e) is unknown.
    log_evidence, log_joint
        ln p(e), and ln p(q, e) = `log_prob` + `log_evidence`; of the unnormalised product in a Markov
        network.
    log_upper_bound, log_joint_upper_bound
        Upper bounds on ln p* and on ln p* + ln p(e).
    certificate
        What is proved.
    pareto
        Admissible pairs (epsilon, delta), by rising epsilon.
    ties
        Other assignments as probable as the answer, and known to be all of them, or None.
    top
        With `top_k`, the k best as (assignment, log_prob) pairs, best first; log_joint where p(e) is unknown.
    note
        What a limit cut short before the search began, in words; None when nothing was.
    proof
        With `proof=True`, what `certimap.check` checks; `proof.write(path)` makes a file of it.
    no_proof
        Why a proof that was asked for is missing, in words.
    min_entropy_bits
        -log2 p* lies between these two: -log2 of the upper bound, and of the answer. None for densities, and where
        p(e) is unknown.
    draws_needed
        How many independent draws would certify the requested (epsilon, delta) if p* were the upper bound, and if
        it were the answer's probability: what `pac` needs lies between. None where draws certify nothing.
    """

    assignment: dict[str, Label]
    log_prob: float | None
    log_evidence: float | None
    log_joint: float | None
    log_upper_bound: float | None
    log_joint_upper_bound: float | None
    certificate: Certificate
    pareto: list[tuple[float, float]]
    status: Status
    n_draws: int
    n_draws_to_best: int | None
    n_evaluations: int
    seconds: float
    seed: int | None
    solver: str
    version: str
    history: list[HistoryEntry] = field(default_factory=list[HistoryEntry])
    ties: list[dict[str, Label]] | None = None
    top: list[tuple[dict[str, Label], float]] | None = None
    note: str | None = None
    proof: Proof | None = None
    no_proof: str | None = None
    min_entropy_bits: tuple[float, float] | None = None
    draws_needed: tuple[float, float] | None = None

    @property
    def certified(self) -> bool:
        """Whether the certificate that was asked for was earned."""
        return self.certificate.kind is not CertificateKind.NONE

    def __repr__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data (infinite numbers become None), the history left out."""
        data = asdict(replace(self, proof=None))
        data["status"] = {"code": self.status.value, "message": self.status.message}
        del data["history"], data["proof"]
        for name in ("top", "note", "no_proof", "min_entropy_bits", "draws_needed"):
            if data[name] is None:
                del data[name]
        return _plain(data)

    def history_columns(self, limit: int = 128) -> dict[str, list[Any]]:
        """Return the history as one list per field of `HistoryEntry`, JSON-ready (infinite numbers become None).

        Moments at which nothing but the effort changed are left out. Where more than `limit` are left, only every
        second is kept, or third, and so on; the first and the last always stay.
        """
        kept: list[HistoryEntry] = []
        for i, entry in enumerate(self.history):
            last = kept[-1] if kept else None
            if i == len(self.history) - 1 or last is None or _known(entry) != _known(last):
                kept.append(entry)
        stride = -(-len(kept) // limit) if kept else 1
        kept = kept[:-1][::stride] + kept[-1:]
        columns = {f.name: [asdict(entry)[f.name] for entry in kept] for f in fields(HistoryEntry)}
        columns["seconds"] = [round(s, 6) for s in columns["seconds"]]
        return _plain(columns)

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_uai(self, domain: Domain, evidence: Mapping[str, Label] | None = None) -> str:
        """Return the answer as a result file of the UAI inference competitions.

        Parameters
        ----------
        domain
            The model's variables, which give the numbers of variables and states.
        evidence
            The hard evidence of the query. When the answer and the evidence together assign every variable,
            the text is an MPE result (all values in order), else an MMAP result (variable and value pairs).

        Raises
        ------
        ModelError
            For a real variable, which the format cannot hold.
        """
        pairs: dict[int, int] = {}
        for name, label in {**(evidence or {}), **self.assignment}.items():
            variable = domain[name]
            if not isinstance(variable, Categorical):
                raise ModelError(f"variable {name!r} is real; UAI result files hold categorical variables only")
            pairs[domain.index(name)] = variable.index(label)
        if len(pairs) == len(domain):
            return f"MPE\n{len(domain)} " + " ".join(str(pairs[i]) for i in range(len(domain))) + "\n"
        queried = [domain.index(name) for name in self.assignment]
        return f"MMAP\n{len(queried)} " + " ".join(f"{i} {pairs[i]}" for i in queried) + "\n"


@dataclass(frozen=True)
class FailedQuery:
    """What stands for a row of a batch that could not be answered.

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

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as JSON-ready data."""
        return _plain(asdict(self))

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


_SHOWN = 20  # rows of a list, when it is printed
Answer = TypeVar("Answer", bound="MapResult | FailedQuery")


class ResultList(list[Answer]):
    """The answers to a frame of evidence rows, in its order.

    Attributes
    ----------
    labels
        The row labels of that frame, one for each answer.
    interrupted
        Whether Ctrl-C ended the batch; the rows that were not reached are absent.
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
        """Return a pandas DataFrame: one column per query variable, then logs (natural), certificate and cost.

        A row that failed has the status "failed" and its sentence in the column `error`; the rest is missing.

        Raises
        ------
        MissingDependency
            When pandas is not installed.
        """
        try:
            import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
        except ModuleNotFoundError:
            raise MissingDependency("a data frame needs pandas; pip install 'certimap[pandas]'") from None
        rows = [
            {"status": "failed", "error": answer.message}
            if isinstance(answer, FailedQuery)
            else {**answer.assignment, **_summary(answer), "error": None}
            for answer in self
        ]
        columns = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
        return pd.DataFrame(rows, index=self.labels, columns=columns or None)


def _line_of(answer: MapResult | FailedQuery) -> str:
    """Return an answer on one line."""
    if isinstance(answer, FailedQuery):
        return f"FAILED. {answer.message}"
    shown = ", ".join(f"{name}={label}" for name, label in list(answer.assignment.items())[:4])
    more = f", ... ({len(answer.assignment)} variables)" if len(answer.assignment) > 4 else ""
    return f"{shown}{more}  ln p = {log_text(answer.log_prob)}  {answer.certificate.kind.value}"


def _summary(result: MapResult) -> dict[str, Any]:
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


def _plain(value: Any) -> Any:
    """Turn labels, enums and non-finite floats into what JSON accepts."""
    if isinstance(value, Enum):
        return value.value
    if is_dict(value):
        return {str(k): _plain(v) for k, v in value.items()}
    if is_sequence(value):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
