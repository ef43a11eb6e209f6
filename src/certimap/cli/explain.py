"""`certimap explain`: why an answer is what it is."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from certimap.cli.solve import (
    EncodingOption,
    EvidenceFileOption,
    EvidenceOption,
    EvidKindOption,
    JsonOption,
    ModelArgument,
    QueryFileOption,
    QueryOption,
    SeparatorOption,
    read_case,
)


def explain(
    model: ModelArgument,
    query: QueryOption = None,
    evidence: EvidenceOption = None,
    evidence_file: EvidenceFileOption = None,
    evid_kind: EvidKindOption = None,
    query_file: QueryFileOption = None,
    entries: Annotated[
        int, typer.Option(help="Table entries whose exact range is found (Bayesian networks).")
    ] = 8,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds per query asked on the way.", show_default=False)
    ] = None,
    rng: Annotated[int, typer.Option("--rng", help="A seed, which replays the answers.")] = 0,
    encoding: EncodingOption = None,
    separator: SeparatorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a query and say why: the lead, the evidence that it hangs on, how far table entries may move."""
    import certimap

    source, variables, given = read_case(
        model, query, evidence, query_file, evidence_file, evid_kind, encoding, separator
    )
    found = certimap.explain(source, variables, given, n_entries=entries, rng=rng, time_limit=time_limit)
    print(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
