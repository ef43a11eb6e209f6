"""Runs for `top_mass`: lists of the k best, for k that doubles, until they hold the probability."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

import numpy as np

from certimap.certify import bounds
from certimap.core.constrained import ConstrainedPosterior
from certimap.core.control import Control
from certimap.core.posterior import Facts, Posterior, TwoSided
from certimap.core.result import CertificateKind, MapResult, Status, TopMass
from certimap.errors import QueryError
from certimap.solvers import driver
from certimap.solvers.registry import resolve
from certimap.solvers.request import Request

FIRST, MOST = 16, 1024  # answers of the first list, and of the last one unless top_k is given
_ON = (Status.CERTIFIED, Status.HEURISTIC)  # after which a longer list may be asked for


def run(
    posterior: Posterior,
    request: Request,
    *,
    control: Control,
    seed: int,
    progress: driver.Progress,
    total: tuple[float, float] | None = None,
) -> MapResult:
    """Answer a MAP query like `driver.run`; with `top_mass`, list the fewest assignments that hold that mass.

    Each list starts from the one before. All share `delta` and the deadline; other limits are of each. `total` is
    ln p(e) and its error, where the posterior's own p(e) is that of the constraints too. Raises QueryError where
    probabilities are unknown.
    """
    if request.top_mass is None:
        return driver.run(posterior, request, control=control, seed=seed, progress=progress)
    facts, domain, started = posterior.facts, posterior.domain, time.perf_counter()
    if facts.is_density:
        raise QueryError("top_mass adds up probabilities, and a real variable has a density; query others")
    own = facts.is_normalised or facts.log_evidence is not None
    counted = request.constraints and not isinstance(posterior, ConstrainedPosterior)
    knows = total is not None if counted else own
    if isinstance(posterior, TwoSided) or not knows:
        control.check("summing p(e) for top_mass")  # raises TimeUp
        raise QueryError("top_mass needs p(e), and the model is too wide to sum; ask for top_k assignments")
    n_points = math.ceil(math.exp(min(domain.log_size, 60.0)) - 0.5)
    if isinstance(posterior, ConstrainedPosterior):
        n_points = int(min(n_points, max(1, posterior.rules.most)))
    most = min(request.top_k or MOST, n_points)
    sizes = [most]
    if resolve(request.solver, posterior).name != "exhaustive":  # which lists all of them at once
        sizes = [k for k in (FIRST * 2**i for i in range(most.bit_length())) if k < most] + sizes
    asked = replace(request, delta=request.delta / len(sizes), top_mass=None)
    kept: tuple[MapResult, TopMass] | None = None
    for k in sizes:
        late = driver.run(posterior, replace(asked, top_k=k), control=control, seed=seed, progress=progress)
        late, mass = _covering(late, replace(request, top_k=k), facts, len(sizes), n_points, total)
        if kept is None or late.certified >= kept[0].certified or mass.is_reached > kept[1].is_reached:
            kept = late, mass
        elif not kept[1].is_reached:  # its certificate is worth more than a longer list
            kept = replace(kept[0], status=late.status), kept[1]
        is_proved = late.certificate.delta > 0.0 or mass.fewest is None or mass.fewest >= mass.n
        is_vain = mass.n < k if request.constraints else mass.fewest is not None and mass.fewest > most
        if late.status not in _ON or (is_proved if mass.is_reached else is_vain):
            break  # or it is proved that `most` do not hold the mass; under constraints, if all are listed
        asked = replace(asked, warm_start=np.array([domain.encode(labels) for labels, _ in late.top or ()]))
    assert kept is not None
    found, mass = kept  # what is proved of the longer list holds for its beginning
    top, seconds = (found.top or [])[: mass.n], time.perf_counter() - started
    return replace(found, top=top, top_mass=mass, seconds=seconds)


def _covering(
    found: MapResult, request: Request, facts: Facts, n_runs: int, n_points: int, total: tuple[float, float] | None
) -> tuple[MapResult, TopMass]:
    """Return a run's result with the chance of failure of all runs, and what its list says about the mass."""
    certificate, slack, goal = found.certificate, 2.0 * max(bounds.SLACK, facts.log_slack), request.top_mass or 1.0
    shift, whole, upper = 0.0, 1.0, found.log_upper_bound
    if total is not None and found.log_joint is not None:  # values are given the constraints, or joint with e
        shift = found.log_joint - (found.log_joint if found.log_prob is None else found.log_prob) - total[0]
        slack += total[1] + bounds.slack(total[0]) + bounds.slack(found.log_joint)
        whole = 1.0 if found.log_prob is None else min(1.0, math.exp(min(0.0, shift + slack)))
        upper = found.log_joint_upper_bound if found.log_prob is None else upper
    # all assignments together have at most `whole`, all others at most `rest`, no other more than `rival`
    logs = [value for _, value in found.top or () if value > -math.inf or not request.constraints]
    values = [math.exp(min(0.0, value + shift)) for value in logs]
    sums = np.array([0.0, *accumulate(values)])
    is_certain = certificate.kind in (CertificateKind.EXACT, CertificateKind.EPSILON) and certificate.epsilon < 1.0
    is_all = len(values) >= n_points or (is_certain and len(values) < request.n_answers)
    rest = 0.0 if is_all else max(0.0, whole - float(sums[-1]) * math.exp(-slack))
    rival = min(rest, math.exp(min(0.0, math.inf if upper is None else upper + shift + slack)))
    if is_certain and values:
        rival = min(rival, values[-1] * (1.0 + certificate.tolerance) / (1.0 - certificate.epsilon))

    def may_hold(n: int) -> bool:
        """Whether some n assignments may hold the mass, as far as is known."""
        held, left = sums[: n + 1], n - np.arange(min(n + 1, len(sums)))
        most = float(np.max(held + np.minimum(left * rival, rest)))
        return most * math.exp(slack) * (1.0 + request.tolerance) >= goal

    reached = sums * (math.exp(-slack) * (1.0 + request.tolerance)) >= goal
    n = int(np.argmax(reached)) if reached.any() else len(values)
    longest = n if reached.any() else len(values) + (0 if rival == 0.0 else math.ceil(min(1.0 / rival, 2.0**60)))
    fewest = bisect_left(range(longest), True, key=may_hold)
    none_may = fewest == longest and not reached.any() and not may_hold(longest)
    mass = TopMass(goal, float(sums[n]), bool(reached.any()), n, None if none_may else fewest)
    shared = replace(certificate, requested_delta=request.delta, delta=min(1.0, n_runs * certificate.delta))
    pareto = [(epsilon, min(1.0, n_runs * delta)) for epsilon, delta in found.pareto]
    return replace(found, certificate=shared, pareto=pareto), mass
