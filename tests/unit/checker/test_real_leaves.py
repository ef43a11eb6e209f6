"""Leaves of real variables and counts as the checker knows them: rounded outward, close to scipy, and proved."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import certimap as cm
from certimap.checker import Proof, check_arrays
from certimap.checker import leaves as ours
from certimap.checker.leaves import log_mass
from certimap.checker.models import fingerprint
from certimap.io.native import exported

LAWS = {
    "truncated_gaussian": ((0.25, 1.5, -1.0, 2.0), stats.truncnorm(-1.25 / 1.5, 1.75 / 1.5, 0.25, 1.5)),
    "uniform": ((-1.0, 3.0), stats.uniform(-1.0, 4.0)),
    "exponential": ((0.7,), stats.expon(scale=1 / 0.7)),
    "laplace": ((0.3, 1.4), stats.laplace(0.3, 1.4)),
    "student_t": ((0.3, 1.4, 2.5), stats.t(2.5, 0.3, 1.4)),
    "poisson": ((3.7,), stats.poisson(3.7)),
    "geometric": ((0.3,), stats.geom(0.3, loc=-1)),
    "beta": ((2.5, 1.5), stats.beta(2.5, 1.5)),
    "gamma": ((1.7, 0.8), stats.gamma(1.7, scale=1 / 0.8)),
    "lognormal": ((0.2, 0.9), stats.lognorm(0.9, scale=math.exp(0.2))),
    "negative_binomial": ((3.7, 0.8), stats.nbinom(0.8, 0.8 / 4.5)),
}
WHOLE = ("poisson", "geometric", "negative_binomial")
INTERVALS = [(-0.5, 0.8), (1.0, 1.0), (-3.0, 9.0), (2.5, math.inf), (-math.inf, 1.0), (0.9, 1.9), (-9.0, -1.5)]


def test_kinds_go_by_their_names_whatever_a_file_numbers_them():
    assert set(LAWS) == set(ours.NAMES)
    model = mixture(2, ("laplace", "student_t"))
    result = cm.map_query(model, solver="frontier", epsilon=0.3, delta=0, rng=0, proof=True)
    kind, variables, arrays, hidden = exported(model)
    n = len(arrays["leaf_names"])
    turned = np.where(arrays["kind"] < 0, -1 - n - arrays["kind"], arrays["kind"])
    other = {**arrays, "kind": turned, "leaf_names": arrays["leaf_names"][::-1]}
    proof = Proof({**result.proof.meta, "model": fingerprint(kind, variables, other, hidden)}, result.proof.arrays)
    assert check_arrays(kind, variables, other, proof, hidden=hidden).accepted
    unnamed = {name: values for name, values in other.items() if name != "leaf_names"}
    meta = {**result.proof.meta, "model": fingerprint(kind, variables, unnamed, hidden)}
    verdict = check_arrays(kind, variables, unnamed, Proof(meta, result.proof.arrays), hidden=hidden)
    assert verdict.message == "rejected: the circuit has leaves of a kind that the checker does not know"


def largest(name, law, low, high):
    if name in WHOLE:
        whole = np.arange(max(math.ceil(low) if low > -math.inf else 0, 0), min(high, 60.0) + 1e-9)
        return float(law.logpmf(whole).max()) if len(whole) else -math.inf
    points = np.append(
        np.linspace(max(low, -40.0), min(high, 40.0), 4001),
        np.clip([0.0, 0.25, 0.3, 0.75, 0.875, math.exp(-0.61)], low, high),
    )
    return float(law.logpdf(points).max())


def mass(name, law, low, high):
    if low == high:
        return largest(name, law, low, high)
    if name in WHOLE:
        whole = np.arange(max(math.ceil(low) if low > -math.inf else 0, 0), min(high, 200.0) + 1e-9)
        total = float(law.pmf(whole).sum())
    else:
        total = float(law.cdf(high) - law.cdf(low))
    return math.log(total) if total > 0.0 else -math.inf


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("name", LAWS)
def test_densities_and_masses_enclose_the_truth(name, interval):
    parameters, law = LAWS[name]
    code = ours.NAMES[name]
    for of_ours, truth in ((ours.log_largest, largest), (ours.log_share, mass)):
        below, above = (of_ours(code, parameters, *interval, side) for side in (-1, 1))
        true = truth(name, law, *interval)
        assert below <= above
        if math.isinf(true):
            assert below == above == true
        else:
            assert below <= true + 1e-6 * (of_ours is ours.log_largest) + 1e-12
            assert above >= true - 1e-12
            assert above - below < 1e-10
            assert above == pytest.approx(true, abs=1e-5)


def test_far_out_nothing_is_called_impossible():
    for name, parameters in (
        ("exponential", (1e200,)),
        ("laplace", (0.0, 1e-200)),
        ("student_t", (0.0, 1.0, 1.0)),
    ):
        code = ours.NAMES[name]
        assert -math.inf < ours.log_density(code, parameters, 1e200, 1) < 0.0


def mixture(seed, kinds, n_parts=3):
    """Return a mixture of products of leaves of some kinds over "u" and "v", with a table over "c"."""
    rng = np.random.default_rng(seed)
    build = cm.CircuitBuilder(cm.Domain([cm.Real("u"), cm.Real("v"), cm.Categorical("c", "abc")]))

    def leaf(variable):
        kind = kinds[int(rng.integers(len(kinds)))]
        if kind == "gaussian":
            return build.gaussian(variable, rng.normal(), rng.uniform(0.5, 2))
        if kind == "histogram":
            edges, shares = [-2.0, -1.0, 0.0, 0.5, 1.5, 3.0], rng.dirichlet(np.ones(5))
            return build.histogram(variable, edges, np.log(shares))
        first = {
            "poisson": rng.uniform(1, 9),
            "geometric": rng.uniform(0.1, 0.6),
            "exponential": rng.uniform(0.5, 2),
        }
        given = (first[kind],) if kind in first else LAWS[kind][0]
        if kind in ("laplace", "student_t"):
            given = (rng.normal(), rng.uniform(0.5, 2), *given[2:])
        return build.real(kind, variable, *given)

    parts = [
        build.product([leaf(0), leaf(1), build.categorical(2, np.log(rng.dirichlet(np.ones(3))))])
        for _ in range(n_parts)
    ]
    build.sum(parts, np.log(rng.dirichlet(np.ones(n_parts))))
    return build.build()


REAL = ("gaussian", "truncated_gaussian", "uniform", "histogram", "exponential", "laplace", "student_t")
NEW = ("beta", "gamma", "lognormal", "gaussian")


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [REAL, NEW, ("histogram",), WHOLE])
@pytest.mark.parametrize("seed", range(4))
def test_answers_on_such_leaves_are_proved(seed, kinds):
    model = mixture(seed, kinds)
    for variables, evidence in ((None, {}), (["u", "c"], {"v": 1.0}), (["v"], {"u": (0.0, 2.0)})):
        try:
            result = cm.map_query(model, variables, evidence, epsilon=0.05, delta=0, rng=0, proof=True)
        except cm.ImpossibleEvidence:
            continue
        if result.proof is None:
            assert "search for a proof did not end in time" in result.no_proof
            continue
        verdict = cm.check(model, result.proof)
        assert verdict.accepted, verdict.message
        assert verdict.log_joint == pytest.approx(result.log_joint, abs=1e-9)
        meta, claim = result.proof.meta, result.proof.meta["claim"]
        name = next(iter(meta["answer"]))
        away = {
            **meta,
            "answer": {**meta["answer"], name: meta["answer"][name] + 4.0},
            "claim": {**claim, "log_joint": None},
        }
        if model_value(model, variables, evidence, away["answer"]) < result.log_prob - 0.1:
            assert not cm.check(model, Proof(away, result.proof.arrays)).accepted


def model_value(model, variables, evidence, answer):
    posterior = cm.condition(model, variables, evidence)
    return float(posterior.log_prob(posterior.domain.encode(answer)[None])[0])


def test_a_better_answer_met_on_the_way_does_not_spoil_the_proof():
    """The search for a proof closes boxes by the answer to be proved, also where it finds a better one."""
    model = mixture(2, ("gaussian", "truncated_gaussian", "student_t"))
    for epsilon in (0.3, 0.1, 0.02):
        result = cm.map_query(model, solver="frontier", epsilon=epsilon, delta=0, rng=0, proof=True)
        assert cm.check(model, result.proof).accepted


def test_kinds_of_other_packages_are_refused_in_a_sentence():
    model = mixture(0, ("gaussian",))
    result = cm.map_query(model, epsilon=0.1, delta=0, rng=0, proof=True)
    kind, variables, arrays, hidden = exported(model)
    codes = arrays["kind"].copy()
    codes[codes == 1] = -40
    other = {**arrays, "kind": codes}
    meta = {**result.proof.meta, "model": fingerprint(kind, variables, other, hidden)}
    verdict = check_arrays(kind, variables, other, Proof(meta, result.proof.arrays), hidden=hidden)
    assert verdict.message == "rejected: the circuit has leaves of a kind that the checker does not know"


FAR = [  # kind, parameters, and the log of the density (or share) of an interval; mpmath, 60 digits
    ("truncated_gaussian", (1.7e9, 1.0, 0.0, math.inf), (1.7e9, 1.7e9), -0.91893853320467274),
    ("truncated_gaussian", (0.0, 1.0, 1.0, 1e200), (1.0, 1.0), 0.42208311180457660),
    ("truncated_gaussian", (0.0, 1.0, 0.0, 1.0), (1.0, 2.0), -math.inf),
    ("student_t", (0.0, 1.0, 1e300), (0.0, 0.0), -0.91893853320467274),
    ("student_t", (9.753116013782264e-24, 2.604507090179364e-59, 1.2732244647413288e-39),
     (1.6440202061280394e89, 1.6440202061280394e89), -295.67963103978749924),
    ("student_t", (-1.6e308, 1e308, 3.0), (1.6e308, 1.6e308), -713.16635801547109),
    ("poisson", (1e300,), (1e300, 1e300), -346.30670248),
    ("exponential", (7.661e-244,), (8.5906e-205, 1.333e-197), -1013.1164515100885),
    ("uniform", (0.0, 1e-323), (0.0, 5e-324), -0.69314718055994531),
    ("uniform", (0.0, 5e-324), (0.0, 0.0), 744.44007192138122),
    ("uniform", (0.0, 1.0), (1.0, 2.0), -math.inf),
    ("laplace", (0.0, 1e-200), (1e200, 1e201), -math.inf),
    ("laplace", (1.7e308, 1e290), (-1.7e308, -1.6e308), -3.3e18),
    ("laplace", (1.7e308, 1e308), (-1.7e308, 1.7e308), math.log(0.5 * -math.expm1(-3.4))),
]  # fmt: skip


@pytest.mark.parametrize("case", FAR)
def test_the_ends_of_floats_are_enclosed_too(case):
    name, parameters, interval, true = case
    code = ours.NAMES[name]
    below, above = (ours.log_share(code, parameters, *interval, side) for side in (-1, 1))
    assert below <= true + 1e-8
    assert above >= true - 1e-8
    assert true == -math.inf or above - below < 1e-8 or name not in ("truncated_gaussian", "uniform")


@pytest.mark.parametrize("case", [(1.7e308, 1e308, -1.7e308, -1.6e308), (-1.7e308, 1e308, 1.6e308, 1.7e308)])
def test_distances_beyond_floats_are_no_infinite_ones(case):
    below, above = (log_mass(*case, side) for side in (-1, 1))
    assert below <= math.log(stats.norm.cdf(-3.3) - stats.norm.cdf(-3.4)) <= above
    assert above - below < 1e-10


def test_many_deviations_from_an_end_nothing_is_called_impossible():
    """Times in seconds since 1970, none negative: the bounds of such leaves were e^-1e300, and proved anything."""
    build = cm.CircuitBuilder(cm.Domain([cm.Real("time", 0.0, math.inf), cm.Categorical("c", "ab")]))
    parts = [
        build.product([build.real("truncated_gaussian", 0, 1.7e9, 1.0, 0.0, math.inf), build.indicator(1, c)])
        for c in range(2)
    ]
    build.sum(parts, [math.log(0.9), math.log(0.1)])
    model = build.build()
    proof = cm.map_query(model, epsilon=0.01, delta=0, rng=0, proof=True).proof
    assert cm.check(model, proof).accepted
    claim = {**proof.meta["claim"], "log_joint": None}
    other = {**proof.meta, "answer": {**proof.meta["answer"], "c": "b"}, "claim": claim}
    box = {"splits": np.array([-1], np.int32), "at": np.zeros(1, np.int32), "kept": np.zeros((0, 1), np.uint8)}
    no_cuts = {"cuts": np.zeros(0), "cut_ptr": np.zeros(3, np.int64)}
    for arrays in (proof.arrays, {**proof.arrays, **box, **no_cuts}):
        assert not cm.check(model, Proof(other, arrays)).accepted


def test_a_proof_that_the_checker_cannot_follow_is_not_given():
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical("c", (0, 1)), cm.Real("x")]))
    leaves = [
        build.real("truncated_gaussian", 1, -1.0, 1e-8, 1e-300, 2.0),
        build.real("exponential", 1, 1e9),
        build.real("student_t", 1, 1e9, 1.0, 2.0),
    ]
    probs = ([0.9, 0.1], [0.2, 0.8], [0.5, 0.5])
    build.sum(
        [build.product([build.categorical(0, probs=p), leaf]) for p, leaf in zip(probs, leaves, strict=True)],
        weights=[0.4, 0.3, 0.3],
    )
    model = build.build()
    found = cm.map_query(model, ["c"], {"x": (-math.inf, 1e-8)}, solver="frontier", proof=True, progress=False)
    assert found.certified
    if found.proof is None:
        assert "the checker found no proof" in str(found.no_proof)
    else:
        assert cm.check(model, found.proof).accepted
