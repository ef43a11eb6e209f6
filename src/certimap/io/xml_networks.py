"""Networks as XML: ProbModelXML (`.pgmx`, OpenMarkov), Microsoft's `.xbn`, and chance parts of `.pomdpx`.

    <Potential type="Table"><Variables><Variable name="C"/><Variable name="A"/></Variables> <Values>.1 .9 ...

In .pgmx the first variable listed is the conditioned one and varies fastest, then the second. Decisions have no
potential: links say what is seen. The variable of a utility has the role "utility" and may stand in a
UtilityVariable. In .xbn rows have numbers. In .pomdpx entries name states; `*` is each of them, `-` all of them.
"""

from __future__ import annotations

import math
import warnings
from functools import partial
from xml.sax.saxutils import quoteattr

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import Categorical
from certimap.core.steps import at_step
from certimap.decisions.network import DecisionNetwork
from certimap.errors import ParseError
from certimap.io.declared import MAX_EXPANDED, Declared, Rows
from certimap.io.fault_trees import read_opsa
from certimap.io.files import AnyPath, cut, write_text
from certimap.io.words import Numbers, written_nodes
from certimap.io.xml_files import Element, read_xdsl, read_xml, read_xmlbif, rooted, xml_name, xml_numbers
from certimap.networks.bayesian import BayesianNetwork

_TABLES = ("table", "probtable", "exactdistr")
_MODELS = {"or / max": -1, "generalizedmax": -1, "and / min": 0, "generalizedmin": 0}  # to the strongest state


def read_by_root(path: AnyPath, encoding: str | None = None) -> BayesianNetwork | DecisionNetwork:
    """Read whichever format the outermost element tells: XMLBIF, or else one with a suffix of its own."""
    return _BY_ROOT.get(read_xml(path, encoding).tag, read_xmlbif)(path, encoding)


def read_pgmx(path: AnyPath, encoding: str | None = None) -> BayesianNetwork | DecisionNetwork:
    """Read a network of tables, trees (ADDs), noisy OR, MAX, AND, MIN, and utilities that are added up."""
    _, network = rooted(path, encoding, "ProbModelXML", "ProbNet")
    declared = Declared(path)
    potentials = list(network.first("Potentials").all("Potential"))
    sums = {_scope(potential)[-1] for potential in potentials if _is_sum(potential)}
    declared.limited_memory = network.get("type").upper() == "LIMID"
    for variable in network.first("Variables").all("Variable"):
        name = _name(variable)
        kind, role = (variable.get(key).lower() for key in ("type", "role"))
        is_discrete = role == "utility" or kind.startswith(("finitestate", "discretized"))
        if role not in ("", "chance", "decision", "utility") or not is_discrete:
            told = f"variable {cut(name)} has the role {cut(role)} and the type {cut(kind)}; expected 'chance',"
            raise declared.fail(
                f"{told} 'decision' or 'utility', and 'finiteStates' or 'discretized'", variable.line
            )
        states = [state.get("name") for state in variable.first("States").all("State")]
        if name not in sums:
            declared.variable(name, states, variable.line, role)
    links = [[_name(end) for end in link.all("Variable")] for link in network.first("Links").all("Link")]
    for name in [name for name, kind in declared.kinds.items() if kind == "decision"]:
        declared.table(name, [ends[0] for ends in links if ends[1:] == [name]], Numbers(np.zeros(0)), None)
    for potential in sorted(potentials, key=_is_sum):
        _read_potential(path, declared, potential)
    return declared.model()


def _name(element: Element) -> str:
    """Return the name of a variable, with its time slice if it has one."""
    name, step = element.get("name"), element.get("timeSlice")
    return at_step(name, int(step)) if step.isdecimal() and len(step) < 7 else name


def _is_sum(potential: Element) -> bool:
    return potential.get("type").lower() == "sum" and bool(_scope(potential))


def _scope(element: Element) -> list[str]:
    """Return the variables of a potential, the conditioned one last; in this order the last varies fastest."""
    listed = [_name(variable) for variable in element.first("Variables").all("Variable")][::-1]
    return listed + [_name(variable) for variable in element.all("UtilityVariable")]


def _read_potential(path: AnyPath, declared: Declared, potential: Element) -> None:
    *parents, name = _scope(potential) or [""]
    if declared.kinds.get(name) == "decision":
        raise declared.fail(f"decision {cut(name)} has a policy already; expected none", potential.line)
    kind = potential.get("type").lower()
    if kind in _TABLES:
        numbers = xml_numbers(path, potential, "Values", name, declared.number_kind(name))
        declared.table(name, parents, numbers, potential.line)
    elif _is_sum(potential):
        declared.total(name, parents, [1.0] * len(parents), potential.line)
    elif kind == "uniform":
        declared.uniform(name, parents, potential.line)
    elif kind == "icimodel":
        _read_noisy(path, declared, potential, parents, name)
    elif kind == "tree/add":
        declared.computed(name, parents, partial(_tree_table, path, potential), potential.line)
    else:
        told = f"the potential of {cut(name)} has the type {cut(kind)}"
        raise ParseError(f"{told}; expected Table, Tree/ADD, ICIModel, Uniform or Sum", path, potential.line)


def _read_noisy(path: AnyPath, declared: Declared, potential: Element, parents: list[str], name: str) -> None:
    model = " ".join(potential.first("Model").text.lower().split())
    strongest = _MODELS.get(model)
    if strongest is None:
        told = f"{cut(name)} has the model {cut(model)} of its causes"
        raise ParseError(f"{told}; expected OR / MAX or AND / MIN", path, potential.line)
    rows: dict[tuple[str, ...], list[float]] = {}
    for part in potential.first("Subpotentials").all("Potential"):
        rows[tuple(_scope(part)[:-1])] = xml_numbers(path, part, "Values", name).values.tolist()
    n_states = declared.variables[name].n_states if name in declared.variables else 1
    none = [float(k == (0 if strongest else n_states - 1)) for k in range(n_states)]
    listed = [x for parent in parents for x in rows.get((parent,), ())] + rows.get((), none)
    declared.noisy_max(name, parents, np.array(listed), None, potential.line, strongest)


def _tree_table(path: AnyPath, potential: Element, child: Categorical, above: list[Categorical]) -> Floats:
    variables = {v.name: v for v in (*above, child)}
    table = np.full([v.n_states for v in variables.values()], -1.0)
    _fill(path, potential, variables, [list(range(v.n_states)) for v in variables.values()], table)
    if not np.all((table >= 0.0) & (table < np.inf)):
        told = f"the tree of {cut(child.name)} has no branch for some states, or a number above 1"
        raise ParseError(told, path, potential.line)
    return table


def _fill(
    path: AnyPath, node: Element, variables: dict[str, Categorical], allowed: list[list[int]], table: Floats
) -> None:
    """Fill the part of a table in which variables have the `allowed` states, from a table or a tree."""
    names, child = list(variables), list(variables)[-1]
    kind = node.get("type").lower()
    if kind in _TABLES:
        scope = _scope(node)
        values = xml_numbers(path, node, "Values", child).values
        known = scope[-1:] == [child] and set(scope) <= set(names) and len(set(scope)) == len(scope)
        if not known or len(values) != math.prod(variables[v].n_states for v in scope):
            told = f"a table in the tree of {cut(child)} has other variables or another number of entries"
            raise ParseError(f"{told}; expected the variable itself, and parents of it", path, node.line)
        block = values.reshape([variables[v].n_states for v in scope])
        block = block.transpose([scope.index(v) for v in names if v in scope])
        block = block.reshape([variables[v].n_states if v in scope else 1 for v in names])
        chosen = [states if v in scope else [0] for v, states in zip(names, allowed, strict=True)]
        table[np.ix_(*allowed)] = block[np.ix_(*chosen)]
        return
    top = _name(node.first("TopVariable"))
    if kind != "tree/add" or top not in names[:-1]:
        told = f"the tree of {cut(child)} has a part of the type {cut(kind)} over {cut(top)}"
        raise ParseError(f"{told}; expected Table, or Tree/ADD over a parent", path, node.line)
    at, left = names.index(top), allowed[names.index(top)]
    for branch in node.first("Branches").all("Branch"):
        given = {state.get("name") for state in (*branch.all("State"), *branch.first("States").all("State"))}
        part = [k for k in left if variables[top].states[k] in given]
        left = [k for k in left if k not in part]
        _fill(path, branch.first("Potential"), variables, [*allowed[:at], part, *allowed[at + 1 :]], table)


def read_xbn(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; distributions of other types than discrete are refused."""
    _, network = rooted(path, encoding, "ANALYSISNOTEBOOK", "BNMODEL")
    declared = Declared(path)
    for variable in network.first("VARIABLES").all("VAR"):
        states = [state.text.strip() for state in variable.all("STATENAME")]
        declared.variable(variable.get("NAME"), states, variable.line)
    for dist in network.first("DISTRIBUTIONS").all("DIST"):
        name, kind, rows = dist.first("PRIVATE").get("NAME"), dist.get("TYPE"), Rows()
        if kind not in ("", "discrete"):
            raise declared.fail(f"{cut(name)} has the distribution {cut(kind)}; expected 'discrete'", dist.line)
        for row in dist.first("DPIS").all("DPI"):
            words = row.get("INDEXES").split()
            index = tuple(int(word) if word.isdecimal() and len(word) < 7 else -1 for word in words)
            if index in rows or -1 in index:
                raise declared.fail(f"the row {cut(' '.join(words))} of {cut(name)} is doubled or none", row.line)
            rows[index] = xml_numbers(path, Element("", {}, row.line, [row]), "DPI", name), row.line
        parents = [parent.get("NAME") for parent in dist.first("CONDSET").all("CONDELEM")]
        declared.rows(name, parents, rows, None, dist.line)
    return declared.network()


def read_pomdpx(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read two slices: initial beliefs, transitions and observations as tables, all actions equally probable.

    Decision diagrams are refused, and rewards left out with a warning.
    """
    root, variables = rooted(path, encoding, "pomdpx", "Variable")
    declared, actions = Declared(path), list[str]()
    for variable in variables.children:
        count = variable.first("NumValues").text.strip()
        n_states = int(count) if count.isdecimal() and len(count) < 6 else 0
        states = [f"s{k}" for k in range(n_states)] or variable.words("ValueEnum")
        for key in ("vname", "vnamePrev", "vnameCurr") if variable.tag != "RewardVar" else ():
            if key in variable.attributes:
                declared.variable(variable.attributes[key], states, variable.line)
        actions += [variable.get("vname")] if variable.tag == "ActionVar" else []
    for part in ("InitialStateBelief", "StateTransitionFunction", "ObsFunction"):
        for table in root.first(part).all("CondProb"):
            name, parents = "".join(table.words("Var")), [word for word in table.words("Parent") if word != "null"]
            if (kind := table.first("Parameter").attributes.get("type", "TBL")) != "TBL":
                raise declared.fail(f"{cut(name)} is given by the type {cut(kind)}; expected TBL", table.line)
            declared.computed(name, parents, partial(_entries, path, table), table.line)
    for name in actions:
        declared.uniform(name, [], None)
    warnings.warn(f"{path}: actions are read as equally probable, and rewards are left out", stacklevel=4)
    return declared.network()


def _entries(path: AnyPath, whole: Element, child: Categorical, above: list[Categorical]) -> Floats:
    """Return the table of a variable from entries, of which later ones overrule earlier ones."""
    variables = [*above, child]
    table, left = np.zeros([v.n_states for v in variables]), MAX_EXPANDED
    for entry in whole.first("Parameter").all("Entry"):
        words, given = entry.words("Instance"), entry.words("ProbTable")
        shape = [v.n_states if word == "-" else 1 for v, word in zip(variables, words, strict=False)]
        if given == ["identity"]:
            values = np.eye(child.n_states).reshape(-1)
        elif given == ["uniform"]:
            values = np.full(math.prod(shape), 1.0 / child.n_states)
        else:
            values = xml_numbers(path, entry, "ProbTable", child.name).values
        if len(words) != len(variables) or len(values) != math.prod(shape):
            told = f"an entry of {cut(child.name)} has {len(words)} states and {len(values)} numbers"
            raise ParseError(f"{told}; expected {len(variables)}, and one for each of '-'", path, entry.line)
        places = [
            range(v.n_states) if word in "*-" else [v.index(word)]
            for v, word in zip(variables, words, strict=True)
        ]
        left -= math.prod(map(len, places))
        if left < 0 or not np.all(values <= 1.0):
            told = f"the entries of {cut(child.name)} hold a number above 1, or fill more than {MAX_EXPANDED:,}"
            raise ParseError(told, path, entry.line)
        table[np.ix_(*places)] = values.reshape(shape)
    return table


_BY_ROOT = {
    "ProbModelXML": read_pgmx, "ANALYSISNOTEBOOK": read_xbn, "pomdpx": read_pomdpx, "smile": read_xdsl,
    "opsa-mef": read_opsa,
}  # fmt: skip


def write_pgmx(model: BayesianNetwork | DecisionNetwork, path: AnyPath) -> None:
    """Write a network as OpenMarkov reads it; numbers and names read back exactly, states as text.

    Raises ModelError for a name that XML cannot hold, or two states of a variable that are equal as text.
    """
    nodes, kind = written_nodes(model), "BayesianNetwork"
    if isinstance(model, DecisionNetwork):
        kind = "LIMID" if model.limited_memory else "InfluenceDiagram"
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<ProbModelXML formatVersion="0.2.0">']
    lines += [f'<ProbNet type="{kind}">', "<Variables>"]
    names = [f"<Variable name={quoteattr(xml_name(node.name))}/>" for node in nodes]
    for node, name in zip(nodes, names, strict=True):
        states = "".join(f"<State name={quoteattr(xml_name(text))}/>" for text in node.states)
        role, scale = "chance" if node.kind == "node" else node.kind, "finiteStates" if states else "numeric"
        states = f"<States>{states}</States>" if states else ""
        lines.append(f'{name[:-2]} type="{scale}" role="{role}">{states}</Variable>')
    lines += ["</Variables>", "<Links>"]
    for node, name in zip(nodes, names, strict=True):
        lines += [f'<Link directed="true">{names[p]}{name}</Link>' for p in node.parents]
    lines += ["</Links>", "<Potentials>"]
    for node, name in ((node, name) for node, name in zip(nodes, names, strict=True) if node.words):
        scope = "".join(names[p] for p in node.parents[::-1])
        role, head = "conditionalProbability", f"<Variables>{name}{scope}</Variables>"
        if node.kind == "utility":
            own = name.replace("Variable", "UtilityVariable", 1)
            role, head = "utility", f"{own}<Variables>{scope}</Variables>"
        lines.append(f'<Potential type="Table" role="{role}">')
        lines.append(f"{head}<Values>{' '.join(node.words)}</Values></Potential>")
    write_text(path, "\n".join([*lines, "</Potentials>", "</ProbNet>", "</ProbModelXML>"]) + "\n")
