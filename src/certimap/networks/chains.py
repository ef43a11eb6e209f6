"""Sequences of a fixed length as networks: hidden Markov models, with durations, and linear chains of scores."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from certimap.core.arguments import check_whole
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Label
from certimap.errors import ModelError
from certimap.networks.bayesian import ACCEPTED, BayesianNetwork, numbers_of
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork

STATE, SYMBOL, LABEL = "state{}", "symbol{}", "label{}"


def hidden_markov_model(
    start: Any, transition: Any, emission: Any = None, steps: int | None = None, *, log_emission: Any = None,
    durations: Any = None, labels: Sequence[Label] | None = None, silent: Collection[Label] = (),
    states: Sequence[Label] | None = None, symbols: Sequence[Label] | None = None,
    names: tuple[str, str] = (STATE, SYMBOL),
) -> BayesianNetwork | MarkovNetwork:  # fmt: skip
    """Return a hidden Markov model of a fixed length as a network; query the states for Viterbi's path.

    - `start`: P(first state), shape (K,).
    - `transition`: P(next state | state), shape (K, K), or (steps - 1, K, K) for one matrix per move; 0 forbids a
      move.
    - `emission`: P(symbol | state), shape (K, M).
    - `steps`: the number of steps, at least 1; `log_emission` tells it too.
    - `log_emission`: in place of `emission`: ln p(observation of step t | state) up to a constant, shape (steps,
      K), -inf where impossible, from any classifier. The model is then a `MarkovNetwork` of the states alone,
      whose `log_partition` is ln p(all observations).
    - `durations`: P(a stay in state k lasts 1 ... D steps), shape (K, D): a semi-Markov model. The first stay
      begins at step 0, and the end may cut the last one off. The diagonal of `transition` is ignored: other
      entries of a row are rescaled to add to 1, and a state that moves to itself alone is never left.
    - `labels`: the label of each state, length K: states with the same label are its sub-states. Variables label0,
      ... are added and the states are hidden, so that a query for all variables finds the most probable labels
      with the states summed out (marginal MAP).
    - `silent`: states without observation, whose rows of `emission` are zeros (columns of `log_emission` are
      -inf). Paths through them are summed, cycles too, to moves between the other states; only these become
      variables.
    - `states`, `symbols`: labels; 0..K-1 and 0..M-1 by default.
    - `names`: name patterns of the variables of step t, states then symbols; {} is replaced by t, from 0.

    Its variables are states, then symbols, labels, and with durations the hidden age0, ... (how many steps a stay
    has lasted) and new1, ... (whether a stay begins), which the states determine.

    Raises ModelError for other shapes, rows that are no distributions, and silent states that are never left.
    Cost: linear in the steps; with durations tables have up to 2 K D max(K, D) entries (Yu 2010).
    """
    soft = emission is None
    if soft == (log_emission is None):
        raise ModelError("expected one of emission, shape (K, M), and log_emission, shape (steps, K)")
    first, move = numbers_of(start, "start"), numbers_of(transition, "transition")
    emit = numbers_of(log_emission, "log_emission") if soft else numbers_of(emission, "emission").T
    steps = len(emit) if soft and steps is None and emit.ndim else steps
    n = check_whole("steps", steps, "a whole number from 1", ModelError, low=1)
    k = len(first) if first.ndim == 1 else 0
    is_move = move.shape in ((k, k), (n - 1, k, k))
    if k == 0 or not is_move or emit.ndim != 2 or emit.shape[1] != k or (soft and len(emit) != n):
        what = f"log_emission have the shapes {first.shape}, {move.shape} and {emit.shape}"
        if not soft:
            what = f"emission have the shapes {first.shape}, {move.shape} and {emit.T.shape}"
        expected = f"(K,), (K, K) or (steps - 1, K, K), and {'(steps, K)' if soft else '(K, M)'} are expected"
        raise ModelError(f"start, transition and {what} for {n} steps; {expected}")
    _no_empty_row("start", first)
    _no_empty_row("transition", move)
    called = _labels(states, k, "states")
    if not set(silent) <= set(called):
        raise ModelError(f"silent is {tuple(silent)}; expected some of the states {called}")
    quiet, left = ([i for i in range(k) if (called[i] in silent) == is_quiet] for is_quiet in (True, False))
    if np.any(emit[:, quiet] > (-np.inf if soft else 0.0)):
        raise ModelError(f"a silent state among {tuple(silent)} may emit; expected zeros (-inf in logs)")
    if quiet and durations is not None:
        raise ModelError("durations and silent states do not go together; expected one of them")
    first, move = _bridged(first, move, quiet, called)
    first, move, emit = first[left], move[..., left, :][..., left], emit[:, left]
    parts = _Parts(n)
    state = parts.add(names[0], [called[i] for i in left], hidden=labels is not None)
    if not soft:
        _no_empty_row("emission", emit.T)
        parts.join(emit.T, state, parts.add(names[1], _labels(symbols, len(emit), "symbols")))
    if labels is not None:
        group = [_labels(labels, k, "labels")[i] for i in left]
        distinct = tuple(dict.fromkeys(group))
        parts.join(np.eye(len(distinct))[[distinct.index(g) for g in group]], state, parts.add(LABEL, distinct))
    parts.join(first, state[:1])
    if durations is None:
        parts.join(move, state[:-1], state[1:])
    else:
        _join_stays(parts, state, move, numbers_of(durations, "durations"))
    network = BayesianNetwork(Domain(parts.variables), parts.factors, parts.hidden)
    if not soft:
        return network
    likelihoods = [Factor.from_log((t,), row) for t, row in enumerate(emit)]
    return MarkovNetwork(network.domain, [*network.factors, *likelihoods], parts.hidden)


def linear_chain(
    unary: Any, pairwise: Any, *, states: Sequence[Label] | None = None, names: str = STATE
) -> MarkovNetwork:
    """Build a linear chain of log scores, as of a conditional random field, as a network.

    - `unary`: log scores of the states of each step, shape (steps, K); any finite numbers, -inf forbids a state.
    - `pairwise`: log scores of moves, shape (K, K), or (steps - 1, K, K) for one matrix per move; -inf forbids a
      move.
    - `states`: labels; 0..K-1 by default.
    - `names`: name pattern of the variable of step t; {} is replaced by t, from 0.

    Raises ModelError for other shapes, NaN and +inf. The network is unnormalised: `log_partition` is the log of
    the sum of the exponentials of all scores of paths (nats). Cost: linear in the steps.
    """
    own, moves = numbers_of(unary, "unary"), numbers_of(pairwise, "pairwise")
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


def _bridged(start: Floats, move: Floats, quiet: list[int], called: tuple[Label, ...]) -> tuple[Floats, Floats]:
    """Return start and moves with silent states bridged one by one, so that paths through them are summed.

    All weights are positive and nothing is subtracted (Grassmann, Taksar, Heyman 1985), so zeros stay zeros.
    """
    start, move = start.copy(), move.copy()
    if move.ndim == 3 and np.any(start[quiet] > 0.0):
        raise ModelError("start may be silent, and each move has its own transition; expected one or the other")
    for s in quiet:
        onward, name = move[..., s, :].copy(), f"silent state {called[s]!r}"
        if not np.all(onward >= 0.0) or np.any(np.abs(onward.sum(axis=-1) - 1.0) > ACCEPTED):
            raise ModelError(f"the transitions of {name} are no distribution; expected numbers that add to 1")
        onward[..., s] = 0.0
        leaving = onward.sum(axis=-1, keepdims=True)
        if np.any(leaving == 0.0):
            raise ModelError(f"{name} is never left; expected a way to states that emit")
        onward /= leaving
        start += start[s] * (onward if move.ndim == 2 else 0.0)
        move += move[..., :, s : s + 1] * onward[..., None, :]
        start[s] = move[..., :, s] = 0.0
    return start, move


class _Parts:
    """Variables, one of a kind per step, and the tables that join them."""

    def __init__(self, steps: int) -> None:
        self.steps, self.variables, self.factors = steps, list[Categorical](), list[Factor]()
        self.hidden = list[str]()

    def add(self, pattern: str, states: Iterable[Label], first: int = 0, *, hidden: bool = False) -> range:
        """Add a variable for each step from `first` on; return their positions."""
        at, own = len(self.variables), tuple(states)
        self.variables += [Categorical(pattern.format(t), own) for t in range(first, self.steps)]
        self.hidden += [variable.name for variable in self.variables[at:] if hidden]
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


def _join_stays(parts: _Parts, state: range, move: Floats, rows: Floats) -> None:
    """Join states by their durations: each state depends on the one before and on how long that has lasted."""
    same = np.eye(move.shape[-1])
    if rows.ndim != 2 or len(rows) != len(same) or rows.size == 0:
        raise ModelError(f"durations has the shape {rows.shape}; expected ({len(same)}, D), a row per state")
    right = (np.abs(rows.sum(axis=1) - 1.0) <= ACCEPTED) & np.all(rows >= 0.0, axis=1)
    if not np.all(right):
        raise ModelError(f"row {right.argmin()} of durations is no distribution; expected numbers that add to 1")
    lasting = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1, None]  # P(at least that many steps)
    possible = np.where(lasting > 0.0, lasting, 1.0)
    ends = np.where(lasting > 0.0, rows[..., None] / possible, 1.0)
    goes_on = np.roll(lasting, -1, axis=1) / possible
    goes_on[:, -1] = 0.0
    others = move * (1.0 - same)
    total = others.sum(axis=-1, keepdims=True)
    others = (others / np.where(total > 0.0, total, 1.0))[..., None, :]
    stay = same[:, None, :]
    older, young = np.eye(rows.shape[1], k=1), np.zeros((rows.shape[1], rows.shape[1]))
    older[-1, -1] = young[:, 0] = 1.0
    age = parts.add("age{}", range(1, len(young) + 1), hidden=True)
    new = parts.add("new{}", (False, True), 1, hidden=True)
    parts.join(young[0], age[:1])
    after = np.where((total > 0.0)[..., None], goes_on * stay + ends * others, stay)
    parts.join(after, state[:-1], age[:-1], state[1:])
    parts.join(np.stack([same, 1.0 - same], axis=-1), state[:-1], state[1:], new)
    parts.join(np.stack([older, young], axis=1), age[:-1], new, age[1:])


def _no_empty_row(what: str, rows: Floats) -> None:
    empty = np.argwhere(np.atleast_2d(rows).sum(axis=-1) == 0.0)
    if len(empty):
        row = f"row {', '.join(map(str, empty[0]))} of {what}" if rows.ndim > 1 else what
        hint = "; silent= names states without symbols" if what == "emission" else ""
        raise ModelError(f"{row} adds to 0; expected probabilities that add to 1{hint}")


def _labels(given: Sequence[Label] | None, n: int, what: str) -> tuple[Label, ...]:
    if given is None:
        return tuple(range(n))
    if len(given) != n:
        raise ModelError(f"{len(given)} {what} are named and {n} are there; one name each is expected")
    return tuple(given)
