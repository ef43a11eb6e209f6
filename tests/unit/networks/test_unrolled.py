"""Networks of a few slices, unrolled: against networks made step by step, table by table."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from tests.reference.slices import random_slices

import certimap as cm
from certimap.errors import ModelError, QueryError
from certimap.networks.orders import min_fill

MARK = re.compile(r"(.*)\[(\d+)\]")


def by_hand(network: cm.BayesianNetwork, steps: int) -> cm.BayesianNetwork:
    """Return the network of a number of steps, by names alone."""
    names = network.domain.names
    marked = {name: MARK.fullmatch(name) for name in names}
    last = max(int(found[2]) for found in marked.values() if found)
    states, parents, tables = {}, {}, {}
    for t in range(steps):
        for i, name in enumerate(names):
            found = marked[name]
            own, shift = name, 0
            if found:
                if int(found[2]) != min(t, last):
                    continue
                own, shift = f"{found[1]}[{t}]", t - int(found[2])
            elif t < steps - 1:
                continue
            states[own], tables[own] = network.domain[name].states, network.factors[i].table
            shift = steps - 1 - last if not found else shift
            above = [names[p] for p in network.parents[i]]
            parents[own] = [f"{m[1]}[{int(m[2]) + shift}]" if (m := marked[p]) else p for p in above]
    return cm.BayesianNetwork.from_cpts(states, parents, tables)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
def test_tables_are_those_of_the_slices(seed, steps):
    rng = np.random.default_rng(seed)
    network = random_slices(rng, order=1 + seed % 3, whole=True)
    found, expected = cm.unroll(network, steps), by_hand(network, max(steps, 1))
    assert set(found.domain.names) == set(expected.domain.names)
    points = expected.sample(4, rng)
    wild = np.column_stack([rng.integers(n, size=4) for n in expected.domain.n_states])
    points = np.concatenate([points, wild])
    places = [expected.domain.index(name) for name in found.domain.names]
    assert np.allclose(found.log_joint(points[:, places]), expected.log_joint(points), rtol=1e-12)


def two_slices(**more):
    states = {"x[0]": ["a", "b"], "x[1]": ["a", "b"], "y[0]": [0, 1], "y[1]": [0, 1]}
    parents = {"x[1]": ["x[0]"], "y[0]": ["x[0]"], "y[1]": ["x[1]"]}
    move, emit = [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.4, 0.6]]
    tables = {"x[0]": [0.5, 0.5], "x[1]": move, "y[0]": emit, "y[1]": emit}
    for name, (own, above, table) in more.items():
        states[name], parents[name], tables[name] = own, above, table
    return cm.BayesianNetwork.from_cpts(states, parents, tables)


def test_an_unrolled_network_is_prolonged_and_cut():
    network = two_slices(end=([0, 1], ["y[1]"], [[0.9, 0.1], [0.3, 0.7]]))
    once, twice = cm.unroll(network, 7), cm.unroll(cm.unroll(network, 4), 7)
    assert once.domain.names == twice.domain.names
    assert once.parents == twice.parents
    assert [once.domain.names[p] for p in once.parents[once.domain.index("end")]] == ["y[6]"]
    assert cm.unroll(once, 2).parents == cm.unroll(network, 2).parents


def test_steps_share_their_arrays():
    network = cm.unroll(two_slices(), 50)
    assert len({id(factor.table) for factor in network.factors}) == 4


def test_noisy_nodes_keep_their_helpers_hidden():
    causes = {"a": ([0, 1], [], [0.5, 0.5]), "b": ([0, 1], [], [0.5, 0.5])}
    network = two_slices(**causes)
    states = {name: network.domain[name].states for name in network.domain.names} | {
        "n[0]": [0, 1],
        "n[1]": [0, 1],
    }
    noisy = cm.NoisyOr({"y[0]": 0.5, "a": 0.3, "b": 0.4}, leak=0.1)
    later = cm.NoisyOr({"y[1]": 0.5, "a": 0.3, "b": 0.4}, leak=0.1)
    parents = {
        name: [network.domain.names[p] for p in own]
        for name, own in zip(network.domain.names, network.parents, strict=False)
    }
    parents |= {"n[0]": ["y[0]", "a", "b"], "n[1]": ["y[1]", "a", "b"]}
    tables = {name: network.factors[i].table for i, name in enumerate(network.domain.names)}
    whole = cm.BayesianNetwork.from_cpts(states, parents, tables | {"n[0]": noisy, "n[1]": later})
    found = cm.unroll(whole, 3)
    assert {"n[2]", "a"} <= set(found.domain.names) - found.hidden
    assert len(found.hidden) == 3 * len(whole.hidden) / 2
    assert not any(":max:" in name for name in cm.map_query(found).assignment)


def test_names_as_pyagrum_writes_two_slices():
    network = two_slices()
    renamed = {"x[0]": "x0", "x[1]": "xt", "y[0]": "y0", "y[1]": "yt"}
    variables = [v.renamed(renamed[v.name]) for v in network.domain.variables]
    other = cm.BayesianNetwork(cm.Domain(variables), network.factors)
    assert cm.unroll(other, 4).domain.names == cm.unroll(network, 4).domain.names
    assert cm.unroll(other, 4).parents == cm.unroll(network, 4).parents


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: naive(["a", "b"]), "of the slices []"),
        (lambda: naive(["x[0]", "x[2]"]), "of the slices [0, 2]"),
        (lambda: two_slices(z=([0], ["x[0]"], [[1.0], [1.0]])), "expected one in the last slice, 1"),
        (lambda: two_slices(**{"z[0]": ([0], ["x[1]"], [[1.0], [1.0]])}), "its own slice or an earlier one"),
        (
            lambda: two_slices(**{"z[0]": ([0], [], [1.0]), "w[1]": ([0], ["z[0]"], [[1.0]])}),
            "slice 1 has no 'z'",
        ),
        (
            lambda: two_slices(**{"z[0]": ([0], [], [1.0]), "z[1]": ([1], [], [1.0])}),
            "other states than in slice 0",
        ),
        (lambda: two_slices().do({"x[1]": "a"}), "unroll it first"),
    ],
)
def test_networks_that_cannot_be_repeated(make, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        cm.unroll(make(), 3)


def naive(names):
    return cm.BayesianNetwork.from_cpts({key: [0, 1] for key in names}, {}, {key: [0.5, 0.5] for key in names})


def test_other_arguments_are_refused():
    with pytest.raises(ModelError, match="steps is 0"):
        cm.unroll(two_slices(), 0)
    with pytest.raises(ModelError, match="is no Bayesian network"):
        cm.unroll(cm.MarkovNetwork(two_slices().domain, two_slices().factors), 3)
    with pytest.raises(ModelError, match="expected more steps"):
        cm.unroll(two_slices(**{"z[1]": ([0], [], [1.0]), "end": ([0], ["z[1]"], [[1.0]])}), 1)


def test_evidence_by_step():
    rows = [{"x": "a", "y": None}, {"x": None, "y": 1}, {"x": "b", "y": 0}]
    expected = {"x[0]": "a", "y[1]": 1, "x[2]": "b", "y[2]": 0}
    assert cm.by_step(rows) == expected
    assert cm.by_step(pd.DataFrame(rows)) == expected
    numbered = pd.DataFrame(rows[::-1]).assign(step=[2, 1, 0])
    assert cm.by_step(numbered) == cm.by_step(numbered.set_index("step")) == expected
    assert cm.by_step([{"step": 7, "x": "a"}]) == {"x[7]": "a"}


@pytest.mark.parametrize(
    "rows", ["x", {"x": [1]}, [1], [{"step": -1}], [{"step": 0.5}], 2 * [{"step": 1, "x": 0}]]
)
def test_tables_that_are_none(rows):
    with pytest.raises(QueryError):
        cm.by_step(rows)


def test_answers_by_step():
    network = cm.unroll(two_slices(th=([3, 4], [], [0.1, 0.9])), 3)
    result = cm.map_query(network, None, {"y[0]": 1, "y[2]": 0})
    frame = result.by_step()
    assert list(frame.index) == [0, 1, 2]
    assert list(frame.columns) == ["x", "y"]
    assert isinstance(frame["y"][1], int)  # although other rows lack it
    kept = {name: value for name, value in result.assignment.items() if name != "th"}
    assert cm.by_step(frame) == kept


def test_an_order_looks_at_the_first_variables_once():
    class Counted(list):
        n_read = 0

        def __iter__(self):
            Counted.n_read += 1
            return super().__iter__()

    n = 50
    min_fill([(i, i + 1) for i in range(n)], dict.fromkeys(range(n + 1), 2), Counted(range(0, n, 2)))
    assert Counted.n_read <= 2
