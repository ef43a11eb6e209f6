"""How results print: a short summary at a prompt, tables in a notebook, one line per row of a batch."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.testing import TablePosterior


@pytest.fixture
def network() -> cm.BayesianNetwork:
    names = [f"v<{k}>" for k in range(15)]
    return cm.BayesianNetwork.from_cpts({n: ["a", "b"] for n in names}, {}, {n: [0.75, 0.25] for n in names})


def test_a_result_prints_as_the_shell_shows_it(network):
    result = cm.map_query(network, ["v<0>", "v<1>"], rng=0)
    lines = repr(result).splitlines()
    assert lines[:2] == ["v<0>  = a", "v<1>  = a"]
    names = [line.split("  ")[0] for line in lines[2:]]
    assert names == ["probability", "bounds", "certificate", "because", "run", "status"]
    assert "0.5625" in lines[2]
    assert "exact: no assignment is more probable" in repr(result)
    assert repr(result) == str(result)


def test_a_long_assignment_is_cut_and_an_uncertified_answer_says_so_first(network):
    result = cm.map_query(network, solver="independent", rng=0)
    lines = repr(result).splitlines()
    uncertified = cm.map_query(network, solver="budget", max_samples=1, rng=0)
    assert repr(uncertified).startswith("NOT CERTIFIED. ")
    assert "(15 variables in all)" in repr(result)
    assert sum(line.startswith("v<") for line in lines) == 11
    assert len(lines) < 25


def test_a_notebook_shows_tables_with_names_escaped(network):
    shown = cm.map_query(network, ["v<0>"], rng=0)._repr_html_()
    assert shown.startswith("<table><tr><td>v&lt;0&gt;</td><td>= a</td></tr></table><table>")
    assert "<td>certificate</td><td>exact" in shown


def test_nothing_left_to_ask_prints_too(network):
    result = cm.map_query(network, None, dict.fromkeys(network.domain.names, "a"))
    assert repr(result).startswith("(nothing left to assign)")


def test_a_batch_prints_one_line_per_row(network):
    pd = pytest.importorskip("pandas")
    results = cm.map_query(network, ["v<1>"], pd.DataFrame({"v<0>": ["a", "c"] * 12}), errors="keep", rng=0)
    lines = repr(results).splitlines()
    assert lines[0] == "24 answers, 12 of them failures"
    assert lines[1].split() == ["0", "v<1>=a", "ln", "p", "=", "-0.287682", "exact"]
    assert "FAILED. 'c' is no state of variable 'v<0>'" in lines[2]
    assert lines[-1] == "... (4 more; to_frame() holds all)"


def test_results_say_what_is_known_of_the_min_entropy():
    posterior = TablePosterior([8], [0.3] + [0.1] * 7)
    asked = {"solver": "budget", "rng": 1, "max_samples": 4, "epsilon": 0.1, "delta": 0.01}
    result = cm.map_query(posterior, warm_start=np.array([[0]]), **asked)
    low, high = result.min_entropy_bits
    assert low == pytest.approx(-result.log_upper_bound / math.log(2))
    assert high == pytest.approx(-math.log2(0.3))
    assert low < high
    fewest, most = result.draws_needed
    tau = 0.3 / 0.9
    assert most == pytest.approx(math.log(100) / -math.log1p(-tau))
    assert fewest < most
    assert "min-entropy" in repr(result)
    assert result.to_dict()["draws_needed"] == [fewest, most]
    assert cm.map_query(posterior, delta=0).draws_needed is None
