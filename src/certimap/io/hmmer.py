"""HMMER3 profiles (`.hmm`): hidden Markov models with a match, an insert and a silent delete state per position.

For each position three lines have -ln of probabilities: of symbols matched, of symbols inserted, and of the moves
m->m, m->i, m->d, i->m, i->i, d->m, d->d; before the first position there is no match.
"""

from __future__ import annotations

import math

import numpy as np

from certimap.core.arrays import Floats
from certimap.errors import ParseError
from certimap.io.declared import MAX_EXPANDED
from certimap.io.files import AnyPath, parsing, read_text
from certimap.networks.chains import hidden_markov_model
from certimap.networks.network import Network


def read_hmmer(path: AnyPath, encoding: str | None = None) -> Network:
    """Read the whole profile as a network over state[0], symbol[0], ... of one more step than it has positions.

    States are M1, I1, ... (I0 before the first position) and "end", which follows the last position and gives the
    symbol "-"; paths through delete states are summed. `certimap.unroll` makes the network longer or shorter.
    """
    lines = [line.split() for line in read_text(path, encoding).split("\n")]
    at = next((k for k, words in enumerate(lines) if words[:1] == ["HMM"]), 0)
    body = [words for words in lines[at + 2 :] if words and words[0] not in ("COMPO", "//")]
    symbols, n = lines[at][1:], (len(body) - 2) // 3  # two lines stand before the first position
    is_one = " ".join(lines[0]).startswith("HMMER3/") and lines.count(["//"]) == 1
    if not is_one or n < 1 or (2 * n + 2) ** 2 > MAX_EXPANDED:
        raise ParseError(f"is no profile of HMMER 3 of 1 to 2,046 positions; expected one, and // once: {n}", path)
    try:
        match = _shares([words[1:] for words in body[2::3]], [len(symbols)])
        insert, moves = _shares([body[0], *body[3::3]], [len(symbols)]), _shares([body[1], *body[4::3]], [3, 2, 2])
        numbers = [int(words[0]) for words in body[2::3]]
    except ValueError:
        numbers, match, insert, moves = [], *[np.zeros(0)] * 3
    if numbers != [*range(1, n + 1)] or not len(insert) == len(moves) == n + 1:
        told = "has a line that its place does not expect; three per position have -ln of probabilities"
        raise ParseError(f"{told} that add to 1", path)
    reach, rows, own = np.zeros((n + 2, 2 * n + 2)), np.zeros((2 * n + 3, 2 * n + 2)), np.eye(2 * n + 2)
    for k in range(n, -1, -1):  # columns are M1 ... Mn, end, I0 ... In
        mm, mi, md, im, ii, dm, dd = moves[k]
        reach[k] = dm * own[k] + dd * reach[k + 1]  # from the delete state of position k
        rows[k] = mm * own[k] + mi * own[n + 1 + k] + md * reach[k + 1]
        rows[n + 2 + k] = im * own[k] + ii * own[n + 1 + k]
    rows[n + 1] = own[n]
    rows /= np.where((total := rows.sum(axis=1, keepdims=True)) == 0.0, 1.0, total)
    emission = np.zeros((2 * n + 2, len(symbols) + 1))
    emission[:n, :-1], emission[n, -1], emission[n + 1 :, :-1] = match, 1.0, insert
    states = [*(f"M{k}" for k in range(1, n + 1)), "end", *(f"I{k}" for k in range(n + 1))]
    names = {"states": states, "symbols": [*symbols, "-"]}
    with parsing(path):
        return hidden_markov_model(rows[0], rows[1:], emission, n + 1, **names, names=("state[{}]", "symbol[{}]"))


def _shares(rows: list[list[str]], sizes: list[int]) -> Floats:
    """Return the probabilities on lines, in groups that add to 1 or are zeros; ValueError for others."""
    values = np.array([[math.inf if word == "*" else float(word) for word in row[: sum(sizes)]] for row in rows])
    parts = np.split(np.exp(-values.reshape(len(rows), sum(sizes))), np.cumsum(sizes)[:-1], axis=1)
    totals = [part.sum(axis=1, keepdims=True) for part in parts]
    if not all(np.all((np.abs(total - 1.0) <= 0.01) | (total == 0.0)) for total in totals):
        raise ValueError("sums")
    return np.hstack(
        [part / np.where(total == 0.0, 1.0, total) for part, total in zip(parts, totals, strict=True)]
    )
