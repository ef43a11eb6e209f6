"""Certified modes of random mixtures of Gaussians: the gap between bound and answer over time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from certimap.ask.api import map_query
from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import Domain, Real
from certimap.core.model import Model
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap_lab.bench.tabular import Table, significant

MOMENTS = (1.0, 10.0, 60.0)  # seconds of processor time at which the gap is told


@dataclass(frozen=True)
class Shape:
    """A family of mixtures: means uniform within +-`spread`, sds of .5 to 1.5, weights Dirichlet(1)."""

    n_variables: int
    n_components: int
    spread: float
    is_full: bool = False

    @property
    def name(self) -> str:
        """Its name in tables."""
        kind = "full" if self.is_full else "diagonal"
        return f"{self.n_variables}-D, {self.n_components} components within +-{self.spread:g}, {kind}"


SHAPES = (
    Shape(20, 20, 3.0),
    Shape(10, 100, 3.0),
    Shape(6, 20, 1.0),
    Shape(10, 100, 1.0),
    Shape(4, 10, 1.0, is_full=True),
)


def model_of(shape: Shape, seed: int) -> Model:
    """Return a mixture of a family.

    Parameters
    ----------
    shape, seed
        The family, and which of it.

    Returns
    -------
    Model
        A circuit; a `GaussianMixture` where covariances are full (those of n + 1 rows of a random matrix).
    """
    rng = np.random.default_rng([seed, shape.n_variables, shape.n_components])
    k, n = shape.n_components, shape.n_variables
    weights, means = rng.dirichlet(np.ones(k)), rng.uniform(-shape.spread, shape.spread, (k, n))
    sds = rng.uniform(0.5, 1.5, (k, n))
    if shape.is_full:
        rows = rng.standard_normal((k, n + 1, n))
        shapes = np.swapaxes(rows, 1, 2) @ rows / (n + 1)
        return GaussianMixture(weights, means, sds[:, :, None] * shapes * sds[:, None, :])
    builder = CircuitBuilder(Domain(Real(f"x{d}") for d in range(n)))
    parts = [
        builder.product([builder.gaussian(d, float(means[j, d]), float(sds[j, d])) for d in range(n)])
        for j in range(k)
    ]
    builder.sum(parts, log_weights=np.log(weights).tolist())
    return builder.build(normalised=False)


def run_continuous(
    n_models: int,
    epsilon: float,
    time_limit: float,
    report: Callable[[str], None],
    shapes: Sequence[Shape] = SHAPES,
) -> Table:
    """Certify the modes of some mixtures of each family, one after the other.

    Parameters
    ----------
    n_models
        How many of each family.
    epsilon
        The certificate asked for.
    time_limit
        Seconds per mixture.
    report
        Told what is at work.
    shapes
        The families.

    Returns
    -------
    Table
    """
    moments = [m for m in MOMENTS if m <= time_limit]
    header = [
        "mixtures",
        "certified",
        "median s",
        "longest s",
        *(f"gap after {m:g} s" for m in moments),
        "last gap",
    ]
    table = Table("continuous", f"Certified modes of mixtures of Gaussians at epsilon {epsilon:g}", header)
    map_query(model_of(Shape(2, 2, 1.0), 0), rng=0)  # loads compiled code
    map_query(model_of(Shape(2, 2, 1.0, is_full=True), 0), rng=0)
    for shape in shapes:
        seconds: list[float] = []
        gaps: list[list[float]] = []
        certified = 0
        for seed in range(n_models):
            report(f"{shape.name}: mixture {seed + 1} of {n_models}")
            start, wall = time.process_time(), time.monotonic()
            result = map_query(model_of(shape, seed), epsilon=epsilon, delta=0.0, rng=seed, time_limit=time_limit)
            seconds.append(time.process_time() - start)
            share = seconds[-1] / max(time.monotonic() - wall, 1e-9)
            certified += result.certified
            series = [(h.seconds * share, h.log_upper_bound - h.log_prob) for h in result.history]
            lower = result.log_prob if result.log_prob is not None else -math.inf
            last = (result.log_upper_bound or math.inf) - lower
            gaps.append([_at(series, moment, seconds[-1], last) for moment in moments] + [last])
        worst = np.max(gaps, axis=0)
        cells = [f"{certified} of {n_models}", significant(float(np.median(seconds))), significant(max(seconds))]
        table.add(shape.name, *cells, *(significant(float(gap)) for gap in worst))
    table.notes.append("Seconds of processor time; gaps in nats, the largest of the family's.")
    return table


def _at(series: Sequence[tuple[float, float]], moment: float, end: float, last: float) -> float:
    """Return the gap at a moment of a run."""
    if end <= moment:
        return last
    return min((gap for seconds, gap in series if seconds <= moment), default=math.inf)
