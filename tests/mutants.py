"""Changes one place of a module at a time and runs tests on it: what survives is a change that no test sees.

    python tests/mutants.py src/certimap/certify/bounds.py -- tests/unit/certify

Each change runs in a fork of a process in which the tests have passed once: the fork puts the changed code into
the functions of the module, changed constants into every module that has them, and begins with the tests that
have noticed most, then the quick ones. Changes of classes and decorators run in a fork that has loaded numpy,
numba and pytest alone, and imports the changed source. Kernels need NUMBA_DISABLE_JIT=1: compiled ones come from
the disk as they were. Nothing is written. Comparisons, arithmetic, constants, `min` and
`max`, `and` and `or`, `not` and signs are changed; texts are not. Prints the survivors and their number.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

MOST_BYTES = 4 << 30
Change = tuple[int, str, str]  # line, the change in words, the source with it

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
    left_out = {
        id(inner)
        for node in ast.walk(tree)
        for part in (
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
            *arguments_of_no_answer(node),
        )
        if part is not None
        for inner in ast.walk(part)
    }
    for parent in ast.walk(tree):
        if id(parent) in left_out:
            continue
        for name, value in ast.iter_fields(parent):
            items = value if isinstance(value, list) else [value]
            for k, node in enumerate(items):
                if not isinstance(node, ast.AST) or id(node) in left_out:
                    continue
                for new in changed(node):
                    words = f"{ast.unparse(node)}  ->  {ast.unparse(new)}"
                    put(parent, name, k, value, new)
                    yield getattr(node, "lineno", 0), words, ast.unparse(ast.fix_missing_locations(tree))
                    put(parent, name, k, value, node)


def arguments_of_no_answer(node: ast.AST) -> Iterator[ast.AST]:
    """Yield arguments that guard or speed up, whatever their value."""
    if isinstance(node, ast.keyword) and node.arg in ("strict", "frozen", "eq", "repr", "copy", "stacklevel"):
        yield node


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


class Trials:
    """A plugin that runs the tests collected, and again in a fork for each change, the likeliest to fail first."""

    def __init__(self, file: Path, put: Callable[[str], object], changes: list[Change]) -> None:
        self.file, self.put, self.changes = file, put, changes
        self.noticed, self.seconds, self.alive = Counter[str](), Counter[str](), 0
        self.failed = ""

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def pytest_runtestloop(self, session):
        start = time.process_time()
        self.run(session.items)
        if self.failed:
            sys.exit(f"the tests fail on the module as it is: {self.failed}")
        limit = 5.0 + 5.0 * (time.process_time() - start)
        for line, words, text in self.changes:
            items = sorted(session.items, key=lambda x: (-self.noticed[x.nodeid], self.seconds[x.nodeid]))
            passed, name = forked(lambda out, text=text, items=items: self.tried(text, items, out), limit)
            self.noticed[name] += 1
            if passed:
                self.alive += 1
                print(f"{self.file}:{line}: {words}", file=sys.stderr, flush=True)
        return True

    def tried(self, text: str, items: list[pytest.Item], out: int) -> int:
        self.put(text)
        self.run(items)
        os.write(out, self.failed.encode())
        return bool(self.failed)

    def run(self, items: list[pytest.Item]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            if not self.failed:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def put_into_place(module: str, path: Path, source: str) -> None:
    """Give the functions of a loaded module the code of another source."""
    new, old = types.ModuleType(module), sys.modules[module]
    new.__dict__.update(__file__=str(path), __package__=old.__package__, __spec__=old.__spec__)
    sys.modules[module] = new  # dataclasses look themselves up there
    exec(compile(source, str(path), "exec"), new.__dict__)
    sys.modules[module] = old
    replaced = dict(functions(old, module))
    for name, function in functions(new, module):
        replaced[name].__code__ = function.__code__
        replaced[name].__defaults__, replaced[name].__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    for name, value in vars(new).items():
        before = getattr(old, name)
        if isinstance(value, int | float | tuple) and name != "__dict__" and value != before:
            for other in list(sys.modules.values()):
                if getattr(other, "__name__", "").startswith("certimap") and vars(other).get(name) is before:
                    setattr(other, name, value)


def functions(owner: object, module: str) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the functions of a module or class, and what they are called."""
    for value in list(vars(owner).values()):
        if isinstance(value, type) and value.__module__ == module and value is not owner:
            yield from functions(value, module)
        for part in ("__func__", "func", "fget", "__wrapped__"):
            value = getattr(value, part, value)
        if isinstance(value, types.FunctionType) and value.__module__ == module:
            yield value.__qualname__, value


def forked(run: Callable[[int], int], limit: float) -> tuple[bool, str]:
    """Return whether a function that is given a pipe comes to 0 in a fork, and what it wrote there."""
    inlet, outlet = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            os._exit(run(outlet))
        finally:
            os._exit(1)
    os.close(outlet)
    end = time.monotonic() + 10.0 * limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            break
        time.sleep(0.01)
    with os.fdopen(inlet) as pipe:
        return os.waitstatus_to_exitcode(status) == 0, pipe.read()


def tested(tests: list[str], *plugins: object) -> int:
    """Run tests without a word."""
    null = os.open(os.devnull, os.O_WRONLY)
    out = os.dup(1)
    os.dup2(null, 1)
    try:
        return int(
            pytest.main(["-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=plugins)
        )
    finally:
        os.dup2(out, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--lines", help="FIRST-LAST: change these lines alone")
    parser.add_argument("--every", type=int, default=1, help="of these changes, try one in so many")
    given = parser.parse_args()
    parts = given.file.with_suffix("").parts
    start = max(k for k, part in enumerate(parts) if part in ("certimap", "certimap_lab"))
    module = ".".join(parts[start:])
    source, path = given.file.read_text(), given.file.resolve()
    first, last = (int(x) for x in given.lines.split("-")) if given.lines else (0, 10**9)
    chosen = [change for change in mutants(source) if first <= change[0] <= last][:: given.every]

    def import_changed(text: str, out: int) -> int:
        sys.meta_path.insert(0, Replaced(module, path, text))
        return tested(given.tests)

    loaded, alive = lines_of_functions(source), 0
    outside = [change for change in chosen if change[0] not in loaded]
    for line, words, text in [(0, "as it is", source), *outside] if outside else ():
        passed, _ = forked(lambda out, text=text: import_changed(text, out), 100.0)
        if not line and not passed:
            sys.exit("the tests fail on the module as it is")
        if line and passed:
            alive += 1
            print(f"{given.file}:{line}: {words}", file=sys.stderr, flush=True)
    trials = Trials(
        given.file,
        lambda text: put_into_place(module, path, text),
        [change for change in chosen if change[0] in loaded],
    )
    if trials.changes:
        tested(given.tests, trials)
    print(f"{alive + trials.alive} of {len(chosen)} changes of {given.file} survive", flush=True)
    for name, n in trials.noticed.most_common(12):
        print(f"    {n} noticed by {name or 'none, or no end'}", flush=True)
    return 0


def lines_of_functions(source: str) -> set[int]:
    """Return the lines of functions and constants, without decorators."""
    tree, found = ast.parse(source), set[int]()
    for node in [*ast.walk(tree)]:
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.Assign) and node in tree.body):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


if __name__ == "__main__":
    import hypothesis  # noqa: F401
    import numba  # noqa: F401
    import numpy  # noqa: F401
    import pytest
    import scipy.stats  # noqa: F401

    sys.exit(main())
