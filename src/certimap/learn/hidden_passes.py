"""Upward and downward passes over blocks of rows: likelihoods and expected counts of a hidden tree.

Both messages to the parent and expected counts are matrix products, left to BLAS. Rows that agree in all variables
below an edge send the same message along it, and the downward pass needs only their summed flow. The passes thus
work on the distinct patterns of each subtree; near the leaves there are far fewer than rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from certimap.core.arrays import Array, Floats, Floats32, Ints, Ints32, spans
from certimap.core.domain import Domain
from certimap.learn.batched_em import ExpectedCounts, RowPasses
from certimap.learn.clusters import mix
from certimap.learn.kernels.rows import absorb_message, add_rows, divide_out, k_means, number_patterns

BLOCK_NUMBERS = 1 << 25  # a block's beliefs and messages hold twice as many, or as parameters if these are more
_SPAN = 2**62  # keys of patterns stay below
NEIGHBOURS = 12
ROWS_CLUSTERED = 4000
STEPS = 20
MANY = 64  # clusters beyond which fewer steps are made: they cost more and change less
TIE_BREAKING = 1e-3  # spreads equal rows over several states


@dataclass
class Counts(ExpectedCounts):
    """Expected counts: `root` (K,), `transition` (n, K, K; float32), `emission` (total_states + n, K)."""

    root: Floats
    transition: Floats32
    emission: Floats

    @property
    def arrays(self) -> list[Array]:
        return [self.root, self.emission, *self.transition]


@dataclass(frozen=True, eq=False)
class Parameters:
    """A hidden tree in float32, ready for the passes."""

    order: Ints
    parent: Ints
    root_prior: Floats32
    transition: Floats32
    emission: Floats32  # (total_states + n, K); the last row of every variable holds ones, for a missing value
    offsets: Ints  # where the rows of each variable start in `emission`

    @property
    def n_hidden(self) -> int:
        return len(self.root_prior)


@dataclass(frozen=True, eq=False)
class PatternBlock:
    """Some rows of a table, by the distinct patterns of states in the subtree of each variable."""

    number: Ints32  # shape (n, n_rows): the pattern of each row at and below each variable
    first: list[Ints32]  # per variable: the index of the first row of each pattern
    codes: list[Ints]  # per variable: the state in that row, `n_states` where missing

    def below(self, i: int, up: int) -> Ints32:
        """Return the pattern of child `i` for each pattern of its parent `up`."""
        return self.number[i, self.first[up]]


class Patterns:
    """Patterns of the rows of a table in the subtrees of a tree; arguments as in `Passes`."""

    def __init__(self, codes: Ints, order: Ints, parent: Ints) -> None:
        self.codes = codes
        self.ids = np.empty(codes.shape, np.int32)
        n_ids = [0] * len(codes)
        children: list[list[int]] = [np.flatnonzero(parent == up).tolist() for up in range(len(parent))]
        backwards: list[int] = order[::-1].tolist()
        for i in backwards:
            keys, span = codes[i], int(codes[i].max(initial=0)) + 1
            for child in children[i]:
                if span * n_ids[child] >= _SPAN:
                    used, keys = np.unique(keys, return_inverse=True)
                    span = len(used)
                keys, span = keys * n_ids[child] + self.ids[child], span * n_ids[child]
            used, numbers = np.unique(keys, return_inverse=True)
            self.ids[i], n_ids[i] = numbers, len(used)
        self._scratch = np.full(max(n_ids, default=0), -1, np.int32)

    def block(self, rows: Ints) -> PatternBlock:
        """Return the patterns of some rows."""
        n = len(self.codes)
        number, first = np.empty((n, len(rows)), np.int32), np.empty((n, len(rows)), np.int32)
        n_patterns = np.empty(n, np.int64)
        number_patterns(self.ids, rows, self._scratch, number, first, n_patterns)
        firsts = [first[i, : n_patterns[i]].copy() for i in range(n)]
        return PatternBlock(number, firsts, [self.codes[i, rows[firsts[i]]] for i in range(n)])

    def blocks(self, rows: Ints, most: int) -> list[PatternBlock]:
        """Split rows into the fewest equal blocks with fewer than `most` patterns, or a few rows, each."""
        n_parts = 1
        while True:
            blocks = [self.block(part) for part in np.array_split(rows, n_parts)]
            if len(rows) <= 16 * n_parts or max(sum(map(len, block.first)) for block in blocks) <= most:
                return blocks
            n_parts *= 2


class Passes(RowPasses[Parameters, Counts, PatternBlock]):
    """Rows of a table, cut into blocks for threads; results do not depend on the number of threads."""

    # `codes` is (n, n_rows), `n_states[i]` where missing; `order` and `parent` are as in `Parameters`

    def __init__(
        self, domain: Domain, codes: Ints, order: Ints, parent: Ints, n_hidden: int, workers: int | None
    ) -> None:
        self.domain, self.n_rows, self.n_hidden = domain, codes.shape[1], n_hidden
        self.workers = workers or os.cpu_count() or 1
        self._patterns = Patterns(codes, order, parent)
        self._all = self.blocks(np.arange(self.n_rows, dtype=np.int64))

    def blocks(self, rows: Ints | None) -> list[PatternBlock]:
        if rows is None:
            return self._all
        most = max(BLOCK_NUMBERS, len(self.domain) * self.n_hidden**2)  # the number of parameters
        return self._patterns.blocks(rows, most // self.n_hidden)

    def counts_of(self, parameters: Parameters, block: PatternBlock) -> tuple[Counts, float]:
        upward, k = _upward(parameters, block), parameters.n_hidden
        # The downward flow sums the posterior of the latent variable over the rows of each pattern; it overwrites
        # each belief after its last use.
        flows, messages = upward.beliefs, upward.messages
        transition = np.zeros((len(flows), k, k), np.float32)
        emission = np.zeros((len(parameters.emission), k), np.float32)
        order: list[int] = parameters.order.tolist()
        root = order[0]
        flows[root] *= parameters.root_prior
        total = flows[root].sum(axis=1, keepdims=True)
        flows[root] *= upward.n_rows[:, None].astype(np.float32) / np.where(total > 0.0, total, np.float32(np.inf))
        for i in order:
            up = int(parameters.parent[i])
            if up >= 0:
                weights = np.zeros_like(messages[i])
                add_rows(flows[up], block.below(i, up), weights)
                divide_out(weights, messages[i])
                np.matmul(weights.T, flows[i], out=transition[i])
                transition[i] *= parameters.transition[i]
                flows[i] *= weights @ parameters.transition[i]
            add_rows(flows[i], (parameters.offsets[i] + block.codes[i]).astype(np.int32), emission)
        root_counts = flows[root].sum(axis=0, dtype=np.float64)
        return Counts(root_counts, transition, emission.astype(np.float64)), upward.log_prob

    def log_prob_of(self, parameters: Parameters, block: PatternBlock) -> float:
        return _upward(parameters, block).log_prob


@dataclass
class _Upward:
    """Result of an upward pass; arrays of shape (n_patterns, K), rows scaled to maximum 1 before they are sent."""

    beliefs: list[Floats32]  # per variable and pattern: the evidence at and below it
    messages: list[Floats32]  # to the parent
    n_rows: Floats  # of each pattern of the whole tree
    log_prob: float  # the sum over all rows


def _upward(parameters: Parameters, block: PatternBlock) -> _Upward:
    beliefs = [np.take(parameters.emission, parameters.offsets[i] + c, axis=0) for i, c in enumerate(block.codes)]
    messages = [np.empty((0, parameters.n_hidden), np.float32)] * len(beliefs)
    log_scales = [np.zeros(len(codes)) for codes in block.codes]
    root = int(parameters.order[0])
    backwards: list[int] = parameters.order[:0:-1].tolist()
    for i in backwards:
        up = int(parameters.parent[i])
        messages[i] = beliefs[i] @ parameters.transition[i].T
        absorb_message(beliefs[up], messages[i], block.below(i, up), log_scales[up], log_scales[i])
    n_rows = np.bincount(block.number[root], minlength=len(beliefs[root])).astype(np.float64)
    with np.errstate(divide="ignore"):
        log_prob = log_scales[root] + np.log(beliefs[root] @ parameters.root_prior)
    return _Upward(beliefs, messages, n_rows, float(n_rows @ log_prob))


def neighbourhoods(parent: Ints) -> list[list[int]]:
    """Return, for each variable, itself and its nearest variables in the tree, at most `NEIGHBOURS` in all."""
    near: list[list[int]] = [[] for _ in parent]
    parents: list[int] = parent.tolist()
    for i, up in enumerate(parents):
        if up >= 0:
            near[up].append(i)
            near[i].append(up)
    out: list[list[int]] = []
    for i in range(len(near)):
        found, seen = [i], {i}
        for at in found:
            if len(found) >= NEIGHBOURS:
                break
            fresh = [j for j in near[at] if j not in seen]
            seen.update(fresh)
            found.extend(fresh)
        out.append(found[:NEIGHBOURS])
    return out


def counts_of_clusters(domain: Domain, indicators: Floats32, parent: Ints, n_hidden: int, seed: int) -> Counts:
    """Return counts with each latent variable set to the cluster of its variable's neighbourhood."""
    n_rows, n = len(indicators), len(domain)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(n_rows)[:ROWS_CLUSTERED])
    labels = np.empty((n, n_rows), np.int64)
    for i, near in enumerate(neighbourhoods(parent)):
        columns = spans(domain.offsets[near], domain.n_states[near])
        features = np.ascontiguousarray(indicators[:, columns])
        features += TIE_BREAKING * rng.random(features.shape, np.float32)
        labels[i] = _cluster(features, rows, n_hidden, mix(seed & ((1 << 64) - 1), i))
    k = n_hidden
    counts = Counts(np.zeros(k), np.zeros((n, k, k), np.float32), np.zeros((domain.total_states + n, k)))
    for i, up in enumerate(parent.tolist()):
        start = int(domain.offsets[i]) + i
        for s in range(int(domain.n_states[i])):
            weights = indicators[:, domain.offsets[i] + s]
            counts.emission[start + s] = np.bincount(labels[i], weights, minlength=k)
        if up < 0:
            counts.root += np.bincount(labels[i], minlength=k)
        else:
            counts.transition[i] = np.bincount(labels[up] * k + labels[i], minlength=k * k).reshape(k, k)
    return counts


def _cluster(features: Floats32, rows: Ints, n_hidden: int, key: int) -> Ints:
    """Cluster some of the rows, and assign every row to the nearest centre."""
    labels = np.empty(len(rows), np.int64)
    some = np.ascontiguousarray(features[rows])
    n_steps = max(2, min(STEPS, STEPS * MANY // n_hidden))
    k_means(some, min(n_hidden, len(rows)), np.uint64(key), n_steps, labels)
    used = np.unique(labels)
    centres = np.stack([some[labels == c].mean(axis=0) for c in used])
    scores = features @ centres.T - 0.5 * np.sum(centres**2, axis=1)
    return used[np.argmax(scores, axis=1)]


def split_states(parameters: Parameters, n_hidden: int, rng: np.random.Generator) -> Parameters:
    """Split the latent states evenly into `n_hidden`, and change transitions at random by up to half."""
    # so that expectation-maximisation can tell the new states apart
    k = parameters.n_hidden
    origin = np.arange(n_hidden) % k
    share = (1.0 / np.bincount(origin, minlength=k)[origin]).astype(np.float32)
    transition = np.empty((len(parameters.order), n_hidden, n_hidden), np.float32)
    for old, new in zip(parameters.transition, transition, strict=True):
        np.multiply(old[np.ix_(origin, origin)], share, out=new)
        new *= np.float32(0.5) + rng.random(new.shape, np.float32)
        new /= new.sum(axis=1, keepdims=True)
    emission = np.ascontiguousarray(parameters.emission[:, origin])
    return replace(
        parameters, root_prior=parameters.root_prior[origin] * share, transition=transition, emission=emission
    )
