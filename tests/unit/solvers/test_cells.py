"""The most probable cell: masses against those of boxes, answers against enumeration, what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

import certimap as cm
from certimap.cli.main import main
from certimap.core.box import Boxes, Layout
from certimap.errors import SolverError
from certimap.solvers.baselines.cells import BoxMasses, domain_of_cells, grid_edges, quantile_edges
from certimap.solvers.registry import make

KINDS = (
    ("gaussian", (0.3, 0.7)),
    ("truncated_gaussian", (0.0, 1.0, -0.5, 2.0)),
    ("uniform", (-1.0, 1.5)),
    ("exponential", (1.3,)),
    ("laplace", (0.2, 0.6)),
    ("student_t", (0.1, 0.5, 2.5)),
)
COUNTS = (("poisson", (3.0,)), ("geometric", (0.4,)))


def mixed_model(seed: int, n_parts: int = 4) -> cm.Circuit:
    """Two densities, a count and a label."""
    rng = np.random.default_rng(seed)
    builder = cm.CircuitBuilder(
        cm.Domain([cm.Real("x"), cm.Categorical("c", ("a", "b", "c")), cm.Real("y"), cm.Real("n")])
    )
    parts = []
    for _ in range(n_parts):
        leaves = [builder.categorical(1, np.log(rng.dirichlet(np.ones(3))).tolist())]
        for variable, kinds in ((0, KINDS), (2, KINDS), (3, COUNTS)):
            kind, parameters = kinds[rng.integers(len(kinds))]
            leaves.append(builder.real(kind, variable, *parameters))
        parts.append(builder.product(leaves))
    builder.sum(parts, np.log(rng.dirichlet(np.ones(n_parts))).tolist())
    return builder.build()


def boxes_of(domain: cm.Domain, cells: cm.Domain, points: np.ndarray) -> Boxes:
    """Return the boxes that points of the cells stand for."""
    boxes = Boxes.full(domain, len(points))
    for row, point in enumerate(points):
        for i, variable in enumerate(domain):
            if isinstance(variable, cm.Real):
                boxes.low[row, i], boxes.high[row, i] = cells.variables[i].states[int(point[i])]
            else:
                columns = slice(domain.offsets[i], domain.offsets[i + 1])
                boxes.mask[row, columns] = np.arange(variable.n_states) == point[i]
    return boxes


def all_cells(cells: cm.Domain) -> np.ndarray:
    return (
        np.stack(np.meshgrid(*map(np.arange, cells.n_states), indexing="ij"), -1)
        .reshape(-1, len(cells))
        .astype(np.int16)
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("partition", ["grid", "quantiles"])
def test_cells_have_the_masses_of_their_boxes(seed: int, partition: str) -> None:
    posterior = cm.condition(mixed_model(seed), evidence={"y": (-0.4, 1.2)} if seed % 2 else None)
    layout, rng = posterior.prober().layout, np.random.default_rng(seed)
    edges = (
        quantile_edges(posterior, layout, 5, rng)
        if partition == "quantiles"
        else grid_edges(posterior, layout, 5, None, rng)
    )
    cells, by_variable = domain_of_cells(posterior.domain, edges)
    cut, points = posterior.cut(cells, by_variable), all_cells(cells)
    found, masses = cut.log_prob(points), posterior.log_mass(boxes_of(posterior.domain, cells, points))
    assert np.exp(found) == pytest.approx(np.exp(masses), rel=1e-9, abs=1e-300)
    assert math.fsum(np.exp(found)) == pytest.approx(1.0, abs=1e-10)
    assert cut.facts.log_evidence == posterior.facts.log_evidence
    assert cut.facts.has_masses
    assert not cut.facts.is_density


def test_edges_are_quantiles_and_grids_have_the_width_asked_for() -> None:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.sum([builder.gaussian(0, 1e6, 2.0), builder.gaussian(0, -3.0, 0.1)], [math.log(0.5)] * 2)
    posterior, rng = cm.condition(builder.build()), np.random.default_rng(0)
    (edges,) = quantile_edges(posterior, Layout.of(posterior.domain), 8, rng)
    assert edges[[0, -1]].tolist() == [-math.inf, math.inf]
    expected = stats.norm.ppf(np.array([1, 2, 3]) / 4)
    assert edges[1:4] == pytest.approx(-3.0 + 0.1 * expected, abs=1e-6)
    assert edges[5:8] == pytest.approx(1e6 + 2.0 * expected, abs=1e-6)
    (edges,) = grid_edges(posterior, Layout.of(posterior.domain), 8, 1e4, rng)
    assert np.diff(edges[1:-1]) == pytest.approx(1e4)
    with pytest.raises(SolverError, match="cells of width"):
        grid_edges(posterior, Layout.of(posterior.domain), 8, 0.01, rng)


@pytest.mark.parametrize("partition", ["grid", "quantiles"])
def test_cells_end_where_the_evidence_does(partition: str) -> None:
    result = cm.map_query(mixed_model(1), None, {"y": (-0.4, 0.2)}, solver="cells", partition=partition, rng=0)
    found = result.assignment["y"]
    assert -0.4 <= found.low < found.high <= 0.2


def test_counts_are_parted_between_whole_numbers() -> None:
    posterior = cm.condition(mixed_model(1))
    edges = quantile_edges(posterior, posterior.prober().layout, 6, np.random.default_rng(0))[2]
    assert np.all(edges[1:-1] % 1.0 == 0.5)


@pytest.mark.parametrize("settings", [{}, {"partition": "quantiles"}, {"partition": "tree", "n_cells": 60}])
@pytest.mark.parametrize("seed", range(6))
def test_the_most_probable_cell_is_found_and_certified(seed: int, settings: dict) -> None:
    settings = {"n_cells": 6, **settings}
    posterior = cm.condition(mixed_model(seed))
    solver = make("cells", **settings)
    asked = solver.posed(posterior, np.random.default_rng([seed, 2]))
    best = float(np.max(asked.log_prob(all_cells(asked.domain))))
    for by in ("auto", "frontier", "pac") if settings.get("partition") != "tree" else ("auto", "pac"):
        result = cm.map_query(posterior, solver="cells", by=by, rng=seed, epsilon=0.1, **settings)
        assert result.certified
        assert result.log_upper_bound >= best - 1e-9
        assert result.log_prob <= best + 1e-9
        if by != "pac":
            assert result.log_prob == pytest.approx(best, abs=0.11)
        boxes = Boxes.full(posterior.domain)
        for i, (name, label) in enumerate(result.assignment.items()):
            if isinstance(posterior.domain[name], cm.Real):
                boxes.low[0, i], boxes.high[0, i] = label
            else:
                states = label if isinstance(label, tuple) else (label,)
                columns = slice(posterior.domain.offsets[i], posterior.domain.offsets[i + 1])
                boxes.mask[0, columns] = [state in states for state in posterior.domain[name].states]
        assert posterior.log_mass(boxes)[0] == pytest.approx(result.log_prob, abs=1e-9)
        assert not result.is_density


def test_draws_that_grew_a_tree_never_count() -> None:
    posterior = cm.condition(mixed_model(3))
    result = cm.map_query(posterior, solver="cells", partition="tree", n_draws=5000, rng=0)
    assert result.n_draws == 0
    asked = make("cells", partition="tree").posed(posterior, np.random.default_rng(0))
    assert isinstance(asked, BoxMasses)
    assert math.fsum(np.exp(asked.log_masses)) == pytest.approx(1.0, abs=1e-10)


def test_certificates_by_draws_are_false_no_more_often_than_they_say() -> None:
    posterior = cm.condition(mixed_model(5))
    asked = make("cells", n_cells=4).posed(posterior, np.random.default_rng([0, 2]))
    best = float(np.max(asked.log_prob(all_cells(asked.domain))))
    false = 0
    for seed in range(100):
        result = cm.map_query(posterior, solver="cells", by="pac", n_cells=4, epsilon=0.0, delta=0.2, rng=seed)
        false += result.log_prob < best - 1e-6  # where the grid begins depends on the seed in its last digits
    assert stats.binom.sf(false - 1, 100, 0.2) > 1e-6


def test_answers_are_intervals_everywhere(tmp_path, capsys) -> None:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Categorical("c", ("a", "b"))]))
    parts = [
        builder.product(
            [builder.gaussian(0, float(m), 1.0), builder.categorical(1, [math.log(p), math.log(1 - p)])]
        )
        for m, p in ((0, 0.2), (5, 0.9))
    ]
    builder.sum(parts, [math.log(0.4), math.log(0.6)])
    model = builder.build()
    result = cm.map_query(model, solver="cells", width=1.0, rng=0)
    low, high = result.assignment["x"]
    assert high - low == pytest.approx(1.0)
    assert low < 5.0 < high
    assert json.loads(result.to_json())["assignment"] == {"x": [low, high], "c": "a"}
    assert f"[{low:.6g}, {high:.6g}]" in repr(result)
    assert "probability" in repr(result)
    model.write(tmp_path / "two.spn")
    assert main(["solve", str(tmp_path / "two.spn"), "--solver", "cells", "--set", "width=1.0", "--rng", "0"]) == 0
    assert f"[{low:.6g}, {high:.6g}]" in capsys.readouterr().out


def test_what_cells_cannot_answer_is_refused_in_a_sentence() -> None:
    model = mixed_model(0)
    with pytest.raises(SolverError, match="the query has none"):
        cm.map_query(model, ["c"], solver="cells")
    with pytest.raises(SolverError, match="answers another one"):
        cm.map_query(model, solver="cells", upper_bound={"source": "x", "log_prob": 0.0})
    with pytest.raises(SolverError, match="width names no value for variable 'y'"):
        cm.map_query(model, solver="cells", width={"x": 1.0})
    for settings, words in (
        ({"partition": "voronoi"}, "expected 'grid'"),
        ({"width": -1.0}, "width is -1.0"),
        ({"width": 1.0, "radius": 1.0}, "one of them"),
        ({"partition": "tree", "width": 1.0}, "grids"),
        ({"n_cells": 1}, r"in \[2, inf\)"),
    ):
        with pytest.raises(SolverError, match=words):
            cm.map_query(model, solver="cells", **settings)
    full = cm.GaussianMixture([1.0], [[0.0, 0.0]], [[[1.0, 0.5], [0.5, 1.0]]])
    with pytest.raises(SolverError, match="use solver='frontier'"):
        cm.map_query(full, solver="cells")
    assert "no answer of solver 'cells'" in str(
        cm.map_query(model, solver="cells", n_cells=3, proof=True, rng=0).no_proof
    )
