"""Files of evidence, queries and assignments: cases fail one by one, and cells have one rule."""

from __future__ import annotations

import json

import pytest

import certimap as cm
from certimap.io.evidence import TextOptions, read_assignments, read_evidence_cases, read_query_cases

DOMAIN = cm.Domain(
    [
        cm.Categorical("a", (0, 1, 2)),
        cm.Categorical("b", ("0", "1")),
        cm.Categorical("c", ("na", "yes")),
        cm.Categorical("p", ((0, 1), (1, 0))),
        cm.Real("x"),
    ]
)


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def evidence(path, **options):
    return [case()[1] for case in read_evidence_cases(path, DOMAIN, TextOptions(**options))]


def test_cells_are_read_by_what_labels_print_as(file):
    path = file("e.csv", "a,b,c,x\n1.0,1.0,yes,2\n1,1,na,\n?,NaN,,1e-3\n")
    assert evidence(path) == [
        {"a": 1, "b": "1", "c": "yes", "x": 2.0},
        {"a": 1, "b": "1", "c": "na", "x": None},
        {"a": None, "b": None, "c": None, "x": 0.001},
    ]


def test_what_is_wrong_with_one_case_is_found_there(file):
    good, bad, short, last = read_evidence_cases(file("e.csv", "a,b\n1,1\n3,1\n1\n2,0\n"), DOMAIN)
    assert good()[1] == {"a": 1, "b": "1"}
    with pytest.raises(cm.QueryError, match=r"e\.csv:3: '3' is no state of variable 'a'"):
        bad()
    with pytest.raises(cm.ParseError, match=r"e\.csv:4: the row has 1 cells where 2"):
        short()
    assert last()[1] == {"a": 2, "b": "0"}
    first, second = read_evidence_cases(file("e.json", [{"a": 1}, {"z": 1}]), DOMAIN)
    assert first()[1] == {"a": 1}
    with pytest.raises(cm.QueryError, match=r"e\.json, item 2: 'z' is no variable"):
        second()
    first, second = read_evidence_cases(file("e.evid", "2\n1 9 0\n1 1 1\n"), DOMAIN)
    with pytest.raises(cm.QueryError, match=r"e\.evid, case 1: 9 is no variable"):
        first()
    assert second()[1] == {"b": "1"}
    first, second = read_query_cases(file("q.map", "9\n\n1\n0 1\n"), DOMAIN)
    assert second() == (["b"], {"a": 1})
    with pytest.raises(cm.QueryError, match="9 is no variable"):
        first()


def test_a_column_that_is_no_variable_is_refused_at_once(file):
    with pytest.raises(cm.ParseError, match=r"e\.csv:1: 'bb' is no variable.*did you mean 'b'"):
        read_evidence_cases(file("e.csv", "bb\n1\n"), DOMAIN)


def test_json_values_mean_what_they_do_in_python(file):
    values = [
        ("a", "1.0", 1),
        ("a", 2, 2),
        ("b", ["0", "1"], {"states": ["0", "1"]}),
        ("b", [0.5, 1], [0.5, 1]),
        ("a", ["0", "1", "2"], {"states": [0, 1, 2]}),
        ("a", {"states": ["0", 2]}, {"states": [0, 2]}),
        ("a", {"likelihood": {"0": 0.5}}, {"likelihood": {0: 0.5}}),
        ("a", {"log_likelihood": [-1, 0, -5000]}, {"log_likelihood": [-1, 0, -5000]}),
        ("a", {"0": 0.5, "2": 1}, {0: 0.5, 2: 1}),
        ("p", [0, 1], (0, 1)),
        ("p", {"states": [[0, 1]]}, {"states": [(0, 1)]}),
        ("x", 1.5, 1.5),
        ("x", [0, 1], [0, 1]),
        ("a", None, None),
    ]
    for name, value, expected in values:
        (found,) = evidence(file("e.json", {name: value}))
        assert found == {name: expected}, value
        cm.make_query(DOMAIN, None, found)
    with pytest.raises(cm.QueryError, match="may be states or likelihoods"):
        cm.make_query(DOMAIN, None, evidence(file("e.json", {"a": [0, 1, 2]}))[0])
    with pytest.raises(cm.QueryError, match="twice"):
        evidence(file("e.json", {"a": {"1": 0.5, "1.0": 0.5}}))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.json", "[" * 100_000, "nests too deeply"),
        ("e.json", '{"a": ' + "1" * 5000 + "}", "too long"),
        ("e.json", '{"a"', "no JSON"),
        ("e.json", "3", "no object"),
        ("e.csv", "a,b\n", "no rows"),
        ("e.csv", "", "no rows"),
        ("e.csv", "a,,b\n1,2,3\n", "column 2 has no name"),
        ("e.csv", "a,a\n1,1\n", "two columns"),
        ("e.csv", 'a,b\n"1,1', "where 2 are expected"),
        ("e.xyz", "", "'.xyz' names no evidence format; expected .evid, .csv"),
        ("e.cvs", "", "did you mean 'csv'"),
    ],
)
def test_files_that_are_no_evidence(file, name, content, message):
    with pytest.raises(cm.ParseError, match=message):
        evidence(file(name, content))


def test_the_separator_is_found_or_named(file):
    expected = [{"a": 1, "b": "1"}, {"a": 2, "b": "0"}]
    for sign in (",", ";", "\t", "|", "; "):
        assert evidence(file("e.csv", f"a{sign}b\n1{sign}1\n2{sign}0\n")) == expected
    for sign, name in ((" ", "space"), ("/", "/"), ("\t", "tab"), (";", "semicolon")):
        assert evidence(file("e.csv", f"a{sign}b\n1{sign}1\n2{sign}0\n"), separator=name) == expected
    with pytest.raises(cm.ParseError, match="--separator"):
        evidence(file("e.csv", "a;b,c\n1;2,3\n"))
    with pytest.raises(cm.QueryError, match="is no separator"):
        evidence(file("e.csv", "a,b\n1,1\n"), separator="dots")


def test_an_unnamed_column_of_row_labels_is_left_out_with_a_warning(file):
    with pytest.warns(UserWarning, match="row labels"):
        assert evidence(file("e.csv", ",a\n0,1\n1,2\n")) == [{"a": 1}, {"a": 2}]
    with pytest.raises(cm.ParseError, match="column 1 has no name"):
        evidence(file("e.csv", ",a\n0,1\n0,2\n"))


def test_assignments_of_answers_and_of_batches(file):
    answers = [{"assignment": {"a": 1}, "log_prob": -1.0}, {"label": 2, "error": "QueryError", "message": "m"}]
    assert read_assignments(file("s.json", answers), DOMAIN) == [{"a": 1}]
    assert read_assignments(file("s.json", {"a": 2, "b": None}), DOMAIN) == [{"a": 2}]
    assert read_assignments(file("s.csv", "a,b\n1,1\n"), DOMAIN) == [{"a": 1, "b": "1"}]
    with pytest.raises(cm.QueryError, match=r"s\.json, item 1"):
        read_assignments(file("s.json", {"a": "7"}), DOMAIN)
    with pytest.raises(cm.QueryError, match="no assignment"):
        read_assignments(file("s.json", [3]), DOMAIN)


def test_a_query_is_a_list_of_names(file):
    assert [case() for case in read_query_cases(file("q.json", ["b", "a"]), DOMAIN)] == [(["b", "a"], {})]
    with pytest.raises(cm.ParseError, match="no list of variable names"):
        read_query_cases(file("q.json", {"a": 1}), DOMAIN)


def test_encodings(file):
    domain = cm.Domain([cm.Categorical("fièvre", ("élevée", "nulle"))])
    text = "fièvre\nélevée\n"
    for encoding in ("latin-1", "cp1252", "utf-16-le", "utf-16"):
        path = file("e.csv", text.encode(encoding))
        (case,) = read_evidence_cases(path, domain, TextOptions(encoding=encoding))
        assert case()[1] == {"fièvre": "élevée"}
    (case,) = read_evidence_cases(file("e.csv", text.encode("utf-16")), domain)  # its mark says so
    assert case()[1] == {"fièvre": "élevée"}
    for encoding, option in (
        ("latin-1", r"0xe8 that is not UTF-8; encoding= \(--encoding"),
        ("utf-16-le", "'utf-16-le'"),
    ):
        with pytest.raises(cm.ParseError, match=option):
            read_evidence_cases(file("e.csv", text.encode(encoding)), domain)
    with pytest.raises(cm.ParseError, match="'klingon' is no text encoding"):
        read_evidence_cases(file("e.csv", text), domain, TextOptions(encoding="klingon"))
