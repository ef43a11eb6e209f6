"""Every example of the README and of the guides runs as written."""

# pyright: basic

from __future__ import annotations

import doctest
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


STARTS = [page for page in PAGES if page.name.startswith("start-with-")]  # run in order, with their outputs


def pages_with(language: str):
    """Yield each page that has blocks of a language, with these blocks in order."""
    for page in PAGES:
        if page in STARTS:
            continue
        found = [m[2] for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m[1] == language]
        if found:
            yield pytest.param(found, id=page.name)


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has `examples`, and takes what the examples write."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("blocks", list(pages_with("python")))
def test_python(blocks):
    names: dict[str, object] = {"__name__": "__main__"}
    for code in blocks:
        exec(compile(code, "<example>", "exec"), names)


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("blocks", list(pages_with("sh")))
def test_shell(blocks, capsys):
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("certimap ")]
    assert commands
    for command in commands:
        if command[0] != "bench":
            assert main(command) == 0, capsys.readouterr().err


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("page", STARTS, ids=lambda page: page.name)
def test_pages_to_start_with_print_what_they_show(page, capfd):
    names: dict[str, object] = {"__name__": "__main__"}
    text = page.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    shown = BLOCK.split(text)[3::3]  # what follows each block
    assert blocks
    for (language, code), after in zip(blocks, shown, strict=True):
        capfd.readouterr()
        if language == "python":
            exec(compile(code, page.name, "exec"), names)
        else:
            for line in code.splitlines():
                command, *arguments = shlex.split(line)
                assert command == "certimap"
                assert main(arguments) == 0, capfd.readouterr().err
        out, err = capfd.readouterr()
        expected = re.match(r"(?:\n|    .*\n)*", after)
        assert expected is not None
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        printed = err + out
        assert doctest.OutputChecker().check_output(expected[0], printed, flags), f"{code}prints\n{printed}"


def test_links_between_pages_lead_somewhere():
    for page in WRITTEN:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
