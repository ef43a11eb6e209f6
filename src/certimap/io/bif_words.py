"""The words of BIF text: patterns of its statements, comments, names and lists of names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

QUOTED = r'"[^"]*"'
COMMENT = re.compile(rf"{QUOTED}|/\*(?:.*?\*/|.*\Z)|(?<![^\s,;(){{}}\[\]|])//[^\n]*", re.DOTALL)
BLANK = re.compile(r"[\s,;]*")
_BLANKS = re.compile(r"\s*")
KEYWORD = re.compile(r"(network|variable|probability|property)\b")
PROPERTY = re.compile(rf"property\b(?:(?:{QUOTED}|[^;\"])*;|[^;]*;)")
NETWORK = re.compile(rf"network\b((?:{QUOTED}|[^{{\"])*)\{{")
VARIABLE = re.compile(rf"variable\s*({QUOTED}|[^\s{{\"]+)\s*\{{")
TYPE = re.compile(rf"type\s+discrete\s*(?:\[\s*(\d+)\s*\])?\s*=?\s*\{{((?:{QUOTED}|[^}}\"])*)\}}\s*;?")
PROBABILITY = re.compile(rf"probability\s*\(((?:{QUOTED}|[^()\"]|\([^()]*\))*)\)\s*\{{")
ROW = re.compile(rf"\(((?:{QUOTED}|[^()\"]|\([^()\"]*\))*)\)([^;()}}]*);")
TABLE = re.compile(r"(table|default)\b([^;()}]*);")
END = re.compile(r"\}")
ITEM = re.compile(rf"\s*({QUOTED}|[^\s,\"]+)\s*")


BLOCK_TOKEN = re.compile(rf"{QUOTED}|\}}")
NUMBERS = re.compile(r"([^;()}]*);")
_BOUND = r"[^\s,;()\[\]{}\"]+"
_INTERVAL = rf"[(\[]\s*{_BOUND}\s*[,;]\s*{_BOUND}\s*[)\]]"
_INTERVAL_ITEM = re.compile(rf"{_INTERVAL}|[^\s,]+")
_INTERVAL_LIST = re.compile(rf"(?:{_INTERVAL}|[^,])+")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_GROUPED_ITEM = re.compile(rf"{_INTERVAL}|\d{{1,3}}(?:,\d{{3}})+(?!\d)|[^\s,]+")
_STEPS = 100_000  # limit on the search for the states named by a row


def _kept(found: re.Match[str]) -> str:
    """Keep quoted text and unterminated comments; reduce other comments to their line ends."""
    if found[0].startswith('"') or (found[0].startswith("/*") and not found[0].endswith("*/")):
        return found[0]
    return " " + "\n" * found[0].count("\n")


def unquoted(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def items(text: str, count: int | None) -> list[str]:
    """Split names at commas if that gives `count` names, else at commas and blanks."""
    if '"' not in text:
        by_comma = [" ".join(part.split()) for part in text.split(",")]
        by_comma = [part for part in by_comma if part]
        return by_comma if len(by_comma) == count else text.replace(",", " ").split()
    by_comma = [part for part in re.findall(rf"(?:{QUOTED}|[^,\"])+", text) if part.strip()]
    if len(by_comma) == count:
        return [unquoted(part.strip()) for part in by_comma]
    return [unquoted(item) for item in ITEM.findall(text)]


def states(text: str, count: int | None) -> list[list[str]]:
    """Return the possible lists of states in a declaration; one list if it is unambiguous.

    Discretisers write states such as `(0.5,1.2]`, `[0;10)` and `1,999` without quotes. Three readings are tried:
    commas or blanks as separators, the same with intervals and grouped digits kept whole, and only commas before
    a blank. `count`, if given, decides.
    """
    quoted = re.findall(QUOTED, text)
    if quoted:  # replaced meanwhile by a number between marks: a character absent from the text
        mark = next(sign for sign in map(chr, range(0xE000, 0x110000)) if sign not in text)
        numbers = iter(range(len(quoted)))
        bare = re.sub(QUOTED, lambda _: f"{mark}{next(numbers)}{mark}", text)
        return [[_restored(item, quoted, mark) for item in found] for found in states(bare, count)]
    plain = items(text, count)
    whole = _INTERVAL_ITEM.findall(text)
    spaced = [" ".join(part.split()) for part in re.split(r",\s+", text.strip()) if part.strip()]
    if count is None:
        if any(_THOUSANDS.fullmatch(part) for part in spaced) and len(spaced) < len(plain):
            return [plain, spaced]
        return [whole if len(whole) < len(plain) else plain]
    if len(plain) == count:
        return [plain]
    by_comma = [" ".join(part.split()) for part in _INTERVAL_LIST.findall(text) if part.strip()]
    in_groups = _GROUPED_ITEM.findall(text)
    found: list[list[str]] = []
    for candidate in (whole, by_comma, spaced, in_groups):
        if len(candidate) == count and candidate not in found:
            found.append(candidate)
    return found or [plain]


def _restored(item: str, quoted: list[str], mark: str) -> str:
    """Replace marks by their quoted texts; quotes around the whole go, those within a name stay."""
    parts = item.split(mark)
    cut = 1 if len(parts) == 3 and not parts[0] and not parts[2] else 0
    parts[1::2] = [quoted[int(number)][cut : len(quoted[int(number)]) - cut] for number in parts[1::2]]
    return "".join(parts)


def known_rows(text: str, at: int, parents: Sequence[Mapping[str, int]]) -> list[tuple[tuple[int, ...], int]]:
    """Return up to two ways to read `( LABELS )` at a position as one state per parent.

    `parents` has the position of each state by its name, for each parent. Each way is the positions of the states
    and the end of the closing parenthesis.
    """
    found: list[tuple[tuple[int, ...], int]] = []
    waiting: list[tuple[tuple[int, ...], int]] = [((), _after_blanks(text, at + 1))]
    steps = 0
    while waiting and len(found) < 2 and steps < _STEPS:
        chosen, place = waiting.pop()
        if len(chosen) == len(parents):
            if text.startswith(")", place):
                found.append((chosen, place + 1))
            continue
        for label, position in parents[len(chosen)].items():
            steps += 1
            for written in (f'"{label}"', label):
                if not (written and text.startswith(written, place)):
                    continue
                end = place + len(written)
                after = _after_blanks(text, end)
                comma = text.startswith(",", after)
                if len(chosen) + 1 == len(parents) or comma or after > end:
                    waiting.append(((*chosen, position), _after_blanks(text, after + 1) if comma else after))
    return found


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def header_names(header: str) -> list[str]:
    """Return the variable and then its parents; a bar, commas or blanks may separate them."""
    return [unquoted(item) for item in re.findall(rf"{QUOTED}|[^\s,|\"]+", header)]


def without_comments(text: str) -> str:
    """Blank the comments of a text; line numbers stay."""
    return COMMENT.sub(_kept, text)
