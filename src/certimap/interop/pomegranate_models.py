"""Bayesian networks and hidden Markov models of pomegranate (version 1)."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from certimap.circuits.circuit import CircuitBuilder
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain
from certimap.errors import ModelError
from certimap.interop.reading import (
    Reading,
    Wishes,
    attribute,
    classes_of,
    distributions,
    kind_of,
    named,
    numbers,
    refuse,
)
from certimap.interop.sequences import Chain, discrete_chain, gaussian_product, read_sequence, real_chain, steps_of
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor

_HMMS = {"DenseHMM", "SparseHMM"}


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a network or a hidden Markov model.

    As in pomegranate, a hidden Markov model's value is the probability of a sequence and of its end there. The
    total over all sequences of the given length is thus below 1.
    """
    kinds = set(classes_of(x))
    if "BayesianNetwork" in kinds:
        return _network(x, wishes)
    if kinds & _HMMS:
        return _sequence(x, wishes)
    raise refuse(x, "expected BayesianNetwork, DenseHMM or SparseHMM")


def _network(x: Any, wishes: Wishes) -> Reading:
    parts: list[Any] = list(attribute(x, "distributions"))
    parents: Sequence[Sequence[int]] = attribute(x, "_parents")
    if not parts:
        raise ModelError(f"this {kind_of(x)} has no distributions; add or fit them first")
    tables = [_table(part, f"the distribution of variable {i}") for i, part in enumerate(parts)]
    names = named(wishes, [str(i) for i in range(len(parts))], x)
    domain = Domain(
        Categorical(name, tuple(range(table.shape[-1]))) for name, table in zip(names, tables, strict=True)
    )
    factors = [Factor((*parents[i], i), table) for i, table in enumerate(tables)]
    return Reading(BayesianNetwork(domain, factors), lambda rows: _log_probability(x, rows.astype(np.int64)))


def _log_probability(x: Any, rows: Any) -> Floats:
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        return numbers(x.log_probability(torch.as_tensor(rows)))


def _table(part: Any, what: str) -> Floats:
    """Return the table of a categorical or conditional categorical distribution of one variable."""
    kind = type(part).__name__
    if kind == "Categorical":
        return distributions(numbers(_present(part, "probs", what)), what)[0]
    if kind == "ConditionalCategorical":
        return distributions(numbers(_present(part, "probs", what)[0]), what)
    raise ModelError(f"{what} is a {kind_of(part)}; expected Categorical or ConditionalCategorical")


def _present(part: Any, name: str, what: str) -> Any:
    value = attribute(part, name)
    if value is None:
        raise ModelError(f"{what} has no {name}; fit the model first")
    return value


def _sequence(x: Any, wishes: Wishes) -> Reading:
    parts: list[Any] = list(attribute(x, "distributions") or ())
    if not parts:
        raise ModelError(f"this {kind_of(x)} has no distributions; add or fit them first")
    steps = steps_of(x, wishes)
    x = _unpacked(x)
    k = len(parts)
    chain = Chain(_weights(x, "starts", k), _moves(x, k), _weights(x, "ends", k))
    kinds = {type(part).__name__ for part in parts}
    if kinds == {"Categorical"}:
        tables = _emissions(parts)
        return read_sequence(
            lambda t: discrete_chain(chain, tables, t), k, steps, lambda r: _log_probability(x, r.astype(np.int64))
        )
    if kinds == {"Normal"} and all(attribute(p, "covariance_type") in ("diag", "sphere") for p in parts):
        means = np.array([numbers(_present(p, "means", "an emission")) for p in parts])
        variances = np.array([numbers(_present(p, "covs", "an emission")) for p in parts])
        sds = np.sqrt(np.broadcast_to(variances.reshape(k, -1), means.shape))

        def emission(builder: CircuitBuilder, variables: Any, state: int) -> int:
            return gaussian_product(builder, variables, means[state], sds[state])

        return read_sequence(
            lambda t: real_chain(chain, means.shape[1], emission, t),
            k,
            steps,
            lambda r: _log_probability(x, r.astype(np.float32)),
        )
    raise ModelError(
        f"a {kind_of(x)} has emissions of the kinds {', '.join(sorted(kinds))}; expected all Categorical, or all "
        "Normal with diagonal or spherical covariances"
    )


def _unpacked(x: Any) -> Any:
    """Return the model, or a copy with the list of edges (`add_edge`) turned into tensors by pomegranate."""
    if "SparseHMM" not in classes_of(x) or hasattr(x, "_edge_log_probs"):
        return x
    if not attribute(x, "edges"):
        raise ModelError(f"this {kind_of(x)} has no edges; add or fit them first")
    copied = copy.deepcopy(x)
    attribute(copied, "_initialize")()
    return copied


def _emissions(parts: list[Any]) -> list[Floats]:
    """Return one table per feature, shape (states, symbols)."""
    all_probs = [numbers(_present(p, "probs", "an emission")) for p in parts]
    shapes = {probs.shape for probs in all_probs}
    if len(shapes) != 1:
        raise ModelError(f"emissions have tables of the shapes {sorted(shapes)}; expected one shape")
    rows = distributions(np.array(all_probs), "an emission")
    return [rows[:, j] for j in range(rows.shape[1])]


def _weights(x: Any, name: str, k: int) -> Floats:
    """Return start or end weights from their logs; uniform by default."""
    value = attribute(x, name)
    return np.full(k, 1.0 / k) if value is None else np.exp(numbers(value))


def _moves(x: Any, k: int) -> Floats:
    edges = numbers(attribute(x, "edges"))
    if "SparseHMM" not in classes_of(x):
        return np.exp(edges)
    moves = np.zeros((k, k))
    sources, targets = (numbers(attribute(x, f"_edge_idx_{e}")).astype(np.int64) for e in ("starts", "ends"))
    np.add.at(moves, (sources, targets), np.exp(numbers(attribute(x, "_edge_log_probs"))))
    return moves
