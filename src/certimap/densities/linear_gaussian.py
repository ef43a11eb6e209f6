"""Networks of linear-Gaussian variables, which may also depend on discrete variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arguments import shown
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Categorical, Domain, Label, Real
from certimap.core.logs import log_sum
from certimap.core.model import Model
from certimap.core.query import Query, interventions_of, make_query
from certimap.densities.gaussian_mixture import EPS, GaussianMixture, largest_error
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, TooLarge

if TYPE_CHECKING:
    from certimap.densities.conditioned import Hidden

MAX_CONFIGURATIONS = 4096


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """The distribution of a real variable given its parents: Gaussian around a linear function of real parents.

    Parameters
    ----------
    variable
        Its name.
    parents
        Names of real and discrete variables.
    intercept, sd
        The constant of the linear function, and the standard deviation around it: a number, or an array with one
        axis per discrete parent, in their order.
    coefficients
        One number per real parent, in their order, along the last axis; the axes before it as above, or absent.
    """

    variable: str
    parents: Sequence[str] = ()
    intercept: ArrayLike = 0.0
    coefficients: ArrayLike = ()
    sd: ArrayLike = 1.0


@dataclass(frozen=True, eq=False)
class _Node:
    """A variable: its parents' positions in the network's domain, and arrays with an axis per discrete parent."""

    real: tuple[int, ...]
    discrete: tuple[int, ...]
    intercept: Floats
    coefficients: Floats
    sd: Floats


@dataclass(frozen=True, eq=False)
class Components:
    """A network under evidence: one Gaussian per configuration of discrete variables."""

    states: Ints  # the states of the queried discrete variables, in the query's order, shape (K, n)
    log_weights: Floats  # ln p(configuration | evidence), shape (K,)
    mixture: GaussianMixture | None  # the queried real variables, in the query's order, with those weights
    log_evidence: float  # ln of the probability, or density, of the evidence, without the intervals of `hidden`
    log_slack: float  # a bound on the rounding error, in nats, of the discrete model's logs: the weights
    hidden: Hidden | None = None  # the intervals of real variables that are summed out, if any is queried


class LinearGaussianNetwork(Model):
    """A Bayesian network of discrete variables and of real variables with linear-Gaussian distributions.

    Discrete variables have only discrete parents (a conditional linear Gaussian network; Lauritzen 1992). Under
    evidence it is a mixture of Gaussians with one component per configuration of the relevant discrete variables,
    4096 at most. Conditionals and marginals have closed forms, and modes are certified.

    Parameters
    ----------
    nodes
        The real variables, in any order.
    discrete
        A model of the discrete variables, a `BayesianNetwork` for instance; None without discrete variables.

    Attributes
    ----------
    nodes, discrete
        As given; numbers valid for all states are repeated per state.

    Raises
    ------
    ModelError
        For duplicate or unknown names, shapes that do not fit, standard deviations that are not positive, and
        directed cycles.
    """

    def __init__(self, nodes: Sequence[LinearGaussian], discrete: Model | None = None) -> None:
        if discrete is not None and not discrete.domain.is_discrete:
            raise ModelError("the model of the discrete variables has a real one; expected categorical ones alone")
        for node in nodes:
            if not isinstance(node, LinearGaussian):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModelError(f"a node is {shown(node)}; expected a LinearGaussian")
        if not nodes:
            raise ModelError("a linear-Gaussian network without real variables was given; expected at least one")
        self.discrete = discrete
        self.hidden = frozenset[str]() if discrete is None else discrete.hidden
        before = () if discrete is None else discrete.domain.variables
        self.domain = Domain([*before, *(Real(node.variable) for node in nodes)])
        self._n_discrete = len(before)
        made = {self.domain.index(node.variable): _checked(self.domain, node) for node in nodes}
        self._nodes = {i: made[i] for i in _ordered(self.domain, made)}
        full = [made[self.domain.index(node.variable)] for node in nodes]
        self.nodes: tuple[LinearGaussian, ...] = tuple(
            LinearGaussian(given.variable, tuple(given.parents), node.intercept, node.coefficients, node.sd)
            for given, node in zip(nodes, full, strict=True)
        )

    def __repr__(self) -> str:
        done = self.domain.done and f", {self.domain.done}"
        return f"LinearGaussianNetwork({len(self._nodes)} real variables, {self._n_discrete} discrete ones{done})"

    def do(self, states: Mapping[str, Label] | None = None, /, **more: Label) -> LinearGaussianNetwork:
        """Return the network after interventions: variables have the given states or numbers.

        `states`, `more` and errors as in `BayesianNetwork.do`. Numbers of real variables go into the intercepts of
        the others, of which at least one must be left.
        """
        done = interventions_of(self.domain, states, more)
        numbers = {name: x for name, x in done.items() if not self.domain[name].n_states}
        labels = {name: label for name, label in done.items() if name not in numbers}
        discrete = self.discrete.do(labels) if self.discrete is not None and labels else self.discrete
        nodes = [_without(self.domain, node, numbers) for node in self.nodes if node.variable not in numbers]
        if not nodes:
            raise QueryError(f"do() sets every real variable ({', '.join(numbers)}); expected one that is left")
        changed = LinearGaussianNetwork(nodes, discrete)
        changed.domain = Domain(changed.domain.variables, {**self.domain.interventions, **done})
        return changed

    def equations(self) -> Iterator[tuple[int, list[int], float, Floats, float]]:
        """Yield the equation of each real variable, parents first, for networks without discrete variables.

        An equation is position, parents' positions, intercept, coefficients and standard deviation.
        """
        for i, node in self._nodes.items():
            yield i, list(node.real), float(node.intercept), node.coefficients, float(node.sd)

    def mixture(self, variables: Sequence[str] | str | None = None, evidence: Any = None) -> GaussianMixture:
        """Return p(real variables | evidence), all others summed out.

        `variables` are names in the desired order; None for all unobserved ones. `evidence` has values of real
        variables and states (or likelihoods) of discrete ones, as for `map_query`. There is one component per
        possible configuration of the relevant discrete variables. Raises QueryError for a discrete variable, an
        unknown name, or intervals; TooLarge for more than 4096 configurations; ImpossibleEvidence where the
        evidence has no probability.
        """
        if variables is None:
            observed = make_query(self.domain, None, evidence).observed
            variables = [self.domain.names[i] for i in sorted(self._nodes) if i not in observed]
        query = make_query(self.domain, variables, evidence)
        if query.intervals:
            raise QueryError("a mixture restricted to an interval is no mixture of Gaussians; expected values")
        for i in query.variables.tolist():
            if i < self._n_discrete:
                raise QueryError(
                    f"variable {self.domain.names[i]!r} is discrete; expected names of real variables"
                )
        found = self.components(query).mixture
        if found is None:
            raise QueryError("no real variable is left to ask for; expected one that is not observed")
        return found

    def n_configurations(self, query: Query) -> int:
        """Return the number of configurations of discrete variables that a `query` leaves, possible or not."""
        return math.prod(int(self.domain.n_states[i]) for i in self._open(query)[1])

    def components(self, query: Query) -> Components:
        """Condition on the evidence of a `query`, ignoring the intervals of queried variables.

        Raises TooLarge for more than 4096 configurations, ImpossibleEvidence where the evidence has no
        probability, and ModelError if variables that are summed out are restricted to intervals and depend on each
        other.
        """
        from certimap.densities.conditioned import hidden_variables, hide, masses_of, total_of  # compiled code

        states, log_weights, log_evidence, log_slack = self._configurations(query)
        queried: list[int] = query.variables.tolist()
        rows = [states[i] for i in queried if i < self._n_discrete]
        own = np.ascontiguousarray(np.array(rows, np.int64).reshape(-1, len(log_weights)).T)
        asked: list[int] = [i for i in queried if i >= self._n_discrete]
        others, known = hidden_variables(query), dict(sorted(query.values.items()))
        if not asked and not others and not known:
            return Components(own, log_weights, None, log_evidence, log_slack)
        names = self.domain.names
        kept = [*asked, *others, *known]
        means, covariances, off = self._moments(kept, states, len(log_weights))
        joint = GaussianMixture(np.ones(len(means)), means, covariances, [names[i] for i in kept]).moved(off)
        joint.log_weights = log_weights - float(log_sum(log_weights))
        if not asked and not others:
            point = np.array(list(known.values()), np.float64)
            logs = joint.log_components(point[None])[0]
            of_values, rounding = float(log_sum(logs)), largest_error(logs, joint.errors_at(point))
            if not of_values > 0.5 * LEAST_LOG:
                raise QueryError("the values observed are too far out: the log of their density is beyond floats")
            return Components(own, logs - of_values, None, log_evidence + of_values, log_slack + rounding)
        joint, of_values = joint.given({names[i]: value for i, value in known.items()})
        if asked:
            mixture, hidden = hide(joint, query, asked)
            logs, log_evidence = mixture.log_weights, log_evidence + of_values
            return Components(own, logs, mixture, log_evidence, log_slack, hidden)
        masses, rounding = masses_of(joint, query)
        logs = joint.log_weights + masses
        of_intervals = total_of(logs)
        log_evidence += of_values + of_intervals
        return Components(own, logs - of_intervals, None, log_evidence, log_slack + rounding)

    def _open(self, query: Query) -> tuple[list[int], list[int]]:
        """Return the discrete variables that are queried or parents of real ones, and which are unobserved."""
        needed = set(self._closure([*query.variables.tolist(), *query.values, *query.intervals]))
        parents = {i for real in needed for i in self._nodes[real].discrete}
        used = sorted(parents | {i for i in query.variables.tolist() if i < self._n_discrete})
        return used, [i for i in used if i not in query.observed]

    def _closure(self, wanted: Sequence[int]) -> list[int]:
        """Return real variables and all their real ancestors, parents first."""
        needed = {i for i in wanted if i >= self._n_discrete}
        for i in reversed(list(self._nodes)):
            if i in needed:
                needed.update(self._nodes[i].real)
        return [i for i in self._nodes if i in needed]

    def _configurations(self, query: Query) -> tuple[dict[int, Ints], Floats, float, float]:
        """Return states by variable, ln p(configuration | discrete evidence), ln p(evidence), and log slack."""
        used, free = self._open(query)
        n = self.n_configurations(query)
        if n > MAX_CONFIGURATIONS:
            raise TooLarge(
                f"{n} configurations of {len(free)} discrete variables are left; expected at most "
                f"{MAX_CONFIGURATIONS}: observe some of them, or ask for fewer"
            )
        sizes = [int(self.domain.n_states[i]) for i in free]
        points = np.stack(np.unravel_index(np.arange(n), sizes), axis=1) if free else np.zeros((1, 0), np.int64)
        logs, log_evidence, log_slack = np.zeros(1), 0.0, 0.0
        if self.discrete is not None and (free or np.any(query.log_weights != 0.0)):
            domain = self.discrete.domain
            observed = frozenset(i for i in query.observed if i < self._n_discrete)
            others = sorted(set(range(len(domain))) - observed, key=lambda i: (int(domain.n_states[i]), i))
            asked = free or others[:1]  # ln p(evidence) needs a query, and the smallest variable costs least
            part = Query(domain, np.array(asked, np.int64), query.log_weights, {}, {}, observed)
            posterior = self.discrete.condition(part)
            assert posterior.facts.log_evidence is not None
            log_evidence, log_slack = posterior.facts.log_evidence, posterior.facts.log_slack
            if free:
                logs = posterior.log_prob(points.astype(part.query_domain.point_dtype))
        kept = logs > -np.inf
        if not kept.any():
            raise ImpossibleEvidence("the evidence has probability 0 under every configuration")
        states = {i: points[kept, column].astype(np.int64) for column, i in enumerate(free)}
        for i in used:
            if i in query.observed:
                weights = query.log_weights[self.domain.offsets[i] : self.domain.offsets[i + 1]]
                states[i] = np.full(int(kept.sum()), int(np.argmax(weights)), np.int64)
        return states, logs[kept], log_evidence, log_slack

    def _moments(self, wanted: Sequence[int], states: Mapping[int, Ints], n: int) -> tuple[Floats, Floats, Floats]:
        """Return means and covariances of real variables under each configuration, and errors of the means."""
        order = self._closure(wanted)
        place = {i: k for k, i in enumerate(order)}
        means, covariances = np.zeros((n, len(order))), np.zeros((n, len(order), len(order)))
        off = np.zeros((n, len(order)))
        for k, i in enumerate(order):
            node = self._nodes[i]
            rows = tuple(states[j] for j in node.discrete)
            weights = np.broadcast_to(node.coefficients[rows], (n, len(node.real)))
            at = [place[j] for j in node.real]
            means[:, k] = node.intercept[rows] + np.einsum("bp,bp->b", weights, means[:, at])
            terms = EPS * (2.0 + len(at)) * np.abs(means[:, at]) + off[:, at]
            off[:, k] = np.einsum("bp,bp->b", np.abs(weights), terms)
            if at:
                off[:, k] += EPS * np.abs(node.intercept[rows])
            across = np.einsum("bp,bpe->be", weights, covariances[:, at])
            covariances[:, k], covariances[:, :, k] = across, across
            covariances[:, k, k] = node.sd[rows] ** 2 + np.einsum("bp,bp->b", weights, across[:, at])
        chosen = [place[i] for i in wanted]
        return means[:, chosen], covariances[:, chosen][:, :, chosen], off[:, chosen]


def _checked(domain: Domain, node: LinearGaussian) -> _Node:
    """Separate discrete from real parents and give all arrays their full shapes; ModelError if they do not fit."""
    name = node.variable
    for parent in node.parents:
        if parent not in domain:
            raise ModelError(f"the parent {parent!r} of variable {name!r} is no variable of the network")
    if len(set(node.parents)) != len(node.parents):
        raise ModelError(f"variable {name!r} has a parent twice: {list(node.parents)}; expected each once")
    positions = [domain.index(parent) for parent in node.parents]
    discrete = tuple(i for i in positions if isinstance(domain.variables[i], Categorical))
    real = tuple(i for i in positions if i not in discrete)
    shape = tuple(int(domain.n_states[i]) for i in discrete)
    intercept = _full(f"intercept of variable {name!r}", node.intercept, shape)
    coefficients = _full(f"coefficients of variable {name!r}", node.coefficients, shape, len(real))
    sd = _full(f"sd of variable {name!r}", node.sd, shape)
    if not np.all(sd > 0):
        raise ModelError(
            f"the sd of variable {name!r} is {np.asarray(node.sd).tolist()}; expected positive numbers"
        )
    return _Node(real, discrete, intercept, coefficients, sd)


def _without(domain: Domain, node: LinearGaussian, numbers: Mapping[str, float]) -> LinearGaussian:
    """Return a node whose equation has numbers in place of some real parents."""
    real = [parent for parent in node.parents if not domain[parent].n_states]
    is_fixed, coefficients = np.isin(real, list(numbers)), np.asarray(node.coefficients)
    shift = coefficients[..., is_fixed] @ np.array([numbers[parent] for parent in real if parent in numbers])
    above = [parent for parent in node.parents if parent not in numbers]
    intercept, rest = np.asarray(node.intercept) + shift, coefficients[..., ~is_fixed]
    return LinearGaussian(node.variable, above, intercept, rest, node.sd)


def _full(what: str, values: ArrayLike, shape: tuple[int, ...], n_real: int | None = None) -> Floats:
    """Return an array with one axis per discrete parent, and a last axis of length `n_real` if given."""
    array = np.array(values, np.float64)
    wanted = shape if n_real is None else (*shape, n_real)
    fits = array.shape in ((), wanted) if n_real is None else array.shape in ((n_real,), wanted)
    if not fits:
        also = "a number" if n_real is None else f"({n_real},)"
        raise ModelError(
            f"the {what} has the shape {array.shape}; expected {wanted}, or {also} for all states alike"
        )
    if not np.all(np.isfinite(array)):
        raise ModelError(f"the {what} is {array.tolist()}; expected finite numbers")
    return np.broadcast_to(array, wanted)


def _ordered(domain: Domain, nodes: Mapping[int, _Node]) -> list[int]:
    """Return real variables with parents before children; raise ModelError that names a variable on a cycle."""
    order: list[int] = []
    left = dict(nodes)
    while left:
        ready = [i for i, node in left.items() if not any(j in left for j in node.real)]
        if not ready:
            raise ModelError(
                f"variable {domain.names[min(left)]!r} is on, or behind, a directed cycle; expected none"
            )
        order += ready
        for i in ready:
            del left[i]
    return order
