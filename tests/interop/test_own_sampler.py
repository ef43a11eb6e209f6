"""The recipe for samplers and densities of one's own: each section runs where its library is."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes" / "own-sampler.md"
SECTIONS = re.findall(
    r"^## (.*?)\n.*?^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
LIBRARIES = {"PyTorch": "torch", "pgmpy": "pgmpy"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("title", "code"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_a_section(title, code):
    library = next(module for name, module in LIBRARIES.items() if name in title)
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, f"<{title}>", "exec"), names)
    result = names["result"]
    assert result.certified
    assert result.solver == "pac"


def test_both_libraries_are_shown():
    assert len(SECTIONS) == len(LIBRARIES)
