"""What evidence leaves of a decision network: tables, what a utility depends on, and expected utilities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, spread
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.core.rounding import LOST_BY_UNDERFLOW
from certimap.errors import ModelError, QueryError

if TYPE_CHECKING:
    from certimap.decisions.network import DecisionNetwork

SUMMING = "summing expected utilities"
SMALL = 2**15  # entries of a product that numpy holds; kernels never hold larger ones
BYTES = 16.0  # per entry of the largest product: the tables that it is made of, and its sum
MANY = 900.0  # log base 2 of entries of tables, at most; products above 2^-MANY do not underflow


class Potential(NamedTuple):
    """A table of probabilities; `heads`: nodes of which it is the distribution, given the others."""

    scope: tuple[int, ...]
    values: Floats
    heads: frozenset[int] = frozenset()


class Worth(NamedTuple):
    """An expected utility, shifted so that it is not negative, as a table over what it depends on.

    `n_rounded`: an entry went through at most that many roundings of a relative 2^-53. `lost`: what underflow may
    have taken from the expectation of the whole. `shift`: what was taken off, with the opposite sign.
    """

    scope: tuple[int, ...]
    values: Floats
    n_rounded: float = 1.0
    lost: float = 0.0
    shift: float = 0.0


class ExpectationPlan(NamedTuple):
    """How an expectation is summed: nodes with their tables, an order to sum out, and variables that stay."""

    nodes: list[int]
    order: list[int]
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
        domain, query, n = network.domain, make_query(network.domain, None, evidence), len(network.domain)
        parts: list[Floats] = np.split(query.log_weights, domain.offsets[1:-1])
        at = {i: int(parts[i].argmax()) for i in query.observed}
        sizes: list[int] = domain.n_states.tolist()

        def rest(scope: Iterable[int]) -> tuple[int, ...]:
            return tuple(v for v in scope if v not in at)

        def reduced(scope: Iterable[int], values: Floats) -> Floats:
            return values[tuple(at.get(v, slice(None)) for v in scope)]

        tables = dict[int, Potential]()
        for f in network.cpts:
            rows = f.table / f.table.sum(axis=-1, keepdims=True)
            tables[f.scope[-1]] = Potential(rest(f.scope), reduced(f.scope, rows), frozenset(f.scope[-1:]))
        parents = {f.scope[-1]: f.scope[:-1] for f in network.cpts}
        decisions = {domain.index(name): name for name in network.decisions}
        made = cls(dict(enumerate(sizes)), parents, tables, set(at))
        below = set[int]().union(*(made.below(d) for d in decisions if d not in at))
        for i, weights in enumerate(parts):
            if i in below and i not in decisions and weights.any():
                raise QueryError(f"{domain.names[i]!r} is observed, and an open decision may change it")
            if i in at or not weights.any():
                continue
            if i not in decisions:
                parents[n + i], tables[n + i] = (i,), Potential((i,), np.exp(weights), frozenset((n + i,)))
                made.observed.add(n + i)
            elif np.any(np.isfinite(weights) & (weights != 0.0)):
                raise QueryError(f"decision {decisions[i]!r} has a likelihood; expected an option or several")
            else:
                made.options[i] = weights == 0.0
        if made.observed - decisions.keys():
            network.check_evidence(query)
        for i, name in decisions.items():
            parents[i] = () if i in at else rest(domain.index(v) for v in network.information(name))
        least = [float(u.values.min()) for u in network.utilities]
        worths = [
            Worth(rest(u.scope), reduced(u.scope, u.values - low), shift=low)
            for u, low in zip(network.utilities, least, strict=True)
        ]
        return made.copy(), worths, least

    def copy(self) -> Diagram:
        """Return a diagram of the same tables, with parents and tables of its own."""
        return Diagram(self.sizes, dict(self.parents), dict(self.tables), self.observed, self.options)

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
            entries += 2.0 ** min(own, MANY)
            around = near.pop(v) - {v}
            for u in around:
                near[u] |= around
                near[u].discard(v)
            weight |= {u: self.log2(near[u]) for u in around & weight.keys()}
        stays = tuple(sorted(kept))
        entries += 2.0 ** min(self.log2(stays), MANY)
        return ExpectationPlan(sorted(nodes), order, stays, max(largest, self.log2(stays)), entries)

    def expected(self, worth: Worth, plan: ExpectationPlan, control: Control) -> Worth:
        """Return the expectation of a utility given what a plan takes as known, over the part of it that matters.

        Numerator and denominator are summed together; tables that both have in common are left out of both, and
        so are sums of whole distributions, which are 1. Raises TooLarge where tables do not fit.
        """
        control.reserve(BYTES * 2.0**plan.log2_largest, "a table of expected utilities")
        common, below = [self.tables[v] for v in plan.nodes], list[Potential]()
        above, most = Potential(worth.scope, worth.values), float(worth.values.max())
        n_rounded = math.fsum(self.sizes.get(v, 1) for v in plan.nodes)  # rows were divided by their sums
        for v in plan.order:
            own, lower = [t for t in common if v in t.scope], [t for t in below if v in t.scope]
            common, below = [t for t in common if v not in t.scope], [t for t in below if v not in t.scope]
            n_rounded += len(own) + len(lower) + self.sizes[v]
            is_in = v in above.scope
            if is_in:
                above = self._summed(v, [above, *own], control)
            elif own and lower:
                above = self._product([above, self._summed(v, own, control)])
            if frozenset[int]().union(*(t.heads for t in (*own, *lower))) - {v}:
                (below if is_in or lower else common).append(self._summed(v, [*own, *lower], control))
        if below:
            n_rounded += n_rounded + len(below) + 1.0
            under = self._product(below, tuple(dict.fromkeys(v for t in (above, *below) for v in t.scope)))
            up, down = np.broadcast_arrays(self._product([above], under.scope).values, under.values)
            ratio = np.divide(up, down, out=np.zeros(up.shape), where=down > 0.0)
            above = Potential(under.scope, np.minimum(ratio, most))
        lost, n_rounded = worth.lost + self._lost(plan, most), worth.n_rounded + n_rounded
        return Worth(above.scope, above.values, n_rounded, lost, worth.shift)

    def _lost(self, plan: ExpectationPlan, most: float) -> float:
        """Bound what underflow may take from the expectation of a utility up to `most`, in all."""
        least = plan.n_entries * LOST_BY_UNDERFLOW if most > 0.0 else 0.0  # products with utilities near 0
        tables = [self.tables[v] for v in plan.nodes]
        bits = [-math.log2(t.values[t.values > 0.0].min(initial=1.0)) for t in tables]
        if math.fsum(bits) < MANY:
            return least
        lost = self.log2({v for t in tables for v in t.scope})
        lost += math.fsum(x for x, v in zip(bits, plan.nodes, strict=True) if v in self.observed)
        if lost > MANY:
            raise ModelError("products of the probabilities that a decision depends on leave the range of doubles")
        return least + most * 2.0 ** (lost - MANY - 100.0)

    def _summed(self, v: int, tables: Sequence[Potential], control: Control) -> Potential:
        """Return the sum of a product over a variable."""
        control.check(SUMMING)
        scope = tuple(sorted({u for t in tables for u in t.scope} - {v}))
        heads = frozenset[int]().union(*(t.heads for t in tables)) - {v}
        if 2.0 ** self.log2((*scope, v)) <= SMALL:
            return Potential(scope, self._product(tables, (*scope, v)).values.sum(axis=-1), heads)
        from certimap.kernels.parallel import default_workers
        from certimap.networks.elimination_plan import eliminated
        from certimap.networks.problem import Table

        given = [Table(t.scope, np.require(t.values, requirements=("C", "W"))) for t in tables]
        check = partial(control.check, SUMMING)
        found = eliminated(v, scope, given, self.sizes, default_workers(), check, factor=1.0).table
        return Potential(found.scope, found.log_values, heads)

    def _product(self, tables: Sequence[Potential], scope: tuple[int, ...] | None = None) -> Potential:
        """Return a product of tables over their variables together, or over `scope`."""
        scope = tuple(dict.fromkeys(v for t in tables for v in t.scope)) if scope is None else scope
        first, *rest = (spread(t.values, t.scope, scope) for t in tables)
        for other in rest:
            first = first * other
        return Potential(scope, first, frozenset[int]().union(*(t.heads for t in tables)))
