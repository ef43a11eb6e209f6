"""Hidden Markov models of a fixed length, their emissions of several features discrete or real; hmmlearn's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arguments import check_whole
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Real, Variable
from certimap.core.model import Model
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
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork

MOST_STATES = 512  # up to this many hidden states, sequences of two steps are compared; beyond, of one step
STATE, SYMBOL = "state{}", "symbol{}"
Emission = Callable[[CircuitBuilder, Sequence[int], int], int]  # (builder, variables, state): a node


class Chain(NamedTuple):
    """The hidden states of a hidden Markov model.

    `start`, `move`: weights of the first state, shape (K,), and of transitions, shape (K, K). `end`: weights of
    the last state, shape (K,), or None.
    """

    start: Floats
    move: Floats
    end: Floats | None = None


def steps_of(x: Any, wishes: Wishes) -> int:
    """Return the given length; raises ModelError without one."""
    if wishes.names is not None:
        raise ModelError("a hidden Markov model names its variables state0, symbol0, ...; leave names out")
    if wishes.steps is None:
        raise ModelError(
            f"a {kind_of(x)} stands for sequences of any length; certimap.from_object(model, steps=...) reads it "
            "for one length"
        )
    return check_whole("steps", wishes.steps, "a whole number from 1", ModelError, low=1)


def symbol_names(steps: int, n_features: int) -> list[list[str]]:
    """Return the names of each step's emissions: symbol3, or symbol3_0, symbol3_1, ... for several."""
    if n_features == 1:
        return [[SYMBOL.format(t)] for t in range(steps)]
    return [[f"{SYMBOL.format(t)}_{j}" for j in range(n_features)] for t in range(steps)]


def read_sequence(
    build: Callable[[int], Model], n_states: int, steps: int, theirs: Callable[[Floats], Any]
) -> Reading:
    """Return a sequence model, with a shorter one for comparison with the library.

    `build`: makes the model for a number of steps; hidden states come first. `n_states`, `steps`: the numbers of
    hidden states and of steps. `theirs`: returns the log values of sequences, shape (n, steps, n_features), hidden
    states summed out.
    """
    short = min(steps, 2 if n_states <= MOST_STATES else 1)
    compared = build(short)

    def values(points: Floats) -> Any:
        return theirs(points[:, short:].reshape(len(points), short, -1))

    return Reading(compared if short == steps else build(steps), values, compared, hidden=range(short))


def discrete_chain(chain: Chain, tables: Sequence[Floats], steps: int) -> BayesianNetwork | MarkovNetwork:
    """Build a network from one table of emissions per feature, shape (K, M) each.

    With weights of the last state, or transition rows that do not add to 1, it is a Markov network whose total is
    the weight of all sequences of this length.
    """
    k = len(chain.start)
    variables = [Categorical(STATE.format(t), tuple(range(k))) for t in range(steps)]
    for row in symbol_names(steps, len(tables)):
        variables += [
            Categorical(name, tuple(range(table.shape[1]))) for name, table in zip(row, tables, strict=True)
        ]
    factors = [Factor((0,), chain.start)]
    factors += [Factor((t - 1, t), chain.move) for t in range(1, steps)]
    n = len(tables)
    factors += [Factor((t, steps + t * n + j), tables[j]) for t in range(steps) for j in range(n)]
    if chain.end is not None:
        return MarkovNetwork(Domain(variables), [*factors, Factor((steps - 1,), chain.end)])
    return BayesianNetwork(Domain(variables), factors)


def real_chain(chain: Chain, n_features: int, emission: Emission, steps: int) -> Circuit:
    """Build a circuit for emissions of real features, with the hidden states as variables.

    Cost: steps times the square of the number of states, in edges.
    """
    k = len(chain.start)
    symbols = symbol_names(steps, n_features)
    variables: list[Variable] = [Categorical(STATE.format(t), tuple(range(k))) for t in range(steps)]
    variables += [Real(name) for row in symbols for name in row]
    builder = CircuitBuilder(Domain(variables))
    log_start, log_move = logs(chain.start), logs(chain.move)
    log_end = np.zeros(k) if chain.end is None else logs(chain.end)
    below: list[int] = []
    for t in reversed(range(steps)):
        own: list[int] = []
        for state in range(k):
            weight = log_end[state] if t == steps - 1 else 0.0
            here = builder.categorical(t, log_weights=[weight if s == state else -math.inf for s in range(k)])
            first = steps + t * n_features
            parts = [here, emission(builder, range(first, first + n_features), state)]
            if below:
                parts.append(builder.sum(below, log_weights=log_move[state].tolist()))
            own.append(builder.product(parts))
        below = own
    builder.sum(below, log_weights=log_start.tolist())
    return builder.build(normalised=False)


def gaussian_product(builder: CircuitBuilder, variables: Sequence[int], means: Floats, sds: Floats) -> int:
    """Add a product of Gaussians, one per variable."""
    leaves = [
        builder.gaussian(v, float(mean), float(sd)) for v, mean, sd in zip(variables, means, sds, strict=True)
    ]
    return leaves[0] if len(leaves) == 1 else builder.product(leaves)


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
