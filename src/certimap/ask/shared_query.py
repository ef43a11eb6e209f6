"""Parallel search of one query: split its space into boxes, let workers search them, merge the ledgers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from certimap.ask.session import Ask, Session
from certimap.certify.ledger import Ledger, own_source
from certimap.core.arrays import Flags
from certimap.core.box import Boxes, Points
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Domain
from certimap.core.executors import Spread
from certimap.core.logs import log_sum_runs
from certimap.core.posterior import Bounds, Masses, Posterior, Prober, Probes
from certimap.core.probing import log_bounds, prober_of
from certimap.core.query import Query
from certimap.core.result import MapResult, Status
from certimap.errors import ImpossibleEvidence, SolverError
from certimap.solvers.base import Solver
from certimap.solvers.driver import Progress, apply_warm_start, assemble, ensure_answer, ledger_of, search_box
from certimap.solvers.record import draft_of_parts
from certimap.solvers.registry import resolve

N_PARTS = 32  # boxes that a space is split into, for any number of workers
WINDOW = 16  # parts in progress; a part starts from the best points of all parts at least this far before it
SHARED = ("frontier", "set_elimination", "hbfs", "pac", "smooth_pac")  # other choices of `auto` are instant
BOUND = own_source("bound of a box")


@dataclass
class _Question:
    """The data that all parts share. A worker conditions once, and keeps the posterior."""

    session: Session
    query: Query | None
    solver: Solver
    posterior: Posterior | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "posterior": None}

    def conditioned(self) -> Posterior:
        if self.posterior is None:
            self.posterior = self.session.posterior(self.query, Control())
        return self.posterior


class _Part(NamedTuple):
    """A box to search, with starting points, seed and limits."""

    mask: Flags
    points: Points
    seed: int
    seconds: float | None
    max_nodes: int | None
    max_samples: int | None


def answer_shared(
    session: Session, ask: Ask, seed: int, executor: Executor, progress: Progress = None
) -> MapResult:
    """Answer one query with the workers of an executor.

    The space is split into `N_PARTS` boxes where the posterior's bounds fall most, whatever the number of workers.
    Each part starts from the best points of the parts at least `WINDOW` before it, and the ledgers are merged in
    order. So the answer does not depend on the workers' pace, unless the time limit ends a part. If conditioning
    cannot end in time, a quicker method answers, as for any query. Raises SolverError for real variables, and for
    a solver that can search only the whole space.
    """
    shared = Session(session.model, session.request.of_worker())
    control, query = shared.request.budget.start(), shared.query(*ask())
    try:
        query = shared.posed(query, control)
        posterior, cut, status = shared.conditioned(query, control)
    except ImpossibleEvidence as error:
        raise shared.explained(error, ask()[1], control) from None
    found: MapResult | None = None
    if posterior is not None:
        chosen = resolve(shared.request.solver, posterior)
        is_quick = shared.request.solver == "auto" and chosen.name not in SHARED
        try:
            if is_quick or not len(posterior.domain):
                found = shared.run(posterior, control, seed, progress)
            else:
                found = _answer_parts(_Question(shared, query, chosen, posterior), control, seed, executor)
        except TimeUp as late:  # a part of the posterior, made on first use, took too long
            cut = str(late)
    if found is None:
        found = shared.answered_quickly(query, control, seed, (cut, status), progress)
    return shared.finished(found, ask, query, control)


def _answer_parts(question: _Question, control: Control, seed: int, executor: Executor) -> MapResult:
    """Split the space of a conditioned query, let workers search the parts, and merge their ledgers."""
    started, request = time.perf_counter(), question.session.request
    chosen, posterior = question.solver, question.conditioned()
    if request.top_mass is not None:
        raise SolverError("top_mass asks for one list after another in one process; leave executor and n_jobs out")
    if not posterior.domain.is_discrete:
        raise SolverError("a query of real variables is searched by one process; leave executor and n_jobs out")
    ledgers, statuses = _searched(question, split(posterior, N_PARTS), seed, control, executor)
    merged, external = Ledger.merge(ledgers, control=Control()), request.upper_bound
    if external is not None:
        merged.upper_bound(external.on(posterior.facts), external.source)
    ensure_answer(posterior, merged, seed)
    ended = (Status.INTERRUPTED, Status.TIME_LIMIT, Status.NODE_LIMIT, Status.SAMPLE_LIMIT, Status.MEMORY_LIMIT)
    status = next((s for s in ended if s in statuses), Status.EXHAUSTED)
    if merged.satisfied and status is not Status.INTERRUPTED:
        status = Status.CERTIFIED
    found = assemble(merged, chosen, status, started, seed, listed=request.top_k is not None)
    if request.proof_bytes is None:
        return found
    # parts record no splits: the proof searches the whole again from the answer, or eliminates the network
    return replace(found, proof=draft_of_parts(found.certificate))


def _searched(
    question: _Question, boxes: Sequence[Boxes], seed: int, control: Control, executor: Executor
) -> tuple[list[Ledger], list[Status]]:
    """Search boxes; return a ledger of each, also of boxes that Ctrl-C left unsearched."""
    posterior, request = question.conditioned(), question.session.request
    ledgers: list[Ledger] = []
    statuses: list[Status] = []
    warm = _ledger_of(question, None)
    if request.warm_start is not None:
        apply_warm_start(request.warm_start, posterior, warm, np.random.default_rng([seed, len(boxes)]))

    def make(i: int) -> _Part:
        known = [warm, *ledgers]
        points = [k.atoms.points(np.array([p for _, p in k.best], np.int64)) for k in known if k.best]
        limits = request.budget.max_nodes, request.budget.max_samples
        shares = [None if limit is None else -(-limit // len(boxes)) for limit in limits]
        left = None if control.deadline is None else control.seconds_left
        found = np.concatenate(points) if points else np.empty((0, len(posterior.domain)), np.int16)
        return _Part(boxes[i].mask, found, int(np.random.default_rng([seed, i]).integers(2**63)), left, *shares)

    try:
        for ledger, status in Spread(executor, _search_part, question, WINDOW).results(len(boxes), make):
            ledgers.append(ledger.attached(posterior))
            statuses.append(status)
    except KeyboardInterrupt:
        if all(ledger.best_point is None for ledger in [warm, *ledgers]):
            raise
        statuses.append(Status.INTERRUPTED)
    ledgers += [_unsearched(question, box) for box in boxes[len(ledgers) :]]
    ledgers[0].candidates(warm.atoms.points(slice(None)))
    return ledgers, statuses


def _unsearched(question: _Question, box: Boxes) -> Ledger:
    """Return a ledger of an unsearched box, with only the posterior's bound."""
    ledger, posterior = _ledger_of(question, box), question.conditioned()
    if isinstance(posterior, Probes | Bounds):
        ledger.upper_bound(float(log_bounds(posterior, box)[0]), BOUND)
    elif _is_impossible(posterior, box):
        ledger.upper_bound(-math.inf, BOUND)
    return ledger


def _is_impossible(posterior: Posterior, box: Boxes) -> bool:
    """Whether a box is known to have probability 0, so that there is nothing to search or draw."""
    if isinstance(posterior, Masses) and float(posterior.log_mass(box)[0]) == -math.inf:
        return True
    return isinstance(posterior, Probes | Bounds) and float(log_bounds(posterior, box)[0]) == -math.inf


def _ledger_of(question: _Question, box: Boxes | None, **how: Any) -> Ledger:
    return ledger_of(question.conditioned(), question.session.request, question.solver, boxes=box, **how)


def _search_part(question: _Question, part: _Part) -> tuple[Ledger, Status]:
    """Search a box in a worker; return its ledger without the posterior, and the final status."""
    posterior, max_memory = question.conditioned(), question.session.request.budget.max_memory
    if _is_impossible(posterior, Boxes(posterior.domain, part.mask)):
        ledger = _unsearched(question, Boxes(posterior.domain, part.mask))
        ledger.candidates(part.points)
        return ledger.attached(None), Status.CERTIFIED
    control = Control.starting_now(part.seconds, max_nodes=part.max_nodes, max_memory=max_memory)
    ledger = _ledger_of(question, Boxes(posterior.domain, part.mask), control=control, max_draws=part.max_samples)
    if len(part.points):
        ledger.candidates(part.points)
    status = search_box(question.solver, ledger, np.random.default_rng(part.seed))
    return ledger.attached(None), status


def split(posterior: Posterior, n_parts: int) -> list[Boxes]:
    """Split the space into at most `n_parts` disjoint boxes, the most promising first.

    The box of the largest bound is split repeatedly, on the variable whose state bounds have the smallest sum; one
    part has the state of the largest bound, the other all other states. Without bounds the largest box is split,
    on its first variable with several states.
    """
    domain = posterior.domain
    boxes: list[tuple[float, Boxes]] = [(0.0, Boxes.full(domain))]
    prober = prober_of(posterior) if isinstance(posterior, Probes | Bounds) else None
    while len(boxes) < n_parts:
        open_ones = [k for k, (_, box) in enumerate(boxes) if max(box.sizes()) > 1]
        if not open_ones:
            break
        k = max(open_ones, key=lambda i: (boxes[i][0], boxes[i][1].sizes()[0], -i))
        _, box = boxes.pop(k)
        boxes += _halves(prober, domain, box)
    return [box for _, box in sorted(boxes, key=lambda pair: -pair[0])]


def _halves(prober: Prober | None, domain: Domain, box: Boxes) -> list[tuple[float, Boxes]]:
    """Return the two parts of a box, with their bounds."""
    held = box.mask[0]
    if prober is None:
        each = np.where(held, 0.0, -math.inf)
    else:
        each = prober.probe(prober.layout.of_boxes(box)).each_bound[0]
    free = box.counts()[0] > 1
    together = np.where(free, log_sum_runs(each, domain.offsets[:-1]), math.inf)
    v = int(np.argmax(free)) if prober is None else int(np.argmin(together))
    own = slice(int(domain.offsets[v]), int(domain.offsets[v + 1]))
    states = np.flatnonzero(held[own])  # in an impossible box the bounds cannot identify the allowed states
    top = own.start + int(states[np.argmax(each[own][states])])
    one, others = held.copy(), held.copy()
    one[own] = False
    one[top], others[top] = True, False
    rest = float(np.max(each[own], where=others[own], initial=-math.inf))
    return [(float(each[top]), Boxes(domain, one[None])), (rest, Boxes(domain, others[None]))]
