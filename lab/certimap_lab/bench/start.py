"""How long a first answer takes in a new process, and a small query in one that was asked before."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from certimap.networks.orders import min_fill
from certimap_lab.bench.plain_elimination import plain_maximum
from certimap_lab.bench.records import BenchError
from certimap_lab.bench.tabular import MISSING, Table, significant

EXAMPLES = Path("examples")
REPEATS = 5  # of each small query, of which the quickest counts
SECONDS = 0.3  # of processor time that one repeat takes about
LONGEST = 1800.0  # seconds that a scenario may take

PREPARE = """
import numpy as np, certimap as cm
rng = np.random.default_rng(0)
half = rng.integers(0, 2, (400, 1))
cm.learn.learnspn(((rng.random((400, 14)) < 0.25 + 0.5 * half) * 1).astype(np.int16), rng=0).write("spn.npz")
roots = rng.normal(size=(3, 4, 4))
weights, means = [0.3, 0.3, 0.4], rng.normal(size=(3, 4)) * 3
cm.GaussianMixture(weights, means, roots @ roots.transpose(0, 2, 1) + np.eye(4)).write("mixture.npz")
discrete = cm.BayesianNetwork.from_cpts({"d": [0, 1]}, {}, {"d": [0.4, 0.6]})
nodes = [cm.LinearGaussian("x", ["d"], [0.0, 2.0], (), [1.0, 0.5]), cm.LinearGaussian("y", ["x"], 1.0, [0.5], 1.0)]
cm.LinearGaussianNetwork(nodes, discrete).write("linear.npz")
k = [rng.dirichlet(np.ones(3), size) for size in (None, 3, 3)]
cm.hidden_markov_model(*k, steps=20).write("hmm.npz")
edges = [(i, i + 1) for i in range(400) if (i + 1) % 20] + [(i, i + 20) for i in range(380)]
factors = [cm.Factor(e, rng.gamma(1.0, size=(2, 2))) for e in edges]
cm.MarkovNetwork(cm.Domain.of_sizes([2] * 400), factors).write("grid.npz")
"""
COMPILE = "from certimap.kernels.tier import compile_first\ncompile_first()\n"


@dataclass(frozen=True)
class Scenario:
    """A first question in a new process.

    Attributes
    ----------
    name
        What is asked.
    model
        A file of the examples, or one that `PREPARE` writes.
    query
        The arguments of `map_query` behind the model, as code.
    """

    name: str
    model: str
    query: str

    def code(self, folder: Path) -> str:
        """Return the program."""
        place = EXAMPLES.resolve() if self.model.endswith(".bif") else folder
        return (
            "import certimap as cm\n"
            f"model = cm.read({os.fspath(place / self.model)!r})\n"
            f"cm.map_query(model, {self.query}, rng=0, progress=False)\n"
        )


SCENARIOS = (
    Scenario("asia, 2 of 8", "asia.bif", "['lung', 'bronc'], {'xray': 'yes'}"),
    Scenario("alarm, 2 of 37", "alarm.bif", "['HISTORY', 'CVP'], {'HRBP': 'HIGH'}"),
    Scenario("alarm, most probable explanation", "alarm.bif", "None, {'HRBP': 'HIGH'}"),
    Scenario("LearnSPN, 8 of 14 binary", "spn.npz", "[str(i) for i in range(8)], {'9': 1}"),
    Scenario("mixture of Gaussians", "mixture.npz", "model.domain.names[:2], {model.domain.names[2]: 0.5}"),
    Scenario("linear-Gaussian network", "linear.npz", "['x'], {'y': 1.0}"),
    Scenario("hidden Markov model, 20 steps", "hmm.npz", "['state19'], {f'symbol{i}': i % 3 for i in range(20)}"),
    Scenario("grid of 20 x 20", "grid.npz", "None, None"),
)


def first_answers(
    names: Sequence[str] = (), report: Callable[[str], None] | None = None
) -> dict[str, tuple[float, float]]:
    """Return the processor seconds of a new process to its first answer: nothing compiled, and all on disk.

    Those of the process that compiles meanwhile are not counted.

    Raises
    ------
    BenchError
        For a name that is no scenario, a missing example, and a program that fails.
    """
    chosen = [s for s in SCENARIOS if not names or s.name in names]
    if len(chosen) < len(names):
        raise BenchError(f"expected scenarios among {', '.join(s.name for s in SCENARIOS)}")
    if not (EXAMPLES / "asia.bif").exists():
        raise BenchError("no examples/asia.bif here; run it in the project's folder")
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as place:  # another process may still compile there
        folder = Path(place)
        _seconds(PREPARE, folder, folder / "of models")
        for k, scenario in enumerate(chosen):
            code = scenario.code(folder)
            cold = _seconds(code, folder, folder / f"none {k}")
            _seconds(COMPILE + code, folder, folder / f"kernels {k}")
            found[scenario.name] = (cold, min(_seconds(code, folder, folder / f"kernels {k}") for _ in range(3)))
            if report is not None:
                report(f"{scenario.name}: {cold:.2f} s, then {found[scenario.name][1]:.2f} s")
    return found


def _seconds(code: str, folder: Path, kernels: Path) -> float:
    """Return the processor seconds of a program whose kernels lie in a folder of their own."""
    kernels.mkdir(exist_ok=True)
    source = os.fspath(Path(importlib.import_module("certimap").__file__ or "").parent.parent)
    environment = {**os.environ, "NUMBA_CACHE_DIR": os.fspath(kernels), "PYTHONPATH": source}
    timed = f"{code}\nimport time\nprint(time.process_time())"
    done = subprocess.run(
        [sys.executable, "-c", timed], cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode:
        raise BenchError(f"a program of this benchmark failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.split()[-1])


@dataclass(frozen=True)
class Small:
    """A small query to a network that was read: variables (None: all), and evidence by labels."""

    name: str
    file: str
    variables: tuple[str, ...] | None
    evidence: Mapping[str, str]


ALARM = {"HISTORY": "TRUE", "CVP": "LOW", "PCWP": "LOW", "HRBP": "LOW"}
TEN = ("LVFAILURE", "LVEDVOLUME", "STROKEVOLUME", "ERRLOWOUTPUT", "HRSAT", "TPR", "CATECHOL", "HR", "CO", "BP")
SMALL = (
    Small("asia, 2 of 8", "asia.bif", ("lung", "bronc"), {"xray": "yes", "dysp": "no"}),
    Small("alarm, most probable explanation", "alarm.bif", None, ALARM),
    Small("alarm, 10 queried", "alarm.bif", TEN, ALARM),
)


def small_queries() -> dict[str, dict[str, float | None]]:
    """Return milliseconds of processor time a query, by query and program; None where one is missing or fails."""
    import certimap as cm

    found: dict[str, dict[str, float | None]] = {}
    for small in SMALL:
        path = EXAMPLES / small.file
        model = cm.read(path)
        variables = None if small.variables is None else list(small.variables)
        columns: dict[str, float | None] = {
            "certimap": _milliseconds(
                partial(cm.map_query, model, variables, small.evidence, rng=0, progress=False)
            ),
            "NumPy": _milliseconds(_plain(model, small)),
        }
        for name, peer in (("pgmpy", _pgmpy), ("pyagrum", _pyagrum)):
            columns[name] = None
            if importlib.util.find_spec(name) is not None:
                with suppress(Exception):  # pyagrum 3.3 has errors of its own on some networks
                    columns[name] = _milliseconds(peer(path, small))
        found[small.name] = columns
    found.update((name, {"certimap": milliseconds}) for name, milliseconds in _rows_of_alarm().items())
    return found


def _milliseconds(ask: Callable[[], object]) -> float:
    """Return the processor time of a query that was asked before: the mean of the quickest of some repeats."""
    ask()
    started = time.process_time()
    ask()
    n = max(1, int(SECONDS / max(time.process_time() - started, 1e-5)))
    best = float("inf")
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(n):
            ask()
        best = min(best, (time.process_time() - started) / n)
    return 1e3 * best


def _plain(model: Any, small: Small) -> Callable[[], object]:
    """Return an elimination in bare NumPy along an order that it is given, without p(e) or a certificate."""
    domain = model.domain
    observed = {domain.index(n): domain[n].index(label) for n, label in small.evidence.items()}
    scopes = [tuple(v for v in f.scope if v not in observed) for f in model.factors]
    sizes = {v: n for v, n in enumerate(domain.n_states.tolist()) if v not in observed}
    if small.variables is None:
        order = min_fill(scopes, sizes)
        assert order is not None  # no order is too dear
        return partial(plain_maximum, model, observed, order)
    kept = [domain.index(name) for name in small.variables]
    tables = [np.asarray(f.table, np.float64) for f in model.factors]
    found = min_fill(scopes, sizes, [v for v in sizes if v not in kept])
    assert found is not None
    out = [v for v in found.order if v not in kept]

    def ask() -> object:
        left: list[tuple[tuple[int, ...], Any]] = [
            (scope, table[tuple(observed.get(v, slice(None)) for v in f.scope)])
            for f, scope, table in zip(model.factors, scopes, tables, strict=True)
        ]
        for v in out:
            near = [item for item in left if v in item[0]]
            scope = tuple(dict.fromkeys(u for s, _ in near for u in s if u != v))
            left = [item for item in left if v not in item[0]] + [(scope, _summed(near, scope))]
        table = _summed(left, tuple(kept))
        return np.unravel_index(int(np.argmax(table)), table.shape)

    return ask


def _summed(items: Sequence[tuple[tuple[int, ...], Any]], scope: tuple[int, ...]) -> Any:
    """Return the product of tables with all but a scope summed out."""
    names = {v: i for i, v in enumerate(dict.fromkeys([*scope, *(v for s, _ in items for v in s)]))}
    operands: list[Any] = []
    for own, table in items:
        operands += [table, [names[v] for v in own]]
    return np.einsum(*operands, [names[v] for v in scope])


def _pgmpy(path: Path, small: Small) -> Callable[[], object]:
    """Return a query to pgmpy's variable elimination, whose table of all queried variables must fit."""
    if small.variables is None:
        raise MemoryError
    model: Any = importlib.import_module("pgmpy.readwrite").BIFReader(os.fspath(path)).get_model()
    inference: Any = importlib.import_module("pgmpy.inference").VariableElimination(model)
    asked = list(small.variables or sorted(set(model.nodes()) - set(small.evidence)))
    return lambda: inference.map_query(asked, evidence=dict(small.evidence), show_progress=False)


def _pyagrum(path: Path, small: Small) -> Callable[[], object]:
    """Return a query to pyagrum's lazy propagation: the largest entry of a joint posterior, or the explanation."""
    gum: Any = importlib.import_module("pyagrum")
    network = gum.loadBN(os.fspath(path))

    def ask() -> object:
        inference = gum.LazyPropagation(network)
        inference.setEvidence(dict(small.evidence))
        if small.variables is None:
            return inference.mpe()
        inference.addJointTarget(set(small.variables))
        inference.makeInference()
        return inference.jointPosterior(set(small.variables)).argmax()

    return ask


def _rows_of_alarm() -> dict[str, float]:
    """Return the milliseconds of a row: of 10,000 that observe 10 variables, and of different ones of these."""
    import certimap as cm

    pandas: Any = importlib.import_module("pandas")
    model = cm.read(EXAMPLES / "alarm.bif")
    observed = ["HISTORY", "CVP", "PCWP", "HRBP", "BP", "HR", "SAO2", "PAP", "MINVOLSET", "HREKG"]
    drawn: Any = cm.sample(model, 10_000, rng=1)
    frame = pandas.DataFrame({name: drawn[name] for name in observed})
    asked = ["HYPOVOLEMIA", "LVFAILURE"]
    cm.map_query(model, asked, frame[:100], rng=0, progress=False)
    found: dict[str, float] = {}
    for kind, rows in (("rows", frame), ("different rows", frame.drop_duplicates())):
        started = time.process_time()
        cm.map_query(model, asked, rows, rng=0, progress=False)
        seconds = time.process_time() - started
        found[f"a row of alarm, 2 queried ({len(rows):,} {kind})"] = 1e3 * seconds / len(rows)
    return found


def start_tables(
    first: Mapping[str, tuple[float, float]], small: Mapping[str, Mapping[str, float | None]]
) -> tuple[Table, Table]:
    """Return the tables of first answers and of small queries."""
    answers = Table(
        "first-answers",
        "From a new process to its first answer, in processor seconds",
        ("query", "nothing compiled", "kernels on disk"),
    )
    for name, (cold, warm) in first.items():
        answers.add(name, f"{cold:.2f}", f"{warm:.2f}")
    answers.notes.append(
        "Starting Python, loading certimap and reading the model included. Where nothing is compiled, kernels run "
        "as Python while another process compiles them; its time is not counted. Kernels that a wheel brings, or "
        "`certimap kernels --all`, lie on disk before the first question."
    )
    queries = Table(
        "small-queries",
        "A small query to a model that was asked before, in milliseconds of processor time",
        ("query", "certimap", "NumPy", "pgmpy", "pyagrum"),
    )
    for name, columns in small.items():
        shown = (columns.get(program) for program in ("certimap", "NumPy", "pgmpy", "pyagrum"))
        queries.add(name, *(MISSING if value is None else significant(value) for value in shown))
    queries.notes.append(
        "The same query again. Rows of a frame that ask the same share one run. NumPy: elimination along an order "
        "that it is given, without p(e), rounding or certificate. certimap answers with all of these. A program "
        f"that is not installed or fails has {MISSING}: an explanation by pgmpy is a table of all variables, and "
        "pyagrum 3.3.1 ends in an error there."
    )
    return answers, queries
