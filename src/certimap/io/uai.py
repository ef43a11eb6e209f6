"""UAI: networks as numbers, and their evidence, query and result files (docs/formats.md shows all of them).

The last variable of a scope varies fastest. Variables are named by their number; states are 0..K-1. Some programs
write tables in another order without marking it. In BAYES files from pgmpy, and in MARKOV files from pyagrum, the
first variable of a scope varies fastest; in BAYES files from pyagrum the child does, then its first parent. Files
from pyagrum are recognised by their comments; files from pgmpy, if tables add to 1 only in this order.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from certimap.core.domain import MAX_STATES, Domain
from certimap.decisions.network import DecisionNetwork, Utility
from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, beside, cut, line_of, parsing, read_text, write_text
from certimap.io.words import Numbers, numbers_of, written
from certimap.networks.bayesian import BayesianNetwork, RowNormaliser, row_totals
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.network import MarkovNetwork, Network

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
    cases = [_case(tokens) for _ in range(tokens.integer("the number of cases"))]
    if tokens.at < len(values):
        told = f"{len(values)} numbers are neither {values[0]} pairs after the count nor {values[0]} cases of them"
        raise tokens.fail(f"{told}; expected one or the other")
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
    """Write `cases` (state numbers by variable number) to a `path`: one on a line, several after their number."""
    if isinstance(cases, Mapping):
        text = _evidence_line(cases)
    else:
        text = "\n".join([str(len(cases)), *(_evidence_line(case) for case in cases)])
    write_text(path, text + "\n")


def _evidence_line(case: Mapping[int, int]) -> str:
    return " ".join(map(str, (len(case), *(x for pair in case.items() for x in pair))))


def read_query(path: AnyPath, encoding: str | None = None) -> list[int]:
    """Return the query variables of a `.query` file at `path` in an `encoding`: a count, then their numbers."""
    tokens = Tokens(path, read_text(path, encoding))
    count = tokens.integer("the number of query variables", low=1)
    variables = tokens.integers(count, "a query variable")
    tokens.check_end(f"the {count} query variables that the file counts")
    if len(set(variables)) < len(variables):
        doubled = next(v for v in variables if variables.count(v) > 1)
        raise tokens.fail(f"variable {doubled} is queried twice; name it once", 0)
    return variables


def write_query(variables: Sequence[int], path: AnyPath) -> None:
    """Write query `variables` by number, after their count, to a `path`."""
    write_text(path, " ".join(map(str, (len(variables), *variables))) + "\n")


def read_map(path: AnyPath, encoding: str | None = None) -> list[tuple[list[int], Evidence]]:
    """Return the queries of a `.map` file at `path` in an `encoding`: variable numbers, and states by number.

    Each is a pair of lines without counts: query variables, then `variable state` pairs, none in an empty line.
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
    """Write an MPE result file to a `path`: the `states` of all variables by number, in order."""
    write_text(path, "MPE\n" + " ".join(map(str, (len(states), *map(int, states)))) + "\n")


def write_mmap(assignment: Mapping[int, int], path: AnyPath) -> None:
    """Write an MMAP result file to a `path`: pairs of query variable and state, an `assignment` by number."""
    write_text(path, "MMAP\n" + _evidence_line(assignment) + "\n")


LARGEST = 10**18  # no valid file has larger integers
INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)


def without_comments(path: AnyPath, text: str) -> str:
    """Blank `/* */` comments of a UAI text, `#` and what follows, and lines with a first word c; lines stay."""
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
        found = next(islice(re.finditer(r"\S+", self.text), wanted, None), None)
        place = len(self.text.rstrip()) if found is None else found.start()
        return ParseError(message, self.path, line_of(self.text, place))

    def taken(self, n: int, what: str) -> list[str]:
        words = self.words[self.at : self.at + n]
        if len(words) < n:
            raise self.fail(f"the file ends where {what} is needed", len(self.words))
        return words

    def integers(self, n: int, what: str, low: int = 0, high: int = LARGEST) -> list[int]:
        """Take n integers, each at least `low` and below `high`."""
        values: list[int] = []
        for k, word in enumerate(self.taken(n, what)):
            value = int(word) if INTEGER.fullmatch(word) else None
            if value is None or not low <= value < high:
                limit = f"at least {low}" if high == LARGEST else f"from {low} to {high - 1}"
                text = f"{cut(word)} stands where {what} is needed; expected an integer {limit}"
                raise self.fail(text, self.at + k)
            values.append(value)
        self.at += n
        return values

    def integer(self, what: str, low: int = 0, high: int = LARGEST) -> int:
        return self.integers(1, what, low, high)[0]

    def number(self, what: str) -> float:
        return float(self.numbers(1, what, False).values[0])

    def sizes(self, n: int) -> list[int]:
        """Take numbers of states; ParseError for far more of them than words."""
        sizes = self.integers(n, "a number of states", low=1, high=MAX_STATES + 1)
        if sum(sizes) > FREE_STATES + len(self.words):
            told = f"the variables have {sum(sizes):,} states in a file of {len(self.words):,} words"
            raise self.fail(f"{told}; expected at most {FREE_STATES:,} more states than words", 2)
        return sizes

    def check_end(self, after: str = "the last table") -> None:
        if self.at < len(self.words):
            raise self.fail(f"{cut(self.words[self.at])} follows {after}; expected the end of the file")

    def numbers(self, n: int, what: str, signed: bool) -> Numbers:
        """Take n finite numbers: of any size and not negative, or `signed`."""
        words = self.taken(n, f"an entry of {what}")
        values = numbers_of(words, f"is an entry of {what}", lambda text, k: self.fail(text, self.at + k), signed)
        self.at += n
        return values


Order = Literal["last", "first", "child"]  # which variable of a scope varies fastest
_FASTEST = {"first": "first variable of each scope", "child": "child and then its first parent"}
_OF_PYAGRUM = {
    "bayes": re.compile(r"BAYES\s+\d+\s+[\d ]+\n\d+\n\d+( \d+)+   # "),
    "markov": re.compile(r"MARKOV\s+\d+ # nbr Nodes"),
}
FREE_STATES = 2**20  # limit on declared states beyond one per word of the file


def read_uai(path: AnyPath, encoding: str | None = None) -> Network | DecisionNetwork:
    """Read a network: a BayesianNetwork from a BAYES file, a MarkovNetwork from a MARKOV file.

    A file that begins with ID or LIMID is a DecisionNetwork, with the files .id and .pvo beside it.

    Tables may be in the order of the format, of pgmpy or of pyagrum (see above). Warns when rows are renormalised,
    when a BAYES file has not one conditional table per variable (it is then read as a Markov network), and when
    tables are in another order.
    """
    text = read_text(path, encoding)
    tokens = Tokens(path, text)
    kind = tokens.words[0].upper() if tokens.words else ""
    if kind not in ("BAYES", "MARKOV", "ID", "LIMID"):
        shown = cut(tokens.words[0]) if tokens.words else "nothing"
        raise tokens.fail(f"the file begins with {shown}; expected BAYES, MARKOV, ID or LIMID")
    tokens.at = 1
    n = tokens.integer("the number of variables")
    sizes = tokens.sizes(n)
    scopes = [_scope(tokens, n) for _ in range(tokens.integer("the number of functions"))]
    domain = Domain.of_sizes(sizes)
    is_bayes = kind == "BAYES" and _is_bayesian(path, scopes, n)
    kinds, roles = _kinds(path, n, len(scopes), encoding) if kind.endswith("ID") else ("", "P" * len(scopes))
    tables = [_function(tokens, k, scope, sizes, roles[k] == "U") for k, scope in enumerate(scopes)]
    tokens.check_end()
    if kinds:
        decisions = _in_time(path, kinds, encoding)
        cpts = [table.factor("last") for table, role in zip(tables, roles, strict=True) if role == "P"]
        utilities = [
            Utility(f"utility {k}", tuple(table.scope), table.entries.values.reshape(table.shape))
            for k, table in enumerate(tables)
            if roles[k] == "U"
        ]
        with parsing(path):
            return DecisionNetwork(domain, cpts, decisions, utilities, kind == "LIMID")
    order = _order_of(path, text, tables, is_bayes)
    factors = [table.factor(order) for table in tables]
    if not is_bayes:
        return MarkovNetwork(domain, factors)
    factors = _normalised(tokens, tables, factors)
    with parsing(path):
        return BayesianNetwork(domain, factors)


def _scope(tokens: Tokens, n: int) -> list[int]:
    start = tokens.at
    size = tokens.integer("the size of a scope", high=min(n, MAX_SCOPE) + 1)
    scope = tokens.integers(size, "a variable of a scope", high=n)
    if len(set(scope)) < len(scope):
        raise tokens.fail(f"the scope {scope} has a variable twice", start)
    return scope


@dataclass(frozen=True, eq=False)
class _Table:
    """A table in the file's order, the number of its first word, and the sizes of its scope."""

    scope: list[int]
    shape: tuple[int, ...]
    entries: Numbers
    start: int

    def factor(self, order: Order) -> Factor:
        """Return the entries as a factor, given their order."""
        n = len(self.scope)
        slowest_first = {"last": range(n), "first": range(n - 1, -1, -1), "child": [*range(n - 2, -1, -1), n - 1]}
        axes = list(slowest_first[order]) if n else []
        listed = self.entries.reshape(*(self.shape[axis] for axis in axes))
        return listed.transpose(*(axes.index(axis) for axis in range(n))).factor(self.scope)


def _order_of(path: AnyPath, text: str, tables: list[_Table], is_bayes: bool) -> Order:
    """Return which variable of a table varies fastest; warn unless it is the last."""
    if _OF_PYAGRUM["bayes" if is_bayes else "markov"].search(text):
        order: Order = "child" if is_bayes else "first"
        if any(len(table.scope) > (2 if is_bayes else 1) for table in tables):
            _warn(path, f"tables are read with the {_FASTEST[order]} fastest, as pyagrum writes them")
        return order
    if is_bayes and not _add_to_one(tables, "last") and _add_to_one(tables, "first"):
        reason = "where they add to 1; they do not in the format's order, with the last one fastest"
        _warn(path, f"tables are read with the {_FASTEST['first']} fastest, as pgmpy writes them, {reason}")
        return "first"
    return "last"


def _add_to_one(tables: list[_Table], order: Order) -> bool:
    normalise = RowNormaliser("")
    return all(normalise(table.factor(order))[1] is None for table in tables)


def _warn(path: AnyPath, message: str) -> None:
    warnings.warn(f"{path}: {message}", stacklevel=4)


def _normalised(tokens: Tokens, tables: list[_Table], factors: list[Factor]) -> list[Factor]:
    """Return conditional tables whose rows add to 1 or are zeros; reject other rows."""
    normalise = RowNormaliser(str(tokens.path))
    made: list[Factor] = []
    for table, factor in zip(tables, factors, strict=True):
        factor, wrong = normalise(factor)
        if wrong is not None:
            total, given = abs(float(row_totals(factor)[wrong])), f"states {wrong} of {table.scope[:-1]}"
            told = f"the distribution of variable {table.scope[-1]} given {given} adds to {total:.10g}, and tables"
            accepted = (
                "add to 1 in no other order either; expected 1 within 0.001 or a row of zeros in BAYES files"
            )
            text = f"{told} {accepted} (MARKOV for the first word reads the product of the tables as it is)"
            raise tokens.fail(text, table.start)
        made.append(factor)
    normalise.warn()
    return made


def _function(tokens: Tokens, k: int, scope: list[int], sizes: list[int], signed: bool) -> _Table:
    shape = tuple(sizes[v] for v in scope)
    start = tokens.at
    count = tokens.integer(f"the number of entries of function {k}")
    if count != math.prod(shape):
        raise tokens.fail(f"function {k} says {count} entries; its scope {scope} has {math.prod(shape)}", start)
    return _Table(scope, shape, tokens.numbers(count, f"function {k}", signed), start)


def _is_bayesian(path: AnyPath, scopes: list[list[int]], n: int) -> bool:
    """Whether the scopes fit one conditional table per variable; warn if not."""
    children = sorted(scope[-1] for scope in scopes if scope)
    if len(scopes) == n and children == list(range(n)):
        return True
    text = "the functions of this BAYES file are not one conditional table per variable"
    _warn(path, f"{text}; their product is read as a Markov network")
    return False


def _kinds(path: AnyPath, n: int, n_functions: int, encoding: str | None) -> tuple[str, str]:
    """Read the kinds of variables, C or D, and of functions, P or U, each after their number."""
    words = read_text(name := beside(path, ".id"), encoding).upper().split()
    kinds, roles = "".join(words[1 : n + 1]), "".join(words[n + 2 :])
    if [*words[:1], *words[n + 1 : n + 2]] != [str(n), str(n_functions)] or not (
        re.fullmatch(f"[CD]{{{n}}} [PU]{{{n_functions}}}", f"{kinds} {roles}")
    ):
        told = f"expected {n}, C or D for each variable, {n_functions}, and P or U for each function"
        raise ParseError(f"does not fit the .uai file beside it; {told}", name)
    return kinds, roles


def _in_time(path: AnyPath, kinds: str, encoding: str | None) -> dict[str, list[str]]:
    """Read blocks of variables in the order of elimination; return what each decision sees, in order of time."""
    text = read_text(name := beside(path, ".pvo"), encoding)
    (*head, _), n = [part.split() for part in text.split(";", 2)], len(kinds)
    blocks = [block for part in text.split(";")[2:] if (block := part.split())]
    decisions, seen = dict[str, list[str]](), list[str]()
    wanted = [[str(n)], [str(len(blocks))], sorted(map(str, range(n)))]
    if [*head, sorted(v for block in blocks for v in block)] != wanted:
        told = f"expected {n}; the number of blocks; and blocks with each number below {n} once"
        raise ParseError(f"does not fit the .uai file beside it; {told}", name)
    for block in reversed(blocks):
        own = [v for v in block if kinds[int(v)] == "D"]
        if own and len(own) < len(block):
            raise ParseError(f"has decisions and others in the block of {block[0]}; expected one kind", name)
        decisions |= dict.fromkeys(own, seen)
        seen = [] if own else [*seen, *block]
    return decisions


def _write_beside(model: DecisionNetwork, path: AnyPath) -> None:
    """Write the .id and .pvo; ModelError for limited memory in which several decisions see one variable."""
    names, blocks, seen = model.domain.names, list[list[str]](), set[str]()
    for decision, own in model.decisions.items():
        new = [name for name in own if model.limited_memory or name not in seen | model.decisions.keys()]
        if not seen.isdisjoint(new) or not model.decisions.keys().isdisjoint(new):
            told = f"what decision {decision!r} sees is seen by another, or a decision"
            raise ModelError(f"{told}; .uai does not hold this with limited memory, .net and .bifxml do")
        blocks += [new, [decision]]
        seen |= {*new, decision}
    blocks = [block for block in [*blocks, [name for name in names if name not in seen]][::-1] if block]
    numbers = [" ".join(str(model.domain.index(name)) for name in block) for block in blocks]
    write_text(beside(path, ".pvo", False), ";\n".join([str(len(names)), str(len(blocks)), *numbers]) + ";\n")
    kinds = " ".join("D" if name in model.decisions else "C" for name in names)
    roles = [*("P" for _ in model.cpts), *("U" for _ in model.utilities)]
    write_text(beside(path, ".id", False), f"{len(names)}\n{kinds}\n{len(roles)}\n{' '.join(roles)}\n")


def write_uai(model: Network | DecisionNetwork, path: AnyPath) -> None:
    """Write a network; names and state labels are lost.

    Numbers read back exactly. Entries held as logs are written as decimal text with any exponent, and read
    back exactly except for the last digit.
    """
    if isinstance(model, DecisionNetwork):
        _write_beside(model, path)
        kind, tables = "LIMID" if model.limited_memory else "ID", [(f.scope, written(f)) for f in model.cpts]
        tables += [(scope, list(map(repr, values.reshape(-1).tolist()))) for _, scope, values in model.utilities]
    else:
        kind = "BAYES" if isinstance(model, BayesianNetwork) else "MARKOV"
        tables = [(f.scope, written(f)) for f in model.factors]
    lines = [kind, str(len(model.domain)), " ".join(map(str, model.domain.n_states.tolist())), str(len(tables))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope, _ in tables]
    for _, words in tables:
        lines += ["", str(len(words)), " ".join(words)]
    write_text(path, "\n".join(lines) + "\n")
