"""Uniform exploration (Alg. 0): a fixed number of draws; returns the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.solvers.sampling.pac import FixedDraws


@dataclass(frozen=True)
class UniformExploration(FixedDraws):
    """Draw a fixed number of points and return the best, with the certificate that the draws happen to support.

    Source: uniform exploration, Alg. 0 of PAC-MAP.
    """

    name: ClassVar[str] = "uniform_exploration"
