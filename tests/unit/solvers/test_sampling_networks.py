"""Queries on the public networks, against the best answers known."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest

import certimap as cm
from certimap.ask.api import map_query

NETWORKS = ("asia", "child", "insurance", "alarm", "hepar2", "pathfinder", "andes", "munin")
# Rows of the files add to 1 only within 1e-7, and reading renormalises them.
ROUNDING = 1e-6


def cases(shared_data: Path, network: str) -> list[dict]:
    listed = json.loads((shared_data / "networks" / "cases.json").read_text())["cases"]
    return [case for case in listed if case["network"] == network]


def load(shared_data: Path, network: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return cm.read(shared_data / "networks" / f"{network}.bif.gz")


@pytest.mark.parametrize("network", NETWORKS)
def test_answers_are_as_good_as_claimed(shared_data, network):
    model = load(shared_data, network)
    n_checked = 0
    for case in cases(shared_data, network):
        try:
            posterior = cm.condition(model, case["query"], case["evidence"], max_edges=3_000_000, solver="pac")
        except cm.ModelError:
            continue  # too wide to compile
        log_best = case["best_log_prob"]
        log_p_star = log_best - posterior.log_evidence
        if posterior.domain.log_size < math.log(2**14):
            solver, settings = "exhaustive", {"epsilon": 0.0, "delta": 0.0}
        elif log_p_star > math.log(1e-3):
            solver, settings = "pac", {"epsilon": 0.01, "delta": 1e-6}
        else:
            solver, settings = "auto", {"epsilon": 0.0, "delta": 0.0, "time_limit": 20.0}
        result = map_query(posterior, solver=solver, rng=0, **settings)
        certificate = result.certificate
        assert certificate.kind != "none", case["id"]
        assert result.log_joint >= log_best + math.log1p(-certificate.epsilon) - ROUNDING, case["id"]
        assert result.log_joint_upper_bound >= log_best - ROUNDING, case["id"]
        if case["proven_optimal"]:
            assert result.log_joint <= log_best + ROUNDING, case["id"]
        n_checked += 1
    assert n_checked
