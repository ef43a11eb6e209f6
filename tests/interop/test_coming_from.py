"""The page for users of other libraries: each section runs where its library is, and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"
SECTION = re.compile(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```\n+```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULES = {"PySDD": "pysdd", "pytorch-crf": "torchcrf"}


def sections():
    for name, text in SECTION.findall(PAGE.read_text(encoding="utf-8")):
        blocks = BLOCK.findall(text)
        if blocks:
            yield pytest.param(name, blocks, id=name)


def module_of(name: str) -> str:
    return "sklearn" if name == "scikit-learn" else MODULES.get(name, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "blocks"), list(sections()))
def test_a_section(name, blocks):
    if find_spec(module_of(name)) is None:
        pytest.skip(f"{name} is not installed")
    names: dict[str, object] = {"__name__": "__main__"}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"<{name}>", "exec"), names)
        assert printed.getvalue().split() == expected.split()


def test_every_section_with_code_is_run():
    page = PAGE.read_text(encoding="utf-8")
    assert sum(len(param.values[1]) for param in sections()) == page.count("```python")
