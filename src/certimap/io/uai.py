"""UAI: networks as numbers. Their evidence, query and result files: `uai_questions`.

The last variable of a scope varies fastest. Variables are named by their number; states are 0..K-1.
Comments are accepted (see `uai_questions.without_comments`).

Some programs write tables in another order without marking it. In BAYES files from pgmpy, and in MARKOV files from
pyagrum, the first variable of a scope varies fastest; in BAYES files from pyagrum the child does, then its first
parent. Files from pyagrum are recognised by their comments; files from pgmpy, if tables add to 1 only in this
order.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass
from typing import Literal

from certimap.core.domain import MAX_STATES, Domain
from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, cut, read_text, write_text
from certimap.io.numbers import Numbers, written
from certimap.io.uai_questions import Tokens
from certimap.networks.bayesian import BayesianNetwork, RowNormaliser, row_totals
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.network import MarkovNetwork, Network

Order = Literal["last", "first", "child"]  # which variable of a scope varies fastest
_FASTEST = {"first": "first variable of each scope", "child": "child and then its first parent"}
_OF_PYAGRUM = {
    "bayes": re.compile(r"BAYES\s+\d+\s+[\d ]+\n\d+\n\d+( \d+)+   # "),
    "markov": re.compile(r"MARKOV\s+\d+ # nbr Nodes"),
}
FREE_STATES = 2**20  # limit on declared states beyond one per word of the file


def read_uai(path: AnyPath, encoding: str | None = None) -> Network:
    """Read a network: a BayesianNetwork from a BAYES file, a MarkovNetwork from a MARKOV file.

    Tables may be in the order of the format, of pgmpy or of pyagrum (see above). Warns when rows are renormalised,
    when a BAYES file has not one conditional table per variable (it is then read as a Markov network), and when
    tables are in another order.
    """
    text = read_text(path, encoding)
    tokens = Tokens(path, text)
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
    tables = [_function(tokens, k, scope, sizes) for k, scope in enumerate(scopes)]
    if tokens.at < len(tokens.words):
        raise tokens.fail(f"{cut(tokens.words[tokens.at])} follows the last table; expected the end of the file")
    order = _order_of(path, text, tables, is_bayes)
    factors = [table.factor(order) for table in tables]
    if is_bayes:
        factors = _normalised(tokens, tables, factors)
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
            raise tokens.fail(
                f"the distribution of variable {table.scope[-1]} given states {wrong} of {table.scope[:-1]} adds "
                f"to {abs(float(row_totals(factor)[wrong])):.10g}, and tables add to 1 in no other order either; "
                "expected 1 within 0.001 or a row of zeros in BAYES files (MARKOV for the first word reads the "
                "product of the tables as it is)",
                table.start,
            )
        made.append(factor)
    normalise.warn()
    return made


def _function(tokens: Tokens, k: int, scope: list[int], sizes: list[int]) -> _Table:
    shape = tuple(sizes[v] for v in scope)
    start = tokens.at
    count = tokens.integer(f"the number of entries of function {k}")
    if count != math.prod(shape):
        raise tokens.fail(f"function {k} says {count} entries; its scope {scope} has {math.prod(shape)}", start)
    return _Table(scope, shape, tokens.numbers(count, f"function {k}"), start)


def _is_bayesian(path: AnyPath, scopes: list[list[int]], n: int) -> bool:
    """Whether the scopes fit one conditional table per variable; warn if not."""
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

    Numbers read back exactly. Entries held as logs are written as decimal text with any exponent, and read
    back exactly except for the last digit.
    """
    is_bayes = isinstance(model, BayesianNetwork)
    lines = ["BAYES" if is_bayes else "MARKOV", str(len(model.domain))]
    lines += [" ".join(map(str, model.domain.n_states.tolist())), str(len(model.factors))]
    lines += [" ".join(map(str, (len(f.scope), *f.scope))) for f in model.factors]
    for factor in model.factors:
        lines += ["", str(math.prod(factor.shape)), " ".join(written(factor))]
    write_text(path, "\n".join(lines) + "\n")
