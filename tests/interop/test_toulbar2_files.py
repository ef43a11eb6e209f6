"""Files of toulbar2 against pytoulbar2: costs and assignments of both, and a file that it writes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import certimap as cm

toulbar2 = pytest.importorskip("pytoulbar2")


def network_of(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    sizes = rng.integers(1, 4, n).tolist()
    factors = []
    for _ in range(8):
        scope = rng.choice(n, int(rng.integers(1, min(n, 3) + 1)), replace=False).tolist()
        table = np.exp(rng.normal(0, 3, [sizes[v] for v in scope]))
        factors.append(cm.Factor(scope, table * (rng.random(table.shape) < 0.95)))
    return cm.MarkovNetwork(cm.Domain.of_sizes(sizes), factors)


@pytest.mark.parametrize("suffix", ["cfn", "wcsp"])
@pytest.mark.parametrize("seed", range(12))
def test_both_find_the_same_costs(tmp_path, seed, suffix):
    network, path = network_of(seed), str(tmp_path / f"m.{suffix}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cm.write(network, path)
    problem = toulbar2.CFN()
    toulbar2.pytoulbar2.tb2.option.cfn = suffix == "cfn"  # it remembers the format of the last file
    try:
        problem.Read(path)
        found = problem.Solve()
    except Exception:  # "contradiction": no assignment is possible
        found = None
    if found is None:
        with pytest.raises(cm.CertimapError):
            cm.map_query(network, epsilon=0)
        return
    ours = cm.map_query(network, epsilon=0)
    point = np.array(found[0])
    value = sum(float(f.log_table[tuple(point[list(f.scope)])]) for f in network.factors)
    assert np.isclose(value, ours.log_joint, atol=1e-5)
    if suffix == "cfn":
        assert np.isclose(-found[1], value, atol=1e-5)


def test_what_toulbar2_writes_is_read(tmp_path):
    network = network_of(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cm.write(network, tmp_path / "m.cfn")
    problem = toulbar2.CFN()
    problem.Read(str(tmp_path / "m.cfn"))
    problem.Dump(str(tmp_path / "theirs.cfn"))
    theirs = cm.map_query(cm.read(tmp_path / "theirs.cfn"), epsilon=0)
    assert np.isclose(theirs.log_joint, cm.map_query(network, epsilon=0).log_joint, atol=1e-6)
