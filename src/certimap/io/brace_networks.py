"""Bayesian networks in blocks of braces: Hugin's `.net`, Netica's `.dne`, GeNIe's `.dsl`, Microsoft's `.dsc`.

    HEAD { KEY = VALUE; KEY = { ... }; STATEMENT; HEAD { ... } }

Text is read as a tree of blocks, entries and statements. Values stay text; long lists of numbers are parsed in one
sweep. The node's own states vary fastest, then the last parent's. Positions, labels and other fields are ignored.
In `.net`, what is known at a decision stays known, unless certimap wrote `limited_memory = "yes"` into the net.

    node A { states = ("yes" "no"); }            potential (A | B C) { data = ((.1 .9) ...); }            (.net)
    decision D { states = ("go" "stay"); }       utility U { }    potential (U | D) { data = (10 -2); }
    node A { kind = NATURE; discrete = TRUE; states = (yes, no); parents = (B); probs = ((.1, .9), ...); };
    node A { TYPE = CPT; PARENTS = (B); DEFINITION = { NAMESTATES = (yes, no); PROBABILITIES = (.1, .9, ...); }; };
    node A { type: discrete[2] = { "yes", "no" }; }        probability(A | B) { (0): .1, .9; default: .5, .5; }
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from certimap.decisions.network import DecisionNetwork
from certimap.errors import ParseError
from certimap.io.declared import Declared, Rows
from certimap.io.files import AnyPath, LineCounter, after, cut, line_of, read_text, write_text
from certimap.io.words import Numbers, numbers_of, written, written_names, written_nodes, written_rows
from certimap.networks.bayesian import BayesianNetwork

_STRING = r'"(?:[^"\\]|\\.)*+"'
_BLANK = re.compile(r"[\s;,]*+")
_HEAD = re.compile(rf"((?:{_STRING}|[^\"{{}}=;]++)*+)([{{}}=;]|\Z)", re.DOTALL)
_UNCLOSED = re.compile(rf"(?:{_STRING}|[^\"]++)*+", re.DOTALL)
_VALUE = re.compile(rf"((?:{_STRING}|[^\";{{}}]++)*+);", re.DOTALL)
_SPACES = re.compile(r"\s*+")
_WORD = re.compile(rf"{_STRING}|[^\s,;()|\"]++", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_LIST = str.maketrans("(),", "   ")
MAX_DEPTH = 100
SLASHES = r"//[^\n]*+|/\*(?:.*?\*/|.*\Z)"  # C++ comments
PERCENT = r"%[^\n]*+"  # Hugin comments


@dataclass(frozen=True)
class BraceEntry:
    """The text after `KEY =`, or a statement without a key; `at` is its position in the text."""

    value: str
    at: int


@dataclass
class BraceBlock:
    """The content of a pair of braces, and the text before it."""

    head: str
    at: int  # where the head begins
    entries: dict[str, list[BraceEntry]] = field(default_factory=dict[str, list[BraceEntry]])  # by key, in order
    statements: list[BraceEntry] = field(default_factory=list[BraceEntry])  # texts without an equals sign
    blocks: list[BraceBlock] = field(default_factory=list["BraceBlock"])

    @property
    def words(self) -> list[str]:
        return words_of(self.head)


class Braces:
    """A text of blocks with comments of some pattern, and errors that name its lines."""

    def __init__(self, path: AnyPath, text: str, comments: str) -> None:
        self.path = path
        # An unterminated quote or comment extends to the end of the text, so one pass is enough.
        pattern = re.compile(rf'"(?:[^"\\]|\\.)*+(?:"|\Z)|{comments}', re.DOTALL)
        self.text = pattern.sub(self._kept, text)
        self._lines = LineCounter(self.text)
        self.root = self._parsed()

    def _kept(self, found: re.Match[str]) -> str:
        """Keep quoted text; reduce comments to their line ends."""
        if found[0].startswith('"'):
            return found[0]
        if found[0].startswith("/*") and not found[0].endswith("*/"):
            line = line_of(found.string, found.start())
            raise ParseError("a comment begins here and does not end; '*/' ends it", self.path, line)
        return " " + "\n" * found[0].count("\n")

    def line(self, at: int) -> int:
        return self._lines(at)

    def fail(self, message: str, at: int | None = None) -> ParseError:
        return ParseError(message, self.path, self.line(len(self.text.rstrip()) if at is None else at))

    def _parsed(self) -> BraceBlock:
        root = BraceBlock("", 0)
        stack = [root]
        at = after(_BLANK, self.text, 0)
        while at < len(self.text):
            found = _HEAD.match(self.text, at)
            if found is None:
                at = after(_UNCLOSED, self.text, at)
                raise self.fail("a text in double quotes begins here and does not end; '\"' ends it", at)
            head, sign, start, at = found[1].strip(), found[2], at, found.end()
            if sign == "=":
                at = self._assigned(stack, head, start, at)
            elif sign == "{":
                self._opened(stack, head, start)
            elif head:
                stack[-1].statements.append(BraceEntry(head, start))
            if sign == "}":
                if len(stack) == 1:
                    raise self.fail("'}' closes no block; expected one '}' per '{'", at - 1)
                stack.pop()
            at = after(_BLANK, self.text, at)
        if len(stack) > 1:
            raise self.fail(f"the block {cut(stack[-1].head)} has no closing '}}'", stack[-1].at)
        return root

    def _assigned(self, stack: list[BraceBlock], key: str, start: int, at: int) -> int:
        """Take the text after an equals sign: a value, or the opening brace of a block."""
        at = after(_SPACES, self.text, at)
        if self.text.startswith("{", at):
            self._opened(stack, key, start)
            return at + 1
        found = _VALUE.match(self.text, at)
        if found is None:
            raise self.fail(f"the value of {cut(key)} does not end; ';' ends it", start)
        stack[-1].entries.setdefault(key, []).append(BraceEntry(found[1].strip(), start))
        return found.end()

    def _opened(self, stack: list[BraceBlock], head: str, start: int) -> None:
        if len(stack) > MAX_DEPTH:
            raise self.fail(f"blocks lie in one another more than {MAX_DEPTH} deep; expected fewer", start)
        block = BraceBlock(head, start)
        stack[-1].blocks.append(block)
        stack.append(block)

    def entry(self, block: BraceBlock, key: str) -> BraceEntry | None:
        """Return the one entry of a key, or None without any."""
        found = block.entries.get(key, [])
        if len(found) > 1:
            raise self.fail(f"{key} of {cut(block.head)} is given twice; expected once", found[1].at)
        return found[0] if found else None

    def value(self, block: BraceBlock, key: str, default: str = "") -> str:
        """Return the value of the one entry of a key, or a default."""
        entry = self.entry(block, key)
        return default if entry is None else entry.value

    def numbers(self, entry: BraceEntry, what: str, kind: str = "probability") -> Numbers:
        """Read a list of numbers, ignoring parentheses."""

        def refused(text: str, k: int) -> ParseError:
            word = list(re.finditer(r"[^\s(),]++", entry.value))[k]
            return self.fail(text, self.text.find(entry.value, entry.at) + word.start())

        words = entry.value.translate(_LIST).split()
        told = f"in the table of {what} is no {kind}"
        return numbers_of(words, told, refused, kind == "utility")


def words_of(text: str) -> list[str]:
    """Return the words of a list; commas, blanks and parentheses outside double quotes separate them."""
    words = _WORD.findall(text)
    return [_ESCAPE.sub(r"\1", word[1:-1]) if word.startswith('"') else word for word in words]


def quoted(text: str) -> str:
    """Return a text in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_POTENTIAL = re.compile(r"potential\s*\((.*)\)\s*", re.DOTALL)
_NET_NODE = re.compile(
    r"(?:(discrete|continuous)\s+)?(?:chance\s+)?(node|decision|utility|function|instance)\s+(\S.*)"
)
_NO_BLOCK = "{} begins no block; expected net, node, decision, utility or potential"


def read_net(path: AnyPath, encoding: str | None = None) -> BayesianNetwork | DecisionNetwork:
    """Read a network; functions, continuous nodes, instances of classes and expressions are refused.

    ProbLog's files begin with a comment of their own; their labels are the atoms that nodes are named after.
    """
    text = read_text(path, encoding)
    source = Braces(path, text, PERCENT)
    declared = Declared(path)
    for entry in source.root.statements:
        raise source.fail(_NO_BLOCK.format(cut(entry.value)), entry.at)
    for block in sorted(source.root.blocks, key=lambda block: bool(_POTENTIAL.fullmatch(block.head))):
        potential = _POTENTIAL.fullmatch(block.head)
        if potential:
            _read_potential(source, declared, block, potential[1])
        elif block.words[:1] == ["class"]:
            text = f"{cut(block.head)} is a class of an object-oriented network; expected a plain network"
            raise source.fail(text, block.at)
        elif block.words[:1] != ["net"]:
            _read_net_node(source, declared, block, has_titles=text.startswith("%% Hugin Net:"))
        else:
            declared.limited_memory = words_of(source.value(block, "limited_memory")) == ["yes"]
    return declared.model()


def _read_net_node(source: Braces, declared: Declared, block: BraceBlock, *, has_titles: bool) -> None:
    found = _NET_NODE.fullmatch(" ".join(block.head.split()))
    if found is None:
        raise source.fail(_NO_BLOCK.format(cut(block.head)), block.at)
    name = found[3]
    if found[1] == "continuous" or found[2] in ("function", "instance"):
        what = found[1] if found[1] == "continuous" else found[2]
        raise source.fail(f"{cut(name)} is of the kind {what}; expected discrete nodes", block.at)
    states = source.entry(block, "states")
    if states is None and found[2] != "utility":
        raise source.fail(f'node {cut(name)} has no states; expected states = ("A" "B");', block.at)
    declared.variable(name, words_of(states.value if states else ""), source.line(block.at), found[2])
    if has_titles and (label := " ".join(words_of(source.value(block, "label")))):
        declared.titles[name] = label


def _read_potential(source: Braces, declared: Declared, block: BraceBlock, header: str) -> None:
    own, _, given = header.partition("|")
    names = words_of(own)
    line = source.line(block.at)
    if len(names) != 1:
        text = f"the potential of {cut(own.strip())} is of {len(names)} variables"
        raise source.fail(f"{text}; expected one, and behind a bar its parents", block.at)
    data, kind = source.entry(block, "data"), declared.number_kind(names[0])
    if data is not None:
        declared.table(names[0], words_of(given), source.numbers(data, cut(names[0]), kind), line)
    elif kind == "utility":
        raise source.fail(f"the potential of {names[0]!r} has no data; expected utilities", block.at)
    elif "model_data" in block.entries:
        raise source.fail(f"the potential of {names[0]!r} is given by expressions; expected data", block.at)
    else:
        declared.uniform(names[0], words_of(given), line)


def write_net(model: BayesianNetwork | DecisionNetwork, path: AnyPath) -> None:
    """Write a network, states as text; labels keep names that are no identifiers."""
    names, nodes = written_names(model, path, states_too=False), written_nodes(model)
    is_limited = isinstance(model, DecisionNetwork) and model.limited_memory
    lines = ['net { limited_memory = "yes"; }' if is_limited else "net { }"]
    for node, name, states, label in zip(nodes, names.names, names.states, names.labels, strict=True):
        texts = f"  states = ({' '.join(map(quoted, states))});" if states else ""
        title = "" if label == name else f" label = {quoted(label)};"
        lines += [f"{node.kind} {name} {{", texts + title, "}"]
    for node, name in zip(nodes, names.names, strict=True):
        given = f" | {' '.join(names.names[p] for p in node.parents)}" if node.parents else ""
        lines.append(f"potential ({name}{given}) {{")
        lines += [f"  data = {nested(node.words, node.shape)};" if node.words else "", "}"]
    write_text(path, "\n".join(line for line in lines if line) + "\n")


def nested(numbers: list[str], shape: tuple[int, ...], between: str = " ") -> str:
    """Put parentheses around the numbers of each axis, the last axis innermost."""
    parts = numbers
    for size in reversed(shape):
        parts = [f"({between.join(parts[k : k + size])})" for k in range(0, len(parts), size)]
    return parts[0]


_ReadNode = Callable[[Braces, Declared, BraceBlock, str], None]


def read_dne(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a network (Netica); decisions, utilities, equations and continuous nodes without levels are refused."""
    return _read(path, encoding, "bnet", _read_dne_node)


def read_dsl(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a network of GeNIe; nodes of types other than CPT and TRUTHTABLE are refused."""
    return _read(path, encoding, "net", _read_dsl_node)


def _read(path: AnyPath, encoding: str | None, word: str, read_node: _ReadNode) -> BayesianNetwork:
    source = Braces(path, read_text(path, encoding), SLASHES)
    declared = Declared(path)
    nets = [block for block in source.root.blocks if block.words[:1] == [word]]
    if len(nets) != 1:
        raise source.fail(f"the file has {len(nets)} nets; expected one, {word} NAME {{ ... }}", 0)
    for block in nets[0].blocks:
        if block.words[:1] == ["node"]:
            if len(block.words) != 2:
                raise source.fail(f"{cut(block.head)} begins no node; expected node NAME {{ ... }}", block.at)
            read_node(source, declared, block, block.words[1])
    return declared.network()


def _read_dne_node(source: Braces, declared: Declared, block: BraceBlock, name: str) -> None:
    line = source.line(block.at)
    kind = source.value(block, "kind", "NATURE").upper()
    if kind == "CONSTANT":
        return
    if kind != "NATURE":
        raise source.fail(f"{cut(name)} is of the kind {kind[:20]}; expected nodes of the kind NATURE", block.at)
    states = _dne_states(source, block, name)
    declared.variable(name, states, line)
    parents = words_of(source.value(block, "parents"))
    probs, functable = source.entry(block, "probs"), source.entry(block, "functable")
    if probs is not None:
        declared.table(name, parents, source.numbers(probs, cut(name)), line)
    elif functable is not None:
        results = words_of(functable.value)
        declared.deterministic(name, parents, [_result(word, states) for word in results], line)
    else:
        lacks = "is given by an equation" if "equation" in block.entries else "has no table"
        raise source.fail(f"{cut(name)} {lacks}; expected probs or functable", block.at)


def _dne_states(source: Braces, block: BraceBlock, name: str) -> list[str]:
    """Return the states of a node: its list of states, else its levels, else numbers."""
    states, levels, count = (source.entry(block, key) for key in ("states", "levels", "numstates"))
    is_discrete = source.value(block, "discrete", "TRUE").upper() == "TRUE"
    if not is_discrete and levels is None:
        text = f"{cut(name)} is a continuous node; expected discrete ones, or levels that cut it into intervals"
        raise source.fail(text, block.at)
    if states is not None:
        found = words_of(states.value)
        if count is not None and count.value != str(len(found)):
            raise source.fail(f"{cut(name)} has {len(found)} states and numstates = {cut(count.value)}", block.at)
        return found
    if levels is not None:
        values = words_of(levels.value)
        return values if is_discrete else [f"{low} to {high}" for low, high in itertools.pairwise(values)]
    if count is not None and count.value.isdecimal() and len(count.value) < 6:
        return [str(k) for k in range(int(count.value))]
    raise source.fail(f"{cut(name)} has no states; expected states = (A, B);", block.at)


def _result(word: str, states: list[str]) -> str:
    """Return the state named by an entry of a function table, by label or as # and its number."""
    if word.startswith("#") and word[1:].isdecimal() and len(word) < 7 and int(word[1:]) < len(states):
        return states[int(word[1:])]
    return word


def _read_dsl_node(source: Braces, declared: Declared, block: BraceBlock, name: str) -> None:
    line, kind = source.line(block.at), source.entry(block, "TYPE")
    if kind is None or kind.value not in ("CPT", "TRUTHTABLE"):
        shown = "no type" if kind is None else f"the type {kind.value[:20]}"
        raise source.fail(f"{cut(name)} has {shown}; expected CPT and TRUTHTABLE", block.at)
    definition = next((inner for inner in block.blocks if inner.head.strip().lower() == "definition"), None)
    states = None if definition is None else source.entry(definition, "NAMESTATES")
    if definition is None or states is None:
        raise source.fail(f"{cut(name)} has no DEFINITION with NAMESTATES; expected one", block.at)
    declared.variable(name, words_of(states.value), line)
    parents = words_of(source.value(block, "PARENTS"))
    key = "PROBABILITIES" if kind.value == "CPT" else "RESULTINGSTATES"
    table = source.entry(definition, key)
    if table is None:
        raise source.fail(f"{cut(name)} has no {key}; a node of the type {kind.value} needs them", block.at)
    if kind.value == "CPT":
        declared.table(name, parents, source.numbers(table, cut(name)), line)
    else:
        declared.deterministic(name, parents, words_of(table.value), line)


def write_dne(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a network, parents first; identifiers have at most 30 characters, and titles keep other names."""
    names = written_names(model, path, states_too=True, longest=30)
    lines = ["// ~->[DNET-1]->~", "", "bnet certimap {"]
    for child in model.topological_order:
        factor = model.factors[child]
        parents = ", ".join(names.names[p] for p in factor.scope[:-1])
        lines += [f"node {names.names[child]} {{", "  kind = NATURE;", "  discrete = TRUE;"]
        lines += [f"  states = ({', '.join(names.states[child])});", f"  parents = ({parents});"]
        lines.append(f"  probs = {nested(written(factor), factor.shape, ', ')};")
        if names.names[child] != names.labels[child]:
            lines.append(f"  title = {quoted(names.labels[child])};")
        lines.append("};")
    write_text(path, "\n".join([*lines, "};"]) + "\n")


def write_dsl(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a network, parents first; headers keep names that are no identifiers."""
    names = written_names(model, path, states_too=True)
    lines = ["net certimap", "{"]
    for child in model.topological_order:
        factor = model.factors[child]
        parents = ", ".join(names.names[p] for p in factor.scope[:-1])
        lines += [f"  node {names.names[child]}", "  {", "    TYPE = CPT;"]
        lines.append(f"    HEADER = {{ ID = {names.names[child]}; NAME = {quoted(names.labels[child])}; }};")
        lines += [f"    PARENTS = ({parents});", "    DEFINITION =", "    {"]
        lines.append(f"      NAMESTATES = ({', '.join(names.states[child])});")
        lines += [f"      PROBABILITIES = ({', '.join(written(factor))});", "    };", "  };"]
    write_text(path, "\n".join([*lines, "};"]) + "\n")


_PROBABILITY = re.compile(r"probability\s*\((.*)\)", re.DOTALL)
_TYPE = re.compile(r"type\s*:\s*discrete\s*(?:\[\s*(\d{1,9})\s*\])?")
_ROW = re.compile(r"(?:\(([\d\s,]*)\)|(default))\s*:\s*(.*)", re.DOTALL)
_NETWORK = re.compile(r'belief\s+network(?:\s+(?:"[^"]*"|\S+))?')
_DSC_NODE = re.compile(r"node\s+(\S.*)")


def read_dsc(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; nodes that are not discrete are refused."""
    return _DscReader(path, read_text(path, encoding)).network()


class _DscReader:
    """One pass over the blocks."""

    def __init__(self, path: AnyPath, text: str) -> None:
        self.source = Braces(path, text, SLASHES)
        self.declared = Declared(path)

    def network(self) -> BayesianNetwork:
        tables: list[tuple[BraceBlock, str]] = []
        for block in self.source.root.blocks:
            # The line 'belief network NAME' has no terminator and precedes the first block.
            head = _NETWORK.sub("", block.head, count=1).strip()
            probability, node = _PROBABILITY.fullmatch(head), _DSC_NODE.fullmatch(head)
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
            text = f"node {cut(name)} has no type that is accepted; type: discrete[COUNT] = {{ STATES }}; is"
            raise self.source.fail(text, block.at)
        states = [word for entry in kind.statements for word in words_of(entry.value)]
        if found[1] is not None and int(found[1]) != len(states):
            text = f"node {cut(name)} has {len(states)} states where its type says {found[1]}"
            raise self.source.fail(text, kind.at)
        self.declared.variable(name, states, self.source.line(block.at))

    def table(self, block: BraceBlock, header: str) -> None:
        own, _, given = header.partition("|")
        names, parents = words_of(own), words_of(given)
        if len(names) != 1:
            text = f"the table of {cut(own.strip())} is of {len(names)} variables; expected one"
            raise self.source.fail(text, block.at)
        name, line = names[0], self.source.line(block.at)
        if not parents and len(block.statements) == 1 and ":" not in block.statements[0].value:
            return self.declared.table(name, parents, self.source.numbers(block.statements[0], cut(name)), line)
        rows: Rows = {}
        default: Numbers | None = None
        for entry in block.statements:
            index, numbers = self.row(entry, name)
            if index is None:
                default = numbers
            elif index in rows:
                raise self.source.fail(f"the row {index} of {cut(name)} is doubled; expected once", entry.at)
            else:
                rows[index] = numbers, self.source.line(entry.at)
        return self.declared.rows(name, parents, rows, default, line)

    def row(self, entry: BraceEntry, name: str) -> tuple[tuple[int, ...] | None, Numbers]:
        """Read one row: the numbers of the parents' states (None for the default), and its entries."""
        found = _ROW.fullmatch(entry.value)
        if found is None:
            text = f"{cut(entry.value)} is no row of {cut(name)}; expected (NUMBERS): PROBABILITIES;"
            raise self.source.fail(text, entry.at)
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
        if not parents:
            lines += [f"probability({names.names[child]}) {{", f"  {', '.join(written(factor))};", "}"]
            continue
        lines.append(f"probability({names.names[child]} | {', '.join(names.names[p] for p in parents)}) {{")
        lines += [f"  ({', '.join(map(str, index))}): {', '.join(row)};" for index, row in written_rows(factor)]
        lines.append("}")
    write_text(path, "\n".join(lines) + "\n")
