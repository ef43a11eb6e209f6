"""Proof files: what a run recorded, joined with its model and query, and what has them checked."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker import Proof, Verdict, check_arrays
from certimap.checker.buckets import Layout, value_at
from certimap.checker.leaves import STUDENT_T
from certimap.checker.models import Question as Asked
from certimap.checker.models import Reduced, Rejected, reduce, tables_of
from certimap.checker.real import REAL_KINDS
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves.kind import leaf_kinds
from certimap.control import Control, TimeUp
from certimap.domain import Label, Real
from certimap.errors import ModelError, QueryError, SolverError, TooLarge
from certimap.io.labels import encoded_label
from certimap.io.native import exported, fingerprint
from certimap.model import Model
from certimap.posterior import Capability
from certimap.query import Query
from certimap.result import CertificateKind, MapResult
from certimap.solvers.base import Solver

WITH_PROOFS = "'frontier' and 'exhaustive' on circuits, and any solver on networks whose tables fit"
NOT_CLOSED = "no steps and no relaxation that were found in {:.0f} s prove it; a higher time_limit may find some"
MAX_SEARCHES = 5  # for one proof, where each meets a better answer
EASY = 0.5  # seconds of solving a network; the checker finds by itself which vectors count where it took less
STEPS_SHARE = (
    0.7  # of the time for a proof of a wide network; a relaxation, which may bound at least, gets the rest
)
LEAST_SECONDS = 10.0  # for a search for the proof alone; it may take four times the solving, or what is left, too


def check(
    model: Any,
    proof: Proof | str | os.PathLike[str],
    *,
    exact: bool = False,
    time_limit: float | None = None,
) -> Verdict:
    """Check a proof by code that shares nothing with what found the answer; see `docs/proofs.md`.

    Parameters
    ----------
    model
        The model that the answer is about.
    proof
        A proof (`result.proof`) or the path of its file.
    exact
        Check a small model by enumeration in exact numbers too.
    time_limit
        Seconds after which the check gives up, and rejects the proof for want of time; None: none.

    Returns
    -------
    Verdict
        True where the claim is proved; its `message` says what is, or which step fails.

    Raises
    ------
    ParseError
        When the file is no proof.
    ModelError
        For a model that has no plain arrays.
    QueryError
        For what is no model, and a limit that is no time.
    """
    if not isinstance(model, Model):
        raise QueryError(f"a {type(model).__name__} is no model; a proof is checked against the model it is about")
    if time_limit is not None and not time_limit > 0.0:
        raise QueryError(f"time_limit is {time_limit}; expected seconds above 0, or None for no limit")
    found = proof if isinstance(proof, Proof) else Proof.read(proof)
    kind, variables, arrays, hidden = exported(model)
    return check_arrays(kind, variables, arrays, found, hidden=hidden, exact=exact, time_limit=time_limit)


def wants_for_proof(
    model: Any, solver: str | Solver, wants: Sequence[Capability] | None
) -> Sequence[Capability] | None:
    """Return what to want of a representation where a proof is asked for: on circuits, boxes that can be retraced.

    Raises SolverError for what is no model.
    """
    if not isinstance(model, Model):
        raise SolverError(
            f"a {type(model).__name__} has no model that a proof could be about; ask a model instead"
        )
    from certimap.circuits.posterior import CircuitPosterior
    from certimap.solvers.box_search.frontier import Frontier

    searches = solver in ("auto", "frontier") or isinstance(solver, Frontier)
    if isinstance(model, Circuit) and searches and wants in (None, Frontier.needs):
        return (CircuitPosterior,)
    return wants


def finished(
    model: Model, query: Query, result: MapResult, max_bytes: int, time_limit: float | None = None
) -> MapResult:
    """Return a result with its proof complete, or with the reason why it has none.

    `time_limit` (seconds) is the query's; a search for the proof alone may use what solving has left of it.
    """
    draft = result.proof
    if draft is None:
        return result
    seconds = max(LEAST_SECONDS, 4.0 * result.seconds, (time_limit or 0.0) - result.seconds)
    if not isinstance(model, Circuit) and draft.meta["method"] != "draws" and _too_wide(model, query) is not None:
        draft = _wide(model, query, result, max_bytes, seconds)
    reason = _refusal(model, query, result, draft)
    is_discrete = query.query_domain.is_discrete  # bounds of densities, in a search, are closer than the checker's
    if reason is None and isinstance(model, Circuit) and (draft.meta["method"] == "bound" or not is_discrete):
        draft = _searched(model, query, result, max_bytes, seconds)
        if draft is None:
            reason = f"a search for a proof did not end in time; {WITH_PROOFS} write one as they go"
    if reason is not None or draft is None:
        return replace(result, proof=None, no_proof=reason)
    certificate = result.certificate
    method, arrays = draft.meta["method"], draft.arrays
    if not isinstance(model, Circuit) and method not in ("draws", "relaxation", "steps"):
        method, arrays = _eliminated(model, query, result, max_bytes)
    answers = answers_of(result)
    encoded = [{name: encoded_label(label, name) for name, label in answer.items()} for answer in answers]
    meta = {
        **draft.meta,
        "method": method,
        "model": fingerprint(model),
        "answer": encoded[0],
        "others": encoded[1:],
        "claim": {
            "kind": certificate.kind.value,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "tolerance": certificate.tolerance,
            "log_joint": result.log_joint,
            **draft.meta.get("claim", {}),
        },
        "solver": result.solver,
        "written_by": f"certimap {result.version}",
        "seed": result.seed,
    }
    short = f"it is of a bound alone, for {NOT_CLOSED.format(seconds)}" if "certified" in meta else None
    proof = Proof(meta, {"log_weights": query.log_weights, **_intervals(query), **arrays})
    if proof.n_bytes > max_bytes:
        text = f"the proof would take {proof.n_bytes:,} bytes, and max_proof={max_bytes:,} accepts fewer"
        return replace(result, proof=None, no_proof=text)
    return replace(result, proof=proof, no_proof=short)


def _searched(model: Circuit, query: Query, result: MapResult, max_bytes: int, seconds: float) -> Proof | None:
    """Search a circuit by boxes, from an answer that something else has found; None where that does not end."""
    from certimap.circuits.posterior import CircuitPosterior
    from certimap.circuits.prober import PlanProber
    from certimap.solvers.box_search.frontier import Frontier
    from certimap.solvers.driver import run

    class Plain(CircuitPosterior):
        """Asked by bounds that the checker has as well."""

        def prober(self) -> PlanProber:
            return PlanProber(self.plan, self.workers)

    control = Control.starting_now(seconds)
    certificate, epsilon = result.certificate, result.certificate.epsilon
    answers = answers_of(result)
    log_value = _least_log(result)
    for _ in range(MAX_SEARCHES):
        try:
            found = run(
                Plain.from_circuit(model, query, control=control),
                Frontier(first_draws=0),
                epsilon=epsilon,
                delta=0.0,
                rng=0,
                warm_start=answers,
                top_k=None if result.top is None else len(answers),
                tolerance=certificate.tolerance,
                progress=False,
                control=control,
                max_proof=max_bytes,
            )
        except (TimeUp, TooLarge):
            return None
        if not found.certified or found.proof is None or not found.proof.arrays:
            return None
        gain = _least_log(found) - log_value
        if gain <= 0.0 or certificate.epsilon == 0.0:
            is_discrete = query.query_domain.is_discrete
            return (
                found.proof if is_discrete else Proof(found.proof.meta, _at_ends(model, query, found.proof.arrays))
            )
        # it met a better answer and closed boxes by that one's epsilon; the one to be proved allows it less
        answers.insert(0, found.assignment)
        answers = answers[: 1 if result.top is None else len(result.top)]
        log_value += gain
        epsilon = -math.expm1(math.log1p(-epsilon) + gain)
        if not epsilon > 0.0:
            return None
    return None


def answers_of(result: MapResult) -> list[dict[str, Label]]:
    """Return all answers of a result, the best one first."""
    return [result.assignment] if result.top is None else [answer for answer, _ in result.top]


def _least_log(result: MapResult) -> float:
    """Return ln of the density or probability of the worst answer."""
    log_value = result.log_prob if result.top is None else result.top[-1][1]
    return -math.inf if log_value is None else log_value


def _at_ends(model: Circuit, query: Query, arrays: dict[str, Any]) -> dict[str, Any]:
    """Cut the cells of real variables where densities end as well: in no cell do two bars of a histogram count."""
    ends: dict[int, set[float]] = {}
    for code, leaf in leaf_kinds().items():
        nodes = np.flatnonzero(model.kind == code)
        if leaf.support is not None and len(nodes):
            first = model.param_ptr[nodes]
            low, high = leaf.support(*(model.params[first + k] for k in range(len(leaf.parameters))))
            for v, a, b in zip(model.leaf_var[nodes].tolist(), low.tolist(), high.tolist(), strict=True):
                ends.setdefault(v, set()).update((math.nextafter(a, -math.inf), b))
    whole, ptr = _intervals(query)["intervals"], arrays["cut_ptr"]
    cuts: list[NDArray[np.float64]] = []
    columns: list[NDArray[Any]] = []  # for each new column of a variable, the one that it is a part of
    n_columns = 0
    for k, v in enumerate(query.variables.tolist()):
        old = arrays["cuts"][ptr[k] : ptr[k + 1]]
        inside = [x for x in ends.get(v, ()) if whole[v, 0] < x < whole[v, 1]]
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
    kept = np.unpackbits(arrays["kept"], axis=1, count=n_columns)[:, np.concatenate(columns)]
    return {
        **arrays,
        "at": at,
        "kept": np.packbits(kept, axis=1),
        "cuts": np.concatenate(cuts),
        "cut_ptr": np.cumsum([0, *(len(inner) for inner in cuts)]).astype(np.int64),
    }


def _cuts_student_t(model: Circuit, query: Query) -> bool:
    """Whether a variable that is summed out over a part of its values has a leaf whose masses have no formula."""
    intervals = _intervals(query).get("intervals")
    if intervals is None:
        return False
    leaves = np.flatnonzero(model.kind == STUDENT_T)
    variables = np.setdiff1d(model.leaf_var[leaves], query.variables)
    low, high = intervals[variables].T
    return bool(np.any((low < high) & (np.isfinite(low) | np.isfinite(high))))


def _intervals(query: Query) -> dict[str, Any]:
    """Return what each real variable is confined to, one value where it is observed; nothing without any."""
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


def _refusal(model: Model, query: Query, result: MapResult, draft: Proof) -> str | None:
    """Return the sentence why there is no proof, or None."""
    if "no_proof" in draft.meta:
        return draft.meta["no_proof"]
    if not len(query.variables):
        return "a query without variables has nothing to prove"
    try:
        exported(model)
    except ModelError as error:
        return f"the model cannot be handed to the checker: {error}"
    if isinstance(model, Circuit):
        if not np.all(np.isin(model.kind, [NodeKind.CATEGORICAL, NodeKind.PRODUCT, NodeKind.SUM, *REAL_KINDS])):
            return "the circuit has leaves of a kind that the checker does not know: it knows this package's own"
        if _cuts_student_t(model, query):
            return "the checker knows no masses of parts of Student t distributions; query their variables"
        if result.top is not None and len(result.top) > 1 and not query.query_domain.is_discrete:
            return "a proof covers one answer where a variable is real; leave top_k out"
        return None
    return _too_wide(model, query) if draft.meta["method"] == "draws" else None


def reduced_network(model: Model, query: Query) -> Reduced:
    """Return a network's tables under the evidence, as the checker sees them."""
    kind, _, arrays, _ = exported(model)
    sizes = query.domain.n_states.astype(np.int64)
    return reduce(*tables_of(kind, sizes, arrays), Asked(sizes, query.variables, query.log_weights))


def _too_wide(model: Model, query: Query) -> str | None:
    """Return why the checker cannot eliminate a network, or None."""
    try:
        Layout.of(reduced_network(model, query))
    except (Rejected, ModelError) as reason:
        return f"{reason}; {WITH_PROOFS} can write a proof"
    return None


def _eliminated(
    model: Model, query: Query, result: MapResult, max_bytes: int
) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return method and arrays of a proof by elimination: why which vectors go, where that is dear to find."""
    checked = reduced_network(model, query)
    hidden = {v for table in checked.tables for v in table.scope} - set(checked.queried)
    if result.certificate.kind is CertificateKind.NONE or result.seconds < EASY or not hidden:
        return "sets", {}
    from certimap.vector_proofs import recorded

    answers = answers_of(result)
    points = [query.query_domain.encode(dict(answer)).tolist() for answer in answers]
    certificate = result.certificate
    arrays = recorded(
        checked,
        points,
        certificate.epsilon,
        certificate.tolerance,
        1.0 + 4.0 * result.seconds,
        max_bytes,
    )
    return ("sets", {}) if arrays is None else ("vectors", arrays)


def _wide(model: Model, query: Query, result: MapResult, max_bytes: int, seconds: float) -> Proof:
    """Prove an answer by steps or a relaxation, or how much better another one can be if it is not certified."""
    from certimap.relaxation_proofs import bounded, covered
    from certimap.step_proofs import steps_of

    control = Control.starting_now(seconds)
    certificate = result.certificate
    answers = answers_of(result)
    try:
        checked = reduced_network(model, query)
        points = [query.query_domain.encode(dict(answer)) for answer in answers]
        log_value = min(value_at(checked, point.tolist(), -1) for point in points)
        if certificate.kind is CertificateKind.NONE:
            found = bounded(checked, control)
            if found is not None and found[1] < math.inf:
                claim = {"kind": "bound", "epsilon": 0.0, "delta": 0.0, "log_upper": found[1]}
                return Proof({"method": "relaxation", "claim": claim}, found[0])
        else:
            threshold = log_value - math.log1p(-certificate.epsilon) + math.log1p(certificate.tolerance)
            if len(points) == 1:
                limits = Control.starting_now(STEPS_SHARE * seconds)
                steps = steps_of(checked, threshold, limits, max_bytes)
                if steps is not None:
                    return Proof({"method": "steps"}, steps)
            found = covered(checked, threshold, control, max_bytes)
            if found is not None and found[1] <= threshold:
                return Proof({"method": "relaxation"}, found[0])
            if found is not None and found[1] < math.inf:
                claim = {"kind": "bound", "epsilon": 0.0, "delta": 0.0, "log_upper": found[1]}
                stated = {"kind": certificate.kind.value, "epsilon": certificate.epsilon}
                return Proof({"method": "relaxation", "claim": claim, "certified": stated}, found[0])
    except (Rejected, ModelError, TooLarge) as reason:
        return Proof({"method": "none", "no_proof": f"{reason}; {WITH_PROOFS} can write a proof"}, {})
    return Proof({"method": "none", "no_proof": NOT_CLOSED.format(seconds)}, {})
