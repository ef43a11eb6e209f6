"""Networks: products of factors that can be queried and compiled. Markov networks are unnormalised ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.box import Points
from certimap.core.cached import cached_property
from certimap.core.control import Limits
from certimap.core.domain import Domain
from certimap.core.model import Model, conversions
from certimap.errors import ModelError
from certimap.networks.factor import Factor, add_logs
from certimap.networks.reduction import reduce_network

if TYPE_CHECKING:
    from certimap.circuits.circuit import Circuit
    from certimap.core.query import Query
    from certimap.networks.elimination import Elimination


class Network(Model):
    """A product of nonnegative factors over discrete variables; immutable.

    - `domain`: the variables.
    - `factors`: the factors, whose scopes are positions in `domain`.
    - `owners`: the variable whose conditional distribution a factor is, or None: a factor whose owner is barren
      can be left out of a query.
    - `hidden`: names of helper variables that a query for all variables leaves out.
    """

    domain: Domain
    factors: tuple[Factor, ...]
    owners: tuple[int | None, ...]

    def __init__(
        self, domain: Domain, factors: Sequence[Factor], owners: Sequence[int | None], hidden: Iterable[str] = ()
    ) -> None:
        if not domain.is_discrete:
            real = next(v.name for v in domain if not v.n_states)
            raise ModelError(f"variable {real!r} of a network is real; expected categorical variables")
        for factor in factors:
            if factor.scope and max(factor.scope) >= len(domain):
                raise ModelError(
                    f"a factor has the scope {factor.scope}; expected positions 0 to {len(domain) - 1}"
                )
            expected = tuple(int(domain.n_states[v]) for v in factor.scope)
            if factor.shape != expected:
                names = tuple(domain.names[v] for v in factor.scope)
                raise ModelError(
                    f"the factor over {names} has a table of shape {factor.shape}; expected {expected}"
                )
        self.domain = domain
        self.factors = tuple(factors)
        self.owners = tuple(owners)
        self.hidden = frozenset(hidden)
        for name in sorted(self.hidden):
            if name not in domain:
                raise ModelError(f"{name!r} is hidden, and no variable of the network")

    def __repr__(self) -> str:
        done = self.domain.done and f", {self.domain.done}"
        return f"{type(self).__name__}({len(self.domain)} variables, {len(self.factors)} factors{done})"

    @property
    def without_counters(self) -> Network:
        """The network without the counters of constraints."""
        return self

    def relevant(self, variables: set[int]) -> set[int]:
        """Return the variables that the marginal of some variables depends on."""
        return set(range(len(self.domain)))

    def log_joint(self, points: Points) -> Floats:
        """Return the natural log of the product of all factors at each full assignment, shape (batch,).

        `points`: integer state positions, shape (batch, n) or (n,); columns follow the domain. -inf where a factor
        is zero. Cost: batch times the number of factors.
        """
        rows = np.atleast_2d(np.asarray(points)).astype(np.int64)
        if rows.shape[1] != len(self.domain):
            raise ModelError(f"points have {rows.shape[1]} columns; the network has {len(self.domain)} variables")
        if len(rows) and (np.any(rows < 0) or np.any(rows >= self.domain.n_states)):
            raise ModelError("a point has a state position outside its variable's states")
        return add_logs((factor.log_value(rows) for factor in self.factors), (len(rows),))

    def size_report(self, query: Query | None = None) -> Elimination:
        """Return induced width and estimated sizes of a compilation for a `query`, using little memory.

        Evidence is absorbed, and barren variables and impossible states are removed, as compiling does; raises
        ImpossibleEvidence when that alone shows the evidence to be impossible.
        """
        from certimap.networks.orders import plan_elimination

        reduced = reduce_network(self, query)
        return plan_elimination([f.scope for f in reduced.factors], reduced.sizes, reduced.query)

    def compile(self, *, max_edges: int | None = None) -> Circuit:
        """Compile the network to a circuit over its whole domain.

        Raises ModelError, before memory is taken, when the circuit is estimated to have more than `max_edges`
        edges, or, with None, to leave no room on the machine. Raises ImpossibleEvidence when the product of the
        factors is zero everywhere.
        """
        return conversions().compile_query(self, None, max_edges=Limits(max_edges).edges_allowed)

    def compile_query(self, query: Query, *, max_edges: int | None = None) -> Circuit:
        """Compile to a circuit of p(q, e) over a `query`'s variables; `max_edges` and errors as in `compile`."""
        return conversions().compile_query(self, query, max_edges=Limits(max_edges).edges_allowed)


class MarkovNetwork(Network):
    """An unnormalised product of factors.

    - `domain`: the variables, all categorical.
    - `factors`: `Factor`s over positions in the domain. Scopes may repeat (their factors multiply) or be empty (a
      constant, which counts).
    - `hidden`: names of helper variables that a query for all variables leaves out.

    Raises ModelError for a real variable, a factor that does not fit the domain, or an unknown hidden name.
    """

    def __init__(self, domain: Domain, factors: Iterable[Factor], hidden: Iterable[str] = ()) -> None:
        given = tuple(factors)
        super().__init__(domain, given, (None,) * len(given), hidden)

    @cached_property
    def log_partition(self) -> float:
        """Natural log of the sum of the product over all assignments, by elimination.

        Raises TooLarge when its tables do not fit into memory, ImpossibleEvidence when the sum is 0.
        """
        from certimap.core.query import make_query
        from certimap.networks.sum_elimination import log_evidence_of

        return log_evidence_of(self, make_query(self.domain))

    def log_prob(self, points: Points) -> Floats:
        """Return ln p (nats, -inf where impossible) of full assignments `points`: `log_joint`, normalised."""
        return self.log_joint(points) - self.log_partition
