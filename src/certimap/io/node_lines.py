"""Circuits with one node per line (.nnf, .sdd, .psdd, .jpc): words, numbers, and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from certimap.errors import ParseError
from certimap.io.files import AnyPath, cut, read_text

_INTEGER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
FREE_VARIABLES = 20_000  # limit on variables beyond one per word


@dataclass(frozen=True)
class Line:
    """The words of one line, and its number."""

    words: list[str]
    number: int


class NodeLines:
    """The lines of a file, without blank ones and comments (a first word `c`).

    `path`, `encoding`: the file. `header`: the first word of the file; None for a format without a header.
    """

    def __init__(self, path: AnyPath, encoding: str | None, header: str | None) -> None:
        self.path = path
        lines = (Line(text.split(), k) for k, text in enumerate(read_text(path, encoding).split("\n"), 1))
        self.lines = [line for line in lines if line.words and line.words[0] != "c"]
        self.n_words = sum(len(line.words) for line in self.lines)
        self.header: Line | None = None
        if header is not None and (not self.lines or self.lines[0].words[0] != header):
            shown = cut(self.lines[0].words[0]) if self.lines else "nothing"
            raise self.fail(
                f"the file begins with {shown}; expected {header!r} and its counts",
                self.lines[0] if self.lines else None,
            )
        if header is not None:
            self.header = self.lines.pop(0)
        if not self.lines:
            raise self.fail("has no node; expected one per line")

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def fail(self, message: str, line: Line | None = None) -> ParseError:
        return ParseError(message, self.path, None if line is None else line.number)

    def integers(self, line: Line, what: str, start: int = 1, stop: int | None = None) -> list[int]:
        """Return words of a line as integers of at most nine digits."""
        words = line.words[start:stop]
        for word in words:
            if not _INTEGER.fullmatch(word):
                raise self.fail(f"{cut(word)} stands where {what} is needed; expected an integer", line)
        return list(map(int, words))

    def log_weights(self, line: Line, words: Sequence[str]) -> list[float]:
        """Return words as natural logs: finite numbers or -inf."""
        found: list[float] = []
        for word in words:
            try:
                value = float(word) if "_" not in word else math.nan
            except ValueError:
                value = math.nan
            if math.isnan(value) or value == math.inf:
                raise self.fail(f"{cut(word)} is no log weight; expected finite numbers or -inf", line)
            found.append(value)
        return found

    def log_probability(self, line: Line, word: str, accepted: str) -> float:
        found = self.log_weights(line, [word])[0]
        if found > 0.0:
            raise self.fail(f"{word[:20]!r} is the log of a probability above 1; expected {accepted}", line)
        return found

    def check_variables(self, largest: int, line: Line | None = None) -> int:
        """Return the number of variables; reject one far above the number of words in the file."""
        if not 1 <= largest <= FREE_VARIABLES + self.n_words:
            raise self.fail(
                f"the file has {largest:,} variables and {self.n_words:,} words; expected at least one variable, "
                f"and at most {FREE_VARIABLES:,} more than words",
                line,
            )
        return largest

    def children(self, line: Line, given: Sequence[int], known: dict[int, int]) -> list[int]:
        """Return the nodes with some ids."""
        for child in given:
            if child not in known:
                raise self.fail(f"the child {child} is not defined on an earlier line", line)
        return [known[child] for child in given]

    def expect(self, line: Line, fits: bool, layout: str) -> None:
        """Reject a line with a wrong number of words."""
        if not fits:
            raise self.fail(f"{cut(' '.join(line.words))} does not follow {layout!r}", line)


def define(lines: NodeLines, line: Line, known: dict[int, int], key: int, node: int) -> None:
    """Give a node its id."""
    if key in known:
        raise lines.fail(f"the id {key} is defined twice; expected once", line)
    known[key] = node


def log_complement(log_p: float) -> float:
    """Return ln(1 - p)."""
    return math.log(-math.expm1(log_p)) if log_p < 0.0 else -math.inf
