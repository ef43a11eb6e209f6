"""The sampling solvers, enumeration, warm starts and limits through the driver."""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

import certimap as cm
from certimap.ask.api import map_query
from certimap.core.posterior import Bounds, Draws
from certimap.solvers import registry
from certimap.solvers.base import Effort, Solver
from certimap.solvers.driver import MAX_IDLE_STEPS
from certimap.solvers.exhaustive import Exhaustive, listed
from certimap.solvers.sampling import DrawStream, Pac, SmoothPac, ball, ball_size
from certimap.testing import TablePosterior, random_table


@pytest.fixture(scope="module")
def thirty_six() -> TablePosterior:
    """One outcome of .03 (label 17) and 35 of .97/35."""
    probs = np.full(36, 0.97 / 35)
    probs[17] = 0.03
    return TablePosterior([36], probs)


def first_seed_without_the_mode(posterior: TablePosterior, n: int) -> int:
    for seed in itertools.count():
        result = map_query(posterior, solver="pac", epsilon=0.05, delta=0.05, rng=seed, max_samples=n)
        if result.log_prob < math.log(0.029):
            return seed
    raise AssertionError


def test_the_sharp_rule_stops_after_102_draws(thirty_six):
    seed = first_seed_without_the_mode(thirty_six, 102)
    result = map_query(thirty_six, solver="pac", epsilon=0.05, delta=0.05, rng=seed)
    assert result.n_draws == 102
    assert result.certificate.kind == "pac"
    assert result.certificate.rule == "draws"
    assert result.certificate.epsilon == 0.05
    assert result.certificate.delta == pytest.approx((1 - 0.97 / 35 / 0.95) ** 102)
    assert result.status == "certified"


def test_a_capped_run_says_what_its_draws_support(thirty_six):
    seed = first_seed_without_the_mode(thirty_six, 20)
    result = map_query(thirty_six, solver="pac", epsilon=0.05, delta=0.05, rng=seed, max_samples=20)
    expected = (1 - 0.97 / 35 / 0.95) ** 20
    assert expected == pytest.approx(0.553, abs=5e-4)
    assert result.n_draws == 20
    assert result.certificate.kind == "none"
    assert result.certificate.epsilon == 0.05
    assert result.certificate.delta == pytest.approx(expected, rel=1e-9)
    assert (0.05, result.certificate.delta) in result.pareto
    assert result.status == "sample_limit"
    assert "max_samples" in result.status.message
    assert not result.certified


@pytest.mark.parametrize("warm", ["points", "labels", "frame"])
def test_a_warm_start_listing_one_atom_64_times_changes_no_mass(thirty_six, warm):
    if warm == "points":
        given = np.full((64, 1), 5)
    elif warm == "labels":
        given = [{"0": 5}] * 64
    else:
        pd = pytest.importorskip("pandas")
        given = pd.DataFrame({"0": [5] * 64})
    seed = first_seed_without_the_mode(thirty_six, 20)
    cold = map_query(thirty_six, solver="pac", epsilon=0.05, delta=0.05, rng=seed, max_samples=20)
    result = map_query(
        thirty_six, solver="pac", epsilon=0.05, delta=0.05, rng=seed, max_samples=20, warm_start=given
    )
    assert result.n_draws == 20
    assert result.n_evaluations - cold.n_evaluations in (0, 1)
    seen = result.n_evaluations * 0.97 / 35
    assert math.exp(result.log_upper_bound) == pytest.approx(1 - seen)
    assert result.certificate.delta == pytest.approx(cold.certificate.delta)
    assert result.n_draws_to_best == 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"0": 99}, "99 is no state"),
        ({}, "lacks a value"),
        (np.array([[36]]), "from 0 to 35"),
        (np.zeros((2, 3)), "shape"),
        ("pac", "a warm start may not"),
        ("nonsense", "is no solver"),
        (object(), "expected"),
    ],
)
def test_warm_starts_that_make_no_sense_are_named(thirty_six, given, sentence):
    with pytest.raises(cm.CertimapError, match=sentence):
        map_query(thirty_six, solver="pac", warm_start=given, rng=0)


@pytest.mark.parametrize("given", [[None], [None, {"0": 3}], [[3]], [3]])
def test_a_warm_start_may_list_none_beside_assignments(thirty_six, given):
    result = map_query(thirty_six, solver="pac", max_samples=0, warm_start=given, rng=0)
    assert result.n_draws == 0
    assert result.assignment["0"] == 3 or given == [None]


def test_a_heuristic_solver_object_is_a_warm_start(thirty_six):
    result = map_query(thirty_six, solver="pac", warm_start=Exhaustive(), epsilon=0, delta=0, rng=0)
    assert result.n_draws == 0
    assert result.certificate.kind == "exact"


@pytest.mark.parametrize("batch", [1, 7, 250, 5000])
@pytest.mark.parametrize("solver", [Pac, SmoothPac])
def test_the_answer_does_not_depend_on_the_batch(solver, batch):
    posterior = random_table(np.random.default_rng(4), cm.Domain.of_sizes([4, 4, 4, 3]))
    settings = {"epsilon": 0.01, "delta": 0.001, "rng": 11, "max_samples": 3000}
    default = map_query(posterior, solver=solver(), **settings).to_dict()
    other = map_query(posterior, solver=solver(batch=batch), **settings).to_dict()
    del default["seconds"], other["seconds"]
    assert default == other


def test_a_stream_is_the_same_however_it_is_cut(thirty_six):
    whole = DrawStream(thirty_six, np.random.default_rng(3)).take(1000)
    stream = DrawStream(thirty_six, np.random.default_rng(3))
    parts = [stream.take(n) for n in (1, 0, 63, 64, 500, 372)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_sweeps_find_a_mode_that_is_never_drawn():
    """Ten binary variables; the mode has mass 2e-7 but lies beside the state that holds nearly everything."""
    probs = np.full(1024, 1e-9)
    probs[0], probs[1] = 1.0, 0.0
    flat = TablePosterior([2] * 10, np.r_[np.full(512, 1.0), np.full(512, 1.0)])
    swept = map_query(flat, solver=SmoothPac(radius=1, period=10), epsilon=0, delta=0, rng=0, max_samples=100)
    plain = map_query(flat, solver=Pac(), epsilon=0, delta=0, rng=0, max_samples=100)
    assert swept.n_draws == plain.n_draws == 100
    assert plain.n_evaluations <= 100
    # nine or ten sweeps of ten neighbours each, some shared
    assert plain.n_evaluations + 40 < swept.n_evaluations <= plain.n_evaluations + 100


def test_sweeps_climb_and_never_sweep_twice():
    class Counting(TablePosterior):
        n_asked = 0

        def log_prob(self, points):
            type(self).n_asked += len(points)
            return super().log_prob(points)

    weights = np.exp(-0.5 * np.arange(256) % 7)
    posterior = Counting([2] * 8, weights)
    result = map_query(posterior, solver=SmoothPac(period=5), epsilon=0, delta=0, rng=1, max_samples=400)
    assert Counting.n_asked == result.n_evaluations


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 1, 4), (2,)])
@pytest.mark.parametrize("radius", [0, 1, 2, 5])
def test_balls_hold_what_is_near(sizes, radius):
    domain = cm.Domain.of_sizes(sizes)
    centre = np.array([k - 1 for k in sizes], np.int16)
    points = [tuple(p) for batch in ball(domain, centre, radius) for p in batch.tolist()]
    listed = [
        p
        for p in itertools.product(*(range(k) for k in sizes))
        if 1 <= sum(a != b for a, b in zip(p, centre, strict=True)) <= radius
    ]
    assert sorted(points) == sorted(listed)
    assert ball_size(domain, radius) == pytest.approx(len(listed) + 1)


def test_budget_makes_its_draws_and_returns_the_front(thirty_six):
    result = map_query(thirty_six, solver="budget", max_samples=37, rng=5)
    assert result.n_draws == 37
    p_hat = math.exp(result.log_prob)
    for epsilon, delta in result.pareto[:-1]:
        assert delta == pytest.approx((1 - p_hat / (1 - epsilon)) ** 37, rel=1e-6)
    assert result.pareto[-1][1] == 0.0
    assert map_query(thirty_six, solver="budget", n_draws=55, rng=5).n_draws == 55
    exact = map_query(TablePosterior([2], [0.9, 0.1]), solver="budget", n_draws=9, rng=0)
    assert exact.n_draws == 9
    assert exact.pareto == [(0.0, 0.0)]


def test_uniform_exploration_never_stops_early(thirty_six):
    result = map_query(TablePosterior([3], [0.98, 0.01, 0.01]), solver="uniform_exploration", n_draws=500, rng=0)
    assert result.n_draws == 500
    assert result.status == "certified"
    assert map_query(thirty_six, solver="uniform_exploration", max_samples=10, rng=0).status == "exhausted"


def test_paper_preset_counts_as_published(thirty_six):
    seed = first_seed_without_the_mode(thirty_six, 110)
    for name in ("paper", "paper_pac"):
        solver = registry.make(name)
        assert (solver.batch, solver.rule, solver.max_draws) == (250, "published", 2_500_000)
    assert registry.make("paper").period == 250
    result = map_query(thirty_six, solver="paper_pac", epsilon=0.05, delta=0.05, rng=seed)
    assert result.n_draws == math.ceil(0.95 * math.log(20) / (0.97 / 35))


def test_exhaustive_is_exact_with_ties_and_top():
    posterior = TablePosterior([2, 3], [[0.1, 0.3, 0.1], [0.05, 0.3, 0.15]])
    result = map_query(posterior, solver="exhaustive", epsilon=0.2, top_k=3)
    assert (result.certificate.kind, result.certificate.rule) == ("exact", "enumeration")
    assert result.assignment == {"0": 0, "1": 1}
    assert result.ties == [{"0": 1, "1": 1}]
    assert [label for label, _ in result.top] == [{"0": 0, "1": 1}, {"0": 1, "1": 1}, {"0": 1, "1": 2}]
    assert result.n_evaluations == 6
    assert result.log_prob <= result.log_upper_bound <= result.log_prob + 1e-9


def test_the_largest_list_of_auto_is_made_once():
    n_points = registry.SMALL_SPACE
    first = listed(cm.Domain.of_sizes([2] * 16), 0, n_points)
    assert listed(cm.Domain.of_sizes([2] * 16), 0, n_points) is first
    assert not first.flags.writeable
    np.testing.assert_array_equal(np.packbits(first.astype(bool), axis=1).view(">u2")[:, 0], np.arange(n_points))


def test_exhaustive_refuses_what_is_too_large():
    posterior = cm.FunctionPosterior([2] * 60, lambda n, rng: None, lambda x: None)
    with pytest.raises(cm.SolverError, match=r"10\^18\.1 joint states.*solver='auto'"):
        map_query(posterior, solver="exhaustive")
    real = cm.FunctionPosterior(cm.Domain([cm.Real("x")]), lambda n, rng: None, lambda x: None)
    with pytest.raises(cm.SolverError, match="real variable"):
        map_query(real, solver="exhaustive")


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_top_k_against_enumeration(top_k):
    for seed in range(15):
        posterior = random_table(np.random.default_rng(seed))
        expected = np.sort(posterior.log_prob(posterior.points))[::-1][:top_k]
        for solver in ("exhaustive", "smooth_pac"):
            result = map_query(
                posterior, solver=solver, epsilon=0, delta=0, top_k=top_k, rng=seed, max_samples=5000
            )
            if result.certificate.kind == "exact":
                assert [v for _, v in result.top] == pytest.approx(list(expected), abs=1e-8)
            assert len(result.top) == len(expected) or result.certificate.kind == "none"


def test_a_time_limit_of_nothing_still_answers():
    posterior = random_table(np.random.default_rng(0), cm.Domain.of_sizes([9, 9, 9]))
    for solver in ("pac", "smooth_pac", "budget", "exhaustive"):
        result = map_query(posterior, solver=solver, epsilon=0, delta=0, time_limit=0, rng=0)
        assert result.assignment
        assert result.status in ("time_limit", "certified")


def test_no_draws_at_all_still_answers():
    result = map_query(TablePosterior([4], [0.3, 0.3, 0.2, 0.2]), solver="pac", max_samples=0, rng=0)
    assert result.n_draws == 0
    assert result.n_evaluations == 1
    assert result.certificate.delta == 1.0


def test_memory_and_node_limits_end_a_run(thirty_six):
    result = map_query(thirty_six, solver="pac", epsilon=0, delta=0, max_memory=10, rng=0)
    assert result.status == "memory_limit"


@dataclass
class Restless(Solver):
    """Draws while it may, then steps in silence until it has made `n_silent` steps."""

    n_silent: int
    counts_work: bool
    steps: ClassVar[int] = 0
    name: ClassVar[str] = "restless"
    needs: ClassVar = (Draws,)

    def init(self, posterior, control, rng, boxes=None):
        Restless.steps = 0
        return SimpleNamespace(posterior=posterior, rng=rng, done=False)

    def step(self, state, ledger):
        Restless.steps += 1
        if ledger.remaining_draws:
            ledger.draws(state.posterior.sample(4, state.rng))
        if Restless.steps > self.n_silent:
            state.done = True
        return state

    def effort(self, state):
        return Effort(work=Restless.steps if self.counts_work else 0)


def test_a_solver_that_never_says_it_is_done_ends_with_its_draws(thirty_six):
    result = map_query(thirty_six, solver=Restless(10**9, False), epsilon=0, delta=0, rng=0, max_samples=10)
    assert result.status == "sample_limit"
    assert result.n_draws == 10
    assert MAX_IDLE_STEPS < Restless.steps < MAX_IDLE_STEPS + 10
    map_query(thirty_six, solver=Restless(10**9, False), epsilon=0, delta=0, rng=0, max_samples=0)
    assert MAX_IDLE_STEPS < Restless.steps < MAX_IDLE_STEPS + 10


def test_a_silent_solver_that_gets_on_is_left_to_its_end(thirty_six):
    map_query(thirty_six, solver=Restless(3 * MAX_IDLE_STEPS, True), epsilon=0, delta=0, rng=0, max_samples=10)
    assert Restless.steps == 3 * MAX_IDLE_STEPS + 1


def test_limits_and_seeds_out_of_range_are_named(thirty_six):
    for settings in ({"time_limit": -1}, {"max_samples": -3}, {"rng": "x"}, {"rng": -1}):
        with pytest.raises(cm.SolverError, match=next(iter(settings))):
            map_query(thirty_six, solver="pac", **settings)


def test_unknown_solvers_and_settings_are_named(thirty_six):
    with pytest.raises(cm.SolverError, match="'magic' is no solver; expected auto, "):
        map_query(thirty_six, solver="magic")
    with pytest.raises(cm.SolverError, match="'pac' has no setting 'radius'"):
        map_query(thirty_six, solver="pac", radius=2)
    with pytest.raises(cm.SolverError, match="is no solver"):
        map_query(thirty_six, solver=3)
    for settings in ({"radius": -1}, {"period": 0}, {"lipschitz": 0.0}, {"batch": 0}):
        with pytest.raises(cm.SolverError, match=next(iter(settings))):
            registry.make("smooth_pac", **settings)
    with pytest.raises(cm.SolverError, match="Hamming ball"):
        map_query(cm.FunctionPosterior([2] * 400, lambda n, rng: None, lambda x: None), solver=SmoothPac(radius=4))


def test_auto_enumerates_small_spaces_and_samples_what_it_cannot_search(thirty_six):
    assert registry.choose(thirty_six).name == "exhaustive"
    assert (
        registry.choose(cm.FunctionPosterior([2] * 40, lambda n, rng: None, lambda x: None)).name == "smooth_pac"
    )
    real = cm.FunctionPosterior(cm.Domain([cm.Real("x")]), lambda n, rng: None, lambda x: None)
    assert registry.choose(real).name == "budget"
    bounded = cm.FunctionPosterior(cm.Domain([cm.Real("x", 0.0, 1.0)]), lambda n, rng: None, lambda x: None)
    assert registry.choose(bounded).name == "soo"


def test_a_posterior_that_lacks_a_question_is_refused_with_an_alternative():
    class Curious(Solver):
        name = "curious"
        needs = (Bounds,)

        def init(self, posterior, control, rng, boxes=None):
            raise AssertionError

        def step(self, state, ledger):
            raise AssertionError

    bare = cm.FunctionPosterior([2], lambda n, rng: None, lambda x: None)
    with pytest.raises(
        cm.SolverError,
        match=r"needs the posterior to have log_bound\(\) and log_bound_each\(\).*use solver='smooth_pac'",
    ):
        map_query(bare, solver=Curious())


def test_seeds_are_recorded_and_replay():
    posterior = random_table(np.random.default_rng(1), cm.Domain.of_sizes([5, 5, 5]))
    for rng in (None, np.random.default_rng(3), 17):
        result = map_query(posterior, solver="pac", rng=rng, max_samples=200, epsilon=0)
        replay = map_query(posterior, solver="pac", rng=result.seed, max_samples=200, epsilon=0)
        assert (replay.assignment, replay.n_evaluations) == (result.assignment, result.n_evaluations)
    assert result.seed == 17
    generator = np.random.default_rng(3)
    assert (
        map_query(posterior, solver="pac", rng=generator).seed
        != map_query(posterior, solver="pac", rng=generator).seed
    )


def test_history_is_thinned_and_monotone():
    posterior = TablePosterior([40, 40], np.random.default_rng(0).gamma(3.0, size=1600))
    result = map_query(posterior, solver=Pac(batch=2), epsilon=0, delta=0, rng=0, max_samples=6000)
    assert 100 < len(result.history) <= 513
    for a, b in itertools.pairwise(result.history):
        assert a.log_prob <= b.log_prob
        assert a.log_upper_bound >= b.log_upper_bound
        assert a.n_draws <= b.n_draws
    assert result.history[-1].n_draws == result.n_draws


def test_progress_reports_to_a_function(thirty_six):
    seen = []
    map_query(thirty_six, solver="pac", rng=0, progress=seen.append)
    assert seen
    assert seen[-1].n_draws > 0


def test_runs_work_outside_the_main_thread(thirty_six):
    results = []
    thread = threading.Thread(target=lambda: results.append(map_query(thirty_six, solver="pac", rng=0)))
    thread.start()
    thread.join()
    assert results[0].n_draws == map_query(thirty_six, solver="pac", rng=0).n_draws
