"""The public entry point, results as data, interruption and replay in fresh processes."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import certimap as cm
from certimap.solvers import registry
from certimap.testing import TablePosterior

KEYS = {
    "assignment", "log_prob", "log_evidence", "log_upper_bound", "certificate", "status", "log_joint",
    "log_joint_upper_bound", "pareto", "ties", "n_draws", "n_draws_to_best", "n_evaluations", "seconds", "seed",
    "solver", "version", "min_entropy_bits", "draws_needed",
}  # fmt: skip
CERTIFICATE_KEYS = {
    "kind", "epsilon", "delta", "requested_epsilon", "requested_delta", "rule", "assumptions", "tolerance",
}  # fmt: skip


def table() -> TablePosterior:
    domain = cm.Domain([cm.Categorical("rain", (False, True)), cm.Categorical("level", ("low", "mid", "high"))])
    return TablePosterior(domain, [[0.3, 0.1, 0.1], [0.05, 0.05, 0.4]], log_evidence=math.log(0.5))


def test_a_result_is_plain_data():
    result = cm.map_query(table(), rng=0)
    data = json.loads(result.to_json())
    assert set(data) == KEYS
    assert set(data["certificate"]) == CERTIFICATE_KEYS
    assert set(data["status"]) == {"code", "message"}
    assert data["assignment"] == {"rain": True, "level": "high"}
    assert data["log_joint"] == pytest.approx(math.log(0.2))
    assert data["log_joint_upper_bound"] == pytest.approx(data["log_upper_bound"] + math.log(0.5))
    assert data["certificate"]["kind"] == "exact"
    assert data["version"] == cm.__version__
    again = pickle.loads(pickle.dumps(result))
    assert again == result


def test_json_holds_no_infinities():
    real = cm.FunctionPosterior(
        cm.Domain([cm.Real("x")]), lambda n, g: g.normal(size=(n, 1)), lambda x: -(x[:, 0] ** 2)
    )
    data = json.loads(cm.map_query(real, rng=0, max_samples=10).to_json())
    assert data["log_upper_bound"] is None
    assert data["log_evidence"] is None


def test_results_go_to_uai():
    domain = cm.Domain.of_sizes([2, 3, 2])
    result = cm.map_query(TablePosterior(cm.Domain([domain["2"], domain["1"]]), [0.1, 0.1, 0.5, 0.1, 0.1, 0.1]))
    assert result.to_uai(domain) == "MMAP\n2 2 0 1 2\n"
    assert result.to_uai(domain, {"0": 1}) == "MPE\n3 1 2 0\n"
    with pytest.raises(cm.ModelError, match="real"):
        result.to_uai(cm.Domain([*domain, cm.Real("x")]), {"x": 0.5})


def test_a_posterior_takes_no_query():
    with pytest.raises(cm.QueryError, match="leave variables and evidence out"):
        cm.map_query(table(), ["rain"])
    with pytest.raises(cm.QueryError, match="is no model"):
        cm.map_query(3)


@pytest.mark.parametrize(
    "use", ["pass", "cm.map_query, cm.condition, cm.read", "[getattr(cm, name) for name in cm.__all__]"]
)
def test_importing_is_light(use):
    """Neither the package nor its public names load anything heavy before they are used."""
    code = f"""
        import sys
        import certimap as cm
        {use}
        heavy = {{"numba", "scipy", "rich", "typer", "matplotlib", "sklearn", "pandas"}} & set(sys.modules)
        assert not heavy, heavy
        assert sum(name.startswith("certimap") for name in sys.modules) < 250
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_every_public_name_exists():
    for name in cm.__all__:
        assert getattr(cm, name) is not None
    assert {"learn", "datasets", "io"} <= set(dir(cm))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = cm.nothing_like_it


REPLAY = """
import numpy as np, certimap as cm
from certimap.testing import random_table
posterior = random_table(np.random.default_rng(3), cm.Domain.of_sizes([6, 5, 4, 3]))
for solver in ("pac", "smooth_pac", "budget"):
    result = cm.map_query(posterior, solver=solver, epsilon=0.001, delta=0.001, rng=5, max_samples=2000)
    data = result.to_dict()
    del data["seconds"]
    print(data)
"""


def test_a_seed_replays_in_fresh_processes_under_other_hash_seeds():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", REPLAY],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("n_draws") == 6


INTERRUPTED = """
import sys, time, numpy as np, certimap as cm

def log_prob(points):
    if {pause}:
        print("scoring", flush=True)
    time.sleep({pause})
    return np.full(len(points), -12 * np.log(4.0))

def sample(n, rng):
    print("drawing", flush=True)
    return rng.integers(0, 4, (n, 12))

posterior = cm.FunctionPosterior([4] * 12, sample, log_prob)
result = cm.map_query(posterior, solver="pac", rng=0, max_samples=10**9, progress=False)
assert result.n_evaluations <= result.n_draws
assert abs(np.log(result.certificate.delta) / (result.n_draws * np.log1p(-(4.0**-12) / 0.99)) - 1) < 1e-9
print(f"\\n{{result.status.value}} {{result.n_draws}}")  # an interrupt may have cut a line short
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
@pytest.mark.parametrize("pause", [0.0, 600.0])
def test_the_first_interrupt_returns_what_was_earned(pause):
    """Between steps, and in the middle of one (inside the oracle, before anything was kept)."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(pause=pause)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(1 if pause else 12):  # later, some draws are in
        assert process.stdout.readline() == "drawing\n"
    if pause:
        # Interrupted before anything was evaluated: the one point evaluated for an answer sleeps as well.
        for _ in range(2):
            while process.stdout.readline() != "scoring\n":
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=600) != 0
        return
    process.send_signal(signal.SIGINT)
    *_, last = process.communicate(timeout=600)[0].splitlines()
    assert process.returncode == 0
    status, n_draws = last.split()
    assert status == "interrupted"
    assert int(n_draws) > 0


class TestFrames:
    """Data frames of evidence rows on a small circuit."""

    @pytest.fixture
    def circuit(self):
        pytest.importorskip("certimap.conversions.choose")
        build = cm.CircuitBuilder(
            cm.Domain([cm.Categorical(n, ("no", "yes")) for n in ("a", "b")] + [cm.Categorical("c", (1, 2, 3))])
        )
        products = []
        for a, b, c in (((0.9, 0.1), (0.8, 0.2), (0.7, 0.2, 0.1)), ((0.2, 0.8), (0.1, 0.9), (0.1, 0.1, 0.8))):
            leaves = [build.categorical(i, np.log(p)) for i, p in enumerate((a, b, c))]
            products.append(build.product(leaves))
        build.sum(products, np.log([0.6, 0.4]))
        return build.build()

    def test_rows_are_answered_one_by_one(self, circuit):
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame({"b": ["yes", "no", None], "c": [3, np.nan, 1]}, index=["x", "y", "z"])
        results = cm.map_query(circuit, ["a"], frame, epsilon=0, rng=1)
        singles = [{"b": "yes", "c": 3}, {"b": "no"}, {"c": 1}]
        assert isinstance(results, cm.ResultList)
        for result, evidence in zip(results, singles, strict=True):
            single = cm.map_query(circuit, ["a"], evidence, epsilon=0)
            assert result.assignment == single.assignment
            assert result.log_joint == pytest.approx(single.log_joint, abs=1e-12)
        table = results.to_frame()
        assert list(table.index) == ["x", "y", "z"]
        assert list(table["a"]) == ["yes", "no", "no"]
        assert set(table["kind"]) == {"exact"}
        assert len(set(table["seed"])) == 3
        series = cm.map_query(circuit, ["a"], frame.loc["x"], epsilon=0)
        assert series.assignment == {"a": "yes"}

    def test_an_impossible_row_is_named(self, circuit):
        pd = pytest.importorskip("pandas")
        build = cm.CircuitBuilder(cm.Domain.of_sizes([2, 2]))
        build.product([build.categorical(0, [0.0, -math.inf]), build.categorical(1, np.log([0.5, 0.5]))])
        frame = pd.DataFrame({"0": [0, 1]}, index=["fine", "broken"])
        with pytest.raises(cm.ImpossibleEvidence, match="row 'broken'"):
            cm.map_query(build.build(), ["1"], frame)

    def test_a_conditioned_posterior_answers_again_and_again(self, circuit):
        posterior = cm.condition(circuit, ["a", "b"], {"c": 3})
        first = cm.map_query(posterior, epsilon=0)
        assert first.assignment == cm.map_query(circuit, ["a", "b"], {"c": 3}, epsilon=0).assignment


def test_a_query_of_real_variables_settles_for_epsilon():
    domain = cm.Domain([cm.Real("x"), cm.Real("y"), cm.Categorical("c", ("a", "b"))])
    build = cm.CircuitBuilder(domain)
    parts = [
        build.product(
            [build.gaussian(0, x, 1.0), build.gaussian(1, y, 0.5), build.categorical(2, np.log([p, 1 - p]))]
        )
        for x, y, p in ((0, 0, 0.2), (3, 1, 0.7), (3.5, 1.2, 0.9))
    ]
    build.sum(parts, np.log([0.3, 0.35, 0.35]))
    result = cm.map_query(build.build(), rng=0, max_nodes=2000)
    assert result.certificate.kind == "epsilon"
    assert result.certificate.delta == 0.0
    assert result.log_prob == pytest.approx(-1.7748650673, abs=1e-6)


def test_a_setting_that_a_solver_has_not_is_refused_with_those_that_it_has():
    with pytest.raises(cm.SolverError, match="it has batch, max_draws, rule"):
        registry.make("pac", foo=1)


@pytest.mark.parametrize("workers", [0, -1])
def test_no_threads_are_refused(workers):
    with pytest.raises(cm.SolverError, match="workers"):
        cm.map_query(None, workers=workers)


@pytest.mark.parametrize(
    ("progress", "on_terminal", "said"),
    [(None, True, 1), (None, False, 0), (True, False, 1), (False, True, 0), (lambda entry: None, True, 0)],
)
def test_compilation_is_announced_where_progress_is_shown(monkeypatch, progress, on_terminal, said):
    from certimap.ask import api

    calls = []
    monkeypatch.setattr(api, "announce_compilation", lambda: calls.append(1))
    monkeypatch.setattr(api, "is_on_terminal", lambda: on_terminal)
    model = cm.BayesianNetwork.from_cpts({"A": [0, 1]}, {}, {"A": [0.4, 0.6]})
    cm.map_query(model, progress=progress)
    assert len(calls) == said
