"""Circuits of other tools, by hand and against enumeration: .nnf, .sdd, .psdd, .jpc, .json."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import pickle
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.circuits.circuit import CircuitBuilder
from certimap.io import read, spn, write
from certimap.io.logic import LogicBuilder


def all_points(n, states=2):
    return np.array(list(itertools.product(range(states), repeat=n)), np.int16)


def read_text(tmp_path, suffix, text, **options):
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    return read(path, **options)


def values(circuit, points):
    """Return the unnormalised value of each point, by the definition of a circuit."""
    out = np.zeros((circuit.n_nodes, len(points)))
    for node in range(circuit.n_nodes):
        kind = circuit.kind[node]
        if kind == 0:
            out[node] = np.exp(circuit.params_of(node))[points[:, circuit.leaf_var[node]]]
        elif kind == 2:
            out[node] = out[circuit.children_of(node)].prod(axis=0)
        else:
            edges = slice(circuit.child_ptr[node], circuit.child_ptr[node + 1])
            out[node] = np.exp(circuit.log_weights[edges]) @ out[circuit.children_of(node)]
    return out[-1]


# (1 and 2) or (not 1 and 3); variable 4 is free
C2D = "c made by hand\nnnf 7 6 4\nL 1\nL 2\nA 2 0 1\nL -1\nL 3\nA 2 3 4\nO 1 2 2 5\n"
D4 = "o 1 0\nt 2 0\n1 2 1 2 0\n1 2 -1 3 0\n"
D4_AND = "2 4 3 0\n1 2 0\no 2 0\na 1 0\nt 3 0\nt 4 0\nf 5 0\n2 5 1 0\n1 3 4 0\n"  # 3 and 4
SDD = """c by hand
sdd 8
L 1 0 1
L 2 2 2
L 3 0 -1
L 4 2 -2
L 5 4 3
F 6
T 7
D 8 1 2 1 7 3 5
"""
VTREE = "vtree 7\nL 0 1\nL 2 2\nI 1 0 2\nL 4 3\nL 6 4\nI 5 4 6\nI 3 1 5\n"


def formula(points):
    return np.where(points[:, 0], points[:, 1], points[:, 2]).astype(float)


@pytest.mark.parametrize(("suffix", "text", "n"), [("nnf", C2D, 4), ("nnf", D4, 3)])
def test_models_of_a_formula_are_equally_probable(tmp_path, suffix, text, n):
    circuit = read_text(tmp_path, suffix, text)
    assert circuit.domain.names == tuple(map(str, range(1, n + 1)))
    assert circuit.domain["1"].states == (False, True)
    points = all_points(n)
    assert np.array_equal(values(circuit, points), formula(points))
    result = cm.map_query(circuit, ["1", "2"], evidence={"3": False})
    assert result.assignment == {"1": True, "2": True}


def test_constants_and_arcs_in_any_order(tmp_path):
    circuit = read_text(tmp_path, "nnf", D4_AND)
    points = all_points(4)
    assert np.array_equal(values(circuit, points), (points[:, 2] & points[:, 3]).astype(float))


def test_a_true_formula_leaves_all_free(tmp_path):
    assert np.array_equal(values(read_text(tmp_path, "nnf", "nnf 1 0 2\nA 0\n"), all_points(2)), np.ones(4))
    either = read_text(tmp_path, "nnf", "nnf 5 4 3\nL 1\nL -1\nL 2\nA 2 1 2\nO 1 2 0 3")
    points = all_points(3)
    assert np.array_equal(values(either, points), (points[:, 0] | points[:, 1]).astype(float))


WEIGHTS = {1: 0.3, -1: 0.7, 3: 2.5, -3: 0.0, 4: 0.25, -4: 4.0}
FILES = {
    "d4": "".join(f"{literal} {weight}\n" for literal, weight in WEIGHTS.items()),
    "cnf": "p cnf 4 2\n" + "".join(f"c p weight {k} {w} 0\n" for k, w in WEIGHTS.items()) + "-1 2 0\n1 3 0\n",
    "c2d": "c weights 0.3 0.7 1 1 2.5 0.0 0.25 4.0\np cnf 4 2\n-1 2 0\n1 3 0\n",
}


@pytest.mark.parametrize("kind", [None, *FILES])
@pytest.mark.parametrize(("suffix", "text"), [("nnf", C2D), ("sdd", SDD)])
def test_weights_of_literals(tmp_path, suffix, text, kind):
    (tmp_path / "m.vtree").write_text(VTREE)
    weights = WEIGHTS
    if kind is not None:
        weights = tmp_path / "weights.txt"
        weights.write_text(FILES[kind])
    circuit = read_text(tmp_path, suffix, text, weights=weights)
    points = all_points(4)
    # the SDD is (1 and true) or (not 1 and 3)
    expected = formula(points) if suffix == "nnf" else (points[:, 0] | points[:, 2]).astype(float)
    for literal, weight in WEIGHTS.items():
        expected[points[:, abs(literal) - 1] == (literal > 0)] *= weight
    assert np.allclose(values(circuit, points), expected, rtol=1e-14)


def test_the_vtree_beside_says_which_variables_there_are(tmp_path):
    assert len(read_text(tmp_path, "sdd", SDD).domain) == 3
    (tmp_path / "m.vtree.gz").write_bytes(gzip.compress(VTREE.encode()))
    assert len(read_text(tmp_path, "sdd", SDD).domain) == 4


PSDD = f"""c by hand
psdd 5
L 0 0 1
L 1 0 -1
T 2 2 2 {math.log(0.25)}
L 3 2 -2
D 4 1 2 0 2 {math.log(0.6)} 1 3 {math.log(0.4)}
"""


def test_psdd(tmp_path):
    circuit = read_text(tmp_path, "psdd", PSDD)
    assert np.allclose(values(circuit, all_points(2)), [0.4, 0.0, 0.6 * 0.75, 0.6 * 0.25])


JPC = f"""c by hand
jpc 8
L 0 0 1
L 1 0 -1
I 2 0 2 2
C 3 0 2 {math.log(0.5)} {math.log(0.25)} -inf
B 4 0 3 2 {math.log(0.3)}
P 5 0 3 0 2 4
P 6 0 3 1 3 4
S 7 0 2 5 {math.log(0.1)} 6 {math.log(0.9)}
"""


def test_jpc(tmp_path):
    circuit = read_text(tmp_path, "jpc", JPC)
    assert [v.states for v in circuit.domain] == [(False, True), (0, 1, 2), (0, 1, 2)]
    points = np.array(list(itertools.product(range(2), range(3), range(3))), np.int16)
    binomial = np.array([0.49, 0.42, 0.09])[points[:, 2]]
    first = points[:, 0] * (points[:, 1] == 2) * binomial
    second = (1 - points[:, 0]) * np.array([0.5, 0.25, 0.0])[points[:, 1]] * binomial
    assert np.allclose(values(circuit, points), 0.1 * first + 0.9 * second)


def test_jpc_is_written_and_reads_back(tmp_path):
    text = "indicator 0 0 0\nindicator 1 0 1\nindicator 2 1 0\nindicator 3 1 2\ngaussian 4 2 0.5 2\n"
    text += "+ 5 2 .25 3 .75\n* 6 0 5 4\n* 7 1 3 4\n+ 8 6 1e-320 7 1e400\n"
    circuit = read_text(tmp_path, "spn", text)
    circuit.write(tmp_path / "b.jpc")
    found = read(tmp_path / "b.jpc")
    for name in ("kind", "child_ptr", "children", "log_weights", "leaf_var", "param_ptr", "params"):
        assert np.array_equal(getattr(found, name), getattr(circuit, name)), name


def deeprob(**leaves):
    nodes = [
        {"class": "Sum", "scope": [0, 1], "weights": [0.3, 0.7], "id": 0},
        {"class": "Product", "scope": [0, 1], "id": 1},
        {"class": "Product", "scope": [0, 1], "id": 2},
        {"class": "Bernoulli", "scope": [0], "params": {"p": 0.2}, "id": 3},
        {"class": "Bernoulli", "scope": [0], "params": {"p": 0.9}, "id": 4},
        {
            "class": "Categorical",
            "scope": [1],
            "params": {"categories": [2, 0], "probabilities": [0.4, 0.6]},
            "id": 5,
        },
        {
            "class": "Categorical",
            "scope": [1],
            "params": {"categories": [0, 1], "probabilities": [0.1, 0.9]},
            "id": 6,
        },
    ]
    edges = [(3, 1, 0), (5, 1, 1), (4, 2, 0), (6, 2, 1), (2, 0, 1), (1, 0, 0)]
    listed = [{"source": s, "target": t, "idx": k} for s, t, k in edges]
    return {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "edges": listed}


def test_deeprob_json(tmp_path):
    data = deeprob()
    expected = 0.3 * np.outer([0.8, 0.2], [0.6, 0.0, 0.4]) + 0.7 * np.outer([0.1, 0.9], [0.1, 0.9, 0.0])
    points = np.array(list(itertools.product(range(2), range(3))), np.int16)
    for key in ("edges", "links"):
        data[key] = data.pop("edges")
        circuit = read_text(tmp_path, "json", json.dumps(data))
        assert np.allclose(values(circuit, points), expected.reshape(-1))
        data["edges"] = data.pop(key)


def test_sparc_json(tmp_path):
    leaves = [
        {"id": 0, "kind": "bernoulli", "children": [], "scope": [0], "p": 0.2},
        {"id": 1, "kind": "literal", "children": [], "scope": [0], "value": 1},
        {"id": 2, "kind": "indicator", "children": [], "scope": [1], "value": 1, "num_cats": 3},
        {"id": 3, "kind": "discrete_logistic", "children": [], "scope": [1], "mu": 1.3, "s": 0.7, "num_cats": 3},
        {"id": 4, "kind": "product", "children": [0, 2]},
        {"id": 5, "kind": "product", "children": [1, 3]},
        {"id": 6, "kind": "sum", "children": [4, 5], "params": [0.3, 0.7]},
    ]
    data = {"format": "gcw-circuit-v1", "backend": "numpy", "root": 6, "nodes": leaves}
    circuit = read_text(tmp_path, "json", json.dumps(data))
    below = [1 / (1 + math.exp(-(k - 1.3) / 0.7)) for k in (0.5, 1.5)]
    logistic = [below[0], below[1] - below[0], 1 - below[1]]
    expected = 0.3 * np.outer([0.8, 0.2], [0, 1, 0]) + 0.7 * np.outer([0, 1], logistic)
    points = np.array(list(itertools.product(range(2), range(3))), np.int16)
    assert np.allclose(values(circuit, points), expected.reshape(-1))


def changed(data, path, value):
    """Return nested data with one value changed."""
    data = json.loads(json.dumps(data))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(data)


REFUSED = [
    ("nnf", "", "no node"),
    ("nnf", "nnf 1 0 1\nL 0\n", ":2: .*L LITERAL"),
    ("nnf", "nnf 2 0 1\nL 1\n", "1 nodes where its header says 2"),
    ("nnf", "nnf 2 1 1\nL 1\nA 1 1\n", ":3: the child 1 is not defined"),
    ("nnf", "nnf 1 0 1\nO 0 0\n", "no model"),
    ("nnf", "nnf 1 0 999999999\nL 1\n", ":1: the file has 999,999,999 variables"),
    ("nnf", "nnf 1 0 1\nL 999999999\n", "999,999,999 variables"),
    ("nnf", "nnf 1 0 1\nX 1\n", ":2: 'X' is no kind"),
    ("nnf", "nnf 1 0 1\nL 1_0\n", "'1_0'"),
    ("nnf", "o 2 0\n", "id 1"),
    ("nnf", "o 1 0\n1 2 0\n", ":2: the node 2 is not defined"),
    ("nnf", "o 1 0\no 2 0\n1 2 1 0\n2 1 2 0\n", ":4: the arcs form a cycle"),
    ("nnf", "o 1 0\nt 1 0\n", "defined twice"),
    ("sdd", SDD.replace("D 8 1 2", "D 8 1 3"), ":10: "),
    ("sdd", SDD.replace("L 5 4 3", "L 4 4 3"), ":7: the id 4 is defined twice"),
    ("sdd", "sdd 2\nL 1 0 1\nF 0\n", "no model"),
    ("sdd", "psdd 1\nF 0\n", "begins with 'psdd'"),
    ("sdd", SDD.replace("T 7", "Q 7"), "'Q' is no kind"),
    ("psdd", PSDD.replace(f"T 2 2 2 {math.log(0.25)}", "T 2 2 2 0.1"), "above 1"),
    ("psdd", PSDD.replace("T 2 2 2", "T 2 2 0"), "no variable"),
    ("psdd", PSDD.replace(f"{math.log(0.6)}", "nan"), "'nan' is no log weight"),
    ("jpc", JPC.replace("P 5 0 3", "P 5 0 2"), ":8: "),
    ("jpc", JPC.replace("L 0 0 1", "G 0 0 1 0 1"), "real and discrete"),
    ("jpc", "jpc 1\nG 0 0 1 0 -1\n", ":2: a gaussian leaf"),
    ("jpc", "jpc 1\nI 0 0 1 40000\n", "40001 states"),
    (
        "sdd",
        SDD.replace("D 8 1 2 1 7 3 5\n", ""),
        ":2: the file has 7 nodes where its header says 8; it is cut short",
    ),
    ("psdd", PSDD.replace("psdd 5", "psdd 6"), "has 5 nodes where its header says 6"),
    ("jpc", JPC.replace("jpc 8", "jpc 999999999"), "has 8 nodes where its header says 999999999"),
    ("jpc", JPC.replace("jpc 8", "jpc -x"), "'-x' stands where a count is needed"),
    ("json", "[]", "no list of nodes"),
    ("json", "{", ":1: is no JSON"),
    ("json", '{"format": "x", "nodes": []}', "format 'x'"),
    ("json", changed(deeprob(), ["nodes", 0, "id"], 9), "defined"),
    ("json", changed(deeprob(), ["nodes", 3, "class"], "Weibull"), "node 3 is a leaf of the class 'Weibull'"),
    ("json", changed(deeprob(), ["nodes", 3, "params", "p"], 1.5), "node 3"),
    ("json", changed(deeprob(), ["nodes", 0, "weights"], [0.5]), "2 children and 1 weights"),
    ("json", changed(deeprob(), ["edges", 0, "idx"], 1), "two children at the place 1"),
    ("json", changed(deeprob(), ["edges"], None), "'links'"),
    ("json", changed(deeprob(), ["edges", 0, "source"], 0), "cycle"),
]


@pytest.mark.parametrize(("suffix", "text", "message"), REFUSED)
def test_what_is_refused_is_named(tmp_path, suffix, text, message):
    with pytest.raises(cm.ParseError, match=message) as caught:
        read_text(tmp_path, suffix, text)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({1: 0.5}, "literal 1 has a weight and -1 has none"),
        ({1: -0.5, -1: 1.0}, "-0.5"),
        ({1: math.nan, -1: 1.0}, "nan"),
        ({0: 1.0}, "literal 0"),
        ("1 .5 .5\n", ":1: "),
        ("1 .5\n1 .5\n", ":2: literal 1 is weighted twice"),
        ("1 x\n", ":1: '1' and 'x' are no literal"),
        ("c p weight 1 -0.5 0\n", ":1: "),
    ],
)
def test_weights_that_are_none(tmp_path, weights, message):
    if isinstance(weights, str):
        (tmp_path / "w").write_text(weights)
        weights = tmp_path / "w"
    with pytest.raises(cm.ModelError, match=message):
        read_text(tmp_path, "nnf", C2D, weights=weights)


def test_weights_are_for_formulas(tmp_path):
    with pytest.raises(cm.ModelError, match=r"\.nnf and \.sdd take them"):
        read_text(tmp_path, "psdd", PSDD, weights={1: 0.5, -1: 0.5})


@st.composite
def formulas(draw):
    """Draw a random decision formula as rows of c2d's flavour, with its number of variables."""
    n = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows: list[str] = []

    def add(row):
        rows.append(row)
        return len(rows) - 1

    def build(variables):
        if not variables or rng.random() < 0.15:
            return add("A 0") if rng.random() < 0.7 else add("O 0 0")
        v, *rest = variables
        branches = []
        for sign in (1, -1):
            inner = build([u for u in rest if rng.random() < 0.8])
            branches.append(add(f"A 2 {add(f'L {sign * v}')} {inner}"))
        return add(f"O {v} 2 {branches[0]} {branches[1]}")

    build(list(range(1, n + 1)))
    return f"nnf {len(rows)} 0 {n}\n" + "\n".join(rows), n


def truth(text, points):
    """Evaluate a formula of c2d's flavour."""
    found: list[np.ndarray] = []
    for line in text.split("\n")[1:]:
        kind, *numbers = line.split()
        row = [int(x) for x in numbers]
        if kind == "L":
            found.append(points[:, abs(row[0]) - 1] == (row[0] > 0))
        elif kind == "A":
            found.append(np.logical_and.reduce([np.ones(len(points), bool), *(found[k] for k in row[1:])]))
        else:
            found.append(np.logical_or.reduce([np.zeros(len(points), bool), *(found[k] for k in row[2:])]))
    return found[-1]


@settings(max_examples=80, deadline=None)
@given(drawn=formulas(), seed=st.integers(0, 2**32))
def test_random_formulas_with_weights(tmp_path_factory, drawn, seed):
    text, n = drawn
    rng = np.random.default_rng(seed)
    weights = {literal: float(rng.random()) for v in range(1, n + 1) for literal in (v, -v)}
    points = all_points(n)
    expected = truth(text, points).astype(float)
    for literal, weight in weights.items():
        expected[points[:, abs(literal) - 1] == (literal > 0)] *= weight
    path = tmp_path_factory.mktemp("f") / "m.nnf"
    path.write_text(text)
    if not expected.any():
        with pytest.raises(cm.ParseError, match="no model"):
            read(path, weights=weights)
        return
    circuit = read(path, weights=weights)
    assert np.allclose(values(circuit, points), expected, rtol=1e-12)
    assert np.isclose(cm.log_evidence(circuit, {}), math.log(expected.sum()))


def test_only_circuits_are_written(tmp_path):
    builder = CircuitBuilder(cm.Domain.of_sizes([2]))
    builder.categorical(0, log_weights=[0.0, 0.0])
    circuit = builder.build(normalised=False)
    for suffix in ("nnf", "sdd", "psdd"):
        with pytest.raises(cm.ModelError, match="cannot be written"):
            write(circuit, tmp_path / f"m.{suffix}")


def dist(name, **attributes):
    """Return the pickle of an instance whose class has a name: what pyjuice has for a distribution."""
    cls = type(name, (), {"__module__": __name__, "__qualname__": name})
    globals()[name] = cls
    value = cls()
    value.__dict__.update(attributes)
    sys.modules.setdefault(__name__, sys.modules.get(__name__, types.ModuleType(__name__)))
    setattr(sys.modules[__name__], name, cls)
    return pickle.dumps(value)


def vector(kind, blocks, size, children=(), **more):
    return {"type": kind, "num_node_blocks": blocks, "block_size": size, "chs": children, **more}


def pyjuice_vectors():
    """Return two variables in two blocks of two nodes, products by block and by node, and a root."""
    rng = np.random.default_rng(0)
    a = rng.dirichlet(np.ones(3), 4).astype(np.float32)
    b = rng.random(4).astype(np.float32)
    first, second = np.array([[1, 0], [0, 1]]), np.array([[3, 0], [0, 1], [2, 2], [1, 3]])
    weights = rng.dirichlet(np.ones(8)).astype(np.float32).reshape(4, 1, 2)
    edges = np.array([[0, 0, 0, 0], [2, 0, 3, 1]])  # blocks of the products, in any order
    nodes = [
        vector("Input", 2, 2, scope=[0], dist=dist("Categorical", num_cats=3), params=a.reshape(-1)),
        vector("Input", 2, 2, scope=[1], dist=dist("Bernoulli"), params=b),
        vector("Product", 2, 2, (0, 1), edge_ids=first),
        vector("Product", 2, 2, (0, 1), edge_ids=second),
        vector("Sum", 1, 1, (2, 3), edge_ids=edges, params=weights),
    ]
    pairs = [(2, 0), (3, 1), (0, 2), (1, 3), *map(tuple, second.tolist())]  # nodes of either variable, by product
    of_product = np.zeros(8)
    for block, table in zip(edges[1], weights, strict=True):
        of_product[2 * block : 2 * block + 2] = table[0]
    coin = np.column_stack([1 - b, b])
    expected = sum(w * np.outer(a[i], coin[j]) for w, (i, j) in zip(of_product, pairs, strict=True))
    return nodes, expected.reshape(-1)


def test_pyjuice_pickles_are_read_and_not_run(tmp_path):
    nodes, expected = pyjuice_vectors()
    for protocol in (4, 5):
        (tmp_path / "m.jpc").write_bytes(pickle.dumps(nodes, protocol))
        circuit = read(tmp_path / "m.jpc")
        assert circuit.domain.names == ("0", "1")
        points = np.array(list(itertools.product(range(3), range(2))), np.int16)
        assert np.allclose(values(circuit, points), expected, atol=1e-7)


def test_numbers_that_pyjuice_leaves_out_are_no_variables(tmp_path):
    nodes, expected = pyjuice_vectors()
    nodes[0]["scope"], nodes[1]["scope"] = [3], [7]
    (tmp_path / "m.jpc").write_bytes(pickle.dumps(nodes))
    circuit = read(tmp_path / "m.jpc")
    assert circuit.domain.names == ("3", "7")
    points = np.array(list(itertools.product(range(3), range(2))), np.int16)
    assert np.allclose(values(circuit, points), expected, atol=1e-7)


class Harm:
    """Runs a command when it is unpickled by pickle itself."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickles_made_to_harm(tmp_path):
    harm = tmp_path / "harm"
    shared = [1]
    for _ in range(60):
        shared = [shared, shared]
    itself = []
    itself.append(itself)
    bad = [
        pickle.dumps([Harm(harm)]),
        pickle.dumps([{"type": "Input", "dist": pickle.dumps(Harm(harm))}]),
        b"\x80\x04N\x72\xff\xff\xff\xf0.",  # a place in the memo that takes gigabytes
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        pickle.dumps(shared),
        pickle.dumps(itself),
        pickle.dumps({"a": 1}),
        b"\x80",
    ]
    for data in bad:
        (tmp_path / "m.jpc").write_bytes(data)
        with pytest.raises(cm.ParseError):
            read(tmp_path / "m.jpc")
    assert not harm.exists()


@pytest.mark.parametrize(
    ("place", "key", "value", "message"),
    [
        (0, "params", None, "vector 0 has no parameters"),
        (0, "params", np.ones(5, np.float32), "5 parameters; expected 12"),
        (0, "dist", dist("SoftEvi"), "kind 'SoftEvi'"),
        (0, "scope", [0, 1], "scope"),
        (2, "edge_ids", np.array([[2, 0], [0, 1]]), "not there"),
        (2, "edge_ids", np.array([[1, 0]]), "edges of the shape"),
        (4, "chs", (2, 9), "children"),
        (4, "params", -np.ones((4, 1, 2), np.float32), "negative weight"),
        (4, "external_params", b"", "no parameters of its own"),
        (4, "num_node_blocks", 2, "a sum without children"),
        (3, "type", "Max", "type 'Max'"),
    ],
)
def test_what_pyjuice_has_beyond_is_refused(tmp_path, place, key, value, message):
    nodes, _ = pyjuice_vectors()
    nodes[place][key] = value
    (tmp_path / "m.jpc").write_bytes(pickle.dumps(nodes))
    with pytest.raises(cm.ParseError, match=message):
        read(tmp_path / "m.jpc")


# ------------------------------------------------------------ variables whose numbers have gaps


GAPS = [
    (
        "json",
        '{"nodes": [{"id": 0, "class": "Product"},'
        ' {"id": 1, "class": "Bernoulli", "scope": [2], "params": {"p": 0.3}},'
        ' {"id": 2, "class": "Bernoulli", "scope": [5], "params": {"p": 0.6}}],'
        ' "edges": [{"source": 1, "target": 0, "idx": 0}, {"source": 2, "target": 0, "idx": 1}]}',
    ),
    (
        "json",
        '{"format": "gcw-circuit-v1", "root": 2, "nodes": ['
        '{"id": 0, "kind": "bernoulli", "scope": [2], "p": 0.3},'
        ' {"id": 1, "kind": "bernoulli", "scope": [5], "p": 0.6},'
        ' {"id": 2, "kind": "product", "children": [0, 1]},'
        ' {"id": 3, "kind": "bernoulli", "scope": [4], "p": 0.5}]}',
    ),
    (
        "jpc",
        f"jpc 4\nC 9 0 4 {math.log(0.5)!r} {math.log(0.5)!r}\nC 0 0 2 {math.log(0.7)!r} {math.log(0.3)!r}\n"
        f"C 1 0 5 {math.log(0.4)!r} {math.log(0.6)!r}\nP 2 0 2 0 1\n",
    ),
    ("psdd", f"psdd 3\nT 0 0 2 {math.log(0.3)!r}\nT 1 2 5 {math.log(0.6)!r}\nD 2 1 1 0 1 0\n"),
]


@pytest.mark.parametrize(("suffix", "text"), GAPS)
def test_numbers_that_no_leaf_names_are_no_variables(tmp_path, suffix, text):
    circuit = read_text(tmp_path, suffix, text)
    assert circuit.domain.names == ("2", "5")
    assert values(circuit, all_points(2)) == pytest.approx([0.28, 0.42, 0.12, 0.18])
    assert cm.log_evidence(circuit) == pytest.approx(0.0, abs=1e-12)
    assert cm.map_query(circuit, epsilon=0).assignment == {"2": 0, "5": 1}


def test_jpc_keeps_rising_numbers(tmp_path):
    circuit = read_text(tmp_path, "jpc", GAPS[2][1])
    circuit.write(tmp_path / "b.jpc")
    assert read(tmp_path / "b.jpc").domain.names == ("2", "5")
    named = CircuitBuilder(cm.Domain([cm.Categorical("b", (0, 1)), cm.Categorical("a", (0, 1))]))
    leaves = [named.categorical(0, log_weights=[0.0, 1.0]), named.categorical(1, log_weights=[0.0, 2.0])]
    named.product(leaves)
    named.build(normalised=False).write(tmp_path / "c.jpc")
    assert read(tmp_path / "c.jpc").domain.names == ("1", "2")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_random_circuit_over_some_numbers(tmp_path_factory, seed):
    """Sums of products over distinct numbers: each point has the value that its leaves give it by hand."""
    rng = np.random.default_rng(seed)
    numbers = sorted(rng.choice(12, size=int(rng.integers(1, 4)), replace=False).tolist())
    weights, leaves = rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(2), size=(2, len(numbers)))
    nodes, edges, products = [{"id": 0, "class": "Sum", "weights": weights.tolist()}], [], []
    for c in range(2):
        below = []
        for j, v in enumerate(numbers):
            nodes.append(
                {"id": len(nodes), "class": "Bernoulli", "scope": [v], "params": {"p": float(leaves[c, j, 1])}}
            )
            below.append(len(nodes) - 1)
        nodes.append({"id": len(nodes), "class": "Product"})
        products.append(len(nodes) - 1)
        edges += [{"source": b, "target": products[-1], "idx": i} for i, b in enumerate(below)]
    edges += [{"source": p, "target": 0, "idx": i} for i, p in enumerate(products)]
    path = tmp_path_factory.mktemp("gaps") / "m.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    circuit = read(path)
    assert circuit.domain.names == tuple(map(str, numbers))
    points = all_points(len(numbers))
    expected = [
        sum(w * np.prod([own[j, s] for j, s in enumerate(p)]) for w, own in zip(weights, leaves, strict=True))
        for p in points
    ]
    assert values(circuit, points) == pytest.approx(expected)


# ------------------------------------------------------------ misreading is noticed by a second evaluation

SUM = "indicator 0 0 0\nindicator 1 0 1\n+ 2 0 .3 1 .7\n"
SPARC = json.dumps(
    {
        "format": "gcw-circuit-v1",
        "root": 2,
        "nodes": [
            {"id": 0, "kind": "bernoulli", "scope": [0], "p": 0.2},
            {"id": 1, "kind": "literal", "scope": [0], "value": 1},
            {"id": 2, "kind": "sum", "children": [0, 1], "params": [0.3, 0.7]},
        ],
    }
)


def _swapped(logs):
    return list(logs)[::-1]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("json", json.dumps(deeprob())),
        ("json", SPARC),
        ("jpc", JPC),
        ("psdd", PSDD),
        ("spn", SUM),
        ("", "pyjuice"),
    ],
)
def test_weights_read_in_a_wrong_order_are_noticed(tmp_path, monkeypatch, suffix, text):
    path = tmp_path / f"m.{suffix or 'jpc'}"
    path.write_bytes(text.encode() if suffix else pickle.dumps(pyjuice_vectors()[0]))
    read(path)
    right, right_spn = CircuitBuilder.sum, spn._Reader.log_weights
    monkeypatch.setattr(
        CircuitBuilder, "sum", lambda b, nodes, **more: right(b, nodes, log_weights=_swapped(more["log_weights"]))
    )
    monkeypatch.setattr(spn._Reader, "log_weights", lambda *given: right_spn(*given)[::-1])
    with pytest.raises(cm.ParseError, match=r"gives the assignment .* the log value .*, and what was read of it"):
        read(path)


@pytest.mark.parametrize(("suffix", "text"), [("nnf", C2D), ("nnf", D4), ("nnf", D4_AND), ("sdd", SDD)])
def test_formulas_read_as_others_are_noticed(tmp_path, monkeypatch, suffix, text):
    right = LogicBuilder.literal
    monkeypatch.setattr(LogicBuilder, "literal", lambda builder, literal: right(builder, -literal))
    with pytest.raises(cm.ParseError, match="what was read of it"):
        read_text(tmp_path, suffix, text)


@pytest.mark.parametrize(("suffix", "text"), GAPS[:3])
def test_variables_that_the_file_does_not_have_are_noticed(tmp_path, monkeypatch, suffix, text):
    monkeypatch.setattr("certimap.io.circuit_records.over_own_variables", lambda circuit: circuit)
    with pytest.raises(cm.ParseError, match=r"was read as a circuit of variable '[01]', for which it has no leaf"):
        read_text(tmp_path, suffix, text)
