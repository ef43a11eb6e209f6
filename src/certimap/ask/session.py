"""Binds a model to one request; conditions, solves and proves query after query.

Each query takes one path: `query` checks it, `posterior` conditions the model, `run` (the driver) searches, and
`finished` completes the proof. If conditioning does not end in time, a quicker posterior answers. Evidence of
probability 0 is explained by observations that contradict each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from certimap.ask.conflicts import with_conflict
from certimap.ask.constrained import network_of, posed, signed_under, total_of, under, wants_under
from certimap.core.arguments import shown
from certimap.core.control import Control, Limits, TimeUp, controlled_by
from certimap.core.model import Model
from certimap.core.posterior import Posterior
from certimap.core.query import Query, items_of, make_query, stated
from certimap.core.result import MapResult, Origin, Status
from certimap.errors import ImpossibleEvidence, ModelError, NoAnswer, QueryError, TooLarge
from certimap.solvers.covering import run
from certimap.solvers.driver import Progress, interruptible
from certimap.solvers.registry import make, wants_of
from certimap.solvers.request import Request

if TYPE_CHECKING:
    from certimap.networks.network import Network


def joined(evidence: Any, virtual: Any) -> Any:
    """Return evidence joined with pgmpy's virtual evidence, if there is any."""
    if virtual is None:
        return evidence
    from certimap.interop.networks import with_virtual_evidence

    return with_virtual_evidence(evidence, virtual)


def settled(model: Model, evidence: Any, limits: Limits) -> Any:
    """Return evidence in which likelihoods stand for the probabilities that it states."""
    targets = stated(model.domain, evidence)
    if not targets:
        return evidence
    rest = {name: value for name, value in items_of(evidence) if name not in targets}
    from certimap.ask.jeffrey import likelihoods

    try:
        found = likelihoods(model, targets, rest, limits)
    except ImpossibleEvidence as error:
        raise with_conflict(error, model, evidence, limits) from None
    except TimeUp as late:
        raise TooLarge(f"{late}; raise time_limit, or state fewer probabilities") from None
    except TooLarge as error:
        raise TooLarge(f"stated probabilities take exact sums, which do not fit ({error})") from None
    return {**rest, **{name: {"log_likelihood": own.tolist()} for name, own in found.items()}}


Ask = Callable[[], tuple[Any, Any]]  # returns variables and evidence for `map_query`
Ready = tuple[Query | None, Posterior | None]  # a checked query, and its posterior if already made
EXACT_SHARE = 0.6  # of the time limit, for conditioning; the rest is for a quick answer if that was too short
GRACE = 0.4  # seconds for finding any answer when no time is left


class Session:
    """A model or posterior, and the request that its queries share; limits apply to each query separately."""

    def __init__(self, model: Model | Posterior, request: Request) -> None:
        self.model, self.request = model, request
        self.wants = wants_of(request.solver, request.warm_start)
        if request.proof_bytes is not None:
            from certimap.proofs import wants_for_proof

            self.wants = wants_for_proof(model, request.solver, self.wants)

    def query(self, variables: Any, evidence: Any) -> Query | None:
        """Check a query, or raise QueryError; None for a posterior, which has its own query."""
        if isinstance(self.model, Posterior) and variables is None and evidence is None:
            return None
        model, request = askable(self.model), self.request
        limits = replace(request.limits, control=request.budget.start())
        given = settled(model, evidence, limits)
        return make_query(model.domain, variables, given, hidden=model.hidden, constraints=request.constraints)

    def posed(self, query: Query | None, control: Control) -> Query | None:
        """Return the query to condition on, which may be to a network with counters (`network_of`)."""
        if query is None or not self.request.constraints:
            return query
        control.found = {}
        return posed(cast("Model", self.model), query, self.request, control)

    def _conditioned_by(
        self, make: Callable[..., Posterior], query: Query, limits: Limits, **how: Any
    ) -> Posterior:
        """Return the posterior of a posed query that `make` makes of its model."""
        model, is_counted = network_of(cast("Model", self.model), query)
        with controlled_by(limits.control):
            posterior = make(model, query, limits=limits, **how)
        return posterior if is_counted else under(posterior, query.rules)

    def posterior(self, query: Query | None, control: Control) -> Posterior:
        """Return the posterior that the solver works on; raises TimeUp, and TooLarge where none fits."""
        limits = replace(self.request.limits, control=control)
        if query is not None:
            from certimap.conversions import condition

            wants = wants_under(cast("Model", self.model), query, self.wants)
            return self._conditioned_by(condition, query, limits, wants=wants)
        posterior = cast("Posterior", self.model)
        if limits.device is not None:
            from certimap.circuits.tensors import on_device

            posterior = on_device(posterior, limits.device)
        return under(posterior, self.request.constraints)

    def quick_posterior(self, query: Query | None, control: Control) -> Posterior:
        """Return a quickly made posterior on which some solver finds answers; raise ModelError without one."""
        from certimap.conversions import condition_quickly

        if query is None:
            return self.posterior(None, control)
        return self._conditioned_by(condition_quickly, query, replace(self.request.limits, control=control))

    @property
    def shares(self) -> bool:
        """Whether queries with the same observed variables may share their conditioning."""
        from certimap.networks.network import Network

        alone = self.request.limits.device is not None or self.request.constraints
        return isinstance(self.model, Network) and not alone

    def posteriors(self, queries: Mapping[int, Query | None]) -> Mapping[int, Posterior]:
        """Return posteriors, by number, of the queries that share their conditioning."""
        from certimap.conversions import trees_of_rows

        numbered = {i: query for i, query in queries.items() if query is not None}
        model, places = cast("Network", self.model), list(numbered)
        found = trees_of_rows(model, list(numbered.values()), wants=self.wants, limits=self.request.limits)
        return {places[k]: tree for k, tree in found.items()}

    def conditioned_on(self, variables: Any, evidence: Any) -> Posterior:
        """Return the posterior of a query for the caller's use; raises like `answer`."""
        control, query = self.request.limits.control, self.query(variables, evidence)
        try:
            return self.posterior(query, control)
        except ImpossibleEvidence as error:
            raise self.explained(error, evidence, control) from None

    def answer(self, ask: Ask, seed: int, progress: Progress = None, ready: Ready | None = None) -> MapResult:
        """Answer one query; the limits count from this call.

        The exceptions of `ask` propagate; `ready` is the checked query and its posterior, as far as they are made.
        Raises QueryError and ImpossibleEvidence as `map_query` does, and TooLarge when time or memory ran out
        without an answer.
        """
        control = self.request.budget.start()
        query, posterior = (self.query(*ask()), None) if ready is None else ready
        try:
            query = self.posed(query, control)
            if posterior is None:
                found = self.solved(query, control, seed, progress)
            else:
                found = self.run(posterior, control, seed, progress)
        except ImpossibleEvidence as error:
            raise self.explained(error, ask()[1], control) from None
        return self.finished(found, ask, query, control)

    def explained(self, error: ImpossibleEvidence, evidence: Any, control: Control) -> QueryError:
        """Return an error that names the contradicting observations, or the constraints."""
        told = with_conflict(error, self.model, evidence, replace(self.request.limits, control=control))
        if told is not error or not self.request.constraints:
            return told
        return NoAnswer(f"no possible assignment satisfies the constraints {shown(self.request.constraints)}")

    def solved(self, query: Query | None, control: Control, seed: int, progress: Progress = None) -> MapResult:
        """Answer a checked query; `finished` adds the origin and the proof."""
        control.found = control.found or {}
        posterior, cut, status = self.conditioned(query, control)
        if posterior is not None:
            try:
                return self.run(posterior, control, seed, progress, query)
            except TimeUp as late:  # a part of the posterior, made on first use, took too long
                cut = str(late)
        return self.answered_quickly(query, control, seed, (cut, status), progress)

    def conditioned(self, query: Query | None, control: Control) -> tuple[Posterior | None, str, Status]:
        """Condition within a share of the time; return the posterior, or why it was cut short and a status."""
        deadline = control.deadline
        if deadline is not None:  # a posterior keeps its control, so it must be the run's
            control.deadline = Control.starting_now(EXACT_SHARE * control.seconds_left).deadline
        posterior, cut, status = None, "", Status.TIME_LIMIT
        with interruptible(control) as interrupts:
            try:
                posterior = self.posterior(query, control)
            except (KeyboardInterrupt, TimeUp) as late:
                is_interrupt = isinstance(late, KeyboardInterrupt)
                if is_interrupt and len(interrupts) != 1:
                    raise
                cut = str(late)
                if is_interrupt or control.interrupted:  # a poll may see it while none can be raised
                    deadline, control.interrupted = time.perf_counter(), False
                    cut, status = "the user interrupted conditioning", Status.INTERRUPTED
            except MemoryError:
                cut, status, control.found = "memory ran out in conditioning", Status.MEMORY_LIMIT, None
        control.deadline = deadline
        if posterior is not None:
            control.found = None
        return posterior, cut, status

    def run(
        self,
        posterior: Posterior,
        control: Control,
        seed: int,
        progress: Progress = None,
        query: Query | None = None,
        request: Request | None = None,
    ) -> MapResult:
        """Run the solver on a posterior; a posterior without variables needs no search.

        `query`: the posed query, under constraints; `request`: in place of the session's own.
        """
        request, total = self.request if request is None else request, None
        if request.top_mass is not None and query is not None and request.constraints:
            total = total_of(cast("Model", self.model), query, control)
        if not len(posterior.domain):
            request = replace(request, solver=make("exhaustive"), warm_start=None)
        return run(posterior, request, control=control, seed=seed, progress=progress, total=total)

    def answered_quickly(
        self, query: Query | None, control: Control, seed: int, cut: tuple[str, Status], progress: Progress = None
    ) -> MapResult:
        """Answer with a quickly made posterior; `cut` is the reason why conditioning stopped, and the status."""
        if control.deadline is not None:
            control.deadline = max(control.deadline, time.perf_counter() + GRACE)
        try:
            posterior = self.quick_posterior(query, control)
            request = replace(self.request, solver="auto", warm_start=None, upper_bound=None)
            control.found = None
            result = self.run(posterior, control, seed, progress, query, request)
        except ImpossibleEvidence:
            raise
        except (ModelError, QueryError, TimeUp, MemoryError) as problem:
            raise TooLarge(
                f"{cut[0]}, and no assignment was evaluated by then ({problem}); raise time_limit or max_memory, "
                "observe more variables, or query other ones"
            ) from None
        return replace(result, status=result.status if result.certified else cut[1], note=cut[0])

    def finished(self, found: MapResult, ask: Ask, query: Query | None, control: Control) -> MapResult:
        """Store the query in a result, and complete the proof if one is requested."""
        signed, request = replace(found, origin=Origin(self.model, ask)), self.request
        if request.constraints:
            signed = signed_under(signed, cast("Model", self.model), query, request.constraints, control)
        if request.proof_bytes is None or query is None:
            return signed
        from certimap.proofs import finished

        model = cast("Model", self.model)
        query = self.query(*ask()) or query  # the one asked, without counters
        return finished(model, query, signed, request.proof_bytes, request.budget.time_limit)


def askable(model: Model | Posterior) -> Model:
    """Return a model unchanged; refuse a posterior, which takes no query."""
    if isinstance(model, Posterior):
        raise QueryError(
            f"a {type(model).__name__} is a posterior already; its query and evidence are fixed, so leave "
            "variables and evidence out"
        )
    return model


def model_of(given: Any) -> Model | Posterior:
    """Return a model or posterior of this package, converted from another library if necessary."""
    if isinstance(given, Model | Posterior):
        return given
    from certimap.interop import as_model

    return as_model(given)
