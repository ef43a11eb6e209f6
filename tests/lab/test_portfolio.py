"""`certimap bench portfolio`: what counts as behind, and that its families make the queries that they name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from typer.testing import CliRunner

import certimap as cm
from certimap_lab.bench import portfolio as bench
from certimap_lab.bench.portfolio_models import FAMILIES, Asked, PortfolioCase, gates, ising, lattice, portfolio
from certimap_lab.cli.bench import app


def row(auto, part, limit=10.0):
    case = PortfolioCase("grid", "3x3", lambda: Asked(cm.read("examples/asia.bif")))
    return bench.Row(case, limit, (bench.Outcome("auto", *auto), bench.Outcome("wmb", *part)))


@pytest.mark.parametrize(
    ("auto", "part", "failures"),
    [
        ((-5.0, -4.0, 1.0), (-5.0, -4.0, 1.0), []),
        ((-5.0, -4.0, 1.0), (-4.9, -4.0, 1.0), ["answer"]),
        ((-5.0, -4.0, 1.0), (-5.0 + 4e-6, -4.0, 1.0), []),
        ((-5.0, -4.0, 1.0), (-9.0, -4.5, 1.0), ["bound"]),
        ((-5.0, -4.0, 1.0), (-9.0, -4.08, 1.0), []),
        ((-5.0, -4.99, 1.0), (-5.0, -5.0, 1.0), ["bound"]),
        ((-5.0, -5.0, 11.6), (-math.inf, math.inf, 0.1), ["late"]),
        ((-5.0, -5.0, 11.4), (-math.inf, math.inf, 0.1), []),
        ((-math.inf, math.inf, 0.1), (-5.0, -4.0, 0.1), ["answer", "bound"]),
    ],
)
def test_auto_is_behind_in_answers_bounds_or_time(auto, part, failures):
    assert row(auto, part).failures == failures


def test_tables_count_what_auto_is_behind_in():
    rows = [row((-5.0, -4.0, 1.0), (-4.9, -4.0, 1.0)), row((-5.0, -5.0, 3.2), (-5.0, -5.0, 1.0), limit=2.0)]
    first, second = bench.portfolio_tables(rows)
    assert "1 queries, auto behind in 1: 1 answers" in first.notes[0]
    assert "1 late" in second.notes[0]
    assert first.rows[0][-1] == "answer"


def test_each_family_makes_six_queries_whose_names_exist():
    cases = portfolio(seed=3)
    assert len(cases) == 6 * len(FAMILIES)
    for family in FAMILIES:
        asked = next(c for c in cases if c.family == family).make()
        names = set(asked.model.domain.names)
        assert names.issuperset(asked.query or names)
        assert names.issuperset(asked.evidence)


def test_models_are_what_their_names_say():
    assert len(lattice(3, 4)) == 17
    assert len(lattice(3, 4, wraps=True)) == 24
    attractive = ising(9, lattice(3, 3), 1, attracts=True)
    assert all(f.log_table[0, 0] >= f.log_table[0, 1] for f in attractive.factors if len(f.scope) == 2)
    asked = gates(5, 12, 2, n_seen=3)
    assert cm.map_query(asked.model, asked.query, asked.evidence, rng=0).log_joint > -np.inf


def test_a_family_is_run_from_the_shell():
    found = CliRunner().invoke(
        app, ["portfolio", "--only", "gates", "--solvers", "hbfs", "--limits", "20", "--quiet"]
    )
    assert found.exit_code == 0, found.output
    assert "6 queries, auto behind in 0" in found.output
    for wrong in (["--only", "none"], ["--limits", "soon"]):
        assert CliRunner().invoke(app, ["portfolio", *wrong]).exit_code == 2


def test_two_processes_report_the_first_queries_of_a_family_in_order():
    found = CliRunner().invoke(
        app,
        ["portfolio", "--only", "gates", "--solvers", "hbfs", "--limits", "20", "--most", "2", "--jobs", "2"],
    )
    assert found.exit_code == 0, found.output
    assert "2 queries, auto behind in 0" in found.output
    assert 0 < found.output.index("| gates 20/40") < found.output.index("| gates 25/75")
