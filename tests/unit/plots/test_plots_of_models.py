"""Figures of models and of the best answers: the numbers that they show, and that they are drawn."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import certimap as cm
from certimap import plots
from certimap.errors import QueryError
from certimap.testing import TablePosterior


def chain(n=5):
    """A chain whose odd variables are hidden in the queries below."""
    rng = np.random.default_rng(1)
    names = [f"x{i}" for i in range(n)]
    tables = {name: rng.dirichlet(np.ones(3), size=3 if i else None) for i, name in enumerate(names)}
    parents = {name: [before] for before, name in itertools.pairwise(names)}
    return cm.BayesianNetwork.from_cpts({name: ["a", "b", "c"] for name in names}, parents, tables)


def hidden_chain(n=40):
    """A hidden chain with one query variable per moment, whose regions hold sets of vectors."""
    rng = np.random.default_rng(2)
    tables = {f"z{i}": rng.dirichlet(np.ones(2), size=2 if i else None) for i in range(n)}
    tables |= {f"x{i}": rng.dirichlet(np.full(2, 5.0), size=2) for i in range(n)}
    parents = {f"z{i}": [f"z{i - 1}"] for i in range(1, n)} | {f"x{i}": [f"z{i}"] for i in range(n)}
    network = cm.BayesianNetwork.from_cpts({name: ["a", "b"] for name in tables}, parents, tables)
    return cm.condition(network, [f"x{i}" for i in range(n)], {})


def test_options_of_a_decision_are_drawn_for_what_is_known():
    values = np.array([[100.0, 60.0], [0.0, 70.0]])
    network = cm.DecisionNetwork.from_cpts(
        {"weather": ["dry", "rain"], "take": ["leave", "carry"]},
        {},
        {"weather": [0.7, 0.3]},
        {"take": "weather"},
        {"joy": (["weather", "take"], values)},
    )
    axes = cm.decide(network).plot()
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([100.0, 0.0, 60.0, 70.0])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["weather=dry", "weather=rain"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["leave", "carry"]


def random_mixture(n=12, n_parts=20):
    rng = np.random.default_rng(3)
    build = cm.CircuitBuilder(cm.Domain.of_sizes([2] * n))
    parts = [
        build.product([build.categorical(i, np.log(p)) for i, p in enumerate(rng.dirichlet([20, 20], n))])
        for _ in range(n_parts)
    ]
    build.sum(parts, np.log(rng.dirichlet([1.0] * n_parts)))
    return build.build()


def test_bounds_start_with_the_first_answer_and_end_with_the_result():
    result = cm.map_query(chain(), ["x0", "x4"], solver="pac", rng=0)
    for against in ("seconds", "n_draws", "n_evaluations"):
        series = plots.bound_series(result, against)
        assert len(series.x) == len(series.lower) == len(series.upper) == len(series.open_mass)
        assert series.lower[-1] == result.log_prob
        assert series.x == sorted(series.x)


def test_bounds_against_boxes():
    result = cm.map_query(random_mixture(), solver="frontier", epsilon=0, delta=0, rng=0)
    series = plots.bound_series(result, "n_nodes")
    assert series.x == sorted(series.x)
    assert series.x[-1] > 1
    assert series.x[-1] == result.history[-1].n_nodes == result.history_columns()["n_nodes"][-1]
    drawn = cm.map_query(chain(), ["x0", "x4"], solver="pac", rng=0)
    with pytest.raises(
        QueryError, match=r"the run of pac searched no boxes; expected a search such as 'frontier'"
    ):
        plots.bound_series(drawn, "n_nodes")
    with pytest.raises(
        QueryError, match=r"against is 'hours'; expected seconds, n_draws, n_nodes or n_evaluations"
    ):
        plots.bound_series(drawn, "hours")


def test_an_answer_is_found_no_later_than_it_is_certified():
    for solver, settings in (("pac", {"epsilon": 0.3}), ("frontier", {"epsilon": 0.0})):
        result = cm.map_query(chain(), ["x0", "x4"], solver=solver, rng=0, **settings)
        found = plots.moments(result, "n_evaluations")
        assert found.certified is not None
        assert found.found <= found.certified <= result.n_evaluations
    uncertified = cm.map_query(chain(), ["x0", "x4"], solver="max_product", rng=0)
    assert uncertified.certified or plots.moments(uncertified).certified is None


def test_the_ranking_lists_differences_alone():
    result = cm.map_query(chain(), ["x0", "x2"], top_k=4, rng=0)
    ranks = plots.ranking(result)
    assert ranks[0].changes == {}
    for rank, (assignment, log_prob) in zip(ranks, result.top, strict=True):
        assert rank.log_prob == log_prob
        assert {**result.assignment, **rank.changes} == assignment
        assert not rank.changes.items() & result.assignment.items()
    with pytest.raises(QueryError, match="top_k"):
        plots.ranking(cm.map_query(chain(), ["x0"], rng=0))


def test_a_network_is_laid_out_in_layers_with_roles(examples):
    network = cm.read(examples / "asia.bif")
    evidence = {"xray": "yes"}
    result = cm.map_query(network, ["lung", "bronc"], evidence, rng=0)
    graph = plots.network_graph(network, result, evidence)
    assert set(graph.places) == set(network.domain.names)
    assert len(set(graph.places.values())) == len(network.domain)
    assert graph.directed
    assert all(graph.places[parent][1] > graph.places[child][1] for parent, child in graph.edges)
    assert len(graph.edges) == sum(len(p) for p in network.parents)
    assert graph.roles["xray"] == "evidence"
    assert graph.labels["xray"] == "yes"
    assert {n for n, role in graph.roles.items() if role == "answer"} == {"lung", "bronc"}


def test_a_circuit_is_counted():
    domain = cm.Domain([cm.Categorical("a", ("0", "1")), cm.Real("b")])
    builder = cm.CircuitBuilder(domain)
    products = [
        builder.product([builder.categorical(0, [math.log(p), math.log(1 - p)]), builder.gaussian(1, p, 1.0)])
        for p in (0.2, 0.6)
    ]
    builder.sum(products, [math.log(0.5)] * 2)
    summary = plots.circuit_summary(builder.build())
    assert summary.kinds == {"product": 2, "sum": 1, "categorical leaf": 2, "gaussian leaf": 2}
    assert summary.layers == [4, 2, 1]
    assert (summary.n_nodes, summary.n_edges, summary.n_variables) == (7, 6, 2)


def test_sets_of_a_region_tree_are_counted():
    posterior = hidden_chain()
    series = plots.region_series(posterior, time_limit=None)
    n = posterior.region_tree.n_regions
    assert len(series.parent) == len(series.names) == len(series.set_sizes) == len(series.places) == n
    assert {name for name in series.names if name} == {f"x{i}" for i in range(40)}
    assert max(series.set_sizes) >= 1
    assert len(set(series.places)) == n
    for r, p in enumerate(series.parent):
        assert p == -1 or series.places[p][1] == series.places[r][1] + 1.0


def test_each_figure_is_drawn(examples, tmp_path):
    pytest.importorskip("matplotlib")
    network = cm.read(examples / "asia.bif")
    result = cm.map_query(network, None, {"xray": "yes"}, top_k=3, rng=0)
    by_draws = cm.map_query(network, None, {"xray": "yes"}, solver="pac", rng=0)
    leaf = cm.CircuitBuilder(network.domain)
    leaf.product([leaf.categorical(i, [math.log(0.5)] * 2) for i in range(len(network.domain))])
    posterior = hidden_chain()
    figures = {
        "network": plots.plot_network(network, result, {"xray": "yes"}),
        "top": plots.plot_top(result),
        "moments": plots.plot_moments({"exact": result, "draws": by_draws}),
        "circuit": plots.plot_circuit(leaf.build()),
        "regions": plots.plot_region_tree(plots.region_series(posterior)),
    }
    for name, ax in figures.items():
        ax.figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 2000
    assert len(figures["top"].texts) == 3
    names = {text.get_text().split("\n")[0] for text in figures["network"].texts}
    assert set(network.domain.names) <= names


def test_regret_falls_to_nothing_where_the_optimum_is_proved():
    posterior = TablePosterior([4, 4], np.arange(1.0, 17.0))
    drawn = cm.map_query(posterior, solver="pac", epsilon=0, delta=0, rng=0, batch=1, max_samples=5000)
    series = plots.regret_series(drawn)
    assert drawn.certificate.kind == "exact"
    assert series.bits[-1] == 0.0
    assert all(a >= b for a, b in itertools.pairwise(series.bits))
    best = float(np.max(posterior.probs))
    assert series.bits[0] == pytest.approx((math.log(best) - drawn.history[1].log_prob) / math.log(2))
    assert plots.plot_regret({"draws": drawn}).get_lines()
    with pytest.raises(QueryError, match="needs an exact one"):
        plots.regret_series(cm.map_query(posterior, solver="budget", rng=0, max_samples=2))
