"""Checking what a result claims."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from typing import Any

import numpy as np

from certimap.certify.bounds import SLACK, slack
from certimap.core.domain import Categorical, Domain
from certimap.core.result import CertificateKind, MapResult, Status
from certimap.proofs import answers_of
from certimap_lab.hostile.case import HostileCase
from certimap_lab.hostile.exact import ONE, log_of
from certimap_lab.hostile.report import CaseReport
from certimap_lab.hostile.truth import Truth
from certimap_lab.hostile.values import is_near

_TIES = Decimal("1e-10")  # points this close to the best must be among the ties, where these are given


def check_answer(
    report: CaseReport, result: MapResult, case: HostileCase, settings: dict[str, Any], log_slack: float, who: str
) -> None:
    """Compare values, bounds, certificate, Pareto pairs, ties and further answers of a result with the truth."""
    truth = case.truth
    domain = _query_domain(case)
    listed = answers_of(result)
    points = [_point(domain, assignment) for assignment in listed]
    values = [truth.value(point) / truth.total for point in points]
    best = truth.value(truth.best_point) / truth.total
    check_numbers(report, result, truth.total, values[0], best, who)
    if result.top is not None:
        _check_list(report, result, points, values, truth.total, who)
    wanted = min(settings.get("top_k", 1), math.prod(truth.sizes))
    kth = truth.kth(wanted)
    if kth is not None:
        weakest = min(values) if len(values) >= wanted else Decimal(0)
        check_claims(report, result, kth / truth.total, weakest, log_slack, who)
    _check_ties(report, result, truth, domain, points[0], values[0], who)
    draws = settings["max_samples"]
    report.require(result.n_draws <= draws, "value", f"{who}: {result.n_draws} draws, where {draws} are allowed")


def _query_domain(case: HostileCase) -> Domain:
    domain: Domain = case.model.domain
    return domain if case.query is None else domain.subset(domain.index(name) for name in case.query)


def _point(domain: Domain, assignment: dict[str, Any]) -> tuple[int, ...]:
    point: list[int] = []
    for variable, (name, label) in zip(domain, assignment.items(), strict=True):
        assert isinstance(variable, Categorical)
        assert variable.name == name
        point.append(variable.states.index(label))
    return tuple(point)


def check_numbers(
    report: CaseReport, result: MapResult, total: Decimal, value: Decimal, best: Decimal, who: str
) -> None:
    """Check the logs of the answer and the upper bounds on the best."""
    log_value, log_total = log_of(value), log_of(total)
    if result.log_prob is not None:
        report.require(
            is_near(result.log_prob, log_value, log_total),
            "value",
            f"{who}: log_prob is {result.log_prob!r}, in truth {log_value!r}",
        )
    if result.log_joint is not None:
        report.require(
            _is_told(result, result.log_joint, log_of(value * total), log_total),
            "value",
            f"{who}: log_joint is {result.log_joint!r}, in truth {log_of(value * total)!r}",
        )
    for name, bound, true in (
        ("log_upper_bound", result.log_upper_bound, best),
        ("log_joint_upper_bound", result.log_joint_upper_bound, best * total),
    ):
        if bound is not None:
            report.require_bound(bound, true, f"{who}: {name}")


def _is_told(result: MapResult, said: float, true: float, log_total: float) -> bool:
    """Whether a log is near the truth, or below it where the time left no more than two sides of a value."""
    has_sides = result.note is not None and result.log_prob is None
    return is_near(said, true, log_total) or (has_sides and said <= true)


def _check_list(
    report: CaseReport,
    result: MapResult,
    points: list[tuple[int, ...]],
    values: list[Decimal],
    total: Decimal,
    who: str,
) -> None:
    """Check the k best: each once, in order, with their own values (joint with evidence of unknown p(e))."""
    assert result.top is not None
    report.require(len(set(points)) == len(points), "certificate", f"{who}: an answer is listed twice")
    slack = ONE + Decimal(result.certificate.tolerance)
    in_order = all(b <= a * slack for a, b in itertools.pairwise(values))
    report.require(in_order, "certificate", f"{who}: the answers are not in order")
    log_total, factor = log_of(total), ONE if result.log_prob is not None else total
    for (_, said), true in zip(result.top, (value * factor for value in values), strict=True):
        report.require(
            _is_told(result, said, log_of(true), log_total),
            "value",
            f"{who}: an answer has log_prob {said!r}, in truth {log_of(true)!r}",
        )


def check_claims(
    report: CaseReport, result: MapResult, kth: Decimal, weakest: Decimal, log_slack: float, who: str
) -> None:
    """Check the certificate and the Pareto pairs; keep those with a failure probability for the end.

    `log_slack` (nats) is the rounding error of the posterior's logs.
    """
    certificate = result.certificate
    ties = ONE + Decimal(certificate.tolerance)

    def holds(epsilon: float) -> bool:
        return kth * (ONE - Decimal(epsilon)) <= weakest or kth <= weakest * ties

    _check_stop(report, result, log_slack, who)
    said = f"{certificate.kind.value} by {certificate.rule}, epsilon {certificate.epsilon:.3g}"
    log_gap = log_of(kth) - log_of(weakest) if kth and weakest else math.inf
    if certificate.kind in (CertificateKind.EXACT, CertificateKind.EPSILON) and not certificate.assumptions:
        is_certain = certificate.delta == 0.0
        is_exact = certificate.kind is not CertificateKind.EXACT or certificate.epsilon == 0.0
        report.require(
            is_certain and is_exact and holds(certificate.epsilon),
            "certificate",
            f"{who}: false claim ({said}): the answer is {log_gap:.6g} nats below the best",
        )
    if certificate.kind is not CertificateKind.NONE:
        kept = certificate.epsilon <= certificate.requested_epsilon + 1e-15
        report.require(kept, "certificate", f"{who}: {said} was not asked for")
    if certificate.kind is CertificateKind.PAC and not certificate.assumptions:
        report.risks.append((certificate.requested_delta, not holds(certificate.epsilon)))
    certain = [epsilon for epsilon, delta in result.pareto if delta == 0.0]
    report.require(
        all(epsilon >= 1.0 or holds(epsilon) for epsilon in certain),
        "certificate",
        f"{who}: the pairs ({certain}, 0) are false: the answer is {log_gap:.6g} nats below the best",
    )


def _check_stop(report: CaseReport, result: MapResult, log_slack: float, who: str) -> None:
    """Check that an answer within the epsilon asked for has its certificate: no rule stops a hair too early."""
    allowed = -math.log1p(-result.certificate.requested_epsilon)
    upper, found = result.log_upper_bound, result.log_prob  # ln p(e) is left out: its digits would hide the gap
    if upper is None or found is None:
        upper, found = result.log_joint_upper_bound, result.log_joint
    if result.certificate.kind is CertificateKind.NONE and upper is not None and found is not None and allowed:
        # A search that stops by itself a hair too early is at fault; heuristics, limits and draws end anywhere.
        # Where logs round by more than that, the ledger keeps that distance from epsilon, whatever a search does.
        hair, room = 1e-9 * max(1.0, abs(upper) / 1000.0), 4.0 * slack(upper, max(SLACK, log_slack))
        is_search = result.status is Status.EXHAUSTED and not result.n_draws
        nearly = hair if is_search and room < hair else -max(room, 1e-9)
        is_short = result.top is not None or not upper - found < allowed + nearly
        report.require(is_short, "certificate", f"{who}: no certificate for a gap of {upper - found!r} nats")


def _check_ties(
    report: CaseReport,
    result: MapResult,
    truth: Truth,
    domain: Domain,
    answer: tuple[int, ...],
    value: Decimal,
    who: str,
) -> None:
    """Check that ties, where given, are as good as the answer and all there are."""
    if result.ties is None:
        return
    ties = {_point(domain, tie) for tie in result.ties}
    lowest = value * (ONE - 3 * Decimal(result.certificate.tolerance))
    good = all(truth.value(tie) / truth.total >= lowest for tie in ties)
    report.require(good, "certificate", f"{who}: a tie is less probable than the answer")
    if math.prod(truth.sizes) > 512:
        return
    missing = [
        point
        for point in np.ndindex(*truth.sizes)
        if point != answer and point not in ties and truth.value(point) / truth.total >= value * (ONE - _TIES)
    ]
    report.require(not missing, "certificate", f"{who}: ties lack {missing[:1]}")
