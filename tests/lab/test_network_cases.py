"""Where queries on networks come from: files of cases, folders of UAI instances, seeds."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import certimap
from certimap import io
from certimap_lab.bench.network_cases import evidence_pairs, load_network, read_cases, uai_cases
from certimap_lab.bench.parity import parity_network
from certimap_lab.bench.records import BenchError
from certimap_lab.bench.seeded import explanation_cases, parity_cases, seeded_cases

CHAIN = "MARKOV\n3\n2 2 2\n2\n2 0 1\n2 1 2\n4\n.9 .1 .2 .8\n4\n.7 .3 .4 .6\n"


def uai_folder(tmp_path: Path) -> Path:
    (tmp_path / "chain.uai").write_text(CHAIN)
    (tmp_path / "chain.uai.evid").write_text("1 2 1\n")
    with gzip.open(tmp_path / "chain.uai.query.gz", "wt") as file:
        file.write("1 0\n")
    return tmp_path


def network(n: int = 12) -> certimap.BayesianNetwork:
    """A chain of three states, some of them impossible."""
    names = [f"v{i}" for i in range(n)]
    rows = [[0.5, 0.5, 0.0], [0.1, 0.0, 0.9], [0.2, 0.3, 0.5]]
    tables = {name: rows if i else rows[0] for i, name in enumerate(names)}
    return certimap.BayesianNetwork.from_cpts(
        dict.fromkeys(names, ("a", "b", "c")), {names[i]: [names[i - 1]] for i in range(1, n)}, tables
    )


def test_a_folder_gives_a_case_per_network_with_its_evidence_and_query(tmp_path: Path) -> None:
    (case,) = uai_cases(uai_folder(tmp_path))
    assert (case.name, case.query, case.evidence, case.best_log_joint) == ("chain", ("0",), {"2": 1}, None)
    result = certimap.map_query(load_network(case), case.query, case.evidence, epsilon=0)
    assert result.assignment == {"0": 1}
    assert result.log_joint == pytest.approx(np.log(0.2 * 0.3 + 0.8 * 0.6))


@pytest.mark.parametrize(
    ("numbers", "pairs"), [([], []), ([0], []), ([1, 4, 2], [(4, 2)]), ([1, 2, 0, 1, 3, 0], [(0, 1), (3, 0)])]
)
def test_both_forms_of_evidence_files_are_read(numbers: list[int], pairs: list[tuple[int, int]]) -> None:
    assert evidence_pairs(numbers) == pairs


def test_what_is_no_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="expected one per instance"):
        uai_cases(tmp_path)
    with pytest.raises(BenchError, match="is no folder"):
        uai_cases(tmp_path / "absent")
    with pytest.raises(BenchError, match="is no file"):
        read_cases(tmp_path / "cases.json")
    for content in ("[]", "{", '{"cases": [{"id": "a"}]}', '{"cases": [3]}'):
        (tmp_path / "cases.json").write_text(content)
        with pytest.raises(BenchError, match="is no file of cases"):
            read_cases(tmp_path / "cases.json")
    (tmp_path / "cases.json").write_text('{"cases": [{"id": "a", "network": "nowhere"}]}')
    with pytest.raises(BenchError, match="has no network 'nowhere'"):
        read_cases(tmp_path / "cases.json")
    with pytest.raises(BenchError, match="'other' is no case"):
        uai_cases(_with_cases(tmp_path), ["other"])
    (tmp_path / "cases.json").unlink()
    (tmp_path / "chain.uai.evid").write_text("1 2 one\n")
    with pytest.raises(BenchError, match="more than whole numbers"):
        uai_cases(tmp_path)


def _with_cases(tmp_path: Path) -> Path:
    listed = [
        {"id": "all", "model": "chain.uai", "evidence": {"2": 1}, "best_log_joint": -1.0, "toulbar2_seconds": 2.5},
        {"id": "one", "network": "chain", "query": ["0"], "best_log_prob": -2.0, "proven_optimal": True},
    ]
    (uai_folder(tmp_path) / "cases.json").write_text(json.dumps({"cases": listed}))
    return tmp_path


def test_a_folder_with_a_file_of_cases_gives_those_with_their_references(tmp_path: Path) -> None:
    everything, one = uai_cases(_with_cases(tmp_path))
    assert (everything.query, everything.best_log_joint, everything.reference_seconds) == (None, -1.0, 2.5)
    assert not everything.proven
    assert (one.query, one.best_log_joint, one.proven, one.network_name) == (("0",), -2.0, True, "chain")
    assert [c.name for c in read_cases(tmp_path / "cases.json", ["one"])] == ["one"]


def test_seeded_queries_are_possible_and_the_same_every_time(tmp_path: Path) -> None:
    model = network(40)
    io.write(model, tmp_path / "net.bif")
    cases = seeded_cases(tmp_path)
    assert [c.name for c in cases] == ["net-20q-0e", "net-20q-5e", "net-50q-0e", "net-50q-5e"]
    assert [(len(c.query or ()), len(c.evidence)) for c in cases] == [(8, 0), (8, 2), (20, 0), (20, 2)]
    for case in cases:
        assert not set(case.query or ()) & set(case.evidence)
        assert certimap.log_evidence(model, case.evidence) > -np.inf
    assert cases == seeded_cases(tmp_path)
    assert cases != seeded_cases(tmp_path, seed=1)
    assert seeded_cases(tmp_path, only=["net-50q-5e"]) == [cases[3]]
    with pytest.raises(BenchError, match="is no case"):
        seeded_cases(tmp_path, only=["link"])


def test_explanations_are_asked_for_with_nothing_and_with_a_tenth_observed(tmp_path: Path) -> None:
    model = network(40)
    io.write(model, tmp_path / "net.bif")
    cases = explanation_cases(tmp_path)
    assert [(c.name, c.query, len(c.evidence)) for c in cases] == [
        ("net-mpe-0e", None, 0),
        ("net-mpe-10e", None, 4),
    ]
    assert certimap.log_evidence(model, cases[1].evidence) > -np.inf
    assert cases == explanation_cases(tmp_path)
    assert cases != explanation_cases(tmp_path, seed=1)


def test_a_parity_code_has_the_words_that_its_checks_allow() -> None:
    model = parity_network("parity-12-3")
    checks = [f for f in model.factors if len(f.scope) == 6]
    assert len(checks) == 6  # three per bit, of six bits
    assert all(sum(i in f.scope for f in checks) == 3 for i in range(12))
    (case,) = parity_cases([12], n_words=1, seed=3)
    result = certimap.map_query(load_network(case), case.query, case.evidence, epsilon=0)
    received = [case.evidence[f"r{i}"] for i in range(12)]
    words = [
        word
        for word in itertools.product((0, 1), repeat=12)
        if all(sum(word[i] for i in f.scope) % 2 == 0 for f in checks)
    ]
    assert len(words) >= 2**6
    flips = min(sum(a != b for a, b in zip(word, received, strict=True)) for word in words)
    assert result.log_joint == pytest.approx(flips * np.log(0.08) + (12 - flips) * np.log(0.92))
    for name in ("parity-13-0", "parity-a-0", "parity-12"):
        with pytest.raises(BenchError, match="parity code"):
            parity_network(name)
