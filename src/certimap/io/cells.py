"""How the columns of a text table write values: decimal commas, thousands, dates, words for yes and no."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

MISSING = frozenset({"", "?", "na", "nan", "n/a", "#n/a", "<na>", "null"})
EPOCH = date(1970, 1, 1).toordinal()
_HAS_WORD = re.compile(r"\w")
CODE = re.compile(r"[+-]?0\d+", re.ASCII)  # such as 007, which is no number
_SIGNS = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'", "\u2212": "-"})
_TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?Z?)?"
_DATE = re.compile(r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})" + _TIME, re.ASCII)
_PAIRS = [  # words for no and yes
    set(pair.split()) for pair in ("no yes", "n y", "false true", "f t", "off on", "nein ja", "n j", "falsch wahr",
                                   "non oui", "faux vrai", "no si", "no sí", "nee ja")
]  # fmt: skip


def _pattern(point: str, group: str) -> re.Pattern[str]:
    digits = rf"(?:\d+|\d{{1,3}}(?:{group}\d{{3}})+)" if group else r"\d+"
    return re.compile(rf"[+-]?(?:{digits}(?:\{point}\d*)?|\{point}\d+)(?:[eE][+-]?\d+)?", re.ASCII)


_SIGN_PAIRS = [(point, group) for point, other in (".,", ",.") for group in ("", other, " ", "'")]
_PATTERNS = {(point, group): _pattern(point, re.escape(group)) for point, group in _SIGN_PAIRS}


@dataclass(frozen=True)
class Convention:
    """How one column writes its values."""

    kind: str = "text"  # or "number", "date", "words"
    decimal: str = "."
    group: str = ""  # between thousands
    order: str = "ymd"  # of the parts of dates
    sign: str = "-"  # between them
    spelling: Mapping[str, str] | None = None  # of words for yes and no, by their lower case
    note: str = ""  # what a reader should know

    def plain(self, cell: str) -> str | None:
        """Return a cell as a number with a decimal point, an ISO date, or a word in one spelling, if it fits.

        None for a cell of signs alone, such as a dash, among numbers or dates.
        """
        if self.kind in ("number", "date") and not _HAS_WORD.search(cell):
            return None
        if self.kind == "number":
            text = cell.translate(_SIGNS)
            if not _PATTERNS[self.decimal, self.group].fullmatch(text):
                return cell
            return (text.replace(self.group, "") if self.group else text).replace(self.decimal, ".")
        if self.kind == "date":
            return cell if (day := day_of(cell, self.order)) is None else iso(day)
        return self.spelling.get(cell.casefold(), cell) if self.spelling is not None else cell

    def date(self, day: float) -> str:
        """Return a number of days since 1970-01-01 as the date that this column writes."""
        parts = dict(zip("ymd", iso(day).split("-"), strict=True))
        return self.sign.join(parts[part] for part in self.order)


def day_of(cell: str, order: str = "ymd") -> int | None:
    """Return the days of a date since 1970-01-01, cut off a time of day; None for other text."""
    if found := _DATE.fullmatch(cell):
        parts = dict(zip(order, (found[1], found[3], found[4]), strict=True))
        with suppress(ValueError):
            if len(parts["y"]) == 4:
                return date(int(parts["y"]), int(parts["m"]), int(parts["d"])).toordinal() - EPOCH
    return None


def iso(day: float) -> str:
    """Return the date that is so many days after 1970-01-01, as year-month-day."""
    return date.fromordinal(round(day) + EPOCH).isoformat()


def conventions(columns: Sequence[Iterable[str]], decimal: str | None, separator: str = ",") -> list[Convention]:
    """Return how each column writes its values, given its cells without the missing ones; all of them fit.

    Where numbers fit two readings ("1,234"), `decimal` decides; without it, the other columns do, and then the
    separator: between semicolons, commas are decimal.
    """
    counted = [Counter(cell for cell in column if _HAS_WORD.search(cell)) for column in columns]
    fits = [_fits(list(cells)) for cells in counted]
    sure = {found[0][0] for found in fits if len({point for point, _ in found}) == 1}
    point = decimal or ("," if "." not in sure and ("," in sure or separator == ";") else ".")
    return [
        _number(cells, next((one for one in found if one[0] == point), found[0])) if found else _other(cells)
        for cells, found in zip(counted, fits, strict=True)
    ]


def _fits(cells: Sequence[str]) -> list[tuple[str, str]]:
    """Return the decimal signs and signs between thousands by which all cells are numbers."""
    plain = [cell.translate(_SIGNS) for cell in cells]
    if not plain or any(CODE.fullmatch(cell) for cell in plain):
        return []
    return [
        signs
        for signs, pattern in _PATTERNS.items()
        if all(map(pattern.fullmatch, plain)) and any(signs[1] in cell for cell in plain)
    ]


def _number(cells: Iterable[str], signs: tuple[str, str]) -> Convention:
    said = ["decimal commas"] if signs[0] == "," and any("," in cell for cell in cells) else []
    return Convention(
        "number", *signs, note=", ".join([*said, *([f"{signs[1]!r} in thousands"] if signs[1] else [])])
    )


def _other(cells: Mapping[str, int]) -> Convention:
    for order in ("ymd", "dmy", "mdy"):
        if cells and all(day_of(cell, order) is not None for cell in cells):
            return Convention("date", order=order, sign=next(c for c in next(iter(cells)) if c in "-./"))
    often = sorted(cells, key=cells.__getitem__)
    if cells and any({cell.casefold() for cell in cells} <= pair for pair in _PAIRS):
        return Convention("words", spelling={cell.casefold(): cell for cell in often})
    return Convention()
