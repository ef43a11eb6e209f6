"""One query shared out: the optimum, its proof, and the same certificate for any number of workers."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest

import certimap as cm
from certimap.ask.shared_query import N_PARTS, split
from certimap.errors import SolverError
from certimap.testing import TablePosterior

SIZES = [2, 3, 2, 2, 3, 2, 2]


class Serial(Executor):
    """Does each task when it is handed out; an interrupt comes with the one of a given number."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.interrupt_at, self.n = interrupt_at, 0

    def submit(self, fn, /, *args, **kwargs) -> Future:
        self.n += 1
        if self.n == self.interrupt_at:
            raise KeyboardInterrupt
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def network(seed, sizes=SIZES):
    rng = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(len(sizes))]
    parents = {name: names[max(0, i - 2) : i] for i, name in enumerate(names)}
    states = dict(zip(names, sizes, strict=True))
    tables = {n: rng.dirichlet(np.ones(states[n]) * 0.7, [states[p] for p in parents[n]]) for n in names}
    return cm.BayesianNetwork.from_cpts({n: list(range(k)) for n, k in states.items()}, parents, tables)


def mixture(seed, n=12, components=20):
    rng = np.random.default_rng(seed)
    builder = cm.CircuitBuilder(cm.Domain.of_sizes([2] * n))
    parts = [
        builder.product([builder.categorical(i, np.log(rng.dirichlet([1.0, 1.0]))) for i in range(n)])
        for _ in range(components)
    ]
    builder.sum(parts, np.log(rng.dirichlet(np.ones(components))))
    return builder.build()


def told(result):
    return result.assignment, result.log_prob, result.log_upper_bound, result.certificate, result.n_evaluations


@pytest.mark.parametrize("n_parts", [1, 2, 7, N_PARTS, 10_000])
def test_a_split_is_a_partition(n_parts):
    rng = np.random.default_rng(n_parts)
    posterior = TablePosterior([3, 2, 2, 3], rng.gamma(0.5, size=36) + 1e-6, looseness=1.0)
    boxes = split(posterior, n_parts)
    assert len(boxes) == min(n_parts, 36)
    counts = np.zeros(36, int)
    points = np.stack(np.unravel_index(np.arange(36), (3, 2, 2, 3)), axis=1)
    for box in boxes:
        counts += box.holds(points)
    assert np.all(counts == 1)


@pytest.mark.parametrize("solver", ["frontier", "set_elimination", "hbfs"])
@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_proved_together(solver, seed):
    model = network(seed)
    names = None if solver == "hbfs" else list(model.domain.names[1:])
    exact = cm.map_query(model, names, epsilon=0, delta=0, solver="exhaustive")
    shared = cm.map_query(model, names, epsilon=0, delta=0, solver=solver, rng=seed, executor=Serial())
    assert shared.certificate.kind == "exact"
    assert shared.log_prob == pytest.approx(exact.log_prob, abs=1e-9)
    assert shared.status == "certified"
    assert shared.solver == solver


def test_the_certificate_is_the_same_for_any_number_of_workers():
    model = mixture(4)
    settings = {"solver": "frontier", "epsilon": 0.0, "delta": 0.0, "rng": 2}
    one = cm.map_query(model, executor=Serial(), **settings)
    with ThreadPoolExecutor(4) as threads:
        many = cm.map_query(model, executor=threads, **settings)
    assert told(one) == told(many)
    assert one.log_prob == pytest.approx(cm.map_query(model, epsilon=0, delta=0).log_prob, abs=1e-12)


@pytest.mark.parametrize("interrupt_at", [3, 17, 30])
def test_ctrl_c_leaves_a_true_bound(interrupt_at):
    model = mixture(7)
    best = cm.map_query(model, epsilon=0, delta=0).log_prob
    cut = cm.map_query(model, executor=Serial(interrupt_at), solver="frontier", warm_start="independent", rng=0)
    assert cut.status == "interrupted"
    assert cut.log_prob <= best + 1e-12
    assert cut.log_upper_bound >= best - 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_limits_end_parts_with_true_bounds(seed):
    model = mixture(seed, n=14, components=60)
    best = cm.map_query(model, epsilon=0, delta=0).log_prob
    cut = cm.map_query(model, executor=Serial(), solver="frontier", epsilon=0, delta=0, max_nodes=64, rng=seed)
    assert cut.log_prob <= best + 1e-12 <= cut.log_upper_bound + 2e-12


def test_draws_in_parts_and_top_k():
    model = network(5)
    names = list(model.domain.names[2:])
    drawn = cm.map_query(model, names, solver="pac", epsilon=0.1, delta=0.1, rng=0, executor=Serial())
    assert drawn.certified
    first = cm.map_query(model, names, top_k=3, epsilon=0, delta=0, rng=0, solver="frontier", executor=Serial())
    plain = cm.map_query(model, names, top_k=3, epsilon=0, delta=0, rng=0)
    assert [value for _, value in first.top] == pytest.approx([value for _, value in plain.top], abs=1e-9)


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("make", [network, mixture])
def test_a_shared_answer_is_proved_as_a_whole(make, top_k, monkeypatch):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 600.0)  # however busy the machine is
    model = make(6)
    names = list(model.domain.names[1:])
    settings = {"epsilon": 0.0, "delta": 0.0, "rng": 0, "solver": "frontier", "top_k": top_k, "proof": True}
    shared = cm.map_query(model, names, executor=Serial(), **settings)
    assert shared.no_proof is None
    assert shared.proof.meta["answer"] == shared.assignment
    assert cm.check(model, shared.proof).accepted
    labels = {**shared.assignment, names[0]: next(x for x in (0, 1) if x != shared.assignment[names[0]])}
    forged = cm.Proof({**shared.proof.meta, "answer": labels}, shared.proof.arrays)
    assert not cm.check(model, forged).accepted


def test_draws_in_parts_have_no_proof():
    model = network(5, [4] * 9)
    settings = {"solver": "pac", "epsilon": 0.3, "delta": 0.1, "rng": 0, "proof": True}
    drawn = cm.map_query(model, list(model.domain.names[2:]), executor=Serial(), **settings)
    assert drawn.certificate.kind == "pac"
    assert drawn.proof is None
    assert drawn.no_proof.startswith("draws from parts that are searched side by side have no common record")


def test_what_cannot_be_shared_says_so():
    model = mixture(1)
    with pytest.raises(SolverError, match="whole space only"):
        cm.map_query(model, solver="max_product", executor=Serial())
    small = cm.map_query(network(0), ["x0"], executor=Serial(), rng=0)
    assert small.solver == "exhaustive"


def with_zeros(seed):
    """A chain most of whose parts are impossible."""
    rng = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(6)]
    tables = {}
    for i, name in enumerate(names):
        table = rng.dirichlet(np.ones(3), [3] * bool(i))
        table[..., rng.integers(0, 3)] = 0.0
        tables[name] = table / table.sum(axis=-1, keepdims=True)
    parents = {name: names[max(0, i - 1) : i] for i, name in enumerate(names)}
    return cm.BayesianNetwork.from_cpts({name: [0, 1, 2] for name in names}, parents, tables)


@pytest.mark.parametrize("solver", ["frontier", "set_elimination", "hbfs", "pac", "smooth_pac"])
@pytest.mark.parametrize("seed", range(3))
def test_impossible_parts_are_neither_searched_nor_drawn_from(solver, seed):
    model = with_zeros(seed)
    asked = {"epsilon": 0.01, "delta": 0.01, "rng": seed, "solver": solver, "max_samples": 2000}
    alone = cm.map_query(model, epsilon=0, delta=0, rng=0)
    shared = cm.map_query(model, executor=Serial(), **asked)
    assert shared.log_prob <= alone.log_prob + 1e-9
    assert shared.log_upper_bound >= alone.log_prob - 1e-9
    if solver in ("frontier", "set_elimination", "hbfs"):
        assert shared.log_prob == pytest.approx(alone.log_prob, abs=1e-9)


def test_no_time_and_no_draws_leave_an_answer_without_a_proof():
    late = cm.map_query(network(0), executor=Serial(), time_limit=1e-6)
    assert late.assignment
    idle = cm.map_query(network(0), executor=Serial(), solver="pac", max_samples=0, rng=0)
    assert idle.assignment
    assert idle.certificate.kind in (cm.CertificateKind.NONE, cm.CertificateKind.EPSILON)


def test_where_conditioning_cannot_end_in_time_a_quick_answer_is_given(monkeypatch):
    model = mixture(3)

    def never(circuit, query, *, max_edges=None, control=None):
        while True:
            control.check("conditioning for ever")

    monkeypatch.setattr("certimap.circuits.posterior.condition", never)
    with ThreadPoolExecutor(2) as executor:
        result = cm.map_query(model, time_limit=0.3, rng=1, epsilon=0.0, delta=0.0, executor=executor)
    assert result.note == "the time was up while conditioning for ever"
    assert result.status is cm.Status.TIME_LIMIT
    best = max(posterior_values(model))
    assert result.log_prob <= best + 1e-9 <= result.log_upper_bound + 2e-9


def posterior_values(model):
    """ln p of every point."""
    points = np.array(list(np.ndindex(*[2] * len(model.domain))), np.int16)
    leaf = {i: model.params_of(i) for i in range(model.n_nodes) if model.leaf_var[i] >= 0}
    values = np.empty((model.n_nodes, len(points)))
    for i in range(model.n_nodes):
        if i in leaf:
            values[i] = leaf[i][points[:, model.leaf_var[i]]]
        elif model.kind[i] == 2:
            values[i] = values[model.children_of(i)].sum(axis=0)
        else:
            weights = model.log_weights[model.child_ptr[i] : model.child_ptr[i + 1], None]
            values[i] = np.logaddexp.reduce(weights + values[model.children_of(i)])
    return values[-1]
