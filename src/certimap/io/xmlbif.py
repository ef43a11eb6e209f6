"""XMLBIF (`.xmlbif`, `.bifxml`): Bayesian networks as XML, version 0.3.

    <VARIABLE TYPE="nature"><NAME>A</NAME><OUTCOME>yes</OUTCOME><OUTCOME>no</OUTCOME></VARIABLE>
    <DEFINITION><FOR>A</FOR><GIVEN>B</GIVEN><TABLE>.1 .9 .2 .8</TABLE></DEFINITION>

The variable's own states vary fastest, then the last parent's. Properties are ignored.
"""

from __future__ import annotations

from certimap.core.domain import Categorical
from certimap.errors import ModelError, ParseError
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, write_text
from certimap.io.numbers import written
from certimap.io.xml_files import Element, numbers_of, read_xml, xml_text
from certimap.networks.bayesian import BayesianNetwork


def read_xmlbif(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; decisions and utilities are refused."""
    root = read_xml(path, encoding)
    network = next(root.all("NETWORK"), None)
    if root.tag != "BIF" or network is None:
        raise ParseError(f"begins with <{root.tag[:40]}>; expected <BIF> with a <NETWORK> inside", path, root.line)
    declared = Declared(path)
    for variable in network.all("VARIABLE"):
        name = _only(path, variable, "NAME")
        kind = variable.attributes.get("TYPE", "nature")
        if kind != "nature":
            raise ParseError(
                f"variable {cut(name)} is of the type {cut(kind)}; expected 'nature'", path, variable.line
            )
        states = [outcome.text.strip() for tag in ("OUTCOME", "VALUE") for outcome in variable.all(tag)]
        declared.variable(name, states, variable.line)
    for tag in ("DEFINITION", "PROBABILITY"):
        for definition in network.all(tag):
            name = _only(path, definition, "FOR")
            parents = [parent.text.strip() for parent in definition.all("GIVEN")]
            words = definition.words("TABLE")
            numbers = numbers_of(path, words, cut(name), definition.line)
            declared.table(name, parents, numbers, definition.line)
    return declared.network()


def _only(path: AnyPath, element: Element, tag: str) -> str:
    found = [child.text.strip() for child in element.all(tag)]
    if len(found) != 1:
        raise ParseError(f"<{element.tag}> has {len(found)} <{tag}>; expected one", path, element.line)
    return found[0]


def write_xmlbif(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network; numbers and names read back exactly, states as text.

    Raises ModelError for a name that XML cannot hold, or two states of a variable that are equal as text.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<BIF VERSION="0.3">', "<NETWORK>", "<NAME>certimap</NAME>"]
    names = [xml_text(name) for name in model.domain.names]
    for variable, name in zip(model.domain, names, strict=True):
        texts = [str(s) for s in variable.states] if isinstance(variable, Categorical) else []
        if len(set(texts)) < len(texts):
            raise ModelError(f"variable {variable.name!r} has two states that read the same as text")
        outcomes = "".join(f"<OUTCOME>{xml_text(text)}</OUTCOME>" for text in texts)
        lines.append(f'<VARIABLE TYPE="nature"><NAME>{name}</NAME>{outcomes}</VARIABLE>')
    for factor in model.factors:
        *parents, child = factor.scope
        given = "".join(f"<GIVEN>{names[p]}</GIVEN>" for p in parents)
        lines += [f"<DEFINITION><FOR>{names[child]}</FOR>{given}", f"<TABLE>{' '.join(written(factor))}</TABLE>"]
        lines.append("</DEFINITION>")
    write_text(path, "\n".join([*lines, "</NETWORK>", "</BIF>"]) + "\n")
