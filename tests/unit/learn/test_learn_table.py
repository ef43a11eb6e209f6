from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import DataError, MissingDependency
from certimap.learn.table import decode, encode, read_table


def test_columns_become_variables_by_their_type():
    frame = pd.DataFrame(
        {
            "whole": [3, 1, 2, 3],
            "text": ["b", "a", "b", "b"],
            "truth": [True, True, True, True],
            "number": [0.5, 1.5, 2.0, 9.25],
            "gaps": [1.0, np.nan, 2.0, 1.0],
            "bit": [0, 0, 0, 0],
            "constant": ["x"] * 4,
            "kind": pd.Categorical(["lo", "hi", "lo", None], categories=["lo", "mid", "hi"], ordered=True),
        }
    )
    table = read_table(frame)
    d = table.domain
    assert d["whole"] == Categorical("whole", (1, 2, 3))
    assert d["text"] == Categorical("text", ("a", "b"))
    assert d["truth"] == Categorical("truth", (False, True))
    assert d["number"] == Real("number")
    assert d["gaps"] == Categorical("gaps", (1, 2))
    assert d["bit"] == Categorical("bit", (0, 1))
    assert d["constant"] == Categorical("constant", ("x",))
    assert d["kind"] == Categorical("kind", ("lo", "mid", "hi"))
    assert table.points[:, 0].tolist() == [2, 0, 1, 2]
    assert table.points[:, 3].tolist() == [0.5, 1.5, 2.0, 9.25]
    assert np.argwhere(table.missing).tolist() == [[1, 4], [3, 7]]
    assert table.points[0, 7] == 0
    assert table.points[1, 7] == 2


def test_arrays_are_named_by_position_and_keep_their_labels():
    table = read_table(np.array([[5, 0], [7, 1], [5, 1]]))
    assert table.domain.names == ("0", "1")
    assert table.domain["0"].states == (5, 7)
    assert table.points.dtype == np.int16
    assert table.points.tolist() == [[0, 0], [1, 1], [0, 1]]


def test_rows_of_mixed_values_keep_their_types():
    table = read_table([[1, "a"], [2, "b"], [None, "a"]])
    assert table.domain["0"].states == (1, 2)
    assert table.points.tolist() == [[0, 0], [1, 1], [-1, 0]]


class Interchange:
    """A frame that speaks nothing but the interchange protocol."""

    def __init__(self, frame):
        self.frame = frame

    def __dataframe__(self, nan_as_null=False, allow_copy=True):
        return self.frame.__dataframe__(nan_as_null=nan_as_null, allow_copy=allow_copy)


@pytest.mark.filterwarnings("ignore")
def test_the_interchange_protocol_is_enough():
    table = read_table(Interchange(pd.DataFrame({"a": [1, 2, 1], "b": [0.5, 0.25, 0.125]})))
    assert table.domain.names == ("a", "b")
    assert table.points.tolist() == [[0, 0.5], [1, 0.25], [0, 0.125]]


def test_a_missing_pandas_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas.api.interchange", None)
    with pytest.raises(MissingDependency, match=r"pip install certimap\[pandas\]"):
        read_table(Interchange(pd.DataFrame({"a": [1]})))


def test_kinds_overrule():
    data = {"a": [0.5, 0.5, 1.5], "b": [1, 2, 3]}
    domain = read_table(data, kinds={"a": "categorical", "b": "real"}).domain
    assert domain["a"] == Categorical("a", (0.5, 1.5))
    assert domain["b"] == Real("b")


def test_labels_round_trip():
    data = {"a": ["x", "y", "x"], "b": [1, 5, 5], "c": [0.5, 1.5, 0.25]}
    table = read_table(data)
    columns = decode(table.points, table.domain)
    assert {name: values.tolist() for name, values in columns.items()} == data


def test_frames_are_matched_by_name():
    domain = Domain([Categorical("a", (0, 1)), Categorical("b", ("x", "y"))])
    table = encode({"b": ["y", "x"], "other": [1, 2], "a": [True, 0.0]}, domain)
    assert table.points.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.empty((0, 3)), "empty"),
        ([], "shape"),
        ({}, "empty"),
        (np.zeros(4), "two dimensions"),
        ({"a": [1, 2], "b": [1]}, "different lengths"),
        ({"a": [None, None]}, "'a' has no value at all"),
        ({"a": np.array(["2020-01-01"], "datetime64[D]")}, "holds dates"),
        ({"a": [0.5, np.inf]}, "number of size inf"),
        ([[1, 2], [3]], "different lengths"),
    ],
)
def test_unusable_tables_are_refused(data, message):
    with pytest.raises(DataError, match=message):
        read_table(data)


def test_unseen_labels_and_wrong_shapes_are_refused():
    domain = read_table({"a": ["x", "y"], "b": [1, 2]}).domain
    with pytest.raises(DataError, match=r"'z' in column 'a' is no state of variable 'a'; they are 'x', 'y'"):
        encode({"a": ["z"], "b": [1]}, domain)
    with pytest.raises(DataError, match="no column 'b'"):
        encode({"a": ["x"]}, domain)
    with pytest.raises(DataError, match="3 columns"):
        encode(np.zeros((2, 3), int), domain)
