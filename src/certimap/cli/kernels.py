"""`certimap kernels`: lists compiled kernels, with reasons for local compilation, and compiles missing ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from importlib import import_module
from multiprocessing import get_context
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Annotated

import typer

from certimap.cli.options import option

if TYPE_CHECKING:
    from certimap.kernels.cache import Record


def kernels(
    everything: Annotated[
        bool, typer.Option("--all", help="Compile beforehand what small queries of every kind need.")
    ] = False,
    workers: Annotated[
        int | None, option("--workers", help="Processes that compile; all cores by default.")
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="List every kernel with the types that it is for.")] = False,
) -> None:
    """List the compiled kernels of this installation, and say why any was compiled here.

    With --all, as in an image or before tests, missing ones are compiled first.
    """
    from certimap.cli.output import print_rows
    from certimap.kernels.cache import shipped_target, versions

    if everything:
        _compile(workers)
    target = shipped_target()
    shipped, own = (list(_records(is_shipped)) for is_shipped in (True, False))
    made_by = ", ".join(f"{name} {version}" for name, version in versions().items())
    usable = f"for {target.name}" if target is not None else "not for this processor"
    print_rows(
        (
            ("versions", made_by),
            ("shipped", f"{len(shipped)} kernels {usable}"),
            ("compiled here", f"{len(own)} kernels, in {sum(r.seconds for r in own):.1f} s of processor time"),
        )
    )
    for reason, n in Counter(r.reason for r in own).most_common():
        print(f"{n} because {reason}")
    if long:
        print_rows(
            (r.kernel.removeprefix("certimap."), place, r.target, f"{r.seconds:.2f} s", r.signature)
            for place, records in (("shipped", shipped), ("here", own))
            for r in sorted(records, key=lambda r: (r.kernel, r.signature))
        )


def _records(is_shipped: bool) -> Iterator[Record]:
    """Yield the records in the cache files of this package's kernels."""
    import certimap
    from certimap.kernels.cache import caches

    for module in walk_packages(certimap.__path__, "certimap."):
        if ".kernels" in module.name or ".leaves" in module.name:
            import_module(module.name)
    for cache in caches:
        yield from (cache.shipped if is_shipped else cache.own).records()


def _compile(workers: int | None) -> None:
    """Run the tasks in separate processes, and report the time."""
    from certimap.cli.kernel_tasks import TASKS, run
    from certimap.kernels.parallel import default_workers

    n_workers = min(workers or default_workers(), len(TASKS))
    started = time.perf_counter()
    context = get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context, max_tasks_per_child=1) as pool:
        running: dict[Future[float], str] = {pool.submit(run, name): name for name in TASKS}
        spent = 0.0
        for done in as_completed(running):
            spent += done.result()
            print(f"{running[done].replace('_', ' ')}: {done.result():.1f} s", flush=True)
    print(f"{spent:.1f} s of processor time, {time.perf_counter() - started:.1f} s on {n_workers} processes")
