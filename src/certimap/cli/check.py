"""`certimap check`: whether a proof file proves what it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from certimap.cli.inputs import parse_size
from certimap.cli.options import EncodingOption, ModelArgument, argument

REJECTED = 1


def check(
    model: ModelArgument,
    proof: Annotated[Path, argument(metavar="FILE", help="What solve --proof wrote.")],
    exact: Annotated[
        bool, typer.Option("--exact", help="Check a small model by enumeration in exact numbers too.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option(help="Seconds after which the check gives up, and rejects; inf for no limit.")
    ] = 600.0,
    max_memory: Annotated[
        str,
        typer.Option(
            help="Memory that the check may take beside the model: bytes, or with a suffix such as 2G. What would "
            "take more is rejected."
        ),
    ] = "2G",
    encoding: EncodingOption = None,
) -> None:
    """Check a proof by code that shares nothing with what found the answer.

    Exits with 0 when the claim is proved, and with 1 when it is not.
    """
    import certimap

    found = certimap.read(model, encoding=encoding)
    n_bytes = parse_size(max_memory)
    verdict = certimap.check(found, proof, exact=exact, time_limit=time_limit, max_memory=n_bytes)
    print(verdict.message)
    if verdict.asked:
        print(verdict.asked)
    for text in verdict.unchecked:
        print(f"not checked: {text}")
    if not verdict.accepted:
        raise typer.Exit(REJECTED)
