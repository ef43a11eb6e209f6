"""Circuits of the tensor libraries cirkit and spflow: node numbers instead of values go through their layers."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.core.arguments import is_list
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.logs import log_of
from certimap.errors import ModelError
from certimap.interop import reading
from certimap.interop.reading import Reading, Wishes, attribute, classes_of, kind_of, named, numbers, refuse
from certimap.io.circuit_records import add_leaf, joined_size

Ids = Ints
LeafTable = Floats | tuple[float, float]  # natural logs of all states, or mean and standard deviation


class _Leaf(NamedTuple):
    variable: int
    table: LeafTable
    log_scale: float


class _Inner(NamedTuple):
    kind: NodeKind
    children: Sequence[int]
    log_weights: Sequence[float]


class TensorCircuit:
    """Collects leaves, products and sums given as arrays of node numbers.

    Leaves wait until the number of states of each variable is known: the maximum over its leaves. Smaller leaves
    are 0 on further states.
    """

    def __init__(self) -> None:
        self._nodes: list[_Leaf | _Inner] = []
        self._states: dict[int, int] = {}
        self._fewest: dict[int, int] = {}

    def leaf(self, variable: int, table: LeafTable, log_scale: float = 0.0, n_accepted: int | None = None) -> int:
        """Add a leaf times e^log_scale; the library accepts `n_accepted` of its states (None: all)."""
        size = 0 if isinstance(table, tuple) else len(table)
        accepted = size if n_accepted is None else n_accepted
        self._fewest[variable] = min(self._fewest.get(variable, accepted), accepted)
        if not joined_size(self._states, variable, size):
            raise ModelError(f"variable {variable} has discrete and real leaves; expected leaves of one sort")
        return self._add(_Leaf(variable, table, log_scale))

    def product(self, children: Sequence[int]) -> int:
        """Add a product and return it; a single child is returned itself."""
        if len(children) == 1:
            return children[0]
        return self._add(_Inner(NodeKind.PRODUCT, children, [0.0] * len(children)))

    def sum(self, children: Sequence[int], log_weights: Sequence[float]) -> int:
        """Add a sum and return it; a single child with weight 1 is returned itself."""
        if len(children) == 1 and log_weights[0] == 0.0:
            return children[0]
        return self._add(_Inner(NodeKind.SUM, children, log_weights))

    def _add(self, node: _Leaf | _Inner) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

    def nodes(self, shape: tuple[int, ...], make: Callable[[tuple[int, ...]], int]) -> Ids:
        """Return the nodes that `make` adds, one for each place of an array."""
        return np.array(list(map(make, itertools.product(*map(range, shape)))), np.int64).reshape(shape)

    def products(self, children: Ids) -> Ids:
        """Add a product for each row of the last axis; return their numbers."""
        rows = children.reshape(-1, children.shape[-1]).tolist()
        return np.array(list(map(self.product, rows)), np.int64).reshape(children.shape[:-1])

    def sums(self, children: Ids, log_weights: Floats) -> Ids:
        """Add a sum for each row of the last axis; children and weights are broadcast against each other."""
        ids, weights = np.broadcast_arrays(children, log_weights)
        rows, row_weights = (part.reshape(-1, ids.shape[-1]).tolist() for part in (ids, weights))
        return np.array(list(map(self.sum, rows, row_weights)), np.int64).reshape(ids.shape[:-1])

    def reading(self, x: Any, wishes: Wishes, root: Ids, theirs: Callable[[list[int], Floats], Any]) -> Reading:
        """Return the circuit below a single root, to be compared with the values that `theirs` returns.

        `theirs` takes the sorted numbers of the leaves' variables, and points. States that the library accepts in
        all leaves are compared.
        """
        variables = sorted(self._states)
        made = self._built(int(root.flat[0]), named(wishes, [str(v) for v in variables], x))
        accepted = [self._fewest[v] for v in variables]
        return Reading(made, lambda rows: theirs(variables, rows), states=accepted)

    def _built(self, root: int, names: Sequence[str]) -> Circuit:
        """Return the circuit below a root; `names` are those of the variables, in order of their numbers."""
        sizes = sorted(self._states.items())
        place = {v: i for i, (v, _) in enumerate(sizes)}
        domain = Domain(
            Categorical(name, tuple(range(size))) if size else Real(name)
            for (_, size), name in zip(sizes, names, strict=True)
        )
        builder = CircuitBuilder(domain)
        number: list[int] = []
        for node in self._nodes[: root + 1]:
            if isinstance(node, _Inner):
                number.append(builder.add(node.kind, [number[c] for c in node.children], node.log_weights))
                continue
            variable, scale, is_real = place[node.variable], node.log_scale, isinstance(node.table, tuple)
            leaf = add_leaf(builder, variable, node.table if isinstance(node.table, tuple) else node.table + scale)
            number.append(builder.sum([leaf], log_weights=[scale]) if is_real and scale else leaf)
        circuit = builder.build(normalised=False)
        return circuit.part(circuit.reached())


def _module_values(x: Any, ask: str, columns: Sequence[int], rows: Floats, *, in_logs: bool = True) -> Any:
    """Return the values of rows under a PyTorch module; `columns` are the columns of its leaves."""
    torch: Any = sys.modules["torch"]
    parameters = [*x.parameters(), *x.buffers()]
    kinds = {str(p.dtype) for p in parameters}
    # Half precision gives two digits, and in single values that are no logs underflow.
    is_widened = not in_logs or bool(kinds & {"torch.bfloat16", "torch.float16"})
    x = copy.deepcopy(x).double() if is_widened else x
    kind = torch.float64 if is_widened or "torch.float64" in kinds else torch.float32
    table = torch.zeros((len(rows), max(columns) + 1), dtype=kind)
    table[:, list(columns)] = torch.as_tensor(rows, dtype=kind)
    with torch.no_grad():
        return getattr(x, ask)(table.to(parameters[0].device if parameters else "cpu"))


def _binomials(n: Floats, log_one: Floats, log_zero: Floats) -> Floats:
    """Return ln P(k hits of n), for k on a further axis up to the largest n. Within some roundings of n ln n."""
    from scipy.special import gammaln

    n, log_one, log_zero = n[..., None], log_one[..., None], log_zero[..., None]
    hits = np.arange(int(n.max()) + 1.0)
    rest = np.maximum(n - hits, 0.0)
    with np.errstate(invalid="ignore"):  # 0 times the log of 0 is the log of 1
        logs = np.where(hits > 0, hits * log_one, 0.0) + np.where(rest > 0, rest * log_zero, 0.0)
    return np.where(hits <= n, logs + gammaln(n + 1.0) - gammaln(hits + 1.0) - gammaln(rest + 1.0), -np.inf)


_INNER = {f"Torch{name}Layer" for name in ("Sum", "Hadamard", "Kronecker", "Tucker", "CPT", "TensorDot")}
_LAYERS = (
    "expected sum, Hadamard, Kronecker, Tucker, CP-T and tensor-dot layers over categorical, binomial, embedding "
    "and Gaussian ones"
)


def read_cirkit(x: Any, wishes: Wishes) -> Reading:
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
    if outputs[-1].size != 1:
        raise ModelError(f"this {kind_of(x)} has {outputs[-1].size} outputs; expected one")
    return circuit.reading(x, wishes, outputs[-1], lambda columns, rows: _log_likelihood(x, columns, rows))


def _gathered(entry: Any, outputs: list[Ids]) -> Any:
    """Return the input of an entry's layer, shape (folds, arity, units), like `AddressBook.lookup`."""
    layers: list[list[int]] = attribute(entry, "in_module_ids")
    if not layers:
        return None
    ids = np.concatenate([outputs[i] for i in layers[0]], axis=0)
    index = attribute(entry, "in_fold_idx")[0]
    return ids[np.asarray(numbers(index), np.int64) if hasattr(index, "detach") else index]


def _log_likelihood(x: Any, columns: list[int], rows: Floats) -> Floats:
    """Return the library's values, which are logs in some of its semirings, and complex in one of them."""
    in_logs = "LSE" in attribute(next(iter(attribute(x, "layers"))), "semiring").__name__
    found = _module_values(x, "forward", columns, rows, in_logs=in_logs).reshape(len(rows), -1)[:, 0]
    if found.is_complex() and bool(((found.imag.cos() > 1.0 - 1e-6) | found.real.isneginf()).all()):
        found = found.real  # values that are negative or complex are refused as parameters are
    return numbers(found) if in_logs else log_of(numbers(found))


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
    return circuit.nodes(tables.shape[:2], lambda at: circuit.leaf(int(variables[at[0], 0]), tables[at]))


def _categorical(layer: Any) -> Floats:
    """Return logs of shape (folds, units, states); logits are not normalised."""
    logits = attribute(layer, "logits")
    return log_of(_nonnegative(layer, "probs")) if logits is None else numbers(logits())


def _binomial(layer: Any) -> Floats:
    total, logits = float(attribute(layer, "total_count")), attribute(layer, "logits")
    if logits is None:
        one = _nonnegative(layer, "probs")
        log_one, log_zero = log_of(one), log_of(1.0 - one)
    else:
        values = numbers(logits())
        log_one, log_zero = -np.logaddexp(0.0, -values), -np.logaddexp(0.0, values)
    return _binomials(np.array(total), log_one, log_zero)


_TABLES: dict[str, Callable[[Any], Floats]] = {
    "TorchCategoricalLayer": _categorical,
    "TorchBinomialLayer": _binomial,
    "TorchEmbeddingLayer": lambda layer: log_of(_nonnegative(layer, "weight")),
}


def _gaussian(circuit: TensorCircuit, layer: Any, variables: list[int]) -> Ids:
    means, sds = numbers(attribute(layer, "mean")()), numbers(attribute(layer, "stddev")())
    constant = attribute(layer, "log_partition")
    scales = np.zeros(means.shape) if constant is None else numbers(constant())

    def leaf(at: tuple[int, ...]) -> int:
        return circuit.leaf(variables[at[0]], (float(means[at]), float(sds[at])), float(scales[at]))

    return circuit.nodes(means.shape, leaf)


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
    if kind not in _INNER:
        raise ModelError(f"a layer is a {kind_of(layer)}, which cannot be read; {_LAYERS}")
    if kind in ("TorchHadamardLayer", "TorchCPTLayer"):
        ids = circuit.products(ids.transpose(0, 2, 1))
    elif kind in ("TorchKroneckerLayer", "TorchTuckerLayer"):
        ids = circuit.products(_pairs(ids))
    if kind in ("TorchHadamardLayer", "TorchKroneckerLayer"):
        return ids
    n_folds, log_weights = len(ids), log_of(_nonnegative(layer, "weight"))  # folds, out, contracted
    if kind != "TorchTensorDotLayer":
        return circuit.sums(ids.reshape(n_folds, 1, -1), log_weights)
    grid = ids.reshape(n_folds, log_weights.shape[2], -1).transpose(0, 2, 1)  # folds, kept, contracted
    return circuit.sums(grid[:, :, None], log_weights[:, None]).reshape(n_folds, -1)


def _pairs(ids: Ids) -> Ids:
    """Return all combinations of one unit per input, the last varying fastest: (folds, units^arity, arity)."""
    n_folds, arity, n_units = ids.shape
    which = np.stack(np.meshgrid(*[np.arange(n_units)] * arity, indexing="ij"), axis=-1).reshape(-1, arity)
    return np.stack([ids[:, j][:, which[:, j]] for j in range(arity)], axis=-1).reshape(n_folds, -1, arity)


def _log_weights(module: Any, axis: int | tuple[int, ...]) -> Floats:
    """Return the logs of weights, in double precision, from logits: they add to 1 along an axis."""
    logits = numbers(attribute(module, "logits"))
    top = logits.max(axis=axis, keepdims=True)
    shifted = logits - np.where(np.isfinite(top), top, 0.0)
    return shifted - log_of(np.exp(shifted).sum(axis=axis, keepdims=True))


_LEAVES = "Categorical, Bernoulli, Binomial and Normal"


def read_spflow(x: Any, wishes: Wishes) -> Reading:
    """Read a module with one output as a circuit over the columns of its leaves."""
    reader = _Reader()
    out = reader.ids(x)
    if out.size != 1:
        features, channels, repetitions = out.shape
        text = f"this {kind_of(x)} has {out.size} outputs ({features} features, {channels} channels"
        raise ModelError(f"{text}, {repetitions} repetitions); expected one: put a Product and a Sum above it")
    return reader.circuit.reading(
        x, wishes, out, lambda c, rows: numbers(_module_values(x, "log_likelihood", c, rows))
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
            "Categorical": lambda m: self._leaves(m, _log_weights(m, -1)),
            "Bernoulli": self._bernoulli,
            "Binomial": self._binomial,
            "Normal": self._normal,
        }

    def ids(self, module: Any) -> Any:
        """Return a module's node numbers, or a list for a split; shape (features, channels, repetitions)."""
        key = id(module)
        if key not in self._known:
            reader = self._readers.get(type(module).__name__)
            if reader is None or reading.library_of(module) != "spflow":
                text = f"a module of spflow is a {kind_of(module)}, which cannot be read"
                raise ModelError(f"{text}; expected sums, products, splits and leaves of the kinds {_LEAVES}")
            self._known[key] = reader(module)
        return self._known[key]

    def _inputs(self, module: Any) -> list[Ids]:
        """Return the inputs of a module with several inputs or one split input."""
        inputs = attribute(module, "inputs")
        found: list[Any] = [self.ids(one) for one in ([inputs] if hasattr(inputs, "log_likelihood") else inputs)]
        return found[0] if len(found) == 1 and is_list(found[0]) else found

    def _leaves(self, module: Any, log_tables: Floats, accepted: Floats | None = None) -> Ids:
        """Add categorical leaves from logs (features, channels, repetitions, states), `accepted` of each leaf."""
        variables = self._scope(module)

        def leaf(at: tuple[int, ...]) -> int:
            n_accepted = None if accepted is None else int(accepted[at])
            return self.circuit.leaf(variables[at[0]], log_tables[at], n_accepted=n_accepted)

        return self.circuit.nodes(log_tables.shape[:3], leaf)

    def _scope(self, module: Any) -> list[int]:
        if getattr(module, "parameter_fn", None) is not None or list(attribute(module, "scope", "evidence")):
            text = f"a {kind_of(module)} depends on other columns; expected leaves with fixed parameters"
            raise ModelError(text)
        return [int(v) for v in attribute(module, "scope", "query")]

    def _bernoulli(self, module: Any) -> Ids:
        logits = numbers(attribute(module, "logits"))
        return self._leaves(module, np.stack([-np.logaddexp(0.0, logits), -np.logaddexp(0.0, -logits)], axis=-1))

    def _binomial(self, module: Any) -> Ids:
        logits, counts = numbers(attribute(module, "logits")), numbers(attribute(module, "total_count"))
        tables = _binomials(counts, -np.logaddexp(0.0, -logits), -np.logaddexp(0.0, logits))
        return self._leaves(module, tables, counts + 1.0)

    def _normal(self, module: Any) -> Ids:
        means, sds = numbers(attribute(module, "loc")), numbers(attribute(module, "scale"))
        variables = self._scope(module)
        return self.circuit.nodes(
            means.shape, lambda at: self.circuit.leaf(variables[at[0]], (float(means[at]), float(sds[at])))
        )

    def _sum(self, module: Any) -> Ids:
        ids = self.ids(attribute(module, "inputs"))  # features, in, repetitions
        weights = _log_weights(module, 1)  # features, in, out, repetitions
        return self.circuit.sums(ids.transpose(0, 2, 1)[:, None], weights.transpose(0, 2, 3, 1))

    def _elementwise_sum(self, module: Any) -> Ids:
        inputs = self._inputs(module)
        n_channels = max(ids.shape[1] for ids in inputs)
        stacked = np.stack([np.broadcast_to(i, (i.shape[0], n_channels, i.shape[2])) for i in inputs], axis=-1)
        weights = _log_weights(module, 3)  # features, in, out, inputs, repetitions
        out = self.circuit.sums(stacked[:, :, None], weights.transpose(0, 1, 2, 4, 3))
        return out.reshape(out.shape[0], -1, out.shape[3])

    def _mixing(self, module: Any) -> Ids:
        ids = self.ids(attribute(module, "inputs"))  # features, channels, repetitions
        return self.circuit.sums(ids, _log_weights(module, 2))[:, :, None]

    def _einsum(self, module: Any) -> Ids:
        left, right = self._inputs(module)
        pairs = np.stack(np.broadcast_arrays(left[:, :, None], right[:, None]), axis=-1)
        products = self.circuit.products(pairs)  # features, left, right, repetitions
        weights = _log_weights(module, (3, 4))  # features, out, repetitions, left, right
        flat = products.reshape(products.shape[0], -1, products.shape[3]).transpose(0, 2, 1)
        return self.circuit.sums(flat[:, None], weights.reshape(*weights.shape[:3], -1))

    def _linsum(self, module: Any) -> Ids:
        left, right = self._inputs(module)
        products = self.circuit.products(np.stack(np.broadcast_arrays(left, right), axis=-1))
        weights = _log_weights(module, 3)  # features, out, repetitions, in
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
        return self.circuit.nodes(
            (n_out, ids.shape[1], n_repetitions),
            lambda at: self.circuit.product(ids[chosen[:, at[0], at[2]], at[1], at[2]].tolist()),
        )

    def _split(self, module: Any, parts: Callable[[Ids, int], list[Ids]]) -> list[Ids]:
        """Split the features of a module's input."""
        if attribute(module, "dim") != 1:
            raise ModelError(f"a {kind_of(module)} splits along dimension {module.dim}; expected 1 (features)")
        return parts(self.ids(attribute(module, "inputs")), int(attribute(module, "num_splits")))
