"""Beam search: every node of a circuit keeps the k best assignments of its own scope."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.posterior import Capability, Decodes
from certimap.errors import SolverError
from certimap.solvers.base import Family, Solver
from certimap.solvers.guess import OneStepState


@dataclass(frozen=True)
class BeamSearch(Solver):
    """Argmax-product with several assignments per node; all assignments of the root are scored exactly.

    Once the time is up, the remaining sums score assignments by their largest term alone.

    Parameters
    ----------
    width
        Assignments per node; 1 is argmax-product.
    """

    width: int = 8

    name: ClassVar[str] = "beam"
    needs: ClassVar[tuple[Capability, ...]] = (Decodes,)
    family: ClassVar[Family] = "heuristic"
    heuristic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.width < 1:
            raise SolverError(f"width={self.width!r}; expected at least 1")

    def init(
        self, posterior: Decodes, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> OneStepState:
        self.refuse_boxes(boxes)
        return OneStepState(posterior)

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        control = ledger.control
        ledger.candidates(state.posterior.beam(self.width, lambda: control.should_stop))
        return replace(state, done=True)
