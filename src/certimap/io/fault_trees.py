"""Fault trees of the Open-PSA model exchange format (`.opsa`, or `.xml`) as Bayesian networks.

    <opsa-mef><define-fault-tree name="FT"><define-gate name="top"><or><gate name="pumps"/><basic-event name="v"/>
      </or></define-gate><define-basic-event name="v"><float value="1e-3"/></define-basic-event> ...

Gates and events are variables that are False or True. A gate of many inputs, and a formula inside another, get
hidden helpers: numbers of true inputs so far, and inner gates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import Categorical
from certimap.errors import ParseError
from certimap.io.declared import Declared
from certimap.io.files import AnyPath, cut
from certimap.io.words import Numbers, read_numbers
from certimap.io.xml_files import Element, read_xml
from certimap.networks.bayesian import BayesianNetwork

_EVENTS = ("gate", "basic-event", "house-event", "event")
_GROUPS = ("define-fault-tree", "define-component", "model-data")
_MEANS = ("lognormal-deviate", "normal-deviate")  # expressions that stand for their mean, which comes first
_MOST_BITS = 10  # of a table with inputs of a gate


def read_opsa(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read the gates and events of all fault trees; other kinds of formulas and expressions are refused."""
    root = read_xml(path, encoding)
    if root.tag != "opsa-mef":
        raise ParseError(f"begins with <{root.tag[:40]}>; expected <opsa-mef>", path, root.line)
    try:
        return _Trees(path, list(_definitions(root))).declared.network()
    except RecursionError:
        raise ParseError("has parameters that depend on each other more than some hundred deep", path) from None


def _definitions(element: Element) -> Iterator[tuple[str, str, Element]]:
    """Yield the kind, name and content of definitions, at any depth."""
    for child in element.children:
        if child.tag in _GROUPS:
            yield from _definitions(child)
        elif child.tag.startswith("define-") and child.children:
            yield child.tag.removeprefix("define-"), child.get("name"), child.children[-1]


class _Trees:
    """Declares a variable for each gate and event."""

    def __init__(self, path: AnyPath, found: list[tuple[str, str, Element]]) -> None:
        self.declared, self.values = Declared(path), dict[str, float]()
        self.parameters = {name: content for kind, name, content in found if kind == "parameter"}
        for kind, name, content in found:
            if kind == "gate":
                self.gate(name, content)
            elif kind in _EVENTS:
                self.event(name, content)

    def event(self, name: str, content: Element, kind: str = "chance") -> None:
        p = self.value(content)
        if not 0.0 <= p <= 1.0:
            raise self.declared.fail(f"{cut(name)} has the probability {p:g}; expected 0 to 1", content.line)
        self.declared.variable(name, (False, True), content.line, kind)
        self.declared.table(name, [], Numbers(np.array([1.0 - p, p])), content.line)

    def value(self, element: Element) -> float:
        """Return the number that an expression stands for."""
        kind, text, name = element.tag, element.get("value"), element.get("name")
        if kind == "constant" and text in ("true", "false"):
            return float(text == "true")
        if kind in ("float", "int") and (numbers := read_numbers([text])) is not None:
            return float(numbers.values[0])
        if kind == "parameter" and name in self.parameters:
            if name not in self.values:
                self.values[name] = math.nan  # for one that is defined by itself
                self.values[name] = self.value(self.parameters[name])
            return self.values[name]
        parts = [self.value(part) for part in element.children]
        values = {"mul": math.prod(parts), "add": sum(parts), "exponential": -math.expm1(-math.prod(parts))}
        if not parts or kind not in (*values, *_MEANS):
            told = f"<{kind[:40]}> of {cut(text or name)} is no probability; expected float, constant, parameter"
            raise self.declared.fail(f"{told}, {', '.join((*values, *_MEANS))}", element.line)
        return values.get(kind, parts[0])

    def gate(self, name: str, formula: Element, use: str = "chance") -> None:
        """Declare a gate: the number of true inputs, or of false ones, decides."""
        kind, line, children = formula.tag, formula.line, formula.children
        if kind in _EVENTS:
            kind, children = "or", [formula]
        elif kind == "imply" and len(children) == 2:
            kind, children = "or", [Element("not", {}, line, children[:1]), children[1]]
        least, most = (int(x) if x.isdecimal() and len(x) < 7 else 0 for x in map(formula.get, ("min", "max")))
        n, accepted = len(children), {
            "or": range(1, len(children) + 1), "and": [len(children)], "nor": [0], "nand": range(len(children)),
            "atleast": range(least, len(children) + 1), "cardinality": range(least, min(most, len(children)) + 1),
        }  # fmt: skip
        accepted |= {"not": [0]} if n == 1 else {"xor": [1], "iff": [0, 2]} if n == 2 else {}
        if not n or not (counts := {*accepted.get(kind, ())}):
            told = f"{cut(name)} is <{kind[:40]}> of {n} inputs, which is never true, or none of imply"
            raise self.declared.fail(f"{told}, {', '.join(accepted)}", line)
        inputs = [self.input(f"{name}:{k}", child) for k, child in enumerate(children)]
        ways = [
            (_cap(counts, n), counts, False),
            (_cap({n - c for c in counts}, n), {n - c for c in counts}, True),
        ]
        cap, counts, is_false = min(ways, key=lambda way: way[0])
        step, before = max(1, _MOST_BITS - 2 * cap.bit_length()), list[str]()
        for k in range(0, n, step):
            own, is_last = [*before, *inputs[k : k + step]], k + step >= n
            before = [name if is_last else f"{name}:count:{k}"]
            states = (False, True) if is_last else range(cap + 1)
            self.declared.variable(before[0], states, line, use if is_last else "hidden")
            self.declared.computed(
                before[0], own, partial(_count, cap, counts if is_last else None, is_false), line
            )

    def input(self, inner: str, child: Element) -> str:
        """Return the name of an input; declare a hidden variable for a formula or a constant."""
        if child.tag in _EVENTS:
            return child.get("name")
        (self.event if child.tag == "constant" else self.gate)(inner, child, "hidden")
        return inner


def _cap(counts: set[int], n: int) -> int:
    """Return the least number above which all are accepted, or none."""
    return next((c for c in range(n, 0, -1) if (c in counts) != (c - 1 in counts)), 0)


def _count(
    cap: int, accepted: set[int] | None, is_false: bool, child: Categorical, above: list[Categorical]
) -> Floats:
    """Return the table of a number of true (or false) inputs up to a cap, or of whether it is accepted."""
    total = np.zeros([1] * len(above), np.int64)
    for grid, variable in zip(np.ix_(*(range(v.n_states) for v in above)), above, strict=True):
        total = total + (1 - grid if is_false and isinstance(variable.states[0], bool) else grid)
    total = np.minimum(total, cap)
    return np.eye(child.n_states)[total if accepted is None else np.isin(total, list(accepted)).astype(np.int64)]
