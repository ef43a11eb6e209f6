"""The posterior of a circuit that draws and scores points on a PyTorch device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from certimap.circuits.evaluation import probe_arrays
from certimap.circuits.kernels.statistics import count_roundings
from certimap.circuits.plan import Plan
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.tensors import TensorPlan
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.core.posterior import Posterior
from certimap.core.rounding import ALL_SUMS, ENTROPY, STEPS, ULP
from certimap.errors import SolverError

DEVICE_ERROR = 2.0  # error of a device's exp and log, relative to the CPU's, in units of the last place


class TensorPosterior:
    """p(q | e) of a conditioned circuit on a device in float64, with only `sample` and `log_prob`.

    It is for methods based on draws and on values of points. Draws depend on the device ("cpu", "cuda" or
    "cuda:N"), but not on threads. All logs are natural. Raises MissingDependency without PyTorch, SolverError
    without the device, and ModelError for real variables.
    """

    def __init__(self, posterior: CircuitPosterior, device: str) -> None:
        self.tensors = TensorPlan(posterior.plan, device)
        slack = max(posterior.facts.log_slack, log_error(posterior.plan))
        self.facts = replace(posterior.facts, log_slack=slack)

    @property
    def domain(self) -> Domain:
        """The query variables, in the query's order."""
        return self.tensors.plan.domain

    def __repr__(self) -> str:
        plan, device = self.tensors.plan, self.tensors.device
        return f"TensorPosterior({len(self.domain)} variables, {plan.n_edges} edges, {device})"

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_vars), from p(q | e).

        Raises SolverError if boxes are given: only the compiled kernels draw from boxes.
        """
        if boxes is not None:
            raise SolverError("draws inside boxes were asked for on a device; leave device= out")
        return self.tensors.sample(n, rng)

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q | e) at each row, shape (batch,); -inf at zero."""
        return self.tensors.log_prob(points)


def on_device(posterior: Posterior, device: str) -> TensorPosterior:
    """Return the same posterior on a device; SolverError for one that is not a circuit."""
    if not isinstance(posterior, CircuitPosterior):
        raise SolverError(
            f"device={device!r} is for circuits, and this query is answered by a {type(posterior).__name__}; "
            "leave device= out"
        )
    return TensorPosterior(posterior, device)


def log_error(plan: Plan) -> float:
    """Return a bound (nats) on the error of a log computed by adding logs and by sums of exponentials.

    The bound for the logs of a box search (see `rounding.py`), at the smallest possible value.
    """
    counts = count_roundings(probe_arrays(plan)._replace(in_logs=np.ones(plan.n_leaves, np.bool_)))
    reach = counts[ENTROPY] - _least_log(plan)
    return float(DEVICE_ERROR * ULP * (counts[STEPS] + counts[ALL_SUMS] * reach) + plan.log_error)


def _least_log(plan: Plan) -> float:
    """Return a lower bound on the logs of all positive values, nodes and terms alike."""
    finite = np.where(np.isfinite(plan.log_tables), plan.log_tables, 0.0)
    sizes = plan.domain.n_states[plan.leaf_var]
    leaves = [float(finite[s : s + k].min()) for s, k in zip(plan.leaf_start, sizes, strict=True)]
    weights: list[float] = np.where(np.isfinite(plan.log_weights), plan.log_weights, 0.0).tolist()
    least, low = [0.0] * plan.n_nodes, 0.0
    leaf_ptr: list[int] = plan.leaf_ptr.tolist()
    ptr: list[int] = plan.child_ptr.tolist()
    children: list[int] = plan.children.tolist()
    for node in range(plan.n_nodes):
        terms = [weights[e] + least[children[e]] for e in range(ptr[node], ptr[node + 1])]
        own = min(terms) if plan.is_sum[node] else sum(terms) + sum(leaves[leaf_ptr[node] : leaf_ptr[node + 1]])
        least[node], low = own, min(low, own)
    return low
