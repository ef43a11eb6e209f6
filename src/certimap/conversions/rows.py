"""The table of representations: which posterior a model can become, what that offers, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from certimap.core.limits import Limits
from certimap.core.model import Model
from certimap.core.named import at, place_of
from certimap.core.posterior import (
    Bounds,
    Decodes,
    Draws,
    Masses,
    Offer,
    Posterior,
    Probes,
    Regions,
)
from certimap.core.query import Query

T = TypeVar("T")
M = TypeVar("M", bound=Model)
# Classes by their place, so that a query loads the one that answers it alone.
CIRCUIT = "certimap.circuits.posterior:CircuitPosterior"
ELIMINATION = "certimap.networks.elimination_posterior:EliminationPosterior"
MAXIMISATION = "certimap.networks.mpe_posterior:Maximisation"
OF_ELIMINATION = frozenset({MAXIMISATION, ELIMINATION, Draws, Masses, Bounds})
OF_CIRCUIT = frozenset({Draws, Masses, Bounds, Probes, Decodes, CIRCUIT})
OF_MAXIMISATION = frozenset({MAXIMISATION, "certimap.networks.mpe_posterior:MpePosterior"})
STREAMED = "certimap.networks.streamed_posterior:StreamedPosterior"
OF_TREE = frozenset({Draws, Masses, Bounds, Probes, Regions, "certimap.trees.bucket_tree:BucketTreePosterior"})
# The rows of this package, by the place of the type of model that they accept: they are loaded with the first
# such model.
_OWN = {
    "certimap.circuits.circuit:Circuit": "certimap.conversions.from_circuits:ROWS",
    "certimap.networks.network:Network": "certimap.conversions.from_networks:ROWS",
    "certimap.densities.gaussian_mixture:GaussianMixture": "certimap.conversions.from_densities:ROWS",
    "certimap.densities.linear_gaussian:LinearGaussianNetwork": "certimap.conversions.from_densities:ROWS",
}


@dataclass(frozen=True, eq=False)
class Case(Generic[M]):
    """A model and a query, with what several rows of the table would otherwise work out again.

    Attributes
    ----------
    model
        What is asked.
    query
        A query over its domain.
    limits
        What conditioning may take.
    """

    model: M
    query: Query
    limits: Limits
    _known: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time that it was asked for under this name."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]


@dataclass(frozen=True)
class Estimate:
    """What a representation would take, known before it is built.

    Attributes
    ----------
    text
        The sizes in words, for `certimap info` and refusals.
    work
        What one evaluation would cost, as in `Facts.work`.
    fits
        Whether it is within the limits.
    exists
        Whether the model has this representation at all.
    """

    text: str
    work: float
    fits: bool
    exists: bool = True


def _always(case: Case[Any]) -> bool:
    return True


@dataclass(frozen=True)
class Row(Generic[M]):
    """One way from a model to a posterior.

    Attributes
    ----------
    name
        What it is called in reports.
    accepts
        The type of model.
    offers
        The capabilities (protocols) of the posterior, and its own type, or the place of that type.
    estimate
        Says what it would take.
    build
        Returns the posterior; raises ModelError when it does not fit, before memory is taken, and
        ImpossibleEvidence when p(e) = 0.
    suits
        Whether `auto` may take it, asked before the estimate: one that fits may still be the worse one.
    is_kept
        Whether the posterior depends on model, query and threads alone, and never changes: it may then answer
        the same query again.
    """

    name: str
    accepts: type[M]
    offers: frozenset[Offer]
    estimate: Callable[[Case[M]], Estimate]
    build: Callable[[Case[M]], Posterior]
    suits: Callable[[Case[M]], bool] = _always
    is_kept: bool = False


_ROWS: list[Row[Any]] = []


def register(row: Row[Any]) -> None:
    """Add a way from a type of model to a posterior; among equals the one registered first is taken.

    Parameters
    ----------
    row
        The way, with its estimate.
    """
    _ROWS.append(row)


def rows_of(model: Model) -> list[Row[Any]]:
    """Return the rows that accept a model: this package's, then those registered, in order."""
    own = [row for kind in type(model).__mro__ if (place := _OWN.get(place_of(kind))) for row in at(place)]
    return [row for row in (*own, *_ROWS) if isinstance(model, row.accepts)]
