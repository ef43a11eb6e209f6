"""UAI: networks as numbers. Their evidence, query and result files: `uai_questions`.

The last variable of a scope varies fastest. Variables are named by their number, states are 0..K-1.
Comments are accepted (see `uai_words.without_comments`).
"""

from __future__ import annotations

import math
import warnings

from certimap.core.domain import MAX_STATES, Domain
from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath, cut, read_text, write_text
from certimap.io.numbers import written
from certimap.io.uai_words import Tokens
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.markov import MarkovNetwork
from certimap.networks.network import Network
from certimap.networks.rows import RowNormaliser, row_totals

FREE_STATES = 2**20  # how many states may be declared beyond one per word of the file


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
