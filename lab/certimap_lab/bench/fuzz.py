"""Reading mutated files: whatever the bytes, a reader returns or raises ParseError, soon and in little memory.

Every input is a seed file with some mutations, drawn from a seed and the input's number alone, so that an input
can be made again. Files of the shell (evidence, queries) may raise any typed error, for they are held against a
model.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import CertimapError, ParseError
from certimap_lab.bench import fuzz_seeds as seeds
from certimap_lab.bench.mutations import mutated, mutated_archive

LIMIT_SECONDS = 5.0
LIMIT_BYTES = 10**9


@dataclass(frozen=True)
class Target:
    """What is read: a reader of paths, seed files, and the errors that it may raise."""

    suffix: str
    seeds: tuple[bytes, ...]
    read: Callable[[Path], Any]
    accepted: tuple[type[Exception], ...] = (ParseError,)
    mutate: Callable[[random.Random, bytes, tuple[bytes, ...]], bytes] | None = None


@dataclass
class Tally:
    """What became of the inputs of one format.

    Attributes
    ----------
    name
        The format.
    n_read, n_refused
        Inputs that were read, and that were refused with a typed error.
    n_inputs
        Inputs that were read or refused or failed.
    failures
        Numbers of inputs that ended in anything else or beyond a limit, with what happened; the first few.
    n_failed
        How many there are.
    slowest
        Processor seconds of the slowest input.
    n_bytes
        The most memory that the process held, in bytes, its libraries included.
    """

    name: str
    n_inputs: int = 0
    n_read: int = 0
    n_refused: int = 0
    n_failed: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    slowest: float = 0.0
    n_bytes: int = 0

    def add(self, other: Tally) -> None:
        """Take in what another process counted."""
        self.n_inputs += other.n_inputs
        self.n_read += other.n_read
        self.n_refused += other.n_refused
        self.n_failed += other.n_failed
        self.failures = (self.failures + other.failures)[:10]
        self.slowest = max(self.slowest, other.slowest)
        self.n_bytes = max(self.n_bytes, other.n_bytes)


def _domain() -> Domain:
    return Domain([Categorical("A", ("lo", "hi")), Categorical("B c", ("0", "x, y", "na")), Real("X", -2.0, 9.0)])


def targets() -> dict[str, Target]:
    """Return what can be fuzzed, by name."""
    from certimap.core.query import make_query
    from certimap.io.evidence import read_assignments, read_evidence_cases, read_query_cases
    from certimap.io.formats import read
    from certimap.io.logic import log_weights
    from certimap.learn import prepare

    domain = _domain()

    def evidence(path: Path) -> None:
        for case in read_evidence_cases(path, domain):
            make_query(domain, *case())

    def queries(path: Path) -> None:
        for case in read_query_cases(path, domain):
            make_query(domain, *case())

    def assignments(path: Path) -> None:
        read_assignments(path, domain)
        evidence(path)

    def table(path: Path) -> None:
        prepare(path)
        evidence(path)

    def diagram(path: Path) -> None:
        for suffix, data in seeds.DIAGRAM.items():
            if path.suffix != f".{suffix}" and not path.with_suffix(f".{suffix}").exists():
                path.with_suffix(f".{suffix}").write_bytes(data)
        read(path.with_suffix(".uai"))

    typed = (CertimapError,)
    return {
        **{name: Target(name, texts, read) for name, texts in seeds.FORMATS.items()},
        **{f"diagram.{suffix}": Target(suffix, (text,), diagram) for suffix, text in seeds.DIAGRAM.items()},
        "pyjuice": Target("jpc", seeds.pyjuice_seeds(), read),
        "circuit": Target("json", (seeds.DEEPROB, seeds.SPARC, seeds.LINEAR), read),
        "weights": Target(
            "weights", (seeds.LITERALS, seeds.CNF, b"c weights .5 .5 1 1\n"), lambda path: log_weights(path, path)
        ),
        "npz": Target("npz", seeds.native_seeds(), read, mutate=mutated_archive),
        "gz": Target("uai.gz", tuple(gzip.compress(t, mtime=0) for t in (seeds.UAI, seeds.MARKOV)), read),
        "csv": Target("csv", (seeds.CSV, b"A;X\nlo;1.0\nhi;0.5\n"), table, typed),
        **{name: Target(name, (text,), table, typed) for name, text in seeds.CASES.items()},
        "json": Target("json", (seeds.JSON,), assignments, typed),
        "evid": Target("evid", (seeds.EVID,), evidence, typed),
        "query": Target("query", (seeds.QUERY,), queries, typed),
        "map": Target("map", (seeds.MAP,), queries, typed),
    }


# ---------------------------------------------------------------- runs


def input_of(name: str, seed: int, number: int, target: Target) -> bytes:
    """Return one input: the same for the same format, seed and number."""
    rng = random.Random(f"{name} {seed} {number}")
    data = rng.choice(target.seeds)
    return mutated(data, rng, target.seeds) if target.mutate is None else target.mutate(rng, data, target.seeds)


def fuzz(name: str, start: int, stop: int, seed: int = 0, folder: str | None = None) -> Tally:
    """Read the inputs with numbers from `start` to `stop` - 1 of a format, and count what becomes of them."""
    target = targets()[name]
    tally, before = Tally(name), _peak_bytes()
    with tempfile.TemporaryDirectory(dir=folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(place) / f"m.{target.suffix}"
        for number in range(start, stop):
            path.write_bytes(input_of(name, seed, number, target))
            tally.n_inputs += 1
            began = time.thread_time()
            problem = None
            try:
                target.read(path)
                tally.n_read += 1
            except target.accepted:
                tally.n_refused += 1
            except Exception:  # what this looks for
                problem = traceback.format_exc(limit=-2)
            seconds = time.thread_time() - began
            tally.slowest = max(tally.slowest, seconds)
            n_bytes = _peak_bytes()
            if problem is None and seconds > LIMIT_SECONDS:
                problem = f"took {seconds:.1f} s"
            if problem is None and n_bytes > max(LIMIT_BYTES, tally.n_bytes, before):
                problem = f"took {n_bytes:,} bytes"
            tally.n_bytes = max(tally.n_bytes, n_bytes)
            if problem is not None:
                tally.n_failed += 1
                tally.failures = [*tally.failures, (number, problem)][:10]
    return tally


def _peak_bytes() -> int:
    """Return the largest memory that this process has held, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_fuzz(
    names: tuple[str, ...], n_inputs: int, *, seed: int = 0, jobs: int = 1, chunk: int = 10_000
) -> Iterator[Tally]:
    """Yield the tally of each format, read in `jobs` processes; folders in memory are used where there are any."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with get_context("spawn").Pool(jobs) as pool:
        for name in names:
            starts = range(0, n_inputs, chunk)
            work = [(name, at, min(at + chunk, n_inputs), seed, memory) for at in starts]
            total = Tally(name)
            for tally in pool.starmap(fuzz, work, chunksize=1):
                total.add(tally)
            yield total


def table(tallies: list[Tally]) -> str:
    """Return tallies as a Markdown table."""
    lines = [
        "| format | inputs | read | refused | anything else | slowest | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for t in tallies:
        lines.append(
            f"| {t.name} | {t.n_inputs:,} | {t.n_read:,} | {t.n_refused:,} | {t.n_failed:,} | {t.slowest:.2f} s "
            f"| {t.n_bytes / 1e6:.0f} MB |"
        )
    return "\n".join(lines)


def failures_text(tallies: list[Tally]) -> str:
    """Return what went wrong, one paragraph for each input."""
    return json.dumps({t.name: t.failures for t in tallies if t.failures}, indent=1)
