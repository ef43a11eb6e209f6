"""Answers under constraints on circuits, mixtures and functions, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

import certimap as cm
from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions import condition
from certimap.conversions.circuit_to_tree import network_of_circuit
from certimap.core.box import Boxes
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.constraints import AllDifferent, Allowed, AtLeast, AtMost, Exactly, Implies, Linear, Never
from certimap.core.control import Control
from certimap.core.posterior import Masses, Regions
from certimap.core.query import make_query
from certimap.core.rules import Rules
from certimap.densities.posterior import MixedNormals
from certimap.errors import ImpossibleEvidence, NoAnswer, QueryError, SolverError
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.testing.models import (
    BoundedTable,
    IntervalTable,
    all_points,
    inside,
    log_sums,
    maxima,
    random_boxes,
    random_circuit,
    random_domain,
    random_table,
    with_column,
)

SEEDS = st.integers(0, 2**32 - 1)
MARGIN = 1e-9


def random_constraint(rng, domain):
    """One constraint on some of the labelled variables."""
    labelled = [v for v in domain if isinstance(v, cm.Categorical)]
    some = [labelled[i] for i in rng.permutation(len(labelled))[: int(rng.integers(1, len(labelled) + 1))]]
    names, states = [v.name for v in some], {v.name: v.states[int(rng.integers(v.n_states))] for v in some}
    shared = some[0].states[0]
    k = int(rng.integers(0, len(some) + 1))
    kinds = [
        lambda: AtMost(k, names, shared),
        lambda: AtLeast(min(k, 1), names, shared),
        lambda: Exactly(k, names, shared),
        lambda: Never(states),
        lambda: Implies({names[0]: states[names[0]]}, dict(list(states.items())[1:] or states.items())),
        lambda: Linear({v.name: {s: float(rng.integers(-2, 3)) for s in v.states} for v in some}, at_most=k - 1),
        lambda: Allowed(names, [[v.states[int(rng.integers(v.n_states))] for v in some] for _ in range(5)]),
        lambda: AllDifferent(names),
    ]
    return kinds[int(rng.integers(len(kinds)))]()


def random_rules(rng, domain):
    """One to three constraints that a single one of them never contradicts by itself; None after many tries."""
    for _ in range(50):
        try:
            return Rules.of(domain, [random_constraint(rng, domain) for _ in range(int(rng.integers(1, 4)))])
        except QueryError:
            continue
    return None


def random_view(rng, kind):
    """A posterior of a kind under constraints, its points, their true ln p and whether they are answers."""
    domain = random_domain(rng, max_variables=5, max_states=3)
    table = random_table(rng, domain)
    whole = {
        "table": lambda: table,
        "bounds": lambda: BoundedTable(table),
        "two sides": lambda: IntervalTable(table, rng.gamma(0.1, size=len(table.points))),
        "function": lambda: cm.FunctionPosterior(domain, table.sample, table.log_prob),
        "circuit": lambda: CircuitPosterior.from_circuit(random_circuit(rng, domain), make_query(domain)),
        "tree": lambda: condition(random_circuit(rng, domain), make_query(domain), wants=(Regions,)),
    }[kind]()
    rules = random_rules(rng, domain)
    points = all_points(domain)
    return ConstrainedPosterior(whole, rules), points, whole.log_prob(points), rules.satisfied(points)


SOLVERS = {
    "table": ("auto", "exhaustive", "frontier", "pac", "smooth_pac", "budget", "hill_climb", "mcmc", "mcts"),
    "bounds": ("auto", "exhaustive", "frontier", "hill_climb"),
    "two sides": ("frontier",),
    "function": ("auto", "exhaustive", "pac", "smooth_pac", "budget", "hill_climb"),
    "circuit": ("auto", "exhaustive", "frontier", "pac", "budget", "beam", "independent", "max_product"),
    "tree": ("auto", "frontier", "pac", "mcts"),
}
FINISHES = ("auto", "exhaustive", "frontier")


@pytest.mark.parametrize("kind", SOLVERS)
@settings(max_examples=25)
@given(SEEDS)
def test_answers_and_bounds_against_enumeration(kind, seed):
    rng = np.random.default_rng(seed)
    view, points, log_probs, is_answer = random_view(rng, kind)
    gap = view.whole.gap if kind == "two sides" else 0.0
    truth = np.sort(np.where(is_answer, log_probs + gap, -np.inf))[::-1]
    solver, k = str(rng.choice(SOLVERS[kind])), int(rng.choice([1, 1, 3, 7]))
    how = {"epsilon": float(rng.choice([0.0, 0.2])), "delta": float(rng.choice([0.0, 0.0, 0.1]))}
    asked = {"solver": solver, "top_k": k, "rng": seed, "max_samples": 3000, "progress": False, **how}
    asked["constraints"] = view.rules.constraints
    if truth[0] == -np.inf:
        with pytest.raises((NoAnswer, SolverError), match="satisfies"):
            cm.map_query(view.whole, **asked)
        return
    result = cm.map_query(view.whole, **asked)
    upper = result.log_upper_bound if view.facts.is_normalised else result.log_joint_upper_bound
    assert upper >= truth[0] - MARGIN
    found = np.array([view.domain.encode(answer) for answer, _ in result.top])
    assert np.all(view.rules.satisfied(found))
    assert len(np.unique(found, axis=0)) == len(found)
    certificate = result.certificate
    if solver in FINISHES and kind != "two sides":
        assert certificate.kind is not cm.CertificateKind.NONE
    if certificate.kind in (cm.CertificateKind.EXACT, cm.CertificateKind.EPSILON):
        assert len(found) == min(k, np.sum(truth > -np.inf))
        others = is_answer & ~np.any(np.all(points[:, None] == found, axis=2), axis=1)
        highest = np.max((log_probs + gap)[others], initial=-np.inf)
        assert np.min(view.log_prob(found)) >= highest + math.log1p(-certificate.epsilon) - 1e-8


@pytest.mark.parametrize("kind", ["table", "bounds", "circuit", "tree"])
@settings(max_examples=25)
@given(SEEDS)
def test_the_prober_bounds_the_answers_in_boxes_and_keeps_all_masses(kind, seed):
    rng = np.random.default_rng(seed)
    view, points, log_probs, is_answer = random_view(rng, kind)
    boxes, prober = random_boxes(view.domain, rng, 6), view.prober()
    answers = prober.probe(prober.layout.of_boxes(boxes))
    held = inside(boxes, points)
    log_answers = np.where(is_answer, log_probs, -np.inf)
    assert np.all(answers.log_bound >= maxima(held, log_answers) - MARGIN)
    left = view.rules.narrowed(boxes.mask)
    assert np.all(answers.each_bound[~left] == -np.inf)
    assert np.all(answers.log_bound[~np.any(left, axis=1)] == -np.inf)
    if view.facts.is_normalised:
        assert np.allclose(np.exp(answers.log_mass), np.exp(log_sums(held, log_probs)), atol=1e-9)
        assert np.all(view.log_mass(boxes) >= log_sums(held, log_answers) - MARGIN)
    for column in range(view.domain.total_states):
        there = inside(with_column(boxes, column), points) & held
        assert np.all(answers.each_bound[:, column] >= maxima(there, log_answers) - MARGIN)
        if view.facts.is_normalised:
            assert np.allclose(np.exp(answers.each_mass[:, column]), np.exp(log_sums(there, log_probs)), atol=1e-9)
    if isinstance(view, Masses):  # a neighbour that is no answer is no way up
        some = points[rng.integers(0, len(points), 4)]
        each = view.log_mass_each(Boxes.of_points(view.domain, some))
        for column in range(view.domain.total_states):
            there = inside(with_column(Boxes.of_points(view.domain, some), column), points)
            assert np.allclose(np.exp(each[:, column]), np.exp(maxima(there, log_answers)), atol=1e-9)
    repaired = view.repaired(points)
    assert np.all(view.rules.satisfied(repaired))
    assert set(map(tuple, points[is_answer].tolist())) <= set(map(tuple, repaired.tolist()))
    assert np.all(view.rules.satisfied(view.possible_point()))


def mixed_circuit(rng):
    """A mixture of products of two labels and a number; ln p of rows by its formula."""
    domain = cm.Domain([cm.Categorical("a", ["x", "y"]), cm.Categorical("b", ["x", "y", "z"]), cm.Real("r")])
    k, build = 3, CircuitBuilder(domain)
    of_a, of_b, weights = rng.dirichlet(np.ones(2), k), rng.dirichlet(np.ones(3), k), rng.dirichlet(np.ones(k))
    means, sds = rng.normal(0.0, 3.0, k), rng.uniform(0.5, 1.5, k)
    parts = [
        build.product([
            build.categorical(0, log_weights=np.log(of_a[j])),
            build.categorical(1, log_weights=np.log(of_b[j])),
            build.gaussian(2, means[j], sds[j]),
        ])
        for j in range(k)
    ]  # fmt: skip
    build.sum(parts, log_weights=np.log(weights).tolist())

    def log_prob(points):
        a, b = points[:, 0].astype(int), points[:, 1].astype(int)
        logs = stats.norm.logpdf(points[:, 2][:, None], means, sds)
        return logsumexp(np.log(weights * of_a[:, a].T * of_b[:, b].T) + logs, axis=1)

    return build.build(), log_prob


@settings(max_examples=15)
@given(SEEDS)
def test_numbers_beside_labels_against_a_grid(seed):
    rng = np.random.default_rng(seed)
    circuit, log_prob = mixed_circuit(rng)
    rules = random_rules(rng, circuit.domain)
    asked = {"constraints": rules.constraints, "rng": seed, "progress": False}
    grid = np.linspace(-12.0, 12.0, 4001)
    points = np.array([[a, b, r] for a in range(2) for b in range(3) for r in grid])
    log_probs = np.where(rules.satisfied(points), log_prob(points), -np.inf)
    if not np.any(log_probs > -np.inf):
        with pytest.raises(NoAnswer, match="satisfies"):
            cm.map_query(circuit, **asked, epsilon=1e-4, delta=0.0)
        return
    result = cm.map_query(circuit, **asked, epsilon=1e-4, delta=0.0)
    assert result.solver == "frontier"
    assert result.certificate.kind is not cm.CertificateKind.NONE
    assert result.log_upper_bound >= log_probs.max() - MARGIN
    assert result.log_prob >= log_probs.max() - 1.01e-4
    assert rules.satisfied(circuit.domain.encode(result.assignment)[None])[0]
    drawn = cm.map_query(circuit, solver="budget", max_samples=200, **asked)
    assert drawn.certificate.kind is cm.CertificateKind.NONE
    assert rules.satisfied(circuit.domain.encode(drawn.assignment)[None])[0]


@settings(max_examples=15)
@given(SEEDS)
def test_gaussians_per_state_against_every_state_alone(seed):
    rng = np.random.default_rng(seed)
    tables = {"a": rng.dirichlet(np.ones(2)), "b": rng.dirichlet(np.ones(3), 2)}
    discrete = cm.BayesianNetwork.from_cpts({"a": ["x", "y"], "b": ["x", "y", "z"]}, {"b": ["a"]}, tables)
    nodes = [
        cm.LinearGaussian("x", ["a"], rng.normal(0, 2, 2), sd=rng.uniform(0.5, 1.5, 2)),
        cm.LinearGaussian("y", ["b", "x"], rng.normal(size=3), rng.normal(size=(3, 1)), rng.uniform(0.5, 1.5, 3)),
    ]
    network = cm.LinearGaussianNetwork(nodes, discrete)
    whole = condition(network, make_query(network.domain))
    assert isinstance(whole, MixedNormals)
    rules = random_rules(rng, whole.domain)
    tops = []
    for k, part in enumerate(whole.parts):
        if rules.satisfied(whole.placed(k, np.zeros((1, len(whole.real)))))[0]:
            alone = cm.map_query(part, solver="frontier", epsilon=1e-6, delta=0.0, rng=0, progress=False)
            tops.append(alone.log_prob)
    asked = {"constraints": rules.constraints, "epsilon": 1e-4, "delta": 0.0, "rng": seed, "progress": False}
    if not tops:
        with pytest.raises(NoAnswer, match="satisfies"):
            cm.map_query(network, **asked)
        return
    result = cm.map_query(network, **asked)
    assert result.certificate.kind is not cm.CertificateKind.NONE
    assert result.log_upper_bound >= max(tops) - MARGIN
    assert result.log_prob >= max(tops) - 1.02e-4
    assert rules.satisfied(whole.domain.encode(result.assignment)[None])[0]


@settings(max_examples=25)
@given(SEEDS)
def test_structured_circuits_as_networks_against_enumeration(seed):
    rng = np.random.default_rng(seed)
    domain = cm.Domain.of_sizes(int(k) for k in rng.integers(2, 4, int(rng.integers(3, 6))))
    circuit = random_circuit(rng, domain, zeros=float(rng.choice([0.0, 0.4])))
    network = network_of_circuit(circuit, Control())
    names = [domain.names[int(i)] for i in rng.permutation(len(domain))]
    evidence = {names[0]: domain[names[0]].states[0]} if rng.random() < 0.5 else {}
    query = make_query(domain, names[1:], evidence)
    try:
        whole, rules = CircuitPosterior.from_circuit(circuit, query), random_rules(rng, query.query_domain)
    except ImpossibleEvidence:
        return
    points = all_points(whole.domain)
    truth = np.sort(np.where(rules.satisfied(points), whole.log_prob(points), -np.inf))[::-1]
    solver, k = str(rng.choice(["auto", "set_elimination", "pac"])), int(rng.choice([1, 3]))
    asked = {"solver": solver, "top_k": k, "rng": seed, "max_samples": 2000, "progress": False}
    if truth[0] == -np.inf:
        with pytest.raises(NoAnswer, match="satisfies"):
            cm.map_query(circuit, names[1:], evidence, constraints=rules.constraints, **asked)
        return
    result = cm.map_query(circuit, names[1:], evidence, constraints=rules.constraints, **asked)
    assert network is None or np.allclose(
        condition(network, make_query(network.domain, names[1:], evidence)).log_prob(points),
        whole.log_prob(points),
        atol=1e-9,
    )
    assert result.log_evidence == pytest.approx(whole.facts.log_evidence, abs=1e-9)
    assert result.log_upper_bound >= truth[0] - MARGIN
    found = np.array([whole.domain.encode(answer) for answer, _ in result.top])
    assert np.all(rules.satisfied(found))
    assert np.allclose([value for _, value in result.top], whole.log_prob(found), atol=1e-9)
    if solver != "pac":
        assert result.certificate.kind is cm.CertificateKind.EXACT
        assert np.allclose(whole.log_prob(found), truth[: len(found)], atol=1e-8)


def test_a_hidden_tree_counts_under_constraints():
    """A binding limit on 24 variables: too many answers to list, and bounds of boxes alone do not close."""
    rng, n, k = np.random.default_rng(0), 24, 4
    domain = cm.Domain.of_sizes([2] * n)
    parent = np.array([-1, *(int(rng.integers(max(0, i - 3), i)) for i in range(1, n))])
    emission = [rng.dirichlet(np.full(2, 0.7), k) for _ in range(n)]
    model = HiddenChowLiuModel(
        domain, parent, rng.dirichlet(np.ones(k)), rng.dirichlet(np.full(k, 0.3), (n, k)), emission
    )
    state = domain.variables[0].states[1]
    asked = {"constraints": [AtMost(5, domain.names, state)], "top_k": 2, "progress": False, "rng": 0}
    results = [cm.map_query(m, **asked) for m in (model, model.to_circuit())]
    points = Rules.of(domain, asked["constraints"]).listed(2**20)[:]
    truth = np.sort(condition(model, make_query(domain)).log_prob(points))[::-1]
    free = cm.map_query(model, progress=False)
    assert sum(value == state for value in free.assignment.values()) > 5
    for result in results:
        assert result.certificate.kind is cm.CertificateKind.EXACT
        assert set(result.assignment) == set(domain.names)
        assert np.allclose([value for _, value in result.top], truth[:2], atol=1e-9)
