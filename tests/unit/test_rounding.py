"""Constants that guard against underflow stand in one module, with the proof of why they are enough."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import certimap
from certimap.search_boxes import rounded_up

ROOT = Path(certimap.__file__).parent
TINY = 1e-30  # smaller numbers have no business in a model: they guard
LEAST_POWER, LEAST_LOG = 100, range(400, 1100)
# Hostile models are made of such numbers, one solver's messages, which claim nothing, are cut off at one, and the
# checker of proofs shares nothing with what it checks.
ELSEWHERE = ("testing/", "bench/", "checker/", "solvers/networks/ijgp.py")


def guards(tree: ast.AST) -> list[str]:
    """Return numbers that guard: tiny ones, negative powers of two, and logs at the edge of the doubles."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0.0 < node.value < TINY:
            found.append(repr(node.value))
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and isinstance(node.operand, ast.Constant)
        ):
            value = node.operand.value
            if isinstance(value, int | float) and value in LEAST_LOG:
                found.append(f"-{value!r}")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            power = ast.unparse(node.right).strip("()")
            if power.startswith("-") and power[1:].isdigit() and int(power[1:]) >= LEAST_POWER:
                found.append(ast.unparse(node))
    return found


def test_no_guard_stands_alone() -> None:
    bare = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name != "rounding.py" and not name.startswith(ELSEWHERE):
            numbers = guards(ast.parse(path.read_text()))
            if numbers:
                bare[name] = numbers
    assert not bare, "move these into rounding.py, and say why they are enough"


@pytest.mark.parametrize("source", ["x = 1e-60", "x = 2.0**-450", "if y < -667.0: pass", "z = max(w, 1e-290)"])
def test_bare_guards_are_found(source: str) -> None:
    assert guards(ast.parse(source))


def test_ordinary_numbers_are_no_guards() -> None:
    assert not guards(ast.parse("x = [1e-9, 2.0**-53, -1.0, 1e300, -64]"))


def test_impossible_masses_stay_impossible() -> None:
    up = rounded_up(np.array([-np.inf, -1e-18, -700.0]), 1e-12)
    assert up[0] == -np.inf
    assert up[1] == 0.0
    assert -700.0 + 2e-12 <= up[2] <= -700.0 + 1e-11
