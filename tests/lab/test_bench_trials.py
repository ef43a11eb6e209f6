"""The protocol of the Twenty Datasets benchmark, its trials and its processes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.domain import Domain
from certimap.core.query import make_query
from certimap_lab.bench.models import CircuitKind
from certimap_lab.bench.protocol import N_TRIES, BenchQuery, Split, draw_query, solver_seed, stream
from certimap_lab.bench.records import BenchError
from certimap_lab.bench.trial import Method, TrialSettings, run_trial
from certimap_lab.bench.workers import Job, WorkerPool


def mixture(n: int, seed: int = 0, n_components: int = 3) -> Circuit:
    """A mixture of products of binary variables."""
    rng = np.random.default_rng(seed)
    builder = CircuitBuilder(Domain.of_sizes([2] * n))
    parts = [
        builder.product([builder.categorical(i, np.log(rng.dirichlet([1.0, 1.0]))) for i in range(n)])
        for _ in range(n_components)
    ]
    builder.sum(parts, np.log(rng.dirichlet(np.ones(n_components))).tolist())
    return builder.build()


def all_zero_or_all_one(n: int) -> Circuit:
    """Two possible states only: nearly every random evidence is impossible."""
    builder = CircuitBuilder(Domain.of_sizes([2] * n))
    parts = [builder.product([builder.indicator(i, s) for i in range(n)]) for s in (0, 1)]
    builder.sum(parts, np.log([0.3, 0.7]).tolist())
    return builder.build()


def test_splits() -> None:
    split = Split.parse(" 50/30 ")
    assert (split.name, split.title, split.sizes(10)) == ("50/30", "50 % Q, 30 % E, 20 % V", (5, 3))
    assert Split.parse("20/80").sizes(17) == (3, 14)  # nothing is left over when the shares add to 100
    assert Split.parse("1/50").sizes(10) == (1, 5)
    for text in ("50", "60/60", "0/50", "a/b", "20/80/5"):
        with pytest.raises(BenchError, match="is no split"):
            Split.parse(text)


def test_partition_depends_on_place_alone() -> None:
    split = Split(20, 50)
    first = draw_query(mixture(20, 0), 0, "nltcs", split, 3)
    again = draw_query(mixture(20, 1), 0, "nltcs", split, 3)
    assert first == again
    assert first.source == "random"
    assert (len(first.variables), len(first.evidence)) == (4, 10)
    assert not set(first.variables) & set(first.evidence)
    others = [
        draw_query(mixture(20), s, d, split, i) for s, d, i in ((1, "nltcs", 3), (0, "dna", 3), (0, "nltcs", 4))
    ]
    assert all(first != other for other in others)


def test_streams_are_fixed_for_good() -> None:
    """The seeds are part of what a recorded run means: they must never change."""
    assert solver_seed(0, "nltcs", Split(20, 80), 0) == 2481933699
    a, b = (stream(0, "nltcs", Split(20, 80), 0, p).generate_state(1)[0] for p in ("partition", "evidence"))
    assert a != b


def test_impossible_evidence_is_redrawn_and_then_sampled() -> None:
    query = draw_query(all_zero_or_all_one(12), 0, "toy", Split(20, 80), 0)
    assert (query.source, query.n_redraws) == ("sampled", N_TRIES)
    assert len(set(query.evidence.values())) == 1
    easy = [draw_query(all_zero_or_all_one(4), 0, "toy", Split(50, 50), i) for i in range(8)]
    assert any(q.source == "random" and q.n_redraws > 0 for q in easy)


def test_evidence_may_be_that_of_rows() -> None:
    rows = np.tile([0, 1, 0, 1, 1, 0, 1, 0], (3, 1))
    split = Split(50, 50)
    query = draw_query(mixture(8), 0, "toy", split, 0, rows)
    assert query.source == "row"
    assert query.variables == draw_query(mixture(8), 0, "toy", split, 0).variables
    assert all(rows[0, int(name)] == value for name, value in query.evidence.items())


def test_a_query_survives_its_record() -> None:
    circuit = mixture(8)
    query = draw_query(circuit, 0, "toy", Split(50, 25), 0)
    record = json.loads(json.dumps(query.to_record(circuit.domain)))
    assert BenchQuery.from_record(record, circuit.domain) == query


def test_trials_record_answer_and_certificate() -> None:
    circuit = mixture(8)
    query = draw_query(circuit, 0, "toy", Split(50, 25), 0)
    record = run_trial(circuit, query, Method.parse("exhaustive"), TrialSettings(), 7)
    posterior = CircuitPosterior.from_circuit(circuit, query.on(circuit.domain))  # pyright: ignore
    states = np.indices([2] * 4).reshape(4, -1).T.astype(np.int16)
    log_probs = posterior.log_prob(states)
    assert record["log_prob"] == pytest.approx(log_probs.max())
    assert record["assignment"] == states[np.argmax(log_probs)].tolist()
    assert record["certificate"]["kind"] == "exact"
    assert record["peak_memory_mib"] > 10
    json.dumps(record)


def test_a_warm_start_is_part_of_a_method() -> None:
    assert Method.parse("smooth_pac+argmax_product").warm_start == "argmax_product"
    assert Method.parse("pac") == Method("pac", "pac", None)
    for text in ("nothing", "pac+nothing", "pac+", "+pac"):
        with pytest.raises(BenchError):
            Method.parse(text)
    circuit = mixture(8)
    query = draw_query(circuit, 0, "toy", Split(50, 25), 0)
    record = run_trial(circuit, query, Method.parse("smooth_pac+argmax_product"), TrialSettings(), 7)
    assert record["certificate"]["kind"] != "none"


def test_an_error_of_the_library_is_recorded() -> None:
    circuit = all_zero_or_all_one(4)
    query = BenchQuery(("0", "1"), {"2": 0, "3": 1}, "random", 0)
    record = run_trial(circuit, query, Method.parse("pac"), TrialSettings(), 7)
    assert record["error"].startswith("ImpossibleEvidence")
    assert "assignment" not in record


def test_circuit_names() -> None:
    assert CircuitKind.parse("hclt64") == CircuitKind("hclt64", "hclt", 64)
    assert CircuitKind.parse("chow-liu").size is None
    assert CircuitKind.parse("learnspn-large").estimator(0).min_rows == 10
    for text in ("spn", "learnspn3", "hclt0", ""):
        with pytest.raises(BenchError):
            CircuitKind.parse(text)


SERVER = """
import os, time

def build(offset):
    def serve(job, part):
        if part == "die":
            os._exit(3)
        if part == "hang":
            time.sleep(600)
        if part == "fail":
            raise RuntimeError("as asked")
        return {"sum": job + offset, "part": part, "threads": os.environ["OMP_NUM_THREADS"]}

    return serve
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server of additions in a module that other processes can import."""
    (tmp_path / "adding_server.py").write_text(SERVER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "adding_server", raising=False)
    return importlib.import_module("adding_server").build


def test_a_pool_outlives_crashes_and_errors(build: Any) -> None:
    pool = WorkerPool(2, build, (10,), n_threads=1, part_limit=20.0)
    jobs = [Job(1, ["a", "die", "b"]), Job(2, ["fail", "c"])]
    outcomes = {(o.payload, o.part): o for o in pool.run(jobs)}
    assert outcomes[1, "a"].record == {"sum": 11, "part": "a", "threads": "1"}
    assert outcomes[1, "b"].record == {"sum": 11, "part": "b", "threads": "1"}
    assert outcomes[1, "die"].problem == "crashed"
    assert "as asked" in str(outcomes[2, "fail"].problem)
    assert outcomes[2, "c"].record is not None
    assert len(outcomes) == 5


def test_a_pool_gives_up_what_overruns(build: Any) -> None:
    pool = WorkerPool(1, build, (0,), part_limit=8.0)
    outcomes = {o.part: o for o in pool.run([Job(1, ["hang", "after"])])}
    assert outcomes["hang"].problem == "overran"
    assert outcomes["after"].record is not None


def test_make_query_takes_a_bench_query(tmp_path: Path) -> None:
    circuit = mixture(6)
    query = BenchQuery(("1", "0"), {"3": 1}, "random", 0).on(circuit.domain)
    assert query.query_domain.names == ("1", "0")
    assert query.nuisance == make_query(circuit.domain, ["1", "0"], {"3": 1}).nuisance
