"""Dynamic networks in `.xdsl` files: slices, anchors, terminal nodes, and parents several steps back."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ParseError

UMBRELLA = """<?xml version="1.0" encoding="UTF-8"?>
<smile version="1.0" id="Umbrella"><nodes>
  <cpt id="Location"><state id="Pittsburgh"/><state id="Sahara"/><probabilities>0.5 0.5</probabilities></cpt>
  <cpt id="Rain" dynamic="plate"><state id="true"/><state id="false"/>
    <parents>Location</parents><probabilities>0.7 0.3 0.01 0.99</probabilities></cpt>
  <cpt id="Umbrella" dynamic="plate"><state id="true"/><state id="false"/>
    <parents>Rain</parents><probabilities>0.9 0.1 0.2 0.8</probabilities></cpt>
</nodes><dynamic numslices="5">
  <cpt id="Rain" order="1"><parents>Rain</parents>
    <probabilities>0.7 0.3 0.3 0.7 0.001 0.999 0.01 0.99</probabilities></cpt>
</dynamic></smile>"""

WHOLE = """<smile version="1.0" id="W"><nodes>
  <cpt id="A" dynamic="anchor"><state id="a0"/><state id="a1"/><probabilities>0.3 0.7</probabilities></cpt>
  <cpt id="X" dynamic="plate"><state id="x0"/><state id="x1"/>
    <parents>A</parents><probabilities>0.1 0.9 0.6 0.4</probabilities></cpt>
  <deterministic id="D" dynamic="plate"><state id="d0"/><state id="d1"/>
    <parents>X</parents><resultingstates>d1 d0</resultingstates></deterministic>
  <cpt id="T" dynamic="terminal"><state id="t0"/><state id="t1"/>
    <parents>X</parents><probabilities>0.25 0.75 0.5 0.5</probabilities></cpt>
</nodes><dynamic numslices="4">
  <cpt id="X" order="1"><parents>X</parents><probabilities>0.8 0.2 0.35 0.65</probabilities></cpt>
  <cpt id="X" order="2"><parents>X</parents>
    <probabilities>0.9 0.1 0.7 0.3 0.4 0.6 0.2 0.8</probabilities></cpt>
</dynamic></smile>"""


def read(folder, text):
    (folder / "m.xdsl").write_text(text)
    return cm.read(folder / "m.xdsl")


def test_slices_and_a_node_outside_of_them(tmp_path):
    network = read(tmp_path, UMBRELLA)
    assert network.domain.names[:3] == ("Location", "Rain[0]", "Umbrella[0]")
    assert len(network.domain) == 11
    seen = {f"Umbrella[{t}]": "true" for t in range(5)}
    result = cm.map_query(network, ["Location"], seen, epsilon=0)
    forward = {}
    first = {"Pittsburgh": [0.7, 0.3], "Sahara": [0.01, 0.99]}
    moves = {"Pittsburgh": [[0.7, 0.3], [0.3, 0.7]], "Sahara": [[0.001, 0.999], [0.01, 0.99]]}
    for place, start in first.items():
        belief = 0.5 * np.array(start) * [0.9, 0.2]
        for _ in range(4):
            belief = belief @ moves[place] * [0.9, 0.2]
        forward[place] = belief.sum()
    assert np.exp(result.log_prob) == pytest.approx(forward["Pittsburgh"] / sum(forward.values()))
    assert len(cm.unroll(network, 30).domain) == 61


def test_anchors_terminal_nodes_and_two_steps_back(tmp_path):
    network = read(tmp_path, WHOLE)
    parents = {
        name: [network.domain.names[p] for p in own]
        for name, own in zip(network.domain.names, network.parents, strict=True)
    }
    assert parents["X[0]"] == ["A"]
    assert parents["X[1]"] == ["X[0]"]
    assert parents["X[3]"] == ["X[2]", "X[1]"]
    assert parents["D[2]"] == ["X[2]"]
    assert parents["T"] == ["X[3]"]
    point = {"A": "a0", "X[0]": "x1", "X[1]": "x0", "X[2]": "x1", "X[3]": "x0", "T": "t1"}
    point |= {f"D[{t}]": {"x0": "d1", "x1": "d0"}[point[f"X[{t}]"]] for t in range(4)}
    row = [network.domain[name].states.index(point[name]) for name in network.domain.names]
    # X[2] given X[1]=x0 and X[0]=x1; X[3] given X[2]=x1 and X[1]=x0
    expected = 0.3 * 0.9 * 0.35 * 0.3 * 0.4 * 0.75
    assert np.exp(network.log_joint(np.array(row))[0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (UMBRELLA.replace('order="1"', 'order="0"'), "order='0'; expected 1 to 100"),
        (UMBRELLA.replace('numslices="5"', 'numslices="x"'), "numslices='x'"),
        (UMBRELLA.replace('numslices="5"', 'numslices="400000"'), "expected 1 to 349,525"),
        (UMBRELLA.replace("0.7 0.3 0.3 0.7 0.001", "0.7 0.3 0.3 0.7"), "has 7 entries"),
        (WHOLE.replace('<cpt id="X" order="1">', '<cpt id="X" order="3">'), "no table of order 1 without it"),
        (UMBRELLA.replace('<cpt id="Rain" order', '<equation id="Rain" order').replace(
            "</cpt>\n</dynamic>", "</equation>\n</dynamic>"), "of the kind <equation>"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, text, message):
    with pytest.raises(ParseError, match=message):
        read(tmp_path, text)
