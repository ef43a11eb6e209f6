"""A user's own sampler and oracle as a posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from certimap.core.arrays import Array, Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.core.posterior import Facts
from certimap.errors import ModelError


class FunctionPosterior:
    """A posterior made of two callables; enough for `pac`, `smooth_pac`, `budget` and small enumerations.

    Parameters
    ----------
    domain
        The query variables, or their numbers of states.
    sample
        `sample(n, rng)` returns n independent draws from p(q | e): state positions (values of real variables),
        shape (n, n_variables). Use only the numpy Generator given, so that a seed replays.
    log_prob
        `log_prob(points)` returns ln p(q | e) of each row, natural, shape (batch,); -inf where it is zero.
    log_evidence
        ln p(e) where it is known.
    independent
        False if draws depend on each other, as in a Markov chain. Such draws propose assignments, but their number
        certifies nothing.
    normalised
        False: `log_prob` is ln p(q, e) and p(e) is unknown. Then no rule that compares a probability with the
        total mass 1 certifies (draw counts, residual mass), and results have `log_joint` but no `log_prob`.

    Raises
    ------
    ModelError
        From `sample` and `log_prob`, when a callable returns the wrong shape or a state out of range. From a run,
        when draw frequencies contradict `log_prob` (false alarms have probability below 1e-6 per run), or when
        the probabilities of distinct assignments add up to more than 1.
    """

    def __init__(
        self,
        domain: Domain | Sequence[int],
        sample: Callable[[int, np.random.Generator], Any],
        log_prob: Callable[[Points], Any],
        *,
        log_evidence: float | None = None,
        normalised: bool = True,
        independent: bool = True,
    ) -> None:
        self.domain = domain if isinstance(domain, Domain) else Domain.of_sizes(domain)
        self._sample, self._log_prob = sample, log_prob
        self._facts = Facts.of(
            self.domain, log_evidence=log_evidence, is_normalised=normalised, has_independent_draws=independent
        )

    @property
    def facts(self) -> Facts:
        return self._facts

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Return `n` independent points, shape (n, n_variables): state positions, or values of real variables.

        `rng` is the only source of randomness. `boxes` must be None: a callable cannot sample inside boxes.
        """
        if boxes is not None:
            raise ModelError("a sampler given as a function does not draw inside boxes; use solver='pac'")
        points: Array = np.asarray(self._sample(n, rng))
        if points.shape != (n, len(self.domain)):
            raise ModelError(f"sample returned shape {points.shape}; expected {(n, len(self.domain))}")
        discrete = np.flatnonzero(self.domain.n_states)
        states = points[:, discrete]
        bad = (states < 0) | (states >= self.domain.n_states[discrete])
        if np.any(bad):
            row, column = (int(x[0]) for x in np.nonzero(bad))
            i = int(discrete[column])
            raise ModelError(
                f"sample returned {states[row, column]} for variable {self.domain.names[i]!r}; expected "
                "positions from 0 "
                f"to {self.domain.n_states[i] - 1}"
            )
        return points.astype(self.domain.point_dtype)

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q | e), or ln p(q, e) if not normalised, in nats, shape (batch,); -inf where it is zero.

        `points` are state positions (values of real variables), shape (batch, n).
        """
        values: Floats = np.asarray(self._log_prob(points), np.float64)
        if values.shape != (len(points),):
            raise ModelError(f"log_prob returned shape {values.shape} for {len(points)} points; expected one each")
        return values
