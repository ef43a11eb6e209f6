"""toulbar2, an exact solver for cost functions, run in a process of its own with limits of its own."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.control import Control
from certimap.core.posterior import Posterior
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import ROUNDING, Problem
from certimap.solvers.base import OneStepState, WholeSpaceSolver

LARGEST_COST = 2.0**58  # in units of the resolution; toulbar2 keeps costs in 64 bits
MOST_DIGITS = 12
GRACE = 2.0  # seconds that the process gets beyond its time to write its answer
POLL = 0.02


@dataclass(frozen=True)
class Toulbar2(WholeSpaceSolver, name="toulbar2", needs=(NetworkPosterior,), family="search"):
    """Hand an MPE query to toulbar2 (`pip install 'certimap[toulbar2]'`), in a process with its own limits.

    Costs are the negative logs, scaled to integers so that a relative difference of 1e-9 survives, zeros above
    every finite sum; evidence is assigned beforehand. Its assignment is scored here; its dual bound counts as a
    proof from outside, which the certificate names. 'No solution' counts as unknown. If it crashes or runs out of
    memory or time, one sentence says so, and the answer is what was found besides.

    Source: toulbar2 by Allouche, de Givry, Katsirelos, Schiex, Zytnicki and others (MIT).

    `seconds`: the most it may take; the run's own time limit holds as well. `memory`: bytes that its process may
    hold; None for what the run may hold.
    """

    seconds: float = 60.0
    memory: int | None = None
    ranges = "seconds (0, inf]; memory [1, inf)"

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse marginal MAP, and say what to install."""
        if not is_installed():
            return "solver 'toulbar2' needs pytoulbar2 (pip install 'certimap[toulbar2]'); use solver='auto'"
        if isinstance(posterior, NetworkPosterior) and posterior.problem.nuisance:
            hidden = f"{len(posterior.problem.nuisance)} are neither queried nor observed here"
            return f"solver 'toulbar2' maximises over all variables, and {hidden}; use solver='frontier'"
        return None

    def start(self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator) -> OneStepState:
        return OneStepState(posterior)

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        """Run the process to its end, or to the end of its time."""
        done = replace(state, done=True)
        ledger.candidates(state.posterior.prober().starts())
        problem = state.posterior.problem
        if not problem.sizes:
            ledger.upper_bound(float(problem.constant) + problem.log_slack, self.name)
            return done
        seconds = min(self.seconds, ledger.control.seconds_left)
        memory = self.memory or ledger.control.memory_limit
        found = run_process(problem, seconds, memory, ledger.control)
        if "solution" in found:
            variables = sorted(problem.sizes)
            ledger.candidates(state.posterior.point(dict(zip(variables, found["solution"], strict=True))))
        if "log_upper" in found:
            ledger.upper_bound(max(float(found["log_upper"]), ledger.best_log_prob), self.name)
        if "failure" in found:
            warnings.warn(f"toulbar2 {found['failure']}; the run goes on without it", stacklevel=2)
        return done


def is_installed() -> bool:
    """Whether pytoulbar2 can be imported, found without importing it."""
    return importlib.util.find_spec("pytoulbar2") is not None


def costs_of(problem: Problem) -> tuple[dict[str, Any], float, float]:
    """Return a problem as costs, ready for JSON, the natural log of cost 0, and the slack (nats) by which rounding
    may have moved any sum. The job: number of states by variable, scopes, costs (nats above each table's least),
    decimal digits, and the cost that stands for impossible.
    """
    variables = sorted(problem.sizes)
    place = {v: i for i, v in enumerate(variables)}
    tops = [float(table.log_values.max()) for table in problem.tables]
    costs = [top - np.asarray(t.log_values, np.float64) for top, t in zip(tops, problem.tables, strict=True)]
    reach = 1.0
    for cost in costs:
        reach += float(cost[np.isfinite(cost)].max())
    digits = int(max(0, min(MOST_DIGITS, math.floor(math.log10(LARGEST_COST / (reach * (len(costs) + 2)))))))
    job = {
        "sizes": [problem.sizes[v] for v in variables],
        "scopes": [[place[v] for v in table.scope] for table in problem.tables],
        "costs": [np.where(np.isfinite(c), c, reach).ravel().tolist() for c in costs],
        "digits": digits,
        "impossible": reach,
    }
    slack = problem.log_slack + (len(costs) + 1) * (10.0**-digits + 8.0 * ROUNDING * reach)
    return job, math.fsum([float(problem.constant), *tops]), slack


def run_process(problem: Problem, seconds: float, memory: int, control: Control) -> dict[str, Any]:
    """Solve in a process of its own; return what there is of `solution`, `log_upper` and `failure`."""
    job, log_zero, slack = costs_of(problem)
    job |= {"seconds": max(1, math.ceil(seconds)), "memory": memory}
    with tempfile.TemporaryDirectory(prefix="certimap-") as folder:
        path, answer = Path(folder, "job.json"), Path(folder, "answer.json")
        path.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, str(Path(__file__).with_name("toulbar2_process.py")), str(path), str(answer)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        end = time.perf_counter() + seconds + GRACE
        while process.poll() is None and time.perf_counter() < end and not control.interrupted:
            if control.is_late:
                break
            time.sleep(POLL)
        if process.poll() is None:
            process.kill()
            process.wait()
            failure = "was stopped when its time was up"
        else:
            failure = "" if process.returncode == 0 else f"ended with code {process.returncode}"
        told: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
    found: dict[str, Any] = {}
    if told.get("solution") is not None:
        found["solution"] = told["solution"]
        if told.get("bound") is not None:
            found["log_upper"] = log_zero - float(told["bound"]) + slack
    elif failure:
        found["failure"] = failure
    return found
