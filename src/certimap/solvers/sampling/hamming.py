"""Hamming balls around a point, for variables of any number of states."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from certimap.certify import bounds
from certimap.core.box import Points
from certimap.core.domain import Domain

ROWS_AT_ONCE = 16384


def ball_size(domain: Domain, radius: int) -> float:
    """Return the number of points within `radius` changed categorical variables, the centre included."""
    shells = bounds.log_shells(domain.n_states[domain.n_states > 0], min(radius, len(domain)))
    return float(np.exp(min(float(np.logaddexp.reduce(shells)), 700.0)))


def ball(domain: Domain, centre: Points, radius: int) -> Iterator[Points]:
    """Yield the points at distance 1 to `radius` from `centre`, shape (n,), in batches, nearest first."""
    changes = _changes(domain, centre, radius)
    while batch := list(itertools.islice(changes, ROWS_AT_ONCE)):
        points = np.repeat(centre[None, :], len(batch), axis=0)
        rows = np.repeat(np.arange(len(batch)), [len(change) for change in batch])
        flat = np.array([pair for change in batch for pair in change], np.int64)
        points[rows, flat[:, 0]] = flat[:, 1]
        yield points


def grouped(parts: Iterable[Points]) -> Iterator[Points]:
    """Join small batches into batches of about 16,384 rows."""
    held: list[Points] = []
    for part in parts:
        held.append(part)
        if sum(len(p) for p in held) >= ROWS_AT_ONCE:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _changes(domain: Domain, centre: Points, radius: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield every set of at most `radius` changes, as (variable, new state) pairs."""
    others = {
        int(i): [(int(i), s) for s in range(int(domain.n_states[i])) if s != int(centre[i])]
        for i in np.flatnonzero(domain.n_states > 1)
    }
    for distance in range(1, min(radius, len(others)) + 1):
        for variables in itertools.combinations(others, distance):
            yield from itertools.product(*(others[i] for i in variables))
