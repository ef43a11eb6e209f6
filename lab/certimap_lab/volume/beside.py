"""What is asked beside the answer, judged by enumeration: sums, draws, rows, forecasts, explanations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.ask.api import condition, map_query
from certimap.ask.forecasting import forecast
from certimap.ask.inference import conflict, log_evidence, log_evidence_bounds, log_likelihood, marginals, sample
from certimap.ask.next_test import next_test
from certimap.core.domain import Domain, Label
from certimap.core.result import CertificateKind, MapResult
from certimap.explanations import Explanation, Tolerance, explain
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork
from certimap_lab.volume.case import Floats

ROUNDING = 1e-8
N_DRAWS, DEVIATIONS = 400, 7.0  # of draws whose frequencies are compared; one run in 10^11 is further off
MOST_OBSERVED = 6  # random observations, which may contradict each other
N_PLACES = 9  # of an entry, at which a tolerance is compared with the best there
NEAR = 1e-6  # of an end of a tolerance, where rounding decides


@dataclass(frozen=True)
class Everything:
    """A model of categorical variables with states 0, 1, ..., and its joint distribution.

    Attributes
    ----------
    joint
        The joint weights of all variables without evidence, one axis each.
    weights
        One factor per state, of each variable that evidence speaks of.
    query
        Names of query variables.
    """

    model: Any
    joint: Floats
    weights: dict[int, Floats]
    evidence: dict[str, Any]
    query: list[str]

    @property
    def domain(self) -> Domain:
        return self.model.domain

    def table(self, variables: list[int], weights: dict[int, Floats], joint: Floats | None = None) -> Floats:
        """Sum the joint distribution times weights over all but some variables, in their order."""
        n = len(self.domain)
        total = self.joint if joint is None else joint
        for i, weight in weights.items():
            total = total * weight.reshape([-1 if k == i else 1 for k in range(n)])
        summed: Floats = np.asarray(total.sum(axis=tuple(i for i in range(n) if i not in variables)))
        return summed.transpose(np.argsort(np.argsort(variables)))


def judge_beside(case: Everything, seed: int) -> list[str]:
    """Ask everything else of a model, and return a sentence for each statement that is false."""
    total = float(case.table([], case.weights))
    if not total > 0.0:
        return []
    rng = np.random.default_rng(seed)
    found = [*_sums(case, total), *_draws(case, total, rng), *_rows(case, rng), *_forecast(case, seed)]
    found += [*_conflict(case), *_contradiction(case, rng), *_next_tests(case)]
    if isinstance(case.model, BayesianNetwork):
        found += _explained(case, seed)
    return found


def _sums(case: Everything, total: float) -> Iterator[str]:
    names = list(case.domain.names)
    for name, row in marginals(case.model, names, case.evidence).items():
        true = case.table([names.index(name)], case.weights) / total
        if not np.allclose(list(row.values()), true, rtol=0.0, atol=ROUNDING):
            yield f"the marginal of {name!r} is {list(row.values())}, in truth {true.tolist()}"
    said, true = log_evidence(case.model, case.evidence), math.log(total)
    if not abs(said - true) <= ROUNDING:
        yield f"log_evidence is {said!r}, in truth {true!r}"
    if isinstance(case.model, BayesianNetwork | MarkovNetwork):
        low, high = log_evidence_bounds(case.model, case.evidence, i_bound=2, iterations=3)
        if not low - ROUNDING <= true <= high + ROUNDING:
            yield f"log_evidence_bounds are {low!r} and {high!r}, in truth {true!r}"


def _conflict(case: Everything) -> Iterator[str]:
    """How much the observations contradict each other."""
    if not case.evidence:
        return
    whole, names = math.log(float(case.joint.sum())), list(case.domain.names)
    logs = {names[i]: math.log(float(case.table([], {i: w}))) - whole for i, w in case.weights.items()}
    total = math.log(float(case.table([], case.weights))) - whole
    found = conflict(case.model, case.evidence)
    if not abs(found.score - (total - math.fsum(logs.values()))) <= ROUNDING:
        yield f"the conflict is {found.score!r}, in truth {total - math.fsum(logs.values())!r}"
    for name, said in found.contributions.items():
        i = names.index(name)
        rest = math.log(float(case.table([], {k: w for k, w in case.weights.items() if k != i}))) - whole
        if not abs(said - (total - rest - logs[name])) <= ROUNDING:
            yield f"{name!r} contributes {said!r} to the conflict, in truth {total - rest - logs[name]!r}"


def _contradiction(case: Everything, rng: np.random.Generator) -> Iterator[str]:
    """A smallest set of observations with probability 0 together, where some random ones have that."""
    sizes: list[int] = case.domain.n_states.tolist()
    names, order = case.domain.names, list(range(len(sizes)))
    rng.shuffle(order)
    states = {i: int(rng.integers(sizes[i])) for i in order[:MOST_OBSERVED]}

    def is_impossible(part: Iterable[int]) -> bool:
        return not float(case.table([], {i: np.eye(sizes[i])[states[i]] for i in part})) > 0.0

    if not is_impossible(states):
        return
    found = conflict(case.model, {names[i]: state for i, state in states.items()})
    said = [names.index(name) for name in found.observations]
    if not is_impossible(said):
        yield f"{dict(found.observations)} are said to have probability 0 together, and have more"
    smaller = itertools.combinations(states, max(len(said) - 1, 0))
    if found.is_smallest and said and any(map(is_impossible, smaller)):
        yield f"{dict(found.observations)} are said to be a smallest set, and fewer have probability 0"


def _next_tests(case: Everything) -> Iterator[str]:
    """What each observation is expected to tell about the query, and the probability that the answer changes."""
    place, names = [case.domain.index(name) for name in case.query], list(case.domain.names)
    free = [name for i, name in enumerate(names) if name not in case.query and i not in case.weights]
    if not free:
        return
    total = float(case.table([], case.weights))
    for name, gain in next_test(case.model, case.query, free, case.evidence).items():
        joint = (
            case.table([*place, names.index(name)], case.weights).reshape(-1, case.domain[name].n_states) / total
        )
        both = np.outer(joint.sum(axis=1), joint.sum(axis=0))
        told = float(np.sum(joint * np.log(np.divide(joint, both, where=joint > 0.0, out=np.ones(joint.shape)))))
        if not gain.information - ROUNDING <= told <= gain.information_at_most + ROUNDING:
            yield f"{name!r} tells {gain.information!r} to {gain.information_at_most!r} nats, in truth {told!r}"
        columns = joint[:, joint.sum(axis=0) > 0.0].T
        if any(map(_has_tie, (joint.sum(axis=1), *columns))):
            continue
        changed = columns.argmax(axis=1) != joint.sum(axis=1).argmax()
        change = float(columns.sum(axis=1)[changed].sum())
        if not gain.change - ROUNDING <= change <= gain.change_at_most + ROUNDING:
            yield f"{name!r} changes the answer with probability {gain.change!r}, in truth {change!r}"


def _draws(case: Everything, total: float, rng: np.random.Generator) -> Iterator[str]:
    place = [case.domain.index(name) for name in case.query]
    table = case.table(place, case.weights) / total
    drawn = sample(case.model, N_DRAWS, case.evidence, case.query, rng=int(rng.integers(2**31)))
    points = np.stack([np.asarray(drawn[name], np.int64) for name in case.query], axis=1)
    if not np.all(table[tuple(points.T)] > 0.0):
        yield "a point was drawn that is impossible"
    for axis, name in enumerate(case.query):
        true = table.sum(axis=tuple(k for k in range(table.ndim) if k != axis))
        counts = np.bincount(points[:, axis], minlength=len(true))
        if np.any(np.abs(counts - N_DRAWS * true) > DEVIATIONS * np.sqrt(N_DRAWS * true) + 2.0 * DEVIATIONS):
            yield f"of {N_DRAWS} draws {name!r} has {counts.tolist()}, and the probabilities {true.tolist()}"


def _rows(case: Everything, rng: np.random.Generator) -> Iterator[str]:
    """Log-likelihoods of rows with missing cells, and the cells that are most probable there."""
    names, whole = list(case.domain.names), float(case.joint.sum())
    sizes: list[int] = case.domain.n_states.tolist()
    rows = [[None if rng.random() < 0.4 else int(rng.integers(k)) for k in sizes] for _ in range(3)]
    likelihoods = log_likelihood(case.model, {name: [r[i] for r in rows] for i, name in enumerate(names)})
    for row, said in zip(rows, likelihoods.tolist(), strict=True):
        seen = {i: np.eye(sizes[i])[state] for i, state in enumerate(row) if state is not None}
        missing = [i for i, state in enumerate(row) if state is None]
        p = float(case.table([], seen)) / whole
        if isinstance(case.model, MarkovNetwork):
            continue  # its rows are scored up to a constant
        true = math.log(p) if p > 0.0 else -math.inf
        if said != true and not abs(said - true) <= ROUNDING:
            yield f"the row {row} has the log likelihood {said!r}, in truth {true!r}"
        if missing and p > 0.0:
            filled = map_query(
                case.model, None, {names[i]: row[i] for i in seen}, epsilon=0.0, delta=0.0, rng=0, progress=False
            )
            yield from _filled(filled, case.table(missing, seen) / whole, p, f"the row {row}")


def _filled(result: MapResult, table: Floats, total: float, what: str) -> Iterator[str]:
    if result.certificate.kind is not CertificateKind.EXACT:
        return
    value = float(table[_point(result.assignment)])
    if not value >= float(table.max()) * (1.0 - ROUNDING):
        yield f"{what} is filled by a point of {value!r}, and the best has {float(table.max())!r}"
    true = math.log(value / total)
    if result.log_prob is not None and not abs(result.log_prob - true) <= ROUNDING:
        yield f"{what} is filled with the log probability {result.log_prob!r}, in truth {true!r}"


def _forecast(case: Everything, seed: int) -> Iterator[str]:
    posterior = condition(case.model, case.query, case.evidence, solver="pac")
    bits = forecast(posterior, rng=seed).min_entropy_bits
    table = case.table([case.domain.index(name) for name in case.query], case.weights)
    true = -math.log2(float(table.max() / table.sum()))
    if bits is not None and not bits[0] - ROUNDING <= true <= bits[1] + ROUNDING:
        yield f"the forecast has the min-entropy {bits}, in truth {true!r}"


def _explained(case: Everything, seed: int) -> Iterator[str]:
    """Leads, swings, and tolerances of table entries."""
    found = explain(case.model, case.query, case.evidence, n_entries=2, rng=seed)
    place = [case.domain.index(name) for name in case.query]
    table = case.table(place, case.weights)
    answer = _point(found.answer.assignment)
    if found.answer.certificate.kind is not CertificateKind.EXACT:
        return
    yield from _lead(found, table, answer)
    for swing in (*found.removed, *found.changed):
        if swing.kind is not CertificateKind.EXACT:
            continue
        i = case.domain.index(swing.variable)
        weights = {k: w for k, w in case.weights.items() if k != i}
        if swing.state is not None:
            weights[i] = np.eye(int(case.domain.n_states[i]))[_state(swing.state)]
        other = case.table(place, weights)
        point = _point({**found.answer.assignment, **swing.changes})
        if not other[point] >= other.max() * (1.0 - ROUNDING):
            yield f"the swing {swing} is not to the best"
        if swing.changes and other[answer] > other[point] * (1.0 + ROUNDING):
            yield f"the swing {swing} changes an answer that is better"
    for tolerance in found.tolerances:
        yield from _tolerance(case, tolerance, place, answer)


def _lead(found: Explanation, table: Floats, answer: tuple[int, ...]) -> Iterator[str]:
    if found.lead is None or found.lead.kind is not CertificateKind.EXACT:
        return
    others = [float(table[p]) for p in np.ndindex(*table.shape) if p != answer]
    with np.errstate(divide="ignore"):
        true = float(np.log(table[answer]) - np.log(max(others)))
    if found.lead.nats != true and not abs(found.lead.nats - max(true, 0.0)) <= ROUNDING:
        yield f"the lead is {found.lead.nats!r}, in truth {true!r}"


def _tolerance(case: Everything, t: Tolerance, place: list[int], answer: tuple[int, ...]) -> Iterator[str]:
    """Move an entry, the rest of its row with it, and compare what is best there with what the range says."""
    if t.kind is not CertificateKind.EXACT:
        return
    network, v = case.model, case.domain.index(t.variable)
    row, state = tuple(_state(t.given[case.domain.names[p]]) for p in network.parents[v]), _state(t.state)
    for theta in np.linspace(0.01, 0.99, N_PLACES).tolist():
        if min(abs(theta - t.low), abs(theta - t.high)) < NEAR:
            continue
        moved = network.factors[v].table.copy()
        moved[row] *= (1.0 - theta) / (1.0 - moved[(*row, state)])
        moved[(*row, state)] = theta
        factors = [Factor(f.scope, moved) if f is network.factors[v] else f for f in network.factors]
        joint = np.ones([1] * len(case.domain))
        for factor in factors:
            order = np.argsort(factor.scope)
            shape = [int(case.domain.n_states[k]) if k in factor.scope else 1 for k in range(len(case.domain))]
            joint = joint * factor.table.transpose(order).reshape(shape)
        table = case.table(place, case.weights, joint)
        is_best = bool(table[answer] >= table.max() * (1.0 - ROUNDING))
        if is_best != (t.low < theta < t.high) and not _has_tie(table):
            yield f"the tolerance {t} is wrong at {theta:.4g}"


def _has_tie(table: Floats) -> bool:
    best = np.sort(table, axis=None)[::-1][:2]
    return len(best) < 2 or bool(best[1] >= best[0] * (1.0 - 1e-6))


def _point(assignment: dict[str, Label]) -> tuple[int, ...]:
    return tuple(_state(label) for label in assignment.values())


def _state(label: Label) -> int:
    """Return where a state stands; they are numbers here."""
    assert isinstance(label, int)
    return label
