"""Solvers look at the clock between pieces of work: counted looks in place of seconds."""

import itertools

import numpy as np
import pytest

from certimap.control import Control
from certimap.domain import Domain
from certimap.query import make_query
from certimap.solvers.driver import run
from certimap.solvers.elimination import one_pass
from certimap.solvers.elimination.set_elimination import SetElimination
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
    best = run(tree, SetElimination(), epsilon=0.0, delta=0.0, rng=0, progress=False)
    clock = Clock(n_before)
    solver = SetElimination(limits=(8,), split_limit=8)
    result = run(tree, solver, epsilon=0.0, delta=0.0, rng=0, progress=False, control=clock)
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
    run(tree, SetElimination(), epsilon=0.0, delta=0.0, rng=0, progress=False, control=clock)
    assert len(looks) > 50
    assert [n for n in itertools.pairwise(looks) if n[1] <= n[0]] == []


def test_long_vectors_make_small_sets(tree, monkeypatch):
    monkeypatch.setattr(one_pass, "SET_ENTRIES", 64)
    monkeypatch.setattr(one_pass, "PRODUCT_ENTRIES", 256)
    monkeypatch.setattr(one_pass, "FEWEST_ROWS", 2)
    best = run(tree, SetElimination(), epsilon=0.0, delta=0.0, rng=0, progress=False)
    few = run(tree, SetElimination(), epsilon=0.0, delta=0.0, rng=0, progress=False, max_nodes=2)
    assert few.log_prob - 1e-9 <= best.log_prob <= few.log_upper_bound + 1e-9
    monkeypatch.undo()
    exact = run(tree, SetElimination(), epsilon=0.0, delta=0.0, rng=0, progress=False)
    assert best.log_prob == pytest.approx(exact.log_prob, abs=1e-9)
