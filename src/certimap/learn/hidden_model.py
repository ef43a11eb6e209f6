"""Hidden Chow-Liu trees: a tree of latent variables, each emitting one observed variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.posterior import CircuitPosterior, GuessedCircuit
from certimap.conversions.choose import OF_CIRCUIT, OF_TREE, Case, Estimate, Row, register
from certimap.conversions.network_to_circuit import NodeStore
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.box import Points
from certimap.core.cached import cached_property
from certimap.core.control import WorkClock
from certimap.core.domain import Categorical, Domain
from certimap.core.logs import log_of
from certimap.core.model import Model
from certimap.core.posterior import Guesses, Posterior
from certimap.errors import ModelError
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
        """Return the circuit over the observed variables: n K^2 sum edges, leaves state by state."""
        store, pairs = NodeStore(self.domain), zip(self.parent, self.transition, strict=True)
        states = [store.leaves(i, log_of(table)) for i, table in enumerate(self.emission)]
        tables = [self.root_prior[None] if up < 0 else table for up, table in pairs]
        store.tree(self.order, self.parent, tables, states, is_seen=False)
        return store.circuit()

    views = (to_network, to_circuit)

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        """Draw n rows of positions, int16, shape (n, n_variables), from the root down."""
        return self.to_network().sample(n, rng)[:, : len(self.domain)]

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
    return GuessedCircuit.of(case.model.to_circuit(), case.query)


_GUESSED = frozenset({Guesses, GuessedCircuit})
register(Row("latent tree", HiddenChowLiuModel, OF_TREE, _tree_size, _tree, is_kept=True))
register(Row("circuit", HiddenChowLiuModel, OF_CIRCUIT, _tree_size, _circuit, is_kept=True))
register(Row("circuit as it is", HiddenChowLiuModel, _GUESSED, _tree_size, _guessed, lambda case: False))
