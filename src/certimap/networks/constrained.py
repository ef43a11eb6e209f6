"""Networks under constraints on the query: the tables of their automata, chained by counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from certimap.core.arguments import shown
from certimap.core.constraints import Constraint
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Categorical, Domain
from certimap.core.query import Query
from certimap.core.rules import Automaton, categorical
from certimap.errors import NoAnswer, TooLarge
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import Network
from certimap.networks.orders import looks_too_wide, min_fill
from certimap.networks.problem import problem_of
from certimap.networks.sum_elimination import log_evidence
from certimap.networks.sum_pass import Total

MOST_SUMMED = 2.0**28  # table entries up to which p(e) is summed: about a second
KEPT_BYTES = 1000  # per factor, of a network that is kept


class ConstrainedNetwork(Network):
    """A network times 0/1 tables that are 1 where an assignment satisfies constraints.

    Its last variables are hidden: the states of the automata after each variable but the last. `whole` is the
    unconstrained network, whose variables and factors come first.
    """

    def __init__(self, whole: Network, constraints: Sequence[Constraint]) -> None:
        self.whole = whole
        counters: list[Categorical] = []
        tables: list[Factor] = []
        parts = [(part, constraint) for constraint in constraints for part in constraint.parts]
        for number, (part, constraint) in enumerate(parts):
            automaton = Automaton.of(part, [categorical(whole.domain, name) for name in part.names], constraint)
            if automaton.is_empty:
                raise NoAnswer(f"no assignment satisfies {shown(constraint)}")
            first = len(whole.domain) + len(counters)
            tables += _tables(whole.domain, automaton, first)
            counters += [
                Categorical(f"constraint {number}, after {v.name}", tuple(range(len(after))))
                for v, after in zip(automaton.variables[:-1], automaton.tables[1:], strict=True)
                if len(automaton.tables) != 2
            ]
        owners = (*whole.owners, *[None] * len(tables))
        hidden = whole.hidden | {v.name for v in counters}
        super().__init__(Domain((*whole.domain, *counters)), (*whole.factors, *tables), owners, hidden)

    @property
    def is_normalised(self) -> bool:
        return self.whole.is_normalised

    @property
    def without_counters(self) -> Network:
        return self.whole

    def relevant(self, variables: set[int]) -> set[int]:
        n = len(self.whole.domain)
        named = {v for factor in self.factors[len(self.whole.factors) :] for v in factor.scope}
        return self.whole.relevant({v for v in variables | named if v < n}) | set(range(n, len(self.domain)))


def _tables(domain: Domain, automaton: Automaton, first: int) -> Iterator[Factor]:
    """Yield a table per variable, over (counter before, it, counter after); two variables share a table."""
    last = len(automaton.tables) - 1
    if last == 1:
        padded = np.vstack([automaton.tables[1], np.full_like(automaton.tables[1][:1], -1)])  # -1 stays -1
        entries = (padded[automaton.tables[0][0]] >= 0).astype(np.float64)
        yield Factor([domain.index(v.name) for v in automaton.variables], entries)
        return
    for i, (variable, table) in enumerate(zip(automaton.variables, automaton.tables, strict=True)):
        states = np.arange(int(table.max(initial=-1)) + 1)
        entries = (table[:, :, None] == states).astype(np.float64)
        scope = [first + i - 1, domain.index(variable.name), first + i]
        if i == last:
            entries, scope = entries.sum(axis=2), scope[:2]
        if i == 0:
            entries, scope = entries[0], scope[1:]
        yield Factor(scope, entries)


def constrained_network(network: Network, constraints: Sequence[Constraint]) -> ConstrainedNetwork:
    """Return a network under constraints, the cached one if there is one."""
    key = "constrained", tuple(constraints)
    found = network.kept.get(key)
    if found is None:
        found = ConstrainedNetwork(network, constraints)
        network.kept.put(key, found, KEPT_BYTES * len(found.factors))
    return found


def constrained(network: Network, query: Query) -> tuple[ConstrainedNetwork, Query]:
    """Return a network under a query's constraints, and the query to it.

    The query's variables are the first of the network; no evidence is on the others.
    """
    assert query.rules is not None
    found = constrained_network(network, query.rules.constraints)
    more = np.zeros(found.domain.total_states - len(query.log_weights))
    return found, replace(query, domain=found.domain, log_weights=np.concatenate([query.log_weights, more]))


def is_eliminated_within(network: Network, query: Query, most_entries: float, control: Control) -> bool:
    """Whether an order that is found at once eliminates a network in at most so many table entries."""
    problem = problem_of(network, query).problem
    scopes = [table.scope for table in problem.tables]
    return min_fill(scopes, problem.sizes, most_entries=most_entries, control=control) is not None


def log_evidence_of_whole(network: Network, query: Query, control: Control) -> Total | None:
    """Return ln p(e) of the unconstrained network, or None where the sum takes too much time."""
    weights = query.log_weights[: network.domain.total_states]
    if isinstance(network, BayesianNetwork) and not weights.any():
        return Total(0.0, network.log_total_slack)
    try:
        problem = problem_of(network, replace(query, domain=network.domain, log_weights=weights)).problem
        if looks_too_wide([t.scope for t in problem.tables], problem.sizes):
            return None
        return log_evidence(problem, most_entries=MOST_SUMMED, control=control)
    except (TimeUp, TooLarge):
        return None
