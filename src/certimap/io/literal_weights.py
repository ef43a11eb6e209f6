"""Weights of literals, for circuits without weights.

Each line of a file has one of these forms; the file may be the CNF itself:

    LITERAL WEIGHT                          d4
    c p weight LITERAL WEIGHT 0             model counting competitions, in a CNF
    c weights W1 W-1 W2 W-2 ...             c2d and miniC2D, in a CNF
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, cut, read_text
from certimap.io.numbers import log_of_text

Weights = Mapping[int, float] | str | PathLike[str]  # by literal, or a file


def log_weights(given: Weights | None, path: AnyPath, encoding: str | None = None) -> tuple[dict[int, float], int]:
    """Return the natural logs of the weights of literals, and the file's number of variables (or 0).

    `given` has weights by literal (3: variable 3 is true, -3: it is false), or is a file; absent variables weigh 1
    either way. `path` is the circuit's file, for errors: a weight that is negative or not a number, a literal with
    two weights, the literal 0, a literal whose negation has no weight.
    """
    if given is None:
        return {}, 0
    if isinstance(given, Mapping):
        found: dict[int, float] = {}
        for literal, weight in given.items():
            if not (math.isfinite(weight) and weight >= 0.0) or not literal:
                raise ModelError(
                    f"literal {literal} has the weight {weight}; expected finite numbers that are not negative"
                )
            found[int(literal)] = math.log(weight) if weight > 0.0 else -math.inf
        n_variables = 0
        where = path
    else:
        found, n_variables = _of_file(given, encoding)
        where = given
    for literal in found:
        if -literal not in found:
            raise ParseError(
                f"literal {literal} has a weight and {-literal} has none; both are needed, as conventions for the "
                "other differ",
                where,
            )
    return found, n_variables


def _of_file(path: AnyPath, encoding: str | None) -> tuple[dict[int, float], int]:
    found: dict[int, float] = {}
    n_variables = 0

    def add(literal: str, weight: str, line: int) -> None:
        try:
            key, value = int(literal[:12]), log_of_text(weight)
        except ValueError:
            raise ParseError(
                f"{cut(literal)} and {cut(weight)} are no literal and weight; expected an integer and a number "
                "that is not negative",
                path,
                line,
            ) from None
        if key == 0 or key in found:
            raise ParseError(f"literal {key} is weighted twice, or 0; expected each literal once", path, line)
        found[key] = value

    is_cnf = False
    for k, text in enumerate(read_text(path, encoding).split("\n"), 1):
        words = text.split()
        if words[:3] == ["c", "p", "weight"] and len(words) >= 5:
            add(words[3], words[4], k)
        elif words[:2] == ["c", "weights"]:
            for i, weight in enumerate(words[2:]):
                add(str((i // 2 + 1) * (-1 if i % 2 else 1)), weight, k)
        elif words[:2] == ["p", "cnf"]:
            is_cnf = True
            n_variables = int(words[2]) if len(words) > 2 and words[2].isdecimal() and len(words[2]) < 10 else 0
        elif words and words[0] != "c" and not is_cnf:
            if len(words) != 2:
                raise ParseError(f"{cut(text.strip())} is no literal and its weight", path, k)
            add(words[0], words[1], k)
    return found, n_variables


def as_rows(found: Mapping[int, float], n_variables: int) -> NDArray[np.float64]:
    """Return log weights of (false, true), shape (n_variables, 2); 0 by default."""
    rows = np.zeros((n_variables, 2))
    for literal, value in found.items():
        if abs(literal) <= n_variables:
            rows[abs(literal) - 1, int(literal > 0)] = value
    return rows
