"""Circuits as tensors, beside the compiled kernels."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.circuits import tensors
from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.tensors import on_device
from certimap.errors import MissingDependency, ModelError, SolverError
from certimap.testing import check_posterior, random_circuit, random_domain

torch = pytest.importorskip("torch")


def posterior_of(seed: int, max_variables: int = 6) -> cm.circuits.posterior.CircuitPosterior:
    rng = np.random.default_rng(seed)
    circuit = random_circuit(rng, random_domain(rng, max_variables=max_variables, max_states=4))
    names = circuit.domain.names
    return cm.condition(circuit, names[: int(rng.integers(1, len(names) + 1))], solver="max_product")


def points_of(domain) -> np.ndarray:
    return np.array(list(itertools.product(*map(range, domain.n_states))), np.int16)


@given(st.integers(0, 2**32))
@settings(max_examples=40)
def test_values_are_those_of_the_kernels(seed):
    posterior = posterior_of(seed)
    points = points_of(posterior.domain)
    found = on_device(posterior, "cpu").log_prob(points)
    np.testing.assert_allclose(found, posterior.log_prob(points), rtol=0, atol=1e-10)


@given(st.integers(0, 2**32))
@settings(max_examples=15)
def test_gradients_are_differences_of_the_multilinear_extension(seed):
    """It is linear in each variable's weights: a state's derivative is the value with that state alone."""
    posterior = posterior_of(seed, 4)
    domain, plan = posterior.domain, tensors.TensorPlan(posterior.plan)
    rng = np.random.default_rng(seed)
    soft = np.concatenate([rng.dirichlet(np.ones(k), 3).T for k in domain.n_states])
    weights = torch.tensor(soft, requires_grad=True)
    values = plan(weights)
    values.sum().backward()
    everything = points_of(domain)
    probabilities = np.exp(posterior.log_prob(everything))
    columns = everything + domain.offsets[:-1]
    for row in range(3):
        terms = soft[columns, row]
        total = float(probabilities @ terms.prod(1))
        assert values[row].item() == pytest.approx(np.log(total), abs=1e-10)
        for variable, column in enumerate(columns.T):
            others = np.delete(terms, variable, axis=1).prod(1) * probabilities
            own = np.bincount(column, others, minlength=domain.total_states)
            here = slice(domain.offsets[variable], domain.offsets[variable + 1])
            np.testing.assert_allclose(weights.grad[here, row], own[here] / total, rtol=1e-9, atol=1e-12)


def test_impossible_rows_are_minus_infinity_and_have_no_gradient():
    builder = CircuitBuilder(cm.Domain.of_sizes([2, 2]))
    for state in (0, 1):
        builder.product([builder.indicator(0, state), builder.indicator(1, state)])
    builder.sum([2, 5], np.log([0.3, 0.7]))
    posterior = cm.condition(builder.build(), solver="max_product")
    plan = tensors.TensorPlan(posterior.plan)
    assert plan.log_prob(np.array([[0, 1], [1, 1]])).tolist() == [-np.inf, pytest.approx(np.log(0.7))]
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]).double().requires_grad_()
    plan(weights).sum().backward()
    assert weights.grad[:, 0].tolist() == [0.0] * 4
    assert weights.grad[:, 1].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_draws_have_the_right_frequencies():
    posterior = posterior_of(5, 4)
    everything = points_of(posterior.domain)
    found = on_device(posterior, "cpu").sample(40_000, np.random.default_rng(0))
    sizes = posterior.domain.n_states
    counts = np.bincount(np.ravel_multi_index(found.T, sizes), minlength=len(everything))
    expected = 40_000 * np.exp(posterior.log_prob(everything))
    possible = expected > 0
    assert not counts[~possible].any()
    chi = float(np.sum((counts - expected)[possible] ** 2 / expected[possible]))
    assert chi < possible.sum() + 6.0 * np.sqrt(2.0 * possible.sum())


def test_posteriors_on_a_device_conform():
    for seed in range(4):
        check_posterior(on_device(posterior_of(seed, 4), "cpu"), rng=seed)


def test_a_query_on_a_device_is_the_same_query():
    circuit = random_circuit(np.random.default_rng(3), cm.Domain.of_sizes([2] * 8))
    asked = {"solver": "pac", "rng": 1, "epsilon": 0.01, "delta": 1e-6}
    plain, there = (cm.map_query(circuit, device=device, **asked) for device in (None, "cpu"))
    assert there.certificate.kind == plain.certificate.kind
    assert there.log_prob == pytest.approx(plain.log_prob, abs=1e-9)
    again = cm.map_query(circuit, device="cpu", **asked)
    assert again.n_draws == there.n_draws


def test_it_pickles():
    there = on_device(posterior_of(1), "cpu")
    points = points_of(there.domain)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(there)).log_prob(points), there.log_prob(points))


@pytest.mark.parametrize(("device", "said"), [("cuda:7", "CUDA"), ("gpu", "no device"), ("meta", "not supported")])
def test_devices_that_are_not_there_are_refused(device, said):
    if device == "cuda:7" and torch.cuda.is_available():
        pytest.skip("there are CUDA devices")
    with pytest.raises(SolverError, match=said):
        on_device(posterior_of(0), device)


def test_real_variables_are_refused_by_name():
    builder = CircuitBuilder(cm.Domain([cm.Real("height")]))
    builder.gaussian(0, 0.0, 1.0)
    with pytest.raises(ModelError, match="'height' is real"):
        on_device(cm.condition(builder.build(), solver="pac"), "cpu")


def test_without_torch_the_sentence_says_what_to_install(monkeypatch):
    def absent(name):
        raise ImportError(name)

    tensors.torch.cache_clear()
    monkeypatch.setattr(tensors, "import_module", absent)
    with pytest.raises(MissingDependency, match=r"certimap\[torch\]"):
        on_device(posterior_of(0), "cpu")
    tensors.torch.cache_clear()


def test_memory_that_runs_out_halves_the_blocks(monkeypatch):
    posterior = posterior_of(2)
    plan = tensors.TensorPlan(posterior.plan)
    whole, seen = plan._values, []

    def limited(leaves):
        seen.append(leaves.shape[1])
        if leaves.shape[1] > 3:
            raise torch.OutOfMemoryError
        return whole(leaves)

    monkeypatch.setattr(plan, "_values", limited)
    points = posterior.sample(10, np.random.default_rng(0))
    np.testing.assert_allclose(plan.log_prob(points), posterior.log_prob(points), atol=1e-10)
    assert max(seen[-4:]) <= 3


def test_a_device_without_room_for_one_row_hands_over_to_the_cpu():
    plan = tensors.TensorPlan(posterior_of(2).plan)

    class Full:
        type = "cuda"

    plan.device = Full()
    with pytest.warns(UserWarning, match="the CPU goes on"):
        assert plan.with_less(1) >= 1
    assert plan.device == torch.device("cpu")
    with pytest.raises(MemoryError, match="one row"):
        plan.with_less(1)
