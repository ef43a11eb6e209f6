"""Case files of Netica, Hugin, GeNIe and Weka, as evidence and as tables."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

import certimap as cm
from certimap.io.evidence import read_evidence_cases
from certimap.io.text_tables import read_text_table

CAS = "// ~->[CASE-1]->~\n\nIDnum\tA\tB b\tNumCases\n1\tlo\t*\t2\n2\t?\tx y\t1\n// end\n"
DAT = "A,B b\nlo,N/A\n<EMPTY>,x y\n"
GENIE = "A B\nlo *\n* xy\n"
ARFF = """% a comment
@RELATION r
@attribute A {lo, hi}
@attribute 'B b' {'x y', "z"}
@attribute n numeric
@DATA
lo,?,1.5
% another
?,'x y',2
"""


def domain():
    return cm.Domain([cm.Categorical("A", ("lo", "hi")), cm.Categorical("B b", ("x y", "z"))])


def cases_of(tmp_path, suffix, text):
    path = tmp_path / f"m.{suffix}.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return [case()[1] for case in read_evidence_cases(path, domain())]


ONE, TWO = {"A": "lo", "B b": None}, {"A": None, "B b": "x y"}


@pytest.mark.parametrize(("suffix", "text", "expected"), [("cas", CAS, [ONE, ONE, TWO]), ("dat", DAT, [ONE, TWO])])
def test_evidence(tmp_path, suffix, text, expected):
    assert cases_of(tmp_path, suffix, text) == expected


def test_weka_has_names_before_the_rows(tmp_path):
    with pytest.warns(UserWarning, match="no such variables: 'n'"):
        assert cases_of(tmp_path, "arff", ARFF) == [ONE, TWO]
    path = tmp_path / "m.arff"
    path.write_text(ARFF)
    table = read_text_table(path)
    assert table.names == ["A", "B b", "n"]
    assert table.lines == [7, 9]
    assert table.rows == [["lo", "?", "1.5"], ["?", "x y", "2"]]
    path.write_text('@attribute "B b" string\n@data\n"x, y"\n')
    assert read_text_table(path).rows == [["x, y"]]


def test_blanks_cut_cells_where_no_other_sign_does(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text(GENIE)
    assert read_text_table(path).rows == [["lo", "*"], ["*", "xy"]]
    path.write_text("one column\nof free text\n")
    with pytest.raises(cm.ParseError, match="3 cells where 2"):
        read_text_table(path).cells  # noqa: B018
    path.with_suffix(".csv").write_text("one column\nof free text\n")
    assert read_text_table(path.with_suffix(".csv")).rows == [["of free text"]]


@pytest.mark.parametrize(("suffix", "text"), [("cas", CAS), ("dat", DAT), ("txt", GENIE), ("arff", ARFF)])
def test_tables_for_learning(tmp_path, suffix, text):
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    found = cm.learn.prepare(path, columns=["A"])
    assert list(found) == ["A"]
    assert sum(value is None for value in np.asarray(found["A"]).tolist()) == 1


@pytest.mark.parametrize("name", ["p15.cas", "p15_hugin.dat", "p15_genie.txt", "p15.arff", "p15_star.csv"])
def test_small_files(shared_cases, name):
    names = ("xray", "dysp", "smoke")
    model = cm.Domain(cm.Categorical(name, ("yes", "no")) for name in names)
    one, two = (case()[1] for case in read_evidence_cases(shared_cases / name, model))
    smoke = {} if name == "p15.arff" else {"smoke": "no"}
    assert {k: v for k, v in one.items() if v is not None} == {"xray": "yes", **smoke}
    assert {k: v for k, v in two.items() if v is not None} == {"dysp": "yes"}


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("cas", CAS.replace("\t2\n", "\t2.5\n"), ":4: NumCases is '2.5'"),
        ("cas", CAS.replace("\t2\n", "\t99999999999999999999\n"), "NumCases"),
        ("cas", CAS.replace("\t2\n", "\t99999999\n"), "NumCases"),
        ("cas", CAS.replace("\t2\n", "\n"), ":4: the row has 3 cells"),
        ("arff", ARFF.replace("@DATA", ""), "no @attribute before @data"),
        ("arff", ARFF.replace("lo,?,1.5", "{0 lo}"), ":7: .*sparse rows"),
        ("arff", "", "no @attribute"),
    ],
)
def test_what_is_refused_is_named(tmp_path, suffix, text, message):
    with pytest.raises(cm.ParseError, match=message):
        cases_of(tmp_path, suffix, text)


def test_write_is_the_method_as_a_function_and_lists_suffixes(tmp_path):
    model = cm.BayesianNetwork.from_cpts({"A": ["x", "y"]}, {}, {"A": [0.25, 0.75]})
    cm.write(model, tmp_path / "m.bif")
    assert cm.read(tmp_path / "m.bif").domain == model.domain
    for suffix in ("doc", "csv"):
        with pytest.raises(cm.ParseError, match=rf"'.{suffix}' names no model format; expected .bif, .uai, "):
            cm.write(model, tmp_path / f"m.{suffix}")
