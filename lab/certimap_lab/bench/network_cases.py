"""Queries on networks, from a file of cases or a folder of UAI competition files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from certimap_lab.bench.records import BenchError

CASES = "cases.json"
SUFFIXES = ("", ".bif.gz", ".bif", ".uai.gz", ".uai")


def bif_files(folder: Path) -> dict[str, Path]:
    """Return the BIF networks of a folder by name.

    Raises
    ------
    BenchError
        When there is no such folder, or no .bif or .bif.gz file in it.
    """
    if not folder.is_dir():
        raise BenchError(f"{folder} is no folder; expected one with .bif or .bif.gz files")
    files = sorted(p for p in folder.iterdir() if p.name.endswith((".bif", ".bif.gz")))
    if not files:
        raise BenchError(f"{folder} has no .bif or .bif.gz file; one per network is expected")
    return {p.name.removesuffix(".gz").removesuffix(".bif"): p for p in files}


@dataclass(frozen=True)
class NetworkCase:
    """One query on a network, with the best answer known.

    Attributes
    ----------
    name
        What tables call it.
    network
        The path of the network's file, or a parity code as in "parity-48-0" (see `certimap_lab.bench.parity`).
    query
        Names of the query variables; None asks for everything without evidence.
    evidence
        Labels by name. Variables of UAI files are named by number, and their states are numbers.
    best_log_joint
        The best ln p(query, evidence) known, in nats (of the unnormalised product in a Markov network); None where
        none is.
    proven
        Whether that is proved to be the best.
    reference_seconds
        How long toulbar2 took when the reference was made; None where it was not asked.
    """

    name: str
    network: str
    query: tuple[str, ...] | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])
    best_log_joint: float | None = None
    proven: bool = False
    reference_seconds: float | None = None

    @property
    def network_name(self) -> str:
        """The network's name: its file's without what it ends in."""
        name = Path(self.network).name.removesuffix(".gz")
        return name.removesuffix(".bif").removesuffix(".uai")


def load_network(case: NetworkCase) -> Any:
    """Read or build the network of a case."""
    if case.network.startswith("parity-"):
        from certimap_lab.bench.parity import parity_network

        return parity_network(case.network)
    from certimap import io

    return io.read(case.network)


def read_cases(file: Path, only: Sequence[str] = ()) -> list[NetworkCase]:
    """Read a file of cases.

    It holds an object with the list `cases`. Each case has an `id`; a `network` or `model`, the name of a file
    beside it; and may have a `query` (a list of names), `evidence` (labels by name), and a reference:
    `best_log_joint` or `best_log_prob`, `proven` or `proven_optimal`, `toulbar2_seconds`.

    Parameters
    ----------
    file
        The file.
    only
        Names of cases or of networks; all when empty.

    Raises
    ------
    BenchError
        When the file is absent or no such file, names a network that is not there, or knows nothing of `only`.
    """
    if not file.is_file():
        raise BenchError(f"{file} is no file; expected a JSON file of cases, beside the networks it names")
    try:
        listed: list[dict[str, Any]] = json.loads(file.read_text())["cases"]
        cases = [_case(entry, file.parent) for entry in listed]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        if isinstance(problem, BenchError):
            raise
        raise BenchError(
            f"{file} is no file of cases ({type(problem).__name__}: {problem}); expected an object with a list "
            "'cases', "
            "each with 'id' and 'network' or 'model'"
        ) from None
    return choose(cases, only, str(file))


def _case(entry: Mapping[str, Any], folder: Path) -> NetworkCase:
    query: list[str] | None = entry.get("query")
    return NetworkCase(
        name=str(entry["id"]),
        network=str(_network_path(folder, str(entry["network"] if "network" in entry else entry["model"]))),
        query=None if query is None else tuple(query),
        evidence=dict(entry.get("evidence", {})),
        best_log_joint=entry.get("best_log_joint", entry.get("best_log_prob")),
        proven=bool(entry.get("proven", entry.get("proven_optimal", False))),
        reference_seconds=entry.get("toulbar2_seconds"),
    )


def _network_path(folder: Path, name: str) -> Path:
    for suffix in SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise BenchError(f"{folder} has no network {name!r}; expected {name}.bif, .uai or either with .gz")


def choose(cases: Sequence[NetworkCase], only: Sequence[str], source: str) -> list[NetworkCase]:
    """Return the cases named, by their own or their network's names; all when `only` is empty."""
    for name in only:
        if not any(name in (c.name, c.network_name) for c in cases):
            raise BenchError(f"{name!r} is no case of {source} and no network of one")
    return [c for c in cases if not only or c.name in only or c.network_name in only]


def uai_cases(folder: Path, only: Sequence[str] = ()) -> list[NetworkCase]:
    """Return the cases of a folder: those of its `cases.json`, else one per .uai file, with .evid and .query.

    Raises
    ------
    BenchError
        When there are none, or an evidence file does not hold what its first numbers announce.
    """
    if not folder.is_dir():
        raise BenchError(f"{folder} is no folder; expected one with .uai files")
    if (folder / CASES).is_file():
        return read_cases(folder / CASES, only)
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".uai", ".uai.gz")))
    if not found:
        raise BenchError(f"{folder} has no file that ends in .uai or .uai.gz; expected one per instance")
    return choose([_uai_case(path) for path in found], only, str(folder))


def _uai_case(path: Path) -> NetworkCase:
    queried = _numbers(_beside(path, "query"))
    return NetworkCase(
        name=path.name.removesuffix(".gz").removesuffix(".uai"),
        network=str(path),
        query=tuple(str(i) for i in queried[1 : 1 + queried[0]]) if queried else None,
        evidence={str(i): state for i, state in evidence_pairs(_numbers(_beside(path, "evid")))},
    )


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
    try:
        return [int(word) for word in raw.split()]
    except ValueError as problem:
        raise BenchError(f"{path} holds more than whole numbers: {problem}") from None


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
