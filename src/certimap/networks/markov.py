"""Markov networks: unnormalised products of factors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.networks.factor import Factor
from certimap.networks.network import Network


class MarkovNetwork(Network):
    """An unnormalised product of factors.

    Parameters
    ----------
    domain
        The variables, all categorical.
    factors
        `Factor`s over positions in the domain. Scopes may repeat (their factors multiply) or be empty (a
        constant, which counts).

    Raises
    ------
    ModelError
        For a real variable, or a factor that does not fit the domain.
    """

    def __init__(self, domain: Domain, factors: Iterable[Factor]) -> None:
        all_factors = tuple(factors)
        super().__init__(domain, all_factors, (None,) * len(all_factors))

    @cached_property
    def log_partition(self) -> float:
        """Natural log of the sum of the product over all assignments, by elimination.

        Raises TooLarge when its tables do not fit into memory, ImpossibleEvidence when the sum is 0.
        """
        from certimap.core.query import make_query
        from certimap.networks.sum_elimination import log_evidence_of

        return log_evidence_of(self, make_query(self.domain))

    def log_prob(self, points: Points) -> NDArray[np.float64]:
        """Return the natural log of the normalised probability of full assignments, shape (batch,).

        Parameters
        ----------
        points
            State positions of all variables, shape (batch, n_variables).

        Returns
        -------
        ndarray of float64, shape (batch,)
            ln p of each row, in nats; -inf where it is impossible.
        """
        return self.log_joint(points) - self.log_partition
