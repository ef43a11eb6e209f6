"""What the commands of `certimap bench` share: options, and helpers for their texts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Limit = Annotated[float | None, typer.Option(help="Seconds a trial may solve; 0 means no limit.")]
Epsilon = Annotated[float, typer.Option(help="Tolerance asked for.")]
Delta = Annotated[float, typer.Option(help="Failure probability asked for.")]
MaxSamples = Annotated[int, typer.Option("--max-samples", help="Draws a trial may make.")]
MaxMemory = Annotated[int, typer.Option("--max-memory", help="MiB that a solver may hold, the model not counted.")]
Jobs = Annotated[int, typer.Option(help="Trials at once, each in a process of its own.")]
Workers = Annotated[int, typer.Option(help="Threads of each trial.")]
Seed = Annotated[int, typer.Option(help="Seed of partitions, evidence, learning and solvers.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the summary alone.")]


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a text, between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def command_line() -> str:
    """Return the command as it was typed."""
    return shlex.join(["certimap", *sys.argv[1:]])


def reporter(quiet: bool) -> Callable[[str], None]:
    """Return what shows a line per trial on standard error."""
    return (lambda _: None) if quiet else (lambda line: typer.echo(line, err=True))


def show_text(text: str, into: Path | None, section: str, about: str | None = "") -> None:
    """Print a text under the machine it was measured on, and put it into a section of a page where one is given.

    `about` follows the machine, as in "; one thread"; None where the text names the machine itself.
    """
    from certimap_lab.bench.machine import describe_machine, machine_line
    from certimap_lab.bench.report import insert_section

    shown = text if about is None else f"{machine_line(describe_machine())}{about}.\n\n{text}"
    typer.echo(shown)
    if into is not None:
        insert_section(into, section, shown)
