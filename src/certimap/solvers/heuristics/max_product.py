"""Max-product: sums become maxima on the way up, the choices are followed on the way down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from certimap.box import Points

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.circuits.kernels.decode import Kept, Nodes
    from certimap.circuits.plan import Plan
    from certimap.posterior import Posterior


@dataclass(frozen=True)
class OneStepState:
    """The state of a heuristic that has its answer after one step."""

    posterior: Posterior
    done: bool = False


class CircuitHeuristic:
    """What solvers share that walk a circuit once and report one point; `point` is all that differs."""

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]] = frozenset()
    view: ClassVar[str] = "circuit"
    heuristic: ClassVar[bool] = True

    def point(self, plan: Plan) -> Points:
        """Return the answer, shape (1, n)."""
        raise NotImplementedError

    def unsuited(self, posterior: Posterior) -> str | None:
        return circuit_needed(self.name, posterior)

    def init(self, posterior: Posterior, rng: np.random.Generator) -> OneStepState:
        return OneStepState(posterior)

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        ledger.candidates(self.point(plan_of(state.posterior)))
        return replace(state, done=True)


@dataclass(frozen=True)
class MaxProduct(CircuitHeuristic):
    """The most probable path through the circuit instead of the most probable assignment.

    Every sum is replaced by the maximum of its weighted children (variables that are not queried have
    been summed out before), then the choices are followed from the root down. Exact where each sum
    decides a query variable; elsewhere it looks at one component of a mixture at a time. One visit an edge.
    """

    name: ClassVar[str] = "max_product"

    def point(self, plan: Plan) -> Points:
        return max_product_point(plan)


def max_product_point(plan: Plan) -> Points:
    """Return the assignment that max-product decodes, shape (1, n).

    Of equal states and equal children the first is taken; a Gaussian leaf gives its mean.
    """
    from certimap.circuits.kernels.decode import max_upward

    nodes, kept = walk_arrays(plan)
    max_upward(nodes, kept)
    return decoded(plan, nodes, kept)


def walk_arrays(plan: Plan) -> tuple[Nodes, Kept]:
    """Return what the walks read and what they fill; the peaks of the leaves are filled already."""
    from certimap.circuits.kernels.decode import Kept, Nodes, leaf_peaks

    group, next_in_group = _groups(plan)
    nodes = Nodes(
        plan.is_sum,
        plan.child_ptr,
        plan.children,
        plan.log_weights,
        plan.leaf_ptr,
        plan.leaf_var,
        plan.leaf_start,
        plan.log_tables,
        plan.domain.n_states[plan.leaf_var],
        group,
        next_in_group,
    )
    n_nodes, n_leaves = plan.n_nodes, plan.n_leaves
    kept = Kept(
        np.empty(n_leaves),
        np.empty(n_leaves),
        np.empty(n_nodes),
        np.zeros(n_nodes, np.int64),
        np.empty(len(plan.children)),
    )
    leaf_peaks(nodes, kept)
    return nodes, kept


def decoded(plan: Plan, nodes: Nodes, kept: Kept) -> Points:
    """Return the assignment that the root keeps, shape (1, n)."""
    from certimap.circuits.kernels.decode import decode

    point = np.zeros(len(plan.domain))
    decode(plan.n_nodes - 1, nodes, kept, np.empty(plan.n_nodes, np.int32), point)
    return point[None, :].astype(plan.domain.point_dtype)


def plan_of(posterior: Posterior) -> Plan:
    """Return the circuit arrays of a posterior that has them (see `circuit_needed`)."""
    plan: Any = getattr(posterior, "plan", None)
    return plan


def circuit_needed(name: str, posterior: Posterior) -> str | None:
    """Refuse a posterior that is no circuit, in one sentence."""
    if getattr(posterior, "plan", None) is not None:
        return None
    can_sweep = callable(getattr(posterior, "log_mass_each", None))
    return (
        f"solver {name!r} walks a circuit, and a {type(posterior).__name__} has none; "
        f"use solver={'independent' if can_sweep else 'pac'!r}"
    )


def _groups(plan: Plan) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return, for every node, the first with the same children (see `Nodes.group`) and the next one.

    Hashes decide; two unlike nodes that collide could only cost the heuristic its quality, since its
    answer is scored exactly, and like lengths are checked.
    """
    from certimap.circuits.kernels.decode import hash_nodes

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
