"""Elimination orders by least fill beside those that a search finds: log2 of the largest table and of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from certimap_lab.bench.records import BenchError, Record
from certimap_lab.bench.tabular import Table

SUFFIXES = (".uai.gz", ".bif.gz", ".uai", ".bif")


class Scopes(NamedTuple):
    """What an order is found for: the scopes of a network's tables, and the states of its variables."""

    name: str
    scopes: Sequence[Collection[int]]
    sizes: Mapping[int, int]


def grid(side: int, *, is_torus: bool = False) -> Scopes:
    """Return a grid of binary variables."""
    at = range(side)
    wrap = side if is_torus else side - 1
    scopes = [(side * i + j, side * i + (j + 1) % side) for i in at for j in range(wrap)]
    scopes += [(side * i + j, side * ((i + 1) % side) + j) for i in range(wrap) for j in at]
    return Scopes(f"{'torus' if is_torus else 'grid'} {side}x{side}", scopes, dict.fromkeys(range(side**2), 2))


def files_below(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the networks in some folders, or files themselves, by name."""
    for folder in folders:
        found = [folder] if folder.is_file() else folder.iterdir()
        yield from sorted(path for path in found if path.name.endswith(SUFFIXES))


def scopes_of(path: Path) -> Scopes:
    """Return what a network without evidence leaves to eliminate."""
    import certimap as cm
    from certimap.networks.network import Network
    from certimap.networks.reduction import reduce_network

    network = cm.read(path)
    if not isinstance(network, Network):
        raise BenchError(f"{path} holds a {type(network).__name__}; networks have elimination orders")
    reduced = reduce_network(network)
    return Scopes(path.name.split(".")[0], [f.scope for f in reduced.factors], reduced.sizes)


def compared(asked: Scopes) -> Record:
    """Order a network by least fill, and as well as a search within its limits does."""
    from certimap.networks.orders import best_order, min_fill

    quick = min_fill(asked.scopes, asked.sizes)
    assert quick is not None
    started = time.process_time()
    best = best_order(asked.scopes, asked.sizes)
    return {
        "name": asked.name,
        "n_variables": len(asked.sizes),
        "quick": (quick.log2_largest, quick.log2_size),
        "best": (best.log2_largest, best.log2_size),
        "seconds": time.process_time() - started,
    }


def run_orders(asked: Iterable[Scopes], report: Callable[[str], None] | None = None) -> list[Record]:
    """Compare the orders of some networks; the first is ordered once before, so that kernels are compiled."""
    records: list[Record] = []
    for one in asked:
        if not records:
            compared(one)
        records.append(compared(one))
        if report is not None:
            report(f"{one.name}: {records[-1]['quick'][1]:.1f} to {records[-1]['best'][1]:.1f}")
    return records


def orders_table(records: Sequence[Record]) -> Table:
    """Return the table of log2 sizes, in the order of the records."""
    table = Table(
        "orders",
        "Elimination orders: log2 of the entries of the largest table, and of all",
        ("network", "open variables", "least fill: largest", "all", "found: largest", "all", "seconds"),
    )
    for r in records:
        sizes = [f"{value:.1f}" for value in (*r["quick"], *r["best"])]
        table.add(r["name"], f"{r['n_variables']:,}", *sizes, f"{r['seconds']:.3f}")
    table.notes.append(
        "No evidence, all variables summed; states that zeros exclude are gone. A table counts the variable that "
        "is eliminated. Seconds of processor time are of the whole search, which never costs more than a share of "
        "what it may save."
    )
    return table
