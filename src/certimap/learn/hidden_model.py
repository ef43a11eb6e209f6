"""Hidden Chow-Liu trees: a tree of latent variables, each emitting one observed variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions.choose import OF_CIRCUIT, OF_TREE, Case, Estimate, Row, register
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.box import Points
from certimap.core.control import WorkClock
from certimap.core.domain import Categorical, Domain
from certimap.core.logs import log_sum
from certimap.core.model import Model
from certimap.core.posterior import Facts, Guesses, Posterior
from certimap.core.query import Query
from certimap.errors import ImpossibleEvidence, ModelError
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.wide import Wide, as_wide

if TYPE_CHECKING:
    from certimap.networks.bayesian import BayesianNetwork

SECONDS_PER_TRANSITION = 1e-7  # cost of conditioning


class HiddenChowLiuModel(Model):
    """A tree of latent variables z_i, where z_i emits the observed variable i (Liu and Van den Broeck 2021).

    It is a network with latent variables (`to_network`) and a circuit (`to_circuit`) at once. Queries name
    observed variables only; latent variables are always summed out.

    - `domain`: the observed variables, all categorical.
    - `n_hidden`: the number of states K of every latent variable.
    - `order`: int64, shape (n,): the variables from the root, parents first.
    - `parent`: int64, shape (n,): z_{parent[i]} is the parent of z_i; -1 for the root.
    - `root_prior`: float64, shape (K,): P(z_root).
    - `transition`: float64, shape (n, K, K): `transition[i][a, b]` = P(z_i = b | z_parent = a); every row of the
      root equals `root_prior`.
    - `emission`: one float64 array per variable, shape (K, n_states): P(x_i | z_i).
    """

    def __init__(
        self, domain: Domain, parent: Ints, root_prior: Floats, transition: Floats, emission: Sequence[Floats]
    ) -> None:
        self.domain = domain
        self.parent = np.array(parent, np.int64)
        self.root_prior = np.array(root_prior, np.float64)
        self.transition = np.array(transition, np.float64)
        self.emission = [np.array(e, np.float64) for e in emission]
        self._check()
        self.order = _parents_first(self.parent)
        self.transition[self.order[0]] = self.root_prior
        for array in (self.parent, self.root_prior, self.transition, self.order, *self.emission):
            array.setflags(write=False)

    def _check(self) -> None:
        n, k = len(self.domain), len(self.root_prior)
        if not self.domain.is_discrete:
            raise ModelError("a hidden Chow-Liu tree needs categorical variables; the domain has a real one")
        if self.parent.shape != (n,) or self.transition.shape != (n, k, k) or len(self.emission) != n:
            raise ModelError(
                f"a hidden Chow-Liu tree of {n} variables and {k} latent states has arrays of shapes "
                f"{self.parent.shape}, {self.transition.shape} and {len(self.emission)} emissions; "
                f"expected ({n},), ({n}, {k}, {k}) and {n}"
            )
        for i, table in enumerate(self.emission):
            if table.shape != (k, self.domain.n_states[i]):
                raise ModelError(
                    f"the emission of {self.domain.names[i]!r} has shape {table.shape}; "
                    f"expected ({k}, {self.domain.n_states[i]})"
                )
        for rows in (self.root_prior, self.transition[self.parent >= 0], *self.emission):
            if not np.all(rows >= 0) or not np.allclose(rows.sum(axis=-1), 1.0, atol=1e-8):
                raise ModelError("a hidden Chow-Liu tree has a row of probabilities that does not add to 1")

    @property
    def n_hidden(self) -> int:
        return len(self.root_prior)

    @cached_property
    def wide_tables(self) -> tuple[list[Wide], list[Wide], Wide]:
        """Transitions, emissions and root prior as wide numbers, made once for all queries."""
        return list(map(as_wide, self.transition)), list(map(as_wide, self.emission)), as_wide(self.root_prior)

    def __repr__(self) -> str:
        return f"HiddenChowLiuModel({len(self.domain)} variables, {self.n_hidden} latent states each)"

    @property
    def latent_names(self) -> tuple[str, ...]:
        """The names of the latent variables in the network view: "z:NAME"."""
        return tuple(f"z:{name}" for name in self.domain.names)

    def to_network(self) -> BayesianNetwork:
        """Return the Bayesian network: the observed variables, then the latent ones ("z:NAME")."""
        from certimap.networks.bayesian import BayesianNetwork
        from certimap.networks.factor import Factor

        n = len(self.domain)
        latent = [Categorical(name, tuple(range(self.n_hidden))) for name in self.latent_names]
        factors: list[Factor] = []
        for i in range(n):
            factors.append(Factor((n + i, i), self.emission[i]))
            if self.parent[i] < 0:
                factors.append(Factor((n + i,), self.root_prior))
            else:
                factors.append(Factor((n + int(self.parent[i]), n + i), self.transition[i]))
        return BayesianNetwork(Domain([*self.domain.variables, *latent]), factors)

    def to_circuit(self) -> Circuit:
        """Return the circuit over the observed variables: n K^2 sum edges."""
        builder = CircuitBuilder(self.domain)
        with np.errstate(divide="ignore"):
            log_emission: list[list[list[float]]] = [np.log(e).tolist() for e in self.emission]
        self.add_to(builder, lambda i, z: builder.categorical(i, log_weights=log_emission[i][z]))
        return builder.build(normalised=False)

    def add_to(self, builder: CircuitBuilder, leaf: Callable[[int, int], int]) -> int:
        """Add the tree to a circuit and return its root; `leaf` adds the leaf of variable i under state z."""
        k = self.n_hidden
        with np.errstate(divide="ignore"):
            log_transition = np.log(self.transition).tolist()
            log_prior = np.log(self.root_prior).tolist()
        parts: list[list[list[int]]] = [[[] for _ in range(k)] for _ in range(len(self.domain))]
        backwards: list[int] = self.order[::-1].tolist()
        for i in backwards:
            states = [builder.product([leaf(i, z), *parts[i][z]]) if parts[i][z] else leaf(i, z) for z in range(k)]
            up = int(self.parent[i])
            if up < 0:
                return builder.sum(states, log_weights=log_prior)
            for z in range(k):
                parts[up][z].append(builder.sum(states, log_weights=log_transition[i][z]))
        raise AssertionError("the order ends at the root")

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        """Draw n rows of positions, int16, shape (n, n_variables), from the root down."""
        points = np.empty((n, len(self.domain)), np.int16)
        hidden = np.empty((n, len(self.domain)), np.int64)
        order: list[int] = self.order.tolist()
        for i in order:
            up = int(self.parent[i])
            rows = np.zeros(n, np.int64) if up < 0 else hidden[:, up]
            hidden[:, i] = _draw_rows(self.transition[i], rows, rng)  # the root's rows are its prior
            points[:, i] = _draw_rows(self.emission[i], hidden[:, i], rng)
        return points

    def to_arrays(self) -> dict[str, Array]:
        """Return the parameters, without the domain, as plain arrays for `from_arrays`."""
        return {
            "parent": self.parent,
            "root_prior": self.root_prior,
            "transition": self.transition,
            "emission": np.concatenate([e.ravel() for e in self.emission]),
        }

    @classmethod
    def from_arrays(cls, domain: Domain, arrays: Mapping[str, Array]) -> HiddenChowLiuModel:
        """Build a model from its domain and the arrays of `to_arrays`; raise ModelError if they do not fit."""
        k = len(arrays["root_prior"])
        flat = arrays["emission"]
        if flat.shape != (k * domain.total_states,):
            raise ModelError(
                f"the emissions have {flat.size} entries; expected {k} states times {domain.total_states}"
            )
        emission = [part.reshape(k, -1) for part in np.split(flat, (domain.offsets[1:-1] * k).tolist())]
        return cls(domain, arrays["parent"], arrays["root_prior"], arrays["transition"], emission)


def _parents_first(parent: Ints) -> Ints:
    """Return the order of a tree from its root; raise ModelError unless there is exactly one tree."""
    for i in np.flatnonzero(parent >= len(parent)):
        raise ModelError(f"the parent of variable {i} is {parent[i]}; expected -1 to {len(parent) - 1}")
    roots: list[int] = np.flatnonzero(parent < 0).tolist()
    order = roots[:1]
    for i in order:
        order.extend(np.flatnonzero(parent == i).tolist())
    if len(roots) != 1 or len(order) != len(parent):
        raise ModelError(
            f"the parents have {len(roots)} roots and reach {len(order)} variables; expected one tree"
        )
    return np.array(order, np.int64)


def _draw_rows(table: Floats, rows: Ints, rng: np.random.Generator) -> Ints:
    """For each r, draw a column from row `rows[r]` of a table of probabilities."""
    cumulative = np.cumsum(table, axis=1)
    cumulative /= cumulative[:, -1:]
    return np.sum(rng.random(len(rows))[:, None] >= cumulative[rows], axis=1)


@dataclass(frozen=True, eq=False)
class GuessedTree:
    """A posterior without tables of its own, for short time limits: log-probabilities of points, and one guess.

    All logs are natural. A point costs one pass over the model's transitions, a small part of conditioning it.
    """

    order: list[int]  # the n latent variables, parents first
    parent: list[int]  # -1 for the root
    log_prior: Floats  # ln P(root), shape (K,) for K latent states
    log_transition: Floats  # ln P(latent i | its parent), a row per state of the parent, shape (n, K, K)
    domain: Domain  # the query variables
    position: Ints  # shape (n,): the index of each model variable in `domain`, or -1
    # per model variable: emissions times evidence weights, shape (K, states), of a query variable; their sums over
    # states, shape (K,), of any other
    log_seen: list[Floats]
    log_evidence: float

    @classmethod
    def of(cls, model: HiddenChowLiuModel, query: Query) -> GuessedTree:
        """Return the posterior; raises ImpossibleEvidence. Cost: the logs of the transitions, and one pass."""
        offsets = query.domain.offsets
        position = np.full(len(query.domain), -1, np.int64)
        position[query.variables] = np.arange(len(query.variables))
        log_seen: list[Floats] = []
        with np.errstate(divide="ignore"):
            for v, table in enumerate(model.emission):
                weighed = np.log(table) + query.log_weights[offsets[v] : offsets[v + 1]]
                log_seen.append(weighed if position[v] >= 0 else log_sum(weighed, 1))
            logs = np.log(model.root_prior), np.log(model.transition)
        made = cls(model.order.tolist(), model.parent.tolist(), *logs, query.query_domain, position, log_seen, 0.0)
        log_evidence = made._sums(made._summed())
        if log_evidence == -np.inf:
            raise ImpossibleEvidence("the evidence has probability zero under the model")
        return replace(made, log_evidence=log_evidence)

    @property
    def facts(self) -> Facts:
        """Properties of the posterior for solvers."""
        n, k = len(self.parent), len(self.log_prior)
        sizes = (np.max(np.abs(seen), where=np.isfinite(seen), initial=1.0) for seen in self.log_seen)
        largest = n * float(max(sizes))
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

        Returns the log weight of each subtree by the states of its latent variable (the root's with the prior),
        and with `largest` the best state of each variable for every state of its parent.
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


def _tree_size(case: Case[HiddenChowLiuModel]) -> Estimate:
    model = case.model
    n_edges = len(model.domain) * model.n_hidden**2
    return Estimate(f"{n_edges} transitions", n_edges, n_edges <= case.limits.edges_allowed)


def _tree(case: Case[HiddenChowLiuModel]) -> Posterior:
    """Return p(query | evidence), by passes over the tree."""
    model, control = case.model, case.limits.control
    n_transitions = len(model.domain) * model.n_hidden**2
    doing = f"conditioning a hidden Chow-Liu tree of {n_transitions} transitions"
    with WorkClock(control, doing, SECONDS_PER_TRANSITION).piece(n_transitions):
        transitions, emissions, prior = model.wide_tables
        return BucketTreePosterior.from_tree(
            model.parent,
            transitions,
            {int(model.order[0]): prior},
            np.arange(len(model.domain), dtype=np.int64),
            emissions,
            case.query,
            workers=case.limits.workers,
            pace=WorkClock(control, doing, SECONDS_PER_TRANSITION / 4),
        )


def _circuit(case: Case[HiddenChowLiuModel]) -> Posterior:
    circuit, origin = case.model.to_circuit(), (case.model, case.query)
    return CircuitPosterior.from_circuit(circuit, case.query, workers=case.limits.workers, origin=origin)


def _guessed(case: Case[HiddenChowLiuModel]) -> Posterior:
    return GuessedTree.of(case.model, case.query)


_GUESSED = frozenset({Guesses, GuessedTree})
register(Row("latent tree", HiddenChowLiuModel, OF_TREE, _tree_size, _tree, is_kept=True))
register(Row("circuit", HiddenChowLiuModel, OF_CIRCUIT, _tree_size, _circuit, is_kept=True))
register(Row("latent tree as it is", HiddenChowLiuModel, _GUESSED, _tree_size, _guessed, lambda case: False))
