"""Independent modes: each query variable takes the most probable state of its own posterior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes, Points
from certimap.solvers.heuristics.max_product import OneStepState, circuit_needed, plan_of, walk_arrays

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.circuits.kernels.decode import Kept, Nodes
    from certimap.circuits.plan import Plan
    from certimap.posterior import BoxPosterior, Posterior

_CHUNK = 2**22  # entries of one table of densities: candidate means by components


@dataclass(frozen=True)
class Independent:
    """Each query variable takes the mode of its own posterior, all others summed out.

    Two passes over the circuit whatever the size of the query; blind to every dependence. A real
    variable takes, of its components' means, the one where its own density is largest.
    """

    name: ClassVar[str] = "independent"
    requires: ClassVar[frozenset[str]] = frozenset({"log_mass_each"})
    heuristic: ClassVar[bool] = True

    def unsuited(self, posterior: Posterior) -> str | None:
        return None if posterior.domain.is_discrete else circuit_needed(self.name, posterior)

    def init(self, posterior: Posterior, rng: np.random.Generator) -> OneStepState:
        return OneStepState(posterior)

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        ledger.candidates(independent_point(state.posterior))
        return replace(state, done=True)


def independent_point(posterior: Posterior) -> Points:
    """Return the modes of the query variables' own posteriors, shape (1, n); the first of equal states."""
    domain = posterior.domain
    point = np.zeros(len(domain), np.float64)
    if domain.total_states:
        log_mass = cast("BoxPosterior", posterior).log_mass_each(Boxes.full(domain))[0]
        for i in np.flatnonzero(domain.n_states).tolist():
            point[i] = np.argmax(log_mass[domain.offsets[i] : domain.offsets[i + 1]])
    if not domain.is_discrete:
        plan = plan_of(posterior)
        log_leaf_flow, nodes, kept = _leaf_flow(plan)
        for i in np.flatnonzero(domain.n_states == 0).tolist():
            point[i] = _mode_of_mixture(np.flatnonzero(plan.leaf_var == i), log_leaf_flow, nodes, kept)
    return point[None, :].astype(domain.point_dtype)


def _leaf_flow(plan: Plan) -> tuple[NDArray[np.float64], Nodes, Kept]:
    """Return ln of the probability that a draw passes through each leaf: its weight in the mixture."""
    from certimap.circuits.kernels.decode import flow_downward

    nodes, kept = walk_arrays(plan)
    log_flow = np.full(plan.n_nodes, -np.inf)
    log_flow[-1] = 0.0
    flow_downward(nodes, log_flow)
    return log_flow[plan.parent_of_leaf], nodes, kept


def _mode_of_mixture(
    leaves: NDArray[np.int64], log_leaf_flow: NDArray[np.float64], nodes: Nodes, kept: Kept
) -> float:
    """Return the component mean at which the mixture of these Gaussian leaves is densest."""
    starts, places = np.unique(nodes.leaf_start[leaves], return_inverse=True)
    log_weights = np.full(len(starts), -np.inf)
    np.logaddexp.at(log_weights, places, log_leaf_flow[leaves])
    mean, sd, low, high, log_inside = (nodes.log_tables[starts + k] for k in range(5))
    log_scale = log_weights - np.log(sd) - log_inside
    candidates = np.unique(kept.peak_at[leaves])
    log_density = np.empty(len(candidates))
    rows = max(1, _CHUNK // len(starts))
    for first in range(0, len(candidates), rows):
        x = candidates[first : first + rows, None]
        terms: NDArray[Any] = np.where(
            (x >= low) & (x <= high), log_scale - 0.5 * np.square((x - mean) / sd), -np.inf
        )
        log_density[first : first + rows] = np.logaddexp.reduce(terms, axis=1)
    return float(candidates[np.argmax(log_density)])
