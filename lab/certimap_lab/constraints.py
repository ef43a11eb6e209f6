"""Random constraints in their JSON form, and their meaning, read from that form alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from certimap.core.arguments import Record

KINDS = ("AtMost", "AtLeast", "Exactly", "Never", "Implies", "AllDifferent", "Linear", "Allowed")


def holds(said: Record, assignment: Mapping[str, Any]) -> bool:
    """Return whether an assignment of labels, as JSON holds them, satisfies a constraint."""
    kind = said["kind"]
    if kind in ("AtMost", "AtLeast", "Exactly"):
        count, k = sum(assignment[name] == said["state"] for name in said["names"]), said["k"]
        return {"AtMost": count <= k, "AtLeast": count >= k, "Exactly": count == k}[kind]
    if kind == "Never":
        return not all(assignment[name] == label for name, label in said["states"])
    if kind == "Implies":
        premise, conclusion = (
            all(assignment[name] == label for name, label in said[side]) for side in ("premise", "conclusion")
        )
        return conclusion or not premise
    if kind == "AllDifferent":
        labels = [assignment[name] for name in said["names"]]
        return all(a != b for i, a in enumerate(labels) for b in labels[:i])
    if kind == "Allowed":
        return [assignment[name] for name in said["names"]] in [list(row) for row in said["rows"]]
    weights = (
        Fraction(weight)
        for name, entries in said["weights"]
        for label, weight in entries
        if assignment[name] == label
    )
    total, high, low = sum(weights, Fraction(0)), said["at_most"], said["at_least"]
    return (high is None or total <= Fraction(high)) and (low is None or total >= Fraction(low))


def all_hold(said: Sequence[Record], assignment: Mapping[str, Any]) -> bool:
    return all(holds(one, assignment) for one in said)


def random_constraints(rng: np.random.Generator, states: Mapping[str, Sequence[Any]], n: int) -> list[Record]:
    """Return n constraints on variables, which are given with their labels; nothing may satisfy them."""
    return [_random(rng, states) for _ in range(n)]


def _random(rng: np.random.Generator, states: Mapping[str, Sequence[Any]]) -> Record:
    names = [str(name) for name in rng.permutation(list(states))]
    names = names[: int(rng.integers(1, len(names) + 1))]
    kind = KINDS[int(rng.integers(len(KINDS)))]
    if kind == "AllDifferent" and len(names) < 2:
        kind = "Never"

    def pairs() -> list[list[Any]]:
        some = [str(name) for name in rng.permutation(names)[: int(rng.integers(1, len(names) + 1))]]
        return [[name, _one_of(rng, states[name])] for name in some]

    if kind in KINDS[:3]:
        state = _one_of(rng, states[names[0]])
        counted = [name for name in names if state in states[name]]
        return {"kind": kind, "k": int(rng.integers(0, len(counted) + 1)), "names": counted, "state": state}
    if kind == "Never":
        return {"kind": kind, "states": pairs()}
    if kind == "Implies":
        return {"kind": kind, "premise": pairs(), "conclusion": pairs()}
    if kind == "AllDifferent":
        return {"kind": kind, "names": names[:3]}
    if kind == "Linear":
        weights = [[name, [[label, 0.1 * int(rng.integers(-3, 4))] for label in states[name]]] for name in names]
        bounds = sorted((0.1 * rng.integers(-3, 4, 2)).tolist())
        which = int(rng.integers(3))  # both bounds, or one of them
        low, high = (None if which == 1 else bounds[0]), (None if which == 2 else bounds[1])
        return {"kind": kind, "weights": weights, "at_most": high, "at_least": low}
    rows = [[_one_of(rng, states[name]) for name in names] for _ in range(int(rng.integers(1, 8)))]
    return {"kind": kind, "names": names, "rows": rows}


def _one_of(rng: np.random.Generator, labels: Sequence[Any]) -> Any:
    return labels[int(rng.integers(len(labels)))]


def forged(rng: np.random.Generator, said: Sequence[Record], states: Mapping[str, Sequence[Any]]) -> Iterator[Any]:
    """Yield what was done to constraints, and the constraints then: one dropped, added, or changed."""
    for i, one in enumerate(said):
        rest = [*said[:i], *said[i + 1 :]]
        yield "a constraint dropped", rest
        if "k" in one:
            for k in (one["k"] - 1, one["k"] + 1):
                yield "another number", [*rest, {**one, "k": k}]
            for label in states[one["names"][0]]:
                yield "another label", [*rest, {**one, "state": label}]
        if len(one.get("names", ())) > 1 and "rows" not in one:
            yield "a name less", [*rest, {**one, "names": one["names"][1:]}]
        if "rows" in one:
            yield "a row less", [*rest, {**one, "rows": one["rows"][1:]}]
        for name in ("states", "premise", "conclusion"):
            if name in one:
                (first, label), *others = one[name]
                swapped = [[first, _one_of(rng, [x for x in states[first] if x != label] or [label])], *others]
                yield "another label", [*rest, {**one, name: swapped}]
        if "weights" in one:
            yield "other bounds", [*rest, {**one, "at_most": one["at_least"], "at_least": one["at_most"]}]
    if states:
        yield "a constraint more", [*said, *random_constraints(rng, states, 1)]
