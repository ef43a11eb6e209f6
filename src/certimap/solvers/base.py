"""What a solver is: settings, a first state, and steps; everything else is the driver's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from certimap.errors import SolverError

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.core.box import Boxes, Points
    from certimap.core.control import Control
    from certimap.core.domain import Label
    from certimap.core.posterior import Capability, Posterior

Family = Literal["sampling", "heuristic", "search", "elimination", "enumeration", "other"]


@dataclass(frozen=True)
class Judging:
    """How the ledger judges the draws of a solver.

    Attributes
    ----------
    rule
        "sharp", or "published" to count draws as the paper does.
    early_stop
        False keeps drawing to the solver's own end, whatever is certified before.
    max_draws
        A cap on draws where the user sets none; None takes the driver's.
    """

    rule: Literal["sharp", "published"] = "sharp"
    early_stop: bool = True
    max_draws: int | None = None


@dataclass(frozen=True)
class Effort:
    """What a state has cost so far: search nodes, bytes held, and any count of work that grows with it."""

    n_nodes: int = 0
    n_bytes: int = 0
    work: int = 0


class Solver(ABC):
    """The base of every solver: derive a frozen dataclass of settings from it.

    No loop, clock, print or certificate inside. States are plain data with a flag `done` (another step can change
    nothing); they pickle between steps.

    Attributes
    ----------
    name
        What `solver=` and results call it.
    needs
        The capabilities (see `certimap.core.posterior`) without which a posterior is refused.
    family
        What kind of method it is; tables and figures group by it.
    heuristic
        Whether it proves nothing by itself.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[Capability, ...]] = ()
    family: ClassVar[Family] = "other"
    heuristic: ClassVar[bool] = False

    def judging(self) -> Judging:
        """Return how its draws are to be judged.

        Returns
        -------
        Judging
        """
        return Judging()

    def unsuited(self, posterior: Posterior) -> str | None:
        """Say why a posterior does not suit.

        Parameters
        ----------
        posterior
            It offers all that the solver `needs`.

        Returns
        -------
        str or None
            A sentence that names an alternative; None where it suits.
        """
        return None

    def posed(self, posterior: Any, rng: np.random.Generator) -> Posterior:
        """Return the posterior that the solver answers about; another one where it changes the question.

        Whatever comes back is what the ledger judges, and what `init` gets.

        Parameters
        ----------
        posterior
            Offers all that the solver `needs`.
        rng
            For what is drawn to put the question; none of it counts as evidence.

        Returns
        -------
        Posterior
        """
        return posterior

    def decode(self, posterior: Posterior, point: Points) -> dict[str, Label]:
        """Return the answer that a point stands for, in the words of the user.

        Parameters
        ----------
        posterior
            What `posed` returned.
        point
            One point of it, shape (n,).

        Returns
        -------
        dict
            Labels by name.
        """
        return posterior.domain.decode(point)

    def effort(self, state: Any) -> Effort:
        """Return what a state has cost, for the limits on nodes and memory.

        Once no draws are left, a run ends after 1,000 steps in a row that change nothing of this and report
        nothing new.

        Parameters
        ----------
        state
            What `init` or `step` returned.

        Returns
        -------
        Effort
            Nodes, bytes, and whether draws are left.
        """
        return Effort()

    @abstractmethod
    def init(self, posterior: Any, control: Control, rng: np.random.Generator, boxes: Boxes | None = None) -> Any:
        """Return the first state.

        Parameters
        ----------
        posterior
            Offers all that the solver `needs`.
        control
            Limits that a long step heeds; keep it in the state.
        rng
            The only source of randomness.
        boxes
            One box to search instead of the whole space; None means everything. Whoever gives one gives it to
            the ledger as well. A solver that cannot start from one calls `refuse_boxes`.

        Returns
        -------
        object
            Whatever `step` takes; it has an attribute `done`.
        """

    def refuse_boxes(self, boxes: Boxes | None) -> None:
        """Raise SolverError where a box is given: for solvers that know the whole space only.

        Parameters
        ----------
        boxes
            What `init` was given.
        """
        if boxes is not None:
            raise SolverError(
                f"solver {self.name!r} answers for the whole space only, and was given a box; 'frontier', "
                "'set_elimination', 'hbfs', 'exhaustive' and the samplers start from one"
            )

    @abstractmethod
    def step(self, state: Any, ledger: Ledger) -> Any:
        """Do a bounded piece of work (a fraction of a second), report events, return the next state.

        Randomness comes from the generator given to `init` alone, and no choice may depend on a clock.
        A step that may take longer polls `should_stop` of the control.

        Parameters
        ----------
        state
            What `init` or the last step returned.
        ledger
            Takes the events.

        Returns
        -------
        object
            The next state, which may be the same object.
        """
