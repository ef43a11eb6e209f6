"""Posteriors of networks of moderate width, computed by passes over the tables of an elimination tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.box import Answers, Boxes, Layout, Points, SearchBoxes, rounded_up
from certimap.core.cached import cached_property
from certimap.core.control import WorkClock
from certimap.core.domain import Domain
from certimap.core.logs import log_of
from certimap.core.posterior import Facts, Posterior
from certimap.core.probing import SteadyProber
from certimap.core.query import Query
from certimap.core.region_tree import RegionTree
from certimap.core.rounding import LOG_FLOOR, ULP
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, SolverError
from certimap.kernels.parallel import PerThread, for_blocks
from certimap.kernels.wide import LN2
from certimap.trees.kernels import passes
from certimap.trees.kernels.wide_passes import WideRoom, cumulate_wide, downward_wide, upward_wide
from certimap.trees.regions import Bucket, buckets_of_latent_tree, conditionals, contract_chains, make_tree
from certimap.trees.wide import Wide, as_wide


def point_arrays(tree: RegionTree) -> passes.PointArrays:
    """Lay out upward passes of points; trees of one shape have one layout."""
    a, n = tree.arrays, tree.n_regions
    terms: list[dict[int, int]] = [{}] * n  # by region: variable -> stride in the table
    joint: list[dict[int, int]] = [{}] * n  # and in the joint space
    gather: list[Ints] = [np.empty(0, np.int64)] * n  # by slot among all children
    for r in range(n - 1, -1, -1):
        k, n_rest = int(a.own_states[r]), int(a.rest_query[r] * a.rest_hidden[r])
        own = {int(tree.variable[r]): 1} if tree.variable[r] >= 0 and k > 1 else {}
        known: dict[int, int] = {}
        if tree.parent[r] >= 0:
            above, start = int(tree.parent[r]), int(a.map_ptr[tree.slot[r]])
            strides = {v: int(a.gather[start + s]) for v, s in joint[above].items()}
            known = {v: s for v, s in strides.items() if s > 0}
            n_above = int(a.own_states[above])
            at = np.arange(int(a.shared_hidden[above]) * n_above)[:: n_above if a.column[above] >= 0 else 1]
            shared, rest = np.divmod(a.gather[start + at], n_rest)  # where all query variables have state 0
            gather[tree.slot[r]] = shared * a.rest_hidden[r] + rest
        terms[r] = {v: s * k for v, s in known.items()} | own
        joint[r] = {v: s // n_rest * k for v, s in known.items() if s >= n_rest} | own
    return passes.PointArrays(
        np.cumsum([0, *map(len, terms)]),
        np.array([v for t in terms for v in t], np.int64),
        np.array([s for t in terms for s in t.values()], np.int64),
        np.cumsum([0, *map(len, gather)]),
        np.concatenate([np.empty(0, np.int64), *gather]),
        np.cumsum([0, *(a.shared_hidden * a.rest_hidden).tolist()]),
        int(np.max(a.shared_hidden * np.where(a.column >= 0, 1, a.own_states))),
    )


def room_for(tree: RegionTree, n_rows: int) -> passes.PassRoom:
    """Allocate the buffers of a block of rows."""
    n, a = tree.n_regions, tree.arrays
    n_joint, n_message, n_largest = tree.of_shape(
        "buffers", lambda: (int(a.joint_ptr[-1]), int(a.message_ptr[-1]), int(np.max(np.diff(a.joint_ptr))))
    )
    sizes = n_joint, n, n_message, n, n_largest
    joint, joint_exponent, message, message_exponent, outer = (np.empty((size, n_rows)) for size in sizes)
    flags = np.full(n_rows, tree.is_delicate, np.uint8)
    return passes.PassRoom(joint, joint_exponent, message, message_exponent, outer, flags)


def pass_down(tree: RegionTree, mask: Floats, is_bound: bool, room: passes.PassRoom) -> Floats:
    """Return natural logs with each variable set to each state, shape (total_states, rows), after `upward`."""
    a = tree.arrays
    n_rows, n_children = mask.shape[1], np.diff(a.child_ptr)
    below = passes.DownRoom(
        np.empty((int(np.max((n_children + 1) * np.diff(a.joint_ptr), initial=1)), n_rows)),
        np.empty((int(np.max(n_children, initial=1)), n_rows)),
        np.empty_like(room.message),
        np.empty_like(room.message_exponent),
    )
    each = np.empty((mask.shape[0], n_rows))
    passes.downward(a, mask, is_bound, room, below, each)
    return each


def wide_up(tree: RegionTree, mask: Flags, is_bound: bool) -> tuple[float, WideRoom]:
    """Send all messages of one row to the root; return the natural log of its value, and the messages."""
    n_joint, n_message = int(tree.arrays.joint_ptr[-1]), int(tree.arrays.message_ptr[-1])
    room = WideRoom(Wide.empty((n_joint,)).pair, Wide.empty((n_message,)).pair)
    upward_wide(tree.arrays, np.ascontiguousarray(mask), is_bound, room)
    return float(log_of(room.message.mantissa[-1]) + room.message.exponent[-1] * LN2), room


def wide_each(tree: RegionTree, mask: Flags, is_bound: bool) -> Floats:
    """Return the natural log of the value with each variable set to each state, shape (total_states,)."""
    a = tree.arrays
    n_suffix = int(np.max((np.diff(a.child_ptr) + 2) * np.diff(a.joint_ptr)))
    suffix, each = Wide.empty((n_suffix,)).pair, np.empty(len(mask))
    downward_wide(a, np.ascontiguousarray(mask), is_bound, wide_up(tree, mask, is_bound)[1], suffix, each)
    return each


MAX_TABLE = 4_000_000
BLOCK_NUMBERS = 2**17  # numbers per block of rows: 1 MiB
_LOG_ERROR = 32 * ULP  # relative error of a log: some sums of entries that are logs themselves


@dataclass(frozen=True, eq=False)
class BucketTreePosterior:
    """A normalised posterior over the query variables, with nuisance variables summed inside.

    Implements `BoxPosterior` by passes over a `RegionTree`, whose regions `set_elimination` also uses. All logs
    are natural. Upper bounds, and masses used as bounds, carry the rounding error of the pass, at most `log_slack`
    nats; `log_bound` is rounded outward by it. One row of `log_mass` or `log_bound` costs
    `region_tree.n_entries` multiplications, one of `log_prob` only as many as have the point's states; one row of
    `log_mass_each` costs about three times `n_entries`, whatever the number of states. `workers` threads give the
    same answer as one; `as_network` returns the same posterior as the unmultiplied tables of a network, see
    `AsNetwork`.
    """

    domain: Domain
    region_tree: RegionTree
    workers: int = 1
    as_network: Callable[[], Posterior] | None = None

    @classmethod
    def from_tree(
        cls, parent: Ints, transitions: Sequence[Floats | Wide], priors: Mapping[int, Floats | Wide],
        latent_of: Ints, emissions: Sequence[Floats | Wide], query: Query, *, root: int | None = None,
        workers: int | None = None, pace: WorkClock | None = None,
    ) -> BucketTreePosterior:  # fmt: skip
        """Condition a tree (or forest) of latent variables with one emission per observable variable.

        Hidden Chow-Liu trees and hidden Markov models are such trees. `parent` (n_latents,) is -1 for roots;
        `transitions[i]` is P(i | parent), shape (states of parent, states of i), unused for roots; `priors` are
        P(root) of every root; `latent_of` (n,) is the latent variable that emits each variable of `query.domain`,
        with `emissions` of shape (states of its latent, its states). Tables are arrays of doubles, or `Wide` for
        entries beyond their range. `root` is the root of the region tree; by default the latent variable whose
        largest side has the fewest query variables. Raises ImpossibleEvidence if the evidence has probability
        zero, and TimeUp at the limit of `pace`, which is charged each table's entries before it is built.
        """
        if not query.domain.is_discrete:
            raise ModelError("a bucket tree needs categorical variables; the model has a real one")
        buckets = buckets_of_latent_tree(
            np.asarray(parent, np.int64), list(map(as_wide, transitions)),
            {latent: as_wide(prior) for latent, prior in priors.items()}, np.asarray(latent_of, np.int64),
            list(map(as_wide, emissions)), query, root, pace,
        )  # fmt: skip
        return cls.from_buckets(buckets, 0.0, query, workers=workers, pace=pace)

    @classmethod
    def from_buckets(
        cls, buckets: Sequence[Bucket], constant: float, query: Query, *, workers: int | None = None,
        pace: WorkClock | None = None,
    ) -> BucketTreePosterior:  # fmt: skip
        """Condition the buckets of an elimination order, children first; `constant` is ln of a constant factor.

        Raises ImpossibleEvidence if the evidence has probability zero, and TimeUp at the limit of `pace`.
        """
        positions: dict[int, int] = {v: i for i, v in enumerate(query.variables.tolist())}
        conditioned, totals, log_error = conditionals(buckets, positions, pace)
        log_evidence = sum(float(total.logs()) for total in totals) + constant
        if log_evidence == -math.inf or math.isnan(log_evidence):
            raise ImpossibleEvidence("the evidence has probability zero under the model")
        contracted, domain = contract_chains(conditioned, positions, pace), query.query_domain
        tree = make_tree(contracted, positions, domain.offsets, log_evidence, log_error, pace)
        return cls(domain, tree, workers or 1)

    @property
    def log_evidence(self) -> float:
        """Natural log of p(e), or of the unnormalised total of a Markov network."""
        return self.region_tree.log_evidence

    @property
    def facts(self) -> Facts:
        return self._facts

    @cached_property
    def _facts(self) -> Facts:
        return Facts.of(self.domain, log_evidence=self.log_evidence, work=self.n_edges, log_slack=self.log_slack)

    @property
    def n_edges(self) -> int:
        """The work of one evaluation, in table entries."""
        return self.region_tree.n_entries

    @property
    def log_slack(self) -> float:
        """A bound on the rounding error of ln p, in nats: that of the tables, and a roundoff per operation."""
        a = self.region_tree.arrays
        operations = int(np.sum(a.own_states) + len(a.children) + 4 * len(a.own_states))
        return operations * ULP + self.region_tree.log_error

    def log_prob(self, points: Points) -> Floats:
        """Return the natural log of p(q | e) of each point, shape (batch,).

        A pass reads the table entries of the point's states alone. Raises QueryError if a state is out of range.
        """
        tree, batch, n_states = self.region_tree, len(points), self.domain.n_states
        how = tree.of_shape("points", lambda: point_arrays(tree))
        rows = self._block_rows(batch, int(how.message_ptr[-1]) + how.n_joint)
        out = np.empty(batch)

        def block(start: int, stop: int) -> None:
            part, work = points[start:stop], memory.value
            states = np.zeros((len(n_states), rows), np.int16)
            states[:, : len(part)] = part.T
            if np.any(states.view(np.uint16).max(axis=1) >= n_states):  # negative numbers are large
                raise QueryError("points hold a state position out of range; expected 0 to n_states - 1")
            work.flags.fill(tree.is_delicate)
            passes.upward_points(tree.arrays, how, states, work)
            out[start:stop] = self._roots(
                work, len(part), lambda b: Boxes.of_points(self.domain, part[b : b + 1]).mask[0], is_bound=False
            )

        def room() -> passes.PointRoom:
            return passes.PointRoom(
                np.empty((int(how.message_ptr[-1]), rows)), np.empty((tree.n_regions, rows)),
                np.empty((how.n_joint, rows)), np.empty(rows, np.int64), np.empty(rows, np.uint8),
            )  # fmt: skip

        memory = PerThread(room)
        for_blocks(block, batch, rows, self.workers)
        return out

    def log_mass(self, boxes: Boxes) -> Floats:
        """Natural log of P(box | e), shape (batch,)."""
        return self._upward(boxes.mask, is_bound=False)

    def log_bound(self, boxes: Boxes) -> Floats:
        """Return an upper bound on ln of the largest p(q | e) in each box, rounded outward, shape (batch,)."""
        bound = self._upward(boxes.mask, is_bound=True)
        return self._outward(np.minimum(bound, self._upward(boxes.mask, is_bound=False)))

    def _outward(self, log_bounds: Floats) -> Floats:
        """Round upper bounds up by the error of the pass and the relative error of the logs."""
        with np.errstate(invalid="ignore"):
            raised = log_bounds + (self.log_slack + _LOG_ERROR * np.abs(log_bounds))
        return np.minimum(np.where(log_bounds == -np.inf, -np.inf, raised), 0.0)

    def log_mass_each(self, boxes: Boxes) -> Floats:
        """ln P(box with variable i set to state a | e) for every (i, a), shape (batch, total_states)."""
        return self._sweep(boxes.mask, is_bound=False)[1]

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound and weigh boxes and their columns, by one upward and one downward pass for each."""
        inside = boxes.mask > 0
        mass, each_mass = self._sweep(inside, is_bound=False)
        bound, each_bound = self._sweep(inside, is_bound=True)
        bound = self._outward(np.minimum(bound, mass))
        each_bound = np.minimum(self._outward(np.minimum(each_bound, each_mass)), bound[:, None])
        return Answers(
            rounded_up(mass, self.log_slack),
            bound,
            np.where(inside, rounded_up(each_mass, self.log_slack), -np.inf),
            np.where(inside, each_bound, -np.inf),
            np.full((len(boxes), len(self.domain)), np.nan),
        )

    def prober(self) -> TreeProber:
        """Return a prober of this posterior."""
        return TreeProber(self)

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points from p(q | e), optionally restricted to a union of disjoint boxes.

        Cost: one pass per box with draws, and one search per region and draw.
        """
        key = rng.integers(0, 2**64, dtype=np.uint64)
        if boxes is None:
            boxes = Boxes.full(self.domain)
        points = np.zeros((n, len(self.domain)), np.int16)
        choice = np.zeros(n, np.int64)
        if len(boxes) > 1:
            masses = self.log_mass(boxes)
            weights = np.cumsum(np.exp(masses - masses.max()))
            found = np.searchsorted(weights, rng.random(n) * float(weights[-1]), side="right")
            choice = np.minimum(found.astype(np.int64), len(boxes) - 1)
        a = self.region_tree.arrays
        by_box = np.argsort(choice, kind="stable")
        starts = np.flatnonzero(np.diff(choice[by_box], prepend=-1))
        for start, stop in zip(starts, np.append(starts[1:], n), strict=len(starts) > 0):
            rows = by_box[start:stop]
            mask = np.ascontiguousarray(boxes.mask[choice[rows[0]]])
            log_mass, work = wide_up(self.region_tree, mask, is_bound=False)
            if log_mass == -math.inf:
                raise SolverError("a box to draw from has probability zero; expected boxes of positive mass")
            cumulative = np.empty(len(a.tables))
            cumulate_wide(a, mask, work.joint, cumulative)
            self._draw(cumulative, key, rows, points)
        return points

    def max_product(self) -> Points:
        """Decode the upward pass of bounds, shape (1, n): the most probable point if no variable is hidden.

        With hidden variables it follows their most probable states, which proves nothing. Cost: two passes.
        """
        tree = self.region_tree
        _, work = wide_up(tree, np.ones(self.domain.total_states, np.bool_), is_bound=True)
        point = np.zeros(len(self.domain), np.int16)
        position = np.zeros(tree.n_regions, np.int64)
        passes.follow_maxima(tree.arrays, _links(tree), work.joint, position, point)
        return point[None, :]

    def _draw(self, cumulative: Floats, key: np.uint64, rows: Ints, points: Points) -> None:
        tree, links = self.region_tree, _links(self.region_tree)

        def block(start: int, stop: int) -> None:
            position = np.zeros(tree.n_regions, np.int64)
            passes.draw(tree.arrays, links, cumulative, key, rows[start:stop], position, points)

        for_blocks(block, len(rows), 4096, self.workers)

    def _block_rows(self, batch: int, size: int) -> int:
        """Return the number of rows per block: as many as keep `size` numbers each in the cache, at least 32."""
        return max(1, min(max(BLOCK_NUMBERS // size, 64 if size < 20_000 else 32), batch))

    def _upward(self, mask: Flags, *, is_bound: bool) -> Floats:
        """Return the natural logs of rows at the root, shape (batch,)."""
        out = np.empty(len(mask))

        def block(start: int, count: int, _: Floats, work: passes.PassRoom) -> None:
            rows = mask[start : start + count]
            out[start : start + count] = self._roots(work, count, rows.__getitem__, is_bound=is_bound)

        self._blocks(mask, block, is_bound=is_bound)
        return out

    def _blocks(
        self, mask: Flags, use: Callable[[int, int, Floats, passes.PassRoom], None], *, is_bound: bool
    ) -> None:
        """Pass blocks of rows up the tree; call `use` with first row, number of rows, masks and buffers."""
        tree = self.region_tree
        rows = self._block_rows(len(mask), int(tree.arrays.message_ptr[-1] + tree.arrays.joint_ptr[-1]))

        def block(start: int, stop: int) -> None:
            (part, work), count = memory.value, stop - start
            work.flags.fill(tree.is_delicate)
            part[:, :count], part[:, count:] = mask[start:stop].T, 0.0
            passes.upward(tree.arrays, part, is_bound, work)
            use(start, count, part, work)

        memory = PerThread(lambda: (np.empty((self.domain.total_states, rows)), room_for(tree, rows)))
        for_blocks(block, len(mask), rows, self.workers)

    def _roots(
        self, work: passes.PassRoom | passes.PointRoom, count: int, mask: Callable[[int], Flags], *, is_bound: bool
    ) -> Floats:
        """Return the natural logs of the first `count` columns of a block at the root; `mask` returns a row's."""
        value: Floats = log_of(work.message[-1, :count]) + work.message_exponent[-1, :count] * LN2
        low = work.flags[:count] > 0
        for b in np.flatnonzero(low & (value < LOG_FLOOR)) if low.any() else ():
            value[b], _ = wide_up(self.region_tree, mask(int(b)), is_bound)
        return value

    def bound_messages(self, mask: Flags) -> tuple[Floats, Ints]:
        """Return upper bounds on every region's message inside one box, as mantissas and exponents of two."""
        return wide_up(self.region_tree, mask, is_bound=True)[1].message

    def _sweep(self, mask: Flags, *, is_bound: bool) -> tuple[Floats, Floats]:
        """Return natural logs of boxes, shape (batch,), and with each variable held, (batch, total_states)."""
        out, whole = np.empty(mask.shape), np.empty(len(mask))

        def block(start: int, count: int, part: Floats, work: passes.PassRoom) -> None:
            rows = mask[start : start + count]
            whole[start : start + count] = self._roots(work, count, rows.__getitem__, is_bound=is_bound)
            each = pass_down(self.region_tree, part, is_bound, work)
            out[start : start + count] = each[:, :count].T
            low = (work.flags[:count] > 0) & np.any(each[:, :count] < LOG_FLOOR, axis=0)
            for b in np.flatnonzero(low):
                out[start + b] = wide_each(self.region_tree, rows[b], is_bound)

        self._blocks(mask, block, is_bound=is_bound)
        return whole, out


class TreeProber(SteadyProber):
    """Probes by the passes of a tree; without hidden variables, the upward pass decodes the best point."""

    def __init__(self, posterior: BucketTreePosterior) -> None:
        super().__init__(posterior, Layout.of(posterior.domain), 4 * int(posterior.facts.work))
        self.tree, self.probe = posterior, posterior.probe

    def starts(self) -> Points:
        return self.tree.max_product() if self.tree.region_tree.is_visible else super().starts()


def _links(tree: RegionTree) -> passes.Links:
    starts = np.where(tree.slot >= 0, tree.arrays.map_ptr[tree.slot], -1)  # of each region's part of `gather`
    return passes.Links(starts, tree.parent, tree.variable)
