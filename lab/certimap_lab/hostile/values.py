"""Checking what a posterior says of points and boxes."""

from __future__ import annotations

import itertools
import math
from decimal import MIN_EMIN

import numpy as np
from numpy.typing import NDArray

from certimap.certify.bounds import SLACK, round_up
from certimap.core.box import Boxes, Points
from certimap.core.posterior import Draws, Masses, Posterior, Probes
from certimap.core.probing import answers_in
from certimap_lab.hostile.case import HostileCase
from certimap_lab.hostile.exact import log_of
from certimap_lab.hostile.report import CaseReport
from certimap_lab.hostile.truth import Masks, Truth

NATS, RELATIVE = 1e-10, 1e-12  # how far off values may be: the larger of the two
EVIDENCE_DIGITS = 2e-14  # and of ln p(e), of which ln p(q | e) is a part
ALL_POINTS = 512
N_BOXES, N_WIDE, N_COLUMNS = 6, 2, 40


LOG_SMALLEST = math.log(10.0) * MIN_EMIN  # nats; smaller numbers are 0 in 60 digits


def is_near(said: float, true: float, log_total: float) -> bool:
    """Whether a natural log is as accurate as stated; -inf is right for 0 alone."""
    if math.isinf(true) or math.isinf(said):
        return said == true or (true == -math.inf and said < LOG_SMALLEST)
    allowed = max(NATS, RELATIVE * abs(true), EVIDENCE_DIGITS * abs(log_total))
    return abs(said - true) <= allowed


def check_values(
    report: CaseReport, posterior: Posterior, case: HostileCase, rng: np.random.Generator, path: str
) -> None:
    """Compare p(e), points, draws, masses and bounds of a posterior with the truth."""
    truth = case.truth
    log_total = log_of(truth.total)
    log_evidence = posterior.facts.log_evidence
    if log_evidence is not None:
        report.require(
            is_near(log_evidence, log_total, log_total),
            "value",
            f"{path}: log_evidence is {log_evidence!r}, in truth {log_total!r}",
        )
    _check_points(report, posterior, truth, rng, path)
    if not (isinstance(posterior, Masses) and isinstance(posterior, Probes)):
        return
    boxes = _boxes(rng, truth)
    batch = Boxes(posterior.domain, np.stack([np.concatenate(masks) for masks in boxes]))
    masses, bounds = posterior.log_mass(batch), _raised(posterior, answers_in(posterior, batch).log_bound)
    for masks, mass, bound in zip(boxes, masses, bounds, strict=True):
        _check_box(report, truth, masks, float(mass), float(bound), path)
    few = batch[: N_WIDE if len(truth.sizes) <= 20 else 1]
    each_bound = _raised(posterior, answers_in(posterior, few).each_bound)
    each = posterior.log_mass_each(few), np.where(few.mask, each_bound, np.inf)
    _check_each(report, truth, boxes, each, rng, path)


def _raised(posterior: Posterior, log_bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a prober's bounds as the ledger takes them: raised by what the posterior's logs may round by."""
    floor = max(SLACK, posterior.facts.log_slack)
    return np.array([round_up(b, floor) for b in log_bounds.ravel()]).reshape(log_bounds.shape)


def _check_points(
    report: CaseReport, posterior: Posterior, truth: Truth, rng: np.random.Generator, path: str
) -> None:
    points = _points(rng, truth)
    log_total = log_of(truth.total)
    said = posterior.log_prob(points.astype(posterior.domain.point_dtype))
    for point, value in zip(points.tolist(), said.tolist(), strict=True):
        true = log_of(truth.value(point) / truth.total)
        report.require(
            is_near(value, true, log_total),
            "value",
            f"{path}: log_prob of {_short(point)} is {value!r}, in truth {true!r}",
        )
    if not isinstance(posterior, Draws):
        return
    drawn = posterior.sample(20, np.random.default_rng(int(rng.integers(1000))))
    report.require(
        all(truth.value(point) > 0 for point in drawn.tolist()), "value", f"{path}: an impossible point was drawn"
    )


def _points(rng: np.random.Generator, truth: Truth) -> Points:
    """Return all points of a small space; of a large one the best, its neighbours, and random ones."""
    sizes = truth.sizes
    if math.prod(sizes) <= ALL_POINTS:
        return np.array(list(itertools.product(*(range(k) for k in sizes))), np.int64)
    best = np.array(truth.best_point, np.int64)
    points = np.tile(best, (24, 1))
    for row in points[1:12]:
        v = int(rng.integers(len(sizes)))
        row[v] = int(rng.integers(sizes[v]))
    points[12:] = rng.integers(0, sizes, (12, len(sizes)))
    return points


def _boxes(rng: np.random.Generator, truth: Truth) -> list[Masks]:
    """Return boxes: the whole space, points, and random products of sets (never empty)."""
    sizes = truth.sizes
    n = N_BOXES if len(sizes) <= 20 else 3
    boxes: list[Masks] = [[np.ones(k, np.bool_) for k in sizes]]
    for share in rng.choice([0.0, 0.3, 0.7], n):
        masks: list[NDArray[np.bool_]] = []
        for i, k in enumerate(sizes):
            mask = rng.random(k) < share
            mask[truth.best_point[i] if rng.random() < 0.5 else int(rng.integers(k))] = True
            masks.append(mask)
        boxes.append(masks)
    return boxes


def _check_box(report: CaseReport, truth: Truth, masks: Masks, mass: float, bound: float, where: str) -> None:
    log_total = log_of(truth.total)
    true_mass, true_best = truth.box(masks)
    log_mass = log_of(true_mass / truth.total)
    report.require(
        is_near(mass, log_mass, log_total), "value", f"{where}: log_mass is {mass!r}, in truth {log_mass!r}"
    )
    report.require_bound(bound, true_best / truth.total, f"{where}: log_bound")


def _check_each(
    report: CaseReport,
    truth: Truth,
    boxes: list[Masks],
    said: tuple[NDArray[np.float64], NDArray[np.float64]],
    rng: np.random.Generator,
    path: str,
) -> None:
    """Check masses and bounds of boxes with one variable set to one state, some or all of them."""
    masses, bounds = said
    columns = [(i, a) for i, k in enumerate(truth.sizes) for a in range(k)]
    looked_at = range(len(columns))
    if len(columns) > N_COLUMNS:
        looked_at = rng.permutation(len(columns))[: N_COLUMNS if len(truth.sizes) <= 20 else 4].tolist()
    for row in range(len(masses)):
        for column in looked_at:
            i, a = columns[column]
            single = np.zeros(truth.sizes[i], np.bool_)
            single[a] = True
            masks = [single if j == i else mask for j, mask in enumerate(boxes[row])]
            values = float(masses[row, column]), float(bounds[row, column])
            _check_box(report, truth, masks, *values, f"{path}, each, variable {i}={a}")


def _short(point: list[int]) -> str:
    return str(point) if len(point) <= 12 else f"{str(point[:12])[:-1]}, ...]"
