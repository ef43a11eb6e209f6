"""Structured circuits as trees of regions: against enumeration and beside hidden trees; refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from engine_twin import Twin, all_points
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions import condition
from certimap.conversions.circuit_to_tree import tree_of_circuit
from certimap.core.box import Boxes
from certimap.core.domain import Domain, Real
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence, SolverError
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.trees.bucket_tree import BucketTreePosterior


class StructuredCircuits:
    """Random unnormalised circuits whose products follow one random tree of scopes.

    Nodes are shared; sums have sums, products and bare links below, in layers of different depth; some
    products multiply what is below their parts instead of the parts.
    """

    def __init__(self, rng: np.random.Generator, sizes: list[int]) -> None:
        self.rng = rng
        self.domain = Domain.of_sizes(sizes)
        self.builder = CircuitBuilder(self.domain)
        self.below: dict[int, list[int]] = {}  # the children of each product

    def build(self) -> Circuit:
        top = self.nodes(list(range(len(self.domain))))
        self.weighted(top)
        return self.builder.build(normalised=False)

    def weighted(self, nodes: list[int]) -> int:
        chosen = [int(c) for c in self.rng.choice(nodes, size=int(self.rng.integers(1, 5)))]
        weights = self.rng.uniform(0.05, 3.0, len(chosen))
        weights[1:][self.rng.random(len(chosen) - 1) < 0.2] = 0.0
        with np.errstate(divide="ignore"):
            return self.builder.sum(chosen, log_weights=np.log(weights).tolist())

    def leaf(self, v: int) -> int:
        weights = self.rng.dirichlet(np.full(int(self.domain.n_states[v]), 0.8)) * self.rng.uniform(0.2, 3.0)
        weights[1:][self.rng.random(len(weights) - 1) < 0.2] = 0.0
        with np.errstate(divide="ignore"):
            return self.builder.categorical(v, log_weights=np.log(weights))

    def nodes(self, scope: list[int]) -> list[int]:
        """Return a few nodes over one scope."""
        if len(scope) == 1:
            found = [self.leaf(scope[0]) for _ in range(3)]
        else:
            cuts = np.sort(
                self.rng.choice(np.arange(1, len(scope)), int(self.rng.integers(1, min(4, len(scope)))), False)
            )
            parts = [self.nodes([int(v) for v in part]) for part in np.split(np.array(scope), cuts)]
            found = [self.product(parts) for _ in range(int(self.rng.integers(2, 5)))]
        for _ in range(int(self.rng.integers(1, 5))):
            found.append(self.weighted(found))
            if self.rng.random() < 0.3:
                found.append(self.builder.product([found[-1]]))
        return found

    def product(self, parts: list[list[int]]) -> int:
        children: list[int] = []
        for part in parts:
            child = int(self.rng.choice(part))
            children += self.below[child] if child in self.below and self.rng.random() < 0.4 else [child]
        made = self.builder.product(children)
        self.below[made] = children
        return made


def random_query(rng, domain):
    names = [domain.names[i] for i in rng.permutation(len(domain))]
    n_query = int(rng.integers(1, len(domain) + 1))
    n_evidence = int(rng.integers(0, len(domain) - n_query + 1)) if rng.random() < 0.7 else 0
    evidence = {
        name: int(rng.integers(domain.n_states[domain.index(name)])) for name in names[n_query:][:n_evidence]
    }
    return make_query(domain, names[:n_query], evidence)


@given(st.integers(0, 2**32), st.lists(st.integers(2, 4), min_size=1, max_size=6))
@settings(max_examples=200)
def test_structured_circuits_against_enumeration(seed, sizes):
    rng = np.random.default_rng(seed)
    circuit = StructuredCircuits(rng, sizes).build()
    query = random_query(rng, circuit.domain)
    twin = Twin(circuit, query)
    if twin.total == 0.0:
        with pytest.raises(ImpossibleEvidence):
            condition(circuit, query, wants=(BucketTreePosterior,))
        return
    posterior = condition(circuit, query, wants=(BucketTreePosterior,))
    assert isinstance(posterior, BucketTreePosterior)
    points = np.array(all_points(query.query_domain), np.int16)
    probs = np.array([twin.prob(point) for point in points])
    assert posterior.log_evidence == pytest.approx(math.log(twin.total), abs=1e-9)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(posterior.log_prob(points), np.log(probs), atol=1e-9)
    assert np.exp(posterior.log_mass(Boxes.full(posterior.domain)))[0] == pytest.approx(1.0, abs=1e-12)
    answer = cm.map_query(posterior, solver="set_elimination", epsilon=0, delta=0, rng=0, progress=False)
    assert answer.certificate.kind == "exact"
    assert answer.log_prob == pytest.approx(math.log(probs.max()), abs=1e-9)


def hidden_tree(seed, n=14, n_hidden=5):
    rng = np.random.default_rng(seed)
    parent = np.array([-1, *(int(rng.integers(max(0, i - 3), i)) for i in range(1, n))])
    return HiddenChowLiuModel(
        Domain.of_sizes([2 + i % 2 for i in range(n)]),
        parent,
        rng.dirichlet(np.ones(n_hidden)),
        rng.dirichlet(np.full(n_hidden, 0.4), size=(n, n_hidden)),
        [rng.dirichlet(np.full(2 + i % 2, 0.6), size=n_hidden) for i in range(n)],
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_circuit_of_a_hidden_tree_becomes_that_tree_again(seed):
    model = hidden_tree(seed)
    rng = np.random.default_rng(seed)
    names = [str(i) for i in rng.permutation(14)]
    query = make_query(model.domain, names[:8], dict.fromkeys(names[8:11], 1))
    own, made = condition(model, query), condition(model.to_circuit(), query, wants=(BucketTreePosterior,))
    assert isinstance(own, BucketTreePosterior)
    assert isinstance(made, BucketTreePosterior)
    assert made.region_tree.n_regions == own.region_tree.n_regions
    assert made.region_tree.n_entries == own.region_tree.n_entries
    assert made.log_evidence == pytest.approx(own.log_evidence, abs=1e-12)
    points = own.sample(500, rng)
    np.testing.assert_allclose(made.log_prob(points), own.log_prob(points), atol=1e-11)
    mask = rng.random((20, own.domain.total_states)) < 0.8
    boxes = Boxes(own.domain, mask)
    np.testing.assert_allclose(made.log_mass(boxes), own.log_mass(boxes), atol=1e-11)
    each = [answers_in(posterior, boxes).each_bound for posterior in (made, own)]
    np.testing.assert_allclose(*each, atol=1e-11)


def test_auto_searches_a_structured_circuit_as_a_tree():
    model = hidden_tree(7, n=30)
    answers = [
        cm.map_query(m, epsilon=0, delta=0, solver=solver, rng=0, progress=False)
        for m, solver in ((model, "auto"), (model.to_circuit(), "auto"), (model.to_circuit(), "frontier"))
    ]
    assert [a.solver for a in answers] == ["set_elimination", "set_elimination", "frontier"]
    for answer in answers:
        assert answer.certificate.kind == "exact"
        assert answer.log_prob == pytest.approx(answers[0].log_prob, abs=1e-9)
    assert isinstance(cm.condition(model.to_circuit()), BucketTreePosterior)


def test_auto_leaves_circuits_that_decide_query_variables_alone():
    builder = CircuitBuilder(Domain.of_sizes([2] * 20))
    states = [[builder.indicator(v, s) for s in (0, 1)] for v in range(20)]
    below = list(states[-1])
    for v in range(18, -1, -1):
        mixed = [builder.sum(below, log_weights=np.log([0.1 + 0.8 * s, 0.9 - 0.8 * s])) for s in (0, 1)]
        below = [builder.product([states[v][s], mixed[s]]) for s in (0, 1)]
    builder.sum(below, log_weights=np.log([0.3, 0.7]))
    circuit = builder.build(normalised=False)
    query = make_query(circuit.domain)
    assert isinstance(condition(circuit, query), CircuitPosterior)
    assert isinstance(condition(circuit, query, wants=(BucketTreePosterior,)), BucketTreePosterior)


def mixture_of_splits(splits):
    """A sum of products over four variables, each with its own split; each part a mixture of two."""
    builder = CircuitBuilder(Domain.of_sizes([2] * 4))
    rng = np.random.default_rng(0)

    def part(scope):
        products = [
            builder.product([builder.categorical(v, log_weights=np.log(rng.dirichlet([1, 1]))) for v in scope])
        ]
        products.append(
            builder.product([builder.categorical(v, log_weights=np.log(rng.dirichlet([1, 1]))) for v in scope])
        )
        return builder.sum(products, log_weights=np.log([0.4, 0.6]))

    builder.sum([builder.product([part(s) for s in split]) for split in splits], log_weights=np.zeros(len(splits)))
    return builder.build(normalised=False)


def test_a_circuit_that_is_not_structured_is_refused_with_one_sentence():
    circuit = mixture_of_splits([((0, 1), (2, 3)), ((0, 2), (1, 3))])
    with pytest.raises(SolverError, match="solver='frontier'") as caught:
        cm.map_query(circuit, solver="set_elimination")
    assert "\n" not in str(caught.value)
    assert ". " not in str(caught.value)
    assert isinstance(condition(circuit, make_query(circuit.domain)), CircuitPosterior)
    alike = mixture_of_splits([((0, 1), (2, 3)), ((0, 1), (2, 3))])
    assert cm.map_query(alike, solver="set_elimination", rng=0).certified


def test_too_large_tables_stay_a_circuit_and_tiny_weights_do_not():
    circuit = mixture_of_splits([((0, 1), (2, 3)), ((0, 1), (2, 3))])
    plan = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain)).plan
    assert tree_of_circuit(plan) is not None
    assert tree_of_circuit(plan, max_table=23) is None  # the leaves of two parts, and their choice, are more
    builder = CircuitBuilder(Domain.of_sizes([2, 2]))
    leaves = [builder.categorical(v, log_weights=[0.0, -800.0]) for v in (0, 1)]
    builder.product(leaves)
    faint = builder.build(normalised=False)
    query = make_query(faint.domain)
    tree = tree_of_circuit(CircuitPosterior.from_circuit(faint, query).plan)
    assert tree is not None
    assert tree.region_tree.is_delicate
    assert condition(faint, query, wants=(BucketTreePosterior,)).log_prob(np.ones((1, 2), np.int16))[
        0
    ] == pytest.approx(-1600.0)


def test_real_variables_stay_a_circuit():
    builder = CircuitBuilder(Domain([Real("x")]))
    builder.gaussian(0, 0.0, 1.0)
    circuit = builder.build(normalised=False)
    assert isinstance(
        condition(circuit, make_query(circuit.domain), wants=(BucketTreePosterior,)), CircuitPosterior
    )
