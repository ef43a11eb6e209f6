"""Builders of common networks: hidden Markov models and naive Bayes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.arguments import check_whole
from certimap.core.domain import Categorical, Domain, Label
from certimap.errors import ModelError
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor


def hidden_markov_model(
    start: Any,
    transition: Any,
    emission: Any,
    steps: int,
    *,
    states: Sequence[Label] | None = None,
    symbols: Sequence[Label] | None = None,
    names: tuple[str, str] = ("state{}", "symbol{}"),
) -> BayesianNetwork:
    """Build a hidden Markov model of a fixed length as a network.

    Parameters
    ----------
    start
        P(first state), shape (K,).
    transition
        P(next state | state), shape (K, K).
    emission
        P(symbol | state), shape (K, M).
    steps
        The number of steps, at least 1.
    states, symbols
        Labels; 0..K-1 and 0..M-1 by default.
    names
        Name patterns of the variables of step t; {} is replaced by t, from 0.

    Returns
    -------
    BayesianNetwork
        The states, then the symbols. Query the states for the most probable path (Viterbi), or the symbols for the
        most probable output with the states summed out.

    Raises
    ------
    ModelError
        When shapes do not fit, a row is no distribution, or `steps` is below 1.

    Notes
    -----
    Cost: linear in the steps; tables are shared.
    """
    first, move, emit = (np.asarray(a, np.float64) for a in (start, transition, emission))
    k = len(first) if first.ndim == 1 else 0
    if k == 0 or move.shape != (k, k) or emit.ndim != 2 or len(emit) != k:
        raise ModelError(
            f"start, transition and emission have the shapes {first.shape}, {move.shape} and {emit.shape}; "
            "(K,), (K, K) and (K, M) are expected"
        )
    steps = check_whole("steps", steps, "a whole number from 1", ModelError, low=1)
    for what, rows in (("start", first), ("transition", move), ("emission", emit)):
        empty = np.flatnonzero(rows.reshape(-1, rows.shape[-1]).sum(axis=1) == 0.0)
        if len(empty):
            row = f"row {empty[0]} of {what}" if rows.ndim > 1 else what
            raise ModelError(f"{row} adds to 0; expected probabilities that add to 1")
    labels = _labels(states, k, "states"), _labels(symbols, emit.shape[1], "symbols")
    variables = [
        Categorical(pattern.format(t), own)
        for pattern, own in zip(names, labels, strict=True)
        for t in range(steps)
    ]
    factors = [Factor((0,), first)]
    factors += [Factor((t - 1, t), move) for t in range(1, steps)]
    factors += [Factor((t, steps + t), emit) for t in range(steps)]
    return BayesianNetwork(Domain(variables), factors)


def naive_bayes(
    name: str, prior: Mapping[Label, float], features: Mapping[str, Mapping[Label, Mapping[Label, float]]]
) -> BayesianNetwork:
    """Build a class variable with features that are independent given the class.

    Parameters
    ----------
    name, prior
        The class variable, and the probability of each of its labels.
    features
        For each feature a mapping from class labels to its distribution (a mapping from labels); a missing label
        has probability 0.

    Raises
    ------
    ModelError
        For a class without a row, or a row that does not add to 1.
    """
    classes = tuple(prior)
    states = {name: classes}
    tables: dict[str, Any] = {name: [prior[c] for c in classes]}
    for feature, rows in features.items():
        lacking = [c for c in classes if c not in rows]
        if lacking:
            raise ModelError(f"feature {feature!r} has no row for {name}={lacking[0]!r}; each class needs one")
        labels = tuple(dict.fromkeys(label for c in classes for label in rows[c]))
        states[feature] = labels
        tables[feature] = np.array([[rows[c].get(label, 0.0) for label in labels] for c in classes])
    return BayesianNetwork.from_cpts(states, {feature: [name] for feature in features}, tables)


def _labels(given: Sequence[Label] | None, n: int, what: str) -> tuple[Label, ...]:
    if given is None:
        return tuple(range(n))
    if len(given) != n:
        raise ModelError(f"{len(given)} {what} are named and {n} are there; one name each is expected")
    return tuple(given)


Array = NDArray[np.float64]
