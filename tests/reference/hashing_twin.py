"""Slow twins of the hashing kernels: a dictionary, and exact summation."""

from __future__ import annotations

import math

import numpy as np


def distinct_ids(rows: np.ndarray, known: dict[bytes, int]) -> list[int]:
    """Number rows by first appearance, going on from `known`."""
    return [known.setdefault(np.ascontiguousarray(row).tobytes(), len(known)) for row in rows]


def exact_running_sums(log_probs: np.ndarray, start: float = 0.0) -> list[float]:
    probs = [math.exp(x) for x in log_probs]
    return [math.fsum([start, *probs[: i + 1]]) for i in range(len(probs))]
