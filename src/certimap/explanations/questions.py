"""Computes an explanation by a series of MAP queries, each with its own certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from certimap.ask.api import condition, map_query
from certimap.core.domain import Categorical, Label
from certimap.core.model import Model
from certimap.core.posterior import Posterior
from certimap.core.query import make_query
from certimap.core.result import CertificateKind, MapResult, Status
from certimap.errors import ImpossibleEvidence, QueryError, TooLarge
from certimap.explanations.explanation import Explanation, Lead, Swing
from certimap.explanations.sensitivity import tolerances_of
from certimap.interop import as_model
from certimap.networks.bayesian import BayesianNetwork

ROUNDING = 1e-12  # of logs of values that are compared, relative
N_ENTRIES = 8  # table entries whose exact range is found unless told otherwise


@dataclass(frozen=True)
class Asking:
    """Asks MAP queries about one model, all with the same settings."""

    model: Model
    variables: Sequence[str]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, evidence: Mapping[str, Any], model: Model | None = None, **more: Any) -> MapResult:
        """Return the most probable states of the query variables given evidence, under this or another model.

        Ctrl-C ends a search early with its best answer; here it is raised again, to end the whole explanation.
        """
        asked = self.model if model is None else model
        found = map_query(asked, self.variables, evidence, epsilon=0.0, delta=0.0, **self.settings, **more)
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return found


def explain(
    model: Any,
    variables: Sequence[str] | str | None = None,
    evidence: Mapping[str, Any] | None = None,
    *,
    n_entries: int = N_ENTRIES,
    rng: int = 0,
    time_limit: float | None = None,
    workers: int | None = None,
    answer: MapResult | None = None,
) -> Explanation:
    """Answer a MAP query and explain the answer.

    Parameters
    ----------
    model, variables, evidence
        As for `map_query`; the evidence is one assignment. Only hard evidence is removed or changed: sets,
        likelihoods and intervals stay.
    n_entries
        For Bayesian networks: number of table entries whose exact range is computed, those that separate answer
        and runner-up most; 0 for none.
    rng, time_limit, workers
        As for `map_query`; the time limit applies to each query separately.
    answer
        An existing answer to this query, to be explained (`result.explain()` passes its own). If another proves to
        be more probable, that one is explained, and `superseded` holds this one's assignment.

    Returns
    -------
    Explanation
        The lead over the runner-up, the observations that change the answer when taken away or changed, and how
        far table entries may move.

    Raises
    ------
    QueryError, ImpossibleEvidence, TooLarge
        As `map_query` does; also for a posterior, whose evidence is fixed.

    Notes
    -----
    Cost: one query per observation and per state of one, and two or more per table entry and side.

    Examples
    --------
    >>> import certimap as cm
    >>> model = cm.BayesianNetwork.from_cpts(
    ...     {"rain": ["no", "yes"], "wet": ["no", "yes"]},
    ...     {"wet": ["rain"]},
    ...     {"rain": [0.8, 0.2], "wet": [[0.9, 0.1], [0.3, 0.7]]},
    ... )
    >>> found = cm.explain(model, ["rain"], {"wet": "yes"})
    >>> found.answer.assignment, round(found.lead.nats, 3)
    ({'rain': 'yes'}, 0.56)
    """
    if isinstance(model, Posterior):
        raise QueryError(f"a {type(model).__name__} is a posterior, whose evidence is fixed; expected a model")
    source = as_model(model)
    if n_entries < 0:
        raise QueryError(f"n_entries={n_entries}; expected 0 or more")
    given = dict(evidence or {})
    query = make_query(source.domain, variables, given, hidden=source.hidden)
    names = [source.domain.names[int(i)] for i in query.variables]
    ask = Asking(source, names, {"rng": rng, "time_limit": time_limit, "workers": workers, "progress": False})
    is_real = not query.query_domain.is_discrete  # the next best point of a density lies beside the best
    if is_real:
        both = asked_for = answer = answer if answer is not None and answer.certified else ask(given)
        lead = None
    else:
        both = answer if answer is not None and _has_runner_up(answer) else ask(given, top_k=2)
        asked_for, answer = answer, _best_of(ask, given, both, answer)
        lead = _lead(both, answer)
    observed = [source.domain.names[i] for i in sorted(query.observed) if source.domain.names[i] in given]
    removed = [_swing(ask, answer, given, name, None) for name in observed]
    changed = [
        _swing(ask, answer, given, name, label)
        for name in observed
        for label in _other_states(source, name, given[name])
    ]
    free, found = 0.0, []
    if lead is not None and isinstance(source, BayesianNetwork):
        free = lead.nats if lead.kind is CertificateKind.EXACT else 0.0
        found = tolerances_of(ask, source, given, answer, lead, n_entries)
    kept = [s for s in changed if s.changes]
    gone = None if asked_for is None or asked_for.assignment == answer.assignment else asked_for.assignment
    return Explanation(answer, lead, removed, kept, free, found, gone)


def _is_exact(result: MapResult) -> bool:
    return result.certificate.kind is CertificateKind.EXACT


def _has_runner_up(result: MapResult) -> bool:
    """Whether a result holds the runner-up too, and certifies both."""
    return _is_exact(result) and result.top is not None and len(result.top) > 1


def _best_of(ask: Asking, evidence: dict[str, Any], both: MapResult, known: MapResult | None) -> MapResult:
    """Return the answer to explain: the known one unless another proves to be more probable."""
    if known is not None and _is_exact(known):
        return known
    found = both if _is_exact(both) else ask(evidence)
    if known is None or known.assignment == found.assignment:
        return found
    return known if _value(known) >= _value(found) else found


def _value(result: MapResult) -> float:
    """Return the log by which answers to one query are compared, in nats."""
    value = result.log_joint if result.log_prob is None else result.log_prob
    return -math.inf if value is None else value


def _lead(both: MapResult, answer: MapResult) -> Lead | None:
    """Compare the answer with the best of the two that differs from it."""
    assert both.top is not None
    own = next((value for assignment, value in both.top if assignment == answer.assignment), _value(answer))
    for assignment, value in both.top:
        if assignment != answer.assignment:
            return Lead(max(own - value, 0.0), assignment, both.certificate.kind)
    return None


def _other_states(model: Model, name: str, seen: Label) -> list[Label]:
    variable = model.domain[name]
    return [s for s in variable.states if s != seen] if isinstance(variable, Categorical) else []


def _swing(ask: Asking, answer: MapResult, evidence: dict[str, Any], name: str, state: Label | None) -> Swing:
    """Repeat the query without an observation, or with another state in its place."""
    other = {k: v for k, v in evidence.items() if k != name} | ({} if state is None else {name: state})
    try:
        result = ask(other)
    except ImpossibleEvidence:
        return Swing(name, state, {}, None)
    changes = {k: v for k, v in result.assignment.items() if answer.assignment[k] != v}
    if changes and _is_as_good(ask, other, answer.assignment, result):
        changes = {}
    return Swing(name, state, changes, result.certificate.kind)


def _is_as_good(ask: Asking, evidence: dict[str, Any], assignment: Mapping[str, Label], best: MapResult) -> bool:
    """Whether an assignment is worth as much as the best: a tie, or a value beside a density's peak."""
    try:
        posterior = condition(ask.model, ask.variables, evidence)
    except TooLarge:
        return False
    points = np.stack([posterior.domain.encode(dict(a)) for a in (assignment, best.assignment)])
    own, top = posterior.log_prob(points).tolist()
    return own >= top - best.certificate.tolerance - ROUNDING * (1.0 + abs(top))
