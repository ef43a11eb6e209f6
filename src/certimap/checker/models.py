"""The checker's view of a model, as plain arrays: a circuit, or a product of tables; and limits on a check."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.numbers import UNIT, Floats, Ints

Arrays = Mapping[str, NDArray[Any]]
Stored = Mapping[str, Any]  # a variable of a file: its name, its states or interval; or the labels of an answer
LARGEST_LOG = 1e100  # nats; sums of larger numbers may overflow, and an infinite sum compares with nothing


class Rejected(Exception):
    """A step of a proof that does not hold, in one sentence."""


def refuse_huge(logs: Floats, what: str) -> None:
    """Reject logs other than -inf (an exact 0) and numbers of at most LARGEST_LOG in size."""
    if not np.all((np.abs(logs) <= LARGEST_LOG) | (logs == -np.inf)):
        raise Rejected(f"{what} has a log that is no number of at most {LARGEST_LOG:g} in size")


def fingerprint(kind: str, variables: Sequence[Stored], arrays: Arrays, hidden: Sequence[str] = ()) -> str:
    """Return "sha256:" and the hash of a model's kind, its variables with their states, and its arrays' bytes."""
    digest = hashlib.sha256(json.dumps([kind, list(variables), sorted(hidden)]).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
        digest.update(values.tobytes())
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True, eq=False)
class Question:
    """A query in positions: sizes, queried variables, and one natural-log weight per state of every variable."""

    sizes: Ints
    queried: Ints
    log_weights: Floats

    @cached_property
    def offsets(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @property
    def query_sizes(self) -> Ints:
        return self.sizes[self.queried]

    @property
    def query_offsets(self) -> Ints:
        return np.concatenate([[0], np.cumsum(self.query_sizes)]).astype(np.int64)

    def weights_of(self, variable: int) -> Floats:
        return self.log_weights[self.offsets[variable] : self.offsets[variable + 1]]

    def is_observed(self, variable: int) -> bool:
        """Whether the variable is not queried, and has a single possible state, of weight 1."""
        found = np.sort(self.weights_of(variable))
        is_one = len(found) > 0 and found[-1] == 0.0 and np.all(found[:-1] == -np.inf)
        return bool(is_one and variable not in self.queried)


@dataclass(frozen=True, eq=False)
class PlainTable:
    """A factor: natural logs over the states of its variables, one axis each."""

    scope: tuple[int, ...]
    logs: Floats


def tables_of(kind: str, sizes: Ints, arrays: Arrays) -> tuple[list[PlainTable], list[int]]:
    """Return the factors of a network or hidden tree, and the sizes of all variables, latent ones last."""
    if kind in ("bayesian", "markov"):
        stored = stored_tables(sizes, arrays)
        tables, all_sizes = [PlainTable(s, t if in_logs else _logs(t)) for s, t, in_logs in stored], sizes.tolist()
    elif kind.endswith(":HiddenChowLiuModel"):
        tables, all_sizes = _hidden_tables(sizes, arrays)
    else:
        raise Rejected(f"a model of the kind {kind!r} is one that the checker cannot read")
    for table in tables:
        refuse_huge(table.logs, "the model")
    return tables, all_sizes


def _logs(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(values)


def stored_tables(sizes: Ints, arrays: Arrays) -> Iterator[tuple[tuple[int, ...], Floats, bool]]:
    """Yield the scope and stored entries of each table of a network, and whether the entries are logs."""
    lengths = arrays["scope_lengths"].tolist()
    in_logs = arrays["in_logs"].tolist() if "in_logs" in arrays else [False] * len(lengths)
    at = done = 0
    for length, is_log in zip(lengths, in_logs, strict=True):
        scope = tuple(int(v) for v in arrays["scopes"][at : at + length])
        shape = [int(sizes[v]) for v in scope]
        n = int(np.prod(shape, dtype=np.int64))
        yield scope, np.asarray(arrays["tables"][done : done + n], np.float64).reshape(shape), bool(is_log)
        at, done = at + length, done + n


def _hidden_tables(sizes: Ints, arrays: Arrays) -> tuple[list[PlainTable], list[int]]:
    """Write a hidden Chow-Liu tree as tables: latent variable n + i emits variable i."""
    n, k = len(sizes), len(arrays["root_prior"])
    tables, at = list[PlainTable](), 0
    for i, parent in enumerate(arrays["parent"].tolist()):
        states = int(sizes[i])
        tables.append(PlainTable((n + i, i), _logs(arrays["emission"][at : at + k * states].reshape(k, states))))
        at += k * states
        scope, entries = (n + parent, n + i), arrays["transition"][i] if parent >= 0 else arrays["root_prior"]
        tables.append(PlainTable(scope if parent >= 0 else (n + i,), _logs(entries)))
    return tables, [*sizes.tolist(), *[k] * n]


@dataclass(frozen=True, eq=False)
class ReducedModel:
    """A product of tables under the evidence: observed variables are fixed, and weights are separate factors.

    `log_slack` (nats) covers the errors of the constant, and of the table logs, each right to its last place,
    which the rounding of a sum is too small to cover where large logs cancel.
    """

    tables: list[PlainTable]
    sizes: list[int]
    queried: list[int]
    log_constant: float
    log_slack: float = 0.0


def reduce(tables: Sequence[PlainTable], sizes: Sequence[int], question: Question) -> ReducedModel:
    """Fix the observed variables; states that other evidence excludes stay in the tables, with weight 0."""
    queried = [int(v) for v in question.queried]
    asked, fixed, out, constants = set(queried), dict[int, int](), list[PlainTable](), list[float]()
    for v in range(len(question.sizes)):
        weights = question.weights_of(v)
        possible = np.flatnonzero(weights > -np.inf)
        if len(possible) == 1 and v not in asked:
            fixed[v] = int(possible[0])
            constants.append(float(weights[possible[0]]))
        elif np.any(weights != 0.0):
            out.append(PlainTable((v,), weights))
    for table in tables:
        index = tuple(fixed.get(v, slice(None)) for v in table.scope)
        scope = tuple(v for v in table.scope if v not in fixed)
        logs = np.asarray(table.logs[index], np.float64)
        if scope:
            out.append(PlainTable(scope, logs))
        else:
            constants.append(float(logs))
    mentioned = {v for table in out for v in table.scope}
    for v in range(len(question.sizes)):
        if v not in mentioned and v not in asked and v not in fixed:
            constants.append(math.log(sizes[v]))  # summed out of nothing
    sizes_of_logs = [float(np.max(np.abs(t.logs), where=np.isfinite(t.logs), initial=0.0)) for t in out]
    size = math.fsum(abs(x) for x in constants if math.isfinite(x))
    slack = UNIT * (4.0 * size + 2.0 * math.fsum(sizes_of_logs))
    return ReducedModel(out, list(sizes), queried, math.fsum(constants), slack)


def spread(table: PlainTable, scope: Sequence[int]) -> Floats:
    """View a table with the axes of `scope`; the axis of a variable that it lacks has length one."""
    places = [scope.index(v) for v in table.scope]
    shape = [1] * len(scope)
    for place, size in zip(places, table.logs.shape, strict=True):
        shape[place] = size
    return table.logs.transpose(sorted(range(len(places)), key=places.__getitem__)).reshape(shape)


SECONDS, BYTES = 600.0, 2 * 10**9  # unless told otherwise
FLOAT = 8  # bytes of a number


@dataclass(eq=False)
class CheckBudget:
    """Limits on time and memory: loops read the clock, and arrays are counted before they are allocated."""

    seconds: float = math.inf  # the limits
    n_bytes: float = math.inf
    end: float = math.inf  # when the time is up (`time.monotonic`)
    held: float = 0.0  # bytes of the arrays that are kept

    @classmethod
    def starting_now(cls, seconds: float | None = SECONDS, n_bytes: float | None = BYTES) -> CheckBudget:
        """Return a budget whose time starts now; None means no limit."""
        seconds, n_bytes = math.inf if seconds is None else seconds, math.inf if n_bytes is None else n_bytes
        return cls(seconds, n_bytes, time.monotonic() + seconds)

    def look(self) -> None:
        """Reject the proof if the time is up."""
        if time.monotonic() > self.end:
            limit = f"{self.seconds:g} s (time_limit)"
            raise Rejected(f"the check did not end within {limit}, so that nothing is said of the proof")

    def need(self, n_bytes: float, what: str) -> None:
        """Reject the proof if the time is up, or if the next step needs more bytes than are left."""
        self.look()
        if self.held + n_bytes > self.n_bytes:
            wanted, held, most = (f"{n / 1e6:,.0f} MB" for n in (n_bytes, self.held, self.n_bytes))
            limit = f"the check may take {most} (max_memory), so that nothing is said of the proof"
            raise Rejected(f"{what} would take {wanted} beside {held}, and {limit}")

    def hold(self, n_bytes: float, what: str) -> None:
        """Count bytes of arrays that are kept; a negative count gives bytes back."""
        if n_bytes > 0.0:
            self.need(n_bytes, what)
        self.held += n_bytes
