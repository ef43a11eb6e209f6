"""Folders of UAI instances: what is read, what is asked, what is printed."""

import gzip

import pytest
from typer.testing import CliRunner

from certimap.bench.records import BenchError
from certimap.bench.uai import UaiMethod, evidence_pairs, find_cases, load
from certimap.cli.main import app

CHAIN = "MARKOV\n3\n2 2 2\n2\n2 0 1\n2 1 2\n4\n.9 .1 .2 .8\n4\n.7 .3 .4 .6\n"


def folder_of(tmp_path):
    (tmp_path / "chain.uai").write_text(CHAIN)
    (tmp_path / "chain.uai.evid").write_text("1 2 1\n")
    with gzip.open(tmp_path / "chain.uai.query.gz", "wt") as file:
        file.write("1 0\n")
    return tmp_path


def test_a_case_is_a_network_with_its_evidence_and_query(tmp_path):
    (case,) = find_cases(folder_of(tmp_path))
    model, names, evidence = load(case)
    assert names == [model.domain.names[0]]
    assert list(evidence) == [model.domain.names[2]]


@pytest.mark.parametrize(
    ("numbers", "pairs"), [([], []), ([0], []), ([1, 4, 2], [(4, 2)]), ([1, 2, 0, 1, 3, 0], [(0, 1), (3, 0)])]
)
def test_both_forms_of_evidence_files_are_read(numbers, pairs):
    assert evidence_pairs(numbers) == pairs


def test_methods_have_settings():
    assert UaiMethod.parse("wmb:i_bound=5:iterations=3").options == {"i_bound": 5, "iterations": 3}
    with pytest.raises(BenchError, match="expected KEY"):
        UaiMethod.parse("wmb:i_bound=deep")


def test_a_folder_without_instances_is_refused(tmp_path):
    with pytest.raises(BenchError, match="expected one per instance"):
        find_cases(tmp_path)


def test_the_command_prints_a_table(tmp_path):
    done = CliRunner().invoke(
        app, ["bench", "uai", "--dir", str(folder_of(tmp_path)), "--solvers", "auto,wmb:i_bound=2"]
    )
    assert done.exit_code == 0, done.output
    assert done.output.count("| chain") == 2
    assert "exact" in done.output
