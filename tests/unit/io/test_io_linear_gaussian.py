"""Linear-Gaussian networks in files: every number comes back, and what is wrong is one sentence."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import certimap as cm
from certimap.cli.main import main
from certimap.errors import ModelError, ParseError
from certimap.io.native import fingerprint
from certimap_lab.bench import fuzz_seeds


def machine() -> cm.LinearGaussianNetwork:
    discrete = cm.BayesianNetwork.from_cpts(
        {"state": ["worn", "fine"], "load": [0, 1, ("a", None)]},
        {"load": ["state"]},
        {"state": [0.2, 0.8], "load": [[0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]]},
    )
    nodes = [
        cm.LinearGaussian("noise", ["heat", "load", "state"], 0.1, [1 / 3], np.full((3, 2), 2.5) + np.eye(3, 2)),
        cm.LinearGaussian("heat", ["state"], [70.0, 50.0], sd=[8.0, 3.0]),
    ]
    return cm.LinearGaussianNetwork(nodes, discrete)


@pytest.mark.parametrize("name", ["m.json", "m.json.gz", "m.npz"])
@pytest.mark.parametrize("with_discrete", [True, False])
def test_every_number_comes_back(tmp_path, name, with_discrete):
    network = machine()
    if not with_discrete:
        alone = [cm.LinearGaussian("y", ["x"], 1 / 7, [0.1], 2.0), cm.LinearGaussian("x", sd=1e-3)]
        network = cm.LinearGaussianNetwork(alone)
    network.write(tmp_path / name)
    back = cm.read(tmp_path / name)
    assert isinstance(back, cm.LinearGaussianNetwork)
    assert fingerprint(back) == fingerprint(network)
    assert back.domain == network.domain
    for ours, theirs in zip(network.nodes, back.nodes, strict=True):
        assert (ours.variable, ours.parents) == (theirs.variable, theirs.parents)
        for key in ("intercept", "coefficients", "sd"):
            np.testing.assert_array_equal(np.asarray(vars(ours)[key]), vars(theirs)[key])
    answers = [cm.map_query(m, epsilon=1e-3, rng=0) for m in (network, back)]
    assert answers[0].assignment == answers[1].assignment


def test_hidden_variables_stay_hidden(tmp_path):
    (tmp_path / "m.json").write_bytes(fuzz_seeds.LINEAR)
    network = cm.read(tmp_path / "m.json")
    assert network.hidden == {"B"}
    for name in ("again.json", "again.npz"):
        network.write(tmp_path / name)
        assert cm.read(tmp_path / name).hidden == {"B"}
        assert set(cm.map_query(cm.read(tmp_path / name), rng=0).assignment) == {"A", "X", "Y"}


def test_the_shell_solves_a_file_that_was_written_by_hand(tmp_path, capsys):
    path = tmp_path / "machine.json.gz"
    path.write_bytes(
        gzip.compress(
            b"""{"format": "linear-gaussian", "variables": [
            {"name": "state", "states": ["worn", "fine"], "table": [0.2, 0.8]},
            {"name": "heat", "parents": ["state"], "intercept": [70, 50], "sd": [8, 3]},
            {"name": "noise", "parents": ["heat", "state"], "intercept": [20, 10],
             "coefficients": [[0.5], [0.4]], "sd": [4, 2]}]}"""
        )
    )
    assert main(["solve", str(path), "--query", "state,heat", "--evidence", "noise=33"]) == 0
    out = capsys.readouterr().out
    assert "fine" in out
    assert "51.9" in out
    assert main(["info", str(path), "--query", "state", "--evidence", "noise=33"]) == 0
    assert main(["convert", str(path), str(tmp_path / "m.npz")]) == 0
    assert main(["solve", str(tmp_path / "m.npz"), "--query", "state", "--evidence", "noise=33", "--json"]) == 0
    assert main(["convert", str(path), str(tmp_path / "m.bif")]) == 2
    assert ".npz holds any model" in capsys.readouterr().err


GOOD = {
    "format": "linear-gaussian",
    "variables": [
        {"name": "a", "states": ["u", "v"], "table": [0.5, 0.5]},
        {"name": "x", "parents": ["a"], "intercept": [0, 1], "sd": 1},
    ],
}


def spoiled(*path, value=None, drop=False):
    data = json.loads(json.dumps(GOOD))
    at = data
    for step in path[:-1]:
        at = at[step]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (spoiled("variables", drop=True), "the file has no variables"),
        (spoiled("variables", value={}), "variables: .* is no list"),
        (spoiled("variables", 0, value=3), r"variable 0 \(from 0\) has no name"),
        (spoiled("variables", 1, "name", value="a"), "variable 'a' is declared twice"),
        (spoiled("variables", 1, "sds", value=1), "the real variable 'x' has the key 'sds'.*did you mean 'sd'"),
        (spoiled("variables", 1, "sd", drop=True), "the real variable 'x' has no sd"),
        (spoiled("variables", 1, "sd", value="1"), "sd of variable 'x': '1' is no number"),
        (spoiled("variables", 1, "sd", value=-1), "the sd of variable 'x' is -1.0; expected positive numbers"),
        (spoiled("variables", 1, "sd", value=10**400), "sd of variable 'x' holds a number beyond floats"),
        (spoiled("variables", 1, "intercept", value=[0, [1]]), "intercept of variable 'x' holds lists of diff"),
        (spoiled("variables", 1, "intercept", value=float("nan")), "expected finite numbers"),
        (spoiled("variables", 1, "parents", value=["b"]), "the parent 'b' of variable 'x' is no variable"),
        (spoiled("variables", 1, "parents", value=[1]), "parents of variable 'x': 1 is no name"),
        (spoiled("variables", 0, "table", value=[0.5, 0.6]), "'a'"),
        (spoiled("variables", 0, "table", value=[0.5]), "'a'"),
        (spoiled("variables", 0, "parents", value=["x"]), "the discrete variable 'a' has the real parent 'x'"),
        (spoiled("hidden", value=["q"]), "'q' is hidden, and no variable"),
        (spoiled("variables", value=[]), "without real variables"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, data, sentence, capsys):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ParseError, match=sentence):
        cm.read(path)
    assert main(["solve", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_discrete_part_of_another_kind_is_refused(tmp_path):
    field = cm.MarkovNetwork(cm.Domain([cm.Categorical("a", (0, 1))]), [])
    network = cm.LinearGaussianNetwork([cm.LinearGaussian("x", ["a"], [0.0, 1.0])], field)
    for name in ("m.json", "m.npz"):
        with pytest.raises(ModelError, match=r"in a MarkovNetwork; files hold those in a BayesianNetwork"):
            network.write(tmp_path / name)
        assert not list(tmp_path.iterdir())
