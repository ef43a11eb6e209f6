"""A model that is asked: one query after another, each conditioned under a control of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from certimap.ask.batch import Batch, OnError, Row
from certimap.ask.conflict import with_conflict
from certimap.core.arguments import check_whole
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.limits import Limits
from certimap.core.model import Model
from certimap.core.posterior import Capability, Posterior
from certimap.core.query import Query, make_query
from certimap.core.result import MapResult, Origin
from certimap.core.result_list import FailedQuery
from certimap.errors import CertimapError, ImpossibleEvidence, QueryError, SolverError
from certimap.networks.network import Network
from certimap.solvers.base import Solver
from certimap.solvers.registry import wants_of


def limits_of(max_edges: int | None, workers: int | None, device: str | None = None) -> Limits:
    """Return what conditioning may take; refuse no threads."""
    if workers is not None:
        workers = check_whole("workers", workers, "a positive number of threads, or None for every core", low=1)
    if max_edges is not None:
        max_edges = check_whole("max_edges", max_edges, "a whole number not below 0, or None for no limit")
    if device is not None and not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SolverError(f"device is {device!r}; expected 'cpu', 'cuda', 'cuda:N' or None")
    return Limits(max_edges, workers, device=device)


def in_worker(limits: Limits) -> Limits:
    """Return what conditioning may take in a worker of an executor: one thread, unless a number was asked for."""
    return replace(limits, workers=1) if limits.workers is None else limits


def map_rows(
    model: Any,
    rows: Sequence[Row],
    solver: str | Solver,
    rng: int | np.random.Generator | None,
    settings: Mapping[str, Any],
    limits: Limits,
    errors: OnError,
    executor: Executor | None = None,
) -> Iterator[MapResult | FailedQuery]:
    """Yield the answers to many queries of one model as they are found; see `certimap.ask.batch.Batch`.

    With an executor its workers find them, with one thread each unless `limits` says otherwise.
    """
    if executor is not None:
        limits = in_worker(limits)
    asked = Asked.of(model, limits, solver, settings)
    batch = Batch(asked.condition, asked.fallback, asked.share, solver, settings, errors)
    answers = batch.answers(rows, rng) if executor is None else batch.spread_answers(rows, rng, executor)
    return (
        answer if isinstance(answer, FailedQuery) else asked.completed(answer, row.ask)
        for row, answer in zip(rows, answers, strict=False)
    )


@dataclass(frozen=True)
class Asked:
    """A model whose queries are conditioned one after another, each under a control of its own."""

    model: Any
    limits: Limits
    wants: Sequence[Capability] | None
    max_proof: int | None
    time_limit: float | None

    @classmethod
    def of(cls, model: Any, limits: Limits, solver: str | Solver, settings: Mapping[str, Any]) -> Asked:
        """Work out what the solver, and a proof if one is wanted, want of the representation."""
        wants, max_proof = wants_of(solver, settings.get("warm_start")), settings.get("max_proof")
        if max_proof is not None:
            from certimap.proofs import wants_for_proof

            wants = wants_for_proof(model, solver, wants)
        return cls(model, limits, wants, max_proof, settings.get("time_limit"))

    def completed(self, found: MapResult, ask: Callable[[], tuple[Any, Any]]) -> MapResult:
        """Note what was asked, and complete the proof where one is wanted."""
        signed = replace(found, origin=Origin(self.model, ask))
        if self.max_proof is None:
            return signed
        from certimap.proofs import finished

        query = make_query(self.model.domain, *ask(), hidden=self.model.hidden)
        return finished(self.model, query, signed, self.max_proof, self.time_limit)

    def condition(self, variables: Any, evidence: Any, control: Control) -> Posterior:
        return posterior_of(self.model, variables, evidence, replace(self.limits, control=control), self.wants)

    def share(self, asked: Mapping[int, tuple[Any, Any]]) -> Mapping[int, Posterior]:
        """Return the posteriors of those rows that can share their conditioning."""
        from certimap.conversions import trees_of_rows

        queries: dict[int, Query] = {}
        if isinstance(self.model, Network) and self.limits.device is None:
            for i, (variables, evidence) in asked.items():
                with suppress(CertimapError):  # the row's own failure, when it is its turn
                    queries[i] = make_query(self.model.domain, variables, evidence, hidden=self.model.hidden)
        places = list(queries)
        found = trees_of_rows(self.model, list(queries.values()), wants=self.wants, limits=self.limits)
        return {places[k]: tree for k, tree in found.items()}

    def fallback(self, variables: Any, evidence: Any, control: Control) -> Posterior:
        """Return a posterior that is there at once, for where the one that is wanted takes too long."""
        from certimap.conversions import condition_quickly

        if is_posterior(self.model):
            return cast("Posterior", self.model)
        query = make_query(domain_of(self.model), variables, evidence, hidden=self.model.hidden)
        return condition_quickly(self.model, query, limits=replace(self.limits, control=control))


def posterior_of(
    model: Any,
    variables: Any,
    evidence: Any,
    limits: Limits,
    wants: Sequence[Capability] | None,
) -> Posterior:
    """Return the posterior of a query, or one that is asked itself.

    Raises ImpossibleEvidence, with the observations that contradict each other, where p(evidence) = 0.
    """
    if is_posterior(model) and variables is None and evidence is None:
        if limits.device is None:
            return cast("Posterior", model)
        from certimap.circuits.tensor_posterior import on_device

        return on_device(model, limits.device)
    query = make_query(domain_of(model), variables, evidence, hidden=model.hidden)
    from certimap.conversions import condition

    try:
        return condition(model, query, wants=wants, limits=limits)
    except ImpossibleEvidence as error:
        raise with_conflict(error, model, evidence, limits) from None


def domain_of(model: Any) -> Domain:
    """Return the variables of a model; refuse a posterior, which takes no query."""
    if is_posterior(model):
        raise QueryError(
            f"a {type(model).__name__} is a posterior already; its query and evidence are fixed, so leave "
            "variables and evidence out"
        )
    return model.domain


def model_of(model: Any) -> Any:
    """Return a posterior or a model of ours as it is, and a model of another library as one of ours."""
    if isinstance(model, Model) or is_posterior(model):
        return model
    from certimap.interop import as_model

    return as_model(model)


def is_posterior(model: Any) -> bool:
    """Whether an object is a posterior rather than a model to condition."""
    return isinstance(model, Posterior)
