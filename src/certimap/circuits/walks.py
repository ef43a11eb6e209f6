"""Walks over a plan that decode good points: max-product, argmax-product, modes, beams, propagation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from certimap.circuits.evaluator import probe_arrays
from certimap.circuits.kernels import decode as kernels
from certimap.circuits.kernels.arrays import ProbeArrays
from certimap.circuits.kernels.real import mixture_log_densities
from certimap.circuits.plan import Plan
from certimap.core.arrays import Floats, Ints, Ints32
from certimap.core.box import Points
from certimap.core.logs import log_sum


def max_product(plan: Plan) -> Points:
    """Return the assignment decoded by max-product, shape (1, n); among equal states or children the first."""
    nodes, kept = walk_arrays(plan)
    kernels.max_upward(nodes, kept)
    return _decoded(plan, nodes, kept)


def argmax_product(plan: Plan) -> Points:
    """Return argmax-product's assignment at the root, shape (1, n); among equal states or candidates the first."""
    nodes, kept = walk_arrays(plan)
    kernels.argmax_upward(nodes, kept, make_scratch(plan, kernels.BLOCK))
    return _decoded(plan, nodes, kept)


def make_scratch(plan: Plan, width: int) -> kernels.DecodeScratch:
    """Return working space for walks that evaluate `width` points together."""
    widest = int(np.max(np.diff(plan.child_ptr), where=plan.is_sum, initial=1))
    pairs = (np.zeros((width, len(plan.domain))), np.empty((widest, width)), np.zeros(widest, np.bool_))
    slot, order = np.full(plan.n_nodes, -1, np.int32), np.empty(plan.n_nodes, np.int32)
    return kernels.DecodeScratch(*pairs, slot, order, np.empty((plan.n_nodes + 1, width)))


def modes(plan: Plan, log_mass: Floats) -> Points:
    """Return the modes of marginals (the first of equals), shape (1, n), given ln P of each state, `log_mass`."""
    domain = plan.domain
    point = np.zeros(len(domain), np.float64)
    for i in np.flatnonzero(domain.n_states).tolist():
        point[i] = np.argmax(log_mass[domain.offsets[i] : domain.offsets[i + 1]])
    if not domain.is_discrete:
        nodes, kept = walk_arrays(plan)
        log_flow = np.full(plan.n_nodes, -np.inf)
        log_flow[-1] = 0.0
        kernels.flow_downward(nodes, log_flow)
        log_leaf_flow = np.repeat(log_flow, np.diff(plan.leaf_ptr))  # each leaf's weight in the mixture
        for i in np.flatnonzero(domain.n_states == 0).tolist():
            leaves = np.flatnonzero(plan.leaf_var == i)
            starts, places = np.unique(nodes.leaf_start[leaves], return_inverse=True)
            log_weights, candidates = np.full(len(starts), -np.inf), np.unique(kept.peak_at[leaves])
            np.logaddexp.at(log_weights, places, log_leaf_flow[leaves])
            log_density, tables = np.empty(len(candidates)), (nodes.functions, nodes.log_tables)
            mixture_log_densities(*tables, starts, log_weights, candidates, log_density)
            point[i] = candidates[np.argmax(log_density)]  # the peak at which the mixture is densest
    return point[None, :].astype(domain.point_dtype)


def walk_arrays(plan: Plan) -> tuple[ProbeArrays, kernels.WalkArrays]:
    """Return the walks' input and output arrays; the peaks of the leaves are already filled."""
    nodes, n_nodes = probe_arrays(plan), plan.n_nodes
    peaks, choice = (np.empty(plan.n_leaves), np.empty(plan.n_leaves)), np.zeros(n_nodes, np.int64)
    kept = kernels.WalkArrays(*peaks, np.empty(n_nodes), choice, np.empty(len(plan.children)), *_groups(plan))
    kernels.leaf_peaks(nodes, kept)
    return nodes, kept


def _decoded(plan: Plan, nodes: ProbeArrays, kept: kernels.WalkArrays) -> Points:
    """Return the root's assignment, shape (1, n)."""
    point = np.zeros(len(plan.domain))
    kernels.decode(plan.n_nodes - 1, nodes, kept, np.empty(plan.n_nodes, np.int32), point)
    return point[None, :].astype(plan.domain.point_dtype)


def _groups(plan: Plan) -> tuple[Ints32, Ints32]:
    """Return, for every node, the first with the same children (see `WalkArrays`) and the next one.

    Nodes are compared by hashes: a collision could only worsen the answer, which is scored exactly.
    """
    leaf_words = plan.leaf_start * len(plan.domain) + plan.leaf_var
    identity, key = np.empty(plan.n_nodes, np.int64), np.empty(plan.n_nodes, np.int64)
    weight_bits = plan.log_weights.view(np.int64)
    edges = (plan.is_sum, plan.child_ptr, plan.children, weight_bits)
    with np.errstate(over="ignore"):  # hashes wrap around
        kernels.hash_nodes(*edges, plan.leaf_ptr, leaf_words, identity, key)
    _, first, places = np.unique(key, return_index=True, return_inverse=True)
    group = first[places]
    n_children = np.diff(plan.child_ptr)
    unlike = (n_children != n_children[group]) | (plan.is_sum != plan.is_sum[group])
    group[unlike] = np.flatnonzero(unlike)
    order = np.argsort(group, kind="stable")
    following = np.full(plan.n_nodes, -1, np.int32)
    same = group[order[1:]] == group[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return group.astype(np.int32), following


@dataclass(eq=False)
class Propagation:
    """Hybrid belief propagation on a circuit read as a network of binary variables (Mauá et al. 2020).

    Every node is a binary variable: a leaf is 1 with its probability of the variable's state, a product is the AND
    of its children, and a sum is 1 with the total weight of its children that are 1. Then P(root = 1 | x) is the
    circuit's value at x. Inner messages are sums. The query variables, which are maximised, send mixed-product
    messages (Liu and Ihler 2013): sums over the states that maximise their belief. Not exact on any circuit.
    Cost of a sweep: a few logs and exponentials per edge, and one per state of each leaf.
    """

    plan: Plan  # a circuit over categorical query variables
    damping: float  # the weight of the old message in the mean (of logs) that replaces it; 0 means no damping

    def __post_init__(self) -> None:
        plan, edges, leaves = self.plan, (len(self.plan.children), 2), (self.plan.n_leaves, 2)
        counts, n_children = np.bincount(plan.children, minlength=plan.n_nodes), np.diff(plan.child_ptr)
        told_ptr = np.concatenate([[0], np.cumsum(plan.domain.n_states[plan.leaf_var])]).astype(np.int64)
        sent = (np.zeros(edges), np.zeros(edges), np.zeros(leaves), np.zeros(leaves))  # uniform messages
        told, belief = np.zeros(int(told_ptr[-1])), np.zeros(plan.domain.total_states)
        above_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        above = np.argsort(plan.children, kind="stable").astype(np.int64)
        self._graph = probe_arrays(plan)
        self._messages = kernels.Messages(*sent, told_ptr, told, belief, above_ptr, above)
        self._before = np.empty((int(np.max(n_children, where=plan.is_sum, initial=1)), 2))
        self._belief = np.empty_like(self._messages.belief)

    def advance(self) -> tuple[Points, float]:
        """Do one sweep; return the decoded point, shape (1, n), and the largest change of a belief, in nats."""
        kernels.ask_variables(self._graph, self._messages)
        kernels.pass_up(self._graph, self._messages)
        kernels.pass_down(self._graph, self._messages, self.damping, self._before)
        change = kernels.tell_variables(self._graph, self._messages, self._belief)
        domain = self.plan.domain
        states = [np.argmax(own) for own in np.split(self._messages.belief, domain.offsets[1:-1])]
        return np.array(states, domain.point_dtype)[None, :], float(change)


BEAM_BLOCK = 64  # candidates that one walk of a subcircuit evaluates together


@dataclass(frozen=True, eq=False)
class BeamEntry:
    """A node's beam, best first: points (0 outside the node's scope) and ln of the node's value there."""

    points: Floats
    log_values: Floats


def beam(plan: Plan, width: int, should_stop: Callable[[], bool]) -> Points:
    """Return the root's beam, best first, shape (at most width, n).

    A sum ranks its children's assignments by its own value; once `should_stop` returns True, by its largest term,
    without evaluation. Cost: `width` times that of argmax-product; in a tree, depth times edges times candidates.
    """
    search = _Beam(plan, width, should_stop)
    for node in range(plan.n_nodes):
        search.add(node)
    return search.kept[plan.n_nodes - 1].points.astype(plan.domain.point_dtype)


@dataclass(eq=False)
class _Beam:
    plan: Plan
    width: int
    should_stop: Callable[[], bool]
    kept: dict[int, BeamEntry] = field(default_factory=dict[int, BeamEntry])

    def __post_init__(self) -> None:
        self.nodes, self.peaks = walk_arrays(self.plan)
        self.scratch = make_scratch(self.plan, BEAM_BLOCK)
        self.n_waiting = np.bincount(self.plan.children, minlength=self.plan.n_nodes)  # parents not yet processed

    def add(self, node: int) -> None:
        """Compute a node's beam, and drop beams with no parents left."""
        plan = self.plan
        below = plan.children[plan.child_ptr[node] : plan.child_ptr[node + 1]].tolist()
        if not plan.is_sum[node]:
            self.kept[node] = self._product(node, below)
        elif node not in self.kept:
            self._sums(node, below)
        for child in below:
            self.n_waiting[child] -= 1
            if self.n_waiting[child] == 0:
                del self.kept[child]

    def _product(self, node: int, below: list[int]) -> BeamEntry:
        """Combine the beams of children and leaves one by one, keeping the best combinations."""
        points, log_values = np.zeros((1, len(self.plan.domain))), np.zeros(1)
        parts = [self._leaf(leaf) for leaf in range(self.plan.leaf_ptr[node], self.plan.leaf_ptr[node + 1])]
        for part in (*parts, *(self.kept[child] for child in below)):
            pairs = (log_values[:, None] + part.log_values[None, :]).ravel()
            best = _largest(pairs, self.width)
            left, right = np.divmod(best, len(part.log_values))
            points, log_values = points[left] + part.points[right], pairs[best]  # scopes are disjoint
        return BeamEntry(points, log_values)

    def _leaf(self, leaf: int) -> BeamEntry:
        """Return the best states of a leaf, or the peak of its density."""
        plan = self.plan
        size = int(plan.domain.n_states[plan.leaf_var[leaf]])
        if size == 0:
            values, log_values = self.peaks.peak_at[leaf : leaf + 1], self.peaks.peak_log[leaf : leaf + 1]
        else:
            start = int(plan.leaf_start[leaf])
            table = plan.log_tables[start : start + size]
            values = _largest(table, self.width).astype(np.float64)
            log_values = table[values.astype(np.int64)]
        points = np.zeros((len(values), len(plan.domain)))
        points[:, plan.leaf_var[leaf]] = values
        return BeamEntry(points, log_values)

    def _sums(self, node: int, below: list[int]) -> None:
        """Compute the beams of all sums over the same children: they share candidates and evaluations."""
        stopped = self.should_stop()
        parts = [self.kept[child] for child in below]
        if stopped:
            candidates = np.concatenate([part.points for part in parts])
            owner = np.repeat(np.arange(len(parts)), [len(part.points) for part in parts])
            terms = np.full((len(parts), len(candidates)), -np.inf)
            terms[owner, np.arange(len(candidates))] = np.concatenate([part.log_values for part in parts])
        else:
            candidates = np.unique(np.concatenate([part.points for part in parts]), axis=0)
            terms = np.empty((len(below), len(candidates)))
            self.scratch.wanted[:] = np.arange(len(self.scratch.wanted)) < len(below)
            for start in range(0, len(candidates), BEAM_BLOCK):
                block = candidates[start : start + BEAM_BLOCK]
                self.scratch.points[: len(block)] = block
                kernels.evaluate_wanted(node, len(block), self.nodes, self.scratch)
                terms[:, start : start + len(block)] = self.scratch.pair_log[: len(below), : len(block)]
        member = node
        while member >= 0:
            first = self.plan.child_ptr[member]
            weights = self.plan.log_weights[first : first + len(below)]
            log_values = log_sum(terms + weights[:, None], 0)
            best = _largest(log_values, self.width)
            self.kept[member] = BeamEntry(candidates[best], log_values[best])
            member = int(self.peaks.next_in_group[member])


def _largest(values: Floats, n: int) -> Ints:
    """Return the indices of the n largest values, largest first; ties in order of index."""
    return np.argsort(-values, kind="stable")[:n]
