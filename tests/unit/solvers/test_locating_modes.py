"""Where modes are (`width` of frontier), and which peaks tie with the answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize

import certimap as cm
from certimap.errors import SolverError


def mixture(parts) -> cm.Circuit:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real(f"x{i}") for i in range(len(parts[0][1]))]))
    leaves = [
        builder.product(
            [builder.gaussian(i, float(m), float(s)) for i, (m, s) in enumerate(zip(means, sds, strict=True))]
        )
        for _, means, sds in parts
    ]
    builder.sum(leaves, [math.log(w) for w, _, _ in parts])
    return builder.build()


def random_parts(seed: int, n: int, k: int):
    rng = np.random.default_rng(seed)
    return list(
        zip(rng.dirichlet(np.ones(k)), rng.uniform(-1, 1, (k, n)), rng.uniform(0.5, 1.5, (k, n)), strict=True)
    )


@pytest.mark.parametrize("width", [0.1, 1e-3])
@pytest.mark.parametrize(("seed", "n", "k"), [(0, 1, 4), (1, 2, 6), (2, 3, 8), (3, 4, 8), (4, 2, 12), (5, 3, 3)])
def test_the_box_is_as_short_as_asked_and_holds_the_mode(seed: int, n: int, k: int, width: float) -> None:
    posterior = cm.condition(mixture(random_parts(seed, n, k)))
    result = cm.map_query(posterior, solver="frontier", width=width, rng=seed, time_limit=600)
    assert result.certified
    low, high = np.array(list(result.located.values())).T
    assert np.all(high - low <= width)
    start = np.array(list(result.assignment.values()))
    found = optimize.minimize(lambda x: -posterior.log_prob(x[None])[0], start, tol=1e-12)
    assert np.all((low - 1e-7 <= found.x) & (found.x <= high + 1e-7))
    rng = np.random.default_rng(seed)
    for _ in range(20):  # no climb from elsewhere ends outside, and higher
        again = optimize.minimize(lambda x: -posterior.log_prob(x[None])[0], rng.normal(size=n))
        assert -again.fun <= result.log_upper_bound + 1e-12
        if -again.fun > result.log_prob + 1e-12:
            assert np.all((low <= again.x) & (again.x <= high))


def test_full_covariances_and_labels_are_located_too() -> None:
    full = cm.GaussianMixture(
        [0.6, 0.4], [[0, 0], [0.5, 1]], [[[1, 0.7], [0.7, 1]], [[1, -0.4], [-0.4, 0.5]]], ["x", "y"]
    )
    result = cm.map_query(full, solver="frontier", width=0.01, rng=0)
    assert all(high - low <= 0.01 for low, high in result.located.values())
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Categorical("c", ("a", "b"))]))
    parts = [
        builder.product([builder.gaussian(0, m, s), builder.categorical(1, [math.log(p), math.log(1 - p)])])
        for m, s, p in ((0.0, 1.0, 0.7), (1.0, 0.4, 0.2))
    ]
    builder.sum(parts, [math.log(0.5)] * 2)
    result = cm.map_query(builder.build(), solver="frontier", width=0.01, rng=0)
    assert list(result.located) == ["x"]
    assert result.located["x"][0] <= result.assignment["x"] <= result.located["x"][1]
    assert result.to_dict()["located"]["x"] == pytest.approx(list(result.located["x"]))


def test_peaks_of_equal_height_are_a_tie_and_the_box_spans_them() -> None:
    model = mixture([(0.5, [-2.0], [1.0]), (0.5, [2.0], [1.0])])
    result = cm.map_query(model, rng=0)
    assert [tie["x0"] for tie in result.ties] == pytest.approx([-result.assignment["x0"]], abs=1e-6)
    assert "1 other peaks of the same height" in repr(result)
    located = cm.map_query(model, solver="frontier", width=0.01, rng=0, time_limit=600)
    low, high = located.located["x0"]
    assert -2.01 < low < -1.99 < 1.99 < high < 2.01
    four = mixture([(0.25, [a, b], [0.5, 0.5]) for a in (-2, 2) for b in (-2, 2)])
    assert len(cm.map_query(four, rng=0).ties) == 3


def test_one_peak_and_a_plateau_are_no_ties() -> None:
    assert cm.map_query(mixture([(0.5, [-0.9], [1.0]), (0.5, [0.9], [1.0])]), rng=0).ties is None
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.real("uniform", 0, 0.0, 1.0)
    assert cm.map_query(builder.build(), rng=0).ties is None
    assert cm.map_query(mixture([(0.4, [-2.0], [1.0]), (0.6, [2.0], [1.0])]), rng=0).ties is None


def test_no_width_of_states_and_none_that_is_not_positive() -> None:
    model = mixture([(1.0, [0.0], [1.0])])
    with pytest.raises(SolverError, match="width is -1"):
        cm.map_query(model, solver="frontier", width=-1.0)
    network = cm.BayesianNetwork.from_cpts({"a": ["x", "y"]}, {}, {"a": [0.3, 0.7]})
    with pytest.raises(SolverError, match="width is of real query variables"):
        cm.map_query(network, solver="frontier", width=1.0)


def test_reports_and_plots_speak_of_density(tmp_path) -> None:
    from certimap.core.summary import in_words_of_density
    from certimap.plots import plot_history

    result = cm.map_query(mixture([(0.5, [-0.9], [1.0]), (0.5, [0.9], [1.0])]), rng=0)
    assert "probab" not in repr(result)
    assert "probab" not in result._repr_html_()
    axes = plot_history(result)
    assert axes.get_ylabel() == "natural log of density"
    assert "probab" not in in_words_of_density("It is at least .9 times as probable as the most probable one.")
    assert "probab" not in str(result.explain())


def test_a_report_page_speaks_of_density(tmp_path) -> None:
    from certimap.cli.main import main

    mixture([(0.5, [-2.0], [1.0]), (0.5, [2.0], [1.0])]).write(tmp_path / "m.spn")
    answer, page = str(tmp_path / "answer.json"), tmp_path / "page.html"
    assert main(["solve", str(tmp_path / "m.spn"), "--rng", "0", "--explain", "-o", answer]) == 0
    assert main(["report", answer, "-o", str(page)]) == 0
    text = page.read_text()
    body = text[text.index("<h3>Question") : text.index("<h3>Where it came from")].lower()
    assert "density" in body
    assert "probab" not in body.replace("failure probability", "").replace("certain: ", "")
