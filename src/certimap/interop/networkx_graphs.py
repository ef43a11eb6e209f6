"""Networks and circuits as graphs of networkx, and the parents of variables in graphs of any library."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable
from typing import Any

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.core.arguments import is_mapping, shown
from certimap.core.domain import Categorical
from certimap.core.named import needed
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import DataError, ModelError
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.network import Network


def to_networkx(model: Any) -> Any:
    """Return the networkx graph of a `model`, a network or a circuit:

    - of a Bayesian network a `DiGraph` of names with `states` and `table` (axes: the parents in `parents`, then
        the variable);
    - of a Markov network a `Graph` of names with `states`, an edge where two share a factor, and all factors in
        `graph.graph["factors"]` as pairs of names and table;
    - of a circuit a `MultiDiGraph` of node numbers from parents to children, the root in `graph.graph["root"]`;
        nodes have `kind` and, if leaves, `variable` and `parameters` (natural logs of weights for categorical
        ones); edges have `log_weight`, and `place`, the child's place among its siblings.

    Raises ModelError for another kind of model, and MissingDependency without networkx.
    """
    networkx = needed("networkx", "to_networkx needs networkx: pip install networkx")
    if isinstance(model, Circuit):
        return _circuit(model, networkx)
    if not isinstance(model, Network):
        raise ModelError(f"a {type(model).__name__} is neither network nor circuit; only these have a graph")
    directed = isinstance(model, BayesianNetwork)
    names = model.domain.names
    graph = networkx.DiGraph() if directed else networkx.Graph()
    for variable in model.domain:
        assert isinstance(variable, Categorical)  # networks refuse real variables
        graph.add_node(variable.name, states=variable.states)
    if not directed:
        graph.graph["factors"] = [(tuple(names[v] for v in f.scope), f.table) for f in model.factors]
    for factor in model.factors:
        scope = [names[v] for v in factor.scope]
        if directed:
            graph.nodes[scope[-1]].update(parents=tuple(scope[:-1]), table=factor.table)
            graph.add_edges_from((parent, scope[-1]) for parent in scope[:-1])
        else:
            graph.add_edges_from((a, b) for k, a in enumerate(scope) for b in scope[k + 1 :])
    return graph


def _circuit(circuit: Circuit, networkx: Any) -> Any:
    words = {code: kind.name for code, kind in leaf_kinds().items()}
    words |= {int(kind): kind.name.lower() for kind in NodeKind}
    graph = networkx.MultiDiGraph(root=circuit.root)
    for node, kind in enumerate(circuit.kind.tolist()):
        if kind in (NodeKind.SUM, NodeKind.PRODUCT):
            graph.add_node(node, kind=words[kind])
            start, end = circuit.child_ptr[node : node + 2].tolist()
            for place, e in enumerate(range(start, end)):
                log_weight = float(circuit.log_weights[e])
                graph.add_edge(node, int(circuit.children[e]), log_weight=log_weight, place=place)
        else:
            name = circuit.domain.names[int(circuit.leaf_var[node])]
            parameters = tuple(circuit.params_of(node).tolist())
            graph.add_node(node, kind=words[kind], variable=name, parameters=parameters)
    return graph


def parents_in(structure: Any) -> dict[str, list[str]]:
    """Return the parents of each variable of a structure (see `GivenStructure`), parents before children."""
    found: dict[str, list[str]] = {}
    edges: Iterable[Any] = ()
    try:
        if isinstance(structure, BayesianNetwork):
            names = structure.domain.names
            found = {name: [names[p] for p in own] for name, own in zip(names, structure.parents, strict=True)}
        elif isinstance(structure, LinearGaussianNetwork):
            found = {} if structure.discrete is None else parents_in(structure.discrete)
            found |= {node.variable: [*node.parents] for node in structure.nodes}
        elif is_mapping(structure):
            found = {str(c): [own] if isinstance(own, str) else [*map(str, own)] for c, own in structure.items()}
        elif hasattr(structure, "arcs"):  # pyagrum
            labels = {i: str(structure.variable(i).name()) for i in structure.nodes()}
            found = {name: [] for name in labels.values()}
            edges = [(labels[a], labels[b]) for a, b in sorted(structure.arcs())]
        elif hasattr(structure, "edges"):  # networkx, pgmpy
            found, edges = {str(v): [] for v in structure.nodes()}, [edge[:2] for edge in structure.edges()]
        else:
            edges = structure
        for parent, child in edges:
            found.setdefault(str(child), []).append(str(parent))
    except (TypeError, ValueError, AttributeError):
        text = "expected a mapping from children to parents, pairs (parent, child), or a directed graph"
        raise DataError(f"the structure is {shown(structure)}; {text}") from None
    try:
        return {name: found.get(name, []) for name in graphlib.TopologicalSorter(found).static_order()}
    except graphlib.CycleError as error:
        raise DataError(f"the structure has the circle {' - '.join(error.args[1])}; expected none") from None
