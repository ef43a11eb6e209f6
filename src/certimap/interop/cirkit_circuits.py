"""Circuits of cirkit compiled to torch: node numbers instead of values go through the address book."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from certimap.core.arrays import Floats
from certimap.errors import ModelError
from certimap.interop.reading import Reading, Wishes, attribute, classes_of, kind_of, logs, named, numbers, refuse
from certimap.interop.tensors import Ids, TensorCircuit, log_choose, module_values

_LAYERS = (
    "expected sum, Hadamard, Kronecker, Tucker, CP-T and tensor-dot layers over categorical, binomial, embedding "
    "and Gaussian ones"
)


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a compiled circuit, folded or not, with its current parameters."""
    if "TorchCircuit" not in classes_of(x):
        raise refuse(
            x, "expected a circuit compiled to torch (cirkit.pipeline.compile), for only it has parameters"
        )
    circuit = TensorCircuit()
    outputs: list[Ids] = []
    for entry in attribute(x, "address_book"):
        inputs = _gathered(entry, outputs)
        if entry.module is None:
            outputs.append(inputs)
        elif inputs is None:
            outputs.append(_input_layer(circuit, entry.module))
        else:
            outputs.append(_inner_layer(circuit, entry.module, inputs))
    root = outputs[-1]
    if root.size != 1:
        raise ModelError(f"this {kind_of(x)} has {root.size} outputs; expected one")
    columns = circuit.variables
    read = circuit.build(int(root.flat[0]), named(wishes, [str(v) for v in columns], x))
    return Reading(read, lambda rows: _log_likelihood(x, columns, rows), states=circuit.accepted)


def _gathered(entry: Any, outputs: list[Ids]) -> Any:
    """Return the input of an entry's layer, shape (folds, arity, units), like `AddressBook.lookup`."""
    layers: list[list[int]] = attribute(entry, "in_module_ids")
    if not layers:
        return None
    ids = np.concatenate([outputs[i] for i in layers[0]], axis=0)
    index = attribute(entry, "in_fold_idx")[0]
    return ids[np.asarray(numbers(index), np.int64) if hasattr(index, "detach") else index]


def _log_likelihood(x: Any, columns: list[int], rows: Floats) -> Floats:
    """Return the library's values, which are logs in some of its semirings."""
    found = numbers(module_values(x, "forward", columns, rows)).reshape(len(rows), -1)[:, 0]
    semiring = attribute(next(iter(attribute(x, "layers"))), "semiring").__name__
    return found if "LSE" in semiring else logs(found)


def _input_layer(circuit: TensorCircuit, layer: Any) -> Ids:
    """Add the leaves of an input layer, shape (folds, units)."""
    kind = type(layer).__name__
    if kind != "TorchGaussianLayer" and kind not in _TABLES:
        raise ModelError(f"an input layer is a {kind_of(layer)}, which cannot be read; {_LAYERS}")
    variables = np.asarray(numbers(attribute(layer, "scope_idx")), np.int64)
    if variables.shape[1] != 1:
        raise ModelError(f"an input layer is over {variables.shape[1]} variables; expected one")
    if kind == "TorchGaussianLayer":
        return _gaussian(circuit, layer, variables[:, 0].tolist())
    tables = _TABLES[kind](layer)
    places = itertools.product(*(range(n) for n in tables.shape[:2]))
    out = [circuit.leaf(int(variables[f, 0]), tables[f, k]) for f, k in places]
    return np.array(out, np.int64).reshape(tables.shape[:2])


def _categorical(layer: Any) -> Floats:
    """Return logs of shape (folds, units, states); logits are not normalised."""
    logits = attribute(layer, "logits")
    return logs(_nonnegative(layer, "probs")) if logits is None else numbers(logits())


def _binomial(layer: Any) -> Floats:
    total = int(attribute(layer, "total_count"))
    logits = attribute(layer, "logits")
    if logits is None:
        one = _nonnegative(layer, "probs")
        log_one, log_zero = logs(one), logs(1.0 - one)
    else:
        values = numbers(logits())
        log_one, log_zero = -np.logaddexp(0.0, -values), -np.logaddexp(0.0, values)
    states = np.arange(total + 1.0)
    ways = log_choose(np.array(float(total)), states)
    with np.errstate(invalid="ignore"):  # 0 times the log of 0 is the log of 1
        ones = np.where(states > 0, states * log_one[..., None], 0.0)
        zeros = np.where(states < total, (total - states) * log_zero[..., None], 0.0)
    return ways + ones + zeros


_TABLES: dict[str, Callable[[Any], Floats]] = {
    "TorchCategoricalLayer": _categorical,
    "TorchBinomialLayer": _binomial,
    "TorchEmbeddingLayer": lambda layer: logs(_nonnegative(layer, "weight")),
}


def _gaussian(circuit: TensorCircuit, layer: Any, variables: list[int]) -> Ids:
    means, sds = numbers(attribute(layer, "mean")()), numbers(attribute(layer, "stddev")())
    constant = attribute(layer, "log_partition")
    scales = np.zeros(means.shape) if constant is None else numbers(constant())
    out: list[int] = [
        circuit.leaf(variables[f], (float(means[f, k]), float(sds[f, k])), float(scales[f, k]))
        for f, k in itertools.product(*(range(n) for n in means.shape))
    ]
    return np.array(out, np.int64).reshape(means.shape)


def _nonnegative(layer: Any, name: str) -> Floats:
    """Return a parameter that must not be negative."""
    values = numbers(attribute(layer, name)())
    if not (np.all(np.isfinite(values)) and np.all(values >= 0.0)):
        raise ModelError(
            f"a {kind_of(layer)} has a negative {name} or one that is no number; expected circuits with "
            "parameters that are not negative (softmax weights, for instance)"
        )
    return values


def _inner_layer(circuit: TensorCircuit, layer: Any, ids: Ids) -> Ids:
    """Add the nodes of an inner layer: from (folds, arity, units) to (folds, units)."""
    kind = type(layer).__name__
    if kind == "TorchHadamardLayer":
        return circuit.products(ids.transpose(0, 2, 1))
    if kind == "TorchKroneckerLayer":
        return circuit.products(_pairs(ids))
    n_folds = len(ids)
    if kind == "TorchSumLayer":
        return circuit.sums(ids.reshape(n_folds, 1, -1), logs(_nonnegative(layer, "weight")))
    if kind == "TorchTuckerLayer":
        return circuit.sums(circuit.products(_pairs(ids))[:, None], logs(_nonnegative(layer, "weight")))
    if kind == "TorchCPTLayer":
        return circuit.sums(circuit.products(ids.transpose(0, 2, 1))[:, None], logs(_nonnegative(layer, "weight")))
    if kind == "TorchTensorDotLayer":
        log_weights = logs(_nonnegative(layer, "weight"))  # folds, out, contracted
        grid = ids.reshape(n_folds, log_weights.shape[2], -1).transpose(0, 2, 1)  # folds, kept, contracted
        out = circuit.sums(grid[:, :, None], log_weights[:, None])
        return out.reshape(n_folds, -1)
    raise ModelError(f"a layer is a {kind_of(layer)}, which cannot be read; {_LAYERS}")


def _pairs(ids: Ids) -> Ids:
    """Return all combinations of one unit per input, the last varying fastest: (folds, units^arity, arity)."""
    n_folds, arity, n_units = ids.shape
    which = np.stack(np.meshgrid(*[np.arange(n_units)] * arity, indexing="ij"), axis=-1).reshape(-1, arity)
    return np.stack([ids[:, j][:, which[:, j]] for j in range(arity)], axis=-1).reshape(n_folds, -1, arity)
