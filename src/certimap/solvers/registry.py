"""Names of solvers, resolved lazily, and the choice for solver="auto"."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from certimap.core.arguments import meant_keyword, shown
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.domain import Domain
from certimap.core.named import at
from certimap.core.posterior import (
    AsNetwork,
    Bounds,
    Capability,
    Draws,
    Guesses,
    Masses,
    Posterior,
    Probes,
    TwoSided,
    offer_of,
    offers,
)
from certimap.errors import SolverError, did_you_mean
from certimap.solvers.base import Family, Solver

if TYPE_CHECKING:
    from certimap.conversions.choose import Choice

_PAPER = {"batch": 250, "rule": "published", "max_draws": 2_500_000}
ENTRY_POINTS = "certimap.solvers"  # the entry point group for solvers of installed packages
PROVERS = ("hbfs", "set_elimination", "portfolio", "frontier", "path_merging")  # tried by `auto` in this order
SMALL_SPACE = 2**16
SMALL_WORK = 100_000_000
OUTSIDE_SHARE = 0.25  # of the time left in a long search, for toulbar2
DEAR_TREE = 2.0**14  # tree entries from which the network's own tables are searched too
RELAXED_WORK = 1e9  # limit on listing if only a relaxation bounds boxes, because a search might never close


@dataclass(frozen=True)
class Entry:
    """A registered solver: its class or import path, and settings that differ from the class defaults."""

    solver: type[Solver] | str
    settings: dict[str, Any]

    def load(self) -> type[Solver]:
        """Return the class."""
        return at(self.solver) if isinstance(self.solver, str) else self.solver


_SOLVERS: dict[str, Entry] = {
    name: Entry(f"certimap.solvers.{place}", settings)
    for name, place, settings in (
        ("independent", "baselines.decoding:Independent", {}),
        ("max_product", "baselines.decoding:MaxProduct", {}),
        ("argmax_product", "baselines.decoding:ArgmaxProduct", {}),
        ("hybrid_bp", "baselines.decoding:HybridBeliefPropagation", {}),
        ("beam", "baselines.decoding:BeamSearch", {}),
        ("hill_climb", "baselines.local_search:HillClimb", {}),
        ("mcmc", "baselines.local_search:AnnealedGibbs", {}),
        ("mcts", "baselines.local_search:TreeSearch", {}),
        ("guess", "base:Guess", {}),
        ("pac", "sampling:Pac", {}),
        ("smooth_pac", "sampling:SmoothPac", {}),
        # The settings of the published experiments, for reproduction.
        ("paper_max_product", "baselines.decoding:PaperMaxProduct", {}),
        ("paper_pac", "sampling:Pac", _PAPER),
        ("paper", "sampling:SmoothPac", _PAPER | {"radius": 1, "period": 250}),
        ("budget", "sampling:FixedBudget", {}),
        ("uniform_exploration", "sampling:FixedBudget", {}),
        ("cells", "baselines.cells:Cells", {}),
        ("exhaustive", "exhaustive:Exhaustive", {}),
        ("doo", "box_search.optimistic:Doo", {}),
        ("soo", "box_search.optimistic:Soo", {}),
        ("hoo", "box_search.optimistic:Hoo", {}),
        ("frontier", "box_search.frontier:Frontier", {}),
        ("hbfs", "networks.hbfs:HybridBestFirst", {}),
        ("set_elimination", "elimination.set_elimination:SetElimination", {}),
        ("path_merging", "path_merging:PathMerging", {}),
        ("bucket_elimination", "networks.wmb:WeightedMiniBuckets", {"i_bound": None}),
        ("wmb", "networks.wmb:WeightedMiniBuckets", {}),
        ("portfolio", "networks.portfolio:Portfolio", {}),
        ("full_width", "networks.full_width:FullWidth", {}),
        ("ijgp", "baselines.ijgp:JoinGraphPropagation", {}),
        ("aobb", "networks.and_or:AndOrBranchAndBound", {}),
        ("aobf", "baselines.aobf:AndOrBestFirst", {}),
        ("aaobf", "baselines.aobf:AndOrBestFirst", {"dives": True}),
        ("toulbar2", "networks.toulbar2:Toulbar2", {}),
    )
}


def names() -> tuple[str, ...]:
    """Return the names that `solver=` accepts, "auto" first."""
    return ("auto", *_SOLVERS)


def register(name: str, solver: type[Solver] | str, **settings: Any) -> None:
    """Register a solver under a name for `solver=`, in this process.

    An installed package registers its solvers permanently by entry points of the group "certimap.solvers".

    `name`: the new name. `solver`: a class derived from `certimap.Solver`, or "module:Class" to import it when
    first used. `settings`: settings that differ from the class defaults. Raises SolverError when the name is in
    use, or the class is not a solver.
    """
    if name in names():
        raise SolverError(f"solver {name!r} exists already; a new name is expected")
    if not isinstance(solver, str) and not (isinstance(solver, type) and issubclass(solver, Solver)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SolverError(f"{solver!r} is no solver class; a class derived from certimap.Solver is expected")
    _SOLVERS[name] = Entry(solver, settings)


def entry(name: str) -> Entry:
    """Look up a name among solvers built in, registered or installed; raise SolverError for an unknown one."""
    if name not in _SOLVERS:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            _SOLVERS[name] = Entry(point.value, {})
    if name not in _SOLVERS:
        raise SolverError(f"{name!r} is no solver; expected {', '.join(names())}{did_you_mean(name, names())}")
    return _SOLVERS[name]


def make(name: str, **options: Any) -> Solver:
    """Build a solver by name; raise SolverError for an unknown name, or a setting in `options`."""
    found = entry(name)
    factory: Any = found.load()
    accepted = [field.name for field in dataclasses.fields(factory)] if options else []
    for key in options:
        if key not in accepted:
            listed, meant = ", ".join(sorted(accepted)), meant_keyword(key, accepted)
            raise SolverError(f"solver {name!r} has no setting {key!r}; it has {listed}{meant}")
    try:
        return factory(**{**found.settings, **options})
    except (TypeError, OverflowError) as error:  # a text is compared with a number
        raise SolverError(f"solver {name!r} refuses the settings {options!r}: {error}") from None


def heuristics() -> tuple[str, ...]:
    """Return the names of the solvers that prove nothing by themselves, sorted."""
    return tuple(sorted(name for name, found in _SOLVERS.items() if found.load().heuristic))


def family(name: str) -> Family:
    """Return the kind of method of a name; "other" if it is unknown, and "search" for "auto"."""
    if name == "auto":
        return "search"
    return _SOLVERS[name].load().family if name in _SOLVERS else "other"


def made(solver: str | Solver, options: Mapping[str, Any] | None = None) -> Solver | Literal["auto"]:
    """Convert the argument `solver=` to a solver; "auto" stays until a posterior is known. Raises as `make`."""
    if isinstance(solver, str) and solver != "auto":
        return make(solver, **options or {})
    if not isinstance(solver, str | Solver):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SolverError(f"{shown(solver)} is no solver; expected one of {', '.join(names())} or a solver object")
    if options:
        key, is_auto = next(iter(options)), isinstance(solver, str)
        where = "solver 'auto' has no setting" if is_auto else "a solver object takes no further setting"
        meant = meant_keyword(key) or "; name a solver, or set it on the solver object"
        raise SolverError(f"{where} {key!r}{meant}")
    return "auto" if isinstance(solver, str) else solver


def wants_of(solver: str | Solver, warm_start: Any = None) -> tuple[Capability, ...] | None:
    """Return the capabilities that a solver and its warm starts need; None for 'auto' if none in particular."""
    given: list[Any] = [*warm_start] if isinstance(warm_start, list | tuple) else [warm_start]
    is_auto = isinstance(solver, str) and solver == "auto"
    named = ([] if is_auto else [solver]) + [item for item in given if isinstance(item, str | Solver)]
    kinds = (entry(item).load() if isinstance(item, str) else type(item) for item in named)
    wanted = tuple(dict.fromkeys(want for kind in kinds for want in kind.needs))
    return None if is_auto and not wanted else wanted


def choose(posterior: Posterior) -> Solver:
    """Return the solver that `solver="auto"` chooses.

    - `guess` if a hurriedly made posterior offers nothing else;
    - `exhaustive` if the query space has at most 65,536 states, points have exact values, and either listing them
      takes at most 10^8 edge evaluations (10^9 if bounds come from a relaxation) or no other proof is possible;
    - `portfolio` for a large tree of a network, whose sets of vectors may outgrow any limit;
    - else the first of `PROVERS` whose needs and limits the posterior meets;
    - else `smooth_pac` in a discrete domain and `pac` for counts (a sampler and an oracle are enough), and for a
      density `soo` if all variables are bounded, else `budget`.
    """
    if isinstance(posterior, Guesses):
        return make("guess")
    is_listed = not isinstance(posterior, TwoSided)  # otherwise listing would not give exact values
    limit = math.inf
    if isinstance(posterior, Probes | Bounds):
        limit = SMALL_WORK if isinstance(posterior, Masses) else RELAXED_WORK
    if isinstance(posterior, ConstrainedPosterior):
        n_answers = posterior.rules.listable if posterior.domain.is_discrete else None
        is_small = n_answers is not None and n_answers * posterior.facts.work <= limit
    else:
        is_small = _is_small(posterior.domain, posterior.facts.work, limit)
    if is_listed and is_small:
        return make("exhaustive")
    if isinstance(posterior, AsNetwork) and posterior.as_network is not None and posterior.facts.work > DEAR_TREE:
        return make("portfolio")
    for name in PROVERS:
        if all(isinstance(posterior, capability) for capability in entry(name).load().needs):
            solver = make(name)
            if solver.unsuited(posterior) is None:
                if name == "hbfs" and import_module("certimap.solvers.networks.toulbar2").is_installed():
                    return make(name, outside_share=OUTSIDE_SHARE)  # it may call toulbar2
                return solver
    return make(_last_resort(posterior))


def _last_resort(posterior: Posterior) -> str:
    """Name a solver that needs only draws or values."""
    if posterior.domain.is_discrete:
        return "smooth_pac"
    if not posterior.facts.is_density:
        return "pac"
    return "soo" if make("soo").unsuited(posterior) is None else "budget"


def expected(choice: Choice) -> str:
    """Predict what `auto` will choose on a representation not built yet; limits known only then may change it."""
    domain, available = choice.case.query.query_domain, choice.row.offers
    searchable, weighed = Probes in available, Masses in available
    limit = math.inf if not searchable else SMALL_WORK if weighed else RELAXED_WORK
    if TwoSided not in available and _is_small(domain, choice.options[-1].estimate.work, limit):
        return "exhaustive"
    found = (name for name in PROVERS if offers(available, entry(name).load().needs))
    return next(found, "smooth_pac" if domain.is_discrete else "budget")


def _is_small(domain: Domain, work: float, limit: float) -> bool:
    return domain.log_size <= math.log(SMALL_SPACE) + 1e-9 and math.exp(domain.log_size) * work <= limit


def refusal(solver: Solver, posterior: Posterior) -> str | None:
    """Return why a solver refuses a posterior, or None if it can run on it."""
    for capability in solver.needs:
        if isinstance(posterior, capability):
            continue
        instead, kind = f"use solver={alternative(posterior, solver.family)!r}", type(posterior).__name__
        if isinstance(posterior, ConstrainedPosterior):
            kind = type(posterior.whole).__name__
            return f"solver {solver.name!r} knows no constraints on a {kind}; {instead}"
        lack = f"needs the posterior to have {offer_of(capability)}, and a {kind} has not"
        return f"solver {solver.name!r} {lack}; {instead}"
    return solver.unsuited(posterior)


def alternative(posterior: Any, wanted: Family = "other") -> str:
    """Name a solver that runs on a posterior of this kind, close to the family `wanted`."""
    is_dense = isinstance(posterior, Probes) and not posterior.domain.is_discrete and wanted != "sampling"
    is_searched = wanted == "elimination" or not isinstance(posterior, Draws)
    if is_dense or (isinstance(posterior, Probes | Bounds) and is_searched):
        return "frontier"
    if isinstance(posterior, Posterior):  # a refused object may not be one
        return _last_resort(posterior)
    return "smooth_pac" if posterior.domain.is_discrete else "budget"


def resolve(solver: str | Solver, posterior: Posterior) -> Solver:
    """Return the solver for a posterior; raise SolverError if it cannot run on it."""
    chosen = made(solver)
    if chosen == "auto":
        return choose(posterior)
    sentence = refusal(chosen, posterior)
    if sentence is not None:
        raise SolverError(sentence)
    return chosen
