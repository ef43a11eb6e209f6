"""Prober of a tree of regions: one upward and one downward pass per box for bounds, and for masses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from certimap.core.box import Points
from certimap.core.climb import climb
from certimap.core.posterior import Tightening
from certimap.core.search_boxes import Answers, Layout, SearchBoxes, rounded_up

if TYPE_CHECKING:
    from certimap.trees.bucket_tree import BucketTreePosterior


class TreeProber:
    """Probes a posterior along a tree of regions; there is nothing to tighten.

    Without hidden variables, a box's bound is attained, and the upward pass decodes the point.
    """

    def __init__(self, posterior: BucketTreePosterior) -> None:
        self.posterior = posterior
        self.layout = Layout.of(posterior.domain)
        self.work = 4 * int(posterior.facts.work)
        self.n_bytes = 0

    def probe(self, boxes: SearchBoxes) -> Answers:
        inside = boxes.mask > 0
        bound, each_bound, mass, each_mass = self.posterior.probe(inside)
        each_bound = np.where(inside, np.minimum(each_bound, bound[:, None]), -np.inf)
        each_mass = np.where(inside, rounded_up(each_mass, self.posterior.log_slack), -np.inf)
        splits = np.full((len(boxes), len(self.layout.domain)), np.nan)
        return Answers(rounded_up(mass, self.posterior.log_slack), bound, each_mass, each_bound, splits)

    def starts(self) -> Points:
        tree = self.posterior.region_tree
        if tree.is_visible:
            return self.posterior.max_product()
        return np.empty((0, len(self.layout.domain)), np.int16)

    def climb(self, points: Points) -> Points:
        return climb(self.posterior, points)

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        return Tightening(0, True, True)
