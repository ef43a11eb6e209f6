"""Hidden Markov models of hmmlearn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.errors import ModelError
from certimap.interop.reading import Floats, Wishes, classes_of, distributions, kind_of, logs, numbers, refuse
from certimap.interop.sequences import discrete_chain, gaussian_product, real_chain, steps_of
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.markov import MarkovNetwork

_ACCEPTED = "expected CategoricalHMM, or GaussianHMM or GMMHMM with diagonal or spherical covariances"


@dataclass(frozen=True, eq=False)
class _Chain:
    start: Floats
    move: Floats
    end: Floats | None = None


def convert(x: Any, wishes: Wishes) -> BayesianNetwork | MarkovNetwork | Circuit:
    """Read a hidden Markov model for sequences of the length asked for."""
    kinds = classes_of(x)
    if not {"CategoricalHMM", "GaussianHMM", "GMMHMM"} & set(kinds):
        raise refuse(x, _ACCEPTED)
    chain = _Chain(
        distributions(_fitted(x, "startprob_"), "startprob_"), distributions(_fitted(x, "transmat_"), "transmat_")
    )
    steps = steps_of(x, wishes)
    if "CategoricalHMM" in kinds:
        return discrete_chain(chain, [distributions(_fitted(x, "emissionprob_"), "emissionprob_")], steps)
    if x.covariance_type not in ("diag", "spherical"):
        raise ModelError(
            f"a {kind_of(x)} has covariance_type={x.covariance_type!r}; expected 'diag' or 'spherical', for "
            "circuits have leaves of single variables"
        )
    means = _fitted(x, "means_")
    if "GMMHMM" in kinds:
        return _mixtures(x, chain, means, steps)
    variances = numbers(_present(x, "covars_"))
    if variances.ndim == 3:  # the property gives matrices, diagonal ones here
        variances = np.diagonal(variances, axis1=1, axis2=2)
    sds = np.sqrt(np.broadcast_to(variances, means.shape))

    def emission(builder: CircuitBuilder, variables: Any, state: int) -> int:
        return gaussian_product(builder, variables, means[state], sds[state])

    return real_chain(chain, means.shape[1], emission, steps)


def _mixtures(x: Any, chain: _Chain, means: Floats, steps: int) -> Circuit:
    """Read emissions that are mixtures of Gaussians, means of shape (K, components, features)."""
    weights = distributions(_fitted(x, "weights_"), "weights_")
    variances = _fitted(x, "covars_")
    sds = np.sqrt(np.broadcast_to(variances if variances.ndim == 3 else variances[:, :, None], means.shape))

    def emission(builder: CircuitBuilder, variables: Any, state: int) -> int:
        parts = [
            gaussian_product(builder, variables, means[state, m], sds[state, m]) for m in range(means.shape[1])
        ]
        return parts[0] if len(parts) == 1 else builder.sum(parts, logs(weights[state]).tolist())

    return real_chain(chain, means.shape[2], emission, steps)


def _present(x: Any, name: str) -> Any:
    try:
        return getattr(x, name)
    except AttributeError:
        raise ModelError(
            f"this {kind_of(x)} has no {name}: it is not fitted (call fit first), or this version of hmmlearn "
            "keeps it elsewhere"
        ) from None


def _fitted(x: Any, name: str) -> Floats:
    return numbers(_present(x, name))
