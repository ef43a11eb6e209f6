"""An unconditioned hidden Chow-Liu tree, for short time limits: log-probabilities of points, and one guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.posterior import Facts
from certimap.core.query import Query
from certimap.errors import ImpossibleEvidence


@dataclass(frozen=True, eq=False)
class GuessedTree:
    """The posterior of a hidden Chow-Liu tree without tables of its own.

    All logs are natural. A point costs one pass over the model's transitions, a small part of conditioning it.

    `order`, `parent`: int64, shape (n,) each: the latent variables, parents first, and the parent of each, -1 for
    the root. `log_prior`, `log_transition`: ln P(root), shape (K,) for K latent states, and ln P(latent i | its
    parent), one row per state of the parent, shape (n, K, K). `domain`: the query variables. `position`: int64,
    shape (n,): the index of each model variable in `domain`, or -1. `log_seen`: one array per model variable,
    logs: emissions times evidence weights, shape (K, states), for a query variable; their sums over states, shape
    (K,), for any other. `log_evidence`: ln p(e).
    """

    order: list[int]
    parent: list[int]
    log_prior: Floats
    log_transition: Floats
    domain: Domain
    position: Ints
    log_seen: list[Floats]
    log_evidence: float

    @classmethod
    def of(
        cls,
        order: Ints,
        parent: Ints,
        root_prior: Floats,
        transition: Floats,
        emission: Sequence[Floats],
        query: Query,
    ) -> GuessedTree:
        """Return the posterior of a model (arrays as in `HiddenChowLiuModel`); raises ImpossibleEvidence.

        Cost: the logs of the transitions, and one pass.
        """
        offsets = query.domain.offsets
        position = np.full(len(query.domain), -1, np.int64)
        position[query.variables] = np.arange(len(query.variables))
        log_seen: list[Floats] = []
        with np.errstate(divide="ignore"):
            for v, table in enumerate(emission):
                weighed = np.log(table) + query.log_weights[offsets[v] : offsets[v + 1]]
                log_seen.append(weighed if position[v] >= 0 else log_sum(weighed, 1))
            logs = np.log(root_prior), np.log(transition)
        made = cls(order.tolist(), parent.tolist(), *logs, query.query_domain, position, log_seen, 0.0)
        log_evidence = made._sums(made._summed())
        if log_evidence == -np.inf:
            raise ImpossibleEvidence("the evidence has probability zero under the model")
        return replace(made, log_evidence=log_evidence)

    @property
    def facts(self) -> Facts:
        """Properties of the posterior for solvers."""
        n, k = len(self.parent), len(self.log_prior)
        largest = n * max(
            float(np.max(np.abs(seen), where=np.isfinite(seen), initial=1.0)) for seen in self.log_seen
        )
        slack = 4.0 * n * (k + largest + abs(self.log_evidence)) * float(np.finfo(np.float64).eps)
        return Facts.of(self.domain, log_evidence=self.log_evidence, work=n * k * k, log_slack=slack)

    def log_prob(self, points: Points) -> Floats:
        """Natural log of p(q | e), shape (batch,); one pass per point."""
        out = np.empty(len(points))
        for row, point in enumerate(points):
            pairs = zip(self.log_seen, self.position.tolist(), strict=True)
            out[row] = self._sums([seen if at < 0 else seen[:, int(point[at])] for seen, at in pairs])
        return np.minimum(out - self.log_evidence, 0.0)

    def guess(self) -> Points:
        """Return the better of the most probable path's point and the modes, shape (1, n)."""
        points = np.concatenate([self._most_probable_path(), self._modes()])
        return points[[int(np.argmax(self.log_prob(points)))]]

    def _most_probable_path(self) -> Points:
        """Return the query variables' states on the most probable path of latent states, shape (1, n)."""
        local = [seen if seen.ndim == 1 else seen.max(axis=1) for seen in self.log_seen]
        below, best = self._passed(local, largest=True)
        point, state = np.zeros((1, len(self.domain)), np.int16), np.zeros(len(self.parent), np.int64)
        for i in self.order:
            up = self.parent[i]
            state[i] = int(np.argmax(below[i])) if up < 0 else best[i][state[up]]
            if self.position[i] >= 0:
                point[0, self.position[i]] = int(np.argmax(self.log_seen[i][state[i]]))
        return point

    def _modes(self) -> Points:
        """Return the mode of each query variable's marginal, shape (1, n)."""
        below, _ = self._passed(self._summed(), largest=False)
        point = np.zeros((1, len(self.domain)), np.int16)
        log_state = [np.empty(0)] * len(below)  # ln P(latent state | e)
        for i in self.order:
            up, seen = self.parent[i], self.log_seen[i]
            if up < 0:
                log_state[i] = below[i] - log_sum(below[i])
            else:
                log_state[i] = log_sum(log_state[up][:, None] + _shares(self.log_transition[i] + below[i]), 0)
            if self.position[i] >= 0:
                point[0, self.position[i]] = int(np.argmax(log_sum(log_state[i][:, None] + _shares(seen), 0)))
        return point

    def _summed(self) -> list[Floats]:
        """Return ln of the weight of each latent state, with its observed variable summed out."""
        return [log_sum(seen, 1) if seen.ndim == 2 else seen for seen in self.log_seen]

    def _sums(self, local: list[Floats]) -> float:
        below, _ = self._passed(local, largest=False)
        return float(log_sum(below[self.order[0]]))

    def _passed(self, local: list[Floats], *, largest: bool) -> tuple[list[Floats], list[Ints]]:
        """Pass `local` up to the root: sums over latent states, or with `largest` maxima.

        Returns the log weight of the subtree of each latent variable, by its states (the root's includes the
        prior); with `largest`, also the best state of each variable for every state of its parent.
        """
        below = [values.copy() for values in local]
        best = [np.empty(0, np.int64)] * len(below)
        for i in reversed(self.order):
            up = self.parent[i]
            if up < 0:
                below[i] += self.log_prior
                continue
            terms = self.log_transition[i] + below[i]
            if largest:
                best[i] = np.argmax(terms, axis=1)
            below[up] += terms.max(axis=1) if largest else log_sum(terms, 1)
        return below, best


def _shares(log_rows: Floats) -> Floats:
    """Divide rows by their sums, in logs; rows of zeros stay unchanged."""
    totals = log_sum(log_rows, 1)[:, None]
    return log_rows - np.where(np.isfinite(totals), totals, 0.0)
