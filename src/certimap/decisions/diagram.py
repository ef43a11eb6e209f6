"""What evidence leaves of a decision network: tables, what a utility depends on, and expected utilities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, spread
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.errors import ModelError, QueryError

if TYPE_CHECKING:
    from certimap.decisions.network import DecisionNetwork

SMALL = 2**15  # entries of a product that numpy holds; kernels never hold larger ones
BYTES = 16.0  # per entry of the largest product: the tables that it is made of, and its sum
LEAST_BITS = 900.0  # products of probabilities above 2^-900 do not underflow


class Potential(NamedTuple):
    """A table of probabilities; `heads`: nodes of which it is the distribution, given the others."""

    scope: tuple[int, ...]
    values: Floats
    heads: frozenset[int] = frozenset()


class Worth(NamedTuple):
    """An expected utility, shifted so that it is not negative, as a table over what it depends on.

    `n_rounded`: an entry went through at most that many roundings of a relative 2^-53. `lost`: what underflow may
    have taken from the expectation of the whole.
    """

    scope: tuple[int, ...]
    values: Floats
    n_rounded: float = 1.0
    lost: float = 0.0


class ExpectationPlan(NamedTuple):
    """How an expectation is summed: nodes with their tables, an order to sum out, and variables that stay."""

    nodes: tuple[int, ...]
    order: tuple[int, ...]
    scope: tuple[int, ...]
    log2_largest: float
    n_entries: float


@dataclass
class Diagram:
    """A decision network after evidence; decisions are nodes among others, with what they see as parents.

    - `sizes`: the states of each variable; nodes without a size are likelihoods.
    - `parents`: of each node. `tables`: of chance variables, likelihoods, and decisions with a given policy.
    - `observed`: nodes whose states are known.
    - `options`: for decisions with options that evidence rules out, which are left.
    """

    sizes: dict[int, int]
    parents: dict[int, tuple[int, ...]]
    tables: dict[int, Potential]
    observed: set[int] = field(default_factory=set[int])
    options: dict[int, Flags] = field(default_factory=dict[int, Flags])

    def __post_init__(self) -> None:
        self._bits = {v: math.log2(n) for v, n in self.sizes.items()}
        self.children = defaultdict[int, set[int]](set)
        for v, above in self.parents.items():
            for u in above:
                self.children[u].add(v)

    @classmethod
    def of(cls, network: DecisionNetwork, evidence: object = None) -> tuple[Diagram, list[Worth], list[float]]:
        """Return what evidence leaves, the utilities less their least values, and these.

        An observed decision has been made, whatever it sees. Raises QueryError for evidence on what a decision
        causes, and ImpossibleEvidence.
        """
        domain = network.domain
        query, n = make_query(domain, None, evidence), len(domain)
        parts = np.split(query.log_weights, domain.offsets[1:-1])
        at = {i: int(parts[i].argmax()) for i in query.observed}
        sizes: list[int] = domain.n_states.tolist()
        made = cls(dict(enumerate(sizes)), {}, {}, set(at))
        decisions = {domain.index(name) for name in network.decisions}
        for f in network.cpts:
            index = tuple(at.get(v, slice(None)) for v in f.scope)
            scope, child = tuple(v for v in f.scope if v not in at), f.scope[-1]
            made.parents[child] = f.scope[:-1]
            made.tables[child] = Potential(scope, f.table[index], frozenset((child,)))
        made.__post_init__()
        below = set[int]().union(*(made.below(d) for d in decisions - set(at)))
        for i, weights in enumerate(parts):
            if not weights.any():
                continue
            if i in below - decisions:
                raise QueryError(f"{domain.names[i]!r} is observed, and an open decision may change it")
            if i not in decisions and i not in at:
                made.parents[n + i] = (i,)
                made.tables[n + i] = Potential((i,), np.exp(weights - weights.max()), frozenset((n + i,)))
                made.observed.add(n + i)
            elif i not in at and np.any(np.isfinite(weights) & (weights != 0.0)):
                raise QueryError(f"decision {domain.names[i]!r} has a likelihood; expected an option or several")
            elif i not in at:
                made.options[i] = weights == 0.0
        if made.observed - decisions:
            network.check_evidence(query)
        for name in network.decisions:
            i = domain.index(name)
            made.parents[i] = () if i in at else tuple(domain.index(v) for v in network.information(name))
            made.parents[i] = tuple(v for v in made.parents[i] if v not in at)
        made.__post_init__()
        least = [float(u.values.min()) for u in network.utilities]
        worths = list[Worth]()
        for u, low in zip(network.utilities, least, strict=True):
            index = tuple(at.get(v, slice(None)) for v in u.scope)
            worths.append(Worth(tuple(v for v in u.scope if v not in at), (u.values - low)[index]))
        return made, worths, least

    def set_parents(self, v: int, above: Iterable[int]) -> None:
        """Change what a decision sees."""
        for u in self.parents[v]:
            self.children[u].discard(v)
        self.parents[v] = tuple(above)
        for u in self.parents[v]:
            self.children[u].add(v)

    def log2(self, scope: Iterable[int]) -> float:
        """Return log base 2 of the joint states of some variables."""
        return sum(map(self._bits.__getitem__, scope))

    def below(self, v: int) -> set[int]:
        """Return a node and its descendants."""
        found, ahead = {v}, [v]
        while ahead:
            new = self.children[ahead.pop()] - found
            found |= new
            ahead += new
        return found

    def requisite(self, scope: Iterable[int], known: Collection[int]) -> tuple[set[int], set[int]]:
        """Return the nodes whose tables, and what of `known`, the distribution of some variables depends on.

        Bayes ball: Shachter, "Bayes-ball: the rational pastime" (1998).
        """
        tops, bottoms, seen = set[int](), set[int](), set[int]()
        ahead = [(v, True) for v in scope]  # a node, and whether the ball comes from a child
        while ahead:
            v, from_child = ahead.pop()
            is_known = v in known or v in self.observed
            if is_known:
                seen.add(v)
            if from_child != is_known and v not in tops:  # it passes up what is unknown, and bounces off the rest
                tops.add(v)
                ahead += ((u, True) for u in self.parents.get(v, ()))
            if not is_known and v not in bottoms:
                bottoms.add(v)
                ahead += ((u, False) for u in self.children[v])
        return tops, seen - self.observed

    def planned(self, scope: Collection[int], known: Collection[int]) -> ExpectationPlan:
        """Return what the expectation of a utility over `scope`, given what is `known`, takes."""
        nodes, kept = self.requisite(scope, known)
        cliques = [set(self.tables[v].scope) if v in self.tables else {v, *self.parents[v]} for v in nodes]
        cliques = [s - self.observed for s in (*cliques, set(scope))]
        near = {v: set[int]() for s in cliques for v in s}
        for s in cliques:
            for v in s:
                near[v] |= s
        order, entries, largest = list[int](), 0.0, 0.0
        weight = {v: self.log2(near[v]) for v in near if v not in known}
        while weight:
            v = min(weight, key=lambda u: (weight[u], u))
            order.append(v)
            largest = max(largest, own := weight.pop(v))
            entries += 2.0 ** min(own, LEAST_BITS)
            around = near.pop(v) - {v}
            for u in around:
                near[u] |= around
                near[u].discard(v)
            weight |= {u: self.log2(near[u]) for u in around & weight.keys()}
        stays = tuple(sorted(kept))
        entries += 2.0 ** min(self.log2(stays), LEAST_BITS)
        return ExpectationPlan(tuple(sorted(nodes)), tuple(order), stays, max(largest, self.log2(stays)), entries)

    def expected(self, worth: Worth, plan: ExpectationPlan, control: Control) -> Worth:
        """Return the expectation of a utility given what a plan takes as known, over the part of it that matters.

        Numerator and denominator are summed together; tables that both have in common are left out of both, and
        so are sums of whole distributions, which are 1. Raises TooLarge where tables do not fit.
        """
        control.reserve(BYTES * 2.0**plan.log2_largest, "a table of expected utilities")
        common, below = [self.tables[v] for v in plan.nodes], list[Potential]()
        above, n_rounded = Potential(worth.scope, worth.values), worth.n_rounded
        lost = worth.lost + self._lost(plan, float(worth.values.max()))
        for v in plan.order:
            own, lower = [t for t in common if v in t.scope], [t for t in below if v in t.scope]
            common, below = [t for t in common if v not in t.scope], [t for t in below if v not in t.scope]
            n_rounded += len(own) + len(lower) + self.sizes[v]
            is_in = v in above.scope
            if is_in:
                above = self._summed(v, [above, *own], control)
            elif own and lower:
                above = self._product([above, self._summed(v, own, control)])
            heads = frozenset[int]().union(*(t.heads for t in (*own, *lower)))
            if heads - {v}:
                message = self._summed(v, [*own, *lower], control)
                (below if is_in or lower else common).append(message)
        if below:
            n_rounded += len(below) + 1.0
            scope = tuple(dict.fromkeys((*above.scope, *(v for t in below for v in t.scope))))
            top, bottom = (self._product(tables, scope).values for tables in ([above], below))
            up, down = np.broadcast_arrays(top, bottom)
            ratio = np.divide(up, down, out=np.zeros(up.shape), where=down > 0.0)
            above = Potential(scope, np.minimum(ratio, worth.values.max()))
        return Worth(above.scope, above.values, n_rounded, lost)

    def _lost(self, plan: ExpectationPlan, most: float) -> float:
        """Bound what underflow may take from the expectation of a utility up to `most`, in all."""
        tables = [self.tables[v] for v in plan.nodes]
        bits = [-math.log2(t.values[t.values > 0.0].min(initial=1.0)) for t in tables]
        if math.fsum(bits) < LEAST_BITS:
            return 0.0
        lost = self.log2({v for t in tables for v in t.scope})
        lost += math.fsum(x for x, v in zip(bits, plan.nodes, strict=True) if v in self.observed)
        if lost > LEAST_BITS:
            raise ModelError("products of the probabilities that a decision depends on leave the range of doubles")
        return most * 2.0 ** (lost - LEAST_BITS - 100.0)

    def _summed(self, v: int, tables: Sequence[Potential], control: Control) -> Potential:
        """Return the sum of a product over a variable."""
        control.check("summing expected utilities")
        scope = tuple(sorted({u for t in tables for u in t.scope} - {v}))
        heads = frozenset[int]().union(*(t.heads for t in tables)) - {v}
        if self.log2((*scope, v)) <= math.log2(SMALL):
            return Potential(scope, self._product(tables, (*scope, v)).values.sum(axis=-1), heads)
        from certimap.kernels.parallel import default_workers
        from certimap.networks.elimination_plan import eliminated
        from certimap.networks.problem import Table

        given = [Table(t.scope, np.require(t.values, requirements=("C", "W"))) for t in tables]

        def check() -> None:
            control.check("summing expected utilities")

        found = eliminated(v, scope, given, self.sizes, default_workers(), check, factor=1.0).table
        return Potential(found.scope, found.log_values, heads)

    def _product(self, tables: Sequence[Potential], scope: tuple[int, ...] | None = None) -> Potential:
        """Return a product of tables over their variables together, or over `scope`."""
        if scope is None:
            scope = tuple(dict.fromkeys(v for t in tables for v in t.scope))
        first, *rest = (spread(t.values, t.scope, scope) for t in tables)
        for other in rest:
            first = first * other
        return Potential(scope, first, frozenset[int]().union(*(t.heads for t in tables)))
