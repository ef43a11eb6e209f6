"""A stream of posterior draws that does not depend on the batch sizes."""

from __future__ import annotations

import numpy as np

from certimap.core.box import Boxes, Points
from certimap.core.posterior import Draws, Masses
from certimap.errors import SolverError

FIRST_CHUNK = 64
LARGEST_CHUNK = 16384
EDGES_PER_CHUNK = 200_000_000


class DrawStream:
    """Independent draws from p(q | e), made in chunks whose sizes and generators depend only on the seed.

    Chunks start small and double, up to a size that takes a fraction of a second.
    """

    def __init__(self, posterior: Draws, rng: np.random.Generator, boxes: Boxes | None = None) -> None:
        if boxes is not None and not isinstance(posterior, Masses):
            raise SolverError(
                "draws inside a box need a posterior that knows masses of boxes, and a "
                f"{type(posterior).__name__} does not"
            )
        self._posterior, self._boxes = posterior, boxes
        self._rng = rng
        self._chunk = FIRST_CHUNK
        n_edges = int(posterior.facts.work)
        self.largest = max(FIRST_CHUNK, min(LARGEST_CHUNK, EDGES_PER_CHUNK // n_edges))
        self._held: Points = np.empty((0, len(posterior.domain)), posterior.domain.point_dtype)

    def take(self, n: int) -> Points:
        """Return the next n draws, shape (n, n_variables)."""
        parts = [self._held]
        n_held = len(self._held)
        while n_held < n:
            rng = self._rng.spawn(1)[0]
            part = self._posterior.sample(self._chunk, rng, self._boxes)
            parts.append(part)
            n_held += len(part)
            self._chunk = min(2 * self._chunk, self.largest)
        whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._held = whole[n:]
        return whole[:n]

    @property
    def n_ready(self) -> int:
        """The number of draws up to the next chunk boundary: an efficient batch size."""
        return len(self._held) or self._chunk
