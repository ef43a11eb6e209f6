"""Sums of numbers given as natural logs."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.errors import SolverError


def checked_logs(log_values: Floats | float, what: str) -> Floats | float:
    """Return natural logs unchanged; raise SolverError for NaN, with `what` before it. All bounds pass through
    here.

    inf means no bound, -inf that the box is proved impossible; `max(x, nan)` is x, so that NaN would count as a
    proof.
    """
    highest = log_values if isinstance(log_values, float) else np.max(log_values, initial=-np.inf)
    if np.isnan(highest):
        raise SolverError(
            f"{what} nan; a natural log is expected, inf where no bound is known, -inf where nothing is possible"
        )
    return log_values


def log_of(values: Floats) -> Floats:
    """Return natural logs; -inf for zeros."""
    with np.errstate(divide="ignore"):
        return np.log(values)


def log_sum(log_values: Floats, axes: int | tuple[int, ...] | None = None) -> Floats:
    """Return the natural log of the sum along axes (None: all); -inf if all entries are -inf or there are none."""
    if axes == ():
        return log_values
    if not log_values.size:
        return np.asarray(np.logaddexp.reduce(log_values, axis=axes))
    if axes is None:
        highest = float(log_values.max())
        if not np.isfinite(highest):
            return np.asarray(highest)
        return np.asarray(np.log(np.exp(log_values - highest).sum()) + highest)
    top = np.asarray(log_values.max(axis=axes, keepdims=True))
    shift = np.where(np.isfinite(top), top, 0.0)
    found = log_of(np.exp(log_values - shift).sum(axis=axes, keepdims=True)) + shift
    return np.asarray(np.squeeze(found, axis=axes))


def log_sum_runs(log_values: Floats, starts: Ints) -> Floats:
    """Return the natural log of each run's sum. Runs begin at `starts` and are not empty."""
    if not len(starts):
        return np.zeros(0)
    top = np.maximum.reduceat(log_values, starts)
    shift = np.where(top > -np.inf, top, 0.0)
    lengths = np.diff(starts, append=len(log_values))
    return shift + log_of(np.add.reduceat(np.exp(log_values - np.repeat(shift, lengths)), starts))


def add_to(total: Floats, terms: Floats, lost: Floats) -> Floats:
    """Return `total + terms` and add each finite rounding error to `lost` in place."""
    added = total + terms
    with np.errstate(invalid="ignore"):
        there = added - total
        error = (total - (added - there)) + (terms - there)
    lost += np.where(np.isfinite(error), error, 0.0)
    return added
