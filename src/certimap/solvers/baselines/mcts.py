"""Monte Carlo tree search over partial assignments, with the exact conditional probabilities as its prior."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.posterior import Capability, Masses
from certimap.errors import SolverError
from certimap.solvers.base import Effort
from certimap.solvers.guess import LabelHeuristic

ENTROPY_FLOOR = 1e-9  # nats: variables of less entropy are left to the completion


@dataclass
class TreeNode:
    """A partial assignment: the variable that it branches on, and statistics of its children by state.

    `value` is ln of the best completion seen below each child; `closed` marks children without unseen points.
    """

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
class TreeSearch(LabelHeuristic):
    """Walks down a tree of partial assignments by the PUCT rule, and completes the assignment that it reaches.

    A node branches on its most uncertain variable. The prior of a state is its exact conditional probability given
    the partial assignment, and the value of a node is the best completion seen below it. A completion takes the
    conditional mode of each unassigned variable. Two passes over the posterior per simulation.

    `simulations`: the largest number of completions; the search ends earlier if the whole tree is seen.
    `exploration`: the weight of the prior against the values seen.
    """

    simulations: int = 500
    exploration: float = 1.0

    name: ClassVar[str] = "mcts"
    needs: ClassVar[tuple[Capability, ...]] = (Masses,)

    def __post_init__(self) -> None:
        if self.simulations < 1:
            raise SolverError(f"simulations={self.simulations!r}; expected at least 1")
        if not 0.0 <= self.exploration < np.inf:
            raise SolverError(f"exploration={self.exploration!r}; expected a number, at least 0")

    def effort(self, state: MctsState) -> Effort:
        return Effort(n_nodes=state.n_simulations)

    def start(self, posterior: Masses, control: Control, rng: np.random.Generator) -> MctsState:
        return MctsState(posterior)

    def step(self, state: MctsState, ledger: Ledger) -> MctsState:
        path, mask = self._descend(state)
        node, point = _expand(state.posterior, mask)
        log_prob = float(ledger.candidates(point)[0])
        _record(path, node, log_prob)
        root = state.root or node
        n = state.n_simulations + 1
        exhausted = root is None or bool(np.all(root.closed))
        return replace(
            state,
            root=root,
            best=max(state.best, log_prob),
            n_simulations=n,
            done=exhausted or n >= self.simulations,
        )

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
