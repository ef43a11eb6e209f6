"""The summary of the recorded benchmarks says what the recorded tables say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from certimap_lab.bench.records import BenchError
from certimap_lab.bench.summary import Standing, standings, tables_under, write_summary

DOCS = Path(__file__).resolve().parents[2] / "docs"
ANSWERS = """
#### Networks: answers beside the best known

| method | cases | proved | other certificate | median s | worst s |
| --- | ---: | ---: | ---: | ---: | ---: |
| auto | 3 | 2 | 1 | 0.5 | 2.0 |
| peer:other | 3 | 1 | 0 | 0.1 | 0.2 |

#### Networks, case by case

| case | auto | peer:other |
| --- | ---: | ---: |
| a | **proved, 0.1** | not asked |
| b | **proved, 0.5** | **proved, 0.1** |
"""
CERTIFIED = """
#### How each answer was certified, one

| split | method | trials | exact | epsilon | pac | median s | worst s |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| 20/80 | auto | 4 | 4 | 0 | 0 | 9.0 | 9.0 |
| all | auto | 8 | 5 | 1 | 1 | 0.25 | 9.0 |

#### How each answer was certified, two

| split | method | trials | exact | epsilon | pac | median s | worst s |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| all | auto | 2 | 2 | 0 | 0 | 1.5 | 20.0 |
"""


def test_methods_of_a_section_are_counted_over_its_tables():
    assert list(standings("peers", ANSWERS)) == [
        Standing("peers", "auto", 3, 3, "0.5", "2.0"),
        Standing("peers", "other", 2, 1, "0.1", "0.2"),
    ]
    assert list(standings("auto", CERTIFIED)) == [Standing("auto", "auto", 10, 9, "0.25 to 1.5", "20.0")]
    assert [len(rows) for rows in tables_under(ANSWERS, "Networks")] == [2, 2]


def test_the_summary_on_the_page_is_that_of_the_recorded_tables(tmp_path):
    pytest.importorskip("matplotlib")
    page, kept = tmp_path / "benchmarks.md", (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    head, _, rest = kept.partition("<!-- begin summary -->")
    page.write_text(f"{head}<!-- begin summary --><!-- end summary -->{rest.partition('<!-- end summary -->')[2]}")
    with pytest.raises(BenchError, match=r"no page in .* has a section 'networks'"):
        write_summary(page)
    shutil.copytree(DOCS / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("*.png"))
    assert len(write_summary(page)) == 5
    assert page.read_text(encoding="utf-8") == kept
