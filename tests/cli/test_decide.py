"""`certimap decide`: policies on the shell, as text, JSON and pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from certimap.cli.main import main

OIL = str(Path(__file__).resolve().parents[2] / "examples/oil.xdsl")


def test_a_policy_with_what_it_hangs_on(capsys):
    assert main(["decide", OIL, "--information", "--strength"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "expected utility 22.5, of at most 22.5: exact"
    assert lines[1:3] == ["Test", "  -> yes"]
    assert "before Drill" in lines
    assert "  P(Oil=dry) = 0.5 in [0.4576, 0.6769] (proved: exact)" in lines


def test_json_holds_every_table(capsys):
    assert main(["decide", OIL, "--evidence", "Test=no", "--information", "--strength", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["expected_utility"] == pytest.approx(20.0)
    assert found["certificate"]["kind"] == "exact"
    assert list(found["tables"]) == ["Drill"]
    row = next(r for r in found["tables"]["Drill"] if r["known"]["Seismic"] == "none")
    assert row["choice"] == "yes"
    assert row["values"] == pytest.approx({"yes": 20.0, "no": 0.0})
    assert found["information"]["Drill"]["Oil"] == pytest.approx([35.0, 35.0])
    assert {"variable", "state", "given", "value", "low", "high"} <= found["strength"][0].keys()


def test_a_page(tmp_path, capsys):
    assert main(["decide", OIL, "--report", str(tmp_path / "oil.html")]) == 0
    page = (tmp_path / "oil.html").read_text(encoding="utf-8")
    assert "It is proved that no policy has more expected utility than this one: 22.5." in page
    assert "Decision Drill, for what is known" in page


def test_what_is_wrong_is_said_in_one_sentence(capsys):
    asia = str(Path(OIL).with_name("asia.bif"))
    for arguments, message in (
        ([asia], "has no decisions"),
        ([OIL, "--evidence", "Seismic=open"], "Seismic"),
        ([OIL, "--evidence", "Oil=gas"], "gas"),
        ([OIL, "--epsilon", "-1"], "epsilon is -1"),
    ):
        assert main(["decide", *arguments]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert len(told.splitlines()) == 1


def test_no_time_leaves_a_policy_and_a_bound(capsys):
    assert main(["decide", OIL, "--time-limit", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["expected_utility"] <= 22.5 <= found["upper_bound"]
