"""The table of representations: posteriors available for a model, their capabilities, and their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, TypeVar

from certimap.core.control import Limits
from certimap.core.model import Model
from certimap.core.named import at, place_of
from certimap.core.posterior import Decodes, Draws, Masses, Offer, Posterior, Probes, Regions
from certimap.core.query import Query

T = TypeVar("T")
M = TypeVar("M", bound=Model)
# Classes by import path, so that a query loads only the one that it needs.
CIRCUIT = "certimap.circuits.posterior:CircuitPosterior"
ELIMINATION = "certimap.networks.mpe_posterior:EliminationPosterior"
MAXIMISATION = "certimap.networks.mpe_posterior:MpePosterior"
OF_ELIMINATION = frozenset({MAXIMISATION, ELIMINATION, Draws, Masses, Probes})
OF_CIRCUIT = frozenset({Draws, Masses, Probes, Decodes, CIRCUIT})
OF_MAXIMISATION = frozenset({MAXIMISATION})
STREAMED = "certimap.networks.streamed:StreamedPosterior"
OF_TREE = frozenset({Draws, Masses, Probes, Regions, "certimap.trees.bucket_tree:BucketTreePosterior"})
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
    """A model and a query, with intermediate results shared by several rows of the table.

    Attributes
    ----------
    model
        The model.
    query
        A query over its domain.
    limits
        Limits for conditioning.
    known
        The intermediate results, by name.
    """

    model: M
    query: Query
    limits: Limits
    known: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return the cached result of `make` under a name; call it the first time."""
        if name not in self.known:
            self.known[name] = make()
        return self.known[name]


def once(make: Callable[[Case[M]], T]) -> Callable[[Case[M]], T]:
    """Let a function of a case run once per case; later calls return its first result."""

    @wraps(make)
    def found(case: Case[M]) -> T:
        return case.shared(make.__qualname__, lambda: make(case))

    return found


def case_of(model: M, query: Query, limits: Limits) -> Case[M]:
    """Return a case that takes up what an earlier one of the same run has found."""
    found = limits.control.found
    return Case(model, query, limits, {} if found is None else found.setdefault((id(model), query.key), {}))


@dataclass(frozen=True)
class Estimate:
    """The cost of a representation, estimated before it is built.

    Attributes
    ----------
    text
        The sizes in words, for `certimap info` and refusals.
    work
        The cost of one evaluation, as in `Facts.work`.
    fits
        Whether it is within the limits.
    exists
        Whether the model has this representation at all.
    """

    text: str
    work: float
    fits: bool
    exists: bool = True


def always(case: Case[Any]) -> bool:
    """Whether a row suits a case: always."""
    return True


@dataclass(frozen=True)
class Row(Generic[M]):
    """One way from a model to a posterior.

    Attributes
    ----------
    name
        Its name in reports.
    accepts
        The type of model.
    offers
        The capabilities (protocols) of the posterior, and its own type, or the place of that type.
    estimate
        Returns its estimated cost.
    build
        Returns the posterior; raises ModelError before allocation if it does not fit, and ImpossibleEvidence if
        p(e) = 0.
    suits
        Whether `auto` may choose it, checked before the estimate: a fitting row may still be the worse one.
    is_kept
        Whether the posterior depends only on model, query and threads, and never changes: it may then be cached
        for the same query.
    """

    name: str
    accepts: type[M]
    offers: frozenset[Offer]
    estimate: Callable[[Case[M]], Estimate]
    build: Callable[[Case[M]], Posterior]
    suits: Callable[[Case[M]], bool] = always
    is_kept: bool = False


_ROWS: list[Row[Any]] = []


def register(row: Row[Any]) -> None:
    """Add a row from a type of model to a posterior; among equals, the first registered wins.

    Parameters
    ----------
    row
        The row, with its estimate.
    """
    _ROWS.append(row)


def rows_of(model: Model) -> list[Row[Any]]:
    """Return the rows that accept a model: this package's, then those registered, in order."""
    own = [row for kind in type(model).__mro__ if (place := _OWN.get(place_of(kind))) for row in at(place)]
    return [row for row in (*own, *_ROWS) if isinstance(model, row.accepts)]
