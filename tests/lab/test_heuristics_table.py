"""What heuristics are worth: the command that measures it, on circuits small enough to list."""

from __future__ import annotations

import pytest

from certimap.cli.main import main
from certimap_lab.bench.heuristics import HeuristicsPlan, heuristics_table, run_heuristics

pytestmark = pytest.mark.filterwarnings("error")


def test_gaps_are_to_the_optimum_and_never_negative():
    plan = HeuristicsPlan(n_random=2, solvers=("independent", "beam"))
    records = run_heuristics(plan)
    assert [r["solver"] for r in records] == ["independent", "beam"] * 2
    assert all(r["gap"] >= 0.0 for r in records)
    assert all(r["gap"] < 1e-8 for r in records if r["solver"] == "beam")
    table = heuristics_table(records)
    assert [row[0] for row in table.rows] == ["independent", "beam"]
    assert "2 random circuits" in table.notes[0]


def test_the_command_takes_names_and_refuses_others(capsys):
    assert main(["bench", "heuristics", "--circuits", "1", "--solvers", "max_product", "--quiet"]) == 0
    assert "| max_product |" in capsys.readouterr().out
    assert main(["bench", "heuristics", "--circuits", "1", "--solvers", "max_produkt", "--quiet"]) == 2
    assert "max_product" in capsys.readouterr().err
