"""Policies of networks with decisions: what they are expected to bring, and the most, by elimination in NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.checker.file import Proof
from certimap.checker.models import Arrays, CheckBudget, Question, Rejected, Stored, refuse_huge, stored_tables
from certimap.checker.numbers import UNIT, Floats, Ints

LARGEST_SHARE = 1e-6  # of the largest absolute utilities together, that a claim may leave open
MOST_ENTRIES = 2**24  # of a table
SAME = 8  # units by which entries may differ along an axis that is dropped
Above = Mapping[int, Sequence[int]]  # the parents of a chance variable; what is known at a decision


class Part(NamedTuple):
    """A table over the variables of `scope`."""

    scope: tuple[int, ...]
    values: Floats

    @classmethod
    def of(cls, scope: Sequence[int], values: Floats, left: Sequence[Ints]) -> Part:
        """Keep the states that evidence leaves, and the axes of variables with several."""
        kept = tuple(v for v in scope if len(left[v]) > 1)
        values = values[np.ix_(*(left[v] for v in scope))] if scope else values
        return cls(kept, values.reshape([len(left[v]) for v in kept]))


@dataclass
class DecisionSums:
    """Tables by variable, and likelihoods at `signs`; `parts`, `worths`: probabilities and expectations left."""

    left: Sequence[Ints]
    tables: Mapping[int, list[Part]]
    above: Above
    signs: Sequence[int]
    budget: CheckBudget

    def expected(self, worths: Sequence[Part], seen: Above) -> tuple[float, float]:
        """Return the expected utility, the most by decisions that know what is `seen`; and its error (a share)."""
        above, rank = {**self.above, **seen}, dict[int, int]()
        if any(d in _ancestors(above, seen[d]) for d in seen):
            raise Rejected("a decision sees what a later one changes, so that the checker knows no maximum")
        needed = _ancestors(above, [*(v for worth in worths for v in worth.scope), *self.signs])
        self.parts, self.worths = [p for v in needed for p in self.tables.get(v, [])], list(worths)
        self.n_rounded, todo = 1.0, {v for v in needed if len(self.left[v]) > 1}
        for k, d in enumerate(reversed(list(seen))):  # first what no decision knows, then the last one
            rank |= {**dict.fromkeys(seen[d], 2 * k + 2), d: 2 * k + 1}
        while todo:
            _, n, v = min((rank.get(v, 0), self._entries(v), v) for v in todo)
            if n > MOST_ENTRIES:
                raise Rejected(f"the checker, which holds {MOST_ENTRIES:,} entries, needs {n:.3g} to tell")
            self.budget.need(32.0 * n, "elimination")
            todo.remove(v)
            self._eliminate(v, v in seen)
        mass = math.prod(float(p.values) for p in self.parts)
        if mass <= 0.0 or math.log2(mass) < sum(math.log2(len(self.left[v])) for v in needed) - 900.0:  # underflow
            raise Rejected("the evidence has probability 0, or one too small for the checker")
        return math.fsum(float(w.values) for w in self.worths), 4.0 * UNIT * (1 + len(needed)) * self.n_rounded

    def _entries(self, v: int) -> int:
        near = {v}.union(*(p.scope for p in self.parts if v in p.scope))
        wide = [near, *(near.union(w.scope) for w in self.worths if v in w.scope)]
        return max(math.prod(len(self.left[u]) for u in scope) for scope in wide)

    def _eliminate(self, v: int, is_decision: bool) -> None:
        parts, worths = ([p for p in some if v in p.scope] for some in (self.parts, self.worths))
        self.parts, self.worths = ([p for p in some if v not in p.scope] for some in (self.parts, self.worths))
        self.n_rounded += 4.0 + len(parts) + len(worths) + len(self.left[v])
        scope, product = self._joined(v, parts, np.multiply)
        total = (product.max if is_decision else product.sum)(axis=-1, keepdims=True)
        self._keep(self.parts, scope, total[..., 0])
        if is_decision:  # no probability depends on it by now
            scope, sums = self._joined(v, worths, np.add)
            return self._keep(self.worths, scope, sums.max(axis=-1))
        shares = np.divide(product, total, out=np.zeros(product.shape), where=total > 0.0)
        for worth in worths:
            wide, values = self._joined(v, [Part(scope, shares), worth], np.multiply)
            self._keep(self.worths, wide, values.sum(axis=-1))

    def _joined(self, v: int, parts: Sequence[Part], join: np.ufunc) -> Part:
        scope = (*sorted({u for p in parts for u in p.scope} - {v}), v)
        values = np.full([len(self.left[u]) for u in scope], float(join.identity))
        for part in parts:
            moved = part.values.transpose([part.scope.index(u) for u in scope if u in part.scope])
            join(values, moved[tuple(slice(None) if u in part.scope else None for u in scope)], out=values)
        return Part(scope, values)

    def _keep(self, kept: list[Part], scope: Sequence[int], values: Floats) -> None:
        """Keep a table over all but the last of `scope`, without the axes along which it is the same."""
        mine = list(scope[:-1])
        for v in scope[:-1]:
            first = values.take([0], axis := mine.index(v))
            if np.all(np.abs(values - first) <= SAME * UNIT * np.abs(first)):
                mine, values = [u for u in mine if u != v], first.squeeze(axis)
                self.n_rounded += SAME
        kept.append(Part(tuple(mine), values))


def check_policy(
    variables: Sequence[Stored], arrays: Arrays, proof: Proof, budget: CheckBudget
) -> tuple[float, float, float, Question]:
    """Return a policy's utility, a bound on all, the allowance on both, and the evidence; reject what is false."""
    claim, sizes = proof.meta["claim"], np.array([len(v["states"]) for v in variables], np.int64)
    weights = proof.arrays["log_weights"]
    low, high, share = (float(claim[name]) for name in ("expected_utility", "upper_bound", "tolerance"))
    is_number = math.isfinite(low) and math.isfinite(high) and 0.0 < share <= LARGEST_SHARE
    if not is_number or weights.shape != (sizes.sum(),) or weights.dtype != np.float64:
        raise Rejected(f"{low} to {high} within {share} (at most {LARGEST_SHARE}), or the evidence, does not fit")
    refuse_huge(np.concatenate([weights, arrays["utilities"]]), "the proof or the model")
    lists = [part.tolist() for part in np.split(arrays["variables"], np.cumsum(arrays["lengths"])[:-1])]
    n, recalled = len(lists) - len(arrays["utility_names"]), dict[int, list[int]]()
    asked = Question(sizes, np.array([d for d, *_ in lists[:n]], np.int64), weights)
    logs = [asked.weights_of(v) for v in range(len(sizes))]
    left = [np.flatnonzero(own > -np.inf) for own in logs]
    for d, *own in lists[:n]:
        recalled[d] = list(dict.fromkeys([*(v for e in recalled for v in (*recalled[e], e)), *own]))
    known = {d: own for d, *own in lists[:n]} if arrays["limited_memory"][0] else recalled
    free = [d for d in known if len(left[d]) > 1]
    tables, above = dict[int, list[Part]](), dict[int, Sequence[int]]()
    for scope, table, in_logs in stored_tables(sizes, arrays):
        rows, v = np.exp(table) if in_logs else table, scope[-1]
        tables[v], above[v] = [Part.of(scope, rows / rows.sum(axis=-1, keepdims=True), left)], scope[:-1]
        tables[v] += [Part.of((v,), np.exp(own - own.max()), left) for own in [logs[v]] if own.any()]
    signs = [v for v in above if logs[v].any()]
    causes = _ancestors({**above, **{d: known[d] for d in free}}, signs)
    if any(d in causes or logs[d][left[d]].any() for d in free) or not all(map(len, left)):
        raise Rejected("the evidence is on what an open decision changes, or leaves no state")
    ends = np.cumsum([math.prod(sizes[scope].tolist()) for scope in lists[n:]], dtype=np.int64)
    parts = np.split(arrays["utilities"], ends)
    worths = [Part.of(s, x.reshape(sizes[s]), left) for s, x in zip(lists[n:], parts, strict=False)]
    most = math.fsum(float(np.abs(x).max(initial=0.0)) for x in parts)
    policy, looks = _policy_in(proof, [v["name"] for v in variables], known, sizes, left)
    acting = DecisionSums(left, {**tables, **policy}, {**above, **looks}, signs, budget)
    each = [acting.expected([worth], {}) for worth in worths]
    best, error = DecisionSums(left, tables, above, signs, budget).expected(worths, {d: recalled[d] for d in free})
    allowed = most * max([share, error, *(e for _, e in each)]) + 1e-50  # the last for underflow
    value = math.fsum(x for x, _ in each)
    if not low <= value + allowed:
        raise Rejected(f"the policy has the expected utility {value:.12g}, and {low:.12g} is claimed")
    if not high >= best - allowed:
        where = "" if known is recalled else " with recall, and the checker knows no smaller bound without"
        raise Rejected(f"the maximum is {best:.12g}{where}; a bound of {high:.12g} is claimed")
    return low, high, allowed, asked


def _policy_in(
    proof: Proof, names: Sequence[str], known: Above, sizes: Ints, left: Sequence[Ints]
) -> tuple[dict[int, list[Part]], dict[int, list[int]]]:
    """Return the policy as tables of 0 and 1, and what each looks at."""
    choices: NDArray[Any] = proof.arrays["choices"]
    tables, looks = dict[int, list[Part]](), dict[int, list[int]]()
    for name, seen in proof.meta["policy"].items():
        d, scope = names.index(name), [names.index(other) for other in seen]
        rows, choices = np.split(choices, [math.prod(sizes[scope].tolist())])
        taken = np.equal.outer(rows.reshape(sizes[scope]), np.arange(int(sizes[d]))).astype(np.float64)
        tables[d], looks[d] = [Part.of([*scope, d], taken, left)], scope
        if not set(scope) <= set(known[d]) or tables[d][0].values.sum() != math.prod(len(left[v]) for v in scope):
            raise Rejected(f"the policy takes an option of {name!r} ruled out, or by what is not known then")
    if len(choices) or any(d not in tables and len(left[d]) > 1 for d in known):
        raise Rejected("the policy lacks a decision, or has options of none")
    return tables, looks


def _ancestors(above: Above, of: Iterable[int]) -> list[int]:
    """Return variables with all that they depend on."""
    found = set(of)
    while new := {u for v in found for u in above.get(v, ())} - found:
        found |= new
    return sorted(found)
