"""`certimap bench`: the benchmarks behind docs/benchmarks.md."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Benchmarks: the Twenty Datasets, networks with known answers, the engine, and their tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Limit = Annotated[float | None, typer.Option(help="Seconds a trial may solve; 0 means no limit.")]
Epsilon = Annotated[float, typer.Option(help="Tolerance asked for.")]
Delta = Annotated[float, typer.Option(help="Failure probability asked for.")]
MaxSamples = Annotated[int, typer.Option("--max-samples", help="Draws a trial may make.")]
MaxMemory = Annotated[int, typer.Option("--max-memory", help="MiB that a solver may hold, the model not counted.")]
Jobs = Annotated[int, typer.Option(help="Trials at once, each in a process of its own.")]
Workers = Annotated[int, typer.Option(help="Threads of each trial.")]
Seed = Annotated[int, typer.Option(help="Seed of partitions, evidence, learning and solvers.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the summary alone.")]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _command() -> str:
    return shlex.join(["certimap", *sys.argv[1:]])


def _reporter(quiet: bool) -> Callable[[str], None]:
    """Return what shows a line a trial on standard error."""
    return (lambda _: None) if quiet else (lambda line: typer.echo(line, err=True))


@app.command()
def twenty(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run; a stopped run there resumes.")],
    data: Annotated[
        str | None, typer.Option("--data", envvar="CERTIMAP_DATA", help="Folder with NAME.train.data and so on.")
    ] = None,
    datasets: Annotated[str, typer.Option(help="Names, or 'all' for the twenty.")] = "all",
    circuits: Annotated[str, typer.Option(help="learnspn, chow-liu, hclt16, clt-mixture8, ...")] = "learnspn",
    splits: Annotated[str, typer.Option(help="QUERY/EVIDENCE in percent.")] = "20/80,50/50,20/50,50/30",
    queries: Annotated[int, typer.Option(help="Queries a dataset and split.")] = 10,
    solvers: Annotated[
        str, typer.Option(help="Names; SOLVER+HEURISTIC starts from a heuristic's answer.")
    ] = "independent,max_product,argmax_product,pac,smooth_pac,auto",
    epsilon: Epsilon = 0.01,
    delta: Delta = 0.01,
    max_samples: MaxSamples = 2_500_000,
    time_limit: Limit = 60.0,
    max_memory: MaxMemory = 4096,
    jobs: Jobs = 1,
    workers: Workers = 1,
    seed: Seed = 0,
    models: Annotated[
        Path | None, typer.Option("--models", help="Folder of learned models, to share; RUN/models by default.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run solvers on random queries of circuits learned from the Twenty Datasets, one JSON line a trial."""
    from certimap import datasets as collection
    from certimap.bench.trial import TrialSettings
    from certimap.bench.twenty import Plan, run_twenty, summary_line

    plan = Plan(
        run=out,
        data_dir=data,
        datasets=tuple(collection.names()) if datasets == "all" else _names(datasets),
        circuits=_names(circuits),
        splits=_names(splits),
        solvers=_names(solvers),
        n_queries=queries,
        n_processes=jobs,
        models=models,
        settings=TrialSettings(
            epsilon=epsilon,
            delta=delta,
            max_samples=max_samples,
            time_limit=time_limit or None,
            max_memory=max_memory,
            workers=workers,
            seed=seed,
        ),
    )
    try:
        summary = run_twenty(plan, command=_command(), report=_reporter(quiet))
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on from the trials in {out}", err=True)
        raise
    typer.echo(summary_line(summary))


@app.command()
def tables(
    run: Annotated[Path, typer.Argument(help="Folder of a run of 'twenty' or 'networks'.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write; RUN/tables by default.")] = None,
    circuits: Annotated[str | None, typer.Option(help="Only these circuits.")] = None,
    formats: Annotated[
        str, typer.Option(help="Of md, csv, png, svg: what gets files of its own.")
    ] = "md,csv,png,svg",
    into: Annotated[Path | None, typer.Option("--into", help="Page that gets the short tables.")] = None,
    section: Annotated[
        str, typer.Option(help="Section of that page, between its begin and end marks.")
    ] = "twenty",
    show: Annotated[bool, typer.Option("--print/--no-print", help="Print the Markdown of all tables.")] = True,
) -> None:
    """Write a run's tables (Markdown, CSV) and figures (PNG, SVG), and print the Markdown."""
    import os

    from certimap.bench.report import insert_section, write_report

    chosen = None if circuits is None else _names(circuits)
    link = "" if into is None else os.path.relpath(out or run / "tables", into.parent)
    report = write_report(run, out, circuits=chosen, formats=_names(formats), link=link)
    if into is not None:
        insert_section(into, section, report.summary)
    if show:
        typer.echo(report.files[-1].read_text())
    typer.echo(f"{len(report.files)} files in {report.files[-1].parent}", err=True)
    if report.problem is not None:
        typer.echo(f"no figures: {report.problem}", err=True)


@app.command()
def networks(
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with cases.json and the networks it names.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run; a stopped run there resumes.")
    ] = None,
    solvers: Annotated[str, typer.Option(help="Names of solvers.")] = "auto",
    cases: Annotated[str, typer.Option(help="Names of cases or networks; all when empty.")] = "",
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
        bool, typer.Option("--growth", help="Measure time by the number of variables instead; needs no data.")
    ] = False,
    sizes: Annotated[str, typer.Option(help="Numbers of variables for --growth.")] = "1000,10000,100000",
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'growth' gets the table of --growth.")
    ] = None,
) -> None:
    """Run solvers on queries of Bayesian networks whose best known answers are on file, and compare."""
    if growth:
        _growth(sizes, seed, quiet, into)
        return
    if data is None:
        raise typer.BadParameter("a folder with cases.json, or --growth, is needed", param_hint="--data")
    from certimap.bench.networks import NetworkPlan, network_summary, network_tables, run_networks
    from certimap.bench.trial import TrialSettings

    settings = TrialSettings(epsilon, delta, max_samples, time_limit or None, max_memory, workers, seed)
    plan = NetworkPlan(data, out, _names(solvers), _names(cases), jobs, settings=settings)
    records = run_networks(plan, command=_command(), report=_reporter(quiet))
    for table in network_tables(records):
        typer.echo(table.to_markdown())
    typer.echo(network_summary(records))


@app.command()
def uai(
    folder: Annotated[Path, typer.Option("--dir", help="Folder of .uai files with .uai.evid and .uai.query.")],
    solvers: Annotated[
        str, typer.Option(help="Solvers, with settings as in wmb:i_bound=10:iterations=30.")
    ] = "auto",
    time_limit: Limit = 60.0,
    max_memory: MaxMemory = 8192,
    workers: Workers = 2,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Run solvers on a folder of UAI competition instances; print answers, bounds and gaps."""
    from certimap.bench.uai import UaiMethod, run_uai

    methods = [UaiMethod.parse(text) for text in _names(solvers)]
    tables = run_uai(
        folder,
        methods,
        time_limit=time_limit,
        max_memory=max_memory * 2**20,
        workers=workers,
        seed=seed,
        report=_reporter(quiet),
    )
    for table in tables:
        typer.echo(table.to_markdown())


def _growth(sizes: str, seed: int, quiet: bool, into: Path | None) -> None:
    from certimap.bench.growth import GrowthPlan, growth_table, run_growth
    from certimap.bench.machine import describe_machine, machine_line
    from certimap.bench.report import insert_section

    wrong = [text for text in _names(sizes) if not text.isdecimal()]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is no number of variables", param_hint="--sizes")
    plan = GrowthPlan(sizes=tuple(map(int, _names(sizes))), seed=seed)
    records = run_growth(plan, _reporter(quiet))
    text = f"{machine_line(describe_machine())}; one thread.\n\n{growth_table(records).to_markdown(4)}"
    typer.echo(text)
    if into is not None:
        insert_section(into, "growth", text)


@app.command()
def engine(
    workers: Workers = 2,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'engine' gets the tables.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few repetitions.")] = False,
) -> None:
    """Measure evaluation, sampling and scaling of the circuit engine; beside sparc-pc where it is installed."""
    from certimap.bench.engine import run_engine_benchmark
    from certimap.bench.report import insert_section

    text = str(run_engine_benchmark(workers=workers, quick=quick))
    typer.echo(text)
    if into is not None:
        insert_section(into, "engine", text)


@app.command()
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
    from certimap.bench.hostile import HostilePlan, check_model, failure_lines, run_hostile
    from certimap.bench.report import insert_section

    if only is not None:
        record = check_model(only)
        for line in failure_lines(record, limit=None):
            typer.echo(line)
        typer.echo(f"{record['n_checks']} checks on a model of the family {record['family']!r}")
        raise typer.Exit(1 if record["failures"] else 0)
    summary = run_hostile(HostilePlan(models, seed, jobs), report=_reporter(quiet))
    text = summary.table.to_markdown()
    typer.echo(text)
    if into is not None:
        insert_section(into, "hostile", text)
    if not summary.holds:
        raise typer.Exit(1)


@app.command()
def heuristics(
    circuits: Annotated[int, typer.Option(help="Random circuits, small enough to list all assignments.")] = 200,
    models: Annotated[
        Path | None,
        typer.Option(
            "--models", help="Folder of learned models, as bench twenty keeps them; none are used without."
        ),
    ] = None,
    queries: Annotated[int, typer.Option(help="Queries of learned models.")] = 100,
    time_limit: Annotated[float, typer.Option(help="Seconds per answer.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Seed of circuits, queries and solvers.")] = 0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'heuristics' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare the answers of all heuristics with proved optima, on random and on learned circuits."""
    from certimap.bench.heuristics import HeuristicsPlan, heuristics_table, models_in, run_heuristics
    from certimap.bench.report import insert_section

    files = () if models is None else models_in(models)
    plan = HeuristicsPlan(circuits, files, queries, time_limit=time_limit, seed=seed)
    text = heuristics_table(run_heuristics(plan, report=_reporter(quiet))).to_markdown()
    typer.echo(text)
    if into is not None:
        insert_section(into, "heuristics", text)


@app.command()
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
    from certimap.bench.report import insert_section
    from certimap.bench.truth import TruthPlan, answer_chunk, loosened_text, run_truth, truth_text

    name = None if loosen == "all" else loosen
    plan = TruthPlan(queries, seed, jobs, out, name, factor)
    if only is not None:
        record = answer_chunk(plan, only, only + 1)
        typer.echo("\n".join([str(record["outcomes"]), *(text for _, _, text in record["failures"])]))
        raise typer.Exit(1 if record["n_failures"] else 0)
    if loosen == "all":
        section = "loosened"
        text, holds = loosened_text(plan, report=_reporter(quiet))
    else:
        section = "truth"
        summary = run_truth(plan, report=_reporter(quiet))
        text, holds = truth_text(plan, summary), summary.holds
    typer.echo(text)
    if into is not None:
        insert_section(into, section, text)
    if not holds:
        raise typer.Exit(1)


@app.command()
def fuzz(
    inputs: Annotated[int, typer.Option(help="Mutated files of each format.")] = 10_000,
    format: Annotated[str, typer.Option(help="Names of formats, or 'all'.")] = "all",
    seed: Annotated[int, typer.Option(help="Seed of the mutations.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
) -> None:
    """Read mutated files of every format: readers return or raise a typed error, within 5 s and 1 GB."""
    from certimap.bench.fuzz import Tally, failures_text, run_fuzz, table, targets
    from certimap.errors import QueryError

    names = tuple(targets()) if format == "all" else _names(format)
    unknown = [name for name in names if name not in targets()]
    if unknown:
        raise QueryError(f"{unknown[0]!r} is no format that is fuzzed; {', '.join(targets())} are accepted")
    tallies: list[Tally] = []
    for tally in run_fuzz(names, inputs, seed=seed, jobs=jobs):
        tallies.append(tally)
        typer.echo(table([tally]).splitlines()[-1], err=True)
    typer.echo(table(tallies))
    if any(tally.n_failed for tally in tallies):
        typer.echo(failures_text(tallies), err=True)
        raise typer.Exit(1)


@app.command()
def impute(
    data: Annotated[
        str | None, typer.Option("--data", envvar="CERTIMAP_DATA", help="Folder with NAME.train.data and so on.")
    ] = None,
    tables: Annotated[str, typer.Option(help="Names of tables.")] = "nltcs,plants,digits,wine",
    rows: Annotated[int, typer.Option(help="Rows to fill, at most.")] = 2000,
    hidden: Annotated[float, typer.Option(help="The share of cells that is hidden.")] = 0.2,
    jobs: Jobs = 2,
    seed: Seed = 0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'impute' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Hide cells of public tables, fill them by MapImputer and by scikit-learn's imputers, and compare."""
    from certimap.bench.impute import ImputePlan, run_impute
    from certimap.bench.report import insert_section

    plan = ImputePlan(_names(tables), data, rows, hidden, jobs, seed)
    text = run_impute(plan, _reporter(quiet)).to_markdown(4)
    typer.echo(text)
    if into is not None:
        insert_section(into, "impute", text)
