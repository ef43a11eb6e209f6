"""Proofs of queries to networks: by elimination, by steps, by relaxations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker import Proof
from certimap.checker.buckets import Layout, value_at
from certimap.checker.models import Question as Asked
from certimap.checker.models import Reduced, Rejected, reduce, tables_of
from certimap.control import Control
from certimap.errors import ModelError, TooLarge
from certimap.io.native import exported
from certimap.model import Model
from certimap.proofs.answers import answers_of
from certimap.query import Query
from certimap.result import CertificateKind, MapResult

WITH_PROOFS = "'frontier' and 'exhaustive' on circuits, and any solver on networks whose tables fit"
NOT_CLOSED = "no steps and no relaxation that were found in {:.0f} s prove it; a higher time_limit may find some"
EASY = 0.5  # seconds of solving a network; the checker finds by itself which vectors count where it took less
STEPS_SHARE = 0.7  # of the time for a proof of a wide network; a relaxation, which may bound, gets the rest


def reduced_network(model: Model, query: Query) -> Reduced:
    """Return a network's tables under the evidence, as the checker sees them."""
    kind, _, arrays, _ = exported(model)
    sizes = query.domain.n_states.astype(np.int64)
    return reduce(*tables_of(kind, sizes, arrays), Asked(sizes, query.variables, query.log_weights))


def too_wide(model: Model, query: Query) -> str | None:
    """Return why the checker cannot eliminate a network, or None."""
    try:
        Layout.of(reduced_network(model, query))
    except (Rejected, ModelError) as reason:
        return f"{reason}; {WITH_PROOFS} can write a proof"
    return None


def eliminated(
    model: Model, query: Query, result: MapResult, max_bytes: int
) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return method and arrays of a proof by elimination: why which vectors go, where that is dear to find."""
    if result.certificate.kind is CertificateKind.NONE or result.seconds < EASY:
        return "sets", {}
    checked = reduced_network(model, query)
    if not {v for table in checked.tables for v in table.scope} - set(checked.queried):
        return "sets", {}
    from certimap.proofs.vectors import recorded

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


def wide(model: Model, query: Query, result: MapResult, max_bytes: int, seconds: float) -> Proof:
    """Prove an answer by steps or a relaxation, or how much better another one can be if it is not certified."""
    from certimap.proofs.relaxations import bounded, covered
    from certimap.proofs.steps import steps_of

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
                steps = steps_of(checked, threshold, limits, max_bytes, point=points[0].tolist())
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
