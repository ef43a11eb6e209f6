"""Constants that guard against underflow stand in one module, with the proof of why they are enough."""

from __future__ import annotations

import ast
import math
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import certimap
from certimap.core import rounding as r
from certimap.core.box import rounded_up

ROOT = Path(certimap.__file__).parent
TINY = 1e-30  # smaller numbers have no business in a model: they guard
LEAST_POWER, LEAST_LOG = 100, range(400, 1100)
# Hostile models are made of such numbers, and so are models that make every kernel compile. The messages of one
# solver, which claim nothing, are cut off at one. The checker of proofs shares nothing with what it checks.
ELSEWHERE = ("testing/", "cli/kernel_tasks.py", "checker/", "solvers/baselines/ijgp.py")


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
        if name != "core/rounding.py" and not name.startswith(ELSEWHERE):
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


def test_factors_and_products_of_circuits_stay_normal() -> None:
    normal = Fraction(sys.float_info.min)
    assert Fraction(r.SMALLEST_NORMAL) == normal
    assert Fraction(r.SMALLEST_PRODUCT) * Fraction(r.SMALLEST_FACTOR) >= normal
    assert Fraction(r.SMALLEST_PRODUCT) <= Fraction(r.SMALLEST_FACTOR) < 1
    assert r.LOG_PRODUCT <= -math.log(r.SMALLEST_PRODUCT) < r.LOG_PRODUCT + 1.0


def test_counts_of_roundings_have_places_of_their_own_and_a_unit_above_one_ulp() -> None:
    assert tuple(range(5)) == (r.STEPS, r.ENTROPY, r.ALL_SUMS, r.SUMS, r.FLOWS)  # first the two that add up
    assert sys.float_info.epsilon * 1.01 < r.ULP < sys.float_info.epsilon * 2.0


def test_rows_with_exponents_never_leave_the_normal_numbers() -> None:
    unit = Fraction(1, 2**r.UNIT_BITS)
    assert [Fraction(x) for x in (r.LOW, r.LOW2, r.LOW3)] == [unit, unit**2, unit**3]
    assert [Fraction(x) for x in (r.HIGH, r.HIGH2, r.HIGH3)] == [1 / unit, 1 / unit**2, 1 / unit**3]
    assert -r.UNIT_BITS == r.SETTLED
    assert -1022.0 < r.LEAST_FLOOR < r.SETTLED
    assert 2.0 * r.ROW_FLOOR >= -960.0  # a prefix times a suffix
    assert r.OUTSIDE_FLOOR - r.NARROW_BITS > -1022.0
    assert r.ROW_FLOOR > r.OUTSIDE_FLOOR > -960.0
    assert r.NARROW_BITS <= r.UNIT_BITS
    assert sys.float_info.min < r.LEAST_WEIGHT < 2.0**-384


def test_passes_over_trees_lose_no_possible_number() -> None:
    assert 2.0**r.SAFE_EXPONENT == r.SAFE
    assert Fraction(r.SAFE) ** 2 >= Fraction(1, 2**900)
    assert r.SAFE < r.RESCALE < 1.0
    assert -866.0 * math.log(2.0) < r.LOG_FLOOR < 0.0
    assert math.isfinite(2.0**-r.LEAST_PLACES)
    assert r.LEAST_PLACES <= -900
    assert math.log(sys.float_info.min) + 10.0 < r.PRODUCT_LOG < 0.0
    assert sys.float_info.min < r.MESSAGE_LOW < 1.0


def test_vectors_are_dropped_with_room_for_rounding_on_the_side_that_counts() -> None:
    assert 1.0 < r.NEARLY < 1.0 + 1e-13  # searches add it to their slack, a set at a time
    assert 1.0 + 1000.0 * sys.float_info.epsilon < r.SURELY < 1.0 + 1e-9
    assert r.SET_FLOOR + 893 >= 293
    assert r.SET_FLOOR < 0
    assert -1022.0 + 10.0 < r.SAFE_LOG2 < 0.0
    assert sys.float_info.min < r.LEAST_SHARE < 1e-200
