"""What the solvers that search an AND/OR space share: settings, and how the space opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from certimap.certify.ledger import Ledger
from certimap.core.posterior import Capability, Posterior
from certimap.errors import SolverError
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.relaxation.decoding import decode
from certimap.networks.two_sided import TwoSidedNetworkPosterior
from certimap.solvers.base import Family, Solver
from certimap.solvers.networks.and_or import AndOrSpace
from certimap.solvers.networks.relaxed import RELAXATION, point_of


def check_settings(i_bound: int, iterations: int) -> None:
    """Refuse settings out of range."""
    if i_bound < 1 or iterations < 0:
        raise SolverError(
            f"i_bound is {i_bound} and iterations {iterations}; an i_bound of at least 1 and iterations not below "
            "0 are expected"
        )


@dataclass(frozen=True)
class AndOrSolver(Solver):
    """A search of the AND/OR space of a query, bounded by mini-buckets.

    Parameters
    ----------
    i_bound, iterations
        Of the mini-bucket relaxation, see `wmb`.
    """

    i_bound: int = 10
    iterations: int = 10

    needs: ClassVar[tuple[Capability, ...]] = (NetworkPosterior,)
    family: ClassVar[Family] = "search"

    def __post_init__(self) -> None:
        check_settings(self.i_bound, self.iterations)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse a network in which a point has no exact value, which the search needs at its leaves."""
        if isinstance(posterior, TwoSidedNetworkPosterior):
            return (
                f"solver {self.name!r} sums nuisance variables at every assignment, and these are too wide for "
                "that; use solver='auto' or 'wmb', or query more variables"
            )
        return None

    def open_space(self, posterior: NetworkPosterior, ledger: Ledger) -> AndOrSpace:
        """Build a search space, and report the bound and the answers of its relaxation."""
        space = AndOrSpace(posterior, self.i_bound, self.iterations)
        s = space.tree.scratch()
        ledger.upper_bound(min(space.tree.bound(scratch=s, clock=space.clock), posterior.log_ceiling), RELAXATION)
        start = point_of(posterior, decode(space.tree, scratch=s, clock=space.clock))
        ledger.candidates(start)
        ledger.candidates(posterior.prober().climb(start))
        return space
