"""Hostile models that Hypothesis draws and shrinks: mixtures of any weights, queried in states and in reals."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Domain, Real
from certimap_lab.hostile.check import check_case
from certimap_lab.hostile.circuits import case_of
from certimap_lab.hostile.exact import ONE, ZERO, arithmetic, density, exp_of, falls_below, log_of
from certimap_lab.hostile.report import CaseReport

# Logs from below the denormal numbers to next to 0, zeros, and a few that tie.
LOGS = st.one_of(
    st.floats(-760.0, 0.0),
    st.floats(-1e-16, 0.0),
    st.sampled_from([-math.inf, 0.0, math.log(0.5), -709.0, -744.4, -745.2, -1e-17]),
)
FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def mixtures(draw: st.DrawFn) -> Circuit:
    sizes = draw(st.lists(st.integers(2, 3), min_size=1, max_size=4))
    build = CircuitBuilder(Domain.of_sizes(sizes))
    products, weights = [], []
    for _ in range(draw(st.integers(1, 3))):
        leaves = [
            build.categorical(
                v, log_weights=draw(st.lists(LOGS, min_size=k, max_size=k).filter(lambda x: max(x) > -math.inf))
            )
            for v, k in enumerate(sizes)
        ]
        products.append(build.product(leaves) if len(leaves) > 1 else leaves[0])
        weights.append(draw(st.floats(-760.0, 0.0)))
    build.sum(products, log_weights=weights)
    return build.build(normalised=False)


@FEW
@given(mixtures(), st.integers(0, 2**16), st.data())
def test_no_solver_says_anything_false(circuit: Circuit, seed: int, data: st.DataObject) -> None:
    names = list(circuit.domain.names)
    query = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    report = CaseReport(seed, "drawn")
    with arithmetic():
        check_case(case_of(circuit, query, {}), np.random.default_rng(seed), report)
    assert not report.failures, "\n".join(failure.text for failure in report.failures[:5])


@FEW
@given(
    st.lists(
        st.tuples(st.floats(-700.0, 0.0), st.floats(-60.0, 60.0), st.sampled_from([1e-3, 0.5, 1.0, 30.0])),
        min_size=1,
        max_size=4,
    ),
    st.floats(-50.0, 50.0),
)
def test_densities_far_out_are_right_and_bounded(parts: list[tuple[float, float, float]], far: float) -> None:
    build = CircuitBuilder(Domain([Real("x")]))
    build.sum([build.gaussian(0, mean, sd) for _, mean, sd in parts], log_weights=[w for w, _, _ in parts])
    circuit = build.build(normalised=False)
    with arithmetic():
        total = sum((exp_of(w) for w, _, _ in parts), ZERO)

        def true(x: float):
            return sum((exp_of(w) * density(x, mean, sd) for w, mean, sd in parts), ZERO) / total

        points = [mean + far * sd for _, mean, sd in parts]
        said = cm.condition(circuit, ["x"]).log_prob(np.array(points)[:, None])
        for x, value in zip(points, said.tolist(), strict=True):
            expected = log_of(true(x))
            assert abs(value - expected) <= max(1e-10, 1e-12 * abs(expected)), (x, value, expected)
        result = cm.map_query(circuit, ["x"], solver="frontier", max_nodes=200, progress=False)
        best = max(true(mean) for _, mean, _ in parts)
        assert not falls_below(result.log_upper_bound, best)
        found = true(result.assignment["x"])
        assert abs(result.log_prob - log_of(found)) <= max(1e-10, 1e-12 * abs(result.log_prob))
        if result.certificate.kind.value == "exact":
            assert best <= found * (ONE + exp_of(math.log(2e-9)))
