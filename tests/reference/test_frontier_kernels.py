"""The box search's kernels against passes written out by definition, and caps against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from frontier_twin import all_points, leaves_of, random_circuit, random_domain, slow_pass

from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import Caps, PlanProber, PlanView
from certimap.core.box import Boxes, Layout, SearchBoxes
from certimap.core.domain import Domain
from certimap.core.probing import climb
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence


def cases(count, start=0):
    for t in range(start, start + count):
        rng = np.random.default_rng([11, t])
        domain = random_domain(rng, int(rng.integers(1, 7)))
        circuit = random_circuit(rng, domain, shared=t % 2 == 0, flat=t % 5 == 0)
        names = [domain.names[i] for i in rng.permutation(len(domain))[: max(1, len(domain) - t % 3)]]
        try:
            yield rng, CircuitPosterior.from_circuit(circuit, make_query(domain, names))
        except ImpossibleEvidence:
            continue


def random_masks(rng, domain, count):
    masks = rng.random((count, domain.total_states)) < 0.7
    for v in range(len(domain)):
        columns = slice(domain.offsets[v], domain.offsets[v + 1])
        empty = ~masks[:, columns].any(axis=1)
        masks[empty, domain.offsets[v] + int(rng.integers(domain.n_states[v]))] = True
    masks[0] = True
    return masks


def check_probe(rng, posterior, count):
    plan, domain = posterior.plan, posterior.domain
    view = PlanView.of(plan)
    masks = random_masks(rng, domain, count)
    caps = np.full(plan.n_nodes, np.inf)
    solved = Caps(view, 1e-6)
    solved.advance(10**9)
    points = all_points(domain)
    log_probs = posterior.log_prob(points)
    for log_caps in (caps, solved.log_caps):
        boxes = SearchBoxes(masks.astype(np.uint8), np.zeros((count, 0)), np.zeros((count, 0)))
        got = PlanProber(plan, workers=1, log_caps=log_caps).probe(boxes)
        for row, mask in enumerate(masks):
            mass, bound, each_mass, each_bound = slow_pass(plan, mask, log_caps)
            assert math.exp(got.log_mass[row]) == pytest.approx(mass, rel=1e-10, abs=1e-300)
            assert math.exp(got.log_bound[row]) == pytest.approx(bound, rel=1e-10, abs=1e-300)
            np.testing.assert_allclose(np.exp(got.each_mass[row]), each_mass, rtol=1e-9, atol=1e-280)
            own = domain.offsets[:-1] + points.astype(np.int64)
            inside = mask[own].all(axis=1)
            for column in np.flatnonzero(mask):
                here = inside & (own == column).any(axis=1)
                best = log_probs[here].max(initial=-np.inf)
                assert got.each_bound[row, column] >= best - 1e-15 * abs(best if best > -np.inf else 0.0)
                assert got.each_bound[row, column] <= got.log_bound[row] + 1e-12
                # without caps and maxima the downward pass is exact, as the held pass is
                if log_caps is caps and not np.any(plan.decides >= 0) and plan.n_nodes == 1:
                    assert math.exp(got.each_bound[row, column]) == pytest.approx(each_bound[column], rel=1e-9)
            assert np.all(got.each_bound[row, ~mask] == -np.inf)


@pytest.mark.nojit
def test_probe_small():
    for rng, posterior in cases(4):
        check_probe(rng, posterior, 2)


def test_probe():
    for rng, posterior in cases(80, start=4):
        check_probe(rng, posterior, 4)


def node_maximum(plan, node, points):
    """The largest value of a node over all points of the query space."""
    best = 0.0
    for point in points:
        mask = Boxes.of_points(plan.domain, point[None]).mask[0]
        best = max(best, slow_values(plan, mask)[node])
    return best


def slow_values(plan, mask):
    values = []
    for i in range(plan.n_nodes):
        edges = range(plan.child_ptr[i], plan.child_ptr[i + 1])
        if plan.is_sum[i]:
            values.append(sum(plan.weights[e] * values[plan.children[e]] for e in edges))
        else:
            value = math.prod(values[plan.children[e]] for e in edges)
            for v, table in leaves_of(plan, i):
                value *= table[mask[plan.domain.offsets[v] : plan.domain.offsets[v + 1]]].sum()
            values.append(value)
    return values


def check_caps(posterior, max_boxes):
    plan = posterior.plan
    caps = Caps(PlanView.of(plan), 1e-9, max_boxes=max_boxes)
    while not caps.round_done:
        caps.advance(200)
    points = all_points(posterior.domain)
    everything = [slow_values(plan, Boxes.of_points(plan.domain, p[None]).mask[0]) for p in points]
    maxima = np.max(np.array(everything), axis=0)
    for row, node in enumerate(caps.table.targets):
        cap = math.exp(caps.log_caps[node])
        assert cap >= maxima[node] * (1 - 1e-14)
        assert math.exp(caps.table.values[row]) <= maxima[node] * (1 + 1e-12)
        if caps.table.solved[row]:
            assert cap == pytest.approx(maxima[node], rel=1e-8)
    if max_boxes > 1000:
        assert caps.complete
        point = caps.best_point()
        assert posterior.log_prob(point)[0] == pytest.approx(posterior.log_prob(points).max(), abs=1e-8)


@pytest.mark.nojit
def test_caps_small():
    for _, posterior in cases(3):
        check_caps(posterior, 5000)


@pytest.mark.parametrize("max_boxes", [1, 3, 5000])
def test_caps_bound_every_node(max_boxes):
    for _, posterior in cases(60, start=100):
        check_caps(posterior, max_boxes)


@pytest.mark.nojit
def test_caps_found_within_a_factor_are_bounds_all_the_same():
    """A search that drops what cannot win by more than the factor must add the factor to what it found."""
    n_missed = 0
    for _, posterior in cases(60, start=400):
        plan = posterior.plan
        points = all_points(posterior.domain)
        everything = [slow_values(plan, Boxes.of_points(plan.domain, p[None]).mask[0]) for p in points]
        maxima = np.max(np.array(everything), axis=0)
        for log_factor in (0.05, 0.4):
            caps = Caps(PlanView.of(plan), log_factor, max_boxes=5000)
            caps.advance(10**9)
            nodes = caps.table.targets
            assert np.all(np.exp(caps.log_caps[nodes]) >= maxima[nodes] * (1 - 1e-14))
            n_missed += int(np.sum(np.exp(caps.table.values) < maxima[nodes] * (1 - 1e-3)))
    assert n_missed > 0  # some best value was passed over, so that the factor is needed


def test_caps_go_on_where_they_stopped():
    for _, posterior in cases(20, start=200):
        view = PlanView.of(posterior.plan)
        caps = Caps(view, 1e-9, max_boxes=1)
        caps.advance(10**9)
        first = caps.log_caps.copy()
        rounds = 0
        while not caps.complete:
            caps.start_round()
            caps.advance(10**9)
            rounds += 1
            assert rounds < 8
        assert np.all(caps.log_caps <= first)


def test_climbs_end_where_no_single_change_helps():
    for rng, posterior in cases(40, start=300):
        starts = posterior.sample(3, rng)
        for reached in (posterior.prober().climb(starts), climb(posterior, starts)):
            gained = posterior.log_prob(reached) - posterior.log_prob(starts)
            assert np.all(gained >= -1e-12)
            each = posterior.log_mass_each(Boxes.of_points(posterior.domain, reached))
            # a state of zero probability may hide a better neighbour from the plan's climb
            dense = np.all(posterior.plan.tables > 0)
            if dense:
                assert np.all(each.max(axis=1) <= posterior.log_prob(reached) + 1e-8)


def test_a_probability_that_underflows_keeps_its_bound():
    builder = CircuitBuilder(Domain.of_sizes([2, 2]))
    tiny = [-800.0, math.log1p(-0.0)]
    parts = [
        builder.product([builder.categorical(0, tiny), builder.categorical(1, [0.0, -math.inf])]),
        builder.product([builder.categorical(0, [0.0, -math.inf]), builder.categorical(1, [-math.inf, 0.0])]),
    ]
    builder.sum(parts, [math.log(0.5)] * 2)
    posterior = CircuitPosterior.from_circuit(builder.build(), make_query(builder.domain))
    mask = np.array([[1, 0, 1, 0]], np.uint8)
    got = posterior.prober().probe(SearchBoxes(mask, np.zeros((1, 0)), np.zeros((1, 0))))
    assert got.log_bound[0] >= posterior.log_prob(np.array([[0, 0]], np.int16))[0]


def test_layout_of_mixed_domains():
    rng = np.random.default_rng(3)
    domain = random_domain(rng, 4, n_real=2)
    layout = Layout.of(domain)
    full = layout.full()
    assert full.mask.shape[1] == domain.total_states + 4
    assert layout.public(full).mask.shape == (1, domain.total_states)
