"""Every example of the README and of the guides runs as written."""

# pyright: basic

from __future__ import annotations

import ast
import doctest
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from certimap.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "coming-from.md",
    "own-sampler.md",
}  # the latter two need other libraries: tests/interop
WRITTEN = [
    ROOT / "README.md",
    *(
        page
        for folder in ("docs", "docs/recipes", "docs/benchmarks")
        for page in sorted((ROOT / folder).glob("*.md"))
    ),
]
RECORDED = ROOT / "docs/benchmarks"  # their commands take hours
PAGES = [page for page in WRITTEN if page.name not in ELSEWHERE and page.parent != RECORDED]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has `examples`, and takes what the examples write."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)


def run_block(language: str, code: str, names: dict[str, object], capfd: pytest.CaptureFixture[str]) -> str:
    """Run one block and return what it prints; lines of the shell other than commands of certimap are skipped."""
    capfd.readouterr()
    if language == "python":
        try:
            return "".join(run_statements(code, names, capfd))
        except ModuleNotFoundError as lacking:
            return f"needs {lacking.name}"  # of the README: `make test-interop` has it
    else:
        lines = code.replace("\\\n", " ").splitlines()
        for words in (shlex.split(line, comments=True) for line in lines):
            if words[:1] == ["certimap"] and words[1] != "bench":
                assert main(words[1:]) == 0, capfd.readouterr().err
    out, err = capfd.readouterr()
    return err + out


def run_statements(code: str, names: dict[str, object], capfd: pytest.CaptureFixture[str]):
    """Run a block and yield what each statement prints; a comment behind it may state it: `print(x)  # 1`."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        exec(compile(ast.Module([statement], []), "<example>", "exec"), names)
        out, err = capfd.readouterr()
        stated = re.search(r"^print\(.*\)  # ([-\d{\['\"(].*)$", lines[statement.end_lineno - 1])
        if stated is not None:
            assert doctest.OutputChecker().check_output(stated[1] + "\n", out, doctest.ELLIPSIS), (
                f"{stated[0]}: {out}"
            )
        yield err + out


def plain(text: str) -> str:
    """Return an output without times, which differ from run to run."""
    return re.sub(r"\b\d+\.\d+ s\b", "T s", text)


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.name
)
def test_blocks_print_what_the_page_shows_below_them(page, capfd):
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        printed = run_block(block[1], block[2], names, capfd)
        shown = re.match(r"\n((?:    .*\n|\n(?=\n?    ))+)", text[block.end() + 1 :])
        if printed.startswith("needs "):
            continue
        if shown is not None and not shown[1].startswith("    certimap "):
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert doctest.OutputChecker().check_output(plain(shown[1]), plain(printed), flags), (
                f"{page.name}: {block[2]}prints\n{printed}instead of\n{shown[1]}"
            )


@pytest.mark.usefixtures("at_home")
def test_the_tutorial_prints_what_it_shows(capfd):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads((ROOT / "examples/tutorial.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree, value = ast.parse("".join(cell["source"])), None
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(last, "<cell>", "eval"), names)
        shown = "".join("".join(o.get("text", o.get("data", {}).get("text/plain", ""))) for o in cell["outputs"])
        printed = capfd.readouterr().out + ("" if value is None else repr(value))
        assert plain(printed) == plain(shown).replace("<Figure>", ""), "".join(cell["source"])


def test_links_between_pages_lead_somewhere():
    for page in WRITTEN:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
