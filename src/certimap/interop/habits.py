"""Support for conventions of other libraries."""

from __future__ import annotations

from typing import Any

from certimap.core.untyped import is_sequence
from certimap.errors import QueryError
from certimap.interop.reading import labels_of, numbers

OUR_WAY = "evidence={'X': {'likelihood': [one weight per state]}} says the same"


def with_virtual_evidence(evidence: Any, virtual: Any) -> dict[str, Any]:
    """Join evidence with pgmpy's virtual evidence.

    `evidence`: a mapping or a Series from names to values, or None. `virtual`: tables over single variables
    (`TabularCPD`, `DiscreteFactor`) with likelihoods of the states. Returns evidence with a likelihood for each
    label of these variables. Raises QueryError for anything else, and for a variable that has evidence already.
    """
    if evidence is not None and hasattr(evidence, "iterrows"):
        raise QueryError(f"virtual_evidence does not go with a frame of evidence rows; {OUR_WAY} in each row")
    joined: dict[str, Any] = {}
    if evidence is not None:
        joined = {str(name): value for name, value in evidence.items()}
    tables = virtual if is_sequence(virtual) else [virtual]
    for table in tables:
        name, likelihood = _likelihood(table)
        if joined.get(name) is not None:
            raise QueryError(f"variable {name!r} has virtual evidence and evidence; expected one")
        joined[name] = likelihood
    return joined


def _likelihood(table: Any) -> tuple[str, dict[str, Any]]:
    if not all(hasattr(table, name) for name in ("variables", "values", "state_names")):
        raise QueryError(
            f"virtual evidence holds {table!r}; expected a table of pgmpy over one variable, and {OUR_WAY}"
        )
    variables = list(table.variables)
    if len(variables) != 1:
        shown = ", ".join(str(v) for v in variables)
        raise QueryError(
            f"a table of virtual evidence is over several variables ({shown}); expected one each (an observed "
            "child of them all, added to the network, says the same)"
        )
    labels = labels_of(table.state_names[variables[0]])
    weights = numbers(table.values).ravel().tolist()
    return str(variables[0]), {"likelihood": dict(zip(labels, weights, strict=True))}
