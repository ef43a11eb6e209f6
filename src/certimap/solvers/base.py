"""The solver interface: settings, a first state, and steps; bases that fill in parts, and the least solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from certimap.certify.ledger import Ledger, own_source
from certimap.core.arguments import check_ranges
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Label
from certimap.core.posterior import Capability, Guesses, Posterior
from certimap.errors import SolverError

Family = Literal["sampling", "heuristic", "search", "elimination", "enumeration", "other"]

RELAXATION = own_source("relaxation")  # of bounds from relaxed networks


@dataclass(frozen=True)
class Judging:
    """How the ledger judges the draws of a solver."""

    rule: Literal["sharp", "published"] = "sharp"  # "published" counts draws as in the paper
    early_stop: bool = True  # false: continue to the solver's own end even after the certificate is earned
    max_draws: int | None = None  # limit on draws if the user sets none; None: the driver's default


@dataclass(frozen=True)
class Effort:
    """The cost of a state so far: search nodes, bytes held, and any growing count of work."""

    n_nodes: int = 0
    n_bytes: int = 0
    work: int = 0


class Solver(ABC):
    """The base of every solver: derive a frozen dataclass of settings from it.

    Its facts are class attributes, or arguments of the class: `class Mine(Solver, name="mine", needs=(Draws,))`.

    A solver has no loop, clock, print or certificate. States are plain data with a flag `done` (further steps
    change nothing), and can be pickled between steps.

    `name`: its name in `solver=` and in results.
    `needs`: the capabilities (see `certimap.core.posterior`) that a posterior must have.
    `family`: the kind of method; tables and figures group by it.
    `heuristic`: whether it proves nothing by itself.
    `is_seeded`: whether answers may depend on the seed. False: `init` ignores its generator, and rows that ask the
    same query share one run.
    `ranges`: of settings that are numbers, such as "share [0, 1); rows, batch [1, inf)" (`check_ranges`).
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[Capability, ...]] = ()
    family: ClassVar[Family] = "other"
    heuristic: ClassVar[bool] = False
    is_seeded: ClassVar[bool] = True
    ranges: ClassVar[str] = ""

    def __init_subclass__(cls, **facts: Any) -> None:
        """Set the class attributes above that are given as arguments of the class; raise TypeError for others."""
        super().__init_subclass__()
        for name, value in facts.items():
            if name not in Solver.__annotations__:
                raise TypeError(f"class {cls.__name__} has the argument {name!r}, which solvers have not")
            setattr(cls, name, value)

    def __post_init__(self) -> None:
        """Raise SolverError for a setting outside its range."""
        check_ranges(self, self.ranges)

    def judging(self) -> Judging:
        """Return how the ledger judges its draws."""
        return Judging()

    def unsuited(self, posterior: Posterior) -> str | None:
        """Return why `posterior`, which has all capabilities in `needs`, does not suit, and what does; or None."""
        return None

    def posed(self, posterior: Any, rng: np.random.Generator) -> Posterior:
        """Return the posterior that the solver answers about; a different one if it changes the question.

        The ledger and `init` get it. `posterior`: has all capabilities in `needs`. `rng`: for draws that define
        the question; they never count as evidence.
        """
        return posterior

    def decode(self, posterior: Posterior, point: Points) -> dict[str, Label]:
        """Return the user's labels by name of `point`, shape (n,), of `posterior`, which `posed` returned."""
        return posterior.domain.decode(point)

    def effort(self, state: Any) -> Effort:
        """Return the cost of `state`, from `init` or `step`, for the limits on nodes and memory.

        Once no draws are left, a run ends after 1,000 steps in a row that change neither this effort nor the
        ledger.
        """
        return Effort()

    @abstractmethod
    def init(self, posterior: Any, control: Control, rng: np.random.Generator, boxes: Boxes | None = None) -> Any:
        """Return the first state for `step`; it has an attribute `done`.

        `posterior`: has all capabilities in `needs`.
        `control`: limits that a long step must obey; keep it in the state.
        `rng`: the only source of randomness.
        `boxes`: one box to search, which the ledger knows too; None: the whole space. A solver that cannot start
        from a box calls `refuse_boxes`.
        """

    def refuse_boxes(self, boxes: Boxes | None) -> None:
        """Raise SolverError if `boxes`, as given to `init`, is a box: for solvers of the whole space only."""
        if boxes is not None:
            alone = f"solver {self.name!r} answers for the whole space only, and was given a box"
            raise SolverError(f"{alone}; 'frontier', 'hbfs', 'exhaustive' and the samplers start from one")

    @abstractmethod
    def step(self, state: Any, ledger: Ledger) -> Any:
        """Return the next state, maybe the same object, after a bounded piece of work (a fraction of a second).

        `state`, `ledger`: from `init` or the last step; and what takes the events. Randomness comes only from the
        generator given to `init`, and no choice may depend on a clock. A step that may take longer polls
        `should_stop` of the control.
        """


class WholeSpaceSolver(Solver):
    """The base of solvers that search the whole space only: they define `start` in place of `init`."""

    def init(self, posterior: Any, control: Control, rng: np.random.Generator, boxes: Boxes | None = None) -> Any:
        self.refuse_boxes(boxes)
        return self.start(posterior, control, rng)

    @abstractmethod
    def start(self, posterior: Any, control: Control, rng: np.random.Generator) -> Any:
        """Return the first state; arguments as for `init`."""


@dataclass(frozen=True)
class OneStepState:
    """The state of a heuristic that has its answer after one step."""

    posterior: Any
    done: bool = False


class Heuristic(WholeSpaceSolver, family="heuristic", heuristic=True):
    """The base of solvers that propose points without proof."""


class LabelHeuristic(Heuristic):
    """The base of heuristics that change labels one by one."""

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse real variables and counts."""
        if posterior.domain.is_discrete:
            return None
        return f"solver {self.name!r} needs categorical query variables; use solver='frontier'"


class OneStep(Heuristic):
    """The base of heuristics that end after one step."""

    def start(self, posterior: Posterior, control: Control, rng: np.random.Generator) -> OneStepState:
        return OneStepState(posterior)


class OnePoint(OneStep):
    """The base of heuristics that report one point; subclasses define `point`."""

    @abstractmethod
    def point(self, posterior: Any) -> Points:
        """Return the answer, shape (1, n)."""

    def step(self, state: OneStepState, ledger: Ledger) -> OneStepState:
        ledger.candidates(self.point(state.posterior))
        return replace(state, done=True)


@dataclass(frozen=True)
class Guess(OnePoint, name="guess", needs=(Guesses,)):
    """Report the posterior's one guess; `auto` chooses this if a time limit cut conditioning short."""

    def point(self, posterior: Guesses) -> Points:
        return posterior.guess()
