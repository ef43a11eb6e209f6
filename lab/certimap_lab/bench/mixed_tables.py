"""Learned densities beside scikit-learn's, on tables that it ships: held-out rows, hidden cells filled in."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Domain, Real
from certimap.learn import FullMixture, LearnSPN, ProductMixture
from certimap_lab.bench.records import BenchError
from certimap_lab.bench.tabular import Cell, Table, number

Floats = NDArray[np.float64]
TABLES = ("iris", "wine", "diabetes", "breast_cancer")
OURS = {"gaussian_mixture": FullMixture, "mixture": ProductMixture, "learnspn": LearnSPN}
MAX_COMPONENTS = 8


def run_mixed_tables(
    tables: tuple[str, ...], hidden: float, n_filled: int, seed: int, report: Callable[[str], None]
) -> Table:
    """Learn from two thirds of each table, score the last third, and fill cells hidden there.

    Parameters
    ----------
    tables
        Names of `TABLES`.
    hidden
        The share of cells that is hidden, in the rows learned from (a second run) and in those that are filled.
    n_filled
        Rows that are filled at most.
    seed
        Of splits, cells and learners.
    report
        Told what is at work.

    Raises
    ------
    BenchError
        For an unknown table, or without scikit-learn.
    """
    unknown = [name for name in tables if name not in TABLES]
    if unknown:
        raise BenchError(f"{unknown[0]!r} is no table; {', '.join(TABLES)} are")
    out = Table(
        "mixed_tables",
        "Densities learned from tables",
        ("table", "method", "nats per row", f"nats, {100 * hidden:.0f} % hidden", "cells, rms", "CPU seconds"),
        notes=[
            "Nats per row: mean log density of held-out rows, columns standardised; then of a model learned with "
            "cells hidden. Cells: error of hidden cells of held-out rows, in standard deviations of the column; "
            "ours are joint modes (epsilon .05, 10 s per row). GaussianMixture: the best by its BIC.",
            "Bold: the best of a table.",
        ],
    )
    for name in tables:
        results = _results(name, hidden, n_filled, seed, report)
        best = [_best([row[k] for row in results.values()], k < 2) for k in range(3)]
        for method, (*values, seconds) in results.items():
            shown = [
                number(value, 2, bold=value is not None and value == top)
                for value, top in zip(values, best, strict=True)
            ]
            out.add(name if method == next(iter(results)) else "", method, *shown, Cell(f"{seconds:.1f}", seconds))
    return out


def _best(values: list[float | None], highest: bool) -> float | None:
    known = [v for v in values if v is not None]
    return (max if highest else min)(known) if known else None


def _results(
    name: str, hidden: float, n_filled: int, seed: int, report: Callable[[str], None]
) -> dict[str, tuple[float | None, float | None, float | None, float]]:
    """Return nats, nats with holes, error of cells and seconds of each method."""
    try:
        shipped: Any = import_module("sklearn.datasets")
    except ImportError:
        raise BenchError("bench mixed-tables needs scikit-learn: pip install 'certimap[learn]'") from None
    loaders = {
        "iris": shipped.load_iris,
        "wine": shipped.load_wine,
        "diabetes": shipped.load_diabetes,
        "breast_cancer": shipped.load_breast_cancer,
    }
    whole: Floats = np.asarray(loaders[name]().data, np.float64)
    rng = np.random.default_rng(seed)
    whole = whole[rng.permutation(len(whole))]
    whole = (whole - whole.mean(axis=0)) / whole.std(axis=0)
    cut = 2 * len(whole) // 3
    train, test = whole[:cut], whole[cut:]
    holes = np.where(rng.random(train.shape) < hidden, np.nan, train)
    asked = test[:n_filled]
    spoiled = np.where(rng.random(asked.shape) < hidden, np.nan, asked)
    domain = Domain(Real(str(j)) for j in range(whole.shape[1]))
    results: dict[str, tuple[float | None, float | None, float | None, float]] = {}
    for method, cls in OURS.items():
        report(f"{name}: {method}")
        started = time.process_time()
        learned = [cls(domain=domain, random_state=seed, progress=False).fit(rows) for rows in (train, holes)]
        error = _error(_modes(learned[1].model_, spoiled, seed), asked, spoiled)
        seconds = time.process_time() - started
        results[method] = (learned[0].score(test), learned[1].score(test), error, seconds)
    started = time.process_time()
    results["GaussianMixture"] = (_theirs(train, seed).score(test), None, None, time.process_time() - started)
    import_module("sklearn.experimental.enable_iterative_imputer")
    impute: Any = import_module("sklearn.impute")
    iterative = impute.IterativeImputer(random_state=seed)
    for title, imputer in (("IterativeImputer (BayesianRidge)", iterative), ("mean", impute.SimpleImputer())):
        started = time.process_time()
        filled = np.asarray(imputer.fit(holes).transform(spoiled), np.float64)
        results[title] = (None, None, _error(filled, asked, spoiled), time.process_time() - started)
    return results


def _theirs(train: Floats, seed: int) -> Any:
    mixture: Any = import_module("sklearn.mixture").GaussianMixture
    fits = [
        mixture(k, covariance_type=kind, random_state=seed).fit(train)
        for k in range(1, MAX_COMPONENTS + 1)
        for kind in ("full", "tied", "diag", "spherical")
    ]
    return min(fits, key=lambda fit: fit.bic(train))


def _modes(model: Any, spoiled: Floats, seed: int) -> Floats:
    """Fill the missing cells of each row with their certified joint mode."""
    from certimap.ask.api import map_query

    map_query(model, rng=seed, time_limit=60.0)  # loads compiled code
    filled = spoiled.copy()
    for row in filled:
        missing = np.flatnonzero(np.isnan(row)).tolist()
        if missing:
            seen = {str(j): float(x) for j, x in enumerate(row) if not np.isnan(x)}
            found = map_query(
                model, [str(j) for j in missing], seen, epsilon=0.05, time_limit=10.0, rng=seed
            ).assignment
            row[missing] = [found[str(j)] for j in missing]
    return filled


def _error(filled: Floats, truth: Floats, spoiled: Floats) -> float:
    hidden = np.isnan(spoiled)
    return float(np.sqrt(np.mean((filled[hidden] - truth[hidden]) ** 2)))
