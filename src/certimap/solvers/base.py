"""The solver protocol: settings, a first state, and steps; everything else is the driver's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.posterior import Posterior


class SolverState(Protocol):
    """What a solver carries from step to step.

    Optional attributes that the driver heeds: `n_nodes` (search nodes so far, for `max_nodes`), `n_bytes`
    (memory held, for `max_memory`) and `work` (any count that grows while a step gets on). Once no draws are
    left, a run ends after 1,000 steps in a row that change none of them and report nothing new.
    """

    @property
    def done(self) -> bool:
        """Whether another step can change nothing."""
        ...


class Solver(Protocol):
    """A frozen dataclass of settings. No loop, clock, print or certificate inside.

    `requires` names the posterior methods that it needs beyond `log_prob` (`sample` included).

    Optional attributes that the driver heeds:

    - `heuristic` (class, default False): proves nothing by itself;
    - `rule` (default "sharp"): "published" counts draws as the paper does;
    - `early_stop` (default True): False keeps drawing to its own end;
    - `max_draws` (default None): a cap on draws where the user sets none;
    - `unsuited(posterior) -> str | None`: a sentence that refuses the posterior and names the alternative.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]]

    def init(self, posterior: Posterior, rng: np.random.Generator) -> Any:
        """Return the first state."""
        ...

    def step(self, state: Any, ledger: Ledger) -> Any:
        """Do a bounded piece of work (a fraction of a second), report events, return the next state.

        Randomness comes from the generator given to `init` alone, and no choice may depend on a clock.
        A step that may take longer polls `ledger.should_stop`.
        """
        ...
