"""Linear-Gaussian networks: hand-written JSON, and the arrays of the native format.

The JSON is an object with `format` ("linear-gaussian") and `variables`, a list of objects. A discrete variable has
`name`, `states`, `parents` (discrete ones; absent for none) and `table`, nested lists with one level per parent
and its own states last. A real one has `name`, `parents`, `intercept`, `coefficients` and `sd`, as
`LinearGaussian` takes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from certimap.core.arguments import is_list
from certimap.core.arrays import Array, Floats
from certimap.core.domain import Categorical, Domain
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import CertimapError, ModelError, ParseError, did_you_mean
from certimap.io.array_files import ArrayParts
from certimap.io.circuit_records import Record, is_record, shown
from certimap.io.files import AnyPath, cut, write_text
from certimap.io.identifiers import decoded_label, encoded_label
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor

FORMAT = "linear-gaussian"
_DISCRETE = ("name", "states", "parents", "table")
_REAL = ("name", "parents", "intercept", "coefficients", "sd")
_TOP = ("format", "variables", "hidden")


def linear_gaussian_of_record(path: AnyPath, data: Record) -> LinearGaussianNetwork:
    """Build a network from the content of a JSON file; ParseError for anything invalid."""
    try:
        return _network(data)
    except ParseError:
        raise
    except CertimapError as error:
        raise ParseError(str(error), path) from None


def _network(data: Record) -> LinearGaussianNetwork:
    _check_keys(data, _TOP, "the file", ("variables",))
    states: dict[str, Sequence[Any]] = {}
    parents: dict[str, list[str]] = {}
    tables: dict[str, Floats] = {}
    nodes: list[LinearGaussian] = []
    for number, record in enumerate(_list(data["variables"], "variables")):
        name = record.get("name") if is_record(record) else None
        if not is_record(record) or not isinstance(name, str):
            raise ModelError(f"variable {number} (from 0) has no name; expected an object with a name as text")
        what = f"variable {cut(name)}"
        if name in states or any(node.variable == name for node in nodes):
            raise ModelError(f"{what} is declared twice; expected once")
        above = _names(record.get("parents", []), f"parents of {what}")
        if "states" in record:
            _check_keys(record, _DISCRETE, f"the discrete {what}", ("table",))
            states[name] = [decoded_label(x) for x in _list(record["states"], f"states of {what}")]
            parents[name], tables[name] = above, _numbers(record["table"], f"table of {what}")
            continue
        _check_keys(record, _REAL, f"the real {what}", ("sd",))
        intercept = _numbers(record.get("intercept", 0.0), f"intercept of {what}")
        coefficients = _numbers(record.get("coefficients", []), f"coefficients of {what}")
        sd = _numbers(record["sd"], f"sd of {what}")
        nodes.append(LinearGaussian(name, above, intercept, coefficients, sd))
    real = [node.variable for node in nodes]
    for name, above in parents.items():
        for parent in above:
            if parent in real:
                raise ModelError(
                    f"the discrete variable {name!r} has the real parent {parent!r}; expected discrete ones alone"
                )
    hidden = _names(data.get("hidden", []), "hidden")
    if not states:
        return LinearGaussianNetwork(nodes)
    made = BayesianNetwork.from_cpts(states, parents, tables)
    discrete = BayesianNetwork(made.domain, made.factors, hidden) if hidden else made
    return LinearGaussianNetwork(nodes, discrete)


def write_linear_gaussian(model: LinearGaussianNetwork, path: AnyPath) -> None:
    """Write a network as JSON; numbers read back exactly.

    ModelError if the discrete part is not a Bayesian network, and for labels that JSON cannot hold.
    """
    discrete = _discrete_part(model)
    variables: list[Record] = []
    if discrete is not None:
        for variable, factor in zip(discrete.domain, discrete.factors, strict=True):
            assert isinstance(variable, Categorical)
            states = [encoded_label(label, variable.name) for label in variable.states]
            parents = [discrete.domain.names[v] for v in factor.scope[:-1]]
            variables.append(
                {"name": variable.name, "states": states, "parents": parents, "table": factor.table.tolist()}
            )
    for node in model.nodes:
        given = {"intercept": node.intercept, "coefficients": node.coefficients, "sd": node.sd}
        numbers = {key: np.asarray(values).tolist() for key, values in given.items()}
        variables.append({"name": node.variable, "parents": list(node.parents), **numbers})
    top: dict[str, str | list[str]] = {"format": FORMAT}
    if model.hidden:
        top["hidden"] = sorted(model.hidden)
    lines = ",\n".join(f"  {json.dumps(v, allow_nan=False)}" for v in variables)
    write_text(path, f'{json.dumps(top)[:-1]}, "variables": [\n{lines}\n]}}\n')


def _discrete_part(model: LinearGaussianNetwork) -> BayesianNetwork | None:
    if model.discrete is None or isinstance(model.discrete, BayesianNetwork):
        return model.discrete
    raise ModelError(
        f"the discrete variables of this network are in a {type(model.discrete).__name__}; files hold those in a "
        "BayesianNetwork"
    )


def _check_keys(record: Record, known: Sequence[str], what: str, needed: Sequence[str]) -> None:
    for key in record:
        if key not in known:
            raise ModelError(
                f"{what} has the key {cut(str(key))}; expected {', '.join(known)}{did_you_mean(str(key), known)}"
            )
    for key in needed:
        if key not in record:
            raise ModelError(f"{what} has no {key}; expected one")


def _list(value: Any, what: str) -> list[Any]:
    if not is_list(value):
        raise ModelError(f"{what}: {shown(value)} is no list; expected one")
    return value


def _names(value: Any, what: str) -> list[str]:
    names = _list(value, what)
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{what}: {shown(name)} is no name; expected text")
    return names


def _numbers(value: Any, what: str) -> Floats:
    """Return nested lists of numbers as an array."""
    stack: list[Any] = [value]
    while stack:
        x = stack.pop()
        if is_list(x):
            stack += x
        elif not isinstance(x, int | float) or isinstance(x, bool):
            raise ModelError(
                f"{what}: {shown(x)} is no number; expected numbers, in lists where there are several"
            )
    try:
        return np.array(value, np.float64)
    except ValueError:
        raise ModelError(f"{what} holds lists of different lengths; expected one number per combination") from None
    except OverflowError:
        raise ModelError(f"{what} holds a number beyond floats; expected finite numbers") from None


def arrays_of_linear_gaussian(model: LinearGaussianNetwork) -> dict[str, Array]:
    """Return the arrays of the native format, without the domain: each kind of parameter concatenated."""
    discrete = _discrete_part(model)
    factors: tuple[Factor, ...] = () if discrete is None else discrete.factors
    nodes = model.nodes
    names = model.domain.names

    def joined(parts: list[Any]) -> Floats:
        return np.concatenate([np.zeros(0), *(np.asarray(part, np.float64).reshape(-1) for part in parts)])

    scopes = [list(f.scope) for f in factors]
    parents = [[names.index(parent) for parent in node.parents] for node in nodes]
    return {
        "scope_lengths": np.array([len(scope) for scope in scopes], np.int64),
        "scopes": np.array([v for scope in scopes for v in scope], np.int64),
        "tables": joined([f.table for f in factors]),
        "hidden": np.array(sorted(model.hidden), np.str_),
        "parent_counts": np.array([len(above) for above in parents], np.int64),
        "parents": np.array([v for above in parents for v in above], np.int64),
        "intercepts": joined([node.intercept for node in nodes]),
        "coefficients": joined([node.coefficients for node in nodes]),
        "sds": joined([node.sd for node in nodes]),
    }


def linear_gaussian_of_arrays(domain: Domain, arrays: Mapping[str, Array]) -> LinearGaussianNetwork:
    """Build a network from its domain and arrays; ModelError or a numpy error if they do not fit."""
    sizes: list[int] = domain.n_states.tolist()
    n_discrete = sum(size > 0 for size in sizes)
    if any(size == 0 for size in sizes[:n_discrete]):
        raise ModelError("the real variables do not follow the discrete ones")
    take = {name: ArrayParts(arrays[name]) for name in ("scopes", "tables", "parents")}
    take |= {name: ArrayParts(arrays[name]) for name in ("intercepts", "coefficients", "sds")}
    factors: list[Factor] = []
    for length in arrays["scope_lengths"].tolist():
        scope = take["scopes"].integers(length, n_discrete)
        factors.append(Factor(scope, take["tables"].numbers([sizes[v] for v in scope])))
    nodes: list[LinearGaussian] = []
    for name, length in zip(domain.names[n_discrete:], arrays["parent_counts"].tolist(), strict=True):
        above = take["parents"].integers(length, len(sizes))
        shape = [sizes[v] for v in above if sizes[v]]
        n_real = len(above) - len(shape)
        intercept, sd = take["intercepts"].numbers(shape), take["sds"].numbers(shape)
        coefficients = take["coefficients"].numbers([*shape, n_real])
        nodes.append(LinearGaussian(name, [domain.names[v] for v in above], intercept, coefficients, sd))
    if any(taker.left for taker in take.values()):
        raise ModelError("its arrays do not fit each other")
    if not n_discrete:
        return LinearGaussianNetwork(nodes)
    hidden = [str(name) for name in arrays["hidden"].tolist()]
    return LinearGaussianNetwork(nodes, BayesianNetwork(domain.subset(range(n_discrete)), factors, hidden))
