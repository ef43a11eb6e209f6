"""Proofs of queries to networks: by elimination, by steps, by relaxations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker import Proof
from certimap.checker.buckets import BucketLayout, ProofBuckets
from certimap.checker.models import CheckBudget, ReducedModel, Rejected, reduce, tables_of
from certimap.checker.models import Question as Asked
from certimap.checker.network import boxes_beside, value_at
from certimap.core.control import Control
from certimap.core.model import Model
from certimap.core.query import Query
from certimap.core.result import CertificateKind, MapResult
from certimap.errors import ModelError, TooLarge
from certimap.io.native import exported
from certimap.networks.width import looks_too_wide
from certimap.proofs.circuits import answers_of

WITH_PROOFS = "'frontier' and 'exhaustive' on circuits, and any solver on networks whose tables fit"
NOT_CLOSED = "no steps that were found in {:.0f} s prove it; a higher time_limit may find some"
NOT_ELIMINATED = "no elimination of {:.0f} s and {:,} bytes proves it; a higher time_limit or max_proof may help"
EASY = 0.5  # seconds of solving; below, the checker finds the relevant vectors itself
STEPS_SHARE = 0.7  # of the time for a proof of a wide network; relaxations get the rest


def reduced_network(model: Model, query: Query) -> ReducedModel:
    """Return a network's tables under the evidence, in the checker's form."""
    kind, _, arrays, _ = exported(model)
    sizes = query.domain.n_states.astype(np.int64)
    return reduce(*tables_of(kind, sizes, arrays), Asked(sizes, query.variables, query.log_weights))


def of_network(
    model: Model, query: Query, result: MapResult, draft: Proof, max_bytes: int, seconds: float
) -> Proof:
    """Return the proof of an answer to a network, given the run's draft, or the reason why there is none."""
    is_drawn = draft.meta["method"] == "draws"
    try:
        checked = reduced_network(model, query)
        budget = CheckBudget.starting_now(seconds)
        scopes = [t.scope for t in checked.tables]
        if not is_drawn and looks_too_wide(scopes, {v: int(checked.sizes[v]) for scope in scopes for v in scope}):
            return wide(model, query, result, max_bytes, seconds)
        layout = BucketLayout.of(checked, budget)
    except (Rejected, ModelError) as reason:
        if not is_drawn:
            return wide(model, query, result, max_bytes, seconds)
        return Proof({"method": "none", "no_proof": f"{reason}; {WITH_PROOFS} can write a proof"}, {})
    if is_drawn or "no_proof" in draft.meta:
        return draft
    arrays: dict[str, NDArray[Any]] | None = {}
    has_sums = bool({v for table in checked.tables for v in table.scope} - set(checked.queried))
    if has_sums and result.seconds >= EASY:
        from certimap.proofs.vectors import recorded

        points = [query.query_domain.encode(dict(answer)).tolist() for answer in answers_of(result)]
        claim = result.certificate.epsilon, result.certificate.tolerance
        arrays = recorded(ProofBuckets.of(checked, layout, budget), points, *claim, max_bytes)
    if arrays is None:
        return Proof({"method": "none", "no_proof": NOT_ELIMINATED.format(seconds, max_bytes)}, {})
    return Proof({**draft.meta, "method": "vectors"}, arrays)


def wide(model: Model, query: Query, result: MapResult, max_bytes: int, seconds: float) -> Proof:
    """Prove an answer by steps; if it is not certified, prove an upper bound on all assignments."""
    from certimap.proofs.relaxations import bounded, covered, order_of_values
    from certimap.proofs.script import Script
    from certimap.proofs.steps import steps_of

    control = Control.starting_now(seconds)
    certificate = result.certificate
    try:
        checked = reduced_network(model, query)
        points = [query.query_domain.encode(dict(answer)).tolist() for answer in answers_of(result)]
        order = {"order": np.array(order_of_values(checked, control), np.int32)}
        values = [value_at(checked, point, -1, order["order"].tolist()) for point in points]
        log_value = min(values)
        # An answer whose value is known between two sides is worth what the checker finds, not its lower side.
        own = {"log_joint": values[0]} if abs(values[0] - (result.log_joint or 0.0)) > 1e-9 else {}
        draft = Proof({"method": "steps", "claim": own} if own else {"method": "steps"}, {})
        if certificate.kind is CertificateKind.NONE:
            found, stated = bounded(checked, Script(math.inf, control, max_bytes)), {}
        else:
            threshold = log_value - math.log1p(-certificate.epsilon) + math.log1p(certificate.tolerance)
            boxes = boxes_beside(checked, points)
            limits = Control.starting_now(STEPS_SHARE * seconds)
            point = points[0] if len(points) == 1 else None
            steps = steps_of(checked, boxes, Script(threshold, limits, max_bytes), point)
            if steps is not None:
                return Proof(draft.meta, order | steps)
            found = covered(checked, boxes, Script(threshold, control, max_bytes))
            if found is not None and found[1] <= threshold:
                return Proof(draft.meta, order | found[0])
            stated = {"certified": {"kind": certificate.kind.value, "epsilon": certificate.epsilon}}
        if found is not None and found[1] < math.inf:
            claim = {"kind": "bound", "epsilon": 0.0, "delta": 0.0, "log_upper": found[1], **own}
            return Proof({"method": "steps", "claim": claim, **stated}, order | found[0])
    except (Rejected, ModelError, TooLarge) as reason:
        return Proof({"method": "none", "no_proof": f"{reason}; {WITH_PROOFS} can write a proof"}, {})
    return Proof({"method": "none", "no_proof": NOT_CLOSED.format(seconds)}, {})
