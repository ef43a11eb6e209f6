"""The table of representations, and the choice for a query: rows are tried in order, by estimated size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Generic, TypeVar

import numpy as np

from certimap.core.control import BYTES_PER_ENTRY, Limits, TimeUp
from certimap.core.domain import Categorical
from certimap.core.model import Model
from certimap.core.named import at, place_of
from certimap.core.posterior import (
    Capability,
    Decodes,
    Draws,
    FunctionPosterior,
    Guesses,
    Masses,
    Offer,
    Posterior,
    Probes,
    Regions,
    offers,
)
from certimap.core.query import Query
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, TooLarge

T = TypeVar("T")
M = TypeVar("M", bound=Model)
# Classes by import path, so that a query loads only the one that it needs.
CIRCUIT = "certimap.circuits.posterior:CircuitPosterior"
ELIMINATION = "certimap.networks.mpe_posterior:EliminationPosterior"
MAXIMISATION = "certimap.networks.mpe_posterior:MpePosterior"
OF_CIRCUIT = frozenset({Draws, Masses, Probes, Decodes, CIRCUIT})
OF_TREE = frozenset({Draws, Masses, Probes, Regions, "certimap.trees.bucket_tree:BucketTreePosterior"})
# This package's rows, by the place of the type of model that they accept: loaded with the first such model.
_OWN = {
    "certimap.circuits.circuit:Circuit": "certimap.conversions.from_circuits:ROWS",
    "certimap.networks.network:Network": "certimap.conversions.from_networks:ROWS",
    "certimap.densities.gaussian_mixture:GaussianMixture": "certimap.conversions.from_densities:ROWS",
    "certimap.densities.linear_gaussian:LinearGaussianNetwork": "certimap.conversions.from_densities:ROWS",
}


@dataclass(frozen=True, eq=False)
class Case(Generic[M]):
    """A model and a query, with intermediate results shared by several rows of the table.

    `model`, `query`, `limits`: the model, a query over its domain, and limits for conditioning.
    `known`: the intermediate results, by name.
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

    `text`, `work`: the sizes in words, for `certimap info` and refusals, and the cost of one evaluation, as in
    `Facts.work`.
    `fits`, `exists`: whether it is within the limits, and whether the model has this representation at all.
    """

    text: str
    work: float
    fits: bool
    exists: bool = True


@dataclass(frozen=True)
class Row(Generic[M]):
    """One way from a model to a posterior.

    - `name`, `accepts`: its name in reports, and the type of model.
    - `offers`: the capabilities (protocols) of the posterior, and its own type, or the place of that type.
    - `estimate`: returns its estimated cost.
    - `build`: returns the posterior; raises ModelError before allocation if it does not fit, and
      ImpossibleEvidence if p(e) = 0.
    - `suits`: whether `auto` may choose it, checked before the estimate: a fitting row may still be the worse one.
    - `is_kept`: whether the posterior depends only on model, query and threads, and never changes: it may then be
      cached for the same query.
    """

    name: str
    accepts: type[M]
    offers: frozenset[Offer]
    estimate: Callable[[Case[M]], Estimate]
    build: Callable[[Case[M]], Posterior]
    suits: Callable[[Case[M]], bool] = lambda case: True
    is_kept: bool = False


_ROWS: list[Row[Any]] = []


def register(row: Row[Any]) -> None:
    """Add the `row` from a type of model to a posterior; among equals, the first registered wins."""
    _ROWS.append(row)


def rows_of(model: Model) -> list[Row[Any]]:
    """Return the rows that accept a model: this package's, then those registered, in order."""
    own = [row for kind in type(model).__mro__ if (place := _OWN.get(place_of(kind))) for row in at(place)]
    return [row for row in (*own, *_ROWS) if isinstance(model, row.accepts)]


def complete_posterior(query: Query, condition: Callable[[Query], Posterior]) -> Posterior:
    """Return the posterior of a query whose evidence assigns every variable; ImpossibleEvidence if p(e) = 0.

    It is over no variables: one empty assignment has the probability 1.
    `condition` conditions the model on a query with query variables. It is called for one variable (with the
    fewest states) given all others, the model's cheapest query.
    """
    sizes = query.domain.n_states.tolist()
    asked = min(query.observed, key=lambda i: (sizes[i] or math.inf, i))
    start, end = int(query.domain.offsets[asked]), int(query.domain.offsets[asked + 1])
    weights = query.log_weights.copy()
    weights[start:end] = 0.0
    one = replace(
        query,
        variables=np.array([asked], np.int64),
        log_weights=weights,
        values={i: value for i, value in query.values.items() if i != asked},
        observed=query.observed - {asked},
    )
    posterior = condition(one)
    value: Any = query.values.get(asked)
    if isinstance(query.domain.variables[asked], Categorical):
        value = int(np.argmax(query.log_weights[start:end]))
    point = np.array([[value]], posterior.domain.point_dtype)
    facts = posterior.facts
    # If it is not normalised, log_prob is ln of the joint.
    shift = facts.log_evidence if facts.is_normalised and facts.log_evidence is not None else 0.0
    log_evidence = float(posterior.log_prob(point)[0]) + shift
    if log_evidence == -math.inf:
        raise ImpossibleEvidence("the evidence has probability 0 under the model; it assigns every variable")
    known = log_evidence
    return FunctionPosterior((), lambda n, rng: np.empty((n, 0)), lambda x: np.zeros(len(x)), log_evidence=known)


Wants = tuple[Capability | str, ...]
KEPT_BYTES = 10_000  # size of a posterior without its tables
MOST_NAMED = 8  # observations that an error names
MOST_SLACK = 1e-2  # rounding (nats) of evidence beyond which its logs tell nothing
# Capabilities wanted by `auto`, best first, with reasons: solvers for earlier ones prove more.
AUTO: tuple[tuple[Wants, str], ...] = (
    ((ELIMINATION,), "what is summed is small, and maximising takes less than a tree of conditional tables"),
    ((Regions,), "along a tree of regions whose tables fit, sets of vectors settle a query soonest"),
    ((Masses, Probes), "boxes of assignments can be weighed and bounded, so that a search settles it"),
    ((MAXIMISATION,), "no table fits, and what has to be summed does"),
    ((Probes,), "boxes of assignments can be bounded"),
    ((), "nothing else fits"),
)

# Representations allowed when time is short.
ANYTIME: tuple[Wants, ...] = (("certimap.networks.posterior:NetworkPosterior",), (Guesses,))


@dataclass(frozen=True)
class Option:
    """A considered way from the model to a posterior: `row` of the table, and `estimate` of its size."""

    row: Row[Any]
    estimate: Estimate


@dataclass(frozen=True)
class Choice:
    """The representation for a query, the alternatives, and the reason for the choice.

    `case`, `row`: the model and the query, and the chosen row.
    `options`, `why`: all considered rows, in order, and the reason in words.
    """

    case: Case[Any]
    row: Row[Any]
    options: tuple[Option, ...]
    why: str

    def build(self) -> Posterior:
        """Return the posterior."""
        return self.row.build(self.case)


def condition(
    model: Model, query: Query, *, wants: Sequence[Capability | str] | None = None, limits: Limits | None = None
) -> Posterior:
    """Return p(q | e) of a model as a posterior.

    - `model`, `query`: the model, and a query over its domain. If every variable is observed, the answer is empty.
    - `wants`: the required capabilities (protocols of `certimap.core.posterior`, or a posterior's own type); None
      for the representation on which `solver="auto"` proves most. If the model has no such representation, another
      is returned; the solver then rejects it and names an alternative.
    - `limits`: limits on time and memory; None for the defaults.

    The posterior is normalised unless p(e) is unknown (see its `facts`). Raises ImpossibleEvidence if p(e) = 0,
    TooLarge if no representation with the required capabilities fits the limits, and QueryError for observed
    numbers so far out that the logs of their densities round by more than 0.01 nats.
    """
    if type(model).condition is not Model.condition:
        return model.condition(query, limits)
    if not len(query.variables):
        return complete_posterior(query, lambda asked: condition(model, asked, wants=wants, limits=limits))
    if limits is None or limits.device is None:
        return _telling(_kept_or_built(model, query, wants, limits or Limits()), query)
    from certimap.circuits.tensors import on_device

    choice = plan(model, query, wants=(*(wants or ()), CIRCUIT), limits=limits)
    return on_device(choice.build(), limits.device)


def _kept_or_built(
    model: Model, query: Query, wants: Sequence[Capability | str] | None, limits: Limits
) -> Posterior:
    """Return the cached posterior of the same query, or a new one; limits may influence a choice that is kept."""
    control = limits.control
    if control.max_memory is not None:
        return plan(model, query, wants=wants, limits=limits).build()
    unhurried = (query.key, None if wants is None else tuple(wants), limits.max_edges, limits.workers)
    asked = (*unhurried, control.time_limit)
    found = model.kept.get((*unhurried, None)) or model.kept.get(asked)
    if found is None:
        choice = plan(model, query, wants=wants, limits=limits)
        found = choice.build()
        if choice.row.is_kept and control.is_early:
            model.kept.put(asked, found, KEPT_BYTES + BYTES_PER_ENTRY * found.facts.work)
    return found


def _telling(posterior: Posterior, query: Query) -> Posterior:
    """Return a posterior; refuse one of numbers so far out that its logs are rounding errors."""
    slack = posterior.facts.log_slack
    if slack <= MOST_SLACK or not (query.values or query.intervals):
        return posterior
    seen = [f"{query.domain.names[i]}={value:g}" for i, value in query.values.items()]
    seen += [f"{query.domain.names[i]}=({low:g}, {high:g})" for i, (low, high) in query.intervals.items()]
    raise QueryError(
        f"the evidence lies too far from the model: the log of its density rounds by {slack:.2g} nats, and at "
        f"most {MOST_SLACK:g} are accepted; look for another unit among {', '.join(seen[:MOST_NAMED])}"
    )


def condition_quickly(model: Model, query: Query, *, limits: Limits | None = None) -> Posterior:
    """Return p(q | e), up to a constant factor, in a representation built almost at once.

    `model`, `query` and `limits` are as in `condition`. Solvers have an immediate answer, and prove a bound if
    possible. Raises TooLarge if the model has no such representation for this query.
    """
    if not len(query.variables):
        return complete_posterior(query, lambda asked: condition_quickly(model, asked, limits=limits))
    case = case_of(model, query, limits or Limits())
    for wanted in ANYTIME:
        for row in rows_of(model):
            is_slow = Masses in row.offers and Guesses not in wanted  # it sums over everything before any answer
            if offers(row.offers, wanted) and not is_slow and _fits_soon(row, case):
                return _telling(row.build(case), query)
    raise TooLarge(f"this query to a {type(model).__name__} has no representation that answers at once")


def _fits_soon(row: Row[Any], case: Case[Any]) -> bool:
    try:
        return row.estimate(case).fits
    except TimeUp:  # a representation of less work may follow
        return False


def plan(
    model: Model, query: Query, *, wants: Sequence[Capability | str] | None = None, limits: Limits | None = None
) -> Choice:
    """Choose a representation without building it; `model`, `query`, `wants`, `limits`, errors as in `condition`.

    The sizes of a structured circuit's tree require conditioning, which this then does.
    """
    case = case_of(model, query, limits or Limits())
    rows = rows_of(model)
    if not rows:
        raise ModelError(
            f"a {type(model).__name__} is no model that certimap can condition; a circuit, a network, a learned "
            "model, or a type that overrides condition() or is registered is expected"
        )
    options: dict[int, Option] = {}
    for wanted, why in AUTO if wants is None else ((tuple(wants), "the solver works on it"),):
        for k, row in enumerate(rows):
            if not offers(row.offers, wanted) or (wants is None and not row.suits(case)):
                continue
            if k not in options:
                options[k] = Option(row, row.estimate(case))
            if options[k].estimate.fits:
                return Choice(case, row, tuple(options.values()), why)
    if wants and not any(o.estimate.exists for o in options.values()):
        return plan(model, query, wants=(), limits=limits)
    found = "; ".join(f"{o.row.name}: {o.estimate.text}" for o in options.values())
    told = f"this query to a {type(model).__name__} does not fit {case.limits.describe()} ({found})"
    raise TooLarge(f"{told}; {case.limits.remedy}")
