"""`certimap marginals` and `certimap sample`: everyday inference on the shell."""

from __future__ import annotations

import csv
import json
import sys
from io import StringIO
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from certimap.cli.output import print_rows
from certimap.cli.solve import (
    EncodingOption,
    EvidenceFileOption,
    EvidenceOption,
    EvidKindOption,
    JsonOption,
    ModelArgument,
    QueryOption,
    SeparatorOption,
    read_case,
)
from certimap.io.files import write_text


def marginals(
    model: ModelArgument,
    query: QueryOption = None,
    evidence: EvidenceOption = None,
    evidence_file: EvidenceFileOption = None,
    evid_kind: EvidKindOption = None,
    encoding: EncodingOption = None,
    separator: SeparatorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the probability of each state of single variables given the evidence, and ln p(evidence)."""
    from certimap.ask import inference

    source, names, given = read_case(model, query, evidence, None, evidence_file, evid_kind, encoding, separator)
    found = inference.marginals(source, names, given)
    log_evidence = inference.log_evidence(source, given)
    if as_json:
        tables = {name: {str(label): p for label, p in row.items()} for name, row in found.items()}
        print(json.dumps({"marginals": tables, "log_evidence": log_evidence}, indent=2))
        return
    print_rows(
        (name, ", ".join(f"{label} {p:.6g}" for label, p in sorted(row.items(), key=lambda item: -item[1])))
        for name, row in found.items()
    )
    print(f"\nln p(evidence) = {log_evidence:.6f}")


def sample(
    model: ModelArgument,
    n: Annotated[int, typer.Option("--n", "-n", help="How many rows.")] = 10,
    query: QueryOption = None,
    evidence: EvidenceOption = None,
    evidence_file: EvidenceFileOption = None,
    evid_kind: EvidKindOption = None,
    rng: Annotated[
        int | None, typer.Option("--rng", help="A seed, which replays the rows.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv file; otherwise printed.", show_default=False)
    ] = None,
    encoding: EncodingOption = None,
    separator: SeparatorOption = None,
) -> None:
    """Draw independent rows from p(query | evidence), as CSV; what is not queried is summed out."""
    from certimap.ask import inference

    source, names, given = read_case(model, query, evidence, None, evidence_file, evid_kind, encoding, separator)
    columns = inference.sample(source, n, given, names, rng=rng)
    if output is None:
        _write(columns, sys.stdout)
        return
    text = StringIO(newline="")
    _write(columns, text)
    write_text(output, text.getvalue())


def _write(columns: dict[str, Any], file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
