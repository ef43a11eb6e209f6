"""One query from conditioning to result, under one deadline and one limit on memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from certimap.core.control import Control, TimeUp
from certimap.core.posterior import Posterior
from certimap.core.result import MapResult, Status
from certimap.errors import ModelError, TooLarge
from certimap.solvers.base import Solver
from certimap.solvers.driver import check_limits, run
from certimap.solvers.interrupts import interruptible
from certimap.solvers.registry import check_solver

Condition = Callable[[Control], Posterior]
EXACT_SHARE = 0.6  # of the time limit, for conditioning; where it needs more, the rest is for what is quick
GRACE = 0.4  # seconds that finding any answer may take when nothing is left of the time limit


def answer_query(
    condition: Condition,
    fallback: Condition,
    solver: str | Solver,
    rng: Any,
    settings: Mapping[str, Any],
) -> MapResult:
    """Answer one query; the time limit covers everything from here on.

    Parameters
    ----------
    condition
        Returns the posterior that the solver works on; polls the control that it is given, and raises TimeUp.
    fallback
        Returns, quickly, a posterior on which some solver finds answers at once, for where `condition` cannot
        finish; raises ModelError where the model has none.
    solver, rng, settings
        As `certimap.solvers.driver.run` takes them; `settings` holds its keywords except `rng` and `control`.

    Raises
    ------
    TooLarge
        When the time was up, or memory ran out, and there is no answer to give: it says what was too large.
    """
    limits = {name: settings.get(name) for name in ("time_limit", "max_samples", "max_nodes", "max_memory")}
    check_limits(*limits.values())
    control = Control.starting_now(
        limits["time_limit"], max_nodes=limits["max_nodes"], max_memory=limits["max_memory"]
    )
    posterior, cut, status = conditioned_in_time(condition, control)
    if posterior is not None:
        try:
            return answer_one(posterior, solver, rng, settings, control)
        except TimeUp as late:  # what it left to be made when first needed took too long, and there is no answer
            cut = str(late)
    return answer_unfinished(fallback, cut, status, rng, settings, control)


def conditioned_in_time(condition: Condition, control: Control) -> tuple[Posterior | None, str, Status]:
    """Condition within its share of the time that is left.

    Returns
    -------
    The posterior, or None where it was cut short, what cut it short, and the status of an answer without it.
    """
    deadline = control.deadline
    if deadline is not None:  # a posterior keeps the control that it is given, so it must be the run's
        control.deadline = Control.starting_now(EXACT_SHARE * control.seconds_left).deadline
    posterior, cut, status = None, "", Status.TIME_LIMIT
    with interruptible(control) as interrupts:
        try:
            posterior = condition(control)
        except KeyboardInterrupt:
            if len(interrupts) != 1:
                raise
            deadline, control.interrupted = time.perf_counter(), False
            cut, status = "the user interrupted conditioning", Status.INTERRUPTED
        except TimeUp as late:
            cut = str(late)
            if control.interrupted:  # seen by a poll, where none could be raised
                deadline, control.interrupted = time.perf_counter(), False
                cut, status = "the user interrupted conditioning", Status.INTERRUPTED
        except MemoryError:
            cut, status = "memory ran out in conditioning", Status.MEMORY_LIMIT
    control.deadline = deadline
    return posterior, cut, status


def answer_one(
    posterior: Posterior,
    solver: str | Solver,
    rng: Any,
    settings: Mapping[str, Any],
    control: Control | None = None,
) -> MapResult:
    """Answer one query on a posterior; one without variables has an answer that no solver need look for."""
    if len(posterior.domain):
        return run(posterior, solver, rng=rng, control=control, **settings)
    check_solver(solver, settings.get("options") or {})
    plain: dict[str, Any] = {**settings, "options": None, "warm_start": None}
    return run(posterior, "exhaustive", rng=rng, control=control, **plain)


def answer_unfinished(
    fallback: Condition, cut: str, status: Status, rng: Any, settings: Mapping[str, Any], control: Control
) -> MapResult:
    """Answer by what is quick, and say what was cut short; raises TooLarge as `answer_query` does."""
    if control.deadline is not None:
        control.deadline = max(control.deadline, time.perf_counter() + GRACE)
    plain: dict[str, Any] = {**settings, "options": None, "warm_start": None, "upper_bound": None}
    try:
        result = run(fallback(control), "auto", rng=rng, control=control, **plain)
    except (ModelError, TimeUp, MemoryError) as problem:
        raise TooLarge(
            f"{cut}, and no assignment was evaluated by then ({problem}); raise time_limit or max_memory, observe "
            "more variables, or query other ones"
        ) from None
    return replace(result, status=result.status if result.certified else status, note=cut)
