"""`.dsc`, Microsoft's format of Bayesian networks.

    belief network "NAME"
    node A { name: "A"; type: discrete[2] = { "yes", "no" }; position: (1, 2); }
    probability(A) { .1, .9; }
    probability(B | A) { (0): .2, .8; (1): .3, .7; default: .5, .5; }

Rows number the states of the parents; names, positions and costs are ignored.
"""

from __future__ import annotations

import itertools
import re

from certimap.io.braces import SLASHES, BraceBlock, BraceEntry, Braces, quoted, words_of
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, read_text, write_text
from certimap.io.identifiers import written_names
from certimap.io.numbers import Numbers, written
from certimap.networks.bayesian import BayesianNetwork

_PROBABILITY = re.compile(r"probability\s*\((.*)\)", re.DOTALL)
_TYPE = re.compile(r"type\s*:\s*discrete\s*(?:\[\s*(\d{1,9})\s*\])?")
_ROW = re.compile(r"(?:\(([\d\s,]*)\)|(default))\s*:\s*(.*)", re.DOTALL)
_NETWORK = re.compile(r'belief\s+network(?:\s+(?:"[^"]*"|\S+))?')
_NODE = re.compile(r"node\s+(\S.*)")


def read_dsc(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; nodes that are not discrete are refused."""
    return _Reader(path, read_text(path, encoding)).network()


class _Reader:
    """One pass over the blocks."""

    def __init__(self, path: AnyPath, text: str) -> None:
        self.source = Braces(path, text, SLASHES)
        self.declared = Declared(path)

    def network(self) -> BayesianNetwork:
        tables: list[tuple[BraceBlock, str]] = []
        for block in self.source.root.blocks:
            # The line 'belief network NAME' has no terminator and precedes the first block.
            head = _NETWORK.sub("", block.head, count=1).strip()
            probability, node = _PROBABILITY.fullmatch(head), _NODE.fullmatch(head)
            if probability:
                tables.append((block, probability[1]))
            elif node:
                self.node(block, words_of(node[1])[0] if words_of(node[1]) else "")
        for block, header in tables:
            self.table(block, header)
        return self.declared.network()

    def node(self, block: BraceBlock, name: str) -> None:
        kind = next((b for b in block.blocks if b.head.startswith("type")), None)
        found = None if kind is None else _TYPE.fullmatch(kind.head)
        if kind is None or found is None:
            raise self.source.fail(
                f"node {cut(name)} has no type that is accepted; type: discrete[COUNT] = {{ STATES }}; is",
                block.at,
            )
        states = [word for entry in kind.statements for word in words_of(entry.value)]
        if found[1] is not None and int(found[1]) != len(states):
            raise self.source.fail(
                f"node {cut(name)} has {len(states)} states where its type says {found[1]}", kind.at
            )
        self.declared.variable(name, states, self.source.line(block.at))

    def table(self, block: BraceBlock, header: str) -> None:
        own, _, given = header.partition("|")
        names, parents = words_of(own), words_of(given)
        if len(names) != 1:
            raise self.source.fail(
                f"the table of {cut(own.strip())} is of {len(names)} variables; expected one", block.at
            )
        name, line = names[0], self.source.line(block.at)
        if not parents and len(block.statements) == 1 and ":" not in block.statements[0].value:
            return self.declared.table(name, parents, self.source.numbers(block.statements[0], cut(name)), line)
        rows: dict[tuple[int, ...], Numbers] = {}
        places: dict[tuple[int, ...], int] = {}
        default: Numbers | None = None
        for entry in block.statements:
            index, numbers = self.row(entry, name)
            if index is None:
                default = numbers
            elif index in rows:
                raise self.source.fail(f"the row {index} of {cut(name)} is doubled; expected once", entry.at)
            else:
                rows[index], places[index] = numbers, entry.at

        def line_of(index: tuple[int, ...]) -> int:
            return self.source.line(places.get(index, block.at))

        return self.declared.rows(name, parents, rows, default, line, line_of)

    def row(self, entry: BraceEntry, name: str) -> tuple[tuple[int, ...] | None, Numbers]:
        """Read one row: the numbers of the parents' states (None for the default), and its entries."""
        found = _ROW.fullmatch(entry.value)
        if found is None:
            raise self.source.fail(
                f"{cut(entry.value)} is no row of {cut(name)}; expected (NUMBERS): PROBABILITIES;", entry.at
            )
        words = words_of(found[1] or "")
        index = None if found[2] else tuple(int(word[:9]) for word in words)
        return index, self.source.numbers(BraceEntry(found[3], entry.at), cut(name))


def write_dsc(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network, states as text; the field `name` keeps names that are no identifiers."""
    names = written_names(model, path, states_too=False)
    lines = ['belief network "certimap"']
    for name, states, label in zip(names.names, names.states, names.labels, strict=True):
        texts = ", ".join(map(quoted, states))
        lines += [f"node {name} {{", f"  name: {quoted(label)};"]
        lines += [f"  type: discrete[{len(states)}] = {{ {texts} }};", "}"]
    for factor in model.factors:
        *parents, child = factor.scope
        numbers, size = written(factor), factor.shape[-1]
        if not parents:
            lines += [f"probability({names.names[child]}) {{", f"  {', '.join(numbers)};", "}"]
            continue
        lines.append(f"probability({names.names[child]} | {', '.join(names.names[p] for p in parents)}) {{")
        for row, index in enumerate(itertools.product(*(range(k) for k in factor.shape[:-1]))):
            entries = ", ".join(numbers[row * size : (row + 1) * size])
            lines.append(f"  ({', '.join(map(str, index))}): {entries};")
        lines.append("}")
    write_text(path, "\n".join(lines) + "\n")
