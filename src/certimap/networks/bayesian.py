"""Bayesian networks: one conditional distribution per variable, from tables, rows, or parameters of common models.

A row of zeros marks a configuration of the parents that cannot occur (as in linkage networks) and gives it weight
0. If the parents can reach it, the network is an unnormalised product.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from certimap.core.arguments import is_mapping, is_tuple
from certimap.core.arrays import Floats, Ints16
from certimap.core.box import Points
from certimap.core.cached import cached_property
from certimap.core.domain import Categorical, Domain, Label
from certimap.core.query import interventions_of, names_of
from certimap.errors import ModelError, QueryError, did_you_mean
from certimap.networks.factor import Factor, log_sum
from certimap.networks.network import Network
from certimap.networks.noisy import NoisyMax, NoisyOr, Piece, expand, table_of_function
from certimap.networks.reduction import ancestors

EXACT = 1e-9  # rows this close to 1 are left unchanged
SILENT = 1e-6 + 1e-12  # rows this close to 1 were rounded to single precision: renormalised without a word
ACCEPTED = 1e-3 + 1e-12  # rows this close to 1 are renormalised; sums of decimals at the limit are rounded


def row_totals(factor: Factor) -> Floats:
    """Return the sums of a factor's rows (last axis); -1 for a row too small to sum."""
    if not factor.in_logs:
        return factor.table.sum(axis=-1)
    logs = log_sum(factor.log_table, factor.log_table.ndim - 1)
    with np.errstate(over="ignore"):
        totals = np.exp(logs)
    return np.where((totals == 0.0) & (logs > -np.inf), -1.0, totals)


class RowNormaliser:
    """Renormalises rows that nearly add up to 1, and warns once per model, by its name."""

    def __init__(self, name: str) -> None:
        self.name, self.n_rows, self.worst = name, 0, 0.0

    def __call__(self, factor: Factor) -> tuple[Factor, tuple[int, ...] | None]:
        """Return a factor with rows that add up to 1 or are zeros, and the first unacceptable row or None."""
        totals = row_totals(factor)
        off = np.where(totals == 0.0, 0.0, np.abs(totals - 1.0))
        if (off <= EXACT).all():
            return factor, None
        if len(wrong := np.argwhere(~(off <= ACCEPTED))):
            return factor, tuple(wrong[0].tolist())
        self.n_rows += int(np.count_nonzero(off > SILENT))
        self.worst = max(self.worst, float(off.max()))
        divisor = np.where(off > EXACT, totals, 1.0)[..., None]
        if factor.in_logs:
            return Factor.from_log(factor.scope, factor.log_table - np.log(divisor)), None
        return Factor(factor.scope, factor.table / divisor), None

    def warn(self) -> None:
        """Warn if any row was changed by more than rounding to single precision."""
        if self.n_rows:
            rows = "one row of the conditional tables was" if self.n_rows == 1 else f"{self.n_rows} rows were"
            warnings.warn(
                f"{self.name}: {rows} renormalised; the farthest added to 1 only within {self.worst:.1e}",
                stacklevel=4,
            )


class BayesianNetwork(Network):
    """A directed acyclic network of discrete variables.

    - `domain`: the variables, all categorical.
    - `cpts`: one `Factor` per variable, in any order: its scope is the variable's parents followed by the variable
      itself. Each row (last axis) adds up to 1 within 1e-3 (it is rescaled, with one warning where it is off by
      more than 1e-6), or is all zeros: that configuration of the parents cannot occur, and has weight 0. See
      `from_cpts` for tables by names.
    - `hidden`: names of helper variables that a query for all variables leaves out.

    Raises ModelError for a variable without a table or with two, a row with any other sum, or a directed cycle.
    """

    def __init__(self, domain: Domain, cpts: Iterable[Factor], hidden: Iterable[str] = ()) -> None:
        given = tuple(cpts)
        if any(not f.scope for f in given):
            raise ModelError("a conditional table has an empty scope; expected parents and then the variable")
        by_child = {f.scope[-1]: f for f in given}
        if len(by_child) != len(given):
            doubled, _ = Counter(f.scope[-1] for f in given).most_common(1)[0]
            raise ModelError(f"variable {domain.names[doubled]!r} has two conditional tables; expected one")
        lacking = [domain.names[i] for i in range(len(domain)) if i not in by_child]
        if lacking:
            raise ModelError(f"variable {lacking[0]!r} has no conditional table; each variable needs one")
        outside = [c for c in by_child if not 0 <= c < len(domain)]
        if outside:
            raise ModelError(f"a conditional table is of variable {outside[0]}; expected 0 to {len(domain) - 1}")
        order = tuple(range(len(domain)))
        super().__init__(domain, [by_child[i] for i in order], order, hidden)
        self.factors = tuple(_normalised(domain, self.factors))
        # A table with a row of zeros may take weight from its parents, so that it can never be left out.
        with_zeros = (f for f in self.factors if not f.is_positive)
        self._gates = frozenset(f.scope[-1] for f in with_zeros if np.any(row_totals(f) == 0.0))
        self.owners = tuple(None if i in self._gates else i for i in order)
        self._topological_order: tuple[int, ...] = topological(domain, self.parents)

    @classmethod
    def from_cpts(
        cls,
        variables: Mapping[str, Sequence[Label]],
        parents: Mapping[str, Sequence[str] | str],
        tables: Mapping[str, Any],
    ) -> BayesianNetwork:
        """Build a network from names.

        - `variables`: state labels of each variable, in order.
        - `parents`: names of the parents of a variable, in the order of its table's axes, or the name of its only
          parent; a variable that is left out has none.
        - `tables`: for each variable an array with one axis per parent and the variable last; or a mapping from
          the parents' labels (a tuple; the label itself for one parent) to a row of probabilities; or a `NoisyOr`
          or `NoisyMax`, which needs no table over all parents; or a function of the parents' labels that returns
          the variable's.

        Raises ModelError for unknown names, missing or superfluous rows, and whatever the constructor refuses.

        >>> network = BayesianNetwork.from_cpts(
        ...     {"W": ["dry", "wet"], "T": ["lo", "hi"]},
        ...     {"T": ["W"]},
        ...     {"W": [0.55, 0.45], "T": {"dry": [0.4, 0.6], "wet": [0.9, 0.1]}},
        ... )
        >>> network.domain.names
        ('W', 'T')
        """
        declared = {name: Categorical(name, tuple(states)) for name, states in variables.items()}
        for name in (*parents, *tables):
            if name not in declared:
                raise ModelError(
                    f"{name!r} is no variable of the network; its variables are {tuple(declared)}"
                    f"{did_you_mean(name, declared)}"
                )
        above = {name: tuple(names_of(own, f"parents[{name!r}]", ModelError)) for name, own in parents.items()}
        pieces: list[Piece] = []
        for name in declared:
            if name not in tables:
                raise ModelError(f"variable {name!r} has no conditional table; each variable needs one")
            for parent in above.get(name, ()):
                if parent not in declared:
                    raise ModelError(f"{parent!r}, a parent of {name!r}, is no variable of the network")
            pieces += _pieces(declared, name, above.get(name, ()), tables[name])
        helpers = [p.name for p in pieces if p.name not in declared]
        for name in helpers:
            declared[name] = Categorical(name, declared[name.partition(":max:")[0]].states)
        domain = Domain(declared.values())
        cpts = [_named_factor(domain, [domain.index(v) for v in (*p.parents, p.name)], p.table) for p in pieces]
        return cls(domain, cpts, helpers)

    @cached_property
    def log_total_slack(self) -> float:
        """Bound (nats) on |ln of the sum of all joint probabilities|; inf if a table has rows of zeros."""
        if self._gates:
            return math.inf
        off = [float(np.abs(row_totals(f) - 1.0).max()) + 2.0**-52 * f.shape[-1] for f in self.factors]
        return 1.01 * math.fsum(off)

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the parents of each variable, in the order of its table's axes."""
        return tuple(f.scope[:-1] for f in self.factors)

    @property
    def topological_order(self) -> tuple[int, ...]:
        """Positions of all variables, parents before children."""
        return self._topological_order

    def relevant(self, variables: set[int]) -> set[int]:
        """Return the positions `variables` with those of all their ancestors; all others are barren."""
        return ancestors(self.parents, variables | self._gates)

    def do(self, states: Mapping[str, Label] | None = None, /, **more: Label) -> BayesianNetwork:
        """Return the network after interventions: variables have the given states, whatever their parents.

        `states` maps names to labels, `more` has them as keywords: `do(smoke="no")`. Parents are cut (Pearl 2009);
        evidence of another state is refused, and `domain.interventions` records them. A row of zeros that becomes
        reachable takes its weight away. Raises QueryError for unknown names and labels.
        """
        done, factors = interventions_of(self.domain, states, more), list(self.factors)
        for i, label in ((self.domain.index(name), label) for name, label in done.items()):
            factors[i] = Factor((i,), np.eye(self.domain.n_states[i])[_position(self.domain, i, label)])
        domain = Domain(self.domain.variables, {**self.domain.interventions, **done})
        return BayesianNetwork(domain, factors, self.hidden)

    def log_prob(self, points: Points) -> Floats:
        """Return ln p (nats, -inf where impossible) of full assignments `points`, shapes as in `log_joint`.

        If a row of zeros can be reached, the value is the log of the unnormalised product.
        """
        return self.log_joint(points)

    def sample(self, n: int, rng: int | np.random.Generator | None = None) -> Ints16:
        """Return `n` independent assignments as state positions, int16, shape (n, n_variables).

        `rng`: a seed, a generator, or None for a fresh seed. Raises ModelError when a draw reaches a row of zeros,
        which is an impossible configuration. Cost: n times the number of variables times their states.
        """
        generator = np.random.default_rng(rng)
        points = np.zeros((n, len(self.domain)), np.int16)
        for i in self.topological_order:
            factor = self.factors[i]
            rows = np.zeros(n, np.int64)
            for parent in factor.scope[:-1]:
                rows = rows * int(self.domain.n_states[parent]) + points[:, parent]
            cumulated = np.cumsum(factor.table.reshape(-1, factor.shape[-1]), axis=1)
            if i in self._gates and np.any(cumulated[rows, -1] == 0.0):
                raise ModelError(
                    f"draws reach a row of zeros in the table of {self.domain.names[i]!r}; "
                    "condition the network and draw from the posterior"
                )
            cumulated /= np.where(cumulated[:, -1:] > 0.0, cumulated[:, -1:], 1.0)
            points[:, i] = (generator.random(n)[:, None] >= cumulated[rows]).sum(axis=1)
        return points


def _normalised(domain: Domain, factors: Sequence[Factor]) -> list[Factor]:
    """Return conditional tables with rows that add to 1 or are zeros; ModelError names a row that does not."""
    normalise = RowNormaliser("the network")
    found: list[Factor] = []
    right = set[int]()  # arrays, which steps of a sequence share
    for factor in factors:
        normalised, wrong = (factor, None) if id(factor.entries) in right else normalise(factor)
        if wrong is not None:
            given = _given(domain, factor.scope, wrong)
            raise ModelError(
                f"the distribution of {domain.names[factor.scope[-1]]!r} given ({given}) "
                f"adds to {abs(float(row_totals(factor)[wrong])):.10g}; expected 1 within 0.001, or a row of "
                "zeros for a configuration that cannot occur"
            )
        found.append(normalised)
        right.add(id(normalised.entries))
    normalise.warn()
    return found


def _given(domain: Domain, scope: Sequence[int], states: Iterable[int]) -> str:
    """Show a configuration of the first variables of a scope: A='yes', B=1."""
    pairs = zip(scope, states, strict=False)
    return ", ".join(f"{domain.names[v]}={_label(domain, v, int(s))!r}" for v, s in pairs)


def _pieces(declared: Mapping[str, Categorical], name: str, parents: tuple[str, ...], table: Any) -> list[Piece]:
    """Return the conditional tables of a variable's description."""
    child, above = declared[name], [declared[p] for p in parents]
    if isinstance(table, NoisyMax | NoisyOr):
        return expand(table, child, above)
    if is_mapping(table):
        table = _table_of_rows(Domain([*above, child]), table)
    elif callable(table):
        table = table_of_function(table, child, above)
    return [Piece(parents, name, table)]


def _label(domain: Domain, variable: int, state: int) -> Label:
    categorical = domain.variables[variable]
    return categorical.states[state] if isinstance(categorical, Categorical) else state


def _table_of_rows(domain: Domain, rows: Mapping[Any, Any]) -> Floats:
    """Place rows, keyed by the labels of the parents, in a table; `domain` has the parents, then the variable."""
    shape: list[int] = domain.n_states.tolist()
    child = domain.names[-1]
    n_parents = len(domain) - 1
    table, is_given = np.empty(shape), np.zeros(shape[:-1], np.bool_)
    for key, row in rows.items():
        labels: tuple[Any, ...] = key if is_tuple(key) and (n_parents != 1 or len(key) == 1) else (key,)
        if len(labels) != n_parents:
            raise ModelError(f"row {key!r} of {child!r} names {len(labels)} labels; expected one per parent")
        index = tuple(_position(domain, v, label) for v, label in enumerate(labels))
        values = numbers_of(row, f"row {key!r} of {child!r}")
        if values.shape != (shape[-1],):
            raise ModelError(f"row {key!r} of {child!r} has shape {values.shape}; expected {shape[-1]} numbers")
        table[index], is_given[index] = values, True
    if not np.all(is_given):
        missing = np.argwhere(~is_given)[0]
        raise ModelError(
            f"the table of {child!r} has no row for {_given(domain, range(n_parents), missing)}; "
            "every combination of its parents' states needs one"
        )
    return table


def _named_factor(domain: Domain, scope: Sequence[int], table: Any) -> Factor:
    """Return a conditional table as a factor; errors name variables and states."""
    child = domain.names[scope[-1]]
    values = numbers_of(table, f"the table of {child!r}")
    expected = tuple(int(domain.n_states[v]) for v in scope)
    if values.shape != expected:
        axes = ", ".join(f"{domain.names[v]}: {k}" for v, k in zip(scope, expected, strict=True))
        raise ModelError(f"the table of {child!r} has the shape {values.shape}; expected {expected} ({axes})")
    wrong = np.argwhere(~(np.isfinite(values) & (values >= 0.0)))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise ModelError(
            f"the table of {child!r} has the entry {values[at]} at {_given(domain, scope, at)}; "
            "expected finite numbers that are not negative"
        )
    return Factor(scope, values)


def numbers_of(values: Any, name: str) -> Floats:
    """Return numbers as an array; ModelError where there are none."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ModelError(f"{name} is {values!r}; expected numbers, in rows of equal length") from None


def _position(domain: Domain, variable: int, label: Label) -> int:
    categorical = domain.variables[variable]
    assert isinstance(categorical, Categorical)  # networks refuse real variables
    try:
        return categorical.index(label)
    except QueryError as error:
        raise ModelError(str(error)) from None


def topological(domain: Domain, parents: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Order variables parents first, ties by position; refuse cycles."""
    waiting = [len(p) for p in parents]
    children: list[list[int]] = [[] for _ in parents]
    for i, own in enumerate(parents):
        for parent in own:
            children[parent].append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for child in children[i]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, child)
    if len(order) < len(parents):
        stuck = [domain.names[i] for i, n in enumerate(waiting) if n]
        raise ModelError(f"the parents form a cycle through {stuck[0]!r}; expected an acyclic network")
    return tuple(order)


def naive_bayes(
    name: str, prior: Mapping[Label, float], features: Mapping[str, Mapping[Label, Mapping[Label, float]]]
) -> BayesianNetwork:
    """Build a class variable with features that are independent given the class.

    `name`, `prior`: the class variable, and the probability of each of its labels. `features`: for each feature a
    mapping from class labels to its distribution (a mapping from labels); a missing label has probability 0.

    Raises ModelError for a class without a row, or a row that does not add to 1.
    """
    classes = tuple(prior)
    states = {name: classes}
    tables: dict[str, Any] = {name: [prior[c] for c in classes]}
    for feature, rows in features.items():
        lacking = [c for c in classes if c not in rows]
        if lacking:
            raise ModelError(f"feature {feature!r} has no row for {name}={lacking[0]!r}; each class needs one")
        labels = tuple(dict.fromkeys(label for c in classes for label in rows[c]))
        states[feature] = labels
        tables[feature] = np.array([[rows[c].get(label, 0.0) for label in labels] for c in classes])
    return BayesianNetwork.from_cpts(states, {feature: [name] for feature in features}, tables)
