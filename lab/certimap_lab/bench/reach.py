"""How far proofs reach: random models at the edge of what is proved, by family and seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from certimap.ask.api import map_query
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Domain
from certimap.core.model import Model
from certimap.errors import CertimapError, did_you_mean
from certimap_lab.bench.random_chains import random_chain, random_classes
from certimap_lab.bench.random_circuits import random_region_graph
from certimap_lab.bench.tabular import Table, significant

SMALLEST = 1e-12  # of drawn weights, which may underflow


@dataclass(frozen=True)
class Question:
    """A model, and the variables whose best states are asked for (None: all)."""

    model: Model
    variables: Sequence[str] | None = None


@dataclass(frozen=True)
class ReachFamily:
    """Random models of one kind.

    Attributes
    ----------
    name
        What `--family` calls it.
    title
        What tables call it.
    make
        Returns the question of a seed.
    """

    name: str
    title: str
    make: Callable[[int], Question]


def tree_mixture(
    n_variables: int, n_trees: int, n_nodes: int, seed: int, n_states: int = 2, concentration: float = 0.3
) -> Circuit:
    """Return a mixture of random region trees, as random sum-product networks and Einsum networks have.

    Each tree halves the variables, in a random order of its own, down to single ones. A region has `n_nodes`
    sums over as many products, each of a node of either half; weights and leaves are drawn from Dirichlet
    distributions.

    Parameters
    ----------
    n_variables, n_trees, n_nodes, n_states
        The sizes.
    seed
        Which of them.
    concentration
        Of the Dirichlet distributions.

    Returns
    -------
    Circuit
    """
    rng = np.random.default_rng([seed, n_variables, n_trees, n_nodes, n_states])
    builder = CircuitBuilder(Domain.of_sizes([n_states] * n_variables))

    def log_weights(size: int, concentration: float = concentration) -> list[float]:
        weights = rng.dirichlet(np.full(size, concentration))
        return np.log(np.maximum(weights, SMALLEST)).tolist()

    def region(scope: list[int], n_sums: int) -> list[int]:
        if len(scope) == 1:
            return [builder.categorical(scope[0], log_weights=log_weights(n_states)) for _ in range(n_nodes)]
        half = len(scope) // 2
        parts = [region(part, n_nodes) for part in (scope[:half], scope[half:])]
        orders: list[list[int]] = [rng.permutation(n_nodes).tolist() for _ in parts]
        pairs: list[tuple[int, int]] = list(zip(*orders, strict=True))
        products = [builder.product([parts[0][i], parts[1][j]]) for i, j in pairs]
        return [builder.sum(products, log_weights=log_weights(n_nodes)) for _ in range(n_sums)]

    trees = [region(rng.permutation(n_variables).tolist(), 1)[0] for _ in range(n_trees)]
    builder.sum(trees, log_weights=log_weights(n_trees, 1.0))
    return builder.build(normalised=False)


def _trees(n_variables: int, n_trees: int, n_nodes: int) -> ReachFamily:
    kind = "one tree" if n_trees == 1 else f"{n_trees} trees"
    return ReachFamily(
        f"trees-{n_variables}-{n_trees}-{n_nodes}",
        f"{kind} of regions over {n_variables} variables, {n_nodes} nodes per region",
        lambda seed: Question(tree_mixture(n_variables, n_trees, n_nodes, seed)),
    )


def _flat_trees(n_variables: int, n_trees: int, n_nodes: int) -> ReachFamily:
    return ReachFamily(
        f"flat-trees-{n_variables}-{n_trees}-{n_nodes}",
        f"{n_trees} trees of regions over {n_variables} variables, {n_nodes} nodes per region, Dirichlet(1)",
        lambda seed: Question(tree_mixture(n_variables, n_trees, n_nodes, seed, concentration=1.0)),
    )


def _pictures(side: int, n_nodes: int, n_states: int) -> ReachFamily:
    return ReachFamily(
        f"quad-graph-{side}-{n_nodes}-{n_states}",
        f"quad graph over {side} by {side} pixels of {n_states} states, {n_nodes} nodes per region",
        lambda seed: Question(random_region_graph(side, side, n_nodes, seed=seed, n_states=n_states)),
    )


def _chains(steps: int, n_states: int, n_symbols: int, concentration: float = 1.0) -> ReachFamily:
    sparse = "" if concentration == 1.0 else f", drawn from Dirichlet({concentration:g})"
    return ReachFamily(
        f"hmm-{steps}-{n_states}-{n_symbols}",
        f"output of a hidden Markov model: {steps} steps, {n_states} states, {n_symbols} symbols{sparse}",
        lambda seed: Question(*random_chain(steps, n_states, n_symbols, seed, concentration)),
    )


def _classes(n_classes: int, n_features: int, n_states: int) -> ReachFamily:
    return ReachFamily(
        f"latent-class-{n_classes}-{n_features}-{n_states}",
        f"{n_features} features of {n_states} states, {n_classes} latent classes",
        lambda seed: Question(*random_classes(n_classes, n_features, n_states, seed)),
    )


FAMILIES = (
    _trees(64, 1, 10),
    _trees(64, 5, 10),
    _trees(64, 10, 10),
    _trees(128, 5, 10),
    _trees(64, 3, 20),
    _trees(128, 10, 20),
    _trees(256, 10, 10),
    _flat_trees(64, 5, 10),
    _flat_trees(64, 10, 10),
    _pictures(8, 10, 2),
    _pictures(8, 10, 4),
    _chains(100, 5, 10),
    _chains(1000, 5, 10),
    _chains(200, 10, 10),
    _chains(30, 50, 30),
    _chains(200, 50, 20, 0.2),
    _classes(100, 200, 2),
    _classes(1000, 60, 2),
    _classes(1000, 60, 3),
)


def families_named(names: Sequence[str]) -> tuple[ReachFamily, ...]:
    """Return families by name, all of them for no name.

    Raises CertimapError for an unknown one.
    """
    known = {family.name: family for family in FAMILIES}
    for name in names:
        if name not in known:
            raise CertimapError(
                f"{name!r} is no family; expected one of {', '.join(known)}{did_you_mean(name, list(known))}"
            )
    return tuple(known[name] for name in names) if names else FAMILIES


def run_reach(
    families: Sequence[ReachFamily],
    seeds: Sequence[int],
    epsilon: float,
    time_limit: float,
    report: Callable[[str], None],
) -> Table:
    """Ask for the best assignment of each family's models, with no failure probability.

    Parameters
    ----------
    families
        What is asked.
    seeds
        Which models of each.
    epsilon
        The tolerance asked for.
    time_limit
        Seconds per query.
    report
        Told what is at work.

    Returns
    -------
    Table
        A line per family: how many were proved, seconds, and the gaps left.
    """
    header = ["family", "proved", "median s", "longest s", "median gap", "largest gap"]
    table = Table("reach", f"Proofs at epsilon {epsilon:g} within {time_limit:g} s", header)
    for family in families:
        seconds: list[float] = []
        gaps: list[float] = []
        n_proved = 0
        for seed in seeds:
            question = family.make(seed)
            start = time.monotonic()
            result = map_query(
                question.model, question.variables, epsilon=epsilon, delta=0.0, rng=seed, time_limit=time_limit
            )
            seconds.append(time.monotonic() - start)
            n_proved += result.certified
            lower = result.log_prob if result.log_prob is not None else -math.inf
            upper = result.log_upper_bound if result.log_upper_bound is not None else math.inf
            gaps.append(max(0.0, upper - lower))
            report(
                f"{family.name}, seed {seed}: {'proved' if result.certified else 'open'} after "
                f"{significant(seconds[-1])} s, gap {significant(gaps[-1])} ({result.solver})"
            )
        times = (significant(float(np.median(seconds))), significant(max(seconds)))
        told = (significant(float(np.median(gaps))), significant(max(gaps)))
        table.add(family.title, f"{n_proved} of {len(seeds)}", *times, *told)
    table.notes.append("Seconds on the clock, from the model to the result; gaps between the bounds in nats.")
    return table
