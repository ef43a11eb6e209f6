"""What the shell passes as text, turned into names, labels and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from certimap.cli.tables import MISSING, read_rows, read_text
from certimap.domain import Categorical, Domain
from certimap.errors import ParseError, QueryError

Evidence = dict[str, Any]
EvidKind = Literal["single", "cases"]


def split_list(text: str) -> list[str]:
    """Split at commas outside double quotes; the quotes themselves are dropped."""
    parts: list[str] = []
    current: list[str] = []
    quoted = False
    for part in text.split('"'):
        pieces = [part] if quoted else part.split(",")
        for k, piece in enumerate(pieces):
            if k:
                parts.append("".join(current).strip())
                current = []
            current.append(piece)
        quoted = not quoted
    if quoted:
        parts.append("".join(current).strip())
        return parts
    raise QueryError(f"{text!r} opens a quote that it does not close")


def parse_query(options: Sequence[str] | None, domain: Domain) -> list[str] | None:
    """Return the variables that --query names: each option is one name, or names with commas between."""
    if not options:
        return None
    names: list[str] = []
    for text in options:
        names += [text] if text in domain else split_list(text)
    return names


def parse_evidence(options: Sequence[str] | None, domain: Domain) -> Evidence:
    """Return the evidence that --evidence names: each option is NAME=STATE, or several with commas between.

    A name or a label may hold commas and equals signs: an option that reads as one pair is one, and
    double quotes protect a comma elsewhere.
    """
    evidence: Evidence = {}
    for text in options or ():
        pair = _as_pair(text, domain)
        pairs = [pair] if pair is not None else [_pair(part, domain) for part in split_list(text)]
        for name, label in pairs:
            if name in evidence and evidence[name] != label:
                raise QueryError(
                    f"variable {name!r} has the evidence {evidence[name]!r} and {label!r}; one state is accepted"
                )
            evidence[name] = label
    return evidence


def _as_pair(text: str, domain: Domain) -> tuple[str, Any] | None:
    """Read a text as one pair if some split at an equals sign gives a variable and one of its states."""
    for place, character in enumerate(text):
        if character == "=" and text[:place].strip() in domain:
            name = text[:place].strip()
            try:
                return name, domain[name].parse(text[place + 1 :].strip())
            except QueryError:
                continue
    return None


def _pair(text: str, domain: Domain) -> tuple[str, Any]:
    pair = _as_pair(text, domain)
    if pair is not None:
        return pair
    name, equals, label = text.partition("=")
    if not equals:
        raise QueryError(f"{text!r} is no evidence; NAME=STATE is accepted, with commas between several")
    domain.index(name.strip())
    return name.strip(), domain[name.strip()].parse(label.strip())


def label_of(domain: Domain, name: str, value: Any) -> Any:
    """Turn a value from a JSON file into a label, a likelihood, an interval, or None (unobserved)."""
    domain.index(name)
    variable = domain[name]
    if isinstance(value, str):
        return variable.parse(value)
    if isinstance(variable, Categorical) and isinstance(value, Mapping):
        weights = cast("Mapping[str, Any]", value)
        return {variable.parse(label): weight for label, weight in weights.items()}
    if not isinstance(variable, Categorical) and isinstance(value, list):
        return tuple(cast("list[Any]", value))
    return value


def read_evidence_file(path: Path, domain: Domain, kind: EvidKind | None = None) -> list[Evidence]:
    """Return the evidence of each case of a file.

    Parameters
    ----------
    path
        `.evid` (pairs of variable and state by number), `.csv` (a header of names, one case a row, empty
        or `?` for unobserved) or `.json` (an object from names to states, or a list of them).
    kind
        "single" or "cases" settles how an ambiguous `.evid` is read; None decides by the counts.
    """
    suffix = _suffix(path)
    if suffix == ".csv":
        return _located(path, lambda: _csv_cases(path, domain))
    if suffix == ".json":
        return _located(path, lambda: [_json_case(item, domain) for item in _json_objects(path)])
    if suffix == ".evid":
        from certimap import io

        return [_case_by_number(path, case, domain) for case in io.read_evidence(path, kind=kind)]
    raise QueryError(f"{path} is no evidence file by its name; .evid, .csv and .json are accepted")


def read_query_file(path: Path, domain: Domain) -> list[tuple[list[str], Evidence]]:
    """Return the query of each case of a `.query`, `.map` or `.json` file, and the evidence that comes with it."""
    suffix = _suffix(path)
    if suffix == ".json":
        names = _json(path)
        if not isinstance(names, list) or not all(isinstance(n, str) for n in cast("list[Any]", names)):
            raise ParseError("the file holds no list of variable names, which is what is accepted", path)
        return [(cast("list[str]", names), {})]
    if suffix == ".query":
        from certimap import io

        return [(_by_number(path, io.read_query(path), domain), {})]
    if suffix == ".map":
        from certimap import io

        return [
            (_by_number(path, query, domain), _case_by_number(path, case, domain))
            for query, case in io.read_map(path)
        ]
    raise QueryError(f"{path} is no query file by its name; .query, .map and .json are accepted")


def read_warm_start(text: str, domain: Domain) -> Any:
    """Return the name of a solver, or the assignments of a .json or .csv file."""
    path = Path(text)
    if _suffix(path) not in (".json", ".csv") or not path.exists():
        from certimap.solvers.registry import names

        if text not in names():
            raise QueryError(
                f"{text!r} is no warm start; a solver's name or a .json or .csv file of assignments is accepted"
            )
        return text
    if _suffix(path) == ".csv":
        cases = _located(path, lambda: _csv_cases(path, domain))
    else:
        objects = _json_objects(path)
        cases = _located(path, lambda: [_json_case(o.get("assignment", o), domain) for o in objects])
    return [{name: case[name] for name in case if case[name] is not None} for case in cases]


def parse_settings(options: Sequence[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE settings; a value is a JSON literal where it is one, else text."""
    settings: dict[str, Any] = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise QueryError(f"{text!r} is no setting; NAME=VALUE is accepted")
        try:
            settings[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            settings[name.strip()] = value
    return settings


def parse_size(text: str | None) -> int | None:
    """Read a number of bytes such as 500M, 4G or 4GB (powers of 1000)."""
    if text is None:
        return None
    scale = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    stripped = text.strip().upper().removesuffix("B")
    factor = scale.get(stripped[-1:], 1)
    try:
        return int(float(stripped[:-1] if factor > 1 else stripped) * factor)
    except (ValueError, OverflowError):
        raise QueryError(
            f"{text!r} is no number of bytes; a number with K, M, G or T behind it is accepted"
        ) from None


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _by_number(path: Path, numbers: Iterable[int], domain: Domain) -> list[str]:
    """Return the names of variables that a UAI file gives by their numbers."""
    names = domain.names
    out: list[str] = []
    for number in numbers:
        if not 0 <= number < len(names):
            raise QueryError(f"{path}: {number} is no variable of the model; 0 to {len(names) - 1} are accepted")
        out.append(names[number])
    return out


def _case_by_number(path: Path, case: Mapping[int, int], domain: Domain) -> Evidence:
    """Return the labels of evidence that a UAI file gives by numbers of variables and states."""
    evidence: Evidence = {}
    for name, state in zip(_by_number(path, case, domain), case.values(), strict=True):
        variable = domain[name]
        if not isinstance(variable, Categorical) or not 0 <= state < variable.n_states:
            accepted = f"0 to {variable.n_states - 1}" if variable.n_states else "no state, for it is continuous,"
            raise QueryError(f"{path}: {state} is no state of variable {name!r}; {accepted} is accepted")
        evidence[name] = variable.states[state]
    return evidence


def _csv_cases(path: Path, domain: Domain) -> list[Evidence]:
    names, rows = read_rows(path)
    return [{name: _cell(domain, name, cell) for name, cell in zip(names, row, strict=True)} for row in rows]


def _cell(domain: Domain, name: str, cell: str) -> Any:
    """Read a cell as a label; a mark of a missing value is one unless a state is called so."""
    domain.index(name)
    try:
        return domain[name].parse(cell)
    except QueryError:
        if cell.lower() in MISSING:
            return None
        raise


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ParseError(f"the file is no JSON ({error.msg})", path, error.lineno) from None


def _json_objects(path: Path) -> list[dict[str, Any]]:
    data = _json(path)
    items = cast("list[Any]", data if isinstance(data, list) else [data])
    if not items or not all(isinstance(item, dict) for item in items):
        raise ParseError("the file holds no object from names to states and no list of such objects", path)
    return items


def _json_case(item: Mapping[str, Any], domain: Domain) -> Evidence:
    return {name: label_of(domain, name, value) for name, value in item.items()}


def _located(path: Path, read: Any) -> list[Evidence]:
    """Name the file in what goes wrong with its contents."""
    try:
        return read()
    except QueryError as error:
        raise type(error)(f"{path}: {error}") from None


def merged(parts: Iterable[Evidence]) -> Evidence:
    """Join evidence from several places; raise QueryError where two disagree."""
    out: Evidence = {}
    for part in parts:
        for name, value in part.items():
            if value is None:
                continue
            if name in out and out[name] != value:
                raise QueryError(f"variable {name!r} has the evidence {out[name]!r} and {value!r}; give one")
            out[name] = value
    return out
