"""Sequences of a fixed length as networks: hidden Markov models, with durations, and linear chains of scores."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from certimap.core.arguments import check_whole
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Label
from certimap.errors import ModelError
from certimap.networks.bayesian import ACCEPTED, BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork

STATE, SYMBOL, LABEL = "state{}", "symbol{}", "label{}"


def hidden_markov_model(
    start: Any, transition: Any, emission: Any = None, steps: int | None = None, *, log_emission: Any = None,
    durations: Any = None, labels: Sequence[Label] | None = None, silent: Collection[Label] = (),
    states: Sequence[Label] | None = None, symbols: Sequence[Label] | None = None,
    names: tuple[str, str] = (STATE, SYMBOL),
) -> BayesianNetwork | MarkovNetwork:  # fmt: skip
    """Build a hidden Markov model of a fixed length as a network; query the states for Viterbi's path.

    Parameters
    ----------
    start
        P(first state), shape (K,).
    transition
        P(next state | state), shape (K, K), or (steps - 1, K, K) for one matrix per move; 0 forbids a move.
    emission
        P(symbol | state), shape (K, M).
    steps
        The number of steps, at least 1; `log_emission` tells it too.
    log_emission
        In place of `emission`: ln p(observation of step t | state) up to a constant, shape (steps, K), -inf where
        impossible, from any classifier. The model is then a `MarkovNetwork` of the states alone, whose
        `log_partition` is ln p(all observations).
    durations
        P(a stay in state k lasts 1 ... D steps), shape (K, D): a semi-Markov model. The first stay begins at step
        0, and the end may cut the last one off. The diagonal of `transition` is ignored: other entries of a row
        are rescaled to add to 1, and a state that moves to itself alone is never left.
    labels
        The label of each state, length K: states with the same label are its sub-states. Variables label0, ... are
        added and the states are hidden, so that a query for all variables finds the most probable labels with the
        states summed out (marginal MAP).
    silent
        States without observation, whose rows of `emission` are zeros (columns of `log_emission` are -inf). Paths
        through them are summed, cycles too, to moves between the other states; only these become variables.
    states, symbols
        Labels; 0..K-1 and 0..M-1 by default.
    names
        Name patterns of the variables of step t, states then symbols; {} is replaced by t, from 0.

    Returns
    -------
    BayesianNetwork or MarkovNetwork
        Variables of states, then symbols, labels, and the hidden age0, ... (steps that a stay has lasted) and
        new1, ... (whether a stay begins), which the states determine.

    Raises
    ------
    ModelError
        When shapes do not fit, a row is no distribution, silent states are never left, or `steps` is below 1.

    Notes
    -----
    Cost: linear in the steps. With durations, eliminations have tables of 2 K D max(K, D) entries (Yu 2010, Hidden
    semi-Markov models).
    """
    if (emission is None) == (log_emission is None):
        raise ModelError("expected one of emission, shape (K, M), and log_emission, shape (steps, K)")
    first, move = numbers_of("start", start), numbers_of("transition", transition)
    soft = emission is None
    emit = numbers_of("log_emission", log_emission, in_logs=True) if soft else numbers_of("emission", emission)
    steps = len(emit) if soft and steps is None and emit.ndim else steps
    n = check_whole("steps", steps, "a whole number from 1", ModelError, low=1)
    k = len(first) if first.ndim == 1 else 0
    own = (n, k) if soft else (k, emit.shape[-1] if emit.ndim else 0)
    if k == 0 or move.shape not in ((k, k), (n - 1, k, k)) or emit.shape != own:
        what, shape = ("log_emission", "(steps, K)") if soft else ("emission", "(K, M)")
        raise ModelError(
            f"start, transition and {what} have the shapes {first.shape}, {move.shape} and {emit.shape} "
            f"for {n} steps; (K,), (K, K) or (steps - 1, K, K), and {shape} are expected"
        )
    for what, rows in (("start", first), ("transition", move)):
        _no_empty_row(what, rows)
    called, grouped = _labels(states, k, "states"), None if labels is None else _labels(labels, k, "labels")
    stays = None if durations is None else _stays(durations, k)
    quiet = _positions(silent, called)
    if quiet:
        if stays is not None:
            raise ModelError("durations and silent states do not go together; expected one of them")
        if np.any((emit[:, quiet] > -np.inf) if soft else emit[quiet] > 0.0):
            raise ModelError(
                f"the silent state {called[quiet[0]]!r} may emit; expected a row of zeros (-inf in logs)"
            )
        first, move = _without_silent(first, move, quiet, called)
        left = [i for i in range(k) if i not in quiet]
        called, emit = tuple(called[i] for i in left), emit[:, left] if soft else emit[left]
        grouped = None if grouped is None else tuple(grouped[i] for i in left)
    if not soft:
        _no_empty_row("emission", emit)
    parts = _Parts(n)
    state = parts.add(names[0], called)
    if not soft:
        parts.join(emit, state, parts.add(names[1], _labels(symbols, emit.shape[1], "symbols")))
    if grouped is not None:
        distinct = tuple(dict.fromkeys(grouped))
        parts.hidden.append(state)
        parts.join(np.eye(len(distinct))[[distinct.index(g) for g in grouped]], state, parts.add(LABEL, distinct))
    parts.join(first, state[:1])
    if stays is None:
        parts.join(move, state[:-1], state[1:])
    else:
        _join_stays(parts, state, move, stays)
    hidden = [parts.variables[v].name for some in parts.hidden for v in some]
    network = BayesianNetwork(Domain(parts.variables), parts.factors, hidden)
    if not soft:
        return network
    likelihoods = [Factor.from_log((t,), row) for t, row in enumerate(emit)]
    return MarkovNetwork(network.domain, [*network.factors, *likelihoods], hidden)


def linear_chain(
    unary: Any, pairwise: Any, *, states: Sequence[Label] | None = None, names: str = STATE
) -> MarkovNetwork:
    """Build a linear chain of log scores, as of a conditional random field, as a network.

    Parameters
    ----------
    unary
        Log scores of the states of each step, shape (steps, K); any finite numbers, -inf forbids a state.
    pairwise
        Log scores of moves, shape (K, K), or (steps - 1, K, K) for one matrix per move; -inf forbids a move.
    states
        Labels; 0..K-1 by default.
    names
        Name pattern of the variable of step t; {} is replaced by t, from 0.

    Raises ModelError for other shapes, NaN and +inf. The network is unnormalised: `log_partition` is the log of
    the sum of the exponentials of all scores of paths (nats). Cost: linear in the steps.
    """
    own, moves = numbers_of("unary", unary, in_logs=True), numbers_of("pairwise", pairwise, in_logs=True)
    n, k = own.shape if own.ndim == 2 else (0, 0)
    if own.size == 0 or moves.shape not in ((k, k), (n - 1, k, k)):
        raise ModelError(
            f"unary and pairwise have the shapes {own.shape} and {moves.shape}; (steps, K), and (K, K) or "
            "(steps - 1, K, K) are expected"
        )
    parts = _Parts(n)
    state = parts.add(names, _labels(states, k, "states"))
    parts.join(own, state, in_logs=True)
    parts.join(moves, state[:-1], state[1:], in_logs=True)
    return MarkovNetwork(Domain(parts.variables), parts.factors)


def _without_silent(
    start: Floats, move: Floats, quiet: Sequence[int], called: Sequence[Label]
) -> tuple[Floats, Floats]:
    """Return start and moves of the other states, paths through silent ones summed: each silent one is bridged.

    All weights are positive and nothing is subtracted (Grassmann, Taksar, Heyman 1985), so zeros stay zeros.
    """
    start, move = start.copy(), move.copy()
    if move.ndim == 3 and np.any(start[quiet] > 0.0):
        raise ModelError(
            "start has weight on a silent state; expected none where each move has its own transition"
        )
    for s in quiet:
        onward = move[..., s, :].copy()
        if np.any(np.abs(onward.sum(axis=-1) - 1.0) > ACCEPTED):
            raise ModelError(
                f"the transitions of silent state {called[s]!r} do not add to 1; expected probabilities"
            )
        onward[..., s] = 0.0
        leaving = onward.sum(axis=-1, keepdims=True)
        if np.any(leaving == 0.0):
            raise ModelError(f"silent state {called[s]!r} is never left; expected a way to states that emit")
        onward /= leaving
        start += start[s] * (onward if move.ndim == 2 else 0.0)
        move += move[..., :, s : s + 1] * onward[..., None, :]
        start[s] = move[..., :, s] = 0.0
    left = [i for i in range(len(start)) if i not in quiet]
    return start[left], move[..., left, :][..., left]


class _Parts:
    """Variables, one of a kind per step, and the tables that join them."""

    def __init__(self, steps: int) -> None:
        self.steps, self.variables, self.factors = steps, list[Categorical](), list[Factor]()
        self.hidden = list[range]()

    def add(self, pattern: str, states: Iterable[Label], first: int = 0) -> range:
        """Add a variable for each step from `first` on; return their positions."""
        at, own = len(self.variables), tuple(states)
        self.variables += [Categorical(pattern.format(t), own) for t in range(first, self.steps)]
        return range(at, len(self.variables))

    def join(self, table: Floats, *columns: range, in_logs: bool = False) -> None:
        """Add a factor for each row of `columns`; they share a table, or have one each (one more axis)."""
        scopes = list(zip(*columns, strict=True))
        make = Factor.from_log if in_logs else Factor
        if table.ndim > len(columns):
            self.factors += map(make, scopes, table)
        elif scopes:
            first = make(scopes[0], table)
            self.factors += [first.part(scope, first.entries) for scope in scopes]


def _stays(durations: Any, k: int) -> tuple[Floats, Floats]:
    """Return how likely a stay goes on, and how likely it ends, after each number of steps; shapes (K, D)."""
    rows = numbers_of("durations", durations)
    if rows.ndim != 2 or len(rows) != k or rows.size == 0:
        raise ModelError(f"durations has the shape {rows.shape}; expected ({k}, D), a row per state")
    wrong = np.flatnonzero(np.abs(rows.sum(axis=1) - 1.0) > ACCEPTED)
    if len(wrong):
        raise ModelError(
            f"row {wrong[0]} of durations adds to {rows[wrong[0]].sum():.10g}; expected 1 within 0.001"
        )
    lasting = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1]  # P(at least that many steps)
    longer = np.concatenate([lasting[:, 1:], np.zeros((k, 1))], axis=1)
    divisor = np.where(lasting > 0.0, lasting, 1.0)
    return longer / divisor, np.where(lasting > 0.0, rows / divisor, 1.0)


def _join_stays(parts: _Parts, state: range, move: Floats, stays: tuple[Floats, Floats]) -> None:
    """Join states by their durations: each state depends on the one before and on how long that has lasted."""
    goes_on, ends = (rows[:, :, None] for rows in stays)
    k, most = stays[0].shape
    same = np.eye(k)
    others = move * (1.0 - same)
    total = others.sum(axis=-1, keepdims=True)
    left = (total > 0.0)[..., None]
    others = (others / np.where(total > 0.0, total, 1.0))[..., None, :]
    next_state = np.where(left, goes_on * same[:, None, :] + ends * others, same[:, None, :])
    older, young = np.eye(most, k=1), np.zeros((most, most))
    older[-1, -1] = young[:, 0] = 1.0
    age = parts.add("age{}", range(1, most + 1))
    new = parts.add("new{}", (False, True), 1)
    parts.hidden += [age, new]
    parts.join(young[0], age[:1])
    parts.join(next_state, state[:-1], age[:-1], state[1:])
    parts.join(np.stack([same, 1.0 - same], axis=-1), state[:-1], state[1:], new)
    parts.join(np.stack([older, young], axis=1), age[:-1], new, age[1:])


def numbers_of(what: str, given: Any, *, in_logs: bool = False) -> Floats:
    """Return an array of weights, or of their logs; ModelError for other entries."""
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise ModelError(f"{what} is no array of numbers; expected rows of one length") from None
    fits = (values < np.inf) if in_logs else (values < np.inf) & (values >= 0.0)
    if not np.all(fits):
        at = tuple(int(i) for i in np.argwhere(~fits)[0])
        expected = "finite numbers or -inf" if in_logs else "finite numbers that are not negative"
        raise ModelError(f"{what} has the entry {values[at]} at {at}; expected {expected}")
    return values


def _no_empty_row(what: str, rows: Floats) -> None:
    empty = np.argwhere(np.atleast_2d(rows).sum(axis=-1) == 0.0)
    if len(empty):
        at = ", ".join(map(str, empty[0]))
        row = f"row {at} of {what}" if rows.ndim > 1 else what
        hint = "; silent= names states without symbols" if what == "emission" else ""
        raise ModelError(f"{row} adds to 0; expected probabilities that add to 1{hint}")


def _labels(given: Sequence[Label] | None, n: int, what: str) -> tuple[Label, ...]:
    if given is None:
        return tuple(range(n))
    if len(given) != n:
        raise ModelError(f"{len(given)} {what} are named and {n} are there; one name each is expected")
    return tuple(given)


def _positions(silent: Collection[Label], called: Sequence[Label]) -> list[int]:
    for name in silent:
        if name not in called:
            raise ModelError(f"silent names {name!r}; expected states among {tuple(called)}")
    return [i for i, name in enumerate(called) if name in silent]
