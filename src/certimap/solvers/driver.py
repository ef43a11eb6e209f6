"""The main loop of all solvers: budgets, progress, history, interruption and the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.certify import bounds
from certimap.certify.certificate import issue, pareto_front
from certimap.certify.external import own_source
from certimap.certify.ledger import Ledger
from certimap.certify.recorder import Recorder
from certimap.core.arguments import seed_checked
from certimap.core.control import Control, TimeUp, controlled_by
from certimap.core.posterior import Draws, Finds, Posterior
from certimap.core.result import Certificate, CertificateKind, HistoryEntry, MapResult, Status
from certimap.errors import ImpossibleEvidence, SolverError
from certimap.solvers.base import Effort, Solver
from certimap.solvers.interrupts import interruptible
from certimap.solvers.record import History, draft, located_by, ties_of, unproved
from certimap.solvers.registry import resolve
from certimap.solvers.request import Request
from certimap.solvers.warm_start import apply_warm_start

DEFAULT_MAX_DRAWS = 10_000_000
CEILING = own_source("ceiling")  # the bound from a posterior's facts, if a run ended before it had a bound
POSING = 2  # the random stream for `Solver.posed`
_UNUSED = np.random.default_rng(0)  # for solvers without a seed; making one takes longer than some steps
MAX_IDLE_STEPS = 1000  # steps without draws left or progress, after which a run ends
Progress = bool | Callable[[HistoryEntry], None] | None


def run(
    posterior: Posterior,
    request: Request,
    *,
    control: Control | None = None,
    seed: int = 0,
    progress: Progress = False,
) -> MapResult:
    """Answer a MAP query on a posterior.

    `posterior`: the distribution of the query variables.
    `request`: the requested certificate, the solver and the limits.
    `control`: limits that started earlier, so that conditioning time counts. None: start the request's budget now.
    `seed`: the solver's seed; the result records it.
    `progress`: whether to show a progress line; None: only on a terminal. A function gets each `HistoryEntry`.

    If a proof is requested, the result's `proof` holds the run's part of it; `certimap.proofs.finished` adds the
    model and the query. Raises SolverError when the solver cannot run on the posterior; the message names one that
    can. Raises ImpossibleEvidence where the run proved that every assignment has probability 0.
    """
    started = time.perf_counter()
    chosen, external, proof_bytes = resolve(request.solver, posterior), request.upper_bound, request.proof_bytes
    if control is None:
        control = request.budget.start()
    given = posterior
    if type(chosen).posed is not Solver.posed:
        posterior = chosen.posed(posterior, np.random.default_rng([seed, POSING]))
    if external is not None and posterior is not given:
        raise SolverError(
            f"upper_bound is of the query, and solver {chosen.name!r} answers another one; leave it out"
        )
    judging = chosen.judging()
    cap = judging.max_draws if request.budget.max_samples is None else request.budget.max_samples
    if cap is None and control.deadline is None:
        cap = DEFAULT_MAX_DRAWS
    recorder = None if proof_bytes is None or posterior is not given else Recorder(proof_bytes)
    how = {"control": control, "max_draws": cap, "recorder": recorder, "checks_draws": True}
    ledger = ledger_of(posterior, request, chosen, **how)
    if external is not None:
        ledger.upper_bound(external.on(posterior.facts), external.source)
    history = History(ledger, started, progress)
    with interruptible(control) as interrupts, history, controlled_by(control):
        try:
            status = _loop(posterior, chosen, ledger, history, seed, request.warm_start)
        except KeyboardInterrupt:
            if len(interrupts) > 1:
                raise
            control.interrupted = False  # the rest must run to completion
            status = Status.INTERRUPTED
        ensure_answer(posterior, ledger, seed)
        if posterior.facts.log_ceiling < ledger.log_upper_bound:
            ledger.upper_bound(posterior.facts.log_ceiling, CEILING)
        history.record(force=True)
    seconds = time.perf_counter() - started
    result = _result(ledger, chosen, status, history, seed, seconds, listed=request.top_k is not None)
    if proof_bytes is None or posterior is given:
        return result
    return replace(result, proof=unproved(f"proofs cover no answer of solver {chosen.name!r}"))


def ledger_of(posterior: Posterior, request: Request, solver: Solver, **how: Any) -> Ledger:
    """Return the ledger that judges a run of a solver by a request; `how` has the ledger's other settings."""
    judging, is_own = solver.judging(), type(solver).__module__.startswith("certimap.")
    return Ledger(
        posterior,
        epsilon=request.epsilon,
        delta=request.delta,
        top_k=request.n_answers,
        tolerance=request.tolerance,
        rule=judging.rule,
        early_stop=judging.early_stop,
        trusting=None if is_own else f"solver {solver.name!r}",
        **how,
    )


def _loop(
    posterior: Posterior, solver: Solver, ledger: Ledger, history: History, seed: int, warm_start: Any
) -> Status:
    """Apply the warm start, and step until the run ends; return why it ended."""
    if warm_start is not None:
        apply_warm_start(warm_start, posterior, ledger, _stream(seed, 0))
    history.record()
    if ledger.early_stop and ledger.satisfied:
        return Status.CERTIFIED
    ledger.control.searching = True
    try:
        rng = _stream(seed, 1) if solver.is_seeded else _UNUSED
        return _stepped(solver, solver.init(posterior, ledger.control, rng), ledger, history)
    except TimeUp:  # a step that could not end in time stopped; its reports stand
        return Status.INTERRUPTED if ledger.control.interrupted else Status.TIME_LIMIT
    finally:
        ledger.control.searching = False


def _stream(seed: int, number: int) -> np.random.Generator:
    """Return generator `number` of `default_rng(seed).spawn`, without making the others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))


def search_box(posterior: Posterior, solver: Solver, ledger: Ledger, rng: np.random.Generator) -> Status:
    """Search the box of a ledger, under the ledger's control; return why the search ended."""
    history = History(ledger, time.perf_counter(), False)
    if ledger.early_stop and ledger.satisfied:
        return Status.CERTIFIED
    try:
        return _stepped(solver, solver.init(posterior, ledger.control, rng, ledger.boxes), ledger, history)
    except TimeUp:
        return Status.TIME_LIMIT


def assemble(
    ledger: Ledger, solver: Solver, status: Status, started: float, seed: int, *, listed: bool
) -> MapResult:
    """Return the result of a merged ledger whose work began at `started`; its history has only the final entry."""
    seconds = time.perf_counter() - started
    if ledger.posterior.facts.log_ceiling < ledger.log_upper_bound:
        ledger.upper_bound(ledger.posterior.facts.log_ceiling, CEILING)
    history = History(ledger, started, False)
    history.record(force=True)
    return _result(ledger, solver, status, history, seed, seconds, listed=listed)


def _stepped(solver: Solver, state: Any, ledger: Ledger, history: History) -> Status:
    """Step until the run ends; return why it ended."""
    idle = _IdleSteps()
    while True:
        if state.done:
            return _ending(solver, ledger)
        state = solver.step(state, ledger)
        effort = solver.effort(state)
        history.record(effort.n_nodes)
        if ledger.early_stop and ledger.satisfied:
            return Status.CERTIFIED
        limit = _limit_reached(effort, ledger) or idle.judge(effort, ledger)
        if limit is not None and not state.done:
            return limit


class _IdleSteps:
    """Counts consecutive steps without progress after the draws are used up.

    Otherwise a solver that needs draws and never sets `done` would step forever. Any change (known points, masses
    and bounds, nodes, memory, work) resets the count.
    """

    def __init__(self) -> None:
        self._n = 0
        self._seen: object = None

    def judge(self, effort: Effort, ledger: Ledger) -> Status | None:
        """Return the final status after too many idle steps in a row, else None."""
        if ledger.remaining_draws != 0:
            return None
        found = (ledger.progress, effort)
        self._n = self._n + 1 if found == self._seen else 0
        self._seen = found
        return Status.SAMPLE_LIMIT if self._n >= MAX_IDLE_STEPS else None


def _ending(solver: Solver, ledger: Ledger) -> Status:
    if ledger.satisfied:
        return Status.CERTIFIED
    if solver.heuristic:
        return Status.HEURISTIC
    if ledger.early_stop and ledger.remaining_draws == 0:
        return Status.SAMPLE_LIMIT
    return Status.EXHAUSTED


def _limit_reached(effort: Effort, ledger: Ledger) -> Status | None:
    control = ledger.control
    if control.interrupted:
        return Status.INTERRUPTED
    if control.is_late:
        return Status.TIME_LIMIT
    if control.nodes_left(effort.n_nodes) == 0:
        return Status.NODE_LIMIT
    if control.max_memory is not None and ledger.n_bytes + effort.n_bytes > control.max_memory:
        return Status.MEMORY_LIMIT
    return None


def ensure_answer(posterior: Posterior, ledger: Ledger, seed: int) -> None:
    """Evaluate a quickly found point, or one draw, if a run was cut short without an answer."""
    if ledger.best_log_prob > -math.inf:
        return
    if isinstance(posterior, Finds):
        ledger.candidates(posterior.possible_point())
    elif ledger.best_point is not None:
        return
    elif isinstance(posterior, Draws):
        ledger.candidates(posterior.sample(1, np.random.default_rng([seed, 1])))
    elif ledger.control.is_late:
        raise TimeUp("looking for a first assignment")
    else:
        raise SolverError("the run ended before any assignment was evaluated; raise time_limit or max_nodes")


def seed_of(rng: int | np.random.Generator | None) -> int:
    """Return the given seed, or draw one from the given or a new generator."""
    seed_checked(rng)
    if rng is None or isinstance(rng, np.random.Generator):
        return int(np.random.default_rng(rng).integers(2**63))
    return int(rng)


def _result(
    ledger: Ledger, solver: Solver, status: Status, history: History, seed: int, seconds: float, *, listed: bool
) -> MapResult:
    """Assemble the result."""
    from certimap import __version__

    upper = ledger.log_upper_bound
    if upper == -math.inf:
        raise ImpossibleEvidence("no assignment of the query variables is possible: each has probability 0")
    certificate = issue(ledger)
    status = _settled(status, certificate)
    best = ledger.best
    points = ledger.atoms.points(np.array([i for _, i in best], np.int64))
    labels = [solver.decode(ledger.posterior, p) for p in points]
    facts = ledger.posterior.facts
    evidence, normalised = facts.log_evidence, facts.is_normalised
    # The ledger's logs are of p(q | e) or of p(q, e); with p(e) known, one follows from the other.
    shift = None if evidence is None else evidence if normalised else -evidence
    other = None if shift is None else best[0][0] + shift
    other_upper = None
    if shift is not None:  # which was rounded to nearest
        other_upper = bounds.round_up(upper + bounds.round_up(shift, max(bounds.SLACK, facts.log_slack)))
    conditional, conditional_upper = (best[0][0], upper) if normalised else (other, other_upper)
    joint, joint_upper = (other, other_upper) if normalised else (best[0][0], upper)
    to_conditional = 0.0 if normalised or shift is None else shift
    value, answer = best[0]
    room = ledger.tolerance + 2.0 * max(bounds.SLACK, facts.log_slack)
    return MapResult(
        assignment=labels[0],
        log_prob=conditional,
        log_evidence=evidence,
        log_joint=joint,
        log_upper_bound=conditional_upper,
        log_joint_upper_bound=joint_upper,
        certificate=certificate,
        pareto=pareto_front(ledger),
        status=status,
        n_draws=ledger.n_draws,
        n_draws_to_best=ledger.n_draws_to_best,
        n_evaluations=ledger.n_evaluations,
        seconds=seconds,
        seed=seed,
        solver=solver.name,
        version=__version__,
        history=history.entries,
        ties=ties_of(ledger, solver),
        located=located_by(ledger),
        top=[(label, value + to_conditional) for label, (value, _) in zip(labels, best, strict=True)]
        if listed
        else None,
        min_entropy_bits=bounds.min_entropy_bits(upper, best[0][0]) if facts.has_masses else None,
        draws_needed=bounds.draws_between(upper, best[0][0], ledger.epsilon, ledger.delta)
        if facts.has_masses and ledger.delta > 0.0
        else None,
        proof=None if ledger.recorder is None else draft(ledger, certificate, ledger.recorder),
        is_density=facts.is_density,
        is_lower_side=bool(ledger.atoms.log_uppers[answer] > value + room),
    )


def _settled(status: Status, certificate: Certificate) -> Status:
    """Correct the status by the certificate: the last step may have earned it, or the run may lack it."""
    if certificate.kind is not CertificateKind.NONE:
        return status if status is Status.INTERRUPTED else Status.CERTIFIED
    return Status.EXHAUSTED if status is Status.CERTIFIED else status
