"""Files of OpenMarkov and Microsoft: tables, trees, noisy gates, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import certimap as cm


def read_text(tmp_path, suffix, text):
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    return cm.read(path)


def table(network, name):
    """Return a table with its parents in the order of the domain."""
    factor = network.factors[network.domain.index(name)]
    order = np.argsort(factor.scope[:-1]).tolist()
    return factor.table.transpose(*order, len(order))


def listed(names):
    return f"<Variables>{''.join(f'<Variable name={n!r}/>' for n in names)}</Variables>"


def leaf(names, numbers):
    return f'<Potential type="Table">{listed(names)}<Values>{numbers}</Values></Potential>'


def pgmx(*potentials, n=2, role="chance"):
    names = "".join(
        f'<Variable name="{name}" type="finiteStates" role="{role}"><Coordinates x="1" y="2"/><States>'
        + "".join(f'<State name="{name.lower()}{k}"/>' for k in range(size))
        + "</States></Variable>"
        for name, size in (("A", 2), ("B", 3), ("C", n))
    )
    priors = leaf("A", ".25 .75") + leaf("B", ".2 .3 .5")
    return (
        '<?xml version="1.0"?>\n<ProbModelXML formatVersion="1.0.0"><ProbNet type="BayesianNetwork">'
        f"<Comment>x</Comment><Variables>{names}</Variables><Links/>"
        f"<Potentials>{priors}{''.join(potentials)}</Potentials></ProbNet></ProbModelXML>"
    )


ROWS = np.array([[[0.01, 0.99], [0.02, 0.98], [0.03, 0.97]], [[0.04, 0.96], [0.05, 0.95], [0.06, 0.94]]])


def test_the_conditioned_variable_is_fastest_and_then_the_first_parent(tmp_path):
    numbers = " ".join(map(repr, ROWS.transpose(1, 0, 2).reshape(-1).tolist()))
    network = read_text(tmp_path, "pgmx", pgmx(leaf("CAB", numbers)))
    assert np.array_equal(table(network, "C"), ROWS)
    assert network.domain["B"].states == ("b0", "b1", "b2")


def branch(states, inner):
    return f"<Branch><States>{''.join(f'<State name={s!r}/>' for s in states)}</States>{inner}</Branch>"


def tree(top, *branches, names=""):
    head = f'<Potential type="Tree/ADD" role="x">{listed(names) if names else ""}<TopVariable name="{top}"/>'
    return f"{head}<Branches>{''.join(branches)}</Branches></Potential>"


def test_trees(tmp_path):
    inner = tree("B", branch(["b0", "b2"], leaf("C", ".1 .9")), branch(["b1"], leaf("C", ".3 .7")))
    whole = tree("A", branch(["a1"], inner), branch(["a0"], leaf("CB", "1 0 .5 .5 0 1")), names="CAB")
    got = table(read_text(tmp_path, "pgmx", pgmx(whole)), "C")
    assert np.array_equal(got, [[[1, 0], [0.5, 0.5], [0, 1]], [[0.1, 0.9], [0.3, 0.7], [0.1, 0.9]]])


def noisy(model, leak):
    parts = leaf("CB", ".6 .3 .1 .1 .1 .8 1 0 0") + leaf("CA", "1 0 0 .2 .3 .5") + leak
    return (
        f'<Potential type="ICIModel">{listed("CAB")}<Model>{model}</Model><Subpotentials>{parts}</Subpotentials>'
        "</Potential>"
    )


@pytest.mark.parametrize(
    ("model", "strongest", "leak"), [("OR / MAX", max, "C"), ("GeneralizedMin", min, "C"), ("OR / MAX", max, "")]
)
def test_noisy_gates(tmp_path, model, strongest, leak):
    got = read_text(tmp_path, "pgmx", pgmx(noisy(model, leaf("C", ".7 .2 .1") if leak else ""), n=3))
    a, b = [[1, 0, 0], [0.2, 0.3, 0.5]], [[0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [1, 0, 0]]
    for i, j in itertools.product(range(2), range(3)):
        expected = np.zeros(3)
        for x, y, z in itertools.product(range(3), repeat=3):
            rest = [0.7, 0.2, 0.1][z] if leak else float(z == 0)
            expected[strongest(x, y, z)] += a[i][x] * b[j][y] * rest
        assert np.allclose(table(got, "C")[i, j], expected, atol=1e-15)


def test_time_slices_name_variables(tmp_path):
    text = pgmx(leaf("CA", ".1 .9 .3 .7")).replace('name="A"', 'name="A" timeSlice="0"')
    text = text.replace("name='A'", "name='A' timeSlice='0'")
    assert read_text(tmp_path, "pgmx", text).domain.names == ("A[0]", "B", "C")


LAST = branch(["a1"], leaf("C", ".1 .9")) + "</Branches>"
XBN = """<?xml version="1.0"?><!DOCTYPE ANALYSISNOTEBOOK><ANALYSISNOTEBOOK NAME="n"><BNMODEL NAME="m"><VARIABLES>
<VAR NAME="A" TYPE="discrete" XPOS="1"><FULLNAME>a</FULLNAME><STATENAME>a0</STATENAME>
<STATENAME> a1 </STATENAME></VAR>
<VAR NAME="C" TYPE="discrete"><STATENAME>c 0</STATENAME><STATENAME>c1</STATENAME></VAR></VARIABLES>
<STRUCTURE><ARC PARENT="A" CHILD="C"/></STRUCTURE><DISTRIBUTIONS>
<DIST TYPE="discrete"><CONDSET><CONDELEM NAME="A"/></CONDSET><PRIVATE NAME="C"/><DPIS>
<DPI INDEXES=" 1 ">.4 .6</DPI><DPI INDEXES=" 0 ">.1 .9</DPI></DPIS></DIST>
<DIST TYPE="discrete"><PRIVATE NAME="A"/><DPIS><DPI>0.25 0.75</DPI></DPIS></DIST>
</DISTRIBUTIONS></BNMODEL></ANALYSISNOTEBOOK>"""


def test_rows_of_xbn_have_numbers(tmp_path):
    network = read_text(tmp_path, "xbn", XBN)
    assert [v.states for v in network.domain] == [("a0", "a1"), ("c 0", "c1")]
    assert np.array_equal(table(network, "A"), [0.25, 0.75])
    assert np.array_equal(table(network, "C"), [[0.1, 0.9], [0.4, 0.6]])


HALF = tree("A", branch(["a0"], leaf("C", ".1 .9")), names="CA")


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("pgmx", "<html/>", "<ProbModelXML>"),
        ("pgmx", pgmx(role="observer"), ":2: variable 'A' has the role 'observer'.*expected 'chance'"),
        ("pgmx", pgmx(leaf("C", "1 0").replace("Table", "Delta")), "'C' has the type 'delta'"),
        ("pgmx", pgmx(leaf("C", "1 0 0")), "'C' has 3 entries; expected 2"),
        ("pgmx", pgmx(noisy("TUNING", ""), n=3), "'C' has the model 'tuning'"),
        ("pgmx", pgmx(noisy("OR / MAX", ""), n=2), "'C' has 17 parameters"),
        ("pgmx", pgmx(HALF), "no branch for some states"),
        ("pgmx", pgmx(HALF.replace("a0", "ax")), "no branch for some states"),
        ("pgmx", pgmx(HALF.replace(".1 .9", "1e400 0").replace("</Branches>", LAST)), "a number above 1"),
        ("pgmx", pgmx(role="decision").replace("<Links/>", "<Links><Link/></Links>"), "'A' is|'A' has"),
        ("pgmx", pgmx(HALF.replace("'C'/></Variables><Values", "'B'/></Variables><Values")), "other variables"),
        ("pgmx", pgmx(tree("B", names="CA")), "over 'B'"),
        ("pgmx", pgmx(), "'C' has no table"),
        ("xbn", XBN.replace('DIST TYPE="discrete"', 'DIST TYPE="ci"', 1), ":6: 'C' has the distribution 'ci'"),
        ("xbn", XBN.replace('" 0 "', '" 1 "'), ":7: the row '1' of 'C' is doubled"),
        ("xbn", XBN.replace('" 0 "', '" -1 "'), "the row '-1' of 'C' is doubled or none"),
        ("xbn", XBN.replace('" 0 "', '" 2 "'), ":7: .*names no states of its parents"),
        ("xbn", XBN.replace(".1 .9", ".1 .x9"), ":7: '.x9' in the table of 'C'"),
        ("xbn", XBN.replace("BNMODEL", "MODEL"), "<BNMODEL>"),
    ],
)
def test_what_is_refused_is_named(tmp_path, suffix, text, message):
    with pytest.raises(cm.ParseError, match=message) as caught:
        read_text(tmp_path, suffix, text)
    assert len(str(caught.value).splitlines()) == 1
