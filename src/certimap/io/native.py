"""The native format: any model as one `.npz`, without pickle, read back exactly.

A file holds `meta`, a JSON text with the format's version, the kind of model and its domain, and the
model's arrays. A class joins by a method `to_arrays() -> dict[str, array]`, a class method
`from_arrays(domain, arrays)`, an attribute `domain`, and `register(kind, cls)`; classes of this package
need no registration.
"""

from __future__ import annotations

import importlib
import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit
from certimap.domain import Categorical, Domain, Label, Real, Variable
from certimap.errors import CertimapError, ModelError, ParseError
from certimap.io.files import AnyPath, read_bytes, write_bytes
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.markov import MarkovNetwork
from certimap.networks.network import Network

Arrays = dict[str, NDArray[Any]]
VERSION = 2  # 1, which knew no factors in logs, is read too, and written where there are none
_PACKAGE = "certimap."
_CIRCUIT_ARRAYS = ("kind", "child_ptr", "children", "log_weights", "leaf_var", "param_ptr", "params")
_NETWORKS: dict[str, type[Network]] = {"bayesian": BayesianNetwork, "markov": MarkovNetwork}
_registered: dict[str, type[Any]] = {}


def register(kind: str, cls: type[Any]) -> None:
    """Let models of a class be written and read; `kind` names it in files.

    The class has `to_arrays()` (a mapping from names to arrays of numbers or text), `domain`, and a class
    method `from_arrays(domain, arrays)`.
    """
    _registered[kind] = cls


def write_native(model: Any, path: AnyPath) -> None:
    """Write a model; raises ModelError for a class that has no `to_arrays` or a label that JSON cannot hold."""
    kind, arrays = _to_arrays(model)
    version = VERSION if kind in _NETWORKS and "in_logs" in arrays else 1
    meta: dict[str, Any] = {
        "format": "certimap",
        "version": version,
        "kind": kind,
        "domain": _encoded_domain(model.domain),
    }
    if isinstance(model, Network) and model.hidden:
        meta |= {"hidden": sorted(model.hidden)}
    if "meta" in arrays:
        raise ModelError(f"a {type(model).__name__} has an array named 'meta', which the format itself uses")
    for name, values in arrays.items():
        if values.dtype.hasobject:
            raise ModelError(
                f"array {name!r} of a {type(model).__name__} holds objects; numbers and text are accepted"
            )
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array(json.dumps(meta)), **arrays)  # pyright: ignore[reportArgumentType]
    write_bytes(path, buffer.getvalue())


def read_native(path: AnyPath) -> Any:
    """Read a model; raises ParseError when the file is damaged or of a kind that is not known."""
    data = read_bytes(path)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays: Arrays = {name: file[name] for name in file.files}
        meta = json.loads(str(arrays.pop("meta")[()]))
        version, kind, encoded = meta["version"], str(meta["kind"]), meta["domain"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ParseError(f"is no certimap file, or a damaged one ({error})", path) from None
    if version not in (1, VERSION):
        raise ParseError(f"has the format version {version}; 1 and {VERSION} are accepted", path)
    try:
        return _from_arrays(kind, _decoded_domain(encoded), arrays, meta.get("hidden", ()))
    except CertimapError as error:
        raise ParseError(str(error), path) from None
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ParseError(f"is a damaged certimap file of kind {kind!r} ({error})", path) from None


def _to_arrays(model: Any) -> tuple[str, Arrays]:
    if isinstance(model, Circuit):
        return "circuit", {name: getattr(model, name) for name in _CIRCUIT_ARRAYS}
    for kind, cls in _NETWORKS.items():
        if isinstance(model, cls):
            return kind, _network_arrays(model)
    if not hasattr(model, "to_arrays"):
        raise ModelError(f"a {type(model).__name__} cannot be written: it has no method to_arrays")
    cls = cast("type[Any]", type(model))
    arrays = {str(name): np.asarray(values) for name, values in model.to_arrays().items()}
    for kind, known in _registered.items():
        if known is cls:
            return kind, arrays
    if cls.__module__.startswith(_PACKAGE):
        return f"{cls.__module__}:{cls.__qualname__}", arrays
    raise ModelError(
        f"the class {cls.__name__} is not known to the native format; certimap.io.native.register adds it"
    )


def _from_arrays(kind: str, domain: Domain, arrays: Arrays, hidden: Sequence[str] = ()) -> Any:
    if kind == "circuit":
        return _circuit(domain, arrays)
    if kind in _NETWORKS:
        return _network(kind, domain, arrays, hidden)
    cls = _registered.get(kind)
    if cls is None:
        module, _, name = kind.partition(":")
        if not module.startswith(_PACKAGE) or not name.isidentifier():
            raise ModelError(f"holds a model of the kind {kind!r}, which is not registered")
        try:
            cls = cast("type[Any]", getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError):
            raise ModelError(f"holds a model of the kind {kind!r}, which this version does not have") from None
    return cls.from_arrays(domain, arrays)


def _circuit(domain: Domain, arrays: Arrays) -> Circuit:
    """Build a circuit from its arrays; check what would otherwise read outside of them."""
    kind = arrays["kind"].astype(np.int8, copy=False)
    child_ptr, children = _integers(arrays["child_ptr"]), _integers(arrays["children"])
    param_ptr, leaf_var = _integers(arrays["param_ptr"]), arrays["leaf_var"].astype(np.int32, copy=False)
    log_weights = arrays["log_weights"].astype(np.float64, copy=False)
    params = arrays["params"].astype(np.float64, copy=False)
    n = len(kind)
    owner = np.repeat(np.arange(n), np.diff(child_ptr)) if len(child_ptr) == n + 1 else np.zeros(0)
    sound = (
        n > 0
        and len(leaf_var) == n
        and len(param_ptr) == n + 1
        and child_ptr[0] == param_ptr[0] == 0
        and child_ptr[-1] == len(children) == len(log_weights) == len(owner)
        and param_ptr[-1] == len(params)
        and bool(np.all(np.diff(param_ptr) >= 0))
        and bool(np.all((children >= 0) & (children < owner)))
        and bool(np.all(leaf_var < len(domain)))
    )
    if not sound:
        raise ModelError("is a damaged circuit: its arrays do not fit each other")
    return Circuit(domain, kind, child_ptr, children, log_weights, leaf_var, param_ptr, params)


def _integers(values: NDArray[Any]) -> NDArray[np.int64]:
    return values.astype(np.int64, copy=False)


def _network_arrays(model: Network) -> Arrays:
    scopes = [f.scope for f in model.factors]
    tables = [(f.log_table if f.in_logs else f.table).reshape(-1) for f in model.factors]
    arrays: Arrays = {
        "scope_lengths": np.array([len(s) for s in scopes], np.int64),
        "scopes": np.array([v for s in scopes for v in s], np.int64),
        "tables": np.concatenate([*tables, np.zeros(0)]),
    }
    if any(f.in_logs for f in model.factors):
        arrays["in_logs"] = np.array([f.in_logs for f in model.factors], np.bool_)
    return arrays


def _network(kind: str, domain: Domain, arrays: Arrays, hidden: Sequence[str]) -> Network:
    scopes, tables = arrays["scopes"], arrays["tables"]
    lengths = arrays["scope_lengths"].tolist()
    in_logs = arrays.get("in_logs", np.zeros(len(lengths), np.bool_))
    factors: list[Factor] = []
    at = done = 0
    for length, is_log in zip(lengths, in_logs.tolist(), strict=True):
        scope = scopes[at : at + length].tolist()
        shape = [int(domain.n_states[v]) for v in scope]
        size = math.prod(shape)
        table = tables[done : done + size].reshape(shape)
        factors.append(Factor.from_log(scope, table) if is_log else Factor(scope, table))
        at, done = at + length, done + size
    if at != len(scopes) or done != len(tables):
        raise ModelError("is a damaged network: its arrays do not fit each other")
    return BayesianNetwork(domain, factors, hidden) if kind == "bayesian" else MarkovNetwork(domain, factors)


def _encoded_domain(domain: Domain) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    for variable in domain:
        if isinstance(variable, Categorical):
            states = [_encoded_label(s, variable.name) for s in variable.states]
            encoded.append({"name": variable.name, "states": states})
        else:
            encoded.append({"name": variable.name, "interval": [variable.low, variable.high]})
    return encoded


def _encoded_label(label: Label, variable: str) -> Any:
    """Return what JSON holds of a label; a tuple becomes a list, which nothing else does."""
    value: Any = cast("Any", label).item() if isinstance(label, np.generic) else label
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, tuple):
        return [_encoded_label(part, variable) for part in cast("tuple[Label, ...]", value)]
    raise ModelError(
        f"the state {label!r} of variable {variable!r} is a {type(value).__name__}; text, numbers, booleans, None "
        "and tuples of these can be written"
    )


def _decoded_label(value: Any) -> Label:
    if isinstance(value, list):
        return tuple(_decoded_label(part) for part in cast("list[Any]", value))
    return cast("Label", value)


def _decoded_domain(encoded: list[Mapping[str, Any]]) -> Domain:
    variables: list[Variable] = []
    for item in encoded:
        if "states" in item:
            variables.append(Categorical(str(item["name"]), tuple(_decoded_label(s) for s in item["states"])))
        else:
            variables.append(Real(str(item["name"]), float(item["interval"][0]), float(item["interval"][1])))
    return Domain(variables)
