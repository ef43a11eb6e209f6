"""Files of libDAI and toulbar2: entries, costs, constants, refusals, round trips."""

from __future__ import annotations

import math
import time
import warnings

import numpy as np
import pytest

import certimap as cm

FG = """# two factors
2

1
7
2
1
1 .7

2
7 3
2 3
3
0 1
3 2.5
5 1e-400
"""
WCSP = """toy 3 3 6 100
2 3 2
2 0 1 100 2
0 0 12
1 2 7
-2 0 2 0 1
1 1 5
2 2 0 0 -1
1 0 3 0
1 1 0 1
2 250
0 4 0
"""
CFN = """# words without quotes, items without commas
{ problem: {name: test mustbe: "<12.5"},
 variables: { a: [x y z], "b" : 2, c: -3 },
 functions: { f: { scope: [a b] defaultcost: 0.25 costs: [x 0 5 x 1 6.5 z 0 -7] },
   g: { scope: [a, c], costs: "h" },
   h: { "scope": [0 2] "costs": [1 2 3 4 5 6 7 8 99] },
   k: { scope: [] costs: [ -1.5 ] }
 } }
"""


def read_text(tmp_path, suffix, text):
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    return cm.read(path)


def test_fg_has_the_first_variable_fastest_and_zeros_where_nothing_is_listed(tmp_path):
    network = read_text(tmp_path, "fg", FG)
    assert network.domain.names == ("3", "7")
    one, two = network.factors
    assert np.array_equal(one.table, [0, 0.7])
    expected = np.full((3, 2), -np.inf)  # over 3 and 7: the position is x7 + 2 x3
    expected[0, 0], expected[1, 1], expected[2, 1] = 0.0, math.log(2.5), -400 * math.log(10)
    assert two.scope == (0, 1)
    assert np.allclose(two.log_table, expected)


def test_wcsp(tmp_path):
    network = read_text(tmp_path, "wcsp", WCSP)
    first, pair, shared, single, hard, constant = (-f.log_table for f in network.factors)
    assert np.array_equal(first, [[12, np.inf, np.inf], [np.inf, np.inf, 7]])
    assert np.array_equal(pair, [[0, 0], [0, 5]])
    assert np.array_equal(shared, pair)
    assert network.factors[2].scope == (2, 0)
    assert np.array_equal(single, [3, 3])
    assert np.array_equal(hard, [0, 0, np.inf])
    assert constant == 4


def test_cfn(tmp_path):
    network = read_text(tmp_path, "cfn", CFN)
    assert [v.states for v in network.domain] == [("x", "y", "z"), (0, 1), (0, 1, 2)]
    f, g, h, k = network.factors
    assert np.array_equal(-f.log_table, [[5, 6.5], [0.25, 0.25], [-7, 0.25]])
    assert np.array_equal(-g.log_table, [[1, 2, 3], [4, 5, 6], [7, 8, np.inf]])
    assert np.array_equal(h.log_table, g.log_table)
    assert k.scope == ()
    assert k.log_table == 1.5


def test_a_cfn_that_must_be_above_a_bound_has_values(tmp_path):
    text = "{{n >-3} [2] [{[0] [-4 2.5]}]}"
    assert np.array_equal(read_text(tmp_path, "cfn", text).factors[0].log_table, [-np.inf, 2.5])


@pytest.mark.parametrize(
    ("name", "log_weights"), [("fg", np.log([0.3, 0.7])), ("wcsp", [-30, -10]), ("cfn", [-3, -1])]
)
def test_small_files(shared_cases, name, log_weights):
    assert np.allclose(cm.read(shared_cases / f"p8.{name}").factors[0].log_table, log_weights, rtol=1e-15)


def network_of(seed, largest=1.0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 5).tolist()
    factors = []
    for k in range(7):
        scope = rng.choice(5, k % 4, replace=False).tolist()
        table = rng.random([sizes[v] for v in scope]) * largest + 1e-3
        factors.append(cm.Factor(scope, table * (rng.random(table.shape) < 0.8) if scope else table))
    return cm.MarkovNetwork(cm.Domain.of_sizes(sizes), [*factors, cm.Factor.from_log((0,), [-2000.0] * sizes[0])])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("suffix", ["fg", "cfn", "wcsp.gz"])
def test_round_trips(tmp_path, suffix, seed):
    network = network_of(seed, largest=0.9 if "wcsp" in suffix else 5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.write(tmp_path / f"m.{suffix}")
    found = cm.read(tmp_path / f"m.{suffix}")
    assert len(found.domain) == len(network.domain)  # also variables that are in no factor
    for ours, theirs in zip(network.factors, found.factors, strict=False):
        assert sorted(ours.scope) == sorted(theirs.scope)
        turned = theirs.over(theirs.scope).log_table
        turned = turned.transpose([theirs.scope.index(v) for v in ours.scope])
        accuracy = 5e-7 if "wcsp" in suffix else 1e-12
        assert np.allclose(turned, ours.log_table, rtol=1e-14, atol=accuracy)
        if suffix == "fg" and not ours.in_logs:
            assert np.array_equal(np.exp(turned), np.exp(ours.log_table))


def test_whole_costs_are_written_as_they_are(tmp_path):
    network = read_text(tmp_path, "wcsp", WCSP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.write(tmp_path / "n.wcsp")
    found = cm.read(tmp_path / "n.wcsp")
    assert all(
        np.array_equal(a.log_table, b.log_table) for a, b in zip(network.factors, found.factors, strict=True)
    )


def test_one_warning_tells_what_a_wcsp_cannot_hold(tmp_path):
    network = cm.MarkovNetwork(cm.Domain.of_sizes([2]), [cm.Factor((0,), [2.0, 0.5])])
    with pytest.warns(UserWarning, match="multiplied by 1,000,000.*constant -0.693147181 is left out") as caught:
        network.write(tmp_path / "m.wcsp")
    assert len(caught) == 1
    assert np.allclose(cm.read(tmp_path / "m.wcsp").factors[0].log_table, [0, -math.log(4)], atol=1e-6)
    far = cm.MarkovNetwork(cm.Domain.of_sizes([2]), [cm.Factor.from_log((0,), [-1e15, -0.5])])
    with pytest.warns(UserWarning, match="rounded"), pytest.raises(cm.ModelError, match="beyond the integers"):
        far.write(tmp_path / "m.wcsp")


def test_a_cfn_keeps_names_that_it_can_hold(tmp_path):
    network = cm.BayesianNetwork.from_cpts({"rain": ["no", "yes"]}, {}, {"rain": [0.75, 0.25]})
    network.write(tmp_path / "m.cfn")
    found = cm.read(tmp_path / "m.cfn")
    assert found.domain == network.domain


MANY = " ".join(map(str, range(24)))


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("fg", "1 1 0 2 1 2 .5", "distinct whole numbers from 0 to 1"),
        ("fg", "1 1 0 2 2 1 .5 1 .5", "distinct whole numbers"),
        ("fg", "2 1 0 2 0 1 0 3 0", "another number of states"),
        ("fg", "1 2 0 0 2 2 0", "each variable once"),
        ("fg", f"1 24 {MANY} {'2 ' * 24} 0\n1", "follows the last table"),
        ("fg", f"2 24 {MANY} {'2 ' * 24} 0 1 0 2 0", "more than 16,777,216 entries are not listed"),
        ("fg", "1 1 0 40000 0", "from 1 to 32767"),
        ("wcsp", WCSP.replace("1 1 5", "1 2 5"), "a state that its variable does not have"),
        ("wcsp", WCSP.replace("2 2 0 0 -1", "2 2 1 0 -1"), "shared by a function of the shape"),
        ("wcsp", WCSP.replace("2 2 0 0 -1", "2 2 0 0 -2"), "-2.*at least -1"),
        ("wcsp", WCSP.replace("1 0 3 0", "2 0 1 -1 salldiff var 1"), ":9: a function is the keyword 'salldiff'"),
        ("wcsp", WCSP.replace("2 3 2", "2 -3 2"), "'-3'"),
        ("wcsp", WCSP + "7", "follows the last"),
        ("wcsp", "", "the file ends"),
        ("cfn", CFN.replace("<12.5", "12.5"), "must be '<' or '>'"),
        ("cfn", CFN.replace('"h"', '"hh"'), "shares the costs of 'hh'"),
        ("cfn", CFN.replace("z 0 -7", "w 0 -7"), "'w' is neither a name nor a number"),
        ("cfn", CFN.replace("8 99", "99"), "8 costs; expected 9"),
        ("cfn", CFN.replace("scope: [a b]", "scope: [a d]"), "'d' is neither"),
        ("cfn", CFN.replace("costs: [ -1.5 ]", 'type: "salldiff", params: []'), "function 'k' is no table"),
        ("cfn", CFN.replace("-1.5", "nan"), "'nan' is no cost"),
        ("cfn", CFN.replace("-1.5", "1_0"), "'1_0' is no cost"),
        ("cfn", CFN + "}", "brackets and quotes in pairs"),
        ("cfn", "[" * 100_000, "brackets and quotes in pairs"),
        ("cfn", "{" * 100_000 + "}" * 100_000, "brackets"),
        ("cfn", "", "brackets"),
    ],
)
def test_what_is_refused_is_named(tmp_path, suffix, text, message):
    began = time.process_time()
    with pytest.raises(cm.ParseError, match=message) as caught:
        read_text(tmp_path, suffix, text)
    assert len(str(caught.value).splitlines()) == 1
    assert time.process_time() - began < 2.0
