"""Reading a user's table: columns become variables, labels become positions.

What a column becomes:

- booleans, integers and strings (and pandas categories, in their order): a categorical variable whose
  states are the labels seen, sorted; a column of booleans, or of zeros and ones, has both states even
  if only one occurs;
- floating-point numbers: a categorical variable with integer states if all values are whole numbers and at
  most `MAX_WHOLE_LEVELS` of them are distinct (pandas stores integers with gaps this way), otherwise a real
  variable;
- `kinds={"column": "categorical" | "real" | "count"}` overrules this, and `domain=` fixes all columns. A count
  is a real variable that holds whole numbers from 0 and gets Poisson or geometric leaves;
- learners of mixed tables make integer columns of more than `MAX_WHOLE_LEVELS` values real too, unless held-out
  rows are more probable with one state per value.

NaN, None and the missing marks of pandas are missing values everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import fspath
from typing import Any, Literal, cast

import numpy as np

from certimap.core.arguments import has_names, is_mapping, is_missing, is_path, is_records, plain_scalar, shown
from certimap.core.arrays import Array, Flags, Floats, Floats32, Ints
from certimap.core.box import Points
from certimap.core.columns import ColumnNote, ColumnNotes, PreparedTable
from certimap.core.domain import OTHER, Categorical, Domain, Label, Real, Variable
from certimap.core.named import needed
from certimap.core.query import refuse_doubled
from certimap.errors import DataError
from certimap.io.cells import iso

Kind = Literal["categorical", "real", "count", "day"]
Whole = Literal["whole", "count"]
AsLabels = bool | Callable[[Floats], bool]  # of integer columns with many values; a function looks at the values
LARGEST = 1e150  # of a real column: squares and their sums stay floats
MAX_WHOLE_LEVELS = 20
_SHOWN = 5  # states in the description of a column
MISSING = -1
_TYPES = "booleans, integers, strings or floating-point numbers"
_BINARY: tuple[Label, ...] = (0, 1)
_LOGICAL: tuple[Label, ...] = (False, True)


@dataclass(frozen=True, eq=False)
class DataTable:
    """Rows as state positions."""

    domain: Domain  # the variables, one per column
    # shape (n_rows, n_variables): int16 positions with -1 for missing, or float64 with NaN for missing when a
    # variable is real (states are positions there too)
    points: Points
    # real variables that hold integers, by position: "count" if declared by the user
    whole: Mapping[int, Whole] = field(default_factory=dict[int, Whole])
    columns: Sequence[ColumnNote] = ()  # what became of the columns of a table with names

    def __len__(self) -> int:
        return len(self.points)

    def rows(self, numbers: Ints) -> DataTable:
        """Return some of the rows."""
        return DataTable(self.domain, self.points[numbers], self.whole, self.columns)

    def aligned(self, domain: Domain) -> DataTable:
        """Return the columns of a domain, missing where there is none; DataError for one of other states."""
        out = np.full((len(self), len(domain)), MISSING if domain.is_discrete else np.nan, domain.point_dtype)
        for i, name in enumerate(domain.names):
            if name in self.domain and self.domain[name] != domain[name]:
                raise DataError(f"column {name!r} has other states than the variable; expected the same")
            if name in self.domain:
                column = self.points[:, self.domain.index(name)]
                out[:, i] = np.where(missing_in(column), out[:, i], column)
        return DataTable(domain, out)

    def observed(self, i: int) -> Floats:
        """Return the known values of a column as float64."""
        column = self.points[:, i : i + 1]
        return column[~missing_in(column)].astype(np.float64)

    def margins(self) -> list[Floats]:
        """Return each variable's shares of states in a discrete table, with one pseudo-row spread over them."""
        columns = (self.observed(i).astype(np.int64) for i in range(len(self.domain)))
        counts = [np.bincount(c, minlength=v.n_states) for c, v in zip(columns, self.domain, strict=True)]
        return [(c + 1.0 / len(c)) / (c.sum() + 1.0) for c in counts]

    @property
    def codes(self) -> Ints:
        """Positions of the states in a discrete table; a missing value follows the last state."""
        points = self.points.astype(np.int64)
        return np.where(points < 0, self.domain.n_states, points)

    @property
    def missing(self) -> Flags:
        """Where values are missing, shape (n_rows, n_variables)."""
        return missing_in(self.points)


def missing_in(points: Points) -> Flags:
    """Return where values are missing, in the shape of `points`."""
    return np.isnan(points) if points.dtype.kind == "f" else points < 0


def read_table(
    data: Any,
    *,
    domain: Domain | None = None,
    kinds: Mapping[str, Kind] | None = None,
    also: Sequence[Any] = (),
    as_labels: AsLabels = True,
) -> DataTable:
    """Read a table and settle its domain, unless one is given.

    `data`: a 2-D array or anything that NumPy turns into one, a pandas frame, any frame with `columns` or the
    interchange protocol `__dataframe__`, a mapping from names to columns, a list of mappings from names to values,
    or a `DataTable`, which is returned. The columns of arrays are named
    "0", "1", ... `kinds`: overrules what a column becomes, by name. `also`: more tables whose labels belong to the
    domain (a validation split). `as_labels`: whether integers with many values are states, else real.

    Raises DataError for an empty table, a column of an unusable type or without values, or a column or label that
    the domain lacks.
    """
    for more in also:
        if not isinstance(more, DataTable) and not any(len(c.values) for c in columns_of(more)):
            raise DataError("the table of validation rows is empty; leave it out, or give at least one row")
    if isinstance(data, DataTable):
        return data
    if domain is not None:
        return encode(data, domain)
    if isinstance(data, PreparedTable):
        kinds = cast("Mapping[str, Kind]", {**(kinds or {}), **data.kinds})
    if not isinstance(kinds, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"kinds is {shown(kinds)}; expected a mapping from column names to kinds, or None")
    columns = columns_of(data)
    if not columns or not len(columns[0].values):
        shape = (len(columns[0].values) if columns else 0, len(columns))
        raise DataError(f"the table is empty (shape {shape}); at least one row and one column are needed")
    unknown = [name for name in kinds or {} if name not in {c.name for c in columns}]
    if unknown:
        raise DataError(f"kinds names the column {unknown[0]!r}, which the table does not have")
    others = [{c.name: c for c in columns_of(more)} for more in also if not isinstance(more, DataTable)]
    wanted: dict[str, Kind | None] = {c.name: (kinds or {}).get(c.name) for c in columns}
    whole, days = dict[int, Whole](), set[str]()
    for i, c in enumerate(columns):
        if wanted[c.name] == "day":
            wanted[c.name], days = "real", {*days, c.name}
        elif wanted[c.name] == "count":
            _check_counts(c)
            wanted[c.name], whole[i] = "real", "count"
        elif wanted[c.name] is None and (_is_whole(c) or _are_numbers(c, as_labels)):
            wanted[c.name], whole[i] = "real", "whole"
    variables = [_variable_of(c, wanted[c.name], [o[c.name] for o in others if c.name in o]) for c in columns]
    found = Domain(
        replace(v, is_whole=i in whole or v.name in days) if isinstance(v, Real) else v
        for i, v in enumerate(variables)
    )
    rows = DataTable(found, _encode_columns(columns, found), whole)
    return replace(rows, columns=_described(rows, data)) if has_names(data) else rows


def encode(data: Any, domain: Domain, hidden: Collection[str] = ()) -> DataTable:
    """Turn a table into positions of a known domain; raises DataError where they do not fit together.

    Frames and mappings are matched by column name (further columns are ignored), arrays by position. `hidden`:
    variables that are missing where there is no column.
    """
    if not isinstance(domain, Domain):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"domain is {shown(domain)}; expected a certimap.Domain, or None")
    if isinstance(data, DataTable):
        return data if data.domain == domain else data.aligned(domain)
    columns = columns_of(data)
    if has_names(data):
        empty = np.full(len(columns[0].values) if columns else 0, None)
        by_name = {**{name: _column(name, empty) for name in hidden}, **{c.name: c for c in columns}}
        absent = [name for name in domain.names if name not in by_name]
        if absent:
            raise DataError(f"the table has no column {absent[0]!r}; the model's variables are needed")
        columns = [by_name[name] for name in domain.names]
    elif len(columns) != len(domain):
        raise DataError(f"the table has {len(columns)} columns; the model has {len(domain)} variables")
    return DataTable(domain, _encode_columns(columns, domain))


def decode(points: Points, domain: Domain) -> dict[str, Array]:
    """Turn positions into columns of labels by name (object arrays for labels of mixed types)."""
    out: dict[str, Array] = {}
    for i, variable in enumerate(domain):
        if isinstance(variable, Real):
            out[variable.name] = np.asarray(points[:, i], np.float64)
            continue
        labels = np.empty(variable.n_states, object)
        labels[:] = variable.states
        if len({type(s) for s in variable.states}) == 1 and isinstance(variable.states[0], bool | int | float):
            labels = np.array(variable.states)
        out[variable.name] = labels[points[:, i].astype(np.int64)]
    return out


def _described(rows: DataTable, source: Any) -> ColumnNotes:
    """Return what became of each column of a table: of the variables, and of the columns left out of it."""
    prepared = source if isinstance(source, PreparedTable) else PreparedTable()
    absent = missing_in(rows.points).sum(axis=0).tolist()
    found: list[ColumnNote] = []
    for i, variable in enumerate(rows.domain):
        note = prepared.notes.get(variable.name, "")
        if isinstance(variable, Categorical):
            kind, shown = "states", ", ".join(map(str, variable.states[:_SHOWN]))
            shown += f", ... ({variable.n_states})" if variable.n_states > _SHOWN else ""
        else:
            seen = rows.observed(i)
            day = note.startswith("days")
            kind = (
                "day" if day else {"whole": "whole number", "count": "count"}.get(rows.whole.get(i, ""), "number")
            )
            shown = (
                " to ".join(iso(x) if day else f"{x:.12g}" for x in (seen.min(), seen.max())) if len(seen) else ""
            )
        found.append(ColumnNote(variable.name, kind, shown, absent[i], note))
    for place, gone in prepared.left_out:
        found.insert(place, gone)
    return ColumnNotes(found)


def one_hot(domain: Domain, points: Points) -> Floats32:
    """Return the indicators of all states, float32, shape (n_rows, total_states); all 0 for a missing value."""
    out = np.zeros((len(points), domain.total_states), np.float32)
    for i in np.flatnonzero(domain.n_states).tolist():
        rows = np.flatnonzero(points[:, i] >= 0)
        out[rows, domain.offsets[i] + points[rows, i].astype(np.int64)] = 1.0
    return out


def refuse_categorical(table: DataTable, method: str) -> None:
    """Raise DataError that names the first categorical variable, if any."""
    categorical = [v.name for v in table.domain if isinstance(v, Categorical)]
    if categorical:
        raise DataError(
            f"column {categorical[0]!r} is categorical, which {method} cannot take; declare numbers with "
            f"kinds={{{categorical[0]!r}: 'real'}}, or learn with mixture or learnspn, which take all columns"
        )


def _labels_in(column: Column) -> list[Label]:
    present = column.present
    if present.dtype.kind == "O":
        try:
            return list(dict.fromkeys(present))
        except TypeError:
            raise DataError(
                f"column {column.name!r} holds values that are no labels (they cannot be hashed)"
            ) from None
    labels: list[Any] = np.unique(present).tolist()
    return [int(v) if isinstance(v, float) and v.is_integer() else v for v in labels]


def _variable_of(column: Column, kind: Kind | None, others: list[Column]) -> Variable:
    if kind not in (None, "categorical", "real"):
        expected = "'categorical', 'real', 'count' or 'day'"
        raise DataError(f"the kind of column {column.name!r} is {kind!r}; expected {expected}")
    if column.values.dtype.kind == "M":
        told = f"column {column.name!r} holds dates; expected {_TYPES}"
        raise DataError(f"{told}; cm.learn.prepare leaves dates out, or makes days of them")
    if column.categories is not None and kind != "real":
        return Categorical(column.name, column.categories)
    if np.all(column.missing):
        raise DataError(f"column {column.name!r} has no value at all; drop it or give a domain")
    everything = [column, *others]
    numeric = column.values.dtype.kind in "biuf" or (
        kind == "real" and all(isinstance(v, int | float) for v in column.present)
    )
    if kind == "real" or (kind is None and any(_is_real(c) for c in everything)):
        if not numeric or column.categories is not None:
            raise DataError(f"column {column.name!r} holds labels and cannot become a real variable")
        numbers = [column, *(other for other in others if other.values.dtype.kind in "biuf")]
        size = max(float(np.abs(c.present.astype(np.float64)).max(initial=0.0)) for c in numbers)
        if not size <= LARGEST:
            raise DataError(
                f"column {column.name!r} holds a number of size {size:g}; expected at most {LARGEST:g}"
            )
        return Real(column.name)
    labels = list(dict.fromkeys(label for c in everything for label in _labels_in(c)))
    for pair in (_LOGICAL, _BINARY):
        if len(labels) == 1 and type(labels[0]) is type(pair[0]) and labels[0] in pair:
            labels = list(pair)
    return Categorical(column.name, tuple(_sorted(labels)))


def _is_real(column: Column) -> bool:
    if column.values.dtype.kind != "f":
        return False
    present = column.present
    whole = bool(np.all(np.isfinite(present)) and np.all(present == np.rint(present)))
    return not (whole and len(np.unique(present)) <= MAX_WHOLE_LEVELS)


def _is_whole(column: Column) -> bool:
    """Whether a column of floats holds whole numbers, too many for states: integers with gaps in a data frame."""
    return _is_real(column) and bool(np.all(column.present == np.rint(column.present)))


def _are_numbers(column: Column, as_labels: AsLabels) -> bool:
    """Whether a column of integers with more values than labels usually have becomes a real variable."""
    if as_labels is True or column.categories is not None:
        return False
    present = column.present
    some: list[Any] = present.tolist()
    if present.dtype.kind not in "iuO" or any(isinstance(v, bool) or not isinstance(v, int) for v in some):
        return False
    if len(set(some)) <= MAX_WHOLE_LEVELS:
        return False
    return as_labels is False or not as_labels(present.astype(np.float64))


def _check_counts(column: Column) -> None:
    """Raise DataError unless a column holds whole numbers from 0."""
    present = column.present
    try:
        values = present.astype(np.float64)
    except (TypeError, ValueError):
        values = np.full(1, np.nan)
    wrong = np.flatnonzero(~((values >= 0) & (values == np.rint(values)) & np.isfinite(values)))
    if len(wrong) or column.categories is not None:
        shown = repr(present[wrong[0]]) if len(wrong) else "categories"
        raise DataError(f"column {column.name!r} holds {shown}; a count is a whole number from 0")


def _sorted(labels: list[Any]) -> list[Label]:
    try:
        return sorted(labels)
    except TypeError:
        return sorted(labels, key=lambda v: (type(v).__name__, repr(v)))


def _encode_columns(columns: list[Column], domain: Domain) -> Points:
    points: Points = np.empty((len(columns[0].values) if columns else 0, len(domain)), domain.point_dtype)
    for i, (column, variable) in enumerate(zip(columns, domain, strict=True)):
        if isinstance(variable, Real):
            points[:, i] = _real_values(column, variable)
            continue
        codes = _positions(column, variable)
        points[:, i] = np.where(column.missing, np.nan, codes) if points.dtype.kind == "f" else codes
    return points


def _real_values(column: Column, variable: Real) -> Floats:
    try:
        values = np.array(column.values, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"column {column.name!r} holds labels; variable {variable.name!r} is real") from None
    values[column.missing] = np.nan
    outside = ~column.missing & ~((values >= variable.low) & (values <= variable.high) & np.isfinite(values))
    if np.any(outside):
        row = int(np.flatnonzero(outside)[0])
        raise DataError(
            f"{values[row]} in row {row} is no value of variable {variable.name!r}; "
            f"expected finite numbers in [{variable.low}, {variable.high}]"
        )
    return values


def _positions(column: Column, variable: Categorical) -> Ints:
    """Return the position of each label, -1 where missing."""
    out = np.full(len(column.values), MISSING, np.int64)
    present = np.flatnonzero(~column.missing)
    if not len(present):
        return out
    values = column.values[present]
    if values.dtype.kind == "O":
        table = {value: _position(value, column, variable) for value in dict.fromkeys(values)}
        out[present] = [table[value] for value in values]
        return out
    labels, inverse = np.unique(values, return_inverse=True)
    plain: list[Any] = labels.tolist()
    if column.categories is not None:
        plain = [column.categories[code] for code in plain]
    out[present] = np.array([_position(label, column, variable) for label in plain], np.int64)[inverse]
    return out


def _position(label: Any, column: Column, variable: Categorical) -> int:
    if label in variable:
        return variable.index(label)
    if OTHER in variable:
        return variable.index(OTHER)
    shown = ", ".join(repr(s) for s in variable.states[:8]) + (", ..." if variable.n_states > 8 else "")
    raise DataError(
        f"{label!r} in column {column.name!r} is no state of variable {variable.name!r}; they are {shown}"
    )


@dataclass(frozen=True, eq=False)
class Column:
    """One column: its values, a mask of missing ones, and declared categories if any."""

    name: str
    values: Array
    missing: Flags
    categories: tuple[Label, ...] | None = None

    @property
    def present(self) -> Array:
        return self.values[~self.missing]


def columns_of(data: Any) -> list[Column]:
    if is_records(data):
        data = {
            name: [row.get(name) for row in data] for name in dict.fromkeys(name for row in data for name in row)
        }
    if is_mapping(data):
        refuse_doubled(list(data), "the table has two columns", DataError)
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
    attribute = next((name for name in ("columns", "column_names") if hasattr(data, name)), None)
    if attribute is None or not hasattr(data, "__getitem__"):  # only the interchange protocol
        why = f"reading a {type(data).__name__} through __dataframe__ needs pandas; pip install certimap[pandas]"
        return _frame_columns(needed("pandas.api.interchange", why).from_dataframe(data))
    names: list[Any] = list(getattr(data, attribute))
    refuse_doubled(names, "the table has two columns", DataError)
    return [_column(str(name), data[name]) for name in names]


def _array_columns(data: Any) -> list[Column]:
    if is_path(data):
        raise DataError(f"{fspath(data)!r} is a text or path, and no table; cm.learn.prepare(path) reads one")
    try:
        array: Array = np.asarray(data)
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
        categories = tuple(map(plain_scalar, values.cat.categories))
        return Column(name, codes, codes < 0, categories)
    if hasattr(values, "to_numpy") and getattr(dtype, "na_value", None) is not None:  # a nullable pandas dtype
        array: Array = np.asarray(values.to_numpy(dtype=object))
    else:
        array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"column {name!r} has shape {array.shape}; expected one dimension")
    if array.dtype.kind == "O":
        return _object_column(name, array)
    if array.dtype.kind == "f":
        return Column(name, array.astype(np.float64), np.isnan(array))
    if array.dtype.kind == "M":
        return Column(name, array, np.isnat(array))
    if array.dtype.kind not in "biuUS":
        raise DataError(f"column {name!r} is of type {array.dtype}; expected {_TYPES}")
    return Column(name, array, np.zeros(len(array), np.bool_))


def _object_column(name: str, array: Array) -> Column:
    """Find missing values, and turn columns of plain numbers into number columns."""
    missing = np.array([is_missing(value) for value in array], np.bool_)
    present: list[Any] = list(map(plain_scalar, array[~missing]))
    if present and all(isinstance(v, float | int) and not isinstance(v, bool) for v in present):
        values = np.full(len(array), np.nan)
        values[~missing] = present
        if any(isinstance(v, float) for v in present):
            return Column(name, values, missing)
    kept = np.empty(len(array), object)
    kept[~missing] = present
    return Column(name, kept, missing)
