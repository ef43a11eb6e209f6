"""Networks of linear-Gaussian variables, which may also depend on discrete variables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arguments import shown
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.domain import Categorical, Domain, Label, Real
from certimap.core.logs import log_sum
from certimap.core.model import Model
from certimap.core.query import Query, interventions_of, make_query
from certimap.densities.gaussian_mixture import EPS, LOG_2PI, GaussianMixture, largest_error
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, TooLarge
from certimap.networks.bayesian import topological

if TYPE_CHECKING:
    from certimap.densities.conditioned import Hidden

MAX_CONFIGURATIONS = 4096
LONG_WORK = 2e8  # products up to which errors are measured in long floats


@dataclass(frozen=True, eq=False)
class LinearGaussian:
    """The distribution of a real variable given its parents: Gaussian around a linear function of real parents.

    - `variable`: its name.
    - `parents`: names of real and discrete variables.
    - `intercept`, `sd`: the constant of the linear function, and the standard deviation around it: a number, or an
      array with one axis per discrete parent, in their order.
    - `coefficients`: one number per real parent, in their order, along the last axis; the axes before it as above,
      or absent.
    """

    variable: str
    parents: Sequence[str] = ()
    intercept: ArrayLike = 0.0
    coefficients: ArrayLike = ()
    sd: ArrayLike = 1.0


@dataclass(frozen=True, eq=False)
class Equation:
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
    # The queried real variables, in the query's order, with those weights; then real variables that are summed out
    # inside intervals, if they depend on each other.
    mixture: GaussianMixture | None
    log_evidence: float  # ln of the probability, or density, of the evidence, without the intervals of `hidden`
    log_slack: float  # a bound on the rounding error, in nats, of the discrete model's logs: the weights
    hidden: Hidden | None = None  # the intervals of real variables that are summed out, if any is queried


class LinearGaussianNetwork(Model):
    """A Bayesian network of discrete variables and of real variables with linear-Gaussian distributions.

    Discrete variables have only discrete parents (a conditional linear Gaussian network; Lauritzen 1992). Under
    evidence it is a mixture of Gaussians with one component per configuration of the relevant discrete variables,
    4096 at most unless all of them are queried alone. Conditionals and marginals have closed forms, and modes are
    certified.

    - `nodes`: the real variables, in any order.
    - `discrete`: a model of the discrete variables, a `BayesianNetwork` for instance; None without discrete
      variables.

    They are attributes too; numbers valid for all states are repeated per state there. `by_position` has the
    equations of the real variables by position in the domain, parents first. Raises ModelError for duplicate or
    unknown names, shapes that do not fit, standard deviations that are not positive, and directed cycles.
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
        above = [made[i].real if i in made else () for i in range(len(self.domain))]
        self.by_position = {i: made[i] for i in topological(self.domain, above) if i in made}
        full = [made[self.domain.index(node.variable)] for node in nodes]
        self.nodes: tuple[LinearGaussian, ...] = tuple(
            LinearGaussian(given.variable, tuple(given.parents), node.intercept, node.coefficients, node.sd)
            for given, node in zip(nodes, full, strict=True)
        )

    def __repr__(self) -> str:
        done = self.domain.done and f", {self.domain.done}"
        n_real = len(self.by_position)
        return f"LinearGaussianNetwork({n_real} real variables, {self._n_discrete} discrete ones{done})"

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
            variables = [self.domain.names[i] for i in sorted(self.by_position) if i not in observed]
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
        return math.prod(int(self.domain.n_states[i]) for i in self.discrete_parts(query)[1])

    def components(self, query: Query) -> Components:
        """Condition on the evidence of a `query`, ignoring the intervals of queried variables.

        Raises TooLarge for more than 4096 configurations, and ImpossibleEvidence where the evidence has no
        probability.
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
        names, kept = [self.domain.names[i] for i in (*asked, *others)], [*asked, *others]
        factors, means, logs, log_errors, shifts = self._fitted(kept, known, states, len(log_weights))
        logs = log_weights - float(log_sum(log_weights)) + np.where(np.isfinite(logs), logs, -np.inf)
        of_values = float(log_sum(logs))
        if not of_values > 0.5 * LEAST_LOG:
            raise QueryError("the values observed are too far out: the log of their density is beyond floats")
        if not kept:
            rounding = largest_error(logs, log_errors)
            return Components(own, logs - of_values, None, log_evidence + of_values, log_slack + rounding)
        joint = GaussianMixture.of_factors(names, means, factors, log_errors, shifts)
        joint.log_weights = logs - of_values
        if asked:
            mixture, hidden = hide(joint, query, asked)
            logs, log_evidence = mixture.log_weights, log_evidence + of_values
            return Components(own, logs, mixture, log_evidence, log_slack, hidden)
        masses, rounding = masses_of(joint, query)
        logs = joint.log_weights + masses
        of_intervals = total_of(logs)
        log_evidence += of_values + of_intervals
        return Components(own, logs - of_intervals, None, log_evidence, log_slack + rounding)

    def discrete_parts(self, query: Query) -> tuple[list[int], list[int]]:
        """Return the discrete variables in a `query` or with real children, and which of them are unobserved."""
        needed = set(self.closure([*query.variables.tolist(), *query.values, *query.intervals]))
        parents = {i for real in needed for i in self.by_position[real].discrete}
        used = sorted(parents | {i for i in query.variables.tolist() if i < self._n_discrete})
        return used, [i for i in used if i not in query.observed]

    def closure(self, wanted: Sequence[int]) -> list[int]:
        """Return the real variables among `wanted` and all their real ancestors, parents first."""
        needed = {i for i in wanted if i >= self._n_discrete}
        for i in reversed(list(self.by_position)):
            if i in needed:
                needed.update(self.by_position[i].real)
        return [i for i in self.by_position if i in needed]

    def _configurations(self, query: Query) -> tuple[dict[int, Ints], Floats, float, float]:
        """Return states by variable, ln p(configuration | discrete evidence), ln p(evidence), and log slack."""
        used, free = self.discrete_parts(query)
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

    def _fitted(
        self, kept: Sequence[int], known: Mapping[int, float], states: Mapping[int, Ints], n: int
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Return the Gaussians of variables given values, by least squares: other variables are summed out.

        Per configuration: inverse roots, means, ln of the values' density, and bounds on what rounding moves in
        logs, in nats, and in means, in standard deviations. Orthogonal reduction of the equations needs no
        covariances (Golub 1965); the bounds come from how far its result misses the equations.
        """
        order = self.closure([*kept, *known])
        free = [*(i for i in order if i not in kept and i not in known), *reversed(kept)]
        place, m, p, q = {i: k for k, i in enumerate(free)}, len(order), len(free), len(kept)
        system, sizes, log_sds = np.zeros((n, m, p + 1)), np.zeros((n, m)), np.zeros((n, m))
        for k, i in enumerate(order):
            node = self.by_position[i]
            rows = tuple(states[j] for j in node.discrete)
            terms = [(j, node.coefficients[(*rows, c)]) for c, j in enumerate(node.real)]
            given = [node.intercept[rows], *(a * known[j] for j, a in [*terms, (i, -1.0)] if j in known)]
            for j, a in terms:
                if j not in known:
                    system[:, k, place[j]] = -a / node.sd[rows]
            if i not in known:
                system[:, k, place[i]] = 1.0 / node.sd[rows]
            system[:, k, p] = sum(given) / node.sd[rows]
            sizes[:, k], log_sds[:, k] = sum(map(np.abs, given)) / node.sd[rows], np.log(node.sd[rows])
        with np.errstate(over="ignore", invalid="ignore"):
            found, logs, errors, shifts = _least_squares(system, sizes, log_sds)
        roots, points = found[:, p - q :, p - q : p][:, ::-1, ::-1], found[:, p - q :, p][:, ::-1]
        told = np.isfinite(points).all(axis=1) & np.isfinite(logs)
        logs, points = np.where(told, logs if known else 0.0, -np.inf), np.where(told[:, None], points, 0.0)
        return roots, points, logs, np.where(told, errors, 0.0), np.where(told, shifts, 0.0)


def _least_squares(system: Floats, sizes: Floats, log_sds: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return triangles and solutions, ln of the integral, errors in nats and in standard deviations.

    `system`: equations of variance 1 in p unknowns, the right side last, shape (n, m, p + 1), whose terms have the
    `sizes` (n, m).
    """
    (_, m, p), eps = system[:, :, 1:].shape, EPS
    matrix, right = system[:, :, :p], system[:, :, p]
    qr: Any = np.linalg.qr  # whose result depends on its mode
    found: Floats = qr(system, mode="r")[:, :p]
    found *= np.where(np.diagonal(found, axis1=1, axis2=2) < 0.0, -1.0, 1.0)[:, :, None]
    norms = np.linalg.norm(system, axis=1)
    found[np.abs(found) < 4.0 * eps * norms[:, None]] = 0.0  # rounding that would fill in
    roots = found[:, :, :p]
    if not np.all(np.diagonal(roots, axis1=1, axis2=2) > 0.0):
        raise ModelError("standard deviations are too far apart; expected equations that floats tell apart")
    inverse = np.linalg.solve(roots, np.broadcast_to(np.eye(p), roots.shape))
    found[:, :, p] = np.einsum("npk,nk->np", inverse, found[:, :, p])
    # A product of arrays is off by its number of terms other than 0 times the precision.
    terms = [max(int(np.count_nonzero(x, axis=axis).max(initial=0)) for axis in (1, 2)) for x in (matrix, roots)]
    kind: Any = np.longdouble if matrix.size * p < LONG_WORK else np.float64
    of_long, unit = (max(terms) + 4.0) * float(np.finfo(kind).eps), (terms[0] + 4.0) * eps
    wide, long = np.asarray(matrix, kind), np.asarray(roots, kind)
    made: Array = np.swapaxes(wide, 1, 2) @ wide - np.swapaxes(long, 1, 2) @ long
    across, size = np.abs(matrix), np.abs(inverse)
    off = np.abs(made).astype(np.float64) + (of_long + 2.0 * eps) * (np.swapaxes(across, 1, 2) @ across)
    off += of_long * (np.swapaxes(np.abs(roots), 1, 2) @ np.abs(roots))
    share = np.swapaxes(size, 1, 2) @ off @ size
    whole, trace = np.linalg.norm(share, axis=(1, 2)), np.trace(share, axis1=1, axis2=2)
    point = found[:, :, p]
    left = right - np.einsum("nmp,np->nm", matrix, point)
    of_left = unit * (sizes + np.einsum("nmp,np->nm", across, np.abs(point)))
    slope = np.einsum("nmp,nm->np", matrix, left)
    of_slope = np.einsum("nmp,nm->np", across, of_left + unit * np.abs(left))
    shifts = np.linalg.norm(np.einsum("npk,np->nk", inverse, slope), axis=1)
    shifts += np.linalg.norm(np.einsum("npk,np->nk", size, of_slope), axis=1)
    logs = np.log(np.diagonal(roots, axis1=1, axis2=2))
    square = np.square(left).sum(axis=1)
    log_integral = -log_sds.sum(axis=1) - logs.sum(axis=1) - 0.5 * square - 0.5 * (m - p) * LOG_2PI
    errors = 2.0 * (trace + whole**2) + 0.5 * shifts**2 + (np.abs(left) * of_left + of_left**2).sum(axis=1)
    errors += eps * (m * square + 4.0 * (np.abs(log_sds).sum(axis=1) + np.abs(logs).sum(axis=1) + m))
    return found, log_integral, np.where(whole < 0.5, errors, np.inf), shifts * (1.0 + whole)


def _checked(domain: Domain, node: LinearGaussian) -> Equation:
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
    return Equation(real, discrete, intercept, coefficients, sd)


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
