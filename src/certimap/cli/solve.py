"""`certimap solve`: one model, one query or many, answers with their certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from certimap.ask.batch import BatchRow
from certimap.cli.options import (
    EvidenceOptions,
    JsonOption,
    QueryFileOption,
    SettingsOption,
    WorkersOption,
    option,
    parse_settings,
    parse_size,
    parse_upper_bound,
    read_warm_start,
)
from certimap.core.result import FailedQuery, MapResult
from certimap.errors import QueryError, SolverError
from certimap.io.evidence import ASSIGNMENT_FORMATS
from certimap.io.files import suffix_of
from certimap.io.formats import suffixes

if TYPE_CHECKING:
    from certimap.core.domain import Domain
    from certimap.core.model import Model
    from certimap.solvers.request import Settings


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
        option(
            "--time-limit",
            metavar="SECONDS",
            help="End each answer after so long, with the certificate earned by then.",
        ),
    ] = None
    max_samples: Annotated[int | None, option("--max-samples", help="Draws for each answer.")] = None
    max_nodes: Annotated[int | None, option("--max-nodes", help="Search nodes for each answer.")] = None
    max_memory: Annotated[str | None, option("--max-memory", help="Bytes, such as 500M or 4G.")] = None
    warm_start: Annotated[
        list[str] | None,
        option(
            "--warm-start", help=f"A heuristic's name, or assignments: {suffixes(ASSIGNMENT_FORMATS)}; repeatable."
        ),
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
    max_edges: Annotated[int | None, option("--max-edges", help="Build no larger circuit or table.")] = None

    def read(self, domain: Domain, case: EvidenceOptions) -> Settings:
        """Return the keywords of `Request.of`; reads the files of warm starts."""
        starts = [read_warm_start(text, domain, case.text) for text in self.warm_start or ()]
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "solver": self.solver if self.preset is None else self.preset.value,
            "options": parse_settings(self.settings),
            "time_limit": self.time_limit,
            "max_samples": self.max_samples,
            "max_nodes": self.max_nodes,
            "max_memory": parse_size(self.max_memory),
            "max_edges": self.max_edges,
            "device": self.device,
            "upper_bound": parse_upper_bound(self.upper_bound),
            "warm_start": starts or None,
            "top_k": self.top_k,
            "workers": self.workers,
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
    as_json: JsonOption = False
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            help="Write the answers as JSON here too; in place of printing, a .csv gets a line per row.",
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
        """The .csv file that the answers go to, if any."""
        return self.output if self.output is not None and suffix_of(self.output) == "csv" else None

    def check(self) -> None:
        """Reject options that contradict each other, before anything is read."""
        from certimap.cli.output import check_folder

        if self.table is None:
            return
        check_folder(self.table)
        if self.as_json:
            raise QueryError(f"--json prints JSON, and --output {self.table} is a table; give one of them")
        if self.explain:
            raise QueryError(
                f"--output {self.table} is a table, which holds no explanations; expected a .json for --explain"
            )

    def check_cases(self, n_cases: int, upper_bound: str | None) -> None:
        """Reject options that do not go with the number of cases."""
        if upper_bound is not None and n_cases > 1:
            raise QueryError(f"--upper-bound is of one query, and there are {n_cases} cases; ask one case")
        if self.jobs is not None and n_cases == 1:
            raise QueryError(
                f"--jobs {self.jobs} shares out the rows of a table, and there is one case; leave it out"
            )
        if self.proof is not None and n_cases > 1:
            raise QueryError(f"--proof {self.proof} is one file, and there are {n_cases} cases; ask one case")


def solve(
    case: EvidenceOptions, ask: RequestOptions, answer: AnswerOptions, query_file: QueryFileOption = None
) -> None:
    """Print the most probable assignment of the query variables, and what is proved about it.

    Everything that is neither queried nor observed is summed out. Logs are natural. Files with many cases are
    answered case by case; Ctrl-C ends the batch. A file of --output is whole or not there: in a table, rows
    that Ctrl-C left out have the status "not reached".
    """
    from certimap.ask.batch import map_rows
    from certimap.ask.session import Session
    from certimap.cli.output import AnswerPrinter, write_answers
    from certimap.core.executors import workers_of
    from certimap.kernels.notice import announce_compilation
    from certimap.solvers.request import Request

    answer.check()
    if ask.preset is not None and ask.solver not in ("auto", ask.preset.value):
        raise QueryError(
            f"--preset {ask.preset.value} is a solver with its settings; leave --solver {ask.solver} out"
        )
    source = case.read_model()
    rows = case.rows(source.domain, query_file)
    settings = ask.read(source.domain, case)
    announce_compilation()
    answer.check_cases(len(rows), ask.upper_bound)
    if answer.proof is not None:
        settings["proof_bytes"] = parse_size(answer.max_proof)
    on_error = "raise" if len(rows) == 1 else answer.errors.value
    session = Session(source, Request.of(**settings))
    with workers_of(answer.jobs, None) as pool:
        answers = map_rows(session, rows, ask.rng, on_error, pool, None if answer.table is None else False)
        if answer.proof is not None:
            answers = _proved(answers, answer.proof)
        if answer.table is not None:
            code = write_answers(answer.table, rows, answers)
        else:
            is_recorded = answer.as_json or answer.output is not None
            describe = _describer(source, str(case.model), settings) if is_recorded else None
            wishes = {"time_limit": ask.time_limit, "workers": ask.workers} if answer.explain else None
            code = AnswerPrinter(rows, answer.as_json, describe, answer.output, wishes).print_all(answers)
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


def _describer(model: Model, file: str, settings: Settings) -> Callable[[BatchRow], dict[str, Any]]:
    """Return a function that records a row's query and settings for `certimap replay`."""
    from certimap.ask.replay import asked
    from certimap.io.native import fingerprint

    own = fingerprint(model)
    return lambda row: asked(model, *row.ask(), settings, model_fingerprint=own, file=file)
