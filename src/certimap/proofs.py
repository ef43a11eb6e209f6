"""Proof files: what a run recorded, joined with its model and query, and what has them checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.checker import Proof, Verdict, check_arrays
from certimap.checker.models import Question as Asked
from certimap.checker.models import Rejected, reduce, tables_of
from certimap.checker.sets import Buckets
from certimap.circuits.circuit import Circuit
from certimap.errors import ModelError, QueryError, SolverError
from certimap.io.native import encoded_label, exported, fingerprint
from certimap.model import Model
from certimap.posterior import Capability, Probes
from certimap.query import Query
from certimap.result import MapResult
from certimap.solvers.base import Solver

WITH_PROOFS = "'frontier' and 'exhaustive' on circuits, and any solver on networks whose tables fit"


def check(model: Any, proof: Proof | str | os.PathLike[str], *, exact: bool = False) -> Verdict:
    """Check a proof by code that shares nothing with what found the answer; see `docs/proofs.md`.

    Parameters
    ----------
    model
        The model that the answer is about.
    proof
        A proof (`result.proof`) or the path of its file.
    exact
        Check a small model by enumeration in exact numbers too.

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
    """
    if not isinstance(model, Model):
        raise QueryError(f"a {type(model).__name__} is no model; a proof is checked against the model it is about")
    found = proof if isinstance(proof, Proof) else Proof.read(proof)
    kind, variables, arrays, hidden = exported(model)
    return check_arrays(kind, variables, arrays, found, hidden=hidden, exact=exact)


def wants_for_proof(
    model: Any, solver: str | Solver, wants: Sequence[Capability] | None
) -> Sequence[Capability] | None:
    """Return what to want of a representation where a proof is asked for: on circuits, boxes that can be retraced.

    Raises SolverError where no solver can write one.
    """
    if not isinstance(model, Model):
        raise SolverError(
            f"a {type(model).__name__} has no model that a proof could be about; ask a model instead"
        )
    if not model.domain.is_discrete:
        raise SolverError(
            f"no solver writes proofs where a variable is real; {WITH_PROOFS} do, for categorical ones"
        )
    if isinstance(model, Circuit) and solver == "auto" and wants is None:
        return (Probes,)
    return wants


def finished(model: Model, query: Query, result: MapResult, max_bytes: int) -> MapResult:
    """Return a result with its proof complete, or with the reason why it has none."""
    draft = result.proof
    if draft is None:
        return result
    reason = _refusal(model, query, result, draft)
    if reason is not None:
        return replace(result, proof=None, no_proof=reason)
    certificate = result.certificate
    method, arrays = draft.meta["method"], draft.arrays
    if not isinstance(model, Circuit) and method != "draws":
        method, arrays = "sets", {}
    answer = {name: encoded_label(label, name) for name, label in result.assignment.items()}
    meta = {
        **draft.meta,
        "method": method,
        "model": fingerprint(model),
        "answer": answer,
        "claim": {
            "kind": certificate.kind.value,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "tolerance": certificate.tolerance,
            "log_joint": result.log_joint,
        },
        "solver": result.solver,
        "written_by": f"certimap {result.version}",
        "seed": result.seed,
    }
    proof = Proof(meta, {"log_weights": query.log_weights, **arrays})
    if proof.n_bytes > max_bytes:
        text = f"the proof would take {proof.n_bytes:,} bytes, and max_proof={max_bytes:,} accepts fewer"
        return replace(result, proof=None, no_proof=text)
    return replace(result, proof=proof)


def _refusal(model: Model, query: Query, result: MapResult, draft: Proof) -> str | None:
    """Return the sentence why there is no proof, or None."""
    method = draft.meta["method"]
    if "no_proof" in draft.meta:
        return draft.meta["no_proof"]
    if not len(query.variables):
        return "a query without variables has nothing to prove"
    try:
        kind, _, arrays, _ = exported(model)
    except ModelError as error:
        return f"the model cannot be handed to the checker: {error}"
    if isinstance(model, Circuit):
        if method == "bound":
            return f"solver {result.solver!r} cannot write a proof on a circuit; {WITH_PROOFS} can"
        return None
    try:
        sizes = query.domain.n_states.astype(np.int64)
        asked = Asked(sizes, query.variables, query.log_weights)
        Buckets.of(reduce(*tables_of(kind, sizes, arrays), asked))
    except Rejected as reason:
        return f"{reason}; {WITH_PROOFS} can write a proof"
    return None
