"""Random small circuits, their tables by brute force, and slow twins of the box search's passes."""

from __future__ import annotations

import itertools
import math

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real


def random_domain(rng: np.random.Generator, n: int, n_real: int = 0) -> Domain:
    sizes = rng.choice([1, 2, 2, 2, 3, 4], size=n)
    variables = [Categorical(f"x{i}", tuple(range(k))) for i, k in enumerate(sizes)]
    for i in rng.permutation(n)[:n_real]:
        variables[i] = Real(f"x{i}", *((-math.inf, math.inf) if rng.random() < 0.5 else (-2.0, 3.0)))
    return Domain(variables)


def random_circuit(rng: np.random.Generator, domain: Domain, *, shared: bool, flat: bool = False) -> Circuit:
    """A smooth decomposable circuit: sums over random splits of scopes, with zeros, ties and reused nodes.

    `shared` keeps a pool of nodes by scope and reuses them (a DAG); `flat` makes indicators of most leaves.
    """
    builder = CircuitBuilder(domain)
    pool: dict[tuple[int, ...], list[int]] = {}
    coarse = rng.random() < 0.3  # few distinct numbers, hence ties

    def weights(k: int) -> list[float]:
        values = rng.integers(1, 4, k).astype(float) if coarse else rng.random(k) ** 3 + 1e-6
        if k > 1 and rng.random() < 0.3:
            values[rng.integers(k)] = 0.0
        if not values.sum():
            values[0] = 1.0
        with np.errstate(divide="ignore"):
            return list(np.log(values / values.sum()))

    def leaf(v: int) -> int:
        k = int(domain.n_states[v])
        if k == 0:
            return builder.gaussian(v, float(rng.normal(0, 1.5)), float(rng.uniform(0.3, 1.5)))
        if flat or rng.random() < 0.2:
            return builder.indicator(v, int(rng.integers(k)))
        return builder.categorical(v, log_weights=weights(k))

    def product(scope: tuple[int, ...]) -> int:
        if len(scope) == 1:
            return leaf(scope[0])
        if rng.random() < 0.35 or len(scope) == 2:
            return builder.product([leaf(v) for v in scope])
        order = [int(v) for v in rng.permutation(scope)]
        cut = int(rng.integers(1, len(order)))
        parts = [tuple(sorted(order[:cut])), tuple(sorted(order[cut:]))]
        return builder.product([node(p) for p in parts])

    def node(scope: tuple[int, ...]) -> int:
        if shared and scope in pool and rng.random() < 0.6:
            return int(rng.choice(pool[scope]))
        k = int(rng.integers(1, 4))
        children = [product(scope) for _ in range(k)]
        made = children[0] if k == 1 else builder.sum(children, log_weights=weights(k))
        pool.setdefault(scope, []).append(made)
        return made

    scope = tuple(range(len(domain)))
    children = [product(scope) for _ in range(int(rng.integers(2, 5)))]
    builder.sum(children, log_weights=weights(len(children)))
    return builder.build(normalised=False)


def all_points(domain: Domain) -> np.ndarray:
    return np.array(list(itertools.product(*(range(int(k)) for k in domain.n_states))), np.int16).reshape(
        -1, len(domain)
    )


def leaves_of(plan, node):
    """Yield (variable, vector of probabilities) for each categorical leaf of a product."""
    for leaf in range(plan.leaf_ptr[node], plan.leaf_ptr[node + 1]):
        variable, start = int(plan.leaf_var[leaf]), int(plan.leaf_start[leaf])
        yield variable, plan.tables[start : start + int(plan.domain.n_states[variable])]


def slow_pass(plan, mask, caps):
    """One box of a discrete plan, in plain probabilities: (mass, bound, each mass, each bound), by definition.

    The `each` columns come from passes over the box with the variable held, so they share no downward pass with
    the kernel; the kernel's bound may be larger than the held one (caps and maxima are left out on the way
    down), but never smaller than the best point.
    """
    mass, bound = slow_up(plan, mask, caps)
    each_mass, each_bound = np.zeros(len(mask)), np.zeros(len(mask))
    offsets = plan.domain.offsets
    for v in range(len(plan.domain)):
        for column in range(offsets[v], offsets[v + 1]):
            if mask[column]:
                held = mask.copy()
                held[offsets[v] : offsets[v + 1]] = False
                held[column] = True
                each_mass[column], each_bound[column] = slow_up(plan, held, caps)
    return mass, bound, each_mass, each_bound


def slow_up(plan, mask, caps):
    masses, bounds = [], []
    for i in range(plan.n_nodes):
        children = range(plan.child_ptr[i], plan.child_ptr[i + 1])
        if plan.is_sum[i]:
            terms = [(plan.weights[e], plan.children[e]) for e in children]
            mass = sum(w * masses[c] for w, c in terms)
            parts = [w * bounds[c] for w, c in terms]
            bound = max(parts) if plan.decides[i] >= 0 else sum(parts)
            bound = min(bound, mass, math.exp(min(caps[i], 700.0)))
        else:
            mass = math.prod(masses[plan.children[e]] for e in children)
            bound = math.prod(bounds[plan.children[e]] for e in children)
            for v, table in leaves_of(plan, i):
                held = table[mask[plan.domain.offsets[v] : plan.domain.offsets[v + 1]]]
                mass *= held.sum()
                bound *= held.max(initial=0.0)
        masses.append(mass)
        bounds.append(bound)
    return masses[-1], bounds[-1]
