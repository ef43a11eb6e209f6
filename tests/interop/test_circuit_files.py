"""Circuit files as deeprob-kit, SparC and PySDD write them, against their own values on random rows."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

import certimap as cm
from certimap.core.query import make_query
from certimap.io import read

CLOSE = 1e-4  # nats: deeprob-kit computes in single precision


def log_prob(circuit, rows):
    return circuit.condition(make_query(circuit.domain)).log_prob(np.asarray(rows))


def test_deeprob_kit(tmp_path):
    leaves = pytest.importorskip("deeprob.spn.structure.leaf")
    cltree = pytest.importorskip("deeprob.spn.structure.cltree")
    io = pytest.importorskip("deeprob.spn.structure.io")
    node = pytest.importorskip("deeprob.spn.structure.node")
    inference = pytest.importorskip("deeprob.spn.algorithms.inference")
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, (3, 2))
    tables = np.log(np.stack([1 - p, p], axis=-1))
    tables[1, 1] = tables[1, 0]  # the root
    clt = cltree.BinaryCLT([0, 1, 2], tree=[1, -1, 0], params=tables.tolist())
    factors = [leaves.Bernoulli(v, float(q)) for v, q in enumerate(rng.random(3))]
    left = node.Product(
        [0, 1, 2, 3, 4], children=[clt, leaves.Categorical(3, [0, 2], [0.25, 0.75]), leaves.Gaussian(4)]
    )
    right = node.Product(
        [0, 1, 2, 3, 4],
        children=[*factors, leaves.Categorical(3, [0, 1, 2], [0.5, 0.25, 0.25]), leaves.Gaussian(4, 1, 2)],
    )
    root = node.assign_ids(node.Sum([0, 1, 2, 3, 4], children=[left, right], weights=[0.3, 0.7]))
    rows = np.column_stack([rng.integers(0, 2, (200, 3)), rng.choice([0, 2], 200), rng.normal(size=200)]).astype(
        float
    )
    expected = inference.log_likelihood(root, rows.astype(np.float32)).reshape(-1)
    io.save_spn_json(root, tmp_path / "m.json")
    data = json.loads((tmp_path / "m.json").read_text())
    assert "edges" in data or "links" in data
    assert np.allclose(log_prob(read(tmp_path / "m.json"), rows), expected, atol=CLOSE)
    for old, new in (("edges", "links"), ("links", "edges")):
        if old in data:
            data[new] = data.pop(old)
            break
    (tmp_path / "n.json").write_text(json.dumps(data))
    assert np.allclose(log_prob(read(tmp_path / "n.json"), rows), expected, atol=CLOSE)


def test_deeprob_kit_learned(tmp_path):
    learning = pytest.importorskip("deeprob.spn.learning.wrappers")
    io = pytest.importorskip("deeprob.spn.structure.io")
    inference = pytest.importorskip("deeprob.spn.algorithms.inference")
    leaf = pytest.importorskip("deeprob.spn.structure.leaf")
    rng = np.random.default_rng(1)
    hidden = rng.integers(0, 3, 300)
    data = (rng.random((300, 6)) < rng.uniform(0.05, 0.95, (3, 6))[hidden]).astype(np.float32)
    options = {"min_rows_slice": 200, "random_state": 0, "verbose": False, "learn_leaf": "binary-clt"}
    root = learning.learn_estimator(data, [leaf.Bernoulli] * 6, [[0, 1]] * 6, **options)
    io.save_spn_json(root, tmp_path / "m.json")
    assert "BinaryCLT" in (tmp_path / "m.json").read_text()
    rows = rng.integers(0, 2, (200, 6))
    expected = inference.log_likelihood(root, rows.astype(np.float32)).reshape(-1)
    assert np.allclose(log_prob(read(tmp_path / "m.json"), rows), expected, atol=CLOSE)


def test_sparc(tmp_path):
    nodes = pytest.importorskip("sparc.nodes")
    serializer = pytest.importorskip("sparc.io.serializer").CircuitSerializer
    pytest.importorskip("sparc.eval")
    a = nodes.SumNode(
        [nodes.DiscreteLogisticInputNode(0, 1.3, 0.7, 4), nodes.CategoricalInputNode(0, [0.1, 0.2, 0.3, 0.4])],
        [0.25, 0.75],
    )
    left = nodes.ProductNode(
        [a, nodes.LiteralInputNode(1, 1), nodes.IndicatorInputNode(2, 1, 3), nodes.BernoulliInputNode(3, 0.3)]
    )
    right = nodes.ProductNode(
        [
            a,
            nodes.BernoulliInputNode(1, 0.6),
            nodes.CategoricalInputNode(2, [0.2, 0.5, 0.3]),
            nodes.BernoulliInputNode(3, 0.9),
        ]
    )
    root = nodes.SumNode([left, right], [0.4, 0.6])
    root.propagate_scope()
    serializer.save(root, tmp_path / "m.json")
    circuit = read(tmp_path / "m.json")
    rows = np.array(list(itertools.product(range(4), range(2), range(3), range(2))))
    expected = evaluate(root, rows)
    assert np.allclose(log_prob(circuit, rows), expected, atol=1e-12)


def evaluate(root, rows):
    """Return SparC's log-likelihood of rows."""
    function = pytest.importorskip("sparc.eval")
    return np.array([function.log_likelihood(root, row) for row in rows])


@pytest.mark.parametrize("shape", ["balanced", "right", "left"])
def test_pysdd(tmp_path, shape):
    sdd = pytest.importorskip("pysdd.sdd")
    n = 6
    rng = np.random.default_rng(len(shape))
    vtree = sdd.Vtree(var_count=n, var_order=(rng.permutation(n) + 1).tolist(), vtree_type=shape)
    manager = sdd.SddManager.from_vtree(vtree)
    for k in range(5):
        node = manager.true()
        for _ in range(4):
            clause = manager.false()
            for v in rng.choice(n - 1, 3, replace=False):  # variable 6 is left free
                clause |= manager.literal(int((v + 1) * rng.choice([-1, 1])))
            node &= clause
        node.save(str(tmp_path / f"m{k}.sdd").encode())
        vtree.save(str(tmp_path / f"m{k}.vtree").encode())
        counter = node.wmc(log_mode=False)
        weights = {}
        for v in range(1, n + 1):
            for literal in (v, -v):
                weights[literal] = float(rng.random())
                counter.set_literal_weight(manager.literal(literal), weights[literal])
        circuit = read(tmp_path / f"m{k}.sdd", weights=weights)
        assert len(circuit.domain) == n
        rows = np.array(list(itertools.product(range(2), repeat=n)))
        models = {tuple(model[v] for v in range(1, n + 1)) for model in models_of(node, n)}
        expected = np.array(
            [
                sum(math.log(weights[v + 1 if bit else -v - 1]) for v, bit in enumerate(row))
                if tuple(row) in models
                else -np.inf
                for row in rows.tolist()
            ]
        ) - math.log(counter.propagate())
        assert np.allclose(log_prob(circuit, rows), expected, atol=1e-9)


def models_of(node, n):
    """Yield PySDD's models with both states of what they leave out."""
    for model in node.models():
        free = [v for v in range(1, n + 1) if v not in model]
        for states in itertools.product((0, 1), repeat=len(free)):
            yield {**model, **dict(zip(free, states, strict=True))}


def test_pyjuice(tmp_path):
    """pyjuice evaluates on GPUs only: the values are worked out from its parameters by hand."""
    juice = pytest.importorskip("pyjuice")
    torch = pytest.importorskip("torch")
    dists = pytest.importorskip("pyjuice.nodes.distributions")
    torch.manual_seed(0)
    a = juice.inputs(0, num_node_blocks=2, dist=dists.Categorical(num_cats=3), block_size=2)
    b = juice.inputs(1, num_node_blocks=2, dist=dists.Bernoulli(), block_size=2)
    c = juice.inputs(2, num_node_blocks=2, dist=dists.Gaussian(mu=0.0, sigma=1.0), block_size=2)
    by_block = juice.multiply(a, b, c, edge_ids=torch.tensor([[1, 0, 1], [0, 1, 1]]))
    edges = torch.tensor([[3, 0, 1], [0, 1, 2], [2, 2, 3], [1, 3, 0]])
    by_node = juice.multiply(a, b, c, edge_ids=edges, sparse_edges=True)
    inner = juice.summate(by_block, by_node, num_node_blocks=2, block_size=2)
    root = juice.summate(juice.multiply(inner), num_node_blocks=1, block_size=1)
    root.init_parameters()
    juice.save(str(tmp_path / "m.jpc"), root)
    circuit = read(tmp_path / "m.jpc")
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 3, 100), rng.integers(0, 2, 100), rng.normal(size=100)])
    p = a.get_params().numpy().astype(float).reshape(4, 3)[:, rows[:, 0].astype(int)]
    q = b.get_params().numpy().astype(float)[:, None]
    q = np.where(rows[:, 1] > 0, q, 1 - q)
    mean, sd = c.get_params().numpy().astype(float).reshape(4, 2).T[:, :, None]
    g = np.exp(-0.5 * ((rows[:, 2] - mean) / sd) ** 2) / sd / math.sqrt(2 * math.pi)
    first = [p[2] * q[0] * g[2], p[3] * q[1] * g[3], p[0] * q[2] * g[2], p[1] * q[3] * g[3]]
    second = [p[3] * q[0] * g[1], p[0] * q[1] * g[2], p[2] * q[2] * g[3], p[1] * q[3] * g[0]]
    weights = inner.get_params(as_matrix=True).numpy().astype(float)
    assert weights.shape == (4, 8)
    top = root.get_params(as_matrix=True).numpy().astype(float)
    expected = np.log(top @ (weights @ np.array([*first, *second])))[0]
    assert np.allclose(log_prob(circuit, rows), expected, atol=1e-5)


def test_circuits_over_some_numbers(tmp_path):
    """Variables that a file does not name are no variables."""
    leaf = pytest.importorskip("deeprob.spn.structure.leaf")
    io = pytest.importorskip("deeprob.spn.structure.io")
    node = pytest.importorskip("deeprob.spn.structure.node")
    inference = pytest.importorskip("deeprob.spn.algorithms.inference")
    clt = pytest.importorskip("deeprob.spn.structure.cltree")
    rng = np.random.default_rng(3)
    p = rng.uniform(0.1, 0.9, (2, 2))
    tables = np.log(np.stack([1 - p, p], axis=-1))
    tables[0, 1] = tables[0, 0]
    tree = clt.BinaryCLT([4, 9], tree=[-1, 0], params=tables.tolist())
    root = node.assign_ids(node.Product([2, 4, 9], children=[leaf.Bernoulli(2, 0.3), tree]))
    io.save_spn_json(root, tmp_path / "m.json")
    ours = read(tmp_path / "m.json")
    assert ours.domain.names == ("2", "4", "9")
    rows = rng.integers(0, 2, (20, 10))
    expected = inference.log_likelihood(root, rows.astype(np.float32)).reshape(-1)
    assert np.allclose(log_prob(ours, rows[:, [2, 4, 9]]), expected, atol=CLOSE)


def test_sparc_over_some_numbers(tmp_path):
    nodes = pytest.importorskip("sparc.nodes")
    serializer = pytest.importorskip("sparc.io.serializer").CircuitSerializer
    theirs = pytest.importorskip("sparc.eval")
    root = nodes.ProductNode([nodes.BernoulliInputNode(2, 0.3), nodes.BernoulliInputNode(5, 0.6)])
    root.propagate_scope()
    serializer.save(root, tmp_path / "m.json")
    ours = read(tmp_path / "m.json")
    assert ours.domain.names == ("2", "5")
    for row in itertools.product((0, 1), repeat=6):
        expected = theirs.log_likelihood(root, np.array(row))
        assert log_prob(ours, [[row[2], row[5]]])[0] == pytest.approx(float(expected), abs=CLOSE)


@pytest.mark.parametrize("learner", ["chow_liu", "hclt", "clt_mixture", "learnspn"])
def test_deeprob_kit_reads_learned_circuits(tmp_path, learner):
    io, inference = (
        pytest.importorskip(f"deeprob.spn.{name}") for name in ("structure.io", "algorithms.inference")
    )
    rng = np.random.default_rng(0)
    group = rng.integers(2, size=150)
    table = {"a": group, "b": group * 2.0 + rng.normal(size=150), "c": rng.normal(size=150) - group}
    model = getattr(cm.learn, learner)(table, rng=0)
    model.write(tmp_path / "m.json")
    rows = np.stack([np.asarray(column, np.float32) for column in table.values()], axis=1)
    theirs = inference.log_likelihood(io.load_spn_json(tmp_path / "m.json"), rows).ravel()
    assert cm.log_likelihood(model, rows) == pytest.approx(theirs, abs=1e-4)  # single precision there
