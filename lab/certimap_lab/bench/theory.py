"""Theory against practice: simple regret against draws, stopping times, false certificates of the Lipschitz rules.

All distributions are tables over n binary variables with a known mode. For `pac` the expected regret after m draws
has a closed form, since the best of m draws is below a level exactly when all of them are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.certify.bounds import good_radius, log_ball_weight, log_draws_needed, log_tau
from certimap.core.box import Points
from certimap.core.domain import Domain, Real
from certimap.core.posterior import FunctionPosterior, Posterior
from certimap.core.result import CertificateKind
from certimap.solvers.driver import run
from certimap.solvers.request import Request
from certimap.testing.models import TablePosterior
from certimap_lab.bench.tabular import Cell, Table, number, significant
from certimap_lab.bench.theory_counts import counts_table

Floats = NDArray[np.float64]
LN2 = math.log(2.0)
DELTA, EPSILON = 0.1, 0.01  # of the stopping times; a large delta lets false certificates be counted
NOTHING = 1e-9  # bits of regret that are rounding
N_MOMENTS = 100  # of a run at which its answer is noted
TAIL = (0.05, 0.5)  # shares of the first regret between which the exponent is fitted


@dataclass(frozen=True)
class TheoryPlan:
    """What is measured: variables per table, runs per line of a table, and the seed of all of them."""

    n: int = 10
    n_runs: int = 100
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Distribution:
    """A table over binary variables, its mode first in no order that a method could use.

    Attributes
    ----------
    name
        What tables call it.
    probs
        float64, shape (2^n,).
    lipschitz
        (L, r) that hold around the mode, in bits per changed variable; None where none is claimed.
    """

    name: str
    probs: Floats
    lipschitz: tuple[float, int] | None = None

    @property
    def n(self) -> int:
        return int(math.log2(len(self.probs)))

    @property
    def h(self) -> float:
        """The min-entropy, in bits."""
        return -math.log2(float(self.probs.max()))

    @property
    def d(self) -> float:
        """The divergence of infinite order from the uniform distribution, in bits."""
        return self.n - self.h

    @property
    def posterior(self) -> TablePosterior:
        return TablePosterior([2] * self.n, self.probs)


def distributions(n: int, seed: int) -> list[Distribution]:
    """Return needles, geometric, Zipf and hidden caps over n binary variables."""
    rng, ranks = np.random.default_rng([seed, 0]), np.arange(1.0, (1 << n) + 1.0)
    scattered: list[tuple[str, Floats]] = [
        (f"geometric, ratio {q}", q ** np.minimum(ranks, 700.0 / -math.log(q))) for q in (0.9, 0.99)
    ]
    scattered += [(f"Zipf, exponent {s}", ranks**-s) for s in (1.0, 0.5)]
    found = [needle(n, bits, rng) for bits in (4.0, 6.0)]
    for name, weights in scattered:
        probs: Floats = weights / weights.sum()
        rng.shuffle(probs)
        found.append(Distribution(name, probs))
    return found + [hidden_cap(n, bits, slope, 2, rng) for bits, slope in ((7.0, 0.5), (7.0, 1.0))]


def needle(n: int, bits: float, rng: np.random.Generator) -> Distribution:
    """Return one atom of probability 2^-bits in a flat rest."""
    probs = np.full(2**n, (1.0 - 2.0**-bits) / (2**n - 1))
    probs[int(rng.integers(1 << n))] = 2.0**-bits
    return Distribution(f"needle, h = {bits:g}", probs)


def hidden_cap(n: int, bits: float, slope: float, radius: int, rng: np.random.Generator) -> Distribution:
    """Return a mode of probability 2^-bits that falls by `slope` bits per changed variable up to `radius`.

    The slope is steepest where the promise lets it be: nothing in the ball is heavier than it must be.
    """
    mode = int(rng.integers(1 << n))
    distance = np.array([(atom ^ mode).bit_count() for atom in range(1 << n)], np.float64)
    probs = np.where(distance <= radius, 2.0 ** -(bits + slope * distance), 0.0)
    outside = distance > radius
    probs[outside] = (1.0 - probs.sum()) / outside.sum()
    return Distribution(f"hidden cap, h = {bits:g}, L = {slope:g}", probs, (slope, radius))


def expected_regret(probs: Floats, draws: NDArray[np.int64]) -> Floats:
    """Return E log2(p* / best of m draws) for each m, in bits, exactly.

    The best of m draws is at most a level with the m-th power of the mass up to it.
    """
    values, counts = np.unique(probs[probs > 0.0], return_counts=True)
    below = np.minimum(np.cumsum(values * counts), 1.0)
    below[-1] = 1.0
    powers = below[None, :] ** draws[:, None]
    chance = np.diff(powers, axis=1, prepend=0.0)
    return chance @ np.log2(values[-1] / values)


def regret_of_draws(found: Distribution, draws: NDArray[np.int64], n_runs: int, seed: int) -> Floats:
    """Return the mean over runs of log2(p* / best of m draws), in bits: `pac` answers with its best draw."""
    posterior, rng = found.posterior, np.random.default_rng([seed, 2])
    points = posterior.sample(n_runs * int(draws[-1]), rng)
    best = np.maximum.accumulate(posterior.log_prob(points).reshape(n_runs, -1), axis=1)
    return np.mean(float(np.log(found.probs.max())) - best[:, draws - 1], axis=0) / LN2


def regret_of_sweeps(found: Distribution, draws: NDArray[np.int64], n_runs: int, seed: int) -> Floats:
    """Return the mean over runs of `smooth_pac` of log2(p* / best known) after so many draws, in bits.

    It sweeps every n + 1 draws, as many as a ball of radius 1 has points.
    """
    log_best = float(np.log(found.probs.max()))
    total, posterior = np.zeros(len(draws)), found.posterior
    options = {"batch": max(1, int(draws[-1]) // N_MOMENTS), "period": found.n + 1}
    most = int(draws[-1])
    exact = Request.of(solver="smooth_pac", options=options, epsilon=0.0, delta=0.0, max_samples=most)
    for k in range(n_runs):
        result = run(posterior, exact, seed=1000 * seed + k)
        history = [e for e in result.history if e.n_draws > 0]
        known = np.maximum.accumulate([e.log_prob for e in history])
        place = np.searchsorted([e.n_draws for e in history], draws, side="right") - 1
        total += (log_best - known[np.maximum(place, 0)]) / LN2
    return total / n_runs


def exponent(draws: NDArray[np.int64], regret: Floats) -> float:
    """Return the rate at which regret falls per draw: the slope of its log, between two shares of its start."""
    start = float(regret[0])
    inside = (regret <= TAIL[1] * start) & (regret >= TAIL[0] * start) & (regret > NOTHING)
    if inside.sum() < 2:
        return math.nan
    return -float(np.polyfit(draws[inside], np.log(regret[inside]), 1)[0])


def regret_table(plan: TheoryPlan, report: Callable[[str], None] | None = None) -> Table:
    """Return exponents of simple regret, predicted and measured, for both policies."""
    header = (
        "distribution", "h", "d", "p*", "pac: exact", "pac: measured", "ball / p*", "smooth_pac: measured",
    )  # fmt: skip
    table = Table("theory-regret", "How fast simple regret falls, in units of p*", header)
    for i, found in enumerate(distributions(plan.n, plan.seed)):
        best = float(found.probs.max())
        draws, few = _moments(best), _moments(_ball_mass(found))
        exact = exponent(draws, expected_regret(found.probs, draws)) / best
        plain = regret_of_draws(found, draws, 20 * plan.n_runs, plan.seed + i)
        swept = regret_of_sweeps(found, few, plan.n_runs, plan.seed + i)
        table.add(
            found.name,
            significant(found.h),
            significant(found.d),
            significant(best),
            significant(exact),
            significant(exponent(draws, plain) / best),
            significant(_ball_mass(found) / best),
            significant(exponent(few, swept) / best),
        )
        if report is not None:
            report(f"regret on {found.name}")
    table.notes += [
        "Simple regret is E log2(p* / p of the answer). The theorem: that of `pac` falls as exp(-Θ(m p*)). Its "
        "exponent per draw, over p*, is near 1 where the mode has no rival, and larger where near-modes help.",
        f"Exact: from the closed form. Measured: means over {20 * plan.n_runs} and {plan.n_runs} runs. All are "
        f"slopes of the log of regret between {100 * TAIL[1]:g} % and {100 * TAIL[0]:g} % of its first value.",
        "Ball / p*: the mass within one changed variable of the mode, over p*. A draw there lets a sweep find it; "
        f"`smooth_pac` sweeps around its best candidate every {plan.n + 1} draws, as a ball has as many points.",
    ]
    return table


def _moments(mass: float) -> NDArray[np.int64]:
    """Return the numbers of draws at which regret is noted: up to six times what it takes to meet such a mass."""
    return np.unique(np.linspace(2, max(6.0 / mass, 12.0), 200).astype(np.int64))


def _ball_mass(found: Distribution) -> float:
    """Return the mass within one changed variable of the mode."""
    mode = int(np.argmax(found.probs))
    return float(found.probs[mode] + sum(found.probs[mode ^ (1 << b)] for b in range(found.n)))


def stopping_table(plan: TheoryPlan, report: Callable[[str], None] | None = None) -> Table:
    """Return draws until the answer was found and until it was certified, beside what the theorems say."""
    header = (
        "distribution", "found after", "certified after", "sharp rule predicts", "published rule", "predicts",
        "false, %",
    )  # fmt: skip
    table = Table("theory-stopping", f"Discovery and certification, ε = {EPSILON}, δ = {DELTA}", header)
    for i, found in enumerate(distributions(plan.n, plan.seed)):
        log_best = float(np.log(found.probs.max()))
        target = log_tau(log_best, EPSILON)
        sharp = [_stop(found.posterior, "pac", plan.seed + 1000 * i + k) for k in range(plan.n_runs)]
        paper = [_stop(found.posterior, "paper_pac", plan.seed + 1000 * i + k) for k in range(plan.n_runs)]
        certified = [s for s in (*sharp, *paper) if s.is_pac]
        wrong = sum(s.log_prob < log_best + math.log1p(-EPSILON) - 1e-12 for s in certified)
        table.add(
            found.name,
            significant(float(np.median([s.n_found for s in sharp]))),
            significant(float(np.median([s.n_draws for s in sharp]))),
            significant(math.exp(log_draws_needed(target, DELTA))),
            significant(float(np.median([s.n_draws for s in paper]))),
            significant(math.log(1.0 / DELTA) / math.exp(target)),
            number(100.0 * wrong / max(len(certified), 1), 1),
        )
        if report is not None:
            report(f"stopping on {found.name}")
    table.notes.append(
        f"Medians over {plan.n_runs} runs. Predicted: ln(1/δ) / -ln(1 - τ) draws, and (1 - ε) ln(1/δ) / p*, once "
        "the mode is known; runs may stop earlier with a proof from the mass not seen. False: of the certificates "
        f"by draws, both rules together; at most {100 * DELTA:g} % may be."
    )
    return table


@dataclass(frozen=True)
class _Stop:
    """Where a run stopped: draws to its answer and in all, its answer's ln p, and whether draws certified it."""

    n_found: int
    n_draws: int
    log_prob: float
    is_pac: bool


def _stop(posterior: Posterior, solver: str, seed: int, epsilon: float = EPSILON, **options: Any) -> _Stop:
    request = Request.of(solver=solver, options=options, epsilon=epsilon, delta=DELTA, max_samples=1_000_000)
    result = run(posterior, request, seed=seed)
    assert result.log_prob is not None
    is_pac = result.certificate.kind is CertificateKind.PAC
    return _Stop(result.n_draws_to_best or result.n_draws, result.n_draws, result.log_prob, is_pac)


def lipschitz_table(plan: TheoryPlan, report: Callable[[str], None] | None = None) -> Table:
    """Return the shares of false certificates under the Lipschitz rules, where the promise holds and where not."""
    header = ("distribution", "L", "r", "ε", "k", "w_k", "median draws", "without L", "false, %")
    table = Table("theory-lipschitz", f"False certificates under a Lipschitz constant, δ = {DELTA}", header)
    for row in _lipschitz_cases(plan):
        stops = [_stop(row.posterior, "smooth_pac", plan.seed + k, row.epsilon, **row.options) for k in row.runs]
        plain: list[_Stop] = []
        if row.k is not None:  # without a promise draws certify nothing of a density
            plain = [_stop(row.posterior, "pac", plan.seed + k, row.epsilon) for k in row.runs[:50]]
        certified = [s for s in stops if s.is_pac]
        wrong = sum(s.log_prob < row.log_best + math.log1p(-row.epsilon) - 1e-12 for s in certified)
        share: Cell | str = number(100.0 * wrong / len(certified), 1) if certified else "none certified"
        without = significant(float(np.median([s.n_draws for s in plain]))) if plain else "--"
        table.add(
            row.name,
            f"{row.bits:g}",
            f"{row.radius:g}",
            f"{row.epsilon:g}",
            "--" if row.k is None else str(row.k),
            "--" if row.weight is None else significant(row.weight),
            significant(float(np.median([s.n_draws for s in stops]))),
            without,
            share,
        )
        if report is not None:
            report(f"Lipschitz rule on {row.name}, epsilon {row.epsilon:g}")
    table.notes.append(
        "The good ball holds the mode alone (k = 0) unless L <= log2(1/(1 - ε)): L then changes nothing. "
        f"At most {100 * DELTA:g} % of the certificates may be false where the promise holds; where it is broken "
        "nothing is promised. No sweeps are made, so that the draws alone are judged; in the real domain the mass "
        "of the ball of good points takes the place of w_k."
    )
    return table


@dataclass(frozen=True)
class _LipschitzCase:
    name: str
    posterior: Posterior
    log_best: float
    bits: float
    radius: float
    epsilon: float
    k: int | None
    weight: float | None
    runs: range

    @property
    def options(self) -> dict[str, Any]:
        period = {} if self.k is None else {"period": 10**9}  # no sweep: draws alone are judged
        return {"lipschitz": self.bits, "radius": self.radius, "batch": 1, **period}


def _lipschitz_cases(plan: TheoryPlan) -> Iterator[_LipschitzCase]:
    """Yield caps that keep the promise, needles that break it, and densities on a line."""
    rng, runs = np.random.default_rng([plan.seed, 1]), range(plan.n_runs)
    for bits, radius, epsilon in ((0.5, 1, 0.3), (0.2, 2, 0.3), (0.2, 3, 0.5), (0.0145, 1, 0.01), (0.1, 1, 0.01)):
        cap = hidden_cap(plan.n, 7.5, bits, radius, rng)
        k = good_radius(epsilon, bits, radius)
        weight = math.exp(log_ball_weight([2] * plan.n, bits, k))
        log_best = float(np.log(cap.probs.max()))
        shared = (log_best, bits, float(radius), epsilon, k, weight, runs)
        yield _LipschitzCase("cap that keeps it", cap.posterior, *shared)
        if k:
            broken = needle(plan.n, 7.5, rng)
            yield _LipschitzCase("needle that breaks it", broken.posterior, *shared)
    for bits, epsilon in ((4.0, 0.3), (20.0, 0.5)):
        posterior, log_best = peaked_density(bits)
        yield _LipschitzCase("density on a line", posterior, log_best, bits, 0.1, epsilon, None, None, runs)


def peaked_density(bits: float) -> tuple[FunctionPosterior, float]:
    """Return a density on [0, 1] with a peak of height 2 at .5 that falls by `bits` bits per unit, up to .1."""
    rho, height = 0.1, 2.0
    mass = 2.0 * height * (1.0 - 2.0 ** (-bits * rho)) / (bits * LN2)
    flat = (1.0 - mass) / (1.0 - 2.0 * rho)

    def log_prob(points: Points) -> Floats:
        distance = np.abs(np.asarray(points)[:, 0] - 0.5)
        return np.where(distance <= rho, math.log(height) - bits * LN2 * distance, math.log(flat))

    def sample(n: int, rng: np.random.Generator) -> Floats:
        in_peak, u, side = rng.random(n) < mass, rng.random(n), np.where(rng.random(n) < 0.5, -1.0, 1.0)
        near = -np.log2(1.0 - u * (1.0 - 2.0 ** (-bits * rho))) / bits
        far = rho + u * (0.5 - rho)
        return (0.5 + side * np.where(in_peak, near, far))[:, None]

    return FunctionPosterior(Domain([Real("x", 0.0, 1.0)]), sample, log_prob), math.log(height)


def run_theory(plan: TheoryPlan, report: Callable[[str], None] | None = None) -> list[Table]:
    """Return the three tables; a minute or two with the defaults."""
    found = [make(plan, report) for make in (regret_table, stopping_table, lipschitz_table)]
    return [*found, counts_table(plan.n_runs, plan.seed, report)]
