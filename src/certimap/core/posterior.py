"""The interface of p(q | e) to solvers and the ledger, and a user's own functions behind it.

Every posterior states its `Facts` and implements `log_prob`. Everything else is a *capability*, a protocol of this
module. A posterior offers a capability by having its methods, `isinstance(posterior, Draws)` tests for it, and a
solver lists the ones that it `needs`. Solvers use nothing else of a posterior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Any, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np

from certimap.core.arrays import Array, Flags, Floats, Ints
from certimap.core.box import Answers, Boxes, Layout, Points, SearchBoxes
from certimap.core.domain import Domain
from certimap.core.named import place_of
from certimap.core.region_tree import RegionTree
from certimap.errors import ModelError

Offer = type | str  # a protocol of this module, or a class, possibly by its place
Capability = type | UnionType  # a protocol, or a union of protocols of which one is enough


@dataclass(frozen=True)
class Facts:
    """Constant properties of a posterior; build them with `Facts.of`.

    - `log_evidence`: natural log of p(e) (of the unnormalised product's total for a Markov network), or None where
      unknown.
    - `is_normalised`: whether `log_prob` is ln p(q | e); False if it is ln p(q, e) because p(e) is unknown.
    - `has_masses`: whether probabilities are normalised and discrete (every variable categorical or a count), so
      that unexplored mass bounds unseen points.
    - `work`: cost of one row of `log_prob` in circuit edge visits (some nanoseconds each; 1,000 if unknown). It
      decides batch sizes and whether enumeration pays.
    - `log_slack`: largest rounding error, in nats, of a log that `log_prob` returns.
    - `has_independent_draws`: whether draws are independent of each other. If not, as in a Markov chain, they
      propose points, but their number proves nothing.
    - `log_ceiling`: upper bound on all values of `log_prob`, rounded up. A search starts from it if masses do not
      apply.
    - `is_density`: whether values are densities, which may exceed 1, because some variable is real and not a
      count.
    """

    log_evidence: float | None
    is_normalised: bool
    has_masses: bool
    work: float
    log_slack: float
    has_independent_draws: bool = True
    log_ceiling: float = math.inf
    is_density: bool = False

    @classmethod
    def of(
        cls,
        domain: Domain,
        *,
        log_evidence: float | None = None,
        is_normalised: bool = True,
        work: float = 1000.0,
        log_slack: float = 0.0,
        has_independent_draws: bool = True,
        log_ceiling: float = math.inf,
        is_density: bool | None = None,
    ) -> Facts:
        """Return facts as in the class for a `domain`; `is_density` is None for True if a variable is real.

        `log_evidence`, `is_normalised`, `work`, `log_slack`, `has_independent_draws`, `log_ceiling`: as there.
        """
        is_density = not domain.is_discrete if is_density is None else is_density
        known = log_evidence, is_normalised, is_normalised and not is_density, max(float(work), 1.0)
        return cls(*known, float(log_slack), has_independent_draws, log_ceiling, is_density)


FIND_SECONDS = 0.5  # time to find a point after a run has ended without one


class LogInterval(NamedTuple):
    """Natural logs of lower and upper bounds, float64, shape (batch,) each."""

    lower: Floats
    upper: Floats


class CapabilityType(type(Protocol)):
    """The metaclass of capabilities: `isinstance` caches its verdict on a class and rechecks only the rest.

    It decides like `typing.runtime_checkable`, some fifty times as fast; a small query calls it thirty times.
    Methods added to or removed from a class after its first check go unnoticed.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if Protocol not in cls.__bases__:  # a class that derives from a capability
            return super().__instancecheck__(instance)
        return all(getattr(instance, name, None) is not None for name in _not_of_class(cls, type(instance)))


@lru_cache(maxsize=4096)
def _not_of_class(capability: CapabilityType, kind: type) -> tuple[str, ...]:
    """Return the members of a capability that a class lacks and that must be looked up on its instances."""
    bases = [base for base in capability.__mro__ if isinstance(base, CapabilityType)]
    members = {name for base in bases for name in vars(base) if not name.startswith("_")}
    return tuple(sorted(name for name in members if getattr(kind, name, None) is None))


@runtime_checkable
class Posterior(Protocol, metaclass=CapabilityType):
    """A distribution over the query variables that scores points: the interface that every posterior has.

    `FunctionPosterior` makes one from two callables.
    """

    @property
    def domain(self) -> Domain:
        """The query variables, in the user's order."""
        ...

    @property
    def facts(self) -> Facts:
        """The facts; the same at every call."""
        ...

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q | e) of each row of `points`, in nats, float64, shape (batch,); -inf where it is zero.

        It is ln p(q, e) if the facts say that it is not normalised, and the lower bound if it is `TwoSided`. The
        points are state positions (values of real variables), shape (batch, n).
        """
        ...


@runtime_checkable
class TwoSided(Posterior, Protocol):
    """A posterior with only a lower bound on each value, for the answer, and an upper bound, for its rivals."""

    def log_prob_interval(self, points: Points) -> LogInterval:
        """Return lower and upper bounds on ln p of each row; the lower one is `log_prob`."""
        ...


@runtime_checkable
class Draws(Posterior, Protocol):
    """A posterior that can be sampled."""

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points from p(q | e), shape (n, n_variables).

        With disjoint boxes, from p(q | e, q in their union); only posteriors that also offer `Masses` get boxes.
        """
        ...


@runtime_checkable
class Masses(Posterior, Protocol):
    """A posterior that knows the probability of a box."""

    def log_mass(self, boxes: Boxes) -> Floats:
        """Natural log of P(box | e), shape (batch,)."""
        ...

    def log_mass_each(self, boxes: Boxes) -> Floats:
        """`log_mass` with variable i set to state a, even if a box excludes it, shape (batch, total_states)."""
        ...


@runtime_checkable
class Bounds(Posterior, Protocol):
    """A posterior that bounds its values in a box; a default prober searches by these bounds."""

    def log_bound(self, boxes: Boxes) -> Floats:
        """Return upper bounds on the natural log of the largest value in each box, shape (batch,)."""
        ...

    def log_bound_each(self, boxes: Boxes) -> Floats:
        """`log_bound` of each box with variable i restricted to state a; shape (batch, total_states)."""
        ...


@runtime_checkable
class AsNetwork(Posterior, Protocol):
    """A tree of tables made from a network, which some searches use."""

    @property
    def as_network(self) -> Callable[[], Posterior] | None:
        """Return a function that makes the same posterior as network tables; None without a network."""
        ...


@runtime_checkable
class Decodes(Posterior, Protocol):
    """A posterior, such as a circuit, whose structure decodes good points without a search."""

    def modes(self) -> Points:
        """Return the point made of each variable's marginal mode, shape (1, n_variables)."""
        ...

    def max_product(self) -> Points:
        """Return the point that the most probable path decodes to, shape (1, n_variables)."""
        ...

    def argmax_product(self) -> Points:
        """Return the best point if every node keeps one point of its children, shape (1, n_variables)."""
        ...

    def beam(self, width: int, should_stop: Callable[[], bool]) -> Points:
        """Return the best points if every node keeps `width` points of its children, best first.

        Once `should_stop` returns true, the remaining nodes are done as cheaply as possible.
        """
        ...


@runtime_checkable
class Guesses(Posterior, Protocol):
    """A cheap posterior that scores points and names one good point."""

    def guess(self) -> Points:
        """Return a good point at the cost of scoring one, shape (1, n_variables)."""
        ...


@runtime_checkable
class Finds(Posterior, Protocol):
    """A posterior that finds an answer when a search is cut short without one."""

    def possible_point(self) -> Points:
        """Return a possible point if one is found within `FIND_SECONDS`, else any point, shape (1, n)."""
        ...


class Tightening(NamedTuple):
    """The result of an attempt at tighter bounds."""

    work: int  # cost in edge visits
    # whether searching now pays better than further tightening; the next call continues at a finer level
    is_paused: bool
    is_complete: bool  # whether nothing is left to tighten
    # whether `starts` has new points; the search scores them, and continues tightening unless paused
    has_starts: bool = False
    log_bound: float = math.inf  # upper bound on all values in the given box, natural log, if one was found


class Prober(Protocol):
    """The oracle of a search: it bounds boxes and proposes good points, and may keep state between calls.

    Each search has its own prober. It can be pickled between calls. One whose climbs may be long has a method
    `heed(control)`, and checks that control between steps from then on.
    """

    @property
    def layout(self) -> Layout:
        """The columns of its answers."""
        ...

    @property
    def work(self) -> int:
        """The cost of one box, in edge visits."""
        ...

    @property
    def n_bytes(self) -> int:
        """The memory that it holds, in bytes."""
        ...

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Return masses and bounds of boxes and of all their columns, rounded up; callers add no slack."""
        ...

    def starts(self) -> Points:
        """Return points worth scoring, possibly none, (batch, n); for the start, and whenever `tighten` pauses."""
        ...

    def climb(self, points: Points) -> Points:
        """Return the points reached from each row by steps that raise the probability, shape (batch, n)."""
        ...

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Spend about `work` edge visits on tightening the bounds of all later probes.

        Examples: caps of subcircuits, costs shifted between copies in a relaxed network, a relaxation of larger
        width. `log_factor` (nats) is the gap to the truth that is good enough. `within` is one box that holds
        everything still open. Boxes bounded by `log_threshold` no longer matter.
        """
        ...


@runtime_checkable
class Probes(Posterior, Protocol):
    """A posterior with its own prober, which bounds boxes for every search."""

    def prober(self) -> Prober:
        """Return a fresh prober."""
        ...


@runtime_checkable
class Regions(Draws, Masses, Probes, Protocol):
    """A posterior that factorises along a tree of regions, whose tables a search may use."""

    @property
    def region_tree(self) -> RegionTree:
        """The conditional tables."""
        ...

    def max_product(self) -> Points:
        """Decode the upward pass of bounds, shape (1, n): the maximum if nothing is hidden."""
        ...

    def log_bound(self, boxes: Boxes) -> Floats:
        """Return upper bounds on the natural log of the largest value in each box, shape (batch,)."""
        ...

    def bound_messages(self, mask: Flags) -> tuple[Floats, Ints]:
        """Return upper bounds on every region's message inside one box, as mantissas and exponents of two.

        `mask` is bool, shape (total_states,); messages are laid out by the tree's `message_ptr`.
        """
        ...


@runtime_checkable
class BoxPosterior(Draws, Masses, Probes, Protocol):
    """A posterior with masses, a prober and draws."""


OFFERS: dict[type, str] = {
    TwoSided: "log_prob_interval()",
    Draws: "sample()",
    Masses: "log_mass() and log_mass_each()",
    Bounds: "log_bound() and log_bound_each()",
    Probes: "prober()",
    Decodes: "modes(), max_product(), argmax_product() and beam()",
    Regions: "a tree of regions, as networks of moderate width, hidden Markov models, hidden Chow-Liu trees and "
    "structured circuits have",
    Guesses: "guess()",
    Finds: "possible_point()",
}


def offer_of(capability: Capability) -> str:
    """Describe a capability, or a class of posteriors, for messages."""
    kinds: tuple[type, ...] = get_args(capability) if isinstance(capability, UnionType) else (capability,)
    return ", or ".join(OFFERS.get(kind, f"what a {kind.__name__} has") for kind in kinds)


@cache
def offers(available: frozenset[Offer], wants: tuple[Capability | str, ...]) -> bool:
    """Whether a class, or a member of a union, of every wish is available; either may be named by its place."""
    places = {_place(kind) for kind in available}
    return all(any(_place(part) in places for part in get_args(want) or (want,)) for want in wants)


def _place(kind: Any) -> str:
    return kind if isinstance(kind, str) else place_of(kind)


class FunctionPosterior:
    """A posterior made of two callables; enough for `pac`, `smooth_pac`, `budget` and small enumerations.

    - `domain`: the query variables, or their numbers of states.
    - `sample`: `sample(n, rng)` returns n independent draws from p(q | e): state positions (values of real
      variables), shape (n, n_variables). Use only the numpy Generator given, so that a seed replays.
    - `log_prob`: `log_prob(points)` returns ln p(q | e) of each row, natural, shape (batch,); -inf where it is
      zero.
    - `log_evidence`: ln p(e) where it is known.
    - `independent`: False if draws depend on each other, as in a Markov chain. Such draws propose assignments, but
      their number certifies nothing.
    - `normalised`: false: `log_prob` is ln p(q, e) and p(e) is unknown. Then no rule that compares a probability
      with the total mass 1 certifies (draw counts, residual mass), and results have `log_joint` but no `log_prob`.

    `sample` and `log_prob` raise ModelError when a callable returns the wrong shape or a state out of range; a run
    raises it when draw frequencies contradict `log_prob` (false alarms have probability below 1e-6 per run), or
    when the probabilities of distinct assignments add up to more than 1.
    """

    def __init__(
        self,
        domain: Domain | Sequence[int],
        sample: Callable[[int, np.random.Generator], Any],
        log_prob: Callable[[Points], Any],
        *,
        log_evidence: float | None = None,
        normalised: bool = True,
        independent: bool = True,
    ) -> None:
        self.domain = domain if isinstance(domain, Domain) else Domain.of_sizes(domain)
        self._sample, self._log_prob = sample, log_prob
        self._facts = Facts.of(
            self.domain, log_evidence=log_evidence, is_normalised=normalised, has_independent_draws=independent
        )

    @property
    def facts(self) -> Facts:
        return self._facts

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Return `n` independent points, shape (n, n_variables): state positions, or values of real variables.

        `rng` is the only source of randomness. `boxes` must be None: a callable cannot sample inside boxes.
        """
        if boxes is not None:
            raise ModelError("a sampler given as a function does not draw inside boxes; use solver='pac'")
        points: Array = np.asarray(self._sample(n, rng))
        if points.shape != (n, len(self.domain)):
            raise ModelError(f"sample returned shape {points.shape}; expected {(n, len(self.domain))}")
        discrete = np.flatnonzero(self.domain.n_states)
        states = points[:, discrete]
        for row, column in np.argwhere((states < 0) | (states >= self.domain.n_states[discrete])).tolist():
            i = int(discrete[column])
            raise ModelError(
                f"sample returned {states[row, column]} for variable {self.domain.names[i]!r}; expected "
                f"positions from 0 to {self.domain.n_states[i] - 1}"
            )
        return points.astype(self.domain.point_dtype)

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q | e), or ln p(q, e) if not normalised, in nats, shape (batch,); -inf where it is zero.

        `points` are state positions (values of real variables), shape (batch, n).
        """
        values: Floats = np.asarray(self._log_prob(points), np.float64)
        if values.shape != (len(points),):
            raise ModelError(f"log_prob returned shape {values.shape} for {len(points)} points; expected one each")
        return values
