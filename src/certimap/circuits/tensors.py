"""A plan cut into layers, and evaluated, differentiated and sampled in batches by PyTorch, on a CPU or a GPU.

Values are natural logs in a matrix (rows of `Layers`, batch). One layer is one gather and one reduction. The
posterior of a circuit may draw and score points this way.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from certimap.circuits.evaluator import probe_arrays
from certimap.circuits.kernels.statistics import count_roundings
from certimap.circuits.plan import Plan
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.posterior import Posterior
from certimap.core.rounding import ALL_SUMS, ENTROPY, STEPS, ULP
from certimap.errors import MissingDependency, ModelError, QueryError, SolverError

Tensor = Any
BLOCK_NUMBERS = 1 << 25  # numbers per block of rows: 256 MB of doubles
Precision = Literal["float32", "float64"]


class TensorPlan:
    """A plan over categorical variables on a device, "cpu", "cuda" or "cuda:N", in "float64" or "float32".

    Equal to `Evaluator` up to rounding (1e-10 nats in float64 on values above e^-10,000). Equal inputs give equal
    bits on a CPU; on a GPU, gradients add up in no fixed order. Raises MissingDependency without PyTorch,
    SolverError without the device, and ModelError for real variables.
    """

    def __init__(self, plan: Plan, device: str = "cpu", precision: Precision = "float64") -> None:
        self.plan, self.precision = plan, precision
        self.layers = Layers.of(plan)
        self._place(device_of(device))

    def _place(self, device: Any) -> None:
        self.device, self.dtype = device, torch().float64 if self.precision == "float64" else torch().float32
        layers = self.layers
        self._log_tables = self._floats(layers.leaf_log_tables)
        self._tables = self._log_tables.exp()
        self._columns, self._leaf_var = self._ints(layers.leaf_columns), self._ints(layers.leaf_var)
        self._steps = [
            (
                self._ints(layer.rows),
                self._ints(layer.members),
                None if layer.log_weights is None else self._floats(layer.log_weights)[:, :, None],
            )
            for layer in layers.layers
        ]

    def _floats(self, numbers: Array) -> Tensor:
        return torch().as_tensor(np.array(numbers, np.float64), dtype=self.dtype, device=self.device)

    def _ints(self, numbers: Array) -> Tensor:
        return torch().as_tensor(np.array(numbers, np.int64), device=self.device)

    def __call__(self, weights: Tensor) -> Tensor:
        """Return ln of the circuit's multilinear extension, shape (batch,), differentiable in `weights`.

        Their shape is (total_states, batch): zeros and a one observe a variable, ones sum it out.
        """
        return _function().apply(weights, self)

    def log_prob(self, points: Points) -> Floats:
        """Return ln p at each row of states, shape (batch,).

        A device that runs out of memory gets smaller blocks; if even a single row does not fit, the CPU takes
        over, with one warning.
        """
        n_variables = len(self.plan.domain)
        if np.ndim(points) != 2 or np.shape(points)[1] != n_variables:
            raise QueryError(f"points have shape {np.shape(points)}; expected (batch, {n_variables})")
        states: Ints = np.ascontiguousarray(np.asarray(points).T, dtype=np.int64)
        if np.any(states < 0) or np.any(states >= self.plan.domain.n_states[:, None]):
            raise QueryError("points hold a state position out of range; expected 0 to n_states - 1")

        def values(part: slice) -> Tensor:
            leaves: Tensor = self._log_tables.gather(1, self._ints(states[:, part])[self._leaf_var])
            return self._values(leaves)[-1]

        return self._in_blocks(values, np.empty(len(points)))

    def _in_blocks(self, make: Callable[[slice], Tensor], out: Array) -> Array:
        """Fill in the rows of an array by blocks that fit the device."""
        start, block = 0, self.block
        while start < len(out):
            part = slice(start, min(start + block, len(out)))
            try:
                out[part] = make(part).cpu().numpy()
            except torch().OutOfMemoryError:
                block = self.with_less(block)
            else:
                start = part.stop
        return out

    @property
    def block(self) -> int:
        """Number of rows evaluated at once."""
        return max(1, BLOCK_NUMBERS // (self.layers.n_rows + 2 * self.layers.widest))

    def with_less(self, block: int) -> int:
        """Return half of a block size that did not fit; switch to the CPU if nothing fits."""
        if self.device.type == "cuda":
            torch().cuda.empty_cache()
        if block > 1:
            return block // 2
        if self.device.type == "cpu":
            raise MemoryError(f"one row of a circuit of {self.plan.n_edges} edges does not fit into memory")
        warnings.warn(f"{self.device} ran out of memory; the CPU goes on", stacklevel=3)
        self._place(device_of("cpu"))
        return self.block

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        """Draw n independent points, shape (n, n_variables); draws depend on the device."""
        domain = self.plan.domain
        out = np.empty((n, len(domain)), domain.point_dtype)
        return self._in_blocks(lambda part: self._draw(part.stop - part.start, rng), out)

    def _values(self, log_leaves: Tensor) -> Tensor:
        """Return all rows, shape (n_rows, batch), given the rows of leaves."""
        n_leaves, batch = log_leaves.shape
        values = torch().zeros((self.layers.n_rows, batch), dtype=self.dtype, device=self.device)
        values[1 : 1 + n_leaves] = log_leaves
        for rows, members, log_weights in self._steps:
            terms = values[members]
            values[rows] = terms.sum(1) if log_weights is None else _log_sum(terms + log_weights)
        return values

    def _draw(self, n: int, rng: np.random.Generator) -> Tensor:
        """Walk down from the root with n rows at once, shape (n, n_variables)."""
        generator = torch().Generator(device=self.device).manual_seed(int(rng.integers(2**63)))
        active = torch().zeros((self.layers.n_rows, n), dtype=torch().bool, device=self.device)
        active[-1] = True
        for rows, members, log_weights in reversed(self._steps):
            which, row = active[rows].nonzero(as_tuple=True)
            if log_weights is None:
                active[members[which], row[:, None]] = True
            else:
                active[members[which, self._choose(log_weights[which, :, 0].exp(), generator)], row] = True
        leaf, row = active[1 : 1 + len(self._leaf_var)].nonzero(as_tuple=True)
        points = torch().zeros((n, len(self.plan.domain)), dtype=torch().int64, device=self.device)
        points[row, self._leaf_var[leaf]] = self._choose(self._tables[leaf], generator)
        return points

    def _choose(self, weights: Tensor, generator: Any) -> Tensor:
        """Draw a column for each row in proportion to its weights, shape (n,)."""
        running = weights.cumsum(1)
        uniform = torch().rand((len(weights), 1), dtype=torch().float64, device=self.device, generator=generator)
        chosen = (running <= uniform * running[:, -1:]).sum(1)
        last = (weights > 0).to(torch().int64).cumsum(1).argmax(1)
        return torch().minimum(chosen, last)

    def flows(self, values: Tensor, upward: Tensor) -> Tensor:
        """Return derivatives of the root's logs in the leaves' logs, times `upward`, shape (n_leaves, batch)."""
        flow = torch().zeros_like(values)
        flow[-1] = upward
        for rows, members, log_weights in reversed(self._steps):
            own = flow[rows][:, None, :].expand(-1, members.shape[1], -1)
            if log_weights is not None:
                own = own * (values[members] + log_weights - _finite(values[rows])[:, None, :]).exp()
            flow.index_add_(0, members.reshape(-1), own.reshape(-1, own.shape[-1]))
        return flow[1 : 1 + len(self._leaf_var)]

    def forward(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the leaves' values (not logs) under weights of states, and all rows."""
        leaves = (weights[self._columns] * self._tables[:, :, None]).sum(1)
        return leaves, self._values(leaves.log())

    def backward(self, leaves: Tensor, values: Tensor, upward: Tensor, total_states: int) -> Tensor:
        """Return the derivatives in the weights of states, shape (total_states, batch)."""
        flow = self.flows(values, upward)
        by_value = torch().where(leaves > 0, flow / leaves, torch().zeros_like(flow))
        by_state = by_value[:, None, :] * self._tables[:, :, None]
        out = torch().zeros((total_states, values.shape[1]), dtype=self.dtype, device=self.device)
        return out.index_add_(0, self._columns.reshape(-1), by_state.reshape(-1, values.shape[1]))


def _log_sum(terms: Tensor) -> Tensor:
    """Return ln of sums over axis 1; -inf if all terms are -inf."""
    top = _finite(terms.amax(1))
    return (terms - top[:, None]).exp().sum(1).log() + top


def _finite(logs: Tensor) -> Tensor:
    """Return logs with 0 in place of -inf."""
    return torch().where(logs == -torch().inf, torch().zeros_like(logs), logs)


@cache
def _function() -> Any:
    """Return the evaluation as a PyTorch function, whose derivative is a downward pass."""
    base: Any = torch().autograd.Function

    class Root(base):
        """ln of the multilinear extension."""

        @staticmethod
        def forward(ctx: Any, weights: Tensor, plan: TensorPlan) -> Tensor:
            leaves, values = plan.forward(weights)
            ctx.plan, ctx.total_states = plan, len(weights)
            ctx.save_for_backward(leaves, values)
            return values[-1].clone()

        @staticmethod
        def backward(ctx: Any, upward: Tensor) -> tuple[Tensor, None]:
            return ctx.plan.backward(*ctx.saved_tensors, upward, ctx.total_states), None

    return Root


@dataclass(frozen=True, eq=False)
class Layer:
    """Nodes of one kind with similar numbers of members, all from earlier layers."""

    rows: Ints  # (n,): the nodes' rows
    members: Ints  # (n, k): rows of their members, padded with row 0 (ln 1)
    log_weights: Floats | None  # (n, k), for sums: natural logs, -inf for padding. None for products


@dataclass(frozen=True, eq=False)
class Layers:
    """A plan over categorical variables as rows of values: row 0 (ln 1), one per distinct leaf, one per node."""

    n_rows: int  # number of rows; the root's is the last
    leaf_var: Ints  # (n_leaves,): the variable of the leaf in row 1 + i
    leaf_log_tables: Floats  # (n_leaves, largest number of states): natural logs, -inf beyond a variable's states
    leaf_columns: Ints  # int64, of that shape: the column of each state among all states of the domain, 0 beyond
    layers: tuple[Layer, ...]  # in an order in which every member is computed before it is used

    @property
    def widest(self) -> int:
        """The largest number of values of a layer per row of a batch."""
        return max((layer.members.size for layer in self.layers), default=1)

    @classmethod
    def of(cls, plan: Plan) -> Layers:
        """Cut a plan; linear in its edges up to logarithms, for sorting. Raises ModelError for real variables."""
        domain = plan.domain
        if not domain.is_discrete:
            name = next(v.name for v, k in zip(domain, domain.n_states, strict=True) if k == 0)
            raise ModelError(
                f"variable {name!r} is real, and tensors take categorical variables alone; leave device= out"
            )
        starts, first, leaf_of = np.unique(plan.leaf_start, return_index=True, return_inverse=True)
        leaf_var = plan.leaf_var[first].astype(np.int64)
        n_states, n_leaves = domain.n_states[leaf_var].astype(np.int64), len(starts)
        within = np.arange(int(n_states.max(initial=1)))
        exists = within < n_states[:, None]
        places = np.where(exists, starts[:, None] + within, 0)
        tables = np.where(exists, plan.log_tables[places], -np.inf)
        columns = np.where(exists, domain.offsets[leaf_var][:, None] + within, 0)
        layers = _layers(plan, leaf_of.astype(np.int64), n_leaves)
        return cls(1 + n_leaves + plan.n_nodes, leaf_var, tables, columns, layers)


def _layers(plan: Plan, leaf_of: Ints, n_leaves: int) -> tuple[Layer, ...]:
    """Group nodes by height, kind, and number of members up to a third more."""
    base = 1 + n_leaves
    counts = np.diff(plan.child_ptr) + np.diff(plan.leaf_ptr)
    power = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    between = power - power // 4
    size = np.where(counts <= between, between, power)  # 1, 2, 3, 4, 6, 8, 12, 16, ...: few, and little padding
    children: list[int] = plan.children.tolist()
    heights = list[int]()
    for first, last in pairwise(plan.child_ptr.tolist()):
        heights.append(1 + max((heights[child] for child in children[first:last]), default=-1))
    height = np.array(heights, np.int64)
    order = np.lexsort((size, plan.is_sum, height))
    keys = np.stack([height, plan.is_sum.astype(np.int64), size])[:, order]
    ends = [*(np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1).tolist(), plan.n_nodes]
    found: list[Layer] = []
    for start, stop in zip([0, *ends], ends, strict=False):
        nodes = order[start:stop]
        members = np.zeros((len(nodes), int(size[nodes[0]])), np.int64)
        weights = np.full(members.shape, -np.inf) if plan.is_sum[nodes[0]] else None
        for i, node in enumerate(nodes):
            leaves, edges = (slice(p[node], p[node + 1]) for p in (plan.leaf_ptr, plan.child_ptr))
            own = np.concatenate([1 + leaf_of[leaves], base + plan.children[edges].astype(np.int64)])
            members[i, : len(own)] = own
            if weights is not None:
                weights[i, : len(own)] = plan.log_weights[edges]
        found.append(Layer(base + nodes, members, weights))
    return tuple(found)


def is_installed() -> bool:
    """Whether PyTorch can be imported, found without importing it."""
    return importlib.util.find_spec("torch") is not None


@cache
def torch() -> Any:
    """Return PyTorch; MissingDependency if it is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        raise MissingDependency(
            "circuits are evaluated as tensors by PyTorch, which is not installed; pip install 'certimap[torch]', "
            "or leave device= out"
        ) from None


def device_of(name: str) -> Any:
    """Return the device with a name such as "cpu" or "cuda:1"; SolverError if this machine lacks it."""
    try:
        device = torch().device(name)
    except (RuntimeError, TypeError):
        raise SolverError(f"device={name!r} is no device; 'cpu', 'cuda' or 'cuda:N' is expected") from None
    if device.type == "cuda" and not torch().cuda.is_available():
        raise SolverError(f"device={name!r} was asked for, and PyTorch finds no CUDA device; use device='cpu'")
    n_devices = torch().cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= n_devices:
        raise SolverError(f"device={name!r} was asked for, and there are {n_devices} CUDA devices, counted from 0")
    if device.type not in ("cpu", "cuda"):
        raise SolverError(f"device={name!r} is not supported; 'cpu', 'cuda' or 'cuda:N' is expected")
    return device


DEVICE_ERROR = 2.0  # error of a device's exp and log, relative to the CPU's, in units of the last place


class TensorPosterior:
    """p(q | e) of a conditioned circuit on a device in float64, with only `sample` and `log_prob`.

    Draws depend on the device ("cpu", "cuda" or "cuda:N"), but not on threads. All logs are natural. Raises
    MissingDependency without PyTorch, SolverError without the device, and ModelError for real variables.
    """

    def __init__(self, posterior: CircuitPosterior, device: str) -> None:
        self.tensors, self.domain = TensorPlan(posterior.plan, device), posterior.domain
        slack = max(posterior.facts.log_slack, log_error(posterior.plan))
        self.facts = replace(posterior.facts, log_slack=slack)

    def __repr__(self) -> str:
        plan, device = self.tensors.plan, self.tensors.device
        return f"TensorPosterior({len(self.domain)} variables, {plan.n_edges} edges, {device})"

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n points, shape (n, n_vars); SolverError for boxes, in which only compiled kernels draw."""
        if boxes is not None:
            raise SolverError("draws inside boxes were asked for on a device; leave device= out")
        return self.tensors.sample(n, rng)

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q | e) at each row, shape (batch,); -inf at zero."""
        return self.tensors.log_prob(points)


def on_device(posterior: Posterior, device: str) -> TensorPosterior:
    """Return the same posterior on a device; SolverError for one that is not a circuit."""
    if not isinstance(posterior, CircuitPosterior):
        raise SolverError(
            f"device={device!r} is for circuits, and this query is answered by a {type(posterior).__name__}; "
            "leave device= out"
        )
    return TensorPosterior(posterior, device)


def log_error(plan: Plan) -> float:
    """Return a bound (nats) on a log's error: that of a box search (`rounding.py`) at the smallest value."""
    counts = count_roundings(probe_arrays(plan)._replace(in_logs=np.ones(plan.n_leaves, np.bool_)))
    finite = np.where(np.isfinite(plan.log_tables), plan.log_tables, 0.0)
    sizes = plan.domain.n_states[plan.leaf_var]
    leaves = [float(finite[s : s + k].min()) for s, k in zip(plan.leaf_start, sizes, strict=True)]
    weights: list[float] = np.where(np.isfinite(plan.log_weights), plan.log_weights, 0.0).tolist()
    least, low = list[float](), 0.0  # the least logs of positive values, of each node and of all nodes and terms
    leaf_ptr: list[int] = plan.leaf_ptr.tolist()
    ptr: list[int] = plan.child_ptr.tolist()
    children: list[int] = plan.children.tolist()
    for node, is_sum in enumerate(plan.is_sum.tolist()):
        terms = [weights[e] + least[children[e]] for e in range(ptr[node], ptr[node + 1])]
        least.append(min(terms) if is_sum else sum(terms) + sum(leaves[leaf_ptr[node] : leaf_ptr[node + 1]]))
        low = min(low, least[-1])
    reach = counts[ENTROPY] - low
    return float(DEVICE_ERROR * ULP * (counts[STEPS] + counts[ALL_SUMS] * reach) + plan.log_error)
