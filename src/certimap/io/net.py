"""Hugin's `.net`: discrete chance nodes and their potentials.

    node A { states = ("yes" "no"); label = "..."; position = (1 2); }
    potential (A | B C) { data = ((.1 .9)(.2 .8) ...); }

The variable's own states vary fastest, then the last parent's. A potential without data is uniform.
Positions, labels and other fields of nodes are ignored.
"""

from __future__ import annotations

import re

from certimap.io.braces import PERCENT, BraceBlock, Braces, quoted, words_of
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, read_text, write_text
from certimap.io.identifiers import written_names
from certimap.io.numbers import written
from certimap.networks.bayesian import BayesianNetwork

_POTENTIAL = re.compile(r"potential\s*\((.*)\)\s*", re.DOTALL)
_NODE = re.compile(
    r"(?:(discrete|continuous)\s+)?(?:chance\s+)?(node|decision|utility|function|instance)\s+(\S.*)"
)
_REFUSED = {
    "decision": "a decision",
    "utility": "a utility node",
    "function": "a function node",
    "instance": "an instance of a class",
}


def read_net(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; decisions, utilities, functions, continuous nodes and expressions are refused."""
    source = Braces(path, read_text(path, encoding), PERCENT)
    declared = Declared(path)
    for entry in source.root.statements:
        raise source.fail(f"{cut(entry.value)} begins no block; expected net, node or potential", entry.at)
    for block in source.root.blocks:
        potential = _POTENTIAL.fullmatch(block.head)
        if potential:
            _read_potential(source, declared, block, potential[1])
        elif block.words[:1] == ["class"]:
            raise source.fail(
                f"{cut(block.head)} is a class of an object-oriented network; expected a plain network", block.at
            )
        elif block.words[:1] != ["net"]:
            _read_node(source, declared, block)
    return declared.network()


def _read_node(source: Braces, declared: Declared, block: BraceBlock) -> None:
    found = _NODE.fullmatch(" ".join(block.head.split()))
    if found is None:
        raise source.fail(f"{cut(block.head)} begins no block; expected net, node or potential", block.at)
    name = found[3]
    what = "a continuous node" if found[1] == "continuous" else _REFUSED.get(found[2])
    if what is not None:
        raise source.fail(f"{cut(name)} is {what}; expected discrete chance nodes", block.at)
    states = source.entry(block, "states")
    if states is None:
        raise source.fail(f'node {cut(name)} has no states; expected states = ("A" "B");', block.at)
    declared.variable(name, words_of(states.value), source.line(block.at))


def _read_potential(source: Braces, declared: Declared, block: BraceBlock, header: str) -> None:
    own, _, given = header.partition("|")
    names = words_of(own)
    line = source.line(block.at)
    if len(names) != 1:
        raise source.fail(
            f"the potential of {cut(own.strip())} is of {len(names)} variables; expected one, and behind a bar "
            "its parents",
            block.at,
        )
    data = source.entry(block, "data")
    if data is not None:
        declared.table(names[0], words_of(given), source.numbers(data, cut(names[0])), line)
    elif "model_data" in block.entries:
        raise source.fail(f"the potential of {names[0]!r} is given by expressions; expected data", block.at)
    else:
        declared.uniform(names[0], words_of(given), line)


def write_net(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network, states as text; labels keep names that are no identifiers."""
    names = written_names(model, path, states_too=False)
    lines = ["net { }"]
    for name, states, label in zip(names.names, names.states, names.labels, strict=True):
        texts = " ".join(map(quoted, states))
        title = "" if label == name else f" label = {quoted(label)};"
        lines += [f"node {name} {{", f"  states = ({texts});{title}", "}"]
    for factor in model.factors:
        *parents, child = factor.scope
        given = f" | {' '.join(names.names[p] for p in parents)}" if parents else ""
        lines += [
            f"potential ({names.names[child]}{given}) {{",
            f"  data = {nested(written(factor), factor.shape)};",
        ]
        lines.append("}")
    write_text(path, "\n".join(lines) + "\n")


def nested(numbers: list[str], shape: tuple[int, ...], between: str = " ") -> str:
    """Put parentheses around the numbers of each axis, the last axis innermost."""
    parts = numbers
    for size in reversed(shape):
        parts = [f"({between.join(parts[k : k + size])})" for k in range(0, len(parts), size)]
    return parts[0]
