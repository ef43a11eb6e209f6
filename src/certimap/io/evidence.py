"""Files of evidence, queries and assignments: one reader per format, and a table of formats for each.

Every reader turns a file into cases. Each case is read on demand, so that an error in one case does not affect
the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import fspath
from typing import Any, Literal

from certimap.core.arguments import is_dict, is_list, is_mapping
from certimap.core.domain import Categorical, Domain
from certimap.core.query import explicit_form
from certimap.core.steps import STEP, by_step
from certimap.errors import CertimapError, ParseError, QueryError, at_place
from certimap.io.files import AnyPath, parsed_json, parsing, suffix_of
from certimap.io.formats import Format, format_of, table_of
from certimap.io.text_tables import CASES, MARKS, SUFFIXES, read_text_table
from certimap.io.uai import read_evidence, read_map, read_query

Evidence = dict[str, Any]
Asked = tuple[list[str] | None, Evidence]


@dataclass(frozen=True)
class TextOptions:
    """Options for reading text files."""

    encoding: str | None = None  # see `certimap.io.files.read_text`
    separator: str | None = None  # see `certimap.io.text_tables.read_text_table`
    layout: Literal["single", "cases"] | None = None  # see `certimap.io.uai.read_evidence`
    strict: bool = False  # whether columns that are no variables are refused
    is_lenient: bool = False  # whether cells that are no states count as missing, and
    lenient: tuple[str, ...] = ()  # the variables for which they do in any case


@dataclass(frozen=True)
class EvidenceCase:
    """One query of a file: the names of the query variables (None if the file has none) and the evidence."""

    place: str  # in the file, for errors
    read: Callable[[], Asked]  # raises a typed error if the case does not fit the model

    def __call__(self) -> Asked:
        """Return the query variables and the evidence; errors name the case's place."""
        try:
            return self.read()
        except ParseError:
            raise  # it already names its line
        except CertimapError as error:
            raise at_place(error, self.place) from None


NO_OPTIONS = TextOptions()


def read_evidence_cases(path: AnyPath, domain: Domain, options: TextOptions = NO_OPTIONS) -> list[EvidenceCase]:
    """Return the cases of an evidence file; see `EVIDENCE_FORMATS`."""
    return format_of(path, None, EVIDENCE_FORMATS, "evidence").reader(path, domain, options)


def read_query_cases(path: AnyPath, domain: Domain, options: TextOptions = NO_OPTIONS) -> list[EvidenceCase]:
    """Return the cases of a query file, with their evidence; see `QUERY_FORMATS`."""
    return format_of(path, None, QUERY_FORMATS, "query").reader(path, domain, options)


def read_assignments(path: AnyPath, domain: Domain, options: TextOptions = NO_OPTIONS) -> list[Evidence]:
    """Return the assignments of a file, for a warm start; see `ASSIGNMENT_FORMATS`."""
    read = format_of(path, None, ASSIGNMENT_FORMATS, "assignment").reader
    found: list[Evidence] = [case()[1] for case in read(path, domain, options)]
    return [{name: value for name, value in one.items() if value is not None} for one in found]


def _csv_cases(path: AnyPath, domain: Domain, options: TextOptions) -> list[EvidenceCase]:
    """Read a table with names in the first row: one case per further row."""
    table = read_text_table(path, encoding=options.encoding, separator=options.separator, missing=MARKS)
    extra = [name for name in table.names if name not in domain]
    with parsing(path, 1):
        for name in extra if options.strict or len(extra) == len(table.names) else ():
            domain.index(name)
    if extra:
        listed = ", ".join(map(repr, extra[:4])) + (", ..." if len(extra) > 4 else "")
        warnings.warn(f"{fspath(path)}: ignored, for the model has no such variables: {listed}", stacklevel=4)

    def read(k: int) -> Asked:
        pairs = enumerate(zip(table.names, table.checked_row(k), strict=True))
        return None, {
            name: table.value(domain, column, cell, options.is_lenient or name in options.lenient)
            for column, (name, cell) in pairs
            if name in domain
        }

    return [EvidenceCase(f"{table.path}:{table.lines[k]}", partial(read, k)) for k in range(len(table.rows))]


def read_steps(path: AnyPath, options: TextOptions = NO_OPTIONS) -> tuple[int, Callable[[Domain], Evidence]]:
    """Read a .csv with a row per step: return the number of steps, and a function that returns their evidence."""
    table = read_text_table(path, encoding=options.encoding, separator=options.separator, missing=MARKS)
    if len(table.names) == 1 and table.lines and table.lines[-1] > len(table.lines) + 1:
        text = "has a blank line, which may be a step without an observation"
        raise ParseError(f"{text}; expected a column 'step' with the steps' numbers", path)

    def read(domain: Domain) -> Evidence:
        with parsing(path):
            rows = [dict(zip(table.names, table.checked_row(k), strict=True)) for k in range(len(table.rows))]
            cells = {n: x for n, x in by_step(rows).items() if n in domain or x.lower() not in table.missing}
            wide = replace(table, names=list(cells), rows=[list(cells.values())])
            return {name: wide.value(domain, k, cell) for k, (name, cell) in enumerate(cells.items())}

    numbered = [
        cells[STEP] for cells in (dict(zip(table.names, row, strict=False)) for row in table.rows) if STEP in cells
    ]
    return 1 + max(map(int, filter(str.isdecimal, numbered)), default=len(table.rows) - 1), read


def _json_cases(path: AnyPath, domain: Domain, options: TextOptions) -> list[EvidenceCase]:
    """Read an object from names to values, or a list of them."""
    data = parsed_json(path, options.encoding)
    items: list[Any] = data if is_list(data) else [data]
    if not any(isinstance(item, dict) for item in items):
        raise ParseError("the file holds no object from names to states and no list of such objects", path)

    def read(item: Any) -> Asked:
        if not is_dict(item):
            raise QueryError(f"{item!r} is no object from names to states")
        return None, {n: json_value(domain, n, v) for n, v in item.items()}

    places = [f"{fspath(path)}, item {k}" if is_list(data) else fspath(path) for k in range(1, len(items) + 1)]
    return [EvidenceCase(place, partial(read, item)) for place, item in zip(places, items, strict=True)]


def json_value(domain: Domain, name: str, value: Any) -> Any:
    """Turn a value from JSON into evidence for `make_query`: texts become labels."""
    variable = domain[name]
    if isinstance(value, str):
        return variable.parse(value)
    if not isinstance(variable, Categorical):
        return value
    form = explicit_form(value)
    if form is not None:
        content: Any = value[form]
        if form == "states" or isinstance(content, Mapping):
            content = _labels_of(variable, content)
        return {form: content}
    if isinstance(value, Mapping):
        return _labels_of(variable, value)
    if is_list(value) and any(isinstance(item, str) for item in value):
        return {"states": _labels_of(variable, value)}
    given: Any = value
    label: Any = _tuples(given)  # a list stays a list unless it is a tuple label
    return label if label is not given and label in variable else given


def _labels_of(variable: Categorical, content: Any) -> list[Any] | dict[Any, Any]:
    """Turn texts in a list, or in the keys of a mapping, into labels."""
    if not is_mapping(content):
        return [variable.parse(label) if isinstance(label, str) else _tuples(label) for label in content]
    weights = {variable.parse(text): weight for text, weight in content.items()}
    if len(weights) < len(content):
        raise QueryError(f"{list(content)!r} name a state of variable {variable.name!r} twice; expected once")
    return weights


def _tuples(value: Any) -> Any:
    """Turn lists into tuples: JSON writes tuple labels as lists."""
    return tuple(_tuples(item) for item in value) if is_list(value) else value


def _json_query(path: AnyPath, domain: Domain, options: TextOptions) -> list[EvidenceCase]:
    """Read a list of names."""
    names = parsed_json(path, options.encoding)
    if not is_list(names) or not all(isinstance(n, str) for n in names):
        raise ParseError("the file holds no list of variable names, which is what is accepted", path)
    return [EvidenceCase(fspath(path), lambda: (list(names), {}))]


def _json_assignments(path: AnyPath, domain: Domain, options: TextOptions) -> list[EvidenceCase]:
    """Read answers from `certimap solve --json`, objects from names to states, or a list of either."""
    data = parsed_json(path, options.encoding)
    items: list[Any] = data if is_list(data) else [data]

    def read(item: Any) -> Asked:
        if not is_dict(item):
            raise QueryError(f"{item!r} is no assignment: an object from names to states is expected")
        inner = item.get("assignment")
        chosen = inner if is_dict(inner) else item
        return None, {n: json_value(domain, n, v) for n, v in chosen.items()}

    failed = {"label", "error", "message"}  # rows of a batch without an answer
    return [
        EvidenceCase(f"{fspath(path)}, item {number}", partial(read, item))
        for number, item in enumerate(items, 1)
        if not (is_dict(item) and set(item) == failed)
    ]


def _numbered(path: AnyPath, domain: Domain, options: TextOptions) -> list[EvidenceCase]:
    """Read pairs of variable and state, query variables, or both, by number."""

    def read(query: list[int] | None, evidence: Mapping[int, int]) -> Asked:
        names = None if query is None else [_name(domain, v) for v in query]
        return names, {_name(domain, v): _state(domain, v, s) for v, s in evidence.items()}

    found: list[tuple[list[int] | None, dict[int, int]]] = []
    if suffix_of(path) == "evid":
        found += [(None, case) for case in read_evidence(path, kind=options.layout, encoding=options.encoding)]
    else:
        is_map = suffix_of(path) == "map"
        found += read_map(path, options.encoding) if is_map else [(read_query(path, options.encoding), {})]
    places = [fspath(path) if len(found) == 1 else f"{fspath(path)}, case {k}" for k in range(1, len(found) + 1)]
    return [EvidenceCase(place, partial(read, *case)) for place, case in zip(places, found, strict=True)]


def _name(domain: Domain, number: int) -> str:
    if not 0 <= number < len(domain):
        raise QueryError(f"{number} is no variable of the model; expected 0 to {len(domain) - 1}")
    return domain.names[number]


def _state(domain: Domain, number: int, state: int) -> Any:
    variable = domain[_name(domain, number)]
    if not isinstance(variable, Categorical) or not 0 <= state < variable.n_states:
        accepted = f"0 to {variable.n_states - 1}" if variable.n_states else "no state, for it is continuous"
        raise QueryError(f"{state} is no state of variable {variable.name!r}; expected {accepted}")
    return variable.states[state]


EVIDENCE_FORMATS = table_of(
    Format("evid", "states by number", _numbered),
    *(Format(suffix, "one case per row", _csv_cases) for suffix in (*SUFFIXES, *CASES)),
    Format("json", "values by name", _json_cases),
)
QUERY_FORMATS = table_of(
    Format("query", "variables by number", _numbered),
    Format("map", "queries with their evidence, by number", _numbered),
    Format("json", "a list of names", _json_query),
)
ASSIGNMENT_FORMATS = table_of(
    Format("json", "answers, or states by name", _json_assignments),
    Format("csv", "one assignment per row", _csv_cases),
)
