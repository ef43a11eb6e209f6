"""Marginal MAP by `full_width` and by the portfolio: proofs against enumeration, limits, and sharing of turns."""

from __future__ import annotations

import itertools
import math
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.ask.api import map_query
from certimap.certify.ledger import Ledger
from certimap.conversions import condition
from certimap.core.control import Control
from certimap.core.posterior import AsNetwork, Regions
from certimap.core.query import make_query
from certimap.core.result import CertificateKind, Status
from certimap.networks.posterior import NetworkPosterior, TwoSidedNetworkPosterior
from certimap.networks.relaxation.tighten import Tightener
from certimap.solvers import registry
from certimap.solvers.networks import and_or, full_width, portfolio
from certimap.solvers.networks.and_or import AndOrSpace
from certimap.solvers.networks.full_width import FullWidth
from certimap.solvers.networks.portfolio import Portfolio, PortfolioPart, PortfolioState
from certimap.solvers.networks.wmb import WeightedMiniBuckets

# Every switch at once: several levels of work, dives all the time, a turn that one step uses up.
SMALL = full_width.Tuning(bits=(3.0, 5.0, 7.0), first_stride=1, gain=0.01)
SWITCHING = portfolio.TurnTuning(turn=1.0, head_start=1.0, trials=1.0, bits=(1.0, 3.0, 6.0), iterations=4)
TIGHT = full_width.Tuning(most_bits=4.0)


def random_network(seed: int, zeros: float) -> tuple[cm.MarkovNetwork, list[str]]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 8))
    domain = cm.Domain([cm.Categorical(f"x{i}", tuple(range(int(rng.integers(2, 4))))) for i in range(n)])
    factors = []
    for _ in range(int(rng.integers(n, 2 * n + 2))):
        scope = rng.choice(n, int(rng.integers(1, 4)), replace=False).tolist()
        table = np.exp(2.0 * rng.normal(size=[domain.n_states[i] for i in scope]))
        table[rng.random(table.shape) < zeros] = 0.0
        table.flat[0] = 1.0
        factors.append(cm.Factor(scope, table))
    names = list(domain.names)
    return cm.MarkovNetwork(domain, factors), [names[i] for i in rng.permutation(n)[: int(rng.integers(1, n))]]


def truth(model: cm.MarkovNetwork, query: list[str]) -> tuple[float, dict[tuple[int, ...], float]]:
    points = np.array(list(itertools.product(*(range(k) for k in model.domain.n_states))))
    logs, columns = model.log_joint(points), [model.domain.names.index(v) for v in query]
    values: dict[tuple[int, ...], float] = {}
    for point, value in zip(points[:, columns].tolist(), logs, strict=True):
        values[tuple(point)] = float(np.logaddexp(values.get(tuple(point), -math.inf), value))
    return max(values.values()), values


def check(result: cm.MapResult, model: cm.MarkovNetwork, query: list[str], *, proves: bool) -> None:
    best, values = truth(model, query)
    assert result.log_joint is not None
    assert result.log_joint_upper_bound is not None
    answer = values[tuple(result.assignment[v] for v in query)]
    assert result.log_joint == pytest.approx(answer, abs=1e-9)
    assert result.log_joint_upper_bound >= best - 1e-12
    if result.certificate.kind is CertificateKind.EXACT:
        assert answer == pytest.approx(best, abs=1e-8)
    if proves:
        assert result.certificate.kind is CertificateKind.EXACT


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3]), st.sampled_from(["full", "levels", "turns"]))
def test_proofs_agree_with_enumeration(seed: int, zeros: float, how: str) -> None:
    model, query = random_network(seed, zeros)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    if not len(posterior.domain):
        return
    solver = {"full": FullWidth(), "levels": FullWidth(SMALL), "turns": Portfolio(SWITCHING)}[how]
    result = map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=0)
    check(result, model, query, proves=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_cut_short_it_claims_no_more_than_is_true(seed: int, max_nodes: int) -> None:
    model, query = random_network(seed, 0.2)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    for solver in (FullWidth(SMALL), FullWidth(TIGHT), Portfolio(SWITCHING)):
        result = map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=1, max_nodes=max_nodes)
        check(result, model, query, proves=False)


@pytest.mark.parametrize("seed", range(12))
def test_values_between_two_sides_stay_between_them(seed: int) -> None:
    model, query = random_network(seed, 0.0)
    posterior = TwoSidedNetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    result = map_query(posterior, solver=Portfolio(SWITCHING), epsilon=0.0, delta=0.0, rng=1, max_nodes=40)
    best, values = truth(model, query)
    assert result.log_joint is not None
    assert result.log_joint_upper_bound is not None
    assert result.log_joint <= values[tuple(result.assignment[v] for v in query)] + 1e-9
    assert result.log_joint_upper_bound >= best - 1e-12


def test_the_first_bound_is_read_off_and_a_step_is_one_bound() -> None:
    model, query = grid(6, 3, 8)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    solver, ledger = FullWidth(full_width.Tuning(point_cost=0.0)), Ledger(posterior, epsilon=0.0, delta=0.0)
    state, seen = solver.init(posterior, ledger.control, np.random.default_rng(0)), 0
    for n_steps in range(40):
        state, before = solver.step(state, ledger), seen
        seen = solver.effort(state).n_nodes
        assert seen - before <= 1
        assert n_steps == 0 or ledger.best_point is not None
        if state.done:
            break
    assert ledger.log_upper_bound >= ledger.best_log_prob > -math.inf


def test_every_second_turn_goes_to_a_part_that_has_not_begun() -> None:
    model, query = grid(6, 3, 8)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    solver = Portfolio(portfolio.TurnTuning(turn=1.0, trials=1.0))  # `full_width` waits
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    state, n_begun = solver.init(posterior, ledger.control, np.random.default_rng(0)), []
    while not (ledger.satisfied or state.done) and state.n_turns < 7:
        state = solver.step(state, ledger)
        n_begun.append(sum(part.work > 0.0 for part in state.parts))
    assert len(state.parts) == 4
    assert n_begun[1:6:2] == [1, 2, 3]


def test_turns_are_short_beside_the_time_limit() -> None:
    model, query = grid(6, 3, 8)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    turns = []
    for limit in (None, 2.0, 0.5):
        state = Portfolio().init(posterior, Control.starting_now(limit), np.random.default_rng(0))
        turns.append(state.parts[0].turn)
    assert turns == [2.0**29, 2.0**27, 2.0**25]


def grid(n: int, seed: int, n_queried: int) -> tuple[cm.MarkovNetwork, list[str]]:
    rng = np.random.default_rng(seed)
    domain = cm.Domain([cm.Categorical(f"x{i}", (0, 1)) for i in range(n * n)])
    factors = [cm.Factor([v], np.exp(rng.normal(size=2))) for v in range(n * n)]
    for v in range(n * n):
        for u in ([v + 1] if (v + 1) % n else []) + ([v + n] if v + n < n * n else []):
            factors.append(cm.Factor([v, u], np.exp(rng.normal(size=(2, 2)))))
    return cm.MarkovNetwork(domain, factors), [f"x{i}" for i in rng.permutation(n * n)[:n_queried]]


def test_a_grid_is_proved_and_the_same_seed_takes_the_same_way() -> None:
    model, query = grid(10, 5, 50)
    result = cm.map_query(model, query, {}, epsilon=0.0, delta=0.0, rng=0, solver="portfolio")
    assert (result.solver, result.certificate.kind) == ("portfolio", CertificateKind.EXACT)
    again = cm.map_query(model, query, {}, epsilon=0.0, delta=0.0, rng=0, solver="portfolio")
    assert (again.assignment, again.history[-1].n_nodes) == (result.assignment, result.history[-1].n_nodes)


def test_moves_better_an_answer_and_bounds_of_several_orders_count(monkeypatch: pytest.MonkeyPatch) -> None:
    model, query = grid(5, 5, 12)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    best = max(truth_of_grid(posterior))

    def nothing(self: FullWidth, state: object, bounds: object, ledger: object) -> None:
        """Neither dive nor expand."""

    monkeypatch.setattr(FullWidth, "_dive", nothing)
    monkeypatch.setattr(FullWidth, "_expand", nothing)
    tuning = full_width.Tuning(bits=(3.0, 9.0, 12.0), climb_work=0.0)
    solver, ledger = FullWidth(tuning), Ledger(posterior, epsilon=0.0, delta=0.0)
    ledger.candidates(posterior.point({}))
    first = ledger.best_log_prob
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))
    for _ in range(60):
        state.move_share, state.has_dived = 1.0, True
        state = solver.step(state, ledger)
        assert not state.open or -state.open[0][0] >= best - 1e-12
    assert first < best
    assert ledger.best_log_prob == pytest.approx(best, abs=1e-9)
    assert not state.steps


def truth_of_grid(posterior: NetworkPosterior) -> list[float]:
    points = np.array(list(itertools.product(*(range(k) for k in posterior.domain.n_states))))
    return posterior.log_prob(points).tolist()


def test_it_ends_in_time_and_pickles_between_steps() -> None:
    model, query = grid(18, 5, 150)
    started = time.perf_counter()
    result = cm.map_query(model, query, {}, epsilon=0.0, delta=0.0, rng=0, time_limit=1.0, solver="full_width")
    assert result.status is Status.TIME_LIMIT
    assert time.perf_counter() - started < 30.0  # a pass of minutes would be seen, whatever else the machine does
    small, asked = random_network(7, 0.0)
    posterior = NetworkPosterior.of_network(small, make_query(small.domain, asked, {}))
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    solver = FullWidth(SMALL)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))
    for _ in range(50):
        if state.done:
            break
        state = solver.step(pickle.loads(pickle.dumps(state)), ledger)
    assert ledger.satisfied


def test_lists_of_answers_are_left_to_the_search_that_keeps_books() -> None:
    model, query = random_network(3, 0.0)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    result = map_query(posterior, solver=Portfolio(), epsilon=0.0, delta=0.0, rng=0, top_k=2)
    assert result.top is not None
    _, values = truth(model, query)
    best = np.sort(list(values.values()))[::-1][:2] - (0.0 if result.log_evidence is None else result.log_evidence)
    assert [log for _, log in result.top] == pytest.approx(best.tolist(), abs=1e-9)


@pytest.mark.parametrize("seed", range(24))
def test_on_a_tree_sets_and_the_tables_of_its_network_take_turns(seed: int) -> None:
    model, query = random_network(seed, 0.2)
    posterior = condition(model, make_query(model.domain, query, {}), wants=(Regions,))
    assert isinstance(posterior, AsNetwork)
    assert posterior.as_network is not None
    network = posterior.as_network()
    points = np.zeros((1, len(query)), np.int64)
    assert network.log_prob(points) == pytest.approx(posterior.log_prob(points), abs=1e-9)
    kept = pickle.loads(pickle.dumps(posterior))
    for delta in (0.0, 0.1):
        result = map_query(kept, solver=Portfolio(SWITCHING), epsilon=0.0, delta=delta, rng=0)
        check(result, model, query, proves=delta == 0.0)


def test_tables_of_mini_buckets_are_limited_by_states_and_made_smaller_where_time_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, query = grid(10, 5, 50)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    solver, ledger = WeightedMiniBuckets(None, 8, bits=8.0), Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))

    def largest() -> int:
        arrays = state.tree.arrays
        return int(np.max(np.diff(arrays.message_ptr) * arrays.n_states[arrays.own]))

    assert largest() == 2**8

    def cut(tightener: Tightener, temperature: float, n_steps: int) -> None:
        tightener.is_cut = True

    monkeypatch.setattr(Tightener, "run", cut)
    for _ in range(2):
        state = solver.step(state, ledger)
    assert largest() == 2**5


def test_where_zeros_forbid_what_the_parts_try_a_possible_answer_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, query = random_network(7, 0.3)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))

    def nothing(self: Portfolio, part: object, state: object, ledger: object) -> None:
        """Find no answer."""

    monkeypatch.setattr(Portfolio, "_run", nothing)
    solver, ledger = Portfolio(), Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))
    for _ in range(2):
        assert ledger.best_log_prob == -math.inf
        state = solver.step(state, ledger)
    assert ledger.best_log_prob > -math.inf


@pytest.mark.parametrize("seed", [1, 2])
def test_where_points_are_valued_by_a_part_of_the_sum_a_climb_from_its_centre_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    model, query = random_network(seed, 0.0)
    posterior = TwoSidedNetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    points = np.array(list(np.ndindex(*posterior.domain.n_states)))
    values = posterior.log_prob(points)

    def worst(self: Portfolio, part: object, state: object, ledger: Ledger) -> None:
        """Find the worst answer."""
        ledger.candidates(points[[int(values.argmin())]])

    monkeypatch.setattr(Portfolio, "_run", worst)
    solver, ledger = Portfolio(), Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))
    for _ in range(2):
        assert ledger.best_log_prob in (-math.inf, values.min())
        state = solver.step(state, ledger)
    assert ledger.best_log_prob >= posterior.log_prob(posterior.prober().climb(posterior.possible_point())).max()
    assert ledger.best_log_prob > values.min()


def test_a_space_that_is_open_is_searched_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opening alone costs more than a turn."""
    monkeypatch.setattr(and_or, "TABLE_ENTRIES", 16.0)
    model, query = grid(6, 5, 14)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    solver = Portfolio(portfolio.TurnTuning(turn=1.0))
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))
    paths = state.parts[2]
    solver._run(paths, state, ledger)
    assert isinstance(paths.solver, and_or.AndOrBranchAndBound)
    assert paths.state.n_nodes > 0


def test_turns_that_gain_nothing_go_to_the_part_that_bounds_best_and_some_to_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, query = random_network(7, 0.0)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    turns: list[int] = []
    sizes = posterior.domain.n_states
    best = float(posterior.log_prob(np.array(list(np.ndindex(*sizes)))).max())

    def run(self: Portfolio, part: PortfolioPart, state: PortfolioState, ledger: Ledger) -> None:
        """Let the second part alone lower the bound, once."""
        turns.append(state.parts.index(part))
        part.work += 2.0**27
        if turns == [0, 1]:
            ledger.upper_bound(best + 1e-3, "a test")

    monkeypatch.setattr(Portfolio, "_run", run)
    solver, ledger = Portfolio(), Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))
    for _ in range(40):
        state = solver.step(state, ledger)
    assert turns[:4] == [0, 1, 2, 3]
    assert turns.count(1) > 20
    assert all(turns.count(k) > 3 for k in (0, 2, 3))


def test_a_dear_first_piece_waits_until_the_others_have_worked() -> None:
    model, query = random_network(7, 0.0)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    solver, ledger = Portfolio(portfolio.TurnTuning(trials=1.0)), Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.step(solver.init(posterior, ledger.control, np.random.default_rng(0)), ledger)
    first = state.parts[0]
    assert (first.effort.n_nodes, first.rate) == (0, math.inf)
    needs = first.needs
    assert needs > 0.0
    while not first.effort.n_nodes and not ledger.satisfied:
        state = solver.step(state, ledger)
    assert ledger.satisfied or sum(part.work for part in state.parts) >= needs


@pytest.mark.parametrize(("start", "is_left_out"), [(1.0, False), (1e-9, True)])
def test_larger_mini_buckets_wait_and_are_left_out_if_too_slow(start: float, is_left_out: bool) -> None:
    model, query = grid(8, 3, 20)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    tuning = portfolio.TurnTuning(turn=1.0, trials=1.0, bits=(2.0, 9.0), iterations=0, start=start)
    solver, ledger = Portfolio(tuning), Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, Control.starting_now(60.0), np.random.default_rng(0))
    buckets = state.parts[1]
    solver._run(buckets, state, ledger)
    assert (buckets.solver, buckets.done) == (WeightedMiniBuckets(None, 0, 2.0), False)
    work = buckets.work
    solver._run(buckets, state, ledger)  # the larger tables begin, and do nothing yet
    assert buckets.solver == WeightedMiniBuckets(None, 0, 9.0)
    assert (buckets.done, buckets.work) == (is_left_out, work)
    assert (buckets.needs > work) is not is_left_out


def test_an_and_or_search_counts_its_sums_and_ends_a_step_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, query = grid(6, 5, 14)
    posterior = NetworkPosterior.of_network(model, make_query(model.domain, query, {}))
    solver, n_steps = and_or.AndOrBranchAndBound(), []
    for most in (2.0**27, 1.0):
        monkeypatch.setattr(and_or, "STEP_WORK", most)
        ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
        state = solver.init(posterior, ledger.control, np.random.default_rng(0))
        n_steps.append(0)
        while not state.done:
            state = solver.step(state, ledger)
            n_steps[-1] += 1
        assert solver.effort(state).work > state.n_nodes * and_or.NODE_WORK
    assert n_steps[1] > n_steps[0]


def test_tables_that_bound_an_and_or_search_stay_small_where_variables_have_many_states() -> None:
    rng = np.random.default_rng(0)
    domain = cm.Domain.of_sizes([24] * 9)
    pairs = [(i, j) for i in range(9) for j in range(i) if i - j < 4]
    model = cm.MarkovNetwork(domain, [cm.Factor(pair, rng.random((24, 24))) for pair in pairs])
    posterior = NetworkPosterior.of_network(model, make_query(domain, ["0", "4", "8"], {}))
    arrays = AndOrSpace.of(posterior, 10, 0).tree.arrays
    assert 24**2 < np.max(np.diff(arrays.message_ptr) * arrays.n_states[arrays.own]) <= and_or.TABLE_ENTRIES


def test_a_long_chain_is_settled_before_tables_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    start, moves, emits = (rng.dirichlet(np.ones(20), n) for n in (1, 20, 20))
    model, query = cm.hidden_markov_model(start[0], moves, emits, 200), [f"symbol{t}" for t in range(200)]
    posterior = condition(model, make_query(model.domain, query, {}), wants=(Regions,))
    monkeypatch.delattr(FullWidth, "step")  # the sets need no help
    result = map_query(posterior, solver=Portfolio(), epsilon=0.0, delta=0.0, rng=0)
    assert result.certificate.kind is CertificateKind.EXACT


def test_a_large_tree_goes_to_the_portfolio_and_a_small_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model, query = random_network(3, 0.0)
    posterior = condition(model, make_query(model.domain, query, {}), wants=(Regions,))
    monkeypatch.setattr(registry, "SMALL_SPACE", 1)
    assert registry.choose(posterior).name == "set_elimination"
    monkeypatch.setattr(registry, "DEAR_TREE", 1.0)
    assert registry.choose(posterior).name == "portfolio"
