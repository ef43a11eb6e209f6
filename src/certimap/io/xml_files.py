"""Bayesian networks as XML: GeNIe's `.xdsl`, and XMLBIF (`.xmlbif`, `.bifxml`) of version 0.3.

    <cpt id="A"><state id="yes"/><state id="no"/><parents>B C</parents><probabilities>...</probabilities></cpt>
    <utility id="U"><parents>A D</parents><utilities>9 -1 0 0</utilities></utility>
    <DEFINITION><FOR>A</FOR><GIVEN>B</GIVEN><TABLE>.1 .9 .2 .8</TABLE></DEFINITION>

The node's own states vary fastest, then the last parent's. In XMLBIF, the TYPE of a variable may be decision or
utility; what is known at a decision stays known, unless a PROPERTY of the network is limited_memory. aGrUM
(pyAgrum) writes .xdsl tables with the *first* parent fastest; its files name the program and are read in its
order. Entities, files above 256 MiB and elements nested deeper than any network's are refused; positions,
properties and comments are ignored.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax import ContentHandler, ErrorHandler, SAXException, SAXParseException
from xml.sax.saxutils import escape, quoteattr

from certimap.core.steps import at_step
from certimap.decisions.network import DecisionNetwork
from certimap.errors import ModelError, ParseError
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, parsing, read_bytes, read_text, write_text
from certimap.io.words import Numbers, numbers_of, written_names, written_nodes
from certimap.networks.bayesian import BayesianNetwork, topological
from certimap.networks.unrolled import unrolled

MAX_BYTES = 2**28
MAX_DEPTH = 50
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")
_UNWRITABLE = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass
class Element:
    """One element: its tag, attributes, own text, the elements inside, and its line."""

    tag: str
    attributes: dict[str, str]
    line: int | None
    children: list[Element] = field(default_factory=list["Element"])
    text: str = ""

    def get(self, key: str) -> str:
        """Return an attribute, or ""."""
        return self.attributes.get(key, "")

    def all(self, tag: str) -> Iterator[Element]:
        """Yield the elements inside with a tag."""
        return (child for child in self.children if child.tag == tag)

    def first(self, tag: str) -> Element:
        """Return the first element inside with a tag, or an empty one."""
        return next(self.all(tag), Element(tag, {}, self.line))

    def words(self, tag: str) -> list[str]:
        """Return the words in the text of all elements inside with a tag."""
        return [word for child in self.all(tag) for word in child.text.split()]


def read_xml(path: AnyPath, encoding: str | None = None) -> Element:
    """Return the outermost element; ParseError for other than XML, entities, over 256 MiB, or a depth above 50."""
    try:
        n_bytes = Path(path).stat().st_size
    except (OSError, ValueError):
        n_bytes = 0  # reading it reports the error
    data = read_bytes(path) if n_bytes <= MAX_BYTES else b""
    if (n_bytes := max(n_bytes, len(data))) > MAX_BYTES:
        raise ParseError(f"has {n_bytes:,} bytes of XML; expected at most {MAX_BYTES:,}", path)
    if encoding is not None:
        data = _DECLARATION.sub("", read_text(path, encoding), count=1).encode("utf-8", "replace")
    sax: Any = importlib.import_module("defusedxml.sax")
    defused: Any = importlib.import_module("defusedxml")
    tree = _Tree(path)
    try:
        sax.parseString(data, tree, ErrorHandler(), forbid_dtd=False, forbid_entities=True, forbid_external=True)
    except ParseError:
        raise
    except defused.DefusedXmlException:
        raise ParseError("declares entities or refers to other files; expected XML without them", path) from None
    except SAXParseException as error:
        raise ParseError(f"is no XML: {error.getMessage()}", path, error.getLineNumber()) from None
    except (SAXException, LookupError, ValueError) as error:
        raise ParseError(f"is no XML: {error}", path) from None
    if tree.outermost is None:
        raise ParseError("has no element; expected XML", path)
    return tree.outermost


def rooted(path: AnyPath, encoding: str | None, tag: str, inner: str) -> tuple[Element, Element]:
    """Return the outermost element and the first one inside with a tag; ParseError for others."""
    root = read_xml(path, encoding)
    if root.tag != tag or not any(root.all(inner)):
        raise ParseError(f"begins with <{root.tag[:40]}>; expected <{tag}> with <{inner}> inside", path, root.line)
    return root, root.first(inner)


class _Tree(ContentHandler):
    """Builds the tree."""

    def __init__(self, path: AnyPath) -> None:
        super().__init__()
        self._path = path
        self._locator: Any = None
        self._open: list[tuple[Element, list[str]]] = []
        self.outermost: Element | None = None

    def setDocumentLocator(self, locator: Any) -> None:  # noqa: N802
        self._locator = locator

    def startElement(self, name: str, attrs: Any) -> None:  # noqa: N802
        line = None if self._locator is None else self._locator.getLineNumber()
        if len(self._open) >= MAX_DEPTH:
            raise ParseError(f"has elements in one another more than {MAX_DEPTH} deep", self._path, line)
        element = Element(name, {str(key): str(value) for key, value in attrs.items()}, line)
        if self._open:
            self._open[-1][0].children.append(element)
        else:
            self.outermost = element
        self._open.append((element, []))

    def endElement(self, name: str) -> None:  # noqa: N802
        element, parts = self._open.pop()
        element.text = "".join(parts)

    def characters(self, content: str) -> None:
        if self._open:
            self._open[-1][1].append(content)


def xml_numbers(path: AnyPath, element: Element, tag: str, name: str, kind: str = "probability") -> Numbers:
    """Return the probabilities, or utilities, in the elements inside with a tag."""
    told, signed = f"in the table of {cut(name)} is no {kind}", kind == "utility"
    return numbers_of(element.words(tag), told, lambda text, _: ParseError(text, path, element.line), signed)


def xml_name(text: str) -> str:
    """Return a text; ModelError for one that XML cannot hold or would trim."""
    if not text or _UNWRITABLE.search(text) or text != " ".join(text.split()):
        told = f"the name {cut(text)} cannot be written as XML"
        raise ModelError(f"{told}; expected text without control characters, and with single blanks inside")
    return text


MAX_UNROLLED, MAX_ORDER = 2**20, 100  # variables of unrolled networks, and steps back
_KINDS = ("cpt", "deterministic", "noisymax", "decision", "utility", "mau")


def read_xdsl(path: AnyPath, encoding: str | None = None) -> BayesianNetwork | DecisionNetwork:
    """Read a network; large noisy-MAX nodes become chains over hidden helpers.

    Nodes of other kinds (equations, noisy adders) are refused, and utilities that are not added up. A dynamic
    network is unrolled to its number of slices; `certimap.unroll` makes it longer or shorter.
    """
    root, nodes = rooted(path, encoding, "smile", "nodes")
    dynamic = next(root.all("dynamic"), None)
    shown = [genie for extensions in root.all("extensions") for genie in extensions.all("genie")]
    programs = [genie.get("app") for genie in shown]
    first_fastest = any(program.startswith("aGrUM") for program in programs)
    declared = Declared(path)
    if "ProbLog" in programs:  # names nodes after atoms, and shows these
        pairs = [(n.get("id"), name.text) for g in shown for n in g.all("node") for name in n.all("name")]
        declared.titles.update((node, title) for node, title in pairs if title)
    if dynamic is not None:
        _read_slices(path, declared, nodes, dynamic)
        steps = _whole(path, dynamic, "numslices", MAX_UNROLLED // max(1, len(nodes.children)))
        with parsing(path, dynamic.line):
            return unrolled(declared.network(), steps)
    for node in nodes.children:
        name = node.get("id")
        _read_node(path, declared, node, node, name, node.words("parents"), first_fastest)
    return declared.model()


def _whole(path: AnyPath, element: Element, name: str, most: int) -> int:
    """Return an attribute that is a whole number from 1."""
    word = element.attributes.get(name, "")
    if not (word.isdecimal() and word.isascii() and len(word) < 10 and 1 <= int(word) <= most):
        raise ParseError(
            f"<{element.tag[:40]}> has {name}={cut(word)}; expected 1 to {most:,}", path, element.line
        )
    return int(word)


def _read_slices(path: AnyPath, declared: Declared, nodes: Element, dynamic: Element) -> None:
    """Declare the slices that differ: a node has another table where it has parents one, two, ... steps back.

    The tables of `dynamic` list the parents so many steps back; the axes of their table come after those of the
    parents in the same step and those of fewer steps. Anchors are parents in slice 0 only.
    """
    kinds = {node.get("id"): node.get("dynamic") for node in nodes.children}
    later: dict[tuple[str, int], Element] = {}
    for table in dynamic.children:
        later[table.get("id"), _whole(path, table, "order", MAX_ORDER)] = table
    last = max((order for _, order in later), default=1)
    for node in nodes.children:
        name, above, table = node.get("id"), [(p, 0) for p in node.words("parents")], node
        for k in range(last + 1) if kinds[name] == "plate" else (last,):
            if k == 1 and kinds[name] == "plate" and any(kinds.get(p) == "anchor" for p, _ in above):
                above = [(p, d) for p, d in above if kinds.get(p) != "anchor"]
                if (name, 1) not in later:
                    raise declared.fail(
                        f"{cut(name)} has an anchor, and no table of order 1 without it", node.line
                    )
            if (name, k) in later and kinds[name] == "plate":
                table = later[name, k]
                above = [*above, *((p, k) for p in table.words("parents"))]
            parents = [at_step(p, k - d) if kinds.get(p) == "plate" else p for p, d in above]
            own = at_step(name, k) if kinds[name] == "plate" else name
            _read_node(path, declared, node, table, own, parents, False)


def _read_node(
    path: AnyPath, declared: Declared, whole: Element, node: Element, name: str, parents: list[str],
    first_fastest: bool,
) -> None:  # fmt: skip
    """Declare a variable with the states of `whole`, and the table in `node`."""
    if node.tag not in _KINDS:
        text = f"node {cut(name)} is of the kind <{node.tag[:40]}>; expected {', '.join(_KINDS)}"
        raise ParseError(text, path, node.line)
    if node.tag == "mau":
        weights = xml_numbers(path, node, "weights", name, "utility").values.tolist()
        return declared.total(name, parents, weights, node.line)
    states = [state.get("id") for state in whole.all("state")]
    declared.variable(name, states, whole.line, whole.tag)
    if node.tag == "deterministic":
        declared.deterministic(name, parents, node.words("resultingstates"), node.line)
    elif node.tag == "noisymax":
        rows = xml_numbers(path, node, "parameters", name).values
        declared.noisy_max(name, parents, rows, _strengths(path, node, name), node.line)
    else:
        entries = "utilities" if node.tag == "utility" else "probabilities"
        numbers = xml_numbers(path, node, entries, name, declared.number_kind(name))
        declared.table(name, parents, numbers, node.line, first_fastest=first_fastest)


def _strengths(path: AnyPath, node: Element, name: str) -> list[int] | None:
    words = node.words("strengths")
    if not words:
        return None
    if not all(word.isdecimal() and word.isascii() and len(word) < 7 for word in words):
        raise ParseError(f"the strengths of {cut(name)} are no numbers of states", path, node.line)
    return [int(word) for word in words]


def write_xdsl(model: BayesianNetwork | DecisionNetwork, path: AnyPath) -> None:
    """Write a network, parents first; the names that GeNIe shows may be no identifiers.

    Raises ModelError for limited memory, which GeNIe does not have.
    """
    if isinstance(model, DecisionNetwork) and model.limited_memory:
        raise ModelError("limited memory cannot be written to .xdsl; .net, .bifxml, .pgmx and .uai hold it")
    names, nodes, n = written_names(model, path, states_too=True), written_nodes(model), len(model.domain)
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<smile version="1.0" id="certimap">', "<nodes>"]
    for k in (*topological(model.domain, [node.parents for node in nodes[:n]]), *range(n, len(nodes))):
        node = nodes[k]
        tag, entries = ("cpt", "probabilities") if node.kind == "node" else (node.kind, "utilities")
        lines.append(f"<{tag} id={quoteattr(xml_name(names.names[k]))}>")
        lines += [f"<state id={quoteattr(xml_name(state))}/>" for state in names.states[k]]
        if node.parents:
            lines.append(f"<parents>{' '.join(names.names[p] for p in node.parents)}</parents>")
        lines += [f"<{entries}>{' '.join(node.words)}</{entries}>"] if node.words else []
        lines.append(f"</{tag}>")
    lines += ["</nodes>", "<extensions>", '<genie version="1.0" app="certimap" name="certimap">']
    for k, (name, label) in enumerate(zip(names.names, names.labels, strict=True)):
        x, y = 20 + 140 * (k % 10), 20 + 80 * (k // 10)
        shown = escape(xml_name(" ".join(label.split()) or name))
        lines.append(
            f'<node id="{name}"><name>{shown}</name><position>{x} {y} {x + 100} {y + 40}</position></node>'
        )
    write_text(path, "\n".join([*lines, "</genie>", "</extensions>", "</smile>"]) + "\n")


def read_xmlbif(path: AnyPath, encoding: str | None = None) -> BayesianNetwork | DecisionNetwork:
    """Read a network of chance variables, decisions and utilities."""
    _, network = rooted(path, encoding, "BIF", "NETWORK")
    declared = Declared(path)
    declared.limited_memory = any(p.text.strip() == "limited_memory" for p in network.all("PROPERTY"))
    for variable in network.all("VARIABLE"):
        name = _only(path, variable, "NAME")
        kind = variable.attributes.get("TYPE", "nature")
        if kind not in ("nature", "decision", "utility"):
            told = f"variable {cut(name)} is of the type {cut(kind)}; expected 'nature', 'decision' or 'utility'"
            raise ParseError(told, path, variable.line)
        states = [outcome.text.strip() for tag in ("OUTCOME", "VALUE") for outcome in variable.all(tag)]
        declared.variable(name, states, variable.line, kind)
    for tag in ("DEFINITION", "PROBABILITY"):
        for definition in network.all(tag):
            name = _only(path, definition, "FOR")
            parents = [parent.text.strip() for parent in definition.all("GIVEN")]
            numbers = xml_numbers(path, definition, "TABLE", name, declared.number_kind(name))
            declared.table(name, parents, numbers, definition.line)
    return declared.model()


def _only(path: AnyPath, element: Element, tag: str) -> str:
    found = [child.text.strip() for child in element.all(tag)]
    if len(found) != 1:
        raise ParseError(f"<{element.tag}> has {len(found)} <{tag}>; expected one", path, element.line)
    return found[0]


def write_xmlbif(model: BayesianNetwork | DecisionNetwork, path: AnyPath) -> None:
    """Write a network; numbers and names read back exactly, states as text.

    Raises ModelError for a name that XML cannot hold, or two states of a variable that are equal as text.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<BIF VERSION="0.3">', "<NETWORK>", "<NAME>certimap</NAME>"]
    nodes = written_nodes(model)
    if isinstance(model, DecisionNetwork) and model.limited_memory:
        lines.append("<PROPERTY>limited_memory</PROPERTY>")
    names = [escape(xml_name(node.name)) for node in nodes]
    for node, name in zip(nodes, names, strict=True):
        kind = "nature" if node.kind == "node" else node.kind
        outcomes = "".join(f"<OUTCOME>{escape(xml_name(text))}</OUTCOME>" for text in node.states or ["0"])
        lines.append(f'<VARIABLE TYPE="{kind}"><NAME>{name}</NAME>{outcomes}</VARIABLE>')
    for node, name in zip(nodes, names, strict=True):
        given = "".join(f"<GIVEN>{names[p]}</GIVEN>" for p in node.parents)
        table = f"<TABLE>{' '.join(node.words)}</TABLE>" if node.words else ""
        lines += [f"<DEFINITION><FOR>{name}</FOR>{given}", f"{table}</DEFINITION>"]
    write_text(path, "\n".join([*lines, "</NETWORK>", "</BIF>"]) + "\n")
