"""The representations of a network: a compiled circuit, and the tree of an elimination order."""

from __future__ import annotations

from typing import cast

from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions.network_to_circuit import Compiler, is_large
from certimap.conversions.network_to_tree import elimination_order, largest_table, tree_of_reduced
from certimap.conversions.rows import OF_CIRCUIT, OF_TREE, Case, Estimate, Row
from certimap.networks.elimination import Elimination, plan_elimination
from certimap.networks.network import Network
from certimap.networks.reduction import Reduced, reduce_network
from certimap.posterior import Posterior
from certimap.query import make_query


def _reduced(case: Case) -> Reduced:
    return case.shared(
        "reduced", lambda: reduce_network(cast(Network, case.model), case.query, control=case.limits.control)
    )


def _elimination(case: Case) -> Elimination:
    """Return the order that both representations use."""
    reduced = _reduced(case)
    scopes, control = [f.scope for f in reduced.factors], case.limits.control
    return case.shared(
        "elimination", lambda: plan_elimination(scopes, reduced.sizes, reduced.query, control=control)
    )


def _circuit_size(case: Case) -> Estimate:
    elimination = _elimination(case)
    return Estimate(elimination.describe(), elimination.n_edges, not is_large(elimination, case.limits.max_edges))


def _circuit(case: Case) -> Posterior:
    control = case.limits.control
    circuit = Compiler(_reduced(case), _elimination(case), case.query.query_domain, control).circuit()
    return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain), workers=case.limits.workers)


def _tree_size(case: Case) -> Estimate:
    elimination = _elimination(case)
    largest = largest_table(_reduced(case), elimination)
    text = f"induced width {elimination.induced_width}, a table of {largest:.3g} entries"
    return Estimate(text, 2.0 ** min(elimination.log2_size, 1000.0), largest <= case.limits.max_edges)


def _tree(case: Case) -> Posterior:
    reduced = _reduced(case)
    order = elimination_order(reduced, _elimination(case))
    limits = case.limits
    return tree_of_reduced(reduced, case.query, order, max_table=limits.max_edges, workers=limits.workers)


ROWS = (
    Row("compiled circuit", Network, OF_CIRCUIT, _circuit_size, _circuit),
    Row("elimination tree", Network, OF_TREE, _tree_size, _tree),
)
