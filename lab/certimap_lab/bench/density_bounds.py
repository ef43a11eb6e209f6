"""Bounds on densities in random boxes against the highest of many places in them, rounding included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.ask.api import condition
from certimap.circuits.circuit import CircuitBuilder
from certimap.core.box import SearchBoxes
from certimap.core.domain import Domain, Real
from certimap_lab.conformance.solver_cases import random_density, random_normals

FAMILIES = ("diagonal", "full", "kinds")
BOXES = 12  # of each model
PLACES = 400  # of a box's grid, and as many at random
ROUNDS = 4  # in which places near the best one are tried
CLOSE = 2e-14  # of the sizes of values that floating point alone has evaluated
DIGITS = 50
TIGHT = 0.01  # nats within which a bound counts as tight
TWO_PI = Decimal("6.28318530717958647692528676655900576839433879875021164194988918")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Diagonal:
    """A mixture of products of Gaussians."""

    log_weights: Floats
    means: Floats
    sds: Floats

    def posterior(self) -> Any:
        k, n = self.means.shape
        builder = CircuitBuilder(Domain(Real(f"x{d}") for d in range(n)))
        parts = [
            builder.product(
                [builder.gaussian(d, float(self.means[j, d]), float(self.sds[j, d])) for d in range(n)]
            )
            for j in range(k)
        ]
        builder.sum(parts, log_weights=self.log_weights.tolist())
        return condition(builder.build(normalised=False))

    def exact(self, point: Floats) -> Decimal:
        """Return ln of the density at a point to `DIGITS` digits."""
        with localcontext() as context:
            context.prec = DIGITS
            total = Decimal(0)
            for log_weight, means, sds in zip(self.log_weights, self.means, self.sds, strict=True):
                log = Decimal(float(log_weight))
                for x, mean, sd in zip(point.tolist(), means.tolist(), sds.tolist(), strict=True):
                    z = (Decimal(x) - Decimal(mean)) / Decimal(sd)
                    log -= Decimal(sd).ln() + TWO_PI.ln() / 2 + z * z / 2
                total += log.exp()
            return total.ln()


@dataclass
class BoundFindings:
    """What the models came to."""

    n_models: Counter[str] = field(default_factory=Counter[str])
    n_boxes: Counter[str] = field(default_factory=Counter[str])
    n_tight: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])

    def lines(self) -> list[str]:
        """Return one line per family, and one per failure."""
        rows = [
            f"{name}: {self.n_models[name]} models, {self.n_boxes[name]} boxes, "
            f"{self.n_tight[name]} bounded within {TIGHT:g} nats of a place found"
            for name in FAMILIES
        ]
        return [*rows, f"{len(self.failures)} bounds below a place", *self.failures]


def random_diagonal(rng: np.random.Generator) -> _Diagonal:
    """Return a mixture of up to 20 components in 1 to 6 dimensions, some of them with spikes."""
    n, k = int(rng.integers(1, 7)), int(rng.integers(1, 21))
    low, high = [(-0.3, 0.2), (-1.0, 1.0), (-8.0, 1.0)][int(rng.integers(3))]
    means, sds = rng.uniform(-1.0, 1.0, (k, n)), 10.0 ** rng.uniform(low, high, (k, n))
    if rng.random() < 0.2:
        means[:] = np.round(means)  # equal ones
    return _Diagonal(np.log(rng.dirichlet(np.ones(k))), means, sds)


def random_boxes(posterior: Any, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return boxes of all sizes around draws, some with sides of length 0."""
    middle = np.asarray(posterior.sample(BOXES, rng), np.float64)
    radius = 10.0 ** rng.uniform(-9.0, 1.0, (BOXES, 1)) * 10.0 ** rng.uniform(-1.0, 0.0, middle.shape)
    radius[rng.random(radius.shape) < 0.05] = 0.0
    middle = middle + radius * rng.uniform(-1.0, 1.0, middle.shape)
    return middle - radius, middle + radius


def best_place(posterior: Any, low: Floats, high: Floats, rng: np.random.Generator) -> tuple[Floats, float]:
    """Return the highest of many places in a box, and ln of the density there."""
    n = len(low)
    steps = max(2, round(PLACES ** (1.0 / n)))
    corners = np.indices((steps,) * n).reshape(n, -1).T / (steps - 1)
    points: Floats = np.concatenate([low + (high - low) * corners, rng.uniform(low, high, (PLACES, n))])
    best, value = low, -np.inf
    for turn in range(ROUNDS + 1):
        points = np.clip(points, low, high)
        values = posterior.log_prob(points)
        if values.max() > value:
            best, value = points[int(values.argmax())], float(values.max())
        points = best + rng.standard_normal((PLACES, n)) * (high - low) * 0.2 ** (turn + 1)
    return best, value


def check_bounds(number: int, findings: BoundFindings) -> None:
    """Bound one model in some boxes."""
    rng = np.random.default_rng([number, 93])
    family = FAMILIES[number % len(FAMILIES)]
    diagonal = random_diagonal(rng) if family == "diagonal" else None
    if diagonal is not None:
        posterior: Any = diagonal.posterior()
    elif family == "full":
        posterior = random_normals(rng, int(rng.integers(1, 5)))
    else:
        posterior = random_density(rng, int(rng.integers(1, 5)))
    low, high = random_boxes(posterior, rng)
    asked = SearchBoxes(np.ones((BOXES, 2 * low.shape[1]), np.uint8), low.copy(), high.copy())
    answers = posterior.prober().probe(asked)
    bounds = answers.log_bound.copy()
    for row, v in zip(*np.nonzero(~np.isnan(answers.splits)), strict=True):
        if row % 3:  # a half of the box in its place
            side = int(row % 3 == 1)
            (high, low)[side][row, v] = answers.splits[row, v]
            bounds[row] = answers.each_bound[row, 2 * v + side]
    findings.n_models[family] += 1
    for row in range(BOXES):
        place, value = best_place(posterior, low[row], high[row], rng)
        bound = float(bounds[row])
        findings.n_boxes[family] += 1
        findings.n_tight[family] += bound <= value + TIGHT
        if diagonal is None:
            holds = bound + posterior.facts.log_slack >= value - CLOSE * (1.0 + abs(value))
        else:
            holds = Decimal(bound) + Decimal(posterior.facts.log_slack) >= diagonal.exact(place)
        if not holds:
            findings.failures.append(
                f"model {number} ({family}): {bound!r} bounds {value!r} at {place.tolist()} in box {row}"
            )


def check_density_bounds(n: int, first: int = 0, report: Callable[[str], None] | None = None) -> BoundFindings:
    """Check the models `first` to `first` + n - 1. Cost: some hundredths of a second of processor time each.

    Parameters
    ----------
    n, first
        How many models, and the number of the first.
    report
        Told how far it is, with the number to go on from.

    Returns
    -------
    BoundFindings
    """
    findings = BoundFindings()
    for number in range(first, first + n):
        check_bounds(number, findings)
        done = number - first + 1
        if report is not None and done % 100 == 0:
            report(f"{done} of {n} models, {len(findings.failures)} failures; goes on with --first {number + 1}")
    return findings
