"""The native format: any model as one `.npz`, without pickle, read back exactly.

A file holds the model's arrays and `meta`, a JSON text with the format's version, the kind of model and its
domain. A class needs a method `to_arrays() -> dict[str, array]`, a class method `from_arrays(domain, arrays)`,
an attribute `domain`, and `register(kind, cls)`; classes of this package are registered already. Checks of the
arrays of circuits keep compiled code within their bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.checker import models
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kind, leaf_kinds
from certimap.core.arguments import is_list, is_tuple, plain_scalar
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.columns import ColumnNote, ColumnNotes
from certimap.core.domain import Categorical, Domain, Label, Real, Variable
from certimap.core.model import Model
from certimap.core.named import at
from certimap.decisions.network import DecisionNetwork, Utility
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import CertimapError, ModelError, ParseError
from certimap.io.array_files import ArrayParts, read_arrays, write_arrays
from certimap.io.files import AnyPath
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork, Network

NODES_TOGETHER = 2**16  # nodes that are checked together


def arrays_of_circuit(circuit: Circuit) -> dict[str, Array]:
    """Return the arrays for `circuit_of_arrays`."""
    arrays: dict[str, Array] = {
        "kind": circuit.kind,
        "child_ptr": circuit.child_ptr,
        "children": circuit.children,
        "log_weights": circuit.log_weights,
        "leaf_var": circuit.leaf_var,
        "param_ptr": circuit.param_ptr,
        "params": circuit.params,
    }
    lowest = int(circuit.kind.min())
    if lowest < 0:  # codes depend on the order of registration, names do not
        names = {code: kind.name for code, kind in leaf_kinds().items()}
        arrays["leaf_names"] = np.array([names[-k] for k in range(1, 1 - lowest)])
    return arrays


def circuit_of_arrays(domain: Domain, arrays: Mapping[str, Array]) -> Circuit:
    """Build a circuit from its arrays; arrays of the right type are not copied."""
    whole = ("kind", "child_ptr", "children", "param_ptr", "leaf_var")
    stored, child_ptr, children, param_ptr, leaf_var = (_vector(arrays[k], "iu", "integers") for k in whole)
    names = [str(name) for name in arrays.get("leaf_names", np.zeros(0, str)).tolist()]
    child_ptr, children, param_ptr = (x.astype(np.int64, copy=False) for x in (child_ptr, children, param_ptr))
    logs, params = (_floats(arrays[key]) for key in ("log_weights", "params"))
    circuit = Circuit(domain, _with_codes(stored, names), child_ptr, children, logs, leaf_var, param_ptr, params)
    if not _fits(circuit):
        raise ModelError("is a damaged circuit: its arrays do not fit each other")
    for start in range(0, circuit.n_nodes, NODES_TOGETHER):
        if not _is_sound(circuit, start, min(start + NODES_TOGETHER, circuit.n_nodes)):
            raise ModelError("is a damaged circuit: its nodes are not those of a circuit")
    kind, leaf_var = circuit.kind.astype(np.int8, copy=False), circuit.leaf_var.astype(np.int32, copy=False)
    return replace(circuit, kind=kind, leaf_var=leaf_var)


def _with_codes(stored: Array, names: Sequence[str]) -> Array:
    """Translate the file's leaf codes -k (k-th name, from 1) into this process's codes of leaf kinds."""
    if not names:
        return stored
    kind = stored.astype(np.int64)
    for k, name in enumerate(names, 1):
        kind[stored == -k] = leaf_kind(name)[0]
    return kind


def _fits(circuit: Circuit) -> bool:
    """Whether all pointers stay within the arrays."""
    n, child_ptr, param_ptr = circuit.n_nodes, circuit.child_ptr, circuit.param_ptr
    return (
        n > 0
        and len(circuit.leaf_var) == n
        and len(child_ptr) == len(param_ptr) == n + 1
        and child_ptr[0] == param_ptr[0] == 0
        and child_ptr[-1] == len(circuit.children) == len(circuit.log_weights)
        and param_ptr[-1] == len(circuit.params)
        and bool(np.all(child_ptr[1:] >= child_ptr[:-1]) and np.all(param_ptr[1:] >= param_ptr[:-1]))
    )


def _is_sound(circuit: Circuit, start: int, stop: int) -> bool:
    """Whether nodes `start` to `stop` are nodes of a circuit; pieces keep temporary arrays small and in cache."""
    kinds, domain = leaf_kinds(), circuit.domain
    kind = circuit.kind[start:stop].astype(np.int64)
    leaf_var = circuit.leaf_var[start:stop].astype(np.int64)
    child_ptr, param_ptr = circuit.child_ptr[start : stop + 1], circuit.param_ptr[start : stop + 1]
    n_children, n_params = np.diff(child_ptr), np.diff(param_ptr)
    edges, entries = slice(child_ptr[0], child_ptr[-1]), slice(param_ptr[0], param_ptr[-1])
    owner = np.repeat(np.arange(len(kind)), n_children)
    is_leaf, is_real = kind < NodeKind.PRODUCT, np.isin(kind, list(kinds))
    n = len(domain)
    sizes = domain.n_states[np.clip(leaf_var, 0, max(n - 1, 0))] if n else leaf_var
    leaf_sizes = np.where(is_real, 0, sizes)
    for code, leaf in kinds.items():
        leaf_sizes[kind == code] = len(leaf.parameters)
    children, log_weights = circuit.children[edges], circuit.log_weights[edges]
    return bool(
        np.all(np.isin(kind, [NodeKind.CATEGORICAL, NodeKind.PRODUCT, NodeKind.SUM, *kinds]))
        and np.all((children >= 0) & (children < owner + start))
        and np.all(np.where(is_leaf, (leaf_var >= 0) & (leaf_var < n), leaf_var == -1))
        and np.all(np.where(is_leaf, n_children == 0, n_children > 0))
        and np.all(n_params == np.where(is_leaf, leaf_sizes, 0))
        and np.all((sizes == 0)[is_real])
        and np.all(sizes[kind == NodeKind.CATEGORICAL] > 0)
        and not np.any(
            np.isnan(log_weights) | (log_weights == np.inf) | (log_weights != 0.0) & (kind[owner] != NodeKind.SUM)
        )
        and _sound_params(kind, circuit.params[entries], param_ptr - param_ptr[0])
    )


def _sound_params(kind: Ints, params: Floats, pointers: Ints) -> bool:
    """Whether leaf parameters are log weights, or valid for their kind of real leaf (ends may be infinite)."""
    for code, leaf in leaf_kinds().items():
        starts = pointers[:-1][kind == code]
        if not np.all(leaf.accepts(*(params[starts + k] for k in range(len(leaf.parameters))))):
            return False
    are_logs = np.repeat(kind == NodeKind.CATEGORICAL, np.diff(pointers))
    return not np.any(np.isnan(params) | are_logs & (params == np.inf))


def _vector(values: Array, kinds: str, what: str) -> Array:
    if values.dtype.kind not in kinds or values.ndim != 1:
        raise ModelError(f"has an array of {values.dtype} in {values.ndim} dimensions where {what} are needed")
    return values


def _floats(values: Array) -> Floats:
    return _vector(values, "f", "numbers").astype(np.float64, copy=False)


Arrays = dict[str, Array]
StoredVariable = dict[str, object]  # in JSON: its name, and its states or its interval
VERSION = 2  # version 1, without factors in logs, is also read, and written for models without them
_OWN = {"certimap.learn.hidden_model:HiddenChowLiuModel", "certimap.densities.gaussian_mixture:GaussianMixture"}
_NETWORKS: dict[str, type[Network]] = {"bayesian": BayesianNetwork, "markov": MarkovNetwork}
_registered: dict[str, type[Any]] = {}


def register(kind: str, cls: type[Any]) -> None:
    """Register a class of models for writing and reading; `kind` names it in files.

    The class has `to_arrays()` (a mapping from names to arrays of numbers or text), `domain`, and a class
    method `from_arrays(domain, arrays)`.
    """
    _registered[kind] = cls


def write_native(model: Any, path: AnyPath) -> None:
    """Write a model; raises ModelError for a class without `to_arrays` or a label that JSON cannot hold."""
    kind, arrays = _to_arrays(model)
    version = VERSION if "in_logs" in arrays else 1
    domain = _encoded_domain(model.domain)
    meta: dict[str, object] = {"format": "certimap", "version": version, "kind": kind, "domain": domain}
    if isinstance(model, Network | DecisionNetwork) and model.hidden:
        meta["hidden"] = sorted(model.hidden)
    if model.domain.interventions:
        meta["interventions"] = {n: encoded_label(x, n) for n, x in model.domain.interventions.items()}
    if whole := [v.name for v in model.domain if isinstance(v, Real) and v.is_whole]:
        meta["whole"] = whole
    if isinstance(model, Model) and model.source_columns:
        meta["columns"] = [list(note) for note in model.source_columns]
    if "meta" in arrays:
        raise ModelError(f"a {type(model).__name__} has an array named 'meta', which the format itself uses")
    for name, values in arrays.items():
        if values.dtype.hasobject:
            raise ModelError(f"array {name!r} of a {type(model).__name__} holds objects; expected numbers or text")
    write_arrays({"meta": np.array(json.dumps(meta)), **arrays}, path)


def exported(model: Any) -> tuple[str, list[StoredVariable], Arrays, list[str]]:
    """Return a model's kind, its variables for JSON, its arrays, and the names of its hidden variables.

    Raises ModelError for a model that the format cannot hold.
    """
    kind, arrays = _to_arrays(model)
    hidden = sorted(model.hidden) if isinstance(model, Network | DecisionNetwork) else []
    return kind, _encoded_domain(model.domain), arrays, hidden


def fingerprint(model: Any) -> str:
    """Return "sha256:" and the hash of a model's content: equal for equal variables, states and parameters.

    It hashes the content of the native format byte by byte. A model written and read back thus keeps it, and the
    last digit of one parameter changes it. Raises ModelError for a model that the format cannot hold. Cost: linear
    in the model's size, about a second per gigabyte.
    """
    return models.fingerprint(*exported(model))


def read_native(path: AnyPath) -> Any:
    """Read a model; raises ParseError if the file is damaged or of an unknown kind.

    The arrays of a circuit in a file of 16 MiB or more are mapped into memory, not copied. Such a file may be
    replaced, as `write_native` does, but not changed in place while its model is in use.
    """
    arrays = read_arrays(path)
    try:
        meta = json.loads(str(arrays.pop("meta")[()]))
        version, kind, encoded = meta["version"], str(meta["kind"]), meta["domain"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParseError(f"is no certimap file, or a damaged one ({error})", path) from None
    if version not in (1, VERSION):
        raise ParseError(f"has the format version {version!r}; expected 1 or {VERSION}", path)
    try:
        done = {str(name): decoded_label(x) for name, x in dict(meta.get("interventions", {})).items()}
        domain = _decoded_domain(encoded, done, meta.get("whole", ()))
        model = _from_arrays(kind, domain, arrays, meta.get("hidden", ()))
        if "whole" in meta:
            vars(model)["domain"] = domain
        if "columns" in meta:
            vars(model)["source_columns"] = ColumnNotes(ColumnNote(*note) for note in meta["columns"])
        return model
    except CertimapError as error:
        raise ParseError(str(error), path) from None
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ParseError(f"is a damaged certimap file of kind {kind!r} ({error})", path) from None


def _to_arrays(model: Any) -> tuple[str, Arrays]:
    if isinstance(model, Circuit):
        return "circuit", arrays_of_circuit(model)
    if isinstance(model, LinearGaussianNetwork):
        return "linear-gaussian", _linear_gaussian_arrays(model)
    if isinstance(model, DecisionNetwork):
        return "decisions", _decision_arrays(model)
    for kind, network in _NETWORKS.items():
        if isinstance(model, network):
            return kind, _factor_arrays(model.factors)
    cls: type[Any] = model.__class__
    own = f"{cls.__module__}:{cls.__qualname__}"
    kind = next((kind for kind, known in _registered.items() if known is cls), own if own in _OWN else None)
    if kind is None:
        text = f"the class {cls.__name__} is not known to the native format; certimap.io.native.register adds it"
        raise ModelError(text)
    return kind, {str(name): np.asarray(values) for name, values in model.to_arrays().items()}


def _from_arrays(kind: str, domain: Domain, arrays: Arrays, hidden: Sequence[str] = ()) -> Any:
    if kind == "circuit":
        return circuit_of_arrays(domain, arrays)
    if kind == "linear-gaussian":
        found = _linear_gaussian(domain, arrays)
        found.domain = domain  # with its interventions
        return found
    if kind == "decisions":
        return _decisions(domain, arrays, hidden)
    if kind in _NETWORKS:
        network = BayesianNetwork if kind == "bayesian" else MarkovNetwork
        return network(domain, _factors(domain.n_states.tolist(), arrays), hidden)
    cls = _registered.get(kind)
    if cls is None:
        if kind not in _OWN:
            raise ModelError(f"holds a model of the kind {kind!r}, which is not registered")
        cls: Any = at(kind)
    return cls.from_arrays(domain, arrays)


def _factor_arrays(factors: Sequence[Factor]) -> Arrays:
    scopes = [f.scope for f in factors]
    tables = [(f.log_table if f.in_logs else f.table).reshape(-1) for f in factors]
    arrays: Arrays = {
        "scope_lengths": np.array([len(s) for s in scopes], np.int64),
        "scopes": np.array([v for s in scopes for v in s], np.int64),
        "tables": np.concatenate([*tables, np.zeros(0)]),
    }
    if any(f.in_logs for f in factors):
        arrays["in_logs"] = np.array([f.in_logs for f in factors], np.bool_)
    return arrays


def _factors(sizes: Sequence[int], arrays: Mapping[str, Array]) -> list[Factor]:
    """Return the factors over variables of the given `sizes`."""
    scopes, tables = ArrayParts(arrays["scopes"]), ArrayParts(arrays["tables"])
    lengths = arrays["scope_lengths"].tolist()
    in_logs = arrays.get("in_logs", np.zeros(len(lengths), np.bool_))
    factors: list[Factor] = []
    for length, is_log in zip(lengths, in_logs.tolist(), strict=True):
        scope = scopes.integers(length, len(sizes))
        table = tables.numbers([sizes[v] for v in scope])
        factors.append(Factor.from_log(scope, table) if is_log else Factor(scope, table))
    if scopes.left or tables.left:
        raise ModelError("is a damaged network: its arrays do not fit each other")
    return factors


def _decision_arrays(model: DecisionNetwork) -> Arrays:
    """Return the conditional tables; lists of each decision with what it sees, and of scopes; and utilities."""
    arrays, index, utilities = _factor_arrays(model.cpts), model.domain.index, model.utilities
    lists = [[index(decision), *map(index, own)] for decision, own in model.decisions.items()]
    lists += [list(u.scope) for u in utilities]
    arrays["lengths"] = np.array([len(own) for own in lists], np.int64)
    arrays["variables"] = np.array([v for own in lists for v in own], np.int64)
    arrays["utility_names"] = np.array([u.name for u in utilities], np.str_)
    arrays["utilities"] = np.concatenate([*(u.values.reshape(-1) for u in utilities), np.zeros(0)])
    arrays["limited_memory"] = np.array([model.limited_memory])
    return arrays


def _decisions(domain: Domain, arrays: Mapping[str, Array], hidden: Sequence[str]) -> DecisionNetwork:
    names, sizes, parts = domain.names, domain.n_states.tolist(), ArrayParts(arrays["variables"])
    lists = [parts.integers(n, len(sizes)) for n in arrays["lengths"].tolist()]
    values, labels = ArrayParts(arrays["utilities"]), list(map(str, arrays["utility_names"].tolist()))
    n = len(lists) - len(labels)
    utilities = [
        Utility(label, tuple(scope), values.numbers([sizes[v] for v in scope]))
        for label, scope in zip(labels, lists[n:], strict=True)
    ]
    decisions = {names[own[0]]: [names[v] for v in own[1:]] for own in lists[:n]}
    limited = bool(arrays["limited_memory"][0])
    return DecisionNetwork(domain, _factors(sizes, arrays), decisions, utilities, limited, hidden)


def _encoded_domain(domain: Domain) -> list[StoredVariable]:
    return [
        {"name": v.name, "states": [encoded_label(s, v.name) for s in v.states]}
        if isinstance(v, Categorical)
        else {"name": v.name, "interval": [v.low, v.high]}
        for v in domain
    ]


def _decoded_domain(encoded: Any, interventions: Mapping[str, Label], whole: Sequence[str]) -> Domain:
    variables: list[Variable] = []
    for item in encoded:
        if "states" in item:
            variables.append(Categorical(str(item["name"]), tuple(decoded_label(s) for s in item["states"])))
        else:
            low, high = map(float, item["interval"])
            variables.append(Real(str(item["name"]), low, high, item["name"] in whole))
    return Domain(variables, interventions)


def encoded_label(label: Any, variable: str) -> Any:
    """Return a label as a JSON value, tuples as lists; ModelError for a label that JSON cannot hold."""
    value = plain_scalar(label)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_tuple(value):
        return [encoded_label(part, variable) for part in value]
    told = f"the state {label!r} of variable {variable!r} is a {type(value).__name__}"
    raise ModelError(f"{told}; text, numbers, booleans and tuples of these can be written")


def decoded_label(value: Any) -> Label:
    """Invert `encoded_label`."""
    return tuple(decoded_label(part) for part in value) if is_list(value) else value


def discrete_part(model: LinearGaussianNetwork) -> BayesianNetwork | None:
    """Return the discrete part of a network; ModelError unless it is a Bayesian network."""
    if model.discrete is None or isinstance(model.discrete, BayesianNetwork):
        return model.discrete
    text = f"the discrete variables of this network are in a {type(model.discrete).__name__}"
    raise ModelError(f"{text}; files hold those in a BayesianNetwork")


def _linear_gaussian_arrays(model: LinearGaussianNetwork) -> dict[str, Array]:
    """Return each kind of parameter concatenated."""
    discrete, nodes, names = discrete_part(model), model.nodes, model.domain.names

    def joined(parts: list[Any]) -> Floats:
        return np.concatenate([np.zeros(0), *(np.asarray(part, np.float64).reshape(-1) for part in parts)])

    parents = [[names.index(parent) for parent in node.parents] for node in nodes]
    return {
        **_factor_arrays(() if discrete is None else discrete.factors),
        "hidden": np.array(sorted(model.hidden), np.str_),
        "parent_counts": np.array([len(above) for above in parents], np.int64),
        "parents": np.array([v for above in parents for v in above], np.int64),
        "intercepts": joined([node.intercept for node in nodes]),
        "coefficients": joined([node.coefficients for node in nodes]),
        "sds": joined([node.sd for node in nodes]),
    }


def _linear_gaussian(domain: Domain, arrays: Mapping[str, Array]) -> LinearGaussianNetwork:
    """Build a network from its domain and arrays; ModelError or a numpy error if they do not fit."""
    sizes: list[int] = domain.n_states.tolist()
    n_discrete = sum(size > 0 for size in sizes)
    if any(size == 0 for size in sizes[:n_discrete]):
        raise ModelError("the real variables do not follow the discrete ones")
    kinds = ("parents", "intercepts", "coefficients", "sds")
    take = {name: ArrayParts(arrays[name]) for name in kinds}
    factors = _factors(sizes[:n_discrete], arrays)
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
