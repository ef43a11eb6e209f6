"""Hostile proof files: whatever a file holds, a check keeps to its memory and its time, and no NaN passes."""

from __future__ import annotations

import io
import json
import math
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof
from certimap.checker.boxes import Trees
from certimap.checker.models import CheckBudget, Rejected
from certimap.cli.main import main
from certimap_lab.proofs import random_case, solved

MOST = 40_000_000  # bytes that a check is allowed here
BESIDE = 30_000_000  # what Python and numpy take beside, and models


def real_model():
    """Three leaves over a real variable, counts and a categorical one, in five parts."""
    build, rng = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Categorical("s", (0, 1)), cm.Real("n")])), []
    for k in range(5):
        logs = [math.log(0.1 + 0.15 * k), math.log(0.9 - 0.15 * k)]
        leaves = build.real("student_t", 0, 2.0 * k, 1.0, 3.0), build.categorical(1, logs)
        rng.append(build.product([*leaves, build.real("poisson", 2, 1.0 + k)]))
    build.sum(rng, [math.log(0.2)] * 5)
    return build.build()


def star_network(n_stars=3, n_leaves=8):
    names = [f"s{s}_{i}" for s in range(n_stars) for i in range(n_leaves + 1)]
    rng, wide = np.random.default_rng(0), n_leaves + 1
    factors = [
        cm.Factor([wide * s, wide * s + i], rng.random((2, 2))) for s in range(n_stars) for i in range(1, wide)
    ]
    return cm.MarkovNetwork(cm.Domain([cm.Categorical(n, ("a", "b")) for n in names]), factors)


def proofs():
    """Yield a model and a proof of it by each method, with each of its arrays."""
    case = random_case(0, hard=True)
    yield case.model, solved(case, "frontier").proof
    yield case.model, solved(case, "exhaustive").proof
    yield case.model, solved(case, "pac", epsilon=0.5, delta=0.05).proof
    exhaustive = solved(case, "exhaustive").proof
    points = np.zeros((4, len(case.variables)), np.int64)
    yield case.model, Proof({**exhaustive.meta, "method": "residual"}, {**exhaustive.arrays, "points": points})
    real = real_model()
    yield real, cm.map_query(real, None, {}, epsilon=0.05, delta=0, proof=True, rng=0, time_limit=600).proof
    yield real, cm.map_query(real, ["x"], {"s": 1}, epsilon=0.05, delta=0, proof=True, rng=0, time_limit=600).proof
    network = star_network()
    plain = cm.map_query(network, None, {}, epsilon=0, delta=0, proof=True).proof
    steps = np.array([3, 0, 3, 9, 3, 18, 0], np.int32)
    arrays = {"steps": steps, "shifts": np.zeros(0), "kept": np.zeros(0, np.uint8), "order": np.zeros(0, np.int32)}
    yield network, Proof({**plain.meta, "method": "steps"}, {**plain.arrays, **arrays})
    columns = {name: np.zeros(4, np.uint8) for name in ("plan", "listed", "gone", "lengths", "members", "counts")}
    columns |= {"groups": np.zeros(4, np.uint8), "sizes": np.full((1, 6), 4, np.uint8)}
    yield network, Proof(plain.meta, {**plain.arrays, **columns})
    mixture = cm.GaussianMixture([0.5, 0.5], [[0.0], [3.0]], [[[1.0]], [[1.0]]])
    yield mixture, cm.map_query(mixture, epsilon=0.05, delta=0, proof=True, rng=0, time_limit=600).proof


@pytest.fixture(scope="module")
def valid():
    return list(proofs())


def peak_of(model, proof, **limits):
    """Return what becomes of a proof, and the most bytes that its check took at once."""
    tracemalloc.start()
    try:
        return cm.check(
            model, proof, **{"max_memory": MOST, "time_limit": 60, **limits}
        ), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [("u1", (2**24,), 0), ("u1", (2**23,), 1), ("i4", (2**22,), -1), ("i4", (2**22,), 1), ("f8", (2**21,), 0.5),
     ("i8", (2**20, 2), 1), ("u1", (2**21, 6), 1), ("u4", (2**22,), 2**32 - 1), ("f8", (2**55, 0), 0.0)],
)  # fmt: skip
def test_no_array_of_a_file_takes_more_than_its_share(valid, dtype, shape, value):
    for model, proof in valid:
        for name in proof.arrays:
            huge = {**proof.arrays, name: np.full(shape, value, dtype)}
            verdict, peak = peak_of(model, Proof(proof.meta, huge))
            assert not verdict.accepted, (proof.meta["method"], name)
            assert peak < MOST + BESIDE, (proof.meta["method"], name, peak, verdict.message)


def packed(proof, name, n_bytes, kind=zipfile.ZIP_DEFLATED):
    """Return a file in which one array is so many zeros."""
    out = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_bytes,)}
    with zipfile.ZipFile(out, "w", kind) as archive:
        meta = np.array(json.dumps({"format": "certimap-proof", "version": 2, **proof.meta}))
        for key, values in {"meta": meta, **proof.arrays}.items():
            with archive.open(f"{key}.npy", "w") as file:
                if key != name:
                    np.lib.format.write_array(file, values, allow_pickle=False)
                    continue
                np.lib.format.write_array_header_1_0(file, header)
                for at in range(0, n_bytes, 2**22):
                    file.write(bytes(min(2**22, n_bytes - at)))
    return out.getvalue()


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_file_that_unpacks_to_much_is_refused_before_it_does(tmp_path, valid, kind):
    model, proof = valid[6]
    path = tmp_path / "bomb.npz"
    path.write_bytes(packed(proof, "order", 2**26, kind))
    assert path.stat().st_size < 2**18
    verdict, peak = peak_of(model, path)
    assert "in a way that proofs do not" in verdict.message or "unpacks to would take" in verdict.message
    assert peak < BESIDE
    if kind != zipfile.ZIP_DEFLATED:
        with pytest.raises(cm.ParseError, match="in a way that proofs do not"):
            Proof.read(path)


def test_unpacking_looks_at_the_clock(tmp_path, valid, monkeypatch):
    model, proof = valid[6]
    path, now = tmp_path / "slow.npz", [0.0]
    path.write_bytes(packed(proof, "order", 2**25))

    def later():
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(time, "monotonic", later)
    assert "did not end within 5 s" in cm.check(model, path, time_limit=5).message
    assert now[0] < 20.0


def test_a_file_of_many_entries_or_deep_text_is_no_proof(valid):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for k in range(30_000):
            archive.writestr(f"{k}.npy", b"")
    with pytest.raises(cm.ParseError, match="more arrays than proofs have"):
        Proof.from_bytes(out.getvalue())
    text = np.array('{"format": "certimap-proof", "a": ' + "[" * 10**5 + "]" * 10**5 + "}")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=text)
    with pytest.raises(cm.ParseError):
        Proof.from_bytes(buffer.getvalue())


def test_cells_are_worked_out_between_looks_at_the_clock(valid, monkeypatch):
    """Each cell of each leaf by a series in Python: the number of cells must not matter."""
    model, proof = valid[5]
    ends = np.linspace(-10.0, 10.0, 50_000)
    cells = {"cuts": ends, "cut_ptr": np.array([0, len(ends)]), "splits": np.array([-1], np.int32)}
    forged = Proof({**proof.meta, "method": "boxes"}, {**proof.arrays, **cells, "kept": np.zeros(0, np.uint8)})
    now = [0.0]

    def later():
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(time, "monotonic", later)
    assert "did not end within 100 s" in cm.check(model, forged, time_limit=100).message
    assert now[0] < 110.0


def test_eliminations_that_leave_large_tables_are_refused_before_they_are_made():
    """Stars that cost a table of 2^18 entries each, and stay: by steps, and by the checker's own elimination."""
    network = star_network(40, 18)
    result = cm.map_query(network, None, {}, epsilon=0, delta=0, proof=True)
    steps = [number for s in range(40) for number in (3, 19 * s)]
    arrays = {"log_weights": result.proof.arrays["log_weights"], "steps": np.array([*steps, 0], np.int32)}
    arrays |= {"shifts": np.zeros(0), "kept": np.zeros(0, np.uint8), "order": np.zeros(0, np.int32)}
    verdict, peak = peak_of(network, Proof({**result.proof.meta, "method": "steps"}, arrays))
    assert "a step of the proof would take" in verdict.message
    assert peak < MOST + BESIDE
    assert cm.check(network, Proof({**result.proof.meta, "method": "steps"}, arrays)).accepted


@pytest.mark.parametrize("method", ["steps", "vectors"])
def test_many_answers_are_split_off_within_the_budget(valid, method):
    model, proof = valid[6]
    rng, names = np.random.default_rng(0), list(proof.meta["answer"])
    others = [dict(zip(names, rng.choice(["a", "b"], len(names)).tolist(), strict=True)) for _ in range(700)]
    meta = {**proof.meta, "others": others, "method": method}
    arrays = proof.arrays if method == "steps" else {"log_weights": proof.arrays["log_weights"]}
    verdict, peak = peak_of(model, Proof(meta, arrays), time_limit=1, max_memory=10_000_000)
    assert not verdict.accepted
    assert peak < 10_000_000 + BESIDE


def test_a_split_into_many_cells_keeps_one_path_of_boxes():
    """A box of n cells that is split has n parts of n flags: they are made one at a time."""
    n = 20_000
    arrays = {"splits": np.array([0, *[-1] * n], np.int32), "kept": np.zeros(0, np.uint8)}
    tracemalloc.start()
    boxes = Trees(arrays, "splits", "kept", 1, CheckBudget()).read({0: 0}, np.array([n]))
    assert [int(np.flatnonzero(next(boxes)[0])[0]) for _ in range(100)] == list(range(100))
    assert tracemalloc.get_traced_memory()[1] < 50 * n
    tracemalloc.stop()
    deep = {"splits": np.zeros(10**6, np.int32), "kept": np.zeros(0, np.uint8)}
    with pytest.raises(Rejected, match="the boxes of a tree would take"):
        list(Trees(deep, "splits", "kept", 1, CheckBudget(n_bytes=10**6)).read({0: 0}, np.array([1])))


NUMBERS = ("epsilon", "delta", "tolerance", "log_joint", "log_upper")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_number_of_a_file_passes_that_is_none(valid, number):
    """NaN and infinities in each numeric field, for each method; where -inf has a meaning it is left out."""
    rng = np.random.default_rng(0)
    for model, proof in valid:
        claim = proof.meta["claim"]
        forged = [Proof({**proof.meta, "claim": {**claim, name: number}}, proof.arrays) for name in NUMBERS[:4]]
        bound = {**claim, "kind": "bound", "epsilon": 0.0, "delta": 0.0, "log_upper": number}
        forged.append(Proof({**proof.meta, "claim": bound}, proof.arrays))
        forged.append(Proof({**proof.meta, "certified": {"kind": "exact", "epsilon": number}}, proof.arrays))
        for name, value in proof.meta["answer"].items():
            if isinstance(value, float):
                forged.append(
                    Proof({**proof.meta, "answer": {**proof.meta["answer"], name: number}}, proof.arrays)
                )
        for name, values in proof.arrays.items():
            if values.dtype != np.float64 or not values.size:
                continue
            if number == -math.inf and name in ("log_weights", "log_closed", "intervals"):
                continue  # what is excluded, nothing closed yet, and no lower end
            for _ in range(3):
                other = values.copy()
                other.flat[rng.integers(other.size)] = number
                if number != math.inf or name != "intervals":
                    forged.append(Proof(proof.meta, {**proof.arrays, name: other}))
            forged.append(Proof(proof.meta, {**proof.arrays, name: np.full_like(values, number)}))
        for other in forged:
            if claim["delta"] > 0.0 and "certified" in other.meta:
                continue  # it is not read there
            assert not cm.check(model, other, time_limit=600).accepted, (proof.meta["method"], other.meta["claim"])


def test_a_cell_whose_density_is_beyond_numbers_closes_nothing():
    """Counts near 1e298, where terms of a log overflow: the bound is infinite there, and tells nothing."""
    build = cm.CircuitBuilder(cm.Domain([cm.Real("n"), cm.Categorical("s", (0, 1))]))
    parts = [
        build.product([build.real("poisson", 0, mean), build.categorical(1, [math.log(p), math.log(1 - p)])])
        for mean, p in ((3.0, 0.9), (20.0, 0.2))
    ]
    build.sum(parts, [math.log(0.5)] * 2)
    model = build.build()
    result = cm.map_query(model, None, {}, epsilon=0.05, delta=0, proof=True, rng=0, time_limit=600)
    claim = {**result.proof.meta["claim"], "log_joint": None}
    for answer in ({"n": 3.0, "s": 1}, {"n": 60.0, "s": 0}):
        for cut in (1e297, 1e298, 5e298, 1e300, 1e305):
            arrays = {
                **result.proof.arrays,
                "cuts": np.array([cut]), "cut_ptr": np.array([0, 1, 1]),
                "splits": np.array([-2, -1], np.int32), "kept": np.zeros(1, np.uint8), "at": np.zeros(2, np.int32),
            }  # fmt: skip
            meta = {**result.proof.meta, "method": "boxes", "answer": answer, "claim": claim}
            assert not cm.check(model, Proof(meta, arrays), time_limit=600).accepted
            whole = {
                **arrays,
                "splits": np.array([-1], np.int32),
                "kept": np.zeros(0, np.uint8),
                "at": np.zeros(1, np.int32),
            }
            assert not cm.check(model, Proof(meta, whole), time_limit=600).accepted


def test_limits_on_the_shell(tmp_path, examples, capsys):
    model, file = str(examples / "asia.bif"), str(tmp_path / "p.npz")
    assert main(["solve", model, "--epsilon", "0", "--delta", "0", "--proof", file]) == 0
    assert main(["check", model, file, "--time-limit", "inf", "--max-memory", "100M"]) == 0
    capsys.readouterr()
    assert main(["check", model, file, "--max-memory", "2K"]) == 1
    assert "(max_memory), so that nothing is said of the proof" in capsys.readouterr().out
    with pytest.raises(cm.QueryError, match="max_memory is 0"):
        cm.check(cm.read(model), file, max_memory=0)
