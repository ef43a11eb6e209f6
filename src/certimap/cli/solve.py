"""`certimap solve`: one model, one query or many, answers with their certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from certimap.ask.batch import BatchRow
from certimap.cli import inputs
from certimap.core.domain import Domain
from certimap.core.result import MapResult
from certimap.core.result_list import FailedQuery
from certimap.errors import QueryError, SolverError
from certimap.io.evidence import (
    ASSIGNMENT_FORMATS,
    EVIDENCE_FORMATS,
    QUERY_FORMATS,
    Asked,
    EvidenceCase,
    TextOptions,
    read_evidence_cases,
    read_query_cases,
)
from certimap.io.files import suffix_of
from certimap.io.formats import suffixes

if TYPE_CHECKING:
    from certimap.core.model import Model
    from certimap.solvers.request import Settings


class EvidLayout(StrEnum):
    """The layouts of .evid files."""

    SINGLE = "single"
    CASES = "cases"


class OnError(StrEnum):
    """Effect of a failed case on the others."""

    KEEP = "keep"
    RAISE = "raise"


class Preset(StrEnum):
    """Settings of published experiments."""

    PAPER = "paper"
    PAPER_PAC = "paper_pac"


ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help=f"A model: {suffixes()}, .gz of each.", show_default=False)
]
QueryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--query",
        "-q",
        metavar="A,B",
        help="Query variables; repeatable. Omitted: all without evidence.",
        show_default=False,
    ),
]
EvidenceOption = Annotated[
    list[str] | None,
    typer.Option("--evidence", "-e", metavar="X=a,Y=b", help="Observed states; repeatable.", show_default=False),
]
EvidenceFileOption = Annotated[
    Path | None,
    typer.Option(
        "--evidence-file",
        "--rows",
        help=f"Evidence, one query per row of a table: {suffixes(EVIDENCE_FORMATS)}.",
        show_default=False,
    ),
]
EvidKindOption = Annotated[
    EvidLayout | None,
    typer.Option("--evid-kind", help="How an ambiguous .evid is read.", show_default=False),
]
QueryFileOption = Annotated[
    Path | None,
    typer.Option("--query-file", help=f"Query variables: {suffixes(QUERY_FORMATS)}.", show_default=False),
]
EncodingOption = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        metavar="NAME",
        help="Encoding of all text files named, such as latin-1 or utf-16; otherwise UTF-8.",
        show_default=False,
    ),
]
SeparatorOption = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="SIGN",
        help="What stands between the cells of a .csv: comma, semicolon, tab, bar, space, or a character. "
        "Otherwise the first four are tried.",
        show_default=False,
    ),
]
MaxEdgesOption = Annotated[
    int | None,
    typer.Option("--max-edges", help="Build no larger circuit and no larger table.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def solve(
    model: ModelArgument,
    query: QueryOption = None,
    evidence: EvidenceOption = None,
    evidence_file: EvidenceFileOption = None,
    evid_kind: EvidKindOption = None,
    query_file: QueryFileOption = None,
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="The answer may be this much less probable (relative).")
    ] = 0.01,
    delta: Annotated[
        float, typer.Option("--delta", help="The certificate may be wrong with this probability.")
    ] = 0.01,
    solver: Annotated[str, typer.Option("--solver", help="A solver's name, or auto.")] = "auto",
    preset: Annotated[
        Preset | None, typer.Option("--preset", help="Settings of published experiments.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the solver; repeatable.", show_default=False
        ),
    ] = None,
    rng: Annotated[
        int | None, typer.Option("--rng", help="A seed, which replays the answer.", show_default=False)
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="End each answer after so long, with what it has earned.",
            show_default=False,
        ),
    ] = None,
    max_samples: Annotated[
        int | None, typer.Option("--max-samples", help="Draws for each answer.", show_default=False)
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option("--max-nodes", help="Search nodes for each answer.", show_default=False)
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", help="Bytes, such as 500M or 4G.", show_default=False)
    ] = None,
    warm_start: Annotated[
        list[str] | None,
        typer.Option(
            "--warm-start",
            help=f"A heuristic's name, or assignments: {suffixes(ASSIGNMENT_FORMATS)}; repeatable.",
            show_default=False,
        ),
    ] = None,
    upper_bound: Annotated[
        str | None,
        typer.Option(
            "--upper-bound",
            metavar="SOURCE:log_joint=X",
            help="What another program proved: a bound on ln p(q, e), or log_prob=X on ln p(q | e).",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Processes that share the rows out, -1 for one per core.", show_default=False),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Threads; the answer does not depend on it.", show_default=False),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="Draw and score points by PyTorch on cpu, cuda or cuda:N.", show_default=False
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="How many answers.", show_default=False)] = None,
    max_edges: MaxEdgesOption = None,
    encoding: EncodingOption = None,
    separator: SeparatorOption = None,
    errors: Annotated[
        OnError,
        typer.Option(
            "--errors",
            help="A case of a file that fails: keep answers the others and exits 3, raise ends there and exits 2.",
        ),
    ] = OnError.KEEP,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the answers as JSON here too; in place of printing, a .csv gets a line per row.",
            show_default=False,
        ),
    ] = None,
    proof: Annotated[
        Path | None,
        typer.Option(
            "--proof", metavar="FILE", help="Write a proof that `certimap check` checks.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why, as `certimap explain` does; reports show it.")
    ] = False,
    max_proof: Annotated[
        str, typer.Option("--max-proof", help="The most bytes that a proof may take, such as 100M.")
    ] = "100M",
) -> None:
    """Print the most probable assignment of the query variables, and what is proved about it.

    Everything that is neither queried nor observed is summed out. Logs are natural. Files with many cases are
    answered case by case; Ctrl-C ends the batch. A file of --output is whole or not there: in a table, rows
    that Ctrl-C left out have the status "not reached".
    """
    import certimap
    from certimap.ask.batch import map_rows
    from certimap.ask.session import Session
    from certimap.cli.answer_file import check_folder, write_answers
    from certimap.cli.output import AnswerPrinter
    from certimap.core.executors import workers_of
    from certimap.kernels.notice import announce_compilation
    from certimap.solvers.request import Request

    table = output if output is not None and suffix_of(output) == "csv" else None
    if table is not None:
        check_folder(table)
        if as_json:
            raise QueryError(f"--json prints JSON, and --output {table} is a table; give one of them")
        if explain:
            raise QueryError(
                f"--output {table} is a table, which holds no explanations; expected a .json for --explain"
            )
    if preset is not None and solver not in ("auto", preset.value):
        raise QueryError(f"--preset {preset.value} is a solver with its settings; leave --solver {solver} out")
    options = TextOptions(encoding, separator, None if evid_kind is None else evid_kind.value)
    source = certimap.read(model, encoding=encoding)
    domain: Domain = source.domain
    rows = read_rows(domain, query, evidence, query_file, evidence_file, options)
    starts = [inputs.read_warm_start(text, domain, options) for text in warm_start or ()]
    announce_compilation()
    asked: Settings = {
        "epsilon": epsilon,
        "delta": delta,
        "solver": solver if preset is None else preset.value,
        "options": inputs.parse_settings(settings),
        "time_limit": time_limit,
        "max_samples": max_samples,
        "max_nodes": max_nodes,
        "max_memory": inputs.parse_size(max_memory),
        "max_edges": max_edges,
        "device": device,
        "upper_bound": inputs.parse_upper_bound(upper_bound),
        "warm_start": starts or None,
        "top_k": top_k,
        "workers": workers,
    }
    if upper_bound is not None and len(rows) > 1:
        raise QueryError(f"--upper-bound is of one query, and there are {len(rows)} cases; ask one case")
    if jobs is not None and len(rows) == 1:
        raise QueryError(f"--jobs {jobs} shares out the rows of a table, and there is one case; leave it out")
    if proof is not None:
        if len(rows) > 1:
            raise QueryError(f"--proof {proof} is one file, and there are {len(rows)} cases; ask one case")
        asked["proof_bytes"] = inputs.parse_size(max_proof)
    on_error = "raise" if len(rows) == 1 else errors.value
    session = Session(source, Request.of(**asked))
    with workers_of(jobs, None) as pool:
        answers = map_rows(session, rows, rng, on_error, pool, None if table is None else False)
        if proof is not None:
            answers = _proved(answers, proof)
        if table is not None:
            code = write_answers(table, rows, answers)
        else:
            describe = None
            if as_json or output is not None:
                describe = _describer(source, str(model), asked)
            wishes = {"time_limit": time_limit, "workers": workers} if explain else None
            code = AnswerPrinter(rows, as_json, describe, output, wishes).print_all(answers)
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

    def describe(row: BatchRow) -> dict[str, Any]:
        return asked(model, *row.ask(), settings, model_fingerprint=own, file=file)

    return describe


def read_rows(
    domain: Domain,
    query: Sequence[str] | None,
    evidence: Sequence[str] | None,
    query_file: Path | None,
    evidence_file: Path | None,
    options: TextOptions,
) -> list[BatchRow]:
    """Join options and files into queries: one, or one per case of a file."""
    names = inputs.parse_query(query, domain)
    given = inputs.parse_evidence(evidence, domain)
    if names is not None and query_file is not None:
        raise QueryError("--query and --query-file both name the query; give one of them")
    asked = [EvidenceCase("", lambda: (names, {}))]
    rows = [EvidenceCase("", lambda: (None, {}))]
    if query_file is not None:
        asked = read_query_cases(query_file, domain, options)
    if evidence_file is not None:
        rows = read_evidence_cases(evidence_file, domain, options)
    if len(asked) > 1 and len(rows) == len(asked):
        pairs = list(zip(asked, rows, strict=True))
    elif len(asked) > 1 and len(rows) > 1:
        raise QueryError(
            f"{query_file} holds {len(asked)} cases and {evidence_file} {len(rows)}; expected equal numbers"
        )
    else:
        pairs = [(one, row) for one in asked for row in rows]

    def joined(one: EvidenceCase, row: EvidenceCase) -> Asked:
        (variables, more), (_, found) = one.read(), row.read()
        return variables, inputs.merged((given, more, found))

    return [
        BatchRow(number, lambda one=one, row=row: joined(one, row), row.place or one.place)
        for number, (one, row) in enumerate(pairs, 1)
    ]


def read_case(
    model: Path,
    query: list[str] | None,
    evidence: list[str] | None,
    query_file: Path | None,
    evidence_file: Path | None,
    evid_kind: EvidLayout | None,
    encoding: str | None,
    separator: str | None,
) -> tuple[Model, list[str] | None, dict[str, Any]]:
    """Read a model, and the query and evidence of one case."""
    import certimap

    source = certimap.read(model, encoding=encoding)
    options = TextOptions(encoding, separator, None if evid_kind is None else evid_kind.value)
    rows = read_rows(source.domain, query, evidence, query_file, evidence_file, options)
    if len(rows) != 1:
        raise QueryError(f"{evidence_file or query_file} holds {len(rows)} cases; one is expected here")
    names, given = rows[0].ask()
    return source, names, given
