"""Text of blocks in braces (.net, .dne, .dsl, .dsc) as a tree of blocks, entries and statements.

    HEAD { KEY = VALUE; KEY = { ... }; STATEMENT; HEAD { ... } }

Values stay text; long lists of numbers are parsed in one sweep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from certimap.errors import ParseError
from certimap.io.files import AnyPath, LineCounter, cut, line_of
from certimap.io.numbers import Numbers, numbers_of

_STRING = r'"(?:[^"\\]|\\.)*+"'
_BLANK = re.compile(r"[\s;,]*+")
_HEAD = re.compile(rf"((?:{_STRING}|[^\"{{}}=;]++)*+)([{{}}=;]|\Z)", re.DOTALL)
_UNCLOSED = re.compile(rf"(?:{_STRING}|[^\"]++)*+", re.DOTALL)
_VALUE = re.compile(rf"((?:{_STRING}|[^\";{{}}]++)*+);", re.DOTALL)
_SPACES = re.compile(r"\s*+")
_WORD = re.compile(rf"{_STRING}|[^\s,;()|\"]++", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_LIST = str.maketrans("(),", "   ")
MAX_DEPTH = 100
SLASHES = r"//[^\n]*+|/\*(?:.*?\*/|.*\Z)"  # C++ comments
PERCENT = r"%[^\n]*+"  # Hugin comments


@dataclass(frozen=True)
class BraceEntry:
    """The text after `KEY =`, or a statement without a key; `at` is its position in the text."""

    value: str
    at: int


@dataclass
class BraceBlock:
    """The content of a pair of braces, and the text before it.

    `head`: the text before the opening brace. `at`: where `head` begins. `entries`: the values of each key, in
    order. `statements`: texts that end in ';' (or the closing brace) and have no '='. `blocks`: the blocks inside.
    """

    head: str
    at: int
    entries: dict[str, list[BraceEntry]] = field(default_factory=dict[str, list[BraceEntry]])
    statements: list[BraceEntry] = field(default_factory=list[BraceEntry])
    blocks: list[BraceBlock] = field(default_factory=list["BraceBlock"])

    @property
    def words(self) -> list[str]:
        """The words of the head."""
        return words_of(self.head)

    def named(self, head: str) -> Iterator[BraceBlock]:
        """Yield the inner blocks with a given one-word head, ignoring case."""
        return (block for block in self.blocks if block.head.strip().lower() == head)


class Braces:
    """A text of blocks, and errors that name its lines.

    `path`, `text`: the file, and its content. `comments`: a pattern of its comments.
    """

    def __init__(self, path: AnyPath, text: str, comments: str) -> None:
        self.path = path
        # An unterminated quote or comment extends to the end of the text, so one pass is enough.
        pattern = re.compile(rf'"(?:[^"\\]|\\.)*+(?:"|\Z)|{comments}', re.DOTALL)
        self.text = pattern.sub(self._kept, text)
        self._lines = LineCounter(self.text)
        self.root = self._parsed()

    def _kept(self, found: re.Match[str]) -> str:
        """Keep quoted text; reduce comments to their line ends."""
        if found[0].startswith('"'):
            return found[0]
        if found[0].startswith("/*") and not found[0].endswith("*/"):
            line = line_of(found.string, found.start())
            raise ParseError("a comment begins here and does not end; '*/' ends it", self.path, line)
        return " " + "\n" * found[0].count("\n")

    def line(self, at: int) -> int:
        return self._lines(at)

    def fail(self, message: str, at: int | None = None) -> ParseError:
        return ParseError(message, self.path, self.line(len(self.text.rstrip()) if at is None else at))

    def _parsed(self) -> BraceBlock:
        root = BraceBlock("", 0)
        stack = [root]
        at = _skipped(_BLANK, self.text, 0)
        while at < len(self.text):
            found = _HEAD.match(self.text, at)
            if found is None:
                at = _skipped(_UNCLOSED, self.text, at)
                raise self.fail("a text in double quotes begins here and does not end; '\"' ends it", at)
            head, sign, start, at = found[1].strip(), found[2], at, found.end()
            if sign == "=":
                at = self._assigned(stack, head, start, at)
            elif sign == "{":
                self._opened(stack, head, start)
            elif head:
                stack[-1].statements.append(BraceEntry(head, start))
            if sign == "}":
                if len(stack) == 1:
                    raise self.fail("'}' closes no block; expected one '}' per '{'", at - 1)
                stack.pop()
            at = _skipped(_BLANK, self.text, at)
        if len(stack) > 1:
            raise self.fail(f"the block {cut(stack[-1].head)} has no closing '}}'", stack[-1].at)
        return root

    def _assigned(self, stack: list[BraceBlock], key: str, start: int, at: int) -> int:
        """Take the text after an equals sign: a value, or the opening brace of a block."""
        at = _skipped(_SPACES, self.text, at)
        if self.text.startswith("{", at):
            self._opened(stack, key, start)
            return at + 1
        found = _VALUE.match(self.text, at)
        if found is None:
            raise self.fail(f"the value of {cut(key)} does not end; ';' ends it", start)
        stack[-1].entries.setdefault(key, []).append(BraceEntry(found[1].strip(), start))
        return found.end()

    def _opened(self, stack: list[BraceBlock], head: str, start: int) -> None:
        if len(stack) > MAX_DEPTH:
            raise self.fail(f"blocks lie in one another more than {MAX_DEPTH} deep; expected fewer", start)
        block = BraceBlock(head, start)
        stack[-1].blocks.append(block)
        stack.append(block)

    def entry(self, block: BraceBlock, key: str) -> BraceEntry | None:
        """Return the one entry of a key, or None without any."""
        found = block.entries.get(key, [])
        if len(found) > 1:
            raise self.fail(f"{key} of {cut(block.head)} is given twice; expected once", found[1].at)
        return found[0] if found else None

    def value(self, block: BraceBlock, key: str, default: str = "") -> str:
        """Return the value of the one entry of a key, or a default."""
        entry = self.entry(block, key)
        return default if entry is None else entry.value

    def numbers(self, entry: BraceEntry, what: str) -> Numbers:
        """Read a list of numbers, ignoring parentheses."""

        def refused(k: int) -> ParseError:
            word = list(re.finditer(r"[^\s(),]++", entry.value))[k]
            text = f"{cut(word[0])} in the table of {what} is no probability; expected numbers that are finite and"
            return self.fail(f"{text} not negative", self.text.find(entry.value, entry.at) + word.start())

        return numbers_of(entry.value.translate(_LIST).split(), refused)


def words_of(text: str) -> list[str]:
    """Return the words of a list; commas, blanks and parentheses outside double quotes separate them."""
    return [unquoted(word) for word in _WORD.findall(text)]


def unquoted(text: str) -> str:
    """Return a word without its double quotes and backslash escapes."""
    return _ESCAPE.sub(r"\1", text[1:-1]) if text.startswith('"') else text


def quoted(text: str) -> str:
    """Return a text in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _skipped(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
