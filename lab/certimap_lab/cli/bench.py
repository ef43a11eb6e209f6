"""`certimap bench`: the benchmarks behind docs/benchmarks.md."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from certimap_lab.cli import checks, networks, proofs, theory
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


class Evidence(Enum):
    """Where evidence of `bench twenty` comes from."""

    RANDOM = "random"
    ROWS = "rows"


app = typer.Typer(
    help="Benchmarks: the Twenty Datasets, networks with known answers, the engine, and their tables.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:  # pyright: ignore[reportUnusedFunction]
    """Benchmarks: the Twenty Datasets, networks with known answers, the engine, and their tables."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # the command's own process
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once, worker processes too; as an interrupt it would end one query and go on with the next."""
    signal.signal(number, signal.SIG_IGN)
    print("certimap: ended by SIGTERM; what is on record stays", file=sys.stderr)
    sys.exit(128 + number)


@contextmanager
def executor_named(text: str) -> Generator[Executor]:
    """Yield the executor that a text names: "dask:ADDRESS" gives the workers of the dask scheduler at ADDRESS.

    Raises SolverError for any other text, or if no scheduler answers, and MissingDependency without dask's package
    `distributed`.
    """
    from certimap.core.executors import workers_of
    from certimap.core.named import needed
    from certimap.errors import SolverError

    kind, _, address = text.partition(":")
    if kind != "dask" or not address:
        raise SolverError(f"{text!r} names no executor; expected dask:ADDRESS, such as dask:tcp://scheduler:8786")
    distributed = needed("distributed", "an executor of dask needs distributed; pip install distributed")
    try:
        client = distributed.Client(address)
    except (OSError, ValueError) as problem:
        raise SolverError(f"no scheduler of dask answers at {address!r} ({problem})") from None
    with client, workers_of(None, client) as workers:
        assert workers is not None
        yield workers


@app.command()
def twenty(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run; a stopped run there resumes.")],
    data: Annotated[
        str | None, typer.Option("--data", envvar="CERTIMAP_DATA", help="Folder with NAME.train.data and so on.")
    ] = None,
    datasets: Annotated[str, typer.Option(help="Names, or 'all' for the twenty.")] = "all",
    circuits: Annotated[
        str, typer.Option(help="learnspn, learnspn-large, chow-liu, hclt16, clt-mixture8, ...")
    ] = "learnspn",
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
    evidence: Annotated[
        Evidence, typer.Option(help="Uniform values, or those of a row of the test set.")
    ] = Evidence.RANDOM,
    models: Annotated[
        Path | None, typer.Option("--models", help="Folder of learned models, to share; RUN/models by default.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers", help="Answers of other programs, one JSON object per line, scored and recorded."
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor", help="Who runs the trials in place of --jobs processes: dask:ADDRESS of a scheduler."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run solvers on random queries of circuits learned from the Twenty Datasets, one JSON line a trial."""
    from contextlib import nullcontext

    from certimap.learn import datasets as collection
    from certimap_lab.bench.trial import TrialSettings
    from certimap_lab.bench.twenty import Plan, run_twenty, summary_line

    plan = Plan(
        run=out,
        data_dir=data,
        datasets=tuple(collection.names()) if datasets == "all" else split_names(datasets),
        circuits=split_names(circuits),
        splits=split_names(splits),
        solvers=split_names(solvers),
        n_queries=queries,
        n_processes=jobs,
        models=models,
        answers=answers,
        settings=TrialSettings(
            epsilon=epsilon,
            delta=delta,
            max_samples=max_samples,
            time_limit=time_limit or None,
            max_memory=max_memory,
            workers=workers,
            seed=seed,
            evidence=evidence.value,
        ),
    )
    try:
        with nullcontext() if executor is None else executor_named(executor) as who:
            summary = run_twenty(plan, command=command_line(), report=reporter(quiet), executor=who)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on from the trials in {out}", err=True)
        raise
    typer.echo(summary_line(summary))


@app.command()
def tables(
    run: Annotated[Path, typer.Argument(help="Folder of a run of 'twenty', 'networks' or 'uai'.")],
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

    from certimap_lab.bench.report import insert_section, write_report

    chosen = None if circuits is None else split_names(circuits)
    link = "" if into is None else os.path.relpath(out or run / "tables", into.parent)
    report = write_report(run, out, circuits=chosen, formats=split_names(formats), link=link)
    if into is not None:
        insert_section(into, section, report.summary)
    if show:
        typer.echo(report.files[-1].read_text())
    typer.echo(f"{len(report.files)} files in {report.files[-1].parent}", err=True)
    if report.problem is not None:
        typer.echo(f"no figures: {report.problem}", err=True)


@app.command()
def summary(
    page: Annotated[
        Path, typer.Argument(help="Page with a section 'summary'; its pages are in the folder of that name.")
    ],
) -> None:
    """Write the summary of all recorded benchmarks and its plots from the recorded tables."""
    from certimap_lab.bench.summary import write_summary

    typer.echo(f"{len(write_summary(page))} plots", err=True)


@app.command()
def engine(
    workers: Workers = 2,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'engine' gets the tables.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few repetitions.")] = False,
) -> None:
    """Measure evaluation, sampling and scaling of the circuit engine; beside sparc-pc where it is installed."""
    from certimap_lab.bench.engine import run_engine_benchmark

    text = str(run_engine_benchmark(workers=workers, quick=quick))
    show_text(text, into, "engine", None)


@app.command()
def start(
    only: Annotated[str, typer.Option("--only", help="Names of first questions, separated by ';'.")] = "",
    small: Annotated[bool, typer.Option("--small/--no-small", help="Measure small queries too.")] = True,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'start' gets the tables.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure the first answer of a new process, kernels compiled or not, and small queries asked again."""
    from certimap_lab.bench.start import first_answers, small_queries, start_tables

    names = tuple(name.strip() for name in only.split(";") if name.strip())
    first, queries = start_tables(first_answers(names, reporter(quiet)), small_queries() if small else {})
    show_text("\n".join(t.to_markdown() for t in (first, queries) if t.rows), into, "start")


@app.command()
def impute(
    data: Annotated[
        str | None, typer.Option("--data", envvar="CERTIMAP_DATA", help="Folder with NAME.train.data and so on.")
    ] = None,
    tables: Annotated[str, typer.Option(help="Names of tables.")] = (
        "nltcs,plants,jester,baudio,mushrooms,digits,iris,wine,breast_cancer,diabetes"
    ),
    rows: Annotated[int, typer.Option(help="Rows to fill, at most.")] = 600,
    hidden: Annotated[float, typer.Option(help="The share of cells that is hidden.")] = 0.2,
    splits: Annotated[int, typer.Option(help="Choices of rows and cells to average over.")] = 1,
    seed: Seed = 0,
    into: Annotated[
        Path | None, typer.Option("--into", help="Page whose section 'impute' gets the table.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Hide cells of public tables, fill them by MapImputer and by scikit-learn's imputers, and compare."""
    from certimap_lab.bench.impute import ImputePlan, run_impute

    plan = ImputePlan(split_names(tables), data, rows, hidden, splits, seed)
    text = run_impute(plan, reporter(quiet)).to_markdown(4)
    show_text(text, into, "impute")


for _command in (
    networks.networks,
    networks.uai,
    networks.orders,
    networks.portfolio,
    checks.hostile,
    checks.heuristics,
    checks.truth,
    checks.decisions,
    checks.fuzz,
    proofs.proofs,
    theory.theory,
    theory.reproduction,
    checks.random_networks,
    checks.continuous,
    checks.density_bounds,
    checks.mixed_tables,
    checks.scale,
    checks.reach,
    checks.digits,
):
    app.command()(_command)
