"""Mutated files: readers return or raise a typed error, soon and in little memory; all else is a failure."""

from __future__ import annotations

import time
import zipfile

import numpy as np
import pytest

import certimap as cm
from certimap.cli.main import main
from certimap_lab.bench.fuzz import LIMIT_SECONDS, fuzz, input_of, targets


@pytest.mark.parametrize("name", list(targets()))
def test_mutated_files(name):
    tally = fuzz(name, 0, 500)
    assert tally.failures == []
    assert tally.n_read > 0
    assert tally.n_read + tally.n_refused == 500
    assert tally.slowest < LIMIT_SECONDS


def test_an_input_is_made_again_from_its_number():
    target = targets()["npz"]
    assert input_of("npz", 0, 5, target) == input_of("npz", 0, 5, target) != input_of("npz", 1, 5, target)


def test_the_command_reports_a_table(capsys):
    assert main(["bench", "fuzz", "--inputs", "20", "--format", "evid,query"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines] == ["format", "---", "evid", "query"]
    assert main(["bench", "fuzz", "--format", "xml"]) == 2
    assert "'xml'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.uai", f"MARKOV 1 {10**11} 0"),
        ("m.uai", f"MARKOV 1 {'9' * 400} 0"),
        ("m.uai", f"MARKOV {'9' * 5000} 2 0"),
        ("m.uai", "MARKOV 3000 " + "32767 " * 3000 + "0"),
        ("m.uai", "MARKOV 70 " + "1 " * 70 + "1 70 " + " ".join(map(str, range(70))) + " 1 1"),
        ("m.uai", "MARKOV 2 2 2 1 2 0 1 " + "9" * 17),
        ("m.bif", f"variable A {{ type discrete [ {'9' * 5000} ] {{ a, b }}; }}"),
        ("m.spn", "\n".join(f"indicator {k} {k} 32766" for k in range(2000)) + "\n* 2000 0"),
        ("m.spn", "indicator 0 0 0\n+ 1 0 1e-" + "9" * 5000),
        ("m.spn", "\x1c\n"),  # blank to Python's text, and a word to this reader
    ],
)
def test_numbers_that_size_memory_are_checked_first(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(cm.ParseError) as caught:
        cm.read(path)
    assert len(str(caught.value)) < 600


def test_default_rows_of_many_parents_are_refused(tmp_path):
    lines = [
        f"variable V{k} {{ type discrete [ 10 ] {{ {', '.join(f's{i}' for i in range(10))} }}; }}"
        for k in range(12)
    ]
    lines += [f"probability ( V{k} ) {{ table {' '.join(['.1'] * 10)}; }}" for k in range(1, 12)]
    lines += [
        f"probability ( V0 | {', '.join(f'V{k}' for k in range(1, 12))} ) {{ default {' '.join(['.1'] * 10)}; }}"
    ]
    (tmp_path / "m.bif").write_text("\n".join(lines))
    with pytest.raises(cm.ParseError, match="not written out"):
        cm.read(tmp_path / "m.bif")


def archive(path, method=zipfile.ZIP_STORED, **entries):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in entries.items():
            file.writestr(f"{name}.npy", content)


def npy(shape, dtype="<f8", data=b""):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n" + data


@pytest.mark.parametrize(
    ("entries", "method"),
    [
        ({"meta": npy("(10000000000000,)")}, zipfile.ZIP_STORED),
        ({"meta": npy("(-1, -8)", data=bytes(64))}, zipfile.ZIP_STORED),
        ({"meta": npy("()", "|O", b"cos\nsystem\n")}, zipfile.ZIP_STORED),
        ({"meta": npy("(3,)", "<U0")}, zipfile.ZIP_STORED),
        ({"meta": npy("()", "<U2", b"{\x00\x00\x00\xff\xff\xff\xff")}, zipfile.ZIP_STORED),
        ({"meta": bytes(10**8)}, zipfile.ZIP_DEFLATED),
        ({"meta": npy("()")}, zipfile.ZIP_LZMA),
    ],
)
def test_archives_made_to_harm(tmp_path, entries, method):
    archive(tmp_path / "m.npz", method, **entries)
    with pytest.raises(cm.ParseError):
        cm.read(tmp_path / "m.npz")


def test_odd_zip_entries(tmp_path):
    path = tmp_path / "m.npz"
    cm.MarkovNetwork(cm.Domain.of_sizes([2]), [cm.Factor((0,), [0.5, 0.5])]).write(path)
    good = path.read_bytes()
    at = good.index(b"PK\x01\x02")
    for offset, value in ((10, 99), (10, 12), (6, 143), (8, 1)):  # compression, version needed, encryption
        path.write_bytes(good[: at + offset] + bytes([value]) + good[at + offset + 1 :])
        with pytest.raises(cm.ParseError):
            cm.read(path)


@pytest.mark.parametrize("kind", ["certimap.cli.__main__:main", "os:system", "certimap.errors:ParseError", ""])
def test_a_file_cannot_name_what_is_imported(tmp_path, kind):
    meta = f'{{"format": "certimap", "version": 1, "kind": "{kind}", "domain": []}}'
    np.savez(tmp_path / "m.npz", meta=np.array(meta))
    with pytest.raises(cm.ParseError, match="not registered"):
        cm.read(tmp_path / "m.npz")


N = 200_000
REPEATED = ("c " * N, "/*" * N, "/* " * N, '"' * (N + 1), "(" * N, "{" * N, "\n" * 500_000)


@pytest.mark.parametrize("text", REPEATED, ids=lambda text: repr(text[:2]))
@pytest.mark.parametrize("suffix", ["bif", "uai", "spn"])
def test_long_repetitions_take_no_long_time(tmp_path, suffix, text):
    path = tmp_path / f"m.{suffix}"
    for start in ("", "network a {\n", "MARKOV 1 2 1 1 0 2 .5 ", "variable A { type discrete [ 2 ] { "):
        path.write_text(start + text)
        began = time.process_time()
        with pytest.raises(cm.ParseError):
            cm.read(path)
        assert time.process_time() - began < LIMIT_SECONDS
