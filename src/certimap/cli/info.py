"""`certimap info`: the content of a model, and the difficulty of a query before it allocates memory."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

import certimap
from certimap.ask.session import settled
from certimap.cli.options import EvidenceOptions, JsonOption, QueryFileOption
from certimap.cli.solve import print_rows
from certimap.core.arguments import is_list
from certimap.core.control import Control, Limits, TimeUp
from certimap.core.domain import Domain, Real
from certimap.core.model import Model
from certimap.core.query import Query, make_query
from certimap.decisions.network import DecisionNetwork
from certimap.errors import ModelError
from certimap.networks.network import Network
from certimap.solvers.registry import expected

LOOK_SECONDS = 10.0  # time limit for conditioning, after which the first look is skipped
_SHOWN_STATES = 8
_SHOWN_VARIABLES = 40


def info(
    case: EvidenceOptions,
    query_file: QueryFileOption = None,
    estimate_lipschitz: Annotated[
        bool, typer.Option("--estimate-lipschitz", help="Measure how fast p falls off around a good answer.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a model's variables and size; with a query or evidence, what answering it takes and what to expect."""
    source, variables, given = case.read_case(query_file)
    domain: Domain = source.domain
    facts: dict[str, Any] = {"kind": type(source).__name__, "variables": len(domain)}
    facts |= {"after": domain.done} if domain.interventions else {}
    if domain.is_discrete:
        facts["log10_joint_states"] = domain.log_size / math.log(10.0)
    one = None
    if any(given is not None for given in (case.query, case.evidence, case.evidence_file, query_file)):
        one = make_query(domain, variables, settled(source, given, Limits()), hidden=source.hidden)
        facts["query_variables"] = len(one.variables)
        facts["observed_variables"] = len(one.observed)
        facts["summed_out_variables"] = len(one.nuisance)
    facts |= _facts_of(source, one)
    if one is not None and len(one.variables):
        facts |= _choice(source, one) | _expectation(source, one, estimate_lipschitz)
    if as_json:
        facts["domain"] = {v.name: [v.low, v.high] if isinstance(v, Real) else list(v.states) for v in domain}
        print(json.dumps(facts, indent=2, default=str))
        return
    print_rows((name.replace("_", " "), _shown(value)) for name, value in facts.items())
    print()
    _print_variables(domain)
    if source.source_columns:
        print(f"\nlearned from a table:\n{source.source_columns}")


def _facts_of(source: Model, query: Query | None) -> dict[str, Any]:
    """Count the parts of a circuit or network, without compiling it, with what makes queries easy or hard."""
    if isinstance(source, Network):
        size = source.size_report(query)
        return {
            "factors": len(source.factors),
            "table_entries": int(sum(factor.log_table.size for factor in source.factors)),
            "induced_width": size.induced_width,
            "log2_largest_table": size.log2_largest,
            "estimated_circuit_edges": size.n_edges,
        }
    if isinstance(source, DecisionNetwork):
        knowing = {name: ", ".join(source.information(name)) or "nothing" for name in source.decisions}
        return {
            "decisions": [f"{name}, knowing {known}" for name, known in knowing.items()],
            "limited_memory": source.limited_memory,
            "utilities": [utility.name for utility in source.utilities],
        }
    from certimap.circuits import properties
    from certimap.circuits.circuit import Circuit

    if not isinstance(source, Circuit):
        return {}
    tests = (properties.is_smooth, properties.is_decomposable, properties.is_deterministic)
    found = {test.__name__.removeprefix("is_"): test(source) for test in tests}
    return {"nodes": source.n_nodes, "edges": source.n_edges, **found}


def _choice(source: Model, query: Query) -> dict[str, Any]:
    """Return the representation and solver that `auto` would choose, and the alternatives."""
    from certimap.conversions import plan

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
    from certimap.conversions import condition

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
    rows: list[tuple[str, str]] = []
    for variable in domain.variables[:_SHOWN_VARIABLES]:
        if isinstance(variable, Real):
            rows.append((variable.name, f"a number in [{variable.low}, {variable.high}]"))
            continue
        text = ", ".join(map(str, variable.states[:_SHOWN_STATES]))
        more = f", ... ({variable.n_states} in all)" if variable.n_states > _SHOWN_STATES else ""
        rows.append((variable.name, text + more))
    print_rows(rows)
    if len(domain) > _SHOWN_VARIABLES:
        print(f"... {len(domain) - _SHOWN_VARIABLES} more variables (--json lists them all)")
