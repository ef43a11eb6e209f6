"""SparC's circuits as JSON (`CircuitSerializer`, "gcw-circuit-v1")."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import MAX_STATES
from certimap.errors import ModelError
from certimap.io.circuit_records import JsonCircuit, JsonNode, Leaf, Record, is_record, items, shown
from certimap.io.files import AnyPath, cut

FORMAT = "gcw-circuit-v1"


class SparcCircuit(JsonCircuit):
    """Reader for SparC: nodes with their children; the root by id."""

    def __init__(self, path: AnyPath, data: Record) -> None:
        super().__init__(path, data)
        if data["format"] != FORMAT:
            raise self.fail(f"is of the format {shown(data['format'])}; expected {FORMAT!r}")
        self.root = self.integer(data.get("root"), "the root")
        for record in items(data["nodes"]):
            if not is_record(record) or not isinstance(record.get("kind"), str):
                raise self.fail("has a node without a kind; expected circuits of SparC")
            key = self.integer(record.get("id"), "the id of a node")
            if key in self.nodes:
                raise self.fail(f"the id {key} is defined twice; expected once")
            below = record.get("children", [])
            children = [self.integer(c, f"a child of node {key}") for c in items(below)]
            self.nodes[key] = JsonNode(record["kind"], record, children)

    def is_leaf(self, node: int) -> bool:
        return self.nodes[node].kind not in ("sum", "product")

    def inner(self, builder: CircuitBuilder, node: int, ids: Mapping[int, int]) -> int:
        children = [ids[child] for child in self.nodes[node].children]
        if self.nodes[node].kind == "product":
            return builder.product(children)
        weights = self.field(self.nodes[node].record, "params", node)
        return builder.sum(children, log_weights=self.probabilities(weights, f"a weight of node {node}"))

    def leaf(self, node: int) -> Leaf:
        kind, record = self.nodes[node].kind, self.nodes[node].record
        variable = self.variable(record, node)

        def number(key: str) -> float:
            return self.number(self.field(record, key, node), f"the {key} of node {node}")

        if kind == "gaussian":
            return variable, (number("mean"), number("std"))
        if kind == "categorical":
            logs = self.probabilities(self.field(record, "params", node), f"a probability of node {node}")
        elif kind == "bernoulli":
            logs = self.probabilities([1.0 - number("p"), number("p")], f"a probability of node {node}")
        elif kind in ("literal", "indicator", "discrete_logistic"):
            size = (
                2
                if kind == "literal"
                else self.integer(self.field(record, "num_cats", node), "a number of states")
            )
            if not 1 <= size <= MAX_STATES:
                raise self.fail(f"node {node} has {size} states; expected 1 to {MAX_STATES}")
            if kind == "discrete_logistic":
                return variable, _discrete_logistic(number("mu"), number("s"), size)
            state = self.integer(self.field(record, "value", node), f"the state of node {node}")
            logs = [0.0 if k == state else -math.inf for k in range(size)]
        else:
            raise self.fail(
                f"node {node} is of the kind {cut(kind)}; expected sum, product, categorical, bernoulli, literal, "
                "indicator, discrete_logistic or gaussian"
            )
        if not logs:
            raise self.fail(f"node {node} has no probability; expected one per state")
        return variable, logs


def _discrete_logistic(mean: float, scale: float, size: int) -> list[float]:
    """Return ln of the logistic mass around each of 0, ..., size - 1; the first and last include the tails."""
    if not scale > 0.0:
        raise ModelError(f"a discrete logistic leaf has the scale {scale}; expected a positive number")

    def log_below(x: float) -> float:
        return -math.log1p(math.exp(-x)) if x > -30.0 else x - math.log1p(math.exp(x))

    def log_between(low: float, high: float) -> float:
        if low > -high:  # computed in the upper tail, where masses keep their digits
            low, high = -high, -low
        if not low < high:
            return -math.inf
        top = log_below(high)
        share = -math.expm1(log_below(low) - top)
        return top + math.log(share) if share > 0.0 else -math.inf

    ends = [-math.inf, *((k - 0.5 - mean) / scale for k in range(1, size)), math.inf]
    return [log_between(low, high) for low, high in itertools.pairwise(ends)]
