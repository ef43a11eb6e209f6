"""`.sdd` and `.psdd`: (probabilistic) sentential decision diagrams of the SDD package and PySDD.

    sdd NODES                                           psdd NODES
    F ID        T ID                                    T ID VTREE VARIABLE LOG-PROBABILITY
    L ID VTREE LITERAL                                  L ID VTREE LITERAL
    D ID VTREE COUNT {PRIME SUB} ...                    D ID VTREE COUNT {PRIME SUB LOG-WEIGHT} ...

Children stand before parents, and the last line is the root. A file of the same name with the suffix .vtree, if
present, gives the variables; else they are 1 to the largest that occurs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from os import fspath
from pathlib import Path

from certimap.circuits.circuit import Circuit
from certimap.circuits.nodewise import OwnNode
from certimap.io.files import AnyPath
from certimap.io.logic import FALSE, TRUE, LogicBuilder, Weights, log_weights
from certimap.io.node_lines import Line, NodeLines, define, log_complement
from certimap.io.second_reading import compared


def read_sdd(path: AnyPath, encoding: str | None = None, weights: Weights | None = None) -> Circuit:
    """Read an SDD, as `certimap.io.nnf.read_nnf` reads a formula."""
    found, n_variables = log_weights(weights, path, encoding)
    return _read(NodeLines(path, encoding, "sdd"), encoding, found, n_variables)


def read_psdd(path: AnyPath, encoding: str | None = None) -> Circuit:
    """Read a PSDD as a circuit over the variables that it names, such as "1", False or True."""
    return _read(NodeLines(path, encoding, "psdd"), encoding, {}, 0)


def _read(lines: NodeLines, encoding: str | None, weights: dict[int, float], n_variables: int) -> Circuit:
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
        root = _node(lines, line, builder, known, places, is_psdd)
        define(lines, line, known, key, root)
    nodes = (node for line in lines for node in _own_nodes(line.words, is_psdd))
    return compared(builder.circuit(root, weights), nodes, lines.path, None if is_psdd else weights)


def _own_nodes(words: list[str], is_psdd: bool) -> Iterator[OwnNode]:
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


def _node(
    lines: NodeLines,
    line: Line,
    builder: LogicBuilder,
    known: dict[int, int],
    places: dict[int, int],
    is_psdd: bool,
) -> int:
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
        given = lines.integers(
            Line([w for pair in zip(primes, subs, strict=True) for w in pair], line.number), "an id", 0
        )
        nodes = lines.children(line, given, known)
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
    name = fspath(path)
    packed = name.lower().endswith(".gz")
    stem = Path(name[:-3] if packed else name)
    for beside in (stem.with_suffix(".vtree"), stem.with_suffix(".vtree.gz")):
        if beside.is_file():
            vtree = NodeLines(beside, encoding, "vtree")
            leaves = [line for line in vtree if line.words[0] == "L"]
            rows = [vtree.integers(line, "a number of the leaf") for line in leaves]
            for line, row in zip(leaves, rows, strict=True):
                vtree.expect(line, len(row) == 2 and row[1] > 0, "L ID VARIABLE")
            return vtree.check_variables(max((row[1] for row in rows), default=0))
    return 0
