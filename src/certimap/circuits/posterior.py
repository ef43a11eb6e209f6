"""The posterior of a circuit: conditioned, with a sampler and an oracle, or only guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from certimap.circuits import properties, walks
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.evaluator import MASS, POINT, Evaluator
from certimap.circuits.kernels import real, structure
from certimap.circuits.leaves.kind import function_table, leaf_kinds
from certimap.circuits.plan import ConditionedLeaves, Plan, checked, condition, fill_log_mass, leaves_of
from certimap.circuits.prober import MixtureProber, PlanProber, flattened
from certimap.circuits.walks import Propagation, beam
from certimap.core.arrays import Floats, Ints32, spans
from certimap.core.box import Boxes, Points
from certimap.core.cached import cached_property
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.model import Model
from certimap.core.posterior import Facts
from certimap.core.query import Query, make_query
from certimap.core.rounding import ULP
from certimap.errors import QueryError, TooLarge
from certimap.kernels.parallel import default_workers

# Lower limit on ln of the mass of a possible cell: binary exponents of products of thousands of masses then stay
# whole numbers. Raised masses lie below any p* that is not itself e^-1e9.
LEAST_LOG_MASS = -1e9
Edges = Sequence[Floats | None]  # the ends of each real variable's cells, one more than cells; None for others


class CircuitPosterior:
    """p(q | e) as a circuit over the query variables; implements `BoxPosterior`.

    All logs are natural. Every method is linear in edges times rows, runs on `workers` threads (None takes one per
    processor), and gives the same answer for any number of them. `log_evidence` is ln p(e), or ln of the
    unnormalised mass under the evidence; `origin` the original model and query, for methods that learn from other
    evidence.
    """

    def __init__(
        self,
        plan: Plan,
        log_evidence: float | None = 0.0,
        workers: int | None = None,
        origin: tuple[Model, Query] | None = None,
    ) -> None:
        self.plan = plan
        self.log_evidence = log_evidence
        self.workers = default_workers() if workers is None else max(1, int(workers))
        self.origin = origin

    @classmethod
    def from_circuit(
        cls,
        circuit: Circuit,
        query: Query,
        *,
        max_edges: int | None = None,
        workers: int | None = None,
        control: Control | None = None,
        origin: tuple[Model, Query] | None = None,
    ) -> CircuitPosterior:
        """Condition a circuit on a query, as `certimap.circuits.plan.condition`; `origin` is both by default."""
        plan, log_evidence = condition(circuit, query, max_edges=max_edges, control=control)
        return cls(plan, log_evidence, workers, origin or (circuit, query))

    @property
    def domain(self) -> Domain:
        """The query variables, in the query's order."""
        return self.plan.domain

    @property
    def facts(self) -> Facts:
        """Properties of the posterior for solvers."""
        return self._facts

    @cached_property
    def _facts(self) -> Facts:
        return Facts.of(
            self.domain,
            log_evidence=self.log_evidence,
            work=self.n_edges,
            log_slack=self.evaluator.relative_error,
            is_density=bool(np.any((self.domain.n_states == 0) & ~self.plan.is_whole)),
        )

    @property
    def n_edges(self) -> int:
        """Edges of the conditioned circuit, including edges to leaves: the work of evaluating one row."""
        return self.plan.n_edges

    @cached_property
    def circuit(self) -> Circuit:
        """The conditioned, simplified, normalised circuit over the query variables."""
        return self.plan.to_circuit()

    @cached_property
    def evaluator(self) -> Evaluator:
        return Evaluator(self.plan, self.workers)

    def __repr__(self) -> str:
        return f"CircuitPosterior({len(self.domain)} variables, {self.plan.n_nodes} nodes, {self.n_edges} edges)"

    def __getstate__(self) -> dict[str, Any]:
        given = {"log_evidence": self.log_evidence, "workers": self.workers, "origin": self.origin}
        return {"plan": self.plan, **given}

    def cut(self, cells: Domain, edges: Edges) -> CircuitPosterior:
        """Return the distribution over the cells of a partition, a circuit with the same structure.

        Arguments as in `cut_plan`. Its `log_prob` is ln P(box | e). Cost: one mass per leaf and cell.
        """
        circuit, log_error = cut_plan(self.plan, cells, edges)
        made = CircuitPosterior.from_circuit(circuit, make_query(cells), workers=self.workers)
        plan = replace(made.plan, log_error=made.plan.log_error + log_error)
        return CircuitPosterior(plan, self.log_evidence, self.workers, made.origin)

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, (n, n_vars), from p(q | e), or in disjoint boxes; QueryError if massless."""
        if boxes is None:
            return self.evaluator.sample(n, rng)
        return self.evaluator.sample_in(n, rng, self._boxes(boxes))

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q | e) at each row (a density in real variables), shape (batch,); -inf at zero."""
        return self.evaluator.log_values(POINT, self._points(points), None)

    def log_mass(self, boxes: Boxes) -> Floats:
        """Return ln P(box | e), shape (batch,), rounded to nearest (see `facts.log_slack`)."""
        return np.minimum(self.evaluator.log_values(MASS, None, self._boxes(boxes)), 0.0)

    def log_mass_each(self, boxes: Boxes) -> Floats:
        """Return ln P(box with variable i set to state a | e), shape (batch, total_states).

        One upward and one downward pass. For a single point this gives all its neighbours at Hamming distance 1.
        """
        values = self.evaluator.log_each(self._boxes(boxes))
        return np.minimum(values, 0.0, out=values)

    def prober(self) -> PlanProber:
        """Return a new prober, with nothing tightened yet."""
        flat = None if self.domain.is_discrete else flattened(self.plan)
        given = (self.plan, self.workers)
        return PlanProber(*given) if flat is None else MixtureProber(*given, flat)

    def max_product(self) -> Points:
        """Return the assignment at the end of the most probable path, shape (1, n); one visit per edge."""
        return walks.max_product(self.plan)

    def argmax_product(self) -> Points:
        """Return the root's assignment when every node keeps the best of its children's, shape (1, n)."""
        return walks.argmax_product(self.plan)

    def beam(self, width: int, should_stop: Callable[[], bool]) -> Points:
        """Return the root's assignments, best first, when every node keeps the `width` best of its children's."""
        return beam(self.plan, width, should_stop)

    def propagation(self, damping: float) -> Propagation:
        """Return hybrid belief propagation on the circuit, not yet started."""
        return Propagation(self.plan, damping)

    def modes(self) -> Points:
        """Return the modes of the variables' marginals, shape (1, n)."""
        log_mass = self.log_mass_each(Boxes.full(self.domain))[0] if self.domain.total_states else np.empty(0)
        return walks.modes(self.plan, log_mass)

    def _points(self, points: Points) -> Points:
        n_vars = len(self.domain)
        points = np.asarray(points)
        if points.ndim != 2 or points.shape[1] != n_vars:
            raise QueryError(f"points have shape {points.shape}; expected (batch, {n_vars})")
        n_states = self.domain.n_states
        is_plain = (
            points.size and points.dtype == np.int16 and points.flags.c_contiguous and self.domain.is_discrete
        )
        # The usual case in one pass: read as unsigned, negative numbers are large.
        if is_plain and int(points.view(np.uint16).max()) < int(n_states.min()):
            return points
        discrete = n_states > 0
        if len(points) and discrete.any():
            low, high = points.min(axis=0)[discrete], points.max(axis=0)[discrete]
            if np.any(low < 0) or np.any(high >= n_states[discrete]):
                raise QueryError("points hold a state position out of range; expected 0 to n_states - 1")
        return np.ascontiguousarray(points, self.domain.point_dtype)

    def _boxes(self, boxes: Boxes) -> Boxes:
        if boxes.mask.shape[1] != self.domain.total_states:
            raise QueryError(
                f"boxes have {boxes.mask.shape[1]} columns; the query variables have "
                f"{self.domain.total_states} states in all"
            )
        return boxes


def cut_plan(plan: Plan, cells: Domain, edges: Edges) -> tuple[Circuit, float]:
    """Replace the density of every real leaf by a table of its masses in its variable's cells.

    `cells` are the plan's variables, with one state per cell for real ones; `edges` the rising ends of each real
    variable's cells, None for others. Returns a circuit over `cells`, in which the value of a point is the mass of
    a box, and a bound on the error (nats) of log masses, apart from errors relative to their size.
    """
    is_real = plan.domain.n_states[plan.leaf_var] == 0
    starts, first = np.unique(plan.leaf_start[is_real], return_index=True)
    variables = plan.leaf_var[is_real][first].astype(np.int64)
    n_cells = cells.n_states[variables]
    first_cell = np.concatenate([[0], np.cumsum(n_cells)]).astype(np.int64)
    ends = [np.zeros(0) if e is None else np.asarray(e, np.float64) for e in edges]
    first_edge = np.concatenate([[0], np.cumsum([len(e) for e in ends])]).astype(np.int64)[variables]
    of_cell, at, cuts = np.repeat(starts, n_cells), spans(first_edge, n_cells), np.concatenate(ends)
    low, high = np.maximum(cuts[at], plan.log_tables[of_cell + real.LOW]), cuts[at + 1]
    high, masses = np.minimum(high, plan.log_tables[of_cell + real.HIGH]), np.full(len(at), -np.inf)
    some, functions = np.flatnonzero(low < high), function_table(np.unique(plan.log_tables[starts]))
    masses[some] = real.answers(functions, real.MASS, plan.log_tables, of_cell[some], low[some], high[some])
    masses[some] -= plan.log_tables[of_cell[some] + real.LOG_NORM]
    masses = np.where(masses > -np.inf, np.maximum(masses, LEAST_LOG_MASS), -np.inf)
    moved = np.array(plan.leaf_start)
    moved[is_real] = len(plan.log_tables) + first_cell[np.searchsorted(starts, plan.leaf_start[is_real])]
    logs = np.concatenate([plan.log_tables, masses])
    made = replace(plan, domain=cells, leaf_start=moved, log_tables=logs, tables=np.exp(logs))
    roundings = max(kind.roundings for kind in leaf_kinds().values())
    return made.to_circuit(), plan.log_error + ULP * roundings * int(np.sum(plan.domain.n_states == 0))


@dataclass(frozen=True, eq=False)
class GuessedCircuit:
    """The posterior of a circuit that is not rewritten; categorical query variables only.

    All logs are natural. A point costs one pass over the whole circuit, about a tenth of conditioning it.
    """

    circuit: Circuit
    domain: Domain
    leaves: ConditionedLeaves
    log_error: Floats
    log_evidence: float

    @classmethod
    def of(cls, circuit: Circuit, query: Query) -> GuessedCircuit:
        """Return the posterior; raises the errors of conditioning, and TooLarge if a real variable is queried."""
        if not query.query_domain.is_discrete:
            raise TooLarge("real variables cannot be guessed without conditioning the circuit")
        circuit = checked(circuit, query)
        leaves, log_error = leaves_of(circuit, query)
        log_evidence = fill_log_mass(circuit, leaves.log_mass.copy())
        return cls(circuit, query.query_domain, leaves, log_error, log_evidence)

    @property
    def facts(self) -> Facts:
        """Properties of the posterior for solvers."""
        return Facts.of(
            self.domain, log_evidence=self.log_evidence, work=self.circuit.n_edges, log_slack=self._log_slack
        )

    @cached_property
    def _log_slack(self) -> float:
        """A bound on the error of ln p of any possible point, in nats: the errors of its pass and of ln p(e)."""
        leaves, arrays = self.leaves, properties.circuit_arrays(self.circuit)
        reach, queried = np.abs(leaves.log_mass), leaves.queried
        sizes = np.where(np.isfinite(queried.log_tables), np.abs(queried.log_tables), 0.0)
        if len(queried.nodes):
            reach[queried.nodes] += np.maximum.reduceat(sizes, queried.start)
        reach[~np.isfinite(reach)] = 0.0
        structure.upward_reach(arrays, reach)
        error = self.log_error + 2.0 + reach * (self.circuit.kind < NodeKind.PRODUCT)
        error[leaves.log_mass == -np.inf] = 0.0  # nothing is added where the evidence is excluded
        structure.upward_error(arrays, reach, error)
        return 2.0 * float(error[-1] + reach[-1]) * float(np.finfo(np.float64).eps)

    @cached_property
    def _places(self) -> Ints32:
        """The query variable of each queried leaf."""
        return self.leaves.position[self.circuit.leaf_var[self.leaves.queried.nodes]]

    def log_prob(self, points: Points) -> Floats:
        """Natural log of p(q | e), shape (batch,); one pass per point."""
        out = np.empty(len(points))
        queried = self.leaves.queried
        for row, point in enumerate(points):
            log_mass = self.leaves.log_mass.copy()
            entries = queried.log_tables[queried.start + point[self._places]]
            log_mass[queried.nodes] += np.where(np.isnan(entries), -np.inf, entries)
            out[row] = self._pass(log_mass) - self.log_evidence
        return np.minimum(out, 0.0)

    def guess(self) -> Points:
        """Walk down from the root to the children of largest value, leaves at their maxima; shape (1, n)."""
        value = self._peaks()
        self._pass(value)
        return self._walk_down(value)

    def most_probable_path(self) -> Points:
        """Max-product on the unconditioned circuit, shape (1, n): sums are maxima, leaves at their maxima."""
        value = self._peaks()
        structure.upward_log_mass(properties.circuit_arrays(self.circuit), True, value)
        return self._walk_down(value)

    def _peaks(self) -> Floats:
        """Return the largest log value of each leaf, shape (n_nodes,), 0 on inner nodes."""
        queried, value = self.leaves.queried, self.leaves.log_mass.copy()
        if len(queried.nodes):
            peaks = np.maximum.reduceat(queried.log_tables, queried.start)
            value[queried.nodes] += np.where(np.isnan(peaks), -np.inf, peaks)
        return value

    def _walk_down(self, value: Floats) -> Points:
        """Follow the child of largest weighted value at sums, and all children at products; shape (1, n)."""
        circuit, queried, position = self.circuit, self.leaves.queried, self.leaves.position
        point = np.zeros((1, len(self.domain)), np.int16)
        stack = [circuit.root]
        while stack:
            node = stack.pop()
            kind = circuit.kind[node]
            children = circuit.children_of(node)
            if kind == NodeKind.SUM:
                first, last = circuit.child_ptr[node], circuit.child_ptr[node + 1]
                stack.append(int(children[np.argmax(circuit.log_weights[first:last] + value[children])]))
            elif kind == NodeKind.PRODUCT:
                stack.extend(children.tolist())
            elif (place := int(position[circuit.leaf_var[node]])) >= 0:
                start = int(queried.start[np.searchsorted(queried.nodes, node)])
                entries = queried.log_tables[start : start + int(self.domain.n_states[place])]
                point[0, place] = int(np.argmax(entries))
        return point

    def _pass(self, log_mass: Floats) -> float:
        structure.upward_log_mass(properties.circuit_arrays(self.circuit), False, log_mass)
        return float(log_mass[-1])
