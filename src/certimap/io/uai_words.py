"""The words of UAI files: comments blanked, tokens taken one after the other, errors that name the line."""

from __future__ import annotations

import re

from certimap.errors import ParseError
from certimap.io.files import AnyPath, cut, line_of
from certimap.io.numbers import Numbers, is_number, read_numbers

LARGEST = 10**18  # no valid file has larger integers
INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def without_comments(path: AnyPath, text: str) -> str:
    """Blank the comments of a UAI text; line numbers stay.

    Comments are text between `/*` and `*/`, text from a `#` to the end of the line, and lines that begin with the
    word c.
    """
    if "/*" in text:
        parts = text.split("/*")
        for k, part in enumerate(parts[1:], 1):
            comment, end, rest = part.partition("*/")
            if not end:
                line = line_of("/*".join(parts[:k]), len("/*".join(parts[:k])))
                raise ParseError("a comment begins here and does not end; '*/' ends it", path, line)
            parts[k] = "\n" * comment.count("\n") + rest
        text = " ".join(parts)
    if "#" in text:
        text = re.sub(r"#[^\n]*", "", text)
    if "c" in text:
        text = re.sub(r"^[ \t]*c(?![^\s])[^\n]*", "", text, flags=re.MULTILINE)
    return text


class Tokens:
    """The words of a text, taken one after the other; errors name the line."""

    def __init__(self, path: AnyPath, text: str) -> None:
        self.path = path
        self.text = without_comments(path, text)
        self.words = self.text.split()
        self.at = 0

    def fail(self, message: str, at: int | None = None) -> ParseError:
        wanted = self.at if at is None else at
        if wanted >= len(self.words):
            return ParseError(message, self.path, line_of(self.text.rstrip(), len(self.text.rstrip())))
        for k, found in enumerate(re.finditer(r"\S+", self.text)):
            if k == wanted:
                return ParseError(message, self.path, line_of(self.text, found.start()))
        return ParseError(message, self.path)

    def integers(self, n: int, what: str, low: int = 0, high: int = LARGEST) -> list[int]:
        """Take n integers, each at least `low` and below `high`."""
        words = self.words[self.at : self.at + n]
        if len(words) < n:
            raise self.fail(f"the file ends where {what} is needed", len(self.words))
        values: list[int] = []
        for k, word in enumerate(words):
            value = int(word) if INTEGER.fullmatch(word) else None
            if value is None or not low <= value < high:
                limit = f"at least {low}" if high == LARGEST else f"from {low} to {high - 1}"
                raise self.fail(
                    f"{cut(word)} stands where {what} is needed; expected an integer {limit}", self.at + k
                )
            values.append(value)
        self.at += n
        return values

    def integer(self, what: str, low: int = 0, high: int = LARGEST) -> int:
        return self.integers(1, what, low, high)[0]

    def numbers(self, n: int, what: str) -> Numbers:
        """Take n finite nonnegative numbers of any size."""
        words = self.words[self.at : self.at + n]
        if len(words) < n:
            raise self.fail(f"the file ends where an entry of {what} is needed", len(self.words))
        values = read_numbers(words)
        if values is None:
            k = next(k for k, word in enumerate(words) if not is_number(word))
            raise self.fail(
                f"{cut(words[k])} is an entry of {what}; expected numbers that are finite and not negative",
                self.at + k,
            )
        self.at += n
        return values
