"""Answering the query of a case, and judging everything that the result claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from certimap.ask.api import map_query
from certimap.core.result import CertificateKind, MapResult, TopMass
from certimap.errors import ImpossibleEvidence, MissingDependency, NoAnswer, SolverError, TooLarge
from certimap.proofs import answers_of
from certimap_lab.volume.beside import judge_beside
from certimap_lab.volume.case import Truth, VolumeCase

LEVELS = (0.01, 0.05, 0.1, 0.3)  # at which the pairs of Pareto fronts are counted
TOLERANCE = 1e-9  # of a probability that a set holds
ROUNDING = 1e-9  # nats between two ways of computing the same probability, per 1,000 nats and at least
OUTCOMES = tuple(kind.value for kind in CertificateKind)
REFUSED = "refused"
IMPOSSIBLE = "impossible evidence"
INFEASIBLE = "no assignment satisfies the constraints"


@dataclass
class Verdict:
    """What one answer came to.

    Attributes
    ----------
    family, solver
        Of the case; the solver is the one that answered.
    outcome
        The kind of the certificate; "refused" where no solver of the list suits the posterior, "impossible
        evidence" where there is nothing to answer.
    false_proofs
        Sentences about claims that hold for certain and are false.
    risk
        (failure probability asked for, whether the answer has a certificate that may fail and is false); None
        where no failure was allowed. Answers that were proved count too: a rule promises something about all runs,
        not about those alone that nothing better settled.
    false_delta
        The smallest failure probability of a pair of the Pareto front that is false; 1 when none is.
    """

    family: str
    solver: str
    outcome: str
    false_proofs: list[str] = field(default_factory=list[str])
    risk: tuple[float, bool] | None = None
    false_delta: float = 1.0

    @property
    def has_answer(self) -> bool:
        return self.outcome in OUTCOMES


def answer(case: VolumeCase) -> MapResult | str:
    """Answer a case, by its solver or the first of the others that suits; else say what became of it."""
    for solver in (case.solver, *case.others):
        settings: dict[str, Any] = {**case.settings, "progress": False, "workers": 1}
        if solver != case.solver:
            settings.pop("warm_start", None)
        try:
            return map_query(case.model, case.query, case.evidence, solver=solver, **settings)
        except ImpossibleEvidence:
            return IMPOSSIBLE
        except NoAnswer:
            if case.truth.n_points and case.log_evidence != -math.inf:
                raise
            return INFEASIBLE
        except MissingDependency:
            continue
        except TooLarge:
            if settings.get("time_limit") is None:
                raise
            return REFUSED  # the time was up before any assignment was evaluated, as it says
        except SolverError as error:
            if "before it found an assignment" in str(error):
                return REFUSED  # constraints that hold for few assignments, and limits that allow few draws
            if "solver" not in str(error):
                raise
    return REFUSED


def judge(case: VolumeCase) -> Verdict:
    """Answer a case and compare all that is claimed with the truth."""
    result = answer(case)
    if isinstance(result, str):
        verdict = Verdict(case.family, str(case.solver), result)
    else:
        verdict = judge_result(case, result)
    if case.everything is not None:
        verdict.false_proofs += judge_beside(case.everything, case.settings["rng"])
    return verdict


def judge_result(case: VolumeCase, result: MapResult) -> Verdict:
    """Compare all that a result claims with the truth."""
    verdict = Verdict(case.family, result.solver, result.certificate.kind.value)
    truth, certificate = case.truth, result.certificate
    listed = answers_of(result)
    if truth.n_points == 0:
        verdict.false_proofs.append(f"{listed[0]} is an answer, and no assignment is")
        return verdict
    values = [truth.value(assignment) for assignment in listed]
    _judge_numbers(verdict, case, result, values[0])
    _judge_stop(verdict, case, result)
    wanted = case.settings.get("top_k") or 1
    if result.top_mass is not None:
        wanted = len(listed)
        _judge_mass(verdict, truth, result.top_mass, values)
    log_kth = truth.log_kth(wanted)
    if log_kth is None:
        return verdict
    n_due = wanted if truth.n_points is None else min(wanted, truth.n_points)
    weakest = min(values) if len(values) >= n_due else -math.inf
    within = math.log1p(certificate.tolerance) + _rounding(log_kth)

    def holds(epsilon: float) -> bool:
        if epsilon >= 1.0:
            return True
        return log_kth <= weakest + max(-math.log1p(-epsilon) + _rounding(log_kth), within)

    stated = certificate.assumptions == () or case.assumes
    said = f"{certificate.kind.value} by {certificate.rule}, epsilon {certificate.epsilon!r}"
    if certificate.kind in (CertificateKind.EXACT, CertificateKind.EPSILON) and stated:
        epsilon = 0.0 if certificate.kind is CertificateKind.EXACT else certificate.epsilon
        if certificate.delta != 0.0 or not holds(epsilon):
            verdict.false_proofs.append(f"{said}: the answer is {log_kth - weakest:.6g} nats below the best")
    if certificate.kind is not CertificateKind.NONE and certificate.epsilon > certificate.requested_epsilon:
        verdict.false_proofs.append(f"{said} was not asked for")
    is_allowed = 0.0 < certificate.delta <= certificate.requested_delta
    if certificate.kind is CertificateKind.PAC and not is_allowed:
        verdict.false_proofs.append(f"{said}: delta {certificate.delta!r} was not asked for")
    if certificate.requested_delta > 0.0 and stated:
        is_false = certificate.kind is CertificateKind.PAC and not holds(certificate.epsilon)
        verdict.risk = (certificate.requested_delta, is_false)
    _judge_pairs(verdict, result, holds)
    return verdict


def _judge_numbers(verdict: Verdict, case: VolumeCase, result: MapResult, log_value: float) -> None:
    """Check the answer's probability and the upper bounds."""
    log_best, shift = float(case.truth.log_ranked[0]), case.log_evidence
    for name, said, true in (
        ("log_prob", result.log_prob, log_value),
        ("log_joint", result.log_joint, log_value + shift),
        ("log_evidence", result.log_evidence, shift),
    ):
        if said is not None and not math.isnan(true) and said != true and not abs(said - true) <= _rounding(true):
            verdict.false_proofs.append(f"{name} is {said!r}, in truth {true!r}")
    for name, said, true in (
        ("log_upper_bound", result.log_upper_bound, log_best),
        ("log_joint_upper_bound", result.log_joint_upper_bound, log_best + shift),
    ):
        if said is not None and said < true - _rounding(true):
            verdict.false_proofs.append(f"{name} is {said!r}, and the best has {true!r}")


def _judge_mass(verdict: Verdict, truth: Truth, said: TopMass, values: list[float]) -> None:
    """Check what a list holds together, and how many assignments hold as much as was asked for."""
    held, ranked = math.fsum(map(math.exp, values)), accumulate(map(math.exp, truth.log_ranked.tolist()))
    if not abs(said.held - held) <= ROUNDING * len(values):
        verdict.false_proofs.append(f"the set holds {said.held!r}, in truth {held!r}")
    if said.is_reached and held < said.requested - ROUNDING * len(values) - TOLERANCE:
        verdict.false_proofs.append(f"the set is said to hold {said.requested!r}, and holds {held!r}")
    fewest = next((k for k, x in enumerate(ranked, 1) if x >= said.requested - ROUNDING * k - TOLERANCE), math.inf)
    if (math.inf if said.fewest is None else said.fewest) > fewest:
        verdict.false_proofs.append(f"{said.fewest} assignments are said to be needed, and {fewest} do")


def _judge_stop(verdict: Verdict, case: VolumeCase, result: MapResult) -> None:
    """Check that an answer within the epsilon asked for has its certificate: no rule stops a hair too early."""
    found, upper = result.log_prob, result.log_upper_bound
    if found is None or upper is None:
        found, upper = result.log_joint, result.log_joint_upper_bound
    if result.certificate.kind is not CertificateKind.NONE or result.top is not None or found is None:
        return
    allowed = -math.log1p(-result.certificate.requested_epsilon)
    if upper is not None and upper - found < allowed + _rounding(upper) and allowed > 0.0:
        verdict.false_proofs.append(
            f"no certificate, and a gap of {upper - found!r} nats, {allowed!r} being asked for"
        )


def _judge_pairs(verdict: Verdict, result: MapResult, holds: Callable[[float], bool]) -> None:
    """Check the Pareto pairs; they hold without an assumption, but for a bound from outside."""
    if result.certificate.rule == "external":
        return
    for epsilon, delta in result.pareto:
        if holds(epsilon):
            continue
        if delta == 0.0:
            verdict.false_proofs.append(f"the pair ({epsilon!r}, 0) is false")
        else:
            verdict.false_delta = min(verdict.false_delta, delta)


def _rounding(log_x: float) -> float:
    return ROUNDING * max(1.0, abs(log_x) / 1000.0) if math.isfinite(log_x) else 0.0
