"""Typed errors: each message is one sentence naming the value, the place and what is expected."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from os import PathLike, fspath
from typing import TypeVar

_MAX_COMPARED = 5000  # words; a comparison takes some ten microseconds


class CertimapError(Exception):
    """Base class of every error that certimap raises on purpose."""


class ModelError(CertimapError, ValueError):
    """A model is malformed, or too large for the limits in force."""


class TooLarge(ModelError):
    """A model would need more memory, table entries or edges than the limits in force allow."""


class ParseError(ModelError):
    """A file does not follow its format.

    `message`: what is wrong and what is expected, without the place.
    `path`, `line`: the place; `line` counts from 1 and is None where no line applies.
    """

    def __init__(self, message: str, path: str | PathLike[str] | None = None, line: int | None = None) -> None:
        self.path = None if path is None else fspath(path)
        self.line = line
        place = self.path or "<text>"
        if line is not None:
            place = f"{place}:{line}"
        super().__init__(f"{place}: {message}")


class QueryError(CertimapError, ValueError):
    """A query names something unknown, or contradicts itself."""


class ImpossibleEvidence(QueryError):
    """The evidence has probability zero under the model."""


class NoAnswer(QueryError):
    """No assignment of positive probability satisfies the constraints of a query, which is proved."""


class SolverError(CertimapError, ValueError):
    """A solver cannot run on this posterior, or its settings are out of range."""


class UnbalancedBooks(SolverError):
    """What a solver reported of its search contradicts itself: the boxes do not make up the space."""


class WriteError(CertimapError, OSError):
    """A file cannot be written; also an OSError, with its `errno` and `filename`."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class DataError(CertimapError, ValueError):
    """A table of data is empty, malformed, absent, or holds what the method or the model cannot take."""


class MissingDependency(CertimapError, ImportError):
    """An optional package is not installed; the message says what to install."""


_Error = TypeVar("_Error", bound=CertimapError)


def at_place(error: _Error, place: str) -> _Error:
    """Put the name of a place (a row, a file) before an error's message; return the error, of its own type."""
    error.args = (f"{place}: {error}",)
    return error


def did_you_mean(word: str, known: Iterable[str], limit: int = 3) -> str:
    """Return the end of a sentence, which asks for the words nearest to one that is unknown, or "" without any.

    Where none is near, the only word that begins with the unknown one counts: "eps" asks for "epsilon".

    Cost: linear in the number of known words; words of very different length are not looked at closely.
    """
    folded = word.casefold()
    span = max(2, len(word) // 3)
    near: dict[str, None] = {}
    begun: list[str] = []
    for candidate in known:
        other = candidate.casefold()
        if other == folded:
            return f"; did you mean {candidate!r}?"
        if len(word) >= 3 and other.startswith(folded):
            begun.append(candidate)
        if abs(len(candidate) - len(word)) <= span and set(folded) & set(other):
            near[candidate] = None
        if len(near) >= _MAX_COMPARED:
            break
    words = get_close_matches(word, near, n=limit, cutoff=0.65) or (begun if len(begun) == 1 else [])
    found = [repr(w) for w in words]
    if not found:
        return ""
    return f"; did you mean {' or '.join([', '.join(found[:-1]), found[-1]] if found[1:] else found)}?"
