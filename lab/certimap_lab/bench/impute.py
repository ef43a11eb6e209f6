"""How well missing cells are filled: MapImputer beside scikit-learn's imputers, on public tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.learn import datasets
from certimap_lab.bench.records import BenchError
from certimap_lab.bench.tabular import Cell, Table, number

Floats = NDArray[np.float64]
TWENTY = ("nltcs", "plants", "jester", "baudio", "mushrooms")
SHIPPED = ("digits", "iris", "wine", "breast_cancer", "diabetes")
TABLES = (*TWENTY, *SHIPPED)
METHODS = ("MapImputer", "MapImputer, cell by cell", "IterativeImputer", "KNNImputer", "mode or mean")
MAX_LEVELS = 20
DIGITS = (1, 1, 3, 3, 1)
SPREAD = 0.5 * float(np.log(2.0 * np.pi))


@dataclass(frozen=True)
class ImputePlan:
    """What is measured.

    Attributes
    ----------
    tables
        Names of `TWENTY` and `SHIPPED`.
    data_dir
        Where the former are; see `certimap.learn.datasets.load`.
    rows
        How many rows are filled, at most.
    hidden
        The share of cells that is hidden, completely at random.
    splits
        Choices of rows and of hidden cells, over which scores are averaged.
    """

    tables: tuple[str, ...] = TABLES
    data_dir: str | None = None
    rows: int = 600
    hidden: float = 0.2
    splits: int = 1
    seed: int = 0


@dataclass(frozen=True, eq=False)
class _Problem:
    """A table, what is hidden of it, and which of its columns hold numbers rather than states."""

    whole: Floats
    hidden: NDArray[np.bool_]
    is_number: NDArray[np.bool_]

    @property
    def spoiled(self) -> Floats:
        return np.where(self.hidden, np.nan, self.whole)


def run_impute(plan: ImputePlan, report: Callable[[str], None]) -> Table:
    """Fill each table by each method, and compare with what was hidden.

    Raises
    ------
    BenchError
        For an unknown table, or without scikit-learn.
    """
    unknown = [name for name in plan.tables if name not in TABLES]
    if unknown:
        raise BenchError(f"{unknown[0]!r} is no table; {', '.join(TABLES)} are")
    table = Table(
        "impute",
        f"Imputation of {100 * plan.hidden:.0f} % hidden cells",
        ("table", "method", "cells right, %", "rows right, %", "rms error", "log score", "CPU seconds"),
        notes=[
            f"Choices of rows and cells averaged over: {plan.splits}. Cells right: of the hidden ones in columns "
            f"of at most {MAX_LEVELS} numbers; rows right: all of these in a row. Rms error: of other columns, in "
            "standard deviations of the column. Log score: mean ln of the probability of hidden cells (in tables "
            "with numbers, of the density of a row's hidden cells, per cell, columns standardised).",
            "Bold: the best of a table.",
        ],
    )
    for name in plan.tables:
        scores: dict[str, Floats] = {}
        shape = ""
        for split in range(plan.splits):
            problem = _problem(name, plan, plan.seed + split)
            shape = f"{name} ({problem.whole.shape[0]} x {problem.whole.shape[1]})"
            for method in METHODS:
                own = np.array(_score(problem, method, plan.seed + split))
                scores[method] = scores.get(method, np.zeros(5)) + own / plan.splits
                report(f"{name} {method}: {own.round(4).tolist()}")
        every = np.array([scores[method] for method in METHODS]) * [1.0, 1.0, -1.0, 1.0, -1.0]
        top = np.where(np.isnan(every), -np.inf, every).max(axis=0)
        for method, ranked in zip(METHODS, every, strict=True):
            own = scores[method]
            cells = [
                Cell("--", None) if np.isnan(v) else number(float(v), digits, bold=k < 4 and bool(r >= t - 1e-9))
                for k, (v, r, t, digits) in enumerate(zip(own, ranked, top, DIGITS, strict=True))
            ]
            table.add(shape if method == METHODS[0] else "", method, *cells)
    return table


def _problem(name: str, plan: ImputePlan, seed: int) -> _Problem:
    """Take rows to fill, and hide cells."""
    rng = np.random.default_rng(seed)
    rows = _rows(name, plan.data_dir)
    whole = rows[rng.permutation(len(rows))][: plan.rows]
    whole = whole[:, whole.std(axis=0) > 0.0]
    is_number = np.array([len(np.unique(column)) > MAX_LEVELS for column in whole.T])
    return _Problem(whole, rng.random(whole.shape) < plan.hidden, is_number)


def _rows(name: str, data_dir: str | None) -> Floats:
    """Return a complete table; class labels of shipped tables are a column."""
    if name in TWENTY:
        data = datasets.load(name, data_dir)
        parts = [part for part in (data.train, data.validation, data.test) if part is not None]
        return np.concatenate(parts).astype(np.float64)
    try:
        shipped: Any = getattr(import_module("sklearn.datasets"), f"load_{name}")()
    except ImportError:
        raise BenchError("bench impute needs scikit-learn: pip install 'certimap[learn]'") from None
    return np.column_stack([shipped.data, shipped.target]).astype(np.float64)


def _score(problem: _Problem, method: str, seed: int) -> tuple[float, float, float, float, float]:
    """Return shares of cells and of rows (%), rms error, log score and processor seconds; NaN where none."""
    started = time.process_time()
    imputer = _imputer(method, seed)
    spoiled, whole, hidden = problem.spoiled, problem.whole, problem.hidden
    if imputer is None:
        filled = _plainly(problem)
    else:
        filled = np.asarray(imputer.fit(spoiled).transform(spoiled), np.float64)
    seconds = time.process_time() - started
    states: NDArray[np.bool_] = ~problem.is_number
    found = _snapped(filled, problem)[:, states]
    right, asked = found == whole[:, states], hidden[:, states]
    touched = asked.any(axis=1)
    cells = rows = rms = np.nan
    if states.any():
        cells = 100.0 * float(right[asked].mean())
        rows = 100.0 * float((right | ~asked)[touched].all(axis=1).mean())
    if problem.is_number.any():
        off: Floats = ((filled - whole) / whole.std(axis=0))[hidden & problem.is_number]
        rms = float(np.sqrt(np.mean(off**2)))
    return cells, rows, rms, _log_score(problem, imputer, method.endswith("by cell")), seconds


def _imputer(method: str, seed: int) -> Any:
    """Return an imputer; None for the plainest."""
    if method.startswith("MapImputer"):
        from certimap.ask.imputer import MapImputer

        point = "joint" if method == "MapImputer" else "mean"
        return MapImputer(point=point, max_levels=MAX_LEVELS, time_limit=10.0, random_state=seed)
    import_module("sklearn.experimental.enable_iterative_imputer")
    module: Any = import_module("sklearn.impute")
    if method == "IterativeImputer":
        return module.IterativeImputer(random_state=seed)
    return module.KNNImputer() if method == "KNNImputer" else None


def _plainly(problem: _Problem) -> Floats:
    """Fill states with the most frequent one, and numbers with their mean."""
    fills: list[float] = []
    for j in range(problem.whole.shape[1]):
        seen = _seen(problem.spoiled[:, j])
        known: list[float] = seen.tolist()
        fills.append(float(np.mean(seen)) if problem.is_number[j] else max(sorted(set(known)), key=known.count))
    return np.where(problem.hidden, fills, problem.whole)


def _seen(column: Floats) -> Floats:
    return column[~np.isnan(column)]


def _log_score(problem: _Problem, imputer: Any, probable: bool) -> float:
    """Return the mean log score of hidden cells, in nats; NaN without probabilities."""
    spoiled, whole, hidden = problem.spoiled, problem.whole, problem.hidden
    if imputer is None and problem.is_number.any():
        means: Floats = np.nanmean(spoiled, axis=0)
        sds: Floats = np.nanstd(spoiled, axis=0)
        scale: Floats = whole.std(axis=0)
        densities = -0.5 * ((whole - means) / sds) ** 2 - SPREAD - np.log(sds / scale)
        return float(np.mean(densities[hidden]))
    if imputer is None:
        seen: list[list[float]] = [_seen(spoiled[:, j]).tolist() for j in range(spoiled.shape[1])]
        counts = [{v: own.count(v) for v in set(own)} for own in seen]
        shares: list[float] = [
            ((counts[j].get(whole[i, j], 0) + 1.0) / (len(seen[j]) + len(counts[j])))
            for i, j in np.argwhere(hidden).tolist()
        ]
        return float(np.mean(np.log(shares)))
    if not probable:
        return np.nan
    from certimap.ask.cells import expected_cells
    from certimap.ask.inference import log_likelihood
    from certimap.learn.table import encode

    if problem.is_number.any():
        if imputer.domain_.n_states.any():
            return np.nan
        model = imputer.model_
        gained = log_likelihood(model, whole) - log_likelihood(model, spoiled)
        return float((gained.sum() + (np.log(whole.std(axis=0)) * hidden).sum()) / hidden.sum())
    points = encode(spoiled, imputer.domain_).points
    found = [expected_cells(model, imputer.domain_, points, 0) for model in imputer.models_]
    logs: list[Floats] = []
    for j, variable in enumerate(imputer.domain_.variables):
        own = np.mean([parts[j] for parts in found], axis=0)
        at = np.flatnonzero(hidden[:, j])
        known = [(row, variable.index(whole[row, j])) for row in at.tolist() if whole[row, j] in variable]
        logs.append(np.log([own[row, k] for row, k in known]))
    return float(np.concatenate(logs).mean())


def _snapped(filled: Floats, problem: _Problem) -> Floats:
    """Move what a method fills to the nearest value that occurs, in columns of states."""
    out = filled.copy()
    for j in np.flatnonzero(~problem.is_number).tolist():
        values = np.unique(problem.whole[:, j])
        out[:, j] = values[np.abs(filled[:, j, None] - values).argmin(axis=1)]
    return out
