"""Text from the shell, parsed into names, labels and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from certimap.core.domain import Domain
from certimap.errors import QueryError, did_you_mean
from certimap.io.evidence import Evidence, TextOptions
from certimap.io.files import suffix_of
from certimap.io.formats import suffixes


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
    """Return the variables of --query: each option is a name, or names separated by commas."""
    if not options:
        return None
    names: list[str] = []
    for text in options:
        names += [text] if text in domain else split_list(text)
    return names


def parse_evidence(options: Sequence[str] | None, domain: Domain) -> Evidence:
    """Return the evidence of --evidence: each option is NAME=STATE, or several separated by commas.

    Names and labels may contain commas and equals signs: an option that is valid as a single pair is read as one;
    elsewhere double quotes protect a comma.
    """
    evidence: Evidence = {}
    for text in options or ():
        pair = _as_pair(text, domain)
        pairs = [pair] if pair is not None else [_pair(part, domain) for part in split_list(text)]
        for name, label in pairs:
            if name in evidence and evidence[name] != label:
                raise QueryError(
                    f"variable {name!r} has the evidence {evidence[name]!r} and {label!r}; expected one state"
                )
            evidence[name] = label
    return evidence


def parse_upper_bound(text: str | None) -> dict[str, Any] | None:
    """Parse --upper-bound, SOURCE:log_joint=X or SOURCE:log_prob=X, for `map_query`."""
    if text is None:
        return None
    source, _, rest = text.rpartition(":")
    name, _, value = rest.partition("=")
    try:
        return {"source": source, name.strip(): float(value)}
    except ValueError:
        raise QueryError(
            f"--upper-bound {text!r} is no bound; SOURCE:log_joint=X or SOURCE:log_prob=X is expected"
        ) from None


def _as_pair(text: str, domain: Domain) -> tuple[str, Any] | None:
    """Read a text as one pair if a split at an equals sign gives a variable and one of its states."""
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
        raise QueryError(f"{text!r} is no evidence; expected NAME=STATE, with commas between several")
    domain.index(name.strip())
    return name.strip(), domain[name.strip()].parse(label.strip())


def read_warm_start(text: str, domain: Domain, options: TextOptions) -> Any:
    """Return the name of a solver, or the assignments in a file."""
    from certimap.io.evidence import ASSIGNMENT_FORMATS, read_assignments
    from certimap.solvers.registry import names

    if text in names():
        return text
    if suffix_of(text) in ASSIGNMENT_FORMATS or Path(text).exists():
        return read_assignments(text, domain, options)
    raise QueryError(
        f"{text!r} is no warm start; expected a solver's name or a file of assignments "
        f"({suffixes(ASSIGNMENT_FORMATS)}){did_you_mean(text, names())}"
    )


def parse_settings(options: Sequence[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE settings; a value is a JSON literal if valid, else text."""
    settings: dict[str, Any] = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise QueryError(f"{text!r} is no setting; expected NAME=VALUE")
        try:
            settings[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
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
        if "_" in stripped:
            raise ValueError
        return int(float(stripped[:-1] if factor > 1 else stripped) * factor)
    except (ValueError, OverflowError):
        raise QueryError(
            f"{text!r} is no number of bytes; expected a number with K, M, G or T behind it"
        ) from None


def merged(parts: Iterable[Evidence]) -> Evidence:
    """Join evidence from several places; raise QueryError for contradictions."""
    out: Evidence = {}
    for part in parts:
        for name, value in part.items():
            if value is None:
                continue
            if name in out and out[name] != value:
                raise QueryError(f"variable {name!r} has the evidence {out[name]!r} and {value!r}; give one")
            out[name] = value
    return out
