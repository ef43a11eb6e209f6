"""Max-product: sums become maxima on the way up, the choices are followed on the way down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.box import Points
from certimap.posterior import Walks
from certimap.solvers.heuristics.walk import Walk


@dataclass(frozen=True)
class MaxProduct(Walk):
    """The most probable path through the circuit instead of the most probable assignment.

    Every sum is replaced by the maximum of its weighted children (variables that are not queried have
    been summed out before), then the choices are followed from the root down. Exact where each sum
    decides a query variable; elsewhere it looks at one component of a mixture at a time. One visit an edge.
    """

    name: ClassVar[str] = "max_product"

    def point(self, posterior: Walks) -> Points:
        return posterior.max_product()
