"""Queries at which the rules only just hold, so that one a few percent too loose fails on them.

Each has one point above what the others would have to be for the answer to stay right, by a part in ten thousand:
an answer that missed it is false, and the rule has to see the chance of that exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.domain import Domain, Real
from certimap.core.posterior import Capability, Draws, FunctionPosterior, Masses
from certimap.core.probing import log_bounds
from certimap.networks import BayesianNetwork, Factor
from certimap.solvers.base import Solver
from certimap.testing.models import TablePosterior
from certimap_lab.volume.case import Floats, Truth, VolumeCase

ABOVE = 1e-4  # by how much the best point is above the threshold (relative)
DELTAS = (0.01, 0.05, 0.1, 0.3)
LEFT = 60  # open points at least, for where one draw counts much, the rule stops well after it must


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _standing_out(rng: np.random.Generator, n: int, epsilon: float, above: float = ABOVE) -> Floats:
    """Return n probabilities, all alike but one, which is just above 1/(1 - epsilon) times the others."""
    weights = np.ones(n)
    weights[int(rng.integers(n))] = (1.0 + above) / (1.0 - epsilon)
    return weights / weights.sum()


def _table_case(family: str, rng: np.random.Generator, probs: Floats, solver: Any, **settings: Any) -> VolumeCase:
    posterior = TablePosterior([len(probs)], probs)
    given = {"rng": _seed(rng), **settings}
    return VolumeCase(family, Truth.of_table(posterior.domain, probs), solver, given, posterior)


def one_above_many(rng: np.random.Generator) -> VolumeCase:
    """`pac` on many points of which one stands out."""
    epsilon, delta = float(rng.choice([0.0, 0.05, 0.3])), float(rng.choice(DELTAS))
    probs = _standing_out(rng, int(rng.integers(100, 400)), epsilon)
    return _table_case("one above many", rng, probs, "pac", epsilon=epsilon, delta=delta)


def one_above_many_published(rng: np.random.Generator) -> VolumeCase:
    """The same under the published count of draws."""
    epsilon, delta = float(rng.choice([0.0, 0.05, 0.3])), float(rng.choice(DELTAS))
    probs = _standing_out(rng, int(rng.integers(200, 400)), epsilon)
    return _table_case("one above many, published", rng, probs, "paper_pac", epsilon=epsilon, delta=delta)


@dataclass
class _RestState:
    posterior: Any
    rng: np.random.Generator
    open: NDArray[np.bool_]
    done: bool = False


@dataclass(frozen=True)
class DrawsFromTheRest(Solver):
    """Closes points of one variable that cannot win, some at a time, and draws from the others in between.

    Parameters
    ----------
    share
        Of the open points that are closed in each step, at random among those within the threshold.
    batch
        Draws in each step.
    """

    share: float = 0.3
    batch: int = 8

    name: ClassVar[str] = "draws_from_the_rest"
    needs: ClassVar[tuple[Capability, ...]] = (Draws, Masses)

    def init(
        self, posterior: Any, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> _RestState:
        return _RestState(posterior, rng, np.ones(int(posterior.domain.n_states[0]), np.bool_))

    def step(self, state: _RestState, ledger: Ledger) -> _RestState:
        posterior, states = state.posterior, np.arange(len(state.open))
        if ledger.best_point is None:
            ledger.candidates(posterior.sample(1, state.rng))
        singles = Boxes(posterior.domain, np.eye(len(states), dtype=np.bool_))
        masses, limits = posterior.log_mass(singles), log_bounds(posterior, singles)
        closing = state.open & (limits <= ledger.log_threshold)
        closing &= state.rng.random(len(states)) < self.share
        if np.count_nonzero(state.open & ~closing) >= LEFT:
            ledger.close(limits[closing], masses[closing])
            state.open &= ~closing
        rest = Boxes(posterior.domain, state.open[None, :])
        drawn = posterior.sample(self.batch, state.rng, boxes=rest)
        ledger.draws(drawn, min(float(posterior.log_mass(rest)[0]), 0.0))
        return state


def draws_from_the_rest(rng: np.random.Generator) -> VolumeCase:
    """Draws from the boxes that are still open, whose mass shrinks, on many points of which one stands out."""
    epsilon, delta = float(rng.choice([0.05, 0.3])), float(rng.choice(DELTAS))
    probs = _standing_out(rng, int(rng.integers(300, 500)), epsilon)
    solver = DrawsFromTheRest(share=float(rng.choice([0.02, 0.1, 0.5])), batch=int(rng.integers(10, 60)))
    settings = {"epsilon": epsilon, "delta": delta, "max_samples": 20_000}
    return _table_case("draws from the rest", rng, probs, solver, **settings)


def all_but_the_best(rng: np.random.Generator) -> VolumeCase:
    """Everything is evaluated but the best point, which one percent more would make the answer wrong for."""
    epsilon = float(rng.choice([0.01, 0.05, 0.3]))
    probs = _standing_out(rng, int(rng.integers(3, 9)), epsilon, above=0.005)
    known = np.delete(np.arange(len(probs)), int(np.argmax(probs)))[:, None]
    settings = {"epsilon": epsilon, "delta": 0.0, "warm_start": known.astype(np.float64), "max_samples": 0}
    return _table_case("all but the best", rng, probs, "pac", **settings)


def stopped_search(rng: np.random.Generator) -> VolumeCase:
    """A box search that a limit on its nodes ends."""
    sizes = [[2] * 6, [3, 4, 5], [8, 8]][int(rng.integers(3))]
    probs = rng.uniform(0.7, 1.0, int(np.prod(sizes)))
    probs[int(rng.integers(len(probs)))] = rng.uniform(1.0, 1.2)
    posterior = TablePosterior(sizes, probs, looseness=float(rng.choice([0.0, 0.01])))
    settings: dict[str, Any] = {
        "epsilon": float(rng.choice([0.0, 0.01, 0.1])),
        "delta": 0.0,
        "max_nodes": int(rng.integers(1, 12)),
        "max_samples": 0,
        "rng": _seed(rng),
        "incumbent": False,
        "exact_work": 0,
    }
    truth = Truth.of_table(posterior.domain, posterior.probs.reshape(sizes))
    return VolumeCase("stopped searches", truth, "frontier", settings, posterior)


def smooth_around_the_mode(rng: np.random.Generator) -> VolumeCase:
    """Binary variables; log2 p falls by exactly so many bits per changed variable, down to a floor.

    The floor is just below what is good enough, so that the good points are those of one ball; its radius is
    a whole number, or has to be rounded down to one.
    """
    n, k = int(rng.integers(10, 13)), int(rng.choice([1, 2], p=[0.85, 0.15]))  # light balls: many draws
    bits, delta = float(rng.uniform(0.2, 0.6)), float(rng.choice(DELTAS))
    epsilon = -math.expm1(-bits * (k + float(rng.choice([0.0, 0.7]))) * math.log(2.0)) + 1e-9
    posterior = TablePosterior([2] * n, np.ones(1 << n))
    mode = posterior.points[int(rng.integers(1 << n))]
    distance: NDArray[np.int64] = np.count_nonzero(posterior.points != mode, axis=1)
    probs = np.maximum(2.0 ** (-bits * distance), (1.0 - epsilon) / (1.0 + ABOVE))
    posterior = TablePosterior(posterior.domain, probs)
    truth = Truth.of_table(posterior.domain, probs.reshape([2] * n))
    settings: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "rng": _seed(rng), "period": 10**6}
    settings |= {"radius": k + int(rng.integers(0, 3)), "lipschitz": bits}
    return VolumeCase("smooth around the mode", truth, "smooth_pac", settings, posterior, assumes=True)


@dataclass(frozen=True)
class _Peak:
    """A density on [0, 1]: `top` at the mode, halved every 1 / `bits` beside it, down to a floor."""

    mode: float
    bits: float
    top: float
    floor: float

    @property
    def reach(self) -> float:
        """How far from the mode the floor begins."""
        return math.log2(self.top / self.floor) / self.bits

    @property
    def inside(self) -> float:
        """The probability within that distance."""
        rate = self.bits * math.log(2.0)
        return 2.0 * self.top * -math.expm1(-rate * self.reach) / rate

    def log_prob(self, points: Any) -> Floats:
        distance = np.abs(np.asarray(points, np.float64)[:, 0] - self.mode)
        return np.maximum(math.log(self.top) - self.bits * math.log(2.0) * distance, math.log(self.floor))

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        rate, reach = self.bits * math.log(2.0), self.reach
        u, v = rng.random(n), rng.random(n)
        near = -np.log1p(v * math.expm1(-rate * reach)) / rate
        near = self.mode + near * np.where(rng.random(n) < 0.5, 1.0, -1.0)
        far = v * (1.0 - 2.0 * reach)  # what is left of the interval, put together
        far = np.where(far < self.mode - reach, far, far + 2.0 * reach)
        return np.where(u < self.inside, near, far)[:, None]


def smooth_density(rng: np.random.Generator) -> VolumeCase:
    """One real variable; log2 of its density falls by so many bits per unit around the mode, down to a floor."""
    epsilon, delta = float(rng.choice([0.1, 0.3])), float(rng.choice(DELTAS))
    bits = float(rng.uniform(20.0, 50.0))
    floor = (1.0 - epsilon) / (1.0 + ABOVE)
    shape = _Peak(0.5, bits, 1.0, floor)
    scale = 1.0 / (shape.inside + floor * (1.0 - 2.0 * shape.reach))
    mode = float(rng.uniform(shape.reach, 1.0 - shape.reach))
    peak = _Peak(mode, bits, scale, scale * floor)
    domain = Domain([Real("x", 0.0, 1.0)])
    posterior = FunctionPosterior(domain, peak.sample, peak.log_prob)

    def log_prob(point: Any) -> float:
        return float(peak.log_prob(np.asarray(point, np.float64)[None, :])[0])

    truth = Truth(domain, log_prob, np.array([math.log(peak.top)]), None)
    settings = {"epsilon": epsilon, "delta": delta, "rng": _seed(rng), "radius": 1.0, "lipschitz": bits}
    return VolumeCase("smooth density", truth, "smooth_pac", settings, posterior, assumes=True)


def rivals(rng: np.random.Generator) -> VolumeCase:
    """Pairs of variables that agree in one of two ways, which two components rank differently, by so little.

    Many assignments are then within a millionth of the best, none a single change away from another: what a search
    drops because another is nearly as good is the answer, and no climb brings it back. Further variables tell the
    components apart, so that a bound on what is outside of a pair takes both for equally probable.
    """
    n_pairs, n_guides = int(rng.choice([2, 6, 9])), int(rng.integers(0, 4))
    reach, rare = float(rng.choice([1e-6, 3e-7, 1e-7])), float(rng.choice([1e-2, 1e-4]))
    share = float(rng.choice([0.5, 0.3, 0.5 + 1e-9]))
    domain = Domain.of_sizes([2] * (2 * n_pairs + n_guides + 1))
    factors, groups = [Factor((0,), np.array([share, 1.0 - share]))], list[Floats]()
    for i in range(n_pairs):
        lead = 0.5 * (1.0 + reach * rng.uniform(-0.5, 0.5, 2))
        first = np.stack([1.0 - lead, lead], axis=1)
        second = np.tile(np.array([[1.0 - rare, rare], [rare, 1.0 - rare]]), (2, 1, 1))
        factors += [Factor((0, 2 * i + 1), first), Factor((0, 2 * i + 1, 2 * i + 2), second)]
        groups.append(first[:, :, None] * second)
    for i in range(n_guides):
        clear = float(rng.choice([0.6, 0.7, 0.9]))
        guide = np.array([[clear, 1.0 - clear], [1.0 - clear, clear]])
        factors.append(Factor((0, 2 * n_pairs + i + 1), guide))
        groups.append(guide)
    query = list(domain.names[1:])
    weights = np.array([[share, 1.0 - share]])  # of the two components, for each choice that may be the best

    def log_prob(point: Any) -> float:
        states = [int(x) for x in point]
        value, at = weights[0], 0
        for group in groups:
            value, at = value * group[(slice(None), *states[at : at + group.ndim - 1])], at + group.ndim - 1
        return math.log(float(value.sum()))

    best: Floats = weights
    for group in groups:
        best = _undominated((best[:, None] * group.reshape(2, -1).T).reshape(-1, 2))
    truth = Truth(
        domain.subset(range(1, len(domain))), log_prob, np.log(best.sum(axis=1).max(keepdims=True)), None
    )
    settings = {"epsilon": 0.0, "delta": 0.0, "rng": _seed(rng)}
    return VolumeCase("rivals", truth, "set_elimination", settings, BayesianNetwork(domain, factors), query, {})


def _undominated(rows: Floats) -> Floats:
    """Leave out the pairs of numbers that another one is at least as large as in both."""
    rows = rows[np.lexsort((-rows[:, 1], -rows[:, 0]))]
    before = np.maximum.accumulate(np.concatenate([[-1.0], rows[:-1, 1]]))
    return rows[rows[:, 1] > before]
