"""The solver interface: settings, a first state, and steps; the driver does everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from certimap.certify.external import own_source
from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Label
from certimap.core.posterior import Capability, Posterior
from certimap.errors import SolverError

Family = Literal["sampling", "heuristic", "search", "elimination", "enumeration", "other"]

RELAXATION = own_source("relaxation")  # of bounds from relaxed networks


@dataclass(frozen=True)
class Judging:
    """How the ledger judges the draws of a solver."""

    rule: Literal["sharp", "published"] = "sharp"  # "sharp", or "published" to count draws as in the paper
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

    A solver has no loop, clock, print or certificate. States are plain data with a flag `done` (further steps
    change nothing), and can be pickled between steps.

    Attributes
    ----------
    name
        Its name in `solver=` and in results.
    needs
        The capabilities (see `certimap.core.posterior`) that a posterior must have.
    family
        The kind of method; tables and figures group by it.
    heuristic
        Whether it proves nothing by itself.
    is_seeded
        Whether answers may depend on the seed. False: `init` ignores its generator, and rows that ask the same
        query share one run.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[Capability, ...]] = ()
    family: ClassVar[Family] = "other"
    heuristic: ClassVar[bool] = False
    is_seeded: ClassVar[bool] = True

    def judging(self) -> Judging:
        """Return how the ledger judges its draws."""
        return Judging()

    def unsuited(self, posterior: Posterior) -> str | None:
        """Return why a posterior does not suit, or None.

        Parameters
        ----------
        posterior
            A posterior with all capabilities in `needs`.

        Returns
        -------
        str or None
            A sentence that names an alternative; None if the posterior suits.
        """
        return None

    def posed(self, posterior: Any, rng: np.random.Generator) -> Posterior:
        """Return the posterior that the solver answers about; a different one if it changes the question.

        The ledger and `init` get the returned posterior.

        Parameters
        ----------
        posterior
            A posterior with all capabilities in `needs`.
        rng
            For draws that define the question; they never count as evidence.
        """
        return posterior

    def decode(self, posterior: Posterior, point: Points) -> dict[str, Label]:
        """Convert a point to the user's labels.

        Parameters
        ----------
        posterior
            The posterior from `posed`.
        point
            One point of it, shape (n,).

        Returns
        -------
        dict
            Labels by name.
        """
        return posterior.domain.decode(point)

    def effort(self, state: Any) -> Effort:
        """Return the cost of a state so far, for the limits on nodes and memory.

        Once no draws are left, a run ends after 1,000 steps in a row that change neither this effort nor the
        ledger.

        Parameters
        ----------
        state
            A state from `init` or `step`.

        Returns
        -------
        Effort
            Nodes, bytes and work.
        """
        return Effort()

    @abstractmethod
    def init(self, posterior: Any, control: Control, rng: np.random.Generator, boxes: Boxes | None = None) -> Any:
        """Return the first state.

        Parameters
        ----------
        posterior
            A posterior with all capabilities in `needs`.
        control
            Limits that a long step must obey; keep it in the state.
        rng
            The only source of randomness.
        boxes
            One box to search; None means the whole space. The caller gives the same box to the ledger. A solver
            that cannot start from a box calls `refuse_boxes`.

        Returns
        -------
        object
            A state for `step`; it has an attribute `done`.
        """

    def refuse_boxes(self, boxes: Boxes | None) -> None:
        """Raise SolverError if a box is given: for solvers that search only the whole space.

        Parameters
        ----------
        boxes
            The argument of `init`.
        """
        if boxes is not None:
            raise SolverError(
                f"solver {self.name!r} answers for the whole space only, and was given a box; 'frontier', "
                "'set_elimination', 'hbfs', 'exhaustive' and the samplers start from one"
            )

    @abstractmethod
    def step(self, state: Any, ledger: Ledger) -> Any:
        """Do a bounded piece of work (a fraction of a second), report events, return the next state.

        Randomness comes only from the generator given to `init`, and no choice may depend on a clock.
        A step that may take longer polls `should_stop` of the control.

        Parameters
        ----------
        state
            The state from `init` or from the last step.
        ledger
            Takes the events.

        Returns
        -------
        object
            The next state, which may be the same object.
        """


class WholeSpaceSolver(Solver):
    """The base of solvers that search the whole space only: they define `start` in place of `init`."""

    def init(self, posterior: Any, control: Control, rng: np.random.Generator, boxes: Boxes | None = None) -> Any:
        self.refuse_boxes(boxes)
        return self.start(posterior, control, rng)

    @abstractmethod
    def start(self, posterior: Any, control: Control, rng: np.random.Generator) -> Any:
        """Return the first state; arguments as for `init`."""
