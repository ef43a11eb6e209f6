"""Numbers at the edge of float64: nothing possible becomes impossible, no order is lost, no count overflows."""

from __future__ import annotations

import itertools
import math

import exact_twin as twin
import numpy as np
import pytest

import certimap as cm
from certimap.certify import bounds
from certimap.certify.draw_record import DrawRecord
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import Caps, PlanProber, PlanView
from certimap.core.box import Boxes, SearchBoxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import FunctionPosterior
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence

CLOSE = {"rel": 1e-12, "abs": 1e-10}


def independent(*leaves: list[float]) -> Circuit:
    """Independent variables, one list of log weights each."""
    builder = CircuitBuilder(Domain.of_sizes([len(leaf) for leaf in leaves]))
    builder.product([builder.categorical(i, log_weights=leaf) for i, leaf in enumerate(leaves)])
    return builder.build(normalised=False)


def bernoulli(p: float) -> list[float]:
    return [math.log1p(-p), math.log(p)]


def check_top(circuit: Circuit, solver: str, top_k: int) -> None:
    """The answers are the true ones, in order, with their probabilities, and the certificate is exact."""
    result = cm.map_query(circuit, solver=solver, top_k=top_k, epsilon=0.0, rng=1)
    truth = twin.ranking(circuit)[:top_k]
    assert result.certificate.kind == "exact"
    assert result.top is not None
    values = [log_prob for _, log_prob in result.top]
    assert values == pytest.approx([twin.log(p) for p, _ in truth], **CLOSE)
    assert result.log_upper_bound is not None
    assert result.log_upper_bound >= twin.log(truth[0][0]) - 1e-11
    for (answer, _), (p, q) in zip(result.top, truth, strict=True):
        tied = [other for r, other in truth if abs(r - p) <= 1e-9 * p]
        assert p == 0 or len(tied) > 1 or tuple(answer.values()) == q


SOLVERS = ("exhaustive", "frontier", "auto")


@pytest.mark.parametrize("solver", SOLVERS)
def test_binary_leaves_keep_small_probabilities(solver: str) -> None:
    check_top(independent(bernoulli(0.6e-16), bernoulli(1e-16)), solver, 2)
    check_top(independent(bernoulli(1e-20), bernoulli(0.3)), solver, 3)


def test_log_prob_keeps_the_digits_of_a_small_probability() -> None:
    for p in (1e-13, 1e-16, 1e-18, 1e-300, 5e-324):
        posterior = CircuitPosterior.from_circuit(independent(bernoulli(p)), make_query(Domain.of_sizes([2])))
        assert posterior.log_prob(np.array([[1]]))[0] == pytest.approx(math.log(p), rel=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_entries_below_the_normal_numbers_keep_their_order(solver: str) -> None:
    check_top(independent([0.0, -744.40, -744.07]), solver, 2)
    check_top(independent([0.0, -2000.0, -1999.9, -math.inf], [0.0, -0.5]), solver, 5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_products_of_small_leaf_maxima_do_not_close(solver: str) -> None:
    first = [0.0] + [math.log(1e-170 * k) for k in (1, 2, 3)]
    second = [0.0] + [math.log(1e-190 * k) for k in (1, 2, 3)]
    check_top(independent(first, second), solver, 9)


@pytest.mark.parametrize("top_k", [5, 12, 100])
def test_top_k_beyond_what_is_possible(top_k: int) -> None:
    builder = CircuitBuilder(Domain.of_sizes([3, 4]))
    rows = [
        builder.product(
            [
                builder.indicator(0, s),
                builder.categorical(1, log_weights=[0.0 if s == t else -math.inf for t in range(4)]),
            ]
        )
        for s in range(3)
    ]
    builder.sum(rows, log_weights=[math.log(0.2), math.log(0.5), math.log(0.3)])
    circuit = builder.build(normalised=False)
    for seed in range(3):
        result = cm.map_query(circuit, solver="frontier", top_k=top_k, epsilon=0.1, rng=seed)
        assert result.certificate.kind == "exact"
        assert result.top is not None
        assert len(result.top) == min(top_k, 12)
        assert [p > -math.inf for _, p in result.top][:4] == [True, True, True, False]


@pytest.mark.parametrize("solver", ["pac", "smooth_pac", "budget", "auto"])
def test_draws_of_hopelessly_many_points_are_counted(solver: str) -> None:
    n = 1030  # ln p = -714: one over its probability is infinite
    posterior = FunctionPosterior(
        [2] * n,
        lambda count, rng: rng.integers(2, size=(count, n)),
        lambda points: np.full(len(points), -n * math.log(2)),
    )
    result = cm.map_query(posterior, solver=solver, max_samples=300, rng=1)
    assert result.certificate.kind == "none"
    assert result.log_prob == pytest.approx(-n * math.log(2))


@pytest.mark.parametrize("log_p", [-700.0, -708.4, -730.0, -745.0, -746.0, -5e3, -1e6])
def test_evidence_of_draws_far_below_float64(log_p: float) -> None:
    for published in (False, True):
        record = DrawRecord(published=published, tolerance=1e-9, slack=1e-12)
        record.add(0.0, -math.inf, 10**6)
        assert 0.0 <= record.evidence(log_p, 0.1) < 1e-290
        assert record.needed(4.6, log_p, 0.1, 0.0, -math.inf, None) == math.inf
    needed = bounds.log_draws_needed(log_p, 1e-300)
    assert needed == pytest.approx(math.log(300 * math.log(10.0)) - log_p, rel=1e-12)


def hostile_cases(count: int, start: int = 0):
    for t in range(start, start + count):
        rng = np.random.default_rng([7, t])
        sizes = rng.choice([1, 2, 2, 2, 3, 4], size=int(rng.integers(1, 5)))
        circuit = twin.hostile_circuit(rng, sizes)
        try:
            yield rng, circuit, CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
        except ImpossibleEvidence:
            continue


def random_masks(rng: np.random.Generator, domain: Domain, count: int) -> np.ndarray:
    masks = rng.random((count, domain.total_states)) < 0.6
    for v in range(len(domain)):
        columns = slice(domain.offsets[v], domain.offsets[v + 1])
        empty = ~masks[:, columns].any(axis=1)
        masks[empty, domain.offsets[v] + int(rng.integers(domain.n_states[v]))] = True
    return masks


def states_of(domain: Domain, mask: np.ndarray) -> list[list[int]]:
    return [
        [int(s) for s in np.flatnonzero(mask[domain.offsets[v] : domain.offsets[v + 1]])]
        for v in range(len(domain))
    ]


@pytest.mark.slow
def test_hostile_circuits_agree_with_fifty_digits() -> None:
    """Values, masses and bounds of points and boxes; a state is impossible only where the model says so."""
    for rng, circuit, posterior in hostile_cases(120):
        domain = circuit.domain
        total = twin.mass(circuit, [range(int(k)) for k in domain.n_states])
        points = np.array(list(twin.points(domain)))
        truth = {tuple(q): twin.mass(circuit, [(s,) for s in q]) / total for q in points.tolist()}
        exact = [twin.log(truth[tuple(q)]) for q in points.tolist()]
        assert posterior.log_evidence == pytest.approx(twin.log(total), **CLOSE)
        assert posterior.log_prob(points) == pytest.approx(exact, **CLOSE)
        masks = random_masks(rng, domain, 4)
        boxes = Boxes(domain, masks)
        got_mass, each_mass = posterior.log_mass(boxes), posterior.log_mass_each(boxes)
        plain = answers_in(posterior, boxes)
        view = PlanView.of(posterior.plan)
        caps = Caps(view, 1e-9)
        caps.advance(10**7)
        assert caps.log_caps[-1] >= max(exact) - 1e-11 or not posterior.plan.is_sum[-1]
        search = SearchBoxes(masks.astype(np.uint8), np.zeros((4, 0)), np.zeros((4, 0)))
        probed = PlanProber(posterior.plan, workers=1, log_caps=caps.log_caps).probe(search)
        for row, mask in enumerate(masks):
            states = states_of(domain, mask)
            log_mass = twin.log(twin.mass(circuit, states) / total)
            best = max(twin.log(truth[q]) for q in itertools.product(*states))
            assert got_mass[row] == pytest.approx(log_mass, **CLOSE)
            for answers in (plain, probed):
                bound = answers.log_bound
                assert answers.log_mass[row] == pytest.approx(log_mass, **CLOSE)
                assert bound[row] >= best - 1e-11
                assert (bound[row] == -math.inf) == (best == -math.inf)
            for v in range(len(domain)):
                for s in range(int(domain.n_states[v])):
                    column = int(domain.offsets[v]) + s
                    held = [*states[:v], [s], *states[v + 1 :]]
                    log_held = twin.log(twin.mass(circuit, held) / total)
                    best = max(twin.log(truth[q]) for q in itertools.product(*held))
                    assert each_mass[row, column] == pytest.approx(log_held, **CLOSE)
                    for answers in (plain, probed) if mask[column] else ():
                        assert answers.each_bound[row, column] >= best - 1e-11
                        assert answers.each_mass[row, column] >= log_held - 1e-10
                        assert (answers.each_bound[row, column] == -math.inf) == (best == -math.inf)


@pytest.mark.slow
def test_solvers_on_hostile_circuits() -> None:
    """Exact lists of every length, from one to more than there are points."""
    for rng, circuit, posterior in hostile_cases(40, start=1000):
        n_points = math.prod(int(k) for k in posterior.domain.n_states)
        possible = sum(p > 0 for p, _ in twin.ranking(circuit))
        for top_k in {1, 2, possible, n_points, int(rng.integers(1, n_points + 3))}:
            check_top(circuit, ("frontier", "auto", "exhaustive")[int(rng.integers(3))], min(top_k, n_points))


def test_gaussians_with_far_observations() -> None:
    """Observations 50 and 300 standard deviations away choose between the components as they should."""
    domain = Domain([Categorical("c", (0, 1)), Real("x")])
    for sd, observed in ((1.0, 50.0), (0.1, 30.0), (1e-3, 0.7)):
        builder = CircuitBuilder(domain)
        parts = [
            builder.product([builder.indicator(0, s), builder.gaussian(1, mean, sd)])
            for s, mean in ((0, 0.0), (1, 0.01))
        ]
        builder.sum(parts, log_weights=[math.log(0.7), math.log(0.3)])
        circuit = builder.build(normalised=False)
        posterior = circuit.condition(make_query(domain, ["c"], {"x": observed}))
        masses = [w * twin.gaussian(observed, m, sd) for w, m in ((0.7, 0.0), (0.3, 0.01))]
        exact = [twin.log(m / sum(masses)) for m in masses]
        assert posterior.log_evidence == pytest.approx(twin.log(sum(masses)), **CLOSE)
        assert posterior.log_prob(np.array([[0], [1]])) == pytest.approx(exact, **CLOSE)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_likelihood_weights_of_any_size(scale: float) -> None:
    circuit = independent(bernoulli(0.25), bernoulli(1e-12))
    weights = {"0": [scale, 3.0 * scale], "1": [scale * 1e-8, scale]}
    posterior = circuit.condition(make_query(circuit.domain, None, weights))
    raw = {q: p * weights["0"][q[0]] * weights["1"][q[1]] for p, q in twin.ranking(circuit)}
    exact = [twin.log(raw[tuple(q)] / sum(raw.values())) for q in itertools.product((0, 1), repeat=2)]
    points = np.array(list(itertools.product((0, 1), repeat=2)))
    assert posterior.log_prob(points) == pytest.approx(exact, **CLOSE)


def test_narrow_intervals_far_out_keep_their_mass() -> None:
    """Masses of Gaussian intervals where both ends have nearly the same tail."""
    builder = CircuitBuilder(Domain([Real("x")]))
    builder.gaussian(0, 0.0, 1.0)
    posterior = builder.build(normalised=False).condition(make_query(Domain([Real("x")])))
    for low, width in itertools.product((-60.0, -3.0, 0.0, 2.0, 50.0), (1e-14, 1e-9, 1e-6, 1e-4, 1e-2, 1.0)):
        high = low + width
        if high == low:
            continue
        exact = twin.log(twin.normal_mass(low, high))
        box = Boxes(posterior.domain, np.zeros((1, 0), np.bool_), np.array([[low]]), np.array([[high]]))
        assert posterior.log_mass(box)[0] == pytest.approx(exact, rel=1e-11, abs=1e-10)
