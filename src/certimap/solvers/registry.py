"""Names of solvers, resolved lazily, and what solver="auto" picks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from certimap.core.arguments import meant_keyword
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


@dataclass(frozen=True)
class Entry:
    """A name: a solver class, or where to import it from, with settings that differ from the class's own."""

    solver: type[Solver] | str
    settings: dict[str, Any]

    def load(self) -> type[Solver]:
        """Return the class."""
        return at(self.solver) if isinstance(self.solver, str) else self.solver


_PAPER = {"batch": 250, "rule": "published", "max_draws": 2_500_000}
_SOLVERS: dict[str, Entry] = {
    name: Entry(f"certimap.solvers.{place}", settings)
    for name, place, settings in (
        ("independent", "heuristics.independent:Independent", {}),
        ("max_product", "heuristics.max_product:MaxProduct", {}),
        ("argmax_product", "heuristics.argmax_product:ArgmaxProduct", {}),
        ("hybrid_bp", "heuristics.hybrid_bp:HybridBeliefPropagation", {}),
        ("beam", "heuristics.beam:BeamSearch", {}),
        ("hill_climb", "heuristics.hill_climb:HillClimb", {}),
        ("mcmc", "heuristics.mcmc:AnnealedGibbs", {}),
        ("mcts", "heuristics.mcts:TreeSearch", {}),
        ("itself", "heuristics.itself:Itself", {}),
        ("guess", "heuristics.guess:Guess", {}),
        ("pac", "sampling.pac:Pac", {}),
        ("smooth_pac", "sampling.smooth_pac:SmoothPac", {}),
        # The settings of the published experiments, for reproduction.
        ("paper_max_product", "heuristics.max_product:PaperMaxProduct", {}),
        ("paper_pac", "sampling.pac:Pac", _PAPER),
        ("paper", "sampling.smooth_pac:SmoothPac", _PAPER | {"radius": 1, "period": 250}),
        ("budget", "sampling.budget:Budget", {}),
        ("uniform_exploration", "sampling.uniform_exploration:UniformExploration", {}),
        ("cells", "cells.cells:Cells", {}),
        ("exhaustive", "exhaustive:Exhaustive", {}),
        ("doo", "box_search.optimistic:Doo", {}),
        ("soo", "box_search.optimistic:Soo", {}),
        ("hoo", "box_search.optimistic:Hoo", {}),
        ("frontier", "box_search.frontier:Frontier", {}),
        ("hbfs", "networks.hbfs:HybridBestFirst", {}),
        ("set_elimination", "elimination.set_elimination:SetElimination", {}),
        ("bucket_elimination", "networks.wmb:WeightedMiniBuckets", {"i_bound": None}),
        ("wmb", "networks.wmb:WeightedMiniBuckets", {}),
        ("portfolio", "networks.portfolio:Portfolio", {}),
        ("full_width", "networks.full_width:FullWidth", {}),
        ("ijgp", "networks.ijgp:JoinGraphPropagation", {}),
        ("aobb", "networks.aobb:AndOrBranchAndBound", {}),
        ("aobf", "networks.aobf:AndOrBestFirst", {}),
        ("aaobf", "networks.aobf:AndOrBestFirst", {"dives": True}),
        ("toulbar2", "networks.toulbar2:Toulbar2", {}),
    )
}
ENTRY_POINTS = "certimap.solvers"  # the group in which an installed package names solvers of its own
PROVERS = ("hbfs", "set_elimination", "portfolio", "frontier")  # what `auto` tries, in this order
SMALL_SPACE = 2**16
SMALL_WORK = 100_000_000
OUTSIDE_SHARE = 0.25  # of the time left in a long search, for toulbar2
DEAR_TREE = 2.0**14  # entries of a tree from which a network's own tables are searched as well
RELAXED_WORK = 1e9  # where boxes are bounded by a relaxation alone, which no search may ever close


def names() -> tuple[str, ...]:
    """Return the names that `solver=` accepts, "auto" first."""
    return ("auto", *_SOLVERS)


def register(name: str, solver: type[Solver] | str, **settings: Any) -> None:
    """Let `solver=name` stand for a solver, here and on the shell for as long as the process lives.

    An installed package registers its solvers for good by entry points of the group "certimap.solvers".

    Parameters
    ----------
    name
        What users will write; a name that is taken is refused.
    solver
        A class derived from `certimap.Solver`, or "module:Class" to import it when first used.
    settings
        Settings in which this name differs from the class's own defaults.

    Raises
    ------
    SolverError
        When the name is taken, or the class is no solver.
    """
    if name in names():
        raise SolverError(f"solver {name!r} exists already; a new name is expected")
    if not isinstance(solver, str) and not (isinstance(solver, type) and issubclass(solver, Solver)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SolverError(f"{solver!r} is no solver class; a class derived from certimap.Solver is expected")
    _SOLVERS[name] = Entry(solver, settings)


def entry(name: str) -> Entry:
    """Return what a name stands for, among the solvers here, those registered and those of installed packages.

    Raises SolverError for an unknown name.
    """
    if name not in _SOLVERS:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            _SOLVERS[name] = Entry(point.value, {})
    if name not in _SOLVERS:
        raise SolverError(f"{name!r} is no solver; expected {', '.join(names())}{did_you_mean(name, names())}")
    return _SOLVERS[name]


def make(name: str, **options: Any) -> Solver:
    """Build a solver by name; `options` are its settings.

    Raises
    ------
    SolverError
        For an unknown name or setting.
    """
    found = entry(name)
    factory: Any = found.load()
    accepted = [field.name for field in dataclasses.fields(factory)] if options else []
    for key in options:
        if key not in accepted:
            raise SolverError(
                f"solver {name!r} has no setting {key!r}; it has {', '.join(sorted(accepted))}"
                f"{meant_keyword(key, accepted)}"
            )
    try:
        return factory(**{**found.settings, **options})
    except (TypeError, OverflowError) as error:  # a text where a number is compared
        raise SolverError(f"solver {name!r} refuses the settings {options!r}: {error}") from None


def heuristics() -> tuple[str, ...]:
    """Return the names of the solvers that prove nothing by themselves, sorted."""
    return tuple(sorted(name for name, found in _SOLVERS.items() if found.load().heuristic))


def family(name: str) -> Family:
    """Return what kind of method a name stands for; "other" where it is unknown, and "search" for "auto"."""
    if name == "auto":
        return "search"
    return _SOLVERS[name].load().family if name in _SOLVERS else "other"


def made(solver: str | Solver, options: Mapping[str, Any] | None = None) -> Solver | Literal["auto"]:
    """Turn what a user gives for `solver=` into a solver; "auto" stays, until there is a posterior to choose for.

    Raises SolverError for an unknown name, and for options that the solver does not have or refuses.
    """
    if isinstance(solver, str) and solver != "auto":
        return make(solver, **options or {})
    if options:
        key = next(iter(options))
        where = "solver 'auto' has no setting" if solver == "auto" else "a solver object takes no further setting"
        meant = meant_keyword(key) or "; name a solver, or set it on the solver object"
        raise SolverError(f"{where} {key!r}{meant}")
    if solver != "auto" and not isinstance(solver, Solver):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SolverError(f"{solver!r} is no solver; expected one of {', '.join(names())} or a solver object")
    return "auto" if isinstance(solver, str) else solver


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
        return entry(solver).load().needs
    return type(solver).needs


def choose(posterior: Posterior) -> Solver:
    """Return the solver that `solver="auto"` stands for.

    - `guess` where a posterior made in a hurry offers nothing else;
    - `exhaustive` where the query space has at most 65,536 states, and listing them takes at most 10^8 edge
      evaluations (10^9 where bounds come from a relaxation) or there is no other way to a proof, and points
      have values rather than two sides;
    - `portfolio` for a large tree of a network, whose sets of vectors may outgrow any limit;
    - else the first of `PROVERS` that the posterior has all it needs for, within its limits;
    - else `smooth_pac` in a discrete domain and `pac` for counts (a sampler and an oracle are enough), and for a
      density `soo` where its variables have two ends, else `budget`.
    """
    if isinstance(posterior, Guesses):
        return make("guess")
    is_listed = not isinstance(posterior, TwoSided)  # else listing would settle no point's value
    if is_listed and _is_small(posterior.domain, posterior.facts.work, _listing_limit(posterior)):
        return make("exhaustive")
    if isinstance(posterior, AsNetwork) and posterior.as_network is not None and posterior.facts.work > DEAR_TREE:
        return make("portfolio")
    for name in PROVERS:
        if all(isinstance(posterior, capability) for capability in entry(name).load().needs):
            solver = make(name)
            if solver.unsuited(posterior) is None:
                return _with_outside_help(solver) if name == "hbfs" else solver
    return make(_last_resort(posterior))


def _last_resort(posterior: Posterior) -> str:
    """Name a solver that lives on draws or values alone."""
    if posterior.domain.is_discrete:
        return "smooth_pac"
    if not posterior.facts.is_density:
        return "pac"
    return "soo" if make("soo").unsuited(posterior) is None else "budget"


def _with_outside_help(solver: Solver) -> Solver:
    """Let the search of networks ask toulbar2 where it is installed."""
    from certimap.solvers.networks.toulbar2 import is_installed

    return make(solver.name, outside_share=OUTSIDE_SHARE) if is_installed() else solver


def expected(choice: Choice) -> str:
    """Return the name of the solver that `auto` will take on a representation that is not built yet.

    A solver's own limits are known only once it is: what is built may then go to the next one.
    """
    domain, available = choice.case.query.query_domain, choice.row.offers
    searchable, weighed = Bounds in available, Masses in available
    limit = math.inf if not searchable else SMALL_WORK if weighed else RELAXED_WORK
    if TwoSided not in available and _is_small(domain, choice.options[-1].estimate.work, limit):
        return "exhaustive"
    found = (name for name in PROVERS if offers(available, entry(name).load().needs))
    return next(found, "smooth_pac" if domain.is_discrete else "budget")


def _is_small(domain: Domain, work: float, limit: float) -> bool:
    if domain.log_size > math.log(SMALL_SPACE) + 1e-9:
        return False
    return math.exp(domain.log_size) * work <= limit


def _listing_limit(posterior: Posterior) -> float:
    """Return up to how much work listing all points is the way to a proof."""
    if not isinstance(posterior, Bounds):
        return math.inf
    return SMALL_WORK if isinstance(posterior, Masses) else RELAXED_WORK


def refusal(solver: Solver, posterior: Posterior) -> str | None:
    """Return the sentence that refuses a posterior, or None when the solver can run on it."""
    for capability in solver.needs:
        if not isinstance(posterior, capability):
            return (
                f"solver {solver.name!r} needs the posterior to have {offer_of(capability)}, and a "
                f"{type(posterior).__name__} has not; use solver={alternative(posterior, solver.family)!r}"
            )
    return solver.unsuited(posterior)


def alternative(posterior: Posterior, wanted: Family = "other") -> str:
    """Name a solver that runs on any posterior of this kind, one that proves where `wanted` does."""
    if isinstance(posterior, Bounds) and (wanted == "elimination" or not isinstance(posterior, Draws)):
        return "frontier"
    if isinstance(posterior, Probes) and not posterior.domain.is_discrete and wanted != "sampling":
        return "frontier"
    if _is_whole(posterior):
        return _last_resort(posterior)
    return "smooth_pac" if posterior.domain.is_discrete else "budget"


def _is_whole(posterior: object) -> bool:
    """Whether an object has all that a posterior must have; one that is refused may not."""
    return isinstance(posterior, Posterior)


def resolve(solver: str | Solver, posterior: Posterior) -> Solver:
    """Return the solver that runs on a posterior; refuse one that cannot."""
    chosen = made(solver)
    if chosen == "auto":
        return choose(posterior)
    sentence = refusal(chosen, posterior)
    if sentence is not None:
        raise SolverError(sentence)
    return chosen
