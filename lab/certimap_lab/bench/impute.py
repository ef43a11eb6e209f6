"""How often missing cells are filled rightly: MapImputer beside scikit-learn's imputers, on public tables."""

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
TWENTY = ("nltcs", "plants", "jester", "baudio")
SHIPPED = ("digits", "wine", "breast_cancer", "iris")
TABLES = ("nltcs", "plants", "digits", "wine")
METHODS = ("MapImputer", "IterativeImputer", "most frequent")
BINS = 8
MAX_LEVELS = 20
MAX_JUDGED = 5000


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
    jobs
        Processes of MapImputer.
    """

    tables: tuple[str, ...] = TABLES
    data_dir: str | None = None
    rows: int = 2000
    hidden: float = 0.2
    jobs: int = 2
    seed: int = 0


@dataclass(frozen=True, eq=False)
class _Problem:
    """A table, what is hidden of it, and a judge who has seen other rows of it in full."""

    whole: Floats
    hidden: NDArray[np.bool_]
    cuts: list[Floats | None]
    judge: Any

    def states(self, table: Floats) -> Floats:
        """Return states: values as they are, numbers that are cut as intervals."""
        columns = [
            table[:, j] if cut is None else np.searchsorted(cut, table[:, j], side="right").astype(np.float64)
            for j, cut in enumerate(self.cuts)
        ]
        return np.stack(columns, axis=1)


def run_impute(plan: ImputePlan, report: Callable[[str], None]) -> Table:
    """Fill each table by each method, and compare with what was hidden.

    Raises
    ------
    BenchError
        For an unknown table, or without scikit-learn.
    """
    unknown = [name for name in plan.tables if name not in (*TWENTY, *SHIPPED)]
    if unknown:
        raise BenchError(f"{unknown[0]!r} is no table; {', '.join((*TWENTY, *SHIPPED))} are")
    table = Table(
        "impute",
        f"Imputation of {100 * plan.hidden:.0f} % hidden cells",
        ("table", "method", "cells right, %", "rows right, %", "ln p of filled rows", "seconds"),
        notes=[
            "Cells right: of those hidden; a number is right in the right one of 8 intervals. Rows right: all "
            "hidden cells of a row. ln p: mean under a LearnSPN circuit learned from other rows, in nats.",
            "Bold: the best of a table.",
        ],
    )
    for name in plan.tables:
        problem, shape = _problem(name, plan)
        results = [_score(problem, method, plan) for method in METHODS]
        best = [max(result[k] for result in results) for k in range(3)]
        for method, (cells, rows, log_likelihood, seconds) in zip(METHODS, results, strict=True):
            scores = [(100.0 * cells, 1), (100.0 * rows, 1), (log_likelihood, 2)]
            at_best = [value >= top - 1e-9 for value, top in zip((cells, rows, log_likelihood), best, strict=True)]
            shown = [number(v, digits, bold=b) for (v, digits), b in zip(scores, at_best, strict=True)]
            label = f"{name} ({shape[0]} x {shape[1]})" if method == METHODS[0] else ""
            table.add(label, method, *shown, Cell(f"{seconds:.1f}", seconds))
            report(f"{name} {method}: {100 * cells:.1f} % of cells, {seconds:.1f} s")
    return table


def _problem(name: str, plan: ImputePlan) -> tuple[_Problem, tuple[int, ...]]:
    """Take rows to fill and other rows for the judge, and hide cells."""
    from certimap.learn import LearnSPN

    rng = np.random.default_rng(plan.seed)
    rows = _rows(name, plan.data_dir)
    rows = rows[rng.permutation(len(rows))]
    n = min(plan.rows, len(rows) // 2)
    whole, others = rows[:n], rows[n : n + MAX_JUDGED]
    cuts = [_cut(rows[:, j]) for j in range(rows.shape[1])]
    hidden = rng.random(whole.shape) < plan.hidden
    problem = _Problem(whole, hidden, cuts, None)
    both = problem.states(rows)
    domain = _domain(both)
    judge = LearnSPN(domain=domain, random_state=plan.seed, progress=False).fit(problem.states(others))
    return _Problem(whole, hidden, cuts, judge), whole.shape


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
    rows: Floats = np.column_stack([shipped.data, shipped.target]).astype(np.float64)
    return rows[:, rows.std(axis=0) > 0.0]


def _cut(values: Floats) -> Floats | None:
    if len(np.unique(values)) <= MAX_LEVELS:
        return None
    return np.unique(np.quantile(values, np.linspace(0.0, 1.0, BINS + 1)[1:-1]))


def _domain(states: Floats) -> Any:
    from certimap.core.domain import Categorical, Domain

    columns = [np.unique(states[:, j]).astype(int).tolist() for j in range(states.shape[1])]
    return Domain(Categorical(str(j), tuple(labels)) for j, labels in enumerate(columns))


def _score(problem: _Problem, method: str, plan: ImputePlan) -> tuple[float, float, float, float]:
    """Return shares of cells and of rows, mean ln p, and seconds."""
    spoiled = np.where(problem.hidden, np.nan, problem.whole)
    imputer = _imputer(method, plan)
    started = time.perf_counter()
    filled = np.asarray(imputer.fit_transform(spoiled), np.float64)
    seconds = time.perf_counter() - started
    filled = _snapped(filled, problem)
    truth, found = problem.states(problem.whole), problem.states(filled)
    right = (truth == found) | ~problem.hidden
    touched = problem.hidden.any(axis=1)
    log_likelihood = problem.judge.score(found[touched])
    return float(right[problem.hidden].mean()), float(right[touched].all(axis=1).mean()), log_likelihood, seconds


def _imputer(method: str, plan: ImputePlan) -> Any:
    if method == "MapImputer":
        from certimap.ask.imputer import MapImputer

        return MapImputer(bins=BINS, max_levels=MAX_LEVELS, n_jobs=plan.jobs, random_state=plan.seed)
    import_module("sklearn.experimental.enable_iterative_imputer")
    module: Any = import_module("sklearn.impute")
    if method == "IterativeImputer":
        return module.IterativeImputer(random_state=plan.seed)
    return module.SimpleImputer(strategy="most_frequent")


def _snapped(filled: Floats, problem: _Problem) -> Floats:
    """Move what a method fills to the nearest value that occurs, in columns that are not cut."""
    out = filled.copy()
    for j, cut in enumerate(problem.cuts):
        if cut is None:
            values = np.unique(problem.whole[:, j])
            out[:, j] = values[np.abs(filled[:, j, None] - values).argmin(axis=1)]
    return out
