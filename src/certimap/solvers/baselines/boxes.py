"""Cells of any size: the boxes of a decision tree that partitions the space, with exact masses."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes, Points
from certimap.core.domain import MAX_STATES, Categorical, Domain, Label
from certimap.core.posterior import Facts
from certimap.core.rounding import ULP
from certimap.core.search_boxes import Layout
from certimap.errors import MissingDependency
from certimap.solvers.baselines.intervals import Interval

Floats = NDArray[np.float64]
MIN_ROWS = 4  # draws in a leaf of a tree


class BoxMasses:
    """The distribution of the boxes of a partition: one categorical variable, `cell`, with a state per box.

    Parameters
    ----------
    posterior
        The posterior over the variables of the boxes.
    boxes
        Boxes that are disjoint except for borders and cover the whole space.
    """

    def __init__(self, posterior: CircuitPosterior, boxes: Boxes) -> None:
        self.boxes = boxes
        self.log_masses = posterior.log_mass(boxes)
        self.domain = Domain([Categorical("cell", tuple(range(len(boxes))))])
        known = posterior.facts
        self.facts = Facts.of(
            self.domain, log_evidence=known.log_evidence, work=1.0, log_slack=known.log_slack + 4.0 * ULP
        )

    def log_prob(self, points: Points) -> Floats:
        """Return ln of the masses of boxes, shape (batch,)."""
        return self.log_masses[points[:, 0].astype(np.int64)]

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n boxes in proportion to mass, shape (n, 1)."""
        masses = np.exp(self.log_masses)
        return rng.choice(len(masses), size=(n, 1), p=masses / masses.sum()).astype(self.domain.point_dtype)

    def decode(self, cell: int) -> dict[str, Label]:
        """Return a box as intervals and states; several states of one variable are a tuple."""
        boxes, domain = self.boxes, self.boxes.domain
        found: dict[str, Label] = {}
        for i, variable in enumerate(domain):
            if isinstance(variable, Categorical):
                kept = boxes.mask[cell, domain.offsets[i] : domain.offsets[i + 1]]
                labels = tuple(label for label, is_in in zip(variable.states, kept, strict=True) if is_in)
                found[variable.name] = labels[0] if len(labels) == 1 else labels
            elif boxes.low is not None and boxes.high is not None:
                found[variable.name] = Interval(float(boxes.low[cell, i]), float(boxes.high[cell, i]))
        return found


def grown_boxes(
    posterior: CircuitPosterior, layout: Layout, n_cells: int, n_draws: int, rng: np.random.Generator
) -> Boxes:
    """Partition the space by a regression tree that predicts ln of the density at draws.

    Cells are therefore small where the density changes, and large where it does not.

    Raises MissingDependency without scikit-learn.
    """
    try:
        trees: Any = import_module("sklearn.tree")
    except ImportError:
        raise MissingDependency(
            "a partition by a decision tree needs scikit-learn: pip install 'certimap[learn]'"
        ) from None
    domain = posterior.domain
    points = posterior.sample(n_draws, rng)
    columns, features = _features(domain, points)
    grown = trees.DecisionTreeRegressor(
        max_leaf_nodes=max(2, min(n_cells, MAX_STATES)),
        min_samples_leaf=MIN_ROWS,
        random_state=int(rng.integers(2**31)),
    )
    grown.fit(columns, posterior.log_prob(points))
    return _leaves(layout, grown.tree_, features)


def _features(domain: Domain, points: Points) -> tuple[Floats, list[tuple[int, int]]]:
    """Return one column per real variable and per state, and the (variable, state) of each; state -1 if real."""
    features = [(i, state) for i, n in enumerate(domain.n_states.tolist()) for state in (range(n) if n else (-1,))]
    columns = [points[:, i] if state < 0 else points[:, i] == state for i, state in features]
    return np.stack(columns, axis=1).astype(np.float64), features


def _leaves(layout: Layout, tree: Any, features: list[tuple[int, int]]) -> Boxes:
    """Return the boxes of a tree's leaves."""
    domain, is_whole = layout.domain, layout.is_whole
    found: list[Boxes] = []
    below = [(0, layout.public(layout.allowed()))]
    while below:
        node, box = below.pop()
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if left < 0:
            found.append(box)
            continue
        variable, state = features[int(tree.feature[node])]
        sides = Boxes.concatenate([box, box])
        if state >= 0:
            column = int(domain.offsets[variable]) + state
            sides.mask[0, column] = False
            sides.mask[1, domain.offsets[variable] : domain.offsets[variable + 1]] = False
            sides.mask[1, column] = True
        elif sides.low is not None and sides.high is not None:
            place = float(tree.threshold[node])
            place = np.floor(place) + 0.5 if is_whole[variable] else place
            place = float(np.clip(place, sides.low[0, variable], sides.high[0, variable]))
            sides.high[0, variable] = sides.low[1, variable] = place
        below += [(left, sides[np.array([0])]), (right, sides[np.array([1])])]
    return Boxes.concatenate(found)
