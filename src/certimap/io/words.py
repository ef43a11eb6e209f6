"""Words of network files: numbers of any size, beyond the range of doubles as natural logs, and identifiers."""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Variable
from certimap.core.logs import log_of
from certimap.decisions.network import DecisionNetwork
from certimap.errors import ModelError
from certimap.io.files import AnyPath, cut
from certimap.networks.factor import Factor
from certimap.networks.network import Network

_EXPONENT_LIMIT = 10**17  # the largest power of ten in Decimal
_EXACT = Context(prec=40, Emax=_EXPONENT_LIMIT, Emin=-_EXPONENT_LIMIT)
_WRITTEN = Context(prec=20, Emax=_EXPONENT_LIMIT, Emin=-_EXPONENT_LIMIT)
_HAS_DIGIT = re.compile(r"[^eE]*[1-9]")
_IS_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,17})?", re.ASCII)
_OTHER = re.compile(r"[^A-Za-z0-9_]")
LOG_SMALLEST = math.log(sys.float_info.min)  # below it doubles lose digits
LOG_LARGEST = math.log(sys.float_info.max)


@dataclass
class Numbers:
    """Nonnegative numbers read from text."""

    values: Floats  # 0, inf or a denormal for numbers outside the range of normal doubles
    logs: Floats | None = None  # natural logs; None if all numbers are normal doubles

    def reshape(self, *shape: int) -> Numbers:
        """Return the numbers in another shape."""
        return Numbers(self.values.reshape(shape), None if self.logs is None else self.logs.reshape(shape))

    @staticmethod
    def stacked(rows: Sequence[Numbers]) -> Numbers:
        """Return rows of equal length as one table."""
        logs = None if all(row.logs is None for row in rows) else np.array([row.all_logs for row in rows])
        return Numbers(np.array([row.values for row in rows]), logs)

    def transpose(self, *axes: int) -> Numbers:
        """Return the numbers with their axes in another order."""
        return Numbers(self.values.transpose(axes), None if self.logs is None else self.logs.transpose(axes))

    @property
    def all_logs(self) -> Floats:
        """Natural logs, -inf for zeros."""
        return log_of(self.values) if self.logs is None else self.logs

    def factor(self, scope: Sequence[int]) -> Factor:
        """Return the numbers as a factor."""
        return Factor(scope, self.values) if self.logs is None else Factor.from_log(scope, self.logs)


def log_of_text(word: str) -> float:
    """Return the natural log of a nonnegative number of any size; ValueError for any other text."""
    if not _IS_NUMBER.fullmatch(word):
        raise ValueError(word)
    number = Decimal(word)
    return float(number.ln(_EXACT)) if number else -math.inf


def read_numbers(words: Sequence[str], signed: bool = False) -> Numbers | None:
    """Read finite nonnegative numbers; None for other words. Words beyond doubles cost about 20 µs each.

    `signed` numbers are of any sign, and within doubles.
    """
    text = "".join(words)
    if "_" in text or not text.isascii():  # `float` takes '1_000' and the digits of other scripts
        return None
    try:
        values = np.array(list(map(float, words)), np.float64)
    except ValueError:
        return None
    if signed:
        return Numbers(values) if np.isfinite(values).all() else None
    is_plain = (values >= sys.float_info.min) & (values < math.inf)
    if is_plain.all():
        return Numbers(values)
    beyond = [i for i in np.flatnonzero(~is_plain).tolist() if values[i] != 0.0 or _HAS_DIGIT.match(words[i])]
    if not beyond:
        return Numbers(np.abs(values)) if not np.any(values < 0.0) else None
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
    try:
        for i in beyond:
            logs[i] = log_of_text(words[i])
    except ValueError:
        return None
    return Numbers(values, logs)


def numbers_of(
    words: Sequence[str], what: str, fail: Callable[[str, int], Exception], signed: bool = False
) -> Numbers:
    """Read numbers as `read_numbers` does; at the first other word, raise what `fail` makes of text and index."""
    values = read_numbers(words, signed)
    if values is None:
        k = next(k for k, word in enumerate(words) if read_numbers([word], signed) is None)
        sign = "" if signed else " and not negative"
        raise fail(f"{cut(words[k])} {what}; expected numbers that are finite{sign}", k)
    return values


class WrittenNode(NamedTuple):
    """A chance node, decision or utility."""

    kind: str  # "node", "decision", "utility"
    name: str
    states: list[str]
    parents: tuple[int, ...]
    words: list[str]  # as `written`
    shape: tuple[int, ...]


def written_nodes(model: Network | DecisionNetwork) -> list[WrittenNode]:
    """Return the nodes in the order of `written_names`; a decision's parents are all that is known at it."""
    cpts = {f.scope[-1]: f for f in (model.factors if isinstance(model, Network) else model.cpts)}
    nodes: list[WrittenNode] = []
    for k, variable in enumerate(model.domain):
        if isinstance(model, DecisionNetwork) and k not in cpts:
            seen = tuple(map(model.domain.index, model.information(variable.name)))
            nodes.append(WrittenNode("decision", variable.name, state_texts(variable), seen, [], ()))
        else:
            words, shape = written(cpts[k]), cpts[k].shape
            nodes.append(
                WrittenNode("node", variable.name, state_texts(variable), cpts[k].scope[:-1], words, shape)
            )
    for name, scope, values in model.utilities if isinstance(model, DecisionNetwork) else ():
        nodes.append(WrittenNode("utility", name, [], scope, written(values), values.shape))
    return nodes


def written(factor: Factor | Floats) -> list[str]:
    """Return the entries of a table as decimal text that reads back as the same numbers, last axis fastest."""
    if not isinstance(factor, Factor) or not factor.in_logs:
        return list(map(repr, (factor.table if isinstance(factor, Factor) else factor).reshape(-1).tolist()))
    logs = factor.log_table.reshape(-1)
    plain = (logs == -math.inf) | ((logs > LOG_SMALLEST) & (logs < LOG_LARGEST))
    words = list(map(repr, np.exp(np.where(plain, logs, 0.0)).tolist()))
    for i in np.flatnonzero(~plain).tolist():
        words[i] = str(Decimal(float(logs[i])).exp(_WRITTEN)).replace("E", "e")
    return words


def written_rows(factor: Factor) -> Iterator[tuple[tuple[int, ...], list[str]]]:
    """Yield the states of the parents and the entries of each row of a conditional table, as `written` does."""
    texts, size = written(factor), factor.shape[-1]
    for row, index in enumerate(np.ndindex(factor.shape[:-1])):
        yield index, texts[row * size : (row + 1) * size]


@dataclass(frozen=True)
class WrittenNames:
    """Written names of a model's variables and states, in the order of the domain, and then of its utilities."""

    names: list[str]
    states: list[list[str]]  # of each variable
    labels: tuple[str, ...]  # the model's own names, for formats with a field for a title


def written_names(
    model: Network | DecisionNetwork, path: AnyPath, *, states_too: bool, longest: int | None = None
) -> WrittenNames:
    """Return names that are identifiers: a letter, then letters, digits and underscores.

    States are converted too where `states_too`, else kept as text; names have at most `longest` characters. Warns
    once if anything is converted; raises ModelError if two states of a variable are equal as text.
    """
    utilities = model.utilities if isinstance(model, DecisionNetwork) else ()
    labels = (*model.domain.names, *(utility.name for utility in utilities))
    names = _identifiers(labels, "x", longest)
    changed = [pair for pair in zip(labels, names, strict=True) if pair[0] != pair[1]]
    states: list[list[str]] = []
    for variable in model.domain:
        texts = state_texts(variable)
        own = _identifiers(texts, "s", longest) if states_too else texts
        changed += [pair for pair in zip(texts, own, strict=True) if pair[0] != pair[1]]
        states.append(own)
    if changed:
        count = "one name" if len(changed) == 1 else f"{len(changed)} names"
        warnings.warn(
            f"{path}: {count} of variables and states had to be written in another form, {changed[0][0]!r} as "
            f"{changed[0][1]!r}; .bif and .npz keep them",
            stacklevel=4,
        )
    return WrittenNames(names, [*states, *([] for _ in utilities)], labels)


def state_texts(variable: Variable, written: Callable[[str], str] = str) -> list[str]:
    """Return the states of a variable as they are `written`; ModelError for two that are equal."""
    texts = [written(str(s)) for s in variable.states] if isinstance(variable, Categorical) else []
    if len(set(texts)) < len(texts):
        raise ModelError(f"variable {variable.name!r} has two states that read the same as text")
    return texts


def _identifiers(names: Sequence[str], prefix: str, longest: int | None) -> list[str]:
    """Return distinct identifiers; names that are already identifiers stay unchanged."""
    plain = [_OTHER.sub("_", name) for name in names]
    wanted = [(name if name[:1].isalpha() else prefix + name)[:longest] for name in plain]
    taken = {new for old, new in zip(names, wanted, strict=True) if old == new}
    found: list[str] = []
    counts: dict[str, int] = {}
    for old, new in zip(names, wanted, strict=True):
        unique = new
        while old != unique and unique in taken:
            counts[new] = counts.get(new, 1) + 1
            end = f"_{counts[new]}"
            unique = (new if longest is None else new[: longest - len(end)]) + end
        taken.add(unique)
        found.append(unique)
    return found
