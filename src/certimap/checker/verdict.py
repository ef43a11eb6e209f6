"""The checker: reads a claim, works out what the answer is worth, and has the rest of the space excluded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.asked import question_in_words, shown
from certimap.checker.boxes import SplitTree, check_boxes, check_every_point
from certimap.checker.buckets import Buckets, value_at
from certimap.checker.caps import caps_of
from certimap.checker.circuit import Circuit, circuit_of
from certimap.checker.clock import Clock
from certimap.checker.exact import MARGIN, largest_value
from certimap.checker.file import Proof
from certimap.checker.kept import check_kept
from certimap.checker.models import (
    Arrays,
    Question,
    Reduced,
    Rejected,
    fingerprint,
    reduce,
    refuse_huge,
    tables_of,
)
from certimap.checker.numbers import UNIT, Floats, up
from certimap.checker.real import Edges, edges_of
from certimap.checker.relaxed import Relaxation, check_relaxed
from certimap.checker.sets import check_sets
from certimap.checker.steps import check_steps
from certimap.errors import TooLarge

LARGEST_TOLERANCE = 1e-3
DRAWS = "draws"
KINDS = ("exact", "epsilon", "pac", "bound")
BOUND_ALONE = "the solver's certificate ({}, epsilon {}): the file proves a bound alone"
DRAWS_UNCHECKED = (
    "that the draws were independent, from p(q | e) inside the boxes then open, of the mass recorded "
    "(seed {seed} replays them)",
    "that no box closed before a draw held anything above the bound it was closed at",
)


@dataclass(frozen=True)
class Verdict:
    """What the checker found.

    Attributes
    ----------
    accepted
        Whether the claim follows from the model and the proof.
    message
        What is proved, or which step fails.
    log_joint
        ln p(answer, e) as the checker works it out, rounded down; NaN where it did not come so far.
    unchecked
        What a claim that holds with some probability rests on, and cannot be seen in a file; and a certificate
        that says more than what is proved.
    asked
        What is accepted is about: the answers, the evidence, and how many variables are summed out; a line each.
    """

    accepted: bool
    message: str
    log_joint: float = math.nan
    unchecked: tuple[str, ...] = ()
    asked: str = ""

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(frozen=True, eq=False)
class Claim:
    """A proof's claim, read and found sensible.

    Attributes
    ----------
    answers
        States of the query variables, one row for each answer; 0 where a variable is real.
    values
        The same for real variables; NaN where one is categorical.
    question
        The query; of real variables it has no states.
    """

    kind: str
    epsilon: float
    delta: float
    tolerance: float
    log_upper: float
    answers: NDArray[np.int64]
    values: Floats
    question: Question

    @property
    def slack(self) -> float:
        """ln(1 + tolerance), rounded down."""
        return math.log1p(self.tolerance) * (1.0 - 4.0 * UNIT)

    def threshold(self, log_value: float) -> float:
        """Return the largest log value that refutes nothing, for answers worth `log_value` at least."""
        terms = [log_value, -math.log1p(-self.epsilon), self.slack]
        return math.fsum(terms) - (4.0 + 4.0 * sum(map(abs, terms))) * UNIT


def check_arrays(
    kind: str,
    variables: Sequence[Mapping[str, Any]],
    arrays: Arrays,
    proof: Proof,
    *,
    hidden: Sequence[str] = (),
    exact: bool = False,
    time_limit: float | None = None,
) -> Verdict:
    """Check a proof against a model.

    Parameters
    ----------
    kind, variables, arrays, hidden
        The model as the native format stores it: its kind, each variable's name and states, its numbers, and the
        names of variables that a query leaves out unless it names them.
    proof
        The proof.
    exact
        Check a small model once more by enumeration in exact numbers.
    time_limit
        Seconds after which the check gives up, and rejects; None: none.

    Returns
    -------
    Verdict
        Rejected, with a sentence, for any proof that does not hold; a proof raises nothing.
    """
    try:
        if proof.meta["model"] != fingerprint(kind, variables, arrays, hidden):
            raise Rejected("the proof is about another model: the fingerprints differ")
        return _checked(kind, variables, arrays, proof, exact, Clock.starting_now(time_limit))
    except Rejected as reason:
        return Verdict(False, f"rejected: {reason}")
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return Verdict(False, f"rejected: the proof is damaged ({type(error).__name__}: {error})")
    except MemoryError:
        return Verdict(False, "rejected: checking the proof takes more memory than there is")


def _checked(
    kind: str, variables: Sequence[Mapping[str, Any]], arrays: Arrays, proof: Proof, exact: bool, clock: Clock
) -> Verdict:
    claim = _claim(variables, proof)
    if kind == "circuit":
        log_value, refuted = _circuit(variables, arrays, claim, proof, clock)
    else:
        log_value, refuted = _network(kind, arrays, claim, proof, clock)
    if refuted is not None:
        raise Rejected(refuted)
    said = "" if not exact else _exactly(kind, arrays, claim)
    clock.look()
    answers = [proof.meta["answer"], *proof.meta.get("others", [])]
    asked = question_in_words(variables, claim.question, answers, proof.arrays)
    return Verdict(True, _statement(claim, log_value) + said, log_value, _unchecked(claim, proof), asked)


def _unchecked(claim: Claim, proof: Proof) -> tuple[str, ...]:
    """Return what has to be believed; of what the file says nothing is printed that is not read first."""
    if claim.kind == "pac":
        seed = proof.meta["seed"]
        return tuple(text.format(seed=seed if seed is None else int(seed)) for text in DRAWS_UNCHECKED)
    if "certified" not in proof.meta:
        return ()
    kind, epsilon = (proof.meta["certified"][name] for name in ("kind", "epsilon"))
    return (BOUND_ALONE.format(KINDS[KINDS.index(kind)], shown(float(epsilon), 3)),)


def _least(proof: Proof, log_values: list[float]) -> float:
    """Return the smallest value of an answer; refuse impossible ones, and a first one not worth its claim."""
    claimed, first = proof.meta["claim"]["log_joint"], log_values[0]
    if first == -math.inf:
        raise Rejected("the answer has probability 0")
    if not all(value < math.inf for value in log_values):
        raise Rejected("an answer is worth more than can be told")
    if claimed is not None and not abs(float(claimed) - first) <= 1e-7 * (1.0 + abs(first)):
        raise Rejected(f"the answer is worth ln p(q, e) = {first:.12g}, and {claimed} is claimed")
    return min(log_values)


def _claim(variables: Sequence[Mapping[str, Any]], proof: Proof) -> Claim:
    """Read the claim; refuse one that makes no sense, whatever proves it."""
    stated = proof.meta["claim"]
    kind = stated["kind"]
    epsilon, delta, tolerance = (float(stated[name]) for name in ("epsilon", "delta", "tolerance"))
    if kind not in KINDS:
        raise Rejected(f"the claim is of the kind {kind!r}; expected exact, epsilon, pac or bound")
    if (kind == "pac") != (proof.meta["method"] == DRAWS):
        raise Rejected("a claim with delta above 0 needs the method 'draws', and this method such a claim")
    if kind == "bound" and proof.meta["method"] not in ("relaxation", "steps"):
        raise Rejected("a bound alone needs the method 'relaxation' or 'steps'")
    if not 0.0 <= epsilon < 1.0 or (kind == "exact" and epsilon != 0.0):
        raise Rejected(f"the claim's epsilon is {epsilon}, which a claim of the kind {kind!r} cannot have")
    if not 0.0 <= delta < 1.0 or (delta > 0.0) != (kind == "pac"):
        raise Rejected(f"the claim's delta is {delta}, which a claim of the kind {kind!r} cannot have")
    if not 0.0 < tolerance <= LARGEST_TOLERANCE:
        raise Rejected(f"the claim's tolerance is {tolerance}; expected above 0 and at most {LARGEST_TOLERANCE}")
    sizes = np.array([len(v.get("states", ())) for v in variables], np.int64)
    names = [v["name"] for v in variables]
    answers: list[dict[str, Any]] = [proof.meta["answer"], *proof.meta.get("others", [])]
    queried = [names.index(name) for name in answers[0]]
    rows = [_positions([variables[v] for v in queried], answer) for answer in answers]
    states, values = np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows])
    if len(np.unique(states, axis=0)) != len(states) or (len(states) > 1 and not np.all(sizes[queried])):
        raise Rejected("an answer is listed twice, or several where a variable is real")
    log_weights = np.asarray(proof.arrays["log_weights"], np.float64)
    if log_weights.shape != (int(sizes.sum()),):
        raise Rejected("the proof's evidence does not fit the model")
    refuse_huge(log_weights, "the proof's evidence")
    if not queried:
        raise Rejected("the query has no variables")
    question = Question(sizes, np.array(queried, np.int64), log_weights)
    log_upper = float(stated["log_upper"]) if kind == "bound" else math.inf
    return Claim(kind, epsilon, delta, tolerance, log_upper, states, values, question)


def _positions(queried: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Return where an answer's labels stand, and its real values; 1, 1.0 and True are different labels."""
    states, values = [0] * len(queried), [math.nan] * len(queried)
    if list(answer) != [variable["name"] for variable in queried]:
        raise Rejected("the answers name different variables")
    for k, (variable, label) in enumerate(zip(queried, answer.values(), strict=True)):
        if "states" not in variable:
            values[k] = float(label)
            continue
        coded = [json.dumps(state) for state in variable["states"]]
        if json.dumps(label) not in coded:
            raise Rejected(f"the answer names the state {label!r}, which its variable has not")
        states[k] = coded.index(json.dumps(label))
    return states, values


def _in_cells(question: Question, edges: Edges) -> Question:
    """Return a question in which real variables have their cells for states."""
    sizes, logs = question.sizes.copy(), list(np.split(question.log_weights, question.offsets[1:-1]))
    for v, ends in edges.items():
        sizes[v], logs[v] = len(ends) - 1, np.zeros(len(ends) - 1)
    return Question(sizes, question.queried, np.concatenate(logs))


def _circuit(
    variables: Sequence[Mapping[str, Any]], arrays: Arrays, claim: Claim, proof: Proof, clock: Clock
) -> tuple[float, str | None]:
    """Return the value of the worst answer, and why not all of the rest is covered, or None."""
    asked, given = claim.question, proof.arrays
    point = edges_of(variables, given, asked.queried, claim.values[0])
    below = circuit_of(arrays, _in_cells(asked, point), point, -1)
    cells = edges_of(variables, given, asked.queried)
    above = circuit_of(arrays, _in_cells(asked, cells), cells, 1)
    log_value = _least(proof, below.values(claim.answers).tolist())
    method, threshold = proof.meta["method"], claim.threshold(log_value)
    if method == DRAWS:
        return log_value, _draws(claim, proof, log_value - above.total())
    is_countable = bool(np.all(asked.query_sizes > 0))  # what is real is observed, or summed out
    if method == "enumeration" and is_countable:
        return log_value, check_every_point(above, claim.answers, threshold, clock)
    if method == "residual" and is_countable:
        return log_value, _residual(above, below, claim, proof, threshold)
    if method != "boxes":
        raise Rejected(f"a proof by {method!r} is none that covers this circuit")
    tree = SplitTree.read(given, above.columns)
    caps = caps_of(above, given, clock)
    return log_value, check_boxes(above, tree, claim.answers, threshold, caps, clock)


def _residual(above: Circuit, below: Circuit, claim: Claim, proof: Proof, threshold: float) -> str | None:
    """Check that what is not listed cannot hold the probability of a better assignment."""
    points = np.asarray(proof.arrays["points"]).astype(np.int64)
    sizes = claim.question.query_sizes
    if points.ndim != 2 or points.shape[1] != len(sizes) or np.any((points < 0) | (points >= sizes)):
        raise Rejected("the points evaluated do not fit the query")
    if len(np.unique(points, axis=0)) != len(points):
        raise Rejected("a point is listed twice")
    values, total = above.values(points), above.total()
    rivals = values[~np.any(np.all(points[:, None] == claim.answers, axis=2), axis=1)]
    if not np.all(rivals <= threshold):
        return f"a listed assignment has the log value {float(rivals.max()):.12g}, above {threshold:.12g}"
    listed = math.fsum(np.exp(up(below.values(points) - total, -8.0)))
    left = 1.0 - listed + 16.0 * UNIT
    if not float(up(total + math.log(max(left, UNIT)), 8.0)) <= threshold:
        return f"the points listed leave a probability of {left:.6g}, which may hold a better assignment"
    return None


def _network(kind: str, arrays: Arrays, claim: Claim, proof: Proof, clock: Clock) -> tuple[float, str | None]:
    """Return the value of the worst answer, and why not all of the rest is covered, or None."""
    tables, all_sizes = tables_of(kind, claim.question.sizes, arrays)
    problem = reduce(tables, all_sizes, claim.question)
    if proof.meta["method"] in ("relaxation", "steps"):
        return _wide(problem, claim, proof, clock)
    tree = Buckets.of(problem)
    points = [
        [np.arange(all_sizes[v]) == a for v, a in zip(problem.queried, answer, strict=True)]
        for answer in claim.answers.tolist()
    ]
    log_value = _least(proof, [tree.bound(point, -1) for point in points])
    method, threshold = proof.meta["method"], claim.threshold(log_value)
    if method == DRAWS:
        everything = Buckets.of(Reduced(problem.tables, problem.sizes, [], problem.log_constant))
        return log_value, _draws(claim, proof, log_value - everything.bound([], 1))
    if method == "vectors":
        return log_value, check_kept(tree, points, threshold, 0.5 * claim.slack, proof.arrays, clock)
    if method != "sets":
        raise Rejected(f"a proof by {method!r} is none that covers a network")
    return log_value, check_sets(tree, points, threshold, 0.5 * claim.slack, clock)


def _wide(problem: Reduced, claim: Claim, proof: Proof, clock: Clock) -> tuple[float, str | None]:
    """The same by steps or a relaxation, for networks too wide to be eliminated; hidden variables fit."""
    log_value = _least(proof, [value_at(problem, answer, -1) for answer in claim.answers.tolist()])
    threshold = claim.log_upper if claim.kind == "bound" else claim.threshold(log_value)
    if proof.meta["method"] == "steps":
        if len(claim.answers) > 1:
            raise Rejected("a proof by 'steps' is of one answer")
        return log_value, check_steps(problem, proof.arrays, threshold, clock)
    relaxation = Relaxation.read(proof.arrays, problem)
    columns = claim.question.query_offsets
    tree = SplitTree.read(proof.arrays, columns)

    def value_of(point: list[int]) -> float:
        return value_at(problem, point, 1)

    return log_value, check_relaxed(relaxation, tree, columns, claim.answers, threshold, value_of, clock)


def _draws(claim: Claim, proof: Proof, log_prob: float) -> str | None:
    """Recompute the evidence of draws that missed anything better; the draws themselves cannot be seen."""
    log_r, closed, counts = (np.asarray(proof.arrays[name]) for name in ("log_open", "log_closed", "counts"))
    if not log_r.shape == closed.shape == counts.shape or counts.dtype.kind != "i" or np.any(counts < 0):
        raise Rejected("the record of draws is damaged")
    if np.any(np.isnan(log_r) | np.isnan(closed)) or np.any(np.diff(closed) < 0.0):
        raise Rejected("the record of draws is damaged: closed bounds fall")
    log_tau = log_prob - math.log1p(-claim.epsilon)
    valid = closed <= log_tau + claim.slack
    with np.errstate(divide="ignore"):
        misses = -np.log1p(-np.exp(np.minimum(log_tau - log_r, 0.0)))
    if proof.meta["rule"] == "published":
        misses = np.full(len(counts), math.exp(min(log_tau, 0.0)))
    evidence = float(np.sum(np.where(valid & (counts > 0), counts * misses, 0.0))) * (1.0 - 1e-9)
    needed = math.log(len(claim.answers) / claim.delta)
    if not evidence >= needed * (1.0 - 1e-8):
        return f"the draws give {evidence:.6g} nats of evidence, and delta {claim.delta:g} needs {needed:.6g}"
    return None


def _exactly(kind: str, arrays: Arrays, claim: Claim) -> str:
    sizes = claim.question.sizes
    try:
        value, largest = largest_value(kind, sizes, arrays, claim.question, claim.answers)
    except TooLarge as reason:
        return f"; not repeated in exact numbers, for {reason}"
    allowed = value * (1 + type(value)(claim.tolerance)) / (1 - type(value)(claim.epsilon))
    if claim.kind == "bound":
        allowed, largest = type(value)(claim.log_upper).exp(), max(value, largest)
    if largest > allowed * (1 + MARGIN):
        raise Rejected("in exact numbers an assignment is more probable than the claim allows")
    return "; enumeration in exact numbers agrees"


def _statement(claim: Claim, log_value: float) -> str:
    if claim.kind == "bound":
        return (
            f"accepted: no assignment is worth more than ln p(q, e) = {shown(claim.log_upper, 9)}, and the answer "
            f"is worth {shown(log_value, 9, ROUND_FLOOR)}, {shown(claim.log_upper, 3, less=log_value)} less"
        )
    within, k = f"within a relative {shown(claim.tolerance, 3)}", len(claim.answers)
    epsilon = shown(claim.epsilon, 3)
    if claim.kind == "exact":
        said = "no assignment is more probable than the answer"
        if k > 1:
            said = f"no other assignment is more probable than the last of the {k} answers"
        return f"accepted: {said} ({within})"
    if claim.kind == "epsilon":
        said = "the answer is", "the best"
        if k > 1:
            said = f"the last of the {k} answers is", "any other assignment"
        return (
            f"accepted: {said[0]} at least {shown(1.0, 6, ROUND_FLOOR, claim.epsilon)} times as probable as "
            f"{said[1]} (epsilon {epsilon}, {within})"
        )
    what = "the answer" if k == 1 else f"the {k} answers"
    return (
        f"accepted: the figures give {what} epsilon {epsilon} and delta {shown(claim.delta, 3)}, "
        "if the draws were what they are said to be"
    )
