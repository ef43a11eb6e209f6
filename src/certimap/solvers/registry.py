"""Names of solvers, resolved lazily, and what solver="auto" picks."""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import Any, cast

from certimap.errors import SolverError
from certimap.posterior import Bounds, Capability, Draws, Posterior, offer_of
from certimap.solvers.base import Solver

_SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform_exploration": ("certimap.solvers.sampling.uniform_exploration:UniformExploration", {}),
    "pac": ("certimap.solvers.sampling.pac:Pac", {}),
    "smooth_pac": ("certimap.solvers.sampling.smooth_pac:SmoothPac", {}),
    "budget": ("certimap.solvers.sampling.budget:Budget", {}),
    "exhaustive": ("certimap.solvers.exhaustive:Exhaustive", {}),
    "independent": ("certimap.solvers.heuristics.independent:Independent", {}),
    "max_product": ("certimap.solvers.heuristics.max_product:MaxProduct", {}),
    "argmax_product": ("certimap.solvers.heuristics.argmax_product:ArgmaxProduct", {}),
    "frontier": ("certimap.solvers.box_search.frontier:Frontier", {}),
    "set_elimination": ("certimap.solvers.elimination.set_elimination:SetElimination", {}),
    "hbfs": ("certimap.solvers.networks.hbfs:HybridBestFirst", {}),
    # The settings of the published experiments, for reproduction.
    "paper": (
        "certimap.solvers.sampling.smooth_pac:SmoothPac",
        {"batch": 250, "radius": 1, "period": 250, "rule": "published", "max_draws": 2_500_000},
    ),
    "paper_pac": (
        "certimap.solvers.sampling.pac:Pac",
        {"batch": 250, "rule": "published", "max_draws": 2_500_000},
    ),
}
SMALL_SPACE = 2**16
SMALL_WORK = 100_000_000


def names() -> tuple[str, ...]:
    """Return the names that `solver=` accepts, "auto" first."""
    return ("auto", *_SOLVERS)


def make(name: str, **options: Any) -> Solver:
    """Build a solver by name; `options` are its settings.

    Raises
    ------
    SolverError
        For an unknown name or setting.
    """
    if name not in _SOLVERS:
        raise SolverError(f"{name!r} is no solver; {', '.join(names())} are accepted")
    place, preset = _SOLVERS[name]
    factory = _load(place)
    if factory is None:
        raise SolverError(f"solver {name!r} is not part of this installation; use solver='auto'")
    settings = {**preset, **options}
    accepted = [field.name for field in dataclasses.fields(factory)]
    for key in settings:
        if key not in accepted:
            raise SolverError(f"solver {name!r} has no setting {key!r}; it has {', '.join(sorted(accepted))}")
    return cast("Solver", factory(**settings))


def heuristics() -> tuple[str, ...]:
    """Return the names of the solvers that prove nothing by themselves, sorted."""
    return tuple(sorted(name for name, (place, _) in _SOLVERS.items() if _load(place).heuristic))


def check_solver(solver: str | Solver, options: dict[str, Any]) -> None:
    """Refuse a name or settings that no posterior could make right."""
    if isinstance(solver, str) and solver != "auto":
        make(solver, **options)
    elif options:
        where = "solver 'auto' has no setting" if solver == "auto" else "a solver object takes no further setting"
        raise SolverError(f"{where} {next(iter(options))!r}; name a solver, or set it on the solver object")


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name == module:
            return None
        raise


def wants_of(solver: str | Solver, warm_start: Any = None) -> tuple[Capability, ...] | None:
    """Return what a solver, and the heuristics that warm it, want of the representation of a model.

    None where nothing in particular is wanted and the solver is "auto", which takes the best.
    """
    given: list[Any] = [*warm_start] if isinstance(warm_start, list | tuple) else [warm_start]
    named = [item for item in given if isinstance(item, str | Solver)]
    wanted = tuple(dict.fromkeys(want for item in named for want in _wants_of_one(item)))
    if isinstance(solver, str) and solver == "auto":
        return wanted or None
    return tuple(dict.fromkeys((*_wants_of_one(solver), *wanted)))


def _wants_of_one(solver: str | Solver) -> tuple[Capability, ...]:
    if isinstance(solver, str):
        return _wanted(_load(_SOLVERS[solver][0])) if solver in _SOLVERS else ()
    return _wanted(type(solver))


def _wanted(solver: type[Solver]) -> tuple[Capability, ...]:
    if solver.view == "tree":
        from certimap.trees.bucket_tree import BucketTreePosterior

        return (*solver.needs, BucketTreePosterior)
    return solver.needs


def choose(posterior: Posterior) -> Solver:
    """Return the solver that `solver="auto"` stands for.

    - `exhaustive` where the query space has at most 65,536 states, and listing them takes at most 10^8 edge
      evaluations or there is no other way to a proof;
    - else `hbfs` where the posterior is a maximisation;
    - else `set_elimination` where the posterior offers regions that it can work on within its limits;
    - else `frontier` where the posterior answers questions about boxes;
    - else `smooth_pac` in a discrete domain, `pac` in a real one (a sampler and an oracle are enough).
    """
    domain = posterior.domain
    small = domain.log_size <= math.log(SMALL_SPACE) + 1e-9
    searchable = isinstance(posterior, Bounds)
    if small and (not searchable or math.exp(domain.log_size) * posterior.facts.work <= SMALL_WORK):
        return make("exhaustive")
    for name in ("hbfs", "set_elimination", "frontier"):
        factory = _load(_SOLVERS[name][0])
        if factory is not None and refusal(factory(), posterior) is None:
            return cast("Solver", factory())
    return make("smooth_pac" if domain.is_discrete else "pac")


def refusal(solver: Solver, posterior: Posterior) -> str | None:
    """Return the sentence that refuses a posterior, or None when the solver can run on it."""
    for capability in solver.needs:
        if not isinstance(posterior, capability):
            return (
                f"solver {solver.name!r} needs the posterior to have {offer_of(capability)}, and a "
                f"{type(posterior).__name__} has not; use solver={alternative(posterior)!r}"
            )
    return solver.unsuited(posterior)


def alternative(posterior: Posterior) -> str:
    """Name a solver that runs on any posterior of this kind."""
    if isinstance(posterior, Bounds) and not isinstance(posterior, Draws):
        return "frontier"
    return "smooth_pac" if posterior.domain.is_discrete else "pac"


def resolve(solver: str | Solver, posterior: Posterior, options: dict[str, Any]) -> Solver:
    """Turn what a user gives for `solver=` into a solver; refuse what cannot run on the posterior."""
    check_solver(solver, options)
    if solver == "auto":
        return choose(posterior)
    chosen = make(solver, **options) if isinstance(solver, str) else solver
    if not isinstance(chosen, Solver):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SolverError(f"{solver!r} is no solver; one of {', '.join(names())} or a solver object is accepted")
    sentence = refusal(chosen, posterior)
    if sentence is not None:
        raise SolverError(sentence)
    return chosen
