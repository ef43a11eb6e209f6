"""Networks without nuisance variables whose tables fit: maximised by dense elimination, p(e) by one sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes, Points
from certimap.core.posterior import BoxPosterior, Facts
from certimap.core.query import Query
from certimap.networks.conditional import Total, relative_to
from certimap.networks.determined import Function
from certimap.networks.elimination_plan import EliminationPlan
from certimap.networks.mpe_posterior import MpePosterior
from certimap.networks.problem import Prepared


class EliminationPosterior(MpePosterior):
    """A normalised product of tables over the query variables.

    Points are scored by the tables themselves. Questions about boxes, and draws, use a tree of conditional tables.
    The tree takes many times as long to make as the maximum, so that it is made on first use.

    Parameters
    ----------
    query, prepared, workers, functions
        As for `MpePosterior`; no nuisance variables.
    order
        Of an elimination of all its variables, which is cheap.
    total
        ln p(e), and how far it may be off.
    make_tree
        Returns the same posterior with masses, bounds and draws.
    """

    def __init__(
        self,
        query: Query,
        prepared: Prepared,
        order: EliminationPlan,
        total: Total,
        make_tree: Callable[[], BoxPosterior],
        workers: int | None = None,
        functions: Sequence[Function] = (),
    ) -> None:
        problem, log_evidence = relative_to(prepared.problem, total), total.log_value
        super().__init__(query, replace(prepared, problem=problem), log_evidence, workers, functions)
        self.order = order
        self.facts = Facts.of(
            self.domain, log_evidence=log_evidence, work=self.facts.work, log_slack=self.facts.log_slack
        )
        self._make_tree = make_tree

    @cached_property
    def tree(self) -> BoxPosterior:
        """The same posterior as a tree of conditional tables."""
        return self._make_tree()

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables); see `Draws`."""
        return self.tree.sample(n, rng, boxes)

    def log_mass(self, boxes: Boxes) -> NDArray[np.float64]:
        """Natural log of P(box | e), shape (batch,)."""
        return self.tree.log_mass(boxes)

    def log_mass_each(self, boxes: Boxes) -> NDArray[np.float64]:
        """The same with variable i restricted to state a alone, shape (batch, total_states)."""
        return self.tree.log_mass_each(boxes)

    def log_bound(self, boxes: Boxes) -> NDArray[np.float64]:
        """Return upper bounds on the natural log of the largest value in each box, shape (batch,)."""
        return self.tree.log_bound(boxes)

    def log_bound_each(self, boxes: Boxes) -> NDArray[np.float64]:
        """The same with variable i restricted to state a alone, shape (batch, total_states)."""
        return self.tree.log_bound_each(boxes)
