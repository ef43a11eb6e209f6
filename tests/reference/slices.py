"""Random networks of a few slices."""

from __future__ import annotations

import numpy as np

import certimap as cm


def random_slices(rng: np.random.Generator, order: int = 1, whole: bool = False) -> cm.BayesianNetwork:
    """Return a network over `v0[0]`, ..., `v0[order]`, some rows with zeros.

    `order`: how many steps back parents lie at most. `whole`: with a variable `all`, which every slice may depend
    on, and a variable `first`, a parent in slice 0 alone.
    """
    sizes = rng.integers(2, 4, size=int(rng.integers(2, 5))).tolist()
    states: dict[str, list[object]] = {"all": [0, 1], "first": [0, 1]} if whole else {}
    parents: dict[str, list[str]] = {}
    tables = {name: rng.dirichlet([1.0, 1.0]) for name in states}
    for t in range(order + 1):
        for v, k in enumerate(sizes):
            above = [f"v{u}[{t}]" for u in range(v) if rng.random() < 0.4]
            if t:
                above += [f"v{u}[{t - 1}]" for u in range(len(sizes)) if rng.random() < (0.8 if u == v else 0.25)]
            if t > 1 and rng.random() < 0.6:
                above.append(f"v{v}[{t - 2}]")
            if whole and rng.random() < 0.4:
                above.append("all")
            if whole and t == 0 and rng.random() < 0.7:
                above.append("first")
            name = f"v{v}[{t}]"
            states[name], parents[name] = [f"s{i}" for i in range(k)], above
            table = rng.dirichlet(np.full(k, 0.7), size=tuple(len(states[p]) for p in above))
            if rng.random() < 0.3:
                table = np.where(table < 0.15, 0.0, table)
            tables[name] = table / table.sum(axis=-1, keepdims=True)
    return cm.BayesianNetwork.from_cpts(states, parents, tables)
