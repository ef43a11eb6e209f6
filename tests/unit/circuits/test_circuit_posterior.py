"""The posterior of a circuit against enumeration, and its promises on size, threads and extremes."""

from __future__ import annotations

import gc
import math
import pickle
import tracemalloc
import weakref

import numpy as np
import pytest
from engine_twin import RandomCircuits, Twin, all_points
from frontier_twin import leaves_of
from hypothesis import given, settings
from hypothesis import strategies as st

from certimap.circuits import evaluator, properties
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.evaluator import probe_arrays
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import BoxPosterior
from certimap.core.probing import answers_in
from certimap.core.query import Query, make_query
from certimap.errors import ImpossibleEvidence, ModelError, QueryError
from certimap_lab.bench.random_circuits import grown_learnspn


def log(*probabilities: float) -> list[float]:
    return [math.log(p) if p else -math.inf for p in probabilities]


def random_case(seed: int) -> tuple[Circuit, Query]:
    """A random circuit with a query, hard and soft evidence, and nuisance variables."""
    rng = np.random.default_rng(seed)
    sizes = [int(k) for k in rng.choice([1, 2, 2, 2, 3, 4], rng.integers(2, 6))]
    circuit = RandomCircuits(seed, sizes, share=float(rng.choice([0.0, 0.5]))).build()
    names = list(circuit.domain.names)
    queried = [n for n in names if rng.random() < 0.6] or [names[0]]
    evidence: dict[str, object] = {}
    for name in names:
        size = circuit.domain[name].n_states
        pick = rng.random()
        if name not in queried and pick < 0.4:
            evidence[name] = int(rng.integers(size))
        elif pick < 0.6:
            evidence[name] = rng.uniform(0.1, 1, size).tolist()
    return circuit, make_query(circuit.domain, [str(n) for n in rng.permutation(queried)], evidence)


def random_boxes(domain: Domain, rng: np.random.Generator, batch: int) -> Boxes:
    mask = rng.random((batch, domain.total_states)) < 0.6
    boxes = Boxes(domain, mask)
    empty = boxes.counts() == 0
    for row, i in zip(*np.nonzero(empty), strict=True):
        mask[row, domain.offsets[i] + rng.integers(domain.n_states[i])] = True
    return Boxes(domain, mask)


def sets_of(boxes: Boxes, row: int) -> list[set[int]]:
    offsets = boxes.domain.offsets
    return [
        set(np.flatnonzero(boxes.mask[row, offsets[i] : offsets[i + 1]]).tolist())
        for i in range(len(boxes.domain))
    ]


def same_logs(got: np.ndarray, linear: np.ndarray, tolerance: float = 1e-12) -> None:
    """Compare natural logs with exact probabilities, zeros included."""
    linear = np.asarray(linear)
    assert np.array_equal(got == -np.inf, linear == 0)
    kept = linear > 0
    np.testing.assert_allclose(got[kept], np.log(linear[kept]), rtol=0, atol=tolerance)


@given(st.integers(0, 10**6))
@settings(max_examples=60)
def test_against_enumeration(seed: int) -> None:
    circuit, query = random_case(seed)
    twin = Twin(circuit, query)
    if twin.total == 0:
        with pytest.raises(ImpossibleEvidence):
            CircuitPosterior.from_circuit(circuit, query)
        return
    posterior = CircuitPosterior.from_circuit(circuit, query)
    assert posterior.log_evidence == pytest.approx(math.log(twin.total), abs=1e-11)
    points = np.array(all_points(posterior.domain), np.int16)
    table = np.array([twin.prob(p) for p in points])
    same_logs(posterior.log_prob(points), table)
    rng = np.random.default_rng(seed)
    boxes = random_boxes(posterior.domain, rng, 5)
    masses, bounds = posterior.log_mass(boxes), answers_in(posterior, boxes).log_bound
    for row in range(len(boxes)):
        sets = sets_of(boxes, row)
        inside = np.array([all(x in s for x, s in zip(p, sets, strict=True)) for p in points])
        same_logs(masses[row : row + 1], [table[inside].sum()])
        if table[inside].any():
            assert bounds[row] >= np.log(table[inside].max())


@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_each_pass_sets_one_variable_at_a_time(seed: int) -> None:
    circuit, query = random_case(seed)
    twin = Twin(circuit, query)
    if twin.total == 0:
        return
    posterior = CircuitPosterior.from_circuit(circuit, query)
    domain = posterior.domain
    points = np.array(all_points(domain), np.int16)
    table = np.array([twin.prob(p) for p in points])
    rng = np.random.default_rng(seed)
    some = points[rng.integers(len(points), size=3)]
    boxes = Boxes.concatenate([random_boxes(domain, rng, 4), Boxes.of_points(domain, some)])
    masses, answers = posterior.log_mass_each(boxes), answers_in(posterior, boxes)
    for row in range(len(boxes)):
        sets = sets_of(boxes, row)
        for i in range(len(domain)):
            for state in range(int(domain.n_states[i])):
                changed = [*sets[:i], {state}, *sets[i + 1 :]]
                inside = np.array([all(x in s for x, s in zip(p, changed, strict=True)) for p in points])
                column = int(domain.offsets[i]) + state
                same_logs(masses[row, [column]], [table[inside].sum()], 1e-11)
                if state not in sets[i]:
                    assert answers.each_bound[row, column] == -np.inf
                elif table[inside].any():
                    assert np.log(table[inside].max()) <= answers.each_bound[row, column] <= answers.log_bound[row]


@given(st.integers(0, 10**6))
@settings(max_examples=30)
def test_the_conditioned_circuit_is_the_posterior(seed: int) -> None:
    circuit, query = random_case(seed)
    twin = Twin(circuit, query)
    if twin.total == 0:
        return
    posterior = CircuitPosterior.from_circuit(circuit, query)
    simple = posterior.circuit
    assert properties.is_smooth(simple)
    assert properties.is_decomposable(simple)
    assert simple.n_edges <= circuit.n_edges + posterior.plan.is_sum.sum() + 1
    again = Twin(simple, make_query(simple.domain))
    assert again.total == pytest.approx(1.0, abs=1e-12)
    for point in all_points(posterior.domain)[:50]:
        assert again.prob(point) == pytest.approx(twin.prob(point), abs=1e-12)
    plan = posterior.plan
    for node in range(plan.n_nodes):
        if plan.is_sum[node]:
            edges = slice(int(plan.child_ptr[node]), int(plan.child_ptr[node + 1]))
            assert plan.weights[edges].sum() == pytest.approx(1.0, abs=1e-12)
            assert not plan.is_sum[plan.children[edges]].any()
        for variable, vector in leaves_of(plan, node):
            assert len(vector) == plan.domain.n_states[variable]
            assert vector.sum() == pytest.approx(1.0, abs=1e-12)


def test_deciding_sums_make_bounds_exact() -> None:
    """A deterministic circuit is maximised exactly; states get at most their mass and the bound of the box."""
    domain = Domain.of_sizes([2, 2])
    b = CircuitBuilder(domain)
    left = b.product([b.indicator(0, 0), b.categorical(1, log_weights=log(0.9, 0.1))])
    right = b.product([b.indicator(0, 1), b.categorical(1, log_weights=log(0.2, 0.8))])
    b.sum([left, right], log_weights=log(0.4, 0.6))
    posterior = CircuitPosterior.from_circuit(b.build(normalised=False), make_query(domain))
    everything = Boxes.full(domain)
    assert posterior.plan.decides[-1] == 0
    answers = answers_in(posterior, everything)
    assert answers.log_bound[0] == pytest.approx(math.log(0.48), abs=1e-12)
    each = np.exp(answers.each_bound)[0]
    np.testing.assert_allclose(each, [0.36, 0.48, 0.48, 0.48], rtol=1e-12)


def test_sums_that_do_not_decide_stay_apart_from_sums_that_do() -> None:
    """A mixture below a maximum adds up; dissolved into it, its terms would be maximised one by one."""
    domain = Domain.of_sizes([2, 2])
    b = CircuitBuilder(domain)
    terms = [b.product([b.indicator(0, 0), b.categorical(1, log_weights=log(p, 1 - p))]) for p in (0.9, 0.7)]
    other = b.product([b.indicator(0, 1), b.categorical(1, log_weights=log(0.5, 0.5))])
    b.sum([b.sum(terms, log_weights=log(0.5, 0.5)), other], log_weights=log(0.7, 0.3))
    posterior = CircuitPosterior.from_circuit(b.build(normalised=False), make_query(domain))
    assert answers_in(posterior, Boxes.full(domain)).log_bound[0] == pytest.approx(math.log(0.7 * 0.8), abs=1e-12)
    assert posterior.log_prob(np.array([[0, 0]]))[0] == pytest.approx(math.log(0.7 * 0.8), abs=1e-12)


def test_nuisance_sums_do_not_decide() -> None:
    domain = Domain.of_sizes([2, 2])
    b = CircuitBuilder(domain)
    parts = [
        b.product([b.indicator(0, s), b.categorical(1, log_weights=log(p, 1 - p))])
        for s, p in ((0, 0.9), (1, 0.2))
    ]
    b.sum(parts, log_weights=log(0.4, 0.6))
    circuit = b.build(normalised=False)
    assert properties.is_deterministic(circuit)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(domain, ["1"]))
    assert posterior.plan.n_nodes == 1
    np.testing.assert_allclose(np.exp(posterior.log_prob(np.array([[0], [1]]))), [0.48, 0.52])


def test_bounds_of_nested_maxima_and_sums_hold() -> None:
    """Sums below maxima below sums, with shared nodes: every bound covers the true maximum."""
    rng = np.random.default_rng(5)
    checked = 0
    for seed in range(40):
        circuit = RandomCircuits(seed, [2, 3, 2, 2], share=0.6, zeros=0.0).build()
        posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
        checked += bool((posterior.plan.decides >= 0).any())
        points = np.array(all_points(posterior.domain), np.int16)
        table = posterior.log_prob(points)
        boxes = random_boxes(posterior.domain, rng, 6)
        each = answers_in(posterior, boxes).each_bound
        for row in range(len(boxes)):
            sets = sets_of(boxes, row)
            for column in range(posterior.domain.total_states):
                i = int(np.searchsorted(posterior.domain.offsets, column, side="right")) - 1
                changed = [*sets[:i], {column - int(posterior.domain.offsets[i])}, *sets[i + 1 :]]
                inside = [all(x in s for x, s in zip(p, changed, strict=True)) for p in points]
                assert each[row, column] >= table[inside].max() or not boxes.mask[row, column]
    assert checked > 20


def test_gaussian_and_mixed_circuits() -> None:
    rng = np.random.default_rng(0)
    for seed in range(15):
        circuit = RandomCircuits(seed, [0, 2, 0, 3], share=0.4, zeros=0.0).build()
        for evidence in ({}, {"v2": 0.4}, {"v2": (-1.0, 0.5)}, {"v1": 1}):
            names = [n for n in ("v3", "v0", "v2") if n not in evidence or evidence[n] == (-1.0, 0.5)]
            query = make_query(circuit.domain, names, evidence)
            twin, posterior = Twin(circuit, query), CircuitPosterior.from_circuit(circuit, query)
            assert posterior.log_evidence == pytest.approx(math.log(twin.total), abs=1e-10)
            points = np.array([[rng.integers(3) if n == "v3" else rng.normal() for n in names] for _ in range(20)])
            with np.errstate(divide="ignore"):
                expected = np.log([twin.prob(p) for p in points])
            np.testing.assert_allclose(posterior.log_prob(points), expected, atol=1e-9)
            boxes = Boxes.full(posterior.domain, 10)
            assert boxes.low is not None
            assert boxes.high is not None
            boxes.mask[::2, 0] = False
            boxes.low[:, 1] = rng.normal(-1, 1, 10)
            boxes.high[:, 1] = boxes.low[:, 1] + rng.uniform(0.1, 2, 10)
            masses = np.exp(posterior.log_mass(boxes))
            bounds = answers_in(posterior, boxes).log_bound
            for row in range(10):
                sets: list[object] = [set(np.flatnonzero(boxes.mask[row, :3]).tolist())]
                sets += [(boxes.low[row, k], boxes.high[row, k]) for k in range(1, len(names))]
                assert masses[row] == pytest.approx(twin.box_mass(sets), abs=1e-9)
            draws = posterior.sample(200, rng, boxes[:1])
            inside = (draws[:, 1] >= boxes.low[0, 1]) & (draws[:, 1] <= boxes.high[0, 1]) & (draws[:, 0] > 0)
            assert inside.all()
            assert bounds[0] >= posterior.log_prob(draws).max()


def test_a_gaussian_bound_is_the_density_at_the_clipped_mean() -> None:
    domain = Domain([Real("x"), Real("y", 0.0, 1.0)])
    b = CircuitBuilder(domain)
    b.product([b.gaussian(0, 1.0, 2.0), b.gaussian(1, 0.5, 0.1)])
    posterior = CircuitPosterior.from_circuit(b.build(normalised=False), make_query(domain, ["x"]))
    boxes = Boxes(
        domain.subset([0]),
        np.zeros((3, 0), np.bool_),
        np.array([[0.0], [2.0], [-9.0]]),
        np.array([[3.0], [4.0], [-5.0]]),
    )
    peaks = posterior.log_prob(np.array([[1.0], [2.0], [-5.0]]))
    np.testing.assert_allclose(answers_in(posterior, boxes).log_bound, peaks, atol=1e-12)
    assert posterior.circuit.n_edges == 1
    with pytest.raises(ModelError, match="'y' is restricted to an interval"):
        _ = CircuitPosterior.from_circuit(b.build(normalised=False), make_query(domain)).circuit
    far = Boxes(domain.subset([0]), np.zeros((1, 0), np.bool_), np.array([[101.0]]), np.array([[np.inf]]))
    assert posterior.log_mass(far)[0] == pytest.approx(-1254.831361, abs=1e-5)  # ln Phi(-50)
    assert posterior.sample(5, np.random.default_rng(0), far).min() >= 101.0


def independent(n: int, p: float) -> Circuit:
    b = CircuitBuilder(Domain.of_sizes([2] * n))
    b.product([b.categorical(i, log_weights=log(1 - p, p)) for i in range(n)])
    return b.build(normalised=False)


def test_nothing_underflows() -> None:
    """Points of probability e^-4000 next to likely ones, their masses and sweeps."""
    n = 2000
    circuit = independent(n, math.exp(-2))
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
    points = np.zeros((5, n), np.int16)
    points[1:] = 1
    points[2, 0] = 0
    miss = math.log1p(-math.exp(-2))
    np.testing.assert_allclose(
        posterior.log_prob(points)[:3], [n * miss, -2.0 * n, -2 * (n - 1) + miss], rtol=1e-12
    )
    boxes = Boxes.of_points(circuit.domain, points[:2])
    np.testing.assert_allclose(posterior.log_mass(boxes), posterior.log_prob(points[:2]), rtol=1e-12)
    assert np.all(answers_in(posterior, boxes).log_bound >= posterior.log_prob(points[:2]))
    sweep = posterior.log_mass_each(boxes)
    assert sweep[1, 0] == pytest.approx(-2 * (n - 1) + miss, rel=1e-12)
    assert sweep[1, 1] == pytest.approx(-2 * n, rel=1e-12)
    assert np.array_equal(posterior.sample(3, np.random.default_rng(1), boxes[1:]), points[1:4] * 0 + 1)


def test_improbable_evidence_keeps_its_branches() -> None:
    """A branch e^-900 times less likely given the evidence still gives its own points their probability."""
    n = 450
    domain = Domain.of_sizes([2] * n + [3])
    b = CircuitBuilder(domain)
    first = b.product(
        [
            *(b.categorical(i, log_weights=log(0.5, 0.5)) for i in range(n)),
            b.categorical(n, log_weights=log(0.5, 0.5, 0.0)),
        ]
    )
    e = math.exp(-2 + math.log(0.5))
    second = b.product(
        [
            *(b.categorical(i, log_weights=log(1 - e, e)) for i in range(n)),
            b.categorical(n, log_weights=log(0.0, 0.0, 1.0)),
        ]
    )
    b.sum([first, second], log_weights=log(0.5, 0.5))
    posterior = CircuitPosterior.from_circuit(
        b.build(normalised=False), make_query(domain, [str(n)], {str(i): 1 for i in range(n)})
    )
    found = posterior.log_prob(np.array([[0], [1], [2]]))
    np.testing.assert_allclose(found, [math.log(0.5), math.log(0.5), -900.0], rtol=1e-12)


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_do_not_change_an_answer(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("certimap.circuits.evaluator._TASK_EDGES", 1 << 12)
    monkeypatch.setattr("certimap.circuits.evaluator._TASK_ROWS", 100)
    circuit = RandomCircuits(3, [2, 3, 2, 4, 2, 2], zeros=0.0).build()
    query = make_query(circuit.domain)
    one, many = (
        CircuitPosterior.from_circuit(circuit, query, workers=1),
        CircuitPosterior.from_circuit(circuit, query, workers=workers),
    )
    points = one.sample(3001, np.random.default_rng(7))
    assert np.array_equal(points, many.sample(3001, np.random.default_rng(7)))
    boxes = random_boxes(one.domain, np.random.default_rng(1), 501)
    for name in ("log_mass", "log_mass_each"):
        assert np.array_equal(getattr(one, name)(boxes), getattr(many, name)(boxes))
    for name in ("log_bound", "each_bound", "each_mass"):
        assert np.array_equal(*(getattr(answers_in(posterior, boxes), name) for posterior in (one, many)))
    assert np.array_equal(one.log_prob(points), many.log_prob(points))
    rows = [one.log_prob(points[k : k + 1])[0] for k in range(20)]
    assert np.array_equal(rows, one.log_prob(points)[:20])
    singles = Boxes.of_points(one.domain, np.unique(points, axis=0))
    drawn = [p.sample(999, np.random.default_rng(2), singles) for p in (one, many)]
    assert np.array_equal(drawn[0], drawn[1])


def test_a_shared_node_is_computed_once() -> None:
    """A ladder with two edges to each next rung unrolls to 2^60 paths; the plan stays as small as the circuit."""
    n = 60
    domain = Domain.of_sizes([2] * n)
    b = CircuitBuilder(domain)
    below = None
    for i in range(n):
        parts = [b.categorical(i, log_weights=log(0.3, 0.7)), b.categorical(i, log_weights=log(0.6, 0.4))]
        products = (
            parts if below is None else [b.product([part, node]) for part, node in zip(parts, below, strict=True)]
        )
        below = [b.sum(products, log_weights=log(0.5, 0.5)), b.sum(products, log_weights=log(0.2, 0.8))]
    b.sum(below, log_weights=log(0.1, 0.9))
    circuit = b.build(normalised=False)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(domain))
    assert posterior.n_edges <= circuit.n_edges
    assert posterior.log_mass(Boxes.full(domain))[0] == pytest.approx(0.0, abs=1e-11)
    points = posterior.sample(100, np.random.default_rng(0))
    assert np.all(posterior.log_prob(points) > -60)


def test_long_chains_of_products_stay_linear() -> None:
    n = 3000
    domain = Domain.of_sizes([2] * n)
    b = CircuitBuilder(domain)
    node = b.categorical(0, log_weights=log(0.5, 0.5))
    for i in range(1, n):
        node = b.product([node, b.categorical(i, log_weights=log(0.5, 0.5))])
    posterior = CircuitPosterior.from_circuit(b.build(normalised=False), make_query(domain))
    assert posterior.plan.n_nodes == 1
    assert posterior.plan.n_leaves == n


def test_missing_variables_are_constants() -> None:
    """An indicator circuit that leaves a variable free weighs each of its states by one."""
    domain = Domain.of_sizes([2, 3, 2])
    b = CircuitBuilder(domain)
    both = b.product([b.indicator(0, 0), b.categorical(1, log_weights=log(0.2, 0.3, 0.5))])
    b.sum([both, b.indicator(0, 1)], log_weights=log(0.5, 0.25))
    circuit = b.build(normalised=False)
    assert not properties.is_smooth(circuit)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(domain))
    assert posterior.log_evidence == pytest.approx(math.log(2 * (0.5 + 3 * 0.25)))
    expected = [0.1, 0.15, 0.25, 0.25, 0.25, 0.25]
    found = np.exp(posterior.log_prob(np.array(all_points(domain)))).reshape(6, 2).sum(axis=1)
    np.testing.assert_allclose(found, np.array(expected) / sum(expected))


def test_refusals() -> None:
    domain = Domain.of_sizes([2, 2])
    b = CircuitBuilder(domain)
    b.product(
        [
            b.categorical(0, log_weights=log(0.5, 0.5)),
            b.categorical(0, log_weights=log(0.1, 0.9)),
            b.categorical(1, log_weights=log(0.1, 0.9)),
        ]
    )
    twice = b.build(normalised=False)
    assert not properties.is_decomposable(twice)
    with pytest.raises(ModelError, match="product node 3 multiplies two children over variable '0'"):
        CircuitPosterior.from_circuit(twice, make_query(domain))
    assert CircuitPosterior.from_circuit(twice, make_query(domain, ["1"], {"0": 1})).log_evidence == pytest.approx(
        math.log(0.45)
    )
    mixed = Domain([Real("x"), Categorical("c", ("a", "b"))])
    b = CircuitBuilder(mixed)
    b.sum([b.product([b.gaussian(0, 0, 1), b.indicator(1, 0)]), b.indicator(1, 1)], log_weights=log(0.5, 0.5))
    with pytest.raises(ModelError, match="real variable 'x'"):
        CircuitPosterior.from_circuit(b.build(normalised=False), make_query(mixed))
    circuit = independent(3, 0.5)
    with pytest.raises(ModelError, match="3 edges; max_edges=2"):
        CircuitPosterior.from_circuit(circuit, make_query(circuit.domain), max_edges=2)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
    with pytest.raises(QueryError, match=r"shape \(2, 2\)"):
        posterior.log_prob(np.zeros((2, 2), np.int16))
    with pytest.raises(QueryError, match="out of range"):
        posterior.log_prob(np.full((2, 3), 2))
    empty = Boxes(circuit.domain, np.zeros((1, 6), np.bool_))
    assert posterior.log_mass(empty)[0] == -np.inf
    with pytest.raises(QueryError, match="mass zero"):
        posterior.sample(1, np.random.default_rng(0), empty)


def test_impossible_evidence() -> None:
    domain = Domain.of_sizes([2, 2])
    b = CircuitBuilder(domain)
    given_0 = b.product([b.indicator(0, 0), b.categorical(1, log_weights=log(1.0, 0.0))])
    given_1 = b.product([b.indicator(0, 1), b.categorical(1, log_weights=log(0.2, 0.8))])
    b.sum([given_0, given_1], log_weights=log(1.0, 0.0))
    with pytest.raises(ImpossibleEvidence):
        CircuitPosterior.from_circuit(b.build(normalised=False), make_query(domain, ["0"], {"1": 1}))


def test_protocol_and_pickle() -> None:
    circuit = independent(4, 0.2)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain, ["2", "0"], {"1": 1}))
    assert isinstance(posterior, BoxPosterior)
    assert isinstance(posterior, CircuitPosterior)
    assert posterior.domain.names == ("2", "0")
    assert posterior.log_evidence == pytest.approx(math.log(0.2))
    again = pickle.loads(pickle.dumps(posterior))
    points = np.array([[0, 1]], np.int16)
    assert again.log_prob(points)[0] == posterior.log_prob(points)[0] == pytest.approx(math.log(0.16))
    assert posterior.log_prob(np.zeros((0, 2), np.int16)).shape == (0,)
    assert posterior.sample(0, np.random.default_rng(0)).shape == (0, 2)


def test_a_plan_is_laid_out_once_and_not_sent_or_kept_with_it() -> None:
    circuit = RandomCircuits(5, [2, 3, 2, 0]).build()
    plan = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain)).plan
    assert probe_arrays(plan) is probe_arrays(plan)
    assert probe_arrays(pickle.loads(pickle.dumps(plan))) is not probe_arrays(plan)
    gone = weakref.ref(plan)
    del plan
    gc.collect()
    assert gone() is None


def test_kernels_get_points_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they are compiled twice: for lists of points that nobody may change, and for others."""
    flags: list[bool] = []
    evaluate = evaluator.evaluate

    def seen(*given: np.ndarray) -> None:
        flags.append(given[2].flags.writeable)
        evaluate(*given)

    monkeypatch.setattr(evaluator, "evaluate", seen)
    posterior = CircuitPosterior.from_circuit(*random_case(0))
    points = np.zeros((1, len(posterior.domain)), np.int16)
    posterior.log_prob(points)
    assert points.flags.writeable
    points.flags.writeable = False
    posterior.log_prob(points)
    assert flags == [False, False]


def test_conditioning_and_draws_with_everything_queried_keep_to_their_memory() -> None:
    """Some 45 bytes per edge are the plan, 35 more the evaluator, and 14 of its counts are not touched."""
    other, large = (grown_learnspn(150, 200_000, seed=seed) for seed in (2, 1))
    other.condition(make_query(other.domain)).sample(2, np.random.default_rng(0))  # whatever is compiled is loaded
    tracemalloc.start()
    posterior = large.condition(make_query(large.domain))
    assert tracemalloc.get_traced_memory()[1] < 115 * large.n_edges
    posterior.sample(2, np.random.default_rng(0))
    assert tracemalloc.get_traced_memory()[1] < 120 * large.n_edges
    tracemalloc.stop()
