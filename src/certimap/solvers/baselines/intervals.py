"""Interval partitions: the ends of the intervals that each real variable is cut into."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes
from certimap.core.domain import MAX_STATES, Categorical, Domain, Real
from certimap.core.search_boxes import Layout
from certimap.errors import SolverError

Floats = NDArray[np.float64]
TAIL = 1e-4  # of a variable's mass, beyond each end of a grid; the outermost cells extend to the domain's ends
N_HALVINGS = 60
N_DOUBLINGS = 1100  # bound on loops; from the smallest float to the largest takes 2,098
N_DRAWS = 64  # to locate a variable; they are not evidence


class Interval(NamedTuple):
    """A side of a cell, in the units of its variable; neighbouring intervals share an end."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"[{self.low:.6g}, {self.high:.6g}]"


def real_positions(domain: Domain) -> list[int]:
    """Return the positions of the real variables."""
    return [i for i, variable in enumerate(domain) if isinstance(variable, Real)]


def quantile_edges(
    posterior: CircuitPosterior, layout: Layout, n_cells: int, rng: np.random.Generator
) -> list[Floats]:
    """Cut each real variable into intervals of equal mass; one array per real variable."""
    shares = np.arange(1, n_cells) / n_cells
    inner = quantiles(posterior, shares, rng)
    return [_joined(layout, i, row) for i, row in zip(real_positions(posterior.domain), inner, strict=True)]


def grid_edges(
    posterior: CircuitPosterior,
    layout: Layout,
    n_cells: int,
    width: float | Mapping[str, float] | None,
    rng: np.random.Generator,
) -> list[Floats]:
    """Cut each real variable into equal intervals between the `TAIL` quantiles, and two tails."""
    domain = posterior.domain
    ends = quantiles(posterior, np.array([TAIL, 1.0 - TAIL]), rng)
    edges: list[Floats] = []
    for i, (low, high) in zip(real_positions(domain), ends.tolist(), strict=True):
        name = domain.names[i]
        asked = width[name] if isinstance(width, Mapping) else width
        n = n_cells if asked is None else max(1, math.ceil((high - low) / asked))
        if n + 2 > MAX_STATES:
            raise SolverError(
                f"variable {name!r} would have {n:,} cells of width {asked:g}; expected a width above "
                f"{(high - low) / (MAX_STATES - 2):.3g}"
            )
        step = (high - low) / n if asked is None else asked
        edges.append(_joined(layout, i, low + step * np.arange(n + 1, dtype=np.float64)))
    return edges


def _joined(layout: Layout, i: int, inner: Floats) -> Floats:
    """Add the outer ends that the evidence allows; cuts of whole numbers fall between neighbours."""
    low, high = layout.low[i], layout.high[i]
    inner = np.floor(inner) + 0.5 if layout.is_whole[i] else inner
    inside = inner[(inner > low) & (inner < high)]
    return np.unique(np.concatenate([[low], inside, [high]]))


def quantiles(posterior: CircuitPosterior, shares: Floats, rng: np.random.Generator) -> Floats:
    """Return the quantiles of each real variable at the given shares, shape (n_real, n_shares)."""
    domain = posterior.domain
    places = real_positions(domain)
    draws = np.asarray(posterior.sample(N_DRAWS, rng), np.float64)[:, places]
    low, high = (np.repeat(x[:, None], len(shares), axis=1) for x in (draws.min(axis=0), draws.max(axis=0)))
    step = np.maximum(high - low, np.spacing(np.abs(high)) + np.finfo(np.float64).tiny)
    log_shares = np.log(shares)[None, :]
    low, _ = _moved(posterior, places, low, -step, log_shares, upward=False)
    high, _ = _moved(posterior, places, high, step, log_shares, upward=True)
    for _ in range(N_HALVINGS):
        middle = 0.5 * low + 0.5 * high
        is_below = _log_below(posterior, places, middle) < log_shares
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return high


def _moved(
    posterior: CircuitPosterior,
    places: Sequence[int],
    at: Floats,
    step: Floats,
    log_shares: Floats,
    *,
    upward: bool,
) -> tuple[Floats, Floats]:
    """Move places outward, in doubling steps, until the mass below them is beyond the shares."""
    for _ in range(N_DOUBLINGS):
        below = _log_below(posterior, places, at)
        short = below < log_shares if upward else below >= log_shares
        if not np.any(short):
            break
        at = np.where(short, np.clip(at + step, -np.finfo(np.float64).max, np.finfo(np.float64).max), at)
        step = np.where(short, 2.0 * step, step)
    return at, step


def _log_below(posterior: CircuitPosterior, places: Sequence[int], at: Floats) -> Floats:
    """Return ln of each variable's mass below its places, in the shape of `at`."""
    boxes = Boxes.full(posterior.domain, at.size)
    assert boxes.high is not None
    columns = np.repeat(places, at.shape[1])
    rows = np.arange(at.size)
    boxes.high[rows, columns] = np.clip(
        at.ravel(), boxes.low[rows, columns] if boxes.low is not None else None, boxes.high[rows, columns]
    )
    return posterior.log_mass(boxes).reshape(at.shape)


def domain_of_cells(domain: Domain, edges: Sequence[Floats]) -> tuple[Domain, list[Floats | None]]:
    """Return the domain with intervals as states of real variables, and the edges by variable."""
    found: list[Floats | None] = [None] * len(domain)
    variables = list(domain.variables)
    for i, ends in zip(real_positions(domain), edges, strict=True):
        pairs = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        variables[i] = Categorical(domain.names[i], tuple(Interval(*pair) for pair in pairs))
        found[i] = ends
    return Domain(variables), found
