"""pyjuice's `.jpc`: a pickle of node vectors in blocks, read without running it.

A list of vectors, children first, the last one the root; each has `num_node_blocks` blocks of `block_size` nodes:

- Input: `scope`, `dist` (a pickle) and `params`, one after the other for each node;
- Product: `edge_ids`, one row per block or node, one column per child vector: which block or node of it;
- Sum: `edge_ids`, shape (2, edges): blocks of this vector, and of all child vectors one after the other; `params`,
  shape (edges, block_size, block size of the children).

A vector with another vector's parameters names it as `source_node`. Nothing named in a pickle is imported or
called. Its instructions are checked first; then harmless stand-ins replace the classes.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
import pickletools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.nodewise import OwnNode, log_normal
from certimap.core.arguments import is_sequence
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.domain import MAX_STATES, Domain
from certimap.core.logs import log_of
from certimap.errors import ParseError
from certimap.io import circuit_records as records
from certimap.io.circuit_records import Record, add_leaf, is_record, items
from certimap.io.files import AnyPath, cut

_NAMES = """
    PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 BINFLOAT
    SHORT_BINUNICODE BINUNICODE SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_LIST APPEND APPENDS LIST
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS MEMOIZE BINPUT
    BINGET LONG_BINPUT LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
"""
_ALLOWED = frozenset(re.findall(r"\w+", _NAMES))
_PUTS = ("BINPUT", "LONG_BINPUT")
_DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
MAX_VALUES = 2**24


class BadPickle(ValueError):
    """A pickle with other content, or truncated."""


class Instance:
    """An instance of any class: the class's name, without its module, and the attributes."""

    name: str = ""
    attributes: Mapping[str, Any] = MappingProxyType({})

    def __setstate__(self, state: Any) -> None:
        self.attributes = dict(state) if is_record(state) else {}


@dataclass
class _Type:
    """A numpy dtype as described in a pickle."""

    text: str
    order: str = "<"

    def __setstate__(self, state: Any) -> None:
        self.order = str(state[1])


class _Array:
    """A numpy array as described in a pickle."""

    values: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _array(data, dtype, shape, "F" if is_fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: str) -> Array:
    if not isinstance(dtype, _Type) or dtype.text not in _DTYPES or not isinstance(data, bytes | bytearray):
        raise BadPickle("an array of anything but numbers")
    values = np.frombuffer(data, np.dtype(dtype.text).newbyteorder(">" if dtype.order == ">" else "<"))
    return values.reshape(tuple(int(k) for k in shape), order="F" if order == "F" else "C")


class _Unpickler(pickle.Unpickler):
    """Replaces every name in a pickle by a stand-in."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        # Make a new function or class per name: a pickle may modify it.
        def array(*_: Any) -> _Array:
            return _Array()

        def filled(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
            found = _Array()
            found.values = _array(data, dtype, shape, str(order))
            return found

        def dtype(text: Any, *_: Any) -> _Type:
            return _Type(str(text))

        made = {"_reconstruct": array, "_frombuffer": filled, "dtype": dtype, "ndarray": None}
        if module_name.partition(".")[0] == "numpy" and global_name in made:
            return made[global_name]

        class _Placeholder(Instance):
            name = global_name

        return _Placeholder


def read_pickle(data: bytes) -> Any:
    """Return the content of a pickle, with arrays, and `Instance` for instances; BadPickle where it needs code."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _ALLOWED:
                raise BadPickle(f"the instruction {opcode.name}")
            if opcode.name in _PUTS and int(argument or 0) > len(data):
                raise BadPickle("a place of its memory beyond its length")
        return _plain(_Unpickler(io.BytesIO(data)).load(), {})
    except BadPickle:
        raise
    except Exception as error:  # damaged bytes can raise any error
        raise BadPickle(f"something that is no data ({type(error).__name__})") from None


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Replace array stand-ins in lists and dictionaries by arrays; each value is converted once."""
    if isinstance(value, _Array):
        if value.values is None:
            raise BadPickle("an array without content")
        return value.values
    if not is_record(value) and not is_sequence(value):
        return value
    key = id(value)
    if key not in done:
        if len(done) > MAX_VALUES:
            raise BadPickle(f"more than {MAX_VALUES:,} lists")
        done[key] = None  # for a value that contains itself
        if is_record(value):
            done[key] = {str(k): _plain(v, done) for k, v in value.items()}
        else:
            done[key] = [_plain(item, done) for item in value]
    return done[key]


def _is_array(value: Any) -> TypeGuard[Array]:
    return isinstance(value, np.ndarray)


_PER_NODE = {"Categorical": 0, "Bernoulli": 1, "Gaussian": 2, "Literal": 0, "Indicator": 1}  # parameters


def read_pyjuice(path: AnyPath, data: bytes) -> Circuit:
    """Read a circuit; variables are named by pyjuice's numbers, from "0"."""
    try:
        found = read_pickle(data)
    except BadPickle as error:
        raise ParseError(f"is a pickle of {error}; expected one that pyjuice wrote", path) from None
    return _Reader(path, items(found)).circuit()


class _Reader:
    """Reads one vector of nodes after the other."""

    def __init__(self, path: AnyPath, vectors: Sequence[Any]) -> None:
        self.path = path
        self.records: list[Record] = []
        for record in vectors:
            if not is_record(record):
                raise self.fail(f"holds {records.shown(record)} where a vector of nodes is expected")
            self.records.append(record)
        if not self.records:
            raise self.fail("is a pickle without vectors of nodes; expected one that pyjuice wrote")
        self.ids: list[list[int]] = []

    def fail(self, message: str) -> ParseError:
        return ParseError(message, self.path)

    def circuit(self) -> Circuit:
        leaves = {k: self.leaves(k) for k, r in enumerate(self.records) if r.get("type") == "Input"}
        self.builder = CircuitBuilder(self.domain(leaves))
        for k, record in enumerate(self.records):
            kind = record.get("type")
            if kind == "Input":
                self.ids.append(self.inputs(*leaves[k]))
            elif kind == "Product":
                self.ids.append(self.products(k))
            elif kind == "Sum":
                self.ids.append(self.sums(k))
            else:
                raise self.fail(f"vector {k} is of the type {records.shown(kind)}; expected Input, Product or Sum")
        if len(self.ids[-1]) != 1:
            raise self.fail(f"the last vector has {len(self.ids[-1])} nodes; expected one, the root")
        self.builder.product(self.ids[-1])
        return records.finished(self.builder, self.own_nodes(), self.path)

    def whole(self, k: int, key: str) -> int:
        value = self.records[k].get(key)
        if type(value) is not int or not 0 < value < 2**31:
            raise self.fail(f"vector {k} has the {key} {records.shown(value)}; expected a positive integer")
        return value

    def size(self, k: int) -> tuple[int, int]:
        """Return the number of blocks of a vector and of nodes in each."""
        return self.whole(k, "num_node_blocks"), self.whole(k, "block_size")

    def integers(self, k: int, key: str) -> Ints:
        value = self.records[k].get(key)
        if not _is_array(value) or value.dtype.kind not in "iu" or value.ndim != 2:
            raise self.fail(f"vector {k} has no {key}, a matrix of integers, which is needed")
        return value.astype(np.int64)

    def params(self, k: int, n: int) -> Floats:
        """Return the parameters of a vector, its own or shared."""
        source = self.records[k].get("source_node", k)
        owner = source if type(source) is int and 0 <= source < len(self.records) else k
        value = self.records[owner].get("params")
        if "external_params" in self.records[k] or not _is_array(value) or value.dtype.kind != "f":
            raise self.fail(f"vector {k} has no parameters of its own; expected a circuit with parameters")
        if value.size != n or not np.all(np.isfinite(value)):
            raise self.fail(f"vector {k} has {value.size} parameters; expected {n} finite numbers")
        return value.astype(np.float64)

    def children(self, k: int) -> list[int]:
        found = items(self.records[k].get("chs"))
        if not found or any(type(c) is not int or not 0 <= c < k for c in found):
            text = f"vector {k} has the children {records.shown(found)}; expected numbers of vectors before it"
            raise self.fail(text)
        return found

    def leaves(self, k: int) -> tuple[int, list[Floats | tuple[float, float]]]:
        """Return the variable of a vector of leaves, and each leaf's probabilities, or mean and sd."""
        record = self.records[k]
        scope = items(record.get("scope"))
        if len(scope) != 1 or type(scope[0]) is not int or not 0 <= scope[0] < 2**31:
            raise self.fail(f"vector {k} has the scope {records.shown(scope)}; expected one variable")
        try:
            dist = read_pickle(record["dist"]) if isinstance(record.get("dist"), bytes) else None
        except BadPickle as error:
            raise self.fail(f"vector {k} has a distribution that is a pickle of {error}") from None
        name = dist.name if isinstance(dist, Instance) else ""
        if not isinstance(dist, Instance) or name not in _PER_NODE:
            raise self.fail(f"vector {k} has leaves of the kind {cut(name)}; expected {', '.join(_PER_NODE)}")
        blocks, block = self.size(k)
        n = blocks * block
        per_node = self.states(k, dist, "num_cats") if name == "Categorical" else _PER_NODE[name]
        if n * max(per_node, 1) > records.MAX_ENTRIES:
            raise self.fail(f"vector {k} has {n:,} leaves, more than are accepted")
        if name == "Literal":
            literal = dist.attributes.get("lit")
            if literal not in (0, 1):
                raise self.fail(f"vector {k} has the literal {records.shown(literal)}; expected 0 or 1")
            return scope[0], [np.eye(2)[int(literal)]] * n
        rows = self.params(k, n * per_node).reshape(n, per_node)
        if name == "Gaussian":
            return scope[0], [(float(mean), float(sd)) for mean, sd in rows]
        if name == "Indicator":
            size = self.states(k, dist, "num_states")
            if not np.all((rows == np.floor(rows)) & (rows >= 0) & (rows < size)):
                raise self.fail(f"vector {k} has indicators of other states than 0 to {size - 1}")
            return scope[0], [np.eye(size)[int(row[0])] for row in rows]
        if np.any(rows < 0.0) or (name == "Bernoulli" and np.any(rows > 1.0)):
            raise self.fail(f"vector {k} has a parameter that is no probability")
        if name == "Bernoulli":
            rows = np.column_stack([1.0 - rows, rows])
        return scope[0], list(rows)

    def states(self, k: int, dist: Instance, key: str) -> int:
        size = dist.attributes.get(key)
        if type(size) is not int or not 1 <= size <= MAX_STATES:
            raise self.fail(f"vector {k} has {records.shown(size)} states; expected 1 to {MAX_STATES}")
        return size

    def domain(self, leaves: dict[int, tuple[int, list[Floats | tuple[float, float]]]]) -> Domain:
        """Return variables 0 to the largest; variables without leaves are binary."""
        sizes: dict[int, int] = {}
        for variable, values in leaves.values():
            size = 0 if isinstance(values[0], tuple) else len(values[0])
            if sizes.setdefault(variable, size) != size:
                raise self.fail(f"variable {variable} has leaves of {sizes[variable]} and of {size} states")
        largest = max(sizes, default=-1)
        if not 0 <= largest <= records.FREE_VARIABLES + len(self.records):
            raise self.fail(f"has the variable {largest:,} in {len(self.records):,} vectors, which is beyond them")
        if sum(len(values) * sizes[variable] for variable, values in leaves.values()) > records.MAX_ENTRIES:
            raise self.fail(f"has leaves with more than {records.MAX_ENTRIES:,} entries in all, the most accepted")
        return records.numbered(sizes, range(largest + 1))

    def inputs(self, variable: int, values: list[Floats | tuple[float, float]]) -> list[int]:
        for own in values:
            if isinstance(own, tuple) and not own[1] > 0.0:
                raise self.fail(f"a leaf of variable {variable} has the standard deviation {own[1]}")
        leaves = [own if isinstance(own, tuple) else log_of(own).tolist() for own in values]
        return [add_leaf(self.builder, variable, own) for own in leaves]

    def products(self, k: int) -> list[int]:
        blocks, block = self.size(k)
        below = [(self.ids[c], self.size(c)[1]) for c in self.children(k)]
        edges = self.integers(k, "edge_ids")
        # One row per node if edges are sparse; with one node per block, both readings agree.
        width = 1 if edges.shape[0] == blocks * block and edges.shape[0] != blocks else block
        if edges.shape != (blocks * block // width, len(below)):
            raise self.fail(f"vector {k} has edges of the shape {edges.shape}; expected a row per block or node")
        for column, (ids, own) in enumerate(below):
            limit = len(ids) if width == 1 else len(ids) // width
            if (width > 1 and own != width) or np.any((edges[:, column] < 0) | (edges[:, column] >= limit)):
                raise self.fail(f"vector {k} has edges to blocks that are not there")
        found: list[int] = []
        for row in edges:
            for j in range(width):
                members = [ids[int(row[c]) * width + j] for c, (ids, _) in enumerate(below)]
                found.append(self.builder.product(members))
        return found

    def sums(self, k: int) -> list[int]:
        blocks, block = self.size(k)
        children = self.children(k)
        width = self.size(children[0])[1]
        if any(self.size(c)[1] != width for c in children):
            raise self.fail(f"vector {k} has children with blocks of several sizes; expected one")
        below = list(itertools.chain.from_iterable(self.ids[c] for c in children))
        edges = self.integers(k, "edge_ids")
        limits = np.array([[blocks], [len(below) // width]])
        if edges.shape[0] != 2 or np.any((edges < 0) | (edges >= limits)):
            raise self.fail(f"vector {k} has edges to blocks that are not there")
        weights = self.params(k, edges.shape[1] * block * width).reshape(-1, block, width)
        if np.any(weights < 0.0) or blocks * block > records.MAX_ENTRIES:
            raise self.fail(f"vector {k} has a negative weight, or too many nodes")
        own: list[tuple[list[int], list[float]]] = [(list[int](), list[float]()) for _ in range(blocks * block)]
        log_weights = log_of(weights)
        for k_edge in range(edges.shape[1]):
            parent, child = int(edges[0, k_edge]) * block, int(edges[1, k_edge]) * width
            for j in range(block):
                own[parent + j][0].extend(below[child : child + width])
                own[parent + j][1].extend(map(float, log_weights[k_edge, j]))
        if any(not nodes for nodes, _ in own):
            raise self.fail(f"vector {k} has a sum without children; expected at least one")
        return [self.builder.sum(nodes, log_weights=logs) for nodes, logs in own]

    def own_nodes(self) -> Iterator[OwnNode]:
        """Yield the nodes for a second evaluation: each by its vector and its place in it."""
        for k, record in enumerate(self.records):
            blocks, block = self.size(k)
            n = blocks * block
            if record["type"] == "Input":
                variable, leaves = self.leaves(k)
                for i, own in enumerate(leaves):
                    leaf = log_normal(*own) if isinstance(own, tuple) else log_of(own).tolist()
                    yield OwnNode((k, i), variable=variable, leaf=leaf)
                continue
            below, edges = self.children(k), record["edge_ids"]
            if record["type"] == "Product":
                by_block = edges.shape[0] == blocks
                for i in range(n):
                    row = edges[i // block if by_block else i]
                    places = [int(at) * block + i % block if by_block else int(at) for at in row]
                    yield OwnNode((k, i), list(zip(below, places, strict=True)))
                continue
            members = [(child, i) for child in below for i in range(math.prod(self.size(child)))]
            weights = self.params(k, edges.shape[1] * block * self.size(below[0])[1])
            weights = weights.reshape(edges.shape[1], block, -1)
            width = weights.shape[2]
            for i in range(n):
                own_edges = np.flatnonzero(edges[0] == i // block)
                children = [members[int(edges[1, e]) * width + j] for e in own_edges for j in range(width)]
                yield OwnNode((k, i), children, log_of(weights[own_edges, i % block].reshape(-1)).tolist())
