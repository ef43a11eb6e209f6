"""How columns of text write numbers, dates, and words for yes and no."""

# pyright: basic

from __future__ import annotations

import pytest

from certimap.errors import ParseError
from certimap.io.cells import MISSING, conventions, day_of, iso
from certimap.io.text_tables import read_text_table
from certimap.learn import prepare


@pytest.mark.parametrize(
    ("cells", "plain"),
    [
        (["47,72", "3"], ["47.72", "3"]),
        (["1.234.567,5", "12"], ["1234567.5", "12"]),
        (["1,234", "1,234.5"], ["1234", "1234.5"]),
        (["1'000", "-12"], ["1000", "-12"]),
        (["1 000", "2\u00a0000,5"], ["1000", "2000.5"]),
        (["1e5", ".5"], ["1e5", ".5"]),
        (["007", "12"], ["007", "12"]),
        (["12-34", "1"], ["12-34", "1"]),
        (["21.11.2024", "01.02.2024"], ["2024-11-21", "2024-02-01"]),
        (["11/21/2024", "01/02/2024"], ["2024-11-21", "2024-01-02"]),
        (["2024-02-30"], ["2024-02-30"]),
        (["Ja", "ja", "ja", "Nein"], ["ja", "ja", "ja", "Nein"]),
        (["aa", "Aa"], ["aa", "Aa"]),
        (["1,5", "-", "--", "2"], ["1.5", None, None, "2"]),
        (["x", "-"], ["x", "-"]),
    ],
)
def test_a_column_is_read_by_one_convention(cells, plain):
    (found,) = conventions([cells], None)
    assert [found.plain(cell) for cell in cells] == plain
    if found.kind == "date":
        assert [found.date(day_of(text) or 0) for text in plain] == cells


def test_other_columns_and_the_separator_settle_what_a_comma_means():
    unsure = ["1,234", "5,009"]

    def read(*columns, **how):
        return conventions([unsure, *columns], how.pop("decimal", None), **how)[0].plain("5,009")

    assert read() == "5009"
    assert read(["0.5"]) == "5009"
    assert read(["0,55"]) == "5.009"
    assert read(separator=";") == "5.009"
    assert read(decimal=",") == "5.009"


def test_days_count_from_1970():
    assert day_of("1970-01-02") == 1
    assert day_of("2024-02-29T10:30") == 19782
    assert day_of("2023-02-29") is None
    assert iso(19782.4) == "2024-02-29"


def test_a_file_with_decimal_commas_gaps_and_marks(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffage;spend;when\n40;1,5;01.02.2024\n*;2,25;N/A\n37;;03.02.2024\n".encode())
    table = read_text_table(path, missing=["*"])
    columns = prepare(table)
    assert columns["age"].tolist() == [40, None, 37]
    assert columns["spend"][:2].tolist() == [1.5, 2.25]
    columns = prepare(table, columns=["when"])
    assert columns["when"].tolist() == ["2024-02-01", None, "2024-02-03"]
    assert "*" not in MISSING


def test_the_separator_of_most_rows_is_taken(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1,5;x\n2,5;y\n3;z\n1;2;3\n")
    table = read_text_table(path)
    assert table.separator == ";"
    with pytest.raises(ParseError, match="3 cells where 2 are expected"):
        prepare(table)
