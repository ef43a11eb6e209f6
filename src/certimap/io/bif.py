"""BIF: Bayesian networks as text (Interchange Format for Bayesian Networks, version 0.15).

Accepted beyond the standard: names and states with almost any character, blanks inside quotes (or between commas),
table rows in any order labelled by the parents' states, `default` rows, commas or blanks between entries. A
conditional table given as one `table` follows the standard order: the variable itself slowest, its last parent
fastest. If only the other order (the variable fastest) adds to 1, that order is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from certimap.core.domain import MAX_STATES, Categorical
from certimap.errors import CertimapError, ModelError, ParseError
from certimap.io.declared import Declared, Rows
from certimap.io.files import AnyPath, LineCounter, after, read_text, write_text
from certimap.io.words import Numbers, numbers_of, state_texts, written, written_rows
from certimap.networks.bayesian import ACCEPTED, BayesianNetwork

_QUOTED = r'"[^"]*"'
_COMMENT = re.compile(rf"{_QUOTED}|/\*(?:.*?\*/|.*\Z)|(?<![^\s,;(){{}}\[\]|])//[^\n]*", re.DOTALL)
_BLANK = re.compile(r"[\s,;]*")
_BLANKS = re.compile(r"\s*")
_KEYWORD = re.compile(r"(network|variable|probability|property)\b")
_PROPERTY = re.compile(rf"property\b(?:(?:{_QUOTED}|[^;\"])*;|[^;]*;)")
_NETWORK = re.compile(rf"network\b((?:{_QUOTED}|[^{{\"])*)\{{")
_VARIABLE = re.compile(rf"variable\s*({_QUOTED}|[^\s{{\"]+)\s*\{{")
_TYPE = re.compile(rf"type\s+discrete\s*(?:\[\s*(\d+)\s*\])?\s*=?\s*\{{((?:{_QUOTED}|[^}}\"])*)\}}\s*;?")
_PROBABILITY = re.compile(rf"probability\s*\(((?:{_QUOTED}|[^()\"]|\([^()]*\))*)\)\s*\{{")
_ROW = re.compile(rf"\(((?:{_QUOTED}|[^()\"]|\([^()\"]*\))*)\)([^;()}}]*);")
_TABLE = re.compile(r"(table|default)\b([^;()}]*);")
_END = re.compile(r"\}")
_ITEM = re.compile(rf"\s*({_QUOTED}|[^\s,\"]+)\s*")
_BLOCK_TOKEN = re.compile(rf"{_QUOTED}|\}}")
_NUMBERS = re.compile(r"([^;()}]*);")
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


def _unquoted(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text


def _items(text: str, count: int | None) -> list[str]:
    """Split names at commas if that gives `count` names, else at commas and blanks."""
    if '"' not in text:
        by_comma = [" ".join(part.split()) for part in text.split(",")]
        by_comma = [part for part in by_comma if part]
        return by_comma if len(by_comma) == count else text.replace(",", " ").split()
    by_comma = [part for part in re.findall(rf"(?:{_QUOTED}|[^,\"])+", text) if part.strip()]
    if len(by_comma) == count:
        return [_unquoted(part.strip()) for part in by_comma]
    return [_unquoted(item) for item in _ITEM.findall(text)]


def _states(text: str, count: int | None) -> list[list[str]]:
    """Return the possible lists of states in a declaration; one list if it is unambiguous.

    Discretisers write states such as `(0.5,1.2]`, `[0;10)` and `1,999` without quotes. Three readings are tried:
    commas or blanks as separators, the same with intervals and grouped digits kept whole, and only commas before
    a blank. `count`, if given, decides.
    """
    quoted = re.findall(_QUOTED, text)
    if quoted:  # replaced meanwhile by a number between marks: a character absent from the text
        mark = next(sign for sign in map(chr, range(0xE000, 0x110000)) if sign not in text)
        numbers = iter(range(len(quoted)))
        bare = re.sub(_QUOTED, lambda _: f"{mark}{next(numbers)}{mark}", text)
        return [[_restored(item, quoted, mark) for item in found] for found in _states(bare, count)]
    plain = _items(text, count)
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
    found = [each for each in (whole, by_comma, spaced, in_groups) if len(each) == count]
    return [each for k, each in enumerate(found) if each not in found[:k]] or [plain]


def _restored(item: str, quoted: list[str], mark: str) -> str:
    """Replace marks by their quoted texts; quotes around the whole go, those within a name stay."""
    parts = item.split(mark)
    cut = 1 if len(parts) == 3 and not parts[0] and not parts[2] else 0
    parts[1::2] = [quoted[int(number)][cut : len(quoted[int(number)]) - cut] for number in parts[1::2]]
    return "".join(parts)


def _known_rows(text: str, at: int, parents: Sequence[Mapping[str, int]]) -> list[tuple[tuple[int, ...], int]]:
    """Return up to two ways to read `( LABELS )` as states of the parents: their positions, and where it ends."""
    found: list[tuple[tuple[int, ...], int]] = []
    waiting: list[tuple[tuple[int, ...], int]] = [((), after(_BLANKS, text, at + 1))]
    steps = 0
    while waiting and len(found) < 2 and steps < _STEPS:
        chosen, place = waiting.pop()
        if len(chosen) == len(parents):
            if text.startswith(")", place):
                found.append((chosen, place + 1))
            continue
        for label, position in parents[len(chosen)].items():
            steps += 1
            for word in (f'"{label}"', label):
                if not (word and text.startswith(word, place)):
                    continue
                end = place + len(word)
                then = after(_BLANKS, text, end)
                comma = text.startswith(",", then)
                if len(chosen) + 1 == len(parents) or comma or then > end:
                    waiting.append(((*chosen, position), after(_BLANKS, text, then + 1) if comma else then))
    return found


def _header_names(header: str) -> list[str]:
    """Return the variable and then its parents; a bar, commas or blanks may separate them."""
    return [_unquoted(item) for item in re.findall(rf"{_QUOTED}|[^\s,|\"]+", header)]


@dataclass
class _Table:
    """A probability block: rows by the parents' states, with their lines, or the entries of a table."""

    start: int
    scope: list[Categorical]
    known: list[dict[str, int]]  # the states of each parent, by label
    rows: Rows = field(default_factory=Rows)
    default: Numbers | None = None
    table: Numbers | None = None


def read_bif(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; ParseError with file and line, and one warning where rows are renormalised."""
    return _Reader(path, read_text(path, encoding)).network()


class _Reader:
    """One pass over the text."""

    def __init__(self, path: AnyPath, text: str) -> None:
        self.path, self.text, self.at = path, _COMMENT.sub(_kept, text), 0
        self.line = LineCounter(self.text)
        self.declared = Declared(path)
        self.by_name: dict[str, dict[str, int]] = {}

    def fail(self, message: str, position: int | None = None) -> ParseError:
        return ParseError(message, self.path, self.line(self.at if position is None else position))

    def network(self) -> BayesianNetwork:
        headers: list[int] = []
        self.skip_blank()
        while self.at < len(self.text):
            keyword = _KEYWORD.match(self.text, self.at)
            if keyword is None:
                raise self.fail(f"{self.glimpse()!r} begins no block; expected network, variable or probability")
            if keyword[1] == "network":
                self.network_block()
            elif keyword[1] == "property":
                self.take(_PROPERTY, "a property that ends in ';'")
            elif keyword[1] == "variable":
                self.variable_block()
            else:
                # Tables wait until the end: variables may be declared after them.
                headers.append(self.at)
                self.skip_block()
            self.skip_blank()
        for variable in self.declared.variables.values():
            self.by_name[variable.name] = {str(label): k for k, label in enumerate(variable.states)}
        for start in headers:
            self.at = start
            self.probability_block()
        return self.declared.network()

    def take(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.fail(f"{self.glimpse()!r} stands where {wanted} is expected")
        self.at = found.end()
        return found

    def glimpse(self) -> str:
        rest = self.text[self.at : self.at + 60].split("\n", 1)[0].strip()
        return rest[:40] or "the end of the line or file"

    def skip_blank(self) -> None:
        self.at = after(_BLANK, self.text, self.at)

    def skip_block(self) -> None:
        start = self.at
        self.take(_PROBABILITY, "probability ( NAME | PARENTS ) {")
        for token in _BLOCK_TOKEN.finditer(self.text, self.at):
            if token[0] == "}":
                self.at = token.end()
                return
        raise self.fail("the probability block has no closing '}'", start)

    def network_block(self) -> None:
        self.take(_NETWORK, "network NAME {")
        self.skip_blank()
        while not (end := _END.match(self.text, self.at)):
            self.take(_PROPERTY, "a property that ends in ';', or '}'")
            self.skip_blank()
        self.at = end.end()

    def variable_block(self) -> None:
        start = self.at
        name = _unquoted(self.take(_VARIABLE, "variable NAME {")[1])
        states: list[str] | None = None
        self.skip_blank()
        while not (end := _END.match(self.text, self.at)):
            if self.text.startswith("property", self.at):
                self.take(_PROPERTY, "a property that ends in ';'")
            else:
                place = self.at
                found = self.take(_TYPE, "type discrete [ COUNT ] { STATES };")
                states = self.states(name, found[1], found[2], place)
            self.skip_blank()
        self.at = end.end()
        if states is None:
            told = f"variable {name!r} has no type; expected type discrete [ COUNT ] {{ STATES }};"
            raise self.fail(told, start)
        self.declared.variable(name, states, self.line(start))

    def states(self, name: str, count: str | None, text: str, place: int) -> list[str]:
        """Return the states listed in a type."""
        wanted = None if count is None else int(count) if len(count) < 10 else MAX_STATES + 1
        found = _states(text, wanted)
        if found[0] and not all(part.strip() for part in text.split(",")) and len(text.split(",")) == wanted:
            raise self.fail(f"variable {name!r} has a state without a name; expected words, or two quotes", place)
        if len(found) > 1:
            ways = " or ".join(f"{len(way)} ({way[0]!r}, ...)" for way in found[:2])
            told = (
                f"the states of variable {name!r} may be {ways}; double quotes around each, or a count, settle it"
            )
            raise self.fail(told, place)
        if wanted is not None and len(found[0]) != wanted:
            shown = count if len(count or "") < 20 else "far more"
            told = (
                f"variable {name!r} has {len(found[0])} states where its type says {shown}; expected a state with"
            )
            raise self.fail(f"{told} a comma or a brace, or without letters, in double quotes", place)
        return found[0]

    def probability_block(self) -> None:
        start = self.at
        names = _header_names(self.take(_PROBABILITY, "probability ( NAME | PARENTS ) {")[1])
        if not names:
            raise self.fail("the probability block names no variable", start)
        known = self.declared.variables
        for name in names:
            if name not in known:
                raise self.fail(f"{name!r} is no variable of the network", start)
        child, *parents = names
        self.declared.check_head(child, parents, self.line(start))
        own = _Table(start, [known[name] for name in (*parents, child)], [self.by_name[name] for name in parents])
        self.skip_blank()
        while not (end := _END.match(self.text, self.at)):
            self.statement(own)
            self.skip_blank()
        self.at = end.end()
        line = self.line(own.start)
        if own.table is None:
            self.declared.rows(child, parents, own.rows, own.default, line)
        elif own.rows or own.default is not None:
            told = f"{child!r} has a table beside rows or a default; expected one or the other"
            raise self.fail(told, own.start)
        else:
            self.declared.table(child, parents, _in_order(own.table, [v.n_states for v in own.scope]), line)

    def statement(self, own: _Table) -> None:
        """Read one row, table, default or property of a probability block."""
        place = self.at
        name = own.scope[-1].name
        if self.text[place] == "(":
            index, numbers = self.row(own, place)
            if index in own.rows:
                given = ", ".join(str(v.states[s]) for v, s in zip(own.scope, index, strict=False))
                raise self.fail(f"the row ({given}) of {name!r} is given twice", place)
            own.rows[index] = self.numbers(numbers, place), self.line(place)
        elif self.text.startswith("property", place):
            self.take(_PROPERTY, "a property that ends in ';'")
        else:
            found = self.take(_TABLE, "a row ( LABELS ) NUMBERS ; or table NUMBERS ; or default NUMBERS ;")
            values = self.numbers(found[2], place)
            if (own.table if found[1] == "table" else own.default) is not None:
                raise self.fail(f"{name!r} has two {found[1]} lines", place)
            if found[1] == "table":
                own.table, own.start = values, place  # where its errors are
            else:
                own.default = values

    def row(self, own: _Table, place: int) -> tuple[tuple[int, ...], str]:
        """Read `( LABELS ) NUMBERS ;`; return the positions of the states and the text of the numbers."""
        found = _ROW.match(self.text, place)
        known = own.known
        labels = _items(found[1], len(known)) if found else []
        if found and len(labels) == len(known) and all(x in k for x, k in zip(labels, known, strict=True)):
            self.at = found.end()
            return tuple(k[x] for x, k in zip(labels, known, strict=True)), found[2]
        # Labels may contain separators: only the declared states tell where a label ends.
        ways = _known_rows(self.text, place, known)
        if len(ways) > 1:
            told = "the labels of the row can be read in two ways; double quotes around each settle it"
            raise self.fail(told, place)
        if ways:
            index, self.at = ways[0]
            return index, self.take(_NUMBERS, "the NUMBERS of a row and ';'")[1]
        found = self.take(_ROW, "a row ( LABELS ) NUMBERS ;")
        return self.row_index(found[1], own.scope[:-1], place), found[2]

    def row_index(self, labels: str, parents: list[Categorical], place: int) -> tuple[int, ...]:
        items = _items(labels, len(parents))
        if len(items) != len(parents):
            text = f"the row ({labels.strip()}) has {len(items)} labels for {len(parents)} parents"
            raise self.fail(text, place)
        try:
            return tuple(variable.index(label) for variable, label in zip(parents, items, strict=True))
        except CertimapError as error:
            raise self.fail(str(error), place) from None

    def numbers(self, text: str, place: int) -> Numbers:
        if "/" in text:
            text = re.sub(r"//[^\n]*", " ", text)
        return numbers_of(
            text.replace(",", " ").split(), "is no probability", lambda told, _: self.fail(told, place)
        )


def _in_order(table: Numbers, shape: list[int]) -> Numbers:
    """Turn a flat conditional table into one with the parents first and the variable last, if it has its size."""
    if len(table.values) != math.prod(shape):
        return table
    other = table.reshape(*shape)
    moved = table.reshape(*shape[-1:], *shape[:-1]).transpose(*range(1, len(shape)), 0)
    totals = [t.values.sum(axis=-1) for t in (moved, other)]
    fits = [bool(np.all((np.abs(total - 1.0) <= ACCEPTED) | (total == 0.0))) for total in totals]
    return (other if fits[1] and not fits[0] else moved).reshape(-1)


_PLAIN = re.compile(r'[^\s"(){}\[\],;|/]+')


def write_bif(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network; numbers read back exactly, state labels read back as text.

    Raises ModelError for a name that BIF cannot hold, or two states of a variable that are equal as text.
    """
    names = [_written(n, n) for n in model.domain.names]
    states = [state_texts(v, partial(_written, variable=v.name)) for v in model.domain]
    lines = ["network unknown {", "}"]
    for name, texts in zip(names, states, strict=True):
        lines += [f"variable {name} {{", f"  type discrete [ {len(texts)} ] {{ {', '.join(texts)} }};", "}"]
    for factor in model.factors:
        *parents, child = factor.scope
        if not parents:
            lines += [f"probability ( {names[child]} ) {{", f"  table {', '.join(written(factor))};", "}"]
            continue
        lines.append(f"probability ( {names[child]} | {', '.join(names[p] for p in parents)} ) {{")
        for index, texts in written_rows(factor):
            given = ", ".join(states[p][s] for p, s in zip(parents, index, strict=True))
            lines.append(f"  ({given}) {', '.join(texts)};")
        lines.append("}")
    write_text(path, "\n".join(lines) + "\n")


def _written(text: str, variable: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    if '"' in text:
        told = f"{text!r} of variable {variable!r} cannot be written as BIF; expected text without double quotes"
        raise ModelError(told)
    return f'"{text}"'
