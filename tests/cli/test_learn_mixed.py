"""`certimap learn` on tables as they are: missing cells, real, count and categorical columns, answers in units."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from certimap.cli.main import main


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two kinds of machines: hours, grams, a count of faults, a site; a tenth of the cells is missing."""
    rng = np.random.default_rng(0)
    old = rng.random(400) < 0.5
    columns = {
        "hours": np.where(old, rng.normal(52_000.0, 1_500.0, 400), rng.normal(8_000.0, 900.0, 400)).round(1),
        "grams": np.where(old, rng.normal(0.0021, 0.0001, 400), rng.normal(0.0009, 0.0001, 400)).round(6),
        "faults": rng.poisson(np.where(old, 45.0, 6.0)),
        "site": np.where(rng.random(400) < np.where(old, 0.9, 0.2), "north", "south"),
    }
    lines = [",".join(columns)]
    for row in zip(*columns.values(), strict=True):
        cells = [str(cell) if rng.random() > 0.1 else "" for cell in row]
        lines.append(",".join(cells))
    path = tmp_path / "machines.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def solved(model: Path, capsys, *arguments: str) -> tuple[dict, str]:
    """Return the assignment that `solve` finds, and what it prints without --json."""
    capsys.readouterr()
    assert main(["solve", str(model), *arguments, "--rng", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["solve", str(model), *arguments, "--rng", "0"]) == 0
    return found, capsys.readouterr().out


@pytest.mark.parametrize("method", ["mixture", "learnspn", "hclt"])
def test_mixed_columns_with_missing_cells(method, table, tmp_path, capsys):
    model = tmp_path / "model.npz"
    arguments = [str(table), "-o", str(model), "--method", method, "--rng", "0", "--test", str(table)]
    arguments += ["--set", "n_components=3"] if method == "mixture" else []
    assert main(["learn", *arguments]) == 0
    err = capsys.readouterr().err
    assert np.isfinite(float(re.search(r"mean log-likelihood (\S+) nats", err)[1]))
    found, shown = solved(model, capsys, "--query", "hours,faults", "--evidence", "site=south,grams=0.0009")
    assert found["assignment"]["hours"] == pytest.approx(8_000.0, abs=700.0)
    assert found["assignment"]["faults"] == pytest.approx(6.0, abs=3.0)
    assert found["is_density"] is True
    assert "density" in shown
    assert re.search(r"hours\s+=\s+[78]\d\d\d", shown)
    found, shown = solved(model, capsys, "--query", "site", "--evidence", "hours=52000")
    assert found["assignment"] == {"site": "north"}
    assert "probability" in shown


def test_full_covariances_with_missing_cells(table, tmp_path, capsys):
    model = tmp_path / "model.npz"
    lines = [line.split(",") for line in table.read_text().splitlines()]
    table.write_text("".join(",".join(line[:3]) + "\n" for line in lines if any(line[:3])))
    arguments = [str(table), "-o", str(model), "--method", "gaussian-mixture", "--rng", "0"]
    assert main(["learn", *arguments, "--set", "n_components=2"]) == 0
    found, _ = solved(model, capsys, "--query", "hours,grams", "--evidence", "faults=45", "--epsilon", "0.01")
    assert found["assignment"]["hours"] == pytest.approx(52_000.0, abs=1_000.0)
    assert found["assignment"]["grams"] == pytest.approx(0.0021, abs=1e-4)
    assert found["certificate"]["kind"] in ("exact", "epsilon")
    given = tmp_path / "given.json"
    given.write_text('{"faults": [40, 60]}')
    found, _ = solved(model, capsys, "--query", "hours", "--evidence-file", str(given), "--epsilon", "0.01")
    assert found["assignment"]["hours"] == pytest.approx(52_000.0, abs=1_000.0)


def test_a_column_of_labels_is_refused_for_full_covariances(table, tmp_path, capsys):
    model = tmp_path / "model.npz"
    assert main(["learn", str(table), "-o", str(model), "--method", "gaussian-mixture"]) == 2
    assert "column 'site' is categorical" in capsys.readouterr().err
    assert not model.exists()
