"""Boolean circuits (conjunctions, disjunctions, literals) as circuits over variables that are False or True.

Weights of literals come from a mapping or a file, which may be the CNF itself. Its lines have one of these forms:

    LITERAL WEIGHT                          d4
    c p weight LITERAL WEIGHT 0             model counting competitions, in a CNF
    c weights W1 W-1 W2 W-2 ...             c2d and miniC2D, in a CNF
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from os import PathLike

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.properties import smoothed
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain
from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, cut, read_text
from certimap.io.numbers import log_of_text

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


Weights = Mapping[int, float] | str | PathLike[str]  # by literal, or a file


def log_weights(given: Weights | None, path: AnyPath, encoding: str | None = None) -> tuple[dict[int, float], int]:
    """Return the natural logs of the weights of literals, and the file's number of variables (or 0).

    `given` has weights by literal (3: variable 3 is true, -3: it is false), or is a file; absent variables weigh 1
    either way. `path` is the circuit's file, for errors: a weight that is negative or not a number, a literal with
    two weights, the literal 0, a literal whose negation has no weight.
    """
    if given is None:
        return {}, 0
    if isinstance(given, Mapping):
        found: dict[int, float] = {}
        for literal, weight in given.items():
            if not (math.isfinite(weight) and weight >= 0.0) or not literal:
                raise ModelError(
                    f"literal {literal} has the weight {weight}; expected finite numbers that are not negative"
                )
            found[int(literal)] = math.log(weight) if weight > 0.0 else -math.inf
        n_variables = 0
        where = path
    else:
        found, n_variables = _of_file(given, encoding)
        where = given
    for literal in found:
        if -literal not in found:
            raise ParseError(
                f"literal {literal} has a weight and {-literal} has none; both are needed, as conventions for the "
                "other differ",
                where,
            )
    return found, n_variables


def _of_file(path: AnyPath, encoding: str | None) -> tuple[dict[int, float], int]:
    found: dict[int, float] = {}
    n_variables = 0

    def add(literal: str, weight: str, line: int) -> None:
        try:
            key, value = int(literal[:12]), log_of_text(weight)
        except ValueError:
            raise ParseError(
                f"{cut(literal)} and {cut(weight)} are no literal and weight; expected an integer and a number "
                "that is not negative",
                path,
                line,
            ) from None
        if key == 0 or key in found:
            raise ParseError(f"literal {key} is weighted twice, or 0; expected each literal once", path, line)
        found[key] = value

    is_cnf = False
    for k, text in enumerate(read_text(path, encoding).split("\n"), 1):
        words = text.split()
        if words[:3] == ["c", "p", "weight"] and len(words) >= 5:
            add(words[3], words[4], k)
        elif words[:2] == ["c", "weights"]:
            for i, weight in enumerate(words[2:]):
                add(str((i // 2 + 1) * (-1 if i % 2 else 1)), weight, k)
        elif words[:2] == ["p", "cnf"]:
            is_cnf = True
            n_variables = int(words[2]) if len(words) > 2 and words[2].isdecimal() and len(words[2]) < 10 else 0
        elif words and words[0] != "c" and not is_cnf:
            if len(words) != 2:
                raise ParseError(f"{cut(text.strip())} is no literal and its weight", path, k)
            add(words[0], words[1], k)
    return found, n_variables


def as_rows(found: Mapping[int, float], n_variables: int) -> Floats:
    """Return log weights of (false, true), shape (n_variables, 2); 0 by default."""
    rows = np.zeros((n_variables, 2))
    for literal, value in found.items():
        if abs(literal) <= n_variables:
            rows[abs(literal) - 1, int(literal > 0)] = value
    return rows
