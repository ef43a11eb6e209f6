"""Proofs of several answers, of real variables, and by solvers that keep none: accepted, and never if false."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

import certimap as cm
from certimap.checker import Proof
from certimap.checker.leaves import log_mass, log_peaks
from certimap.testing.models import random_circuit
from certimap_lab.proofs import random_case, solved


def mixture(seed, n_real=2, n_other=1, n_parts=3, low=-math.inf, high=math.inf):
    """Return a mixture of products of Gaussians (variables "x0", ...) and tables ("c0", ...)."""
    rng = np.random.default_rng(seed)
    reals = [cm.Real(f"x{i}", low, high) for i in range(n_real)]
    build = cm.CircuitBuilder(cm.Domain([*reals, *(cm.Categorical(f"c{i}", "abc") for i in range(n_other))]))
    parts = []
    for _ in range(n_parts):
        leaves = [build.gaussian(i, rng.normal(0, 2), rng.uniform(0.5, 2)) for i in range(n_real)]
        leaves += [build.categorical(n_real + i, log_weights=rng.dirichlet(np.ones(3))) for i in range(n_other)]
        parts.append(build.product(leaves))
    build.sum(parts, log_weights=rng.dirichlet(np.ones(n_parts)))
    return build.build(normalised=False)


def changed(proof, **arrays):
    return Proof(proof.meta, {**proof.arrays, **arrays})


@pytest.mark.parametrize("seed", range(6))
def test_the_answers_of_a_list_are_proved_together(seed):
    case = random_case(seed)
    order = np.sort(case.log_values)[::-1]
    for solver in ("auto", "exhaustive", "frontier", "set_elimination", "pac"):
        result = solved(case, solver, top_k=3, seed=seed)
        if not result.certified:
            continue
        verdict = cm.check(case.model, result.proof, exact=True)
        assert verdict.accepted, verdict.message
        assert verdict.log_joint == pytest.approx(min(v for _, v in result.top) + result.log_evidence, abs=1e-7)
        others = result.proof.meta["others"]
        if len(order) > 3 and order[1] > order[3] + 1e-6:
            best_left_out = {**result.proof.meta, "others": others[1:]}
            assert not cm.check(case.model, Proof(best_left_out, result.proof.arrays)).accepted
        twice = {**result.proof.meta, "others": [*others, result.proof.meta["answer"]]}
        assert "listed twice" in cm.check(case.model, Proof(twice, result.proof.arrays)).message


@pytest.mark.parametrize("epsilon", [0.01, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_real_variables_are_proved_in_cells(seed, epsilon):
    model = mixture(seed)
    result = cm.map_query(model, solver="frontier", epsilon=epsilon, delta=0, rng=0, proof=True)
    verdict = cm.check(model, result.proof)
    assert verdict.accepted, verdict.message
    assert verdict.log_joint == pytest.approx(result.log_joint, abs=1e-9)
    meta, claim = result.proof.meta, result.proof.meta["claim"]
    better = {**meta, "claim": {**claim, "kind": "exact", "epsilon": 0.0}}
    if cm.check(model, Proof(better, result.proof.arrays)).accepted:  # then it is true, whatever the solver knew
        best = cm.map_query(model, solver="frontier", epsilon=0, delta=0, rng=0)
        assert result.log_prob >= best.log_prob - 2e-9
    away = {
        **meta,
        "answer": {**meta["answer"], "x0": meta["answer"]["x0"] + 1.0},
        "claim": {**claim, "log_joint": None},
    }
    assert not cm.check(model, Proof(away, result.proof.arrays)).accepted
    cuts = result.proof.arrays["cuts"]
    if len(cuts):
        assert not cm.check(model, changed(result.proof, cuts=cuts[:-1])).accepted
        assert "do not ascend" in cm.check(model, changed(result.proof, cuts=cuts * np.nan)).message
        no_cuts = np.zeros_like(result.proof.arrays["cut_ptr"])
        assert not cm.check(model, changed(result.proof, cuts=cuts[:0], cut_ptr=no_cuts)).accepted


def test_evidence_on_real_variables_counts():
    model = mixture(1, n_real=4, low=-4.0, high=5.0)
    evidence = {"x1": 0.3, "x2": (-1.0, 0.5), "x0": (0.2, 2.0)}
    result = cm.map_query(
        model, ["x0", "c0"], evidence, solver="frontier", epsilon=0.05, delta=0, rng=0, proof=True
    )
    verdict = cm.check(model, result.proof)
    assert verdict.accepted, verdict.message
    assert verdict.log_joint == pytest.approx(result.log_joint, abs=1e-9)
    intervals = result.proof.arrays["intervals"].copy()
    intervals[2] = -1.0, 3.0
    assert not cm.check(model, changed(result.proof, intervals=intervals)).accepted


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 0.5), (2.0, 9.0), (-math.inf, -3.0), (40.0, math.inf), (0.1, 0.1000001)]
)
def test_masses_and_peaks_are_rounded_outward(low, high):
    mean, sd = 0.25, 1.5
    true = norm.logsf((low - mean) / sd) if high == math.inf else norm.logcdf((high - mean) / sd)
    if math.isfinite(low) and math.isfinite(high):
        a, b = (low - mean) / sd, (high - mean) / sd
        if high - low < 1e-3:
            true = norm.logpdf(0.5 * (a + b)) + math.log(b - a)
        else:
            true = math.log(norm.sf(a) - norm.sf(b)) if a > 0 else math.log(norm.cdf(b) - norm.cdf(a))
    below, above = (log_mass(mean, sd, low, high, side) for side in (-1, 1))
    assert below <= true + 1e-11
    assert above >= true - 1e-11
    assert above - below < 2e-2
    top = [float(log_peaks(mean, sd, low, high, side)) for side in (-1, 1)]
    nearest = min(max(mean, low), high)
    assert top[0] < norm.logpdf(nearest, mean, sd) < top[1]
    assert top[1] - top[0] < 1e-11


def test_a_solver_that_keeps_no_boxes_is_proved_by_a_search_of_its_answer():
    circuit = random_circuit(np.random.default_rng(1), cm.Domain.of_sizes([2] * 12))
    for epsilon in (0.0, 0.1):
        result = cm.map_query(circuit, solver="set_elimination", epsilon=epsilon, delta=0, rng=0, proof=True)
        assert result.proof.meta["solver"] == "set_elimination"
        assert result.proof.meta["method"] == "boxes"
        assert cm.check(circuit, result.proof).accepted


@pytest.mark.parametrize("tolerance", [1e-12, 1e-14])
@pytest.mark.parametrize("kind", ["chain", "hidden chain", "circuit"])
def test_proofs_at_tolerances_below_rounding_say_what_they_prove(kind, tolerance):
    """ln p is some -700: no check in doubles tells numbers apart that differ by 1e-12 of that probability."""
    rng, n = np.random.default_rng(4), 900
    if kind == "circuit":
        builder = cm.CircuitBuilder(cm.Domain.of_sizes([3] * n))
        parts = [
            builder.product([builder.categorical(i, probs=p) for i, p in enumerate(rng.dirichlet([9.0] * 3, n))])
            for _ in range(2)
        ]
        builder.sum(parts, weights=[0.4, 0.6])
        model, asked = builder.build(), None
    else:
        names = [f"v{i}" for i in range(n)]
        before = {name: names[i - 1 : i] if i else [] for i, name in enumerate(names)}
        tables = {name: rng.dirichlet([9.0] * 3, size=(3,) * len(before[name])) for name in names}
        model = cm.BayesianNetwork.from_cpts({name: [0, 1, 2] for name in names}, before, tables)
        asked = names[::100] if kind == "hidden chain" else None
    evidence = {model.domain.names[i]: 1 for i in range(50, n, 2) if i % 100} if kind == "hidden chain" else None
    result = cm.map_query(
        model, asked, evidence, epsilon=0.01, delta=0.0, tolerance=tolerance, rng=0, proof=True, top_k=None
    )
    assert result.certified
    assert result.certificate.tolerance == tolerance
    assert cm.check(model, result.proof)
    proved = result.proof.meta["claim"]["tolerance"]
    assert tolerance < proved <= 1e-6
    assert (
        result.no_proof == f"it is of a relative tolerance of {proved:.2g}, which the rounding of its check needs"
    )
