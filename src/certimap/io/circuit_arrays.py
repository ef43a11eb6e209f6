"""A circuit as named arrays, and checks that keep compiled code within their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kind, leaf_kinds
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.domain import Domain
from certimap.errors import ModelError

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
    stored, child_ptr, children, param_ptr, leaf_var = (
        _integers(arrays[name]) for name in ("kind", "child_ptr", "children", "param_ptr", "leaf_var")
    )
    names = [str(name) for name in arrays.get("leaf_names", np.zeros(0, str)).tolist()]
    circuit = Circuit(
        domain,
        _with_codes(stored, names),
        child_ptr.astype(np.int64, copy=False),
        children.astype(np.int64, copy=False),
        _floats(arrays["log_weights"]),
        leaf_var,
        param_ptr.astype(np.int64, copy=False),
        _floats(arrays["params"]),
    )
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


def _integers(values: Array) -> Array:
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise ModelError(f"has an array of {values.dtype} in {values.ndim} dimensions where integers are needed")
    return values


def _floats(values: Array) -> Floats:
    if values.dtype.kind != "f" or values.ndim != 1:
        raise ModelError(f"has an array of {values.dtype} in {values.ndim} dimensions where numbers are needed")
    return values.astype(np.float64, copy=False)
