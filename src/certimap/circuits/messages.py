"""Hybrid belief propagation on a circuit read as a network of binary variables (Mauá et al. 2020).

Every node is a binary variable: a leaf is 1 with its probability of the variable's state, a product is the AND of
its children, and a sum is 1 with the total weight of its children that are 1. Then P(root = 1 | x) is the
circuit's value at x. Inner messages are sums. The query variables, which are maximised, send mixed-product
messages (Liu and Ihler 2013): sums over the states that maximise their belief.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certimap.circuits.evaluation import probe_arrays
from certimap.circuits.kernels import messages as kernels
from certimap.circuits.kernels.messages import Messages
from certimap.circuits.kernels.space import ProbeArrays
from certimap.circuits.plan import Plan
from certimap.core.box import Points


@dataclass(eq=False)
class Propagation:
    """State of loopy message passing; `advance` does one sweep up and down. Not exact on any kind of circuit.

    Cost of a sweep: a few logs and exponentials per edge, and one per state of each leaf.
    """

    plan: Plan  # a circuit over categorical query variables
    damping: float  # the weight of the old message in the mean (of logs) that replaces it; 0 means no damping

    def __post_init__(self) -> None:
        self._graph, self._messages = _start(self.plan)
        n_children = np.diff(self.plan.child_ptr)
        self._before = np.empty((int(np.max(n_children, where=self.plan.is_sum, initial=1)), 2))
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


def _start(plan: Plan) -> tuple[ProbeArrays, Messages]:
    """Return the arrays of a plan, and uniform messages."""
    counts = np.bincount(plan.children, minlength=plan.n_nodes)
    told_ptr = np.concatenate([[0], np.cumsum(plan.domain.n_states[plan.leaf_var])]).astype(np.int64)
    edges, leaves = (len(plan.children), 2), (plan.n_leaves, 2)
    return probe_arrays(plan), Messages(
        np.zeros(edges),
        np.zeros(edges),
        np.zeros(leaves),
        np.zeros(leaves),
        told_ptr,
        np.zeros(int(told_ptr[-1])),
        np.zeros(plan.domain.total_states),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.argsort(plan.children, kind="stable").astype(np.int64),
    )
