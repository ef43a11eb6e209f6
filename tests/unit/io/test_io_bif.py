"""BIF: the layouts that exist, and the errors with their line."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import certimap as cm
from certimap import io
from certimap.core.domain import Categorical, Domain
from certimap.errors import ModelError, ParseError
from certimap.networks import BayesianNetwork, Factor

PAIR = """network pair {
}
variable A {
  type discrete [ 2 ] { lo, hi };
}
variable B {
  type discrete [ 2 ] { y, n };
}
probability ( A ) {
  table .3, .7;
}
probability ( B | A ) {
  (hi) .2, .8;
  (lo) .9, .1;
}
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "model.bif"
        path.write_text(text, encoding="utf-8")
        return io.read(path)

    return read_text


def tables(network):
    return {network.domain.names[f.scope[-1]]: f.table.tolist() for f in network.factors}


def refused(read, text, line, *parts):
    with pytest.raises(ParseError) as caught:
        read(text)
    assert caught.value.line == line
    for part in parts:
        assert part in str(caught.value)
    assert f"model.bif:{line}: " in str(caught.value)


EXPECTED = {"A": [0.3, 0.7], "B": [[0.9, 0.1], [0.2, 0.8]]}


def test_rows_are_matched_by_their_labels(read):
    network = read(PAIR)
    assert isinstance(network, BayesianNetwork)
    assert network.domain["A"].states == ("lo", "hi")
    assert tables(network) == EXPECTED


@pytest.mark.parametrize(
    "rows",
    [
        "default .2, .8; (lo) .9, .1;",
        "(lo) .9, .1; default .2, .8;",
        "(lo) .9 .1;\n(hi) .2 .8;",
        "( lo ) 9e-1, 1.e-1 ;( hi )2E-1,.8;",
        "table .9 .2 .1 .8;",
        'property "a; }" ; (lo) .9, .1; property weight = 1; (hi) .2, .8;',
        '("lo") .9, .1; ("hi") .2, .8;',
        "(lo) .9, .1; // the rest }\n(hi) /* here: */ .2, .8 // and here\n;",
    ],
)
def test_layouts_of_a_conditional_table(read, rows):
    start = PAIR.index("  (hi)")
    assert tables(read(PAIR[:start] + rows + "\n}\n")) == EXPECTED


def test_a_conditional_table_counts_its_variable_slowest_unless_only_the_other_order_adds_to_1(read):
    text = PAIR[: PAIR.index("  (hi)")] + "table .9, .1, .2, .8; }"
    assert tables(read(text)) == EXPECTED
    text = PAIR[: PAIR.index("  (hi)")] + "table .4, .6, .6, .4; }"  # both add to 1: the standard's order
    assert tables(read(text))["B"] == [[0.4, 0.6], [0.6, 0.4]]


def test_a_whole_file_on_one_line(read):
    assert tables(read(" ".join(PAIR.split()))) == EXPECTED
    assert tables(read(PAIR.replace("\n", "\r\n"))) == EXPECTED


def test_a_header_over_several_lines_without_commas_or_bar(read):
    for header in ("probability\n(\n B\n |\n A\n)\n{", "probability(B|A){", 'probability ( "B" "A" ) {'):
        assert tables(read(PAIR.replace("probability ( B | A ) {", header))) == EXPECTED


def test_blocks_in_any_order(read):
    start = PAIR.index("probability")
    head = PAIR.index("variable")
    assert tables(read(PAIR[start:] + PAIR[head:start])) == EXPECTED


def test_odd_states_and_quoted_names(read):
    network = read(
        """
        network "a net; with } marks" { property "version 1;" ; property author = someone; }
        variable "Left // side" { type discrete[4] { <5, 5-12, 12+, >=13.5 }; property position = (1, 2) ; }
        variable X{type discrete[5]{Asy/Patch,a;b,"very low","c, d",n.a.};}
        variable Ünïcode { type discrete [1] { ж }; }  // one state
        probability ( "Left // side" | X, Ünïcode ) {
          (Asy/Patch, ж) .1, .2, .3, .4;
          ("a;b", ж) 0, 0, 0, 1;
          (very low, ж) 1, 0, 0, 0;
          ("c, d", "ж") 0 1 0 0;
          (n.a., ж) 0 0 1 0;
        }
        probability ( X ) { table .2 .2 .2 .2 .2; }
        probability ( Ünïcode ) { table 1.0; }
        """
    )
    assert network.domain.names == ("Left // side", "X", "Ünïcode")
    assert network.domain["Left // side"].states == ("<5", "5-12", "12+", ">=13.5")
    assert network.domain["X"].states == ("Asy/Patch", "a;b", "very low", "c, d", "n.a.")
    table = network.factors[0].table[:, 0]
    assert table.tolist() == [[0.1, 0.2, 0.3, 0.4], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]


def test_states_without_commas_or_count(read):
    text = PAIR.replace("[ 2 ] { lo, hi }", "{ lo hi }").replace("{ y, n };", "{ y n }")
    assert tables(read(text)) == EXPECTED


def test_comments_keep_the_lines_of_errors(read):
    text = "/* one\ntwo\n*/\n// three\n" + PAIR.replace("(lo)", "(low)")
    refused(read, text, 4 + PAIR[: PAIR.index("(lo)")].count("\n") + 1, "'low'", "'lo', 'hi'")


@pytest.mark.parametrize(
    ("old", "new", "line", "part"),
    [
        ("  (lo) .9, .1;\n", "", 12, "(A=lo)"),
        ("(lo) .9, .1;", "(hi) .9, .1;", 14, "twice"),
        ("(lo) .9, .1;", "(lo) .9, .05, .05;", 14, "3 entries"),
        ("table .3, .7;", "table .3, .3, .4;", 10, "3 entries"),
        ("(lo) .9, .1;", "(lo) 1.1, -.1;", 14, "'-.1'"),
        ("(lo) .9, .1;", "(lo) nan, .1;", 14, "'nan'"),
        ("(lo) .9, .1;", "(lo) inf, .1;", 14, "'inf'"),
        ("(lo) .9, .1;", "(lo) .9, .o1;", 14, "'.o1'"),
        ("(lo) .9, .1;", "(lo) .9, .1", 14, "row"),
        ("(lo) .9, .1;", "(lo, hi) .9, .1;", 14, "2 labels"),
        ("(lo) .9, .1;", "(lo) .9, .09;", 14, "0.99"),
        ("table .3, .7;", "table .3, .7; default .3, .7;", 10, "one or the other"),
        ("variable B", "variable A", 6, "declared twice"),
        ("{ y, n }", "{ y, y }", 6, "doubled state"),
        ("[ 2 ] { y, n }", "[ 3 ] { y, n }", 7, "2 states"),
        ("type discrete [ 2 ] { y, n };", "", 6, "no type"),
        ("probability ( B | A )", "probability ( A | B )", 12, "two tables"),
        ("probability ( B | A )", "probability ( B | C )", 12, "'C'"),
        ("probability ( B | A )", "probability ( B | B )", 12, "twice"),
        ("probability ( B | A )", "potential ( B | A )", 12, "begins no block"),
        ("}\nvariable B", "variable B", 5, "type discrete"),
    ],
)
def test_errors_name_the_line(read, old, new, line, part):
    assert old in PAIR
    refused(read, PAIR.replace(old, new), line, part)


def test_a_missing_block_and_an_unclosed_one(read):
    with pytest.raises(ParseError, match="'B' has no table"):
        read(PAIR[: PAIR.index("probability ( B")])
    refused(read, PAIR.rstrip()[:-1], 12, "closing")
    with pytest.raises(ParseError, match="no variable"):
        read("")


def test_a_directed_cycle_is_refused(read):
    text = PAIR.replace(
        "probability ( A ) {\n  table .3, .7;", "probability ( A | B ) {\n (y) .3, .7; (n) .3, .7;"
    )
    with pytest.raises(ParseError, match="cycle"):
        read(text)


def test_rows_that_nearly_add_to_1_are_renormalised_with_one_warning(read):
    text = PAIR.replace("(lo) .9, .1;", "(lo) .9, .101;").replace("(hi) .2, .8;", "(hi) .2, .799;")
    with pytest.warns(UserWarning, match="2 rows") as caught:
        network = read(text)
    assert len(caught) == 1
    assert network.factors[1].table.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-15)
    assert network.factors[1].table[0, 0] == pytest.approx(0.9 / 1.001, rel=1e-14)


@pytest.mark.parametrize("last", [".100001", ".099999", ".1000000000001"])
def test_rows_off_by_a_millionth_are_renormalised_silently(read, last):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = read(PAIR.replace("(lo) .9, .1;", f"(lo) .9, {last};"))
    row = network.factors[1].table[0]
    assert row.sum() == pytest.approx(1.0, abs=1e-12)
    assert row[0] == pytest.approx(0.9 / (0.9 + float(last)), rel=1e-12)


@pytest.mark.parametrize("last", [".10101", ".09899"])
def test_rows_off_by_more_than_a_thousandth_are_refused(read, last):
    refused(read, PAIR.replace("(lo) .9, .1;", f"(lo) .9, {last};"), 14, f"{0.9 + float(last):.10g}")


def test_bytes_that_are_not_utf8_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "model.bif"
    path.write_bytes(b"\xef\xbb\xbf" + PAIR.encode())
    assert tables(io.read(path)) == EXPECTED
    path.write_bytes(PAIR.encode().replace(b"variable B", b"variable B\xe9"))
    with pytest.raises(ParseError, match="UTF-8") as caught:
        io.read(path)
    assert caught.value.line == 6


def test_a_written_network_reads_back_exactly(tmp_path):
    domain = Domain(
        [Categorical("a b", ("x y", "<5", "z/w;")), Categorical("C", ("1",)), Categorical("d,", ("t", "f"))]
    )
    rng = np.random.default_rng(3)
    network = BayesianNetwork(
        domain,
        [
            Factor((0,), rng.dirichlet(np.ones(3))),
            Factor((0, 2, 1), np.ones((3, 2, 1))),
            Factor((0, 2), rng.dirichlet(np.ones(2), 3)),
        ],
    )
    for name in ("m.bif", "m.bif.gz"):
        network.write(tmp_path / name)
        again = io.read(tmp_path / name)
        assert again.domain == domain
        assert tables(again) == tables(network)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["m.bif", "m.bif.gz"]


def test_labels_that_bif_cannot_hold_are_refused(tmp_path):
    for states in ((1, "1"), ('a"b', "c")):
        network = BayesianNetwork(Domain([Categorical("A", states)]), [Factor((0,), [0.5, 0.5])])
        with pytest.raises(ModelError):
            network.write(tmp_path / "m.bif")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*renormalised")
def test_the_benchmark_networks_load_and_score_the_recorded_answers(shared_data):
    cases = json.loads((shared_data / "networks" / "cases.json").read_text())["cases"]
    networks = {}
    for case in cases:
        name = case["network"]
        if name not in networks:
            networks[name] = io.read(shared_data / "networks" / f"{name}.bif.gz")
        if case["task"] == "mpe":
            network = networks[name]
            point = network.domain.encode({**case["evidence"], **case["best_assignment"]})
            assert float(network.log_joint(point)[0]) == pytest.approx(case["best_log_prob"], abs=1e-4)
    assert {n: len(m.domain) for n, m in networks.items()}["munin"] == 1041
    assert len(networks) == 8


@pytest.mark.filterwarnings("error")
def test_the_examples_load(examples):
    assert len(io.read(examples / "asia.bif").domain) == 8
    assert len(io.read(examples / "alarm.bif").domain) == 37
    mixture = io.read(examples / "mixture.spn")
    assert mixture.domain.names == ("0", "1")
    assert math.isfinite(mixture.n_edges)


DISCRETISED = """network n {{ }}
variable X {{ type discrete [ {n} ] = {{ {states} }}; }}
variable Y {{ type discrete [ 2 ] {{ yes, no }}; }}
probability ( X ) {{ table {numbers}; }}
probability ( Y | X ) {{
{rows}
}}
"""


@pytest.mark.parametrize(
    ("written", "states"),
    [
        ("(0.5,1.2], (1.2,3]", ["(0.5,1.2]", "(1.2,3]"]),
        ("(-inf,0.5],(0.5,inf)", ["(-inf,0.5]", "(0.5,inf)"]),
        ("[0;10), [10;20]", ["[0;10)", "[10;20]"]),
        ("<=3, >3", ["<=3", ">3"]),
        ("1,999, 2,500, 3", ["1,999", "2,500", "3"]),
        ("1,999 2,500", ["1,999", "2,500"]),
        ("(0, 1] (1, 2]", ["(0, 1]", "(1, 2]"]),
        ('"(a,b", (0;1], c', ["(a,b", "(0;1]", "c"]),
        ("very low, not so low", ["very low", "not so low"]),
    ],
)
def test_states_as_discretisers_write_them(read, written, states):
    n = len(states)
    rows = "\n".join(f"  ({state}) {(k + 1) / 8}, {1 - (k + 1) / 8};" for k, state in enumerate(states))
    text = DISCRETISED.format(n=n, states=written, numbers=" ".join([str(1 / n)] * n), rows=rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = read(text)
    assert network.domain["X"].states == tuple(states)
    assert network.factors[1].table[:, 0].tolist() == [(k + 1) / 8 for k in range(n)]


def test_states_that_cannot_be_told_apart_are_refused(read):
    with pytest.raises(ParseError, match="double quotes around each, or a count, settle it"):
        read("variable X { type discrete { 1,999, 2,500 }; } probability ( X ) { table .5 .5; }")
    with pytest.raises(ParseError, match="3 states where its type says 2"):
        read("variable X { type discrete [ 2 ] { a, b, c }; } probability ( X ) { table .5 .5; }")
    text = """variable X { type discrete [ 2 ] { "a", "a, b" }; }
    variable Y { type discrete [ 2 ] { "b, c", "c" }; }
    variable Z { type discrete [ 1 ] { z }; } probability ( X ) { table .5 .5; } probability ( Y ) { table .5 .5; }
    probability ( Z | X, Y ) { (a, b, c) 1; default 1; }"""
    with pytest.raises(ParseError, match="read in two ways"):
        read(text)
    assert read(text.replace("(a, b, c)", '(a, "b, c")')).factors[2].table.shape == (2, 2, 1)


NAME = st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=8)


@given(
    names=st.lists(NAME, min_size=2, max_size=3, unique=True),
    states=st.lists(NAME, min_size=1, max_size=4, unique=True),
)
def test_every_name_that_is_written_reads_back(tmp_path, names, states):
    domain = Domain([Categorical(name, tuple(states)) for name in names])
    k = len(states)
    tables = [Factor((0,), np.full(k, 1 / k)), *(Factor((0, i), np.eye(k)) for i in range(1, len(names)))]
    network = BayesianNetwork(domain, tables)
    for suffix in ("bif", "npz"):
        network.write(tmp_path / f"m.{suffix}")
        again = io.read(tmp_path / f"m.{suffix}")
        assert again.domain == domain
        assert [f.table.tolist() for f in again.factors] == [f.table.tolist() for f in network.factors]


def test_names_that_no_file_can_hold_are_refused(tmp_path):
    network = BayesianNetwork(Domain([Categorical("\ud800", ("a",))]), [Factor((0,), [1.0])])
    with pytest.raises(ModelError, match="UTF-8 cannot hold"):
        network.write(tmp_path / "m.bif")
    assert not list(tmp_path.iterdir())


def test_a_row_of_zeros_is_legal(read):
    network = read(PAIR.replace("(lo) .9, .1;", "(lo) 0, 0;"))
    assert tables(network)["B"] == [[0.0, 0.0], [0.2, 0.8]]


UNQUOTED = """network n {{ }}
variable a {{ type discrete [ 2 ] {{ {} }}; }}
variable b {{ type discrete [ 2 ] {{ u, v }}; }}
probability ( a ) {{ table 0.25, 0.75 ; }}
probability ( b | a ) {{
    ( {} ) 0.1, 0.9;
    ( zz ) 0.2, 0.8;
}}
"""


@pytest.mark.parametrize(
    "state", ["very low", "<1.5", "2-3", "no (x)", "(0,1]", "50%", "a|b", 'say "hi"', "no)", "}", "-1", "table"]
)
def test_states_as_pgmpy_writes_them(tmp_path, state):
    (tmp_path / "m.bif").write_text(UNQUOTED.format(f"{state}, zz", state))
    if state == "}":
        with pytest.raises(ParseError, match=r"m\.bif:2"):
            cm.read(tmp_path / "m.bif")
        return
    model = cm.read(tmp_path / "m.bif")
    assert model.domain["a"].states == (state, "zz")
    assert cm.marginals(model, "b", {"a": state})["b"]["v"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ("yes, sure, zz", "has 3 states where its type says 2; .* in double quotes"),
        ("very low, ", "without a name"),
    ],
)
def test_states_that_may_be_read_in_two_ways_are_refused(tmp_path, states, message):
    (tmp_path / "m.bif").write_text(UNQUOTED.format(states, "very"))
    with pytest.raises(ParseError, match=rf"m\.bif:2: .*{message}"):
        cm.read(tmp_path / "m.bif")
