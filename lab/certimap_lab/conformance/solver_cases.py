"""Cases for solvers and for solvers of densities, to subclass in a test module, or all in one call."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import Draws, FunctionPosterior
from certimap.core.query import make_query
from certimap.core.result import CertificateKind, HistoryEntry, MapResult
from certimap.densities.conditioned import conditioned
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.posterior import NormalsPosterior
from certimap.errors import SolverError
from certimap.solvers.base import Solver
from certimap.solvers.driver import run
from certimap.solvers.registry import make, refusal, resolve
from certimap.solvers.request import Request, Settings
from certimap.testing.models import BoundedTable, all_points, random_table, require, run_cases

GRID = (0.001, 0.01, 0.05, 0.2, 0.5)
ASKED = ((0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.1, 0.2))
EPSILONS = (0.2, 0.01)  # of densities; delta is 0, since draws alone prove nothing about them
N_DRAWS = 2000
N_CLIMBS = 12  # number of best draws that start a local search
SLACK = 1e-8


class RunCases:
    """Requirements of runs, for solvers of any posterior."""

    seed: int = 0
    max_samples: int = 20_000
    n_steps, delta = 8, 0.05  # of the runs whose states are pickled
    n_replayed = 4  # requests whose answers are repeated

    def make_solver(self) -> Solver | str:
        """Return a fresh solver, or its registered name."""
        raise NotImplementedError

    def make_posteriors(self) -> Sequence[Any]:
        """Return the posteriors that the solver runs on."""
        raise NotImplementedError

    def requests(self, posterior: Any) -> Sequence[Request]:
        """Return the requests that a seed must replay."""
        raise NotImplementedError

    def accepts(self, posterior: Any) -> bool:
        """Whether the solver runs on a posterior."""
        made = self.make_solver()
        return made == "auto" or refusal(make(made) if isinstance(made, str) else made, posterior) is None

    def test_a_seed_replays(self) -> None:
        for number, posterior in enumerate(self.make_posteriors()):
            for request in self.requests(posterior)[: self.n_replayed]:
                first, second = (run(posterior, request, seed=self.seed + number).to_dict() for _ in range(2))
                del first["seconds"], second["seconds"]
                require(first == second, "a seed does not replay")

    def test_limits_are_kept(self) -> None:
        for posterior in self.make_posteriors():
            small = Request.of(solver=self.make_solver(), max_samples=7, max_nodes=50, epsilon=0.0, delta=0.0)
            few = run(posterior, small, seed=self.seed)
            require(few.n_draws <= 7, f"{few.n_draws} draws were made; the limit is 7")
            if isinstance(posterior, Draws):  # without draws there may be no immediate answer
                quick = run(posterior, Request.of(solver=self.make_solver(), time_limit=0.0), seed=self.seed)
                require(sides(quick)[0] is not None, "a run that time cuts short has no answer")

    def test_states_pickle_between_steps(self) -> None:
        for number, posterior in enumerate(self.make_posteriors()):
            alike = self._steps(posterior, number, pickled=False) == self._steps(posterior, number, pickled=True)
            require(alike, "a run whose state was pickled between steps goes another way")

    def _steps(self, posterior: Any, number: int, *, pickled: bool) -> tuple[object, ...]:
        """Return the answer of a short run, with or without pickling its state after each step."""
        solver = resolve(self.make_solver(), posterior)
        ledger = Ledger(posterior, epsilon=0.0, delta=self.delta, max_draws=500)
        state = solver.init(posterior, ledger.control, np.random.default_rng(self.seed + number))
        for _ in range(self.n_steps):
            if state.done or ledger.satisfied:
                break
            state = solver.step(pickle.loads(pickle.dumps(state)) if pickled else state, ledger)
        return (ledger.best, *ledger.progress)


class SolverCases(RunCases):
    """Requirements for every solver. Override `make_solver`, and if necessary `make_posteriors`.

    - `seed`: seed of the posteriors and of the runs.
    - `n_posteriors`: number of random tables.
    - `finds_best`: also require the most probable assignment if the requested certificate is exact.
    - `max_samples`: draw limit of each run.
    """

    n_posteriors: int = 20
    finds_best: bool = False

    def make_posteriors(self) -> Sequence[Any]:
        """Return discrete posteriors with at most 20,000 joint states each."""
        rng = np.random.default_rng(self.seed)
        tables = [random_table(rng) for _ in range(self.n_posteriors)]
        bounded = [BoundedTable(table) for table in tables[::4]]
        return [*tables, *(posterior for posterior in bounded if self.accepts(posterior))]

    def requests(self, posterior: Any) -> Sequence[Request]:
        return [self._request(epsilon, delta) for epsilon, delta in ASKED]

    def _request(self, epsilon: float, delta: float) -> Request:
        return Request.of(solver=self.make_solver(), max_samples=self.max_samples, epsilon=epsilon, delta=delta)

    def test_answers_bounds_and_certificates_are_true(self) -> None:
        """Certificates that admit a risk may be false, but no more often than they admit."""
        n_false, n_risky = 0, 0.0
        for number, posterior in enumerate(self.make_posteriors()):
            log_best = float(np.max(posterior.log_prob(all_points(posterior.domain))))
            for epsilon, delta in ASKED:
                result = run(posterior, self._request(epsilon, delta), seed=self.seed + number)
                _check_answer(posterior, result, log_best, atol=1e-9)
                told = f"{result.n_draws} draws were made; the limit is {self.max_samples}"
                require(result.n_draws <= self.max_samples, told)
                is_false = _check_certificate(result, log_best)
                if result.certificate.kind is CertificateKind.PAC and not result.certificate.assumptions:
                    n_false += is_false
                    n_risky += result.certificate.delta
                is_exact = result.certificate.kind is CertificateKind.EXACT
                is_wanted = self.finds_best and epsilon == delta == 0.0
                require(is_exact or not is_wanted, "no proof of exactness where one was asked for")
        # A certificate is false with at most its admitted probability; allow six standard deviations.
        allowed = n_risky + 6.0 * math.sqrt(n_risky) + 1.0
        require(n_false <= allowed, f"{n_false} certificates are false; {n_risky:.2f} may be")

    def test_epsilon_asked_is_epsilon_earned(self) -> None:
        """A run that ends by itself within epsilon has a certificate: its stopping rule allows for rounding."""
        for number, posterior in enumerate(self.make_posteriors()):
            for epsilon in GRID:
                result = run(posterior, self._request(epsilon, 0.0), seed=self.seed + number)
                if result.certificate.kind is not CertificateKind.NONE:
                    continue
                found, upper = sides(result)
                assert found is not None
                assert upper is not None
                gap, allowed = upper - found, -math.log1p(-epsilon)
                told = f"no certificate at epsilon = {epsilon}, and a gap of {gap} nats, within {allowed}"
                require(gap > allowed + 1e-9, told)
                require(not self.finds_best, f"the search ended without a certificate at epsilon = {epsilon}")

    def test_what_lacks_a_capability_is_refused(self) -> None:
        """Offer a posterior that only draws and scores to a solver that needs more."""
        bare = FunctionPosterior(
            [2, 2], lambda n, rng: rng.integers(0, 2, (n, 2)), lambda points: np.full(len(points), -math.log(4.0))
        )
        if self.accepts(bare):
            return
        try:
            run(bare, Request.of(solver=self.make_solver()))
        except SolverError as error:
            require("solver=" in str(error), f"the refusal names no other solver: {error}")
            return
        raise AssertionError("a posterior that lacks what the solver needs is not refused")


def _check_answer(posterior: Any, result: MapResult, log_best: float, atol: float) -> None:
    """Require that an answer has its claimed value, and that bounds and pairs without risk are true."""
    value = float(posterior.log_prob(posterior.domain.encode(result.assignment)[None, :])[0])
    require(list(result.assignment) == list(posterior.domain.names), "the assignment is not in the query's order")
    found, upper = sides(result)
    is_own = found is not None and (found == value or abs(found - value) <= atol)
    require(is_own, "log_prob is not that of the assignment")
    require(result.is_density == posterior.facts.is_density, "the result does not say whether it is of a density")
    if result.is_density and result.certificate.assumptions:
        return
    is_above = result.is_density if upper is None else upper >= log_best - atol
    require(is_above, f"log_upper_bound {upper} is below a value found, {log_best}")
    for epsilon, delta in result.pareto:
        is_true = epsilon >= 1.0 or value >= log_best + math.log1p(-epsilon) - SLACK
        require(delta > 0.0 or is_true, f"the pair ({epsilon}, 0) is false")


def _check_certificate(result: MapResult, log_best: float) -> bool:
    """Require that claims without risk are true; return whether a claim with risk is false."""
    certificate = result.certificate
    if certificate.kind is CertificateKind.NONE:
        return False
    found, _ = sides(result)
    assert found is not None
    require(certificate.epsilon <= certificate.requested_epsilon + 1e-12, "epsilon is larger than was asked for")
    require(certificate.delta <= certificate.requested_delta + 1e-12, "delta is larger than was asked for")
    true = found >= log_best + math.log1p(-certificate.epsilon) - SLACK
    is_proper = certificate.kind is not CertificateKind.EXACT or certificate.epsilon == certificate.delta == 0.0
    require(is_proper, "an exact certificate has epsilon or delta above 0")
    if certificate.delta == 0.0 and not certificate.assumptions:
        require(true, f"a certificate with delta = 0 is false at epsilon = {certificate.epsilon}")
    return not true


def sides(result: MapResult) -> tuple[float | None, float | None]:
    """Return ln p of the answer and the bound on ln p*; both of p(q, e) if p(e) is unknown."""
    if result.log_prob is None:
        return result.log_joint, result.log_joint_upper_bound
    return result.log_prob, result.log_upper_bound


def check_solver(
    make_solver: Callable[[], Solver] | str,
    *,
    posteriors: Sequence[Any] | None = None,
    n_posteriors: int = 20,
    rng: int = 0,
    finds_best: bool = False,
    max_samples: int = 20_000,
) -> None:
    """Check a solver against enumeration; raise AssertionError with a sentence on a failure.

    Checks on every posterior that the answer has its claimed probability; that bounds, certificates and Pareto
    pairs without risk are true, and those with risk fail no more often than they admit; that `delta=0` gets no
    probabilistic certificate, equal seeds give equal answers, and limits are kept; and that a posterior without
    what the solver needs is rejected in one sentence that names another solver. Only `SolverCases` checks pickling
    of states: classes defined in a notebook or a function need not pickle.

    - `make_solver`: returns a fresh solver, or its registered name.
    - `posteriors`: discrete posteriors, at most 20,000 joint states each; None makes random tables.
    - `n_posteriors`, `rng`: number of tables, and the seed for everything.
    - `finds_best`: also require the most probable assignment if the requested certificate is exact.
    - `max_samples`: draw limit of each run.
    """
    suite = SolverCases()
    suite.make_solver = (lambda: make_solver) if isinstance(make_solver, str) else make_solver
    if posteriors is not None:
        suite.make_posteriors = lambda: posteriors
    suite.seed, suite.n_posteriors = rng, n_posteriors
    suite.finds_best, suite.max_samples = finds_best, max_samples
    run_cases(suite, "test_states_pickle_between_steps")


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

        def fall(x: Floats, start: Floats = start) -> float:
            point = start.copy()
            point[real] = x
            return -float(posterior.log_prob(point[None])[0])

        best = max(best, -float(optimize.minimize(fall, start[real], method="Nelder-Mead").fun))
    return best


class DensityCases(RunCases):
    """Requirements for every solver of densities. Override `make_solver`, and if necessary `make_posteriors`.

    - `seed`: seed of the posteriors and of the runs.
    - `certifies`: also require the requested certificate.
    - `max_samples`, `max_nodes`: limits of each run.
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
        return [Request.of(**{**given, "epsilon": epsilon}) for epsilon in EPSILONS]

    def test_answers_bounds_and_certificates_are_true(self) -> None:
        for number, posterior in enumerate(self.make_posteriors()):
            log_best = highest_found(posterior, np.random.default_rng([self.seed, number]))
            for request in self.requests(posterior):
                moments: list[HistoryEntry] = []
                result = run(posterior, request, seed=self.seed + number, progress=moments.append)
                _check_answer(posterior, result, log_best, atol=SLACK)
                _check_certificate(result, log_best)
                proves = result.certificate.kind is not CertificateKind.PAC or result.certificate.assumptions
                require(bool(proves), "draws certified a density")
                _check_moments(moments, log_best)
                if self.certifies:
                    require(result.certified, f"no certificate at epsilon = {request.epsilon}")


def _check_moments(moments: Sequence[HistoryEntry], log_best: float) -> None:
    """Require that bounds never loosen, and are true at every moment."""
    for before, after in pairwise(moments):
        require(after.log_prob >= before.log_prob - SLACK, "the best value found fell")
        require(after.log_upper_bound <= before.log_upper_bound + SLACK, "the upper bound rose")
    for moment in moments:
        require(moment.log_upper_bound >= log_best - SLACK, "a bound on the way is below a value found")
