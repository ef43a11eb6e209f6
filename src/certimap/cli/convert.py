"""`certimap convert`: one model format into another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[Path, typer.Argument(metavar="A", help="The model to read.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="B", help="The file to write.", show_default=False)],
) -> None:
    """Write model A as B; the suffixes name the formats (.bif .uai .spn .npz, each also with .gz)."""
    from certimap import io

    io.write(io.read(source), target)
