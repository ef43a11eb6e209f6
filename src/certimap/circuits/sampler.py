"""Drawing points from a plan, anywhere or inside boxes."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from certimap.circuits.evaluator import MASS, Block, Evaluator, Rows
from certimap.circuits.kernels.sample import cumulate, sample, sample_in_boxes
from certimap.core.arrays import Floats, Ints, Ints16, Ints32, Words
from certimap.core.box import Boxes, Points
from certimap.errors import QueryError
from certimap.kernels.parallel import for_blocks

_TASK_ROWS = 4096


class Sampler:
    """Draws independent points; a row's random numbers depend only on the key and the row, not on threads."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.plan = evaluator.plan

    @cached_property
    def _cumulated(self) -> Floats:

        out = np.empty_like(self.plan.weights)
        cumulate(self.plan.child_ptr, self.plan.weights, out)
        return out

    def _outputs(self, n: int) -> tuple[Ints16, Floats]:
        n_vars = len(self.plan.domain)
        is_discrete = self.plan.domain.is_discrete
        return np.zeros((n, n_vars), np.int16), np.empty((0 if is_discrete else n, n_vars))

    def _finish(self, states: Ints16, reals: Floats) -> Points:
        domain = self.plan.domain
        if domain.is_discrete:
            return states
        discrete = domain.n_states > 0
        reals[:, discrete] = states[:, discrete]
        return reals

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        """Draw n points from the whole space, shape (n, n_vars)."""
        key = _key(rng)
        states, reals = self._outputs(n)
        arrays, cumulated = self.evaluator.arrays, self._cumulated

        def task(start: int, stop: int) -> None:
            stack, words = self._walk()
            with np.errstate(over="ignore"):
                sample(arrays, key, start, cumulated, stack, words, states[start:stop], reals[start:stop])

        for_blocks(task, n, _TASK_ROWS, self.evaluator.workers)
        return self._finish(states, reals)

    def _walk(self) -> tuple[Ints32, Words]:
        return np.empty(len(self.plan.domain) + 2, np.int32), np.empty(4, np.uint64)

    def sample_in(self, n: int, rng: np.random.Generator, boxes: Boxes) -> Points:
        """Draw n points from the union of disjoint boxes, each box in proportion to its mass.

        Raises QueryError if the boxes have no mass.
        """
        log_mass = self.evaluator.log_values(MASS, None, boxes)
        largest = float(log_mass.max(initial=-np.inf))
        if largest == -np.inf:
            raise QueryError(f"the {len(boxes)} boxes to draw from have mass zero; at least one must have some")
        running: Floats = np.cumsum(np.exp(log_mass - largest))
        last = int(np.flatnonzero(log_mass > -np.inf)[-1])
        targets: Floats = rng.random(n) * running[-1]
        places: Ints = np.searchsorted(running, targets, side="right")
        chosen = np.minimum(places, last)
        states, reals = self._outputs(n)
        rows = np.argsort(chosen, kind="stable")
        distinct, counts = np.unique(chosen, return_counts=True)
        ends = np.cumsum(counts)
        key = _key(rng)
        inside = boxes[distinct]
        source = Rows(None, inside)
        width = self.evaluator.box_width(len(distinct))

        def task(start: int, stop: int) -> None:
            first_row = int(ends[start] - counts[start])
            mine = rows[first_row : int(ends[stop - 1])]
            lanes = np.repeat(np.arange(stop - start), counts[start:stop])
            self._draw(key, source, start, stop, mine, lanes, states, reals)

        for_blocks(task, len(distinct), width, self.evaluator.workers)
        return self._finish(states, reals)

    def _draw(
        self,
        key: np.uint64,
        source: Rows,
        start: int,
        stop: int,
        rows: Ints,
        lanes: Ints,
        states: Ints16,
        reals: Floats,
    ) -> None:
        """Draw some rows inside the boxes `start:stop` of `source`."""
        part = source.part(start, stop)
        width = -(-part.n // 8) * 8
        block = Block.empty(self.plan.n_nodes + 1, width)
        inputs = self.evaluator.empty_inputs(self.plan.domain.total_states, width)
        self.evaluator.upward_values(part, inputs, block)
        masses = (block.values, block.counts, block.has)
        arrays, boxes = self.evaluator.arrays, (part.mask, part.low_high)
        with np.errstate(over="ignore"):
            sample_in_boxes(arrays, key, *boxes, rows, lanes, *masses, *self._walk(), states, reals)


def _key(rng: np.random.Generator) -> np.uint64:
    return np.uint64(rng.integers(0, 2**64, dtype=np.uint64))
