"""Rules of the house that no linter knows."""

# pyright: basic

from __future__ import annotations

import ast
from pathlib import Path

import certimap

ROOT = Path(certimap.__file__).parent
LAB = Path(__file__).resolve().parents[2] / "lab"

# Where an attribute may be asked for by name: of modules, data frames, estimators, errors and own fields.
# Never of posteriors, solvers, states or models: what they have is declared (see certimap/core/posterior.py).
BY_NAME = {
    "core/steps.py": 2,  # data frames
    "ask/batch.py": 1,  # the index of a data frame
    "networks/costs.py": 2,  # own fields
    "solvers/networks/hbfs.py": 2,  # own settings
    "certimap_lab/bench/machine.py": 1,  # what the operating system has
    "certimap_lab/bench/models.py": 3,  # learners by name, and what they chose
    "certimap_lab/bench/records.py": 1,  # numpy values
    "circuits/circuit.py": 1,  # own fields
    "circuits/plan.py": 1,
    "learn/choice.py": 1,  # learners by name
    "conversions/from_wide_networks.py": 1,  # own fields
    "cli/main.py": 3,  # errors of the command line's library
    "learn/datasets.py": 1,  # own fields
    "certimap_lab/bench/impute.py": 1,  # tables by name
    "ask/imputer.py": 10,  # own settings and fields, and data frames
    "certify/ledger.py": 2,  # own fields
    "circuits/leaves/kind.py": 1,  # modules of leaf kinds
    "core/probing.py": 1,  # a method that probers need not have
    "solvers/box_search/optimistic.py": 1,  # own fields
    "certimap_lab/hostile/edges.py": 2,  # fields of results
    "kernels/background.py": 5,  # kernels by name, the interpreter, and what the operating system has
    "kernels/plain.py": 5,  # compiled functions among the globals of kernels, and what the operating system has
    "kernels/tier.py": 1,  # what the operating system has
    "kernels/cache.py": 2,  # what the operating system has
    "kernels/parallel.py": 1,  # what the operating system has
    "learn/clusters.py": 2,  # estimators of other libraries
    "learn/estimator.py": 5,  # own settings, and data frames
    "learn/table.py": 8,  # data frames
    "core/arguments.py": 1,
    "proofs/finish.py": 1,  # fields of certificates
    "plots/series.py": 1,  # fields of history entries
    "ask/constrained.py": 1,  # models that are networks with hidden variables
    "core/constrained.py": 1,  # the capabilities of the posterior under constraints
    "core/constraints.py": 1,  # fields of constraints
    "core/query.py": 3,  # data frames
    "core/result.py": 5,  # numpy values, and fields of results, and polars frames
    "core/posterior.py": 2,  # what a class, or one of its objects, has of a capability
    "core/named.py": 2,  # classes, functions and the names of packages by their place
    "solvers/driver.py": 2,  # data frames
    "certimap_lab/volume/loosened.py": 2,  # formulas of this package, made looser on purpose
}


def asked_by_name(tree):
    """Count calls of getattr and hasattr."""
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        for node in ast.walk(tree)
    )


def imported(tree):
    """Yield the modules that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def parsed(folder, root=ROOT):
    for path in sorted(folder.rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_nothing_is_asked_by_name_that_could_be_declared():
    found = {name: n for name, tree in (*parsed(ROOT), *parsed(LAB, LAB)) if (n := asked_by_name(tree))}
    foreign = {name for name in found if name.startswith("interop/")}  # objects of other libraries
    more = {name: n for name, n in found.items() if name not in foreign and n > BY_NAME.get(name, 0)}
    assert not more, "getattr/hasattr: declare a fact or a capability instead (certimap/core/posterior.py)"


def test_solvers_run_no_kernel_but_those_of_set_elimination():
    for name, tree in parsed(ROOT / "solvers"):
        for module in imported(tree):
            if ".kernels" in module and not module.startswith("certimap.kernels."):
                own = module.startswith("certimap.solvers.elimination.kernels")
                assert name.startswith("solvers/elimination/"), (name, module)
                assert own, (name, module)


def test_the_gate_sees_what_it_should():
    tree = ast.parse("def f(x):\n    from a.kernels.b import c\n    return getattr(x, 'plan', hasattr(x, 'y'))")
    assert asked_by_name(tree) == 2
    assert list(imported(tree)) == ["a.kernels.b.c"]
