"""The first of the many queries that `certimap bench truth` judges, and that looser rules are found out."""

from __future__ import annotations

import pytest

from certimap.certify import bounds
from certimap.cli.main import main
from certimap.solvers.elimination import geometry
from certimap_lab.bench import truth
from certimap_lab.bench.records import BenchError
from certimap_lab.bench.truth import FILE, TruthPlan, answer_chunk, run_truth
from certimap_lab.volume import FAMILIES, LOOSENED, judge, loosened, make_case

CERTAIN = ("residual", "epsilon", "bounds", "dominance")  # formulas behind claims that hold for certain


def summary_of(n: int, **settings):
    """Judge queries in this process."""
    from certimap_lab.bench.truth import TruthSummary

    summary = TruthSummary()
    summary.add(answer_chunk(TruthPlan(n, 3, **settings), 0, n))
    return summary


@pytest.mark.slow
def test_nothing_is_false_that_may_not_be():
    summary = summary_of(600)
    assert summary.failures == []
    assert summary.holds
    assert summary.n_answers > 550
    assert sum(n_false for _, n_false in summary.risks.values()) > 0  # and the queries can be answered wrongly


def test_halves_of_intervals_are_bounded_where_they_are_split():
    """Labels beside densities: a half was dropped by a bound on a half that ended elsewhere."""
    assert judge(make_case(0, 44822, "mixtures of Gaussians")).false_proofs == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_replays_by_its_number(family):
    cases = [make_case(5, number, family) for number in (0, 0, 1)]
    for case in cases:
        case.settings["time_limit"] = 60.0  # what time cuts short differs from run to run
    verdicts = [judge(case) for case in cases]
    assert verdicts[0] == verdicts[1]
    assert not any(verdict.false_proofs for verdict in verdicts)


@pytest.mark.parametrize("name", CERTAIN)
def test_five_percent_too_much_certainty_is_found_out_at_once(name):
    summary = summary_of(60, loosen=name)
    assert summary.n_false_proofs > 0
    assert not summary.holds


def test_vectors_that_lose_a_millionth_are_missed():
    assert summary_of(20, loosen="dominance", factor=1.0).holds
    assert not summary_of(60, loosen="dominance", factor=1.0 + 1e-6).holds


@pytest.mark.parametrize("name", [name for name in LOOSENED if name not in CERTAIN])
def test_evidence_counted_double_is_found_out(name):
    n = 150
    assert summary_of(n, loosen=name, factor=1.0).holds
    assert not summary_of(n, loosen=name, factor=2.0).holds


def test_formulas_are_as_they_were_after_loosening():
    before = {name: getattr(bounds, name) for name in dir(bounds)} | {"skyband": geometry.skyband}
    for name in LOOSENED:
        with pytest.raises(ZeroDivisionError), loosened(name):
            raise ZeroDivisionError
    assert {name: getattr(bounds, name) for name in dir(bounds)} | {"skyband": geometry.skyband} == before


@pytest.mark.slow
def test_a_stopped_run_goes_on_and_ends_the_same(tmp_path):
    whole = run_truth(TruthPlan(220, 4, out=tmp_path / "whole"))
    part = run_truth(TruthPlan(200, 4, out=tmp_path / "part"))
    assert part.n_queries == 200
    text = (tmp_path / "part" / FILE).read_bytes()
    (tmp_path / "part" / FILE).write_bytes(text + b'{"torn":')
    rest = run_truth(TruthPlan(220, 4, out=tmp_path / "part"))
    assert rest.n_queries == whole.n_queries == 220
    assert rest.holds
    assert whole.holds  # single outcomes may differ: some queries have hardly any time
    with pytest.raises(BenchError, match="another folder"):
        run_truth(TruthPlan(220, 5, out=tmp_path / "part"))


def test_a_lost_chunk_fails_and_is_tried_again(tmp_path, monkeypatch):
    plan = TruthPlan(3, 4, out=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(truth, "CHUNK_SECONDS", 0.0)
        lost = run_truth(plan)
    assert lost.n_failures == 3
    assert lost.failures[0][2] == "the process overran (limit 0 s)"
    again = run_truth(plan)
    assert (again.n_queries, again.n_failures) == (3, 0)


def test_the_command_judges_one_query_and_names_what_it_does_not_know(capsys):
    assert main(["bench", "truth", "--only", "7"]) == 0
    assert main(["bench", "truth", "--loosen", "residual", "--only", "7"]) == 1
    assert "all but the best" in capsys.readouterr().out
    assert main(["bench", "truth", "--loosen", "nothing"]) == 2
    assert "residual" in capsys.readouterr().err
