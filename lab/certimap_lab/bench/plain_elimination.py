"""Plain MPE, from query to certificate, beside an elimination in bare NumPy that proves nothing."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.networks.elimination import Elimination
from certimap.networks.orders import min_fill
from certimap_lab.bench.network_cases import NetworkCase, bif_files, load_network
from certimap_lab.bench.records import BenchError, Record
from certimap_lab.bench.tabular import Table, significant

MOST_LOG2, LARGEST_LOG2 = 26.0, 24.0  # log2 of table entries, over all products and in one, that count as fitting
REPEATS = 5
CHAIN_STEPS, CHAIN_STATES = 8_000, 8
CHAIN = f"hidden Markov model of {CHAIN_STEPS:,} steps"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """An MPE query: a network and positions of the states observed, by position of the variable."""

    name: str
    model: Any
    observed: Mapping[int, int]


def chain(seed: int) -> Asked:
    """Return a hidden Markov model with a sequence of symbols."""
    import certimap as cm

    rng, k = np.random.default_rng(seed), CHAIN_STATES
    model = cm.hidden_markov_model(
        rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(k), k), rng.dirichlet(np.ones(k), k), CHAIN_STEPS
    )
    seen = rng.integers(0, k, CHAIN_STEPS).tolist()
    return Asked(CHAIN, model, {model.domain.index(f"symbol{t}"): s for t, s in enumerate(seen)})


def asked_of(cases: Sequence[NetworkCase]) -> Iterator[Asked]:
    """Yield the MPE queries among some cases."""
    for case in cases:
        if case.query is None:
            model = load_network(case)
            domain = model.domain
            given = {name: domain[name].parse(x) if isinstance(x, str) else x for name, x in case.evidence.items()}
            yield Asked(case.name, model, {domain.index(n): int(domain[n].index(x)) for n, x in given.items()})


def mpe_cases(folder: Path, only: Sequence[str] = ()) -> list[NetworkCase]:
    """Return one case without evidence per BIF network of a folder.

    Raises
    ------
    BenchError
        When a name in `only` has no network there, or nothing is there.
    """
    found = bif_files(folder)
    for name in only:
        if name not in found:
            raise BenchError(f"{folder} has no network {name!r}; expected {name}.bif or {name}.bif.gz")
    return [NetworkCase(name, str(path)) for name, path in found.items() if not only or name in only]


def plain_maximum(model: Any, observed: Mapping[int, int], order: Elimination) -> float:
    """Return the log (nats) of the largest product by bucket elimination, an assignment being decoded."""
    tables: list[tuple[tuple[int, ...], Floats]] = []
    waiting: dict[int, list[int]] = {v: [] for v in order.order}
    place = {v: i for i, v in enumerate(order.order)}
    value = 0.0

    def add(scope: tuple[int, ...], table: Floats) -> None:
        waiting[min(scope, key=place.__getitem__)].append(len(tables))
        tables.append((scope, table))

    for factor in model.factors:
        with np.errstate(divide="ignore"):
            table = factor.log_table if factor.in_logs else np.log(factor.table)
        table = table[tuple(observed.get(v, slice(None)) for v in factor.scope)]
        scope = tuple(v for v in factor.scope if v not in observed)
        if scope:
            add(scope, table)
        else:
            value += float(table)
    back: list[tuple[int, tuple[int, ...], NDArray[np.intp]]] = []
    for v, near in order.cliques:
        whole = (*near, v)
        total: Any = 0.0
        for k in waiting[v]:
            scope, table = tables[k]
            axes = sorted(range(len(scope)), key=lambda a: whole.index(scope[a]))
            held = [scope[a] for a in axes]
            sizes = dict(zip(scope, table.shape, strict=True))
            total = total + table.transpose(axes).reshape([sizes[u] if u in held else 1 for u in whole])
        if not waiting[v]:
            back.append((v, (), np.array(0)))
            continue
        back.append((v, near, np.argmax(total, axis=-1)))
        best = np.max(total, axis=-1)
        if near:
            add(near, best)
        else:
            value += float(best)
    point: dict[int, int] = {}
    for v, near, states in reversed(back):
        point[v] = int(states[tuple(point[u] for u in near)])
    return value


def _order(asked: Asked) -> Elimination:
    """Return an order by least fill of what the evidence leaves."""
    scopes = [tuple(v for v in f.scope if v not in asked.observed) for f in asked.model.factors]
    n_states = asked.model.domain.n_states.tolist()
    sizes = {v: n for v, n in enumerate(n_states) if v not in asked.observed}
    found = min_fill(scopes, sizes)
    assert found is not None  # no order is too dear
    return found


def compared(asked: Asked, n_repeats: int = REPEATS) -> Record | None:
    """Time both on one query, in turn, on one thread; None where its tables do not fit.

    The plain elimination is given its order; certimap finds its own, reduces, sums p(e) and certifies.
    """
    import certimap as cm

    order = _order(asked)
    if order.log2_size > MOST_LOG2 or order.log2_largest > LARGEST_LOG2:
        return None
    domain = asked.model.domain
    evidence = {domain.names[v]: domain.variables[v].states[s] for v, s in asked.observed.items()}

    def ask() -> Any:
        return cm.map_query(asked.model, None, evidence, epsilon=0.0, delta=0.0, rng=0, workers=1, progress=False)

    result, value = ask(), plain_maximum(asked.model, asked.observed, order)  # compiled code is loaded
    pairs = [
        (_cpu(lambda: plain_maximum(asked.model, asked.observed, order)), _cpu(ask)) for _ in range(n_repeats)
    ]
    return {
        "case": asked.name,
        "n_variables": len(order.order),
        "log2_size": order.log2_size,
        "plain": statistics.median(a for a, _ in pairs),
        "certimap": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "solver": result.solver,
        "kind": result.certificate.kind.value,
        "agrees": math.isclose(result.log_joint, value, rel_tol=1e-9, abs_tol=1e-9),
    }


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def run_plain(
    cases: Sequence[NetworkCase], *, seed: int = 0, report: Callable[[str], None] | None = None
) -> list[Record]:
    """Compare on a long chain and on the MPE queries among the cases whose tables fit; return one record each."""
    records: list[Record] = []
    for asked in (chain(seed), *asked_of(cases)):
        record = compared(asked)
        if record is not None:
            records.append(record)
        if report is not None:
            said = "its tables do not fit" if record is None else f"{record['ratio']:.2f} times as long"
            report(f"{asked.name}: {said}")
    return records


def plain_table(records: Sequence[Record]) -> Table:
    """Return the table of processor seconds, slowest ratio first."""
    table = Table(
        "plain-elimination",
        "Plain MPE beside a plain elimination: processor seconds, medians of paired runs",
        ("query", "open variables", "log2 entries", "NumPy", "certimap", "ratio", "solver", "proof", "same value"),
    )
    for r in sorted(records, key=lambda r: -r["ratio"]):
        seconds = [significant(r["plain"]), significant(r["certimap"]), f"{r['ratio']:.2f}"]
        same = "yes" if r["agrees"] else "no"
        table.add(
            r["case"], f"{r['n_variables']:,}", f"{r['log2_size']:.1f}", *seconds, r["solver"], r["kind"], same
        )
    table.notes.append(
        "One thread, models read, kernels compiled. NumPy: bucket elimination in logs with decoding, along an "
        "order that it is given; no p(e), no account of rounding, no certificate. certimap: `map_query` as "
        "called, with all of these, epsilon 0. A query takes some milliseconds whatever its size."
    )
    return table
