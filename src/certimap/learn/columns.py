"""The columns of a user's table from any library: their values, and which are missing.

NaN, None and the missing marks of pandas are missing values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Label
from certimap.core.untyped import is_mapping, is_missing, is_path
from certimap.errors import DataError, MissingDependency


@dataclass(frozen=True, eq=False)
class Column:
    """One column: its values, a mask of missing ones, and declared categories if any."""

    name: str
    values: NDArray[Any]
    missing: NDArray[np.bool_]
    categories: tuple[Label, ...] | None = None


def has_names(data: Any) -> bool:
    if isinstance(data, Mapping) or hasattr(data, "columns") or hasattr(data, "column_names"):
        return True
    return hasattr(data, "__dataframe__")


def columns_of(data: Any) -> list[Column]:
    if is_mapping(data):
        _refuse_doubled(list(data))
        columns = [_column(str(name), values) for name, values in data.items()]
    elif has_names(data):
        columns = _frame_columns(data)
    else:
        columns = _array_columns(data)
    lengths = {len(c.values) for c in columns}
    if len(lengths) > 1:
        raise DataError(f"the columns have different lengths: {sorted(lengths)}")
    return columns


def _frame_columns(data: Any) -> list[Column]:
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        names: list[Any] = list(data.columns)
    elif hasattr(data, "column_names") and hasattr(data, "__getitem__"):
        names: list[Any] = list(data.column_names)
    else:
        return _frame_columns(_interchanged(data))
    _refuse_doubled(names)
    return [_column(str(name), data[name]) for name in names]


def _refuse_doubled(names: list[Any]) -> None:
    """Reject names that are equal as text: one column would hide another."""
    texts = [str(name) for name in names]
    if len(set(texts)) != len(texts):
        doubled = next(name for name, text in zip(names, texts, strict=True) if texts.count(text) > 1)
        raise DataError(f"the table has two columns named {doubled!r}; names must be distinct")


def _interchanged(data: Any) -> Any:
    """Turn a frame that supports only the interchange protocol into a pandas frame."""
    try:
        from pandas.api.interchange import from_dataframe  # pyright: ignore[reportUnknownVariableType]
    except ImportError:
        raise MissingDependency(
            f"reading a {type(data).__name__} through __dataframe__ needs pandas; pip install certimap[pandas]"
        ) from None
    return from_dataframe(data)


def _array_columns(data: Any) -> list[Column]:
    if is_path(data):
        raise DataError(f"{fspath(data)!r} is a text or path, and no table; pandas.read_csv(path) reads one")
    try:
        array: NDArray[Any] = np.asarray(data)
    except ValueError:
        raise DataError("the rows of the table have different lengths; expected a rectangular table") from None
    if array.dtype.kind in "US":
        # NumPy turns rows that mix numbers and text into text only; keep each original value.
        array = np.asarray(data, dtype=object) if not isinstance(data, np.ndarray) else array
    if array.ndim != 2:
        raise DataError(f"the table has shape {array.shape}; expected two dimensions (rows, columns)")
    return [_column(str(i), array[:, i]) for i in range(array.shape[1])]


def _column(name: str, values: Any) -> Column:
    dtype = getattr(values, "dtype", None)
    if hasattr(dtype, "categories") and hasattr(values, "cat"):  # a pandas categorical
        codes = np.asarray(values.cat.codes, np.int64)
        categories = tuple(plain_labels(np.asarray(values.cat.categories, dtype=object)))
        return Column(name, codes, codes < 0, categories)
    if hasattr(values, "to_numpy") and getattr(dtype, "na_value", None) is not None:  # a nullable pandas dtype
        array: NDArray[Any] = np.asarray(values.to_numpy(dtype=object))
    else:
        array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"column {name!r} has shape {array.shape}; expected one dimension")
    if array.dtype.kind == "O":
        return _object_column(name, array)
    if array.dtype.kind == "f":
        return Column(name, array.astype(np.float64), np.isnan(array))
    if array.dtype.kind not in "biuUS":
        raise DataError(
            f"column {name!r} is of type {array.dtype}; expected booleans, integers, strings or floating-point "
            "numbers"
        )
    return Column(name, array, np.zeros(len(array), np.bool_))


def _object_column(name: str, array: NDArray[Any]) -> Column:
    """Find missing values, and turn columns of plain numbers into number columns."""
    missing = np.array([is_missing(value) for value in array], np.bool_)
    present: list[Any] = [v.item() if isinstance(v, np.generic) else v for v in array[~missing]]
    if present and all(isinstance(v, float | int) and not isinstance(v, bool) for v in present):
        values = np.full(len(array), np.nan)
        values[~missing] = present
        if any(isinstance(v, float) for v in present):
            return Column(name, values, missing)
    kept = np.empty(len(array), object)
    kept[~missing] = present
    return Column(name, kept, missing)


def plain_labels(values: NDArray[Any]) -> list[Label]:
    """Turn NumPy scalars into Python labels."""
    return [v.item() if isinstance(v, np.generic) else v for v in values.tolist()]
