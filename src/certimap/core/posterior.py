"""What a solver and the ledger may know of p(q | e): the facts stated once, and the questions that it answers.

A posterior states its `Facts` and answers `log_prob`. Every other question is a *capability*, a protocol of this
module: a posterior offers it by having the methods, `isinstance(posterior, Draws)` tells, and a solver names the
ones that it `needs`. Nothing else of a posterior is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Any, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.named import place_of
from certimap.core.region_tree import RegionTree
from certimap.core.search_boxes import Answers, Layout, SearchBoxes

Offer = type | str  # a protocol of this module or a class, which may stand by its place
Capability = type | UnionType  # a protocol of this module, or a union of them where one of several will do


@dataclass(frozen=True)
class Facts:
    """What is known of a posterior without asking it anything; build them with `Facts.of`.

    Attributes
    ----------
    log_evidence
        Natural log of p(e) (of the unnormalised product's total for a Markov network), or None where unknown.
    is_normalised
        Whether `log_prob` is ln p(q | e); False where it is ln p(q, e) because p(e) is unknown.
    has_masses
        Whether a probability may be weighed against the mass 1: normalised, and every variable categorical or a
        count.
    work
        What one row of `log_prob` costs, in visits of an edge of a circuit (some nanoseconds each; 1,000 where
        nobody knows); decides batch sizes and whether enumeration is worth it.
    log_slack
        How far (nats) rounding may have moved a log that `log_prob` returns, at most.
    has_independent_draws
        Whether draws are independent of each other. Those of a Markov chain are not: they propose points, and
        their number proves nothing.
    log_ceiling
        What no value of `log_prob` exceeds, rounded up: what a search starts from where masses do not apply.
    is_density
        Whether values are densities, because a variable is real and no count: they may exceed 1.
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
        """Return the facts of a posterior over `domain`, arguments as in the class.

        Parameters
        ----------
        domain
            The query variables.
        log_evidence, is_normalised, work, log_slack, has_independent_draws, log_ceiling, is_density
            As in the class; values are densities where a variable is real, unless told otherwise.

        Returns
        -------
        Facts
        """
        work, log_slack = max(float(work), 1.0), float(log_slack)
        is_density = not domain.is_discrete if is_density is None else is_density
        has_masses = is_normalised and not is_density
        return cls(
            log_evidence,
            is_normalised,
            has_masses,
            work,
            log_slack,
            has_independent_draws,
            log_ceiling,
            is_density,
        )


FIND_SECONDS = 0.5  # that finding a point may take after a run has ended without one


class LogInterval(NamedTuple):
    """Natural logs of lower and upper sides, float64, shape (batch,) each."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class CapabilityType(type(Protocol)):
    """The type of capabilities: `isinstance` looks a class up once, and then only for what its objects add.

    As `typing.runtime_checkable` decides, but some fifty times as fast: a small query asks it thirty times. A
    class that gains or loses methods after its first object was looked at is not noticed.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if Protocol not in cls.__bases__:  # a class that derives from a capability
            return super().__instancecheck__(instance)
        return all(getattr(instance, name, None) is not None for name in _not_of_class(cls, type(instance)))


@lru_cache(maxsize=4096)
def _not_of_class(capability: CapabilityType, kind: type) -> tuple[str, ...]:
    """Return the members of a capability that a class has not, so that only its objects may have them."""
    bases = [base for base in capability.__mro__ if isinstance(base, CapabilityType)]
    members = {name for base in bases for name in vars(base) if not name.startswith("_")}
    return tuple(sorted(name for name in members if getattr(kind, name, None) is None))


@runtime_checkable
class Posterior(Protocol, metaclass=CapabilityType):
    """A distribution over the query variables that can score a point: all that every posterior has.

    A user's own pair of callables is one (see `FunctionPosterior`).
    """

    @property
    def domain(self) -> Domain:
        """The query variables, in the user's order."""
        ...

    @property
    def facts(self) -> Facts:
        """What is known of it; the same at every call."""
        ...

    def log_prob(self, points: Points) -> NDArray[np.float64]:
        """Evaluate ln p(q | e) at points.

        Of p(q, e) where the facts say that it is not normalised; the lower side where it is `TwoSided`.

        Parameters
        ----------
        points
            State positions (values of real variables), shape (batch, n).

        Returns
        -------
        ndarray of float64, shape (batch,)
            In nats; -inf where it is zero.
        """
        ...


@runtime_checkable
class TwoSided(Posterior, Protocol):
    """A posterior that knows the value of a point between two sides only.

    Certificates use the lower side for the answer and the upper side for its rivals.
    """

    def log_prob_interval(self, points: Points) -> LogInterval:
        """Return natural logs that hold ln p of each row between them; the lower one is `log_prob`."""
        ...


@runtime_checkable
class Draws(Posterior, Protocol):
    """A posterior that can be sampled."""

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points from p(q | e), shape (n, n_variables).

        With boxes (asked for only where the posterior knows `Masses` too), from p(q | e, q in the union of
        disjoint boxes).
        """
        ...


@runtime_checkable
class Masses(Posterior, Protocol):
    """A posterior that knows the probability of a box."""

    def log_mass(self, boxes: Boxes) -> NDArray[np.float64]:
        """Natural log of P(box | e), shape (batch,)."""
        ...

    def log_mass_each(self, boxes: Boxes) -> NDArray[np.float64]:
        """The same with variable i restricted to state a alone, whether or not the box holds a.

        Shape (batch, total_states). On a point these are all its neighbours.
        """
        ...


@runtime_checkable
class Bounds(Posterior, Protocol):
    """A posterior that bounds its values in a box."""

    def log_bound(self, boxes: Boxes) -> NDArray[np.float64]:
        """Return upper bounds on the natural log of the largest value in each box, shape (batch,)."""
        ...

    def log_bound_each(self, boxes: Boxes) -> NDArray[np.float64]:
        """The same with variable i restricted to state a alone; shape (batch, total_states)."""
        ...


@runtime_checkable
class AsNetwork(Posterior, Protocol):
    """A tree of tables that came from a network, which some searches work on."""

    @property
    def as_network(self) -> Callable[[], Posterior] | None:
        """Make the same posterior, values and all, as the tables of a network; None where there was none."""
        ...


@runtime_checkable
class Decodes(Posterior, Protocol):
    """A posterior whose structure decodes good points without a search, as a circuit's does."""

    def modes(self) -> Points:
        """Return the point of the variables' own modes, all others summed out, shape (1, n_variables)."""
        ...

    def max_product(self) -> Points:
        """Return the point at the end of the most probable path, shape (1, n_variables)."""
        ...

    def argmax_product(self) -> Points:
        """Return the point that wins when every node keeps one of its children's, shape (1, n_variables)."""
        ...

    def beam(self, width: int, should_stop: Callable[[], bool]) -> Points:
        """Return the points that win when every node keeps `width` of its children's, best first.

        Once `should_stop` returns true, the rest is done as cheaply as possible.
        """
        ...


@runtime_checkable
class Guesses(Posterior, Protocol):
    """A posterior made in a hurry, which scores points and names one good one."""

    def guess(self) -> Points:
        """Return a good point, found in the time that scoring one takes; shape (1, n_variables)."""
        ...


@runtime_checkable
class Finds(Posterior, Protocol):
    """A posterior that finds an answer where a search was cut short before it had one."""

    def possible_point(self) -> Points:
        """Return a point that is not impossible if one is found within `FIND_SECONDS`, else any, shape (1, n)."""
        ...


class Tightening(NamedTuple):
    """What an attempt at tighter bounds came to.

    Attributes
    ----------
    work
        What it cost, in edge visits.
    is_paused
        Whether searching pays better now than going on; asked again, the prober goes on at a finer level.
    is_complete
        Whether nothing is left to tighten.
    has_starts
        Whether `starts` has something new; the search scores it, and goes on tightening unless paused.
    log_bound
        An upper bound on everything in the box that was given, where one came out; natural log.
    """

    work: int
    is_paused: bool
    is_complete: bool
    has_starts: bool = False
    log_bound: float = math.inf


class Prober(Protocol):
    """What a search asks of a posterior: bounds of boxes, and good points; it may keep what it has learned.

    One search has one prober. It pickles between questions.
    """

    @property
    def layout(self) -> Layout:
        """The columns that it answers in."""
        ...

    @property
    def work(self) -> int:
        """What one box costs, in edge visits."""
        ...

    @property
    def n_bytes(self) -> int:
        """The memory of what it has learned."""
        ...

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Return masses and bounds of boxes and of all their columns, rounded outward: no caller adds a slack."""
        ...

    def starts(self) -> Points:
        """Return points worth scoring, known without a search, shape (batch, n); none is an answer too.

        Asked at the start of a search, and again whenever `tighten` pauses.
        """
        ...

    def climb(self, points: Points) -> Points:
        """Return points reached from each row by steps that raise its probability, shape (batch, n)."""
        ...

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Spend about `work` edge visits on lower bounds for every later probe.

        Caps of subcircuits, costs shifted between copies in a relaxed network, and a higher bound on its width
        are all this. `log_factor` is how close (nats) to the truth is close enough; `within` is one box that holds
        everything still open, and what is bounded by `log_threshold` matters no more.
        """
        ...


@runtime_checkable
class Heeds(Prober, Protocol):
    """A prober whose climbs may take long, and end early where the run should stop."""

    def heed(self, control: Control) -> None:
        """Look at a run's control between the steps of a climb from now on."""
        ...


@runtime_checkable
class Probes(Posterior, Protocol):
    """A posterior with a prober of its own; any with `Bounds` gets one made of those."""

    def prober(self) -> Prober:
        """Return a fresh prober."""
        ...


@runtime_checkable
class Regions(Draws, Masses, Bounds, Protocol):
    """A posterior that factorises along a tree of regions, whose tables a search may work on."""

    @property
    def region_tree(self) -> RegionTree:
        """The conditional tables."""
        ...

    def max_product(self) -> Points:
        """Decode the upward pass of bounds, shape (1, n): the maximum where nothing is hidden."""
        ...

    def bound_messages(self, mask: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return upper bounds on every region's message inside one box, as mantissas and exponents of two.

        `mask` is bool, shape (total_states,); messages are laid out by the tree's `message_ptr`.
        """
        ...


@runtime_checkable
class BoxPosterior(Draws, Masses, Bounds, Protocol):
    """A posterior that answers every question about boxes, and draws."""


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
    """Name the methods of a capability, or the kind of posterior that it is, for messages."""
    kinds: tuple[type, ...] = get_args(capability) if isinstance(capability, UnionType) else (capability,)
    return ", or ".join(OFFERS.get(kind, f"what a {kind.__name__} has") for kind in kinds)


@cache
def offers(available: frozenset[Offer], wants: tuple[Capability | str, ...]) -> bool:
    """Whether all that is wanted is available; of a union, one is enough.

    A class may stand in either by its place, "module:Class", so that naming it does not load it.
    """
    places = {_place(kind) for kind in available}
    return all(any(_place(part) in places for part in get_args(want) or (want,)) for want in wants)


def _place(kind: Any) -> str:
    return kind if isinstance(kind, str) else place_of(kind)
