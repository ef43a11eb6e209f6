"""Cases for solvers of densities, to subclass in a test module; see `solver_cases`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import Draws
from certimap.core.query import make_query
from certimap.core.result import CertificateKind, HistoryEntry, MapResult
from certimap.densities.conditioned import conditioned
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.posterior import NormalsPosterior
from certimap.solvers.driver import run
from certimap.solvers.request import Request, Settings
from certimap.testing.enumeration import require
from certimap.testing.solver_cases import RunCases, sides

ASKED = (0.2, 0.01)  # epsilon; delta is 0, since draws alone prove nothing about a density
N_DRAWS = 2000
N_CLIMBS = 12  # number of best draws that start a local search
SLACK = 1e-8


def random_density(rng: np.random.Generator, n_real: int, n_states: int = 0) -> CircuitPosterior:
    """Return a mixture of products of leaves of three kinds, with a label of `n_states` states unless 0."""
    n_parts = int(rng.integers(1, 6))
    label = [Categorical("label", tuple(range(n_states)))] if n_states else []
    builder = CircuitBuilder(Domain([*(Real(f"x{d}") for d in range(n_real)), *label]))
    parts: list[int] = []
    for _ in range(n_parts):
        leaves: list[int] = []
        for d in range(n_real):
            mean, scale = float(rng.normal()), float(10.0 ** rng.uniform(-1.0, 0.5))
            kind = str(rng.choice(["gaussian", "gaussian", "laplace", "student_t"]))
            leaves.append(builder.real(kind, d, mean, scale, *([3.0] if kind == "student_t" else [])))
        if n_states:
            leaves.append(
                builder.categorical(n_real, log_weights=np.log(rng.dirichlet(np.ones(n_states))).tolist())
            )
        parts.append(builder.product(leaves))
    builder.sum(parts, log_weights=np.log(rng.dirichlet(np.ones(n_parts))).tolist())
    circuit = builder.build(normalised=False)
    return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))


def random_normals(rng: np.random.Generator, n: int) -> NormalsPosterior:
    """Return a mixture of Gaussians with full covariances."""
    k = int(rng.integers(1, 5))
    roots = rng.normal(0.0, 1.0, (k, n, n))
    covariances = roots @ np.swapaxes(roots, 1, 2) / n + 0.1 * np.eye(n)
    model = GaussianMixture(rng.dirichlet(np.ones(k)), rng.normal(0.0, 1.0, (k, n)), covariances)
    return conditioned(model, make_query(model.domain), None)


def highest_found(posterior: Any, rng: np.random.Generator) -> float:
    """Return ln of the largest value found by draws and by local searches from the best draws."""
    optimize: Any = import_module("scipy.optimize")
    points = np.asarray(posterior.sample(N_DRAWS, rng), np.float64)
    values = posterior.log_prob(points)
    best = float(np.max(values))
    real = posterior.domain.n_states == 0
    for start in points[np.argsort(-values, kind="stable")[:N_CLIMBS]]:

        def fall(x: NDArray[np.float64], start: NDArray[np.float64] = start) -> float:
            point = start.copy()
            point[real] = x
            return -float(posterior.log_prob(point[None])[0])

        best = max(best, -float(optimize.minimize(fall, start[real], method="Nelder-Mead").fun))
    return best


class DensityCases(RunCases):
    """Requirements for every solver of densities. Override `make_solver`, and if necessary `make_posteriors`.

    Attributes
    ----------
    seed
        Seed of the posteriors and of the runs.
    certifies
        Also require the requested certificate.
    max_samples, max_nodes
        Limits of each run.
    """

    certifies: bool = False
    max_samples: int = 5000
    max_nodes: int = 200_000
    n_steps, n_replayed, delta = 4, 1, 0.0

    def make_posteriors(self) -> Sequence[Any]:
        """Return posteriors with draws and at least one real variable each."""
        rng = np.random.default_rng(self.seed)
        found: list[Any] = [random_density(rng, n) for n in (1, 1, 2, 2)]
        found += [random_density(rng, n, 3) for n in (1, 2)]
        found += [random_normals(rng, n) for n in (1, 2)]
        return [posterior for posterior in found if self.accepts(posterior)]

    def requests(self, posterior: Any) -> Sequence[Request]:
        given: Settings = {"solver": self.make_solver(), "delta": 0.0, "max_nodes": self.max_nodes}
        given["max_samples"] = self.max_samples if isinstance(posterior, Draws) else None
        return [Request.of(**{**given, "epsilon": epsilon}) for epsilon in ASKED]

    def test_answers_bounds_and_certificates_are_true(self) -> None:
        for number, posterior in enumerate(self.make_posteriors()):
            log_best = highest_found(posterior, np.random.default_rng([self.seed, number]))
            for request in self.requests(posterior):
                moments: list[HistoryEntry] = []
                result = run(posterior, request, seed=self.seed + number, progress=moments.append)
                _check(posterior, result, log_best)
                _check_moments(moments, log_best)
                if self.certifies:
                    require(result.certified, f"no certificate at epsilon = {request.epsilon}")


def _check(posterior: Any, result: MapResult, log_best: float) -> None:
    """Require that an answer has its claimed value, and that all claims about it are true."""
    found = float(posterior.log_prob(posterior.domain.encode(result.assignment)[None, :])[0])
    claimed, upper = sides(result)
    require(list(result.assignment) == list(posterior.domain.names), "the assignment is not in the query's order")
    require(claimed is not None and abs(claimed - found) <= SLACK, "log_prob is not that of the assignment")
    require(result.is_density == posterior.facts.is_density, "the result does not say whether it is of a density")
    certificate = result.certificate
    if certificate.assumptions:
        return
    require(
        upper is None or upper >= log_best - SLACK, f"log_upper_bound {upper} is below a value found, {log_best}"
    )
    require(certificate.kind is not CertificateKind.PAC, "draws certified a density")
    if certificate.kind is not CertificateKind.NONE:
        lowest = log_best + math.log1p(-certificate.epsilon) - SLACK
        require(found >= lowest, f"a certificate is false at epsilon = {certificate.epsilon}")
    for epsilon, delta in result.pareto:
        is_true = epsilon >= 1.0 or found >= log_best + math.log1p(-epsilon) - SLACK
        require(delta > 0.0 or is_true, f"the pair ({epsilon}, 0) is false")


def _check_moments(moments: Sequence[HistoryEntry], log_best: float) -> None:
    """Require that bounds never loosen, and are true at every moment."""
    for before, after in pairwise(moments):
        require(after.log_prob >= before.log_prob - SLACK, "the best value found fell")
        require(after.log_upper_bound <= before.log_upper_bound + SLACK, "the upper bound rose")
    for moment in moments:
        require(moment.log_upper_bound >= log_best - SLACK, "a bound on the way is below a value found")
