"""From any model and a query to a posterior."""

from __future__ import annotations

from typing import Any, cast

from certimap.engine.posterior import Posterior
from certimap.errors import ModelError
from certimap.query import Query

MAX_EDGES = 20_000_000


def posterior_of(model: Any, query: Query, *, max_edges: int = MAX_EDGES, workers: int | None = None) -> Posterior:
    """Return p(q | e) of a model as a posterior.

    Parameters
    ----------
    model
        Anything with a method `condition(query, *, max_edges, workers)`: circuits, networks, learned
        models.
    query
        Made from `model.domain` (see `make_query`).
    max_edges
        The largest circuit, in edges, that may be built or conditioned.
    workers
        Threads of the posterior; None takes one a processor.

    Raises
    ------
    ImpossibleEvidence
        When p(e) = 0.
    ModelError
        When the model is too large for `max_edges`, or is no model.
    """
    condition = getattr(model, "condition", None)
    if condition is None:
        raise ModelError(
            f"a {type(model).__name__} is no model; a Circuit, a BayesianNetwork, a MarkovNetwork or an object "
            "with a method condition(query, *, max_edges, workers) is accepted"
        )
    return cast(Posterior, condition(query, max_edges=max_edges, workers=workers))
