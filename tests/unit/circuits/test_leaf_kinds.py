"""A kind of leaf that the package does not have, added by registration alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import certimap as cm
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.leaves import LeafFunctions, LeafKind, leaf_kinds, register_leaf
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap.errors import ModelError, ParseError

DOMAIN = Domain([Categorical("c", (0, 1)), Real("x"), Real("y", -1.0, 4.0)])


def log_density(middle, width, _c, _d, x, _y):
    return -abs(x - middle) / width - math.log(2.0 * width)


def log_mass(middle, width, _c, _d, low, high):
    a, b = (low - middle) / width, (high - middle) / width
    if a > 0.0:
        a, b = -b, -a
    if b <= 0.0:
        return math.log(0.5) + b + math.log1p(-math.exp(a - b))
    return math.log(-0.5 * math.expm1(a) - 0.5 * math.expm1(-b))


def peak(middle, _width, _c, _d, low, high):
    return min(max(middle, low), high)


def scale(_middle, width, _c, _d, _x, _y):
    return width


def functions() -> LeafFunctions:
    from certimap.kernels.pointers import stream_of
    from certimap.kernels.random import uniform

    def draw(middle, width, _c, _d, low, high, stream):
        a, b = (low - middle) / width, (high - middle) / width
        below = 0.5 * math.exp(a) if a < 0.0 else 1.0 - 0.5 * math.exp(-a)
        above = 0.5 * math.exp(b) if b < 0.0 else 1.0 - 0.5 * math.exp(-b)
        u = below + (above - below) * uniform(stream_of(stream))
        x = middle + width * math.log(2.0 * u) if u < 0.5 else middle - width * math.log(2.0 * (1.0 - u))
        return min(max(x, low), high)

    return LeafFunctions(log_density, log_mass, peak, scale, draw)


@pytest.fixture(scope="module", autouse=True)
def laplace():
    if "two_sided" not in {kind.name for kind in leaf_kinds().values()}:
        register_leaf(
            LeafKind(
                "two_sided",
                ("middle", "width"),
                lambda middle, width: np.isfinite(middle) & (width > 0.0),
                "a finite middle and a positive width",
                functions,
            )
        )


def mixed(domain: Domain = DOMAIN) -> Circuit:
    builder = CircuitBuilder(domain)
    parts = [
        builder.product(
            [
                builder.categorical(0, log_weights=np.log(p).tolist()),
                builder.real("two_sided", 1, m, w),
                builder.real("two_sided", 2, 0.5 * m, 2 * w) if k else builder.gaussian(2, 1.0, 0.7),
            ]
        )
        for k, (p, m, w) in enumerate((([0.3, 0.7], -1.0, 0.5), ([0.9, 0.1], 2.0, 0.25)))
    ]
    builder.sum(parts, log_weights=np.log([0.4, 0.6]).tolist())
    return builder.build(normalised=False)


def density(point):
    c, x, y = point
    inside = stats.norm(1.0, 0.7).cdf(4.0) - stats.norm(1.0, 0.7).cdf(-1.0)
    other = stats.laplace(1.0, 0.5)
    first = [0.3, 0.7][int(c)] * stats.laplace(-1.0, 0.5).pdf(x) * stats.norm(1.0, 0.7).pdf(y)
    second = [0.9, 0.1][int(c)] * stats.laplace(2.0, 0.25).pdf(x) * other.pdf(y)
    total = 0.4 * inside + 0.6 * (other.cdf(4.0) - other.cdf(-1.0))
    return (0.4 * first + 0.6 * second) / total


def posterior_of(circuit: Circuit) -> CircuitPosterior:
    return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))


def test_values_masses_bounds_and_draws() -> None:
    posterior = posterior_of(mixed())
    rng = np.random.default_rng(0)
    draws = posterior.sample(20000, rng)
    points = draws[:50]
    expected = [math.log(density(p)) for p in points]
    assert posterior.log_prob(points) == pytest.approx(expected, rel=1e-10, abs=1e-10)
    box = Boxes(DOMAIN, np.ones((1, 2), np.bool_), np.array([[0.0, -2.0, 0.0]]), np.array([[0.0, 1.0, 2.0]]))
    inside = np.all((draws[:, 1:] >= [-2.0, 0.0]) & (draws[:, 1:] <= [1.0, 2.0]), axis=1)
    assert math.exp(posterior.log_mass(box)[0]) == pytest.approx(inside.mean(), abs=0.02)
    assert answers_in(posterior, box).log_bound[0] >= max(posterior.log_prob(draws[inside]))
    held = posterior.sample(200, rng, boxes=box)
    assert np.all((held[:, 1] >= -2.0) & (held[:, 1] <= 1.0))


def test_search_and_heuristics_find_its_mode() -> None:
    """The densest point has both real variables at a component's peak."""
    peaks = [(c, x, y) for c in (0, 1) for x in (-1.0, 2.0) for y in np.linspace(0.5, 1.5, 41)]
    best = max(density(p) for p in peaks)
    result = cm.map_query(mixed(), solver="frontier", epsilon=0.01, rng=0)
    assert result.certified
    assert result.log_prob is not None
    assert result.log_prob >= math.log(0.99 * best)
    for solver in ("max_product", "argmax_product", "independent"):
        assert cm.map_query(mixed(), solver=solver, rng=0).log_prob is not None


@pytest.mark.parametrize("suffix", [".spn", ".npz"])
def test_files_name_the_kind(tmp_path, suffix: str) -> None:
    circuit = mixed() if suffix == ".npz" else mixed(Domain([DOMAIN["c"], DOMAIN["x"], Real("y")]))
    circuit.write(tmp_path / f"model{suffix}")
    again = cm.read(tmp_path / f"model{suffix}")
    assert isinstance(again, Circuit)
    points = np.array([[0.0, -1.0, 1.0], [1.0, 2.0, 0.3]])
    x, y = posterior_of(circuit).log_prob(points), posterior_of(again).log_prob(points)
    if suffix == ".npz":
        assert np.array_equal(x, y)
    np.testing.assert_allclose(x, y, rtol=1e-12)


def test_errors_name_kind_and_parameters(tmp_path) -> None:
    builder = CircuitBuilder(DOMAIN)
    with pytest.raises(ModelError, match="positive width"):
        builder.real("two_sided", 1, 0.0, -1.0)
    with pytest.raises(ModelError, match="no kind of leaf"):
        builder.real("cauchy", 1, 0.0, 1.0)
    with pytest.raises(ModelError, match="not taken"):
        register_leaf(LeafKind("gaussian", ("a",), np.isfinite, "anything", functions))
    (tmp_path / "bad.spn").write_text("two_sided 0 0 0.0 -1.0\n")
    with pytest.raises(ParseError, match="positive width"):
        cm.read(tmp_path / "bad.spn")


def test_leaves_without_an_end_are_written_and_read_back(tmp_path) -> None:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    leaves = [
        builder.real("truncated_gaussian", 0, 1.0, 2.0, low, high) for low, high in ((0.0, np.inf), (-np.inf, 3))
    ]
    builder.sum(leaves, log_weights=np.log([0.4, 0.6]).tolist())
    circuit = builder.build(normalised=False)
    points = np.array([[-3.0], [0.5], [2.5], [7.0]])
    for name in ("m.npz", "m.spn"):
        circuit.write(tmp_path / name)
        again = cm.condition(cm.read(tmp_path / name)).log_prob(points)
        np.testing.assert_allclose(again, cm.condition(circuit).log_prob(points), rtol=1e-12)
