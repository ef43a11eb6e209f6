"""Changes one place of a module at a time and runs tests on it: what survives is a change that no test sees.

    python tests/mutants.py src/certimap/certify/bounds.py -- tests/unit/certify

Each change runs in a fork of a process that has numpy, numba and pytest loaded, with the module's source replaced
as it is imported; nothing is written. Comparisons, arithmetic, constants, `min` and `max`, `and` and `or`, `not`
and signs are changed; texts are not. Prints the survivors and their number.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

COMPARED = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
}
NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "inf": "nan",
    "minimum": "maximum",
    "maximum": "minimum",
}


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in place of a node."""
    if isinstance(node, ast.Compare):
        for k, operator in enumerate(node.ops):
            for other in COMPARED.get(type(operator), ()):
                new = copy.deepcopy(node)
                new.ops[k] = other()
                yield new
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in COMPUTED:
        new = copy.deepcopy(node)
        new.op = COMPUTED[type(node.op)]()
        yield new
    elif isinstance(node, ast.BoolOp):
        new = copy.deepcopy(node)
        new.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield new
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(
            node.value + 1 if isinstance(node.value, int) else 2.0 * node.value + (node.value == 0.0)
        )
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield ast.Attribute(node.value, NAMES[node.attr], node.ctx)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield ast.Name(NAMES[node.id], node.ctx)


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the change in words, and the source of every mutant."""
    tree = ast.parse(source)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            items = value if isinstance(value, list) else [value]
            for k, node in enumerate(items):
                if not isinstance(node, ast.AST):
                    continue
                for new in changed(node):
                    words = f"{ast.unparse(node)}  ->  {ast.unparse(new)}"
                    put(parent, name, k, value, new)
                    yield getattr(node, "lineno", 0), words, ast.unparse(ast.fix_missing_locations(tree))
                    put(parent, name, k, value, node)


def put(parent: ast.AST, name: str, k: int, value: object, node: ast.AST) -> None:
    if isinstance(value, list):
        value[k] = node
    else:
        setattr(parent, name, node)


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Loads one module from a text."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self.module, self.path, self.source = module, path, source

    def find_spec(self, fullname, path, target=None):
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_source(self, fullname):
        return self.source

    def get_filename(self, fullname):
        return str(self.path)


def survives(module: str, path: Path, source: str, tests: list[str], limit: float) -> bool:
    """Whether tests pass on a module's source, in a fork; what takes too long fails."""
    child = os.fork()
    if not child:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        sys.meta_path.insert(0, Replaced(module, path, source))
        os._exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--lines", help="FIRST-LAST: change these lines alone")
    given = parser.parse_args()
    module = ".".join(given.file.with_suffix("").parts[given.file.parts.index("certimap") :])
    source, path = given.file.read_text(), given.file.resolve()
    first, last = (int(x) for x in given.lines.split("-")) if given.lines else (0, 10**9)
    began = time.monotonic()
    if not survives(module, path, source, given.tests, 600.0):
        print("the tests fail on the module as it is")
        return 2
    limit = 10.0 + 5.0 * (time.monotonic() - began)
    n = n_alive = 0
    for line, words, mutant in mutants(source):
        if first <= line <= last:
            n += 1
            if survives(module, path, mutant, given.tests, limit):
                n_alive += 1
                print(f"{given.file}:{line}: {words}", flush=True)
    print(f"{n_alive} of {n} changes of {given.file} survive", flush=True)
    return 0


if __name__ == "__main__":
    import hypothesis  # noqa: F401
    import numba  # noqa: F401
    import numpy  # noqa: F401
    import pytest
    import scipy.stats  # noqa: F401

    sys.exit(main())
