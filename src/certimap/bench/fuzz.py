"""Reading mutated files: whatever the bytes, a reader returns or raises ParseError, soon and in little memory.

Every input is a seed file with some mutations, drawn from a seed and the input's number alone, so that an input
can be made again. Files of the shell (evidence, queries) may raise any typed error, for they are held against a
model.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import re
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from certimap.domain import Categorical, Domain, Real
from certimap.errors import CertimapError, ParseError

LIMIT_SECONDS = 5.0
LIMIT_BYTES = 10**9

BIF = b"""network n { property "v 1"; }
variable A { type discrete [ 2 ] { lo, hi }; }
variable "B c" { type discrete [ 3 ] = { (0;1], "x, y", 1,999 }; property p = 1; }
probability ( A ) { table .3, .7; } // end
probability ( "B c" | A ) { (hi) .2, .8, 0; /* c */ default 1e-1 .4 .5; }
"""
UAI = b"BAYES\n3\n2 2 3\n3\n1 0\n2 0 1\n2 1 2\n\n2 .5 .5\n4 .1 .9 0 0\n6 .2 .3 .5 1e-400 1 0 # c\n"
MARKOV = b"c comment\nMARKOV 2 2 3 /* x */ 3 1 0 2 0 1 0\n2 1e400 .5\n6 1 2 3 4 5 6\n1 7\n"
SPN = b"# c\nindicator 0 0 0\nl 1 0 1\ngaussian 2 1 0.5 2\n+ 3 0 .25 1 .75\n* 4 3 2\n* 5 0 2\n+ 6 4 1e-320 5 3\n"
NET = b"""net { } % c
node A { states = ("lo" "hi"); position = (1 2); }
discrete node B { states = ("x" "y \\" z" w); label = "%"; }
potential (A) { data = (.3 .7); }
potential (B | A) { data = ((.1 .2 7e-1) (1 0 0)); }
"""
XDSL = b"""<?xml version="1.0"?>
<smile version="1.0" id="n"><nodes>
<cpt id="A"><state id="lo"/><state id="hi"/><probabilities>.3 .7</probabilities></cpt>
<deterministic id="B"><state id="x"/><state id="y"/><parents>A</parents>
<resultingstates>x y</resultingstates></deterministic>
<noisymax id="C"><state id="x"/><state id="y"/><parents>A B</parents><strengths>0 1 1 0</strengths>
<parameters>.2 .8 0 1 .5 .5 0 1 .1 .9</parameters></noisymax>
</nodes><extensions><genie app="aGrUM"/></extensions></smile>
"""
XMLBIF = b"""<?xml version="1.0" encoding="utf-8"?><!DOCTYPE BIF [ <!ELEMENT BIF ( NETWORK )*> ]>
<BIF VERSION="0.3"><NETWORK><NAME>n</NAME>
<VARIABLE TYPE="nature"><NAME>A</NAME><OUTCOME>lo</OUTCOME><OUTCOME>&lt;1</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>B</NAME><OUTCOME>x</OUTCOME><OUTCOME>y</OUTCOME></VARIABLE>
<DEFINITION><FOR>A</FOR><TABLE>.3 .7</TABLE></DEFINITION>
<DEFINITION><FOR>B</FOR><GIVEN>A</GIVEN><TABLE>.1 .9 <!-- c --> 2e-1 .8</TABLE></DEFINITION>
</NETWORK></BIF>
"""
DNE = b"""// ~->[DNET-1]->~
bnet N { whenchanged = 1; visual V { x = (1, 2); };
node A { kind = NATURE; discrete = TRUE; states = (lo, hi); parents = (); probs = (.3, .7); title = "a;"; };
node B { discrete = FALSE; levels = (0, 1, 2); parents = (A); probs = ((.1, .9), (.2, .8)); };
node C { chance = DETERMIN; numstates = 2; parents = (A); functable = (#0, 1); /* c */ }; };
"""
DSL = b"""net N { HEADER = { ID = N; };
node A { TYPE = CPT; PARENTS = (); DEFINITION = { NAMESTATES = (lo, hi); PROBABILITIES = (.3, .7); }; };
node B { TYPE = TRUTHTABLE; PARENTS = (A); DEFINITION = { NAMESTATES = (x, y); RESULTINGSTATES = (x, y); }; }; };
"""
DSC = b"""belief network "n"
node A { name: "A"; type: discrete[2] = { "lo", "hi" }; position: (1, 2); }
node B { type: discrete = { "x", "y" }; }
probability(A) { .3, .7; } // c
probability(B | A) { (1): .2, .8; default: .5, .5; }
"""
NNF = b"""c x
nnf 6 6 4
L 1
L 2
A 2 0 1
L -1
O 1 2 2 3
A 0
"""
D4 = b"o 1 0\nt 2 0\na 3 0\n1 2 1 2 0\n1 3 -1 3 0\n3 2 4 0\n3 2 0\nf 4 0\n"
SDD = b"c x\nsdd 7\nL 1 0 1\nL 2 2 2\nL 3 0 -1\nF 6\nT 7\nL 5 4 3\nD 8 1 3 1 7 3 5 2 6\n"
PSDD = b"c x\npsdd 5\nL 0 0 1\nL 1 0 -1\nT 2 2 2 -1.3\nL 3 2 -2\nD 4 1 2 0 2 -0.5 1 3 -9e-1\n"
JPC = b"""c x
jpc 9
L 0 0 1
L 1 0 -1
I 2 0 2 2
C 3 0 2 -0.6 -1.3 -inf
B 4 0 3 2 -1.2
G 5 0 4 0.5 2
P 6 0 4 0 2 4 5
P 7 0 4 1 3 4 5
S 8 0 2 6 -2.3 7 -0.1
"""
DEEPROB = b"""{"directed": true, "nodes": [{"class": "Sum", "scope": [0, 1], "weights": [0.3, 0.7], "id": 0},
{"class": "Product", "scope": [0, 1], "id": 1},
{"class": "Bernoulli", "scope": [0], "params": {"p": 0.2}, "id": 2},
{"class": "Categorical", "scope": [1], "params": {"categories": [0, 2], "probabilities": [0.4, 0.6]}, "id": 3},
{"class": "BinaryCLT", "scope": [0, 1], "params": {"root": 0, "tree": [-1, 0],
"params": [[[-0.7, -0.7], [-0.7, -0.7]], [[-1.2, -0.4], [-0.1, -Infinity]]]}, "id": 4}],
"links": [{"source": 1, "target": 0, "idx": 0}, {"source": 4, "target": 0, "idx": 1},
{"source": 2, "target": 1, "idx": 0}, {"source": 3, "target": 1, "idx": 1}]}"""
SPARC = b"""{"format": "gcw-circuit-v1", "backend": "numpy", "root": 6, "nodes": [
{"id": 0, "kind": "bernoulli", "children": [], "scope": [0], "p": 0.2},
{"id": 1, "kind": "literal", "children": [], "scope": [0], "value": 1},
{"id": 2, "kind": "indicator", "children": [], "scope": [1], "value": 1, "num_cats": 3},
{"id": 3, "kind": "discrete_logistic", "children": [], "scope": [1], "mu": 1.3, "s": 0.7, "num_cats": 3},
{"id": 4, "kind": "product", "children": [0, 2]}, {"id": 5, "kind": "product", "children": [1, 3]},
{"id": 6, "kind": "sum", "children": [4, 5], "params": [0.3, 0.7]}]}"""
LITERALS = b"1 .5\n-1 0.25\n3 1e-400\n-3 2\n"
CNF = b"c weights .5 .5 1 1\nc p weight 3 .5 0\nc p weight -3 .5 0\np cnf 3 1\n1 -2 0\n"
CSV = b'A,"B c",X\nlo,"x, y",1.0\n,?,1e0\nhi,na,nan\n'
JSON = b'[{"A": "lo", "B c": {"likelihood": [1, 2, 0.5]}, "X": [0, 1]}, {"A": ["lo", "hi"], "X": null}]'
EVID = b"2\n1 0 1\n2 0 0 1 2\n"
MAP = b"0 2\n1 1\n# c\n1\n\n"
QUERY = b"2 0 1 /* c */\n"

_NUMBERS = (
    b"0 -1 1 2 3 1e999 -0 1e-999 nan inf 99999999999 4294967296 9223372036854775808 1_0 0x1p-2000 32768 "
    b"1e99999999999999999999"
).split()
_SIGNS = b"\" ' ( ) [ ] { } , ; | = /* */ // # : \\".split(b" ")
_BYTES = [b"\0", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80\xa8", b"\x85"]
_NAMES = b"property table default network variable probability BAYES MARKOV indicator gaussian null lo A c".split()
_BLANKS = [b"", b" ", b"\n", b"\r\n", b"\t", b"c ", b"+ ", b"* ", b"type discrete", b'"B c"']
_LONG = [b"1" * 400, b"1" * 5000, b"(" * 300, b"[" * 3000, b'{"a":' * 3000, b"/*" * 300, b"2 " * 300, b", " * 300]
_WORDS = [*_NUMBERS, *_SIGNS, *_BYTES, *_NAMES, *_BLANKS, *_LONG]
_TOKEN = re.compile(rb"[^\s,;(){}\[\]\"|]+")


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
        Seconds of the slowest input.
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
    from certimap.io.evidence import read_assignments, read_evidence_cases, read_query_cases
    from certimap.io.formats import read
    from certimap.io.literal_weights import log_weights
    from certimap.io.text_tables import read_text_table
    from certimap.query import make_query

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
        read_text_table(path).columns()
        evidence(path)

    typed = (CertimapError,)
    return {
        "bif": Target("bif", (BIF,), read),
        "uai": Target("uai", (UAI, MARKOV), read),
        "spn": Target("spn", (SPN,), read),
        "net": Target("net", (NET,), read),
        "xdsl": Target("xdsl", (XDSL,), read),
        "xmlbif": Target("xmlbif", (XMLBIF,), read),
        "dne": Target("dne", (DNE,), read),
        "dsl": Target("dsl", (DSL,), read),
        "dsc": Target("dsc", (DSC,), read),
        "nnf": Target("nnf", (NNF, D4), read),
        "sdd": Target("sdd", (SDD,), read),
        "psdd": Target("psdd", (PSDD,), read),
        "jpc": Target("jpc", (JPC,), read),
        "pyjuice": Target("jpc", _pyjuice_seeds(), read),
        "circuit": Target("json", (DEEPROB, SPARC), read),
        "weights": Target(
            "weights", (LITERALS, CNF, b"c weights .5 .5 1 1\n"), lambda path: log_weights(path, path)
        ),
        "npz": Target("npz", _native_seeds(), read, mutate=_mutate_archive),
        "gz": Target("uai.gz", tuple(gzip.compress(t, mtime=0) for t in (UAI, MARKOV)), read),
        "csv": Target("csv", (CSV, b"A;X\nlo;1.0\nhi;0.5\n"), table, typed),
        "json": Target("json", (JSON,), assignments, typed),
        "evid": Target("evid", (EVID,), evidence, typed),
        "query": Target("query", (QUERY,), queries, typed),
        "map": Target("map", (MAP,), queries, typed),
    }


def _pyjuice_seeds() -> tuple[bytes, ...]:
    """Return a pickle as pyjuice writes it: leaves of two variables, their products, and a sum."""

    def leaves(scope: int, name: bytes, params: list[float]) -> dict[str, Any]:
        dist = b"\x80\x04\x8c\x07pyjuice\x8c" + bytes([len(name)]) + name + b"\x93)\x81}\x8c\x08num_catsK\x02sb."
        return {
            **size,
            "type": "Input",
            "chs": (),
            "scope": [scope],
            "dist": dist,
            "params": np.array(params, np.float32),
        }

    size = {"num_node_blocks": 1, "block_size": 2}
    nodes = [
        leaves(0, b"Categorical", [0.3, 0.7, 0.5, 0.5]),
        leaves(1, b"Bernoulli", [0.1, 0.9]),
        {**size, "type": "Product", "chs": (0, 1), "edge_ids": np.zeros((1, 2), np.int64)},
        {
            "num_node_blocks": 1,
            "block_size": 1,
            "type": "Sum",
            "chs": (2,),
            "edge_ids": np.zeros((2, 1), np.int64),
            "params": np.array([[[0.4, 0.6]]], np.float32),
        },
    ]
    return (pickle.dumps(nodes, 4),)


def _native_seeds() -> tuple[bytes, ...]:
    """Return one native file for each kind of model."""
    from certimap.io.formats import read, write
    from certimap.learn.hidden_model import HiddenChowLiuModel

    with tempfile.TemporaryDirectory() as folder:
        models: list[Any] = []
        for suffix, text in (("bif", BIF.replace(b"1,999", b"z")), ("uai", MARKOV), ("spn", SPN)):
            path = Path(folder) / f"m.{suffix}"
            path.write_bytes(text)
            models.append(read(path))
        half = np.full((2, 2), 0.5)
        models.append(
            HiddenChowLiuModel(
                Domain.of_sizes([2, 2]),
                np.array([-1, 0]),
                np.array([0.5, 0.5]),
                np.stack([half, half]),
                [half, half],
            )
        )
        files: list[bytes] = []
        for model in models:
            path = Path(folder) / "m.npz"
            write(model, path)
            files.append(path.read_bytes())
    return tuple(files)


# ---------------------------------------------------------------- mutations


def mutated(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Return a file with one to a few mutations."""
    for _ in range(1 if rng.random() < 0.7 else rng.randint(2, 6)):
        data = _MUTATIONS[rng.randrange(len(_MUTATIONS))](data, rng, seeds)
    return data


def _span(data: bytes, rng: random.Random, longest: int = 40) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.randint(1, longest))


def _flip(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + bytes((rng.randrange(256),)) + data[at + 1 :]


def _delete(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _double(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    start, end = _span(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 1, 2, 30)) + data[end:]


def _move(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    start, end = _span(data, rng)
    at = rng.randint(0, len(data))
    return data[:at] + data[start:end] + data[at:]


def _insert(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(_WORDS) + data[at:]


def _replace(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Put a word in place of one of the file's."""
    words = [found.span() for found in _TOKEN.finditer(data)]
    if not words:
        return _insert(data, rng, seeds)
    start, end = rng.choice(words)
    return data[:start] + rng.choice(_WORDS) + data[end:]


def _cut(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    return data[: rng.randint(0, len(data))]


def _splice(data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


_MUTATIONS = (_flip, _flip, _delete, _double, _move, _insert, _replace, _replace, _replace, _cut, _splice)


def _mutate_archive(rng: random.Random, data: bytes, seeds: tuple[bytes, ...]) -> bytes:
    """Mutate the archive's bytes, or its entries with checksums that fit."""
    if rng.random() < 0.3:
        return mutated(data, rng, seeds)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(entries))
        entries[name] = _mutated_entry(entries[name], rng, tuple(entries.values()))
    if rng.random() < 0.1:
        del entries[rng.choice(sorted(entries))]
    method = zipfile.ZIP_DEFLATED if rng.random() < 0.05 else zipfile.ZIP_STORED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def _mutated_entry(content: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """Mutate an array: its bytes, or its values where its header is kept."""
    if rng.random() < 0.4:
        return mutated(content, rng, seeds)
    try:
        values = np.load(io.BytesIO(content)).copy()
    except Exception:  # an entry that was mutated before
        return mutated(content, rng, seeds)
    if values.dtype.kind == "U":  # the JSON text, mutated as such
        text = mutated(str(values[()]).encode("utf-8", "replace"), rng, (JSON,)).decode("utf-8", "replace")
        values = np.array(text)
    elif values.size:
        at = rng.randrange(values.size)
        odd = (-1, 0, 1, 2, 127, -128) if values.dtype.kind == "i" else (-1.0, 0.0, np.nan, np.inf, -np.inf, 0.3)
        values.reshape(-1)[at] = rng.choice(odd)
        if rng.random() < 0.2:
            values = values.reshape(-1)[: rng.randrange(values.size + 1)]
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


# ---------------------------------------------------------------- runs


def input_of(name: str, seed: int, number: int, target: Target) -> bytes:
    """Return one input: the same for the same format, seed and number."""
    rng = random.Random(f"{name} {seed} {number}")
    data = rng.choice(target.seeds)
    return mutated(data, rng, target.seeds) if target.mutate is None else target.mutate(rng, data, target.seeds)


def fuzz(name: str, start: int, stop: int, seed: int = 0, folder: str | None = None) -> Tally:
    """Read the inputs with numbers from `start` to `stop` - 1 of a format, and count what becomes of them."""
    target = targets()[name]
    tally = Tally(name)
    with tempfile.TemporaryDirectory(dir=folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(place) / f"m.{target.suffix}"
        for number in range(start, stop):
            path.write_bytes(input_of(name, seed, number, target))
            tally.n_inputs += 1
            began = time.perf_counter()
            problem = None
            try:
                target.read(path)
                tally.n_read += 1
            except target.accepted:
                tally.n_refused += 1
            except Exception:  # what this looks for
                problem = traceback.format_exc(limit=-2)
            seconds = time.perf_counter() - began
            tally.slowest = max(tally.slowest, seconds)
            n_bytes = _peak_bytes()
            if problem is None and seconds > LIMIT_SECONDS:
                problem = f"took {seconds:.1f} s"
            if problem is None and n_bytes > max(LIMIT_BYTES, tally.n_bytes):
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
