"""Netica's `.dne` (DNET): discrete chance and deterministic nodes.

    bnet NAME {
      node A { kind = NATURE; discrete = TRUE; states = (yes, no); parents = (); probs = (.1, .9); };
      node B { chance = DETERMIN; states = (x, y); parents = (A); functable = (x, y); };
    };

The node's own states vary fastest, then the last parent's. A continuous node needs levels that cut it into
intervals. Constants (titles), positions, comments and findings are ignored.
"""

from __future__ import annotations

import itertools

from certimap.io.braces import SLASHES, BraceBlock, Braces, quoted, words_of
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, read_text, write_text
from certimap.io.identifiers import written_names
from certimap.io.net import nested
from certimap.io.numbers import written
from certimap.networks.bayesian import BayesianNetwork

LONGEST_NAME = 30  # characters of a name


def read_dne(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network.

    Raises
    ------
    ParseError
        With file and line: for a violation of the format, and for decisions, utilities, continuous nodes
        without levels and nodes with only an equation, which it names.

    Warns
    -----
    UserWarning
        Once, when rows add to 1 within 1e-3 but not within 1e-6: they are renormalised.
    """
    source = Braces(path, read_text(path, encoding), SLASHES)
    declared = Declared(path)
    nets = [block for block in source.root.blocks if block.words[:1] == ["bnet"]]
    if len(nets) != 1:
        raise source.fail(f"the file has {len(nets)} nets; expected one, bnet NAME {{ ... }}", 0)
    for block in nets[0].blocks:
        if block.words[:1] == ["node"]:
            _read_node(source, declared, block)
    return declared.network()


def _read_node(source: Braces, declared: Declared, block: BraceBlock) -> None:
    if len(block.words) != 2:
        raise source.fail(f"{cut(block.head)} begins no node; expected node NAME {{ ... }}", block.at)
    name, line = block.words[1], source.line(block.at)
    kind = _text(source, block, "kind", "NATURE").upper()
    if kind == "CONSTANT":
        return
    if kind != "NATURE":
        raise source.fail(f"{cut(name)} is of the kind {kind[:20]}; expected nodes of the kind NATURE", block.at)
    states = _states(source, block, name)
    declared.variable(name, states, line)
    parents = words_of(_text(source, block, "parents", ""))
    probs, functable = source.entry(block, "probs"), source.entry(block, "functable")
    if probs is not None:
        declared.table(name, parents, source.numbers(probs, cut(name)), line)
    elif functable is not None:
        results = words_of(functable.value)
        declared.deterministic(name, parents, [_result(word, states) for word in results], line)
    else:
        lacks = "is given by an equation" if "equation" in block.entries else "has no table"
        raise source.fail(f"{cut(name)} {lacks}; expected probs or functable", block.at)


def _text(source: Braces, block: BraceBlock, key: str, default: str) -> str:
    entry = source.entry(block, key)
    return default if entry is None else entry.value


def _states(source: Braces, block: BraceBlock, name: str) -> list[str]:
    """Return the states of a node: its list of states, else its levels, else numbers."""
    states, levels, count = (source.entry(block, key) for key in ("states", "levels", "numstates"))
    is_discrete = _text(source, block, "discrete", "TRUE").upper() == "TRUE"
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


def write_dne(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network, parents before children; numbers read back exactly.

    Names and states that are not identifiers of at most 30 characters are converted, with one warning; titles
    keep the original names of variables.
    """
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
