"""The native format, and the table of formats."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests.unit.io.test_io_spn import build_mixed

from certimap import io
from certimap.circuits.circuit import Circuit
from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import CertimapError, ModelError, ParseError
from certimap.io import native
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork

LABELS = Domain(
    [
        Categorical("text", ("a", "1", 'ü, "x"')),
        Categorical("numbers", (1, 2.5, -3)),
        Categorical("flags", (True, False)),
        Categorical("odd", (("none",), (1, "b"), 0.1 + 0.2)),
    ]
)


def assert_same_domain(one, two):
    assert one == two
    for a, b in zip(one, two, strict=True):
        if isinstance(a, Categorical):
            assert [type(s) for s in a.states] == [type(s) for s in b.states]


@pytest.mark.parametrize("name", ["m.npz", "m.npz.gz"])
def test_circuits_come_back_exactly(tmp_path, name):
    circuit = build_mixed()
    circuit.write(tmp_path / name)
    again = io.read(tmp_path / name)
    assert isinstance(again, Circuit)
    assert_same_domain(again.domain, circuit.domain)
    for field in ("kind", "child_ptr", "children", "log_weights", "leaf_var", "param_ptr", "params"):
        one, two = getattr(circuit, field), getattr(again, field)
        assert one.dtype == two.dtype
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("name", ["m.npz", "m.npz.gz"])
def test_networks_come_back_exactly_with_labels_of_any_type(tmp_path, name):
    rng = np.random.default_rng(0)
    bayes = BayesianNetwork(
        LABELS,
        [
            Factor((3,), [0.2, 0.3, 0.5]),
            Factor((3, 0), rng.dirichlet(np.ones(3), 3)),
            Factor((0, 3, 2), rng.dirichlet(np.ones(2), (3, 3))),
            Factor((2, 1), rng.dirichlet(np.ones(3), 2)),
        ],
    )
    markov = MarkovNetwork(
        LABELS, [Factor((), 1e-300), Factor((1, 0), rng.random((3, 3))), Factor((1, 0), np.ones((3, 3)))]
    )
    for network in (bayes, markov, MarkovNetwork(LABELS, [])):
        network.write(tmp_path / name)
        again = io.read(tmp_path / name)
        assert type(again) is type(network)
        assert_same_domain(again.domain, LABELS)
        assert [f.scope for f in again.factors] == [f.scope for f in network.factors]
        for one, two in zip(network.factors, again.factors, strict=True):
            assert one.table.tobytes() == two.table.tobytes()


def test_numpy_labels_come_back_as_the_equal_python_ones(tmp_path):
    domain = Domain([Categorical("n", tuple(np.arange(2))), Real("x", -1.0)])
    builder_domain = domain
    from certimap.circuits.circuit import CircuitBuilder

    builder = CircuitBuilder(builder_domain)
    builder.product([builder.indicator(0, 1), builder.gaussian(1, 0.0, 1.0)])
    builder.build(normalised=False).write(tmp_path / "m.npz")
    again = io.read(tmp_path / "m.npz").domain
    assert again == domain
    assert type(again["n"].states[0]) is int
    assert again["x"] == Real("x", -1.0, math.inf)


def test_labels_that_json_cannot_hold_are_refused(tmp_path):
    network = MarkovNetwork(Domain([Categorical("A", (frozenset({1}), 2))]), [])
    with pytest.raises(ModelError, match="frozenset"):
        network.write(tmp_path / "m.npz")
    assert not list(tmp_path.iterdir())


class Counter:
    def __init__(self, domain, counts):
        self.domain = domain
        self.counts = counts

    def to_arrays(self):
        return {"counts": self.counts}

    @classmethod
    def from_arrays(cls, domain, arrays):
        return cls(domain, arrays["counts"])


def test_other_models_join_by_registration(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "_registered", {})
    model = Counter(Domain.of_sizes([2]), np.array([3, 4]))
    with pytest.raises(ModelError, match="register"):
        io.write(model, tmp_path / "m.npz")
    native.register("counter", Counter)
    io.write(model, tmp_path / "m.npz")
    again = io.read(tmp_path / "m.npz")
    assert isinstance(again, Counter)
    assert again.counts.tolist() == [3, 4]
    monkeypatch.setattr(native, "_registered", {})
    with pytest.raises(ParseError, match="'counter'"):
        io.read(tmp_path / "m.npz")
    model.counts = np.array([object()])
    native.register("counter", Counter)
    with pytest.raises(ModelError, match="objects"):
        io.write(model, tmp_path / "n.npz")


def test_learned_models_join_without_registration(tmp_path):
    from certimap.learn.hidden_model import HiddenChowLiuModel

    rng = np.random.default_rng(2)
    domain = Domain([Categorical("a", ("x", "y")), Categorical("b", (1, 2, 3))])
    emission = [rng.dirichlet(np.ones(k), 2) for k in (2, 3)]
    model = HiddenChowLiuModel(
        domain, np.array([-1, 0]), np.array([0.25, 0.75]), rng.dirichlet(np.ones(2), (2, 2)), emission
    )
    io.write(model, tmp_path / "m.npz")
    again = io.read(tmp_path / "m.npz")
    assert isinstance(again, HiddenChowLiuModel)
    assert again.domain == domain
    for name, values in model.to_arrays().items():
        assert again.to_arrays()[name].tobytes() == values.tobytes()


@pytest.fixture(params=["read", "mapped"])
def mapping(request, monkeypatch):
    """Let files be read, or mapped as large ones are."""
    if request.param == "mapped":
        monkeypatch.setattr("certimap.io.array_files.MAPPED_BYTES", 1)


def test_large_files_are_mapped_aligned_and_survive_their_replacement(tmp_path, monkeypatch):
    monkeypatch.setattr("certimap.io.array_files.MAPPED_BYTES", 1)
    path = tmp_path / "m.npz"
    circuit = build_mixed()
    circuit.write(path)
    again = io.read(path)
    MarkovNetwork(LABELS, []).write(path)  # the old file lives on where it is mapped
    for name in ("kind", "child_ptr", "children", "log_weights", "leaf_var", "param_ptr", "params"):
        values = getattr(again, name)
        assert not values.flags.owndata
        assert values.ctypes.data % 64 == 0
        np.testing.assert_array_equal(values, getattr(circuit, name))


def test_files_of_numpy_itself_are_mapped_too(tmp_path, monkeypatch):
    monkeypatch.setattr("certimap.io.array_files.MAPPED_BYTES", 1)
    path = tmp_path / "m.npz"
    circuit = build_mixed()
    circuit.write(path)
    arrays = dict(np.load(path))
    for save in (np.savez, np.savez_compressed):
        save(path, **arrays)
        again = io.read(path)
        assert again.log_weights.flags.aligned
        assert again.log_weights.tobytes() == circuit.log_weights.tobytes()


def test_no_changed_byte_of_a_mapped_file_goes_unnoticed(tmp_path, monkeypatch):
    monkeypatch.setattr("certimap.io.array_files.MAPPED_BYTES", 1)
    path = tmp_path / "m.npz"
    circuit = build_mixed()
    circuit.write(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 0x15
        path.with_name("n.npz").write_bytes(changed)
        try:
            again = io.read(path.with_name("n.npz"))
        except CertimapError:
            continue
        assert again.params.tobytes() == circuit.params.tobytes()
        assert again.children.tobytes() == circuit.children.tobytes()


def test_equal_models_give_equal_files(tmp_path):
    for name in ("a.npz", "b.npz"):
        build_mixed().write(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.usefixtures("mapping")
def test_damaged_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("certimap.io.native.NODES_TOGETHER", 3)
    path = tmp_path / "m.npz"
    build_mixed().write(path)
    whole = path.read_bytes()
    for data in (b"", whole[:100], whole[:-30], b"no zip at all"):
        path.write_bytes(data)
        with pytest.raises(ParseError):
            io.read(path)
    arrays = dict(np.load(_restored(path, whole)))
    for name, values in (
        ("children", arrays["children"] + 100),
        ("children", arrays["children"][:-1]),
        ("leaf_var", arrays["leaf_var"] + 5),
        ("param_ptr", arrays["param_ptr"][::-1]),
        ("meta", np.array(json.dumps({"version": 2, "kind": "circuit", "domain": []}))),
        ("meta", np.array(json.dumps({"version": 1, "kind": "os:system", "domain": []}))),
        ("meta", np.array(json.dumps({"version": 1, "kind": "certimap.errors:Nothing", "domain": []}))),
        ("meta", np.array("[]")),
    ):
        np.savez(path, **{**arrays, name: values})
        with pytest.raises(ParseError):
            io.read(path)


def _restored(path, data):
    path.write_bytes(data)
    return path


def test_formats_are_chosen_by_suffix_or_by_name(tmp_path, examples):
    network = io.read(examples / "asia.bif")
    network.write(tmp_path / "model.data", format="uai")
    assert len(io.read(tmp_path / "model.data", format="uai").domain) == 8
    assert io.format_of("a/B.BIF.GZ").name == "bif"
    for name in ("model.data", "model", "model.gz"):
        with pytest.raises(ParseError, match=r"\.bif, \.uai, .*\.spn, .*\.npz"):
            io.read(tmp_path / name)


def test_files_that_cannot_be_read_or_are_no_gzip(tmp_path):
    with pytest.raises(CertimapError, match="cannot be read"):
        io.read(tmp_path / "absent.bif")
    (tmp_path / "plain.bif.gz").write_text("network x { }")
    with pytest.raises(ParseError, match="gzip"):
        io.read(tmp_path / "plain.bif.gz")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, examples):
    network = io.read(examples / "asia.bif")
    path = tmp_path / "m.uai"
    network.write(path)
    old = path.read_bytes()

    def fail(descriptor):
        raise OSError(28, "no space")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        network.write(path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["m.uai"]
