"""What the solvers on relaxed networks share: points from assignments, and the source of their bounds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from certimap.certify.sources import own_source
from certimap.core.box import Points
from certimap.networks.posterior import NetworkPosterior

RELAXATION = own_source("relaxation")


def point_of(posterior: NetworkPosterior, states: Mapping[int, int]) -> Points:
    """Return the point, shape (1, n), of states by query variable, in the problem's numbers."""
    inner = np.array([[states.get(v, 0) for v in posterior.states.variables]], np.int64)
    return posterior.states.to_domain(inner)
