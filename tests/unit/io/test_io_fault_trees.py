"""Fault trees: the probability of every kind of gate, by hand."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

import certimap as cm


def event(k):
    return f'<basic-event name="e{k}"/>'


def tree(formula, n, more=""):
    events = "".join(
        f'<define-basic-event name="e{k}"><label>x</label><float value="{0.1 + 0.05 * (k % 8)}"/>'
        "</define-basic-event>"
        for k in range(n)
    )
    gate = f'<define-gate name="top"><label>the top</label>{formula}</define-gate>'
    component = f'<define-component name="C">{gate}</define-component>'
    tail = f"<model-data>{events}{more}</model-data>"
    whole = f'<define-fault-tree name="F">{component}</define-fault-tree>{tail}'
    return f'<?xml version="1.0"?>\n<opsa-mef>{whole}</opsa-mef>'


def read_text(tmp_path, text, suffix="opsa"):
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    return cm.read(path)


def check(tmp_path, formula, n, holds, more=""):
    network = read_text(tmp_path, tree(formula, n, more))
    p = [0.1 + 0.05 * (k % 8) for k in range(n)]
    expected = sum(
        np.prod([q if x else 1 - q for q, x in zip(p, row, strict=True)])
        for row in itertools.product([False, True], repeat=n)
        if holds(row)
    )
    assert np.isclose(dict(cm.marginals(network, ["top"])["top"])[True], expected, atol=1e-12)
    return network


GATES = {
    "<or>{}</or>": any,
    "<and>{}</and>": all,
    "<nor>{}</nor>": lambda row: not any(row),
    "<nand>{}</nand>": lambda row: not all(row),
    '<atleast min="2">{}</atleast>': lambda row: sum(row) >= 2,
    '<atleast min="3">{}</atleast>': lambda row: sum(row) >= 3,
    '<cardinality min="1" max="2">{}</cardinality>': lambda row: 1 <= sum(row) <= 2,
}


@pytest.mark.parametrize("gate", list(GATES))
@pytest.mark.parametrize("n", [3, 12])
def test_gates(tmp_path, gate, n):
    network = check(tmp_path, gate.format("".join(map(event, range(n)))), n, GATES[gate])
    assert len(network.domain) - len(network.hidden) == n + 1


@pytest.mark.parametrize(
    ("formula", "n", "holds"),
    [
        (f"<not>{event(0)}</not>", 1, lambda row: not row[0]),
        (f"<xor>{event(0)}{event(1)}</xor>", 2, lambda row: row[0] != row[1]),
        (f"<iff>{event(0)}{event(1)}</iff>", 2, lambda row: row[0] == row[1]),
        (f"<imply>{event(0)}{event(1)}</imply>", 2, lambda row: not row[0] or row[1]),
        (event(0), 1, any),
        (
            f"<or><and>{event(0)}<not>{event(1)}</not></and><constant value='false'/>{event(2)}</or>",
            3,
            lambda row: (row[0] and not row[1]) or row[2],
        ),
    ],
)
def test_formulas_in_one_another(tmp_path, formula, n, holds):
    check(tmp_path, formula, n, holds)


def test_expressions(tmp_path):
    more = (
        '<define-parameter name="rate"><float value="1e-3"/></define-parameter>'
        '<define-basic-event name="a"><exponential><parameter name="rate"/><float value="100"/></exponential>'
        '</define-basic-event><define-basic-event name="b"><lognormal-deviate><float value=".02"/>'
        '<float value="3"/></lognormal-deviate></define-basic-event><define-house-event name="h">'
        '<constant value="true"/></define-house-event>'
        '<define-basic-event name="c"><mul><float value=".5"/><float value=".5"/></mul>'
        "</define-basic-event>"
    )
    network = read_text(tmp_path, tree(event(0), 1, more), "xml")
    found = cm.marginals(network, ["a", "b", "c", "h"])
    values = [dict(found[name])[True] for name in ("a", "b", "c", "h")]
    assert np.allclose(values, [1 - np.exp(-0.1), 0.02, 0.25, 1.0], atol=1e-12)


def test_gates_of_many_inputs_have_small_tables(tmp_path):
    network = read_text(tmp_path, tree(f"<or>{''.join(map(event, range(200)))}</or>", 200))
    assert max(f.log_table.size for f in network.factors) <= 2**11
    expected = 1 - np.prod([0.9 - 0.05 * (k % 8) for k in range(200)])
    assert np.isclose(dict(cm.marginals(network, ["top"])["top"])[True], expected)


LOOP = (
    '<define-parameter name="p"><mul><parameter name="p"/><float value="1"/></mul></define-parameter>'
    '<define-basic-event name="a"><parameter name="p"/></define-basic-event>'
)
DEEP = "".join(
    f'<define-parameter name="p{k}"><mul><parameter name="p{k + 1}"/><parameter name="p{k + 1}"/></mul>'
    "</define-parameter>"
    for k in range(3000)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html/>", "<opsa-mef>"),
        (tree(event(1), 1), "'e1' in the table of 'top' is no variable"),
        (tree("<or/>", 1), "'top' is <or> of 0 inputs"),
        (tree(f"<xor>{event(0)}</xor>", 1), "'top' is <xor> of 1 inputs"),
        (tree(f"<vote>{event(0)}</vote>", 1), "'top' is <vote>"),
        (tree(f'<atleast min="2">{event(0)}</atleast>', 1), "never true"),
        (
            tree(f'<cardinality min="0" max="999999">{event(0)}{event(0)}</cardinality>', 1),
            "names a variable twice",
        ),
        (tree(event(0), 1).replace('"0.1"', '"1.5"'), "'e0' has the probability 1.5"),
        (tree(event(0), 1).replace('"0.1"', '"nan"'), "<float> of 'nan' is no probability"),
        (tree(event(0), 1, LOOP), "'a' has the probability nan"),
        (tree(event(0), 1, DEEP + LOOP.replace('"p"', '"p0"')), "hundred deep|no probability|nan"),
        (tree("<and>" * 60, 1), "no XML|deep"),
    ],
)
def test_what_is_refused_is_named(tmp_path, text, message):
    began = time.process_time()
    with pytest.raises(cm.ParseError, match=message) as caught:
        read_text(tmp_path, text)
    assert len(str(caught.value).splitlines()) == 1
    assert time.process_time() - began < 2.0
