"""`.spn` text: circuits, one node per line, children before parents, the last line the root (see docs/formats.md).

Variables are named by their number; states are 0..K-1 with K one more than the largest state in the file; ids are
any integers. `#` begins a comment line.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.circuits.nodewise import NODES_TOGETHER, NodePlaces, OwnNode, leaf_of
from certimap.core.arrays import Floats
from certimap.core.domain import MAX_STATES, Domain, Real
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.errors import ModelError, ParseError
from certimap.io.circuit_records import MAX_ENTRIES, compared, joined_size, numbered
from certimap.io.files import AnyPath, read_bytes, read_text, replacing
from certimap.io.words import log_of_text

_KINDS: dict[str, int] = {
    "indicator": NodeKind.CATEGORICAL,
    "l": NodeKind.CATEGORICAL,
    "*": NodeKind.PRODUCT,
    "+": NodeKind.SUM,
}
_LARGEST_INTEGER = 2.0**53  # numbers are read as float64, exact for integers up to here


def read_spn(path: AnyPath, encoding: str | None = None) -> Circuit:
    """Read a circuit: tens of megabytes take seconds."""
    data = read_bytes(path)
    if encoding is not None or data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = read_text(path, encoding).encode("utf-8", "replace")
    return compared(_Reader(path, data).circuit(), _own_nodes(data), path)


def _own_nodes(data: bytes) -> Iterator[OwnNode]:
    """Yield the nodes line by line for a second evaluation."""
    kinds = {leaf.name: code for code, leaf in leaf_kinds().items()}
    for line in BytesIO(data.removeprefix(b"\xef\xbb\xbf")):
        name, *words = line.decode("ascii", "replace").split() or "#"
        if name.startswith("#"):
            continue
        key, rest = _whole(words[:1])[0], words[1:]
        if name == "*":
            yield OwnNode(key, _whole(rest))
        elif name == "+":
            yield OwnNode(key, _whole(rest[::2]), _logs(rest[1::2]))
        elif name in kinds:
            leaf = leaf_of(kinds[name], list(map(float, rest[1:])))
            yield OwnNode(key, variable=_whole(rest[:1])[0], leaf=leaf)
        else:
            variable, state = _whole(rest)
            yield OwnNode(key, variable=variable, leaf=[-math.inf] * state + [0.0])


def _whole(words: list[str]) -> list[int]:
    try:
        return list(map(int, words))
    except ValueError:
        return [int(float(word)) for word in words]


def _logs(words: list[str]) -> list[float]:
    values = list(map(float, words))
    if min(values) >= SMALLEST_NORMAL and max(values) < math.inf:
        return list(map(math.log, values))
    return [_log_of(word.encode()) for word in words]


class _Reader:
    """Two passes over the lines: the leaves, which tell the variables and their states, and then all nodes."""

    def __init__(self, path: AnyPath, data: bytes) -> None:
        self.path = path
        self.data = data.removeprefix(b"\xef\xbb\xbf")
        self.kinds = _KINDS | {leaf.name: code for code, leaf in leaf_kinds().items()}

    def fail(self, line: int, message: str) -> ParseError:
        return ParseError(message, self.path, line)

    def nodes(self) -> Iterator[tuple[int, int, list[str]]]:
        """Yield the line of each node, its kind, and the words behind that."""
        for line, text in enumerate(BytesIO(self.data), 1):
            name, *words = text.decode("utf-8", "replace").split() or "#"
            if name.startswith("#"):
                continue
            if name not in self.kinds:
                raise self.fail(line, f"{name[:20]!r} is no kind of node; expected one of {', '.join(self.kinds)}")
            yield line, self.kinds[name], words

    def numbers(self, line: int, words: list[str]) -> list[float]:
        try:
            if not (text := "".join(words)).isascii() or "_" in text:
                raise ValueError
            return list(map(float, words))
        except ValueError:
            if len(words) == 1:
                raise self.fail(line, f"{words[0]!r} is no number") from None
            return [self.numbers(line, [word])[0] for word in words]

    def integers(self, line: int, words: list[str], what: str, low: float = 0.0) -> list[int]:
        found = self.numbers(line, words)
        if not all(map(float.is_integer, found)) or min(found) < low or max(found) >= _LARGEST_INTEGER:
            raise self.fail(line, f"{what} is no integer{' of at least 0' if low == 0.0 else ''}")
        return list(map(int, found))

    def log_weights(self, line: int, words: list[str]) -> list[float]:
        weights = self.numbers(line, words)
        plain = [SMALLEST_NORMAL <= w < math.inf for w in weights]
        logs: list[float] = np.log([w if fits else 1.0 for w, fits in zip(weights, plain, strict=True)]).tolist()
        for k in [k for k, fits in enumerate(plain) if not fits]:
            logs[k] = _log_of(words[k].encode())  # beyond the range of float64, or no weight
            if not logs[k] < math.inf:
                told = "a weight is negative, NaN or infinite; expected finite decimal numbers of at least 0"
                raise self.fail(line, told)
        return logs

    def circuit(self) -> Circuit:
        domain = self.domain()
        variables = {int(name): v for v, name in enumerate(domain.names)}
        builder, known = CircuitBuilder(domain), NodePlaces()
        for line, kind, words in self.nodes():
            key = self.integers(line, words[:1], "the id", -_LARGEST_INTEGER)[0]
            if kind not in (NodeKind.PRODUCT, NodeKind.SUM):
                variable, params = variables[int(float(words[1]))], self.numbers(line, words[2:])
                if kind == NodeKind.CATEGORICAL:
                    state, params = int(params[0]), [-math.inf] * int(domain.n_states[variable])
                    params[state] = 0.0
                builder.add(kind, variable=variable, params=params)
            else:
                step = 1 if kind == NodeKind.PRODUCT else 2
                given = self.integers(line, words[1::step], "a child's id", -_LARGEST_INTEGER)
                lacking = next((child for child in given if child not in known), None)
                if lacking is not None:
                    raise self.fail(line, f"the child {lacking} is not defined on an earlier line")
                logs = [0.0] * len(given) if step == 1 else self.log_weights(line, words[2::2])
                builder.add(kind, [known[child] for child in given], logs)
            if key in known:
                raise self.fail(line, f"the id {key} is defined twice")
            known.add(key)
        return builder.taken()

    def domain(self) -> Domain:
        """Return the variables of the leaves, every one of which is checked."""
        sizes, n_leaves = dict[int, int](), Counter[int]()
        for line, kind, words in self.nodes():
            self.check_length(line, kind, len(words))
            if kind in (NodeKind.PRODUCT, NodeKind.SUM):
                continue
            variable, size = self.integers(line, words[1:2], "the variable")[0], 0
            params = self.numbers(line, words[2:])
            if kind == NodeKind.CATEGORICAL:
                size = self.integers(line, words[2:], "the state")[0] + 1
                if size > MAX_STATES:
                    raise self.fail(line, f"the state is beyond {MAX_STATES - 1}")
            elif not leaf_kinds()[kind].accepts(*np.array(params)[:, None])[0]:
                raise self.fail(line, f"a {leaf_kinds()[kind].name} has {leaf_kinds()[kind].expected}")
            if not joined_size(sizes, variable, size):
                raise self.fail(line, f"variable {variable} has real leaves, and indicators too")
            n_leaves[variable] += 1
        if not sizes:
            raise ParseError("has no leaf; expected indicators, or leaves of real variables", self.path)
        n_entries = sum(sizes[variable] * n for variable, n in n_leaves.items())
        if n_entries > MAX_ENTRIES:
            text = f"has indicators with {n_entries:,} entries in all; expected at most {MAX_ENTRIES:,}"
            raise ParseError(text, self.path)
        return numbered(sizes, sorted(sizes))

    def check_length(self, line: int, kind: int, n: int) -> None:
        """Raise ParseError for a line with another number of words."""
        if kind == NodeKind.PRODUCT:
            fits, needs = n >= 2, "a product has an id and at least one child"
        elif kind == NodeKind.SUM:
            fits, needs = n >= 3 and n % 2 == 1, "a sum has an id and at least one pair of a child and its weight"
        elif kind == NodeKind.CATEGORICAL:
            fits, needs = n == 3, "an indicator has an id, a variable and a state"
        else:
            name, parameters = leaf_kinds()[kind].name, leaf_kinds()[kind].parameters
            fits = n == 2 + len(parameters)
            needs = f"a {name} has an id, a variable, and {' and '.join(parameters)}"
        if not fits:
            raise self.fail(line, needs)


def _log_of(word: bytes) -> float:
    """Return the natural log of a decimal number of any size; NaN for any other word."""
    try:
        return log_of_text(word.decode("ascii", "replace"))
    except ValueError:
        return math.nan


def write_spn(model: Circuit, path: AnyPath) -> None:
    """Write a circuit; a categorical leaf other than an indicator becomes a sum.

    Names, state labels and variables without leaves are lost. ModelError for a real variable with limits.
    """
    used = set[int](model.leaf_var.tolist())
    for v, variable in enumerate(model.domain):
        if v in used and isinstance(variable, Real) and math.isfinite(variable.low) | math.isfinite(variable.high):
            ends = f"[{variable.low:g}, {variable.high:g}], which a .spn file cannot say"
            text = f"variable {variable.name!r} lies in {ends}"
            raise ModelError(f"{text}; expected real variables without limits, or a .npz file")
    with replacing(path) as file:
        for lines in _lines(model):
            file.write(lines.encode())


def _lines(model: Circuit) -> Iterator[str]:
    """Yield the text, some thousand nodes at a time; indicators come first, and ids are line numbers."""
    first, own, kinds = dict[int, int](), 0, leaf_kinds()
    for v in np.unique(model.leaf_var[model.kind == NodeKind.CATEGORICAL]).tolist():
        first[v], n_states = own, int(model.domain.n_states[v])
        yield "".join(f"indicator {own + s} {v} {s}\n" for s in range(n_states))
        own += n_states
    ids, own = array("q"), own - 1
    for start in range(0, model.n_nodes, NODES_TOGETHER):
        lines: list[str] = []
        edges = model.child_ptr[start : start + NODES_TOGETHER + 1]
        children: list[int] = model.children[edges[0] : edges[-1]].tolist()
        at = (edges - edges[0]).tolist()
        weights = _weights(model.log_weights[edges[0] : edges[-1]])
        for k, kind in enumerate(model.kind[start : start + NODES_TOGETHER].tolist()):
            below: Sequence[int] = [ids[c] for c in children[at[k] : at[k + 1]]]
            of_below = weights[at[k] : at[k + 1]]
            variable, params = int(model.leaf_var[start + k]), model.params_of(start + k)
            if kind == NodeKind.CATEGORICAL:
                if np.count_nonzero(params > -np.inf) == 1 and params.max() == 0.0:
                    ids.append(first[variable] + int(params.argmax()))
                    continue
                below, of_below = range(first[variable], first[variable] + len(params)), _weights(params)
            own += 1
            ids.append(own)
            if kind == NodeKind.PRODUCT:
                lines.append(f"* {own} {' '.join(map(str, below))}\n")
            elif kind in (NodeKind.SUM, NodeKind.CATEGORICAL):
                pairs = " ".join([f"{child} {w}" for child, w in zip(below, of_below, strict=True)])
                lines.append(f"+ {own} {pairs}\n")
            else:
                lines.append(f"{kinds[kind].name} {own} {variable} {' '.join(map(repr, params.tolist()))}\n")
        yield "".join(lines)
    if ids[-1] != own:  # the last line must be the root, which may be an indicator
        yield f"* {own + 1} {ids[-1]}\n"


def _weights(log_weights: Floats) -> list[str]:
    """Write weights from their logs; weights beyond float64 get a mantissa and an exponent."""
    with np.errstate(over="ignore"):
        weights = np.exp(log_weights)
    words = list(map(repr, weights.tolist()))
    for k in np.flatnonzero((weights < SMALLEST_NORMAL) | np.isinf(weights)).tolist():
        words[k] = _weight_beyond(float(log_weights[k]))
    return words


def _weight_beyond(log_weight: float) -> str:
    if log_weight == -math.inf:
        return "0"
    exponent = math.floor(log_weight / math.log(10.0))
    return f"{math.exp(log_weight - exponent * math.log(10.0))!r}e{exponent}"
