"""`certimap marginals` and `certimap sample`: everyday inference on the shell."""

from __future__ import annotations

import csv
import json
import sys
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from certimap.cli.options import EvidenceOptions, JsonOption, option
from certimap.cli.output import print_rows
from certimap.io.files import write_text


def marginals(case: EvidenceOptions, as_json: JsonOption = False) -> None:
    """Print the probability of each state of single variables given the evidence, and ln p(evidence)."""
    from certimap.ask import inference

    source, names, given = case.read_case()
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
    case: EvidenceOptions,
    n: Annotated[int, typer.Option("--n", "-n", help="How many rows.")] = 10,
    rng: Annotated[int | None, option("--rng", help="A seed, which replays the rows.")] = None,
    output: Annotated[Path | None, option("--output", "-o", help="A .csv file; otherwise printed.")] = None,
) -> None:
    """Draw independent rows from p(query | evidence), as CSV; what is not queried is summed out."""
    from certimap.ask import inference

    source, names, given = case.read_case()
    columns = inference.sample(source, n, given, names, rng=rng)
    text = StringIO(newline="")
    writer = csv.writer(sys.stdout if output is None else text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    if output is not None:
        write_text(output, text.getvalue())
