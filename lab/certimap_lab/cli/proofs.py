"""`certimap bench proofs`: proofs of thousands of small models, and what those of recorded queries cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from certimap_lab.cli.options import show_text


def proofs(
    models: Annotated[int, typer.Option("--models", help="Random small models.")] = 1000,
    seed: Annotated[int, typer.Option(help="The first model; the others follow.")] = 0,
    learned: Annotated[
        Path | None,
        typer.Option(
            "--learned", help="Folder of learned models, as bench twenty keeps them.", show_default=False
        ),
    ] = None,
    networks: Annotated[
        list[Path] | None,
        typer.Option(
            "--networks",
            help="Folder with cases.json, or with .uai, .evid and .query files; may be repeated.",
            show_default=False,
        ),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Queries of each learned model and split.")] = 10,
    time_limit: Annotated[float, typer.Option(help="Seconds per answer.")] = 60.0,
    check_limit: Annotated[float, typer.Option(help="Seconds per check.")] = 300.0,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of records and proofs; a stopped run goes on where it was.")
    ] = Path("proofs"),
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Page whose section 'proofs' gets the tables.", show_default=False),
    ] = None,
) -> None:
    """Have the proofs of every solver checked, as written and altered; weigh those of learned models and networks.

    Exits with 1 when a valid proof is not accepted, or a false one is.
    """
    from certimap_lab.bench.proof_costs import (
        REJECTED,
        Limits,
        cost_tables,
        network_queries,
        twenty_queries,
        weigh,
    )
    from certimap_lab.bench.proofs import try_models

    trial = try_models(models, seed, typer.echo)
    by_method = ", ".join(f"{n} by {method}" for method, n in sorted(trial.methods.items()))
    typer.echo(f"{trial.n_proofs:,} proofs of {models:,} models ({by_method or 'none'}),")
    typer.echo(f"{trial.n_altered:,} alterations of them, {len(trial.failing)} failures")
    if trial.n_without:
        typer.echo(f"{trial.n_without} certified answers about real variables without a proof")
    asked = [item for folder in networks or () for item in network_queries(folder)]
    if learned is not None:
        asked += twenty_queries(learned, queries)
    records = weigh(out, asked, Limits(time_limit, check_limit), typer.echo) if asked else []
    if records:
        show_text("\n\n".join(table.to_markdown() for table in cost_tables(records)), into, "proofs")
    if trial.failing or any(record["outcome"] == REJECTED for record in records):
        raise typer.Exit(1)
