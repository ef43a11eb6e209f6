"""Modules of spflow (version 1): node numbers, shape (features, channels, repetitions), instead of values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from certimap.core.arguments import is_list
from certimap.core.arrays import Floats
from certimap.errors import ModelError
from certimap.interop.reading import Reading, Wishes, attribute, kind_of, library_of, log_softmax, named, numbers
from certimap.interop.tensors import Ids, TensorCircuit, log_choose, module_values

_LEAVES = "Categorical, Bernoulli, Binomial and Normal"


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a module with one output as a circuit over the columns of its leaves."""
    reader = _Reader()
    out = reader.ids(x)
    if out.size != 1:
        features, channels, repetitions = out.shape
        raise ModelError(
            f"this {kind_of(x)} has {out.size} outputs ({features} features, {channels} channels, {repetitions} "
            "repetitions); expected one: put a Product and a Sum above it"
        )
    columns = reader.circuit.variables
    circuit = reader.circuit.build(int(out.flat[0]), named(wishes, [str(v) for v in columns], x))
    return Reading(
        circuit,
        lambda rows: numbers(module_values(x, "log_likelihood", columns, rows)),
        states=reader.circuit.accepted,
    )


class _Reader:
    """Reads modules from the inputs up; a shared module is read once."""

    def __init__(self) -> None:
        self.circuit = TensorCircuit()
        self._known: dict[int, Any] = {}
        self._readers: dict[str, Callable[[Any], Any]] = {
            "Sum": self._sum,
            "ElementwiseSum": self._elementwise_sum,
            "RepetitionMixingLayer": self._mixing,
            "Product": lambda m: self.circuit.products(np.moveaxis(self.ids(attribute(m, "inputs")), 0, -1))[None],
            "ElementwiseProduct": lambda m: self.circuit.products(
                np.stack(np.broadcast_arrays(*self._inputs(m)), axis=-1)
            ),
            "OuterProduct": self._outer_product,
            "EinsumLayer": self._einsum,
            "LinsumLayer": self._linsum,
            "Factorize": self._factorize,
            "Cat": lambda m: np.concatenate(list(map(self.ids, attribute(m, "inputs"))), attribute(m, "dim") - 1),
            "SplitConsecutive": lambda m: self._split(
                m, lambda ids, n: [ids[k : k + len(ids) // n] for k in range(0, len(ids), len(ids) // n)]
            ),
            "SplitInterleaved": lambda m: self._split(m, lambda ids, n: [ids[start::n] for start in range(n)]),
            "SplitByIndex": lambda m: self._split(m, lambda ids, _: [ids[list(k)] for k in m.indices]),
            "RatSPN": lambda m: self.ids(attribute(m, "root_node")),
            "Einet": lambda m: self.ids(attribute(m, "root_node")),
            "Categorical": lambda m: self._leaves(m, log_softmax(numbers(attribute(m, "logits")), -1)),
            "Bernoulli": self._bernoulli,
            "Binomial": self._binomial,
            "Normal": self._normal,
        }

    def ids(self, module: Any) -> Any:
        """Return a module's node numbers, or a list of them for a split.

        Modules nest as deep as the circuit's layers, some tens.
        """
        key = id(module)
        if key not in self._known:
            reader = self._readers.get(type(module).__name__)
            if reader is None or library_of(module) != "spflow":
                raise ModelError(
                    f"a module of spflow is a {kind_of(module)}, which cannot be read; expected sums, products, "
                    f"splits and leaves of the kinds {_LEAVES}"
                )
            self._known[key] = reader(module)
        return self._known[key]

    def _inputs(self, module: Any) -> list[Ids]:
        """Return the inputs of a module with several inputs or one split input."""
        inputs = attribute(module, "inputs")
        if not hasattr(inputs, "log_likelihood"):
            found: list[Any] = [self.ids(one) for one in inputs]
            return found[0] if len(found) == 1 and is_list(found[0]) else found
        one: Any = self.ids(inputs)
        return one if is_list(one) else [one]

    def _leaves(self, module: Any, log_tables: Floats, accepted: Floats | None = None) -> Ids:
        """Add categorical leaves from logs of shape (features, channels, repetitions, states).

        `accepted` is the number of states accepted by spflow in each leaf; None for all.
        """
        variables = self._scope(module)
        shape = log_tables.shape[:3]
        out: list[int] = []
        for f, c, r in itertools.product(*(range(k) for k in shape)):
            n_accepted = None if accepted is None else int(accepted[f, c, r])
            out.append(self.circuit.leaf(variables[f], log_tables[f, c, r], n_accepted=n_accepted))
        return np.array(out, np.int64).reshape(shape)

    def _scope(self, module: Any) -> list[int]:
        if getattr(module, "parameter_fn", None) is not None or list(attribute(module, "scope", "evidence")):
            raise ModelError(
                f"a {kind_of(module)} depends on other columns; expected leaves with fixed parameters"
            )
        return [int(v) for v in attribute(module, "scope", "query")]

    def _bernoulli(self, module: Any) -> Ids:
        logits = numbers(attribute(module, "logits"))
        return self._leaves(module, np.stack([-np.logaddexp(0.0, logits), -np.logaddexp(0.0, -logits)], axis=-1))

    def _binomial(self, module: Any) -> Ids:
        logits, counts = numbers(attribute(module, "logits")), numbers(attribute(module, "total_count"))
        states = np.arange(int(counts.max()) + 1.0)
        log_one, log_zero = -np.logaddexp(0.0, -logits)[..., None], -np.logaddexp(0.0, logits)[..., None]
        rest = np.maximum(counts[..., None] - states, 0.0)
        tables = log_choose(counts[..., None], states) + states * log_one + rest * log_zero
        return self._leaves(module, tables, counts + 1.0)

    def _normal(self, module: Any) -> Ids:
        means, sds = numbers(attribute(module, "loc")), numbers(attribute(module, "scale"))
        variables = self._scope(module)
        out: list[int] = []
        for f, c, r in itertools.product(*(range(k) for k in means.shape)):
            out.append(self.circuit.leaf(variables[f], (float(means[f, c, r]), float(sds[f, c, r]))))
        return np.array(out, np.int64).reshape(means.shape)

    def _sum(self, module: Any) -> Ids:
        ids = self.ids(attribute(module, "inputs"))  # features, in, repetitions
        weights = log_softmax(numbers(attribute(module, "logits")), 1)  # features, in, out, repetitions
        return self.circuit.sums(ids.transpose(0, 2, 1)[:, None], weights.transpose(0, 2, 3, 1))

    def _elementwise_sum(self, module: Any) -> Ids:
        inputs = self._inputs(module)
        n_channels = max(ids.shape[1] for ids in inputs)
        stacked = np.stack([np.broadcast_to(i, (i.shape[0], n_channels, i.shape[2])) for i in inputs], axis=-1)
        weights = log_softmax(numbers(attribute(module, "logits")), 3)  # features, in, out, inputs, repetitions
        out = self.circuit.sums(stacked[:, :, None], weights.transpose(0, 1, 2, 4, 3))
        return out.reshape(out.shape[0], -1, out.shape[3])

    def _mixing(self, module: Any) -> Ids:
        ids = self.ids(attribute(module, "inputs"))  # features, channels, repetitions
        return self.circuit.sums(ids, log_softmax(numbers(attribute(module, "logits")), 2))[:, :, None]

    def _einsum(self, module: Any) -> Ids:
        left, right = self._inputs(module)
        pairs = np.stack(np.broadcast_arrays(left[:, :, None], right[:, None]), axis=-1)
        products = self.circuit.products(pairs)  # features, left, right, repetitions
        weights = log_softmax(
            numbers(attribute(module, "logits")), (3, 4)
        )  # features, out, repetitions, left, right
        flat = products.reshape(products.shape[0], -1, products.shape[3]).transpose(0, 2, 1)
        return self.circuit.sums(flat[:, None], weights.reshape(*weights.shape[:3], -1))

    def _linsum(self, module: Any) -> Ids:
        left, right = self._inputs(module)
        products = self.circuit.products(np.stack(np.broadcast_arrays(left, right), axis=-1))
        weights = log_softmax(numbers(attribute(module, "logits")), 3)  # features, out, repetitions, in
        return self.circuit.sums(products.transpose(0, 2, 1)[:, None], weights)

    def _outer_product(self, module: Any) -> Ids:
        inputs = self._inputs(module)
        out = inputs[0][..., None]  # features, channels, repetitions, parts
        for ids in inputs[1:]:
            left = np.repeat(out, ids.shape[1], axis=1)
            right = np.tile(ids, (1, out.shape[1], 1))[..., None]
            shape = np.broadcast_shapes(left.shape[:3], right.shape[:3])
            parts = [np.broadcast_to(side, (*shape, side.shape[3])) for side in (left, right)]
            out = np.concatenate(parts, axis=-1)
        return self.circuit.products(out)

    def _factorize(self, module: Any) -> Ids:
        (ids,) = self._inputs(module)
        chosen = numbers(attribute(module, "indices")) > 0.0  # in, out, repetitions
        _, n_out, n_repetitions = chosen.shape
        ids = np.broadcast_to(ids, (*ids.shape[:2], n_repetitions))
        out = np.empty((n_out, ids.shape[1], n_repetitions), np.int64)
        for o, c, r in itertools.product(*(range(k) for k in out.shape)):
            out[o, c, r] = self.circuit.product(ids[chosen[:, o, r], c, r].tolist())
        return out

    def _split(self, module: Any, parts: Callable[[Ids, int], list[Ids]]) -> list[Ids]:
        """Split the features of a module's input."""
        if attribute(module, "dim") != 1:
            raise ModelError(f"a {kind_of(module)} splits along dimension {module.dim}; expected 1 (features)")
        return parts(self.ids(attribute(module, "inputs")), int(attribute(module, "num_splits")))
