"""The edges of supports, files and frames: observed ends of leaves, numbers left out, rows beside one query."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from certimap import io
from certimap.ask.api import map_query
from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.model import Model
from certimap.errors import CertimapError, ImpossibleEvidence, ParseError, QueryError
from certimap_lab.hostile import circuits, networks
from certimap_lab.hostile.case import HostileCase, choose_evidence, choose_query
from certimap_lab.hostile.exact import CONTEXT, ONE, ZERO, Exact, from_floats, from_logs
from certimap_lab.hostile.numbers import Floats, log_vector, pick_style, shuffled
from certimap_lab.hostile.oracles import factor_truth
from certimap_lab.hostile.report import CaseReport
from certimap_lab.volume.structured import InPlace

ENDS = (-1.0, 0.0, 0.5, 1.0, 3.0, 1e-300, 1e9)
FEW = 3  # rows of a frame
Leaf = tuple[str, tuple[float, ...]]


@dataclass(frozen=True)
class EdgeCase:
    """A check that is not of one query to one model: `check` makes it, and reports what failed."""

    check: Callable[[CaseReport], None]
    refusal: Exception | None = None


def ends(rng: np.random.Generator) -> HostileCase:
    """Real variables observed where supports of leaves end, or a last digit beside: ends belong to supports."""
    n_real, n_parts = int(rng.integers(1, 3)), int(rng.integers(1, 5))
    n_states = int(rng.integers(2, 5))
    names = [f"x{i}" for i in range(n_real)]
    domain = Domain([Categorical("c", tuple(range(n_states))), *map(Real, names)])
    log_weights = log_vector(rng, n_parts, pick_style(rng))
    tables = np.stack([log_vector(rng, n_states, pick_style(rng)) for _ in range(n_parts)])
    leaves = [[_leaf(rng) for _ in names] for _ in range(n_parts)]
    build = CircuitBuilder(domain)
    products = [
        build.product(
            [build.categorical(0, log_weights=table.tolist())]
            + [build.real(kind, 1 + i, *params) for i, (kind, params) in enumerate(own)]
        )
        for table, own in zip(tables, leaves, strict=True)
    ]
    build.sum(products, log_weights=log_weights.tolist())
    evidence: dict[str, Any] = {}
    weights = from_logs(log_weights)
    for i, name in enumerate(names):
        kind, params = leaves[int(rng.integers(n_parts))][i]
        end = 0.0 if kind == "exponential" else float(rng.choice(params))
        evidence[name] = _beside(rng, end)
        weights = weights * np.array([_seen(*own[i], evidence[name]) for own in leaves], np.object_)
    factors = [((1,), weights), ((1, 0), from_logs(tables))]
    known = Domain([domain["c"], Categorical("part", tuple(range(n_parts)))])
    return HostileCase(build.build(normalised=False), ["c"], evidence, factor_truth(known, factors, ["c"], {}))


def _leaf(rng: np.random.Generator) -> Leaf:
    if rng.random() < 0.4:
        return "exponential", (float(rng.choice([1e-3, 1.0, 40.0])),)
    low = float(rng.choice(ENDS))
    if abs(low) >= 0.5 and rng.random() < 0.1:
        return "uniform", (low, float(np.nextafter(low, np.inf)))
    return "uniform", (low, low + float(rng.choice([0.1, 1.0, 1e6])))


def _beside(rng: np.random.Generator, end: float) -> float | tuple[float, float]:
    """Return an end, the float before or after it, or an interval that begins or ends there."""
    if rng.random() < 0.6:
        return float(np.nextafter(end, rng.choice([-np.inf, np.inf]))) if rng.random() < 0.4 else end
    width = float(rng.choice([0.5, 2.0, math.inf]))
    return (end, end + width) if rng.random() < 0.5 else (end - width, end)


def _seen(kind: str, params: tuple[float, ...], value: float | tuple[float, float]) -> Decimal:
    """Return the density of a value under a leaf, or the mass of an interval."""
    numbers = [Decimal(p) for p in params]
    if not isinstance(value, tuple):
        x = Decimal(value)
        if kind == "uniform":
            return ONE / (numbers[1] - numbers[0]) if numbers[0] <= x <= numbers[1] else ZERO
        return numbers[0] * CONTEXT.exp(-numbers[0] * x) if x >= 0 else ZERO
    if kind == "uniform":
        low, high = max(Decimal(value[0]), numbers[0]), min(Decimal(value[1]), numbers[1])
        return max(high - low, ZERO) / (numbers[1] - numbers[0])
    low, high = max(Decimal(value[0]), ZERO), max(Decimal(value[1]), ZERO)
    width = numbers[0] * (high - low)
    share = ONE if math.isinf(value[1]) else ONE - CONTEXT.exp(-width)
    if width < Decimal("1e-20"):
        share = width * (ONE - width / 2 + width * width / 6)  # the difference would lose its digits
    return CONTEXT.exp(-numbers[0] * low) * share


def gaps(rng: np.random.Generator) -> HostileCase:
    """A circuit file that leaves out numbers of variables: the model has the variables named, and no more."""
    n, n_parts = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    numbers = sorted(1 + u for u in shuffled(rng, 12)[:n])
    sizes = [int(k) for k in rng.integers(2, 4, n)]
    styles = [pick_style(rng, logs=False) for _ in range(n)]
    tables = [
        np.stack([_shares(rng, k, style) for _ in range(n_parts)]) for k, style in zip(sizes, styles, strict=True)
    ]
    weights = _shares(rng, n_parts, "mild")
    domain = Domain([Categorical(str(u), tuple(range(k))) for u, k in zip(numbers, sizes, strict=True)])
    suffix = str(rng.choice([".json", ".jpc"]))
    text = (_sparc if suffix == ".json" else _jpc)(numbers, tables, weights)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        path.write_text(text)
        model = io.read(path)
        _check_cut(path.with_name(f"cut{suffix}"), text)
        if rng.random() < 0.5:
            io.write(model, path.with_suffix(".npz"))
            model = io.read(path.with_suffix(".npz"))
    if list(model.domain.names) != list(domain.names):
        raise AssertionError(f"a {suffix} file of the variables {domain.names} is read as {model.domain.names}")
    query = choose_query(rng, domain)
    evidence = choose_evidence(rng, domain, query)
    of = from_logs if suffix == ".jpc" else from_floats
    factors: list[tuple[tuple[int, ...], Exact]] = [((n,), of(_stored(weights, suffix)))]
    factors += [((n, v), of(_stored(table, suffix))) for v, table in enumerate(tables)]
    known = Domain([*domain, Categorical("part", tuple(range(n_parts)))])
    return HostileCase(model, query, evidence, factor_truth(known, factors, query, evidence))


def _check_cut(path: Path, text: str) -> None:
    """Raise an error if a file without its last line, the root of a .jpc, is read as a model."""
    path.write_text("\n".join(text.rstrip("\n").split("\n")[:-1]) + "\n")
    try:
        io.read(path)
    except ParseError:
        return
    raise AssertionError(f"a {path.suffix} file that is cut short is read as a model")


def _shares(rng: np.random.Generator, size: int, style: str) -> Floats:
    logs = log_vector(rng, size, style)
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def _stored(shares: Floats, suffix: str) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(shares) if suffix == ".jpc" else shares


def _sparc(numbers: list[int], tables: list[Floats], weights: Floats) -> str:
    nodes: list[dict[str, Any]] = []
    tops: list[int] = []
    for part in range(len(weights)):
        below = range(len(nodes), len(nodes) + len(numbers))
        for u, table in zip(numbers, tables, strict=True):
            nodes.append({"id": len(nodes), "kind": "categorical", "scope": [u], "params": table[part].tolist()})
        tops.append(len(nodes))
        nodes.append({"id": len(nodes), "kind": "product", "scope": numbers, "children": list(below)})
    nodes.append({"id": len(nodes), "kind": "sum", "scope": numbers, "children": tops, "params": weights.tolist()})
    return json.dumps({"format": "gcw-circuit-v1", "backend": "numpy", "root": len(nodes) - 1, "nodes": nodes})


def _jpc(numbers: list[int], tables: list[Floats], weights: Floats) -> str:
    lines: list[str] = []
    tops: list[int] = []

    def add(kind: str, *words: Any) -> int:
        lines.append(" ".join(map(str, (kind, len(lines), 0, *words))))
        return len(lines) - 1

    for part in range(len(weights)):
        logs: list[list[float]] = [_stored(table[part], ".jpc").tolist() for table in tables]
        below = [add("C", u, *map(repr, own)) for u, own in zip(numbers, logs, strict=True)]
        tops.append(add("P", len(below), *below))
    shares: list[float] = _stored(weights, ".jpc").tolist()
    pairs = [word for top, log in zip(tops, shares, strict=True) for word in (top, repr(log))]
    add("S", len(tops), *pairs)
    return "\n".join([f"jpc {len(lines)}", *lines]) + "\n"


def frames(rng: np.random.Generator) -> EdgeCase:
    """Rows of a frame, also shared out, and queries shared out: as one by one. A doubled column is refused."""
    make = (networks.bayesian, networks.markov, circuits.shared, circuits.structured)[int(rng.integers(4))]
    model: Model = make(rng).model
    names = shuffled(rng, len(model.domain))
    query = [model.domain.names[v] for v in names[: max(1, len(names) // 2)]]
    sizes: list[int] = model.domain.n_states.tolist()
    rows = [{model.domain.names[v]: int(rng.integers(sizes[v])) for v in names[len(query) :]} for _ in range(FEW)]
    return EdgeCase(lambda report: _check_frames(report, model, query, rows))


def _check_frames(report: CaseReport, model: Model, query: list[str], rows: list[dict[str, int]]) -> None:
    pandas: Any = import_module("pandas")
    ask: Any = map_query
    settings: dict[str, Any] = {"epsilon": 0.0, "delta": 0.0, "progress": False, "workers": 1, "max_nodes": 10_000}
    if rows[0]:
        frame = pandas.DataFrame(rows)
        for shared in (dict[str, Any](), {"executor": InPlace()}):
            found = ask(model, query, frame, rng=1, errors="keep", **settings, **shared)
            for row, result in zip(rows, found, strict=True):
                try:
                    alone = ask(model, query, row, rng=getattr(result, "seed", 0), **settings)
                except ImpossibleEvidence:
                    report.require(
                        getattr(result, "error", "") == "ImpossibleEvidence", "value", f"row {row}: {result}"
                    )
                    continue
                same = (result.assignment, result.log_prob, result.certificate) == (
                    alone.assignment, alone.log_prob, alone.certificate
                )  # fmt: skip
                report.require(same, "value", f"row {row} {shared}: {result.assignment}, alone {alone.assignment}")
        twice = pandas.concat([frame, frame.iloc[:, :1]], axis=1)
        _refused(report, lambda: ask(model, query, twice, **settings), "a frame with a doubled column")
    try:
        whole = ask(model, query, rng=1, solver="frontier", **settings)
    except CertimapError:
        return
    parted = ask(model, query, rng=1, solver="frontier", executor=InPlace(), top_k=None, **settings)
    if whole.certified and parted.certified and whole.log_joint is not None and parted.log_joint is not None:
        slack = 1e-9 * (2.0 + abs(whole.log_joint))
        near = abs(whole.log_joint - parted.log_joint) <= slack
        report.require(near, "value", f"shared out: {parted.log_joint!r}, alone {whole.log_joint!r}")
    report.require(whole.certified == parted.certified, "certificate", "a query is certified alone or shared only")


def _refused(report: CaseReport, ask: Callable[[], Any], what: str) -> None:
    try:
        ask()
    except QueryError:
        report.n_checks += 1
    else:
        report.fail("value", f"{what} is accepted")
