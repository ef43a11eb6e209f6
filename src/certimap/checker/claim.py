"""The claim of a proof: reads it, checks its numbers, and states it and its query in words."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.file import Proof
from certimap.checker.models import Arrays, CheckBudget, Question, Rejected, Stored, refuse_huge
from certimap.checker.numbers import UNIT, Floats


def shown(x: float, digits: int, rounding: str = ROUND_CEILING, less: float = 0.0) -> str:
    """Return x - less to `digits` digits, rounded so that the text claims no more than the proof."""
    found = Context(prec=digits, rounding=rounding).subtract(Decimal(str(x)), Decimal(str(less)))
    return f"{float(found):.{digits}g}"


def question_in_words(
    variables: Sequence[Stored], question: Question, answers: Sequence[Stored], arrays: Arrays
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


LARGEST_TOLERANCE = 1e-3
ANSWER_COST = 256  # bytes that each state of an answer may take
DRAWS = "draws"
KINDS = ("exact", "epsilon", "pac", "bound")
BOUNDING = "steps"  # the only method that also proves bounds alone


@dataclass(frozen=True, eq=False)
class Claim:
    """The claim of a proof, its numbers checked."""

    kind: str
    method: str
    epsilon: float
    delta: float
    tolerance: float
    log_upper: float
    log_joint: float | None  # the claimed log value of the first answer (nats), or None
    # states of the query variables, one row for each answer; 0 where a variable is real
    answers: NDArray[np.int64]
    values: Floats  # values of the query variables, one row for each answer; NaN where a variable is categorical
    question: Question  # the query, in which real variables have no states

    @classmethod
    def read(cls, variables: Sequence[Stored], proof: Proof, budget: CheckBudget) -> Claim:
        """Read the claim; reject one that makes no sense, whatever its proof."""
        stated, method = proof.meta["claim"], proof.meta["method"]
        kind, log_joint = stated["kind"], stated["log_joint"]
        epsilon, delta, tolerance = (float(stated[name]) for name in ("epsilon", "delta", "tolerance"))
        if kind not in KINDS:
            raise Rejected(f"the claim is of the kind {kind!r}; expected exact, epsilon, pac or bound")
        if (kind == "pac") != (method == DRAWS):
            raise Rejected("a claim with delta above 0 needs the method 'draws', and this method such a claim")
        if kind == "bound" and method != BOUNDING:
            raise Rejected("a bound alone needs the method 'steps'")
        if not 0.0 <= epsilon < 1.0 or (kind == "exact" and epsilon != 0.0):
            raise Rejected(f"the claim's epsilon is {epsilon}, which a claim of the kind {kind!r} cannot have")
        if not 0.0 <= delta < 1.0 or (delta > 0.0) != (kind == "pac"):
            raise Rejected(f"the claim's delta is {delta}, which a claim of the kind {kind!r} cannot have")
        if not 0.0 < tolerance <= LARGEST_TOLERANCE:
            raise Rejected(f"the claim's tolerance is {tolerance}; expected above 0, at most {LARGEST_TOLERANCE}")
        sizes = np.array([len(v.get("states", ())) for v in variables], np.int64)
        place = {v["name"]: k for k, v in enumerate(variables)}
        answers: list[Stored] = [proof.meta["answer"], *proof.meta.get("others", [])]
        queried = [place[name] for name in answers[0]]
        budget.hold(ANSWER_COST * len(answers) * (1 + len(queried)), "the list of answers")
        asked = [_Asked.of(variables[v]) for v in queried]
        rows = [_positions(asked, answer, budget) for answer in answers]
        states, values = np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows])
        if len(np.unique(states, axis=0)) != len(states) or (len(states) > 1 and not np.all(sizes[queried])):
            raise Rejected("an answer is listed twice, or several where a variable is real")
        log_weights = proof.arrays["log_weights"]
        if log_weights.shape != (int(sizes.sum()),) or log_weights.dtype != np.float64:
            raise Rejected("the proof's evidence does not fit the model")
        refuse_huge(log_weights, "the proof's evidence")
        if not queried:
            raise Rejected("the query has no variables")
        question = Question(sizes, np.array(queried, np.int64), log_weights)
        log_upper = float(stated["log_upper"]) if kind == "bound" else math.inf
        if kind == "bound" and not math.isfinite(log_upper):
            raise Rejected(f"the claim's bound is {log_upper}")
        log_joint = None if log_joint is None else float(log_joint)
        return cls(kind, method, epsilon, delta, tolerance, log_upper, log_joint, states, values, question)

    @property
    def slack(self) -> float:
        """ln(1 + tolerance), rounded down."""
        return math.log1p(self.tolerance) * (1.0 - 4.0 * UNIT)

    def least(self, log_values: Sequence[float]) -> float:
        """Return the smallest log value; reject impossible answers, and a first value unlike the claimed one."""
        first = log_values[0]
        if first == -math.inf:
            raise Rejected("the answer has probability 0")
        if not all(value < math.inf for value in log_values):
            raise Rejected("an answer is worth more than can be told")
        if self.log_joint is not None and not abs(self.log_joint - first) <= 1e-7 * (1.0 + abs(first)):
            raise Rejected(f"the answer is worth ln p(q, e) = {first:.12g}, and {self.log_joint} is claimed")
        return min(log_values)

    def threshold(self, log_value: float) -> float:
        """Return the largest log value that any rival may have, for answers worth at least `log_value` (nats)."""
        if self.kind == "bound":
            return self.log_upper
        terms = [log_value, -math.log1p(-self.epsilon), self.slack]
        return math.fsum(terms) - (4.0 + 4.0 * sum(map(abs, terms))) * UNIT

    def statement(self, log_value: float) -> str:
        """State the proved claim in a sentence, for answers worth at least `log_value` (nats)."""
        if self.kind == "bound":
            return (
                f"accepted: no assignment is worth more than ln p(q, e) = {shown(self.log_upper, 9)}, and the "
                f"answer is worth {shown(log_value, 9, ROUND_FLOOR)}, "
                f"{shown(self.log_upper, 3, less=log_value)} less"
            )
        within, k = f"within a relative {shown(self.tolerance, 3)}", len(self.answers)
        epsilon = shown(self.epsilon, 3)
        if self.kind == "pac":
            return (
                f"accepted: the figures give {'the answer' if k == 1 else f'the {k} answers'} epsilon "
                f"{epsilon} and delta {shown(self.delta, 3)}, if the draws were what they are said to be"
            )
        last = "the answer" if k == 1 else f"the last of the {k} answers"
        if self.kind == "exact":
            return f"accepted: no{'' if k == 1 else ' other'} assignment is more probable than {last} ({within})"
        return (
            f"accepted: {last} is at least {shown(1.0, 6, ROUND_FLOOR, self.epsilon)} times as probable as "
            f"{'the best' if k == 1 else 'any other assignment'} (epsilon {epsilon}, {within})"
        )


@dataclass(frozen=True)
class _Asked:
    """A query variable: its name, and each state's index by its JSON text; None for a real variable."""

    name: str
    places: dict[str, int] | None

    @classmethod
    def of(cls, variable: Stored) -> _Asked:
        states: list[Any] | None = variable.get("states")
        places = None if states is None else {json.dumps(state): k for k, state in enumerate(states)}
        return cls(variable["name"], places)


def _positions(queried: Sequence[_Asked], answer: Stored, budget: CheckBudget) -> tuple[list[int], list[float]]:
    """Return the state indices and real values of an answer; 1, 1.0 and True are different labels."""
    budget.look()
    states, values = [0] * len(queried), [math.nan] * len(queried)
    if list(answer) != [variable.name for variable in queried]:
        raise Rejected("the answers name different variables")
    for k, (variable, label) in enumerate(zip(queried, answer.values(), strict=True)):
        if variable.places is None:
            values[k] = float(label)
        else:
            found = variable.places.get(json.dumps(label))
            if found is None:
                raise Rejected(f"the answer names {label!r}, which is no state of its variable")
            states[k] = found
    return states, values
