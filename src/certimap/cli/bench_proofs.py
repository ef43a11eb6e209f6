"""`certimap bench proofs`: proofs of thousands of small models, and what those of recorded queries cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
            help="Folder with cases.json and the networks it names; may be repeated.",
            show_default=False,
        ),
    ] = None,
    queries: Annotated[int, typer.Option(help="Queries of each learned model.")] = 3,
    time_limit: Annotated[float, typer.Option(help="Seconds per answer.")] = 60.0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'proofs' gets the table.", show_default=False)
    ] = None,
) -> None:
    """Have the proofs of every solver checked, as written and altered; weigh those of learned models and networks.

    Exits with 1 when a valid proof is not accepted, or a false one is.
    """
    from certimap.bench.proofs import cost_table, learned_queries, network_queries, try_models, weigh
    from certimap.bench.report import insert_section

    trial = try_models(models, seed, typer.echo)
    by_method = ", ".join(f"{n} by {method}" for method, n in sorted(trial.methods.items()))
    typer.echo(f"{trial.n_proofs:,} proofs of {models:,} models ({by_method or 'none'}),")
    typer.echo(f"{trial.n_altered:,} alterations of them, {len(trial.failing)} failures")
    costs = [] if learned is None else weigh(learned_queries(learned, queries), time_limit, typer.echo)
    for folder in networks or ():
        costs += weigh(network_queries(folder), time_limit, typer.echo)
    if costs:
        text = cost_table(costs).to_markdown()
        typer.echo(text)
        if into is not None:
            insert_section(into, "proofs", text)
    if trial.failing or any(cost.n_bytes and not cost.text.startswith("accepted") for cost in costs):
        raise typer.Exit(1)
