"""`.dsl`, GeNIe's format of the 1990s: chance nodes and deterministic ones.

    net NAME {
      node A {
        TYPE = CPT;
        PARENTS = ();
        DEFINITION = { NAMESTATES = (yes, no); PROBABILITIES = (.1, .9); };
      };
    };

The node's own states vary fastest, then the last parent's. Everything but types, parents and definitions is
ignored.
"""

from __future__ import annotations

from certimap.io.braces import SLASHES, BraceBlock, Braces, quoted, words_of
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut, read_text, write_text
from certimap.io.identifiers import written_names
from certimap.io.numbers import written
from certimap.networks.bayesian import BayesianNetwork


def read_dsl(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network.

    Raises
    ------
    ParseError
        With file and line: for a violation of the format, and for nodes of types other than CPT and TRUTHTABLE,
        which it names.

    Warns
    -----
    UserWarning
        Once, when rows add to 1 within 1e-3 but not within 1e-6: they are renormalised.
    """
    source = Braces(path, read_text(path, encoding), SLASHES)
    declared = Declared(path)
    nets = [block for block in source.root.blocks if block.words[:1] == ["net"]]
    if len(nets) != 1:
        raise source.fail(f"the file has {len(nets)} nets; expected one, net NAME {{ ... }}", 0)
    for block in nets[0].blocks:
        if block.words[:1] == ["node"]:
            _read_node(source, declared, block)
    return declared.network()


def _read_node(source: Braces, declared: Declared, block: BraceBlock) -> None:
    if len(block.words) != 2:
        raise source.fail(f"{cut(block.head)} begins no node; expected node NAME {{ ... }}", block.at)
    name, line = block.words[1], source.line(block.at)
    kind = source.entry(block, "TYPE")
    if kind is None or kind.value not in ("CPT", "TRUTHTABLE"):
        shown = "no type" if kind is None else f"the type {kind.value[:20]}"
        raise source.fail(f"{cut(name)} has {shown}; expected CPT and TRUTHTABLE", block.at)
    definition = next(block.named("definition"), None)
    states = None if definition is None else source.entry(definition, "NAMESTATES")
    if definition is None or states is None:
        raise source.fail(f"{cut(name)} has no DEFINITION with NAMESTATES; expected one", block.at)
    declared.variable(name, words_of(states.value), line)
    parents_entry = source.entry(block, "PARENTS")
    parents = [] if parents_entry is None else words_of(parents_entry.value)
    key = "PROBABILITIES" if kind.value == "CPT" else "RESULTINGSTATES"
    table = source.entry(definition, key)
    if table is None:
        raise source.fail(f"{cut(name)} has no {key}; a node of the type {kind.value} needs them", block.at)
    if kind.value == "CPT":
        declared.table(name, parents, source.numbers(table, cut(name)), line)
    else:
        declared.deterministic(name, parents, words_of(table.value), line)


def write_dsl(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network, parents before children; numbers read back exactly.

    Names and states that are not identifiers are converted, with one warning; headers keep the original names
    of variables.
    """
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
