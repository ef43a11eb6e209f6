"""`certimap explain`: why an answer is what it is."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from certimap.cli.options import EvidenceOptions, JsonOption, QueryFileOption, option


def explain(
    case: EvidenceOptions,
    query_file: QueryFileOption = None,
    entries: Annotated[
        int, typer.Option(help="Table entries whose exact range is found (Bayesian networks).")
    ] = 8,
    time_limit: Annotated[float | None, option(help="Seconds per query asked on the way.")] = None,
    rng: Annotated[int, typer.Option("--rng", help="A seed, which replays the answers.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Answer a query and say why: the lead, the evidence that it hangs on, how far table entries may move."""
    import certimap

    source, variables, given = case.read_case(query_file)
    found = certimap.explain(source, variables, given, n_entries=entries, rng=rng, time_limit=time_limit)
    print(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
