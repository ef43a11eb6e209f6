"""Argmax-product: every node keeps one assignment, and a sum judges those of its children by its own value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.core.box import Points
from certimap.core.posterior import Decodes
from certimap.solvers.heuristics.walk import Walk


@dataclass(frozen=True)
class ArgmaxProduct(Walk):
    """Keeps at every node the best assignment, by the node's own value, among those its children keep.

    Never below max-product's answer in a circuit with one sum; usually the better of the two elsewhere,
    at a higher cost: see `certimap.circuits.kernels.decode.argmax_upward`.
    """

    name: ClassVar[str] = "argmax_product"

    def point(self, posterior: Decodes) -> Points:
        return posterior.argmax_product()
