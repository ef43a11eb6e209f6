"""Proof files: what they hold, who writes them, and what the command line makes of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof, check_arrays
from certimap.checker import models as checker_models
from certimap.cli.main import main
from certimap.io.native import exported, fingerprint
from certimap.testing.models import random_circuit
from certimap_lab.proofs import random_case, solved


@pytest.fixture
def alarm(examples):
    return cm.read(examples / "alarm.bif")


def test_a_proof_survives_its_file(tmp_path, alarm):
    result = cm.map_query(alarm, epsilon=0, delta=0, proof=True)
    result.proof.write(tmp_path / "a.npz")
    verdict = cm.check(alarm, tmp_path / "a.npz")
    assert verdict.accepted
    assert verdict.message.startswith("accepted: no assignment is more probable")
    assert verdict.log_joint == pytest.approx(result.log_joint, abs=1e-9)
    assert verdict.log_joint <= result.log_joint
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
    assert "proof" not in result.to_dict()


@pytest.mark.parametrize("cut", [0, 1, 20, 200, -1, -30])
def test_a_damaged_file_is_no_proof(tmp_path, alarm, cut):
    data = cm.map_query(alarm, epsilon=0, delta=0, proof=True).proof.to_bytes()
    with pytest.raises(cm.ParseError):
        Proof.from_bytes(data[:cut])


def test_pickled_objects_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", meta=np.array([{"format": "certimap-proof"}], object))
    with pytest.raises(cm.ParseError):
        Proof.read(tmp_path / "a.npz")


@pytest.mark.parametrize("seed", range(4))
def test_the_checker_takes_fingerprints_by_itself(seed):
    model = random_case(seed).model
    kind, variables, arrays, hidden = exported(model)
    assert checker_models.fingerprint(kind, variables, arrays, hidden) == fingerprint(model)


def test_one_digit_of_the_model_is_another_model(alarm):
    proof = cm.map_query(alarm, epsilon=0, delta=0, proof=True).proof
    kind, variables, arrays, hidden = exported(alarm)
    tables = arrays["tables"].copy()
    tables[0] = np.nextafter(tables[0], 1.0)
    verdict = check_arrays(kind, variables, {**arrays, "tables": tables}, proof, hidden=hidden)
    assert verdict.message == "rejected: the proof is about another model: the fingerprints differ"


@pytest.mark.parametrize("seed", range(6))
def test_exact_numbers_agree(seed):
    case = random_case(seed)
    result = solved(case, "auto")
    verdict = cm.check(case.model, result.proof, exact=True)
    assert verdict.message.endswith("enumeration in exact numbers agrees")


def test_exact_numbers_are_for_small_models(alarm):
    domain = cm.Domain.of_sizes([3] * 16)
    circuit = random_circuit(np.random.default_rng(0), domain)
    result = cm.map_query(circuit, epsilon=0, delta=0, proof=True, rng=0)
    verdict = cm.check(circuit, result.proof, exact=True)
    assert verdict.accepted
    assert verdict.message.endswith("joint states are too many to list in exact numbers")


def test_draws_are_counted_again_and_what_cannot_be_seen_is_said(alarm):
    result = cm.map_query(alarm, solver="pac", epsilon=0.5, delta=0.05, rng=3, proof=True)
    assert result.certificate.kind == "pac"
    verdict = cm.check(alarm, result.proof)
    assert verdict.accepted
    assert len(verdict.unchecked) == 2
    assert "seed 3 " in verdict.unchecked[0]
    stronger = {**result.proof.meta, "claim": {**result.proof.meta["claim"], "delta": 1e-9}}
    rejected = cm.check(alarm, Proof(stronger, result.proof.arrays))
    assert "nats of evidence, and delta 1e-09 needs" in rejected.message


def test_a_proof_that_is_too_large_is_left_out(examples):
    circuit = random_circuit(np.random.default_rng(1), cm.Domain.of_sizes([2] * 20), n_components=5)
    result = cm.map_query(
        circuit, solver="frontier", first_draws=4, epsilon=0, delta=0, rng=0, proof=True, max_proof=50
    )
    assert result.certified
    assert result.proof is None
    assert "max_proof=50 " in result.no_proof


def test_where_there_is_no_proof_the_reason_is_said(alarm):
    with pytest.raises(cm.SolverError, match="has no model that a proof could be about"):
        cm.map_query(cm.condition(alarm), proof=True)
    uncertified = cm.map_query(alarm, solver="pac", epsilon=0, delta=0, rng=0, max_samples=10, proof=True)
    assert uncertified.no_proof == "the run earned no certificate; raise its limits"
    build = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    build.gaussian(0, 0.0, 1.0)
    listed = cm.map_query(build.build(), top_k=2, epsilon=0.1, delta=0, rng=0, max_nodes=50, proof=True)
    assert listed.proof is None


def test_keeping_a_proof_changes_nothing_else():
    case = random_case(4)
    settings = {"solver": "frontier", "epsilon": 0.0, "delta": 0.0, "rng": 5}
    plain = cm.map_query(case.model, case.variables, case.evidence, **settings)
    proved = cm.map_query(case.model, case.variables, case.evidence, **settings, proof=True)
    ours = dataclasses.replace(proved, proof=None, seconds=plain.seconds, history=plain.history)
    assert ours.to_dict() == plain.to_dict()


def test_a_frame_of_rows_has_a_proof_each(alarm):
    pd = pytest.importorskip("pandas")
    name = alarm.domain.names[0]
    frame = pd.DataFrame({name: list(alarm.domain[name].states)})
    answers = cm.map_query(alarm, None, frame, epsilon=0, delta=0, proof=True)
    assert all(cm.check(alarm, answer.proof) for answer in answers)


def test_solve_and_check_on_the_shell(tmp_path, examples, capsys):
    model, file = str(examples / "alarm.bif"), str(tmp_path / "proof.npz")
    assert main(["solve", model, "--epsilon", "0", "--delta", "0", "--proof", file]) == 0
    assert main(["check", model, file, "--exact"]) == 0
    assert "; not repeated in exact numbers, for " in capsys.readouterr().out
    capsys.readouterr()
    assert main(["check", model, file]) == 0
    assert capsys.readouterr().out.startswith("accepted: no assignment is more probable than the answer")
    assert main(["check", model, model]) == 2
    assert "is a model file (.bif: Bayesian networks), and no proof" in capsys.readouterr().err


def test_a_missing_proof_is_an_error_on_the_shell(tmp_path, examples, capsys):
    file = tmp_path / "proof.npz"
    few = ["--solver", "pac", "--epsilon", "0", "--delta", "0", "--max-samples", "10", "--rng", "1"]
    code = main(["solve", str(examples / "alarm.bif"), *few, "--proof", str(file)])
    assert code == 2
    assert not file.exists()
    assert "was not written: the run earned no certificate" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(6))
def test_a_check_ends_at_its_limit(seed):
    case = random_case(seed)
    proof = solved(case, "auto").proof
    assert cm.check(case.model, proof, time_limit=600)
    verdict = cm.check(case.model, proof, time_limit=1e-9)
    assert not verdict.accepted
    assert "did not end within 1e-09 s" in verdict.message
    with pytest.raises(cm.QueryError, match="time_limit is 0"):
        cm.check(case.model, proof, time_limit=0.0)
