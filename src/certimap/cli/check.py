"""`certimap check`: whether a proof file proves what it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from certimap.cli.solve import EncodingOption, ModelArgument

REJECTED = 1


def check(
    model: ModelArgument,
    proof: Annotated[Path, typer.Argument(metavar="FILE", help="What solve --proof wrote.", show_default=False)],
    exact: Annotated[
        bool, typer.Option("--exact", help="Check a small model by enumeration in exact numbers too.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds after which the check gives up, and rejects.", show_default=False)
    ] = None,
    encoding: EncodingOption = None,
) -> None:
    """Check a proof by code that shares nothing with what found the answer.

    Exits with 0 when the claim is proved, and with 1 when it is not.
    """
    import certimap

    verdict = certimap.check(certimap.read(model, encoding=encoding), proof, exact=exact, time_limit=time_limit)
    print(verdict.message)
    if verdict.asked:
        print(verdict.asked)
    for text in verdict.unchecked:
        print(f"not checked: {text}")
    if not verdict.accepted:
        raise typer.Exit(REJECTED)
