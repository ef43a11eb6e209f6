"""Max-product: sums become maxima on the way up, the choices are followed on the way down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from certimap.box import Points

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.engine._kernels.decode import Kept, Nodes
    from certimap.engine.plan import Plan
    from certimap.engine.posterior import Posterior


@dataclass(frozen=True)
class OneStepState:
    """The state of a heuristic that has its answer after one step."""

    posterior: Posterior
    done: bool = False


@dataclass(frozen=True)
class MaxProduct:
    """The most probable path through the circuit instead of the most probable assignment.

    Every sum is replaced by the maximum of its weighted children (variables that are not queried have
    been summed out before), then the choices are followed from the root down. Exact where each sum
    decides a query variable; elsewhere it looks at one component of a mixture at a time. One visit an edge.
    """

    name: ClassVar[str] = "max_product"
    requires: ClassVar[frozenset[str]] = frozenset()
    heuristic: ClassVar[bool] = True

    def unsuited(self, posterior: Posterior) -> str | None:
        return circuit_needed(self.name, posterior)

    def init(self, posterior: Posterior, rng: np.random.Generator) -> OneStepState:
        return OneStepState(posterior)

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        ledger.candidates(max_product_point(plan_of(state.posterior)))
        return replace(state, done=True)


def max_product_point(plan: Plan) -> Points:
    """Return the assignment that max-product decodes, shape (1, n).

    Of equal states and equal children the first is taken; a Gaussian leaf gives its mean.
    """
    from certimap.engine._kernels.decode import max_upward

    nodes, kept = walk_arrays(plan)
    max_upward(nodes, kept)
    return decoded(plan, nodes, kept)


def walk_arrays(plan: Plan) -> tuple[Nodes, Kept]:
    """Return what the walks read and what they fill; the peaks of the leaves are filled already."""
    from certimap.engine._kernels.decode import Kept, Nodes, leaf_peaks

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
    from certimap.engine._kernels.decode import decode

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


def _groups(plan: Plan) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int32]]]:
    """Return, for every node, the first sum with the same children and the next one (-1 ends)."""
    group = np.arange(plan.n_nodes, dtype=np.int32)
    following = np.full(plan.n_nodes, -1, np.int32)
    last_of: dict[bytes, int] = {}
    pointers = plan.child_ptr.tolist()
    children = plan.children
    for node in np.flatnonzero(plan.is_sum).tolist():
        key = children[pointers[node] : pointers[node + 1]].tobytes()
        before = last_of.get(key)
        if before is not None:
            group[node] = group[before]
            following[before] = node
        last_of[key] = node
    return group, following
