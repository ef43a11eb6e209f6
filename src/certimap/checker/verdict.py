"""The checker: reads a claim, computes the answer's value, excludes the rest of the space, states what is proved.

Small models are also checked by enumeration in decimals of 60 digits.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.boxes import caps_of, check_boxes, check_every_point, check_residual, read_points
from certimap.checker.buckets import ProofBuckets
from certimap.checker.circuit import circuit_of, read_graph, values_at
from certimap.checker.constraints import TOGETHER, PlainRules
from certimap.checker.elimination import check_vectors
from certimap.checker.file import Proof
from certimap.checker.leaves import edges_of, in_cells, with_own_codes
from certimap.checker.mixtures import check_mixture, products_of
from certimap.checker.models import (
    FLOAT,
    Arrays,
    CheckBudget,
    Question,
    ReducedModel,
    Rejected,
    Stored,
    fingerprint,
    reduce,
    refuse_huge,
    stored_tables,
    tables_of,
)
from certimap.checker.network import bounds_at, boxes_beside, value_at, work_of_a_point
from certimap.checker.normals import normals_of
from certimap.checker.numbers import UNIT, Floats, Ints
from certimap.checker.policies import check_policy
from certimap.checker.steps import check_steps
from certimap.errors import TooLarge

LARGEST_TOLERANCE = 1e-3
ANSWER_COST = 256  # bytes that each state of an answer may take
DRAWS = "draws"
KINDS = ("exact", "epsilon", "pac", "bound")
BOUNDING = "steps"  # the only method that also proves bounds alone
DIGITS = 60
MARGIN = Decimal(10) ** -40  # relative; far above what 60 digits lose in a model this small
MAX_WORK = 3_000_000  # joint states times edges, or joint states of all variables times tables
LISTED_ENTRIES = 2**22  # of a sum's table, for all points of a batch
WORK_COST = 160  # bytes of a number of 60 digits
Values = Iterator[tuple[tuple[int, ...], Decimal]]


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
    answers: Ints  # states of the query variables, one row for each answer; 0 where a variable is real
    values: Floats  # values of the query variables, one row for each answer; NaN where a variable is categorical
    question: Question  # the query, in which real variables have no states
    rules: PlainRules  # the constraints on an answer

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
        asked = {name: _places_of(variables[v]) for name, v in zip(answers[0], queried, strict=True)}
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
        rules = PlainRules.of(proof.meta.get("constraints", []), variables, question, budget)
        if not np.all(rules.satisfied(states)):
            raise Rejected("an answer does not satisfy the constraints")
        log_upper = float(stated["log_upper"]) if kind == "bound" else math.inf
        if kind == "bound" and not math.isfinite(log_upper):
            raise Rejected(f"the claim's bound is {log_upper}")
        log_joint = None if log_joint is None else float(log_joint)
        return cls(kind, method, epsilon, delta, tolerance, log_upper, log_joint, states, values, question, rules)

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
            found = f"{shown(log_value, 9, ROUND_FLOOR)}, {shown(self.log_upper, 3, less=log_value)} less"
            upper = f"no assignment is worth more than ln p(q, e) = {shown(self.log_upper, 9)}"
            return f"accepted: {upper}, and the answer is worth {found}"
        within, k = f"within a relative {shown(self.tolerance, 3)}", len(self.answers)
        epsilon = shown(self.epsilon, 3)
        if self.kind == "pac":
            whose = "the answer" if k == 1 else f"the {k} answers"
            given = f"accepted: the figures give {whose} epsilon {epsilon} and delta {shown(self.delta, 3)}"
            return f"{given}, if the draws were what they are said to be"
        last = "the answer" if k == 1 else f"the last of the {k} answers"
        if self.kind == "exact":
            return f"accepted: no{'' if k == 1 else ' other'} assignment is more probable than {last} ({within})"
        times, best = shown(1.0, 6, ROUND_FLOOR, self.epsilon), "the best" if k == 1 else "any other assignment"
        return f"accepted: {last} is at least {times} times as probable as {best} (epsilon {epsilon}, {within})"


def _places_of(variable: Stored) -> dict[str, int] | None:
    """Return each state's index by its JSON text; None for a real variable."""
    states: list[Any] | None = variable.get("states")
    return None if states is None else {json.dumps(state): k for k, state in enumerate(states)}


def _positions(
    asked: Mapping[str, dict[str, int] | None], answer: Stored, budget: CheckBudget
) -> tuple[list[int], list[float]]:
    """Return the state indices and real values of an answer; 1, 1.0 and True are different labels."""
    budget.look()
    states, values = [0] * len(asked), [math.nan] * len(asked)
    if list(answer) != list(asked):
        raise Rejected("the answers name different variables")
    for k, (places, label) in enumerate(zip(asked.values(), answer.values(), strict=True)):
        if places is None:
            values[k] = float(label)
        else:
            found = places.get(json.dumps(label))
            if found is None:
                raise Rejected(f"the answer names {label!r}, which is no state of its variable")
            states[k] = found
    return states, values


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
    given, summed = ", ".join(evidence) or "none", f"{n_summed} of {len(variables)} variables"
    return f"answer: {said}\nevidence: {given}\nsummed out: {summed}"


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


def largest_value(
    kind: str, sizes: Ints, arrays: Arrays, question: Question, answers: Ints, budget: CheckBudget,
    rules: PlainRules,
) -> tuple[Decimal, Decimal]:  # fmt: skip
    """Return the least value of an answer, and the largest of other feasible states, unless TooLarge."""
    if np.any(sizes == 0):
        raise TooLarge("values of a real variable cannot be listed")
    with localcontext(Context(prec=DIGITS, Emin=-(10**9), Emax=10**9)):
        if kind == "circuit":
            values = dict(_circuit_values(arrays, question, budget))
        elif kind in ("bayesian", "markov"):
            values = dict(_network_values(sizes, arrays, question, budget))
        else:
            raise TooLarge("such a model is not read in exact numbers")
        least = min(values.pop(tuple(answer)) for answer in answers.tolist())
        is_feasible = rules.satisfied(np.array([*values], np.int64).reshape(-1, len(question.queried)))
        return least, max(itertools.compress(values.values(), is_feasible), default=least)


def _exp(log_value: float) -> Decimal:
    return Decimal(0) if log_value == -math.inf else Decimal(log_value).exp()


def _decimals(values: Floats, of: Any) -> NDArray[np.object_]:
    return np.array([of(x) for x in values.reshape(-1).tolist()], object).reshape(values.shape)


def _points(question: Question, work: float, budget: CheckBudget) -> Iterator[tuple[int, ...]]:
    sizes: list[int] = question.query_sizes.tolist()
    if math.prod(sizes) * work > MAX_WORK:
        raise TooLarge(f"{math.prod(sizes):,} joint states are too many to list in exact numbers")
    budget.need(WORK_COST * math.prod(sizes) * work, "enumeration in exact numbers")
    return itertools.product(*(range(k) for k in sizes))


def _circuit_values(arrays: Arrays, question: Question, budget: CheckBudget) -> Values:
    graph = read_graph(arrays, question, {}, budget)
    points = list(_points(question, 1.0 + len(graph.log_weights), budget))
    weights = [_exp(w) for w in graph.log_weights.tolist()]
    ptr, children = graph.ptr.tolist(), graph.children.tolist()
    logs, place = graph.tables(arrays, question, {}, 1), {v: k for k, v in enumerate(question.queried.tolist())}
    of_variable = [[_exp(w) for w in question.weights_of(v).tolist()] for v in range(len(question.sizes))]
    order = np.argsort(graph.heights, kind="stable").tolist()
    values: list[Any] = [None] * len(order)  # per node: its values at all points; for a summed-out leaf, one value
    index = np.array(points, np.int64).reshape(len(points), -1)
    for i in order:
        budget.look()
        edges, v = range(ptr[i], ptr[i + 1]), int(graph.variable[i])
        if v >= 0:
            table = np.array([_exp(t) * w for t, w in zip(logs[i].tolist(), of_variable[v], strict=False)], object)
            values[i] = table[index[:, place[v]]] if v in place else table.sum()
        elif graph.is_sum[i]:
            values[i] = sum((weights[e] * values[children[e]] for e in edges), Decimal(0))
        else:
            values[i] = math.prod((values[children[e]] for e in edges), start=Decimal(1))
    yield from zip(points, values[graph.root], strict=True)


def _network_values(sizes: Ints, arrays: Arrays, question: Question, budget: CheckBudget) -> Values:
    hidden = [v for v in range(len(sizes)) if v not in set(question.queried.tolist())]
    spaces = [np.flatnonzero(question.weights_of(v) > -np.inf).tolist() for v in hidden]
    stored = list(stored_tables(sizes, arrays))
    n_states = float(math.prod(len(s) for s in spaces))
    points = _points(question, n_states * (len(stored) + len(sizes)), budget)
    if sum(table.size for _, table, _ in stored) > MAX_WORK / 30:
        raise TooLarge("the model's tables are too large to be written in exact numbers")
    factors = [(scope, _decimals(table, _exp if in_logs else Decimal)) for scope, table, in_logs in stored]
    factors += [((v,), _decimals(question.weights_of(v), _exp)) for v in range(len(sizes))]
    assignment = [0] * len(sizes)
    for point in points:
        budget.look()
        total = Decimal(0)
        for states in itertools.product(*spaces):
            for v, a in zip([*question.queried.tolist(), *hidden], [*point, *states], strict=True):
                assignment[v] = a
            total += math.prod((t[tuple(assignment[v] for v in scope)] for scope, t in factors), start=Decimal(1))
        yield point, total


BOUND_ALONE = "the solver's certificate ({}, epsilon {}): the file proves a bound alone"
DRAWS_UNCHECKED = (
    "that the draws were independent, from p(q | e) inside the boxes then open, of the mass recorded "
    "(seed {seed} replays them)",
    "that no box closed before a draw held anything above the bound it was closed at",
)


@dataclass(frozen=True)
class Verdict:
    """What the checker found.

    - `accepted`: whether the claim follows from the model and the proof.
    - `message`: the statement proved, or the step that fails.
    - `log_joint`: ln p(answer, e) as computed by the checker, rounded down; NaN if the check ended before that.
    - `unchecked`: the assumptions of a probabilistic claim that no file can show; also a solver's certificate that
      claims more than the proof.
    - `asked`: the query: the answers, the evidence, and the number of variables summed out, one line each.
    """

    accepted: bool
    message: str
    log_joint: float = math.nan
    unchecked: tuple[str, ...] = ()
    asked: str = ""

    def __bool__(self) -> bool:
        return self.accepted


def check_arrays(
    kind: str, variables: Sequence[Stored], arrays: Arrays, proof: Proof, *, hidden: Sequence[str] = (),
    exact: bool = False, budget: CheckBudget | None = None,
) -> Verdict:  # fmt: skip
    """Check a proof against a model; a proof that does not hold is rejected in a sentence, and raises no error.

    `kind`, `variables`, `arrays` and `hidden` are the model as the native format stores it: its kind, each
    variable's name and states, its numbers, and the names of variables that a query leaves out unless it names
    them. `exact` checks a small model once more by enumeration in exact numbers. After the seconds and bytes of
    `budget` (None: the defaults of `CheckBudget`) the check gives up and rejects.
    """
    budget = CheckBudget.starting_now() if budget is None else budget
    try:
        if proof.meta["model"] != fingerprint(kind, variables, arrays, hidden):
            raise Rejected("the proof is about another model: the fingerprints differ")
        _admit(proof.arrays, budget)
        arrays = with_own_codes(arrays) if kind == "circuit" else arrays
        return _checked(kind, variables, arrays, proof, exact, budget)
    except Rejected as reason:
        return Verdict(False, f"rejected: {reason}")
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return Verdict(False, f"rejected: the proof is damaged ({type(error).__name__}: {error})")
    except MemoryError:
        return Verdict(False, "rejected: checking the proof takes more memory than there is")


def _admit(arrays: Arrays, budget: CheckBudget) -> None:
    """Reject arrays that are not vectors or matrices of native numbers, and count their bytes."""
    for name, values in arrays.items():
        is_float = values.dtype.kind == "f" and values.dtype.itemsize == FLOAT
        if not (is_float or values.dtype.kind in "biu") or not values.dtype.isnative or values.ndim > 2:
            raise Rejected(f"the array {name!r} does not belong in a proof: {values.dtype} of {values.ndim} axes")
        budget.hold(max(values.nbytes, *values.shape, 0), f"the array {name!r}")


def _checked(
    kind: str, variables: Sequence[Stored], arrays: Arrays, proof: Proof, exact: bool, budget: CheckBudget
) -> Verdict:
    if kind == "decisions":
        low, high, allowed, question = check_policy(variables, arrays, proof, budget)
        asked = question_in_words(variables, question, [], arrays).split("\n")[1]
        sides = f"at least {shown(low, 9, ROUND_FLOOR)}, no policy more than {shown(high, 9)}"
        return Verdict(True, f"accepted: the policy brings {sides} (both within {shown(allowed, 3)})", asked=asked)
    claim = Claim.read(variables, proof, budget)
    if kind == "circuit":
        log_value = _circuit(variables, arrays, claim, proof, budget)
    elif kind == "linear-gaussian" or kind.endswith(":GaussianMixture"):
        log_value = _normal(kind, arrays, claim, proof, budget)
    else:
        log_value = _network(kind, arrays, claim, proof, budget)
    said = claim.statement(log_value) + (_exactly(kind, arrays, claim, budget) if exact else "")
    budget.look()
    answers = [proof.meta["answer"], *proof.meta.get("others", [])]
    asked = question_in_words(variables, claim.question, answers, proof.arrays)
    if claim.rules.automata:
        asked += f"\nconstraints: {json.dumps(proof.meta['constraints'])}"
    return Verdict(True, said, log_value, _unchecked(claim, proof), asked)


def _unchecked(claim: Claim, proof: Proof) -> tuple[str, ...]:
    """Return what the check must take on trust; every entry of the file is parsed before it is printed."""
    if claim.kind == "pac":
        seed = proof.meta["seed"]
        return tuple(text.format(seed=seed if seed is None else int(seed)) for text in DRAWS_UNCHECKED)
    if "certified" not in proof.meta:
        return ()
    kind, epsilon = (proof.meta["certified"][name] for name in ("kind", "epsilon"))
    if not 0.0 <= float(epsilon) < 1.0:
        raise Rejected(f"the solver's certificate has the epsilon {epsilon!r}")
    return (BOUND_ALONE.format(KINDS[KINDS.index(kind)], shown(float(epsilon), 3)),)


def _circuit(
    variables: Sequence[Stored], arrays: Arrays, claim: Claim, proof: Proof, budget: CheckBudget
) -> float:
    """Return the log value of the worst answer; reject a proof that does not cover the rest."""
    asked, given = claim.question, proof.arrays
    point = edges_of(variables, given, asked.queried, claim.values[0])
    cells = edges_of(variables, given, asked.queried)
    graph = read_graph(arrays, asked, cells, budget)
    at_point, at_most = in_cells(asked, point), in_cells(asked, cells)
    lower = graph.tables(arrays, at_point, point, -1)
    log_value = claim.least(values_at(graph, lower, at_point, claim.answers).tolist())
    threshold = claim.threshold(log_value)
    if claim.method == "mixture":
        if any(len(cells[v]) > 2 for v in cells):
            raise Rejected("a proof by 'mixture' cuts no variable into cells")
        parts = products_of(graph, arrays, at_most, cells)
        check_mixture(parts, _columns(asked), threshold, budget, claim.rules, asked.query_offsets)
        return log_value
    circuit = circuit_of(graph, graph.tables(arrays, at_most, cells, 1), at_most)
    is_countable = bool(np.all(asked.query_sizes > 0))  # real variables are observed or summed out
    if claim.method == DRAWS:
        _check_draws(claim, proof, log_value - circuit.log_total, budget)
    elif claim.method == "enumeration" and is_countable:
        check_every_point(circuit, claim.rules, claim.answers, threshold)
    elif claim.method == "residual" and is_countable:
        points = read_points(given, asked.query_sizes, budget)
        lower = values_at(graph, lower, at_point, points)
        check_residual(circuit, claim.rules, points, lower, claim.answers, threshold)
    elif claim.method == "boxes":
        check_boxes(circuit, claim.rules, given, claim.answers, threshold, caps_of(circuit, given))
    else:
        raise Rejected(f"a proof by {claim.method!r} does not cover this circuit")
    return log_value


def _normal(kind: str, arrays: Arrays, claim: Claim, proof: Proof, budget: CheckBudget) -> float:
    """Check as `_circuit` does, for mixtures of Gaussians with covariances and linear-Gaussian networks."""
    if claim.method != "mixture" or claim.kind not in ("exact", "epsilon") or len(claim.answers) > 1:
        raise Rejected("of a mixture of Gaussians, one answer with delta 0 is proved, by the method 'mixture'")
    asked, columns = claim.question, _columns(claim.question)
    normals = normals_of(kind, arrays, asked, proof.arrays["intervals"], budget)
    is_real = asked.query_sizes == 0
    log_value = normals.log_value(claim.values[0][is_real], claim.answers[0][~is_real], columns)
    threshold = claim.threshold(claim.least([log_value]))
    check_mixture(normals, columns, threshold, budget, claim.rules, asked.query_offsets)
    return log_value


def _columns(question: Question) -> Ints:
    """Return the first state of each categorical query variable, then the number of all states."""
    sizes = question.query_sizes
    return np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).astype(np.int64)


def _network(kind: str, arrays: Arrays, claim: Claim, proof: Proof, budget: CheckBudget) -> float:
    """Return the log value of the worst answer; reject a proof that does not cover the rest."""
    free = reduce(*tables_of(kind, claim.question.sizes, arrays), claim.question)
    problem, answers = claim.rules.extended(free, claim.answers)
    if claim.method == BOUNDING:
        return _wide(problem, answers.tolist(), claim, proof, budget)
    if claim.method == "listing":
        return _listed(free, claim, proof, budget)
    tree = ProofBuckets.of(problem, budget=budget)
    points = [
        [np.arange(problem.sizes[v]) == a for v, a in zip(problem.queried, answer, strict=True)]
        for answer in answers.tolist()
    ]
    log_value = claim.least([tree.bound(point, -1) for point in points])
    threshold = claim.threshold(log_value)
    if claim.method == DRAWS:
        everything = ReducedModel(free.tables, free.sizes, [], free.log_constant)
        log_total = ProofBuckets.of(everything, budget=budget).bound([], 1)
        _check_draws(claim, proof, log_value - log_total, budget)
    elif claim.method == "vectors":
        check_vectors(tree, points, threshold, 0.5 * claim.slack, proof.arrays)
    else:
        raise Rejected(f"a proof by {claim.method!r} does not cover a network")
    return log_value


def _order_in(proof: Proof, problem: ReducedModel) -> list[int]:
    """Return the order in which a proof sums out the hidden variables at a point."""
    order = proof.arrays["order"]
    if order.ndim != 1 or order.dtype.kind != "i" or len(order) > len(problem.sizes):
        raise Rejected("the order of an answer's sums is no list of variables")
    return order.tolist()


def _listed(problem: ReducedModel, claim: Claim, proof: Proof, budget: CheckBudget) -> float:
    """Check as `_network` does, by listing the assignments that satisfy the constraints."""
    order, known = _order_in(proof, problem), {tuple(answer) for answer in claim.answers.tolist()}
    log_value = claim.least([value_at(problem, answer, -1, order, budget) for answer in known])
    threshold = claim.threshold(log_value)
    together = max(1, min(TOGETHER, LISTED_ENTRIES // work_of_a_point(problem, order)[0]))
    for points in claim.rules.points(claim.question.query_sizes, together):
        is_near = ~(bounds_at(problem, points, order, budget) <= threshold)
        for point in points[is_near].tolist():
            if tuple(point) not in known and not value_at(problem, point, 1, order, budget) <= threshold:
                raise Rejected(f"the joint state {point} is worth more than the claim allows")
    return log_value


def _wide(
    problem: ReducedModel, answers: Sequence[list[int]], claim: Claim, proof: Proof, budget: CheckBudget
) -> float:
    """Check as `_network` does, by steps, for networks too wide to eliminate."""
    order = _order_in(proof, problem)
    log_value = claim.least([value_at(problem, answer, -1, order, budget) for answer in answers])
    beside = answers[:1] if claim.kind == "bound" else answers  # a bound is on answers too
    boxes = boxes_beside(problem, beside, budget)
    check_steps(problem, boxes, proof.arrays, claim.threshold(log_value), budget)
    return log_value


def _check_draws(claim: Claim, proof: Proof, log_prob: float, budget: CheckBudget) -> None:
    """Recompute the evidence of draws that found nothing better; the draws themselves cannot be checked."""
    log_r, closed, counts = (np.asarray(proof.arrays[name]) for name in ("log_open", "log_closed", "counts"))
    budget.need(10.0 * FLOAT * max(log_r.size, counts.size), "the record of draws")
    if not log_r.shape == closed.shape == counts.shape == counts.shape[:1] or counts.dtype.kind != "i":
        raise Rejected("the record of draws is damaged")
    if not np.all(np.isfinite(log_r)) or not np.all(closed < np.inf) or np.any(counts < 0):
        raise Rejected("the record of draws is damaged: it has numbers that no draws have")
    if not np.all(closed[1:] >= closed[:-1]):
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
        needs = f"delta {claim.delta:g} needs {needed:.6g}"
        raise Rejected(f"the draws give {evidence:.6g} nats of evidence, and {needs}")


def _exactly(kind: str, arrays: Arrays, claim: Claim, budget: CheckBudget) -> str:
    sizes = claim.question.sizes
    try:
        value, largest = largest_value(kind, sizes, arrays, claim.question, claim.answers, budget, claim.rules)
    except TooLarge as reason:
        return f"; not repeated in exact numbers, for {reason}"
    allowed = value * (1 + type(value)(claim.tolerance)) / (1 - type(value)(claim.epsilon))
    if claim.kind == "bound":
        allowed, largest = type(value)(claim.log_upper).exp(), max(value, largest)
    if not largest <= allowed * (1 + MARGIN):
        raise Rejected("in exact numbers an assignment is more probable than the claim allows")
    return "; enumeration in exact numbers agrees"
