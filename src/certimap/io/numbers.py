"""Numbers as text: numbers beyond the range of doubles are read into natural logs, and written from them."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np

from certimap.core.arrays import Floats
from certimap.networks.factor import Factor

_EXPONENT_LIMIT = 10**17  # the largest power of ten in Decimal
_EXACT = Context(prec=40, Emax=_EXPONENT_LIMIT, Emin=-_EXPONENT_LIMIT)
_WRITTEN = Context(prec=20, Emax=_EXPONENT_LIMIT, Emin=-_EXPONENT_LIMIT)
_HAS_DIGIT = re.compile(r"[^eE]*[1-9]")
_IS_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,17})?", re.ASCII)
_LOG_SMALLEST = math.log(sys.float_info.min)  # below it doubles lose digits
_LOG_LARGEST = math.log(sys.float_info.max)


@dataclass
class Numbers:
    """Nonnegative numbers read from text.

    `values`: float64; 0, inf or a denormal for numbers outside the range of normal doubles. `logs`: natural logs,
    same shape; None if all numbers are normal doubles.
    """

    values: Floats
    logs: Floats | None = None

    def reshape(self, *shape: int) -> Numbers:
        """Return the numbers in another shape."""
        return Numbers(self.values.reshape(shape), None if self.logs is None else self.logs.reshape(shape))

    @staticmethod
    def stacked(rows: Sequence[Numbers]) -> Numbers:
        """Return rows of equal length as one table."""
        is_plain = all(row.logs is None for row in rows)
        logs = None if is_plain else np.array([row.all_logs for row in rows])
        return Numbers(np.array([row.values for row in rows]), logs)

    def transpose(self, *axes: int) -> Numbers:
        """Return the numbers with their axes in another order."""
        return Numbers(self.values.transpose(axes), None if self.logs is None else self.logs.transpose(axes))

    @property
    def all_logs(self) -> Floats:
        """Natural logs, -inf for zeros."""
        if self.logs is not None:
            return self.logs
        with np.errstate(divide="ignore"):
            return np.log(self.values)

    def factor(self, scope: Sequence[int]) -> Factor:
        """Return the numbers as a factor."""
        return Factor(scope, self.values) if self.logs is None else Factor.from_log(scope, self.logs)


def log_of_text(word: str) -> float:
    """Return the natural log of a nonnegative number of any size; ValueError for any other text."""
    if not _IS_NUMBER.fullmatch(word):
        raise ValueError(word)
    number = Decimal(word)
    return float(number.ln(_EXACT)) if number else -math.inf


def read_numbers(words: Sequence[str]) -> Numbers | None:
    """Read finite nonnegative numbers; None if a word is anything else.

    `float` takes more than numbers of files: '1_000' and the digits of other scripts.

    Cost: one conversion per word, and about 20 µs for each word beyond the range of doubles.
    """
    text = "".join(words)
    if "_" in text or not text.isascii():
        return None
    try:
        values = np.array(list(map(float, words)), np.float64)
    except ValueError:
        return None
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


def numbers_of(words: Sequence[str], refused: Callable[[int], Exception]) -> Numbers:
    """Read finite nonnegative numbers; raise what `refused` returns for the index of the first other word."""
    values = read_numbers(words)
    if values is None:
        raise refused(next(k for k, word in enumerate(words) if read_numbers([word]) is None))
    return values


def written(factor: Factor) -> list[str]:
    """Return the entries of a factor as decimal text that reads back as the same numbers, last axis fastest."""
    if not factor.in_logs:
        return list(map(repr, factor.table.reshape(-1).tolist()))
    logs = factor.log_table.reshape(-1)
    plain = (logs == -math.inf) | ((logs > _LOG_SMALLEST) & (logs < _LOG_LARGEST))
    words = list(map(repr, np.exp(np.where(plain, logs, 0.0)).tolist()))
    for i in np.flatnonzero(~plain).tolist():
        words[i] = str(Decimal(float(logs[i])).exp(_WRITTEN)).replace("E", "e")
    return words


def written_rows(factor: Factor) -> Iterator[tuple[tuple[int, ...], list[str]]]:
    """Yield the states of the parents and the entries of each row of a conditional table, as `written` does."""
    texts, size = written(factor), factor.shape[-1]
    for row, index in enumerate(np.ndindex(factor.shape[:-1])):
        yield index, texts[row * size : (row + 1) * size]
