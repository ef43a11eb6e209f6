"""Structures of Bayesian networks by score: hill climbing with tabu structures, begun again near good orders."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from certimap.circuits.leaves.kind import special
from certimap.core.arguments import check_whole, keywords_hinted
from certimap.core.arrays import Flags, Floats, Ints
from certimap.errors import DataError, did_you_mean
from certimap.learn.estimator import Seed, is_late
from certimap.learn.given_structure import GivenStructure
from certimap.learn.table import DataTable, read_table
from certimap.networks.bayesian import BayesianNetwork

TABU, PATIENCE = 100, 15  # structures that are not entered again; moves without a better structure
MOVED = 3  # variables that change places in the order of the best structure when a climb begins again
Edges = Sequence[tuple[str, str]]


@keywords_hinted(DataError, "GivenStructure")
def bic(
    data: Any, *, criterion: Literal["bic", "bdeu"] = "bic", required: Edges = (), forbidden: Edges = (),
    order: Sequence[str] = (), max_parents: int = 5, n_starts: int = 50, time_limit: float | None = None,
    rng: Seed = None, **settings: Any,
) -> BayesianNetwork:  # fmt: skip
    """Return a Bayesian network whose structure is searched for by score: edges added, deleted and turned.

    A climb makes the best move, even one that lowers the score, unless it leads to one of the last structures (a
    tabu search, Glover 1989). The next climb begins with the order of the best structure, a few variables moved,
    and the best parents among those before each (after Teyssier and Koller 2005). Cost: one count of the rows per
    variable and set of parents that is looked at.

    - `data`: a table of categorical columns without missing cells.
    - `criterion`: "bic": ln of the likelihood, less half the log of the number of rows per free parameter (Schwarz
      1978); "bdeu": ln of the marginal likelihood, `strength` pseudo-rows per table (Heckerman et al. 1995).
    - `required`, `forbidden`: edges (parent, child) that the structure has, or lacks.
    - `order`: names, none of which has a later one as a parent.
    - `max_parents`: the most parents of a variable.
    - `n_starts`, `rng`: the number of climbs; a seed of their orders.
    - `time_limit`: seconds, after which the best structure so far is taken.
    - `settings`: those of `GivenStructure`, which learns the tables.
    """
    if criterion not in ("bic", "bdeu"):
        raise DataError(f"criterion is {criterion!r}; expected 'bic' or 'bdeu'")
    max_parents = check_whole("max_parents", max_parents, "a whole number from 0", DataError)
    n_starts = check_whole("n_starts", n_starts, "a whole number from 1", DataError, low=1)
    rows = read_table(data, kinds=settings.get("kinds"), domain=settings.get("domain"))
    names, deadline = rows.domain.names, None if time_limit is None else time.monotonic() + time_limit
    later = [(b, a) for k, b in enumerate(order) for a in order[:k]]
    needed, banned = (_matrix(edges, names) for edges in (required, [*forbidden, *later]))
    scores = _Scores(rows, settings.get("strength", 1.0) if criterion == "bdeu" else 0.0)
    climb = _Climb(scores, needed, ~banned & ~np.eye(len(names), dtype=np.bool_) | needed, max_parents)
    generator = np.random.default_rng(rng)
    for start in range(n_starts):
        if start and not is_late(deadline):
            climb.begin_again(generator)
        climb.run(deadline)
    parents = {name: [names[p] for p in np.flatnonzero(climb.best[1][:, i])] for i, name in enumerate(names)}
    return GivenStructure(parents, random_state=rng, **settings).fit(rows).model_


def _matrix(edges: Edges, names: tuple[str, ...]) -> Flags:
    """Return edges as a matrix, parents by rows."""
    for name in [name for edge in edges for name in edge if name not in names]:
        raise DataError(f"an edge or the order names {name!r}, which is no column{did_you_mean(name, names)}")
    found = np.zeros((len(names), len(names)), np.bool_)
    for parent, child in edges:
        found[names.index(parent), names.index(child)] = True
    return found


class _Scores:
    """Scores of variables with sets of parents, each computed once; `strength` is 0 for BIC."""

    def __init__(self, rows: DataTable, strength: float) -> None:
        for i, v in enumerate(rows.domain):
            if not v.n_states or rows.missing[:, i].any():
                has = "lacks cells" if v.n_states else "is real"
                raise DataError(f"column {v.name!r} {has}; expected categorical columns without missing cells")
        self._codes, self._sizes = rows.points.astype(np.int64).T.copy(), rows.domain.n_states.tolist()
        self._strength = strength
        self._known: dict[tuple[int, frozenset[int]], float] = {}

    def __call__(self, child: int, parents: frozenset[int]) -> float:
        if (child, parents) not in self._known:
            self._known[child, parents] = self._value(child, sorted(parents))
        return self._known[child, parents]

    def _value(self, child: int, parents: list[int]) -> float:
        n_rows, k, at = 1, self._sizes[child], np.zeros(self._codes.shape[1], np.int64)
        for p in parents:
            at, n_rows = at * self._sizes[p] + self._codes[p], n_rows * self._sizes[p]
        if n_rows * k > 4 * len(at):  # most configurations do not occur
            at = np.unique(at, return_inverse=True)[1].ravel()
        counts = np.bincount(at * k + self._codes[child], minlength=(int(at.max()) + 1) * k).reshape(-1, k)
        each = self._strength / (n_rows * k)
        value = float(np.sum(_term(counts, each)) - np.sum(_term(counts.sum(axis=1), each * k)))
        return value - (0.0 if each else 0.5 * math.log(len(at)) * n_rows * (k - 1))


def _term(counts: Ints, base: float) -> Floats:
    """Return n ln n, or with a base ln of base (base + 1) ... (base + n - 1)."""
    if not base:
        return np.asarray(counts * np.log(np.maximum(counts, 1)), np.float64)
    return special("gammaln")(base + counts) - special("gammaln")(base)


class _Climb:
    """A structure, as a matrix of edges with parents by rows, and what each change would gain."""

    def __init__(self, scores: _Scores, needed: Flags, allowed: Flags, max_parents: int) -> None:
        self._scores, self._needed, self._allowed, self._most = scores, needed, allowed, max_parents
        self._marks = np.random.default_rng(0).integers(1 << 62, size=needed.shape)  # their xor names a structure
        self._gains = np.zeros(needed.shape)
        self._set(needed)
        if (self._reach() & self._reach().T).sum() > len(needed):
            raise DataError("the required edges form a circle; expected none")
        self.best = self._score, needed

    def run(self, deadline: float | None) -> None:
        """Make the best moves until none has led to a better structure for a while."""
        tabu, waited = deque[Any](maxlen=TABU), 0
        while waited <= PATIENCE and not is_late(deadline):
            waited += 1
            if self._score > self.best[0] + 1e-9:
                self.best, waited = (self._score, self._edges.copy()), 0
            key = np.bitwise_xor.reduce(self._marks[self._edges], initial=0)
            tabu.append(key)
            reach = self._reach()
            n_ways = self._edges.astype(np.float32) @ reach.astype(np.float32)  # first edges of paths
            turns = np.where(self._edges & (n_ways == 1.0), self._gains + self._gains.T, -np.inf)
            moves = np.stack([np.where(reach.T & ~self._edges, -np.inf, self._gains), turns])
            moves[np.isin(np.stack([key ^ self._marks, key ^ self._marks ^ self._marks.T]), tabu)] = -np.inf
            turn, parent, child = np.unravel_index(int(moves.argmax()), moves.shape)
            if moves[turn, parent, child] == -np.inf:
                break
            self._score += float(moves[turn, parent, child])
            self._edges[parent, child] ^= True
            self._edges[child, parent] |= bool(turn)
            for changed in (child, parent) if turn else (child,):
                self._rescore(int(changed))

    def begin_again(self, rng: np.random.Generator) -> None:
        """Begin with the best parents in an order near that of the best structure."""
        self._edges, n = self.best[1], len(self._needed)
        order: list[int] = np.argsort(self._reach().sum(axis=0) + rng.random(n)).tolist()
        for a, b in rng.integers(n, size=(MOVED, 2)).tolist():
            order.insert(b, order.pop(a))
        edges, before = self._needed.copy(), list[int]()
        while order:
            child = next(v for v in order if not self._needed[order, v].any())
            order.remove(child)
            parents = frozenset(np.flatnonzero(edges[:, child]).tolist())
            near = [p for p in before if self._allowed[p, child]]
            while len(parents) < self._most:
                value, p = max(((self._scores(child, parents | {p}), p) for p in near), default=(-math.inf, 0))
                if value <= self._scores(child, parents):
                    break
                parents |= {p}
            edges[list(parents), child] = True
            before.append(child)
        self._set(edges)

    def _set(self, edges: Flags) -> None:
        self._edges = edges.copy()
        self._score = sum(self._rescore(child) for child in range(len(edges)))

    def _reach(self) -> Flags:
        """Return which variables lead to which, each to itself."""
        reach, n_links = self._edges | np.eye(len(self._edges), dtype=np.bool_), 0
        while n_links != (n_links := int(reach.sum())):
            reach = reach.astype(np.float32) @ reach.astype(np.float32) > 0.0
        return reach

    def _rescore(self, child: int) -> float:
        """Compute the gains of changes to a variable's parents, and return its score."""
        parents = frozenset(np.flatnonzero(self._edges[:, child]).tolist())
        now = self._scores(child, parents)
        for p in range(len(self._edges)):
            free = not self._needed[p, child] if p in parents else len(parents) < self._most
            is_open = free and self._allowed[p, child]
            self._gains[p, child] = self._scores(child, parents ^ {p}) - now if is_open else -np.inf
        return now
