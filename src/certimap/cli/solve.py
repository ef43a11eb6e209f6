"""`certimap solve`: one model, one query or many, answers with their certificates, printed or in a table."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from certimap.ask.batch import BatchRow, collect, map_rows
from certimap.ask.session import Session
from certimap.cli import options
from certimap.cli.options import (
    ConstraintOptions,
    EvidenceOptions,
    JsonOption,
    QueryFileOption,
    SettingsOption,
    WorkersOption,
    option,
)
from certimap.core.control import uninterrupted
from certimap.core.domain import Domain, Label
from certimap.core.executors import workers_of
from certimap.core.model import Model
from certimap.core.progress import Progress
from certimap.core.result import FailedQuery, MapResult, ResultList
from certimap.core.steps import STEP, rows_by_step
from certimap.core.summary import aligned, facts_of, log_text, warnings_of
from certimap.errors import CertimapError, QueryError, SolverError
from certimap.io.cells import Convention
from certimap.io.evidence import ASSIGNMENT_FORMATS
from certimap.io.files import suffix_of, write_text
from certimap.io.formats import suffixes
from certimap.io.text_tables import SUFFIXES, TextTable
from certimap.solvers.request import Request, Settings

if TYPE_CHECKING:
    from certimap.explanations import Explanation

SOME_FAILED = 3
CUT_SHORT = 130


class OnError(StrEnum):
    """Effect of a failed case on the others."""

    KEEP = "keep"
    RAISE = "raise"


class Preset(StrEnum):
    """Settings of published experiments."""

    PAPER = "paper"
    PAPER_PAC = "paper_pac"


@dataclass(frozen=True)
class RequestOptions:
    """How each case is answered."""

    epsilon: Annotated[
        float, typer.Option("--epsilon", help="The answer may be this much less probable (relative).")
    ] = 0.01
    delta: Annotated[
        float, typer.Option("--delta", help="The certificate may be wrong with this probability.")
    ] = 0.01
    solver: Annotated[str, typer.Option("--solver", help="A solver's name, or auto.")] = "auto"
    preset: Annotated[Preset | None, option("--preset", help="Settings of published experiments.")] = None
    settings: SettingsOption = None
    rng: Annotated[int | None, option("--rng", help="A seed, which replays the answer.")] = None
    time_limit: Annotated[
        float | None,
        option("--time-limit", metavar="SECONDS", help="End each answer then, with what is proved by then."),
    ] = None
    max_samples: Annotated[int | None, option("--max-samples", help="Draws for each answer.")] = None
    max_nodes: Annotated[int | None, option("--max-nodes", help="Search nodes for each answer.")] = None
    max_memory: Annotated[str | None, option("--max-memory", help="Bytes, such as 500M or 4G.")] = None
    warm_start: Annotated[
        list[str] | None,
        option("--warm-start", help=f"A heuristic, or assignments: {suffixes(ASSIGNMENT_FORMATS)}; repeatable."),
    ] = None
    upper_bound: Annotated[
        str | None,
        option(
            "--upper-bound",
            metavar="SOURCE:log_joint=X",
            help="What another program proved: a bound on ln p(q, e), or log_prob=X on ln p(q | e).",
        ),
    ] = None
    workers: WorkersOption = None
    device: Annotated[
        str | None, option("--device", help="Draw and score points by PyTorch on cpu, cuda or cuda:N.")
    ] = None
    top_k: Annotated[int | None, option("--top-k", help="How many answers.")] = None
    top_mass: Annotated[
        float | None, option("--top-mass", help="List the fewest answers that hold this probability.")
    ] = None
    max_edges: Annotated[int | None, option("--max-edges", help="Build no larger circuit or table.")] = None

    def read(self, domain: Domain, case: EvidenceOptions) -> Settings:
        """Return the keywords of `Request.of`; reads the files of warm starts."""
        starts = [options.read_warm_start(text, domain, case.text) for text in self.warm_start or ()]
        alike = ("epsilon", "delta", "time_limit", "max_samples", "max_nodes", "max_edges", "device")
        named: Any = {name: vars(self)[name] for name in (*alike, "top_k", "top_mass", "workers")}
        return named | {
            "solver": self.solver if self.preset is None else self.preset.value,
            "options": options.parse_settings(self.settings),
            "max_memory": options.parse_size(self.max_memory),
            "upper_bound": options.parse_upper_bound(self.upper_bound),
            "warm_start": starts or None,
        }


@dataclass(frozen=True)
class AnswerOptions:
    """Where answers go, and what happens between cases."""

    jobs: Annotated[
        int | None, option("--jobs", help="Processes that share the rows out, -1 for one per core.")
    ] = None
    errors: Annotated[
        OnError,
        typer.Option(
            "--errors",
            help="A case of a file that fails: keep answers the others and exits 3, raise ends there and exits 2.",
        ),
    ] = OnError.KEEP
    fill: Annotated[
        bool, typer.Option("--fill", help="Answer empty cells of --rows (of --query) alone; others are evidence.")
    ] = False
    as_json: JsonOption = False
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            help="Write the answers as JSON here too; a .csv, .tsv or .txt gets the rows with their answers.",
        ),
    ] = None
    proof: Annotated[
        Path | None, option("--proof", metavar="FILE", help="Write a proof that `certimap check` checks.")
    ] = None
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why, as `certimap explain` does; reports show it.")
    ] = False
    max_proof: Annotated[
        str, typer.Option("--max-proof", help="The most bytes that a proof may take, such as 100M.")
    ] = "100M"

    @property
    def table(self) -> Path | None:
        """The table that the answers go to, if any."""
        return self.output if self.output is not None and suffix_of(self.output) in SUFFIXES else None

    def check(self) -> None:
        """Reject options that contradict each other, before anything is read."""
        if self.table is None:
            return
        if not self.table.resolve().parent.is_dir():
            raise QueryError(f"answers go to {str(self.table)!r}, and {str(self.table.parent)!r} is no folder")
        if self.as_json:
            raise QueryError(f"--json prints JSON, and --output {self.table} is a table; give one of them")
        if self.explain:
            text = f"--output {self.table} is a table, which holds no explanations; expected a .json for --explain"
            raise QueryError(text)

    def check_cases(self, n_cases: int, upper_bound: str | None) -> None:
        """Reject options that do not go with the number of cases."""
        if upper_bound is not None and n_cases > 1:
            raise QueryError(f"--upper-bound is of one query, and there are {n_cases} cases; ask one case")
        if self.jobs is not None and n_cases == 1:
            text = f"--jobs {self.jobs} shares out the rows of a table, and there is one case; leave it out"
            raise QueryError(text)
        if self.proof is not None and n_cases > 1:
            raise QueryError(f"--proof {self.proof} is one file, and there are {n_cases} cases; ask one case")


def solve(
    case: EvidenceOptions,
    ask: RequestOptions,
    rules: ConstraintOptions,
    answer: AnswerOptions,
    query_file: QueryFileOption = None,
) -> None:
    """Print the most probable assignment of the query variables, and what is proved about it.

    Everything that is neither queried nor observed is summed out. Logs are natural. Files with many cases are
    answered case by case; Ctrl-C ends the batch. A file of --output is whole or not there: in a table, rows
    that Ctrl-C left out have the status "not reached".
    """
    from certimap.kernels.notice import announce_compilation

    answer.check()
    if ask.preset is not None and ask.solver not in ("auto", ask.preset.value):
        text = f"--preset {ask.preset.value} is a solver with its settings; leave --solver {ask.solver} out"
        raise QueryError(text)
    source = case.read_model()
    rows = case.rows(source.domain, query_file, answer.fill)
    asked = [row for row in rows if not answer.fill or not _is_full(row)]
    settings = ask.read(source.domain, case)
    settings["constraints"] = rules.read(source.domain) or None
    announce_compilation()
    answer.check_cases(len(rows), ask.upper_bound)
    if answer.proof is not None:
        settings["proof_bytes"] = options.parse_size(answer.max_proof)
    on_error = "raise" if len(rows) == 1 else answer.errors.value
    session = Session(source, Request.of(**settings))
    with workers_of(answer.jobs, None) as pool:
        answers = map_rows(session, asked, ask.rng, on_error, pool, None if answer.table is None else False)
        if answer.proof is not None:
            answers = _proved(answers, answer.proof)
        if answer.table is not None and case.n_steps is not None and len(rows) == 1:
            code = write_steps(answer.table, answers)
        elif answer.table is not None:
            table = case.read_rows() if query_file is None else None
            table = table or TextTable("", ["row"], [[str(row.label)] for row in rows], [], ",")
            lines = AnswerTable(table, answer.fill or not case.query)
            code = write_answers(answer.table, rows, asked, answers, lines)
        else:
            is_recorded = answer.as_json or answer.output is not None
            describe = _describer(source, case, settings) if is_recorded else None
            wishes = {"time_limit": ask.time_limit, "workers": ask.workers} if answer.explain else None
            code = AnswerPrinter(asked, answer.as_json, describe, answer.output, wishes).print_all(answers)
    if code:
        raise typer.Exit(code)


def _proved(answers: Iterable[MapResult | FailedQuery], path: Path) -> Iterator[MapResult | FailedQuery]:
    """Write the proof of each answer; after an answer without a proof, give the reason and exit code 2."""
    for answer in answers:
        found = answer if isinstance(answer, MapResult) else None
        if found is not None and found.proof is not None:
            found.proof.write(path)
        yield answer
        if found is not None and found.proof is None:
            raise SolverError(f"{path} was not written: {found.no_proof}")


def _describer(model: Model, case: EvidenceOptions, settings: Settings) -> Callable[[BatchRow], dict[str, Any]]:
    """Return a function that records a row's query and settings for `certimap replay`."""
    from certimap.ask.replay import asked
    from certimap.io.native import fingerprint

    own, steps = fingerprint(model), {} if case.n_steps is None else {"steps": case.n_steps}
    file = str(case.model)
    return lambda row: steps | asked(model, *row.ask(), settings, model_fingerprint=own, file=file)


def print_rows(rows: Iterable[Sequence[str]], indent: str = "") -> None:
    """Print rows of text in aligned columns, without truncation."""
    for line in aligned(rows, indent):
        print(line)


def print_warning(text: str) -> None:
    """Print a warning, in bold if the terminal supports it."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console(highlight=False, soft_wrap=True).print(Text(text, style="bold yellow"))
    else:
        print(text)


def print_result(result: MapResult) -> None:
    """Print an answer for people; begin with a warning if it has no certificate."""
    for warning in warnings_of(result):
        print_warning(warning)
    print_rows((name, "=", str(label)) for name, label in result.assignment.items())
    print()
    print_rows(facts_of(result))
    if result.top is not None:
        _print_top(result.top)


@dataclass
class AnswerPrinter:
    """Prints answers as they come, several with case numbers; in JSON several are a list, always complete."""

    rows: Sequence[BatchRow]
    as_json: bool
    describe: Callable[[BatchRow], dict[str, Any]] | None = None  # a row's query and settings, for the JSON
    output: Path | None = None  # a file that gets the same JSON, whole or not at all
    wishes: Mapping[str, Any] | None = None  # to explain each answer
    _texts: list[str] = field(default_factory=list[str])
    n_printed: int = 0
    failed: list[str] = field(default_factory=list[str])
    unexplained: list[str] = field(default_factory=list[str])
    cut: str | None = None  # the case whose explanation Ctrl-C ended

    def print_all(self, answers: Iterable[MapResult | FailedQuery]) -> int:
        """Print answers until they or Ctrl-C end; return 0, 3 if some failed, or 130 if Ctrl-C skipped some."""
        many = len(self.rows) > 1
        interrupted = False
        try:
            for answer in answers:
                found = self._explained(answer)
                with uninterrupted():
                    self._print_one(answer, found, many)
                    sys.stdout.flush()
                if self.cut is not None:
                    break
        except KeyboardInterrupt:
            if not self.n_printed:
                raise
            interrupted = self.n_printed < len(self.rows)
        finally:
            if many and self.as_json:
                print("\n]" if self.n_printed else "[]")
        if self.output is not None:
            several = "[\n" + ",\n".join(self._texts) + "\n]\n" if self._texts else "[]\n"
            with uninterrupted():
                write_text(self.output, several if many else f"{self._texts[0]}\n")
        interrupted = interrupted or self.cut is not None
        if self.failed or self.unexplained or interrupted:
            cut = [] if self.cut is None else [f"the explanation of case {self.cut} was interrupted"]
            _print_summary("case", "", len(self.rows), self.n_printed, self.failed, [*self.unexplained, *cut])
        return CUT_SHORT if interrupted else SOME_FAILED if self.failed or self.unexplained else 0

    def _explained(self, answer: MapResult | FailedQuery) -> Explanation | None:
        """Explain an answer if requested; a failed explanation does not stop the answer's printing."""
        if self.wishes is None or isinstance(answer, FailedQuery):
            return None
        label = str(self.rows[self.n_printed].label)
        try:
            return answer.explain(**self.wishes)
        except KeyboardInterrupt:
            self.cut = label
        except CertimapError as error:
            self.unexplained.append(f"case {label} is not explained: {error}")
        return None

    def _print_one(self, answer: MapResult | FailedQuery, found: Explanation | None, many: bool) -> None:
        row = self.rows[self.n_printed]
        self.n_printed += 1
        if isinstance(answer, FailedQuery):
            self.failed.append(str(row.label))
        text = self._json_of(row, answer, found) if self.describe is not None else ""
        if self.output is not None:
            self._texts.append(text)
        if self.as_json:
            print(("[\n" if self.n_printed == 1 else ",\n") + text if many else text, end="" if many else "\n")
            return
        if many:
            place = f" ({row.place})" if row.place else ""
            print(f"{'' if self.n_printed == 1 else chr(10)}case {row.label}{place}")
        if isinstance(answer, FailedQuery):
            print_warning(f"FAILED. {answer.message}")
        else:
            print_result(answer)
            if found is not None:
                print("\n" + "\n".join(found.lines(with_answer=False)).strip("\n"))

    def _json_of(self, row: BatchRow, answer: MapResult | FailedQuery, found: Explanation | None) -> str:
        """Return an answer as JSON, with its query, settings and explanation."""
        data = answer.to_dict()
        if found is not None:
            data["explanation"] = found.beside()
        if self.describe is not None and not isinstance(answer, FailedQuery):
            data["asked"] = self.describe(row)
        text = json.dumps(data, indent=2, allow_nan=False)
        if isinstance(answer, FailedQuery) or not answer.history:
            return text
        columns = json.dumps(answer.history_columns(), allow_nan=False)
        return f'{text[:-2]},\n  "history": {columns}\n}}'  # on one line because it is long


def _print_summary(
    kind: str, where: str, n: int, n_reached: int, failed: Sequence[str], more: Sequence[str] = ()
) -> None:
    """Print how many of `n` cases or rows have answers, which failed, and how many Ctrl-C left."""
    parts = [f"{n_reached - len(failed)} of {n} {kind}s answered{where}"]
    if failed:
        shown = ", ".join(failed[:8]) + (", ..." if len(failed) > 8 else "")
        parts.append(f"{len(failed)} failed ({kind} {shown})")
    parts += more
    if n_reached < n:
        parts.append(f"interrupted with {n - n_reached} to go")
    print(f"certimap: {', '.join(parts)}", file=sys.stderr)


def _print_top(top: Sequence[tuple[dict[str, Label], float]]) -> None:
    print(f"\nthe {len(top)} most probable:" if top else "")
    names = list(top[0][0]) if top else []
    rows = [("rank", "ln p", *names)]
    for rank, (assignment, log_prob) in enumerate(top, 1):
        rows.append((str(rank), log_text(log_prob), *(str(assignment[n]) for n in names)))
    print_rows(rows, indent="  ")


FACTS = ("log_prob", "log_upper_bound", "log_evidence", "epsilon", "delta", "status", "error")


def _is_full(row: BatchRow) -> bool:
    """Whether a row of --fill has no empty cell; a row that cannot be read fails in its turn."""
    with suppress(CertimapError):
        return row.ask()[0] == []
    return False


def write_answers(
    path: Path,
    rows: Sequence[BatchRow],
    asked: Sequence[BatchRow],
    answers: Iterable[MapResult | FailedQuery],
    table: AnswerTable,
) -> int:
    """Answer rows, show progress, and write a line per row; return 0, 3 if some failed, or 130 after Ctrl-C."""
    with Progress("rows", len(asked)) as bar:
        found, stopped = collect(bar.counted(answers))
    reached = [*found, *[None] * (len(asked) - len(found))]
    write_text(path, table.lines(rows, {row.label: answer for row, answer in zip(asked, reached, strict=True)}))
    failed = [str(row.label) for row, a in zip(asked, found, strict=False) if isinstance(a, FailedQuery)]
    _print_summary("row", f" in {path}", len(asked), len(found), failed)
    return CUT_SHORT if stopped and len(found) < len(asked) else SOME_FAILED if failed else 0


def write_steps(path: Path, answers: Iterable[MapResult | FailedQuery]) -> int:
    """Write the answer of a sequence with a row per step, and print what is proved about it; return 0."""
    for answer in answers:
        assert isinstance(answer, MapResult)  # a single query that fails raises its error
        rows, rest = rows_by_step(answer.assignment)
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([STEP, *names])
        writer.writerows([step, *(row.get(name, "") for name in names)] for step, row in rows.items())
        write_text(path, text.getvalue())
        print_result(replace(answer, assignment=rest))
    return 0


@dataclass(frozen=True)
class AnswerTable:
    """The rows that were asked, as lines of a table with their answers."""

    table: TextTable  # that they were read from
    in_place: bool  # whether answers fill its empty cells

    def lines(self, rows: Sequence[BatchRow], found: Mapping[Any, MapResult | FailedQuery | None]) -> str:
        """Return a line per row, written as the table is: its cells, those of `ResultList.beside`, and `FACTS`."""
        names = self.table.names
        hows = dict(zip(names, self.table.conventions, strict=True))
        decimal = "," if any(how.decimal == "," for how in hows.values()) else "."
        places = {label: k for k, (label, answer) in enumerate(found.items()) if answer is not None}
        beside = ResultList(a for a in found.values() if a is not None).beside(() if self.in_place else names)
        more = [name for name in beside if name not in names]
        facts = [f"{name} of the answer" if name in (*names, *more) else name for name in FACTS]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n", delimiter=self.table.separator)
        writer.writerow([*names, *more, *facts])
        for k, row in enumerate(rows):
            own = {name: column[places[row.label]] for name, column in beside.items() if row.label in places}
            cells = dict(zip(names, [*self.table.rows[k], *[""] * len(names)], strict=False))
            empty = {n for n in own if n not in names or hows[n].plain(cells[n]) is None}
            empty |= {name for name in names if cells[name].lower() in self.table.missing}
            cells |= {name: value for name, value in own.items() if value is not None and name in empty}
            shown = [(name, cells.get(name)) for name in (*names, *more)]
            shown += zip(
                facts, _facts(found[row.label]) if row.label in found else [None] * len(FACTS), strict=True
            )
            writer.writerow([_written(x, hows.get(name.removesuffix("_answer")), decimal) for name, x in shown])
        return text.getvalue()


def _written(value: Any, how: Convention | None, decimal: str) -> str:
    """Return a value as its column in the table writes it."""
    if how is not None and how.kind == "date" and isinstance(value, int | float):
        return how.date(value)
    return "" if value is None else str(value).replace(".", decimal) if isinstance(value, float) else str(value)


def _facts(answer: MapResult | FailedQuery | None) -> list[Any]:
    """Return the values of the columns `FACTS`."""
    if answer is None or isinstance(answer, FailedQuery):
        told = ["not reached", None] if answer is None else ["failed", answer.message]
        return [*[None] * (len(FACTS) - 2), *told]
    logs = (answer.log_prob, answer.log_upper_bound, answer.log_evidence)
    numbers = [None if value is None else float(value) for value in logs]
    return [*numbers, answer.certificate.epsilon, answer.certificate.delta, answer.status.value, None]
