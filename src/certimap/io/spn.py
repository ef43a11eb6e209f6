"""`.spn` text: circuits, one node per line, children before parents, the last line the root.

    indicator ID VAR STATE        (also: l ID VAR STATE)
    gaussian ID VAR MEAN SD       (and other kinds of leaves by their name: NAME ID VAR PARAMETER ...)
    + ID CHILD WEIGHT CHILD WEIGHT ...
    * ID CHILD CHILD ...

Variables are named by their number; states are 0..K-1 with K one more than the largest state in the
file; ids are any integers. `#` begins a comment line.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn

import numpy as np

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.circuits.nodewise import OwnNode, leaf_of
from certimap.core.arrays import Bytes, Flags, Floats, Ints, Ints8
from certimap.core.domain import MAX_STATES, Categorical, Domain, Real, Variable
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.errors import ModelError, ParseError
from certimap.io.circuit_records import compared
from certimap.io.files import AnyPath, read_bytes, read_text, replacing
from certimap.io.words import log_of_text

_KINDS: dict[str, int] = {
    "indicator": NodeKind.CATEGORICAL,
    "l": NodeKind.CATEGORICAL,
    "*": NodeKind.PRODUCT,
    "+": NodeKind.SUM,
}
_UNKNOWN = -128
_LARGEST_INTEGER = 2.0**53  # numbers are read as float64, exact for integers up to here
MAX_PARAMS = 2**25  # limit on entries of all indicators: one per state of their variable


def read_spn(path: AnyPath, encoding: str | None = None) -> Circuit:
    """Read a circuit. All numbers are parsed in one sweep: tens of megabytes take seconds."""
    data = read_bytes(path)
    if encoding is not None or data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = read_text(path, encoding).encode("utf-8", "replace")
    return compared(_Reader(path, data).circuit(), _own_nodes(data), path)


def _own_nodes(data: bytes) -> Iterator[OwnNode]:
    """Yield the nodes line by line for a second evaluation."""
    kinds = {leaf.name: code for code, leaf in leaf_kinds().items()}
    for line in data.removeprefix(b"\xef\xbb\xbf").decode("ascii", "replace").split("\n"):
        name, *words = line.split() or "#"
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
    """Line and kind of each node, shape (n_nodes,), and the numbers behind it: `length` of them from `start`."""

    def __init__(self, path: AnyPath, data: bytes) -> None:
        self.path = path
        text = np.frombuffer(data.removeprefix(b"\xef\xbb\xbf"), np.uint8).copy()
        is_blank = (text == 32) | ((text >= 9) & (text <= 13))
        begins = ~is_blank
        begins[1:] &= is_blank[:-1]
        word = np.flatnonzero(begins)
        line_of_word = np.searchsorted(np.flatnonzero(text == 10), word) + 1
        first = np.flatnonzero(np.diff(line_of_word, prepend=0))
        comment = text[word[first]] == ord("#")
        if comment.any():
            self._blank_lines(text, word[first][comment])
            kept = np.repeat(~comment, np.diff(first, append=len(word)))
            word, line_of_word = word[kept], line_of_word[kept]
            first = np.flatnonzero(np.diff(line_of_word, prepend=0))
        if not len(first):
            raise ParseError("has no node; expected one per line", path)
        self.line = line_of_word[first]
        self.length = np.diff(first, append=len(word)) - 1
        self.start = np.cumsum(self.length) - self.length
        self.kind = self._kinds(text, word[first])
        self.data = text.tobytes()  # the kinds are blanked: only numbers are left
        self.numbers = self._numbers(len(word) - len(first))

    @staticmethod
    def _blank_lines(text: Bytes, starts: Ints) -> None:
        ends = np.append(np.flatnonzero(text == 10), len(text))
        for start, end in zip(starts, ends[np.searchsorted(ends, starts)], strict=True):
            text[start:end] = 32

    def _kinds(self, text: Bytes, starts: Ints) -> Ints8:
        """Read the kind of every line, and blank it."""
        out = np.full(len(starts), _UNKNOWN, np.int8)
        padded = np.append(text, np.full(64, 32, np.uint8))
        real = {leaf.name: code for code, leaf in leaf_kinds().items()}
        for name, kind in (_KINDS | real).items():
            letters = np.frombuffer(name.encode(), np.uint8)
            span = starts[:, None] + np.arange(len(letters))
            after = padded[starts + len(letters)]
            same = (padded[span] == letters).all(axis=1) & ((after == 32) | ((after >= 9) & (after <= 13)))
            out[same] = kind
            text[span[same]] = 32
        wrong = np.flatnonzero(out == _UNKNOWN)
        if len(wrong):
            end = min(int(starts[wrong[0]]) + 20, len(text))
            shown = text[starts[wrong[0]] : end].tobytes().split(maxsplit=1)[0].decode("utf-8", "replace")
            self.fail(int(wrong[0]), f"{shown!r} is no kind of node; expected one of {', '.join(_KINDS | real)}")
        return out

    def _numbers(self, expected: int) -> Floats:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)
                values = np.fromstring(self.data, np.float64, sep=" ")
        except (ValueError, DeprecationWarning):
            values = np.zeros(0)
        if len(values) != expected:
            self._refuse_words()
        return values

    def _refuse_words(self) -> NoReturn:
        """Raise ParseError for the first word that is not a number."""
        for number, line in enumerate(self.data.decode("utf-8", "replace").split("\n"), 1):
            for word in line.split():
                try:
                    if "_" in word:
                        raise ValueError
                    float(word)
                except ValueError:
                    raise ParseError(f"{word!r} is no number", self.path, number) from None
        raise ParseError("holds something that is no number", self.path)

    def fail(self, node: int, message: str) -> NoReturn:
        raise ParseError(message, self.path, int(self.line[node]))

    def require(self, good: Flags, nodes: Ints, message: str) -> None:
        """Raise ParseError at the first of some nodes that is not good."""
        wrong = np.flatnonzero(~good)
        if len(wrong):
            self.fail(int(nodes[wrong[0]]), message)

    def of_kind(self, kind: int) -> Ints:
        return np.flatnonzero(self.kind == kind)

    def field(self, nodes: Ints, k: int) -> Floats:
        return self.numbers[self.start[nodes] + k]

    def integers(self, nodes: Ints, values: Floats, what: str, low: float = 0.0) -> Ints:
        good = (values == np.floor(values)) & (values >= low) & (np.abs(values) < _LARGEST_INTEGER)
        self.require(good, nodes, f"{what} is no integer{' of at least 0' if low == 0.0 else ''}")
        return values.astype(np.int64)

    def circuit(self) -> Circuit:
        n = len(self.kind)
        self.check_lengths()
        everything = np.arange(n)
        ids = self.integers(everything, self.field(everything, 0), "the id", -_LARGEST_INTEGER)
        leaf_var, variables, param_ptr, params = self.leaves()
        owner, children, log_weights = self.edges(ids)
        child_ptr = np.append(0, np.cumsum(np.bincount(owner, minlength=n))).astype(np.int64)
        domain, leaf_var = Domain(variables), leaf_var.astype(np.int32)
        return Circuit(domain, self.kind, child_ptr, children, log_weights, leaf_var, param_ptr, params)

    def check_lengths(self) -> None:
        length = self.length
        pairs = (length >= 3) & (length % 2 == 1)
        wanted: list[tuple[int, Flags, str]] = [
            (NodeKind.CATEGORICAL, length == 3, "an indicator has an id, a variable and a state"),
            (NodeKind.PRODUCT, length >= 2, "a product has an id and at least one child"),
            (NodeKind.SUM, pairs, "a sum has an id and at least one pair of a child and its weight"),
        ]
        for code, leaf in leaf_kinds().items():
            text = f"a {leaf.name} has an id, a variable, and {' and '.join(leaf.parameters)}"
            wanted.insert(-2, (code, length == 2 + len(leaf.parameters), text))
        for kind, good, message in wanted:
            nodes = self.of_kind(kind)
            self.require(good[nodes], nodes, message)

    def leaves(self) -> tuple[Ints, list[Variable], Ints, Floats]:
        """Return the variable of each node (-1 for inner nodes), the variables, and the leaves' parameters."""
        indicators = self.of_kind(NodeKind.CATEGORICAL)
        leaves = np.flatnonzero(self.kind < NodeKind.PRODUCT)
        real = np.flatnonzero((self.kind < NodeKind.PRODUCT) & (self.kind != NodeKind.CATEGORICAL))
        if not len(leaves):
            raise ParseError("has no leaf; expected indicators, or leaves of real variables", self.path)
        numbers = self.integers(leaves, self.field(leaves, 1), "the variable")
        names, of_leaf = np.unique(numbers, return_inverse=True)
        variable = np.full(len(self.kind), -1, np.int64)
        variable[leaves] = of_leaf
        states = self.integers(indicators, self.field(indicators, 2), "the state")
        self.require(states < MAX_STATES, indicators, f"the state is beyond {MAX_STATES - 1}")
        sizes = np.zeros(len(names), np.int64)
        np.maximum.at(sizes, variable[indicators], states + 1)
        self.require(sizes[variable[real]] == 0, real, "the variable of a real leaf has indicators too")
        n_params = np.zeros(len(self.kind), np.int64)
        n_params[indicators] = sizes[variable[indicators]]
        n_params[real] = self.length[real] - 2
        if n_params.sum() > MAX_PARAMS:
            text = f"has indicators with {int(n_params.sum()):,} entries in all; expected at most {MAX_PARAMS:,}"
            raise ParseError(text, self.path)
        param_ptr = np.concatenate([[0], np.cumsum(n_params)]).astype(np.int64)
        params = np.full(int(param_ptr[-1]), -np.inf)
        params[param_ptr[indicators] + states] = 0.0
        for code, leaf in leaf_kinds().items():
            nodes = self.of_kind(code)
            own = [self.field(nodes, 2 + k) for k in range(len(leaf.parameters))]
            self.require(leaf.accepts(*own), nodes, f"a {leaf.name} has {leaf.expected}")
            for k, values in enumerate(own):
                params[param_ptr[nodes] + k] = values
        variables: list[Variable] = [
            Categorical(str(name), tuple(range(size))) if size else Real(str(name))
            for name, size in zip(names.tolist(), sizes.tolist(), strict=True)
        ]
        return variable, variables, param_ptr, params

    def edges(self, ids: Ints) -> tuple[Ints, Ints, Floats]:
        """Return the parent, the child and the log weight of every edge, sorted by parent."""
        owner = np.repeat(np.arange(len(ids)), self.length)
        column = np.arange(len(self.numbers)) - self.start[owner]
        is_sum = self.kind[owner] == NodeKind.SUM
        is_child = (is_sum & (column % 2 == 1)) | ((self.kind[owner] == NodeKind.PRODUCT) & (column > 0))
        at = np.flatnonzero(is_child)
        parent = owner[at]
        given = self.integers(parent, self.numbers[at], "a child's id", -_LARGEST_INTEGER)
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        doubled = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(doubled):
            node = int(np.min(order[doubled + 1]))
            self.fail(node, f"the id {ids[node]} is defined twice")
        place = np.minimum(np.searchsorted(ordered, given), len(ids) - 1)
        child = order[place]
        known = (ordered[place] == given) & (child < parent)
        if not known.all():
            first = int(np.flatnonzero(~known)[0])
            self.fail(int(parent[first]), f"the child {given[first]} is not defined on an earlier line")
        log_weights = np.zeros(len(at))
        weighed = np.flatnonzero(is_sum[at])
        log_weights[weighed] = self.log_weights(parent[weighed], at[weighed] + 1)
        return parent, child, log_weights

    def log_weights(self, parents: Ints, at: Ints) -> Floats:
        weights = self.numbers[at]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(weights)
        beyond = np.flatnonzero((np.abs(weights) < SMALLEST_NORMAL) | np.isinf(weights))
        if len(beyond):
            # Beyond the range of float64: read again from the text, which can be far slower.
            words = self.data.split()
            logs[beyond] = [_log_of(words[int(k)]) for k in at[beyond]]
        good = ~np.isnan(logs) & (logs < np.inf)
        self.require(
            good, parents, "a weight is negative, NaN or infinite; expected finite decimal numbers of at least 0"
        )
        return logs


def _log_of(word: bytes) -> float:
    """Return the natural log of a decimal number of any size; NaN for any other word."""
    try:
        return log_of_text(word.decode("ascii", "replace"))
    except ValueError:
        return math.nan


NODES_TOGETHER = 2**14  # nodes written at a time


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
        for part in _Writer(model).parts():
            file.write(part)


class _Writer:
    """The text of a circuit, some thousand nodes at a time; indicators come first, and ids are line numbers."""

    def __init__(self, model: Circuit) -> None:
        self._model = model
        sizes = model.domain.n_states.astype(np.int64)
        leaves = np.flatnonzero(model.kind == NodeKind.CATEGORICAL)
        counts = np.diff(model.param_ptr)[leaves]
        starts = np.cumsum(counts) - counts
        states = np.arange(int(counts.sum())) - np.repeat(starts, counts)
        self._used = np.unique(model.leaf_var[leaves]).astype(np.int64)
        self._first = np.zeros(len(sizes), np.int64)  # the id of the indicator of each variable's first state
        self._first[self._used] = np.cumsum(sizes[self._used]) - sizes[self._used]
        self._n_indicators = int(sizes[self._used].sum())
        self._has_line = np.ones(model.n_nodes, np.bool_)
        of_indicators = np.zeros(0, np.int64)
        if len(starts):
            all_own = len(states) == len(model.params)
            values = model.params if all_own else model.params[np.repeat(model.param_ptr[leaves], counts) + states]
            possible = values > -np.inf
            is_indicator = np.add.reduceat(possible, starts, dtype=np.int64) == 1
            is_indicator &= np.maximum.reduceat(values, starts) == 0.0
            self._has_line[leaves[is_indicator]] = False
            of_indicators = states[possible & np.repeat(is_indicator, counts)]
        self._ids = self._n_indicators - 1 + np.cumsum(self._has_line)
        self._n_lines = int(self._ids[-1]) + 1
        nodes = np.flatnonzero(~self._has_line)
        self._ids[nodes] = self._first[model.leaf_var[nodes]] + of_indicators

    def parts(self) -> Iterator[bytes]:
        """Yield the text."""
        model = self._model
        for v in self._used.tolist():
            first, n_states = int(self._first[v]), int(model.domain.n_states[v])
            yield "".join(f"indicator {first + s} {v} {s}\n" for s in range(n_states)).encode()
        for start in range(0, model.n_nodes, NODES_TOGETHER):
            yield self._lines(start, min(start + NODES_TOGETHER, model.n_nodes)).encode()
        if self._ids[-1] != self._n_lines - 1:  # the last line must be the root, which may be an indicator
            yield f"* {self._n_lines} {self._ids[-1]}\n".encode()

    def _lines(self, start: int, stop: int) -> str:
        """Return the lines of some nodes."""
        model, kinds = self._model, leaf_kinds()
        children, log_weights, counts = self._edges(start, stop)
        weights = iter(_weights(log_weights))
        below: Iterator[int] = iter(children.tolist())
        lines: list[str] = []
        nodes = start + np.flatnonzero(self._has_line[start:stop])
        of_nodes = (nodes, model.kind[nodes], self._ids[nodes], counts[nodes - start])
        for node, kind, own, count in zip(*(values.tolist() for values in of_nodes), strict=True):
            if kind == NodeKind.PRODUCT:
                lines.append(f"* {own} {' '.join(map(str, islice(below, count)))}\n")
            elif kind == NodeKind.SUM or kind == NodeKind.CATEGORICAL:
                pairs = zip(islice(below, count), islice(weights, count), strict=True)
                lines.append(f"+ {own} {' '.join([f'{child} {weight}' for child, weight in pairs])}\n")
            else:
                given = " ".join(repr(float(x)) for x in model.params_of(node))
                lines.append(f"{kinds[kind].name} {own} {model.leaf_var[node]} {given}\n")
        return "".join(lines)

    def _edges(self, start: int, stop: int) -> tuple[Ints, Floats, Ints]:
        """Return edges of some nodes: ids of children, log weights, counts; a categorical leaf sums indicators."""
        model = self._model
        kind, has_line = model.kind[start:stop], self._has_line[start:stop]
        is_leaf = (kind == NodeKind.CATEGORICAL) & has_line
        n_states = np.where(is_leaf, np.diff(model.param_ptr[start : stop + 1]), 0)
        counts = np.where(is_leaf, n_states, np.diff(model.child_ptr[start : stop + 1]))
        owner = np.repeat(np.arange(stop - start), counts)
        column = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
        of_leaf, of_sum = is_leaf[owner], (kind == NodeKind.SUM)[owner]
        children, log_weights = np.empty(len(owner), np.int64), np.zeros(len(owner))
        inner = slice(model.child_ptr[start], model.child_ptr[stop])
        children[~of_leaf] = self._ids[model.children[inner]]
        log_weights[~of_leaf] = model.log_weights[inner]
        at = start + owner[of_leaf]
        children[of_leaf] = self._first[model.leaf_var[at]] + column[of_leaf]
        log_weights[of_leaf] = model.params[model.param_ptr[at] + column[of_leaf]]
        return children, log_weights[of_leaf | of_sum], counts


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
