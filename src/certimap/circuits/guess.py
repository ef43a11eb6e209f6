"""An unconditioned circuit, for short time limits: log-probabilities of single points, and one good guess."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from certimap.circuits import properties
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.condition import ConditionedLeaves, checked, fill_log_mass, leaves_of
from certimap.circuits.kernels import structure
from certimap.core.arrays import Floats, Ints32
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.posterior import Facts
from certimap.core.query import Query
from certimap.errors import TooLarge


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
        """A bound on the error of ln p of any possible point, in nats: the errors of its own pass and of ln p(e).

        The two logs are subtracted unscaled, so very improbable evidence costs digits.
        """
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
        structure.upward_log_maximum(properties.circuit_arrays(self.circuit), value)
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
        structure.upward_log_mass(properties.circuit_arrays(self.circuit), log_mass)
        return float(log_mass[-1])
