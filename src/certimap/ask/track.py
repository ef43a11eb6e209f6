"""Sequences as they arrive: the best states of the last steps, given all observations so far."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from certimap.ask.api import Names, map_query
from certimap.core.arguments import Record, check_whole, is_missing
from certimap.core.arrays import Floats
from certimap.core.logs import log_sum
from certimap.core.query import items_of, make_query, names_of
from certimap.core.result import MapResult
from certimap.core.rounding import LOG_FLOOR
from certimap.core.steps import at_step
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, TooLarge, at_place, did_you_mean
from certimap.interop.networks import unroll
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.problem import problem_of, product
from certimap.networks.simplify import sum_out
from certimap.networks.unrolled import Key, Slices

_MOST = 2**24  # entries of the table that stands for the past


class _Seen(NamedTuple):
    """A track between two observations."""

    n_steps: int = 0
    window: tuple[Record, ...] = ()  # the evidence of the last steps
    past: tuple[Key, ...] | None = None  # what the window depends on; None while it begins at step 0
    log_table: Floats = np.zeros(())  # ln p(past variables | past evidence)
    log_evidence: float = 0.0  # ln p(past evidence)

    def factors(self) -> list[tuple[Key, Factor]]:
        """Return what the past says as conditional tables, of each variable given those before it."""
        found: list[tuple[Key, Factor]] = []
        below = np.zeros((1,))
        for i, key in enumerate(self.past or ()):
            joint = log_sum(self.log_table, tuple(range(i + 1, self.log_table.ndim)))
            logs = np.where(below > -np.inf, joint - np.maximum(below, -1e300), -math.log(joint.shape[-1]))
            is_far = logs.min(where=logs > -np.inf, initial=0.0) < LOG_FLOOR
            table = Factor.from_log(range(i + 1), logs) if is_far else Factor(range(i + 1), np.exp(logs))
            found.append((key, table))
            below = joint[..., None]
        return found


class Track:
    """The most probable states of the last steps of a sequence, while its observations come one step at a time.

    Each `observe` returns what `map_query` would of the sequence so far (`unroll`), up to rounding: the best
    states of the last `lag` steps given all observations, older steps summed out. One table over the variables
    that later steps depend on (the interface of Murphy, "Dynamic Bayesian networks", 2002) stands for the older
    steps: a step costs the same however many there were. A track pickles, with its state.

    - `model`: what `unroll` takes, without variables after the last step. A hidden Markov model is one of two
      steps, with the names `"state[{}]"` and `"symbol[{}]"`.
    - `lag`: how many steps an answer covers, at least 1: the present one and the `lag - 1` before it.
    - `variables`: names without steps, also of variables of the whole sequence; None: all variables of the steps.
      Observed ones are left out of the answer; where all of them are observed, it has the first.
    - `**settings`: of `map_query`: `epsilon`, `solver`, `time_limit`, ...

    Raises ModelError for networks that `unroll` refuses, QueryError for unknown names and a lag below 1.
    """

    def __init__(self, model: Any, lag: int = 1, variables: Names = None, **settings: Any) -> None:
        self.lag = check_whole("lag", lag, "a whole number from 1", QueryError, low=1)
        self._slices = slices = Slices.of(model if isinstance(model, BayesianNetwork) else unroll(model, 2))
        self._settings, self._seen = settings, _Seen()
        if any(slices.keys[p][1] is not None for i in slices.whole for p in slices.network.parents[i]):
            raise ModelError("a variable has parents at the last step, which a track has not; leave it out")
        self.variables = None if variables is None else tuple(names_of(variables, "variables", QueryError))
        for name in self.variables or ():
            has = [(name, k) in slices.places for k in range(slices.last + 1)]
            if (name, None) not in slices.places and not all(has):
                raise QueryError(f"{name!r} is no variable of all slices{did_you_mean(name, dict(slices.keys))}")

    @property
    def n_steps(self) -> int:
        """The number of steps observed."""
        return self._seen.n_steps

    @property
    def log_evidence(self) -> float:
        """ln p of all observations before the steps that the last answer covers, in nats."""
        return self._seen.log_evidence

    def observe(self, evidence: Any = None) -> MapResult:
        """Add a step and return the best states of the last `lag` steps given all observations.

        `evidence`: values by names without steps, as in `map_query` but without stated probabilities. A variable
        of the whole sequence may be observed at any step if later steps depend on it. The result's `log_evidence`
        is that of the last `lag` steps given all before.

        Raises what `map_query` raises, also TooLarge where over 2^24 joint states connect steps; the track then
        stays as it was. Cost: a query to `lag` steps, and a sum over one.
        """
        seen, given = self._seen, {name: x for name, x in items_of(evidence or {}) if not is_missing(x)}
        whole = {name: given.pop(name) for name in list(given) if (name, None) in self._slices.places}
        window = [*seen.window, {at_step(name, seen.n_steps): x for name, x in given.items()}]
        window[0] = window[0] | whole  # while a step is there that may depend on it
        seen = seen._replace(n_steps=seen.n_steps + 1, window=tuple(window))
        if len(seen.window) > self.lag:
            seen = self._forward(seen)
        network, wanted = self._network(seen)
        found = {name: x for row in seen.window for name, x in row.items()}
        known = {network.domain.names[i] for i in make_query(network.domain, None, found).observed}
        asked = [name for name in wanted if name not in known]
        if not asked:
            asked = wanted[:1]
            found[asked[0]] = {"states": [found[asked[0]]]}
        try:
            result: MapResult = map_query(network, asked, found, **self._settings)
        except ImpossibleEvidence as error:
            raise at_place(error, f"step {seen.n_steps - 1}, after the steps before") from None
        self._seen = seen
        return result

    def _network(self, seen: _Seen) -> tuple[BayesianNetwork, list[str]]:
        """Return the network of the window, with what the past says, and the names that are wanted of it."""
        slices, first = self._slices, seen.n_steps - len(seen.window)
        own = [v for t in range(first, seen.n_steps) for v in slices.of_step(t)]
        whole = [(i, slices.keys[i], 0) for i in slices.whole if seen.past is None]
        network = slices.assembled([*whole, *own], seen.factors())
        keys = [*(key for _, key, _ in own), *((name, None) for name in self.variables or ())]
        names = [at_step(*key) for key in keys if self.variables is None or key[0] in self.variables]
        return network, [name for name in names if name in network.domain and name not in network.hidden]

    def _interface(self, first: int) -> tuple[Key, ...]:
        """Return the variables before a step that it or later ones depend on, and what is queried of the whole."""
        slices = self._slices
        later = (v for t in range(first, first + slices.last + 1) for v in slices.of_step(t))
        found = {key for v in later for key in slices.parents(v) if key[1] is None or key[1] < first}
        found |= slices.places.keys() & {(name, None) for name in self.variables or ()}
        n_entries = math.prod(slices.named(key).n_states for key in found)
        if n_entries > _MOST or len(found) > MAX_SCOPE:
            raise TooLarge(f"steps are connected by {n_entries:.3g} joint states; a track keeps at most {_MOST:,}")
        return tuple(sorted(found, key=lambda key: (key[1] is not None, key[1] or 0, key[0])))

    def _forward(self, seen: _Seen) -> _Seen:
        """Return the track with the first step of its window summed out."""
        first = seen.n_steps - len(seen.window)
        kept, (row, *rest) = self._interface(first + 1), seen.window
        network, _ = self._network(seen._replace(n_steps=first + 1, window=(row,)))
        query = make_query(network.domain, None, row)
        places = [network.domain.index(at_step(*key)) for key in kept]
        wanted = np.array([i for i in places if i not in query.observed], np.int64)
        prepared = problem_of(network, replace(query, variables=wanted))
        problem = sum_out(prepared.problem, 2**62)
        scope = [i for i in places if i in problem.sizes]
        logs = product(problem.tables, scope, problem.shape(scope)) + float(problem.constant)
        states = [prepared.states[i] for i in places]
        table = np.full([self._slices.named(key).n_states for key in kept], -np.inf)
        table[np.ix_(*states)] = logs.reshape([len(own) for own in states])
        total = float(log_sum(table))
        return _Seen(seen.n_steps, tuple(rest), kept, table - total, seen.log_evidence + total)
