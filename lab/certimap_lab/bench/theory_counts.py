"""Counts and ranks that stay tractable as they grow: draws of `pac` against n, beside what p* predicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from certimap.ask.api import condition, map_query
from certimap.certify.bounds import log_draws_needed, log_tau
from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import Posterior
from certimap_lab.bench.tabular import Table, significant

DELTA, EPSILON = 0.1, 0.01
SIZES = (4, 16, 64, 256)
EXPONENTS = (2, 5, 8, 11)  # a Zipf law has 2^n ranks


@dataclass(frozen=True, eq=False)
class CountCase:
    """A family, its size, how p* goes with it, a posterior, and ln p*."""

    family: str
    n: int
    posterior: Posterior
    log_best: float


def count_cases() -> Iterator[CountCase]:
    """Yield geometric laws of mean about n, Poisson laws of mean n, and Zipf laws over 2^n ranks."""
    for n in SIZES:
        yield CountCase("geometric, p = 1/n", n, _count("geometric", 1.0 / n), -math.log(n))
        log_best = n * math.log(n) - n - math.lgamma(n + 1.0)
        yield CountCase("Poisson, mean n", n, _count("poisson", float(n)), log_best)
    for n in EXPONENTS:
        weights = 1.0 / np.arange(1.0, 2.0**n + 1.0)
        logs = np.log(weights / weights.sum())
        builder = CircuitBuilder(Domain([Categorical("rank", tuple(range(len(logs))))]))
        builder.categorical(0, log_weights=logs.tolist())
        yield CountCase("Zipf over 2^n ranks", n, condition(builder.build(normalised=False)), float(logs[0]))


def _count(kind: str, parameter: float) -> Posterior:
    builder = CircuitBuilder(Domain([Real("count")]))
    builder.real(kind, 0, parameter)
    return condition(builder.build(normalised=False))


def predicted(case: CountCase) -> float:
    """Return ln(1/delta) / -ln(1 - tau) draws, once the mode is known."""
    return math.exp(log_draws_needed(log_tau(case.log_best, EPSILON), DELTA))


def draws_of(case: CountCase, n_runs: int, seed: int) -> tuple[float, int]:
    """Return the median of the draws until `pac` certified, and how many certificates are false."""
    draws: list[int] = []
    n_false = 0
    for k in range(n_runs):
        result = map_query(
            case.posterior, solver="pac", rng=1000 * seed + k, epsilon=EPSILON, delta=DELTA, progress=False
        )
        draws.append(result.n_draws)
        assert result.log_prob is not None
        n_false += result.certified and result.log_prob < case.log_best + math.log1p(-EPSILON) - 1e-9
    return float(np.median(draws)), n_false


def counts_table(n_runs: int, seed: int, report: Callable[[str], None] | None = None) -> Table:
    """Return the draws of `pac` on each law beside what p* predicts.

    Parameters
    ----------
    n_runs, seed
        Runs per law, and the seed of all.
    report
        Told what was done.

    Returns
    -------
    Table
    """
    header = ["law", "n", "h", "certified after", "predicted", "false, %"]
    table = Table("theory-counts", f"Counts and ranks, ε = {EPSILON}, δ = {DELTA}", header)
    for case in sorted(count_cases(), key=lambda c: (c.family, c.n)):
        median, n_false = draws_of(case, n_runs, seed)
        bits = -case.log_best / math.log(2.0)
        cells = [str(case.n), significant(bits), significant(median), significant(predicted(case))]
        table.add(case.family, *cells, significant(100.0 * n_false / n_runs))
        if report is not None:
            report(f"{case.family}: n = {case.n}")
    table.notes.append(
        f"Medians over {n_runs} runs. h is log2 of n, half of log2(2πn), and about log2 of .7 n: draws grow like "
        "n, the root of n, and n. A run may stop earlier with a proof from the mass not seen."
    )
    return table
