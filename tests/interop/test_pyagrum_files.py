"""Network files against pyAgrum: every table, both directions; needs pyAgrum and the data."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import certimap as cm
from certimap.io import read, write

gum = pytest.importorskip("pyagrum")

FILES = sorted((Path(__file__).parents[3] / "shared/data/networks").glob("*.bif.gz"))


def compare(network, other, accuracy):
    """Hold each table of a network against pyAgrum's."""
    assert sorted(network.domain.names) == sorted(other.names())
    for factor in network.factors:
        names = [network.domain.names[v] for v in factor.scope]
        cpt = other.cpt(names[-1])
        for v, name in zip(factor.scope, names, strict=True):
            assert list(other.variable(name).labels()) == list(network.domain.variables[v].states)
        axes = list(cpt.names)[::-1]
        assert sorted(axes) == sorted(names)
        values = cpt.toarray().transpose([axes.index(name) for name in names])
        assert np.allclose(values, factor.table, rtol=0, atol=accuracy)


# pyAgrum reads .net and .dsl in single precision, and writes six digits; of its .xdsl see below.
@pytest.mark.parametrize(("suffix", "accuracy"), [("net", 1e-7), ("dsl", 1e-7), ("bifxml", 1e-15)])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_pyagrum_reads_what_is_written(tmp_path, file, suffix, accuracy):
    path = tmp_path / f"m.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(read(file), path)
        compare(read(path), gum.loadBN(str(path)), accuracy)


@pytest.mark.parametrize("suffix", ["net", "dsl", "bifxml", "xdsl"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_pyagrum_writes_is_read(tmp_path, file, suffix):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(read(file), tmp_path / "m.dsl")  # names and states that every format can hold
        write(read(tmp_path / "m.dsl"), tmp_path / "m.bifxml")
        other = gum.loadBN(str(tmp_path / "m.bifxml"))
        path = tmp_path / f"theirs.{suffix}"
        gum.saveBN(other, str(path))
        compare(read(path), other, 2e-6)


def test_tables_in_xdsl_have_the_order_of_genie_unless_agrum_wrote_them(tmp_path):
    """pyAgrum writes and reads .xdsl with the first parent fastest; GeNIe has the last one fastest."""
    other = gum.fastBN("A[2]->C[2]<-B[3]", 2)
    gum.saveBN(other, str(tmp_path / "theirs.xdsl"))
    network = read(tmp_path / "theirs.xdsl")
    compare(network, other, 1e-6)
    write(network, tmp_path / "ours.xdsl")
    ours = gum.loadBN(str(tmp_path / "ours.xdsl"))
    assert not np.allclose(ours.cpt("C").toarray(), other.cpt("C").toarray(), atol=1e-5)
    reader = pytest.importorskip("pgmpy.readwrite").XDSLReader(str(tmp_path / "ours.xdsl"))
    table = reader.get_model().get_cpds("C")
    place = [table.variables.index(name) for name in ("A", "B", "C")]
    own = network.factors[network.domain.index("C")]
    order = [network.domain.names[v] for v in own.scope]
    mine = own.table.transpose([order.index(name) for name in ("A", "B", "C")])
    assert np.allclose(table.values.transpose(place), mine, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_uai_files_of_pyagrum_have_its_values(tmp_path, seed):
    gum.initRandom(seed + 1)
    theirs = gum.fastBN("a->b[3]<-c[4]<-d->a;e[2]->b", 2)
    gum.saveBN(theirs, str(tmp_path / "m.uai"))
    with pytest.warns(UserWarning, match="as pyagrum writes them"):
        ours = read(tmp_path / "m.uai")
    reference = cm.from_object(theirs)
    assert ours.domain.n_states.tolist() == reference.domain.n_states.tolist()
    points = np.array(list(np.ndindex(*ours.domain.n_states.tolist())))
    assert np.allclose(np.exp(ours.log_joint(points)), np.exp(reference.log_joint(points)), atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_uai_files_of_random_fields_have_their_values(tmp_path, seed):
    rng = np.random.default_rng(seed)
    theirs = gum.MarkovRandomField()
    for name, k in (("a", 2), ("b", 3), ("c", 4)):
        theirs.add(gum.LabelizedVariable(name, name, k))
    for scope in (["c", "a"], ["b", "c", "a"], ["b"]):
        theirs.addFactor(scope)
    for scope in theirs.factors():
        theirs.factor(scope).fillWith(rng.random(theirs.factor(scope).domainSize()).tolist())
    gum.saveMRF(theirs, str(tmp_path / "m.uai"))
    with pytest.warns(UserWarning, match="as pyagrum writes them"):
        ours = read(tmp_path / "m.uai")
    reference = cm.from_object(theirs)
    points = np.array(list(np.ndindex(2, 3, 4)))
    assert np.allclose(ours.log_joint(points), reference.log_joint(points), atol=1e-3)
