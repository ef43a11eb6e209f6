"""Describes the query of a proof in words: a valid proof may be about a different query than you meant."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import numpy as np

from certimap.checker.models import Arrays, Question
from certimap.checker.numbers import Floats

Variables = Sequence[Mapping[str, Any]]


def shown(x: float, digits: int, rounding: str = ROUND_CEILING, less: float = 0.0) -> str:
    """Return x - less to `digits` digits, rounded so that the text claims no more than the proof."""
    found = Context(prec=digits, rounding=rounding).subtract(Decimal(str(x)), Decimal(str(less)))
    return f"{float(found):.{digits}g}"


def question_in_words(
    variables: Variables, question: Question, answers: Sequence[Mapping[str, Any]], arrays: Arrays
) -> str:
    """Return the answers, the evidence, and how many variables are summed out."""
    said = "; ".join(", ".join(f"{_name(k)}={_label(x)}" for k, x in answer.items()) for answer in answers)
    evidence: list[str] = []
    n_summed = 0
    for v, variable in enumerate(variables):
        if "states" in variable:
            given, is_fixed = _of_states(variable["states"], question.weights_of(v))
        else:
            given, is_fixed = _of_interval(variable["interval"], np.asarray(arrays["intervals"], np.float64)[v])
        evidence += [f"{_name(variable['name'])} {given}"] if given else []
        n_summed += not is_fixed and v not in question.queried
    return (
        f"answer: {said}\nevidence: {', '.join(evidence) or 'none'}\n"
        f"summed out: {n_summed} of {len(variables)} variables"
    )


def _of_states(states: Sequence[Any], logs: Floats) -> tuple[str, bool]:
    """Return the evidence on a variable in words, and whether it leaves a single state."""
    left = [_label(s) for s, w in zip(states, logs.tolist(), strict=True) if w > -math.inf]
    if np.all(logs == 0.0):
        return "", False
    if np.all((logs == 0.0) | (logs == -np.inf)):
        return f"= {left[0]}" if len(left) == 1 else f"in {{{', '.join(left)}}}", len(left) == 1
    return f"has the log likelihoods {logs.tolist()}", len(left) == 1


def _of_interval(whole: Sequence[float], given: Floats) -> tuple[str, bool]:
    low, high = max(float(whole[0]), float(given[0])), min(float(whole[1]), float(given[1]))
    if low == high:
        return f"= {low}", True
    return ("" if low <= whole[0] and high >= whole[1] else f"in [{low}, {high}]"), False


def _label(label: Any) -> str:
    """Return a label as in the file; JSON escapes the control characters that a terminal would obey."""
    return label if isinstance(label, str) and label.isalnum() else json.dumps(label)


def _name(name: str) -> str:
    return name if name.isprintable() else json.dumps(name)
