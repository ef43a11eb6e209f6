"""The evidence, query and result files of UAI: variables and states as numbers, comments accepted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, cut, line_of, read_text, write_text
from certimap.io.numbers import Numbers, is_number, read_numbers

Evidence = dict[int, int]
EvidenceKind = Literal["single", "cases"]


def read_evidence(
    path: AnyPath, *, kind: EvidenceKind | None = None, encoding: str | None = None
) -> list[Evidence]:
    """Return the cases of a `.evid` file.

    `path`, `encoding`: the file. Two layouts exist: "single" has a count k and then k pairs; "cases" has the
    number of cases and then, for each, a count and its pairs. An empty file and a lone 0 are one case without
    evidence. `kind`: the layout. None takes "cases" if the first line is one number and as many lines of the right
    length follow; else "single" if the file has 1 + 2k numbers; else "cases". Each case has state numbers by
    variable number. Raises ParseError if neither layout fits, or a case gives a variable two states.
    """
    if kind not in (None, "single", "cases"):
        raise ModelError(f"the kind of an evidence file is {kind!r}; expected 'single' or 'cases'")
    tokens = Tokens(path, read_text(path, encoding))
    values = tokens.integers(len(tokens.words), "a number of the evidence")
    if not values or values == [0]:
        return [{}]
    is_single = len(values) == 1 + 2 * values[0]
    if kind is None:
        kind = "single" if is_single and not _has_case_lines(tokens.text) else "cases"
    tokens.at = 0
    if kind == "single":
        if not is_single:
            raise tokens.fail(f"the file has {len(values)} numbers; expected {values[0]} pairs after the count")
        return [_case(tokens)]
    cases: list[Evidence] = []
    for _ in range(tokens.integer("the number of cases")):
        cases.append(_case(tokens))
    if tokens.at < len(values):
        raise tokens.fail(
            f"{len(values)} numbers are neither {values[0]} pairs after the count nor {values[0]} cases of them; "
            "expected one or the other"
        )
    return cases


def _case(tokens: Tokens) -> Evidence:
    count = tokens.integer("the number of observed variables")
    case: Evidence = {}
    for _ in range(count):
        start = tokens.at
        variable, state = tokens.integers(2, "an observed variable or its state")
        if case.setdefault(variable, state) != state:
            raise tokens.fail(f"variable {variable} has the states {case[variable]} and {state}", start)
    return case


def _has_case_lines(text: str) -> bool:
    """Whether the lines are a number of cases and then one case each; all words are integers."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return (
        len(lines) > 1
        and len(lines[0]) == 1
        and len(lines) == 1 + int(lines[0][0])
        and all(len(line) == 1 + 2 * int(line[0]) for line in lines[1:])
    )


def write_evidence(cases: Sequence[Mapping[int, int]] | Mapping[int, int], path: AnyPath) -> None:
    """Write evidence by number: one case on one line, several after a line with their number.

    `cases`, `path`: state numbers by variable number, one case or several; and the file.
    """
    if isinstance(cases, Mapping):
        text = _evidence_line(cases)
    else:
        text = "\n".join([str(len(cases)), *(_evidence_line(case) for case in cases)])
    write_text(path, text + "\n")


def _evidence_line(case: Mapping[int, int]) -> str:
    return " ".join(map(str, (len(case), *(x for pair in case.items() for x in pair))))


def read_query(path: AnyPath, encoding: str | None = None) -> list[int]:
    """Return the query variables of a `.query` file: a count, then their numbers.

    `path`, `encoding`: the file; None means UTF-8.
    """
    tokens = Tokens(path, read_text(path, encoding))
    count = tokens.integer("the number of query variables", low=1)
    variables = tokens.integers(count, "a query variable")
    if tokens.at < len(tokens.words):
        raise tokens.fail(
            f"{cut(tokens.words[tokens.at])} follows the {count} query variables that the file counts"
        )
    if len(set(variables)) < len(variables):
        doubled = next(v for v in variables if variables.count(v) > 1)
        raise tokens.fail(f"variable {doubled} is queried twice; name it once", 0)
    return variables


def write_query(variables: Sequence[int], path: AnyPath) -> None:
    """Write query variables by number, after their count.

    `variables`, `path`: variable numbers, and the file.
    """
    write_text(path, " ".join(map(str, (len(variables), *variables))) + "\n")


def read_map(path: AnyPath, encoding: str | None = None) -> list[tuple[list[int], Evidence]]:
    """Return the queries of a `.map` file: pairs of lines, query variables and then `variable state` pairs.

    `path`, `encoding`: the file: numbers without counts; an empty second line is no evidence. Each query is
    its variable numbers, and state numbers by variable number.
    """
    text = read_text(path, encoding)
    pairs_of_lines = zip(text.split("\n"), without_comments(path, text).split("\n"), strict=True)
    lines = [(k, new) for k, (old, new) in enumerate(pairs_of_lines, 1) if new.strip() or not old.strip()]
    lines = lines[:-1] if text.endswith("\n") else lines  # without lines that hold only a comment
    while lines and not lines[-1][1].strip() and (len(lines) % 2 or not lines[-2][1].strip()):
        lines.pop()
    if len(lines) % 2:
        lines.append((lines[-1][0], ""))  # the last query has no evidence and its empty line is missing
    cases: list[tuple[list[int], Evidence]] = []
    for asked, given in zip(lines[::2], lines[1::2], strict=True):
        query, pairs = _line_integers(path, *asked), _line_integers(path, *given)
        if not query or len(set(query)) < len(query):
            raise ParseError("a query line names distinct variables, at least one", path, asked[0])
        if len(pairs) % 2:
            raise ParseError(f"an evidence line has {len(pairs)} numbers; expected pairs of them", path, given[0])
        evidence = dict(zip(pairs[::2], pairs[1::2], strict=True))
        if 2 * len(evidence) < len(pairs):
            raise ParseError("an evidence line names a variable twice; expected once", path, given[0])
        cases.append((query, evidence))
    return cases


def _line_integers(path: AnyPath, number: int, line: str) -> list[int]:
    words = line.split()
    wrong = next((w for w in words if not (INTEGER.fullmatch(w) and w[0] not in "+-")), None)
    if wrong is not None:
        raise ParseError(f"{cut(wrong)} is no number of a variable or state", path, number)
    return [int(w) for w in words]


def write_mpe(states: Sequence[int], path: AnyPath) -> None:
    """Write an MPE result file: the states of all variables, in order.

    `states`, `path`: state numbers of all variables, and the file.
    """
    write_text(path, "MPE\n" + " ".join(map(str, (len(states), *map(int, states)))) + "\n")


def write_mmap(assignment: Mapping[int, int], path: AnyPath) -> None:
    """Write an MMAP result file: pairs of query variable and state.

    `assignment`, `path`: state numbers by variable number, and the file.
    """
    write_text(path, "MMAP\n" + _evidence_line(assignment) + "\n")


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
