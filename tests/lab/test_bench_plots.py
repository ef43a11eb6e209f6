"""Figures of results: what they draw, and what they say when they cannot."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from certimap.ask.api import map_query
from certimap.core.posterior import FunctionPosterior
from certimap.core.result import MapResult
from certimap.errors import MissingDependency, QueryError

plots = pytest.importorskip("certimap.plots")


def solve(**settings: Any) -> MapResult:
    """Run on ten binary variables."""
    n = 10
    place = 1 << np.arange(n)
    probabilities = np.random.default_rng(0).dirichlet(np.full(2**n, 0.3))

    def sample(count: int, rng: np.random.Generator) -> Any:
        drawn = rng.choice(2**n, size=count, p=probabilities)
        return ((drawn[:, None] & place) > 0).astype(np.int16)

    posterior = FunctionPosterior([2] * n, sample, lambda x: np.log(probabilities[x.astype(int) @ place]))
    return map_query(posterior, solver="pac", rng=0, progress=False, batch=5, **settings)


def test_history_shows_both_bounds(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    result = solve()
    for against in ("seconds", "n_draws", "n_evaluations"):
        ax = plots.plot_history(result, against=against)
        labels = [line.get_label() for line in ax.lines]
        assert labels[:2] == ["best found", "upper bound"]
    lower, upper = (np.asarray(line.get_ydata()) for line in ax.lines[:2])
    assert np.all(lower <= upper + 1e-9)
    assert lower[-1] == result.log_prob
    assert "within 0.01" in ax.get_title()
    ax.figure.savefig(tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 1000


def test_pareto_draws_one_line_a_result() -> None:
    pytest.importorskip("matplotlib")
    short, long = solve(max_samples=20), solve(max_samples=60)
    ax = plots.plot_pareto({"20 draws": short, "60 draws": long})
    assert [line.get_label() for line in ax.lines] == ["20 draws", "60 draws"]
    assert np.asarray(ax.lines[0].get_ydata())[0] > np.asarray(ax.lines[1].get_ydata())[0]
    assert len(plots.plot_pareto(short).lines) == 1


def test_what_cannot_be_drawn_is_said() -> None:
    pytest.importorskip("matplotlib")
    result = solve()
    with pytest.raises(QueryError, match="'draws'"):
        plots.plot_history(result, against="draws")
    result.history.clear()
    with pytest.raises(QueryError, match="no history"):
        plots.plot_history(result)


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    result = solve()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match=r"pip install 'certimap\[plot\]'"):
        plots.plot_history(result)
