"""Folders of UAI competition files (.uai, .uai.evid, .uai.query): how large a gap is left, and how soon."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certimap import read
from certimap.api import map_query
from certimap.bench.records import BenchError
from certimap.bench.tabular import Cell, Table, number, significant
from certimap.domain import Categorical
from certimap.errors import CertimapError
from certimap.result import MapResult


@dataclass(frozen=True)
class UaiCase:
    """One instance: a network, its evidence and its query (None: everything else)."""

    name: str
    network: Path
    evidence: Path | None
    query: Path | None


@dataclass(frozen=True)
class UaiMethod:
    """A solver with settings, written NAME or NAME:key=value:key=value."""

    text: str
    solver: str
    options: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> UaiMethod:
        """Read a method; raise BenchError for settings that are no whole numbers."""
        solver, *settings = text.strip().split(":")
        options: dict[str, int] = {}
        for setting in settings:
            key, _, value = setting.partition("=")
            if not value.isdigit():
                raise BenchError(f"{setting!r} in {text!r} is no setting; expected KEY=WHOLE-NUMBER")
            options[key] = int(value)
        return cls(text.strip(), solver, options)


def find_cases(folder: Path) -> list[UaiCase]:
    """Return the instances of a folder by name; raise BenchError where it holds none."""
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".uai", ".uai.gz")))
    if not found:
        raise BenchError(f"{folder} has no file that ends in .uai or .uai.gz; expected one per instance")
    return [
        UaiCase(p.name.removesuffix(".gz").removesuffix(".uai"), p, _beside(p, "evid"), _beside(p, "query"))
        for p in found
    ]


def _beside(network: Path, suffix: str) -> Path | None:
    base = network.name.removesuffix(".gz")
    for name in (f"{base}.{suffix}.gz", f"{base}.{suffix}"):
        if (network.parent / name).is_file():
            return network.parent / name
    return None


def _numbers(path: Path | None) -> list[int]:
    if path is None:
        return []
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [int(word) for word in raw.split()]


def evidence_pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return (variable, state) pairs of an evidence file, with or without the number of samples before them."""
    if not numbers:
        return []
    if len(numbers) == 1 + 2 * numbers[0]:
        rest = numbers[1:]
    elif len(numbers) > 1 and len(numbers) == 2 + 2 * numbers[1]:
        rest = numbers[2:]
    else:
        raise BenchError(f"an evidence file holds {len(numbers)} numbers, which its first ones do not announce")
    return list(zip(rest[::2], rest[1::2], strict=True))


def load(case: UaiCase) -> tuple[Any, list[str] | None, dict[str, Any]]:
    """Return a case's model, the names queried (None for all) and its evidence."""
    model = read(case.network)
    domain = model.domain
    evidence: dict[str, Any] = {}
    for i, state in evidence_pairs(_numbers(case.evidence)):
        variable = domain.variables[i]
        assert isinstance(variable, Categorical)
        evidence[variable.name] = variable.states[state]
    queried = _numbers(case.query)
    names = [domain.names[i] for i in queried[1 : 1 + queried[0]]] if queried else None
    return model, names, evidence


def run_uai(
    folder: Path,
    methods: Sequence[UaiMethod],
    *,
    time_limit: float | None,
    max_memory: int,
    workers: int,
    seed: int = 0,
    report: Callable[[str], None] = lambda line: None,
) -> list[Table]:
    """Answer every instance of a folder with every method, asking for exactness.

    `time_limit` is in seconds, `max_memory` in bytes. Returns one table per run.
    """
    shown = "no limit" if time_limit is None else f"{time_limit:g} s"
    table = Table(
        "uai",
        f"{folder.name}: {shown} per case, {workers} threads",
        ["instance", "method", "solver", "ln p(q, e)", "upper bound", "gap", "s", "to the best", "status"],
    )
    for case in find_cases(folder):
        model, names, evidence = load(case)
        for method in methods:
            started = time.perf_counter()
            try:
                result = map_query(
                    model,
                    names,
                    evidence,
                    solver=method.solver,
                    epsilon=0.0,
                    delta=0.0,
                    rng=seed,
                    time_limit=time_limit,
                    max_memory=max_memory,
                    workers=workers,
                    progress=False,
                    **method.options,
                )
            except CertimapError as error:
                table.add(case.name, method.text, *["-"] * 6, f"{type(error).__name__}: {str(error)[:60]}")
                continue
            table.add(case.name, method.text, *_cells(result, time.perf_counter() - started))
            report(f"{case.name} {method.text}: {table.rows[-1][-1]}")
    return [table]


def _cells(result: MapResult, seconds: float) -> list[Cell | str]:
    value, upper = result.log_joint, result.log_joint_upper_bound
    gap = None if value is None or upper is None else upper - value
    reached = next((h.seconds for h in result.history if h.log_prob == result.history[-1].log_prob), None)
    return [
        result.solver,
        number(value, 6),
        number(upper, 6),
        significant(max(gap, 0.0) if gap is not None and gap > 1e-9 else 0.0 if gap is not None else None),
        number(seconds, 1),
        number(reached, 1),
        result.certificate.kind.value if result.certified else result.status.value,
    ]
