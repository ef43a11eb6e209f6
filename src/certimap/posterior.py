"""The posterior protocol: what a solver may ask about p(q | e)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes, Points
from certimap.domain import Domain


@runtime_checkable
class Posterior(Protocol):
    """A normalised distribution over the query variables: a sampler and an oracle.

    A user's own pair of callables is one (see `FunctionPosterior`). The further questions are
    capabilities: a posterior has the method or it has not, and a solver states what it needs in
    `requires`:

    - `log_mass(boxes)`: ln P(box | e), shape (batch,);
    - `log_bound(boxes)`: an upper bound on ln max over the box of p(q | e), shape (batch,);
    - `log_mass_each(boxes)`, `log_bound_each(boxes)`: the same with variable i restricted to state a
      alone (whether or not the box holds a), shape (batch, total_states);
    - `sample(..., boxes=...)` inside boxes goes with `log_mass`.
    """

    @property
    def domain(self) -> Domain:
        """The query variables, in the user's order."""
        ...

    @property
    def log_evidence(self) -> float | None:
        """Natural log of p(e) (of the unnormalised product's total for a Markov network), or None."""
        ...

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points from p(q | e), or from p(q | e, q in the union of disjoint boxes)."""
        ...

    def log_prob(self, points: Points) -> NDArray[np.float64]:
        """Natural log of p(q | e) at each row of `points`, shape (batch,); -inf where it is zero."""
        ...


@runtime_checkable
class BoxPosterior(Posterior, Protocol):
    """A posterior that answers every question about boxes."""

    def log_mass(self, boxes: Boxes) -> NDArray[np.float64]: ...
    def log_bound(self, boxes: Boxes) -> NDArray[np.float64]: ...
    def log_mass_each(self, boxes: Boxes) -> NDArray[np.float64]: ...
    def log_bound_each(self, boxes: Boxes) -> NDArray[np.float64]: ...
