from __future__ import annotations

import gzip

import numpy as np
import pytest

from certimap.errors import DataError, ParseError
from certimap.learn import datasets


def write(folder, name, split, text, packed=False):
    path = folder / f"{name}.{split}.data{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def test_names_lists_twenty_datasets_with_their_sizes():
    names = datasets.names()
    assert len(names) == 20
    assert names["nltcs"] == (16, 16181, 2157, 3236)


def test_load_reads_plain_and_gzipped_files(tmp_path):
    write(tmp_path, "toy", "train", "0,1,0\n1,1,0\n0,0,1\n")
    write(tmp_path, "toy", "valid", "1,0,0\r\n0,0,0\r\n", packed=True)
    write(tmp_path, "toy", "test", "1,1,1")
    data = datasets.load("toy", tmp_path)
    assert data.train.tolist() == [[0, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert data.valid.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert data.test.tolist() == [[1, 1, 1]]
    assert data.domain.names == ("0", "1", "2")
    assert data.domain.n_states.tolist() == [2, 2, 2]
    assert data.note == ""
    assert data.train is datasets.load("toy", tmp_path).train


def test_load_says_which_split_stands_in(tmp_path, monkeypatch):
    write(tmp_path, "toy", "valid", "0,1\n")
    write(tmp_path, "toy", "test", "0,1\n1,1\n")
    monkeypatch.setenv("CERTIMAP_DATA", str(tmp_path))
    with pytest.warns(datasets.StandInWarning, match="test stands in for train"):
        data = datasets.load("toy")
    assert data.sources == {"train": "test", "valid": "valid", "test": "test"}
    assert len(data.train) == 2
    assert data.validation is data.valid


def test_validation_is_none_where_it_is_the_training_data(tmp_path):
    write(tmp_path, "toy", "valid", "0,1\n")
    with pytest.warns(datasets.StandInWarning):
        data = datasets.load("toy", tmp_path)
    assert data.validation is None


def test_load_reads_wider_numbers(tmp_path):
    write(tmp_path, "toy", "train", "0,12\n3,4\n")
    write(tmp_path, "toy", "valid", "0,0\n")
    write(tmp_path, "toy", "test", "0,0\n")
    assert datasets.load("toy", tmp_path).domain.n_states.tolist() == [4, 13]


def test_errors_say_where_the_collection_is(tmp_path, monkeypatch):
    monkeypatch.delenv("CERTIMAP_DATA", raising=False)
    with pytest.raises(DataError, match=r"CERTIMAP_DATA.*Density-Estimation-Datasets"):
        datasets.load("nltcs")
    with pytest.raises(DataError, match=r"nltcs\.train\.data.*Density-Estimation-Datasets"):
        datasets.load("nltcs", tmp_path)
    with pytest.raises(DataError, match="none of the twenty"):
        datasets.load("nonsense", tmp_path)
    with pytest.raises(DataError, match="is no folder"):
        datasets.load("nltcs", tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [("0,1\n0,x\n", 2, "'x' is no state"), ("0,1\n1,0\n1\n", 3, "has 1 values"), ("0,1\n0,-1\n", 2, "'-1'")],
)
def test_a_bad_row_is_named(tmp_path, text, line, what):
    write(tmp_path, "toy", "train", text)
    with pytest.raises(ParseError, match=what) as caught:
        datasets.load("toy", tmp_path)
    assert caught.value.line == line


def test_the_public_files_have_the_published_sizes(shared_data):
    data = datasets.load("nltcs", shared_data / "twenty")
    sizes = datasets.names()["nltcs"]
    assert (len(data.domain), len(data.train), len(data.valid), len(data.test)) == sizes
    assert np.all(np.isin(data.train, (0, 1)))
