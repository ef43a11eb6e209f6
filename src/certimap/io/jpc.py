"""`.jpc`: circuits of Juice (ProbabilisticCircuits.jl), `jpc NODES` and then a line per node, as `_LAYOUTS` shows.

Children stand before parents, and the last line is the root. Variables are numbered from 1; a binomial leaf has
the states 0 to N. pyjuice gives the same suffix to its pickles: see `certimap.io.pyjuice`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.circuits.nodewise import Leaf, OwnNode, log_normal
from certimap.core.domain import MAX_STATES, Categorical, Domain
from certimap.errors import ModelError, ParseError
from certimap.io import circuit_records as records
from certimap.io.circuit_records import Line, NodeLines, add_leaf
from certimap.io.files import AnyPath, read_bytes, write_text
from certimap.io.pyjuice import read_pyjuice

_LAYOUTS = {
    "L": "L ID VTREE LITERAL",
    "I": "I ID VTREE VARIABLE STATE",
    "C": "C ID VTREE VARIABLE LOG-PROBABILITY ...",
    "B": "B ID VTREE VARIABLE N LOG-P",
    "G": "G ID VTREE VARIABLE MEAN SD",
    "P": "P ID VTREE COUNT CHILD ...",
    "S": "S ID VTREE COUNT {CHILD LOG-WEIGHT} ...",
}


def read_jpc(path: AnyPath, encoding: str | None = None) -> Circuit:
    """Read a circuit; variables are named by their numbers in the file, from "1".

    A variable with only literals as leaves has the states False and True, others 0, 1, ....
    """
    data = read_bytes(path)
    if data[:1] == b"\x80":
        return read_pyjuice(path, data)
    return _Reader(NodeLines(path, encoding, "jpc")).circuit()


class _Reader:
    """Two passes over the lines: first the variables, then the nodes."""

    def __init__(self, lines: NodeLines) -> None:
        self.lines = lines
        self.known: dict[int, int] = {}

    def circuit(self) -> Circuit:
        self.builder = CircuitBuilder(self.domain())
        node = -1
        for line in self.lines:
            key = self.lines.integers(line, "the id", 1, 2)[0]
            try:
                node = self.node(line)
            except ParseError:
                raise
            except ModelError as error:
                raise self.lines.fail(str(error), line) from None
            records.define(self.lines, line, self.known, key, node)
        return records.finished(self.builder, map(_own_node, self.lines), self.lines.path)

    def domain(self) -> Domain:
        """Return the variables, after checking the layout of every line."""
        sizes: dict[int, int] = {}
        others: set[int] = set()  # variables with other leaves than literals
        leaves: list[int] = []
        for line in self.lines:
            variable, size = self.leaf(line)
            if variable == 0:
                continue
            if not records.joined_size(sizes, variable, size):
                raise self.lines.fail(f"variable {variable} is real and discrete; expected one or the other", line)
            if line.words[0] != "L":
                others.add(variable)
            leaves.append(variable)
        n = self.lines.check_variables(max(sizes, default=0))
        if sum(sizes[v] for v in leaves) > records.MAX_ENTRIES:
            text = f"has leaves with more than {records.MAX_ENTRIES:,} entries in all, the most accepted"
            raise self.lines.fail(text)
        return records.numbered(sizes, range(1, n + 1), set(range(1, n + 1)) - others)

    def leaf(self, line: Line) -> tuple[int, int]:
        """Return a leaf's variable and the number of states needed (0 if real); (0, 0) for other nodes."""
        kind, words = line.words[0], line.words
        if kind not in _LAYOUTS:
            raise self.lines.fail(f"{kind[:20]!r} is no kind of node; expected {', '.join(_LAYOUTS)}", line)
        lengths = {"L": 4, "I": 5, "B": 6, "G": 6}
        fits = len(words) == lengths[kind] if kind in lengths else len(words) > 4
        self.lines.expect(line, fits, _LAYOUTS[kind])
        head = self.lines.integers(line, "a number of the node", 1, 4)
        if kind in ("P", "S"):
            self.lines.expect(line, len(words) == 4 + head[2] * (1 if kind == "P" else 2), _LAYOUTS[kind])
            return 0, 0
        variable = abs(head[2]) if kind == "L" else head[2]
        size = {"L": 2, "G": 0, "C": len(words) - 4}.get(kind, 0)
        if kind in ("I", "B"):
            size = self.lines.integers(line, "a number of states", 4, 5)[0] + 1
        if variable < 1 or not (kind == "G" or 1 <= size <= MAX_STATES):
            text = f"variable {variable} with {size} states is none"
            raise self.lines.fail(f"{text}; expected variables from 1 and up to {MAX_STATES} states", line)
        return variable, size

    def node(self, line: Line) -> int:
        kind, words, lines = line.words[0], line.words, self.lines
        if kind == "P":
            return self.builder.product(lines.children(line, lines.integers(line, "a child", 4), self.known))
        if kind == "S":
            given = lines.integers(Line(words[4::2], line.number), "a child", 0)
            return self.builder.sum(
                lines.children(line, given, self.known), log_weights=lines.log_weights(line, words[5::2])
            )
        variable = abs(lines.integers(line, "a variable", 3, 4)[0]) - 1
        if kind == "L":
            return self.builder.indicator(variable, 0 if words[3].startswith("-") else 1)
        if kind == "I":
            return self.builder.indicator(variable, lines.integers(line, "a state", 4, 5)[0])
        if kind == "G":
            mean, sd = lines.log_weights(line, words[4:])
            return add_leaf(self.builder, variable, (mean, sd))
        own = lines.log_weights(line, words[4:]) if kind == "C" else self.binomial(line)
        return add_leaf(self.builder, variable, own)

    def binomial(self, line: Line) -> list[float]:
        n = self.lines.integers(line, "N", 4, 5)[0]
        log_p = self.lines.log_probability(line, line.words[5], "0")
        log_q = records.log_complement(log_p)
        ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(n + 1))
        rest = [(k * log_p if k else 0.0, (n - k) * log_q if n > k else 0.0) for k in range(n + 1)]
        return [way + ones + zeros for way, (ones, zeros) in zip(ways, rest, strict=True)]


def _own_node(line: Line) -> OwnNode:
    """Return the node of a line for a second evaluation."""
    kind, key, _, *words = line.words
    if kind in "PS":
        step = 1 if kind == "P" else 2
        logs = None if kind == "P" else [float(word) for word in words[2::2]]
        return OwnNode(int(key), [int(word) for word in words[1::step]], logs)
    first, numbers = int(words[0]), [float(word) for word in words[1:]]
    leaf: Leaf = log_normal(*numbers) if kind == "G" else numbers
    if kind == "L":
        leaf = [-math.inf, 0.0] if first > 0 else [0.0, -math.inf]
    elif kind == "I":
        leaf = [-math.inf] * int(words[1]) + [0.0]
    elif kind == "B":
        n, log_p, log_q = int(words[1]), numbers[1], records.log_complement(numbers[1])
        ratios = [math.log((n - k) / (k + 1)) + log_p - log_q for k in range(n)] if log_p else []
        leaf = list(itertools.accumulate(ratios, initial=n * log_q)) if log_p else [-math.inf] * n + [0.0]
    return OwnNode(int(key), variable=abs(first), leaf=leaf)


def write_jpc(model: Circuit, path: AnyPath) -> None:
    """Write a circuit; variables and states become numbers, and log weights read back exactly.

    Variables named by rising numbers keep them; others are numbered from 1.

    Raises ModelError for a kind of leaf that Juice lacks.
    """
    numbers = records.numbers_of(model.domain.names, 1)
    lines = [f"jpc {model.n_nodes}"]
    for node, kind in enumerate(model.kind.tolist()):
        below: list[int] = model.children_of(node).tolist()
        variable = numbers[int(model.leaf_var[node])]
        own: list[float] = model.params_of(node).tolist()
        if kind == NodeKind.PRODUCT:
            lines.append(f"P {node} 0 {len(below)} {' '.join(map(str, below))}")
        elif kind == NodeKind.SUM:
            logs = model.log_weights[model.child_ptr[node] : model.child_ptr[node + 1]].tolist()
            pairs = " ".join(f"{child} {log!r}" for child, log in zip(below, logs, strict=True))
            lines.append(f"S {node} 0 {len(below)} {pairs}")
        elif kind == NodeKind.GAUSSIAN:
            lines.append(f"G {node} 0 {variable} {own[0]!r} {own[1]!r}")
        elif kind != NodeKind.CATEGORICAL:
            raise ModelError(f"node {node} is a leaf of a kind that .jpc does not have; .npz holds any model")
        else:
            lines.append(_discrete(model, node, own, variable))
    write_text(path, "\n".join(lines) + "\n")


def _discrete(model: Circuit, node: int, own: list[float], number: int) -> str:
    """Return the line of a categorical leaf, as an indicator if possible."""
    possible = np.flatnonzero(np.array(own) > -np.inf)
    if len(possible) == 1 and own[int(possible[0])] == 0.0:
        described = model.domain.variables[int(model.leaf_var[node])]
        if isinstance(described, Categorical) and described.states == (False, True):
            return f"L {node} 0 {'' if possible[0] else '-'}{number}"
        return f"I {node} 0 {number} {possible[0]}"
    return f"C {node} 0 {number} {' '.join(map(repr, own))}"
