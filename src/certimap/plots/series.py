"""The numbers behind figures of results, separate from drawing, for use by other tools."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from certimap.core.domain import Label
from certimap.core.result import CertificateKind, MapResult
from certimap.errors import QueryError

AGAINST = ("seconds", "n_draws", "n_nodes", "n_evaluations")


@dataclass(frozen=True)
class BoundSeries:
    """A run's two bounds on ln p* over time, in nats; all lists are as long as `x`.

    `x`: seconds, draws, boxes (search nodes), or assignments evaluated. `lower`, `upper`, `open_mass`: the best
    value found, the upper bound, and ln R: a bound on the probability of all assignments neither evaluated nor
    closed; inf without a bound.
    """

    x: list[float]
    lower: list[float]
    upper: list[float]
    open_mass: list[float]


def bound_series(result: MapResult, against: str = "seconds") -> BoundSeries:
    """Return a run's bounds from the first answer on.

    Parameters
    ----------
    result, against
        A result with a history; and "seconds", "n_draws", "n_nodes" (boxes of a search) or "n_evaluations".

    Returns
    -------
    BoundSeries
        In nats.

    Raises
    ------
    QueryError
        If the history is empty or has no boxes for "n_nodes", or for any other `against`.
    """
    if against not in AGAINST:
        raise QueryError(f"against is {against!r}; expected {', '.join(AGAINST[:-1])} or {AGAINST[-1]}")
    entries = [e for e in result.history if math.isfinite(e.log_prob)]
    if not entries:
        raise QueryError("the result has no history to draw")
    if against == "n_nodes" and not entries[-1].n_nodes:
        raise QueryError(f"the run of {result.solver} searched no boxes; expected a search such as 'frontier'")
    return BoundSeries(
        [float(getattr(e, against)) for e in entries],
        [e.log_prob for e in entries],
        [e.log_upper_bound for e in entries],
        [e.log_open_mass for e in entries],
    )


def pareto_series(
    results: MapResult | Mapping[str, MapResult] | Mapping[str, Sequence[tuple[float, float]]],
) -> dict[str, tuple[list[float], list[float]]]:
    """Return the admissible pairs (epsilon, delta) of runs.

    Parameters
    ----------
    results
        A result, or results or fronts by name.

    Returns
    -------
    dict
        Epsilons and deltas by name; a single result has the name "".
    """
    named = {"": results} if isinstance(results, MapResult) else results
    fronts = {name: found.pareto if isinstance(found, MapResult) else found for name, found in named.items()}
    return {name: ([p[0] for p in pairs], [p[1] for p in pairs]) for name, pairs in fronts.items()}


@dataclass(frozen=True)
class Moments:
    """The times of finding and of certifying an answer.

    `found`, `certified`: seconds, draws or evaluations, from the history; `certified` is None without a
    certificate.
    """

    found: float
    certified: float | None


def moments(result: MapResult, against: str = "seconds") -> Moments:
    """Return the times of finding and of certifying the answer.

    A certificate from draws holds from the end of the run; one from bounds, as soon as the upper bound is within
    the certificate's epsilon of the answer.

    Parameters
    ----------
    result, against
        As in `bound_series`.

    Returns
    -------
    Moments
        In the unit of `against`.

    Raises
    ------
    QueryError
        As `bound_series` does.
    """
    series = bound_series(result, against)
    found = next(x for x, low in zip(series.x, series.lower, strict=True) if low >= series.lower[-1])
    certificate = result.certificate
    if certificate.kind is CertificateKind.NONE:
        return Moments(found, None)
    if certificate.kind is CertificateKind.PAC:
        return Moments(found, series.x[-1])
    allowed = -math.log1p(-certificate.epsilon) if certificate.epsilon < 1.0 else math.inf
    best = series.lower[-1] + allowed + certificate.tolerance
    pairs = zip(series.x, series.upper, strict=True)
    return Moments(found, max(found, next((x for x, upper in pairs if upper <= best), series.x[-1])))


@dataclass(frozen=True)
class RegretSeries:
    """Simple regret of a run's best answer, log2(p* / p) in bits, at each `x`."""

    x: list[float]
    bits: list[float]


def regret_series(result: MapResult, against: str = "n_draws") -> RegretSeries:
    """Return simple regret log2(p* / best found) along a run whose answer is proved exact.

    Parameters
    ----------
    result, against
        As in `bound_series`.

    Returns
    -------
    RegretSeries
        From the first answer on.

    Raises
    ------
    QueryError
        If p* is not proved, and as `bound_series` does.
    """
    if result.certificate.kind is not CertificateKind.EXACT:
        raise QueryError(
            f"the certificate is of kind {result.certificate.kind.value!r}, so that p* is not known; regret needs "
            "an exact one (epsilon=0, delta=0)"
        )
    series = bound_series(result, against)
    return RegretSeries(series.x, [(series.lower[-1] - low) / math.log(2.0) for low in series.lower])


@dataclass(frozen=True)
class Ranked:
    """One of the k best assignments, and its differences from the best."""

    log_prob: float
    changes: dict[str, Label]


def ranking(result: MapResult) -> list[Ranked]:
    """Return the k best assignments, best first, each with its differences from the best.

    Parameters
    ----------
    result
        An answer.

    Returns
    -------
    list of Ranked
        ln p in nats, and differences.

    Raises
    ------
    QueryError
        If the result has no such list (`map_query(..., top_k=)` makes one).
    """
    if not result.top:
        raise QueryError("the result does not list the k best assignments; ask for them with top_k")
    first = result.top[0][0]
    return [
        Ranked(log_prob, {name: label for name, label in assignment.items() if label != first[name]})
        for assignment, log_prob in result.top
    ]
