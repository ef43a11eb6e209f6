"""Models as JSON, distinguished by content: circuits of deeprob-kit and SparC, linear-Gaussian networks.

deeprob-kit's files (`save_spn_json`) have `edges`, or `links` from older versions of networkx, from children to
parents; SparC's (`CircuitSerializer`) list the children of each node. Variables of circuits are named by their
numbers in the file, from 0; numbers without leaves are dropped. docs/formats.md shows linear-Gaussian networks.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from certimap.circuits import nodewise
from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.circuits.nodewise import OwnNode, log_normal
from certimap.core.arguments import is_list
from certimap.core.arrays import Floats
from certimap.core.domain import MAX_STATES, Categorical
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import ModelError, ParseError, did_you_mean
from certimap.io import circuit_records as records
from certimap.io.circuit_records import Record, add_leaf, is_record, items
from certimap.io.files import AnyPath, cut, parsed_json, parsing, write_text
from certimap.io.native import decoded_label, discrete_part, encoded_label
from certimap.io.words import LOG_LARGEST, LOG_SMALLEST
from certimap.networks.bayesian import BayesianNetwork

MAX_FLOAT = sys.float_info.max
_LINEAR_GAUSSIAN = "linear-gaussian"
_DISCRETE = ("name", "states", "parents", "table")
_REAL = ("name", "parents", "intercept", "coefficients", "sd")
_TOP = ("format", "variables", "hidden")
_SPARC = "gcw-circuit-v1"
_EDGE = ("source", "target", "idx")
Leaf = tuple[int, list[float] | tuple[float, float] | tuple[float, float, None]]  # its variable; see `add_leaf`


def read_json(path: AnyPath, encoding: str | None = None) -> Circuit | LinearGaussianNetwork:
    """Read a circuit of deeprob-kit or SparC, or a linear-Gaussian network."""
    data = parsed_json(path, encoding)
    with parsing(path):
        if is_record(data) and data.get("format") == _LINEAR_GAUSSIAN:
            return _linear_gaussian(data)
        if not is_record(data) or not isinstance(data.get("nodes"), list):
            text = f"a circuit of deeprob-kit or SparC, or the format {_LINEAR_GAUSSIAN!r}"
            raise ParseError(f"has no list of nodes; expected {text}", path)
        return (_Sparc(path, data) if "format" in data else _Deeprob(path, data)).circuit()


@dataclass
class _Node:
    """One node in either format: its kind, its record and its children by id."""

    kind: str
    record: Record
    children: list[int] = field(default_factory=list[int])


class _Reader:
    """Base reader of both formats: checked fields, the order of nodes, and leaves."""

    inner_kinds: tuple[str, str]
    weights: str  # the key of a sum's weights

    def __init__(self, path: AnyPath, data: Record) -> None:
        self.path = path
        self.data = data
        self.nodes: dict[int, _Node] = {}
        self.root = 0

    def fail(self, message: str) -> ParseError:
        return ParseError(message, self.path)

    def integer(self, value: Any, what: str) -> int:
        if type(value) is not int or not 0 <= value < 2**31:
            raise self.fail(f"{records.shown(value)} is {what}; expected an integer of at least 0")
        return value

    def number(self, value: Any, what: str) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not -MAX_FLOAT <= value <= MAX_FLOAT:  # integers may exceed floats
            raise self.fail(f"{records.shown(value)} is {what}; expected a finite number")
        return float(value)

    def numbers(self, value: Any, what: str) -> list[float]:
        if not isinstance(value, list):
            raise self.fail(f"{records.shown(value)} stands where a list of numbers, {what}, is expected")
        return [self.number(item, what) for item in items(value)]

    def probabilities(self, value: Any, what: str) -> list[float]:
        """Return natural logs of a list of nonnegative numbers."""
        found = self.numbers(value, what)
        if any(x < 0.0 for x in found):
            raise self.fail(f"{min(found)} is {what}; expected numbers that are not negative")
        return [math.log(x) if x > 0.0 else -math.inf for x in found]

    def field(self, record: Record, key: str, node: int) -> Any:
        if key not in record:
            raise self.fail(f"node {node} has no {key!r}; one is needed")
        return record[key]

    def variable(self, record: Record, node: int) -> int:
        """Return the one variable of a leaf."""
        scope = self.field(record, "scope", node)
        members = items(scope) if is_list(scope) else [scope]
        if len(members) != 1:
            raise self.fail(f"node {node} has a scope of {len(members)} variables; expected a leaf of one")
        return self.integer(members[0], f"a variable of node {node}")

    def below(self, node: int) -> list[int]:
        if node not in self.nodes:
            raise self.fail(f"node {node} is named and not defined")
        return self.nodes[node].children

    def define(self, record: Any, what: str, program: str) -> int:
        """Add a node of the kind under the key `what`; return its id."""
        if not is_record(record) or not isinstance(record.get(what), str):
            raise self.fail(f"has a node without a {what}; expected circuits of {program}")
        key = self.integer(record.get("id"), "the id of a node")
        if key in self.nodes:
            raise self.fail(f"the id {key} is defined twice; expected once")
        self.nodes[key] = _Node(record[what], record)
        return key

    def check_sizes(self, sizes: Mapping[int, int], n_entries: int) -> int:
        """Return the largest variable; reject absurd numbers of variables, states or entries."""
        largest = max(sizes, default=-1)
        if largest < 0 or largest > records.FREE_VARIABLES + len(self.nodes):
            text = f"has the variable {largest:,} in {len(self.nodes):,} nodes; expected at least one"
            raise self.fail(f"{text}, and none beyond {records.FREE_VARIABLES:,} more than nodes")
        if n_entries > records.MAX_ENTRIES or max(sizes.values()) > MAX_STATES:
            text = f"has leaves with {n_entries:,} entries and variables of {max(sizes.values()):,} states"
            raise self.fail(f"{text}; expected at most {records.MAX_ENTRIES:,} and {MAX_STATES:,}")
        return largest

    def leaf(self, node: int) -> Leaf:
        """Return the variable of a leaf, and log weights of its states (a list) or mean and sd (a pair)."""
        raise NotImplementedError

    def inner(self, builder: CircuitBuilder, node: int, ids: Mapping[int, int]) -> int:
        """Add a sum, a product or a leaf over several variables."""
        found = self.nodes[node]
        children = [ids[child] for child in found.children]
        if found.kind.lower() == "product":
            return builder.product(children)
        weights = self.field(found.record, self.weights, node)
        return builder.sum(children, log_weights=self.probabilities(weights, f"a weight of node {node}"))

    def own_nodes(self, node: int) -> Iterator[OwnNode]:
        """Yield a node's record for a second evaluation, after the parts that it has."""
        raise NotImplementedError

    def special_scope(self, node: int) -> list[int] | None:
        """Return the binary variables of a leaf over several, or None for any other node."""
        return None

    def circuit(self) -> Circuit:
        order = records.children_first(
            self.root, self.below, lambda _, child: self.fail(f"the edges form a cycle through node {child}")
        )
        sizes: dict[int, int] = {}
        leaves: dict[int, Leaf] = {}
        for node in order:
            scope = self.special_scope(node)
            needs = [(v, 2) for v in scope or ()]
            if scope is None and self.nodes[node].kind not in self.inner_kinds:
                variable, values = leaves[node] = self.leaf(node)
                needs = [(variable, len(values) if isinstance(values, list) else 0)]
            for variable, size in needs:
                if not records.joined_size(sizes, variable, size):
                    raise self.fail(f"variable {variable} is real and discrete; expected one or the other")
        largest = self.check_sizes(sizes, sum(sizes[v] for v, _ in leaves.values()))
        builder = CircuitBuilder(records.numbered(sizes, range(largest + 1)))
        ids: dict[int, int] = {}
        for node in order:
            ids[node] = add_leaf(builder, *leaves[node]) if node in leaves else self.inner(builder, node, ids)
        return records.finished(builder, (n for node in order for n in self.own_nodes(node)), self.path)


class _Deeprob(_Reader):
    """Reader for deeprob-kit: a networkx graph with edges (or links) from children to parents."""

    inner_kinds, weights = ("Sum", "Product"), "weights"

    def __init__(self, path: AnyPath, data: Record) -> None:
        super().__init__(path, data)
        for record in items(data["nodes"]):
            self.define(record, "class", "deeprob-kit (save_spn_json)")
        edges = data.get("edges", data.get("links"))
        if not isinstance(edges, list):
            raise self.fail("has neither 'edges' nor 'links'; expected a list of one or the other")
        places: dict[int, dict[int, int]] = {}
        for edge in items(edges):
            if not is_record(edge):
                raise self.fail(f"{records.shown(edge)} is no edge; expected objects with source, target and idx")
            child, parent, place = (self.integer(edge.get(key), f"the {key} of an edge") for key in _EDGE)
            if place in places.setdefault(parent, {}):
                raise self.fail(f"node {parent} has two children at the place {place}; expected one")
            places[parent][place] = child
        for parent, below in places.items():
            if parent not in self.nodes:
                raise self.fail(f"node {parent} is named by an edge and not defined")
            if sorted(below) != list(range(len(below))):
                raise self.fail(f"the children of node {parent} are not at the places 0 to {len(below) - 1}")
            self.nodes[parent].children = [below[k] for k in range(len(below))]

    def params(self, node: int) -> Record:
        found = self.field(self.nodes[node].record, "params", node)
        if not is_record(found):
            raise self.fail(f"node {node} has the params {records.shown(found)}; expected an object")
        return found

    def leaf(self, node: int) -> Leaf:
        kind, record, params = self.nodes[node].kind, self.nodes[node].record, self.params(node)
        if kind == "Bernoulli":
            p = self.number(self.field(params, "p", node), f"the probability of node {node}")
            return self.variable(record, node), self.probabilities([1.0 - p, p], f"a probability of node {node}")
        if kind == "Gaussian":
            mean, sd = (
                self.number(self.field(params, k, node), f"the {k} of node {node}") for k in ("mean", "stddev")
            )
            return self.variable(record, node), (mean, sd)
        if kind == "Uniform":
            fields = ((key, self.field(params, key, node)) for key in ("start", "width"))
            low, width = (self.number(value, f"the {key} of node {node}") for key, value in fields)
            return self.variable(record, node), (low, low + width, None)
        if kind != "Categorical":
            text = f"node {node} is a leaf of the class {cut(kind)}"
            raise self.fail(f"{text}; expected Bernoulli, Categorical, Gaussian, Uniform or BinaryCLT")
        logs = self.probabilities(self.field(params, "probabilities", node), f"a probability of node {node}")
        states = self.field(params, "categories", node)
        places = [self.integer(s, f"a category of node {node}") for s in items(states)]
        if (
            len(places) != len(logs)
            or len({*places}) < len(places)
            or not 0 <= max(places, default=-1) < MAX_STATES
        ):
            text = f"node {node} has {len(places)} categories and {len(logs)} probabilities"
            raise self.fail(f"{text}; expected as many of one as of the other, and categories below {MAX_STATES}")
        own = [-math.inf] * (max(places) + 1)
        for place, log in zip(places, logs, strict=True):
            own[place] = log
        return self.variable(record, node), own

    def special_scope(self, node: int) -> list[int] | None:
        if self.nodes[node].kind != "BinaryCLT":
            return None
        scope = self.field(self.nodes[node].record, "scope", node)
        found = [self.integer(v, f"a variable of node {node}") for v in items(scope)]
        if not found or len(set(found)) < len(found):
            raise self.fail(f"node {node} has the scope {records.shown(scope)}; expected distinct variables")
        return found

    def inner(self, builder: CircuitBuilder, node: int, ids: Mapping[int, int]) -> int:
        scope = self.special_scope(node)
        return super().inner(builder, node, ids) if scope is None else self.chow_liu(builder, node, scope)

    def chow_liu(self, builder: CircuitBuilder, node: int, scope: list[int]) -> int:
        """Add a Chow-Liu tree: for each variable and state of its parent, a sum over its states."""
        params = self.params(node)
        tree = self.field(params, "tree", node)
        parents: list[int] = items(tree)
        table = self.tables(params, node, len(scope))
        n = len(scope)
        if len(parents) != n or not all(type(p) is int and -1 <= p < n for p in parents):
            text = f"node {node} has the tree {records.shown(tree)}; expected the place of each variable's parent"
            raise self.fail(text)
        below: list[list[int]] = [list[int]() for _ in range(n)]
        roots = [i for i in range(n) if parents[i] == -1]
        for i in range(n):
            if parents[i] != -1:
                below[parents[i]].append(i)
        order = list(roots)
        for i in order:
            order += below[i]
        if len(roots) != 1 or len(order) != n:
            raise self.fail(f"the tree of node {node} is none; expected one root and no cycle")
        values: dict[tuple[int, int], int] = {}
        for i in reversed(order):
            terms = [builder.indicator(scope[i], k) for k in range(2)]
            if below[i]:
                terms = [builder.product([terms[k], *(values[c, k] for c in below[i])]) for k in range(2)]
            for state in range(2 if parents[i] != -1 else 1):
                values[i, state] = builder.sum(terms, log_weights=table[i][state])
        return values[roots[0], 0]

    def own_nodes(self, node: int) -> Iterator[OwnNode]:
        record: Any = self.nodes[node].record
        kind, params = record["class"], record.get("params", {})
        if kind in self.inner_kinds:
            yield OwnNode(node, self.nodes[node].children, _logs(record["weights"]) if kind == "Sum" else None)
        elif kind == "BinaryCLT":
            yield from _messages(node, record["scope"], params["tree"], params["params"])
        else:
            scope: Any = record["scope"]
            if kind == "Gaussian":
                leaf: nodewise.Leaf = log_normal(params["mean"], params["stddev"])
            elif kind == "Uniform":
                leaf = _log_uniform(params["start"], params["width"])
            elif kind == "Bernoulli":
                leaf = _logs([1.0 - params["p"], params["p"]])
            else:
                by_state = dict(zip(params["categories"], params["probabilities"], strict=True))
                leaf = _logs([by_state.get(k, 0.0) for k in range(max(by_state) + 1)])
            yield OwnNode(node, variable=scope[0] if is_list(scope) else scope, leaf=leaf)

    def tables(self, params: Record, node: int, n: int) -> list[list[list[float]]]:
        """Return ln P(variable | parent), shape (n, 2, 2)."""
        given = self.field(params, "params", node)
        what = f"a log probability of node {node}"
        found: list[list[list[float]]] = []
        for rows in items(given):
            lists = items(rows)
            found.append([[x if x == -math.inf else self.number(x, what) for x in items(row)] for row in lists])
        if len(found) != n or any(len(rows) != 2 or any(len(row) != 2 for row in rows) for rows in found):
            raise self.fail(f"node {node} has tables that are not of the shape ({n}, 2, 2), which is accepted")
        return found


def _log_uniform(low: float, width: float) -> Callable[[float], float]:
    return lambda x: -math.log(width) if low <= x <= low + width else -math.inf


def _logs(weights: Iterable[float]) -> list[float]:
    return [math.log(w) if w > 0.0 else -math.inf for w in weights]


def _messages(node: int, scope: list[int], tree: list[int], tables: Any) -> Iterator[OwnNode]:
    """Yield a Chow-Liu tree as messages from each variable to its parent's states, last the root's."""
    depth = {-1: 0}
    while len(depth) <= len(tree):
        depth |= {i: depth[parent] + 1 for i, parent in enumerate(tree) if i not in depth and parent in depth}
    for i in sorted(range(len(tree)), key=lambda i: -depth[i]):
        for k in range(2):
            below = [(node, child, k) for child, parent in enumerate(tree) if parent == i]
            yield OwnNode(
                (node, i, "is", k), variable=scope[i], leaf=[0.0 if s == k else -math.inf for s in range(2)]
            )
            yield OwnNode((node, i, "with", k), [(node, i, "is", k), *below])
        for state in range(2):
            key = node if tree[i] == -1 else (node, i, state)
            yield OwnNode(key, [(node, i, "with", k) for k in range(2)], tables[i][0 if tree[i] == -1 else state])


class _Sparc(_Reader):
    """Reader for SparC: nodes with their children; the root by id."""

    inner_kinds, weights = ("sum", "product"), "params"

    def __init__(self, path: AnyPath, data: Record) -> None:
        super().__init__(path, data)
        if data["format"] != _SPARC:
            raise self.fail(f"is of the format {records.shown(data['format'])}; expected {_SPARC!r}")
        self.root = self.integer(data.get("root"), "the root")
        for record in items(data["nodes"]):
            key = self.define(record, "kind", "SparC")
            below = items(record.get("children", []))
            self.nodes[key].children = [self.integer(c, f"a child of node {key}") for c in below]

    def leaf(self, node: int) -> Leaf:
        kind, record = self.nodes[node].kind, self.nodes[node].record
        variable = self.variable(record, node)

        def number(key: str) -> float:
            return self.number(self.field(record, key, node), f"the {key} of node {node}")

        if kind == "gaussian":
            return variable, (number("mean"), number("std"))
        if kind == "categorical":
            logs = self.probabilities(self.field(record, "params", node), f"a probability of node {node}")
        elif kind == "bernoulli":
            logs = self.probabilities([1.0 - number("p"), number("p")], f"a probability of node {node}")
        elif kind in ("literal", "indicator", "discrete_logistic"):
            size = 2
            if kind != "literal":
                size = self.integer(self.field(record, "num_cats", node), "a number of states")
            if not 1 <= size <= MAX_STATES:
                raise self.fail(f"node {node} has {size} states; expected 1 to {MAX_STATES}")
            if kind == "discrete_logistic":
                return variable, _discrete_logistic(number("mu"), number("s"), size)
            state = self.integer(self.field(record, "value", node), f"the state of node {node}")
            logs = [0.0 if k == state else -math.inf for k in range(size)]
        else:
            text = f"node {node} is of the kind {cut(kind)}; expected sum, product, categorical, bernoulli"
            raise self.fail(f"{text}, literal, indicator, discrete_logistic or gaussian")
        if not logs:
            raise self.fail(f"node {node} has no probability; expected one per state")
        return variable, logs

    def own_nodes(self, node: int) -> Iterator[OwnNode]:
        record: Any = self.nodes[node].record
        kind = record["kind"]
        if kind in self.inner_kinds:
            yield OwnNode(node, record.get("children", []), _logs(record["params"]) if kind == "sum" else None)
            return
        if kind == "gaussian":
            leaf: nodewise.Leaf = log_normal(record["mean"], record["std"])
        elif kind == "categorical":
            leaf = _logs(record["params"])
        elif kind == "bernoulli":
            leaf = _logs([1.0 - record["p"], record["p"]])
        elif kind == "discrete_logistic":
            leaf = _discrete_logistic(record["mu"], record["s"], record["num_cats"])
        else:
            leaf = [-math.inf] * record["value"] + [0.0]
        scope: Any = record["scope"]
        yield OwnNode(node, variable=scope[0] if is_list(scope) else scope, leaf=leaf)


def _discrete_logistic(mean: float, scale: float, size: int) -> list[float]:
    """Return ln of the logistic mass around each of 0, ..., size - 1; the first and last include the tails."""
    if not scale > 0.0:
        raise ModelError(f"a discrete logistic leaf has the scale {scale}; expected a positive number")

    def log_below(x: float) -> float:
        return -math.log1p(math.exp(-x)) if x > -30.0 else x - math.log1p(math.exp(x))

    def log_between(low: float, high: float) -> float:
        if low > -high:  # computed in the upper tail, where masses keep their digits
            low, high = -high, -low
        if not low < high:
            return -math.inf
        top = log_below(high)
        share = -math.expm1(log_below(low) - top)
        return top + math.log(share) if share > 0.0 else -math.inf

    ends = [-math.inf, *((k - 0.5 - mean) / scale for k in range(1, size)), math.inf]
    return [log_between(low, high) for low, high in itertools.pairwise(ends)]


def _linear_gaussian(data: Record) -> LinearGaussianNetwork:
    _check_keys(data, _TOP, "the file", ("variables",))
    states: dict[str, Sequence[Any]] = {}
    parents: dict[str, list[str]] = {}
    tables: dict[str, Floats] = {}
    nodes: list[LinearGaussian] = []
    for number, record in enumerate(_list(data["variables"], "variables")):
        name = record.get("name") if is_record(record) else None
        if not is_record(record) or not isinstance(name, str):
            raise ModelError(f"variable {number} (from 0) has no name; expected an object with a name as text")
        what = f"variable {cut(name)}"
        if name in states or any(node.variable == name for node in nodes):
            raise ModelError(f"{what} is declared twice; expected once")
        above = _names(record.get("parents", []), f"parents of {what}")
        if "states" in record:
            _check_keys(record, _DISCRETE, f"the discrete {what}", ("table",))
            states[name] = [decoded_label(x) for x in _list(record["states"], f"states of {what}")]
            parents[name], tables[name] = above, _array(record["table"], f"table of {what}")
            continue
        _check_keys(record, _REAL, f"the real {what}", ("sd",))
        intercept = _array(record.get("intercept", 0.0), f"intercept of {what}")
        coefficients = _array(record.get("coefficients", []), f"coefficients of {what}")
        sd = _array(record["sd"], f"sd of {what}")
        nodes.append(LinearGaussian(name, above, intercept, coefficients, sd))
    real = [node.variable for node in nodes]
    for name, above in parents.items():
        for parent in above:
            if parent in real:
                told = f"the discrete variable {name!r} has the real parent {parent!r}"
                raise ModelError(f"{told}; expected discrete ones alone")
    hidden = _names(data.get("hidden", []), "hidden")
    if not states:
        return LinearGaussianNetwork(nodes)
    made = BayesianNetwork.from_cpts(states, parents, tables)
    discrete = BayesianNetwork(made.domain, made.factors, hidden) if hidden else made
    return LinearGaussianNetwork(nodes, discrete)


def write_json(model: Circuit | LinearGaussianNetwork, path: AnyPath) -> None:
    """Write a linear-Gaussian network, or a circuit as deeprob-kit does, in which weights are no logs.

    Raises ModelError for a kind of leaf that deeprob-kit lacks, and weights beyond floats.
    """
    if isinstance(model, LinearGaussianNetwork):
        return write_linear_gaussian(model, path)
    names, nodes, edges = records.numbers_of(model.domain.names, 0), list[Record](), list[Record]()
    scopes: list[set[int]] = []
    for node, kind in enumerate(model.kind.tolist()):
        key, span = model.root - node, slice(*model.child_ptr[node : node + 2].tolist())
        below: dict[int, float] = {}  # the graph of deeprob-kit has no two edges between two nodes
        for child, weight in zip(model.children[span].tolist(), _weights(model.log_weights[span]), strict=True):
            below[child] = below.get(child, 0.0) + weight
        edges += [{"source": model.root - c, "target": key, "idx": k} for k, c in enumerate(below)]
        scopes.append(set[int]().union(*map(scopes.__getitem__, below)) or {names[int(model.leaf_var[node])]})
        record = _deeprob_leaf(node, kind, model.params_of(node)) if not below else {"class": "Product"}
        record = {"class": "Sum", "weights": [*below.values()]} if kind == NodeKind.SUM else record
        nodes.append({"id": key, "scope": sorted(scopes[node]), **record})
    graph: Record = {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "edges": edges}
    write_text(path, json.dumps(graph, allow_nan=False))


def _deeprob_leaf(node: int, kind: int, own: Floats) -> Record:
    """Return the class and the parameters of a leaf; the upper end of a uniform one is inside."""
    name, numbers = leaf_kinds()[kind].name if kind in leaf_kinds() else "categorical", own.tolist()
    if name == "categorical":
        params: Record = {"categories": [*range(len(own))], "probabilities": _weights(own)}
    elif name == "gaussian":
        params = {"mean": numbers[0], "stddev": numbers[1]}
    elif name == "uniform":
        (low, high), width = numbers, numbers[1] - numbers[0]
        params = {"start": low, "width": width if low + width >= high else math.nextafter(width, math.inf)}
    else:
        raise ModelError(f"node {node} is a {name} leaf, which deeprob-kit does not have; .npz holds any model")
    return {"class": name.capitalize(), "params": params}


def _weights(logs: Floats) -> list[float]:
    if np.any((logs > LOG_LARGEST) | ((logs < LOG_SMALLEST) & (logs > -np.inf))):
        raise ModelError("a weight is beyond floats, which deeprob-kit holds; .npz holds any model")
    return np.exp(logs).tolist()


def write_linear_gaussian(model: LinearGaussianNetwork, path: AnyPath) -> None:
    """Write a network as JSON; numbers read back exactly.

    ModelError if the discrete part is not a Bayesian network, and for labels that JSON cannot hold.
    """
    discrete = discrete_part(model)
    variables: list[Record] = []
    if discrete is not None:
        for variable, factor in zip(discrete.domain, discrete.factors, strict=True):
            assert isinstance(variable, Categorical)
            states = [encoded_label(label, variable.name) for label in variable.states]
            parents = [discrete.domain.names[v] for v in factor.scope[:-1]]
            variables.append(
                {"name": variable.name, "states": states, "parents": parents, "table": factor.table.tolist()}
            )
    for node in model.nodes:
        given = {"intercept": node.intercept, "coefficients": node.coefficients, "sd": node.sd}
        numbers = {key: np.asarray(values).tolist() for key, values in given.items()}
        variables.append({"name": node.variable, "parents": list(node.parents), **numbers})
    top: dict[str, str | list[str]] = {"format": _LINEAR_GAUSSIAN}
    if model.hidden:
        top["hidden"] = sorted(model.hidden)
    lines = ",\n".join(f"  {json.dumps(v, allow_nan=False)}" for v in variables)
    write_text(path, f'{json.dumps(top)[:-1]}, "variables": [\n{lines}\n]}}\n')


def _check_keys(record: Record, known: Sequence[str], what: str, needed: Sequence[str]) -> None:
    for key in record:
        if key not in known:
            text = f"{what} has the key {cut(str(key))}"
            raise ModelError(f"{text}; expected {', '.join(known)}{did_you_mean(str(key), known)}")
    for key in needed:
        if key not in record:
            raise ModelError(f"{what} has no {key}; expected one")


def _list(value: Any, what: str) -> list[Any]:
    if not is_list(value):
        raise ModelError(f"{what}: {records.shown(value)} is no list; expected one")
    return value


def _names(value: Any, what: str) -> list[str]:
    names = _list(value, what)
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{what}: {records.shown(name)} is no name; expected text")
    return names


def _array(value: Any, what: str) -> Floats:
    """Return nested lists of numbers as an array."""
    stack: list[Any] = [value]
    while stack:
        x = stack.pop()
        if is_list(x):
            stack += x
        elif not isinstance(x, int | float) or isinstance(x, bool):
            text = f"{what}: {records.shown(x)} is no number; expected numbers, in lists where there are several"
            raise ModelError(text)
    try:
        return np.array(value, np.float64)
    except ValueError:
        raise ModelError(f"{what} holds lists of different lengths; expected one number per combination") from None
    except OverflowError:
        raise ModelError(f"{what} holds a number beyond floats; expected finite numbers") from None
