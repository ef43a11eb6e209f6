"""Proofs of queries to circuits: box searches for the proof alone, and the cells of real variables."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker import Proof
from certimap.circuits.circuit import Circuit
from certimap.circuits.leaves.kind import leaf_kinds
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Label, Real
from certimap.core.posterior import Facts
from certimap.core.query import Query
from certimap.core.result import MapResult
from certimap.errors import TooLarge
from certimap.proofs.script import Arrays


def answers_of(result: MapResult) -> list[dict[str, Label]]:
    """Return all answers of a result, the best one first."""
    return [result.assignment] if result.top is None else [answer for answer, _ in result.top]


def least_log(result: MapResult) -> float:
    """Return ln of the density or probability of the worst answer."""
    log_value = result.log_prob if result.top is None else result.top[-1][1]
    return -math.inf if log_value is None else log_value


MAX_SEARCHES = 5  # per proof; a search that finds a better answer is repeated


def searched(model: Circuit, query: Query, result: MapResult, max_bytes: int, seconds: float) -> Proof | None:
    """Search a circuit by boxes, starting from another solver's answer; None if the search does not end."""
    from certimap.circuits.posterior import CircuitPosterior
    from certimap.circuits.prober import PlanProber
    from certimap.solvers.box_search.frontier import Frontier
    from certimap.solvers.driver import run
    from certimap.solvers.request import Request

    class Plain(CircuitPosterior):
        """Uses only bounds that the checker computes as well: no masses of counts, for example."""

        @property
        def facts(self) -> Facts:
            known = super().facts
            return replace(known, has_masses=known.has_masses and self.domain.is_discrete)

        def prober(self) -> PlanProber:
            return PlanProber(self.plan, self.workers)

    control = Control.starting_now(seconds)
    certificate, epsilon = result.certificate, result.certificate.epsilon
    answers = answers_of(result)
    log_value = least_log(result)
    for _ in range(MAX_SEARCHES):
        try:
            request = Request(
                Frontier(first_draws=0),
                epsilon,
                delta=0.0,
                tolerance=certificate.tolerance,
                top_k=None if result.top is None else len(answers),
                warm_start=answers,
                proof_bytes=max_bytes,
            )
            found = run(Plain.from_circuit(model, query, control=control), request, control=control)
        except (TimeUp, TooLarge):
            return None
        if not found.certified or found.proof is None or not found.proof.arrays:
            return None
        gain = least_log(found) - log_value
        if gain <= 0.0 or certificate.epsilon == 0.0:
            is_discrete = query.query_domain.is_discrete
            return (
                found.proof if is_discrete else Proof(found.proof.meta, _at_ends(model, query, found.proof.arrays))
            )
        # the search closed boxes around a better answer; the answer to be proved needs a smaller epsilon there
        answers.insert(0, found.assignment)
        answers = answers[: 1 if result.top is None else len(result.top)]
        log_value += gain
        epsilon = -math.expm1(math.log1p(-epsilon) + gain)
        if not epsilon > 0.0:
            return None
    return None


def _at_ends(model: Circuit, query: Query, arrays: Arrays) -> Arrays:
    """Cut the cells of real variables also where densities end, so that no cell holds two bars of a histogram."""
    ends: dict[int, set[float]] = {}
    for code, leaf in leaf_kinds().items():
        nodes = np.flatnonzero(model.kind == code)
        if leaf.support is not None and len(nodes):
            first = model.param_ptr[nodes]
            low, high = leaf.support(*(model.params[first + k] for k in range(len(leaf.parameters))))
            for v, a, b in zip(model.leaf_var[nodes].tolist(), low.tolist(), high.tolist(), strict=True):
                ends.setdefault(v, set()).update((math.nextafter(a, -math.inf), b))
    whole, ptr = intervals_of(query)["intervals"], arrays["cut_ptr"]
    cuts: list[NDArray[np.float64]] = []
    columns: list[NDArray[Any]] = []  # for each new column of a variable, the old column that contains it
    n_columns = 0
    for k, v in enumerate(query.variables.tolist()):
        old = arrays["cuts"][ptr[k] : ptr[k + 1]]
        inside = [x for x in ends.get(v, ()) if -math.inf < x and whole[v, 0] <= x < whole[v, 1]]
        cuts.append(np.union1d(old, np.array(inside, np.float64)))
        is_real = isinstance(query.domain.variables[v], Real)
        size = len(old) + 1 if is_real else int(query.query_domain.n_states[k])
        parts = np.searchsorted(old, np.array([*cuts[-1], np.inf])) if is_real else np.arange(size)
        columns.append(n_columns + parts)
        n_columns += size
    at = arrays["at"].copy()
    for node in np.flatnonzero(at):
        k = int(arrays["splits"][node])
        at[node] = np.searchsorted(cuts[k], arrays["cuts"][ptr[k] + at[node] - 1]) + 1
    rows = arrays["kept"].reshape(-1, (n_columns + 7) // 8)
    kept = np.unpackbits(rows, axis=1, count=n_columns)[:, np.concatenate(columns)]
    return {
        **arrays,
        "at": at,
        "kept": np.packbits(kept, axis=1).reshape(-1),
        "cuts": np.concatenate(cuts),
        "cut_ptr": np.cumsum([0, *(len(inner) for inner in cuts)]).astype(np.int64),
    }


def intervals_of(query: Query) -> Arrays:
    """Return the interval of each real variable (one value if observed); nothing if all are discrete."""
    if query.domain.is_discrete:
        return {}
    intervals = np.tile([-np.inf, np.inf], (len(query.domain), 1))
    for v, variable in enumerate(query.domain):
        if isinstance(variable, Real):
            value = query.values.get(v)
            whole = (variable.low, variable.high) if value is None else (value, value)
            intervals[v] = query.intervals.get(v, whole)
    n = len(query.variables) + 1
    return {"intervals": intervals, "cuts": np.zeros(0), "cut_ptr": np.zeros(n, np.int64)}
