"""The questions behind an explanation: each is a MAP query of its own, with its own certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from certimap.api import map_query
from certimap.domain import Categorical, Label
from certimap.errors import ImpossibleEvidence, QueryError
from certimap.explanations.explanation import Explanation, Lead, Swing
from certimap.explanations.sensitivity import tolerances_of
from certimap.interop import as_model
from certimap.model import Model
from certimap.networks.bayesian import BayesianNetwork
from certimap.query import make_query
from certimap.result import CertificateKind, MapResult

N_ENTRIES = 8  # table entries whose exact range is found unless told otherwise


@dataclass(frozen=True)
class Asking:
    """Asks MAP queries about one model, all with the same settings."""

    model: Model
    variables: Sequence[str]
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, evidence: Mapping[str, Any], model: Model | None = None, **more: Any) -> MapResult:
        """Return the most probable states of the query variables given evidence, under this or another model."""
        asked = self.model if model is None else model
        return map_query(asked, self.variables, evidence, epsilon=0.0, delta=0.0, **self.settings, **more)


def explain(
    model: Any,
    variables: Sequence[str] | str | None = None,
    evidence: Mapping[str, Any] | None = None,
    *,
    n_entries: int = N_ENTRIES,
    rng: int = 0,
    time_limit: float | None = None,
    workers: int | None = None,
) -> Explanation:
    """Answer a MAP query and say why the answer is what it is.

    Parameters
    ----------
    model, variables, evidence
        As for `map_query`; the evidence is one assignment. Observations are hard evidence: sets, likelihoods and
        intervals are kept as they are.
    n_entries
        For Bayesian networks: of how many table entries the exact range is found, those first that tell the
        answer and the runner-up apart; 0 for none.
    rng, time_limit, workers
        As for `map_query`; the time limit holds for each of the queries asked.

    Returns
    -------
    Explanation
        The lead over the runner-up, the observations that change the answer when taken away or changed, and how
        far table entries may move.

    Raises
    ------
    QueryError, ImpossibleEvidence, TooLarge
        As `map_query` does.

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
    source = as_model(model)
    if n_entries < 0:
        raise QueryError(f"n_entries={n_entries}; expected 0 or more")
    given = dict(evidence or {})
    query = make_query(source.domain, variables, given, hidden=source.hidden)
    names = [source.domain.names[int(i)] for i in query.variables]
    ask = Asking(source, names, {"rng": rng, "time_limit": time_limit, "workers": workers, "progress": False})
    both = ask(given, top_k=2)
    assert both.top is not None
    answer = ask(given)
    lead = None
    if len(both.top) > 1:
        gap = max(both.top[0][1] - both.top[1][1], 0.0)
        lead = Lead(gap, both.top[1][0], both.certificate.kind)
    observed = [source.domain.names[i] for i in sorted(query.observed) if source.domain.names[i] in given]
    removed = [_swing(ask, answer, given, name, None) for name in observed]
    changed = [
        _swing(ask, answer, given, name, label)
        for name in observed
        for label in _other_states(source, name, given[name])
    ]
    free = lead.nats if lead is not None and lead.kind is CertificateKind.EXACT else 0.0
    found = [] if lead is None or not isinstance(source, BayesianNetwork) else tolerances_of(
        ask, source, given, answer, lead, n_entries
    )  # fmt: skip
    return Explanation(answer, lead, removed, [s for s in changed if s.changes], free, found)


def _other_states(model: Model, name: str, seen: Label) -> list[Label]:
    variable = model.domain[name]
    return [s for s in variable.states if s != seen] if isinstance(variable, Categorical) else []


def _swing(ask: Asking, answer: MapResult, evidence: dict[str, Any], name: str, state: Label | None) -> Swing:
    """Ask again without an observation, or with another state in its place."""
    other = {k: v for k, v in evidence.items() if k != name} | ({} if state is None else {name: state})
    try:
        result = ask(other)
    except ImpossibleEvidence:
        return Swing(name, state, {}, None)
    changes = {k: v for k, v in result.assignment.items() if answer.assignment[k] != v}
    return Swing(name, state, changes, result.certificate.kind)
