"""Argmax-product: every node keeps one assignment, and a sum judges those of its children by its own value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from certimap.box import Points
from certimap.solvers.heuristics.max_product import CircuitHeuristic, decoded, walk_arrays

if TYPE_CHECKING:
    from certimap.circuits.plan import Plan


@dataclass(frozen=True)
class ArgmaxProduct(CircuitHeuristic):
    """Keeps at every node the best assignment, by the node's own value, among those its children keep.

    Never below max-product's answer in a circuit with one sum; usually the better of the two elsewhere,
    at a higher cost: see `certimap.circuits.kernels.decode.argmax_upward`.
    """

    name: ClassVar[str] = "argmax_product"

    def point(self, plan: Plan) -> Points:
        return argmax_product_point(plan)


def argmax_product_point(plan: Plan) -> Points:
    """Return the assignment that argmax-product keeps at the root, shape (1, n).

    Of equal states and equal candidates the first is taken; a Gaussian leaf gives its mean.
    """
    from certimap.circuits.kernels.decode import BLOCK, Scratch, argmax_upward

    nodes, kept = walk_arrays(plan)
    widest = int(np.max(np.diff(plan.child_ptr), where=plan.is_sum, initial=1))
    scratch = Scratch(
        np.zeros((BLOCK, len(plan.domain))),
        np.empty((widest, BLOCK)),
        np.zeros(widest, np.bool_),
        np.full(plan.n_nodes, -1, np.int32),
        np.empty(plan.n_nodes, np.int32),
        np.empty((plan.n_nodes + 1, BLOCK)),
    )
    argmax_upward(nodes, kept, scratch)
    return decoded(plan, nodes, kept)
