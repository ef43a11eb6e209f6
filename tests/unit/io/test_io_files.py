"""Opening files: packed ones, ones made to fill the memory, missing ones, and the table of formats."""

from __future__ import annotations

import gzip

import pytest

import certimap as cm
from certimap.io import files, formats


def test_a_gzip_bomb_is_refused(tmp_path):
    path = tmp_path / "bomb.uai.gz"
    path.write_bytes(gzip.compress(b"MARKOV\n" + b"1 " * 30_000_000))
    with pytest.raises(cm.ParseError, match="100 times its size"):
        cm.read(path)
    fine = tmp_path / "fine.bif.gz"
    fine.write_bytes(gzip.compress(b" " * (files.FREE_BYTES - 1)))
    with pytest.raises(cm.ParseError, match="no variable"):
        cm.read(fine)


@pytest.mark.parametrize(
    "data",
    [b"plain", gzip.compress(b"text")[:-3], gzip.compress(b"text" * 99)[:-8] + b"12345678"],
    ids=["plain", "cut", "wrong sum"],  # the bytes hold the time, and every worker must collect the same names
)
def test_what_is_no_gzip_file_says_so(tmp_path, data):
    path = tmp_path / "m.bif.gz"
    path.write_bytes(data)
    with pytest.raises(cm.ParseError, match="no complete gzip file"):
        cm.read(path)


def test_a_missing_file_asks_for_its_neighbours(tmp_path):
    for name in ("alarm.bif", "asia.bif", "notes.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(cm.ParseError, match=r"No such file or directory; did you mean 'alarm\.bif'\?"):
        cm.read(tmp_path / "alrm.bif")
    with pytest.raises(cm.ParseError, match=r"No such file or directory$"):
        cm.read(tmp_path / "elsewhere" / "alarm.bif")
    with pytest.raises(cm.ParseError, match="cannot be read"):
        cm.read("nul\0.bif")
    (tmp_path / "folder.bif").mkdir()
    with pytest.raises(cm.ParseError, match="cannot be read: Is a directory"):
        cm.read(tmp_path / "folder.bif")


def test_classes_are_compared_and_not_their_names(tmp_path):
    class Circuit:
        domain = cm.Domain.of_sizes([2])

    with pytest.raises(cm.ModelError, match="a Circuit cannot be written"):
        cm.io.write(Circuit(), tmp_path / "m.spn")


def test_the_suffixes_in_help_texts_come_from_the_table(capsys, monkeypatch):
    from certimap.cli.main import main

    assert formats.suffixes().split() == [f".{name}" for name in formats.FORMATS]
    main(["solve", "--help"])
    assert formats.suffixes() in " ".join(capsys.readouterr().out.split())


def test_models_in_other_encodings(tmp_path):
    text = (
        'network n { }\nvariable "fièvre" { type discrete [ 2 ] { élevée, nulle }; }\n'
        'probability ( "fièvre" ) { table .5, .5; }\n'
    )
    path = tmp_path / "m.bif"
    for encoding in ("latin-1", "utf-16-be"):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(cm.ParseError, match="--encoding"):
            cm.read(path)
        assert cm.read(path, encoding=encoding).domain["fièvre"].states == ("élevée", "nulle")
    path.write_bytes(text.encode("utf-16"))
    assert cm.read(path).domain.names == ("fièvre",)
    spn = tmp_path / "m.spn"
    spn.write_bytes("# né\nindicator 0 0 0\nindicator 1 0 1\n+ 2 0 .5 1 .5\n".encode("utf-16"))
    assert cm.read(spn).domain.n_states.tolist() == [2]
    uai = tmp_path / "m.uai"
    uai.write_bytes("MARKOV 1 2 1 1 0 2 .5 .5".encode("utf-16-le"))
    assert cm.read(uai, encoding="utf-16-le").domain.n_states.tolist() == [2]
