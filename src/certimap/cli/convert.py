"""`certimap convert`: one model format into another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from certimap.cli.options import EncodingOption, argument
from certimap.io.formats import suffixes


def convert(
    source: Annotated[Path, argument(metavar="A", help=f"The model to read: {suffixes()}.")],
    target: Annotated[Path, argument(metavar="B", help="The file to write.")],
    encoding: EncodingOption = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights of literals for .nnf and .sdd: a line LITERAL WEIGHT for each, or a weighted CNF."
        ),
    ] = None,
) -> None:
    """Write model A as B; the suffixes name the formats, each also with .gz. Text is written in UTF-8."""
    from certimap import io

    io.write(io.read(source, encoding=encoding, weights=weights), target)
