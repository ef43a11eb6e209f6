"""Boolean circuits (conjunctions, disjunctions, literals) as circuits over variables that are False or True.

`.nnf`: deterministic decomposable formulas from c2d and d4. `.sdd`, `.psdd`: (probabilistic) sentential decision
diagrams of the SDD package and PySDD. docs/formats.md shows the lines of each, and those of weights of literals,
which come from a mapping or a file. Children stand before parents, and the last line is the root, except with d4,
where node 1 is. A file of the same name with the suffix .vtree, if present, gives the variables of diagrams; else
they are 1 to the largest that occurs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from os import PathLike

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.nodewise import OwnNode
from certimap.circuits.properties import smoothed
from certimap.core.domain import Categorical, Domain
from certimap.errors import ModelError, ParseError
from certimap.io.circuit_records import Line, NodeLines, children_first, compared, define, log_complement
from certimap.io.files import AnyPath, beside, cut, parsing, read_text
from certimap.io.words import log_of_text

TRUE, FALSE = -1, -2
MAX_SCOPE_BITS = 2**33  # limit on nodes times variables: the memory for the scopes of all nodes


class LogicBuilder:
    """Builds a circuit bottom-up; constants are folded, and each method returns a node, TRUE or FALSE.

    Disjunctions are assumed deterministic (no assignment makes two children true), as in d-DNNFs and SDDs: they
    become sums. Variables are called "1", "2", ... by default.
    """

    def __init__(self, path: AnyPath, n_variables: int, names: Sequence[str] | None = None) -> None:
        self.path = path
        self.n_variables = n_variables
        own = map(str, range(1, n_variables + 1)) if names is None else names
        self._builder = CircuitBuilder(Domain(Categorical(name, (False, True)) for name in own))
        self._literals: dict[int, int] = {}
        self._free: dict[int, int] = {}
        self._some_variable: list[int] = []  # of each node, a variable in its scope

    def literal(self, literal: int) -> int:
        """Add the indicator of a literal."""
        if literal not in self._literals:
            variable = abs(literal) - 1
            self._literals[literal] = self._added(self._builder.indicator(variable, int(literal > 0)), variable)
        return self._literals[literal]

    def bernoulli(self, variable: int, log_false: float, log_true: float) -> int:
        """Add a leaf with a weight for either state."""
        leaf = self._builder.categorical(variable - 1, log_weights=(log_false, log_true))
        return self._added(leaf, variable - 1)

    def conjunction(self, children: Sequence[int]) -> int:
        """Add a product."""
        if FALSE in children:
            return FALSE
        parts = [child for child in children if child != TRUE]
        if len(parts) < 2:
            return parts[0] if parts else TRUE
        return self._added(self._builder.product(parts), self._some_variable[parts[0]])

    def disjunction(self, children: Sequence[int], log_weights: Sequence[float] | None = None) -> int:
        """Add a sum."""
        weights = [0.0] * len(children) if log_weights is None else log_weights
        pairs = zip(children, weights, strict=True)
        pairs = [(child, weight) for child, weight in pairs if child != FALSE and weight > -math.inf]
        if not pairs:
            return FALSE
        if len(pairs) == 1 and pairs[0][1] == 0.0:
            return pairs[0][0]
        inner = [child for child, _ in pairs if child != TRUE]
        variable = self._some_variable[inner[0]] if inner else 0
        parts = [self._free_leaf(variable) if child == TRUE else child for child, _ in pairs]
        return self._added(self._builder.sum(parts, log_weights=[w for _, w in pairs]), variable)

    def circuit(self, root: int, log_weights: Mapping[int, float]) -> Circuit:
        """Return the circuit with a root, smooth and over all variables, with log weights of literals (default 0).

        ParseError if the root is false, or the circuit is too large to make smooth.
        """
        if root == FALSE:
            raise ParseError("the formula is false: it has no model, and so no distribution", self.path)
        if len(self._builder) * self.n_variables > MAX_SCOPE_BITS:
            text = f"has {len(self._builder):,} nodes and {self.n_variables:,} variables"
            raise ParseError(f"{text}, too many to fill up the variables that branches leave out", self.path)
        self._builder.product([self._free_leaf(0) if root == TRUE else root])
        with parsing(self.path):
            circuit = smoothed(self._builder.build(normalised=False))
        if not log_weights:
            return circuit
        # In a smooth circuit every variable has one leaf in each term; that leaf takes the weight.
        rows = np.zeros((self.n_variables, 2))  # of false and true
        for literal, value in log_weights.items():
            if abs(literal) <= self.n_variables:
                rows[abs(literal) - 1, int(literal > 0)] = value
        leaves = circuit.leaf_var[circuit.leaf_var >= 0]
        return dataclasses.replace(circuit, params=circuit.params + rows[leaves].reshape(-1))

    def _added(self, node: int, variable: int) -> int:
        self._some_variable.append(variable)
        return node

    def _free_leaf(self, variable: int) -> int:
        if variable not in self._free:
            self._free[variable] = self.bernoulli(variable + 1, 0.0, 0.0)
        return self._free[variable]


Weights = Mapping[int, float] | str | PathLike[str]  # by literal, or a file


def log_weights(given: Weights | None, path: AnyPath, encoding: str | None = None) -> tuple[dict[int, float], int]:
    """Return the natural logs of the weights of literals, and the file's number of variables (or 0).

    `given` has weights by literal (3: variable 3 is true, -3: it is false), or is a file; absent variables weigh 1
    either way. Errors name the circuit's file `path`, or the weights' own.
    """
    if given is None:
        return {}, 0
    if isinstance(given, Mapping):
        found: dict[int, float] = {}
        for literal, weight in given.items():
            if not (math.isfinite(weight) and weight >= 0.0) or not literal:
                text = f"literal {literal} has the weight {weight}; expected finite numbers that are not negative"
                raise ModelError(text)
            found[int(literal)] = math.log(weight) if weight > 0.0 else -math.inf
        n_variables, where = 0, path
    else:
        (found, n_variables), where = _of_file(given, encoding), given
    for literal in found:
        if -literal not in found:
            text = f"literal {literal} has a weight and {-literal} has none"
            raise ParseError(f"{text}; both are needed, as conventions for the other differ", where)
    return found, n_variables


def _of_file(path: AnyPath, encoding: str | None) -> tuple[dict[int, float], int]:
    found: dict[int, float] = {}
    n_variables = 0

    def add(literal: str, weight: str, line: int) -> None:
        try:
            key, value = int(literal[:12]), log_of_text(weight)
        except ValueError:
            told = f"{cut(literal)} and {cut(weight)} are no literal and weight; expected an integer and a number"
            raise ParseError(f"{told} that is not negative", path, line) from None
        if key == 0 or key in found:
            raise ParseError(f"literal {key} is weighted twice, or 0; expected each literal once", path, line)
        found[key] = value

    is_cnf = False
    for k, text in enumerate(read_text(path, encoding).split("\n"), 1):
        words = text.split()
        if words[:3] == ["c", "p", "weight"] and len(words) >= 5:
            add(words[3], words[4], k)
        elif words[:2] == ["c", "weights"]:
            for i, weight in enumerate(words[2:]):
                add(str((i // 2 + 1) * (-1 if i % 2 else 1)), weight, k)
        elif words[:2] == ["p", "cnf"]:
            is_cnf = True
            n_variables = int(words[2]) if len(words) > 2 and words[2].isdecimal() and len(words[2]) < 10 else 0
        elif words and words[0] != "c" and not is_cnf:
            if len(words) != 2:
                raise ParseError(f"{cut(text.strip())} is no literal and its weight", path, k)
            add(words[0], words[1], k)
    return found, n_variables


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
    own = (_own_c2d_node(k, line.words[0], list(map(int, line.words[1:]))) for k, line in enumerate(lines))
    return compared(circuit, own, lines.path, weights)


def _own_c2d_node(key: Hashable, kind: str, row: list[int]) -> OwnNode:
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
        arcs = graph.arcs.get(node, [])
        below = [builder.conjunction([*map(builder.literal, more), nodes[child]]) for child, more, _ in arcs]
        if kind in ("t", "f"):
            nodes[node] = TRUE if kind == "t" else FALSE
        else:
            nodes[node] = builder.conjunction(below) if kind == "a" else builder.disjunction(below)
    return compared(builder.circuit(nodes[1], weights), _own_d4_nodes(graph, order), lines.path, weights)


def _own_d4_nodes(graph: _D4, order: Sequence[int]) -> Iterator[OwnNode]:
    """Yield the nodes of a d4 file for a second evaluation: literals, arcs with their place, and nodes."""
    for v in range(1, graph.largest + 1):
        yield _own_c2d_node(("L", v), "L", [v])
        yield _own_c2d_node(("L", -v), "L", [-v])
    for node in order:
        arcs = graph.arcs.get(node, [])
        for k, (child, literals, _) in enumerate(arcs):
            yield OwnNode((node, k), [child, *(("L", literal) for literal in literals)])
        kind, below = graph.kinds[node], [(node, k) for k in range(len(arcs))]
        is_sum = kind in ("o", "f")
        yield OwnNode(node, below if kind in ("o", "a") else (), [0.0] * len(below) if is_sum else None)


def read_sdd(path: AnyPath, encoding: str | None = None, weights: Weights | None = None) -> Circuit:
    """Read an SDD, as `certimap.io.logic.read_nnf` reads a formula."""
    found, n_variables = log_weights(weights, path, encoding)
    return _read_diagram(NodeLines(path, encoding, "sdd"), encoding, found, n_variables)


def read_psdd(path: AnyPath, encoding: str | None = None) -> Circuit:
    """Read a PSDD as a circuit over the variables that it names, such as "1", False or True."""
    return _read_diagram(NodeLines(path, encoding, "psdd"), encoding, {}, 0)


def _read_diagram(lines: NodeLines, encoding: str | None, weights: dict[int, float], n_variables: int) -> Circuit:
    is_psdd = lines.header is not None and lines.header.words[0] == "psdd"
    own = _variables(lines)
    largest = lines.check_variables(max(*own, n_variables, _vtree_variables(lines.path, encoding), 0))
    # A formula leaves the other variables free; a distribution is over the variables that it names.
    places = {v: k for k, v in enumerate(sorted(own) if is_psdd else range(1, largest + 1), 1)}
    builder = LogicBuilder(lines.path, len(places), list(map(str, places)))
    known: dict[int, int] = {}
    root = FALSE
    for line in lines:
        key = lines.integers(line, "the id", 1, 2)[0] if len(line.words) > 1 else 0
        root = _diagram_node(lines, line, builder, known, places, is_psdd)
        define(lines, line, known, key, root)
    nodes = (node for line in lines for node in _own_diagram_nodes(line.words, is_psdd))
    return compared(builder.circuit(root, weights), nodes, lines.path, None if is_psdd else weights)


def _own_diagram_nodes(words: list[str], is_psdd: bool) -> Iterator[OwnNode]:
    """Yield the nodes of a line for a second evaluation; elements have a place beside their decision's id."""
    kind, key = words[0], int(words[1])
    if kind == "L":
        literal = int(words[3])
        yield OwnNode(key, variable=abs(literal), leaf=[0.0, -math.inf] if literal < 0 else [-math.inf, 0.0])
    elif kind == "T" and is_psdd:
        p = float(words[4])
        yield OwnNode(key, variable=int(words[3]), leaf=[log_complement(p), p])
    elif kind == "D":
        step, members = 3 if is_psdd else 2, words[4:]
        elements = [(key, k) for k in range(len(members) // step)]
        for k, place in enumerate(elements):
            yield OwnNode(place, [int(members[step * k]), int(members[step * k + 1])])
        yield OwnNode(key, elements, list(map(float, members[2::3])) if is_psdd else [0.0] * len(elements))
    else:
        yield OwnNode(key, (), None if kind == "T" else ())


def _diagram_node(
    lines: NodeLines, line: Line, builder: LogicBuilder, known: dict[int, int], places: dict[int, int],
    is_psdd: bool,
) -> int:  # fmt: skip
    kind = line.words[0]
    if kind == "L":
        literal = _literal(lines, line)
        return builder.literal(int(math.copysign(places[abs(literal)], literal)))
    if kind == "D":
        step = 3 if is_psdd else 2
        layout = "D ID VTREE COUNT {PRIME SUB" + (" LOG-WEIGHT} ..." if is_psdd else "} ...")
        lines.expect(line, len(line.words) > 4, layout)
        count = lines.integers(line, "the number of elements", 3, 4)[0]
        lines.expect(line, len(line.words) == 4 + step * count, layout)
        primes, subs = line.words[4::step], line.words[5::step]
        words = [word for pair in zip(primes, subs, strict=True) for word in pair]
        nodes = lines.children(line, lines.integers(Line(words, line.number), "an id", 0), known)
        elements = [builder.conjunction(nodes[k : k + 2]) for k in range(0, len(nodes), 2)]
        return builder.disjunction(elements, lines.log_weights(line, line.words[6::3]) if is_psdd else None)
    if kind == "T" and is_psdd:
        lines.expect(line, len(line.words) == 5, "T ID VTREE VARIABLE LOG-PROBABILITY")
        variable = lines.integers(line, "a variable", 3, 4)[0]
        log_true = lines.log_probability(line, line.words[4], "at most 0")
        return builder.bernoulli(places[variable], log_complement(log_true), log_true)
    if kind in ("T", "F") and not is_psdd:
        lines.expect(line, len(line.words) == 2, f"{kind} ID")
        return TRUE if kind == "T" else FALSE
    raise lines.fail(f"{kind[:20]!r} is no kind of node; expected T, L, D{'' if is_psdd else ' and F'}", line)


def _literal(lines: NodeLines, line: Line) -> int:
    row = lines.integers(line, "a number of the literal")
    lines.expect(line, len(row) == 3 and row[2] != 0, "L ID VTREE LITERAL")
    return row[2]


def _variables(lines: NodeLines) -> set[int]:
    """Return the variables of literals and, in a PSDD, of true nodes."""
    found: set[int] = set()
    for line in lines:
        if line.words[0] == "L":
            found.add(abs(_literal(lines, line)))
        elif line.words[0] == "T" and len(line.words) == 5:
            variable = lines.integers(line, "a variable", 3, 4)[0]
            if variable < 1:
                raise lines.fail(f"{variable} is no variable; expected numbers from 1", line)
            found.add(variable)
    return found


def _vtree_variables(path: AnyPath, encoding: str | None) -> int:
    """Return the largest variable of the vtree beside a file; 0 without one."""
    name = beside(path, ".vtree")
    if not name.is_file():
        return 0
    vtree = NodeLines(name, encoding, "vtree")
    leaves = [line for line in vtree if line.words[0] == "L"]
    rows = [vtree.integers(line, "a number of the leaf") for line in leaves]
    for line, row in zip(leaves, rows, strict=True):
        vtree.expect(line, len(row) == 2 and row[1] > 0, "L ID VARIABLE")
    return vtree.check_variables(max((row[1] for row in rows), default=0))
