"""The commands of `certimap bench` that check instead of measure: each exits with 1 when something is false."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from certimap_lab.cli.options import Quiet, reporter, show_text, split_names


def hostile(
    models: Annotated[int, typer.Option(help="How many models.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The first model; the others follow.")] = 0,
    only: Annotated[
        int | None, typer.Option("--only", help="Check this one model and show all that is wrong.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'hostile' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Put thousands of models that break careless arithmetic to every solver, and compare with exact arithmetic.

    Exits with 1 when a claim, a bound or a value is false.
    """
    from certimap_lab.bench.hostile import HostilePlan, check_model, failure_lines, run_hostile

    if only is not None:
        record = check_model(only)
        for line in failure_lines(record, limit=None):
            typer.echo(line)
        typer.echo(f"{record['n_checks']} checks on a model of the family {record['family']!r}")
        raise typer.Exit(1 if record["failures"] else 0)
    summary = run_hostile(HostilePlan(models, seed, jobs), report=reporter(quiet))
    text = summary.table.to_markdown()
    show_text(text, into, "hostile")
    if not summary.holds:
        raise typer.Exit(1)


def random_networks(
    number: Annotated[int, typer.Option(help="How many networks.")] = 2000,
    first: Annotated[int, typer.Option(help="The first network's number; the others follow.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Put random networks small enough to list to every solver of networks, with i-bounds of 1 to 4.

    Exits with 1 when an answer, a bound or a proof is false.
    """
    from certimap_lab.bench.random_networks import check_networks

    findings = check_networks(number, first, reporter(quiet))
    typer.echo("\n".join(findings.lines()))
    if findings.failures:
        raise typer.Exit(1)


def density_bounds(
    number: Annotated[int, typer.Option(help="How many models.")] = 3000,
    first: Annotated[int, typer.Option(help="The first model's number; the others follow.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Hold bounds on random densities in random boxes against dense grids, rounding included.

    Exits with 1 when a place of a box is above its bound.
    """
    from certimap_lab.bench.density_bounds import check_density_bounds

    findings = check_density_bounds(number, first, reporter(quiet))
    typer.echo("\n".join(findings.lines()))
    if findings.failures:
        raise typer.Exit(1)


def continuous(
    models: Annotated[int, typer.Option(help="How many mixtures of each family.")] = 5,
    epsilon: Annotated[float, typer.Option(help="Tolerance asked for.")] = 0.01,
    time_limit: Annotated[float, typer.Option(help="Seconds per mixture.")] = 60.0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'continuous' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Certify the modes of random mixtures of Gaussians, and tell the gap between bound and answer over time."""
    from certimap_lab.bench.continuous import run_continuous

    text = run_continuous(models, epsilon, time_limit, reporter(quiet)).to_markdown()
    show_text(text, into, "continuous")


def mixed_tables(
    tables: Annotated[str, typer.Option(help="Names of tables.")] = "iris,wine,diabetes,breast_cancer",
    hidden: Annotated[float, typer.Option(help="The share of cells that is hidden.")] = 0.2,
    filled: Annotated[int, typer.Option(help="Rows that are filled, at most.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of splits, hidden cells and learners.")] = 0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'mixed_tables' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Learn densities from tables that scikit-learn ships, and compare with its mixtures and imputers."""
    from certimap_lab.bench.mixed_tables import run_mixed_tables

    text = run_mixed_tables(split_names(tables), hidden, filled, seed, reporter(quiet)).to_markdown(3)
    show_text(text, into, "mixed_tables")


def reach(
    family: Annotated[
        list[str] | None,
        typer.Option("--family", help="A family by name; give it again for several. All by default."),
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds per query.")] = 60.0,
    models: Annotated[int, typer.Option(help="How many models of each family.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="The first model; the others follow.")] = 0,
    epsilon: Annotated[float, typer.Option(help="Tolerance asked for.")] = 0.01,
    into: Annotated[Path | None, typer.Option("--into", help="Page whose section 'reach' gets the table.")] = None,
    quiet: Quiet = False,
) -> None:
    """Ask random models at the edge of what can be proved, and tell the gaps that are left."""
    from certimap_lab.bench.reach import families_named, run_reach

    chosen = families_named(family or ())
    text = run_reach(chosen, range(seed, seed + models), epsilon, limit, reporter(quiet)).to_markdown()
    show_text(text, into, "reach")


def digits(
    methods: Annotated[str, typer.Option(help="Models to learn, by name.")] = "hclt-64,quad-32,poon-domingos-20",
    levels: Annotated[
        list[int] | None,
        typer.Option("--levels", help="Grey levels, 2 to 17; give it again for several. 4 and 17 by default."),
    ] = None,
    pictures: Annotated[int, typer.Option(help="Pictures held out, one half of each hidden.", min=1)] = 100,
    epsilon: Annotated[float, typer.Option(help="Tolerance asked for.")] = 0.01,
    limit: Annotated[float, typer.Option(help="Seconds per query.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of pictures, learners and queries.")] = 0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'digits' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Learn circuits of scikit-learn's digits, hide half of each held-out one, and prove the best other half."""
    from certimap_lab.bench.digits import DigitsPlan, run_digits

    plan = DigitsPlan(split_names(methods), tuple(levels or (4, 17)), pictures, epsilon, limit, seed)
    text = run_digits(plan, reporter(quiet)).to_markdown()
    show_text(text, into, "digits")


def heuristics(
    circuits: Annotated[int, typer.Option(help="Random circuits, small enough to list all assignments.")] = 200,
    models: Annotated[
        Path | None,
        typer.Option(
            "--models", help="Folder of learned models, as bench twenty keeps them; none are used without."
        ),
    ] = None,
    queries: Annotated[int, typer.Option(help="Queries of learned models.")] = 100,
    solvers: Annotated[
        str | None, typer.Option(help="Names of heuristics; all that can run here by default.")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds per answer.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Seed of circuits, queries and solvers.")] = 0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'heuristics' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare the answers of all heuristics with proved optima, on random and on learned circuits."""
    from certimap_lab.bench.heuristics import HeuristicsPlan, heuristics_table, models_in, run_heuristics

    files = () if models is None else models_in(models)
    plan = HeuristicsPlan(circuits, files, queries, time_limit=time_limit, seed=seed)
    if solvers is not None:
        plan = replace(plan, solvers=split_names(solvers))
    text = heuristics_table(run_heuristics(plan, report=reporter(quiet))).to_markdown()
    show_text(text, into, "heuristics")


def truth(
    queries: Annotated[int, typer.Option(help="How many queries.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Seed of the queries.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; a stopped run there resumes.")
    ] = None,
    loosen: Annotated[
        str | None, typer.Option("--loosen", help="Make this formula looser on purpose; 'all' tries each in turn.")
    ] = None,
    factor: Annotated[float, typer.Option(help="By how much --loosen does.")] = 1.05,
    only: Annotated[int | None, typer.Option("--only", help="Judge this one query.")] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Page whose section 'truth' (with --loosen all, 'loosened') gets the tables."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Put seeded queries of every kind to every solver and count false certificates, against enumeration.

    Exits with 1 when a claim is false that holds for certain, or more are false than may be; with '--loosen all',
    when a looser formula is not found out.
    """
    from certimap_lab.bench.truth import TruthPlan, answer_chunk, loosened_text, run_truth, truth_text

    name = None if loosen == "all" else loosen
    plan = TruthPlan(queries, seed, jobs, out, name, factor)
    if only is not None:
        record = answer_chunk(plan, only, only + 1)
        typer.echo("\n".join([str(record["outcomes"]), *(text for _, _, text in record["failures"])]))
        raise typer.Exit(1 if record["n_failures"] else 0)
    if loosen == "all":
        section = "loosened"
        text, holds = loosened_text(plan, report=reporter(quiet))
    else:
        section = "truth"
        summary = run_truth(plan, report=reporter(quiet))
        text, holds = truth_text(plan, summary), summary.holds
    show_text(text, into, section, None)
    if not holds:
        raise typer.Exit(1)


def decisions(
    diagrams: Annotated[int, typer.Option(help="How many diagrams.")] = 2_000,
    seed: Annotated[int, typer.Option(help="Seed of the diagrams.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of .uai files with .id and .pvo beside them.")
    ] = None,
    limit: Annotated[float, typer.Option(help="Seconds per diagram of the folder.")] = 60.0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'diagrams' gets the folder's table.")
    ] = None,
) -> None:
    """Decide on small diagrams, searched in three ways, and count false claims against every policy.

    With --dir the public diagrams of a folder are decided instead, beside pyAgrum where that is installed.
    """
    if folder is not None:
        from certimap_lab.bench.diagrams import run_diagrams

        table = run_diagrams(folder, limit, lambda line: typer.echo(line, err=True))
        show_text(table.to_markdown(), into, "diagrams")
        return
    from certimap_lab.volume.decisions import count_false

    found = count_false(diagrams, seed, typer.echo)
    typer.echo(", ".join(f"{count:,} {name}" for name, count in found.items()))
    raise typer.Exit(1 if found["false claims"] else 0)


def fuzz(
    inputs: Annotated[int, typer.Option(help="Mutated files of each format.")] = 10_000,
    format: Annotated[str, typer.Option(help="Names of formats, or 'all'.")] = "all",
    seed: Annotated[int, typer.Option(help="Seed of the mutations.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
) -> None:
    """Read mutated files of every format: readers return or raise a typed error, within 5 s and 1 GB."""
    from certimap.errors import QueryError
    from certimap_lab.bench.fuzz import Tally, failures_text, run_fuzz, table, targets

    names = tuple(targets()) if format == "all" else split_names(format)
    unknown = [name for name in names if name not in targets()]
    if unknown:
        raise QueryError(f"{unknown[0]!r} is no format that is fuzzed; expected {', '.join(targets())}")
    tallies: list[Tally] = []
    for tally in run_fuzz(names, inputs, seed=seed, jobs=jobs):
        tallies.append(tally)
        typer.echo(table([tally]).splitlines()[-1], err=True)
    typer.echo(table(tallies))
    if any(tally.n_failed for tally in tallies):
        typer.echo(failures_text(tallies), err=True)
        raise typer.Exit(1)


def scale(
    sizes: Annotated[str, typer.Option(help="Numbers of edges, about.")] = "1000000,10000000,50000000",
    time_limit: Annotated[float, typer.Option(help="Seconds that the query may take.")] = 60.0,
    text_limit: Annotated[int, typer.Option(help="Edges up to which .spn files are measured too.")] = 10_000_000,
    whole_limit: Annotated[
        int, typer.Option(help="Edges up to which a query of all variables is measured too.")
    ] = 10_000_000,
    seed: Annotated[int, typer.Option(help="Seed of circuits, queries and draws.")] = 0,
    into: Annotated[Path | None, typer.Option("--into", help="Page whose section 'scale' gets the table.")] = None,
    quiet: Quiet = False,
) -> None:
    """Measure circuits of millions of edges: files, conditioning, a query, draws, points, bytes per edge."""
    from certimap_lab.bench.scale import ScalePlan, run_scale, scale_table

    wrong = [part for part in split_names(sizes) if not part.isdecimal()]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is no whole number", param_hint="--sizes")
    plan = ScalePlan(tuple(map(int, split_names(sizes))), seed, time_limit, text_limit, whole_limit)
    table = scale_table(run_scale(plan, reporter(quiet))).to_markdown(4)
    show_text(table, into, "scale", "; one thread")
