"""Iterative join-graph propagation: beliefs from messages around the cycles of a mini-bucket graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Floats, spread
from certimap.core.control import Control
from certimap.networks.factor import log_sum
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import Problem, product
from certimap.networks.relaxation.split_tree import Region, limit, nuisance_first, split
from certimap.solvers.base import Effort, Heuristic

DAMPING = 0.3  # share of the old message that is kept
FLOOR = -700.0  # nats below its largest entry at which a message is cut off: no message claims a zero


class JoinGraph:
    """Clusters of a mini-bucket partition, joined along their separators and in a chain through copies."""

    def __init__(self, problem: Problem, regions: Sequence[Region]) -> None:
        self.problem, self.regions = problem, regions
        self.near: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in regions]
        last: dict[int, int] = {}
        for r, region in enumerate(regions):
            for c in region.children:
                self._join(r, c, regions[c].separator)
            if region.own in last:
                self._join(last[region.own], r, (region.own,))
            last[region.own] = r
        self.tables = [
            product([problem.tables[k] for k in r.tables], r.scope, problem.shape(r.scope)).astype(np.float64)
            for r in regions
        ]
        self.sent = {(a, b): np.zeros(problem.shape(scope)) for a, own in enumerate(self.near) for b, scope in own}

    def _join(self, a: int, b: int, scope: tuple[int, ...]) -> None:
        self.near[a].append((b, scope))
        self.near[b].append((a, scope))

    def belief(self, r: int, but: int = -1) -> Floats:
        """Return a cluster's table with the messages that it received, all but one neighbour's."""
        total = self.tables[r].copy()
        for b, scope in self.near[r]:
            if b != but:
                total += spread(self.sent[b, r], scope, self.regions[r].scope)
        return total

    def onto(self, table: Floats, scope: Sequence[int], kept: Sequence[int]) -> Floats:
        """Sum nuisance variables out of a table, then maximise over query variables, down to `kept`."""
        hidden = tuple(i for i, v in enumerate(scope) if v not in kept and v not in self.problem.query)
        summed = log_sum(table, hidden)
        left = [v for i, v in enumerate(scope) if i not in hidden]
        axes = tuple(i for i, v in enumerate(left) if v not in kept)
        reduced = summed.max(axis=axes) if axes else summed
        return spread(reduced, [v for v in left if v in kept], kept)

    def sweep(self, control: Control) -> float:
        """Send all messages towards the last cluster and back; return the largest change (nats)."""
        change = 0.0
        n = len(self.regions)
        for order in (range(n), range(n - 1, -1, -1)):
            for r in order:
                control.check("passing messages around a join graph")
                for b, scope in self.near[r]:
                    if (b > r) != (order.step > 0):
                        continue
                    new = self.onto(self.belief(r, b), self.regions[r].scope, scope)
                    top = float(new.max())
                    new = np.maximum(new - top, FLOOR) if top > -np.inf else np.zeros(new.shape)
                    old = self.sent[r, b]
                    change = max(change, float(np.abs(new - old).max()))
                    self.sent[r, b] = DAMPING * old + (1.0 - DAMPING) * new
        return change

    def decode(self) -> dict[int, int]:
        """Return the state of the largest belief, added up over its clusters, of every query variable."""
        beliefs: dict[int, Floats] = {}
        for r, region in enumerate(self.regions):
            if region.own in self.problem.query:
                own = self.onto(self.belief(r), region.scope, (region.own,))
                own = own - own.max() if own.max() > -np.inf else np.zeros(own.shape)
                beliefs[region.own] = beliefs.get(region.own, 0.0) + own
        return {v: int(np.argmax(b)) for v, b in beliefs.items()}


@dataclass(eq=False)
class JoinGraphState:
    """The graph, and how many sweeps it has had."""

    posterior: NetworkPosterior
    control: Control
    graph: JoinGraph
    n_done: int = 0
    done: bool = False
    n_entries: int = field(default=0)


@dataclass(frozen=True)
class JoinGraphPropagation(Heuristic, name="ijgp", needs=(NetworkPosterior,)):
    """Pass messages on a join graph of clusters of at most `i_bound` + 1 variables; an answer without a claim.

    Each sweep sends every message once in both directions, damped; nuisance variables are summed before query
    variables are maximised. After every sweep the assignment of the largest beliefs is a candidate. On a tree
    whose clusters fit, the beliefs are exact after one sweep but for ties.

    Sources: Dechter, Kask and Mateescu (2002), 'Iterative join-graph propagation'; Marinescu, Dechter and Ihler
    (2014) for marginal MAP. Cost: a pass over each cluster's table per neighbour and sweep.

    `i_bound`, `iterations`: the most variables in a separator, and the number of sweeps.
    """

    i_bound: int = 10
    iterations: int = 10
    ranges = "i_bound [1, inf); iterations [0, inf)"

    def start(self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator) -> JoinGraphState:
        problem = posterior.problem
        order = nuisance_first(problem, control=control)
        regions = split(problem, order, limit(problem.sizes, i_bound=self.i_bound))
        entries = sum(float(np.prod([float(problem.sizes[v]) for v in r.scope])) for r in regions)
        control.reserve(32.0 * entries, "the join graph")
        return JoinGraphState(posterior, control, JoinGraph(problem, regions), n_entries=int(entries))

    def effort(self, state: JoinGraphState) -> Effort:
        return Effort(n_bytes=32 * state.n_entries, work=state.n_done * state.n_entries)

    def step(self, state: JoinGraphState, ledger: Ledger) -> JoinGraphState:
        """Sweep once, and decode."""
        change = state.graph.sweep(state.control) if state.n_done < self.iterations else 0.0
        state.n_done += 1
        ledger.candidates(state.posterior.point(state.graph.decode()))
        state.done = state.n_done >= self.iterations or change < 1e-9
        return state
