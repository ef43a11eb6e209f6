"""Hidden Markov models of hmmlearn."""

from __future__ import annotations

from typing import Any

import numpy as np

from certimap.circuits.circuit import CircuitBuilder
from certimap.core.arrays import Floats
from certimap.errors import ModelError
from certimap.interop.reading import (
    Reading,
    Wishes,
    classes_of,
    distributions,
    fitted,
    kind_of,
    logs,
    numbers,
    refuse,
)
from certimap.interop.sequences import (
    Chain,
    Emission,
    discrete_chain,
    gaussian_product,
    read_sequence,
    real_chain,
    steps_of,
)

_ACCEPTED = "expected CategoricalHMM, or GaussianHMM or GMMHMM with diagonal or spherical covariances"


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a hidden Markov model for sequences of the given length."""
    kinds = classes_of(x)
    if not {"CategoricalHMM", "GaussianHMM", "GMMHMM"} & set(kinds):
        raise refuse(x, _ACCEPTED)
    chain = Chain(
        distributions(_fitted(x, "startprob_"), "startprob_"), distributions(_fitted(x, "transmat_"), "transmat_")
    )
    steps = steps_of(x, wishes)
    n_states = len(chain.start)

    def theirs(sequences: Floats) -> list[float]:
        given = sequences.astype(np.int64) if "CategoricalHMM" in kinds else sequences
        return [x.score(sequence) for sequence in given]

    if "CategoricalHMM" in kinds:
        emission = distributions(_fitted(x, "emissionprob_"), "emissionprob_")
        return read_sequence(lambda t: discrete_chain(chain, [emission], t), n_states, steps, theirs)
    if x.covariance_type not in ("diag", "spherical"):
        raise ModelError(
            f"a {kind_of(x)} has covariance_type={x.covariance_type!r}; expected 'diag' or 'spherical', for "
            "circuits have leaves of single variables"
        )
    means = _fitted(x, "means_")
    emit = _mixed(x, means) if "GMMHMM" in kinds else _gaussian(x, means)
    return read_sequence(lambda t: real_chain(chain, means.shape[-1], emit, t), n_states, steps, theirs)


def _gaussian(x: Any, means: Floats) -> Emission:
    """Read Gaussian emissions, means of shape (K, features)."""
    variances = _fitted(x, "_covars_")  # the property covars_ fails for fitted spherical covariances
    sds = np.sqrt(np.broadcast_to(variances[:, None] if variances.ndim == 1 else variances, means.shape))
    return lambda builder, variables, state: gaussian_product(builder, variables, means[state], sds[state])


def _mixed(x: Any, means: Floats) -> Emission:
    """Read emissions that are mixtures of Gaussians, means of shape (K, components, features)."""
    weights = distributions(_fitted(x, "weights_"), "weights_")
    variances = _fitted(x, "covars_")
    sds = np.sqrt(np.broadcast_to(variances if variances.ndim == 3 else variances[:, :, None], means.shape))

    def emission(builder: CircuitBuilder, variables: Any, state: int) -> int:
        parts = [
            gaussian_product(builder, variables, means[state, m], sds[state, m]) for m in range(means.shape[1])
        ]
        return parts[0] if len(parts) == 1 else builder.sum(parts, log_weights=logs(weights[state]).tolist())

    return emission


def _fitted(x: Any, name: str) -> Floats:
    return numbers(fitted(x, name))
