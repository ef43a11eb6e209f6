"""Files of Hugin, GeNIe, Netica, Microsoft and XMLBIF: tables, names, refusals, round trips."""

from __future__ import annotations

import itertools
import re
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.io import read, write
from certimap.io.xml_files import MAX_BYTES

FORMATS = ("net", "xdsl", "dsl", "dne", "dsc", "xmlbif", "pgmx")

# P(C | A, B) with three states of B, in which every number is another one.
ROWS = np.array([[[0.01, 0.99], [0.02, 0.98], [0.03, 0.97]], [[0.04, 0.96], [0.05, 0.95], [0.06, 0.94]]])

NET = """net { node_size = (80 40); name = "x"; }
% A comment; with } and "
node A { states = ("a0" "a1"); position = (1 2); label = "the first"; HR_Group = "0"; }
discrete node B { states = ("b0" "b 1" "b\\"2"); }
node C { states = ("c0" "c1"); }
potential (A) { data = (.25 .75); }
potential ( B | ) { }
potential (C | A B) {  % the parents
  data = (((0.01 0.99) % b0
           (0.02 0.98)(0.03 0.97))
          ((4e-2 0.96)(0.05 0.95)(0.06 0.94)));
  experience = ((1 1 1)(1 1 1));
}
"""
XDSL = """<?xml version="1.0" encoding="UTF-8"?>
<smile version="1.0" id="n" numsamples="1000">
 <nodes>
  <cpt id="A"><state id="a0"/><state id="a1"/><probabilities>0.25 0.75</probabilities></cpt>
  <cpt id="B" diagtype="observation"><state id="b0"/><state id="b1"/><state id="b2"/>
    <property id="p">1</property><probabilities>.2 .3 .5</probabilities></cpt>
  <cpt id="C"><state id="c0"/><state id="c1"/><parents>A B</parents>
    <probabilities>0.01 0.99 0.02 0.98 0.03 0.97 0.04 0.96 0.05 0.95 0.06 0.94</probabilities></cpt>
  <deterministic id="D"><state id="d0"/><state id="d1"/><parents>A B</parents>
    <resultingstates>d0 d0 d1 d1 d1 d0</resultingstates></deterministic>
 </nodes>
 <extensions><genie version="1.0" app="GeNIe 2.1"><node id="A"><name>x</name></node></genie></extensions>
</smile>
"""
XMLBIF = """<?xml version="1.0"?>
<!DOCTYPE BIF [ <!ELEMENT BIF ( NETWORK )*> <!ATTLIST BIF VERSION CDATA #REQUIRED> ]>
<BIF VERSION="0.3"><NETWORK><NAME>n</NAME>
<DEFINITION><FOR>C</FOR><GIVEN>A</GIVEN><GIVEN>B</GIVEN><TABLE>0.01 0.99 0.02 0.98 0.03 0.97
  <!-- the second --> 0.04 0.96 0.05 0.95 0.06 0.94</TABLE></DEFINITION>
<VARIABLE TYPE="nature"><NAME>A</NAME><OUTCOME>a0</OUTCOME><OUTCOME>&lt;a 1</OUTCOME>
  <PROPERTY>x</PROPERTY></VARIABLE>
<VARIABLE><NAME>B</NAME><OUTCOME>b0</OUTCOME><OUTCOME>b1</OUTCOME><OUTCOME>b2</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>C</NAME><OUTCOME>c0</OUTCOME><OUTCOME>c1</OUTCOME></VARIABLE>
<DEFINITION><FOR>A</FOR><TABLE>.25 .75</TABLE></DEFINITION>
<DEFINITION><FOR>B</FOR><TABLE>.2 .3 .5</TABLE></DEFINITION>
</NETWORK></BIF>
"""
DNE = """// ~->[DNET-1]->~
// File created by hand, with "one quote
bnet N {
autoupdate = TRUE;
whenchanged = 1002388154;
visual V1 { defdispform = BELIEFBARS; windowposn = (1, 2, 3, 4); resolution = 72; };
node A { kind = NATURE; discrete = TRUE; states = (a0, a1); parents = (); probs =
    // a0       a1
    (0.25,      0.75);
  title = "one; two }"; whenchanged = 3; belief = (0.25, 0.75); visual V1 { center = (66, 306); height = 1; }; };
node B { discrete = FALSE; levels = (0, 1.5, 2, 7); probs = (.2, .3, .5); };
node C { states = (c0, c1); parents = (A, B); probs =
  (((0.01, 0.99), (0.02, 0.98), (0.03, 0.97)), ((0.04, 0.96), (0.05, 0.95), (0.06, 0.94))); /* end */ };
node D { chance = DETERMIN; states = (d0, d1); parents = (A, B); functable = ((d0, d0, #1), (d1, d1, d0)); };
node T { kind = CONSTANT; title = "a text"; };
};
"""
DSL = """net N
{
 HEADER = { ID = N; NAME = "x"; };
 NUMSAMPLES = 1000;
 node A { TYPE = CPT; HEADER = { ID = A; NAME = "a node;"; }; SCREEN = { POSITION = { CENTER_X = 1; }; };
   PARENTS = (); DEFINITION = { NAMESTATES = (a0, a1); PROBABILITIES = (0.25, 0.75); }; };
 node B { TYPE = CPT; PARENTS = (); DEFINITION = { NAMESTATES = (b0, b1, b2); PROBABILITIES = (.2, .3, .5); }; };
 node C { TYPE = CPT; PARENTS = (A, B); DEFINITION = { NAMESTATES = (c0, c1);
   PROBABILITIES = (0.01, 0.99, 0.02, 0.98, 0.03, 0.97, 0.04, 0.96, 0.05, 0.95, 0.06, 0.94); }; };
 node D { TYPE = TRUTHTABLE; PARENTS = (A, B); DEFINITION = { NAMESTATES = (d0, d1);
   RESULTINGSTATES = (d0, d0, d1, d1, d1, d0); }; };
 OBSERVATION_COST = { node A { PARENTS = (); COSTS = (0); }; };
};
"""
DSC = """belief network "x"
node A { name: "the first"; type: discrete[2] = { "a0", "a1" }; position: (1, 2); }
node B { type: discrete = { "b0", "b 1", "b2" }; }
node C { type: discrete[2] = { "c0", "c1" }; }
probability(A) { .25, .75; }
probability(B) { (): .2, .3, .5; }
probability(C | A, B) { (0, 1): 0.02, 0.98; (0, 0): 0.01, 0.99; // out of order
  (0, 2): 0.03, 0.97; (1, 0): .04, .96; (1, 1): 0.05, 0.95; default: .06, .94; }
"""
TEXTS = {"net": NET, "xdsl": XDSL, "xmlbif": XMLBIF, "dne": DNE, "dsl": DSL, "dsc": DSC}


def read_text(tmp_path, suffix, text):
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    return read(path)


def table(network, name):
    return network.factors[network.domain.index(name)].table


@pytest.mark.parametrize("suffix", list(TEXTS))
def test_first_parent_is_slowest(tmp_path, suffix):
    network = read_text(tmp_path, suffix, TEXTS[suffix])
    c = network.factors[network.domain.index("C")]
    assert [network.domain.names[v] for v in c.scope] == ["A", "B", "C"]
    assert np.array_equal(c.table, ROWS)
    assert np.array_equal(table(network, "A"), [0.25, 0.75])
    assert np.allclose(table(network, "B"), [1 / 3] * 3 if suffix == "net" else [0.2, 0.3, 0.5])
    if suffix in ("xdsl", "dne", "dsl"):
        assert np.array_equal(table(network, "D")[..., 1], [[0, 0, 1], [1, 1, 0]])


def test_states_keep_their_names(tmp_path):
    assert read_text(tmp_path, "net", NET).domain["B"].states == ("b0", "b 1", 'b"2')
    assert read_text(tmp_path, "xmlbif", XMLBIF).domain["A"].states == ("a0", "<a 1")
    assert read_text(tmp_path, "dsc", DSC).domain["B"].states == ("b0", "b 1", "b2")
    assert read_text(tmp_path, "dne", DNE).domain["B"].states == ("0 to 1.5", "1.5 to 2", "2 to 7")


def test_tables_of_agrum_have_the_first_parent_fastest(tmp_path):
    numbers = " ".join(map(repr, ROWS.transpose(1, 0, 2).reshape(-1).tolist()))
    text = re.sub("0.01 0.99[^<]*", numbers, XDSL).replace("GeNIe 2.1", "aGrUM 3.3.1")
    assert np.array_equal(table(read_text(tmp_path, "xdsl", text), "C"), ROWS)


NOISY = """<smile version="1.0" id="n"><nodes>
<cpt id="A"><state id="hi"/><state id="lo"/><state id="none"/><probabilities>.2 .3 .5</probabilities></cpt>
<cpt id="B"><state id="off"/><state id="on"/><probabilities>.6 .4</probabilities></cpt>
<noisymax id="N"><state id="much"/><state id="some"/><state id="no"/><parents>A B</parents>
<strengths>0 1 2 1 0</strengths>
<parameters>.5 .3 .2 .1 .3 .6 0 0 1  .7 .1 .2 0 0 1  .01 .04 .95</parameters></noisymax>
</nodes></smile>"""


def noisy_max_by_hand(rows, leak):
    """P(strongest of independent contributions), by enumeration; state 0 is the strongest."""
    out = np.zeros(len(leak))
    for index in itertools.product(range(len(leak)), repeat=len(rows) + 1):
        out[min(index)] += np.prod([row[k] for row, k in zip([*rows, leak], index, strict=True)])
    return out


def of_problog(suffix, title):
    """As `problog bn` writes two atoms; another program keeps the identifiers."""
    if suffix == "net":
        nodes = [f'node {n} {{ label = "{t}"; states = ("0" "1"); }}' for n, t in (("a_x_", title), ("b", "b"))]
        tables = "potential (a_x_) { data = (.4 .6); } potential (b | a_x_) { data = (.1 .9 .2 .8); }"
        return "%% Hugin Net: PGM 1\n" + "\n".join(nodes) + tables
    cpts = [("a_x_", "", ".4 .6"), ("b", "<parents>a_x_</parents>", ".1 .9 .2 .8")]
    nodes = "".join(
        f'<cpt id="{n}"><state id="0"/><state id="1"/>{p}<probabilities>{t}</probabilities></cpt>'
        for n, p, t in cpts
    )
    shown = f'<node id="a_x_"><name>{title}</name></node><node id="b"><name>b</name></node>'
    genie = f'<extensions><genie app="ProbLog">{shown}</genie></extensions>'
    return f"<smile><nodes>{nodes}</nodes>{genie}</smile>"


@pytest.mark.parametrize("suffix", ["net", "xdsl"])
def test_files_of_problog_have_the_names_of_the_program(tmp_path, suffix):
    path, text = tmp_path / f"m.{suffix}", of_problog(suffix, "a(x,'y z')")
    path.write_text(text)
    model = read(path)
    assert model.domain.names == ("a(x,'y z')", "b")
    assert model.factors[1].table.tolist() == [[0.1, 0.9], [0.2, 0.8]]
    assert model.factors[1].scope == (0, 1)
    path.write_text(text.replace("%% Hugin Net:", "%").replace("ProbLog", "GeNIe"))
    assert read(path).domain.names == ("a_x_", "b")
    path.write_text(of_problog(suffix, "b"))
    with pytest.raises(cm.ParseError, match="'b'"):
        read(path)


def test_noisy_max_nodes(tmp_path):
    got = table(read_text(tmp_path, "xdsl", NOISY), "N")
    a = [[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0, 0, 1]]
    b = {"off": [0, 0, 1], "on": [0.7, 0.1, 0.2]}  # the strengths say: 'on' first
    for i, (j, state) in itertools.product(range(3), enumerate(("off", "on"))):
        assert np.allclose(got[i, j], noisy_max_by_hand([a[i], b[state]], [0.01, 0.04, 0.95]), atol=1e-15)


def test_noisy_max_with_many_parents_becomes_a_chain(tmp_path):
    n = 20
    nodes = [
        f'<cpt id="P{k}"><state id="on"/><state id="off"/><probabilities>.3 .7</probabilities></cpt>'
        for k in range(n)
    ]
    parameters = " ".join(f"{0.1 + 0.02 * k} {0.9 - 0.02 * k} 0 1" for k in range(n))
    names = " ".join(f"P{k}" for k in range(n))
    nodes.append(
        f'<noisymax id="N"><state id="yes"/><state id="no"/><parents>{names}</parents>'
        f"<parameters>{parameters} .05 .95</parameters></noisymax>"
    )
    network = read_text(tmp_path, "xdsl", f'<smile id="n"><nodes>{"".join(nodes)}</nodes></smile>')
    assert len(network.hidden) == n
    on = {3, 8, 17}
    evidence = {f"P{k}": "on" if k in on else "off" for k in range(n)}
    result = cm.marginals(network, ["N"], evidence)
    expected = 0.95 * np.prod([0.9 - 0.02 * k for k in on])
    assert np.isclose(dict(result["N"])["no"], expected)


REFUSED = [
    ("net", 'function F { states = ("x" "y"); }', "'F' is of the kind function"),
    ("net", "continuous node X { }", "'X' is of the kind continuous"),
    (
        "net",
        'node A { states = ("x" "y"); }\npotential (A) { model_data = (f()); }',
        ":2: .*'A'.*expressions",
    ),
    ("net", 'node A { states = ("x" "y"); }\npotential (A) { data = (normal (0, 1)); }', ":2: 'normal'.*'A'"),
    ("net", 'node A { states = ("x" "y"); }\npotential (A B) { data = (1 0); }', "2 variables"),
    ("net", 'node A { states = ("x" "y"); }\npotential (A) { data = (.4 .4); }', ":2: .*adds to 0.8"),
    ("net", 'node A { states = ("x" "y"); }\npotential (A) { data = (.4 .4 .2); }', ":2: .*3 entries; expected 2"),
    ("net", 'node A { states = ("x" "y"); }\npotential (A | Aa) { data = (.4 .6); }', "'Aa'.*did you mean 'A'"),
    ("net", 'node A { states = ("x" "y"); }', ":1: variable 'A' has no table"),
    ("net", 'node A { states = ("x" "x"); }', "doubled state"),
    ("net", "class X { node A { } }", "object-oriented"),
    ("net", "node A { } }", "closes no block"),
    ("net", "node A { states = (a b);", "no closing '}'"),
    ("net", 'node A { label = "x; }', "does not end"),
    ("xdsl", '<smile><nodes>\n<decision id="D"/></nodes></smile>', ":2: variable 'D' has no states"),
    ("xdsl", '<smile><nodes><equation id="E"/></nodes></smile>', "'E' is of the kind <equation>"),
    ("xdsl", '<smile><nodes/><dynamic numslices="0"/></smile>', "numslices=.0.; expected 1 to 1,048,576"),
    ("xdsl", "<smile/>", "<nodes>"),
    ("xdsl", NOISY.replace("0 1 2 1 0", "0 1 1 1 0"), "no order of its parents"),
    ("xdsl", NOISY.replace("0 1 2 1 0", "0 1 2 x"), "no numbers of states"),
    ("xdsl", NOISY.replace(".01 .04 .95", ""), "'N' has 15 parameters"),
    ("xdsl", NOISY.replace(".01 .04 .95", ".01 .04 .9"), "'N'.*leak"),
    ("xdsl", XDSL.replace("d1 d1 d0", "d1 d1 dx"), "'dx', which is no state"),
    ("xdsl", XDSL.replace("d1 d1 d0", "d1 d1"), "5 resulting states for 6"),
    ("xmlbif", XMLBIF.replace('TYPE="nature"', 'TYPE="sensor"', 1), "'A' is of the type 'sensor'"),
    ("xmlbif", XMLBIF.replace("0.99", "0.9_9"), "0.9_9"),
    ("xmlbif", XMLBIF.replace("</BIF>", ""), "no XML"),
    ("xml", "<html/>", "<BIF>"),
    ("dne", DNE.replace("kind = NATURE", "kind = UTILITY"), ":7: 'A' is of the kind UTILITY"),
    ("dne", DNE.replace("levels = (0, 1.5, 2, 7);", ""), "'B' is a continuous node"),
    ("dne", DNE.replace("probs = (.2, .3, .5)", 'equation = "B = 1"'), "'B' is given by an equation"),
    ("dne", DNE.replace("kind = NATURE;", "kind = NATURE; numstates = 7;", 1), "states and numstates = .7."),
    ("dne", DNE.replace("(0.02, 0.98)", "(@undef, 1)"), ":13: '@undef'.*'C'"),
    ("dne", "bnet A { }", "declares no variable"),
    ("dne", DNE.replace("/* end */", "/* end"), ":13: a comment begins here and does not end"),
    ("dne", "", "0 nets"),
    ("dsl", DSL.replace("TYPE = CPT", "TYPE = TABLE", 1), "'A' has the type TABLE"),
    ("dsl", DSL.replace("PROBABILITIES = (0.25, 0.75);", ""), "'A' has no PROBABILITIES"),
    ("dsc", DSC.replace("default: .06, .94;", ""), "5 rows; expected 6"),
    ("dsc", DSC.replace("(1, 1):", "(1, 3):"), r"row \(1, 3\)"),
    ("dsc", DSC.replace("(1, 1):", "(0, 1):"), r"row \(0, 1\).*doubled"),
    ("dsc", DSC.replace("discrete[2]", "continuous"), "'A' has no type"),
    ("dsc", DSC.replace("discrete[2]", "discrete[3]"), "2 states where its type says 3"),
]


@pytest.mark.parametrize(("suffix", "text", "message"), REFUSED)
def test_what_is_refused_is_named(tmp_path, suffix, text, message):
    with pytest.raises(cm.ParseError, match=message) as caught:
        read_text(tmp_path, suffix, text)
    assert len(str(caught.value).splitlines()) == 1


BOMB = '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><BIF>&b;</BIF>'
OUTSIDE = '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY x SYSTEM "file:///etc/passwd">]><BIF>&x;</BIF>'


@pytest.mark.parametrize(
    "text", [BOMB, OUTSIDE, OUTSIDE.replace("ENTITY", "ENTITY %"), "<a>" * 60, "<a>" * 100_000]
)
def test_xml_made_to_harm(tmp_path, text):
    with pytest.raises(cm.ParseError):
        read_text(tmp_path, "xml", text)


def test_a_file_of_a_gigabyte_is_not_read(tmp_path):
    with open(tmp_path / "m.xdsl", "wb") as file:
        file.truncate(2**30)
    began = time.process_time()
    with pytest.raises(cm.ParseError, match=f"1,073,741,824 bytes of XML; expected at most {MAX_BYTES:,}"):
        read(tmp_path / "m.xdsl")
    assert time.process_time() - began < 0.5


def test_deterministic_tables_have_a_limit(tmp_path):
    states = " ".join(f"s{k}" for k in range(100))
    nodes = "".join(
        f'<cpt id="P{k}">{"".join(f"<state id={chr(34)}s{i}{chr(34)}/>" for i in range(100))}'
        f"<probabilities>{'0.01 ' * 100}</probabilities></cpt>"
        for k in range(3)
    )
    own = "".join(f'<state id="s{i}"/>' for i in range(100))
    nodes += (
        f'<deterministic id="D">{own}<parents>P0 P1 P2</parents>'
        f"<resultingstates>{(states + ' ') * 10_000}</resultingstates></deterministic>"
    )
    with pytest.raises(cm.ParseError, match="not written out"):
        read_text(tmp_path, "xdsl", f"<smile><nodes>{nodes}</nodes></smile>")


@st.composite
def networks(draw):
    n = draw(st.integers(1, 5))
    word = st.text(st.sampled_from('AbZ09_ -.<>&"\\é;{}()%/='), min_size=1, max_size=4)
    word = word.map(lambda text: " ".join(text.split()) or "-")
    names = draw(st.lists(word, min_size=n, max_size=n, unique=True))
    states = {name: draw(st.lists(word, min_size=1, max_size=3, unique=True)) for name in names}
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parents = {name: [names[j] for j in range(i) if rng.random() < 0.5] for i, name in enumerate(names)}
    tables = {}
    for name in names:
        shape = [len(states[v]) for v in (*parents[name], name)]
        values = rng.random(shape) * (rng.random(shape) < 0.8) + 1e-300
        tables[name] = values / values.sum(axis=-1, keepdims=True)
    return cm.BayesianNetwork.from_cpts(states, parents, tables)


@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=40, deadline=None)
@given(network=networks())
def test_any_network_reads_back(tmp_path_factory, suffix, network):
    path = tmp_path_factory.mktemp("n") / f"m.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(network, path)
        found = read(path)
    assert len(found.domain) == len(network.domain)
    order = network.topological_order if suffix in ("xdsl", "dsl", "dne") else range(len(network.domain))
    place = {v: k for k, v in enumerate(order)}
    for v, variable in enumerate(network.domain):
        other = found.factors[place[v]]
        assert other.scope == tuple(place[u] for u in network.factors[v].scope)
        assert np.array_equal(other.table, network.factors[v].table)
        if suffix in ("xmlbif", "pgmx"):
            assert found.domain.variables[place[v]] == variable
        if suffix in ("net", "dsc"):
            assert found.domain.variables[place[v]].states == variable.states


def test_names_that_are_no_identifiers_are_written_with_one_warning(tmp_path):
    network = cm.BayesianNetwork.from_cpts(
        {"a b": ["x", "y"], "a_b": ["1", "2"], "é" * 40: ["x", "y"]},
        {},
        {"a b": [0.5, 0.5], "a_b": [0.5, 0.5], "é" * 40: [0.5, 0.5]},
    )
    for suffix in ("net", "xdsl", "dne", "dsl", "dsc"):
        with pytest.warns(UserWarning, match="'a b' as 'a_b_2'") as caught:
            network.write(tmp_path / f"m.{suffix}")
        assert len(caught) == 1
        names = read(tmp_path / f"m.{suffix}").domain.names
        assert names[:2] == ("a_b_2", "a_b")
        assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) for name in names)
    assert max(map(len, read(tmp_path / "m.dne").domain.names)) == 30


def test_only_bayesian_networks_are_written(tmp_path):
    model = cm.MarkovNetwork(cm.Domain.of_sizes([2]), [cm.Factor((0,), [1.0, 2.0])])
    for suffix in FORMATS:
        with pytest.raises(cm.ModelError, match=r"holds Bayesian (and decision )?networks"):
            model.write(tmp_path / f"m.{suffix}")


def test_gzip_and_numbers_beyond_doubles(tmp_path):
    factor = cm.Factor.from_log((0,), np.array([-2000.0, np.log1p(-np.exp(-2000.0))]))
    network = cm.BayesianNetwork(cm.Domain.of_sizes([2]), [factor])
    for suffix in FORMATS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network.write(tmp_path / f"m.{suffix}.gz")
        found = read(tmp_path / f"m.{suffix}.gz").factors[0]
        assert np.isclose(found.log_table[0], -2000.0, rtol=1e-14)


N = 100_000
LONG = ("/*" * N, "/* " * N, '"' * (N + 1), '"' + '\\"' * N, "{" * N, "a=" * N, "%" * N)


@pytest.mark.parametrize("text", LONG, ids=lambda text: repr(text[:3]))
@pytest.mark.parametrize("suffix", ["net", "dne", "dsl", "dsc"])
def test_long_repetitions_of_blocks_take_no_long_time(tmp_path, suffix, text):
    for start in ("", "net n { ", "bnet n { node A { states = ("):
        began = time.process_time()
        with pytest.raises(cm.ParseError):
            read_text(tmp_path, suffix, start + text)
        assert time.process_time() - began < 2.0
