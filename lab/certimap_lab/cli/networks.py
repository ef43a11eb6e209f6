"""The commands of `certimap bench` on networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from certimap_lab.cli.options import (
    Delta,
    Epsilon,
    Jobs,
    Limit,
    MaxMemory,
    MaxSamples,
    Quiet,
    Seed,
    Workers,
    command_line,
    reporter,
    show_text,
    split_names,
)

if TYPE_CHECKING:
    from certimap_lab.bench.network_cases import NetworkCase
    from certimap_lab.bench.trial import TrialSettings

Solvers = Annotated[
    str,
    typer.Option("--solvers", help="Solvers, settings as in wmb:i_bound=10:iterations=30; none when empty."),
]
Peers = Annotated[str, typer.Option(help="Other libraries to ask: pgmpy, pyagrum, pygms, toulbar2.")]
Only = Annotated[str, typer.Option("--only", help="Names of cases or networks; all when empty.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run; a stopped run there resumes.")]


def networks(
    cases: Annotated[
        list[Path] | None,
        typer.Option("--cases", help="File of cases, with the networks it names beside it; may be given twice."),
    ] = None,
    seeded: Annotated[
        Path | None, typer.Option("--seeded", help="Folder of BIF networks that get random queries instead.")
    ] = None,
    parity: Annotated[str, typer.Option(help="Lengths of parity codes to decode, as in 48,96.")] = "",
    out: Out = None,
    solvers: Solvers = "auto",
    peers: Peers = "",
    only: Only = "",
    epsilon: Epsilon = 0.01,
    delta: Delta = 0.01,
    max_samples: MaxSamples = 2_500_000,
    time_limit: Limit = 60.0,
    max_memory: MaxMemory = 4096,
    jobs: Jobs = 1,
    workers: Workers = 1,
    seed: Seed = 0,
    quiet: Quiet = False,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth", help="Measure time by the number of variables, rows and answers instead; needs no data."
        ),
    ] = False,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Set MPE beside a plain elimination in NumPy instead: a long chain, those --cases that are "
            "MPE, and the networks of --seeded without evidence; where tables fit.",
        ),
    ] = False,
    sizes: Annotated[str, typer.Option(help="Numbers of variables for --growth.")] = "1000,10000,100000",
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Page whose section 'growth' or 'plain-elimination' gets the table."),
    ] = None,
) -> None:
    """Run solvers, and other libraries, on queries of networks: answers, proofs, gaps, times."""
    from certimap_lab.bench.network_cases import read_cases
    from certimap_lab.bench.seeded import parity_cases, seeded_cases
    from certimap_lab.bench.trial import TrialSettings

    if growth:
        _growth(sizes, seed, quiet, into)
        return
    chosen = [case for file in cases or [] for case in read_cases(file, split_names(only))]
    if plain:
        _plain(chosen, seeded, split_names(only), seed, quiet, into)
        return
    if seeded is not None:
        chosen += seeded_cases(seeded, seed, split_names(only))
    if parity:
        chosen += parity_cases(_whole_numbers(parity, "--parity"), seed=seed)
    if not chosen:
        raise typer.BadParameter("--cases, --seeded, --parity or --growth is needed", param_hint="--cases")
    settings = TrialSettings(epsilon, delta, max_samples, time_limit or None, max_memory, workers, seed)
    _run(chosen, settings, split_names(solvers), split_names(peers), out, jobs, quiet)


def uai(
    folders: Annotated[
        list[Path],
        typer.Option(
            "--dir",
            help="Folder of .uai files with .evid and .query, or with a cases.json; may be given twice.",
        ),
    ],
    bif: Annotated[
        Path | None,
        typer.Option(
            "--networks",
            help="Folder of BIF networks that join: all variables asked, with nothing and with a tenth observed.",
        ),
    ] = None,
    mpe: Annotated[
        bool, typer.Option("--mpe", help="Ask for all variables, whatever .query files and cases name.")
    ] = False,
    solvers: Solvers = "auto",
    peers: Peers = "",
    only: Only = "",
    out: Out = None,
    time_limit: Limit = 60.0,
    max_memory: MaxMemory = 8192,
    jobs: Jobs = 1,
    workers: Workers = 2,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Run solvers, and other libraries, on folders of UAI instances, exactness asked for: proofs, gaps, times."""
    from certimap_lab.bench.network_cases import NetworkCase, choose, uai_cases
    from certimap_lab.bench.seeded import explanation_cases
    from certimap_lab.bench.trial import TrialSettings

    settings = TrialSettings(0.0, 0.0, None, time_limit or None, max_memory, workers, seed)
    found = [case for folder in folders for case in uai_cases(folder)]
    found += [] if bif is None else explanation_cases(bif, seed)
    if mpe:  # what is known of the best answer to another query is dropped
        found = [c if c.query is None else NetworkCase(c.name, c.network, None, c.evidence) for c in found]
    chosen = choose(found, split_names(only), ", ".join(map(str, folders)))
    _run(chosen, settings, split_names(solvers), split_names(peers), out, jobs, quiet)


def portfolio(
    folder: Annotated[
        Path | None, typer.Option("--networks", help="Folder of BIF networks that join the families.")
    ] = None,
    uai_folders: Annotated[
        list[Path] | None, typer.Option("--uai", help="Folder of UAI instances that join; may be given twice.")
    ] = None,
    limits: Annotated[
        str, typer.Option(help="Seconds per call; several limits are run one after another.")
    ] = "10",
    solvers: Annotated[str, typer.Option("--solvers", help="Parts to set auto beside; all when empty.")] = "",
    only: Annotated[str, typer.Option("--only", help="Families; all when empty.")] = "",
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'portfolio' gets the tables.")
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="Queries of each family, the first ones; 0 for all.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Queries at once, each in a process on one processor.")] = 1,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Set `auto` beside every part that accepts a query, on ten families: answers, bounds, lateness.

    Exits with 1 where `auto` is behind its best part, or late.
    """
    from certimap_lab.bench import portfolio as bench
    from certimap_lab.bench.portfolio_models import portfolio as cases_of

    make_cases = partial(cases_of, seed, folder, uai_folders or [], split_names(only), most or None)
    if not make_cases():
        raise typer.BadParameter(f"{only!r} names no family", param_hint="--only")
    parts = split_names(solvers) or bench.PARTS
    rows = list(bench.run_portfolio(make_cases, _seconds(limits), parts, seed, reporter(quiet), jobs))
    threads = "" if jobs == 1 else f"; {jobs} queries at once, one thread each"
    show_text("\n".join(table.to_markdown() for table in bench.portfolio_tables(rows)), into, "portfolio", threads)
    if any(row.failures for row in rows):
        raise typer.Exit(1)


def _seconds(text: str) -> list[float]:
    try:
        found = [float(part) for part in split_names(text)]
    except ValueError:
        found = []
    if not found or not all(0.0 < limit < float("inf") for limit in found):
        raise typer.BadParameter(f"{text!r} names no seconds, as in 2,10,60", param_hint="--limits")
    return found


def _run(
    cases: Sequence[NetworkCase],
    settings: TrialSettings,
    solvers: Sequence[str],
    peers: Sequence[str],
    out: Path | None,
    jobs: int,
    quiet: bool,
) -> None:
    from certimap_lab.bench.network_tables import network_tables
    from certimap_lab.bench.networks import NetworkPlan, network_summary, run_networks
    from certimap_lab.bench.peers import installed_peers

    plan = NetworkPlan(tuple(cases), out, tuple(solvers), tuple(peers), jobs, settings=settings)
    try:
        records = run_networks(plan, command=command_line(), report=reporter(quiet))
    except KeyboardInterrupt:
        if out is not None:
            typer.echo(f"stopped; the same command goes on from the trials in {out}", err=True)
        raise
    for table in network_tables(records, installed_peers(plan.peers)[1]):
        typer.echo(table.to_markdown())
    typer.echo(network_summary(records))


def orders(
    models: Annotated[
        list[Path] | None, typer.Argument(help="Networks, or folders of them; made grids alone when left out.")
    ] = None,
    sides: Annotated[str, typer.Option(help="Sides of square grids, planar and torus.")] = "12,16,20,24",
    quiet: Quiet = False,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'orders' gets the table.")
    ] = None,
) -> None:
    """Print log2 sizes of elimination orders: by least fill, and as a search finds them."""
    from certimap_lab.bench.orders import files_below, grid, orders_table, run_orders, scopes_of

    lengths = _whole_numbers(sides, "--sides")
    asked = [grid(side) for side in lengths] + [grid(side, is_torus=True) for side in lengths]
    asked += [scopes_of(path) for path in files_below(models or [])]
    show_text(orders_table(run_orders(asked, reporter(quiet))).to_markdown(4), into, "orders", "; one thread")


def _whole_numbers(text: str, option: str) -> list[int]:
    wrong = [part for part in split_names(text) if not part.isdecimal()]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is no whole number", param_hint=option)
    return [int(part) for part in split_names(text)]


def _growth(sizes: str, seed: int, quiet: bool, into: Path | None) -> None:
    from certimap_lab.bench.growth import GrowthPlan, growth_table, run_growth
    from certimap_lab.bench.growth_queries import growth_queries_table, run_growth_queries

    plan = GrowthPlan(sizes=tuple(_whole_numbers(sizes, "--sizes")), seed=seed)
    records = run_growth(plan, reporter(quiet))
    tables = [growth_table(records), growth_queries_table(run_growth_queries(seed))]
    shown = "\n\n".join(table.to_markdown(4) for table in tables)
    show_text(shown, into, "growth", "; one thread")


def _plain(
    cases: Sequence[NetworkCase],
    folder: Path | None,
    only: Sequence[str],
    seed: int,
    quiet: bool,
    into: Path | None,
) -> None:
    from certimap_lab.bench.plain_elimination import mpe_cases, plain_table, run_plain

    chosen = [*cases, *([] if folder is None else mpe_cases(folder, only))]
    table = plain_table(run_plain(chosen, seed=seed, report=reporter(quiet)))
    show_text(table.to_markdown(4), into, "plain-elimination", "; one thread")
