"""Queries under constraints: the way that each takes, and what its result says of the unconstrained model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from certimap.certify import bounds
from certimap.checker import Proof
from certimap.core.control import Control, TimeUp
from certimap.core.model import Model
from certimap.core.posterior import Capability, Decodes, Draws, Masses, Posterior, Probes, offers
from certimap.core.query import Query
from certimap.core.result import HistoryEntry, MapResult
from certimap.errors import ModelError, SolverError
from certimap.solvers.driver import UNFOUND
from certimap.solvers.registry import SMALL_SPACE
from certimap.solvers.request import Request

if TYPE_CHECKING:
    from certimap.core.constraints import Constraint
    from certimap.core.rules import Rules
    from certimap.networks.network import Network
    from certimap.networks.sum_pass import Total

UNDER_RULES = frozenset({Draws, Masses, Probes, Decodes})  # capabilities that constraints leave a posterior
POINTS = ("certimap.networks.posterior:NetworkPosterior",)  # of a network whose answers are listed
QUICKLY_LISTED, LISTED_WORK = 1e7, 1e9  # table entries visited: with no look for a better way, and at most
DEARER = 50.0  # times an entry visited by listing, an entry of a table that elimination makes


def under(posterior: Posterior, rules: Rules | Sequence[Constraint] | None) -> Posterior:
    """Return a posterior under constraints, if there are any."""
    if not rules:
        return posterior
    from certimap.core.constrained import ConstrainedPosterior
    from certimap.core.rules import Rules

    rules = rules if isinstance(rules, Rules) else Rules.of(posterior.domain, rules)
    return ConstrainedPosterior(posterior, rules)


def posed(model: Model, query: Query, request: Request, control: Control) -> Query:
    """Return the query to condition on: of a network, with counters unless its answers are to be listed."""
    from certimap.networks.network import Network

    if not isinstance(model, Network):
        return _posed_to_tree(model, query, request, control)
    if not len(query.variables):
        return query
    from certimap.networks.constrained import constrained, is_eliminated_within

    solver = request.solver
    if solver != "auto":
        return query if solver.name == "exhaustive" else constrained(model, query)[1]
    network, counted = constrained(model, query)
    assert query.rules is not None
    n_answers = query.rules.listable
    if n_answers is None:
        return counted
    from certimap.conversions import plan

    limits = replace(request.limits, control=control)
    try:
        point = plan(model, query, wants=POINTS, limits=limits).options[0].estimate
        work = point.work * n_answers
        if point.fits and work <= LISTED_WORK:
            most = work / DEARER
            may_be_less = work > QUICKLY_LISTED and is_eliminated_within(network, counted, most, control)
            has_tables = may_be_less and Masses in plan(network, counted, limits=limits).row.offers
            return counted if has_tables else query
    except (TimeUp, ModelError):
        pass
    return counted


def _posed_to_tree(model: Model, query: Query, request: Request, control: Control) -> Query:
    """Return the query, to a network with counters where the model is another form of one that is no wider."""
    from certimap.circuits.circuit import Circuit

    assert query.rules is not None
    solver, limits = request.solver, replace(request.limits, control=control)
    if solver == "auto":
        is_alone = query.rules.most <= SMALL_SPACE
    else:
        is_alone = solver.family != "sampling" and offers(UNDER_RULES, solver.needs)
        is_alone |= request.proof_bytes is not None and isinstance(model, Circuit)
    if is_alone or not len(query.variables):
        return query
    from certimap.conversions import plan
    from certimap.networks.constrained import constrained

    try:
        if (network := _as_network(model, control)) is None:
            return query
        counting, counted = constrained(network, query)
        return counted if Masses in plan(counting, counted, limits=limits).row.offers else query
    except (TimeUp, ModelError):
        return query


def _as_network(model: Model, control: Control) -> Network | None:
    """Return a network, or another model that is one with hidden variables, as a network; None for the rest."""
    from certimap.circuits.circuit import Circuit
    from certimap.conversions.circuit_to_tree import network_of_circuit
    from certimap.networks.network import Network

    found = model if isinstance(model, Network) else model.kept.get("network")
    if found is None and isinstance(model, Circuit):
        found = network_of_circuit(model, control)
    elif found is None and (to_network := getattr(model, "to_network", None)) is not None:
        found = to_network()
    if found is not None and found is not model:
        model.kept.put("network", found, sum(factor.log_table.nbytes for factor in found.factors))
    return found


def network_of(model: Model, query: Query) -> tuple[Model, bool]:
    """Return the model that a posed query is to, and whether it is a network with counters."""
    if query.rules is None or query.domain is model.domain:
        return model, False
    from certimap.networks.constrained import constrained_network

    network = _as_network(model, Control())
    assert network is not None
    return constrained_network(network, query.rules.constraints), True


def wants_under(model: Model, query: Query, wants: Sequence[Capability | str] | None) -> Any:
    """Return the capabilities that a posed query wants of its posterior; `wants` without constraints."""
    if query.rules is None or not len(query.variables) or network_of(model, query)[1]:
        return wants
    from certimap.networks.network import Network

    if isinstance(model, Network):
        return POINTS
    return (Masses, Probes) if wants is None else wants  # a tree's bounds of boxes are weaker than a circuit's


def total_of(model: Model, query: Query, control: Control) -> Total | None:
    """Return ln p(e) of the model behind a network with counters; None of others, and where it takes too long."""
    if not network_of(model, query)[1]:
        return None
    from certimap.networks.constrained import log_evidence_of_whole

    network = _as_network(model, control)
    assert network is not None
    return log_evidence_of_whole(network, query, control)


def signed_under(
    found: MapResult, model: Model, query: Query | None, constraints: tuple[Constraint, ...], control: Control
) -> MapResult:
    """Return a result with its constraints, and with probabilities under the unconstrained model.

    A network with counters has those given that the constraints hold. The others follow from joint probabilities,
    which are the same; without p(e) of the unconstrained network there are only these.
    """
    found = replace(found, constraints=constraints)
    if query is None or found.log_joint is None or not network_of(model, query)[1]:
        return found
    if found.log_joint == -math.inf:
        raise SolverError(UNFOUND)
    log_evidence, value, upper, total = None, None, None, total_of(model, query, control)
    if total is not None:
        log_evidence, value = total.log_value, min(found.log_joint - total.log_value, 0.0)
        if found.log_joint_upper_bound is not None:
            slack = total.log_slack + bounds.slack(total.log_value)
            upper = min(bounds.round_up(found.log_joint_upper_bound - total.log_value + slack), 0.0)
    now = found.log_joint if value is None else value
    was = found.log_joint if found.log_prob is None else found.log_prob
    shift = now - found.history[-1].log_prob if found.history else 0.0
    return replace(
        found,
        proof=_draft(found, model),
        log_prob=value,
        log_evidence=log_evidence,
        log_upper_bound=upper,
        # those of probability 0 may be no answers
        top=None if found.top is None else [(a, x + (now - was)) for a, x in found.top if x > -math.inf],
        min_entropy_bits=None,
        history=[_shifted(entry, shift) for entry in found.history],
    )


def _draft(found: MapResult, model: Model) -> Proof | None:
    """Return the draft of a proof; a search of a circuit has to prove anew what a run on its network proved."""
    from certimap.circuits.circuit import Circuit

    is_of_network = found.proof is not None and "no_proof" not in found.proof.meta
    if is_of_network and isinstance(model, Circuit) and found.certificate.delta == 0.0:
        return Proof({"method": "bound"}, {})
    return found.proof


def _shifted(entry: HistoryEntry, shift: float) -> HistoryEntry:
    best, upper, mass = entry.log_prob + shift, entry.log_upper_bound + shift, entry.log_open_mass + shift
    return replace(entry, log_prob=best, log_upper_bound=upper, log_open_mass=mass)
