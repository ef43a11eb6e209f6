"""Factors, Bayesian and Markov networks, orders and sizes."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

import certimap as cm
from certimap import io
from certimap.ask.inference import log_evidence
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions import condition
from certimap.core.control import Limits
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import TwoSided
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence, ModelError
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork
from certimap.networks.factor import take_signs
from certimap.networks.orders import min_fill
from certimap.networks.reduction import reduce_network


@pytest.fixture
def weather():
    return BayesianNetwork.from_cpts(
        {"W": ["dry", "wet"], "T": ["lo", "mid", "hi"]},
        {"T": ["W"]},
        {"W": [0.55, 0.45], "T": {"wet": [0.9, 0.05, 0.05], "dry": [0.4, 0.3, 0.3]}},
    )


def test_factor_arithmetic_agrees_with_numpy():
    rng = np.random.default_rng(0)
    one, two = Factor((0, 2), rng.random((2, 3))), Factor((2, 1), rng.random((3, 4)))
    product = one.multiply(two)
    assert product.scope == (0, 2, 1)
    expected = np.einsum("ac,cb->acb", one.table, two.table)
    assert product.table == pytest.approx(expected)
    assert product.sum([2]).table == pytest.approx(expected.sum(axis=1))
    assert product.sum([2, 0]).scope == (1,)
    assert product.sum([]).table == pytest.approx(expected)
    assert product.max([0, 1]).table == pytest.approx(expected.max(axis=(0, 2)))
    assert product.reduce({2: 1, 7: 0}).table == pytest.approx(expected[:, 1])
    assert one.reduce({0: 1}).table.tolist() == one.table[1].tolist()
    assert float(product.sum([0, 1, 2]).table) == pytest.approx(expected.sum())


def test_factors_do_not_underflow():
    tiny = Factor((0,), [1e-200, 2e-200])
    product = tiny.multiply(tiny).multiply(tiny)
    assert float(product.sum([0]).log_table) == pytest.approx(math.log(9) - 600 * math.log(10))
    zero = Factor((0,), [0.0, 0.0])
    assert float(zero.sum([0]).log_table) == -math.inf


@pytest.mark.parametrize(
    ("scope", "table"),
    [((0, 0), np.ones((2, 2))), ((0,), np.ones((2, 2))), ((0,), [-1.0, 2.0]), ((0,), [math.nan, 2.0])],
)
def test_bad_factors_are_refused(scope, table):
    with pytest.raises(ModelError):
        Factor(scope, table)


@pytest.mark.parametrize(
    ("scope", "table", "said"),
    [
        (["a"], [1, 2], r"scope \['a'\]; expected positions of variables, such as domain.index\(name\)"),
        ([0.5], [1, 2], r"scope \[0.5\]; expected positions"),
        ([-1], [1, 2], r"scope \(-1,\); expected positions of variables, from 0 on"),
        ([0, 1], [[1, 2], [3]], "is no array of numbers; expected one axis per variable, and rows of one length"),
        ([0], ["x", "y"], "is no array of numbers"),
    ],
)
def test_what_is_no_factor_is_said_in_a_sentence(scope, table, said):
    with pytest.raises(ModelError, match=said):
        cm.Factor(scope, table)


def test_factors_are_not_changed_by_their_makers():
    values = np.array([0.5, 0.5])
    factor = Factor((0,), values)
    values[0] = 9.0
    assert factor.table.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        factor.table[0] = 1.0


def test_log_joint_of_a_network(weather):
    points = np.array([[0, 0], [1, 0], [1, 2]])
    assert np.exp(weather.log_joint(points)) == pytest.approx([0.55 * 0.4, 0.45 * 0.9, 0.45 * 0.05])
    assert np.array_equal(weather.log_prob(points), weather.log_joint(points))
    assert weather.log_joint(points[0]).shape == (1,)
    for bad in ([[0]], [[0, 3]], [[-1, 0]]):
        with pytest.raises(ModelError):
            weather.log_joint(np.array(bad))


def test_from_cpts_takes_arrays_and_tuples_of_labels():
    network = BayesianNetwork.from_cpts(
        {"A": [0, 1], "B": ["x", "y"], "C": [False, True]},
        {"C": ["A", "B"], "B": ["A"]},
        {
            "A": [0.5, 0.5],
            "B": [[0.1, 0.9], [0.2, 0.8]],
            "C": {(1, "x"): [0.3, 0.7], (0, "y"): [1, 0], (0, "x"): [0, 1], (1, "y"): [0.6, 0.4]},
        },
    )
    assert network.factors[2].table.tolist() == [[[0, 1], [1, 0]], [[0.3, 0.7], [0.6, 0.4]]]
    assert network.topological_order == (0, 1, 2)


@pytest.mark.parametrize(
    ("parents", "tables", "message"),
    [
        ({"T": ["W"]}, {"W": [0.5, 0.5]}, "'T' has no conditional table"),
        ({"T": ["W"]}, {"W": [0.5, 0.4], "T": [[0.5, 0.5]] * 2}, "adds to 0.9"),
        ({"T": ["W"]}, {"W": [0.5, 0.5], "T": {"a": [0.5, 0.5]}}, "no row for"),
        ({"T": ["W"]}, {"W": [0.5, 0.5], "T": {"a": [0.5, 0.5], "c": [1, 0]}}, "'c'"),
        ({"T": ["W"]}, {"W": [0.5, 0.5], "T": {"a": [1.0], "b": [1, 0]}}, "shape"),
        ({"T": ["W"]}, {"W": [0.5, 0.5], "T": {("a", "b"): [0.5, 0.5]}}, "no state of variable 'W'"),
        ({"T": ["X"]}, {"W": [0.5, 0.5], "T": [0.5, 0.5]}, "'X'"),
        ({"X": ["W"]}, {"W": [0.5, 0.5], "T": [0.5, 0.5]}, "'X'"),
        ({"T": ["W"], "W": ["T"]}, {"W": np.full((2, 2), 0.5), "T": np.full((2, 2), 0.5)}, "cycle"),
        ({}, {"W": [0.5, 0.5], "T": [0.2, 0.3, 0.5]}, "shape"),
    ],
)
def test_bad_networks_are_refused(parents, tables, message):
    with pytest.raises(ModelError, match=message):
        BayesianNetwork.from_cpts({"W": ["a", "b"], "T": [0, 1]}, parents, tables)


def test_networks_refuse_real_variables_and_foreign_scopes():
    domain = Domain([Categorical("A", (0, 1)), Real("x")])
    with pytest.raises(ModelError, match="'x'"):
        MarkovNetwork(domain, [])
    with pytest.raises(ModelError, match="positions"):
        MarkovNetwork(Domain.of_sizes([2]), [Factor((1,), [1, 1])])
    with pytest.raises(ModelError, match="two conditional tables"):
        BayesianNetwork(Domain.of_sizes([2]), [Factor((0,), [0.5, 0.5])] * 2)
    with pytest.raises(ModelError, match="empty scope"):
        BayesianNetwork(Domain.of_sizes([2]), [Factor((), 1.0)])


def test_samples_follow_the_distribution(weather):
    draws = weather.sample(20_000, rng=5)
    assert draws.dtype == np.int16
    assert np.array_equal(draws, weather.sample(20_000, rng=np.random.default_rng(5)))
    counts = np.bincount(draws[:, 0] * 3 + draws[:, 1], minlength=6)
    points = np.array(list(itertools.product(range(2), range(3))))
    expected = 20_000 * np.exp(weather.log_joint(points))
    assert ((counts - expected) ** 2 / expected).sum() < 25.7  # the 1e-4 quantile of chi-squared, 5 degrees


def test_impossible_states_are_never_drawn():
    network = BayesianNetwork.from_cpts({"A": [0, 1, 2]}, {}, {"A": [0, 1, 0]})
    assert set(network.sample(1000, rng=0)[:, 0]) == {1}


def plain_min_fill(scopes, sizes):
    near = {v: set() for v in sizes}
    for scope in scopes:
        for v in scope:
            near[v] |= set(scope) - {v}
    order = []

    def rank(v):
        members = sorted(near[v])
        missing = sum(b not in near[a] for a, b in itertools.combinations(members, 2))
        return missing, math.prod(sizes[u] for u in members) * sizes[v], v

    while near:
        v = min(near, key=rank)
        members = near.pop(v)
        order.append((v, tuple(sorted(members))))
        for a in members:
            near[a] = (near[a] | members) - {a, v}
    return order


@pytest.mark.parametrize("seed", range(60))
def test_min_fill_agrees_with_counting_afresh(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 15))
    sizes = {i: int(2 ** rng.integers(1, 4)) for i in range(n)}
    scopes = [
        tuple(int(v) for v in rng.choice(n, size=min(n, int(rng.integers(1, 4))), replace=False))
        for _ in range(rng.integers(0, 2 * n))
    ]
    found = min_fill(scopes, sizes)
    assert [(v, tuple(sorted(near))) for v, near in found.cliques] == plain_min_fill(scopes, sizes)


def test_nuisance_goes_first_while_its_cliques_are_small():
    star = [(0, i) for i in range(1, 12)]
    sizes = dict.fromkeys(range(12), 2)
    assert min_fill(star, sizes).order[0] == 1
    assert min_fill(star, sizes, first=[0]).order[0] == 0
    assert min_fill(star, sizes, first=[0], log2_limit=5.0).order[0] == 1


def chain(n, query=None):
    return BayesianNetwork(
        Domain.of_sizes([2] * n),
        [Factor((0,), [0.6, 0.4]), *(Factor((i - 1, i), [[0.7, 0.3], [0.4, 0.6]]) for i in range(1, n))],
    )


def test_sizes_are_reported_before_memory_is_taken():
    report = chain(40).size_report()
    assert report.induced_width == 1
    assert report.log2_largest == 2.0
    n = 30
    factors = [Factor((i, j), np.ones((4, 4))) for i in range(n) for j in range(i)]
    clique = MarkovNetwork(Domain.of_sizes([4] * n), factors)
    report = clique.size_report()
    assert report.induced_width == n - 1
    assert report.log2_largest == pytest.approx(60.0)
    with pytest.raises(ModelError, match=r"induced width 29.*max_edges=1000"):
        clique.compile(max_edges=1000)
    assert isinstance(clique.condition(make_query(clique.domain, ["0"])), TwoSided)  # nothing is summed yet
    with pytest.raises(ModelError, match="what a sum of this network holds at once"):
        _ = clique.log_partition
    assert chain(10).compile(max_edges=120).n_edges <= 120
    with pytest.raises(ModelError, match="max_edges=10 "):
        chain(10).compile(max_edges=10)


def test_a_network_beyond_the_edge_limit_is_answered_from_tables():
    network = chain(12)
    query = make_query(network.domain)
    small = condition(network, query, wants=())
    tables = condition(network, query, wants=(), limits=Limits(max_edges=60))
    assert type(tables) is not type(small)
    points = network.sample(50, rng=1)
    assert tables.log_prob(points) == pytest.approx(network.log_joint(points), rel=1e-12)
    assert small.log_prob(points) == pytest.approx(network.log_joint(points), rel=1e-12)
    bare = condition(network, query, limits=Limits(max_edges=3))
    assert not bare.facts.is_normalised
    assert bare.log_prob(points) == pytest.approx(network.log_joint(points), rel=1e-12)


def test_barren_variables_and_observed_ones_leave(weather):
    network = chain(10)
    query = make_query(network.domain, ["2"], {"4": 1, "3": {0}})
    reduced = reduce_network(network, query)
    assert set(reduced.states) == {0, 1, 2, 3, 4}
    assert set(reduced.sizes) == {0, 1, 2}
    assert network.compile_query(query).domain.names == ("2",)


def test_impossible_states_leave_and_impossible_evidence_is_refused():
    network = BayesianNetwork.from_cpts(
        {"X": [0, 1], "Y": [0, 1]}, {"Y": ["X"]}, {"X": [1, 0], "Y": [[1, 0], [0.2, 0.8]]}
    )
    with pytest.raises(ImpossibleEvidence):
        network.condition(make_query(network.domain, ["X"], {"Y": 1}))
    reduced = reduce_network(network, make_query(network.domain, ["X"], {"Y": 0}))
    assert not reduced.sizes
    circuit = network.compile_query(make_query(network.domain, ["X"], {"Y": 0}))
    assert circuit.params_of(0).tolist() == [0.0, -math.inf]


def test_evidence_of_tiny_probability_keeps_its_log():
    n = 3000
    domain = Domain.of_sizes([2] + [2] * n)
    factors = [Factor((0,), [0.5, 0.5])]
    factors += [Factor((0, i), [[0.9, 0.1], [0.2, 0.8]]) for i in range(1, n + 1)]
    network = BayesianNetwork(domain, factors)
    posterior = condition(network, make_query(domain, ["0"], {str(i): 1 for i in range(1, n + 1)}), wants=())
    assert posterior.log_evidence == pytest.approx(math.log(0.5) + n * math.log(0.8), rel=1e-12)
    log_prob = posterior.log_prob(np.array([[0], [1]], np.int16))
    assert log_prob == pytest.approx([-n * math.log(8), 0.0], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("far", [9e5, 1.2e6, 3e6, 1e12])
def test_states_of_tiny_probability_keep_leaves_of_their_own(far):
    """Log weights below -1e6 were one number in comparisons of leaves, and as good as impossible."""
    domain = Domain.of_sizes([2, 3, 2])
    ab = [[-far - 3.0, -far - 1.0, -math.inf], [0.0, 0.0, 0.0]]
    bc = np.log([[0.2, 0.8], [0.7, 0.3], [0.5, 0.5]])
    network = MarkovNetwork(domain, [Factor.from_log((0, 1), ab), Factor.from_log((1, 2), bc)])
    points = np.array(list(np.ndindex(2, 3, 2)), np.int16)
    found = condition(network, make_query(domain), wants=(CircuitPosterior,)).log_prob(points)
    expected = network.log_joint(points)
    assert found - found.max() == pytest.approx(expected - expected.max(), rel=1e-13, abs=1e-12)


def test_nuisance_is_summed_as_plain_arithmetic():
    network = chain(60)
    query = make_query(network.domain, ["0", "59"])
    circuit = network.compile_query(query)
    assert circuit.n_nodes < 12
    power = np.linalg.matrix_power(np.array([[0.7, 0.3], [0.4, 0.6]]), 59)
    posterior = condition(network, query, wants=())
    points = np.array(list(itertools.product(range(2), range(2))), np.int16)
    assert np.exp(posterior.log_prob(points)) == pytest.approx((np.array([[0.6], [0.4]]) * power).ravel())


def test_context_specific_independence_makes_circuits_smaller():
    rng = np.random.default_rng(0)
    n = 9
    table = rng.random([2] * n)
    table[..., 1] = 0.5  # when the last variable is 1, nothing else matters
    network = MarkovNetwork(Domain.of_sizes([2] * n), [Factor(range(n), table)])
    whole = MarkovNetwork(network.domain, [Factor(range(n), rng.random([2] * n))])
    assert network.compile().n_edges < 0.6 * whole.compile().n_edges


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*renormalised")
def test_recorded_answers_score_as_recorded(shared_data):
    cases = json.loads((shared_data / "networks" / "cases.json").read_text())["cases"]
    networks = {}
    for case in cases:
        name = case["network"]
        if name not in networks:
            networks[name] = io.read(shared_data / "networks" / f"{name}.bif.gz")
        network = networks[name]
        query = make_query(network.domain, case["query"], case["evidence"])
        posterior = condition(network, query, wants=())
        point = posterior.domain.encode(case["best_assignment"])
        log_joint = float(posterior.log_prob(point[None, :])[0]) + posterior.log_evidence
        assert log_joint == pytest.approx(case["best_log_prob"], abs=1e-5), case["id"]


def test_thousands_of_observations_keep_their_last_digits():
    """Naive Bayes with 4,000 observed features: ln p(e) about -4,800, against exact fractions."""
    from fractions import Fraction

    n = 4000
    table = np.array([[0.3, 0.7], [0.25, 0.75]])
    factors = [Factor((0,), [0.5, 0.5]), *(Factor((0, i), table) for i in range(1, n + 1))]
    network = BayesianNetwork(Domain.of_sizes([2] * (n + 1)), factors)
    exact = sum(Fraction(0.5) * Fraction(row[0]) ** n for row in table)
    log_exact = math.log(exact.numerator) - math.log(exact.denominator)
    query = make_query(network.domain, ["0"], {str(i): 0 for i in range(1, n + 1)})
    posterior = network.condition(query)
    assert posterior.facts.log_evidence == pytest.approx(log_exact, abs=1e-10)
    evidence = {str(i): 0 for i in range(1, n + 1)}
    assert log_evidence(network, evidence) == pytest.approx(log_exact, abs=1e-10)
    point = np.zeros((1, n + 1), np.int16)
    share = Fraction(0.5) * Fraction(table[0, 0]) ** n
    log_share = math.log(share.numerator) - math.log(share.denominator)
    assert network.log_joint(point)[0] == pytest.approx(log_share, abs=1e-10)
    assert posterior.log_prob(point[:, :1])[0] == pytest.approx(log_share - log_exact, abs=1e-10)


def test_rows_that_nearly_add_to_1_are_rescaled_with_a_warning():
    with pytest.warns(UserWarning, match="renormalised"):
        network = BayesianNetwork.from_cpts({"a": ["x", "y", "z"]}, {}, {"a": [0.3333, 0.3333, 0.3333]})
    assert network.factors[0].table.tolist() == pytest.approx([1 / 3] * 3, abs=1e-15)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": [0.5, 0.5]}, "the table of 'b' has no row for a='y'"),
        ({"x": [0.5, 0.5], "y": [0.5, 0.4]}, r"the distribution of 'b' given \(a='y'\) adds to 0\.9"),
        ({"x": [0.5, 0.5], "y": [0.5, float("nan")]}, "the table of 'b' has the entry nan at a='y', b=1"),
        ([[0.5, 0.5], [-0.5, 1.5]], "the table of 'b' has the entry -0.5 at a='y', b=0"),
        ([[0.5, 0.5]], r"the table of 'b' has the shape \(1, 2\); expected \(2, 2\) \(a: 2, b: 2\)"),
        ([[0.5, 0.5], [1.0]], "the table of 'b' is"),
        ("half", "the table of 'b' is 'half'"),
        ({"x": ["p", "q"], "y": [1, 0]}, "row 'x' of 'b' is"),
        ({"x": [0.5, 0.5], "Y": [1, 0]}, "did you mean 'y'"),
    ],
)
def test_builders_name_variables_and_states(table, message):
    with pytest.raises(ModelError, match=message):
        BayesianNetwork.from_cpts({"a": ["x", "y"], "b": [0, 1]}, {"b": ["a"]}, {"a": [0.5, 0.5], "b": table})


def test_a_table_of_a_variable_beyond_the_domain_is_refused():
    tables = [Factor((0,), [0.5, 0.5]), Factor((1,), [0.5, 0.5])]
    with pytest.raises(ModelError, match="is of variable 1; expected 0 to 0"):
        BayesianNetwork(Domain.of_sizes([2]), tables)


def test_a_part_of_a_factor_is_held_as_the_factor_is_and_shares_nothing():
    for factor in (Factor((0, 1), np.array([[0.2, 0.8]])), Factor.from_log((0, 1), np.array([[-900.0, 1.0]]))):
        held = factor.log_table if factor.in_logs else factor.table
        part = factor.part((1,), held.reshape(2))
        assert part.scope == (1,)
        assert part.in_logs == factor.in_logs
        own = part.log_table if part.in_logs else part.table
        assert not np.shares_memory(own, held)
        assert not own.flags.writeable
        np.testing.assert_array_equal(part.log_table, factor.log_table.reshape(2))


@pytest.mark.parametrize("in_logs", [False, True])
def test_signs_of_many_factors_are_found_at_once_and_right(in_logs):
    rng = np.random.default_rng(2)
    tables = [rng.random((2, 3)) * (rng.random((2, 3)) > 0.1) for _ in range(1200)]
    with np.errstate(divide="ignore"):
        factors = [Factor.from_log((0, 1), np.log(t)) if in_logs else Factor((0, 1), t) for t in tables]
    take_signs(factors)
    assert [f.is_positive for f in factors] == [bool((t > 0.0).all()) for t in tables]
    assert 0 < sum(f.is_positive for f in factors) < len(factors)
