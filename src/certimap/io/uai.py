"""UAI: networks as numbers, with their evidence, query and result files.

The last variable of a scope varies fastest. Variables are named by their number, states are 0..K-1.
Comments are accepted in all of them (see `without_comments`).
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Literal

from certimap.domain import MAX_STATES, Domain
from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, cut, line_of, read_text, write_text
from certimap.io.numbers import Numbers, is_number, read_numbers, written
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.markov import MarkovNetwork
from certimap.networks.network import Network
from certimap.networks.rows import RowNormaliser, row_totals

Evidence = dict[int, int]
EvidenceKind = Literal["single", "cases"]
LARGEST = 10**18  # integers beyond it name nothing that could be held
FREE_STATES = 2**20  # how many states may be declared beyond one per word of the file
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def without_comments(path: AnyPath, text: str) -> str:
    """Blank the comments of a text of this family, whose lines keep their numbers.

    A comment is what stands between `/*` and `*/`, from a `#` to the end of its line, and a line that begins with
    the word c.
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
            value = int(word) if _INTEGER.fullmatch(word) else None
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
        """Take n numbers that are finite and not negative, of any size."""
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


def read_uai(path: AnyPath, encoding: str | None = None) -> Network:
    """Read a network: a BayesianNetwork from a BAYES file, a MarkovNetwork from a MARKOV file.

    Raises
    ------
    ParseError
        With file and line: for anything that does not follow the format, an entry that is negative or
        NaN, a row of a BAYES table that is neither zeros nor adds to 1 within 1e-3, numbers of states that nothing
        could hold.

    Warns
    -----
    UserWarning
        When rows of BAYES tables are renormalised, and when the functions of a BAYES file are not one
        conditional table per variable: the file is then read as a Markov network.
    """
    tokens = Tokens(path, read_text(path, encoding))
    kind = tokens.words[0].upper() if tokens.words else ""
    if kind not in ("BAYES", "MARKOV"):
        shown = cut(tokens.words[0]) if tokens.words else "nothing"
        raise tokens.fail(f"the file begins with {shown}; expected BAYES or MARKOV")
    tokens.at = 1
    n = tokens.integer("the number of variables")
    sizes = tokens.integers(n, "a number of states", low=1, high=MAX_STATES + 1)
    if sum(sizes) > FREE_STATES + len(tokens.words):
        raise tokens.fail(
            f"the variables have {sum(sizes):,} states in a file of {len(tokens.words):,} words; expected at most "
            f"{FREE_STATES:,} more states than words",
            2,
        )
    scopes = [_scope(tokens, n) for _ in range(tokens.integer("the number of functions"))]
    domain = Domain.of_sizes(sizes)
    is_bayes = kind == "BAYES" and _is_bayesian(path, scopes, n)
    normalise = RowNormaliser(str(path))
    factors: list[Factor] = []
    for k, scope in enumerate(scopes):
        start = tokens.at
        factor = _function(tokens, k, scope, sizes)
        if is_bayes:
            factor, wrong = normalise(factor)
            if wrong is not None:
                raise tokens.fail(
                    f"the distribution of variable {scope[-1]} given states {wrong} of {scope[:-1]} adds to "
                    f"{abs(float(row_totals(factor)[wrong])):.10g}; expected 1 within 0.001 or a row of zeros "
                    "in BAYES files, and MARKOV for the first word reads the product of the tables as it is",
                    start,
                )
        factors.append(factor)
    if tokens.at < len(tokens.words):
        raise tokens.fail(f"{cut(tokens.words[tokens.at])} follows the last table; expected the end of the file")
    normalise.warn()
    if not is_bayes:
        return MarkovNetwork(domain, factors)
    try:
        return BayesianNetwork(domain, factors)
    except ModelError as error:
        raise ParseError(str(error), path) from None


def _scope(tokens: Tokens, n: int) -> list[int]:
    start = tokens.at
    size = tokens.integer("the size of a scope", high=min(n, MAX_SCOPE) + 1)
    scope = tokens.integers(size, "a variable of a scope", high=n)
    if len(set(scope)) < len(scope):
        raise tokens.fail(f"the scope {scope} has a variable twice", start)
    return scope


def _function(tokens: Tokens, k: int, scope: list[int], sizes: list[int]) -> Factor:
    shape = tuple(sizes[v] for v in scope)
    start = tokens.at
    count = tokens.integer(f"the number of entries of function {k}")
    if count != math.prod(shape):
        raise tokens.fail(f"function {k} says {count} entries; its scope {scope} has {math.prod(shape)}", start)
    return tokens.numbers(count, f"function {k}").reshape(*shape).factor(scope)


def _is_bayesian(path: AnyPath, scopes: list[list[int]], n: int) -> bool:
    """Whether the scopes are those of one conditional table a variable; warn if they are not."""
    children = sorted(scope[-1] for scope in scopes if scope)
    if len(scopes) == n and children == list(range(n)):
        return True
    warnings.warn(
        f"{path}: the functions of this BAYES file are not one conditional table per variable; "
        "their product is read as a Markov network",
        stacklevel=3,
    )
    return False


def write_uai(model: Network, path: AnyPath) -> None:
    """Write a network; names and state labels are lost.

    Numbers read back exactly. Entries held as logs are written as decimal text of any exponent, and read
    back as they were but for the last digit.
    """
    is_bayes = isinstance(model, BayesianNetwork)
    lines = ["BAYES" if is_bayes else "MARKOV", str(len(model.domain))]
    lines += [" ".join(map(str, model.domain.n_states.tolist())), str(len(model.factors))]
    lines += [" ".join(map(str, (len(f.scope), *f.scope))) for f in model.factors]
    for factor in model.factors:
        lines += ["", str(math.prod(factor.shape)), " ".join(written(factor))]
    write_text(path, "\n".join(lines) + "\n")


def read_evidence(
    path: AnyPath, *, kind: EvidenceKind | None = None, encoding: str | None = None
) -> list[Evidence]:
    """Read a `.evid` file: for each case, states of observed variables, both by number.

    Parameters
    ----------
    path
        The file. Two layouts exist: "single" has a count k and then k pairs; "cases" has the number of
        cases and then, for each, a count and its pairs. An empty file and a lone 0 are one case
        without evidence.
    kind
        The layout; None decides. "cases" it is when its first line is one number and as many lines of
        the right length follow; else "single" when the file has 1 + 2k numbers; else "cases".
    encoding
        Of the text; None stands for UTF-8.

    Returns
    -------
    list of dict
        For each case, state numbers by variable number.

    Raises
    ------
    ParseError
        When neither fits, or a case gives a variable two states.
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

    Parameters
    ----------
    cases
        State numbers by variable number: one case, or several.
    path
        Where to.
    """
    if isinstance(cases, Mapping):
        text = _evidence_line(cases)
    else:
        text = "\n".join([str(len(cases)), *(_evidence_line(case) for case in cases)])
    write_text(path, text + "\n")


def _evidence_line(case: Mapping[int, int]) -> str:
    return " ".join(map(str, (len(case), *(x for pair in case.items() for x in pair))))


def read_query(path: AnyPath, encoding: str | None = None) -> list[int]:
    """Read a `.query` file: a count, then the query variables by number.

    Parameters
    ----------
    path
        The file.
    encoding
        Of the text; None stands for UTF-8.

    Returns
    -------
    list of int
        Variable numbers.

    Raises
    ------
    ParseError
        When the file is anything else.
    """
    tokens = Tokens(path, read_text(path, encoding))
    count = tokens.integer("the number of query variables", low=1)
    variables = tokens.integers(count, "a query variable")
    if tokens.at < len(tokens.words):
        raise tokens.fail(
            f"{cut(tokens.words[tokens.at])} follows the {count} query variables that the file counts"
        )
    _check_distinct(tokens, variables)
    return variables


def _check_distinct(tokens: Tokens, variables: list[int]) -> None:
    if len(set(variables)) < len(variables):
        doubled = next(v for v in variables if variables.count(v) > 1)
        raise tokens.fail(f"variable {doubled} is queried twice; name it once", 0)


def write_query(variables: Sequence[int], path: AnyPath) -> None:
    """Write query variables by number, after their count.

    Parameters
    ----------
    variables
        Variable numbers.
    path
        Where to.
    """
    write_text(path, " ".join(map(str, (len(variables), *variables))) + "\n")


def read_map(path: AnyPath, encoding: str | None = None) -> list[tuple[list[int], Evidence]]:
    """Read a `.map` file of queries: pairs of lines, query variables and then `variable state` pairs.

    All by number and without counts; an empty second line is no evidence.

    Parameters
    ----------
    path
        The file.
    encoding
        Of the text; None stands for UTF-8.

    Returns
    -------
    list of (list of int, dict)
        For each query, its variable numbers, and state numbers by variable number.

    Raises
    ------
    ParseError
        When the file is anything else.
    """
    lines = _lines_of(path, read_text(path, encoding))
    while lines and not lines[-1][1].strip() and (len(lines) % 2 or not lines[-2][1].strip()):
        lines.pop()
    if len(lines) % 2:
        lines.append((lines[-1][0], ""))  # the last query has no evidence and its empty line was left out
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


def _lines_of(path: AnyPath, text: str) -> list[tuple[int, str]]:
    """Return the lines with their numbers; lines that held nothing but a comment are left out."""
    bare = without_comments(path, text)
    pairs = zip(text.split("\n"), bare.split("\n"), strict=True)
    lines = [(k, new) for k, (old, new) in enumerate(pairs, 1) if new.strip() or not old.strip()]
    return lines[:-1] if text.endswith("\n") else lines


def _line_integers(path: AnyPath, number: int, line: str) -> list[int]:
    words = line.split()
    wrong = next((w for w in words if not (_INTEGER.fullmatch(w) and w[0] not in "+-")), None)
    if wrong is not None:
        raise ParseError(f"{cut(wrong)} is no number of a variable or state", path, number)
    return [int(w) for w in words]


def write_mpe(states: Sequence[int], path: AnyPath) -> None:
    """Write an MPE result file: the states of all variables, in order.

    Parameters
    ----------
    states
        State numbers of all variables.
    path
        Where to.
    """
    write_text(path, "MPE\n" + " ".join(map(str, (len(states), *map(int, states)))) + "\n")


def write_mmap(assignment: Mapping[int, int], path: AnyPath) -> None:
    """Write an MMAP result file: pairs of query variable and state.

    Parameters
    ----------
    assignment
        State numbers by variable number.
    path
        Where to.
    """
    write_text(path, "MMAP\n" + _evidence_line(assignment) + "\n")
