"""A slow twin of hybrid belief propagation: tables of binary variables, summed over all settings of parents."""

from __future__ import annotations

import itertools
import math


class Propagation:
    """Messages as pairs (of the value 0, of the value 1) of plain probabilities, in dictionaries."""

    def __init__(self, plan, damping: float) -> None:
        self.plan, self.damping = plan, damping
        self.parts = []  # per node: ("leaf", position) or ("edge", position) of what it is made of
        self.above = [[] for _ in range(plan.n_nodes)]
        for node in range(plan.n_nodes):
            leaves = [("leaf", k) for k in range(plan.leaf_ptr[node], plan.leaf_ptr[node + 1])]
            edges = [("edge", k) for k in range(plan.child_ptr[node], plan.child_ptr[node + 1])]
            self.parts.append(leaves + edges)
            for _, edge in edges:
                self.above[plan.children[edge]].append(("edge", edge))
        keys = [part for parts in self.parts for part in parts]
        self.up = dict.fromkeys(keys, (1.0, 1.0))
        self.down = dict.fromkeys(keys, (1.0, 1.0))
        self.told = {k: [1.0] * self.size(k) for k in range(plan.n_leaves)}
        self.belief = [[1.0] * int(n) for n in plan.domain.n_states]

    def size(self, leaf: int) -> int:
        return int(self.plan.domain.n_states[self.plan.leaf_var[leaf]])

    def table(self, leaf: int) -> list[float]:
        start = self.plan.leaf_start[leaf]
        return [math.exp(v) for v in self.plan.log_tables[start : start + self.size(leaf)]]

    def chance(self, node: int, values: tuple[int, ...]) -> float:
        """P(node = 1 | the values of its parts)."""
        if not self.plan.is_sum[node]:
            return float(all(values))
        weights = [math.exp(self.plan.log_weights[k]) for _, k in self.parts[node]]
        return sum(w for w, value in zip(weights, values, strict=True) if value)

    def settings(self, node: int):
        """Every setting of a node's parts, with the product of what they sent."""
        parts = self.parts[node]
        for values in itertools.product((0, 1), repeat=len(parts)):
            yield values, [self.up[part][value] for part, value in zip(parts, values, strict=True)]

    def sweep(self) -> list[list[float]]:
        for leaf in range(self.plan.n_leaves):
            belief, table = self.belief[self.plan.leaf_var[leaf]], self.table(leaf)
            best = [a for a, b in enumerate(belief) if b >= max(belief) * math.exp(-1e-9)]
            weights = [belief[a] / self.told[leaf][a] for a in best]
            one = sum(w * table[a] for w, a in zip(weights, best, strict=True)) / sum(weights)
            self.up["leaf", leaf] = (1.0 - one, one)
        for node in range(self.plan.n_nodes):
            chance = [0.0, 0.0]
            for values, sent in self.settings(node):
                p = self.chance(node, values)
                chance[1] += p * math.prod(sent)
                chance[0] += (1.0 - p) * math.prod(sent)
            for key in self.above[node]:
                both = [
                    chance[b] * math.prod(self.down[other][b] for other in self.above[node] if other != key)
                    for b in (0, 1)
                ]
                self.up[key] = (both[0] / sum(both), both[1] / sum(both))
        for node in reversed(range(self.plan.n_nodes)):
            likely = [math.prod(self.down[key][b] for key in self.above[node]) for b in (0, 1)]
            if node == self.plan.n_nodes - 1:
                likely = [0.0, 1.0]
            for j, key in enumerate(self.parts[node]):
                out = [0.0, 0.0]
                for values, sent in self.settings(node):
                    others = math.prod(s for i, s in enumerate(sent) if i != j)
                    p = self.chance(node, values)
                    out[values[j]] += others * (likely[1] * p + likely[0] * (1.0 - p))
                self.down[key] = tuple(
                    old**self.damping * (new / max(out)) ** (1.0 - self.damping)
                    for old, new in zip(self.down[key], out, strict=True)
                )
        self.belief = [[1.0] * len(own) for own in self.belief]
        for leaf in range(self.plan.n_leaves):
            zero, one = self.down["leaf", leaf]
            told = [one * p + zero * (1.0 - p) for p in self.table(leaf)]
            self.told[leaf] = [t / max(told) for t in told]
            own = self.belief[self.plan.leaf_var[leaf]]
            own[:] = [b * t for b, t in zip(own, self.told[leaf], strict=True)]
        self.belief = [[b / max(own) for b in own] for own in self.belief]
        return self.belief
