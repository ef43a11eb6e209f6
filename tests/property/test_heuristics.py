"""The heuristics against their slow twins, on random circuits of every shape."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from heuristics_twin import Heuristics
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior, GuessedCircuit
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence

TOLERANCE = 1e-10
BOOLEANS = st.booleans()


class Grower:
    """Grows a random circuit: a tree, or layers of shared nodes."""

    def __init__(self, rng: np.random.Generator, n_variables: int, with_reals: bool) -> None:
        self.rng = rng
        variables = [
            cm.Real(f"x{i}")
            if with_reals and rng.random() < 0.5
            else cm.Categorical(f"x{i}", tuple(range(rng.integers(2, 4))))
            for i in range(n_variables)
        ]
        self.builder = CircuitBuilder(cm.Domain(variables))

    def leaf(self, variable: int) -> int:
        size = int(self.builder.domain.n_states[variable])
        if not size:
            return self.builder.gaussian(variable, float(self.rng.normal(0, 2)), float(self.rng.uniform(0.3, 2)))
        weights = self.rng.dirichlet(np.ones(size))
        if self.rng.random() < 0.2:
            weights[self.rng.integers(size)] = 0.0
        with np.errstate(divide="ignore"):
            return self.builder.categorical(variable, log_weights=np.log(weights))

    def sum_of(self, children: list[int]) -> int:
        return self.builder.sum(children, log_weights=np.log(self.rng.dirichlet(np.ones(len(children)))))

    def parts(self, scope: list[int]) -> list[list[int]]:
        scope = list(self.rng.permutation(scope))
        cut = int(self.rng.integers(1, len(scope)))
        return [scope[:cut], scope[cut:]]

    def tree(self, scope: list[int]) -> int:
        if len(scope) == 1:
            return self.leaf(scope[0])
        children = [
            self.builder.product([self.tree(part) for part in self.parts(scope)])
            for _ in range(self.rng.integers(2, 4))
        ]
        return self.sum_of(children)

    def layers(self, scope: list[int]) -> list[int]:
        """Several nodes over one scope that share one tree of regions and all products below."""
        width = int(self.rng.integers(2, 4))
        if len(scope) == 1:
            return [self.leaf(scope[0]) for _ in range(width)]
        left, right = (self.layers(part) for part in self.parts(scope))
        products = [
            self.builder.product([left[self.rng.integers(len(left))], right[self.rng.integers(len(right))]])
            for _ in range(width + 1)
        ]
        return [self.sum_of(products) for _ in range(width)]

    def mixed(self, scope: list[int]) -> int:
        """Unlike subcircuits over one scope under one sum, some of them shared."""
        if len(scope) == 1:
            return self.leaf(scope[0])
        layers = self.layers(scope)
        return self.sum_of([*layers, self.tree(scope), layers[0]])


def random_posterior(seed: int, shape: str, n_variables: int, with_reals: bool):
    rng = np.random.default_rng(seed)
    grower = Grower(rng, n_variables, with_reals)
    scope = list(range(n_variables))
    if shape == "layers":
        grower.sum_of(grower.layers(scope))
    else:
        getattr(grower, shape)(scope)
    circuit = grower.builder.build(normalised=False)
    names = list(circuit.domain.names)
    n_queried = int(rng.integers(1, n_variables + 1))
    queried = [names[i] for i in rng.permutation(n_variables)[:n_queried]]
    return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain, queried))


@st.composite
def posteriors(draw, with_reals=BOOLEANS):
    return random_posterior(
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from(["tree", "layers", "mixed"])),
        draw(st.integers(1, 6)),
        draw(with_reals),
    )


def as_dict(point) -> dict[int, float]:
    return dict(enumerate(point.tolist()))


@given(posteriors())
@settings(max_examples=150)
def test_max_product_decodes_what_its_twin_decodes(posterior):
    twin = Heuristics(posterior.circuit)
    root = posterior.circuit.root
    expected_value, expected = twin.max_product(root)
    point = posterior.max_product()[0]
    assert twin.log_value(root, as_dict(point)) == pytest.approx(twin.log_value(root, expected), abs=TOLERANCE)
    assert twin.log_value(root, as_dict(point)) >= expected_value - TOLERANCE


@given(posteriors(st.just(False)))
@settings(max_examples=100)
def test_the_published_max_product_walks_the_circuit_as_it_is(posterior):
    circuit = posterior.circuit
    names = circuit.domain.names
    last = len(names) - 1
    observed = {last: 0} if last else {}
    query = make_query(circuit.domain, names[: len(names) - len(observed)], {names[i]: 0 for i in observed})
    try:
        guessed = GuessedCircuit.of(circuit, query)
    except ImpossibleEvidence:
        assume(False)
    twin = Heuristics(circuit, observed)
    value, expected = twin.max_product(circuit.root)
    point = as_dict(guessed.most_probable_path()[0]) | observed
    assert twin.log_value(circuit.root, point) == pytest.approx(
        twin.log_value(circuit.root, expected), abs=TOLERANCE
    )
    assert twin.log_value(circuit.root, point) >= value - TOLERANCE


@given(posteriors())
@settings(max_examples=150)
def test_argmax_product_keeps_what_its_twin_keeps(posterior):
    twin = Heuristics(posterior.circuit)
    root = posterior.circuit.root
    point = posterior.argmax_product()[0]
    expected = twin.argmax_product(root)
    assert twin.log_value(root, as_dict(point)) == pytest.approx(twin.log_value(root, expected), abs=TOLERANCE)


@given(posteriors())
@settings(max_examples=60)
def test_independent_takes_the_mode_of_every_variables_own_posterior(posterior):
    point = posterior.modes()[0]
    for i, variable in enumerate(posterior.domain):
        alone = CircuitPosterior.from_circuit(posterior.circuit, make_query(posterior.domain, [variable.name]))
        if variable.n_states:
            values = alone.log_prob(np.arange(variable.n_states, dtype=np.int16)[:, None])
            assert values[int(point[i])] == pytest.approx(values.max(), abs=TOLERANCE)
        else:
            circuit = posterior.circuit
            leaves = np.flatnonzero(circuit.leaf_var == i)
            means = np.array([circuit.params_of(leaf)[0] for leaf in leaves])
            densities = alone.log_prob(means[:, None])
            assert alone.log_prob(np.array([[point[i]]]))[0] == pytest.approx(densities.max(), abs=TOLERANCE)


@given(posteriors(st.just(False)), st.sampled_from(["independent", "max_product", "argmax_product"]))
@settings(max_examples=40)
def test_answers_are_scored_exactly_and_prove_nothing_they_have_not_earned(posterior, solver):
    result = cm.map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=0)
    twin = Heuristics(posterior.circuit)
    states = np.array(list(itertools.product(*(range(k) for k in posterior.domain.n_states))), np.int16)
    values = posterior.log_prob(states)
    given_point = as_dict(posterior.domain.encode(result.assignment))
    assert result.log_prob == pytest.approx(twin.log_value(posterior.circuit.root, given_point), abs=TOLERANCE)
    assert result.log_upper_bound >= max(values) - TOLERANCE
    if result.certified:
        assert result.log_prob >= max(values) - 1e-8
    else:
        assert result.status == "heuristic"


def bernoulli_mixture():
    builder = CircuitBuilder(cm.Domain.of_sizes([2, 2]))
    products = [
        builder.product(
            [builder.categorical(v, log_weights=[math.log(1 - p), math.log(p)]) for v, p in enumerate(pair)]
        )
        for pair in [(0.1, 0.1), (0.9, 0.9), (0.8, 0.9)]
    ]
    builder.sum(products, log_weights=[math.log(w) for w in (0.4, 0.35, 0.25)])
    return builder.build(normalised=False)


@pytest.mark.nojit
def test_max_product_follows_one_component_and_argmax_product_the_mixture():
    model = bernoulli_mixture()
    one = cm.map_query(model, solver="max_product", rng=0)
    assert one.assignment == {"0": 0, "1": 0}
    assert one.log_prob == pytest.approx(math.log(0.3325), abs=1e-12)
    assert not one.certified
    assert one.certificate.kind == "none"
    both = cm.map_query(model, solver="argmax_product", rng=0)
    assert both.assignment == {"0": 1, "1": 1}
    assert both.log_prob == pytest.approx(math.log(0.4675), abs=1e-12)


def deterministic_circuit(decided):
    """x decides a sum over two products with y; without it the sum is a mixture."""
    build = cm.CircuitBuilder(cm.Domain.of_sizes([2, 3]))
    sides = [(0, [0.2, 0.5, 0.3]), (1, [0.7, 0.1, 0.2])]
    soft = np.log([[0.9, 0.1], [0.5, 0.5]])
    x = [build.indicator(0, s) if decided else build.categorical(0, log_weights=soft[s]) for s, _ in sides]
    build.sum(
        [build.product([x[s], build.categorical(1, log_weights=np.log(p))]) for s, p in sides],
        log_weights=np.log([0.6, 0.4]),
    )
    return build.build(normalised=False)


def test_max_product_bounds_the_best_and_proves_it_where_every_sum_decides():
    exact = cm.map_query(deterministic_circuit(True), solver="max_product", epsilon=0, delta=0, rng=0)
    assert exact.certificate.kind == "exact"
    assert exact.certificate.rule == "bound"
    assert exact.log_prob == pytest.approx(math.log(0.3))
    mixed = cm.map_query(deterministic_circuit(False), solver="max_product", epsilon=0, delta=0, rng=0)
    best = cm.map_query(deterministic_circuit(False), epsilon=0, delta=0, rng=0)
    assert not mixed.certified
    assert best.log_prob < mixed.log_upper_bound < 0.0


@pytest.mark.nojit
@pytest.mark.parametrize("shape", ["tree", "layers", "mixed"])
def test_kernels_run_uncompiled(shape):
    for seed in range(3):
        posterior = random_posterior(seed, shape, 4, with_reals=seed > 0)
        twin = Heuristics(posterior.circuit)
        root = posterior.circuit.root
        kept = twin.log_value(root, as_dict(posterior.argmax_product()[0]))
        assert kept == pytest.approx(twin.log_value(root, twin.argmax_product(root)), abs=TOLERANCE)
        decoded = twin.log_value(root, as_dict(posterior.max_product()[0]))
        assert decoded == pytest.approx(twin.log_value(root, twin.max_product(root)[1]), abs=TOLERANCE)


def test_a_posterior_without_a_circuit_is_refused_in_a_sentence():
    from certimap.testing.models import TablePosterior

    posterior = TablePosterior([2, 2], [0.1, 0.2, 0.3, 0.4])
    for solver in ("max_product", "argmax_product"):
        with pytest.raises(cm.SolverError, match=r"to have modes\(\), max_product\(\).*use solver='smooth_pac'"):
            cm.map_query(posterior, solver=solver)
    assert cm.map_query(posterior, solver="independent", rng=0).assignment == {"0": 1, "1": 1}


def test_an_interval_of_a_real_variable_clips_the_mean():
    builder = CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.sum(
        [builder.gaussian(0, -5.0, 1.0), builder.gaussian(0, 3.0, 1.0)], log_weights=[math.log(0.9), math.log(0.1)]
    )
    posterior = CircuitPosterior.from_circuit(
        builder.build(normalised=False), make_query(builder.domain, ["x"], {"x": (0.0, 2.0)})
    )
    for point in (
        posterior.max_product(),
        posterior.argmax_product(),
        posterior.modes(),
    ):
        assert 0.0 <= point[0, 0] <= 2.0
        assert np.isfinite(posterior.log_prob(point))[0]
