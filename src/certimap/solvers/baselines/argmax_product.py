"""Argmax-product: every node keeps one assignment; a sum node scores its children's by its own value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.core.box import Points
from certimap.core.posterior import Capability, Decodes
from certimap.solvers.guess import OnePoint


@dataclass(frozen=True)
class ArgmaxProduct(OnePoint):
    """Keeps at every node the best of its children's assignments, scored by the node's own value.

    Never worse than max-product in a circuit with one sum; elsewhere usually better, at a higher cost: see
    `certimap.circuits.kernels.decode.argmax_upward`.
    """

    name: ClassVar[str] = "argmax_product"
    needs: ClassVar[tuple[Capability, ...]] = (Decodes,)

    def point(self, posterior: Decodes) -> Points:
        return posterior.argmax_product()
