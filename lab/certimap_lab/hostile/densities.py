"""Queries to real variables: mixtures of normal distributions with spikes, ties and far components.

The largest density has no exact expression, so a lower bound stands for it: the largest 60-digit value among many
points, ascents from the components' means included. An upper bound below any of them is false.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.ask.api import condition, map_query
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import MissingDependency, QueryError, SolverError, TooLarge
from certimap.solvers.registry import names
from certimap_lab.hostile.answers import check_claims, check_numbers
from certimap_lab.hostile.evidence import gaussian_weight, state_weights
from certimap_lab.hostile.exact import ZERO, density, exp_of
from certimap_lab.hostile.numbers import log_vector, pick_style
from certimap_lab.hostile.report import CaseReport

MAX_NODES, N_STEPS, N_RANDOM = 1000, 60, 24
CENTRES, SCALES = (0.0, 0.9, -0.9, 5.0, 1e3, 1e-3), (1e-8, 1e-3, 1.0, 1.0, 2.0, 1e3)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """One component: the log of its weight, the log tables of its categorical leaves, means and deviations."""

    log_weight: float
    tables: list[Floats]
    means: list[float]
    sds: list[float]


@dataclass(frozen=True, eq=False)
class DensityTruth:
    """What is known without rounding of a mixture; points name the queried variables."""

    domain: Domain
    parts: list[Part]
    query: list[str]
    evidence: dict[str, Any]
    total: Decimal

    def value(self, point: dict[str, Any]) -> Decimal:
        """Return p(q, e), a density."""
        return self._sum({**self.evidence, **point}, point)

    @classmethod
    def of(cls, domain: Domain, parts: list[Part], query: list[str], evidence: dict[str, Any]) -> DensityTruth:
        truth = cls(domain, parts, query, evidence, ZERO)
        return cls(domain, parts, query, evidence, truth._sum(evidence, {}))

    def _sum(self, evidence: dict[str, Any], point: dict[str, Any]) -> Decimal:
        weights = state_weights(self.domain, evidence)
        total = ZERO
        for part in self.parts:
            product = exp_of(part.log_weight)
            for v, table in enumerate(part.tables):
                entries, own = [exp_of(x) for x in table.tolist()], weights[v]
                chosen = entries if own is None else [a * b for a, b in zip(entries, own, strict=True)]
                product *= sum(chosen, ZERO)
            for i, (mean, sd) in enumerate(zip(part.means, part.sds, strict=True)):
                v = len(part.tables) + i
                name = self.domain.names[v]
                product *= (
                    density(point[name], mean, sd)
                    if name in point
                    else gaussian_weight(self.domain, v, evidence, mean, sd)
                )
            total += product
        return total

    def candidates(self, rng: np.random.Generator) -> list[dict[str, Any]]:
        """Return points that may be the best: means, ascents from them, ends of intervals, random ones."""
        places = [self._climbed(part) for part in self.parts]
        places += [list(part.means) for part in self.parts]
        for _ in range(N_RANDOM):
            a, b = (self.parts[int(i)] for i in rng.integers(len(self.parts), size=2))
            share = rng.choice([0.5, float(rng.random())])
            places.append([float(share * x + (1 - share) * y) for x, y in zip(a.means, b.means, strict=True)])
        n_few = len(self.domain) - len(self.parts[0].means)
        found: list[dict[str, Any]] = []
        shape = [self.domain.n_states[v] for v in range(n_few) if self.domain.names[v] in self.query]
        named = [self.domain.names[v] for v in range(n_few) if self.domain.names[v] in self.query]
        for place in places:
            for states in np.ndindex(*map(int, shape)):
                point: dict[str, Any] = dict(zip(named, states, strict=True))
                for i, x in enumerate(place):
                    name = self.domain.names[n_few + i]
                    if name in self.query:
                        point[name] = self._inside(name, x)
                found.append(point)
        return found

    def _inside(self, name: str, x: float) -> float:
        low, high = self.evidence.get(name, (-math.inf, math.inf))
        variable = self.domain[name]
        assert isinstance(variable, Real)
        return float(min(max(x, low, variable.low), high, variable.high))

    def _climbed(self, start: Part) -> list[float]:
        """Return the end of a mean shift in floats: where it leads is evaluated exactly."""
        means, sds = np.array([part.means for part in self.parts]), np.array([part.sds for part in self.parts])
        logs = np.array([part.log_weight for part in self.parts]) - np.log(sds).sum(axis=1)
        x = np.array(start.means)
        for _ in range(N_STEPS):
            scores = logs - 0.5 * (((x - means) / sds) ** 2).sum(axis=1)
            share = np.exp(scores - scores.max())[:, None] / sds**2
            x = (share * means).sum(axis=0) / share.sum(axis=0)
        return x.tolist()


@dataclass(frozen=True)
class DensityCase:
    """A mixture, a query to real variables (and states, maybe), and what is true about it."""

    model: Circuit
    query: list[str]
    evidence: dict[str, Any]
    truth: DensityTruth
    refusal: Exception | None = None


def densities(rng: np.random.Generator) -> DensityCase:
    """A mixture of products of normal distributions over queried variables, some of them cut to an interval."""
    n_few, n_real = int(rng.integers(0, 3)), int(rng.integers(1, 4))
    few = [Categorical(f"c{i}", tuple(range(int(rng.integers(2, 4))))) for i in range(n_few)]
    domain = Domain([*few, *(Real(f"x{i}") for i in range(n_real))])
    n_parts = int(rng.integers(1, 6))
    log_weights = log_vector(rng, n_parts, pick_style(rng))
    scales = [float(s) for s in rng.choice(SCALES, int(rng.integers(1, 3)))]
    parts = [
        Part(
            float(log_weight),
            [log_vector(rng, int(domain.n_states[v]), pick_style(rng)) for v in range(n_few)],
            [float(rng.choice(CENTRES) + rng.choice([0.0, rng.normal()])) for _ in range(n_real)],
            [float(rng.choice(scales)) for _ in range(n_real)],
        )
        for log_weight in log_weights
    ]
    build = CircuitBuilder(domain)
    products = [
        build.product(
            [build.categorical(v, log_weights=table.tolist()) for v, table in enumerate(part.tables)]
            + [build.gaussian(n_few + i, part.means[i], part.sds[i]) for i in range(n_real)]
        )
        for part in parts
    ]
    build.sum(products, log_weights=log_weights.tolist())
    query = [domain.names[n_few], *(name for name in domain.names if rng.random() < 0.6 and name != f"x{0}")]
    evidence: dict[str, Any] = {}
    for name in domain.names:
        if name in query:
            if name.startswith("x") and rng.random() < 0.3:
                low = float(rng.choice([-1.0, 0.5, 4.0]))
                evidence[name] = (low, low + float(rng.choice([1e-3, 1.0, 10.0])))
        elif rng.random() < 0.6:
            evidence[name] = int(rng.integers(2)) if name.startswith("c") else _seen(rng, parts)
    return DensityCase(
        build.build(normalised=False), query, evidence, DensityTruth.of(domain, parts, query, evidence)
    )


def _seen(rng: np.random.Generator, parts: list[Part]) -> float | tuple[float, float]:
    """Return a value of a hidden variable, or an interval: wide, narrow, far out, or without an end."""
    place = float(rng.choice([0.0, 1.0, 50.0, parts[0].means[0]]))
    if rng.random() < 0.5:
        return place
    low = place + float(rng.choice([0.0, 30.0, 1e6])) * parts[-1].sds[0]
    width = float(rng.choice([1e-9, 1e-3, 1.0, math.inf])) * parts[-1].sds[0]
    return (-math.inf, low) if rng.random() < 0.2 or low == low + width else (low, low + width)


def is_far(case: DensityCase) -> bool:
    """Whether some component has an observation so many deviations away that logs of densities round."""
    seen = {name: value for name, value in case.evidence.items() if name.startswith("x")}
    n_few = len(case.truth.domain) - len(case.truth.parts[0].means)
    for name, value in seen.items():
        i = case.truth.domain.index(name) - n_few
        ends = np.atleast_1d(np.asarray(value, np.float64)).tolist()
        for part in case.truth.parts:
            if max(abs(x - part.means[i]) / part.sds[i] for x in ends if math.isfinite(x)) > 1e5:
                return True
    return False


def check_density(case: DensityCase, rng: np.random.Generator, report: CaseReport) -> None:
    """Put a density to every solver; compare values with exact ones, and bounds with the best point known."""
    truth = case.truth
    if not truth.total:
        report.n_checks += 1
        return  # not even a Decimal has the exponent for it
    try:
        log_slack = condition(case.model, case.query, case.evidence).facts.log_slack
    except QueryError as error:
        report.require("too far" in str(error) and is_far(case), "error", f"conditioning: {error}")
        return
    known = max(truth.value(point) for point in truth.candidates(rng)) / truth.total
    for solver in names():
        if solver == "cells":
            continue  # it asks another question: its answers are intervals
        settings: dict[str, Any] = {
            "epsilon": float(rng.choice([0.0, 0.001, 0.01, 0.1, 0.5])),
            "delta": float(rng.choice([0.0, 0.01])),
            "rng": int(rng.integers(1000)),
            "max_nodes": MAX_NODES,
        }
        if rng.random() < 0.3:
            settings["max_nodes"] = int(rng.choice([1, 3, 20]))
        who = f"{solver} ({settings})"
        try:
            result = map_query(
                case.model, case.query, case.evidence, solver=solver, workers=1, max_samples=1000,
                progress=False, **settings,
            )  # fmt: skip
        except MissingDependency:
            continue
        except (SolverError, TooLarge) as error:
            is_refusal = "solver" in str(error) or (
                solver in ("guess", "paper_max_product") and isinstance(error, TooLarge)
            )
            report.require(is_refusal and solver != "auto", "error", f"{who}: {error}")
            continue
        value = truth.value(result.assignment) / truth.total
        best = max(known, value)
        check_numbers(report, result, truth.total, value, best, who)
        check_claims(report, result, best, value, log_slack, who)
