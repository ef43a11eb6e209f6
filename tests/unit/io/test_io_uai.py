"""UAI networks, evidence, queries and results."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from certimap import io, map_query
from certimap.conversions import condition
from certimap.core.domain import Domain
from certimap.errors import ModelError, ParseError
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork

BAYES = "BAYES\n2\n2 3\n2\n1 0\n2 0 1\n2\n.3 .7\n6\n.7 .2 .1\n.1 .3 .6\n"
MARKOV = "MARKOV 2  2 2  4\n2 0 1\n2 1 0\n0\n2 0 1\n4 1 2 3 4\n4 1 1e-5 .5 2.\n1 10\n4 1 1 1 2\n"


@pytest.fixture
def write(tmp_path):
    def write_text(text, name="m.uai"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text


def test_the_last_variable_varies_fastest(write):
    network = io.read(write(BAYES))
    assert isinstance(network, BayesianNetwork)
    assert network.domain == Domain.of_sizes([2, 3])
    assert network.domain["1"].states == (0, 1, 2)
    points = np.array([[a, b] for a in range(2) for b in range(3)])
    expected = [0.3 * 0.7, 0.3 * 0.2, 0.3 * 0.1, 0.7 * 0.1, 0.7 * 0.3, 0.7 * 0.6]
    assert np.exp(network.log_joint(points)) == pytest.approx(expected)


def test_repeated_scopes_multiply_and_constants_count(write):
    network = io.read(write(MARKOV))
    assert isinstance(network, MarkovNetwork)
    points = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    expected = [1 * 1 * 10 * 1, 2 * 0.5 * 10 * 1, 3 * 1e-5 * 10 * 1, 4 * 2 * 10 * 2]
    assert np.exp(network.log_joint(points)) == pytest.approx(expected)
    assert network.log_partition == pytest.approx(math.log(sum(expected)))
    assert np.exp(network.log_prob(points)).sum() == pytest.approx(1.0)
    assert condition(network, _all(network), wants=()).facts.log_evidence == pytest.approx(math.log(sum(expected)))


def _all(network):
    from certimap.core.query import make_query

    return make_query(network.domain)


def test_comments_and_odd_line_breaks(write):
    network = io.read(write("# a net\n" + BAYES.replace("\n", " # x\n")))
    assert isinstance(network, BayesianNetwork)
    assert isinstance(io.read(write(" ".join(BAYES.split()))), BayesianNetwork)


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        (BAYES.replace("BAYES", "GRAPH"), 1, "'GRAPH'"),
        ("", 1, "nothing"),
        (BAYES.replace("2 3\n", "2 0\n", 1), 3, "'0'"),
        (BAYES.replace("2 0 1", "2 0 2"), 6, "'2'"),
        (BAYES.replace("2 0 1", "2 1 1"), 6, "twice"),
        (BAYES.replace("2 0 1", "3 0 1"), 6, "size of a scope"),
        (BAYES.replace("6\n.7", "5\n.7"), 9, "5 entries"),
        (BAYES.replace(".6", "-.6"), 11, "'-.6'"),
        (BAYES.replace(".6", "nan"), 11, "'nan'"),
        (BAYES.replace(".6", "x"), 11, "'x'"),
        (BAYES.replace(" .6", ""), 11, "ends"),
        (BAYES + "7", 12, "'7'"),
        (BAYES.replace(".6", ".5"), 9, "adds to 0.9"),
        (BAYES.replace("2\n1 0", "x\n1 0"), 4, "'x'"),
    ],
)
def test_errors_name_the_line(write, text, line, part):
    with pytest.raises(ParseError) as caught:
        io.read(write(text))
    assert caught.value.line == line
    assert part in str(caught.value)


def test_a_bayes_file_with_more_functions_is_read_as_their_product(write):
    text = BAYES.replace("\n2\n1 0\n", "\n3\n0\n1 0\n").replace("2\n.3", "1 4\n2\n.3")
    with pytest.warns(UserWarning, match="Markov"):
        network = io.read(write(text))
    assert float(network.log_joint(np.array([1, 2]))[0]) == pytest.approx(math.log(4 * 0.42))


def test_rows_of_a_bayes_file_are_renormalised_with_one_warning(write):
    with pytest.warns(UserWarning, match="renormalised") as caught:
        network = io.read(write(BAYES.replace(".6", ".601").replace(".7 .2 .1", ".7 .2 .1005")))
    assert len(caught) == 1
    assert network.factors[1].table.sum(axis=1) == pytest.approx([1, 1], abs=1e-15)


def test_rows_of_a_bayes_file_off_by_a_millionth_are_renormalised_silently(write):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = io.read(write(BAYES.replace(".6", ".600001")))
    assert network.factors[1].table[1] == pytest.approx(np.array([0.1, 0.3, 0.600001]) / 1.000001, rel=1e-12)


@pytest.mark.parametrize("entry", [".60101", ".59899"])
def test_rows_of_a_bayes_file_off_by_more_than_a_thousandth_are_refused(write, entry):
    with pytest.raises(ParseError, match=f"adds to {0.4 + float(entry):.10g}") as caught:
        io.read(write(BAYES.replace(".6", entry)))
    assert caught.value.line == 9


@pytest.mark.parametrize("name", ["m.uai", "m.uai.gz"])
def test_written_networks_read_back_exactly(tmp_path, name):
    rng = np.random.default_rng(1)
    domain = Domain.of_sizes([2, 3, 1])
    factors = [Factor((), 2.5), Factor((2, 0), rng.random((1, 2)) * 1e-9), Factor((1, 0), rng.random((3, 2)))]
    for network in (
        MarkovNetwork(domain, factors),
        BayesianNetwork(
            domain, [Factor((0,), [0.1, 0.9]), Factor((0, 1), rng.dirichlet(np.ones(3), 2)), Factor((2,), [1.0])]
        ),
    ):
        network.write(tmp_path / name)
        again = io.read(tmp_path / name)
        assert type(again) is type(network)
        assert again.domain == domain
        for one, two in zip(network.factors, again.factors, strict=True):
            assert one.scope == two.scope
            assert np.array_equal(one.table, two.table)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("", None, [{}]),
        ("0\n", None, [{}]),
        ("3 29 1 36 1 219 1", None, [{29: 1, 36: 1, 219: 1}]),
        ("1\n2 5 1 6 0\n", None, [{5: 1, 6: 0}]),
        ("1 2 5 1 6 0\n", None, [{5: 1, 6: 0}]),
        ("2\n1 3 0\n0\n", None, [{3: 0}, {}]),
        ("2 1 3 0 0\n", None, [{1: 3, 0: 0}]),  # one long line: 1 + 2k numbers decide
        ("2 1 3 0 0\n", "cases", [{3: 0}, {}]),
        ("2\n1 3 0\n0\n", "single", [{1: 3, 0: 0}]),
        ("1 0", None, [{}]),
        ("2\n5 1\n6 0\n", None, [{5: 1, 6: 0}]),
        ("2\n2 5 1 6 0\n1 7 2", None, [{5: 1, 6: 0}, {7: 2}]),
        ("2 5 1 5 1", None, [{5: 1}]),
    ],
)
def test_evidence_layouts(write, text, kind, expected):
    assert io.read_evidence(write(text, "m.evid"), kind=kind) == expected


@pytest.mark.parametrize("text", ["2 5 1", "1 5 -1", "1 5 x", "3 1 2 3 4 5 6 7 8", "2 5 1 5 0"])
def test_bad_evidence_is_refused(write, text):
    with pytest.raises(ParseError):
        io.read_evidence(write(text, "m.evid"))


def test_an_unknown_kind_of_evidence_is_refused(write):
    with pytest.raises(ModelError, match="'pairs'"):
        io.read_evidence(write("0", "m.evid"), kind="pairs")


def test_written_evidence_reads_back(tmp_path):
    path = tmp_path / "m.evid"
    for cases, expected in (({3: 1}, [{3: 1}]), ([{3: 1}, {}], [{3: 1}, {}]), ([], [{}]), ([{}], [{}])):
        io.write_evidence(cases, path)
        assert io.read_evidence(path) == expected


def test_query_files(write, tmp_path):
    assert io.read_query(write("3 4 0 7 \r\n", "m.query")) == [4, 0, 7]
    io.write_query([4, 0, 7], tmp_path / "n.query.gz")
    assert io.read_query(tmp_path / "n.query.gz") == [4, 0, 7]
    for text in ("", "0", "2 1", "1 2 3", "2 1 1", "1 a"):
        with pytest.raises(ParseError):
            io.read_query(write(text, "m.query"))


def test_map_files(write):
    expected = [([3, 1], {0: 1, 5: 2}), ([2], {})]
    for end in ("", "\n", "\n\n", "\n\n\n\n"):
        assert io.read_map(write("3 1\n0 1 5 2\n2" + end, "m.map")) == expected
    assert io.read_map(write("2\n\n3 1\n0 1 5 2\n", "m.map")) == expected[::-1]
    for text, line in (("3 x\n\n", 1), ("3\n1\n", 2), ("3\n1 0\n\n1 0\n", 3), ("1 1\n\n", 1), ("3\n1 0 1 1\n", 2)):
        with pytest.raises(ParseError) as caught:
            io.read_map(write(text, "m.map"))
        assert caught.value.line == line


def test_result_files(tmp_path):
    io.write_mpe([1, 0, 2], tmp_path / "a.MPE")
    assert (tmp_path / "a.MPE").read_text() == "MPE\n3 1 0 2\n"
    io.write_mmap({4: 1, 0: 2}, tmp_path / "a.MMAP")
    assert (tmp_path / "a.MMAP").read_text() == "MMAP\n2 4 1 0 2\n"


def test_the_competition_instances_load(shared_data):
    folder = shared_data / "uai2014-mmap"
    names = sorted(
        p.name.removesuffix(".uai.gz") for p in folder.glob("*.uai.gz") if "ImageAlignment" not in p.name
    )
    assert len(names) >= 7
    for name in names:
        network = io.read(folder / f"{name}.uai.gz")
        query = io.read_query(folder / f"{name}.uai.query.gz")
        (evidence,) = io.read_evidence(folder / f"{name}.uai.evid.gz")
        assert max(query) < len(network.domain)
        assert not set(query) & set(evidence)
        assert len(evidence) == (3 if name == "Promedas_70" else 0)


ZEROS = "BAYES 3 2 2 2 3  1 0  1 1  3 0 1 2  2 .5 .5  2 1 0  8 .1 .9 0 0 .3 .7 0 0\n"


def test_impossible_configurations_have_rows_of_zeros(write):
    network = io.read(write(ZEROS))
    assert isinstance(network, BayesianNetwork)
    result = map_query(network, epsilon=0)
    assert result.assignment == {"0": 0, "1": 0, "2": 1}
    assert math.exp(result.log_prob) == pytest.approx(0.45)


def test_a_row_of_zeros_takes_weight_from_its_parents_whatever_is_asked(write):
    """Where the configuration can occur, the network is the product of its tables; no child may be left out."""
    text = ZEROS.replace("2 1 0  8", "2 .75 .25  8")
    network = io.read(write(text))
    product = io.read(write(text.replace("BAYES", "MARKOV")))
    for variables, evidence in (["0"], {}), (["1"], {}), (["0", "1"], {}), (["1"], {"0": 1}), (["2"], {"0": 0}):
        one, other = (map_query(m, variables, evidence, epsilon=0, rng=0) for m in (network, product))
        assert one.assignment == other.assignment
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-12)
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-12)
    assert map_query(network, ["1"]).assignment == {"1": 0}
    assert math.exp(map_query(network, ["1"]).log_prob) == pytest.approx(1.0)
    with pytest.raises(ModelError, match="row of zeros in the table of '2'"):
        network.sample(100, 0)


def test_other_sums_name_the_way_to_read_a_product(write):
    with pytest.raises(ParseError, match="MARKOV for the first word reads the product"):
        io.read(write(BAYES.replace(".7 .2 .1", ".7 .2 .2")))


@pytest.mark.parametrize(
    "comment", ["/* a\nb */", "# to the end\n", "\nc a line\n", "\nc\n", "\n  c\ta\n", "/**/"]
)
def test_comments_in_models_evidence_and_queries(write, comment):
    model = BAYES.replace("2 3\n", f"2 {comment} 3\n").replace(".3 .7", f".3{comment} .7{comment}")
    assert io.read(write(model)).factors[0].table.tolist() == [0.3, 0.7]
    assert io.read_evidence(write(f"{comment}\n2 0 1{comment} 1 2\n", "e.evid")) == [{0: 1, 1: 2}]
    assert io.read_evidence(write(f"2\n{comment}\n1 0 1\n{comment}\n1 1 2\n", "e.evid")) == [{0: 1}, {1: 2}]
    assert io.read_query(write(f"2 {comment} 1 0\n", "q.query")) == [1, 0]
    cases = io.read_map(write(f"0 1\n{comment.strip()}\n2 0\n{comment.strip()}\n1\n\n", "q.map"))
    assert cases == [([0, 1], {2: 0}), ([1], {})]


def test_comments_keep_the_lines_of_errors(write):
    with pytest.raises(ParseError) as caught:
        io.read(write("/* one\ntwo */\nc three\n" + BAYES.replace(".3", "x")))
    assert caught.value.line == 11
    with pytest.raises(ParseError, match="does not end") as caught:
        io.read(write("BAYES\n/* one\ntwo\n"))
    assert caught.value.line == 2


# ------------------------------------------------------------ tables in other orders


def three(rng):
    """Return the table of a variable of two states given parents of three and four, axes in that order."""
    return rng.dirichlet(np.ones(2), size=(3, 4))


def uai_of(table, entries, kind="BAYES"):
    heads = f"{kind}\n3\n3 4 2\n3\n1 0\n1 1\n3 0 1 2\n"
    own = " ".join(map(repr, entries.tolist()))
    return f"{heads}\n3 .2 .3 .5\n4 .1 .2 .3 .4\n{table.size} {own}\n"


@pytest.mark.parametrize("seed", range(5))
def test_tables_whose_first_variable_varies_fastest_are_read_with_a_word(write, seed):
    table = three(np.random.default_rng(seed))
    assert io.read(write(uai_of(table, table.ravel()))).factors[2].table == pytest.approx(
        table
    )  # without a warning
    with pytest.warns(
        UserWarning, match="first variable of each scope fastest, as pgmpy writes them, where they add to 1"
    ):
        network = io.read(write(uai_of(table, table.transpose().ravel())))
    assert network.factors[2].table == pytest.approx(table)
    assert isinstance(network, BayesianNetwork)


def test_tables_that_add_to_one_in_no_order(write):
    entries = np.arange(24) / 100.0
    with pytest.raises(ParseError, match="in no other order either"):
        io.read(write(uai_of(entries, entries)))


def test_tables_of_a_markov_file_are_in_the_order_of_the_format(write):
    table = three(np.random.default_rng(0))
    network = io.read(write(uai_of(table, table.transpose().ravel(), "MARKOV")))
    assert network.factors[2].table.ravel() == pytest.approx(table.transpose().ravel())


@pytest.mark.parametrize("seed", range(5))
def test_what_pyagrum_marks_as_its_own_is_read_in_its_order(write, seed):
    table = three(np.random.default_rng(seed))
    own = " ".join(
        map(repr, table.transpose(1, 0, 2).ravel().tolist())
    )  # the child fastest, then the first parent
    heads = "BAYES\n3\n3 4 2 \n3\n1 0   # a\n1 1   # b\n3 0 1 2   # c\n\n\n3\n  .2 .3 .5 \n\n4\n  .1 .2 .3 .4 \n\n"
    with pytest.warns(UserWarning, match="child and then its first parent fastest, as pyagrum"):
        network = io.read(write(f"{heads}24\n  {own}\n"))
    assert network.factors[2].table == pytest.approx(table)
    heads = "MARKOV\n3 # nbr Nodes\n3 4 2 \n1 # nbr Factors \n3 0 1 2 \n\n24 # {0, 1, 2}\n  "
    with pytest.warns(UserWarning, match="first variable of each scope fastest, as pyagrum"):
        network = io.read(write(heads + " ".join(map(repr, table.transpose().ravel().tolist()))))
    assert network.factors[0].table == pytest.approx(table)
