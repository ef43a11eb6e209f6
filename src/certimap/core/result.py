"""The result of a query, and the results of many rows: plain data that pickles and converts to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum, StrEnum
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from certimap.checker.file import Proof
from certimap.core.arguments import Record, is_dict, is_sequence
from certimap.core.domain import Categorical, Domain, Label
from certimap.core.named import needed
from certimap.core.query import Evidence
from certimap.core.steps import STEP, rows_by_step
from certimap.core.summary import aligned, html_of, log_text, text_of
from certimap.errors import ModelError, QueryError

if TYPE_CHECKING:
    from certimap.core.constraints import Constraint
    from certimap.explanations import Explanation


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
    """Why a run ended; `message` tells the user what to do next."""

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


_OR_LESS = "accept a pair (epsilon, delta) of the Pareto front."
_MESSAGES = {
    Status.CERTIFIED: "The answer carries the certificate that was asked for.",
    Status.HEURISTIC: (
        "The method proves nothing beyond the bounds shown; use solver='auto' or warm-start 'pac' with "
        "this answer for a certificate."
    ),
    Status.TIME_LIMIT: f"The time limit was reached; raise time_limit, or {_OR_LESS}",
    Status.SAMPLE_LIMIT: f"The draw limit was reached; raise max_samples, or {_OR_LESS}",
    Status.NODE_LIMIT: f"The node limit was reached; raise max_nodes, or {_OR_LESS}",
    Status.MEMORY_LIMIT: f"The memory limit was reached; raise max_memory, or {_OR_LESS}",
    Status.INTERRUPTED: "The run was interrupted; the answer carries exactly what it had earned by then.",
    Status.EXHAUSTED: (
        f"The method ran to its end without the certificate asked for; try solver='auto', or {_OR_LESS}"
    ),
}


@dataclass(frozen=True)
class Certificate:
    """What is proved: p(answer | e) >= (1 - epsilon) p*, with probability at least 1 - delta.

    - `kind`: exact, epsilon (for certain), pac (with probability 1 - delta), or none.
    - `epsilon`, `delta`: the pair achieved. When `kind` is none, the requested epsilon, and the failure
      probability that the run supports for it (1 when it supports nothing).
    - `requested_epsilon`, `requested_delta`: the pair requested.
    - `rule`: the rule that earned it; None if `kind` is none.
    - `assumptions`: sentences: assumptions of the proof beside the model; often empty.
    - `tolerance`: the relative error that still counts as exact.
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
class TopMass:
    """What is known of a list of assignments that `top_mass` asked for.

    `requested`, `held`, `is_reached`: the probability asked for, that of the list, and whether it suffices, within
    the tolerance and rounding.
    `n`, `fewest`: the length of the list, and a proved lower bound on the size of any set that suffices; None
    where it is proved that all assignments that satisfy the constraints do not.
    """

    requested: float
    held: float
    is_reached: bool
    n: int
    fewest: int | None


@dataclass(frozen=True)
class HistoryEntry:
    """One moment of a run; logs are natural.

    - `seconds`: since the run began.
    - `n_draws`, `n_evaluations`: draws, and assignments evaluated, until then.
    - `log_prob`, `log_upper_bound`: the best found, and the upper bound on ln p*, in nats.
    - `log_open_mass`: ln of a bound on the probability of all points neither evaluated nor closed; inf without a
      bound.
    - `n_nodes`: search nodes until then: boxes probed, in box searches; 0 for methods without any.
    """

    seconds: float
    n_draws: int
    n_evaluations: int
    log_prob: float
    log_upper_bound: float
    log_open_mass: float
    n_nodes: int = 0


@dataclass(frozen=True)
class Origin:
    """The question behind a result: the model in memory, and a function that returns query and evidence.

    Pickles hold query and evidence but not the model (None), which has its own files.
    """

    model: Any
    ask: Callable[[], tuple[Any, Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        return _origin_read_back, self.ask()


def _origin_read_back(variables: Any, evidence: Any) -> Origin:
    return Origin(None, lambda: (variables, evidence))


# left out of the JSON form where None
_LEFT_OUT = ("top", "top_mass", "note", "no_proof", "min_entropy_bits", "draws_needed", "located", "constraints")


@dataclass(frozen=True)
class MapResult:
    """The answer of a MAP query.

    - `assignment`: labels by variable name, in query order.
    - `log_prob`: ln p(q | e) in nats; None where p(e) is unknown.
    - `log_evidence`, `log_joint`: ln p(e), and ln p(q, e) = `log_prob` + `log_evidence`; of the unnormalised
      product in a Markov network. See `is_lower_side`.
    - `log_upper_bound`, `log_joint_upper_bound`: upper bounds on ln p* and on ln p* + ln p(e).
    - `certificate`: the proof of its quality.
    - `pareto`: admissible pairs (epsilon, delta), by rising epsilon.
    - `ties`: all other assignments as probable as the answer, or None if they are unknown. For a density: other
      peaks found with the same height within the tolerance (there may be more), or None.
    - `located`: with the setting `width` of `frontier`: intervals of the real variables that hold every mode.
    - `top`: with `top_k`, the k best as (assignment, log_prob) pairs, best first; log_joint where p(e) is unknown.
      With `top_mass`, so many of the best that they hold the probability asked for.
    - `top_mass`: with `top_mass`, the probability that `top` holds, and a lower bound on the size of any set that
      suffices.
    - `note`: in words, which step before the search a limit cut short; None if none was.
    - `proof`: with `proof=True`, a proof for `certimap.check`; `proof.write(path)` writes it to a file.
    - `no_proof`: in words, why a requested proof is missing or proves less than the certificate.
    - `is_density`: whether `log_prob` and its bounds are densities, which may exceed 1.
    - `is_lower_side`: whether `log_joint` (or `log_prob`) is only a lower bound on the answer's own value: no sum
      over the other variables was in reach.
    - `min_entropy_bits`: two bounds on -log2 p*: -log2 of the upper bound, and -log2 of the answer's probability.
      None for densities, under constraints, and if p(e) is unknown.
    - `draws_needed`: how many independent draws would certify the requested (epsilon, delta) if p* were the upper
      bound, and if p* were the answer's probability; `pac` needs a number in between. None if draws certify
      nothing.
    - `constraints`: the constraints that the answer satisfies; empty without any.
    - `origin`: the query, for `explain`. It keeps the model alive; files store only query and evidence.
    - `status`: why the run ended; its `message` says what to do next.
    - `n_draws`, `n_draws_to_best`: the number of draws, and the draw that first gave the answer (None if none
      did).
    - `n_evaluations`: assignments evaluated.
    - `seconds`: from the call to the answer.
    - `seed`: the seed given as `rng`; None if unknown.
    - `solver`, `version`: the solver and the release of certimap that answered.
    - `history`: moments of the run, oldest first.
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
    top_mass: TopMass | None = None
    note: str | None = None
    proof: Proof | None = None
    no_proof: str | None = None
    is_density: bool = False
    is_lower_side: bool = False
    min_entropy_bits: tuple[float, float] | None = None
    draws_needed: tuple[float, float] | None = None
    located: dict[str, tuple[float, float]] | None = None
    constraints: tuple[Constraint, ...] = ()
    origin: Origin | None = field(default=None, repr=False, compare=False)

    @property
    def certified(self) -> bool:
        """Whether the requested certificate was earned."""
        return self.certificate.kind is not CertificateKind.NONE

    def explain(
        self,
        *,
        model: Any = None,
        evidence: Evidence | None = None,
        n_entries: int = 8,
        rng: int = 0,
        time_limit: float | None = None,
        workers: int | None = None,
    ) -> Explanation:
        """Explain the answer: its lead, the evidence it depends on, how far table entries may move.

        `n_entries`, `rng`, `time_limit` and `workers` are as for `certimap.explain`. A result that was read from a
        file needs the `model`; `evidence` is that of the run unless given. The explanation is of this answer, or
        of a more probable assignment if one is found, and then says so. Raises QueryError when the model is
        unknown, or the query was to a posterior, whose evidence is fixed.
        """
        from certimap.explanations import explain

        if self.origin is not None:
            model = self.origin.model if model is None else model
            evidence = self.origin.ask()[1] if evidence is None else evidence
        if model is None:
            raise QueryError(
                "a result read from a file does not hold its model; pass it: result.explain(model=...)"
            )
        limits: Record = {"n_entries": n_entries, "rng": rng, "time_limit": time_limit, "workers": workers}
        return explain(model, list(self.assignment), evidence, answer=self, constraints=self.constraints, **limits)

    def __repr__(self) -> str:
        return text_of(self)

    def _repr_html_(self) -> str:
        return html_of(self)

    def to_dict(self) -> Record:
        """Return JSON-ready data by attribute, without the history; infinite numbers are None."""
        data = asdict(replace(self, proof=None, origin=None, constraints=()))
        data["constraints"] = [constraint.to_dict() for constraint in self.constraints] or None
        data["status"] = {"code": self.status.value, "message": self.status.message}
        del data["history"], data["proof"], data["origin"]
        for name in _LEFT_OUT:
            if data[name] is None:
                del data[name]
        for name in ("is_density", "is_lower_side"):
            if not data[name]:
                del data[name]
        return json_ready(data)

    def history_columns(self, limit: int = 128) -> dict[str, list[Any]]:
        """Return the history by columns, JSON-ready: one list per field of `HistoryEntry`, with None for inf.

        Moments at which only the effort changed are left out. If more than `limit` remain, every second (or third,
        and so on) is kept, always with the first and the last.
        """
        known = attrgetter("log_prob", "log_upper_bound", "log_open_mass")
        kept = [next(entries) for _, entries in groupby(self.history, known)]
        kept += [self.history[-1]] if kept and kept[-1] is not self.history[-1] else []
        stride = -(-len(kept) // limit) if kept else 1
        kept = kept[:-1][::stride] + kept[-1:]
        columns = {f.name: [asdict(entry)[f.name] for entry in kept] for f in fields(HistoryEntry)}
        columns["seconds"] = [round(s, 6) for s in columns["seconds"]]
        return json_ready(columns)

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as JSON text; `indent` is that of `json.dumps`."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def by_step(self) -> Any:
        """Return the answer as a pandas DataFrame: `x[3]` is in the row of step 3 and column `x`.

        Variables without a step are left out. Raises MissingDependency when pandas is not installed.
        """
        pd = needed("pandas", "a data frame needs pandas; pip install 'certimap[pandas]'")
        rows, _ = rows_by_step(self.assignment)
        return pd.DataFrame(list(rows.values()), pd.Index(list(rows), name=STEP), dtype=object)

    def to_uai(self, domain: Domain, evidence: Mapping[str, Label] | None = None) -> str:
        """Return the answer as a result file of the UAI inference competitions.

        `domain` has the model's variables, `evidence` the hard evidence of the query. If answer and evidence
        together assign every variable, the text is an MPE result (all values in order), else an MMAP result
        (variable and value pairs). Raises ModelError for a real variable, which the format cannot hold.
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


def json_ready(value: Any) -> Any:
    """Convert labels, enums and non-finite floats to JSON types."""
    if isinstance(value, Enum):
        return value.value
    if is_dict(value):
        return {str(k): json_ready(v) for k, v in value.items()}
    if is_sequence(value):
        return [json_ready(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


@dataclass(frozen=True)
class FailedQuery:
    """The entry of a batch row that could not be answered.

    - `label`: the row's label.
    - `error`: the name of the error's class, such as "ImpossibleEvidence".
    - `message`: the error's sentence.
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

    - `answers`: one per row.
    - `labels`: the rows' labels, also an attribute; None numbers them from 0.
    - `interrupted`: whether Ctrl-C ended the batch, so that rows are absent; also an attribute.
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

    def beside(self, taken: Collection[str] = ()) -> dict[str, list[Any]]:
        """Return columns that answer the rows of a table, None for a failed row.

        They are the query variables, the probability of each row's answer ("density" if one is a density) and the
        kind of its certificate. A name among `taken` gets the ending "_answer".
        """
        found = [answer if isinstance(answer, MapResult) else None for answer in self]
        asked = list(dict.fromkeys(name for answer in found if answer is not None for name in answer.assignment))
        measure = "density" if any(answer is not None and answer.is_density for answer in found) else "probability"
        columns = {name: [None if a is None else a.assignment.get(name) for a in found] for name in asked}
        logs = [None if a is None else a.log_prob for a in found]
        one = f"{asked[0]}_{measure}" if len(asked) == 1 else measure
        columns[one] = [None if x is None else math.exp(min(x, 700.0)) for x in logs]
        columns["certificate"] = [None if a is None else a.certificate.kind.value for a in found]
        return {f"{name}_answer" if name in taken else name: values for name, values in columns.items()}

    def to_frame(self, join: Any = None) -> Any:
        """Return a pandas DataFrame indexed by `labels`: query variables, logs (natural), certificate and cost.

        A failed row has the status "failed" and its message in the column `error`; its other cells are missing.
        `join`: the table that was asked, a pandas or polars frame or a list of mappings, which is returned as a
        frame with the columns of `beside` after its own; answers have the types of its columns where they can.
        Raises MissingDependency when pandas is not installed.
        """
        if join is not None and hasattr(join, "hstack"):  # polars
            return join.hstack(type(join)(self.beside(list(join.columns))))
        pd = needed("pandas", "a data frame needs pandas; pip install 'certimap[pandas]'")
        if join is not None:
            frame = pd.DataFrame(join)
            for name, values in self.beside(list(frame.columns)).items():
                own, frame[name] = frame.get(name.removesuffix("_answer")), pd.Series(values, frame.index)
                with suppress(TypeError, ValueError):
                    frame[name] = frame[name] if own is None else frame[name].astype(own.dtype)
            return frame
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
    logs = {name: getattr(result, name) for name in ("log_prob", "log_upper_bound", "log_evidence", "log_joint")}
    earned = {name: getattr(result.certificate, name) for name in ("kind", "epsilon", "delta", "rule")}
    effort = ("status", "n_draws", "n_evaluations", "seconds", "seed", "solver")
    row = logs | earned | {name: getattr(result, name) for name in effort}
    return {name: value.value if isinstance(value, Enum) else value for name, value in row.items()}
