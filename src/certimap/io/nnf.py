"""`.nnf`: deterministic decomposable formulas from c2d and d4; weights of literals come from elsewhere.

c2d (and Dsharp, miniC2D), children before parents, nodes numbered by their lines from 0, the last one the root:

    nnf NODES EDGES VARIABLES
    L LITERAL
    A COUNT CHILD ...                       a conjunction; A 0 is true
    O VARIABLE COUNT CHILD ...              a disjunction; O 0 0 is false

d4, nodes and arcs in any order, node 1 the root; the literals on an arc hold below it:

    o ID 0      a ID 0      t ID 0      f ID 0
    PARENT CHILD LITERAL ... 0
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

from certimap.circuits.circuit import Circuit
from certimap.circuits.nodewise import OwnNode
from certimap.errors import ParseError
from certimap.io.circuit_records import children_first
from certimap.io.files import AnyPath
from certimap.io.logic import FALSE, TRUE, LogicBuilder, Weights, log_weights
from certimap.io.node_lines import Line, NodeLines
from certimap.io.second_reading import compared

_D4_KINDS = ("o", "a", "t", "f")


def read_nnf(path: AnyPath, encoding: str | None = None, weights: Weights | None = None) -> Circuit:
    """Read a formula as a circuit over variables named "1", "2", ... with the states False and True.

    `weights` of literals are given by number or as a file (see `certimap.io.logic`); None for 1 each, so
    that every model of the formula is equally probable. An unsatisfiable formula is refused.
    """
    found, n_variables = log_weights(weights, path, encoding)
    lines = NodeLines(path, encoding, None)
    if lines.lines[0].words[0] == "nnf":
        lines = NodeLines(path, encoding, "nnf")
        return _read_c2d(lines, found, n_variables)
    return _read_d4(lines, found, n_variables)


def _read_c2d(lines: NodeLines, weights: dict[int, float], n_variables: int) -> Circuit:
    header = lines.header
    assert header is not None  # requested above
    counts = lines.integers(header, "a count")
    lines.expect(header, len(counts) == 3, "nnf NODES EDGES VARIABLES")
    rows = [_c2d_row(lines, line) for line in lines]
    largest = max((abs(row[0]) for row, line in zip(rows, lines, strict=True) if line.words[0] == "L"), default=0)
    builder = LogicBuilder(lines.path, lines.check_variables(max(largest, counts[2], n_variables), header))
    nodes: dict[int, int] = {}
    for k, (row, line) in enumerate(zip(rows, lines, strict=True)):
        if line.words[0] == "L":
            nodes[k] = builder.literal(row[0])
        elif line.words[0] == "A":
            nodes[k] = builder.conjunction(lines.children(line, row[1:], nodes))
        else:
            nodes[k] = builder.disjunction(lines.children(line, row[2:], nodes))
    if len(nodes) != counts[0]:
        raise lines.fail(f"the file has {len(nodes)} nodes where its header says {counts[0]}", header)
    circuit = builder.circuit(nodes[len(nodes) - 1], weights)
    own = (_own_node(k, line.words[0], list(map(int, line.words[1:]))) for k, line in enumerate(lines))
    return compared(circuit, own, lines.path, weights)


def _own_node(key: Hashable, kind: str, row: list[int]) -> OwnNode:
    """Return the node of a line of c2d for a second evaluation."""
    if kind == "L":
        return OwnNode(key, variable=abs(row[0]), leaf=[0.0, -math.inf] if row[0] < 0 else [-math.inf, 0.0])
    return OwnNode(key, row[1:]) if kind == "A" else OwnNode(key, row[2:], [0.0] * row[1])


def _c2d_row(lines: NodeLines, line: Line) -> list[int]:
    """Return the numbers of a line; reject a wrong count."""
    kind, row = line.words[0], lines.integers(line, "a number of the node")
    if kind == "L":
        lines.expect(line, len(row) == 1 and row[0] != 0, "L LITERAL")
    elif kind == "A":
        lines.expect(line, len(row) >= 1 and len(row) == 1 + row[0], "A COUNT CHILD ...")
    elif kind == "O":
        lines.expect(line, len(row) >= 2 and len(row) == 2 + row[1], "O VARIABLE COUNT CHILD ...")
    else:
        raise lines.fail(f"{line.words[0][:20]!r} is no kind of node; expected L, A or O", line)
    return row


class _D4:
    """The nodes of a d4 file and their arcs."""

    def __init__(self, lines: NodeLines) -> None:
        self.lines = lines
        self.kinds: dict[int, str] = {}
        self.arcs: dict[int, list[tuple[int, list[int], Line]]] = {}  # child, literals and line by parent
        self.largest = 0
        for line in lines:
            if line.words[0] in _D4_KINDS:
                row = lines.integers(line, "an id")
                lines.expect(line, len(row) == 2 and row[1] == 0, "KIND ID 0")
                if row[0] in self.kinds:
                    raise lines.fail(f"the id {row[0]} is defined twice; expected once", line)
                self.kinds[row[0]] = line.words[0]
                continue
            row = lines.integers(line, "a number of an arc", 0)
            lines.expect(line, len(row) >= 3 and row[-1] == 0 and 0 not in row[:-1], "PARENT CHILD LITERAL ... 0")
            self.arcs.setdefault(row[0], []).append((row[1], row[2:-1], line))
            self.largest = max(self.largest, *map(abs, row[2:-1]), 0)
        for parent, below in self.arcs.items():
            for child, _, line in below:
                for key in (parent, child):
                    if key not in self.kinds:
                        raise lines.fail(f"the node {key} is not defined", line)


def _read_d4(lines: NodeLines, weights: dict[int, float], n_variables: int) -> Circuit:
    graph = _D4(lines)
    if 1 not in graph.kinds:
        raise lines.fail("no node has the id 1, which is the root; expected one")
    builder = LogicBuilder(lines.path, lines.check_variables(max(graph.largest, n_variables)))
    nodes: dict[int, int] = {}

    def cycle(parent: int, child: int) -> ParseError:
        line = next(line for to, _, line in graph.arcs[parent] if to == child)
        return lines.fail(f"the arcs form a cycle through node {child}", line)

    order = children_first(1, lambda node: [child for child, _, _ in graph.arcs.get(node, ())], cycle)
    for node in order:
        kind = graph.kinds[node]
        below = [
            builder.conjunction([*map(builder.literal, literals), nodes[child]])
            for child, literals, _ in graph.arcs.get(node, [])
        ]
        if kind in ("t", "f"):
            nodes[node] = TRUE if kind == "t" else FALSE
        elif kind == "a":
            nodes[node] = builder.conjunction(below)
        else:
            nodes[node] = builder.disjunction(below)
    return compared(builder.circuit(nodes[1], weights), _own_nodes(graph, order), lines.path, weights)


def _own_nodes(graph: _D4, order: Sequence[int]) -> Iterator[OwnNode]:
    """Yield the nodes of a d4 file for a second evaluation: literals, arcs with their place, and nodes."""
    for v in range(1, graph.largest + 1):
        yield _own_node(("L", v), "L", [v])
        yield _own_node(("L", -v), "L", [-v])
    for node in order:
        arcs = graph.arcs.get(node, [])
        for k, (child, literals, _) in enumerate(arcs):
            yield OwnNode((node, k), [child, *(("L", literal) for literal in literals)])
        kind, below = graph.kinds[node], [(node, k) for k in range(len(arcs))]
        is_sum = kind in ("o", "f")
        yield OwnNode(node, below if kind in ("o", "a") else (), [0.0] * len(below) if is_sum else None)
