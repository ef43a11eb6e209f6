"""GeNIe's `.xdsl`: chance nodes with tables, noisy-MAX nodes and deterministic nodes.

    <cpt id="A"><state id="yes"/><state id="no"/><parents>B C</parents><probabilities>...</probabilities></cpt>
    <noisymax id="N">... <strengths>0 1 0 1</strengths><parameters>...</parameters></noisymax>
    <deterministic id="D">... <resultingstates>yes no ...</resultingstates></deterministic>

The node's own states vary fastest, then the last parent's. aGrUM (pyAgrum) writes tables with the *first* parent
fastest; its files name the program and are read in its order. Positions and comments are ignored.
"""

from __future__ import annotations

from certimap.errors import ParseError
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, write_text
from certimap.io.identifiers import written_names
from certimap.io.numbers import written
from certimap.io.xml_files import Element, numbers_of, read_xml, xml_attribute, xml_text
from certimap.networks.bayesian import BayesianNetwork

_KINDS = ("cpt", "deterministic", "noisymax")


def read_xdsl(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; large noisy-MAX nodes become chains over hidden helpers.

    Nodes of other kinds (decisions, utilities, equations, noisy adders) and dynamic networks are refused.
    """
    root = read_xml(path, encoding)
    nodes = next(root.all("nodes"), None)
    if root.tag != "smile" or nodes is None:
        raise ParseError(f"begins with <{root.tag[:40]}>; expected <smile> with <nodes> inside", path, root.line)
    dynamic = next(root.all("dynamic"), None)
    if dynamic is not None:
        raise ParseError("is a dynamic network; expected an unrolled one", path, dynamic.line)
    first_fastest = any(
        genie.attributes.get("app", "").startswith("aGrUM")
        for extensions in root.all("extensions")
        for genie in extensions.all("genie")
    )
    declared = Declared(path)
    for node in nodes.children:
        _read_node(path, declared, node, first_fastest)
    return declared.network()


def _read_node(path: AnyPath, declared: Declared, node: Element, first_fastest: bool) -> None:
    name = node.attributes.get("id", "")
    if node.tag not in _KINDS:
        raise ParseError(
            f"node {cut(name)} is of the kind <{node.tag[:40]}>; expected {', '.join(_KINDS)}",
            path,
            node.line,
        )
    declared.variable(name, [state.attributes.get("id", "") for state in node.all("state")], node.line)
    parents = node.words("parents")
    what = cut(name)
    if node.tag == "deterministic":
        declared.deterministic(name, parents, node.words("resultingstates"), node.line)
    elif node.tag == "noisymax":
        rows = numbers_of(path, node.words("parameters"), what, node.line).values
        declared.noisy_max(name, parents, rows, _strengths(path, node, name), node.line)
    else:
        numbers = numbers_of(path, node.words("probabilities"), what, node.line)
        declared.table(name, parents, numbers, node.line, first_fastest=first_fastest)


def _strengths(path: AnyPath, node: Element, name: str) -> list[int] | None:
    words = node.words("strengths")
    if not words:
        return None
    if not all(word.isdecimal() and word.isascii() and len(word) < 7 for word in words):
        raise ParseError(f"the strengths of {cut(name)} are no numbers of states", path, node.line)
    return [int(word) for word in words]


def write_xdsl(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network, parents first; the names that GeNIe shows keep those that are no identifiers."""
    names = written_names(model, path, states_too=True)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<smile version="1.0" id="certimap">', "<nodes>"]
    for child in model.topological_order:
        factor = model.factors[child]
        lines.append(f"<cpt id={xml_attribute(names.names[child])}>")
        lines += [f"<state id={xml_attribute(state)}/>" for state in names.states[child]]
        if len(factor.scope) > 1:
            lines.append(f"<parents>{' '.join(names.names[p] for p in factor.scope[:-1])}</parents>")
        lines += [f"<probabilities>{' '.join(written(factor))}</probabilities>", "</cpt>"]
    lines += ["</nodes>", "<extensions>", '<genie version="1.0" app="certimap" name="certimap">']
    for k, (name, label) in enumerate(zip(names.names, names.labels, strict=True)):
        x, y = 20 + 140 * (k % 10), 20 + 80 * (k // 10)
        shown = xml_text(" ".join(label.split()) or name)
        lines.append(
            f'<node id="{name}"><name>{shown}</name><position>{x} {y} {x + 100} {y + 40}</position></node>'
        )
    write_text(path, "\n".join([*lines, "</genie>", "</extensions>", "</smile>"]) + "\n")
