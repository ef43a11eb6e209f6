"""Draws and real variables: counts are weighed like states, densities only under a promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import certimap as cm
from certimap.cli.main import main
from certimap.errors import SolverError
from certimap_lab.bench.theory_counts import count_cases, counts_table, draws_of, predicted


def laplace() -> cm.FunctionPosterior:
    return cm.FunctionPosterior(
        cm.Domain([cm.Real("x")]),
        lambda n, rng: rng.laplace(0, 1, (n, 1)),
        lambda x: -np.abs(x[:, 0]) - math.log(2.0),
    )


def count(kind: str, *parameters: float):
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("n")]))
    builder.real(kind, 0, *parameters)
    return cm.condition(builder.build())


@pytest.mark.parametrize(
    "case", [c for c in count_cases() if c.n in (4, 8, 16, 64)], ids=lambda c: f"{c.family} {c.n}"
)
def test_pac_on_counts_takes_the_draws_that_p_star_predicts(case) -> None:
    median, _ = draws_of(case, 15, 0)
    assert median == pytest.approx(predicted(case), rel=0.4, abs=3.0)


def test_certificates_of_counts_are_false_no_more_often_than_they_say() -> None:
    case = next(c for c in count_cases() if c.family.startswith("geometric") and c.n == 16)
    _, n_false = draws_of(case, 300, 1)
    assert stats.binom.sf(n_false - 1, 300, 0.1) > 1e-6


def test_the_table_of_counts_has_a_line_per_law() -> None:
    table = counts_table(1, 0)
    assert len(table.rows) == 12


def test_counts_have_masses_and_are_bounded_by_what_is_left() -> None:
    posterior = count("poisson", 2.5)
    assert posterior.facts.has_masses
    result = cm.map_query(posterior, solver="pac", epsilon=0.0, delta=0.0, rng=0)
    assert result.certificate.kind == "exact"
    assert result.certificate.rule == "residual"
    assert result.assignment == {"n": 2.0}
    assert cm.map_query(posterior, rng=0).certificate.kind == "exact"
    assert cm.forecast(posterior).draws is not None


@pytest.mark.parametrize("solver", ["pac", "smooth_pac", "paper_pac"])
def test_densities_without_a_promise_are_refused_with_alternatives(solver: str) -> None:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Categorical("c", ("a", "b"))]))
    builder.product([builder.gaussian(0, 0.0, 1.0), builder.categorical(1, [math.log(0.5)] * 2)])
    for model in (laplace(), cm.condition(builder.build())):
        with pytest.raises(SolverError, match=r"a density may exceed 1.*lipschitz=.*'frontier'.*'cells'"):
            cm.map_query(model, solver=solver, rng=0)


def test_auto_answers_what_it_cannot_certify() -> None:
    free = cm.map_query(laplace(), rng=0, max_samples=2000)
    assert abs(free.assignment["x"]) < 0.1
    assert free.certificate.kind == "none"
    bounded = cm.FunctionPosterior(
        cm.Domain([cm.Real("x", -1.0, 2.0)]),
        lambda n, rng: rng.uniform(-1, 2, (n, 1)),
        lambda x: -np.abs(x[:, 0] - 0.7),
    )
    found = cm.map_query(bounded, rng=0)
    assert found.solver == "soo"
    assert found.assignment["x"] == pytest.approx(0.7, abs=1e-6)


def test_a_promise_over_counts_is_refused() -> None:
    with pytest.raises(SolverError, match="is a count"):
        cm.map_query(count("poisson", 2.5), solver="smooth_pac", lipschitz=1.0, rng=0)


@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_the_draws_under_a_promise_are_said_beforehand(epsilon: float) -> None:
    bits = 1 / math.log(2.0)
    look = cm.forecast(laplace(), epsilon=epsilon, delta=0.05, lipschitz=bits)
    fewest, most = look.draws
    assert look.no_draws is None
    assert fewest == 1.0  # nothing bounds a density of one's own
    result = cm.map_query(
        laplace(), solver="smooth_pac", lipschitz=bits, radius=50.0, epsilon=epsilon, delta=0.05, rng=0
    )
    assert result.certificate.rule == "lipschitz"
    assert result.n_draws == pytest.approx(most, rel=0.2)
    assert cm.forecast(laplace()).draws is None
    assert "may exceed 1" in cm.forecast(laplace()).no_draws
    with pytest.raises(SolverError, match="positive number of bits"):
        cm.forecast(laplace(), lipschitz=-1.0)


def test_info_says_that_no_draws_suffice(tmp_path, capsys) -> None:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.gaussian(0, 0.0, 1.0)
    builder.build().write(tmp_path / "one.spn")
    assert main(["info", str(tmp_path / "one.spn"), "--query", "0"]) == 0
    assert "none suffice" in capsys.readouterr().out
