"""Finds the first draw of a batch after which the requested certificate is earned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.certify import bounds
from certimap.certify.draw_record import DrawRecord
from certimap.certify.lipschitz import Lipschitz


@dataclass(frozen=True)
class Standing:
    """The request of a run, and its proofs before a batch of draws; all logs are natural.

    Attributes
    ----------
    epsilon, delta, tolerance, top_k
        As in the ledger.
    slack
        Rounding error of logs, in nats.
    has_masses
        Whether draws and evaluated mass prove anything without an assumption.
    lipschitz
        A Lipschitz assumption under which draws are judged too, or None.
    log_kth_best
        ln of the top_k-th best probability.
    log_rival
        The largest upper bound of an evaluated point that is not among the best.
    log_proved
        The smallest bound on ln p of all unevaluated points.
    log_closed
        The largest bound on ln p in closed boxes.
    """

    epsilon: float
    delta: float
    tolerance: float
    top_k: int
    slack: float
    has_masses: bool
    lipschitz: Lipschitz | None
    log_kth_best: float
    log_rival: float
    log_proved: float
    log_closed: float


@dataclass(frozen=True)
class Batch:
    """A batch of evaluated draws that the ledger has not absorbed yet.

    Attributes
    ----------
    n_rows
        The number of draws.
    first_rows
        shape (n_new,): the draws that brought a new point, in order.
    sums, lost
        shape (n_new,): the evaluated mass after each new point, and its compensation; empty if masses do not
        apply.
    log_r
        ln of the open mass that the draws came from.
    """

    n_rows: int
    first_rows: NDArray[np.int64]
    sums: NDArray[np.float64]
    lost: NDArray[np.float64]
    log_r: float


def stopping_row(
    standing: Standing, record: DrawRecord, changes: Sequence[tuple[int, float, float]], batch: Batch
) -> int | None:
    """Return the first row of a batch of draws after which the requested certificate is earned, or None.

    Parameters
    ----------
    standing, record
        The state before the batch.
    changes
        (position among the new points, ln of the top_k-th best from then on, largest upper bound of an evaluated
        point outside the top_k from then on), in order.
    batch
        The draws.
    """
    stretches = [(0, standing.log_kth_best, standing.log_rival)]
    stretches += [(int(batch.first_rows[i]), log_kth, log_rival) for i, log_kth, log_rival in changes]
    ends = [*(start for start, _, _ in stretches[1:]), batch.n_rows]
    for (start, log_kth, log_rival), end in zip(stretches, ends, strict=True):
        if log_kth == -math.inf or start >= end:
            continue
        log_rival = max(log_rival, bounds.round_up(log_kth, standing.slack))
        within = bounds.log_tau_within(log_kth, standing.epsilon, standing.tolerance)
        if bounds.round_up(log_rival, standing.slack) > within:
            continue  # an evaluated point may be too probable; draws cannot rule that out
        row = min(
            _proof_row(standing, log_kth, start, batch),
            _evidence_row(standing, record, log_kth, start, batch.log_r, smooth=False),
            _evidence_row(standing, record, log_kth, start, batch.log_r, smooth=True),
        )
        if row < end:
            return int(row)
    return None


def _proof_row(standing: Standing, log_kth: float, start: int, batch: Batch) -> float:
    """Return the first row >= start at which certain proofs suffice, or inf."""
    within = bounds.log_tau_within(log_kth, standing.epsilon, standing.tolerance)
    within = bounds.round_down(within, standing.slack)  # the answer may be worth less than computed
    if standing.log_proved <= within:
        return start
    sums, lost = batch.sums, batch.lost
    if not standing.has_masses or not len(sums):
        return math.inf
    if bounds.log_p_check(sums[-1], lost[-1], standing.slack) > within:
        return math.inf
    low, high = 0, len(sums) - 1  # the residual only falls: bisect for the first sufficient new point
    while low < high:
        middle = (low + high) // 2
        if bounds.log_p_check(sums[middle], lost[middle], standing.slack) <= within:
            high = middle
        else:
            low = middle + 1
    return max(start, int(batch.first_rows[low]))


def _evidence_row(
    standing: Standing, record: DrawRecord, log_kth: float, start: int, log_r: float, *, smooth: bool
) -> float:
    """Return the first row >= start after which the draws' evidence suffices, or inf."""
    lipschitz = standing.lipschitz
    if not (lipschitz is not None if smooth else standing.has_masses):
        return math.inf
    need = bounds.required_evidence(standing.delta, standing.top_k) * (1.0 + 1e-12)
    weight = lipschitz.log_weight(standing.epsilon) if smooth and lipschitz is not None else None
    n = record.needed(need, log_kth, standing.epsilon, log_r, standing.log_closed, weight)
    return max(start, n - 1)
