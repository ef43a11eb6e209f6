"""Shared parts of the readers of circuits: values, lines of nodes, the order of nodes, leaves, a second reading.

A second reading evaluates a file from its own nodes, and what was read of it has to agree. Each format yields the
nodes of its records or lines once more, by other code than its reader's, with the file's numbers of variables.
"""

from __future__ import annotations

import itertools
import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeGuard

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.nodewise import OwnNode, Point, drawn_point, free_variables, log_values, nodes_of
from certimap.core.arguments import is_list
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Real, Variable
from certimap.errors import ParseError
from certimap.io.files import AnyPath, cut, read_text

Record = Mapping[str, Any]
LeafValues = Sequence[float] | Floats | tuple[float, float] | tuple[float, float, None]  # see add_leaf
FREE_VARIABLES = 20_000  # limit on variables beyond one per node
MAX_ENTRIES = 2**25  # limit on entries of all leaves: one per state of their variable


def is_record(value: Any) -> TypeGuard[Record]:
    return isinstance(value, dict)


def items(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if is_list(value) else []


def shown(value: Any) -> str:
    """Show a value from a file, shortened."""
    return cut(value) if isinstance(value, str) else reprlib.repr(value)  # values may be deeply nested


def children_first(
    root: int, children: Callable[[int], Iterable[int]], cycle: Callable[[int, int], ParseError]
) -> list[int]:
    """Return the nodes below a root, children before parents; raise `cycle(parent, child)` at a cycle."""
    graph, waiting = dict[int, list[int]](), [root]
    while waiting:
        if (node := waiting.pop()) not in graph:
            graph[node] = list(children(node))
            waiting += graph[node]
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise cycle(error.args[1][1], error.args[1][0]) from None


def numbered(sizes: Mapping[int, int], numbers: Iterable[int], boolean: Collection[int] = ()) -> Domain:
    """Return variables named by numbers: binary without a size, real for size 0; `boolean` ones False and True."""
    variables: list[Variable] = []
    for v in numbers:
        size = sizes.get(v, 2)
        states = (False, True) if v in boolean else tuple(range(size))
        variables.append(Categorical(str(v), states) if size else Real(str(v)))
    return Domain(variables)


def joined_size(sizes: dict[int, int], variable: int, size: int) -> bool:
    """Raise a variable's number of states to `size`; False if it is discrete here and real elsewhere."""
    if (sizes.get(variable, size) == 0) != (size == 0):
        return False
    sizes[variable] = max(sizes.get(variable, 0), size)
    return True


def numbers_of(names: Sequence[str], low: int) -> list[int]:
    """Return the numbers of variables: their names, if these rise from `low` or more, else low, low + 1, ..."""
    called = [int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1 for name in names]
    is_rising = all(a < b for a, b in itertools.pairwise([low - 1, *called]))
    return called if is_rising else list(range(low, low + len(names)))


def add_leaf(builder: CircuitBuilder, variable: int, values: LeafValues) -> int:
    """Add a Gaussian (mean, sd), a uniform leaf (low, high, None), or log weights of the first states alone."""
    if isinstance(values, tuple):
        return builder.real("uniform" if len(values) == 3 else "gaussian", variable, *values[:2])
    size = int(builder.domain.n_states[variable])
    return builder.categorical(variable, log_weights=[*values, *[-math.inf] * (size - len(values))])


def over_own_variables(circuit: Circuit) -> Circuit:
    """Return the part below a circuit's root, over the variables of its leaves: files may skip numbers."""
    reached = circuit.reached()
    own = np.unique(circuit.leaf_var[reached & (circuit.leaf_var >= 0)])
    return circuit if len(own) == len(circuit.domain) else circuit.part(reached, own.astype(np.int64))


_INTEGER = re.compile(r"[+-]?\d{1,9}", re.ASCII)


@dataclass(frozen=True)
class Line:
    """The words of one line, and its number."""

    words: list[str]
    number: int


class NodeLines:
    """The lines of a file, without blank ones and comments (a first word `c`), after its `header`, if any."""

    def __init__(self, path: AnyPath, encoding: str | None, header: str | None) -> None:
        self.path = path
        lines = (Line(text.split(), k) for k, text in enumerate(read_text(path, encoding).split("\n"), 1))
        self.lines = [line for line in lines if line.words and line.words[0] != "c"]
        self.n_words = sum(len(line.words) for line in self.lines)
        self.header: Line | None = None
        if header is not None:
            first = self.header = self.lines.pop(0) if self.lines else None
            if first is None or first.words[0] != header:
                shown = "nothing" if first is None else cut(first.words[0])
                raise self.fail(f"the file begins with {shown}; expected {header!r} and its counts", first)
        if not self.lines:
            raise self.fail("has no node; expected one per line")
        if self.header is not None:
            (said,) = self.integers(self.header, "a count", 1, 2) or [0]
            if len(self.lines) < said:  # the last line is the root
                text = f"the file has {len(self.lines)} nodes where its header says {said}; it is cut short"
                raise self.fail(text, self.header)

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def fail(self, message: str, line: Line | None = None) -> ParseError:
        return ParseError(message, self.path, None if line is None else line.number)

    def integers(self, line: Line, what: str, start: int = 1, stop: int | None = None) -> list[int]:
        """Return words of a line as integers of at most nine digits."""
        words = line.words[start:stop]
        for word in words:
            if not _INTEGER.fullmatch(word):
                text = f"{cut(word)} stands where {what} is needed; expected an integer of at most nine digits"
                raise self.fail(text, line)
        return list(map(int, words))

    def log_weights(self, line: Line, words: Sequence[str]) -> list[float]:
        """Return words as natural logs: finite numbers or -inf."""
        found: list[float] = []
        for word in words:
            try:
                value = float(word) if "_" not in word else math.nan
            except ValueError:
                value = math.nan
            if math.isnan(value) or value == math.inf:
                raise self.fail(f"{cut(word)} is no log weight; expected finite numbers or -inf", line)
            found.append(value)
        return found

    def log_probability(self, line: Line, word: str, accepted: str) -> float:
        found = self.log_weights(line, [word])[0]
        if found > 0.0:
            raise self.fail(f"{word[:20]!r} is the log of a probability above 1; expected {accepted}", line)
        return found

    def check_variables(self, largest: int, line: Line | None = None) -> int:
        """Return the number of variables; reject one far above the number of words in the file."""
        if not 1 <= largest <= FREE_VARIABLES + self.n_words:
            text = f"the file has {largest:,} variables and {self.n_words:,} words; expected at least one variable"
            raise self.fail(f"{text}, and at most {FREE_VARIABLES:,} more than words", line)
        return largest

    def children(self, line: Line, given: Sequence[int], known: dict[int, int]) -> list[int]:
        """Return the nodes with some ids."""
        for child in given:
            if child not in known:
                raise self.fail(f"the child {child} is not defined on an earlier line", line)
        return [known[child] for child in given]

    def expect(self, line: Line, fits: bool, layout: str) -> None:
        """Reject a line with a wrong number of words."""
        if not fits:
            raise self.fail(f"{cut(' '.join(line.words))} does not follow {layout!r}", line)


def define(lines: NodeLines, line: Line, known: dict[int, int], key: int, node: int) -> None:
    """Give a node its id."""
    if key in known:
        raise lines.fail(f"the id {key} is defined twice; expected once", line)
    known[key] = node


def log_complement(log_p: float) -> float:
    """Return ln(1 - p)."""
    return math.log(-math.expm1(log_p)) if log_p < 0.0 else -math.inf


AGREEMENT = 1e-6  # nats, times 1 + |log|: a file's logs and weights differ by rounding
MOST_POINTS, LEAST_POINTS, WORK = 32, 2, 2**16  # points, and their number times edges: seconds for 20 MB


def compared(
    circuit: Circuit, nodes: Iterable[OwnNode], path: AnyPath, log_weights: dict[int, float] | None = None
) -> Circuit:
    """Return a circuit that agrees with the nodes of its file at seeded points; ParseError for any other.

    `circuit`: its variables have the file's numbers as names. `nodes`: children before parents. `log_weights`: of
    literals, for formulas. Half of the points are drawn from the circuit. In the others each variable is drawn by
    itself, and in files with weights some variables are summed out, in the first all.
    """
    if log_weights is None and (free := free_variables(circuit)):
        raise ParseError(f"was read as a circuit of variable {free[0]!r}, for which it has no leaf", path)
    numbers = [int(name) for name in circuit.domain.names]
    points = _points(circuit, log_weights is None)
    rows: list[Point] = [dict(zip(numbers, point, strict=True)) for point in points]
    ours = log_values(nodes_of(circuit), [dict(enumerate(point)) for point in points])
    theirs = log_values(nodes, rows)
    weights = log_weights or {}
    for row, our, own in zip(rows, ours, theirs, strict=True):
        own += sum(weights.get(v if state else -v, 0.0) for v, state in row.items())
        if not (our == own or abs(our - own) <= AGREEMENT * (1.0 + abs(our))):
            seen = [f"{v}={x:g}" for v, x in row.items() if x == x]
            shown = f"{', '.join(seen[:12])}{', ...' if len(seen) > 12 else ''}" or "of no variable"
            text = f"gives the assignment {shown} the log value {own:.9g}, and what was read of it {our:.9g}"
            raise ParseError(f"{text}; this file is not understood, and nothing is guessed", path)
    return circuit


def finished(builder: CircuitBuilder, nodes: Iterable[OwnNode], path: AnyPath) -> Circuit:
    """Return the circuit over the variables of its leaves, compared with the nodes of its file."""
    return compared(over_own_variables(builder.build(normalised=False)), nodes, path)


def _points(circuit: Circuit, sums_out: bool) -> list[list[float]]:
    rng = np.random.default_rng(0)
    n = min(MOST_POINTS, max(LEAST_POINTS, WORK // max(circuit.n_edges, 1)))
    drawn = np.array([drawn_point(circuit, rng) for _ in range(n)])
    free = drawn[: n // 2]
    rng.permuted(free, axis=0, out=free)
    is_discrete = circuit.domain.n_states > 0
    free[:, is_discrete] = rng.integers(circuit.domain.n_states[is_discrete], size=(len(free), is_discrete.sum()))
    if sums_out:
        free[rng.random(free.shape) < 0.3] = math.nan
        free[0] = math.nan
    return drawn.tolist()
