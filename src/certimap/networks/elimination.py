"""The cost of elimination orders, apart from the search for orders (loads numba)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Elimination:
    """An elimination order with its cliques and its cost.

    - `order`: variables, the first eliminated first.
    - `separators`: for each of them the other variables of its clique, in elimination order.
    - `induced_width`: the most variables in a separator.
    - `log2_size`: log base 2 of the number of table entries over all cliques.
    - `log2_largest`: the same of the largest clique.
    - `n_edges`: an estimate of the compiled circuit's edges from above: zeros and sharing only remove some.
      Cliques that are plain arithmetic (nothing queried below them) have none.
    """

    order: tuple[int, ...]
    separators: tuple[tuple[int, ...], ...]
    induced_width: int
    log2_size: float
    log2_largest: float
    n_edges: float

    @property
    def cliques(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The variables with their separators, in order."""
        return zip(self.order, self.separators, strict=True)

    def describe(self) -> str:
        """Describe the size in words, for messages."""
        return (
            f"induced width {self.induced_width}, 2^{self.log2_size:.1f} table entries "
            f"and about {self.n_edges:.3g} circuit edges"
        )


def measure(
    order: Sequence[int], separators: Sequence[tuple[int, ...]], sizes: Mapping[int, int], query: Collection[int]
) -> Elimination:
    """Return the cost of an order with known separators, each in elimination order."""
    place = {v: i for i, v in enumerate(order)}
    log2, queried = {v: math.log2(sizes[v]) for v in order}, set(query)
    n_messages = [0] * len(order)  # messages with nodes that arrive at each clique
    width, entries, largest, n_edges = 0, 0.0, 0.0, 0.0
    for i, (v, separator) in enumerate(zip(order, separators, strict=True)):
        width = max(width, len(separator))
        log2_clique = log2[v] + sum(log2[u] for u in separator)
        clique = 2.0 ** min(log2_clique, 1000.0)
        entries += clique
        largest = max(largest, log2_clique)
        leaf = v in queried
        if n_messages[i]:
            n_edges += clique * (1 + n_messages[i] + leaf)
        elif leaf:
            n_edges += clique / sizes[v]
        if separator and (n_messages[i] or leaf):
            n_messages[place[separator[0]]] += 1
    return Elimination(
        tuple(order), tuple(separators), width, math.log2(entries) if entries else 0.0, largest, n_edges
    )
