"""Preparing a network looks at the clock: a deadline ends it between two small pieces of work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from certimap import Domain, Factor, MarkovNetwork
from certimap.ask.api import map_query
from certimap.conversions import choose, from_networks
from certimap.conversions.choose import case_of
from certimap.core.control import Control, TimeUp
from certimap.core.query import make_query
from certimap.networks import conditional
from certimap.networks import problem as problem_module
from certimap.networks.conditional import PointEvaluator, ordered_parts
from certimap.networks.costs import Costs, climb
from certimap.networks.orders import min_fill, plan_elimination
from certimap.networks.posterior import NetworkPosterior, TwoSidedNetworkPosterior, part_of
from certimap.networks.problem import HARD, Table, problem_of, to_integers
from certimap.networks.reduction import reduce_network
from certimap.networks.simplify import drop_impossible, simplify, sum_out
from certimap.networks.sum_elimination import sum_in_logs
from certimap.networks.support import supported_states
from certimap.solvers import exhaustive


def grid_scopes(side: int) -> list[tuple[int, int]]:
    across = [(side * i + j, side * i + j + 1) for i in range(side) for j in range(side - 1)]
    return across + [(v, v + side) for v in range(side * (side - 1))]


def test_an_order_is_given_up_at_the_deadline():
    sizes = dict.fromkeys(range(70 * 70), 2)
    with pytest.raises(TimeUp, match="looking for an elimination order"):
        plan_elimination(grid_scopes(70), sizes, range(0, 4900, 2), control=Control.starting_now(0.01))


def test_an_order_does_not_depend_on_a_deadline_that_leaves_time():
    sizes = dict.fromkeys(range(100), 2)
    assert min_fill(grid_scopes(10), sizes) == min_fill(
        grid_scopes(10), sizes, control=Control.starting_now(1000.0)
    )


def test_absorbing_evidence_is_given_up_at_the_deadline():
    domain = Domain.of_sizes([2] * 200)
    equal = np.eye(2)  # zeros everywhere, so that every table is looked at
    network = MarkovNetwork(domain, [Factor((i, i + 1), equal) for i in range(199)])
    assert len(reduce_network(network).sizes) == 200
    with pytest.raises(TimeUp, match="absorbing the evidence"):
        reduce_network(network, control=Control.starting_now(0.0))


def wide_problem(side: int = 8, share: int = 5):
    """Return a grid's network and a query of every so many-th variable, whose tables do not fit."""
    rng = np.random.default_rng(3)
    factors = [Factor(scope, np.exp(rng.normal(size=(2, 2)))) for scope in grid_scopes(side)]
    network = MarkovNetwork(Domain.of_sizes([2] * side**2), factors)
    return network, make_query(network.domain, network.domain.names[::share])


@pytest.mark.parametrize(
    "work",
    [
        lambda problem, control: sum_out(problem, 2**10, control),
        lambda problem, control: simplify(problem, control=control),
        lambda problem, control: drop_impossible(problem, control),
        lambda problem, control: ordered_parts(problem, control),
        lambda problem, control: sum_in_logs(problem, control),
    ],
)
def test_reductions_and_orders_are_given_up_at_the_deadline(work):
    network, query = wide_problem()
    problem = problem_of(network, query).problem
    hard = Table(problem.tables[0].scope, np.array([[0.0, -np.inf], [-np.inf, 0.0]]))
    problem = replace(problem, tables=(*problem.tables, hard))
    work(problem, Control.starting_now(1000.0))
    with pytest.raises(TimeUp):
        work(problem, Control.starting_now(0.0))


def test_a_list_cut_short_is_bounded_by_the_relaxation(monkeypatch):
    network, query = wide_problem(6, 3)
    posterior = NetworkPosterior(query.query_domain, problem_of(network, query))
    best = map_query(posterior, solver="exhaustive", epsilon=0.0, delta=0.0)
    assert best.certified
    listed = exhaustive.joint_states

    def once(box, start, end):
        if start:
            raise TimeUp("listing")
        return listed(box, start, end)

    monkeypatch.setattr(exhaustive, "joint_states", once)
    cut = map_query(posterior, solver="exhaustive", epsilon=0.0, delta=0.0)
    assert cut.log_joint <= best.log_joint <= cut.log_joint_upper_bound + 1e-9
    assert cut.log_joint_upper_bound < posterior.facts.log_ceiling - 1.0


@pytest.mark.parametrize("zeros", [0.0, 0.2])
def test_values_between_two_sides_are_made_quickly_when_the_time_is_up(zeros, monkeypatch):
    monkeypatch.setattr("certimap.networks.posterior.PART_SECONDS", 0.0)
    rng, scopes = np.random.default_rng(5), grid_scopes(4)
    tables = [np.exp(rng.normal(size=(2, 2))) * (rng.random((2, 2)) >= zeros) for _ in scopes]
    network = MarkovNetwork(
        Domain.of_sizes([2] * 16), [Factor(scope, t) for scope, t in zip(scopes, tables, strict=True)]
    )
    query = make_query(network.domain, network.domain.names[::5])
    problem = problem_of(network, query).problem
    assert part_of(problem, {}).nuisance  # a sum so small is not cut down
    assert not part_of(problem, {}, Control(interrupted=True)).nuisance
    late = TwoSidedNetworkPosterior.of_network(network, query, control=Control.starting_now(0.0))
    exact = NetworkPosterior.of_network(network, query)
    points = np.array(list(np.ndindex(*[2] * len(query.variables))))
    truth = exact.log_prob(points) + (exact.log_evidence or 0.0)
    lower, upper = late.log_prob_interval(points)
    assert np.all(lower <= truth + 1e-9)
    assert np.all(truth <= upper + 1e-9)
    assert np.any(lower < truth - 1e-3)


def test_a_dear_point_that_would_end_late_is_not_begun_once_there_is_an_answer(monkeypatch):
    monkeypatch.setattr("certimap.networks.posterior.DEAR_POINT", 1.0)
    monkeypatch.setattr("certimap.networks.conditional.VERY_DEAR", 1.0)
    network, query = wide_problem(5)
    posterior = NetworkPosterior.of_network(network, query, control=Control.starting_now(0.0))
    point = posterior.possible_point()
    assert posterior.log_prob(point)[0] > -np.inf
    with pytest.raises(TimeUp, match="evaluating assignments"):
        posterior.log_prob(1 - point)


@pytest.mark.parametrize("stops", [False, True])
def test_states_of_tables_without_zeros_take_one_look_at_the_clock_each(stops):
    network, query = wide_problem()
    problem, looks = problem_of(network, query).problem, []

    def should_stop() -> bool:
        looks.append(len(looks))
        return stops

    states = supported_states(problem, should_stop)
    assert states is not None
    assert set(states) == set(problem.sizes)
    assert len(looks) == (1 if stops else len(problem.sizes))
    assert any(states.values()) != stops


@pytest.mark.parametrize("most", [0, 1, 100])
def test_a_climb_asks_before_each_search_whether_to_stop(most):
    network, query = wide_problem(5, 1)
    costs = Costs(to_integers(problem_of(network, query).problem), tuple(range(25)))
    incumbent, looks = np.full(26, HARD), []

    def should_stop() -> bool:
        looks.append(0)
        return len(looks) > most

    work = climb(costs, costs.dual(), incumbent, np.uint64(1), should_stop)
    assert (work > 0) == (incumbent[0] > HARD) == (most > 0)
    assert len(looks) == min(most + 1, 2)  # one start, then kicks


def test_what_conditioning_found_before_it_was_cut_is_taken_up(monkeypatch):
    calls = []

    def counted(*given, **more):
        calls.append(given)
        return reduce_network(*given, **more)

    def cut(model, query, *, wants, limits):
        from_networks.reduced_of(case_of(model, query, limits))
        raise TimeUp("planning")

    for module in (from_networks, problem_module):
        monkeypatch.setattr(module, "reduce_network", counted)
    monkeypatch.setattr(choose, "plan", cut)
    model, query = wide_problem()
    found = map_query(model, query.query_domain.names, time_limit=600, progress=False)
    assert found.note == "the time was up while planning"
    assert len(calls) == 1


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_tables_are_looked_at_at_once_with_the_same_values(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    domain = Domain.of_sizes(rng.integers(2, 4, 60).tolist())
    scopes = [tuple(rng.choice(60, int(rng.integers(1, 4)), replace=False).tolist()) for _ in range(200)]
    factors = [
        Factor.from_log(scope, np.log(rng.dirichlet(np.ones(2), [domain.n_states[v] for v in scope])[..., 0]))
        for scope in scopes
    ]
    factors[0] = Factor.from_log((0,), [-np.inf, *[0.0] * (int(domain.n_states[0]) - 1)])
    problem = problem_of(MarkovNetwork(domain, factors), make_query(domain, domain.names)).problem
    columns = sorted(problem.sizes)
    points = np.array([rng.integers([problem.sizes[v] for v in columns]) for _ in range(20)])
    one_by_one = PointEvaluator(problem, columns).log_values(points)
    monkeypatch.setattr(conditional, "MANY_TABLES", 1)
    assert PointEvaluator(problem, columns).log_values(points) == pytest.approx(one_by_one, abs=1e-12)
