"""Chains of log scores for one sequence: conditional random fields of sklearn-crfsuite and pytorch-crf."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import Label
from certimap.core.logs import log_of
from certimap.errors import ModelError
from certimap.interop import reading
from certimap.interop.reading import Reading, Wishes, attribute, classes_of, numbers
from certimap.networks.chains import linear_chain
from certimap.networks.network import MarkovNetwork

MOST_STATES = 512  # up to this many hidden states, sequences of two steps are compared; beyond, of one step


class Scores(NamedTuple):
    """Log scores of a sequence, as `linear_chain` takes them."""

    unary: Floats
    pairwise: Floats
    states: Sequence[Label] | None = None


def read_scores(
    score: Callable[[Any], Scores], observations: Any, theirs: Callable[[Any, Floats, MarkovNetwork], Any], *,
    summed: bool,
) -> Reading:  # fmt: skip
    """Return the chain of a sequence of observations, with one of its first steps for comparison.

    `score`: returns the scores of some observations. `theirs`: the library's log values of observations at points,
    shape (n, steps), where it is given the chain that is compared; `summed`: whether it sums the states out.
    """
    scores = score(observations)
    first = observations[~np.isnan(observations).any(axis=1)] if summed else observations
    first = first[: 2 if scores.unary.shape[1] <= MOST_STATES else 1]
    if not len(first):
        raise ModelError("all observations are missing or there is none; expected one at least")
    compared = linear_chain(*score(first)[:2])
    model = linear_chain(*scores[:2], states=scores.states)
    hidden = range(len(first) if summed else 0)
    return Reading(model, lambda points: theirs(first, points, compared), compared, hidden=hidden)


def read_crf(x: Any, wishes: Wishes) -> Reading:
    """Read a conditional random field of sklearn-crfsuite or pytorch-crf, for one sequence."""
    if wishes.observations is None or wishes.names is not None or "CRF" not in classes_of(x):
        text = "expected a CRF with observations=..., the features of one sequence, and without names or steps"
        raise reading.refuse(x, text)
    if reading.library_of(x) == "torchcrf":
        return _torch_crf(x, numbers(wishes.observations))
    labels = tuple(reading.fitted(x, "classes_"))
    at = {label: i for i, label in enumerate(labels)}
    moves = np.zeros((len(labels), len(labels)))
    for (before, after), weight in attribute(x, "transition_features_").items():
        moves[at[before], at[after]] = weight
    by_feature: dict[str, Floats] = {}
    for (feature, label), weight in attribute(x, "state_features_").items():
        by_feature.setdefault(feature, np.zeros(len(labels)))[at[label]] = weight
    sequence_of = attribute(sys.modules["pycrfsuite"], "ItemSequence")

    def score(items: Any) -> Scores:
        unary = np.zeros((len(items), len(labels)))
        for t, item in enumerate(sequence_of(items).items()):
            unary[t] += sum(value * by_feature.get(feature, 0.0) for feature, value in item.items())
        return Scores(unary, moves, labels)

    def theirs(items: Any, points: Floats, ours: MarkovNetwork) -> Floats:
        attribute(x, "tagger_.set")(sequence_of(items))
        probability = attribute(x, "tagger_.probability")
        return log_of(np.array([probability([labels[int(s)] for s in p]) for p in points])) + ours.log_partition

    return read_scores(score, list(wishes.observations), theirs, summed=False)


def _torch_crf(x: Any, emissions: Floats) -> Reading:
    """Read start, moves and end of a field of pytorch-crf; the emissions have the shape (steps, K)."""
    start, end = numbers(attribute(x, "start_transitions")), numbers(attribute(x, "end_transitions"))
    if emissions.ndim != 2 or emissions.shape[1] != len(start) or not len(emissions):
        raise ModelError(
            f"observations has the shape {emissions.shape}; expected emissions, (steps, {len(start)})"
        )

    def score(rows: Floats) -> Scores:
        unary = rows.copy()
        unary[0] += start
        unary[-1] += end
        return Scores(unary, numbers(attribute(x, "transitions")))

    def theirs(rows: Floats, points: Floats, ours: MarkovNetwork) -> Floats:
        torch: Any = sys.modules["torch"]
        axis = 0 if attribute(x, "batch_first") else 1
        own = torch.as_tensor(np.stack([rows] * len(points), axis=axis).astype(np.float32))
        tags = torch.as_tensor(points.astype(np.int64) if axis == 0 else points.astype(np.int64).T)
        with torch.no_grad():
            return numbers(x(own, tags, reduction="none")) + ours.log_partition

    return read_scores(score, emissions, theirs, summed=False)
