"""Checking everything that certimap says about a hostile model against the truth."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from certimap.ask.api import condition, map_query
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions import choose
from certimap.core.control import Limits, TimeUp
from certimap.core.posterior import Capability
from certimap.core.query import make_query
from certimap.errors import CertimapError, ImpossibleEvidence, MissingDependency, SolverError, TooLarge
from certimap.solvers.driver import run
from certimap.solvers.registry import heuristics, names
from certimap.solvers.request import Request
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap_lab.hostile.answers import check_answer
from certimap_lab.hostile.case import HostileCase
from certimap_lab.hostile.densities import DensityCase, check_density
from certimap_lab.hostile.edges import EdgeCase
from certimap_lab.hostile.exact import arithmetic
from certimap_lab.hostile.families import family_of, make_case
from certimap_lab.hostile.report import CaseReport
from certimap_lab.hostile.values import check_values

PRESETS = frozenset({"paper", "paper_pac"})  # settings of solvers that are there under their own names
MAX_DRAWS = 1000
EPSILONS = (0.0, 0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5)
SECONDS = 5.0  # a solver that has not come to an end by then answers for what it has
SECONDS_OF_HEURISTICS = (
    0.2  # they would walk on for seconds where there are a thousand variables, and claim no more
)
ONE_THREAD = Limits(workers=1)
KINDS_OF_POSTERIOR: dict[str, Capability] = {"circuit": CircuitPosterior, "tree": BucketTreePosterior}
T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """One run of a solver."""

    solver: str
    path: str  # "model", "condition", or a kind of posterior
    settings: dict[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in self.settings.items())
        return f"{self.solver} ({self.path}, {shown})"


def check_seed(seed: int) -> CaseReport:
    """Make the hostile model of a seed, put it to every solver, and compare all that is said with the truth."""
    report = CaseReport(seed, family_of(seed))
    case = _guarded(report, "making the model", lambda: make_case(seed))
    if case is None or case.refusal is not None:
        report.n_checks += 1
        return report
    rng = np.random.default_rng([seed, 11])
    with arithmetic():
        if isinstance(case, EdgeCase):
            _guarded(report, "asking", lambda: case.check(report))
        elif isinstance(case, DensityCase):
            _guarded(report, "solving", lambda: check_density(case, rng, report))
        else:
            check_case(case, rng, report)
    return report


def check_case(case: HostileCase, rng: np.random.Generator, report: CaseReport) -> None:
    paths: dict[str, Callable[[], Any]] = {"condition": lambda: condition(case.model, case.query, case.evidence)}
    if case.query is not None:
        query = make_query(case.model.domain, case.query, case.evidence)
        for name, kind in KINDS_OF_POSTERIOR.items():
            paths[name] = lambda kind=kind: choose.condition(case.model, query, wants=(kind,), limits=ONE_THREAD)
    if not case.truth.total:
        for path, build in paths.items():
            _expect_impossible(report, path, build)
        return
    posteriors: dict[str, Any] = {}
    for path, build in paths.items():
        made = _guarded(report, path, build)
        if made is not None:
            posteriors[path] = made
    kinds: set[str] = set()
    for path, posterior in posteriors.items():
        if type(posterior).__name__ in kinds:
            continue  # two paths to the same kind of posterior
        kinds.add(type(posterior).__name__)
        _guarded(
            report, f"values ({path})", lambda p=posterior, name=path: check_values(report, p, case, rng, name)
        )
    log_slack = max((posterior.facts.log_slack for posterior in posteriors.values()), default=0.0)
    for ask in asks(rng, [*posteriors, *(["model"] if case.query is not None else [])], case):
        result = _guarded(report, str(ask), lambda ask=ask: _answer(case, posteriors, ask, report))
        if result is not None:
            check_answer(report, result, case, ask.settings, log_slack, str(ask))


def asks(rng: np.random.Generator, paths: list[str], case: HostileCase) -> Iterator[Ask]:
    """Yield one run of every solver, with settings drawn at random."""
    n_points = math.prod(case.truth.sizes)
    for solver in names():
        if solver in PRESETS or not paths:
            continue
        settings: dict[str, Any] = {
            "epsilon": float(rng.choice(EPSILONS)),
            "delta": float(rng.choice([0.0, 0.01, 0.1])),
        }
        if rng.random() < 0.5:
            settings["top_k"] = int(rng.choice([1, 2, 3, 9, min(n_points, 300), min(n_points, 300) + 3]))
        if rng.random() < 0.3:
            settings["max_nodes"] = int(rng.choice([1, 3, 20]))
        settings["max_samples"] = int(rng.choice([1, 7, 100])) if rng.random() < 0.3 else MAX_DRAWS
        settings["rng"] = int(rng.integers(1000))
        yield Ask(solver, str(rng.choice(paths)), settings)


def _answer(case: HostileCase, posteriors: dict[str, Any], ask: Ask, report: CaseReport) -> Any:
    """Run a solver; None where it is not meant for this posterior, as it says, or had too little time."""
    seconds = SECONDS_OF_HEURISTICS if ask.solver in heuristics() else SECONDS
    settings: Any = {k: v for k, v in ask.settings.items() if k != "rng"}
    settings |= {"solver": ask.solver, "time_limit": seconds, "workers": 1}
    seed: int = ask.settings["rng"]
    started = time.monotonic()
    try:
        if ask.path == "model":
            return map_query(case.model, case.query, case.evidence, rng=seed, progress=False, **settings)
        return run(posteriors[ask.path], Request.of(**settings), seed=seed)
    except MissingDependency:
        return None
    except (SolverError, TooLarge, TimeUp) as error:
        if isinstance(error, SolverError) and ask.solver != "auto" and "solver" in str(error):
            return None
        if time.monotonic() - started >= seconds:
            report.n_late += 1
            return None
        raise


def _expect_impossible(report: CaseReport, path: str, build: Callable[[], Any]) -> None:
    try:
        build()
    except ImpossibleEvidence:
        report.n_checks += 1
    except Exception as error:
        report.fail("error", f"{path}: impossible evidence ends in {_said(error)}")
    else:
        report.fail("value", f"{path}: impossible evidence is accepted")


def _guarded(report: CaseReport, what: str, action: Callable[[], T]) -> T | None:
    """Return what an action returns; record what it raises, for nothing here deserves an exception."""
    try:
        return action()
    except Exception as error:
        report.fail("error", f"{what}: {_said(error)}")
        return None


def _said(error: Exception) -> str:
    place = ""
    if not isinstance(error, CertimapError):
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f" at {last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{type(error).__name__}{place}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
