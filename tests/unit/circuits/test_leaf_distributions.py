"""The kinds of leaves that come with the package, against scipy.stats, and circuits that have them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

import certimap as cm
from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.leaves import leaf_kind, leaf_kinds
from certimap.circuits.leaves.kind import function_table
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.query import make_query
from certimap.errors import ModelError
from certimap.kernels.jit import jit
from certimap.kernels.pointers import call_real

REALS = [
    ("gaussian", (0.3, 1.5), stats.norm(0.3, 1.5)),
    ("truncated_gaussian", (0.3, 1.5, -1.0, 2.0), stats.truncnorm(-1.3 / 1.5, 1.7 / 1.5, 0.3, 1.5)),
    ("truncated_gaussian", (0.0, 1.0, 8.0, math.inf), stats.truncnorm(8.0, math.inf)),
    ("uniform", (-1.0, 3.0), stats.uniform(-1.0, 4.0)),
    ("exponential", (2.5,), stats.expon(scale=0.4)),
    ("laplace", (1.0, 0.3), stats.laplace(1.0, 0.3)),
    *(("student_t", (0.5, 2.0, df), stats.t(df, 0.5, 2.0)) for df in (0.1, 1.0, 2.5, 23.9, 24.1, 1e4)),
    *(("beta", shapes, stats.beta(*shapes)) for shapes in ((20.0, 5.0), (1.0, 2.0), (1.5, 1.0), (3e3, 9e3))),
    *(("gamma", (shape, 2.5), stats.gamma(shape, scale=0.4)) for shape in (1.0, 1.3, 7.0, 1e4)),
    *(("lognormal", (mean, sd), stats.lognorm(sd, scale=math.exp(mean))) for mean, sd in ((0.5, 1.2), (9.0, 0.1))),
]
COUNTS = [
    *(("poisson", (mean,), stats.poisson(mean)) for mean in (0.01, 3.0, 40.0, 1e3)),
    *(("geometric", (p,), stats.geom(p, loc=-1)) for p in (0.5, 0.01, 0.999)),
    *(
        ("negative_binomial", (mean, size), stats.nbinom(size, size / (size + mean)))
        for mean, size in ((3.0, 0.4), (40.0, 1.0), (7.0, 1e3), (0.01, 5.0), (1e3, 30.0))
    ),
]


@jit()
def ask(address, a, b, c, d, x, y):
    return call_real(address, a, b, c, d, x, y)


def test_every_kind_keeps_its_code() -> None:
    """Codes stand in stored circuits and in answers that are replayed."""
    names = [
        "gaussian",
        "truncated_gaussian",
        "uniform",
        "exponential",
        "laplace",
        "student_t",
        "poisson",
        "geometric",
        "beta",
        "gamma",
        "lognormal",
        "negative_binomial",
    ]
    assert {code: kind.name for code, kind in list(leaf_kinds().items())[:12]} == dict(
        zip((1, *range(-1, -12, -1)), names, strict=True)
    )


def test_only_kinds_in_use_are_compiled() -> None:
    code = leaf_kind("laplace")[0]
    table = function_table([code])
    assert np.any(table[1 - code])
    assert not np.any(np.delete(table, 1 - code, axis=0))


def question(kind: str, column: int, parameters, x: float, y: float) -> float:
    code = leaf_kind(kind)[0]
    address = function_table([code])[1 - code, column]
    return ask(address, *(*parameters, 0.0, 0.0, 0.0)[:4], float(x), float(y))


def places(law) -> np.ndarray:
    rng = np.random.default_rng(0)
    tails = np.array([1e-300, 1e-100, 1e-30, 1e-10])
    found = np.concatenate([law.ppf(rng.random(20)), law.ppf(tails), law.isf(tails)])
    return np.unique(found[np.isfinite(found)])


@pytest.mark.parametrize(("kind", "parameters", "law"), REALS)
def test_densities_and_masses_of_real_kinds(kind: str, parameters, law) -> None:
    xs = places(law)
    values = np.array([question(kind, 0, parameters, x, x) for x in xs])
    with np.errstate(over="ignore"):  # scipy squares what is too large for that
        expected = law.logpdf(xs)
    known = np.isfinite(expected)
    assert values[known] == pytest.approx(expected[known], rel=1e-10, abs=1e-10)
    rng = np.random.default_rng(1)
    for a, b in np.sort(rng.choice(xs, (60, 2)), axis=1):
        below = law.cdf(a) < 0.5
        mass = law.cdf(b) - law.cdf(a) if below else law.sf(a) - law.sf(b)
        if mass > 1e-3 * (law.cdf(b) if below else law.sf(a)) and kind != "truncated_gaussian":
            assert question(kind, 1, parameters, a, b) == pytest.approx(math.log(mass), rel=1e-10, abs=1e-10)
    assert question(kind, 1, parameters, -math.inf, math.inf) == pytest.approx(0.0, abs=1e-14)
    if kind != "truncated_gaussian":  # whose tails scipy gives to a few digits only
        for x in xs:
            if law.sf(x) > 1e-305:
                assert question(kind, 1, parameters, x, math.inf) == pytest.approx(
                    law.logsf(x), rel=1e-10, abs=1e-10
                )


def test_masses_of_truncated_gaussians_are_ratios() -> None:
    for low, high, x, y in ((8.0, math.inf, 9.0, 10.0), (-1.0, 2.0, -0.5, 2.0), (30.0, 31.0, 30.0, 30.5)):

        def log_mass(a: float, b: float) -> float:
            top = special.log_ndtr(-a)
            return float(top + np.log1p(-np.exp(special.log_ndtr(-b) - top)))

        expected = log_mass(x, y) - log_mass(low, high)
        found = question("truncated_gaussian", 1, (0.0, 1.0, low, high), x, y)
        assert found == pytest.approx(expected, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("kind", "parameters", "law"), COUNTS)
def test_probabilities_and_masses_of_counts(kind: str, parameters, law) -> None:
    xs = places(law)
    xs = xs[xs >= 0.0]
    assert [question(kind, 0, parameters, x, x) for x in xs] == pytest.approx(law.logpmf(xs), rel=1e-10, abs=1e-10)
    assert question(kind, 0, parameters, 1.5, 1.5) == question(kind, 0, parameters, -1.0, -1.0) == -math.inf
    for low, high in [(a, b) for a in xs[:6] for b in xs[-6:] if a <= b]:
        whole = np.arange(low, high + 1.0)
        expected = special.logsumexp(law.logpmf(whole))
        assert question(kind, 1, parameters, low - 0.5, high + 0.5) == pytest.approx(
            expected, rel=1e-10, abs=1e-10
        )
    assert question(kind, 1, parameters, -math.inf, math.inf) == pytest.approx(0.0, abs=1e-14)
    assert question(kind, 1, parameters, 3.2, 3.8) == -math.inf


@pytest.mark.parametrize(("kind", "parameters", "law"), [*REALS, *COUNTS])
def test_peaks_and_curvatures_hold_on_grids(kind: str, parameters, law) -> None:
    rng = np.random.default_rng(2)
    spread = float(law.ppf(0.9) - law.ppf(0.1)) or 3.0
    for _ in range(60):
        low = float(law.ppf(rng.random())) - spread * rng.random()
        high = low + spread * rng.random() ** 3
        grid = np.linspace(low, high, 101)
        if leaf_kind(kind)[1].is_whole:
            grid = np.arange(math.ceil(low), math.floor(high) + 1.0)
        values = np.array([question(kind, 0, parameters, x, x) for x in grid])
        at = question(kind, 2, parameters, low, high)
        assert low <= at <= high
        if len(values):
            assert question(kind, 0, parameters, at, at) >= values.max() - 1e-12 * max(1.0, abs(values.max()))
        least, largest = question(kind, 6, parameters, low, high), question(kind, 7, parameters, low, high)
        if np.all(np.isfinite([least, largest])) and high - low > 1e-3 * max(spread, abs(low), abs(high)):
            slopes = np.array([question(kind, 5, parameters, x, x) for x in grid])
            steps = np.diff(slopes) / np.diff(grid)
            room = 1e-9 * (1.0 + np.abs(slopes).max() / (grid[1] - grid[0]))
            assert np.all(steps >= least - room)
            assert np.all(steps <= largest + room)
            rises = np.diff(values) / np.diff(grid)
            mean = 0.5 * (slopes[1:] + slopes[:-1])
            bent = 0.25 * (largest - least) * (grid[1] - grid[0])
            assert rises == pytest.approx(mean, rel=1e-2, abs=1e-2 * (1.0 + np.abs(slopes).max()) + bent)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parameters", "law"), [*REALS, *COUNTS])
def test_draws_have_the_distribution(kind: str, parameters, law) -> None:
    """Kolmogorov-Smirnov distances, from the whole line, from a middle interval and from a tail."""
    builder = CircuitBuilder(Domain([Real("x")]))
    builder.real(kind, 0, *parameters)
    circuit = builder.build()
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
    rng = np.random.default_rng(3)
    n = 4000
    intervals = [
        (-math.inf, math.inf),
        (law.ppf(0.4), law.ppf(0.8)),
        (law.ppf(0.97), math.inf),
        (-math.inf, law.ppf(0.2)),
    ]
    for low, high in intervals:
        box = Boxes(circuit.domain, np.ones((1, 0), np.bool_), np.array([[low]]), np.array([[high]]))
        if posterior.log_mass(box)[0] == -math.inf:
            continue
        draws = np.sort(posterior.sample(n, rng, boxes=box)[:, 0])
        assert low <= draws[0] <= draws[-1] <= high
        start = law.cdf(low - 1.0 if leaf_kind(kind)[1].is_whole else low)
        values, counts = np.unique(draws, return_counts=True)
        expected = (law.cdf(values) - start) / (law.cdf(high) - start)
        assert np.abs(np.cumsum(counts) / n - expected).max() < (2.3 if len(values) == n else 2.0) / math.sqrt(n)


DOMAIN = Domain([Categorical("c", (0, 1)), Real("x"), Real("n")])


def mixed():
    builder = CircuitBuilder(DOMAIN)
    parts = []
    for p, t, h, mean in ((0.3, (0.0, 1.0, 3.0), (0.2, 0.8), 4.5), (0.6, (2.0, 0.5, 1.0), (0.7, 0.3), 11.0)):
        x = builder.sum(
            [builder.real("student_t", 1, *t), builder.histogram(1, (-1.0, 0.5, 2.0), np.log(h).tolist())],
            np.log([0.5, 0.5]).tolist(),
        )
        n = builder.sum(
            [builder.real("poisson", 2, mean), builder.real("geometric", 2, 0.2)], np.log([0.9, 0.1]).tolist()
        )
        parts.append(builder.product([builder.categorical(0, np.log([p, 1.0 - p]).tolist()), x, n]))
    builder.sum(parts, np.log([0.45, 0.55]).tolist())
    return builder.build()


def density(c: int, x: np.ndarray, n: np.ndarray) -> np.ndarray:
    total = np.zeros(())
    for w, p, t, h, mean in (
        (0.45, 0.3, (0.0, 1.0, 3.0), (0.2, 0.8), 4.5),
        (0.55, 0.6, (2.0, 0.5, 1.0), (0.7, 0.3), 11.0),
    ):
        bars = np.where((x >= -1.0) & (x < 0.5), h[0] / 1.5, np.where((x >= 0.5) & (x <= 2.0), h[1] / 1.5, 0.0))
        first = 0.5 * stats.t(t[2], t[0], t[1]).pdf(x) + 0.5 * bars
        counts = 0.9 * stats.poisson(mean).pmf(n) + 0.1 * stats.geom(0.2, loc=-1).pmf(n)
        total = total + w * [p, 1.0 - p][c] * first * counts
    return total


@pytest.mark.slow
def test_mixed_modes_are_certified() -> None:
    xs, ns = np.append(np.linspace(-3.0, 5.0, 4001), 0.5), np.arange(40.0)
    best = max(float(density(c, xs[:, None], ns[None]).max()) for c in (0, 1))
    result = cm.map_query(mixed(), epsilon=1e-3, rng=0)
    assert result.certified
    assert result.log_prob is not None
    assert result.log_upper_bound is not None
    assert result.log_prob >= math.log(best) - 1e-3
    assert result.log_upper_bound >= math.log(best) - 1e-12
    answer = result.assignment
    assert math.exp(result.log_prob) == pytest.approx(
        float(density(answer["c"], np.array(answer["x"]), np.array(answer["n"]))), rel=1e-9
    )
    assert float(answer["n"]).is_integer()


def test_a_mode_between_two_poisson_peaks_is_found() -> None:
    builder = CircuitBuilder(Domain([Real("n")]))
    builder.sum([builder.real("poisson", 0, 20.0), builder.real("poisson", 0, 24.0)], [math.log(0.5)] * 2)
    whole = np.arange(60.0)
    values = 0.5 * stats.poisson(20.0).pmf(whole) + 0.5 * stats.poisson(24.0).pmf(whole)
    result = cm.map_query(builder.build(), epsilon=1e-9, rng=0)
    assert result.certified
    assert result.assignment["n"] == whole[values.argmax()]
    assert not result.is_density
    assert result.log_prob == pytest.approx(math.log(values.max()), rel=1e-12)


@pytest.mark.parametrize("suffix", [".spn", ".npz"])
def test_files_keep_all_kinds(tmp_path, suffix: str) -> None:
    circuit = mixed()
    circuit.write(tmp_path / f"model{suffix}")
    again = cm.read(tmp_path / f"model{suffix}")
    points = np.array([[0.0, 0.5, 3.0], [1.0, 0.4999, 12.0], [1.0, -1.0, 0.0], [0.0, 7.0, 30.0], [0.0, 0.0, 2.5]])
    parts = [CircuitPosterior.from_circuit(c, make_query(c.domain)).log_prob(points) for c in (circuit, again)]
    np.testing.assert_allclose(parts[1], parts[0], rtol=1e-12)
    assert parts[0][-1] == -math.inf
    expected = [math.log(float(density(int(c), x, n))) for c, x, n in points[:-1]]
    np.testing.assert_allclose(parts[0][:-1], expected, rtol=1e-10)


def test_far_out_stays_improbable() -> None:
    """5e12 standard deviations from a spike, where its log is -1e25: the spike adds nothing."""
    builder = CircuitBuilder(Domain([Real("x")]))
    builder.sum([builder.gaussian(0, 0.0, 1e-12), builder.gaussian(0, 5.0, 1.0)], [math.log(0.5)] * 2)
    circuit = builder.build()
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
    found = posterior.log_prob(np.array([[5.0], [1e100]]))
    assert found[0] == pytest.approx(math.log(0.5) + stats.norm.logpdf(0.0), rel=1e-12)
    assert -math.inf < found[1] < -1e190


def test_what_no_leaf_accepts() -> None:
    builder = CircuitBuilder(Domain([Real("x")]))
    for kind, parameters in (
        ("uniform", (1.0, 1.0)),
        ("exponential", (0.0,)),
        ("student_t", (0.0, 1.0, 0.0)),
        ("poisson", (-1.0,)),
        ("geometric", (1.0,)),
        ("truncated_gaussian", (0.0, 1.0, 2.0, 1.0)),
    ):
        with pytest.raises(ModelError, match=f"a {kind} leaf of variable 'x'"):
            builder.real(kind, 0, *parameters)
    with pytest.raises(ModelError, match="rising edges"):
        builder.histogram(0, (0.0, 2.0, 1.0), (0.0, 0.0))
    builder.sum([builder.real("poisson", 0, 2.0), builder.gaussian(0, 2.0, 1.0)], [math.log(0.5)] * 2)
    with pytest.raises(ModelError, match="leaves of counts"):
        cm.map_query(builder.build())


@pytest.mark.parametrize("place", [-0.4, 1.3])
def test_narrow_intervals_under_laplace_keep_their_mass(place):
    """Their standardised ends nearly agree: the mass must come from the width, not from the ends."""
    builder = CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.real("laplace", 0, 0.3, 1.1)
    model = builder.build()
    for width in (1e-3, 1e-8, 1e-12):
        high = place + width
        middle = 0.5 * place + 0.5 * high
        mass = math.exp(-abs(middle - 0.3) / 1.1) / 2.2 * (high - place)
        assert cm.log_evidence(model, {"x": (place, high)}) == pytest.approx(math.log(mass), abs=1e-6)
        if width < 1e-6:
            assert cm.log_evidence(model, {"x": (place, high)}) == pytest.approx(math.log(mass), abs=1e-12)


FAR = [  # parameters, a number or an interval, ln of its density or mass; mpmath, 60 digits
    ("gaussian", (0.0, 1.0), (9.48, 9.4818), -52.182627552508053),
    ("gaussian", (0.0, 1.0), (29.0, 29.02), -425.60704119440298),
    ("gaussian", (0.0, 1.0), (1e8, 1e8 + 2.0**-25), -5000000000000019.3917),  # its ends' logs are equal: NaN
    ("truncated_gaussian", (0.0, 1.0, 40.0, 41.0), 40.125, -1.3183090194508846),
    ("truncated_gaussian", (0.0, 1.0, 40.0, 41.0), (40.125, 40.5), -5.0109290209365891),
    ("truncated_gaussian", (1.0, 0.03125, 2922843.0, 2922843.5), 2922843.125, -374123762.18046121),
    ("truncated_gaussian", (1.7e9, 1.0, 0.0, 1.0), (0.5, 0.75), -424999999.78125000),
]


@pytest.mark.parametrize("case", FAR)
def test_tails_keep_their_digits(case):
    kind, parameters, at, true = case
    leaf = leaf_kind(kind)[1]
    functions = leaf.loaded()
    four = (*parameters, 0.0, 0.0)[:4]
    found = functions.log_mass(*four, *at) if isinstance(at, tuple) else functions.log_density(*four, at, at)
    assert abs(found - true) <= 2.0**-52 * (leaf.roundings + 4.0 * abs(true))


def test_a_narrow_interval_far_out_has_a_mass():
    builder = CircuitBuilder(cm.Domain([cm.Real("x"), cm.Real("y")]))
    builder.product([builder.gaussian(0, 0.0, 1.0), builder.gaussian(1, 0.0, 1.0)])
    low = 1e6
    found = cm.log_evidence(builder.build(), {"x": (low, low + 2.0**-20)})
    mass = math.log(-math.expm1(-(2.0**-20) * low)) - math.log(low) - 0.5 * math.log(2.0 * math.pi)
    assert found == pytest.approx(-0.5e12 + mass, abs=1e-3)


@pytest.mark.parametrize(
    "leaf",
    [
        ("gaussian", (0.0, 5e-324)),
        ("uniform", (0.0, 5e-324)),
        ("exponential", (1e-310,)),
        ("student_t", (0.0, 1.0, 1e10)),
    ],
)
def test_scales_without_an_inverse_are_refused(leaf):
    builder = CircuitBuilder(cm.Domain([cm.Real("x")]))
    with pytest.raises(ModelError, match=r"expected a real variable, and .*1e"):
        builder.real(leaf[0], 0, *leaf[1])
