"""`certimap bench theory` and `reproduction`: the paper's theorems and experiments beside what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from certimap_lab.cli.options import Quiet, Seed, reporter, show_text


def theory(
    variables: Annotated[int, typer.Option(help="Binary variables of each distribution.", min=6, max=14)] = 10,
    runs: Annotated[int, typer.Option(help="Runs per line of a table.", min=2)] = 100,
    seed: Seed = 0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'theory' gets the tables.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure simple regret, stopping times and false certificates on distributions whose mode is known."""
    from certimap_lab.bench.theory import TheoryPlan, run_theory

    found = run_theory(TheoryPlan(variables, runs, seed), reporter(quiet))
    text = "\n".join(table.to_markdown() for table in found)
    show_text(text, into, "theory")


def reproduction(
    run: Annotated[Path, typer.Argument(help="Folder of a run of 'twenty' with the seven published methods.")],
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'reproduction' gets the tables.")
    ] = None,
) -> None:
    """Set a run of all seven published methods beside the published ranks and times."""
    from certimap_lab.bench.reproduction import reproduction as compared

    text = compared(run)
    show_text(text, into, "reproduction", None)
