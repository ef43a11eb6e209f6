"""From any model and a query to a posterior."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, cast

import numpy as np

from certimap.errors import ModelError
from certimap.posterior import Posterior
from certimap.query import Query, make_query

MAX_EDGES = 20_000_000
MAX_SPREAD = 4  # table entries of a tree for each edge of its circuit, where "auto" may choose
View = Literal["circuit", "tree", "problem", "auto"]


def posterior_of(
    model: Any,
    query: Query,
    *,
    max_edges: int = MAX_EDGES,
    workers: int | None = None,
    view: View | None = None,
) -> Posterior:
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
    view
        "circuit" or "tree" (of regions), where the model has both; "auto" takes a network's tree where its
        tables fit, which settled every public network as soon as its circuit did, and chains far sooner; None
        leaves it to the model. A structured circuit (see `tree_of_circuit`) is a tree too: "tree" takes any,
        "auto" those in which no sum decides a query variable and whose tables are not much larger than the
        circuit. Any other circuit stays one. "problem" is a network's maximisation, of any width.

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
    is_network = callable(getattr(model, "compile_query", None))
    if view == "circuit" and is_network:
        circuit = model.compile_query(query, max_edges=max_edges)
        return cast(Posterior, circuit.condition(make_query(circuit.domain), max_edges=max_edges, workers=workers))
    if view == "circuit" and callable(getattr(model, "to_circuit", None)):
        return posterior_of(model.to_circuit(), query, max_edges=max_edges, workers=workers)
    if view == "tree" and is_network:
        from certimap.trees.bucket_tree import bucket_tree_of

        return bucket_tree_of(model, query, max_table=max_edges, workers=workers)
    if view == "problem" and is_network:
        from certimap.networks.mpe_posterior import MpePosterior

        return MpePosterior(model, query)
    if view == "auto" and is_network:
        with suppress(ModelError):
            return posterior_of(model, query, max_edges=max_edges, workers=workers, view="tree")
    posterior = cast(Posterior, condition(query, max_edges=max_edges, workers=workers))
    return _as_tree(posterior, max_edges, view) if view in ("tree", "auto") and not is_network else posterior


def _as_tree(posterior: Posterior, max_edges: int, view: View) -> Posterior:
    """Return the tree of regions of a structured circuit; any other posterior as it is."""
    from certimap.circuits.posterior import CircuitPosterior

    if not isinstance(posterior, CircuitPosterior):
        return posterior
    plan, limit = posterior.plan, max_edges
    if view == "auto":
        if np.any(plan.decides >= 0):
            return posterior
        limit = min(limit, MAX_SPREAD * plan.n_edges)
    from certimap.conversions.circuit_to_tree import tree_of_circuit

    tree = tree_of_circuit(plan, log_evidence=posterior.log_evidence, max_table=limit, workers=posterior.workers)
    return posterior if tree is None else tree
