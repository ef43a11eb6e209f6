"""Small models checked by enumeration in decimals of 60 digits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.graph import read_graph
from certimap.checker.models import Arrays, CheckBudget, Question, stored_tables
from certimap.checker.numbers import Floats, Ints
from certimap.errors import TooLarge

DIGITS = 60
MARGIN = Decimal(10) ** -40  # relative; far above what 60 digits lose in a model this small
MAX_WORK = 3_000_000  # joint states times edges, or joint states of all variables times tables
WORK_COST = 160  # bytes of a number of 60 digits
Values = Iterator[tuple[tuple[int, ...], Decimal]]


def largest_value(
    kind: str, sizes: Ints, arrays: Arrays, question: Question, answers: NDArray[np.int64], budget: CheckBudget
) -> tuple[Decimal, Decimal]:
    """Return the smallest value of an answer, and the largest value of any other joint state of the query.

    Raises TooLarge if there are too many joint states to list, or a real variable.
    """
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
        return least, max(values.values(), default=least)


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
