"""Kinds of leaves over real variables: one file per kind, and a table for kernels and file formats.

The table of the package's own kinds is at the end of this file; the Gaussian, with a fixed code, comes first.
"""

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.leaves.kind import LeafFunctions, LeafKind, leaf_kind, leaf_kinds, register_leaf

__all__ = ["LeafFunctions", "LeafKind", "leaf_kind", "leaf_kinds", "register_leaf"]

_Array = NDArray[np.float64]
_LEAST, _MOST = 1e-290, 1e290  # of scales: beyond, inverses and widths are no numbers
_ROOM = "certimap.circuits.leaves."


def _positive(*values: _Array) -> NDArray[np.bool_]:
    valid = np.ones(values[0].shape, np.bool_)
    for x in values:
        valid &= (x >= _LEAST) & (x <= _MOST)
    return valid


def _is_interval(low: _Array, high: _Array) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.isfinite(low) & np.isfinite(high) & _positive(high - low)


def _has_room(mean: _Array, sd: _Array, low: _Array, high: _Array) -> NDArray[np.bool_]:
    """Whether a truncated Gaussian is valid: its limits are distinct and not absurdly far from the mean."""
    with np.errstate(invalid="ignore", over="ignore"):
        reach, width = np.abs(np.clip(mean, low, high) - mean) / sd, (high - low) / sd
    return np.isfinite(mean) & _positive(sd) & (low < high) & (reach < 1e100) & (width >= _LEAST)


def _is_gaussian(mean: _Array, sd: _Array) -> NDArray[np.bool_]:
    return np.isfinite(mean) & _positive(sd)


def _is_student_t(mean: _Array, scale: _Array, df: _Array) -> NDArray[np.bool_]:
    return (np.abs(mean) <= 1e150) & (scale >= 1e-150) & (scale <= 1e150) & (df >= 1e-3) & (df <= 1e6)


def _is_poisson(mean: _Array) -> NDArray[np.bool_]:
    return _positive(mean) & (mean <= 1e9)


def _is_chance(p: _Array) -> NDArray[np.bool_]:
    return (p > 0) & (p < 1)


def _from_zero(rate: _Array) -> tuple[_Array, _Array]:
    return np.zeros_like(rate), np.full_like(rate, np.inf)


def _between(low: _Array, high: _Array) -> tuple[_Array, _Array]:
    return low, high


def _cut(_mean: _Array, _sd: _Array, low: _Array, high: _Array) -> tuple[_Array, _Array]:
    return low, high


_KINDS = (
    LeafKind(
        "gaussian",
        ("mean", "sd"),
        _is_gaussian,
        "a finite mean, and an sd from 1e-290 to 1e290",
        _ROOM + "gaussian",
    ),
    LeafKind(
        "truncated_gaussian",
        ("mean", "sd", "low", "high"),
        _has_room,
        "a finite mean, an sd from 1e-290 to 1e290, and limits of which low is below high",
        _ROOM + "truncated_gaussian",
        support=_cut,
        roundings=4096.0,
    ),
    LeafKind(
        "uniform",
        ("low", "high"),
        _is_interval,
        "two finite limits, low below high by 1e-290 to 1e290",
        _ROOM + "uniform",
        support=_between,
    ),
    LeafKind(
        "exponential",
        ("rate",),
        _positive,
        "a rate from 1e-290 to 1e290",
        _ROOM + "exponential",
        support=_from_zero,
    ),
    LeafKind(
        "laplace",
        ("mean", "scale"),
        _is_gaussian,
        "a finite mean, and a scale from 1e-290 to 1e290",
        _ROOM + "laplace",
    ),
    LeafKind(
        "student_t",
        ("mean", "scale", "df"),
        _is_student_t,
        "a mean up to 1e150, a scale from 1e-150 to 1e150, and .001 to 1e6 degrees of freedom",
        _ROOM + "student_t",
        roundings=32768.0,
    ),
    LeafKind(
        "poisson",
        ("mean",),
        _is_poisson,
        "a positive mean of at most 1e9",
        _ROOM + "poisson",
        support=_from_zero,
        is_whole=True,
        roundings=256.0,
    ),
    LeafKind(
        "geometric",
        ("p",),
        _is_chance,
        "the probability of a success, above 0 and below 1",
        _ROOM + "geometric",
        support=_from_zero,
        is_whole=True,
    ),
)

for _kind in _KINDS:
    register_leaf(_kind)
