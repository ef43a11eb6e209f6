"""Influence diagrams: chance variables, decisions and what is known when each is made, and added utilities."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

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
        self.decisions = {k: tuple(names_of(own, f"decisions[{k!r}]", ModelError)) for k, own in decisions.items()}
        for decision, own in self.decisions.items():
            if unknown := [name for name in (decision, *own) if name not in domain]:
                raise ModelError(
                    f"{unknown[0]!r}, of decision {decision!r}, is no variable of the decision network"
                )
            if len(set(own)) < len(own):
                raise ModelError(f"decision {decision!r} sees a variable twice; expected each once")
        places = [domain.index(name) for name in self.decisions]
        self.cpts = tuple(cpts)
        if wrong := [f.scope[-1] for f in self.cpts if f.scope and f.scope[-1] in places]:
            raise ModelError(f"decision {domain.names[wrong[0]]!r} has a conditional table; a decision has none")
        random = [Factor((i,), np.full(n, 1.0 / n)) for i in places if (n := int(domain.n_states[i]))]
        self._random = BayesianNetwork(domain, [*self.cpts, *random], hidden)
        self.cpts = tuple(f for f in self._random.factors if f.scope[-1] not in places)
        if zeros := [f.scope[-1] for f in self.cpts if np.any(row_totals(f) == 0.0)]:
            name = domain.names[zeros[0]]
            raise ModelError(
                f"the table of {name!r} has a row of zeros; a decision network expects rows that add to 1"
            )
        self.utilities = tuple(_checked(domain, u) for u in utilities)
        if len({u.name for u in self.utilities} | set(domain.names)) < len(self.utilities) + len(domain):
            raise ModelError("two utilities, or a utility and a variable, have one name; expected distinct names")
        above = list(self._random.parents)
        for i, name in zip(places, self.decisions, strict=True):
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
        if wrong := [name for name in decisions if name in tables or name in parents or name not in variables]:
            raise ModelError(f"decision {wrong[0]!r} has a table or parents, or no options among the variables")
        options = {name: np.full(n := max(len(variables[name]), 1), 1.0 / n) for name in decisions}
        network = BayesianNetwork.from_cpts(variables, parents, {**tables, **options})
        cpts = [f for f in network.factors if network.domain.names[f.scope[-1]] not in decisions]
        made = [_utility(network.domain, name, names_of(own), table) for name, (own, table) in utilities.items()]
        return cls(network.domain, cpts, decisions, made, limited_memory, network.hidden)

    def information(self, decision: str) -> tuple[str, ...]:
        """Return the names of all that is known when a `decision` is made, in order of time.

        With perfect recall that includes earlier decisions and what they knew.
        """
        if decision not in self.decisions:
            raise QueryError(f"{decision!r} is no decision; the decisions are {tuple(self.decisions)}")
        order = list(self.decisions)
        earlier = [] if self.limited_memory else order[: order.index(decision)]
        known = [name for past in earlier for name in (*self.decisions[past], past)]
        return tuple(dict.fromkeys((*known, *self.decisions[decision])))

    def chance_part(self, decisions: Mapping[str, Label]) -> BayesianNetwork:
        """Return the Bayesian network in which every decision has been made, as if by `do`.

        `decisions`: the label of each decision. Raises QueryError for one that is missing or unknown.
        """
        if wrong := set(decisions) ^ set(self.decisions):
            what = "has no label" if (name := min(wrong)) in self.decisions else "is no decision"
            raise QueryError(f"{name!r} {what}; chance_part expected a label for each of {tuple(self.decisions)}")
        return self._random.do(decisions)

    def check_evidence(self, query: Query) -> None:
        """Raise ImpossibleEvidence if the evidence of a `query`, on what no decision causes, has probability 0."""
        from certimap.networks.sum_elimination import log_evidence_of  # loads numba

        log_evidence_of(self._random, query)

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


def _checked(domain: Domain, utility: Utility) -> Utility:
    """Return a utility with a table of its own; ModelError where the table does not fit."""
    name, scope = utility.name, tuple(utility.scope)
    values = numbers_of(utility.values, f"the table of utility {name!r}").copy()
    if len(set(scope)) < len(scope) or not all(0 <= v < len(domain) for v in scope):
        raise ModelError(f"utility {name!r} has the scope {scope}; expected distinct positions in the domain")
    expected, names = tuple(int(domain.n_states[v]) for v in scope), tuple(domain.names[v] for v in scope)
    if values.shape != expected:
        raise ModelError(f"utility {name!r} of {names} has the shape {values.shape}; expected {expected}")
    if not np.all(np.isfinite(values)):
        raise ModelError(f"utility {name!r} has the entry {values[~np.isfinite(values)][0]}; expected numbers")
    values.setflags(write=False)
    return Utility(name, scope, values)


def _utility(domain: Domain, name: str, names: Sequence[str], table: Any) -> Utility:
    """Return a utility by names; `table` is an array, a mapping or a function."""
    if unknown := [own for own in names if own not in domain]:
        raise ModelError(f"{unknown[0]!r}, of utility {name!r}, is no variable of the decision network")
    scope = tuple(domain.index(own) for own in names)
    if not is_mapping(table) and not callable(table):
        return Utility(name, scope, numbers_of(table, f"the table of utility {name!r}"))
    rows = {key if is_tuple(key) else (key,): x for key, x in table.items()} if is_mapping(table) else None
    states = [v.states for v in map(domain.variables.__getitem__, scope) if isinstance(v, Categorical)]
    numbers = list[float]()
    for labels in itertools.product(*states):
        if rows is not None and labels not in rows:
            raise ModelError(f"utility {name!r} has no number for {labels}; every combination needs one")
        numbers.append(float(cast("Any", table)(*labels) if rows is None else rows[labels]))
    return Utility(name, scope, np.array(numbers).reshape([len(own) for own in states]))
