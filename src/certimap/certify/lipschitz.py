"""The modal Lipschitz assumption that a user may make, and its effect on draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from certimap.certify import bounds
from certimap.core.domain import Domain
from certimap.errors import SolverError


@dataclass(frozen=True)
class Lipschitz:
    """log2 p*/p(q) <= bits * distance(q, q*) for all q within `radius` of the mode q*.

    The distance counts changed variables in a discrete domain and is Euclidean in a real one; a domain
    with both kinds is refused.
    """

    domain: Domain
    bits: float
    radius: float
    _weights: dict[float, float] = field(default_factory=dict[float, float], compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.bits > 0.0:
            raise SolverError(f"lipschitz is {self.bits}; expected a positive number of bits")
        if not self.domain.is_discrete and self.domain.total_states:
            raise SolverError(
                "a Lipschitz constant needs query variables of one kind, all categorical or all real; "
                "leave it out or query one kind"
            )

    def log_weight(self, epsilon: float) -> float:
        """Return ln w_k (ln W in a real domain), natural, rounded down."""
        if epsilon not in self._weights:
            if self.domain.is_discrete:
                k = bounds.good_radius(epsilon, self.bits, int(self.radius))
                weight = bounds.log_ball_weight(self.domain.n_states, self.bits, min(k, len(self.domain)))
            else:
                weight = bounds.log_real_ball_weight(len(self.domain), epsilon, self.bits, self.radius)
            self._weights[epsilon] = weight
        return self._weights[epsilon]

    def draws_needed(self, epsilon: float, delta: float, log_best: float) -> float:
        """Return ln of the number of draws that certify a mode of height `log_best`; inf beyond floats."""
        log_m = bounds.log_draws_needed(bounds.log_tau(log_best, epsilon) + self.log_weight(epsilon), delta)
        return math.exp(log_m) if log_m < 700.0 else math.inf

    def describe(self, epsilon: float, delta: float, log_best: float) -> tuple[str, ...]:
        """Describe the assumption, and in a real domain the number of draws needed at the density found."""
        if self.domain.is_discrete:
            return (
                f"within Hamming distance {int(self.radius)} of the most probable assignment, log2 p falls by "
                f"at most {self.bits:g} bits per changed variable",
            )
        log_m = bounds.log_draws_needed(bounds.log_tau(log_best, epsilon) + self.log_weight(epsilon), delta)
        return (
            f"within distance {self.radius:g} of the mode, log2 of its density falls by at most "
            f"{self.bits:g} bits per unit, and that ball lies inside the domain; at the density found this "
            f"takes about 10^{log_m / math.log(10.0):.1f} draws",
        )
