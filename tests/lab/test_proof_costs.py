"""Proofs of recorded queries: what is asked, what is recorded, and how a stopped run goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest

import certimap as cm
from certimap import io
from certimap.testing.models import random_circuit
from certimap_lab.bench import proof_costs
from certimap_lab.bench.proof_costs import Limits, cost_tables, network_queries, twenty_queries, weigh
from certimap_lab.bench.records import BenchError, read_records


@pytest.fixture
def networks(tmp_path, examples):
    folder = tmp_path / "networks"
    folder.mkdir()
    (folder / "asia.bif").write_bytes((examples / "asia.bif").read_bytes())
    cases = [
        {"id": "a", "network": "asia", "query": ["lung", "bronc"], "evidence": {"xray": "yes"}},
        {"id": "b", "network": "asia", "query": ["tub"], "evidence": {}},
    ]
    (folder / "cases.json").write_text(json.dumps({"cases": cases}))
    return folder


def test_a_stopped_run_goes_on_where_it_was(tmp_path, networks):
    asked, told = list(network_queries(networks)), []
    weigh(tmp_path / "run", asked[:1], Limits(), told.append)
    records = weigh(tmp_path / "run", asked, Limits(), told.append)
    assert [line for line in told if line.startswith("[")] == [
        "[1/1] networks a: accepted",
        "[1/1] networks b: accepted",
    ]
    assert records == read_records(tmp_path / "run" / "proofs.jsonl")
    model = cm.read(networks / "asia.bif")
    for file in sorted((tmp_path / "run" / "files").iterdir()):
        assert cm.check(model, file)
    (table,) = cost_tables(records)
    assert table.rows[0][:5] == ["networks", "2", "2", "2", "2"]


def test_what_is_not_accepted_is_listed(tmp_path, networks, monkeypatch):
    real = proof_costs.check
    monkeypatch.setattr(proof_costs, "check", lambda model, path, time_limit: real(model, path, time_limit=1e-9))
    records = weigh(tmp_path / "run", list(network_queries(networks))[:1], Limits(), lambda _: None)
    table, missing = cost_tables(records)
    assert table.rows[0][4] == "0"
    assert missing.rows[0][:2] == ["networks a", "not checked in time"]


def test_queries_to_learned_models_are_those_of_the_benchmark(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("nltcs-learnspn", "nltcs-learnspn-large"):
        model = random_circuit(rng, cm.Domain.of_sizes([2] * 10), n_components=3)
        io.write(model, tmp_path / f"{name}.npz")
    asked = list(twenty_queries(tmp_path, 2))
    assert [item.name for item in asked[:5]] == [
        "nltcs-learnspn 20/80 #0",
        "nltcs-learnspn 50/50 #0",
        "nltcs-learnspn 20/50 #0",
        "nltcs-learnspn 50/30 #0",
        "nltcs-learnspn-large 20/80 #0",
    ]
    assert {item.group for item in asked} == {"learnspn", "learnspn-large"}
    assert len(asked) == 16
    _, variables, evidence, _ = asked[2].load()
    assert (len(variables), len(evidence)) == (2, 5)
    with pytest.raises(BenchError, match="holds no models"):
        next(twenty_queries(tmp_path / "empty", 1))
