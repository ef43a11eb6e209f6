"""Netica's `.dne` (DNET), and GeNIe's `.dsl` of the 1990s: two formats that differ in words.

    bnet NAME {
      node A { kind = NATURE; discrete = TRUE; states = (yes, no); parents = (); probs = (.1, .9); };
      node B { chance = DETERMIN; states = (x, y); parents = (A); functable = (x, y); };
    };

    net NAME {
      node A { TYPE = CPT; PARENTS = (); DEFINITION = { NAMESTATES = (yes, no); PROBABILITIES = (.1, .9); }; };
    };

The node's own states vary fastest, then the last parent's. In a .dne, a continuous node needs levels that cut it
into intervals. Constants, titles, positions, comments and findings are ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from certimap.io.braces import SLASHES, BraceBlock, Braces, quoted, words_of
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, read_text, write_text
from certimap.io.identifiers import written_names
from certimap.io.net import nested
from certimap.io.numbers import written
from certimap.networks.bayesian import BayesianNetwork

LONGEST_NAME = 30  # characters of a name in a .dne
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
    states = _states(source, block, name)
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


def _states(source: Braces, block: BraceBlock, name: str) -> list[str]:
    """Return the states of a node: its list of states, else its levels, else numbers."""
    states, levels, count = (source.entry(block, key) for key in ("states", "levels", "numstates"))
    is_discrete = source.value(block, "discrete", "TRUE").upper() == "TRUE"
    if not is_discrete and levels is None:
        raise source.fail(
            f"{cut(name)} is a continuous node; expected discrete ones, or levels that cut it into intervals",
            block.at,
        )
    if states is not None:
        return words_of(states.value)
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
    definition = next(block.named("definition"), None)
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
    names = written_names(model, path, states_too=True, longest=LONGEST_NAME)
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
