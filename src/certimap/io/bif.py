"""BIF: Bayesian networks as text (Interchange Format for Bayesian Networks, version 0.15).

Accepted beyond the standard: names and states with almost any character, blanks inside quotes (or
between commas), table rows in any order labelled by the parents' states, `default` rows, commas or
blanks between entries. A conditional table given as one `table` follows the standard order: the variable
itself slowest, its last parent fastest. If only the other order (the variable fastest) adds to 1, that
order is used.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import MAX_STATES, Categorical, Domain
from certimap.errors import CertimapError, ModelError, ParseError
from certimap.io import bif_words as words
from certimap.io.files import AnyPath, line_of, read_text, write_text
from certimap.io.numbers import Numbers, is_number, read_numbers, written
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.rows import ACCEPTED, RowNormaliser, row_totals

MAX_DEFAULTS = 2**24  # limit on entries filled from default rows; the file itself limits all others


@dataclass
class _Table:
    """The unparsed body of a probability block."""

    start: int
    scope: list[int]
    rows: dict[tuple[int, ...], Numbers] = field(default_factory=dict[tuple[int, ...], Numbers])
    places: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    default: Numbers | None = None
    table: Numbers | None = None


def read_bif(path: AnyPath, encoding: str | None = None) -> BayesianNetwork:
    """Read a Bayesian network; ParseError with file and line, and one warning where rows are renormalised."""
    return _Reader(path, read_text(path, encoding)).network()


class _Reader:
    """One pass over the text."""

    def __init__(self, path: AnyPath, text: str) -> None:
        self.path = path
        self.text = words.without_comments(text)
        self.at = 0
        self.variables: dict[str, Categorical] = {}
        self.variable_list: list[Categorical] = []
        self.position: dict[str, int] = {}
        self.tables: dict[int, _Table] = {}
        self.by_name: list[dict[str, int]] = []
        self.n_defaults = 0
        self.normalise = RowNormaliser(str(path))

    def fail(self, message: str, position: int | None = None) -> ParseError:
        return ParseError(message, self.path, line_of(self.text, self.at if position is None else position))

    def network(self) -> BayesianNetwork:
        headers: list[int] = []
        self.skip_blank()
        while self.at < len(self.text):
            keyword = words.KEYWORD.match(self.text, self.at)
            if keyword is None:
                raise self.fail(f"{self.glimpse()!r} begins no block; expected network, variable or probability")
            if keyword[1] == "network":
                self.network_block()
            elif keyword[1] == "property":
                self.take(words.PROPERTY, "a property that ends in ';'")
            elif keyword[1] == "variable":
                self.variable_block()
            else:
                # Tables wait until the end: variables may be declared after them.
                headers.append(self.at)
                self.skip_block()
            self.skip_blank()
        if not self.variables:
            raise self.fail("declares no variable; at least one is needed")
        self.variable_list = list(self.variables.values())
        self.position = {v.name: i for i, v in enumerate(self.variable_list)}
        self.by_name = [{str(label): k for k, label in enumerate(v.states)} for v in self.variable_list]
        for start in headers:
            self.at = start
            self.probability_block()
        return self.assemble()

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
        found = words.BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def skip_block(self) -> None:
        start = self.at
        self.take(words.PROBABILITY, "probability ( NAME | PARENTS ) {")
        for token in words.BLOCK_TOKEN.finditer(self.text, self.at):
            if token[0] == "}":
                self.at = token.end()
                return
        raise self.fail("the probability block has no closing '}'", start)

    def network_block(self) -> None:
        self.take(words.NETWORK, "network NAME {")
        self.skip_blank()
        while not (end := words.END.match(self.text, self.at)):
            self.take(words.PROPERTY, "a property that ends in ';', or '}'")
            self.skip_blank()
        self.at = end.end()

    def variable_block(self) -> None:
        start = self.at
        name = words.unquoted(self.take(words.VARIABLE, "variable NAME {")[1])
        states: list[str] | None = None
        self.skip_blank()
        while not (end := words.END.match(self.text, self.at)):
            if self.text.startswith("property", self.at):
                self.take(words.PROPERTY, "a property that ends in ';'")
            else:
                place = self.at
                found = self.take(words.TYPE, "type discrete [ COUNT ] { STATES };")
                states = self.states(name, found[1], found[2], place)
            self.skip_blank()
        self.at = end.end()
        if states is None:
            raise self.fail(
                f"variable {name!r} has no type; expected type discrete [ COUNT ] {{ STATES }};", start
            )
        if name in self.variables:
            raise self.fail(f"variable {name!r} is declared twice", start)
        try:
            self.variables[name] = Categorical(name, tuple(states))
        except ModelError as error:
            raise self.fail(str(error), start) from None

    def states(self, name: str, count: str | None, text: str, place: int) -> list[str]:
        """Return the states listed in a type."""
        wanted = None if count is None else int(count) if len(count) < 10 else MAX_STATES + 1
        found = words.states(text, wanted)
        if found[0] and not all(part.strip() for part in text.split(",")) and len(text.split(",")) == wanted:
            raise self.fail(f"variable {name!r} has a state without a name; expected words, or two quotes", place)
        if len(found) > 1:
            raise self.fail(
                f"the states of variable {name!r} may be {len(found[0])} ({found[0][0]!r}, ...) or "
                f"{len(found[1])} ({found[1][0]!r}, ...); double quotes around each, or a count, settle it",
                place,
            )
        if wanted is not None and len(found[0]) != wanted:
            shown = count if len(count or "") < 20 else "far more"
            raise self.fail(
                f"variable {name!r} has {len(found[0])} states where its type says {shown}; expected a state "
                "with a comma or a brace, or without letters, in double quotes",
                place,
            )
        return found[0]

    def probability_block(self) -> None:
        start = self.at
        header = self.take(words.PROBABILITY, "probability ( NAME | PARENTS ) {")[1]
        names = words.header_names(header)
        if not names:
            raise self.fail("the probability block names no variable", start)
        for name in names:
            if name not in self.position:
                raise self.fail(f"{name!r} is no variable of the network", start)
        if len(set(names)) < len(names):
            raise self.fail(f"the probability block of {names[0]!r} names a variable twice", start)
        if len(names) > MAX_SCOPE:
            raise self.fail(f"{names[0]!r} has {len(names) - 1} parents; expected at most {MAX_SCOPE - 1}", start)
        child = self.position[names[0]]
        if child in self.tables:
            raise self.fail(f"variable {names[0]!r} has two probability blocks", start)
        own = _Table(start, [*(self.position[n] for n in names[1:]), child])
        self.tables[child] = own
        self.skip_blank()
        while not (end := words.END.match(self.text, self.at)):
            self.statement(own)
            self.skip_blank()
        self.at = end.end()

    def statement(self, own: _Table) -> None:
        """Read one row, table, default or property of a probability block."""
        place = self.at
        name = self.variable_list[own.scope[-1]].name
        head = self.text[place]
        if head == "(":
            index, numbers = self.row(own.scope[:-1], place)
            if index in own.rows:
                raise self.fail(f"the row ({self.labels(own, index)}) of {name!r} is given twice", place)
            own.rows[index] = self.numbers(numbers, place)
            own.places[index] = place
        elif self.text.startswith("property", place):
            self.take(words.PROPERTY, "a property that ends in ';'")
        else:
            found = self.take(words.TABLE, "a row ( LABELS ) NUMBERS ; or table NUMBERS ; or default NUMBERS ;")
            values = self.numbers(found[2], place)
            if (own.table if found[1] == "table" else own.default) is not None:
                raise self.fail(f"{name!r} has two {found[1]} lines", place)
            if found[1] == "table":
                own.table = values
            else:
                own.default = values
        self.check_counts(own, place)

    def check_counts(self, own: _Table, place: int) -> None:
        """Reject the last statement if it has a wrong number of entries."""
        sizes = [self.variable_list[v].n_states for v in own.scope]
        name = self.variable_list[own.scope[-1]].name
        last = next(reversed(own.rows.values())) if own.rows and self.text[place] == "(" else None
        for values, wanted in ((own.table, math.prod(sizes)), (own.default, sizes[-1]), (last, sizes[-1])):
            if values is not None and len(values.values) != wanted:
                raise self.fail(f"{name!r} has {len(values.values)} entries here; expected {wanted}", place)

    def row(self, parents: list[int], place: int) -> tuple[tuple[int, ...], str]:
        """Read `( LABELS ) NUMBERS ;`; return the positions of the states and the text of the numbers."""
        found = words.ROW.match(self.text, place)
        labels = words.items(found[1], len(parents)) if found else []
        known = [self.by_name[parent] for parent in parents]
        if found and len(labels) == len(parents) and all(x in k for x, k in zip(labels, known, strict=True)):
            self.at = found.end()
            return tuple(k[x] for x, k in zip(labels, known, strict=True)), found[2]
        # Labels may contain separators: only the declared states tell where a label ends.
        ways = words.known_rows(self.text, place, known)
        if len(ways) > 1:
            raise self.fail(
                "the labels of the row can be read in two ways; double quotes around each settle it", place
            )
        if ways:
            index, self.at = ways[0]
            return index, self.take(words.NUMBERS, "the NUMBERS of a row and ';'")[1]
        found = self.take(words.ROW, "a row ( LABELS ) NUMBERS ;")
        return self.row_index(found[1], parents, place), found[2]

    def row_index(self, labels: str, parents: list[int], place: int) -> tuple[int, ...]:
        items = words.items(labels, len(parents))
        if len(items) != len(parents):
            raise self.fail(
                f"the row ({labels.strip()}) has {len(items)} labels for {len(parents)} parents", place
            )
        index: list[int] = []
        for parent, label in zip(parents, items, strict=True):
            variable = self.variable_list[parent]
            try:
                index.append(variable.index(label))
            except CertimapError as error:
                raise self.fail(str(error), place) from None
        return tuple(index)

    def numbers(self, text: str, place: int) -> Numbers:
        if "/" in text:
            text = re.sub(r"//[^\n]*", " ", text)
        tokens = text.replace(",", " ").split()
        values = read_numbers(tokens)
        if values is not None and "_" not in text:
            return values
        wrong = next(t for t in tokens if "_" in t or not is_number(t))
        raise self.fail(f"{wrong!r} is no probability; expected numbers that are finite and not negative", place)

    def assemble(self) -> BayesianNetwork:
        domain = Domain(self.variable_list)
        cpts: list[Factor] = []
        for child, variable in enumerate(self.variable_list):
            if child not in self.tables:
                self.at = len(self.text)
                raise self.fail(f"variable {variable.name!r} has no probability block")
            own = self.tables[child]
            cpts.append(self.normalised(own, self.filled(own).factor(own.scope)))
        self.normalise.warn()
        try:
            return BayesianNetwork(domain, cpts)
        except ModelError as error:
            raise ParseError(str(error), self.path) from None

    def normalised(self, own: _Table, table: Factor) -> Factor:
        """Return a conditional table with rows that add to 1; rows of zeros (impossible parents) stay."""
        found, wrong = self.normalise(table)
        if wrong is not None:
            name, total = self.variable_list[own.scope[-1]].name, abs(float(row_totals(table)[wrong]))
            raise self.fail(
                f"the distribution of {name!r} given ({self.labels(own, wrong)}) adds to {total:.10g}; "
                "expected 1 within 0.001, or a row of zeros",
                own.places.get(wrong, own.start),
            )
        return found

    def filled(self, own: _Table) -> Numbers:
        """Return the conditional table, parents first and the variable last."""
        shape = tuple(self.variable_list[v].n_states for v in own.scope)
        name = self.variable_list[own.scope[-1]].name
        if own.table is not None:
            if own.rows or own.default is not None:
                raise self.fail(
                    f"{name!r} has a table beside rows or a default; expected one or the other", own.start
                )
            table = _in_order(own.table, shape)
        else:
            rows: list[Numbers] = []
            if own.default is not None:
                self.n_defaults += math.prod(shape) - len(own.rows) * shape[-1]
                if self.n_defaults > MAX_DEFAULTS:
                    raise self.fail(
                        f"the default rows up to that of {name!r} stand for more than {MAX_DEFAULTS:,} entries, "
                        "the most that is accepted in a file",
                        own.start,
                    )
            for index in itertools.product(*(range(k) for k in shape[:-1])):
                row = own.rows.get(index, own.default)
                if row is None:
                    raise self.fail(
                        f"the probability block of {name!r} lacks the row ({self.labels(own, index)})", own.start
                    )
                rows.append(row)
            table = Numbers.stacked(rows).reshape(*shape)
        return table

    def labels(self, own: _Table, index: tuple[int, ...]) -> str:
        return ", ".join(str(self.variable_list[v].states[s]) for v, s in zip(own.scope, index, strict=False))


def _in_order(table: Numbers, shape: tuple[int, ...]) -> Numbers:
    """Turn a flat conditional table into one with the parents first and the variable last."""

    def standard(values: Floats) -> Floats:
        return np.ascontiguousarray(np.moveaxis(values.reshape(shape[-1:] + shape[:-1]), 0, -1))

    other = table.reshape(*shape)
    moved = Numbers(standard(table.values), None if table.logs is None else standard(table.logs))
    totals = [t.values.sum(axis=-1) for t in (moved, other)]
    fits = [bool(np.all((np.abs(total - 1.0) <= ACCEPTED) | (total == 0.0))) for total in totals]
    return other if fits[1] and not fits[0] else moved


_PLAIN = re.compile(r'[^\s"(){}\[\],;|/]+')


def write_bif(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network; numbers read back exactly, state labels read back as text.

    Raises ModelError for a name that BIF cannot hold, or two states of a variable that are equal as text.
    """
    names = [_written(n, n) for n in model.domain.names]
    states: list[list[str]] = []
    for variable in model.domain:
        labels = variable.states if isinstance(variable, Categorical) else ()
        texts = [_written(str(s), variable.name) for s in labels]
        if len(set(texts)) < len(texts):
            raise ModelError(f"variable {variable.name!r} has two states that read the same in BIF")
        states.append(texts)
    lines = ["network unknown {", "}"]
    for name, texts in zip(names, states, strict=True):
        lines += [f"variable {name} {{", f"  type discrete [ {len(texts)} ] {{ {', '.join(texts)} }};", "}"]
    for factor in model.factors:
        *parents, child = factor.scope
        if not parents:
            lines += [f"probability ( {names[child]} ) {{", f"  table {', '.join(written(factor))};", "}"]
            continue
        lines.append(f"probability ( {names[child]} | {', '.join(names[p] for p in parents)} ) {{")
        texts, size = written(factor), factor.shape[-1]
        for row, index in enumerate(itertools.product(*(range(k) for k in factor.shape[:-1]))):
            given = ", ".join(states[p][s] for p, s in zip(parents, index, strict=True))
            lines.append(f"  ({given}) {', '.join(texts[row * size : (row + 1) * size])};")
        lines.append("}")
    write_text(path, "\n".join(lines) + "\n")


def _written(text: str, variable: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    if '"' in text:
        raise ModelError(
            f"{text!r} of variable {variable!r} cannot be written as BIF; expected text without double quotes"
        )
    return f'"{text}"'
