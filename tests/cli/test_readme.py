"""Every example of the README and of the guides runs as written."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from certimap.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str):
    for page in PAGES:
        if page.name == "benchmarks.md":
            continue
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), 1):
            if match[1] == language:
                yield pytest.param(match[2], id=f"{page.name}-{number}")


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has `examples`, and takes what the examples write."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("code", list(blocks("python")))
def test_python(code):
    exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("lines", list(blocks("sh")))
def test_shell(lines, capsys):
    commands = [line for line in lines.replace("\\\n", " ").splitlines() if line.startswith("certimap ")]
    assert commands
    for line in commands:
        if line.startswith("certimap bench"):
            continue
        code = main(shlex.split(line, comments=True)[1:])
        assert code == 0, capsys.readouterr().err


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
