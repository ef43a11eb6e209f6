"""`certimap solve`: one model, one query, an answer with its certificate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from certimap.cli import inputs
from certimap.cli.inputs import Evidence
from certimap.domain import Domain
from certimap.errors import QueryError

Case = tuple[list[str] | None, Evidence]


class EvidLayout(StrEnum):
    """The layouts of .evid files."""

    SINGLE = "single"
    CASES = "cases"


class Preset(StrEnum):
    """Settings of published experiments."""

    PAPER = "paper"
    PAPER_PAC = "paper_pac"


ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model: .bif .uai .spn .npz, .gz of each.", show_default=False)
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
    Path | None, typer.Option("--evidence-file", help="Evidence: .evid, .csv or .json.", show_default=False)
]
EvidKindOption = Annotated[
    EvidLayout | None,
    typer.Option("--evid-kind", help="How an ambiguous .evid is read.", show_default=False),
]
QueryFileOption = Annotated[
    Path | None, typer.Option("--query-file", help="Query variables: .query, .map or .json.", show_default=False)
]
MaxEdgesOption = Annotated[int, typer.Option("--max-edges", help="Refuse to compile a larger circuit.")]
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
    time_limit: Annotated[float | None, typer.Option("--time-limit", help="Seconds.", show_default=False)] = None,
    max_samples: Annotated[int | None, typer.Option("--max-samples", help="Draws.", show_default=False)] = None,
    max_nodes: Annotated[int | None, typer.Option("--max-nodes", help="Search nodes.", show_default=False)] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", help="Bytes, such as 500M or 4G.", show_default=False)
    ] = None,
    warm_start: Annotated[
        list[str] | None,
        typer.Option(
            "--warm-start",
            help="A heuristic's name, or a .json or .csv of assignments; repeatable.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Threads; the answer does not depend on it.", show_default=False),
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="How many answers.", show_default=False)] = None,
    max_edges: MaxEdgesOption = 20_000_000,
    as_json: JsonOption = False,
) -> None:
    """Print the most probable assignment of the query variables, and what is proved about it.

    Everything that is neither queried nor observed is summed out. Logs are natural.
    """
    import certimap
    from certimap.cli.notice import announce_compilation

    if preset is not None and solver not in ("auto", preset.value):
        raise QueryError(f"--preset {preset.value} is a solver with its settings; leave --solver {solver} out")
    source = certimap.read(model)
    domain: Domain = source.domain
    cases = read_cases(domain, query, evidence, query_file, evidence_file, evid_kind)
    starts = [inputs.read_warm_start(text, domain) for text in warm_start or ()]
    announce_compilation()
    results = [
        certimap.map_query(
            source,
            variables,
            observed,
            epsilon=epsilon,
            delta=delta,
            solver=solver if preset is None else preset.value,
            rng=rng,
            time_limit=time_limit,
            max_samples=max_samples,
            max_nodes=max_nodes,
            max_memory=inputs.parse_size(max_memory),
            warm_start=starts or None,
            top_k=top_k,
            workers=workers,
            max_edges=max_edges,
            **inputs.parse_settings(settings),
        )
        for variables, observed in cases
    ]
    _print(results, as_json)


def read_cases(
    domain: Domain,
    query: Sequence[str] | None,
    evidence: Sequence[str] | None,
    query_file: Path | None,
    evidence_file: Path | None,
    evid_kind: EvidLayout | None = None,
) -> list[Case]:
    """Join options and files into the queries to answer: one, or one a case of a file."""
    names = inputs.parse_query(query, domain)
    given = inputs.parse_evidence(evidence, domain)
    if names is not None and query_file is not None:
        raise QueryError("--query and --query-file both name the query; give one of them")
    asked: list[Case] = [(names, {})]
    if query_file is not None:
        asked = [(variables, more) for variables, more in inputs.read_query_file(query_file, domain)]
    rows: list[Evidence] = [{}]
    if evidence_file is not None:
        rows = inputs.read_evidence_file(
            evidence_file, domain, "cases" if evid_kind is EvidLayout.CASES else "single" if evid_kind else None
        )
    if len(asked) > 1 and len(rows) == len(asked):
        pairs = list(zip(asked, rows, strict=True))
    elif len(asked) > 1 and len(rows) > 1:
        raise QueryError(
            f"{query_file} holds {len(asked)} cases and {evidence_file} {len(rows)}; like numbers are accepted"
        )
    else:
        pairs = [(one, row) for one in asked for row in rows]
    return [(variables, inputs.merged((given, more, row))) for (variables, more), row in pairs]


def _print(results: Sequence[Any], as_json: bool) -> None:
    """Print one result by itself, several as a list."""
    if as_json:
        data = [result.to_dict() for result in results]
        print(json.dumps(data[0] if len(data) == 1 else data, indent=2, allow_nan=False))
        return
    from certimap.cli.output import print_result

    for number, result in enumerate(results, 1):
        if len(results) > 1:
            print(f"{'' if number == 1 else chr(10)}case {number}")
        print_result(result)
