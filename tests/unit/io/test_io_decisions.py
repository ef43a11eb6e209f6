"""Influence diagrams in files: decisions, utilities and what is known, round trips, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.cli.main import main
from certimap.io import read
from certimap.io.native import fingerprint
from certimap_lab.bench import fuzz_seeds as seeds

FORMATS = ("net", "xdsl", "xmlbif", "pgmx", "uai", "uai.gz", "npz")


def tables(network):
    """Return a network's tables and utilities by names, in an order that files keep."""
    names = network.domain.names
    found = {tuple(names[v] for v in f.scope): f.table for f in network.cpts}
    known = {d: set(network.information(d)) for d in network.decisions}
    return found, known, [(tuple(names[v] for v in u.scope), u.values) for u in network.utilities]


def is_same(first, second):
    (cpts, known, utilities), (cpts2, known2, utilities2) = tables(first), tables(second)
    return (
        cpts.keys() == cpts2.keys()
        and all(np.array_equal(cpts[k], cpts2[k]) for k in cpts)
        and known == known2
        and all(a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(utilities, utilities2, strict=True))
        and first.limited_memory == second.limited_memory
    )


def random_network(seed, limited=False):
    """Draw a network whose names are numbers after a letter; each variable is seen once."""
    rng = np.random.default_rng(seed)
    sizes = {f"v{k}": int(rng.integers(1, 4)) for k in range(6)}
    names, decisions, parents, cpts = list(sizes), {}, {}, {}
    chosen = sorted(rng.choice(6, 2, replace=False).tolist())
    unseen = []
    for k, name in enumerate(names):
        if k in chosen:
            decisions[name] = [v for v in unseen if rng.random() < 0.5]
            unseen = [v for v in unseen if v not in decisions[name]]
            continue
        unseen.append(name)
        parents[name] = [v for v in names[:k] if rng.random() < 0.4]
        table = rng.random([sizes[v] for v in (*parents[name], name)]) + 0.01
        cpts[name] = table / table.sum(axis=-1, keepdims=True)
    utilities = {}
    for k in range(3):
        scope = rng.permutation(names)[: rng.integers(0, 4)].tolist()
        utilities[f"u{k}"] = (scope, rng.normal(size=[sizes[v] for v in scope]) * 10.0 ** rng.integers(-9, 9))
    labels = {name: [f"s{j}" for j in range(size)] for name, size in sizes.items()}
    return cm.DecisionNetwork.from_cpts(labels, parents, cpts, decisions, utilities, limited)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(FORMATS))
def test_round_trips(tmp_path_factory, seed, limited, suffix):
    network, path = random_network(seed, limited), tmp_path_factory.mktemp("trip") / f"m.{suffix}"
    if suffix == "xdsl" and limited:
        with pytest.raises(cm.ModelError, match=r"limited memory cannot be written to .xdsl"):
            network.write(path)
        return
    network.write(path)
    found = read(path)
    if suffix.startswith("uai"):  # names are lost
        names = dict(zip(found.domain.names, network.domain.names, strict=True))
        labels = {names[v.name]: [f"s{j}" for j in v.states] for v in found.domain}
        domain = cm.Domain(cm.Categorical(name, tuple(own)) for name, own in labels.items())
        decisions = {names[d]: [names[v] for v in own] for d, own in found.decisions.items()}
        found = cm.DecisionNetwork(domain, found.cpts, decisions, found.utilities, found.limited_memory)
    if suffix == "npz":
        assert fingerprint(found) == fingerprint(network)
    assert list(found.decisions) == list(network.decisions) or limited
    assert is_same(network, found)


UMBRELLA = cm.DecisionNetwork.from_cpts(
    {"Weather": ["dry", "rain"], "Forecast": ["good", "bad"], "Take": ["leave", "carry"]},
    {"Forecast": "Weather"},
    {"Weather": [0.7, 0.3], "Forecast": [[0.8, 0.2], [0.25, 0.75]]},
    {"Take": ["Forecast"]},
    {"Joy": (["Weather", "Take"], [[100, 60], [0, 70]])},
)


def test_info_says_what_is_known(tmp_path, capsys):
    UMBRELLA.write(tmp_path / "m.net")
    assert main(["info", str(tmp_path / "m.net")]) == 0
    lines = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {"kind DecisionNetwork", "decisions Take, knowing Forecast", "utilities Joy"} <= lines


@pytest.mark.parametrize("name", ["p5_id.xdsl", "p5_id.bifxml"])
def test_files_of_genie_and_pyagrum(shared_cases, name):
    found = read(shared_cases / name)
    utility = found.utilities[0]
    by_weather = utility.values if utility.scope == (0, 2) else utility.values.T
    assert found.decisions == {"Take": ("Forecast",)}
    assert np.array_equal(by_weather, UMBRELLA.utilities[0].values)


def test_sums_of_utilities(tmp_path):
    (tmp_path / "m.xdsl").write_bytes(
        seeds.XDSL_ID.replace(b"</nodes>", b'<mau id="T"><parents>S</parents><weights>3</weights></mau></nodes>')
    )
    first, second = read(tmp_path / "m.xdsl").utilities
    assert np.array_equal(first.values, [[3.0, -6.0], [9.0, 0.0]])
    assert np.array_equal(second.values, [-6000.0, 3.0])


def test_the_order_of_time_comes_from_arcs(tmp_path):
    text = """net { } decision L { states = ("a" "b"); } decision E { states = ("a" "b"); }
    node X { states = ("a" "b"); } utility U { }
    potential (L | X) { } potential (X | E) { data = (.1 .9 .8 .2); } potential (U | L X) { data = (1 2 3 4); }"""
    (tmp_path / "m.net").write_text(text)
    assert list(read(tmp_path / "m.net").decisions) == ["E", "L"]
    assert read(tmp_path / "m.net").information("L") == ("E", "X")
    (tmp_path / "m.net").write_text(text.replace("X | E", "X | ").replace("data = (.1 .9 .8 .2);", ""))
    with pytest.warns(UserWarning, match="no arcs put decisions 'L' and 'E' in order"):
        assert list(read(tmp_path / "m.net").decisions) == ["L", "E"]


def test_public_instances(shared_data):
    folder = shared_data / "decisions"
    found = read(folder / "rand-c20d2o1-01.uai.gz")
    assert found.decisions == {"17": ("5", "21"), "2": ("12",)}
    assert found.information("2") == ("5", "21", "17", "12")
    limited = read(folder / "rand-c20d2o1-01_limid.uai.gz")
    assert limited.information("2") == ("12",)
    assert [u.scope for u in found.utilities] == [(17, 16, 6), (2, 19, 5)]


def diagram(folder, **changed):
    for suffix, data in seeds.DIAGRAM.items():
        (folder / f"m.{suffix}").write_bytes(changed.get(suffix, data))
    return folder / "m.uai"


REFUSED = [
    ("net", seeds.NET_ID.replace(b"(D | A)", b"(D | U)"), "'U' in the table of 'D' is no variable"),
    ("net", seeds.NET_ID.replace(b"3e5", b"much"), ":6: 'much' in the table of 'U' is no utility; .* finite$"),
    ("net", seeds.NET_ID.replace(b"3e5", b"1e999"), "'1e999' in the table of 'U' is no utility"),
    ("net", seeds.NET_ID.replace(b"3e5", b""), "'U' has 5 entries; expected"),
    ("net", seeds.NET_ID.replace(b"{ data = -1; }", b"{ }"), "'V' has no data"),
    ("net", seeds.NET_ID.replace(b"utility V { }", b""), "'-1' in the table of 'V' is no probability"),
    ("net", seeds.NET_ID.replace(b"utility V", b"utility A"), "'A' is declared twice"),
    ("net", seeds.NET_ID.replace(b"(A) { data = (.3 .7)", b"(A | D) { data = (1 0 1 0 1 0)"), "cycle"),
    ("xdsl", seeds.XDSL_ID.replace(b"<parents>U V", b"<parents>U A"), "the sum 'S' of 'U', 'A' has 2 weights"),
    ("xdsl", seeds.XDSL_ID.replace(b"<parents>U V", b"<parents>U S"), "the sum 'S' of 'U', 'S' has 2 weights"),
    ("xdsl", seeds.XDSL_ID.replace(b"1 -2</w", b"1</w"), "the sum 'S' of 'U', 'V' has 1 weights"),
    ("xdsl", seeds.XDSL_ID.replace(b"</nodes>", b'</nodes><dynamic numslices="2"/>'), "decisions or utilities"),
    ("xmlbif", seeds.XMLBIF_ID.replace(b"1 -2 3 0", b"1 -2 3"), "'U' has 3 entries"),
    ("pgmx", seeds.PGMX_ID.replace(b'"Sum"', b'"Product"'), "'product'"),
    (
        "pgmx",
        seeds.PGMX_ID.replace(b'<Variables><Variable name="A"/></V', b'<Variables><Variable name="D"/></V'),
        "'D' has a policy",
    ),
]


@pytest.mark.parametrize(("suffix", "text", "message"), REFUSED)
def test_what_is_refused_is_named(tmp_path, suffix, text, message):
    (tmp_path / f"m.{suffix}").write_bytes(text)
    with pytest.raises(cm.ParseError, match=message) as caught:
        read(tmp_path / f"m.{suffix}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("suffix", "old", "new", "message"),
    [
        ("uai", b"-6", b"x", "'x' is an entry of function 3; expected numbers that are finite$"),
        ("uai", b".1 .9", b".1 .8", "adds up to 0.9|add up|adds to"),
        ("uai", b".3 .7", b"-.3 1.3", "'-.3' is an entry of function 0"),
        ("id", b"C C D D", b"C C D X", r"m\.id: does not fit the .uai file"),
        ("id", b"P P U U", b"P P P U", "."),
        ("pvo", b"4;\n4;", b"4;\n5;", r"m\.pvo: does not fit"),
        ("pvo", b"0;\n3;", b"0 3;\n;", r"decisions and others in the block of 0|does not fit"),
        ("pvo", b"1;\n", b"9;\n", "each number below 4 once"),
    ],
)
def test_files_that_do_not_fit_each_other(tmp_path, suffix, old, new, message):
    path = diagram(tmp_path, **{suffix: seeds.DIAGRAM[suffix].replace(old, new)})
    with pytest.raises(cm.ParseError, match=message) as caught:
        read(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_is_named(tmp_path):
    path = diagram(tmp_path)
    assert read(path).information("3") == ("1", "2")
    (tmp_path / "m.pvo").unlink()
    with pytest.raises(cm.ParseError, match=r"m\.pvo: cannot be read"):
        read(path)


def test_uai_holds_limited_memory_in_blocks_only(tmp_path):
    twice = cm.DecisionNetwork(
        UMBRELLA.domain, UMBRELLA.cpts, {"Take": ["Forecast"]}, UMBRELLA.utilities, limited_memory=True
    )
    twice.write(tmp_path / "m.uai")
    options = {"A": [0, 1], "D": [0, 1], "E": [0, 1]}
    both = cm.DecisionNetwork.from_cpts(options, {}, {"A": [0.5, 0.5]}, {"D": "A", "E": "A"}, {}, True)
    with pytest.raises(cm.ModelError, match="'E' sees is seen by another"):
        both.write(tmp_path / "m.uai")
    for suffix, name in itertools.product(("net", "xmlbif", "pgmx"), ("D", "E")):
        both.write(tmp_path / f"m.{suffix}")
        assert read(tmp_path / f"m.{suffix}").information(name) == ("A",)
