"""Heuristics that walk: hill climbing, annealed Gibbs sampling, and Monte Carlo tree search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.control import Control
from certimap.core.posterior import Draws, Masses, Posterior
from certimap.core.probing import best_changes
from certimap.errors import SolverError
from certimap.solvers.base import Effort, LabelHeuristic

ENTROPY_FLOOR = 1e-9  # nats: variables of less entropy are left to the completion


def first_points(posterior: Posterior, n: int, rng: Generator) -> Points:
    """Return starting points, shape (n, n_variables): draws if there is a sampler, else uniform points."""
    if isinstance(posterior, Draws):
        points = posterior.sample(n, rng)
    else:
        domain = posterior.domain
        points = rng.integers(0, domain.n_states, (n, len(domain))).astype(domain.point_dtype)
    return posterior.repaired(points) if isinstance(posterior, ConstrainedPosterior) else points


@dataclass(frozen=True)
class WalkState:
    """Walks in progress: their points, the number of starts left, and of steps done."""

    posterior: Posterior
    rng: Generator
    points: Points
    n_left: int = 0
    n_steps: int = 0
    done: bool = False


class Walk(LabelHeuristic):
    """The base of heuristics that change the points of several walks together."""

    def effort(self, state: WalkState) -> Effort:
        return Effort(work=state.n_steps)


@dataclass(frozen=True)
class HillClimb(Walk, name="hill_climb"):
    """From several starts, repeats the one-variable change that raises the probability most, until none does.

    Starts are draws from the posterior (uniform points if it has no sampler). Runs on any posterior of
    categorical variables. A step costs two passes per point if masses are known, else one evaluation per state.

    `restarts`: the number of starts. `batch`: the number of simultaneous climbs.
    """

    restarts: int = 32
    batch: int = 32
    ranges = "restarts, batch [1, inf)"

    def start(self, posterior: Posterior, control: Control, rng: Generator) -> WalkState:
        nothing = np.empty((0, len(posterior.domain)), posterior.domain.point_dtype)
        return WalkState(posterior, rng, nothing, self.restarts)

    def step(self, state: WalkState, ledger: Ledger) -> WalkState:
        points, n_left = state.points, state.n_left
        if not len(points):
            n = min(self.batch, n_left)
            points, n_left = first_points(state.posterior, n, state.rng), n_left - n
            ledger.candidates(points)
        changed, rises = best_changes(state.posterior, points)
        points = np.unique(changed[rises], axis=0)
        if len(points):
            ledger.candidates(points)
        done = not len(points) and n_left == 0
        return replace(state, points=points, n_left=n_left, n_steps=state.n_steps + 1, done=done)


@dataclass(frozen=True)
class AnnealedGibbs(Walk, name="mcmc"):
    """Chains redraw each variable from p^(1/T) given all others while the temperature T falls from sweep to sweep.

    Visited points count as candidates, never as draws, because they are not independent. Runs on any posterior of
    categorical variables; a sweep costs one evaluation per chain and state of each variable.

    `chains`: the number of chains, started from draws (uniform points without a sampler). `sweeps`: the number of
    times that each variable of a chain is redrawn. `hot`, `cold`: temperatures of the first and the last sweep;
    between them it falls by a constant factor.
    """

    chains: int = 32
    sweeps: int = 20
    hot: float = 1.0
    cold: float = 0.05
    ranges = "chains, sweeps [1, inf); hot, cold (0, inf)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cold > self.hot:
            raise SolverError(f"hot={self.hot!r}, cold={self.cold!r}; expected 0 < cold <= hot")

    def start(self, posterior: Posterior, control: Control, rng: Generator) -> WalkState:
        return WalkState(posterior, rng, first_points(posterior, self.chains, rng))

    def step(self, state: WalkState, ledger: Ledger) -> WalkState:
        if state.n_steps == 0:
            ledger.candidates(state.points)
        progress = state.n_steps / max(self.sweeps - 1, 1)
        temperature = self.hot * (self.cold / self.hot) ** progress
        points = state.points.copy()
        for variable in state.rng.permutation(len(state.posterior.domain)).tolist():
            _redraw(state.posterior, points, variable, temperature, state.rng)
            if ledger.control.should_stop:
                break
        ledger.candidates(points)
        done = state.n_steps + 1 >= self.sweeps
        return replace(state, points=points, n_steps=state.n_steps + 1, done=done)


def _redraw(posterior: Posterior, points: Points, variable: int, temperature: float, rng: Generator) -> None:
    """Redraw one variable of every chain, in place; if all states have probability 0, its state stays."""
    k = int(posterior.domain.n_states[variable])
    rows = np.repeat(points, k, axis=0)
    rows[:, variable] = np.tile(np.arange(k), len(points))
    log_probs = posterior.log_prob(rows).reshape(len(points), k) / temperature
    largest = log_probs.max(axis=1, keepdims=True)
    possible = largest[:, 0] > -np.inf
    shares = np.cumsum(np.exp(log_probs[possible] - largest[possible]), axis=1)
    thresholds = rng.random(len(points))[possible] * shares[:, -1]
    points[possible, variable] = np.minimum(np.sum(thresholds[:, None] >= shares, axis=1), k - 1)


@dataclass
class TreeNode:
    """A partial assignment's variable, and by state: visits, ln of the best completion, whether none is unseen."""

    variable: int
    prior: Floats
    visits: Ints
    value: Floats
    closed: Flags
    children: dict[int, TreeNode] = field(default_factory=dict[int, "TreeNode"])


@dataclass(frozen=True)
class MctsState:
    """The tree so far; `best` is ln of the best point seen."""

    posterior: Masses
    root: TreeNode | None = None
    best: float = -np.inf
    n_simulations: int = 0
    done: bool = False


@dataclass(frozen=True)
class TreeSearch(LabelHeuristic, name="mcts", needs=(Masses,)):
    """Walks down a tree of partial assignments by the PUCT rule, and completes the assignment that it reaches.

    A node branches on its most uncertain variable. The prior of a state is its exact conditional probability, the
    value of a node the best completion seen below it. A completion takes the conditional mode of each unassigned
    variable. Two passes over the posterior per simulation.

    `simulations`: the largest number of completions; the search ends earlier if the whole tree is seen.
    `exploration`: the weight of the prior against the values seen.
    """

    simulations: int = 500
    exploration: float = 1.0
    ranges = "simulations [1, inf); exploration [0, inf)"

    def effort(self, state: MctsState) -> Effort:
        return Effort(n_nodes=state.n_simulations)

    def start(self, posterior: Masses, control: Control, rng: Generator) -> MctsState:
        return MctsState(posterior)

    def step(self, state: MctsState, ledger: Ledger) -> MctsState:
        path, mask = self._descend(state)
        node, point = _expand(state.posterior, mask)
        log_prob = float(ledger.candidates(point)[0])
        _record(path, node, log_prob)
        root, n, best = state.root or node, state.n_simulations + 1, max(state.best, log_prob)
        done = root is None or bool(np.all(root.closed)) or n >= self.simulations
        return replace(state, root=root, best=best, n_simulations=n, done=done)

    def _descend(self, state: MctsState) -> tuple[list[tuple[TreeNode, int]], Flags]:
        """Return the path to a partial assignment outside the tree, and its box."""
        domain = state.posterior.domain
        path: list[tuple[TreeNode, int]] = []
        mask = np.ones(domain.total_states, np.bool_)
        node = state.root
        while node is not None:
            worth = np.exp(np.minimum(node.value - state.best, 0.0)) if state.best > -np.inf else 0.0
            bonus = self.exploration * node.prior * np.sqrt(1.0 + node.visits.sum()) / (1.0 + node.visits)
            choice = int(np.argmax(np.where(node.closed, -np.inf, worth + bonus)))
            path.append((node, choice))
            start, stop = domain.offsets[node.variable : node.variable + 2]
            mask[start:stop] = False
            mask[start + choice] = True
            node = node.children.get(choice)
        return path, mask


def _expand(posterior: Masses, mask: Flags) -> tuple[TreeNode | None, Points]:
    """Return the node of a partial assignment (None if nearly determined) and its completion."""
    domain = posterior.domain
    log_mass = posterior.log_mass_each(Boxes(domain, mask[None, :]))[0]
    log_mass = np.where(mask, log_mass, -np.inf)
    point = np.zeros(len(domain), domain.point_dtype)
    variable, largest, shares_there = -1, ENTROPY_FLOOR, np.empty(0)
    for v, own in enumerate(np.split(log_mass, domain.offsets[1:-1])):
        point[v] = np.argmax(own)
        shares = np.exp(own - own[point[v]]) if own[point[v]] > -np.inf else np.ones(len(own))
        shares /= shares.sum()
        entropy = -float(np.sum(shares * np.log(np.where(shares > 0.0, shares, 1.0))))
        if entropy > largest:
            variable, largest, shares_there = v, entropy, shares
    if variable < 0:
        return None, point[None, :]
    k = len(shares_there)
    node = TreeNode(variable, shares_there, np.zeros(k, np.int64), np.full(k, -np.inf), shares_there == 0.0)
    return node, point[None, :]


def _record(path: list[tuple[TreeNode, int]], node: TreeNode | None, log_prob: float) -> None:
    """Insert a node into the tree, and update its ancestors with the value of its completion."""
    is_closed = node is None
    for depth, (above, choice) in enumerate(reversed(path)):
        if depth == 0 and node is not None:
            above.children[choice] = node
        above.visits[choice] += 1
        above.value[choice] = max(above.value[choice], log_prob)
        above.closed[choice] |= is_closed
        is_closed = is_closed and bool(np.all(above.closed))
