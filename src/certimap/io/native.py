"""The native format: any model as one `.npz`, without pickle, read back exactly.

A file holds `meta`, a JSON text with the format's version, the kind of model and its domain, and the
model's arrays. A class joins by a method `to_arrays() -> dict[str, array]`, a class method
`from_arrays(domain, arrays)`, an attribute `domain`, and `register(kind, cls)`; classes of this package
need no registration.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kind, leaf_kinds
from certimap.domain import Categorical, Domain, Label, Real, Variable
from certimap.errors import CertimapError, ModelError, ParseError
from certimap.io.files import FREE_BYTES, MAX_RATIO, AnyPath, read_bytes, write_bytes
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.markov import MarkovNetwork
from certimap.networks.network import Network
from certimap.untyped import is_list, is_tuple, plain_scalar

Arrays = dict[str, NDArray[Any]]
VERSION = 2  # 1, which knew no factors in logs, is read too, and written where there are none
_OWN = frozenset(  # imported on first use
    {
        "certimap.learn.hidden_model:HiddenChowLiuModel",
        "certimap.densities.gaussian_mixture:GaussianMixture",
    }
)  # imported on first use
_CIRCUIT_ARRAYS = ("kind", "child_ptr", "children", "log_weights", "leaf_var", "param_ptr", "params")
_LAST_CHARACTER = 0x10FFFF
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
            raise ModelError(f"array {name!r} of a {type(model).__name__} holds objects; expected numbers or text")
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array(json.dumps(meta)), **arrays)  # pyright: ignore[reportArgumentType]
    write_bytes(path, buffer.getvalue())


def exported(model: Any) -> tuple[str, list[dict[str, Any]], Arrays, list[str]]:
    """Return a model as the format holds it: its kind, its variables, its arrays, and the names of hidden ones.

    Raises ModelError for a model that the format cannot hold.
    """
    kind, arrays = _to_arrays(model)
    return kind, _encoded_domain(model.domain), arrays, sorted(model.hidden) if isinstance(model, Network) else []


def fingerprint(model: Any) -> str:
    """Return "sha256:" and the hash of a model's content: equal for equal variables, states and parameters.

    It covers what the native format would hold, byte by byte, so that a model written and read back keeps it, and
    the last digit of one parameter changes it. Raises ModelError for a model that the format cannot hold. Cost:
    linear in the model's size, about a second per gigabyte.
    """
    kind, variables, arrays, hidden = exported(model)
    digest = hashlib.sha256(json.dumps([kind, variables, hidden]).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype.str} {values.shape}".encode())
        digest.update(values.tobytes())
    return f"sha256:{digest.hexdigest()}"


def read_native(path: AnyPath) -> Any:
    """Read a model; raises ParseError when the file is damaged or of a kind that is not known."""
    arrays = _arrays_in(path, read_bytes(path))
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


def _arrays_in(path: AnyPath, data: bytes) -> Arrays:
    """Return the arrays of a zip archive of `.npy` files; every size is checked before memory is taken."""
    limit = max(FREE_BYTES, MAX_RATIO * len(data))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > limit:
                raise ParseError(f"unpacks to more than {limit:,} bytes, over {MAX_RATIO} times its size", path)
            if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
                raise ParseError("is compressed by another method than deflate, which is what is accepted", path)
            return {entry.filename.removesuffix(".npy"): _array(archive.read(entry)) for entry in entries}
    except ParseError:
        raise
    except Exception as error:  # damage makes zipfile and numpy's header parser raise a dozen types
        raise ParseError(f"is no certimap file, or a damaged one ({error})", path) from None


def _array(content: bytes) -> NDArray[Any]:
    """Return the array in a `.npy` file; ValueError unless its header, checked first, fits what follows."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of the version {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read_header(file)
    start = file.tell()
    if dtype.kind not in "biufUS" or not dtype.itemsize or any(size < 0 for size in shape):
        raise ValueError(f"an array of the type {dtype} and the shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError(f"{len(content) - start} bytes for an array of the shape {shape}")
    if dtype.kind == "U" and np.any(np.frombuffer(content, f"{dtype.str[0]}u4", offset=start) > _LAST_CHARACTER):
        raise ValueError("a text with a character that does not exist")
    values: NDArray[Any] = np.frombuffer(content, dtype, offset=start)
    return values.reshape(shape, order="F" if in_columns else "C")


@runtime_checkable
class Storable(Protocol):
    """A model that tells its content as named arrays; its class builds one from them (`from_arrays`)."""

    def to_arrays(self) -> Arrays: ...


def _to_arrays(model: Any) -> tuple[str, Arrays]:
    if isinstance(model, Circuit):
        arrays = {name: getattr(model, name) for name in _CIRCUIT_ARRAYS}
        if np.any(model.kind < 0):  # codes depend on the order of registration, names do not
            names = {code: kind.name for code, kind in leaf_kinds().items()}
            arrays["leaf_names"] = np.array([names[-k] for k in range(1, 1 - int(model.kind.min()))])
        return "circuit", arrays
    for kind, cls in _NETWORKS.items():
        if isinstance(model, cls):
            return kind, _network_arrays(model)
    if not isinstance(model, Storable):
        raise ModelError(f"a {type(model).__name__} cannot be written: it has no method to_arrays")
    cls: type[Any] = type(model)
    arrays = {str(name): np.asarray(values) for name, values in model.to_arrays().items()}
    for kind, known in _registered.items():
        if known is cls:
            return kind, arrays
    own = f"{cls.__module__}:{cls.__qualname__}"
    if own in _OWN:
        return own, arrays
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
        if kind not in _OWN:
            raise ModelError(f"holds a model of the kind {kind!r}, which is not registered")
        module, _, name = kind.partition(":")
        cls: Any = getattr(importlib.import_module(module), name)
    return cls.from_arrays(domain, arrays)


def _circuit(domain: Domain, arrays: Arrays) -> Circuit:
    """Build a circuit from its arrays; check what would otherwise read outside of them."""
    kind, child_ptr, children, param_ptr, leaf_var = (
        _integers(arrays[name]) for name in ("kind", "child_ptr", "children", "param_ptr", "leaf_var")
    )
    log_weights, params = _floats(arrays["log_weights"]), _floats(arrays["params"])
    stored = kind.copy()
    for k, name in enumerate(arrays.get("leaf_names", np.zeros(0, str)).tolist(), 1):
        kind[stored == -k] = leaf_kind(str(name))[0]
    kinds = leaf_kinds()
    n = len(kind)
    fits = (
        n > 0
        and len(leaf_var) == n
        and len(child_ptr) == len(param_ptr) == n + 1
        and child_ptr[0] == param_ptr[0] == 0
        and child_ptr[-1] == len(children) == len(log_weights)
        and param_ptr[-1] == len(params)
        and bool(np.all(np.diff(child_ptr) >= 0) and np.all(np.diff(param_ptr) >= 0))
        and bool(np.all(np.isin(kind, [NodeKind.CATEGORICAL, NodeKind.PRODUCT, NodeKind.SUM, *kinds])))
    )
    if not fits:
        raise ModelError("is a damaged circuit: its arrays do not fit each other")
    n_children, n_params = np.diff(child_ptr), np.diff(param_ptr)
    owner = np.repeat(np.arange(n), n_children)
    is_leaf, is_real = kind < NodeKind.PRODUCT, np.isin(kind, list(kinds))
    sizes = domain.n_states[np.clip(leaf_var, 0, max(len(domain) - 1, 0))] if len(domain) else leaf_var
    leaf_sizes = np.where(is_real, 0, sizes)
    for code, leaf in kinds.items():
        leaf_sizes[kind == code] = len(leaf.parameters)
    sound = (
        np.all((children >= 0) & (children < owner))
        and np.all(np.where(is_leaf, (leaf_var >= 0) & (leaf_var < len(domain)), leaf_var == -1))
        and np.all(np.where(is_leaf, n_children == 0, n_children > 0))
        and np.all(n_params == np.where(is_leaf, leaf_sizes, 0))
        and np.all((sizes == 0)[is_real])
        and np.all(sizes[kind == NodeKind.CATEGORICAL] > 0)
        and not np.any(
            np.isnan(log_weights) | (log_weights == np.inf) | (log_weights != 0.0) & (kind[owner] != NodeKind.SUM)
        )
        and _sound_params(kind, params, param_ptr[:-1])
    )
    if not sound:
        raise ModelError("is a damaged circuit: its nodes are not those of a circuit")
    return Circuit(
        domain,
        kind.astype(np.int8),
        child_ptr,
        children,
        log_weights,
        leaf_var.astype(np.int32),
        param_ptr,
        params,
    )


def _sound_params(kind: NDArray[np.int64], params: NDArray[np.float64], first: NDArray[np.int64]) -> bool:
    """Whether leaf parameters are log weights, and what the kinds of real leaves accept."""
    for code, leaf in leaf_kinds().items():
        starts = first[kind == code]
        if not np.all(leaf.accepts(*(params[starts + k] for k in range(len(leaf.parameters))))):
            return False
    return not np.any(np.isnan(params) | (params == np.inf))


def _integers(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise ModelError(f"has an array of {values.dtype} in {values.ndim} dimensions where integers are needed")
    return values.astype(np.int64, copy=False)


def _floats(values: NDArray[Any]) -> NDArray[np.float64]:
    if values.dtype.kind != "f" or values.ndim != 1:
        raise ModelError(f"has an array of {values.dtype} in {values.ndim} dimensions where numbers are needed")
    return values.astype(np.float64, copy=False)


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
            states = [encoded_label(s, variable.name) for s in variable.states]
            encoded.append({"name": variable.name, "states": states})
        else:
            encoded.append({"name": variable.name, "interval": [variable.low, variable.high]})
    return encoded


def encoded_label(label: Any, variable: str) -> Any:
    """Return what JSON holds of a label; a tuple becomes a list, which nothing else does.

    Raises ModelError for a label that it cannot hold.
    """
    value = plain_scalar(label)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_tuple(value):
        return [encoded_label(part, variable) for part in value]
    raise ModelError(
        f"the state {label!r} of variable {variable!r} is a {type(value).__name__}; text, numbers, booleans, None "
        "and tuples of these can be written"
    )


def _decoded_label(value: Any) -> Label:
    return tuple(_decoded_label(part) for part in value) if is_list(value) else value


def _decoded_domain(encoded: list[Mapping[str, Any]]) -> Domain:
    variables: list[Variable] = []
    for item in encoded:
        if "states" in item:
            variables.append(Categorical(str(item["name"]), tuple(_decoded_label(s) for s in item["states"])))
        else:
            variables.append(Real(str(item["name"]), float(item["interval"][0]), float(item["interval"][1])))
    return Domain(variables)
