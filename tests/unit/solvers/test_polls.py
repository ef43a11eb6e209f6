"""Solvers look at the clock between pieces of work: counted looks in place of seconds."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from certimap.ask.api import map_query
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Domain
from certimap.core.query import make_query
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import problem_of
from certimap.networks.relaxation.split_tree import PassClock, exact_tree, split_tree
from certimap.networks.relaxation.tighten import Tightener
from certimap.solvers.base import Solver
from certimap.solvers.driver import run
from certimap.solvers.elimination import one_pass
from certimap.solvers.elimination.set_elimination import SetElimination
from certimap.solvers.request import Request
from certimap.trees.bucket_tree import BucketTreePosterior


class Clock(Control):
    """A control whose time is up from the n-th look on; it counts the looks."""

    def __init__(self, n_before):
        super().__init__()
        self.n_before, self.n_looks = n_before, 0

    @property
    def is_late(self):
        self.n_looks += 1
        return self.n_looks > self.n_before

    @property
    def should_stop(self):
        return self.interrupted or self.is_late

    @property
    def seconds_left(self):
        return 0.0 if self.is_late else 1.0


@pytest.fixture(scope="module")
def tree():
    """Return a tree of 60 hidden variables, 30 of whose noisy copies are queried and 15 observed."""
    rng = np.random.default_rng(3)
    n, k = 60, 6
    names = [str(i) for i in rng.permutation(n)]
    evidence = {name: int(rng.integers(2)) for name in names[30:45]}
    return BucketTreePosterior.from_tree(
        query=make_query(Domain.of_sizes([2] * n), names[:30], evidence),
        parent=np.array([-1] + [max(0, i - 1 - int(rng.integers(3))) for i in range(1, n)]),
        transitions=[rng.dirichlet(np.full(k, 0.5), size=k) for _ in range(n)],
        priors={0: rng.dirichlet(np.ones(k))},
        latent_of=np.arange(n),
        emissions=[rng.dirichlet(np.full(2, 0.7), size=k) for _ in range(n)],
    )


@pytest.mark.parametrize("n_before", [0, 1, 3, 10, 30, 100])
def test_an_elimination_that_is_cut_leaves_its_box_open(tree, n_before):
    best = map_query(tree, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    clock = Clock(n_before)
    solver = SetElimination(limits=(8,), split_limit=8)
    result = run(tree, Request(solver, 0.0, 0.0), control=clock)
    assert clock.n_looks <= n_before + 4  # what is under way ends with the first look that says so
    assert result.log_prob - 1e-9 <= best.log_prob <= result.log_upper_bound + 1e-9


def test_a_product_is_looked_at_between_its_steps(tree, monkeypatch):
    """No two large kernels run without a look at the clock between them."""
    clock, looks = Clock(10**9), []
    selected, dominated = one_pass.product, one_pass.VectorSet.undominated

    def noted(function):
        def call(*args):
            looks.append(clock.n_looks)
            return function(*args)

        return call

    monkeypatch.setattr(one_pass, "product", noted(selected))
    monkeypatch.setattr(one_pass.VectorSet, "undominated", noted(dominated))
    run(tree, Request(SetElimination(), 0.0, 0.0), control=clock)
    assert len(looks) > 50
    assert [n for n in itertools.pairwise(looks) if n[1] <= n[0]] == []


@pytest.mark.slow
def test_long_vectors_make_small_sets(tree, monkeypatch):
    monkeypatch.setattr(one_pass, "SET_ENTRIES", 64)
    monkeypatch.setattr(one_pass, "PRODUCT_ENTRIES", 256)
    monkeypatch.setattr(one_pass, "FEWEST_ROWS", 2)
    best = map_query(tree, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    few = map_query(tree, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0, progress=False, max_nodes=2)
    assert few.log_prob - 1e-9 <= best.log_prob <= few.log_upper_bound + 1e-9
    monkeypatch.undo()
    exact = map_query(tree, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    assert best.log_prob == pytest.approx(exact.log_prob, abs=1e-9)


def wide_query(rng, side=7):
    """Return a grid of binary variables with zeros here and there, and a third of its variables."""
    at = np.arange(side * side).reshape(side, side)
    ends = ((at[:, 1:], at[:, :-1]), (at[1:], at[:-1]))
    factors = []
    for u, v in (pair for a, b in ends for pair in zip(a.ravel(), b.ravel(), strict=True)):
        table = np.exp(rng.normal(size=(2, 2)))
        table[0, 0] *= rng.random() < 0.9
        factors.append(Factor((int(v), int(u)), table))
    network = MarkovNetwork(Domain.of_sizes([2] * side**2), factors)
    names = [network.domain.names[int(i)] for i in rng.choice(side**2, side**2 // 3, replace=False)]
    return network, make_query(network.domain, names)


@pytest.mark.parametrize("solver", ["frontier", "wmb", "aobb", "aobf", "aaobf", "ijgp", "bucket_elimination"])
@pytest.mark.parametrize("n_before", [0, 2, 5, 12, 40])
def test_a_solver_of_networks_ends_soon_and_has_an_answer(solver, n_before):
    network, query = wide_query(np.random.default_rng(4))
    best = map_query(
        NetworkPosterior.of_network(network, query), solver="frontier", epsilon=0.0, delta=0.0, progress=False
    )
    assert best.certified
    clock = Clock(n_before)
    posterior = NetworkPosterior.of_network(network, query, control=clock)
    result = run(posterior, Request(solver, 0.0, 0.0), control=clock)
    assert clock.n_looks <= n_before + 12
    assert -np.inf < result.log_joint <= best.log_joint + 1e-9
    assert best.log_joint - 1e-9 <= result.log_joint_upper_bound < np.inf


@pytest.mark.parametrize("kind", ["up", "gradient", "down"])
def test_long_passes_are_cut_and_come_to_the_same(kind, monkeypatch):
    network, query = wide_query(np.random.default_rng(1), side=5)
    problem = problem_of(network, query).problem
    tree = split_tree(problem, 4.0)
    weights = np.maximum(tree.weights, 0.1)
    s, slopes = tree.scratch(), (np.empty(len(tree.shifts)), np.empty(len(tree.weights)))

    def passes(clock):
        bound = tree.bound(scratch=s, clock=clock)
        value = tree.gradient(weights, s, *slopes, clock)
        return bound, value, *(x.copy() for x in slopes), *tree.probe(tree.full_mask()[None], 1, clock)

    whole = passes(PassClock())
    monkeypatch.setattr("certimap.networks.relaxation.split_tree.PIECE", 16.0)
    monkeypatch.setattr("certimap.networks.relaxation.split_tree.PIECE", 16.0)
    monkeypatch.setattr("certimap.networks.relaxation.split_tree.SHORT", 0.0)
    clock = Clock(10**9)
    for a, b in zip(whole, passes(PassClock(clock)), strict=True):
        assert np.allclose(a, b, atol=1e-12)
    assert clock.n_looks > 100
    late = {"up": lambda c: tree.bound(clock=c), "down": lambda c: tree.probe(tree.full_mask()[None], 1, c)}
    late["gradient"] = lambda c: tree.gradient(weights, s, *slopes, c)
    with pytest.raises(TimeUp):
        late[kind](PassClock(Clock(3)))


def test_steps_that_are_cut_leave_a_valid_relaxation():
    network, query = wide_query(np.random.default_rng(2), side=5)
    tree = split_tree(problem_of(network, query).problem, 3.0)
    first = tree.bound()
    for n_before in range(12):
        tightener = Tightener(tree, PassClock(Clock(n_before)))
        tightener.run(0.1, 5)
        assert tightener.is_cut
    assert tree.bound() <= first + 1e-9
    exact = exact_tree(problem_of(network, query).problem, 2.0**22)
    assert exact is not None
    assert exact.bound() <= tree.bound() + 1e-9


class OneImpossiblePoint(Solver):
    """Report the first of all points, and no more."""

    name = "one_impossible_point"

    def init(self, posterior, control, rng, boxes=None):
        return SimpleNamespace(done=False, posterior=posterior)

    def step(self, state, ledger):
        ledger.candidates(np.zeros((1, len(state.posterior.domain)), np.int16))
        state.done = True
        return state


@pytest.mark.parametrize("n_query", [5, 8])
def test_an_impossible_point_is_no_answer(n_query):
    """Neighbours in a chain differ: the first point has probability 0, and another is found."""
    differ = np.array([[0.0, 1.0], [2.0, 0.0]])
    factors = [Factor((i, i + 1), differ) for i in range(7)]
    network = MarkovNetwork(Domain.of_sizes([2] * 8), factors)
    query = make_query(network.domain, network.domain.names[:n_query])
    result = map_query(
        NetworkPosterior.of_network(network, query), solver=OneImpossiblePoint(), rng=0, progress=False
    )
    assert result.log_joint > -np.inf
