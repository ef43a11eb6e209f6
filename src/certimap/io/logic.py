"""Boolean circuits (conjunctions, disjunctions, literals) as circuits over variables that are False or True."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.properties import smoothed
from certimap.core.domain import Categorical, Domain
from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath
from certimap.io.literal_weights import as_rows

TRUE, FALSE = -1, -2
MAX_SCOPE_BITS = 2**33  # limit on nodes times variables: the memory for the scopes of all nodes


class LogicBuilder:
    """Builds a circuit bottom-up; constants are folded, and each method returns a node, TRUE or FALSE.

    Disjunctions are assumed deterministic (no assignment makes two children true), as in d-DNNFs and SDDs: they
    become sums. `path`: the file, for errors. `n_variables`, `names`: number of variables, and their names; by
    default "1", "2", ...
    """

    def __init__(self, path: AnyPath, n_variables: int, names: Sequence[str] | None = None) -> None:
        self.path = path
        self.n_variables = n_variables
        own = map(str, range(1, n_variables + 1)) if names is None else names
        self._builder = CircuitBuilder(Domain(Categorical(name, (False, True)) for name in own))
        self._literals: dict[int, int] = {}
        self._free: dict[int, int] = {}
        self._some_variable: list[int] = []  # of each node, a variable in its scope

    def literal(self, literal: int) -> int:
        """Add the indicator of a literal."""
        if literal not in self._literals:
            variable = abs(literal) - 1
            self._literals[literal] = self._added(self._builder.indicator(variable, int(literal > 0)), variable)
        return self._literals[literal]

    def bernoulli(self, variable: int, log_false: float, log_true: float) -> int:
        """Add a leaf with a weight for either state."""
        return self._added(
            self._builder.categorical(variable - 1, log_weights=(log_false, log_true)), variable - 1
        )

    def conjunction(self, children: Sequence[int]) -> int:
        """Add a product."""
        if FALSE in children:
            return FALSE
        parts = [child for child in children if child != TRUE]
        if len(parts) < 2:
            return parts[0] if parts else TRUE
        return self._added(self._builder.product(parts), self._some_variable[parts[0]])

    def disjunction(self, children: Sequence[int], log_weights: Sequence[float] | None = None) -> int:
        """Add a sum."""
        weights = [0.0] * len(children) if log_weights is None else log_weights
        pairs = [
            (child, w) for child, w in zip(children, weights, strict=True) if child != FALSE and w > -math.inf
        ]
        if not pairs:
            return FALSE
        if len(pairs) == 1 and pairs[0][1] == 0.0:
            return pairs[0][0]
        inner = [child for child, _ in pairs if child != TRUE]
        variable = self._some_variable[inner[0]] if inner else 0
        parts = [self._free_leaf(variable) if child == TRUE else child for child, _ in pairs]
        return self._added(self._builder.sum(parts, log_weights=[w for _, w in pairs]), variable)

    def circuit(self, root: int, log_weights: Mapping[int, float]) -> Circuit:
        """Return the circuit with a root, smooth and over all variables.

        `log_weights` has natural logs of the weights of literals; 0 for absent ones. ParseError if the root is
        false, or the circuit is too large to make smooth.
        """
        if root == FALSE:
            raise ParseError("the formula is false: it has no model, and so no distribution", self.path)
        if len(self._builder) * self.n_variables > MAX_SCOPE_BITS:
            raise ParseError(
                f"has {len(self._builder):,} nodes and {self.n_variables:,} variables, too many to fill up the "
                "variables that branches leave out",
                self.path,
            )
        self._builder.product([self._free_leaf(0) if root == TRUE else root])
        try:
            circuit = smoothed(self._builder.build(normalised=False))
        except ModelError as error:
            raise ParseError(str(error), self.path) from None
        if not log_weights:
            return circuit
        # In a smooth circuit every variable has one leaf in each term; that leaf takes the weight.
        rows = as_rows(log_weights, self.n_variables)
        leaves = circuit.leaf_var[circuit.leaf_var >= 0]
        return dataclasses.replace(circuit, params=circuit.params + rows[leaves].reshape(-1))

    def _added(self, node: int, variable: int) -> int:
        self._some_variable.append(variable)
        return node

    def _free_leaf(self, variable: int) -> int:
        if variable not in self._free:
            self._free[variable] = self._added(
                self._builder.categorical(variable, log_weights=(0.0, 0.0)), variable
            )
        return self._free[variable]
