"""The native format: any model as one `.npz`, without pickle, read back exactly.

A file holds the model's arrays and `meta`, a JSON text with the format's version, the kind of model and its
domain. A class needs a method `to_arrays() -> dict[str, array]`, a class method `from_arrays(domain, arrays)`,
an attribute `domain`, and `register(kind, cls)`; classes of this package are registered already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.core.arrays import Array
from certimap.core.domain import Categorical, Domain, Real, Variable
from certimap.core.named import at
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import CertimapError, ModelError, ParseError
from certimap.io.array_files import ArrayParts, read_arrays, write_arrays
from certimap.io.circuit_arrays import arrays_of_circuit, circuit_of_arrays
from certimap.io.files import AnyPath
from certimap.io.identifiers import decoded_label, encoded_label
from certimap.io.linear_gaussian import arrays_of_linear_gaussian, linear_gaussian_of_arrays
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork, Network

Arrays = dict[str, Array]


class StoredVariable(TypedDict, total=False):
    """A variable in JSON: its name, and its states or its interval."""

    name: str
    states: list[Any]
    interval: list[float]


class StoredModel(TypedDict):
    """What a file says of its model beside the arrays."""

    format: str
    version: int
    kind: str
    domain: list[StoredVariable]
    hidden: NotRequired[list[str]]


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
    version = VERSION if kind in _NETWORKS and "in_logs" in arrays else 1
    meta: StoredModel = {
        "format": "certimap",
        "version": version,
        "kind": kind,
        "domain": _encoded_domain(model.domain),
    }
    if isinstance(model, Network) and model.hidden:
        meta["hidden"] = sorted(model.hidden)
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
    return kind, _encoded_domain(model.domain), arrays, sorted(model.hidden) if isinstance(model, Network) else []


def fingerprint(model: Any) -> str:
    """Return "sha256:" and the hash of a model's content: equal for equal variables, states and parameters.

    It hashes the content of the native format byte by byte. A model written and read back thus keeps it, and the
    last digit of one parameter changes it. Raises ModelError for a model that the format cannot hold. Cost: linear
    in the model's size, about a second per gigabyte.
    """
    kind, variables, arrays, hidden = exported(model)
    digest = hashlib.sha256(json.dumps([kind, variables, hidden]).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
        digest.update(values.tobytes())
    return f"sha256:{digest.hexdigest()}"


def read_native(path: AnyPath) -> Any:
    """Read a model; raises ParseError if the file is damaged or of an unknown kind.

    The arrays of a circuit in a file of 16 MiB or more are mapped into memory, not copied: processes share them,
    and the system drops their pages when memory is short. Such a file may be replaced, as `write_native` does,
    but not changed in place while its model is in use.
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
        return _from_arrays(kind, _decoded_domain(encoded), arrays, meta.get("hidden", ()))
    except CertimapError as error:
        raise ParseError(str(error), path) from None
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ParseError(f"is a damaged certimap file of kind {kind!r} ({error})", path) from None


def _to_arrays(model: Any) -> tuple[str, Arrays]:
    if isinstance(model, Circuit):
        return "circuit", arrays_of_circuit(model)
    if isinstance(model, LinearGaussianNetwork):
        return "linear-gaussian", arrays_of_linear_gaussian(model)
    for kind, network in _NETWORKS.items():
        if isinstance(model, network):
            return kind, _network_arrays(model)
    cls: type[Any] = model.__class__
    own = f"{cls.__module__}:{cls.__qualname__}"
    kind = next((kind for kind, known in _registered.items() if known is cls), own if own in _OWN else None)
    if kind is None:
        raise ModelError(
            f"the class {cls.__name__} is not known to the native format; certimap.io.native.register adds it"
        )
    return kind, {str(name): np.asarray(values) for name, values in model.to_arrays().items()}


def _from_arrays(kind: str, domain: Domain, arrays: Arrays, hidden: Sequence[str] = ()) -> Any:
    if kind == "circuit":
        return circuit_of_arrays(domain, arrays)
    if kind == "linear-gaussian":
        return linear_gaussian_of_arrays(domain, arrays)
    if kind in _NETWORKS:
        return _network(kind, domain, arrays, hidden)
    cls = _registered.get(kind)
    if cls is None:
        if kind not in _OWN:
            raise ModelError(f"holds a model of the kind {kind!r}, which is not registered")
        cls: Any = at(kind)
    return cls.from_arrays(domain, arrays)


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
    scopes, tables = ArrayParts(arrays["scopes"]), ArrayParts(arrays["tables"])
    lengths = arrays["scope_lengths"].tolist()
    in_logs = arrays.get("in_logs", np.zeros(len(lengths), np.bool_))
    factors: list[Factor] = []
    for length, is_log in zip(lengths, in_logs.tolist(), strict=True):
        scope = scopes.integers(length, len(domain))
        table = tables.numbers([int(domain.n_states[v]) for v in scope])
        factors.append(Factor.from_log(scope, table) if is_log else Factor(scope, table))
    if scopes.left or tables.left:
        raise ModelError("is a damaged network: its arrays do not fit each other")
    return BayesianNetwork(domain, factors, hidden) if kind == "bayesian" else MarkovNetwork(domain, factors)


def _encoded_domain(domain: Domain) -> list[StoredVariable]:
    return [
        {"name": v.name, "states": [encoded_label(s, v.name) for s in v.states]}
        if isinstance(v, Categorical)
        else {"name": v.name, "interval": [v.low, v.high]}
        for v in domain
    ]


def _decoded_domain(encoded: Any) -> Domain:
    variables: list[Variable] = []
    for item in encoded:
        if "states" in item:
            variables.append(Categorical(str(item["name"]), tuple(decoded_label(s) for s in item["states"])))
        else:
            variables.append(Real(str(item["name"]), float(item["interval"][0]), float(item["interval"][1])))
    return Domain(variables)
