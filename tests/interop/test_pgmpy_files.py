"""Files that pgmpy writes: the same tables as from pgmpy's own objects."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import certimap as cm

readwrite = pytest.importorskip("pgmpy.readwrite")
cpds = pytest.importorskip("pgmpy.factors.discrete")
models = pytest.importorskip("pgmpy.models")


def network_of(seed):
    """Return a network with parents in any order, and its variables as .uai files number them."""
    rng = np.random.default_rng(seed)
    sizes = {f"v{i}": int(size) for i, size in enumerate(rng.integers(2, 5, 5))}
    order, model = rng.permutation(list(sizes)).tolist(), models.DiscreteBayesianNetwork()
    model.add_nodes_from(sizes)
    for k, name in enumerate(order):
        parents = [p for p in order[:k] if rng.random() < 0.6]
        model.add_edges_from((p, name) for p in parents)
        shape = [sizes[p] for p in parents]
        table = rng.dirichlet(np.ones(sizes[name]), int(np.prod(shape, dtype=int))).T
        model.add_cpds(cpds.TabularCPD(name, sizes[name], table, parents or None, shape or None))
    return model, sorted(sizes, key=lambda name: (str(sizes[name]), name))


@pytest.mark.parametrize("suffix", ["xbn", "uai", "net", "xdsl", "xmlbif", "bif"])
@pytest.mark.parametrize("seed", range(6))
def test_tables_are_those_of_the_object(tmp_path, seed, suffix):
    model, numbered = network_of(seed)
    names = {"xbn": "XBNWriter", "uai": "UAIWriter", "net": "NETWriter", "xdsl": "XDSLWriter", "bif": "BIFWriter"}
    path = str(tmp_path / f"m.{suffix}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(readwrite, names.get(suffix, "XMLBIFWriter"))(model).write(path)
        found, ours = cm.read(path), cm.from_object(model)
    for factor in ours.factors:
        scope = [ours.domain.names[v] for v in factor.scope]
        own = [str(numbered.index(name)) for name in scope] if suffix == "uai" else scope
        other = found.factors[found.domain.index(own[-1])]
        theirs = [found.domain.names[v] for v in other.scope]
        assert np.allclose(other.table.transpose([theirs.index(name) for name in own]), factor.table, atol=1e-6)
