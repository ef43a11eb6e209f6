"""`certimap info`: the content of a model, and the difficulty of a query before it allocates memory."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from certimap.cli.options import EvidenceOptions, JsonOption, QueryFileOption
from certimap.cli.output import print_rows
from certimap.core.arguments import is_list

if TYPE_CHECKING:
    from certimap.circuits.circuit import Circuit
    from certimap.core.domain import Domain
    from certimap.core.model import Model
    from certimap.core.query import Query
    from certimap.networks.network import Network

LOOK_SECONDS = 10.0  # time limit for conditioning, after which the first look is skipped
_SHOWN_STATES = 8
_SHOWN_VARIABLES = 40


def info(
    case: EvidenceOptions,
    query_file: QueryFileOption = None,
    estimate_lipschitz: Annotated[
        bool,
        typer.Option(
            "--estimate-lipschitz", help="Measure how fast the probability falls off around a good answer."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a model's variables and size; with a query or evidence, what answering it takes and what to expect."""
    source, variables, given = case.read_case(query_file)
    domain: Domain = source.domain
    facts: dict[str, Any] = {"kind": type(source).__name__, "variables": len(domain)}
    if domain.is_discrete:
        facts["log10_joint_states"] = domain.log_size / math.log(10.0)
    one = None
    if any(given is not None for given in (case.query, case.evidence, case.evidence_file, query_file)):
        from certimap.core.query import make_query

        one = make_query(domain, variables, given, hidden=source.hidden)
        facts["query_variables"] = len(one.variables)
        facts["observed_variables"] = len(one.observed)
        facts["summed_out_variables"] = len(one.nuisance)
    facts |= _facts_of(source, one)
    if one is not None and len(one.variables):
        facts |= _choice(source, one)
        facts |= _expectation(source, one, estimate_lipschitz)
    if as_json:
        from certimap.core.domain import Real

        facts["domain"] = {v.name: [v.low, v.high] if isinstance(v, Real) else list(v.states) for v in domain}
        print(json.dumps(facts, indent=2, default=str))
        return
    print_rows((name.replace("_", " "), _shown(value)) for name, value in facts.items())
    print()
    _print_variables(domain)


def _facts_of(source: Model, query: Query | None) -> dict[str, Any]:
    """Count the parts of a model, without compiling it."""
    from certimap.circuits.circuit import Circuit
    from certimap.networks.network import Network

    if isinstance(source, Circuit):
        return _circuit_facts(source)
    return _network_facts(source, query) if isinstance(source, Network) else {}


def _circuit_facts(circuit: Circuit) -> dict[str, Any]:
    """Count nodes and edges, and compute the properties that make queries easy."""
    from certimap.circuits.properties import is_decomposable, is_deterministic, is_smooth

    return {
        "nodes": circuit.n_nodes,
        "edges": circuit.n_edges,
        "smooth": is_smooth(circuit),
        "decomposable": is_decomposable(circuit),
        "deterministic": is_deterministic(circuit),
    }


def _network_facts(network: Network, query: Query | None) -> dict[str, Any]:
    """Report the size of the circuit that a network compiles to."""
    size = network.size_report(query)
    return {
        "factors": len(network.factors),
        "table_entries": int(sum(factor.log_table.size for factor in network.factors)),
        "induced_width": size.induced_width,
        "log2_largest_table": size.log2_largest,
        "estimated_circuit_edges": size.n_edges,
    }


def _choice(source: Model, query: Query) -> dict[str, Any]:
    """Return the representation and solver that `auto` would choose, and the alternatives."""
    from certimap.conversions import plan
    from certimap.errors import ModelError
    from certimap.solvers.registry import expected

    try:
        choice = plan(source, query)
    except ModelError as problem:
        return {"representation": f"none: {problem}"}
    considered = [
        f"{option.row.name} ({option.estimate.text}){'' if option.estimate.fits else ', too large'}"
        for option in choice.options
    ]
    found: dict[str, Any] = {"representation": considered[-1], "because": choice.why}
    if len(considered) > 1:
        found["instead_of"] = considered[:-1]
    return found | {"expected_solver": expected(choice)}


def _expectation(source: Model, query: Query, with_lipschitz: bool) -> dict[str, Any]:
    """Return first bounds for the conditioned query, or the reason for having none."""
    import certimap
    from certimap.conversions import condition
    from certimap.core.control import Control, Limits, TimeUp
    from certimap.errors import ModelError

    try:
        posterior = condition(source, query, limits=Limits(control=Control.starting_now(LOOK_SECONDS)))
    except (ModelError, TimeUp) as problem:
        return {"expected": f"unknown: {problem}"}
    look = certimap.forecast(posterior)
    found: dict[str, Any] = {"expected_solver": look.solver}
    if look.min_entropy_bits is None:
        found["log_value_found"], found["log_value_at_most"] = look.log_found, look.log_upper
    else:
        found["min_entropy_bits_at_least"], found["min_entropy_bits_at_most"] = look.min_entropy_bits
    if look.draws is not None:
        found["draws_of_pac_at_least"], found["draws_of_pac_likely"] = look.draws
    if look.no_draws is not None:
        found["draws_of_pac"] = f"none suffice: {look.no_draws}"
    if with_lipschitz and posterior.domain.is_discrete:
        found["lipschitz"] = certimap.estimate_lipschitz(posterior, look.assignment).sentence
    elif with_lipschitz:
        found["lipschitz"] = "not measured: a query variable is real"
    return found


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if value < 1e15 else f"{value:.2e}"
    if is_list(value):
        return "; ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_variables(domain: Domain) -> None:
    from certimap.core.domain import Real

    rows: list[tuple[str, str]] = []
    for variable in domain.variables[:_SHOWN_VARIABLES]:
        if isinstance(variable, Real):
            rows.append((variable.name, f"a number in [{variable.low}, {variable.high}]"))
            continue
        states = variable.states
        text = ", ".join(str(s) for s in states[:_SHOWN_STATES])
        rows.append(
            (variable.name, text if len(states) <= _SHOWN_STATES else f"{text}, ... ({len(states)} in all)")
        )
    print_rows(rows)
    if len(domain) > _SHOWN_VARIABLES:
        print(f"... {len(domain) - _SHOWN_VARIABLES} more variables (--json lists them all)")
