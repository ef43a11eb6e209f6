"""Samplers and oracles that do not belong together are found out, and right ones are let alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.certify.draw_record import FALSE_ALARMS, Agreement
from certimap.errors import ModelError

LOG_P = np.log([0.4, 0.3, 0.2, 0.1])


def posterior_of(sampler_p, log_p=LOG_P, **options):
    sampler_p = np.asarray(sampler_p)
    return cm.FunctionPosterior(
        [len(log_p)],
        lambda n, rng: rng.choice(len(sampler_p), size=(n, 1), p=sampler_p / sampler_p.sum()),
        lambda points: np.asarray(log_p)[points[:, 0].astype(int)],
        **options,
    )


@pytest.mark.parametrize("wrong", [[0.25] * 4, [0.05, 0.45, 0.3, 0.2], [0.7, 0.1, 0.1, 0.1]])
def test_a_sampler_of_another_distribution_is_named(wrong):
    with pytest.raises(ModelError, match="describe different distributions"):
        cm.map_query(posterior_of(wrong), solver="budget", max_samples=5_000, rng=0)


def test_probabilities_that_add_to_more_than_one_are_named():
    with pytest.raises(ModelError, match=r"add to 1\.5"):
        cm.map_query(posterior_of([1] * 4, np.log([0.6, 0.5, 0.3, 0.1])), solver="exhaustive")


def test_unnormalised_values_may_add_to_anything():
    result = cm.map_query(
        posterior_of([1] * 4, np.log([6.0, 5.0, 3.0, 1.0]), normalised=False), solver="exhaustive"
    )
    assert result.certificate.kind == "exact"


@pytest.mark.statistical
def test_right_samplers_are_called_wrong_less_often_than_said():
    """E[ratio] = 1 under the truth, whatever is bet on: its mean over many runs shows it, and alarms are none."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(2_000):
        p = rng.dirichlet(np.ones(5))
        agreement, log_p = Agreement(), np.log(p)
        for _ in range(3):
            ids = rng.choice(5, 40, p=p)
            agreement.see(ids.astype(np.int64), log_p[ids])
            assert agreement.contradiction(log_p) is None
        from certimap.certify.draw_record import _log_ratio

        parts = [_log_ratio(n, agreement._hits[i], log_p[i]) for i, n in agreement._draws.items()]
        ratios.append(math.exp(math.fsum(parts)))
    mean, error = float(np.mean(ratios)), float(np.std(ratios)) / math.sqrt(len(ratios))
    assert mean <= 1.0 + 5.0 * error
    assert max(ratios) < 1.0 / FALSE_ALARMS


def test_the_count_does_not_depend_on_how_draws_are_batched():
    rng = np.random.default_rng(1)
    ids = rng.choice(4, 200, p=np.exp(LOG_P)).astype(np.int64)
    whole, parts = Agreement(), Agreement()
    whole.see(ids, LOG_P[ids])
    for start in range(0, 200, 7):
        parts.see(ids[start : start + 7], LOG_P[ids[start : start + 7]])
    assert (whole._draws, whole._hits) == (parts._draws, parts._hits)


def test_a_point_is_bet_on_only_from_the_draw_after_it_was_found():
    agreement = Agreement()
    agreement.see(np.array([1, 1, 0, 1, 0]), LOG_P[[1, 1, 0, 1, 0]])
    assert agreement._draws == {1: 2, 0: 2}
    assert agreement._hits == {1: 1, 0: 1}


@pytest.mark.parametrize("solver", ["pac", "smooth_pac", "budget"])
def test_draws_of_a_chain_propose_and_prove_nothing(solver):
    def chain(n, rng):  # sticks to where it is: right frequencies, no independence
        states = rng.choice(4, size=n, p=np.exp(LOG_P))
        return np.repeat(states[: n // 10 + 1], 10)[:n, None]

    posterior = cm.FunctionPosterior(
        [4, 4],
        lambda n, rng: np.concatenate([chain(n, rng), chain(n, rng)], axis=1),
        lambda points: LOG_P[points.astype(int)].sum(axis=1),
        independent=False,
    )
    result = cm.map_query(posterior, solver=solver, epsilon=0.0, delta=0.2, max_samples=60, rng=0)
    assert result.certificate.kind in ("none", "exact")  # exact where what was evaluated leaves too little
    assert all(delta == 0.0 for _, delta in result.pareto)
