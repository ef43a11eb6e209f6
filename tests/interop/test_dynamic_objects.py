"""Dynamic networks of pgmpy and pyagrum, unrolled, against these libraries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ModelError


@pytest.fixture
def of_pgmpy():
    pytest.importorskip("pgmpy")
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DynamicBayesianNetwork

    made = DynamicBayesianNetwork()
    edges = [(("A", 0), ("A", 1)), (("A", 0), ("B", 0)), (("A", 1), ("B", 1)), (("B", 0), ("B", 1))]
    made.add_edges_from(edges)
    made.add_cpds(
        TabularCPD(("A", 0), 2, [[0.6], [0.4]]),
        TabularCPD(("B", 0), 3, [[0.7, 0.2], [0.2, 0.3], [0.1, 0.5]], [("A", 0)], [2]),
        TabularCPD(("A", 1), 2, [[0.8, 0.3], [0.2, 0.7]], [("A", 0)], [2]),
        TabularCPD(
            ("B", 1), 3,
            [[0.8, 0.5, 0.3, 0.1, 0.2, 0.3], [0.1, 0.3, 0.3, 0.2, 0.3, 0.4], [0.1, 0.2, 0.4, 0.7, 0.5, 0.3]],
            [("A", 1), ("B", 0)], [2, 3],
        ),
    )  # fmt: skip
    return made


@pytest.mark.filterwarnings("ignore")
def test_pgmpy_filters_and_smooths_alike(of_pgmpy):
    from pgmpy.inference import DBNInference

    of_pgmpy.initialize_initial_state()
    inference = DBNInference(of_pgmpy)
    seen = {("B", 0): 2, ("B", 1): 0, ("B", 2): 1, ("B", 3): 1}
    network = cm.unroll(of_pgmpy, 4)
    for t in range(4):
        theirs = inference.backward_inference([("A", t)], seen)[("A", t)].values
        ours = cm.marginals(network, [f"A[{t}]"], {f"{name}[{s}]": value for (name, s), value in seen.items()})
        assert np.allclose(list(ours[f"A[{t}]"].values()), theirs, atol=1e-9)


def test_pgmpy_sequences_by_enumeration(of_pgmpy):
    network = cm.from_object(of_pgmpy, steps=4)
    tables = {tuple(cpd.variable): cpd.values for cpd in of_pgmpy.cpds}
    best = max(

            tables["A", 0][a[0]] * tables["B", 0][b[0], a[0]]
            * np.prod([tables["A", 1][a[t], a[t - 1]] * tables["B", 1][b[t], a[t], b[t - 1]] for t in (1, 2, 3)])
            for a in itertools.product(range(2), repeat=4)
            for b in itertools.product(range(3), repeat=4)

    )  # fmt: skip
    assert cm.map_query(network, epsilon=0).log_prob == pytest.approx(np.log(best))
    track = cm.Track(of_pgmpy, 2)
    for b in (2, 0, 1):
        result = track.observe({"B": b})
    assert set(result.assignment) == {"A[1]", "A[2]"}
    with pytest.raises(ModelError, match="sequences of any length"):
        cm.from_object(of_pgmpy)


def test_pyagrum_unrolls_alike():
    gum = pytest.importorskip("pyagrum")
    dynamic = pytest.importorskip("pyagrum.lib.dynamicBN")
    two = gum.fastBN("c{u|v}->a0[2]->b0[3];c->at[2];a0->at->bt[3];b0->bt")
    two.generateCPTs()
    theirs = dynamic.unroll2TBN(two, 4)
    ours = cm.unroll(two, 4)
    read = cm.from_object(theirs)
    assert {name.replace("[", "").replace("]", "") for name in ours.domain.names} == set(read.domain.names)
    places = [read.domain.index(name.replace("[", "").replace("]", "")) for name in ours.domain.names]
    points = read.sample(20, 0)
    assert np.allclose(ours.log_joint(points[:, places]), read.log_joint(points))
    assert cm.unroll(cm.from_object(two), 4).domain.names == ours.domain.names
    assert cm.Track(two, 1, "a").observe({"b": "1"}).assignment.keys() == {"a[0]"}
    with pytest.raises(ModelError, match="of the slices"):
        cm.from_object(gum.fastBN("a->b"), steps=3)
