"""pgmpy's networks: tables, names and states come through both ways, and answers are pgmpy's."""

import itertools

import numpy as np
import pytest

import certimap as cm

pytest.importorskip("pgmpy")
pytestmark = pytest.mark.filterwarnings("ignore")

import networkx as nx  # noqa: E402
import pandas as pd  # noqa: E402
from pgmpy.factors.continuous import LinearGaussianCPD  # noqa: E402
from pgmpy.factors.discrete import DiscreteFactor, TabularCPD  # noqa: E402
from pgmpy.inference import VariableElimination  # noqa: E402
from pgmpy.models import (  # noqa: E402
    DiscreteBayesianNetwork,
    DiscreteMarkovNetwork,
    FactorGraph,
    LinearGaussianBayesianNetwork,
    MarkovChain,
)


def random_network(seed: int, c="c") -> DiscreteBayesianNetwork:
    """Three layers, parents with different numbers of states."""
    rng = np.random.default_rng(seed)
    states = {"a": ["x", "y"], "b": [0, 1, 2], c: ["u", "v"], "d": ["p", "q", "r"]}
    parents = {"b": ["a"], c: ["b", "a"], "d": [c, "b"]}
    model = DiscreteBayesianNetwork([(p, c) for c, ps in parents.items() for p in ps])
    for node, own in states.items():
        above = parents.get(node, [])
        sizes = [len(states[p]) for p in above]
        table = rng.dirichlet(np.ones(len(own)), size=int(np.prod(sizes, dtype=int))).T
        named = {node: own} | {p: states[p] for p in above}
        model.add_cpds(TabularCPD(node, len(own), table, above or None, sizes or None, state_names=named))
    return model


@pytest.mark.parametrize("seed", range(4))
def test_every_assignment_has_the_same_probability(seed):
    theirs = random_network(seed, ("c", 1) if seed % 2 else "c")  # a name that is no text becomes one
    ours = cm.from_object(theirs)
    assert ours.domain.names == tuple(str(n) for n in theirs.nodes())
    rows = cm.sample(ours, 20, rng=seed)
    scores = cm.log_likelihood(theirs, rows)
    for i in range(20):
        row = {node: rows[str(node)][i] for node in theirs.nodes()}
        row = {k: v.item() if isinstance(v, np.generic) else v for k, v in row.items()}
        assert scores[i] == pytest.approx(np.log(theirs.get_state_probability(row)), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_most_probable_explanation_is_the_same(seed):
    theirs = random_network(seed)
    found = VariableElimination(theirs).map_query(["a", "d"], evidence={"b": 1}, show_progress=False)
    assert cm.map_query(theirs, ["a", "d"], {"b": 1}).assignment == found


def test_networks_go_back_and_forth():
    ours = cm.read("examples/asia.bif")
    back = cm.to_pgmpy(ours)
    assert back.check_model()
    again = cm.from_object(back)
    assert set(again.domain.variables) == set(ours.domain.variables)
    rows = cm.sample(ours, 30, rng=0)
    assert cm.log_likelihood(again, rows) == pytest.approx(cm.log_likelihood(ours, rows), abs=1e-12)


@pytest.mark.parametrize("kind", [DiscreteMarkovNetwork, FactorGraph])
def test_markov_networks_keep_their_factors(kind):
    rng = np.random.default_rng(3)
    factors = [
        DiscreteFactor(["a", "b"], [2, 3], rng.random(6)),
        DiscreteFactor(["b", "c"], [3, 2], rng.random(6)),
        DiscreteFactor(["c"], [2], rng.random(2)),
    ]
    model = kind()
    model.add_nodes_from(["a", "b", "c"])
    if kind is FactorGraph:
        model.add_factors(*factors)
        model.add_nodes_from(factors)
        model.add_edges_from([(v, f) for f in factors for v in f.variables])
    else:
        model.add_edges_from([("a", "b"), ("b", "c")])
        model.add_factors(*factors)
    ours = cm.from_object(model)
    assert cm.log_evidence(ours) == pytest.approx(np.log(model.get_partition_function()))
    product = factors[0] * factors[1] * factors[2]
    best = np.unravel_index(product.values.argmax(), product.values.shape)
    assert cm.map_query(ours).assignment == dict(zip(product.variables, (int(s) for s in best), strict=True))


def test_junction_trees_have_the_values_of_their_network():
    network = random_network(5)
    ours, rows = cm.from_object(network.to_junction_tree()), cm.sample(network, 20, rng=5)
    assert cm.log_likelihood(ours, rows) == pytest.approx(cm.log_likelihood(network, rows))


@pytest.mark.parametrize("start", [None, [("a", 1), ("b", 0)]])
def test_markov_chains_by_enumeration(start):
    moves = {"a": [[0.2, 0.8], [0.7, 0.3]], "b": [[0.1, 0.5, 0.4], [0.0, 0.2, 0.8], [0.6, 0.1, 0.3]]}
    theirs = MarkovChain(["a", "b"], [2, 3])
    with pytest.raises(cm.ModelError, match=r"'a' of this .*MarkovChain has no transition model"):
        cm.unroll(theirs, 3)
    for name, rows in moves.items():
        theirs.add_transition_model(name, {i: dict(enumerate(row)) for i, row in enumerate(rows)})
    theirs.set_start_state(start)
    with pytest.raises(cm.ModelError, match="unroll"):
        cm.from_object(theirs)
    ours, paths = cm.unroll(theirs, 3), list(itertools.product(range(2), range(3), repeat=3))
    names = [f"{name}[{t}]" for t in range(3) for name in "ab"]
    found = cm.log_likelihood(ours, dict(zip(names, np.array(paths).T, strict=True)))
    for (a, b, *rest), log_p in zip(paths, found, strict=True):
        p = 1 / 6 if start is None else float((a, b) == (1, 0))
        for to_a, to_b in zip(rest[::2], rest[1::2], strict=True):
            p *= moves["a"][a][to_a] * moves["b"][b][to_b]
            a, b = to_a, to_b
        assert np.exp(log_p) == pytest.approx(p, abs=1e-12)


def test_a_constant_and_a_lonely_variable_go_to_pgmpy():
    domain = cm.Domain([cm.Categorical("a", (0, 1)), cm.Categorical("b", (0, 1))])
    ours = cm.MarkovNetwork(domain, [cm.Factor((), 3.0), cm.Factor((0,), [1.0, 2.0])])
    assert cm.to_pgmpy(ours).get_partition_function() == pytest.approx(18.0)


def test_what_pgmpy_cannot_hold_is_said():
    domain = cm.Domain([cm.Categorical("a", (0, 1)), cm.Categorical("b", (0, 1))])
    gated = cm.BayesianNetwork(domain, [cm.Factor((0,), [0.5, 0.5]), cm.Factor((0, 1), [[0.2, 0.8], [0.0, 0.0]])])
    with pytest.raises(cm.ModelError, match="row of zeros"):
        cm.to_pgmpy(gated)
    with pytest.raises(cm.ModelError, match="exceeds floats"):
        cm.to_pgmpy(cm.MarkovNetwork(domain, [cm.Factor.from_log((0,), np.array([800.0, 0.0]))]))
    with pytest.raises(cm.ModelError, match="no network"):
        cm.to_pgmpy(3)


class TestHabits:
    def test_virtual_evidence_is_likelihood(self):
        theirs = random_network(0)
        soft = TabularCPD("d", 3, [[0.1], [0.7], [0.2]], state_names={"d": ["p", "q", "r"]})
        elimination = VariableElimination(theirs)
        found = elimination.map_query(["a", "b"], virtual_evidence=[soft], show_progress=False)
        result = cm.map_query(theirs, ["a", "b"], virtual_evidence=[soft], show_progress=False)
        assert result.assignment == found
        ours = cm.map_query(theirs, ["a", "b"], {"d": {"likelihood": [0.1, 0.7, 0.2]}})
        assert result.log_prob == ours.log_prob

    @pytest.mark.parametrize(
        ("virtual", "said"),
        [
            ([DiscreteFactor(["a", "d"], [2, 3], np.ones(6))], "several variables"),
            (["d"], "likelihood"),
        ],
    )
    def test_other_virtual_evidence_is_refused(self, virtual, said):
        with pytest.raises(cm.QueryError, match=said):
            cm.map_query(random_network(0), ["b"], virtual_evidence=virtual)

    def test_one_variable_has_one_evidence(self):
        soft = TabularCPD("d", 3, [[0.1], [0.7], [0.2]], state_names={"d": ["p", "q", "r"]})
        with pytest.raises(cm.QueryError, match="virtual evidence and evidence"):
            cm.map_query(random_network(0), ["a"], {"d": "p"}, virtual_evidence=[soft])


def gaussian_network() -> LinearGaussianBayesianNetwork:
    theirs = LinearGaussianBayesianNetwork([("a", "b"), ("a", "c"), ("b", "c")])
    theirs.add_cpds(
        LinearGaussianCPD("c", [0.5, -2.0, 0.3], 0.7, ["b", "a"]),
        LinearGaussianCPD("a", [1.0], 2.0),
        LinearGaussianCPD("b", [-1.0, 0.5], 1.5, ["a"]),
    )
    return theirs


def test_a_linear_gaussian_network_has_the_same_joint():
    theirs = gaussian_network()
    ours = cm.from_object(theirs)
    mean, covariance = theirs.to_joint_gaussian()
    order = list(nx.topological_sort(theirs))
    mixture = ours.mixture(order)
    np.testing.assert_allclose(mixture.means[0], mean, atol=1e-3)  # rounded to three digits there
    np.testing.assert_allclose(mixture.covariances[0], covariance, atol=1e-3)
    result = cm.map_query(theirs, ["a", "b"], {"c": 1.0}, rng=0)
    found = theirs.predict(pd.DataFrame({"c": [1.0]})).iloc[0]
    for name in ("a", "b"):
        assert result.assignment[name] == pytest.approx(found[name], abs=1e-2)


def test_what_has_no_tables_is_refused():
    with pytest.raises(cm.ModelError, match="no conditional density"):
        cm.from_object(LinearGaussianBayesianNetwork([("a", "b")]))
    broken = gaussian_network()
    broken.get_cpds("c").beta = np.array([1.0])
    with pytest.raises(cm.ModelError, match="has 1 numbers as beta; expected an intercept and one per parent"):
        cm.from_object(broken)
    bare = DiscreteBayesianNetwork([("a", "b")])
    with pytest.raises(cm.ModelError, match=r"no conditional table; .*certimap\.learn\.fit"):
        cm.from_object(bare)
    rows = pd.DataFrame({"a": [0, 0, 1, 1], "b": [0, 1, 1, 1]})
    assert cm.learn.fit(bare, rows, prior="ml").factors[1].table.tolist() == [[0.5, 0.5], [0.0, 1.0]]
    with pytest.raises(cm.ModelError, match="leave names out"):
        cm.from_object(random_network(0), names=["a"])


@pytest.mark.parametrize("seed", range(10))
def test_uai_files_of_pgmpy_have_its_values(tmp_path, seed):
    writer = pytest.importorskip("pgmpy.readwrite").UAIWriter
    theirs = DiscreteBayesianNetwork([("b", "a"), ("c", "a"), ("d", "c")])
    rng = np.random.default_rng(seed)
    sizes = {"a": 3, "b": 2, "c": 4, "d": 2}
    for name, above in (("a", ["c", "b"]), ("b", []), ("c", ["d"]), ("d", [])):
        n = int(np.prod([sizes[p] for p in above]))
        table = rng.dirichlet(np.ones(sizes[name]), n).T
        theirs.add_cpds(TabularCPD(name, sizes[name], table, above or None, [sizes[p] for p in above] or None))
    made = writer(theirs)
    (made.write_uai if hasattr(made, "write_uai") else made.write)(str(tmp_path / "m.uai"))
    with pytest.warns(UserWarning, match="as pgmpy writes them"):
        ours = cm.read(tmp_path / "m.uai")
    reference = cm.from_object(theirs)
    points = np.array(list(np.ndindex(*ours.domain.n_states.tolist())))
    numbered = sorted(sizes, key=lambda name: (str(sizes[name]), name))  # as pgmpy does it
    place = [reference.domain.index(name) for name in numbered]
    mapped = np.empty_like(points)
    mapped[:, place] = points
    assert np.allclose(ours.log_joint(points), reference.log_joint(mapped), atol=1e-6)
