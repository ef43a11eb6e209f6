"""Walks over a plan that decode one good point: max-product, argmax-product, and modes of marginals."""

from __future__ import annotations

import numpy as np

from certimap.circuits.evaluation import probe_arrays
from certimap.circuits.kernels.decode import (
    BLOCK,
    DecodeScratch,
    WalkArrays,
    argmax_upward,
    decode,
    flow_downward,
    hash_nodes,
    leaf_peaks,
    max_upward,
)
from certimap.circuits.kernels.real import mixture_log_densities
from certimap.circuits.kernels.space import ProbeArrays
from certimap.circuits.plan import Plan
from certimap.core.arrays import Floats, Ints, Ints32
from certimap.core.box import Points


def max_product(plan: Plan) -> Points:
    """Return the assignment decoded by max-product, shape (1, n).

    Among equal states or children the first wins; a real leaf gives its peak.
    """
    nodes, kept = walk_arrays(plan)
    max_upward(nodes, kept)
    return _decoded(plan, nodes, kept)


def argmax_product(plan: Plan) -> Points:
    """Return argmax-product's assignment at the root, shape (1, n).

    Among equal states or candidates the first wins; a real leaf gives its peak.
    """
    nodes, kept = walk_arrays(plan)
    argmax_upward(nodes, kept, make_scratch(plan, BLOCK))
    return _decoded(plan, nodes, kept)


def make_scratch(plan: Plan, width: int) -> DecodeScratch:
    """Return working space for walks that evaluate `width` points together."""
    widest = int(np.max(np.diff(plan.child_ptr), where=plan.is_sum, initial=1))
    return DecodeScratch(
        np.zeros((width, len(plan.domain))),
        np.empty((widest, width)),
        np.zeros(widest, np.bool_),
        np.full(plan.n_nodes, -1, np.int32),
        np.empty(plan.n_nodes, np.int32),
        np.empty((plan.n_nodes + 1, width)),
    )


def modes(plan: Plan, log_mass: Floats) -> Points:
    """Return the modes of the variables' marginals, shape (1, n); the first of equal states.

    `log_mass` (total_states,) is ln P of each state of the categorical variables.
    """
    domain = plan.domain
    point = np.zeros(len(domain), np.float64)
    for i in np.flatnonzero(domain.n_states).tolist():
        point[i] = np.argmax(log_mass[domain.offsets[i] : domain.offsets[i + 1]])
    if not domain.is_discrete:
        log_leaf_flow, nodes, kept = _leaf_flow(plan)
        for i in np.flatnonzero(domain.n_states == 0).tolist():
            point[i] = _mode_of_mixture(np.flatnonzero(plan.leaf_var == i), log_leaf_flow, nodes, kept)
    return point[None, :].astype(domain.point_dtype)


def walk_arrays(plan: Plan) -> tuple[ProbeArrays, WalkArrays]:
    """Return the walks' input and output arrays; the peaks of the leaves are already filled."""
    nodes = probe_arrays(plan)
    n_nodes, n_leaves = plan.n_nodes, plan.n_leaves
    kept = WalkArrays(
        np.empty(n_leaves),
        np.empty(n_leaves),
        np.empty(n_nodes),
        np.zeros(n_nodes, np.int64),
        np.empty(len(plan.children)),
        *_groups(plan),
    )
    leaf_peaks(nodes, kept)
    return nodes, kept


def _decoded(plan: Plan, nodes: ProbeArrays, kept: WalkArrays) -> Points:
    """Return the root's assignment, shape (1, n)."""
    point = np.zeros(len(plan.domain))
    decode(plan.n_nodes - 1, nodes, kept, np.empty(plan.n_nodes, np.int32), point)
    return point[None, :].astype(plan.domain.point_dtype)


def _groups(plan: Plan) -> tuple[Ints32, Ints32]:
    """Return, for every node, the first with the same children (see `WalkArrays`) and the next one.

    Nodes are compared by hashes, and lengths are checked. A collision of different nodes could only worsen
    the heuristic's answer, which is scored exactly.
    """
    leaf_words = plan.leaf_start * len(plan.domain) + plan.leaf_var
    identity, key = np.empty(plan.n_nodes, np.int64), np.empty(plan.n_nodes, np.int64)
    weight_bits = plan.log_weights.view(np.int64)
    with np.errstate(over="ignore"):  # hashes wrap around
        hash_nodes(
            plan.is_sum, plan.child_ptr, plan.children, weight_bits, plan.leaf_ptr, leaf_words, identity, key
        )
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


def _leaf_flow(plan: Plan) -> tuple[Floats, ProbeArrays, WalkArrays]:
    """Return ln of the probability that a draw passes through each leaf: its weight in the mixture."""
    nodes, kept = walk_arrays(plan)
    log_flow = np.full(plan.n_nodes, -np.inf)
    log_flow[-1] = 0.0
    flow_downward(nodes, log_flow)
    return log_flow[plan.parent_of_leaf], nodes, kept


def _mode_of_mixture(leaves: Ints, log_leaf_flow: Floats, nodes: ProbeArrays, kept: WalkArrays) -> float:
    """Return the component's peak at which the mixture of these real leaves is densest."""
    starts, places = np.unique(nodes.leaf_start[leaves], return_inverse=True)
    log_weights = np.full(len(starts), -np.inf)
    np.logaddexp.at(log_weights, places, log_leaf_flow[leaves])
    candidates = np.unique(kept.peak_at[leaves])
    log_density = np.empty(len(candidates))
    mixture_log_densities(nodes.functions, nodes.log_tables, starts, log_weights, candidates, log_density)
    return float(candidates[np.argmax(log_density)])
