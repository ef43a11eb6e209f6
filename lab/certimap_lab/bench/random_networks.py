"""Random networks small enough to list: every network solver's answer and bound against the optimum."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.conversions import condition
from certimap.core.domain import Domain
from certimap.core.posterior import Posterior
from certimap.core.query import Query, make_query
from certimap.core.result import CertificateKind, MapResult
from certimap.errors import CertimapError, ImpossibleEvidence
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap.networks.problem import problem_of
from certimap.networks.sum_elimination import log_partition
from certimap.solvers.driver import run
from certimap.solvers.registry import make, refusal, wants_of
from certimap.solvers.request import Request

I_BOUNDS = (1, 2, 3, 4)
EXACT = ("auto", "hbfs", "bucket_elimination", "set_elimination", "frontier", "aobb", "aobf", "aaobf")
SOLVERS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((name, {}) for name in EXACT),
    *(("wmb", {"i_bound": i}) for i in I_BOUNDS),
)
LARGEST_SPACE = 4096  # joint states
LISTED = 1e-12  # nats that the rounding of the listed sum may amount to
CLOSE = 1e-7  # nats; "exact" means within 1e-9 of the probability


@dataclass
class Findings:
    """What was checked, by solver, and all that was wrong, in sentences that name the network."""

    n_networks: int = 0
    n_checks: Counter[str] = field(default_factory=Counter[str])
    n_proved: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])

    def lines(self) -> Iterator[str]:
        """Yield the summary, one line per solver, then the failures."""
        n_answers = sum(self.n_checks.values())
        yield f"{self.n_networks} networks, {n_answers} answers, {len(self.failures)} failures"
        for name, n in sorted(self.n_checks.items()):
            yield f"{name}: {n} answers, {self.n_proved[name]} proved"
        yield from self.failures


def random_network(number: int) -> tuple[MarkovNetwork, list[str]]:
    """Return a network with zeros, ties and functions, and the names of what is queried; by number alone."""
    rng = np.random.default_rng([7, number])
    sizes: list[int] = []
    for _ in range(int(rng.integers(2, 9))):
        size = int(rng.integers(1 if rng.random() < 0.1 else 2, 5))
        if np.prod([*sizes, size]) <= LARGEST_SPACE:
            sizes.append(size)
    n, has_ties = len(sizes), rng.random() < 0.3
    zeros = float(rng.choice([0.0, 0.2, 0.4]))
    factors: list[Factor] = []
    for _ in range(int(rng.integers(n, 2 * n + 3))):
        scope = [int(v) for v in rng.choice(n, int(rng.integers(1, min(n, 3) + 1)), replace=False)]
        logs = rng.normal(size=[sizes[v] for v in scope]) * 2.0
        logs = np.round(logs) if has_ties else logs
        if len(scope) > 1 and rng.random() < 0.2:  # a function of the others
            k = sizes[scope[-1]]
            logs = np.where(np.arange(k) == rng.integers(k, size=(*logs.shape[:-1], 1)), 0.0, -np.inf)
        else:
            logs[rng.random(logs.shape) < zeros] = -np.inf
        factors.append(Factor.from_log(scope, logs))
    domain = Domain.of_sizes(sizes)
    share = float(rng.choice([0.0, 0.4, 0.8]))  # of nuisance variables
    return MarkovNetwork(domain, factors), [v for v in domain.names if rng.random() >= share] or [domain.names[0]]


def listed(network: MarkovNetwork, query: Query) -> NDArray[np.float64]:
    """Return ln p(q, e) of all assignments of the query, one axis per variable, by listing all joint states."""
    sizes = [int(k) for k in network.domain.n_states]
    points = np.array(list(itertools.product(*(range(k) for k in sizes))))
    total = network.log_joint(points).reshape(sizes)
    hidden = tuple(i for i in range(len(sizes)) if i not in set(query.variables.tolist()))
    return np.logaddexp.reduce(total, axis=hidden) if hidden else total


def check(number: int, findings: Findings) -> None:
    """Put one network to every solver that takes it."""
    network, names = random_network(number)
    query = make_query(network.domain, names)
    values = listed(network, query)
    findings.n_networks += 1
    best, total = float(values.max()), float(np.logaddexp.reduce(values.ravel()))
    for name, settings in SOLVERS:
        label = " ".join([name, *(f"{k}={v}" for k, v in settings.items())])
        posterior = _posterior(network, query, name)
        if posterior is not None:
            _judge(number, label, posterior, name, settings, values, findings)
        elif best == -np.inf:
            findings.n_checks[label] += 1
    if best > -np.inf:
        for i in I_BOUNDS:
            found = log_partition(problem_of(network, query).problem, i_bound=i, iterations=4)
            findings.n_checks["log_partition"] += 1
            if not found.lower - LISTED <= total <= found.upper + LISTED:
                findings.failures.append(f"network {number}: ln p(e) = {total!r} is not in {found}, i-bound {i}")


def _posterior(network: MarkovNetwork, query: Query, name: str) -> Posterior | None:
    """Return what a solver works on; None where the query is impossible, or the solver does not take it."""
    try:
        posterior = condition(network, query, wants=wants_of(name))
    except CertimapError:
        return None
    return None if name != "auto" and refusal(make(name), posterior) else posterior


def _answer(posterior: Posterior, name: str, settings: dict[str, Any]) -> MapResult:
    exact = Request.of(solver=name, options=settings, epsilon=0.0, delta=0.0, time_limit=30.0, max_samples=0)
    return run(posterior, exact)


def _judge(
    number: int,
    label: str,
    posterior: Posterior,
    name: str,
    settings: dict[str, Any],
    values: NDArray[np.float64],
    findings: Findings,
) -> None:
    best = float(values.max())
    findings.n_checks[label] += 1
    try:
        result = _answer(posterior, name, settings)
    except ImpossibleEvidence as error:
        if best > -np.inf:
            findings.failures.append(f"network {number}, {label}: {error}")
        return
    total = float(np.logaddexp.reduce(values.ravel()))
    if result.log_joint is not None:
        value, bound = result.log_joint, result.log_joint_upper_bound
    else:
        assert result.log_prob is not None
        value, bound = result.log_prob + total, result.log_upper_bound
        bound = None if bound is None else bound + total
    is_exact = result.certificate.kind is CertificateKind.EXACT
    findings.n_proved[label] += is_exact
    wrong = [
        sentence
        for sentence, holds in (
            (f"answers {value!r}, and the optimum is {best!r}", value <= best + CLOSE),
            (f"bounds {best!r} by {bound!r}", bound is None or bound >= best - CLOSE),
            (f"calls {value!r} exact, and the optimum is {best!r}", not is_exact or value >= best - CLOSE),
        )
        if not holds
    ]
    findings.failures.extend(f"network {number}, {label}: {sentence}" for sentence in wrong)


def check_networks(n: int, first: int = 0, report: Callable[[str], None] | None = None) -> Findings:
    """Check the networks `first` to `first` + n - 1. Cost: some tenths of a second of processor time each."""
    findings = Findings()
    for number in range(first, first + n):
        check(number, findings)
        if report is not None and (number - first + 1) % 100 == 0:
            report(f"{number - first + 1} of {n} networks, {len(findings.failures)} failures")
    return findings
