"""Small models checked by enumeration: in rationals, or with 60 digits where a model stores logs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.graph import Graph, read_graph, smooth
from certimap.checker.models import Arrays, Question
from certimap.checker.numbers import Ints
from certimap.errors import TooLarge

Number = Fraction | Decimal
DIGITS = 60
MARGIN = Decimal(10) ** -40  # relative; far above what 60 digits lose in a model this small
MAX_WORK = 3_000_000  # joint states times edges, or joint states of all variables times tables


def largest_value(
    kind: str, sizes: Ints, arrays: Arrays, question: Question, answers: NDArray[np.int64]
) -> tuple[Decimal, Decimal]:
    """Return the smallest value of an answer and the largest value of any other joint state of the query.

    Raises TooLarge for more joint states than can be listed, and for real variables.
    """
    if np.any(sizes == 0):
        raise TooLarge("values of a real variable cannot be listed")
    with localcontext(Context(prec=DIGITS, Emin=-(10**9), Emax=10**9)):
        if kind == "circuit":
            found = _circuit_values(sizes, arrays, question)
        elif kind in ("bayesian", "markov"):
            found = _network_values(sizes, arrays, question)
        else:
            raise TooLarge("such a model is not read in exact numbers")
        values = {point: _decimal(value) for point, value in found}
        least = min(values.pop(tuple(answer)) for answer in answers.tolist())
        return least, max(values.values(), default=least)


def _decimal(value: Number) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value.numerator) / Decimal(value.denominator)


def _exp(log_value: float) -> Decimal:
    return Decimal(0) if log_value == -math.inf else Decimal(log_value).exp()


def _points(question: Question, work: float) -> Iterator[tuple[int, ...]]:
    sizes = question.query_sizes.tolist()
    if math.prod(sizes) * work > MAX_WORK:
        raise TooLarge(f"{math.prod(sizes):,} joint states are too many to list in exact numbers")
    return itertools.product(*(range(k) for k in sizes))


def _circuit_values(sizes: Ints, arrays: Arrays, question: Question) -> Iterator[tuple[tuple[int, ...], Number]]:
    nothing = np.zeros(len(sizes), np.bool_)
    graph = smooth(read_graph(sizes, arrays, {}, question.queried, 1), len(sizes), nothing, sizes, {})
    weights = [_exp(float(w)) for w in graph.log_weights]
    tables = [
        [
            _exp(float(t)) * _exp(float(w))
            for t, w in zip(graph.tables[i], question.weights_of(int(graph.variable[i])), strict=False)
        ]
        if graph.is_leaf[i]
        else []
        for i in range(len(graph.is_leaf))
    ]
    place = {int(v): k for k, v in enumerate(question.queried)}
    for point in _points(question, float(len(weights))):
        yield point, _evaluated(graph, weights, tables, place, point)


def _evaluated(
    graph: Graph,
    weights: Sequence[Decimal],
    tables: Sequence[Sequence[Decimal]],
    place: dict[int, int],
    point: Sequence[int],
) -> Decimal:
    values: list[Decimal] = []
    for i in range(len(graph.is_leaf)):
        edges = range(int(graph.ptr[i]), int(graph.ptr[i + 1]))
        if graph.is_leaf[i]:
            v = int(graph.variable[i])
            values.append(tables[i][point[place[v]]] if v in place else sum(tables[i], Decimal(0)))
        elif graph.is_sum[i]:
            values.append(sum((weights[e] * values[int(graph.children[e])] for e in edges), Decimal(0)))
        else:
            values.append(math.prod((values[int(graph.children[e])] for e in edges), start=Decimal(1)))
    return values[-1]


def _network_values(sizes: Ints, arrays: Arrays, question: Question) -> Iterator[tuple[tuple[int, ...], Number]]:
    in_logs = arrays["in_logs"].tolist() if "in_logs" in arrays else [False] * len(arrays["scope_lengths"])
    soft = not np.all(np.isin(question.log_weights, [0.0, -np.inf])) or any(in_logs)

    def number(value: float) -> Any:
        return Decimal(value) if soft else Fraction(value)

    factors: list[tuple[list[int], NDArray[np.object_]]] = []
    at = done = 0
    for length, is_log in zip(arrays["scope_lengths"].tolist(), in_logs, strict=True):
        scope = arrays["scopes"][at : at + length].tolist()
        shape = [int(sizes[v]) for v in scope]
        flat = arrays["tables"][done : done + math.prod(shape)].tolist()
        entries = [_exp(x) if is_log else number(x) for x in flat]
        factors.append((scope, np.array(entries, object).reshape(shape)))
        at, done = at + length, done + len(flat)
    for v in range(len(sizes)):
        logs = question.weights_of(v).tolist()
        factors.append(([v], np.array([_exp(w) if soft else number(math.exp(w)) for w in logs], object)))
    hidden = [v for v in range(len(sizes)) if v not in set(question.queried.tolist())]
    spaces = [np.flatnonzero(question.weights_of(v) > -np.inf).tolist() for v in hidden]
    assignment = [0] * len(sizes)
    for point in _points(question, float(math.prod(len(s) for s in spaces) * len(factors))):
        for v, a in zip(question.queried.tolist(), point, strict=True):
            assignment[v] = a
        total = number(0)
        for states in itertools.product(*spaces):
            for v, a in zip(hidden, states, strict=True):
                assignment[v] = a
            total += math.prod(
                (table[tuple(assignment[v] for v in scope)] for scope, table in factors), start=number(1)
            )
        yield point, total
