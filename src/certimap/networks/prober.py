"""Bounds of boxes of a network of any width, from a relaxation that tightens as the search goes on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.box import Points
from certimap.domain import Domain
from certimap.networks.conditional import Evaluator
from certimap.networks.problem import Problem, restrict
from certimap.networks.relaxation.partition import largest_clique, limit, nuisance_first
from certimap.networks.relaxation.split_tree import SplitTree
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener
from certimap.networks.states import QueryStates
from certimap.search_boxes import Answers, Layout, SearchBoxes

Floats = NDArray[np.float64]
Mask = NDArray[np.uint8]
EXACT_BITS = 23.0  # tables of an elimination without copies may have 2^23 entries in all
FIRST_BITS = 10.0  # of the largest table of the first relaxation
LAST_BITS = 19.0
RAISE_BITS = 3.0
STEPS_PER_STAGE = 40
PERTURBED = 3  # climbs from around the best point at every pause
SHARE_MOVED = 0.12
CLIMB_WORK = 2e9  # entries that one round of climbs may cost


class NetworkProber:
    """Probes the split tree of a problem, and rebuilds it over what is left when much has been dropped.

    Parameters
    ----------
    domain
        The query variables.
    problem, states, evaluator
        What is maximised, how its states are numbered, and the values of points.
    workers
        Threads for batches of boxes.
    """

    def __init__(
        self, domain: Domain, problem: Problem, states: QueryStates, evaluator: Evaluator, workers: int = 1
    ) -> None:
        self.layout = Layout.of(domain)
        self.original, self.states, self.evaluator, self.workers = problem, states, evaluator, workers
        self.rng = np.random.default_rng(0)
        self.bits = FIRST_BITS
        self.stage = 0
        self.n_rounds = 0
        self.best: NDArray[np.int64] | None = None
        self.best_value = -math.inf
        self._rebuild(np.ones(domain.total_states, np.uint8))

    # --- the relaxation ----------------------------------------------------------------------------------

    def _rebuild(self, within: Mask) -> None:
        """Build the relaxation of the problem restricted to a mask of the domain's states."""
        self.kept = [own[within[own] > 0] for own in self.states.columns]
        keep: dict[int, NDArray[np.int64]] = {}
        for v, own, kept in zip(self.states.variables, self.states.columns, self.kept, strict=True):
            if v in self.original.sizes and len(kept) < len(own):
                keep[v] = self.states.position[kept]
        self.problem = restrict(self.original, keep)
        self.tree = build_tree(self.problem, self.bits)
        self.tightener: Tightener | None = None
        self.n_built_for = int(sum(len(k) for k in self.kept))
        place = {v: i for i, v in enumerate(self.tree.variables)}
        columns, at, fixed = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for v, kept in zip(self.states.variables, self.kept, strict=True):
            if v in place:
                columns.append(kept)
                at.append(self.tree.arrays.state_ptr[place[v]] + np.arange(len(kept)))
            else:
                fixed.append(kept)
        self.columns, self.at, self.fixed = np.concatenate(columns), np.concatenate(at), np.concatenate(fixed)

    def _masks(self, mask: Mask) -> Mask:
        """Return the tree's masks of rows of the domain's."""
        inner = np.ones((len(mask), int(self.tree.arrays.state_ptr[-1])), np.uint8)
        inner[:, self.at] = mask[:, self.columns]
        return inner

    def bounds(self, mask: Mask) -> tuple[Floats, Floats]:
        """Bound boxes and every column in them, rounded up; -inf outside: shapes (batch,) and (batch, columns).

        Boxes must lie within what the relaxation was last rebuilt over.
        """
        bound, inner = self.tree.probe(self._masks(mask), self.workers)
        each = np.full(mask.shape, -np.inf)
        each[:, self.columns] = inner[:, self.at]
        each[:, self.fixed] = bound[:, None]
        each[mask == 0] = -np.inf
        counts = np.add.reduceat(mask, self.layout.offsets[:-1], axis=1, dtype=np.int64)
        bound[np.any(counts == 0, axis=1)] = -np.inf
        return bound, np.minimum(each, bound[:, None])

    # --- what a search asks ------------------------------------------------------------------------------

    @property
    def work(self) -> int:
        """What one box costs, in table entries."""
        return 4 * self.tree.n_entries + 100

    @property
    def n_bytes(self) -> int:
        """The memory of the relaxation."""
        return self.tree.n_bytes

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound boxes and columns."""
        bound, each = self.bounds(boxes.mask)
        share, share_each = self.layout.log_share(boxes), self.layout.log_share_each(boxes)
        splits = np.full((len(boxes), len(self.layout.domain)), np.nan)
        return Answers(share, bound, share_each, each, splits)

    def starts(self) -> Points:
        """Return points read off the relaxation, climbs from them, and climbs from around the best so far."""
        decoded = self.tree.decode()
        point = np.zeros(len(self.kept), np.int64)
        for i, (v, kept) in enumerate(zip(self.states.variables, self.kept, strict=True)):
            point[i] = self.states.position[kept[decoded.get(v, 0)]]
        found = [point]
        budget = CLIMB_WORK
        for start in (point, *self._perturbed()):
            cost = self.evaluator.climb_work(self.layout.domain.n_states)
            if budget < cost and len(found) > 1:
                break
            budget -= cost
            found.append(self._climb(start))
        return self.states.to_domain(np.stack(found))

    def _perturbed(self) -> list[NDArray[np.int64]]:
        """Return the best point with some variables moved to random states that are left."""
        if self.best is None:
            return []
        out: list[NDArray[np.int64]] = []
        for _ in range(PERTURBED):
            point = self.best.copy()
            for i in np.flatnonzero(self.rng.random(len(point)) < SHARE_MOVED):
                point[i] = self.states.position[self.rng.choice(self.kept[i])]
            out.append(point)
        return out

    def _climb(self, inner: NDArray[np.int64]) -> NDArray[np.int64]:
        n_states = np.array([len(c) for c in self.states.columns], np.int64)
        point = self.evaluator.climb(inner, n_states)
        value = float(self.evaluator.log_values(point[None])[0])
        if value > self.best_value or self.best is None:
            self.best, self.best_value = point, value
        return point

    def climb(self, points: Points) -> Points:
        """Return points reached by moving one variable at a time, shape (batch, n)."""
        inner, possible = self.states.to_problem(points)
        out = np.array(points)
        for b in np.flatnonzero(possible):
            out[b] = self.states.to_domain(self._climb(inner[b])[None])[0]
        return out

    def tighten(self, work: int, log_factor: float, within: SearchBoxes) -> Tightening:
        """Optimise shifts and weights within what is open; rebuild when it got small; raise the bound on tables."""
        mask = within.mask[0]
        if self._worth_rebuilding(mask):
            self._rebuild(mask)
            self.stage = min(self.stage, 1)
            return Tightening(self.tree.n_entries, True, self._is_done)
        if self._is_done:
            return Tightening(0, True, True)
        if self.tightener is None:
            self.tightener = Tightener(self.tree, self._masks(mask[None])[0])
        cost = max(1, 6 * self.tree.n_entries)
        steps = max(3, min(STEPS_PER_STAGE, work // cost))
        self.tightener.run(TEMPERATURES[self.stage], steps)
        self.stage_steps += steps
        return Tightening(steps * cost, False, False)
