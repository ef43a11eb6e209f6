"""Counts what makes the house hard to hold in one's head, and fails where a count is above its limit.

    python tests/house.py

`make lint` runs it. A limit is what has been reached; lower it when a change lowers the count. See
docs/architecture.md.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_PARAMETERS = 8
DOC_COLUMNS = 115
LIMITS = {
    "lines in src/certimap": 71_950,
    "names on the first level": 22,
    "protocols": 13,
    "public class names with two meanings": 0,
    "dict[str, Any] and Mapping[str, Any] outside cli": 39,
    f"functions with more than {MOST_PARAMETERS} parameters outside kernels": 8,
    f"lines of docs above {DOC_COLUMNS} columns, tables aside": 0,
    "turns of phrase that a reader reads twice": 0,
}
TWICE = re.compile(
    r"\b(is|are) asked\b|\basked of\b|\bthose that\b|\b(which|that) it has not\b"
    r"|\b(is|are) none that\b|\bwhat it has\b"
)


def parsed(package: Path) -> dict[str, tuple[str, ast.Module]]:
    """Return text and syntax tree of every file, by its path inside the package."""
    texts = {p.relative_to(package).as_posix(): p.read_text(encoding="utf-8") for p in package.rglob("*.py")}
    return {name: (text, ast.parse(text)) for name, text in sorted(texts.items())}


def classes(trees: Mapping[str, tuple[str, ast.Module]]) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class with the file that defines it."""
    for name, (_, tree) in trees.items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def is_protocol(node: ast.ClassDef) -> bool:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)


def n_doubled(trees: Mapping[str, tuple[str, ast.Module]]) -> int:
    """Count public class names that several files define."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for name, node in classes(trees):
        if not node.name.startswith("_") and not name.startswith("testing/"):
            places[node.name].add(name)
    return sum(len(found) > 1 for found in places.values())


def n_untyped(tree: ast.AST) -> int:
    """Count annotations of a mapping from names to anything."""
    return sum(
        isinstance(node, ast.Subscript) and ast.unparse(node) in ("dict[str, Any]", "Mapping[str, Any]")
        for node in ast.walk(tree)
    )


def n_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)


def long_lines(docs: Path) -> Iterator[str]:
    """Yield places of lines that are too long; tables, and pages that a command writes, may have them."""
    for page in sorted(docs.rglob("*.md")):
        if page.parent.parent.name == "benchmarks":
            continue
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > DOC_COLUMNS and not line.lstrip().startswith("|"):
                yield f"{page.relative_to(docs.parent)}:{number}"


def read_twice(root: Path) -> Iterator[str]:
    """Yield places in source and docs of turns of phrase that have a plainer word."""
    for folder, kind in (("src", "*.py"), ("docs", "*.md")):
        for page in sorted((root / folder).rglob(kind)):
            text = page.read_text(encoding="utf-8")
            for found in TWICE.finditer(re.sub(r"\s*\n\s*(#\s)?", lambda gap: " " * len(gap[0]), text)):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{page.relative_to(root)}:{line}: {found[0]}"


def counts(root: Path) -> dict[str, int]:
    """Return every count that has a limit, in the order of `LIMITS`."""
    package = root / "src" / "certimap"
    trees = parsed(package)
    first = {name.split("/")[0] for name in trees} - {"__init__.py"}
    functions = Counter(
        n_parameters(node) > MOST_PARAMETERS
        for name, (_, tree) in trees.items()
        if "kernels" not in name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    found = (
        sum(text.count("\n") for text, _ in trees.values()),
        len(first),
        sum(is_protocol(node) for _, node in classes(trees)),
        n_doubled(trees),
        sum(n_untyped(tree) for name, (_, tree) in trees.items() if not name.startswith("cli/")),
        functions[True],
        len(list(long_lines(root / "docs"))),
        len(list(read_twice(root))),
    )
    return dict(zip(LIMITS, found, strict=True))


def main() -> int:
    found = counts(ROOT)
    too_many = [name for name, limit in LIMITS.items() if found[name] > limit]
    for name, limit in LIMITS.items():
        print(f"{'FAIL' if name in too_many else 'ok  '} {found[name]:>6} of {limit:>6}  {name}")
    if any("docs" in name for name in too_many):
        print(*long_lines(ROOT / "docs"), sep="\n")
    if any("phrase" in name for name in too_many):
        print(*read_twice(ROOT), sep="\n")
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main())
