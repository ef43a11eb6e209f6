"""What the box search promises: the first box, memory, replays, top-k, anytime bounds, tiny probabilities."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import certimap as cm
from certimap.ask.api import map_query
from certimap.certify.ledger import Ledger
from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import SearchBoxes
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.query import make_query
from certimap.core.result import CertificateKind, Rule
from certimap.errors import SolverError
from certimap.solvers.box_search.frontier import Frontier, Pace, sample_open
from certimap.solvers.box_search.open_boxes import OpenBoxes, OpenRows
from certimap.solvers.driver import run
from certimap.solvers.request import Request
from certimap.testing import TablePosterior


def mixture(n, n_components, seed, concentration=0.4):
    """A mixture of products over n binary variables."""
    rng = np.random.default_rng(seed)
    builder = CircuitBuilder(Domain.of_sizes([2] * n))
    parts = []
    for _ in range(n_components):
        p = np.clip(rng.beta(concentration, concentration, n), 1e-6, 1 - 1e-6)
        leaves = [builder.categorical(v, log_weights=np.log([1 - p[v], p[v]])) for v in range(n)]
        parts.append(builder.product(leaves))
    builder.sum(parts, log_weights=np.log(rng.dirichlet(np.ones(n_components))))
    return builder.build(normalised=False)


def posterior_over_all(circuit):
    return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))


def deterministic(n, seed):
    """A circuit in which every sum decides a variable: its first bound is the answer."""
    rng = np.random.default_rng(seed)
    builder = CircuitBuilder(Domain.of_sizes([2] * n))
    below = None
    for v in reversed(range(n)):
        parts = []
        for state in (0, 1):
            leaf = builder.indicator(v, state)
            parts.append(leaf if below is None else builder.product([leaf, below[state]]))
        below = [builder.sum(parts, log_weights=np.log(rng.dirichlet([1.0, 1.0]))) for _ in (0, 1)]
    assert below is not None
    builder.sum([below[0]], log_weights=[0.0])
    return builder.build(normalised=False)


def test_a_deterministic_circuit_closes_at_the_first_box():
    posterior = posterior_over_all(deterministic(30, 1))
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    solver = Frontier(first_draws=0)
    state = solver.step(solver.init(posterior, Control(), np.random.default_rng(0)), ledger)
    assert state.n_nodes == 1
    assert ledger.satisfied


def test_caps_settle_what_draws_could_not():
    posterior = posterior_over_all(mixture(60, 12, 3, concentration=2.0))
    result = map_query(posterior, solver=Frontier(), epsilon=0.01, delta=0.0, rng=1)
    assert result.certificate.rule is Rule.BOUND
    assert result.log_prob < -15.0  # a purely random stop would take e^15 draws
    assert result.n_draws <= 256


def test_probabilities_near_e_to_the_minus_3000():
    """A small mixture beside 5,000 nearly uniform variables."""
    n, rng = 5000, np.random.default_rng(5)
    builder = CircuitBuilder(Domain.of_sizes([2] * n))
    rest = [
        builder.categorical(v, log_weights=np.log([q, 1 - q]))
        for v, q in enumerate(rng.uniform(0.45, 0.55, n))
        if v >= 10
    ]
    parts = []
    for _ in range(4):
        p = rng.uniform(0.1, 0.9, 10)
        parts.append(
            builder.product([builder.categorical(v, log_weights=np.log([1 - p[v], p[v]])) for v in range(10)])
        )
    builder.product([builder.sum(parts, log_weights=np.log([0.3, 0.3, 0.2, 0.2])), *rest])
    posterior = posterior_over_all(builder.build(normalised=False))
    for solver in (Frontier(), Frontier(caps=False)):
        result = map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=1, time_limit=600)
        assert result.log_prob < -3000.0
        assert result.certificate.kind is CertificateKind.EXACT
        assert result.log_upper_bound == pytest.approx(result.log_prob, abs=2e-9)


def test_memory_bound_goes_depth_first():
    rng = np.random.default_rng(2)
    posterior = TablePosterior([2] * 9, rng.random(2**9) ** 0.2, looseness=0.05)
    truth = math.log(posterior.probs.max())
    bytes_each = OpenBoxes(posterior.domain.total_states, 0).bytes_each
    largest = []
    for room in (10**6, 40):
        pace = Pace(step_work=40_000, open_bytes=bytes_each * (4096 + room))
        solver = Frontier(incumbent=False, draw_share=0.0, pace=pace)
        ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
        state = solver.init(posterior, Control(), rng)
        largest.append(0)
        while not state.done and not ledger.satisfied:
            state = solver.step(state, ledger)
            largest[-1] = max(largest[-1], len(state.open))
        assert ledger.satisfied
        assert ledger.best_log_prob == pytest.approx(truth, abs=1e-9)
    assert largest[1] < largest[0]


def test_deepest_boxes_come_first_when_asked():
    boxes = OpenBoxes(3, 0)
    masks = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 1]], np.uint8)
    empty = np.zeros((3, 0))
    boxes.push(
        OpenRows(
            SearchBoxes(masks, empty, empty),
            np.array([-1.0, -3.0, -2.0]),
            np.log([0.5, 0.3, 0.2]),
            np.array([0, 4, 4], np.int32),
        )
    )
    taken, bounds, masses, depths = boxes.take(1, deepest=True)
    assert bounds[0] == -2.0
    assert depths[0] == 4
    np.testing.assert_array_equal(taken.mask, masks[2:])
    _, bounds, _, _ = boxes.take(1, deepest=False)
    assert bounds[0] == -1.0
    assert boxes.prune(-3.0) == (pytest.approx(math.log(0.3)), -3.0)
    assert len(boxes) == 0
    assert boxes.log_mass == -math.inf
    assert masses[0] == pytest.approx(math.log(0.2))


def test_log_total_of_nothing_and_of_zeros():
    assert log_sum(np.array([])) == -math.inf
    assert log_sum(np.array([-math.inf, -math.inf])) == -math.inf
    assert log_sum(np.array([-4000.0, -4000.0])) == pytest.approx(-4000.0 + math.log(2.0))


@pytest.mark.parametrize("caps", [True, False])
def test_top_k_lists_the_most_probable_points(caps):
    circuit = mixture(9, 5, 8, concentration=1.0)
    posterior = posterior_over_all(circuit)
    points = np.array(np.unravel_index(np.arange(2**9), [2] * 9)).T.astype(np.int16)
    truth = np.sort(posterior.log_prob(points))[::-1][:6]
    solver = Frontier(caps=caps, incumbent=False)
    result = map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, top_k=6, rng=0)
    assert result.certificate.kind is CertificateKind.EXACT
    np.testing.assert_allclose([value for _, value in result.top], truth, atol=1e-9)


def test_all_ties_are_listed():
    builder = CircuitBuilder(Domain.of_sizes([3, 2]))
    even = [
        builder.product([builder.indicator(0, s), builder.categorical(1, log_weights=[0.0, 0.0])]) for s in (0, 2)
    ]
    builder.sum(even, log_weights=[0.0, 0.0])
    result = map_query(
        posterior_over_all(builder.build(normalised=False)),
        solver=Frontier(),
        epsilon=0.0,
        delta=0.0,
        rng=0,
        progress=False,
    )
    assert result.log_prob == pytest.approx(math.log(0.25))
    if result.ties is not None:
        assert len(result.ties) == 3


SMALL = Pace(step_work=200_000)


def open_table():
    """A table that boxes can hardly bound, so that draws decide."""
    rng = np.random.default_rng(4)
    probs = rng.uniform(0.9, 1.0, 2**11)
    probs[777] = 60.0
    return TablePosterior([2] * 11, probs, looseness=40.0)


def test_draws_from_the_open_boxes_certify():
    posterior = open_table()
    result = map_query(
        posterior,
        solver=Frontier(draw_share=0.9, first_draws=16, exact_work=0, pace=SMALL),
        epsilon=0.05,
        delta=0.05,
        rng=3,
        progress=False,
    )
    assert result.certificate.kind is CertificateKind.PAC
    assert result.log_prob == pytest.approx(math.log(posterior.probs.max()))


@pytest.mark.parametrize("long_list", [0, 10**9])
def test_draws_follow_the_masses_of_the_open_boxes(long_list):
    rng = np.random.default_rng(9)
    posterior = TablePosterior([2] * 6, rng.random(64) ** 3, looseness=3.0)
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    pace = Pace(step_work=1, max_batch=1, long_list=long_list)
    solver = Frontier(first_draws=0, draw_share=0.0, pace=pace)
    state = solver.init(posterior, Control(), rng)
    for _ in range(8):
        state = solver.step(state, ledger)
    assert len(state.open) > 3
    boxes = state.layout.public(state.open.boxes(slice(None)))
    own = posterior.domain.offsets[:-1] + posterior.points.astype(np.int64)
    inside = np.array([mask[own].all(axis=1) for mask in boxes.mask])
    assert np.all(inside.sum(axis=0) <= 1)  # a partition
    expected = np.where(inside.any(axis=0), posterior.probs, 0.0)
    assert math.exp(state.open.log_mass) == pytest.approx(expected.sum(), rel=1e-9)
    expected /= expected.sum()
    points = sample_open(state, 20_000, unpack=long_list > 0)
    index = points.astype(np.int64) @ (2 ** np.arange(5, -1, -1))
    counts = np.bincount(index, minlength=64)
    assert np.all(counts[expected == 0.0] == 0)
    spread = np.sqrt(20_000 * expected * (1 - expected)) + 1e-9
    assert np.max(np.abs(counts - 20_000 * expected) / np.maximum(spread, 1.0)) < 5.0


def test_no_probabilistic_stop_at_delta_zero():
    solver = Frontier(draw_share=0.5, exact_work=0, pace=SMALL)
    result = map_query(open_table(), solver=solver, epsilon=0.05, delta=0.0, rng=3, max_nodes=300)
    assert result.n_draws == 0
    assert result.certificate.kind is not CertificateKind.PAC


def test_max_samples_is_kept():
    result = map_query(
        open_table(), solver=Frontier(draw_share=0.9, exact_work=0, pace=SMALL), epsilon=0.0, delta=1e-9, rng=3,
        max_samples=300, max_nodes=4000, progress=False,
    )  # fmt: skip
    assert result.n_draws <= 300


def test_anytime_bounds_fall_and_the_answer_rises():
    posterior = posterior_over_all(mixture(40, 40, 6, concentration=3.0))
    ledger = Ledger(posterior, epsilon=0.0, delta=0.01)
    solver = Frontier(caps=False, incumbent=False)
    state = solver.init(posterior, Control(), np.random.default_rng(0))
    upper, lower = math.inf, -math.inf
    for _ in range(6):
        if state.done or ledger.satisfied:
            break
        state = solver.step(state, ledger)
        assert ledger.log_upper_bound <= upper
        assert ledger.best_log_prob >= lower
        upper, lower = ledger.log_upper_bound, ledger.best_log_prob
    assert upper >= lower


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_change_the_answer(workers):
    circuit = mixture(24, 30, 6, concentration=3.0)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain), workers=workers)
    result = map_query(
        posterior,
        solver=Frontier(caps=False, exact_work=0),
        epsilon=0.01,
        delta=0.01,
        rng=5,
        max_nodes=3000,
        progress=False,
    )
    single = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain), workers=1)
    again = map_query(
        single,
        solver=Frontier(caps=False, exact_work=0),
        epsilon=0.01,
        delta=0.01,
        rng=5,
        max_nodes=3000,
        progress=False,
    )
    assert result.log_prob == again.log_prob
    assert result.log_upper_bound == again.log_upper_bound
    assert (result.n_draws, result.n_evaluations) == (again.n_draws, again.n_evaluations)


REPLAY = """
import numpy as np, sys
sys.path.insert(0, {folder!r})
from test_frontier import mixture, posterior_over_all
from certimap.ask.api import map_query
from certimap.solvers.driver import run
from certimap.solvers.request import Request
from certimap.solvers.box_search.frontier import Frontier
solver = Frontier(caps=False, exact_work=0)
r = map_query(posterior_over_all(mixture(24, 30, 6, 3.0)), solver=solver, rng=5, max_nodes=2000)
print(r.log_prob, r.log_upper_bound, r.n_draws, r.n_evaluations, sorted(r.assignment.items()))
"""


def test_a_seed_replays_in_a_fresh_process():
    folder, source = __file__.rsplit("/", 1)[0], str(Path(cm.__file__).parents[1])
    outputs = set()
    for hash_seed in ("0", "77"):
        done = subprocess.run(
            [sys.executable, "-c", REPLAY.format(folder=folder)],
            capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": hash_seed, "PATH": "", "PYTHONPATH": source},
        )  # fmt: skip
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_real_variables():
    builder = CircuitBuilder(Domain([cm.Real("x"), cm.Categorical("k", ("a", "b"))]))
    parts = [
        builder.product([builder.gaussian(0, -2.0, 0.5), builder.categorical(1, log_weights=np.log([0.9, 0.1]))]),
        builder.product([builder.gaussian(0, 2.0, 0.1), builder.categorical(1, log_weights=np.log([0.4, 0.6]))]),
    ]
    builder.sum(parts, log_weights=np.log([0.7, 0.3]))
    circuit = builder.build(normalised=False)
    result = map_query(
        posterior_over_all(circuit), solver=Frontier(), epsilon=0.001, delta=0.0, rng=0, progress=False
    )
    # .3 * .6 / (.1 sqrt(2 pi)) = .718 beats .7 * .9 / (.5 sqrt(2 pi)) = .503
    assert result.certificate.kind is CertificateKind.EXACT or result.certificate.epsilon <= 0.001
    assert result.assignment["k"] == "b"
    assert result.assignment["x"] == pytest.approx(2.0, abs=0.01)
    assert result.log_upper_bound - result.log_prob <= 0.00101


def test_the_best_of_a_small_mixture():
    builder = CircuitBuilder(Domain.of_sizes([2, 2]))
    parts = [
        builder.product([builder.categorical(v, log_weights=np.log([1 - p[v], p[v]])) for v in (0, 1)])
        for p in ((0.1, 0.1), (0.9, 0.9), (0.8, 0.9))
    ]
    builder.sum(parts, log_weights=np.log([0.4, 0.35, 0.25]))
    result = map_query(
        posterior_over_all(builder.build(normalised=False)),
        solver=Frontier(),
        epsilon=0.0,
        delta=0.0,
        rng=0,
        progress=False,
    )
    assert list(result.assignment.values()) == [1, 1]
    assert math.exp(result.log_prob) == pytest.approx(0.4675)
    assert result.certificate.kind is CertificateKind.EXACT


def test_what_cannot_be_searched_is_refused():
    domain = Domain([cm.Real("x")])

    class Bounded:
        log_evidence = None

        def __init__(self):
            self.domain = domain

        def sample(self, n, rng, boxes=None):
            return rng.normal(size=(n, 1))

        def log_prob(self, points):
            return -0.5 * points[:, 0] ** 2

        def log_bound(self, boxes):
            return np.zeros(len(boxes))

        def log_bound_each(self, boxes):
            return np.zeros((len(boxes), 0))

    with pytest.raises(SolverError, match="budget"):
        run(Bounded(), Request(Frontier()))


@pytest.mark.parametrize("setting", [{"draw_share": 1.0}, {"draw_share": -0.1}, {"first_draws": -1}])
def test_settings_out_of_range(setting):
    with pytest.raises(SolverError):
        Frontier(**setting)


def test_bounds_are_told_while_the_search_aims_for_the_exact_answer():
    posterior = posterior_over_all(mixture(24, 30, 5, concentration=2.0))
    for epsilon, n_told in ((0.0, 4), (0.5, 3)):  # what is within epsilon would end the run, so it is kept back
        solver = Frontier(caps=False, pace=Pace(step_work=1, max_batch=8))
        result = map_query(posterior, solver=solver, epsilon=epsilon, delta=0.0, rng=0)
        told = [entry.log_upper_bound for entry in result.history if entry.n_nodes > 0]
        assert math.isfinite(told[0])
        assert len(set(told)) == n_told
        assert result.certificate.kind is CertificateKind.EXACT
