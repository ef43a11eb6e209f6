"""The named network solvers on the conformance suite, against enumeration, and what each refuses."""

import math

import numpy as np
import pytest
from problem_twin import random_problem, value_array

import certimap as cm
from certimap.ask.api import map_query
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.core.result import CertificateKind
from certimap.networks.elimination_plan import plan
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import Problem, Table
from certimap.networks.relaxation.tighten import Tightener
from certimap.solvers.baselines.aobf import AndOrGraph, dive
from certimap.solvers.networks.and_or import AndOrSpace
from certimap.solvers.networks.hbfs import HybridBestFirst
from certimap.solvers.networks.parts import ENTRIES_PER_VISIT, Context, Reduction
from certimap.testing import check_solver


def random_case(rng, nuisance):
    """Return a random network's posterior, and the log probability of its best assignment."""
    problem = random_problem(rng, max_variables=7, max_states=3, nuisance=nuisance)
    place = {v: i for i, v in enumerate(sorted(problem.sizes))}
    domain = cm.Domain.of_sizes(problem.sizes[v] for v in place)
    factors = [Factor.from_log([place[v] for v in t.scope], t.log_values) for t in problem.tables]
    query, values = value_array(problem)
    names = [domain.names[place[v]] for v in query]
    posterior = NetworkPosterior.of_network(MarkovNetwork(domain, factors), make_query(domain, names))
    return posterior, float(values.max() - np.logaddexp.reduce(values.ravel()))


def grid(n, rng):
    """Return an n by n grid of binary variables with strong couplings."""
    domain = cm.Domain.of_sizes([2] * (n * n))
    factors = [Factor.from_log([i], rng.normal(size=2)) for i in range(n * n)]
    for i in range(n * n):
        for j in (i + 1 if (i + 1) % n else None, i + n if i + n < n * n else None):
            if j is not None:
                factors.append(Factor.from_log([i, j], 2.0 * rng.normal(size=(2, 2))))
    return MarkovNetwork(domain, factors)


EXACT = {"bucket_elimination", "aobb", "aobf", "aaobf"}
CASES = [(name, i) for name in ("wmb", "ijgp", "aobb", "aobf", "aaobf") for i in (1, 2, 3, 4)] + [
    ("bucket_elimination", None)
]


@pytest.mark.parametrize(("name", "i_bound"), CASES)
def test_answers_and_bounds_hold_against_enumeration(name, i_bound):
    rng = np.random.default_rng(17)
    options = {} if i_bound is None else {"i_bound": i_bound}
    for _ in range(30):
        posterior, best = random_case(rng, float(rng.choice([0.0, 0.4, 0.8])))
        result = map_query(posterior, solver=name, epsilon=0.0, delta=0.0, rng=0, progress=False, **options)
        assert result.log_prob <= best + 1e-9
        assert result.log_upper_bound >= best - 1e-9
        if name in EXACT:
            assert result.certificate.kind is CertificateKind.EXACT
        if result.certificate.kind is CertificateKind.EXACT:
            assert result.log_prob == pytest.approx(best, abs=1e-8)


@pytest.mark.parametrize("name", ["wmb", "bucket_elimination", "ijgp", "aobb", "aobf", "aaobf"])
def test_conformance(name):
    rng = np.random.default_rng(5)
    posteriors = [random_case(rng, 0.4)[0] for _ in range(6)]
    check_solver(name, posteriors=posteriors, finds_best=name in EXACT)


def test_more_iterations_and_larger_tables_bound_better():
    for seed in range(3):
        network = grid(5, np.random.default_rng(seed))
        names = network.domain.names[::2]
        best = cm.map_query(network, names, epsilon=0.0, delta=0.0).log_joint
        gaps = []
        for i_bound, iterations in ((1, 0), (1, 30), (3, 30), (12, 0)):
            result = cm.map_query(
                network,
                names,
                solver="wmb",
                i_bound=i_bound,
                iterations=iterations,
                epsilon=0.0,
                delta=0.0,
                progress=False,
            )
            gaps.append(result.log_joint_upper_bound - best)
        assert gaps[0] > gaps[1] + 0.1
        assert gaps[1] >= gaps[2] >= gaps[3] - 1e-9
        assert gaps[3] == pytest.approx(0.0, abs=1e-8)


def test_time_too_short_for_large_tables_goes_to_smaller_ones(monkeypatch):
    """The bound is the lowest of all relaxations, none of whose steps came in time here."""
    model = grid(7, np.random.default_rng(3))
    settings = {"solver": "wmb", "iterations": 6, "progress": False}

    def cut(self, temperature, n_steps):
        self.is_cut = True
        return True

    monkeypatch.setattr(Tightener, "run", cut)
    found = cm.map_query(model, i_bound=5, **settings)
    alone = [cm.map_query(model, i_bound=i, **settings | {"iterations": 0}).log_joint_upper_bound for i in (5, 2)]
    assert found.status == "time_limit"
    assert found.log_joint_upper_bound == pytest.approx(min(alone), abs=1e-9)


def test_elimination_says_how_much_it_would_take():
    domain = cm.Domain.of_sizes([4] * 30)
    rng = np.random.default_rng(0)
    factors = [Factor((i, j), rng.random((4, 4))) for i in range(30) for j in range(i)]
    network = MarkovNetwork(domain, factors)
    with pytest.raises(cm.CertimapError, match=r"2\^.*bytes.*solver='auto'"):
        cm.map_query(network, solver="bucket_elimination")


@pytest.mark.parametrize("options", [{"i_bound": 0}, {"iterations": -1}, {"bits": -1.0}])
def test_settings_out_of_range_are_refused(options):
    posterior, _ = random_case(np.random.default_rng(0), 0.4)
    with pytest.raises(cm.SolverError, match="expected"):
        map_query(posterior, solver="wmb", **options)


@pytest.mark.parametrize("name", ["aobb", "aobf", "aaobf"])
@pytest.mark.parametrize("nuisance", [False, True])
def test_searches_agree_with_elimination_on_grids(name, nuisance):
    for seed in range(2):
        network = grid(5, np.random.default_rng(seed))
        names = network.domain.names[::2] if nuisance else None
        settings = {"epsilon": 0.0, "delta": 0.0, "progress": False}
        best = cm.map_query(network, names, solver="bucket_elimination", **settings).log_joint
        result = cm.map_query(network, names, solver=name, i_bound=3, **settings)
        assert result.log_joint == pytest.approx(best, abs=1e-8)
        assert result.certificate.kind is CertificateKind.EXACT


def test_a_search_cut_short_has_an_answer_and_a_bound():
    network = grid(7, np.random.default_rng(3))
    best = cm.map_query(network, solver="bucket_elimination", epsilon=0.0, delta=0.0).log_joint
    for name in ("aobb", "aobf", "aaobf"):
        result = cm.map_query(
            network, solver=name, i_bound=1, iterations=0, max_nodes=20, epsilon=0.0, delta=0.0, progress=False
        )
        assert result.log_joint <= best + 1e-9
        assert best - 1e-9 <= result.log_joint_upper_bound < np.inf


@pytest.mark.parametrize("name", ["aobf", "aaobf"])
@pytest.mark.parametrize("steps", [1, 60])
def test_best_first_goes_on_depth_first_when_memory_is_short(monkeypatch, name, steps):
    monkeypatch.setattr("certimap.solvers.baselines.aobf.NODE_BYTES", 10**9)
    monkeypatch.setattr("certimap.solvers.baselines.aobf.STEP_NODES", steps)
    network = grid(5, np.random.default_rng(1))
    names = network.domain.names[::2]
    best = cm.map_query(network, names, solver="bucket_elimination", epsilon=0.0, delta=0.0).log_joint
    result = cm.map_query(network, names, solver=name, i_bound=2, iterations=0, epsilon=0.0, delta=0.0)
    assert result.log_joint == pytest.approx(best, abs=1e-8)
    assert result.certificate.kind is CertificateKind.EXACT


@pytest.mark.parametrize("n_nodes", [1, 3, 500])
def test_bounds_of_a_graph_close_in_on_the_optimum_from_both_sides(n_nodes):
    """Without answers from elsewhere: a bound that falls too far, or a value too high, shows at every dive."""
    rng = np.random.default_rng(23)
    for _ in range(25):
        posterior, best = random_case(rng, float(rng.choice([0.0, 0.4, 0.8])))
        graph = AndOrGraph(AndOrSpace.of(posterior, 1, 0))
        while not graph.is_solved:
            assert graph.lower - 1e-9 <= best <= graph.upper + 1e-9
            dive(graph, n_nodes)
        assert graph.upper == pytest.approx(best, abs=1e-8)
        assert graph.lower == pytest.approx(best, abs=1e-8)
        for solved in graph.solutions().values():
            assert solved.value <= solved.upper + 1e-9


def wide_network(seed):
    """Return a Bayesian network of 30 to 60 variables that a search solves in parts."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 60))
    parents = [sorted({int(j) for j in rng.integers(max(0, i - 30), i, size=min(i, 2))}) for i in range(n)]
    names = [f"v{i}" for i in range(n)]
    tables = {names[i]: rng.dirichlet(np.ones(3), size=(3,) * len(parents[i])) for i in range(n)}
    before = {names[i]: [names[j] for j in parents[i]] for i in range(n)}
    return cm.BayesianNetwork.from_cpts({name: list(range(3)) for name in names}, before, tables)


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("epsilon", [0.001, 0.01, 0.05, 0.2, 0.5])
def test_hbfs_that_cuts_by_epsilon_earns_it(epsilon, top_k):
    """Nothing is eliminated, and epsilon cuts from the first node on."""
    settings = {"quick_entries": 0, "max_entries": 0, "exact_work": 0}
    for seed in range(3):
        result = cm.map_query(
            wide_network(seed), solver="hbfs", epsilon=epsilon, delta=0.0, rng=seed, top_k=top_k, **settings
        )
        assert result.certificate.kind in (CertificateKind.EPSILON, CertificateKind.EXACT)
        assert result.log_upper_bound - result.log_prob <= -np.log1p(-epsilon)


@pytest.mark.parametrize(
    ("seconds", "quick_entries", "is_cut_short"),
    [(None, 1.0, True), (1e4, 1.0, True), (1e-3, 1.0, False), (None, 0.0, False)],
)
def test_a_search_is_cut_short_by_an_elimination_that_fits_the_time(seconds, quick_entries, is_cut_short):
    """An elimination of 2^20 entries; the shares of its work that a search may take."""
    problem = Problem(
        dict.fromkeys(range(20), 2), frozenset(range(20)), (Table(tuple(range(20)), np.zeros((2,) * 20)),)
    )
    control = Control() if seconds is None else Control.starting_now(seconds)
    context = Context(control, 1, quick_entries, 2.0**34, 2**30, 1, 0)
    assert (context.searched_before(plan(problem)) < 2.0**20 / ENTRIES_PER_VISIT) == is_cut_short


def test_a_grid_is_eliminated_as_it_was_before_its_reduction(monkeypatch):
    """A reduction maximises every other variable away, and what is left has larger tables."""
    rng, side = np.random.default_rng(7), 15
    at = np.arange(side * side).reshape(side, side)
    pairs = [*zip(at[1:].flat, at[:-1].flat, strict=True), *zip(at[:, 1:].flat, at[:, :-1].flat, strict=True)]
    agree = np.where(np.eye(2) > 0.0, 1.0, -1.0)
    factors = [cm.Factor.from_log((int(a), int(b)), 2.0 * rng.normal() * agree) for a, b in pairs]
    factors += [cm.Factor.from_log((int(v),), 0.1 * rng.normal(size=2)) for v in at.flat]
    model = cm.MarkovNetwork(cm.Domain.of_sizes([2] * side**2), factors)
    orders, maximised = [], HybridBestFirst._is_maximised
    monkeypatch.setattr(Context, "searched_before", lambda self, order: 5e5)
    monkeypatch.setattr(Reduction, "n_entries_left", math.inf)
    monkeypatch.setattr(
        HybridBestFirst, "_is_maximised", lambda self, *args: orders.append(args[2]) or maximised(self, *args)
    )
    searched = cm.map_query(model, solver=HybridBestFirst(quick_entries=1.0), epsilon=0.0, delta=0.0, rng=0)
    assert [len(order.order) for order in orders] == [side**2]
    eliminated = cm.map_query(model, solver="hbfs", epsilon=0.0, delta=0.0, rng=0)
    assert searched.certified
    assert eliminated.certified
    assert abs(searched.log_joint - eliminated.log_joint) < 1e-9


def test_hbfs_begins_anew_where_margins_add_up_to_more_than_epsilon(monkeypatch):
    """Parts split after some of them were closed; here each of them takes what belongs to all."""
    monkeypatch.setattr(Reduction, "n_parts", property(lambda self: 1))
    model = cm.MarkovNetwork(
        cm.Domain.of_sizes([2] * 24),
        [Factor.from_log([i, i + 1], np.array([[0.0, -0.02], [-0.03, 0.01]])) for i in range(0, 24, 2)],
    )
    settings = {"quick_entries": 0, "max_entries": 0, "exact_work": 0}
    result = cm.map_query(model, solver="hbfs", epsilon=0.1, delta=0.0, rng=0, **settings)
    assert result.certificate.kind in (CertificateKind.EPSILON, CertificateKind.EXACT)
