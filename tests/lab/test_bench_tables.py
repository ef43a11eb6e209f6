"""Ranks, tables, comparison and figures of benchmark records."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from typing import Any

import pytest

from certimap_lab.bench.comparison import comparison_tables
from certimap_lab.bench.figures import delta_at, illustration, pareto_records, warm_start_table
from certimap_lab.bench.paper import METHODS, paper
from certimap_lab.bench.ranks import Trials, competition_ranks, is_timeout, kind_of, mean_and_error, winners
from certimap_lab.bench.records import BenchError, RecordFile, read_records
from certimap_lab.bench.report import insert_section, write_report
from certimap_lab.bench.tables import (
    below_table,
    certificate_table,
    log10_draws_needed,
    open_table,
    overview_table,
    rank_table,
    ratio_table,
    runtime_table,
)
from certimap_lab.bench.tabular import Cell, Table, significant


def trial(solver: str, query: int, log_prob: float | None, kind: str = "none", **fields: Any) -> dict[str, Any]:
    """A record as the benchmark writes it."""
    record = {
        "circuit": "learnspn",
        "dataset": "nltcs",
        "split": "20/80",
        "query": query,
        "solver": solver,
        "requested_epsilon": 0.01,
        "requested_delta": 0.01,
        "assignment": [0, 1],
        "log_prob": log_prob,
        "certificate": {"kind": kind, "epsilon": 0.01, "delta": 0.01 if kind == "pac" else 0.0, "rule": None},
        "status": "certified" if kind != "none" else "heuristic",
        "n_draws": 10,
        "seconds_conditioning": 0.001,
        "seconds_solving": 0.1,
        "peak_memory_mib": 100.0,
    }
    return record | fields


def test_competition_ranks_share_the_better_rank_within_a_billionth_of_a_nat() -> None:
    ranks = competition_ranks({"a": -1.0, "b": -1.0 - 5e-10, "c": -1.0 - 3e-9, "d": -2.0, "e": -2.0})
    assert ranks == {"a": 1, "b": 1, "c": 3, "d": 4, "e": 4}


def test_competition_ranks_accept_probability_zero() -> None:
    assert competition_ranks({"a": -math.inf, "b": -3.0, "c": -math.inf}) == {"a": 2, "b": 1, "c": 2}


def test_winners_include_ties() -> None:
    assert winners({"a": 1.2, "b": 1.2, "c": 1.3}) == {"a", "b"}
    assert winners({}) == set()


def test_standard_error() -> None:
    mean, error = mean_and_error([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert error == pytest.approx(1 / math.sqrt(3))
    assert mean_and_error([4.0]) == (4.0, None)
    assert mean_and_error([]) == (None, None)


@pytest.fixture
def trials() -> Trials:
    limit = {"status": "time_limit", "gap": math.log(4), "log_open_mass": -0.5, "pareto": [[0.0, 0.9], [0.5, 0.1]]}
    return Trials.of(
        [
            trial("independent", 0, -3.0),
            trial("max_product", 0, -2.0),
            trial("pac", 0, -2.0, "pac", seconds_solving=1.0),
            trial("auto", 0, -2.0, "exact", seconds_solving=0.01),
            trial("independent", 1, -5.0),
            trial("max_product", 1, -5.0),
            trial("pac", 1, -4.5, **limit),
            trial("auto", 1, -4.0, "epsilon"),
            {**trial("smooth_pac", 0, None), "error": "MemoryError: too large"},
        ]
    )


def drop_answer(record: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k not in ("assignment", "certificate", "log_prob")}


def test_rank_table_counts_marks_and_underlines(trials: Trials) -> None:
    table = rank_table(trials, "learnspn", "20/80")
    assert table.header == ("dataset", "independent", "max_product", "pac", "smooth_pac", "auto")
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert isinstance(row["auto"], Cell)
    assert row["auto"].text == "1.0"
    assert row["auto"].bold
    assert isinstance(row["pac"], Cell)
    assert (row["pac"].text, row["pac"].underline) == ("1.5", True)
    assert isinstance(row["independent"], Cell)
    assert row["independent"].text == "3.5"
    assert table.rows[-1] == ["times ranked highest", "0", "0", "0", "0", "1"]
    assert "<u>1.5</u>" in table.to_markdown()
    assert "1.5*" in table.to_csv()


def test_a_method_without_answers_shows_as_missing() -> None:
    table = rank_table(
        Trials.of(
            [trial("pac", 0, -1.0, "pac"), drop_answer(trial("auto", 0, None, error="crashed", status="failed"))]
        ),
        "learnspn",
        "20/80",
    )
    assert [c.text if isinstance(c, Cell) else c for c in table.rows[0]] == ["nltcs", "1.0", "--"]
    assert next(iter(csv.DictReader(io.StringIO(table.to_csv()))))["auto"] == ""


def test_endings(trials: Trials) -> None:
    assert kind_of(trial("pac", 0, -1.0, status="sample_limit")) == "limit"
    assert kind_of(trial("independent", 0, -1.0)) == "heuristic"
    assert kind_of({"error": "crashed"}) == "failed"
    assert is_timeout({"error": "overran", "status": "time_limit"})
    table = certificate_table(trials, "learnspn")
    auto = next(row for row in table.rows if row[1] == "auto")
    assert auto[2:9] == ["2", "1", "1", "0", "0", "0", "0"]
    assert isinstance(auto[10], Cell)
    assert auto[10].text == "100.0"


def test_runtimes_give_mean_and_error_and_mark_the_fastest(trials: Trials) -> None:
    row = runtime_table(trials, "learnspn", "20/80").rows[0]
    assert isinstance(row[-1], Cell)
    assert row[-1].text == "0.0560 ± 0.045"
    assert row[-1].bold
    assert isinstance(row[3], Cell)
    assert row[3].underline


def test_ratios_use_queries_that_both_certify(trials: Trials) -> None:
    table = ratio_table(trials, "learnspn")
    row = next(row for row in table.rows if row[1] == "pac / auto")
    assert row[2] == "1"
    assert row[3] == significant(1.001 / 0.011)
    assert row[7:] == ["1", "0", "0"]


def test_below_counts_deficits_and_false_certificates() -> None:
    records = [trial("pac", 0, -2.0, "pac"), trial("auto", 0, -1.5, "exact"), trial("max_product", 0, -1.505)]
    rows = {str(row[1]): row[2:] for row in below_table(Trials.of(records), "learnspn").rows}
    assert rows["pac"] == ["1", "1", "0.500", "1"]
    assert rows["auto"] == ["1", "0", "0", "0"]
    assert rows["max_product"][-1] == "0"  # claims nothing


def test_a_certified_answer_within_epsilon_is_not_false() -> None:
    records = [trial("pac", 0, -1.505, "epsilon"), trial("auto", 0, -1.5, "exact")]
    rows = {str(row[1]): row[2:] for row in below_table(Trials.of(records), "learnspn").rows}
    assert rows["pac"][1:] == ["1", "0.00500", "0"]


def test_open_trials_tell_gap_and_draws(trials: Trials) -> None:
    table = open_table(trials, "learnspn")
    row = next(row for row in table.rows if row[3] == "pac")
    assert isinstance(row[5], Cell)
    assert row[5].text == "2.00"
    record = trial("pac", 0, math.log(0.01 * 0.99), log_open_mass=math.log(0.5), status="time_limit")
    expected = math.log10(math.log(100) / -math.log1p(-0.01 / 0.5))
    assert log10_draws_needed(record) == pytest.approx(expected, abs=1e-9)
    assert log10_draws_needed(record | {"log_prob": -4000.0}) == pytest.approx(
        (4000 - 0.7) / math.log(10), rel=1e-2
    )
    assert log10_draws_needed(record | {"log_prob": None}) is None


def test_warm_start_means_and_shares() -> None:
    records = [trial("argmax_product", q, -2.0, split="25/75") for q in range(4)]
    gains = [0.0, math.log(2), 0.0, math.log(8)]
    records += [trial("smooth_pac+argmax_product", q, -2.0 + g, "pac", split="25/75") for q, g in enumerate(gains)]
    trials = Trials.of(records)
    table = warm_start_table(trials, "learnspn", "25/75", "smooth_pac+argmax_product", "argmax_product")
    texts = [c.text if isinstance(c, Cell) else c for c in table.rows[0]]
    assert texts == ["nltcs", "4", "1.0000", "0.7071", "50.0", "100.0"]


def test_pareto_picks_uncertified_runs_and_reads_them() -> None:
    front = [[0.01, 0.4], [0.1, 0.3], [0.6, 0.0]]
    records = [
        trial("pac", 0, -2.0, "pac", dataset="baudio"),
        trial("pac", 1, -9.0, dataset="baudio", status="sample_limit", pareto=front),
        trial("pac", 0, -9.0, dataset="nltcs", status="sample_limit", pareto=front),
    ]
    found = pareto_records(Trials.of(records), "learnspn")
    assert list(found) == ["baudio"]
    assert found["baudio"]["query"] == 1
    assert [delta_at(front, e) for e in (0.0, 0.01, 0.2, 0.9)] == [1.0, 0.4, 0.3, 0.0]


def test_published_figures_agree_with_themselves() -> None:
    """The 'times ranked highest' printed in the paper follow from the average ranks transcribed."""
    figures = paper()
    assert len(figures["average_rank"]) == len(figures["seconds"]) == len(figures["variables"]) == 20
    for split in figures["splits"]:
        counted: dict[str, int] = {}
        for by_split in figures["average_rank"].values():
            for method in winners(by_split[split]):
                counted[method] = counted.get(method, 0) + 1
        printed = {m: n for m, n in figures["times_ranked_highest"][split].items() if n}
        assert counted == printed
        for by_split in figures["seconds"].values():
            assert set(METHODS) <= set(by_split[split])


def test_comparison_shows_ours_beside_the_paper(trials: Trials) -> None:
    tables = {t.name: t for t in comparison_tables(trials, "learnspn")}
    row = tables["paper-ranks-learnspn-20-80"].rows[0]
    assert isinstance(row[1], Cell)
    published = paper()["average_rank"]["nltcs"]["20/80"]["independent"]
    assert row[1].text == f"2.5 ({published})"  # ranked without 'auto', which the paper has not
    assert "paper-speed-learnspn" in tables
    other = Trials.of([trial("pac", 0, -1.0, "pac", split="25/75")])
    assert comparison_tables(other, "learnspn") == []


def test_overview_has_missing_methods() -> None:
    records = [trial("pac", 0, -1.0, "pac"), trial("auto", 0, -1.0, "exact", split="50/50")]
    table = overview_table(Trials.of(records), "learnspn")
    texts = [[c.text if isinstance(c, Cell) else c for c in row] for row in table.rows]
    assert texts == [["pac", "1", "1.00", "--", "--"], ["auto", "--", "--", "1", "1.00"]]


def test_significant_digits() -> None:
    shown = [significant(x) for x in (0.0123456, 1.5, 12.345, 1234.5, 0.0, 2.5e9, 1e-7, None)]
    assert shown == ["0.0123", "1.50", "12.3", "1234", "0", "2.50e+09", "1.00e-07", "--"]


def test_a_row_must_fit() -> None:
    with pytest.raises(ValueError, match="2 columns"):
        Table("t", "T", ("a", "b")).add("x")


def test_records_survive_a_torn_line(tmp_path: Any) -> None:
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as file:
        file.append({"a": 1, "b": -math.inf, "c": (1, 2)})
    with path.open("ab") as raw:
        raw.write(b'{"a": 2, "b"')
    assert read_records(path) == [{"a": 1, "b": None, "c": [1, 2]}]
    with RecordFile(path) as file:
        assert len(file.records) == 1
        file.append({"a": 3})
    assert [r["a"] for r in read_records(path)] == [1, 3]


def test_a_line_torn_just_before_its_end_is_written_again(tmp_path: Any) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}')  # whole, but for the line's end
    with RecordFile(path) as file:
        assert [r["a"] for r in file.records] == [1]
        file.append({"a": 2})
    assert path.read_bytes() == b'{"a": 1}\n{"a":2}\n'


def test_a_damaged_middle_is_an_error(tmp_path: Any) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\nrubbish\n{"a": 2}\n')
    with pytest.raises(BenchError, match=r"r\.jsonl:2"):
        read_records(path)


def test_illustration_certifies_where_the_rule_says() -> None:
    trace = illustration()
    assert trace["discovered_at"] == 22
    assert trace["certified_at"] == 42
    assert trace["certified_at_published_rule"] == 44
    assert trace["lower"][-1] == pytest.approx(trace["p_star"])
    assert trace["delta"][-1] <= 0.01 < trace["delta"][-2]


def test_a_section_of_a_page_is_replaced_and_nothing_else(tmp_path: Any) -> None:
    page = tmp_path / "p.md"
    page.write_text("A\n<!-- begin x -->\nold\n<!-- end x -->\nB\n")
    for text in ("new", "newer"):
        insert_section(page, "x", text)
    assert page.read_text() == "A\n<!-- begin x -->\n\nnewer\n\n<!-- end x -->\nB\n"
    with pytest.raises(BenchError, match="no section"):
        insert_section(page, "y", "text")


def test_report_without_matplotlib_says_so(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    (tmp_path / "trials.jsonl").write_text(json.dumps(trial("pac", 0, -2.0, "pac")) + "\n")
    report = write_report(tmp_path)
    assert report.problem is not None
    assert "certimap[plot]" in report.problem
    assert not list((tmp_path / "tables").glob("*.png"))
    assert (tmp_path / "tables" / "ranks-learnspn-20-80.md").is_file()


def test_report_writes_tables_figures_and_page(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    front = [[0.01, 0.4], [0.1, 0.3], [0.6, 0.0]]
    records = [trial("pac", q, -2.0, "pac") for q in range(2)]
    records += [trial("argmax_product", q, -2.1, split="25/75") for q in range(2)]
    records += [trial("smooth_pac+argmax_product", q, -2.0, "pac", split="25/75") for q in range(2)]
    records += [trial("budget", 0, -9.0, dataset="baudio", status="sample_limit", pareto=front)]
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    report = write_report(tmp_path, link="there")
    written = report.files
    assert report.problem is None
    names = {path.name for path in written}
    assert {"ranks-learnspn-20-80.md", "ranks-learnspn-20-80.csv", "pareto-learnspn.png", "schematic.svg"} <= names
    assert "warm-start-learnspn-25-75-smooth_pac-from-argmax_product.png" in names
    assert all(path.stat().st_size > 0 for path in written)
    page = written[-1].read_text()
    assert "7 trials: 4 certified" in page
    assert "![Schematic" in page
    assert "](there/schematic.png)" in report.summary
    assert "## Average ranks" in page
    assert "## Average ranks" not in report.summary
    with pytest.raises(BenchError, match="holds no trials"):
        write_report(tmp_path / "empty")
