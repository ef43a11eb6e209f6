"""The request of a query: certificate, solver and limits. Checked once, then immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack

from certimap.certify.checks import check_settings
from certimap.certify.external import ExternalBound
from certimap.core.arguments import check_number, check_whole, shown
from certimap.core.control import Control, Limits
from certimap.errors import SolverError
from certimap.solvers.base import Solver
from certimap.solvers.registry import made, make


class QuerySettings(TypedDict, total=False):
    """Keywords of `certimap.map_query` for how a query is answered; see there."""

    epsilon: float
    delta: float
    solver: str | Solver
    time_limit: float | None
    max_samples: int | None
    max_nodes: int | None
    max_memory: int | None
    max_edges: int | None
    device: str | None
    upper_bound: Any
    warm_start: Any
    top_k: int | None
    tolerance: float
    workers: int | None


class Settings(QuerySettings, total=False):
    """The arguments of `Request.of`.

    `options` holds the settings of a solver given by name; `proof_bytes` is the largest size of a proof.
    """

    options: Mapping[str, Any]
    proof_bytes: int | None


@dataclass(frozen=True)
class Budget:
    """Limits of one answer, counted from the call; None means no limit."""

    # seconds. It is checked between steps; a step itself never looks at the clock, so that a seed replays.
    time_limit: float | None = None
    # max_samples, max_nodes: draws and search nodes. Without `max_samples` and `time_limit` a run makes at most 10
    # million draws.
    max_samples: int | None = None
    max_nodes: int | None = None
    max_memory: int | None = None  # bytes that conditioning, solver and ledger may hold, not counting the model

    def __post_init__(self) -> None:
        for name in ("time_limit", "max_samples", "max_nodes", "max_memory"):
            value, accepted = self.__dict__[name], "a number not below 0, or None for no limit"
            if value is not None and check_number(name, value, accepted) < 0:
                raise SolverError(f"{name} is {value}; expected {accepted}")

    def start(self) -> Control:
        """Return the control of an answer that starts now."""
        return Control.starting_now(self.time_limit, max_nodes=self.max_nodes, max_memory=self.max_memory)


@dataclass(frozen=True, eq=False)
class Request:
    """How a query is to be answered, whatever the query."""

    solver: Solver | Literal["auto"] = "auto"  # a solver object, or "auto", which picks one for the posterior
    # epsilon, delta: the requested certificate: p(answer) >= (1 - epsilon) p* with probability at least 1 - delta.
    # 0 and 0 request a proof of exactness.
    epsilon: float = 0.01
    delta: float = 0.01
    tolerance: float = 1e-9  # the relative error that still counts as exact
    top_k: int | None = None  # how many of the most probable assignments the result lists; None: only the answer
    warm_start: Any = None  # see `certimap.solvers.warm_start.apply_warm_start`
    upper_bound: ExternalBound | None = None  # an upper bound that another program proved, or None
    proof_bytes: int | None = None  # the largest size of a proof in bytes; None: no proof
    # budget, limits: limits of each answer, and of conditioning
    budget: Budget = field(default_factory=Budget)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_settings(self.epsilon, self.delta, self.n_answers, "sharp", self.tolerance)

    @classmethod
    def of(cls, **given: Unpack[Settings]) -> Request:
        """Make a request from a user's names, options and numbers.

        Raises
        ------
        SolverError
            For an unknown solver or option, and for a setting out of range, which the message names.
        """
        workers, max_edges, device = given.get("workers"), given.get("max_edges"), given.get("device")
        if workers is not None:
            accepted = "a positive number of threads, or None for every core"
            workers = check_whole("workers", workers, accepted, low=1)
        if max_edges is not None:
            max_edges = check_whole("max_edges", max_edges, "a whole number not below 0, or None for no limit")
        if device is not None and not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SolverError(f"device is {shown(device)}; expected 'cpu', 'cuda', 'cuda:N' or None")
        default = cls()
        return cls(
            solver=made(given.get("solver", "auto"), given.get("options")),
            epsilon=given.get("epsilon", default.epsilon),
            delta=given.get("delta", default.delta),
            tolerance=given.get("tolerance", default.tolerance),
            top_k=given.get("top_k"),
            warm_start=given.get("warm_start"),
            upper_bound=ExternalBound.read(given.get("upper_bound")),
            proof_bytes=given.get("proof_bytes"),
            budget=Budget(
                given.get("time_limit"), given.get("max_samples"), given.get("max_nodes"), given.get("max_memory")
            ),
            limits=Limits(max_edges, workers, device=device),
        )

    @property
    def n_answers(self) -> int:
        """The number of requested assignments."""
        return 1 if self.top_k is None else self.top_k

    def raising(self, *names: str) -> Request:
        """Return a copy for a caller who can raise only these limits; messages name no others."""
        return replace(self, limits=replace(self.limits, raisable=names))

    def of_worker(self) -> Request:
        """Return a copy for a worker of an executor: one thread unless `workers` is given."""
        return replace(self, limits=replace(self.limits, workers=self.limits.workers or 1))

    def of_empty_domain(self) -> Request:
        """Return a copy for a query without variables, whose answer needs no search."""
        return replace(self, solver=make("exhaustive"), warm_start=None)

    def in_a_hurry(self) -> Request:
        """Return a copy for a quick posterior, used if the intended one is not ready in time."""
        return replace(self, solver="auto", warm_start=None, upper_bound=None)
