"""Influence diagrams: chance variables, decisions and what is known when each is made, and added utilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from certimap.core.arguments import is_mapping, is_tuple
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Label
from certimap.core.model import Model
from certimap.core.query import names_of
from certimap.errors import ModelError, QueryError
from certimap.networks.bayesian import BayesianNetwork, numbers_of, row_totals, topological
from certimap.networks.factor import Factor

if TYPE_CHECKING:
    from certimap.core.control import Limits
    from certimap.core.posterior import Posterior
    from certimap.core.query import Query


class Utility(NamedTuple):
    """One of the utilities that are added up: a table of any sign.

    `name`, `scope`: its name, and the positions of the variables that it depends on, one per axis of `values`.
    """

    name: str
    scope: tuple[int, ...]
    values: Floats


class DecisionNetwork(Model):
    """An influence diagram (Howard and Matheson 1984), or one with limited memory (Lauritzen and Nilsson 2001).

    - `domain`: chance and decision variables, all categorical.
    - `cpts`: one `Factor` per chance variable: its scope is the parents, chance or decision, then the variable.
      Rows add up to 1, as in a `BayesianNetwork`; a row of zeros is refused.
    - `decisions`: each decision, in order of time, with the names of the variables that are seen just before it.
    - `utilities`: `Utility` tables, which are added up.
    - `limited_memory`: whether a decision knows no more than what it sees. Otherwise it also knows whatever
      earlier decisions knew, and what they were.
    - `hidden`: names of helper variables (see `NoisyMax`).

    See `from_cpts` for tables by names, and `certimap.decide` for the best policy. Raises ModelError for unknown
    names, tables that do not fit, and for a cycle, such as a decision that sees what a later one causes.
    """

    def __init__(
        self, domain: Domain, cpts: Iterable[Factor], decisions: Mapping[str, Sequence[str] | str],
        utilities: Iterable[Utility], limited_memory: bool = False, hidden: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.domain, self.hidden, self.limited_memory = domain, frozenset(hidden), limited_memory
        sees = {name: tuple(names_of(own, f"decisions[{name!r}]", ModelError)) for name, own in decisions.items()}
        for decision, own in sees.items():
            for name in (decision, *own):
                if name not in domain:
                    raise ModelError(f"{name!r}, of decision {decision!r}, is no variable of the decision network")
            if len(set(own)) < len(own):
                raise ModelError(f"decision {decision!r} sees a variable twice; expected each once")
        self.decisions = sees
        self._places = {name: domain.index(name) for name in sees}
        self._uniform = self._joined(cpts)
        for factor in self._uniform.factors:
            if not factor.is_positive and np.any(row_totals(factor) == 0.0):
                raise ModelError(
                    f"the table of {domain.names[factor.scope[-1]]!r} has a row of zeros; in a decision network "
                    "every row adds up to 1"
                )
        self.utilities = tuple(self._checked(u) for u in utilities)
        if len({u.name for u in self.utilities} | set(domain.names)) < len(self.utilities) + len(domain):
            raise ModelError("two utilities, or a utility and a variable, have one name; expected distinct names")
        above = list(self._uniform.parents)
        for name, i in self._places.items():
            above[i] = tuple(domain.index(known) for known in self.information(name))
        topological(domain, above)

    @classmethod
    def from_cpts(
        cls, variables: Mapping[str, Sequence[Label]], parents: Mapping[str, Sequence[str] | str],
        tables: Mapping[str, Any], decisions: Mapping[str, Sequence[str] | str],
        utilities: Mapping[str, tuple[Sequence[str] | str, Any]], limited_memory: bool = False,
    ) -> DecisionNetwork:  # fmt: skip
        """Build a network from names.

        - `variables`: state labels of each chance variable and options of each decision, in order.
        - `parents`, `tables`: of the chance variables, as in `BayesianNetwork.from_cpts`.
        - `decisions`: each decision, in order of time, with the names of what is seen just before it.
        - `utilities`: each utility with the names of what it depends on, and an array with one axis for each of
          them, a mapping from labels to numbers, or a function of labels that returns a number.
        - `limited_memory`: as in the constructor.

        >>> network = DecisionNetwork.from_cpts(
        ...     {"weather": ["dry", "rain"], "umbrella": ["leave", "carry"]}, {}, {"weather": [0.7, 0.3]},
        ...     {"umbrella": []}, {"joy": (["weather", "umbrella"], [[100, 60], [0, 70]])},
        ... )
        >>> network.information("umbrella")
        ()
        """
        for name in (n for n in decisions if n in tables or n in parents):
            raise ModelError(f"decision {name!r} has a conditional table or parents; a decision has neither")
        for name in (n for n in decisions if n not in variables):
            raise ModelError(f"decision {name!r} is no variable; its options are expected among the variables")
        options = {name: np.full(len(variables[name]), 1.0 / max(len(variables[name]), 1)) for name in decisions}
        network = BayesianNetwork.from_cpts(variables, parents, {**tables, **options})
        domain = network.domain
        made = [_utility(domain, name, names_of(own), table) for name, (own, table) in utilities.items()]
        cpts = [f for f in network.factors if domain.names[f.scope[-1]] not in decisions]
        return cls(domain, cpts, decisions, made, limited_memory, network.hidden)

    def information(self, decision: str) -> tuple[str, ...]:
        """Return the names of all that is known when a `decision` is made, in order of time.

        With perfect recall that includes earlier decisions and what they knew.
        """
        if decision not in self.decisions:
            raise QueryError(f"{decision!r} is no decision; the decisions are {tuple(self.decisions)}")
        known = dict[str, None]()
        for name, own in self.decisions.items():
            if name == decision:
                return tuple(known | dict.fromkeys(own))
            if not self.limited_memory:
                known.update(dict.fromkeys((*own, name)))
        raise AssertionError  # the decision is one of them

    def chance_part(self, decisions: Mapping[str, Label]) -> BayesianNetwork:
        """Return the Bayesian network in which every decision has been made, as if by `do`.

        `decisions`: the label of each decision. Raises QueryError for one that is missing or unknown.
        """
        for name in self.decisions:
            if name not in decisions:
                raise QueryError(f"decision {name!r} has no label; chance_part expected one for each decision")
        for name in (n for n in decisions if n not in self.decisions):
            raise QueryError(f"{name!r} is no decision; the decisions are {tuple(self.decisions)}")
        return self._uniform.do(decisions)

    @cached_property
    def cpts(self) -> tuple[Factor, ...]:
        """The conditional tables of the chance variables, in the order of the domain."""
        return tuple(f for f in self._uniform.factors if f.scope[-1] not in self._places.values())

    def check_evidence(self, query: Query) -> None:
        """Raise ImpossibleEvidence if the evidence of a `query`, on what no decision causes, has probability 0."""
        from certimap.networks.sum_elimination import log_evidence_of  # loads numba

        log_evidence_of(self._uniform, query)

    def condition(self, query: Query, limits: Limits | None = None) -> Posterior:
        """Refuse a `query` (and `limits`) with QueryError: a decision network has no distribution."""
        raise QueryError(
            "a DecisionNetwork has no probabilities until its decisions are made; map_query takes its "
            "chance_part(decisions), and certimap.decide finds the best policy"
        )

    def __repr__(self) -> str:
        n, memory = len(self.decisions), ", limited memory" if self.limited_memory else ""
        sizes = f"{len(self.domain) - n} chance variables, {n} decisions, {len(self.utilities)} utilities"
        return f"DecisionNetwork({sizes}{memory})"

    def _joined(self, cpts: Iterable[Factor]) -> BayesianNetwork:
        """Return the Bayesian network in which every decision is made at random."""
        given = list(cpts)
        for factor in given:
            if factor.scope and factor.scope[-1] in self._places.values():
                name = self.domain.names[factor.scope[-1]]
                raise ModelError(f"decision {name!r} has a conditional table; a decision has none")
        sizes: list[int] = self.domain.n_states.tolist()
        free = [Factor((i,), np.full(sizes[i], 1.0 / sizes[i])) for i in self._places.values() if sizes[i]]
        return BayesianNetwork(self.domain, [*given, *free], self.hidden)

    def _checked(self, utility: Utility) -> Utility:
        """Return a utility with a table of its own; ModelError where the table does not fit."""
        name, scope = utility.name, tuple(utility.scope)
        values = numbers_of(utility.values, f"the table of utility {name!r}").copy()
        if len(set(scope)) < len(scope) or not all(0 <= v < len(self.domain) for v in scope):
            raise ModelError(f"utility {name!r} has the scope {scope}; expected distinct positions in the domain")
        expected = tuple(int(self.domain.n_states[v]) for v in scope)
        if values.shape != expected:
            names = tuple(self.domain.names[v] for v in scope)
            raise ModelError(f"utility {name!r} of {names} has the shape {values.shape}; expected {expected}")
        if not np.all(np.isfinite(values)):
            raise ModelError(f"utility {name!r} has the entry {values[~np.isfinite(values)][0]}; expected numbers")
        values.setflags(write=False)
        return Utility(name, scope, values)


def _utility(domain: Domain, name: str, names: Sequence[str], table: Any) -> Utility:
    """Return a utility by names; `table` is an array, a mapping or a function."""
    for own in names:
        if own not in domain:
            raise ModelError(f"{own!r}, of utility {name!r}, is no variable of the decision network")
    variables = [v for own in names if isinstance(v := domain[own], Categorical)]
    scope = tuple(domain.index(own) for own in names)
    values = np.full([v.n_states for v in variables], np.nan)
    if callable(table):
        function: Any = table
        for index in np.ndindex(*values.shape):
            values[index] = float(function(*(v.states[i] for v, i in zip(variables, index, strict=True))))
    elif is_mapping(table):
        for key, value in table.items():
            labels = key if is_tuple(key) and (len(names) != 1 or len(key) == 1) else (key,)
            if len(labels) != len(names):
                raise ModelError(f"utility {name!r} has the key {key!r}; expected one label for each of {names}")
            values[tuple(v.index(x) for v, x in zip(variables, labels, strict=True))] = float(value)
        if np.any(lacks := np.isnan(values)):
            labels = [v.states[i] for v, i in zip(variables, np.argwhere(lacks)[0].tolist(), strict=True)]
            raise ModelError(f"utility {name!r} has no number for {labels}; every combination needs one")
    else:
        values = numbers_of(table, f"the table of utility {name!r}")
    return Utility(name, scope, values)
