"""The request of a query: certificate, solver and limits. Checked once, then immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from certimap.certify.findings import check_settings
from certimap.certify.ledger import ExternalBound
from certimap.core.arguments import check_number, check_whole, is_sequence, shown
from certimap.core.control import Control, Limits, halt_here
from certimap.errors import SolverError
from certimap.solvers.base import Solver
from certimap.solvers.registry import made

if TYPE_CHECKING:
    from certimap.core.constraints import Constraint


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
    top_mass: float | None
    tolerance: float
    workers: int | None
    constraints: Any


class Settings(QuerySettings, total=False):
    """The arguments of `Request.of`; `options`: settings of a solver given by name."""

    options: Mapping[str, Any]
    proof_bytes: int | None


@dataclass(frozen=True)
class Budget:
    """Limits of one answer, counted from the call; None means no limit."""

    time_limit: float | None = None  # seconds; a step itself never looks at the clock, so that a seed replays
    max_samples: int | None = None  # draws; 10 million where neither this nor a time limit is given
    max_nodes: int | None = None  # search nodes
    max_memory: int | None = None  # bytes that conditioning, solver and ledger may hold, not counting the model

    def __post_init__(self) -> None:
        for name in ("time_limit", "max_samples", "max_nodes", "max_memory"):
            value, accepted = self.__dict__[name], "a number not below 0, or None for no limit"
            if value is not None and check_number(name, value, accepted) < 0:
                raise SolverError(f"{name} is {value}; expected {accepted}")

    def start(self) -> Control:
        """Return the control of an answer that starts now."""
        control = Control.starting_now(self.time_limit, max_nodes=self.max_nodes, max_memory=self.max_memory)
        if (halt := halt_here.get()) is not None:
            halt.controls.append(control)  # first: `stop` may come in between
            if halt.is_set:
                raise KeyboardInterrupt
        return control


@dataclass(frozen=True, eq=False)
class Request:
    """How a query is to be answered, whatever the query."""

    solver: Solver | Literal["auto"] = "auto"  # a solver object, or "auto", which picks one for the posterior
    epsilon: float = 0.01  # requested: p(answer) >= (1 - epsilon) p* with probability at least 1 - delta
    delta: float = 0.01
    tolerance: float = 1e-9  # the relative error that still counts as exact
    top_k: int | None = None  # how many of the most probable assignments the result lists; None: only the answer
    top_mass: float | None = None  # the probability that the list is to hold; `top_k` is then its largest length
    warm_start: Any = None  # see `certimap.solvers.driver.apply_warm_start`
    upper_bound: ExternalBound | None = None  # an upper bound that another program proved, or None
    proof_bytes: int | None = None  # the largest size of a proof in bytes; None: no proof
    budget: Budget = field(default_factory=Budget)  # limits of each answer
    limits: Limits = field(default_factory=Limits)  # of conditioning
    constraints: tuple[Constraint, ...] = ()  # on answers

    def __post_init__(self) -> None:
        check_settings(self.epsilon, self.delta, self.n_answers, "sharp", self.tolerance)
        accepted = "a probability above 0 and at most 1"
        if self.top_mass is not None and not 0.0 < check_number("top_mass", self.top_mass, accepted) <= 1.0:
            raise SolverError(f"top_mass is {self.top_mass}; expected {accepted}")
        bound = self.upper_bound
        if self.constraints and bound is not None and bound.of == "log_prob":
            raise SolverError(
                f"the upper bound of {bound.source} is of log_prob; under constraints give one of log_joint"
            )

    @classmethod
    def of(cls, **given: Unpack[Settings]) -> Request:
        """Make a request from a user's names, options and numbers; raise SolverError for any that is not valid."""
        workers, max_edges, device = given.get("workers"), given.get("max_edges"), given.get("device")
        if workers is not None:
            accepted = "a positive number of threads, or None for every core"
            workers = check_whole("workers", workers, accepted, low=1)
        if max_edges is not None:
            max_edges = check_whole("max_edges", max_edges, "a whole number not below 0, or None for no limit")
        if device is not None and not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SolverError(f"device is {shown(device)}; expected 'cpu', 'cuda', 'cuda:N' or None")
        alike = ("epsilon", "delta", "tolerance", "top_k", "top_mass", "warm_start", "proof_bytes")
        values: Any = given
        said, constraints = given.get("constraints"), ()
        if not (said is None or (is_sequence(said) and not said)):
            from certimap.core.constraints import constraints_of

            constraints = constraints_of(said)
        limits = (values.get(name) for name in ("time_limit", "max_samples", "max_nodes", "max_memory"))
        return cls(
            solver=made(given.get("solver", "auto"), given.get("options")),
            upper_bound=ExternalBound.read(given.get("upper_bound")),
            budget=Budget(*limits),
            limits=Limits(max_edges, workers, device=device),
            constraints=constraints,
            **{name: values[name] for name in alike if name in values},
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
