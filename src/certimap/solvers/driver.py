"""The main loop of all solvers: warm starts, limits, Ctrl-C, history and the result."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from types import FrameType
from typing import Any

import numpy as np

from certimap.certify import bounds
from certimap.certify.ledger import Ledger, issue, own_source, pareto_front
from certimap.certify.recorder import Recorder
from certimap.core.arguments import is_mapping, is_sequence, seed_checked
from certimap.core.box import Boxes, Points
from certimap.core.control import Control, TimeUp, controlled_by
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import Draws, Finds, Posterior
from certimap.core.result import Certificate, CertificateKind, HistoryEntry, MapResult, Status
from certimap.errors import ImpossibleEvidence, SolverError
from certimap.solvers.base import Effort, Solver
from certimap.solvers.record import History, draft, located_by, ties_of, unproved
from certimap.solvers.registry import heuristics, resolve
from certimap.solvers.request import Request

DEFAULT_MAX_DRAWS = 10_000_000
CEILING = own_source("ceiling")  # the bound from a posterior's facts, if a run ended before it had a bound
SEARCHED = own_source("search")  # the bound of a search over all numbers, for an answer of whole ones
POSING = 2  # the random stream for `Solver.posed`
_UNUSED = np.random.default_rng(0)  # for solvers without a seed; making one takes longer than some steps
MAX_IDLE_STEPS = 1000  # steps without draws left or progress, after which a run ends
UNFOUND = "the run ended before it found an assignment that satisfies the constraints; raise limits"
Progress = bool | Callable[[HistoryEntry], None] | None
_c: Any = import_module("_signal")  # the functions that `signal` wraps, ten times as fast
_interrupts: list[int] = []  # every Ctrl-C that `interruptible` caught, per process


def run(
    posterior: Posterior,
    request: Request,
    *,
    control: Control | None = None,
    seed: int = 0,
    progress: Progress = False,
) -> MapResult:
    """Answer a MAP query on a posterior.

    `posterior`, `request`: the distribution of the query variables; certificate, solver and limits.
    `control`: limits that started earlier, so that conditioning time counts. None: start the request's budget now.
    `seed`: the solver's seed; the result records it.
    `progress`: whether to show a progress line; None: only on a terminal. A function gets each `HistoryEntry`.

    If a proof is requested, the result's `proof` holds the run's part of it; `certimap.proofs.finished` adds the
    model and the query. Raises SolverError, which names another solver, when this one cannot run on the posterior,
    and ImpossibleEvidence where the run proved that every assignment has probability 0.
    """
    started = time.perf_counter()
    chosen, external, proof_bytes = resolve(request.solver, posterior), request.upper_bound, request.proof_bytes
    if control is None:
        control = request.budget.start()
    given = posterior
    if type(chosen).posed is not Solver.posed:
        posterior = chosen.posed(posterior, np.random.default_rng([seed, POSING]))
    if external is not None and posterior is not given:
        raise SolverError(f"upper_bound is of the query, and {chosen.name!r} answers another one; leave it out")
    judging = chosen.judging()
    cap = judging.max_draws if request.budget.max_samples is None else request.budget.max_samples
    if cap is None and control.deadline is None:
        cap = DEFAULT_MAX_DRAWS
    recorder = None if proof_bytes is None or posterior is not given else Recorder(proof_bytes)
    how = {"control": control, "max_draws": cap, "recorder": recorder, "checks_draws": True}
    whole = _whole_numbers(posterior, request)
    ledger = ledger_of(
        posterior, replace(request, epsilon=0.5 * request.epsilon) if whole else request, chosen, **how
    )
    if external is not None:
        ledger.upper_bound(external.on(posterior.facts), external.source)
    history = History(ledger, started, progress)
    control.best = lambda: None if (p := ledger.best_point) is None else chosen.decode(posterior, p)
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
    control.best, seconds = None, time.perf_counter() - started
    if whole:
        judged = _rounded(ledger, whole, ledger_of(posterior, request, chosen, control=control))
        result = _result(judged, chosen, status, history, seed, seconds, listed=False)
        proof = None if recorder is None else unproved("its numbers were rounded to whole ones after the search")
        n_draws, to_best, n_seen = ledger.n_draws, ledger.n_draws_to_best, ledger.n_evaluations + 1
        return replace(result, proof=proof, n_draws=n_draws, n_draws_to_best=to_best, n_evaluations=n_seen)
    result = _result(ledger, chosen, status, history, seed, seconds, listed=request.top_k is not None)
    if proof_bytes is None or posterior is given:
        return result
    return replace(result, proof=unproved(f"proofs cover no answer of solver {chosen.name!r}"))


def _whole_numbers(posterior: Posterior, request: Request) -> list[bool]:
    """Return which numbers of an answer are to be rounded to whole ones; empty if none, or for lists."""
    whole = [isinstance(v, Real) and v.is_whole for v in posterior.domain]
    return whole if any(whole) and posterior.facts.is_density and request.top_k is request.top_mass is None else []


def _rounded(ledger: Ledger, whole: list[bool], judged: Ledger) -> Ledger:
    """Judge a search's answer by its bound on all numbers; rounding may lose the half of epsilon that it left."""
    point, outside = ledger.best_point, ledger.external
    assert point is not None
    if judged.candidates(np.where(whole, np.rint(point), point)[None])[0] == -math.inf:
        judged.candidates(point[None])
    if ledger.log_upper_bound < math.inf:
        judged.upper_bound(ledger.log_upper_bound, SEARCHED if outside is None or outside[2] else outside[1])
    return judged


def ledger_of(posterior: Posterior, request: Request, solver: Solver, **how: Any) -> Ledger:
    """Return the ledger that judges a run of a solver by a request; `how` has the ledger's other settings."""
    judging, is_own = solver.judging(), type(solver).__module__.startswith("certimap.")
    how |= {name: vars(request)[name] for name in ("epsilon", "delta", "tolerance")}
    how |= {name: vars(judging)[name] for name in ("rule", "early_stop")}
    trusting = None if is_own else f"solver {solver.name!r}"
    return Ledger(posterior, top_k=request.n_answers, trusting=trusting, **how)


def _loop(
    posterior: Posterior, solver: Solver, ledger: Ledger, history: History, seed: int, warm_start: Any
) -> Status:
    """Apply the warm start, and step until the run ends; return why it ended."""
    if warm_start is not None:
        apply_warm_start(warm_start, posterior, ledger, _stream(seed, 0))
    history.record()
    return _searched(solver, ledger, _stream(seed, 1) if solver.is_seeded else _UNUSED, None, history)


def _stream(seed: int, number: int) -> np.random.Generator:
    """Return generator `number` of `default_rng(seed).spawn`, without making the others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))


def search_box(solver: Solver, ledger: Ledger, rng: np.random.Generator) -> Status:
    """Search the box of a ledger, under the ledger's control; return why the search ended."""
    return _searched(solver, ledger, rng, ledger.boxes, History(ledger, time.perf_counter(), False))


def _searched(
    solver: Solver, ledger: Ledger, rng: np.random.Generator, boxes: Boxes | None, history: History
) -> Status:
    if ledger.early_stop and ledger.satisfied:
        return Status.CERTIFIED
    ledger.control.searching = True
    try:
        return _stepped(solver, solver.init(ledger.posterior, ledger.control, rng, boxes), ledger, history)
    except TimeUp:  # a step that could not end in time stopped; its reports stand
        return Status.INTERRUPTED if ledger.control.interrupted else Status.TIME_LIMIT
    finally:
        ledger.control.searching = False


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
    """Step until the run ends, or 1,000 steps in a row change nothing with no draws left; return why it ended."""
    n_idle, seen = 0, None
    while True:
        if state.done:
            return _ending(solver, ledger)
        state = solver.step(state, ledger)
        effort = solver.effort(state)
        history.record(effort.n_nodes)
        if ledger.early_stop and ledger.satisfied:
            return Status.CERTIFIED
        limit = _limit_reached(effort, ledger)
        if limit is None and ledger.remaining_draws == 0:
            before, seen = seen, (ledger.progress, effort)
            n_idle = n_idle + 1 if seen == before else 0
            limit = Status.SAMPLE_LIMIT if n_idle >= MAX_IDLE_STEPS else None
        if limit is not None and not state.done:
            return limit


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
        if not ledger.best and ledger.log_upper_bound > -math.inf:
            raise SolverError(UNFOUND)
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
        top=[(label, v + to_conditional) for label, (v, _) in zip(labels, best, strict=True)] if listed else None,
        min_entropy_bits=bounds.min_entropy_bits(upper, best[0][0])
        if facts.has_masses and ledger.rules is None
        else None,
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


@contextmanager
def interruptible(control: Control) -> Generator[list[int]]:
    """Let the first Ctrl-C end the run with its best answer; a second one is raised. Yields the signals so far."""
    received: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    previous = _c.getsignal(signal.SIGINT) if is_main else None
    if previous is not signal.default_int_handler:
        yield received  # a user's own handler stays installed
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        _interrupts.append(signum)
        control.interrupted = True
        if len(received) > 1 or not control.busy:
            raise KeyboardInterrupt

    _c.signal(signal.SIGINT, handle)
    try:
        yield received
    finally:
        _c.signal(signal.SIGINT, previous)


def n_interrupts() -> int:
    """Return how many Ctrl-C the runs of this process have caught, even where a run had its proof by then."""
    return len(_interrupts)


def apply_warm_start(warm_start: Any, posterior: Posterior, ledger: Ledger, rng: np.random.Generator) -> None:
    """Give a warm start to the ledger; probabilities are recomputed, and nothing counts as a draw.

    `warm_start`: None; the name of a solver that finishes by itself (such as "argmax_product"), or a solver
    object; an assignment of labels by name; a data frame of labels, one assignment per row; an array of state
    positions, shape (batch, n) or (n,); or a list of any of these. Raises QueryError for names or labels that are
    unknown, missing or misspelt, SolverError for anything else.
    """
    if warm_start is None:
        return
    if isinstance(warm_start, str | Solver):
        _run_heuristic(warm_start, posterior, ledger, rng)
        return
    numbers = int | float | np.integer | np.floating
    if is_sequence(warm_start) and not (len(warm_start) > 0 and all(isinstance(x, numbers) for x in warm_start)):
        for item in warm_start:
            apply_warm_start(item, posterior, ledger, rng)
        return
    ledger.candidates(as_points(warm_start, posterior.domain))


def as_points(given: Any, domain: Domain) -> Points:
    """Convert an assignment, a frame of assignments or an array of positions to points, shape (batch, n)."""
    if is_mapping(given):
        return domain.encode(dict(given))[None, :]
    if hasattr(given, "to_dict"):
        rows: list[dict[str, Any]] = given.to_dict("records") if hasattr(given, "columns") else [given.to_dict()]
        return np.array([domain.encode(row) for row in rows], domain.point_dtype).reshape(len(rows), len(domain))
    try:
        points = np.atleast_2d(np.asarray(given, np.float64))
    except (TypeError, ValueError):
        raise SolverError(
            f"a warm start is a {type(given).__name__}; expected an assignment of labels by name, a data frame of "
            "them, an array of state positions, a list of these, or the name of a heuristic"
        ) from None
    if points.ndim != 2 or points.shape[1] != len(domain):
        raise SolverError(f"a warm start has shape {points.shape}; expected (batch, {len(domain)})")
    for variable, column in zip(domain, points.T, strict=True):
        is_label = isinstance(variable, Categorical)
        low, high = (0, variable.n_states - 1) if is_label else (variable.low, variable.high)
        bad = ~((column >= low) & (column <= high)) | (is_label & (column != np.floor(column)))
        if np.any(bad):
            given = f"{column[bad][0]:g} to variable {variable.name!r}"
            accepted = f"a {'position' if is_label else 'number'} from {low} to {high}"
            raise SolverError(f"a warm start gives {given}; expected {accepted}")
    return points.astype(domain.point_dtype)


def _run_heuristic(chosen: Any, posterior: Posterior, ledger: Ledger, rng: np.random.Generator) -> None:
    solver = resolve(chosen, posterior)
    if Draws in solver.needs and not solver.heuristic:
        raise SolverError(f"solver {solver.name!r} draws, and a warm start may not; {', '.join(heuristics())} may")
    state = solver.init(posterior, ledger.control, rng)
    while not (state.done or ledger.control.should_stop):
        state = solver.step(state, ledger)
