"""Explanations: their data, and the series of MAP queries that computes them, each with its own certificate.

How far may one entry of a conditional table move before the answer changes? When an entry theta of a row moves and
the rest of the row is scaled along, p(q, e) is linear in theta for every assignment q. The largest of these lines
over q is convex, so the range where the answer's line is the largest is an interval. Each end is found from
outside: a MAP query gives the best assignment at the far end of the side. If it beats the answer, the two lines
cross closer in, and the next query is made at the crossing. Each step finds a line that crosses still closer; when
none beats the answer, the crossing is the end of the interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from certimap.ask.api import condition
from certimap.ask.inference import log_evidence, marginals
from certimap.ask.session import Session, settled
from certimap.core.arguments import Record, check_whole, keywords_hinted, shown
from certimap.core.arrays import Floats
from certimap.core.constraints import Constraint
from certimap.core.control import Limits
from certimap.core.domain import Categorical, Label, Real
from certimap.core.model import Model
from certimap.core.posterior import Posterior
from certimap.core.query import Evidence, Query, items_of, make_query
from certimap.core.result import CertificateKind, MapResult, Status, json_ready
from certimap.core.summary import aligned
from certimap.errors import ImpossibleEvidence, NoAnswer, QueryError, TooLarge
from certimap.interop import as_model
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.solvers.driver import seed_of
from certimap.solvers.request import Request


@dataclass(frozen=True)
class Lead:
    """How far the answer is ahead of the next best assignment."""

    nats: float  # ln p(answer) - ln p(runner_up); 0 for a tie, inf if only the answer is possible
    runner_up: dict[str, Label]  # the second most probable assignment
    kind: CertificateKind  # the certificate of the two together


@dataclass(frozen=True)
class Swing:
    """The effect on the answer of removing one observation, or of changing it to another state."""

    variable: str  # the observed variable
    # the state put in its place; None if the observation is removed (and the variable summed out)
    state: Label | None
    changes: dict[str, Label]  # the new states of the query variables that change; empty if the answer stays
    kind: CertificateKind | None  # the certificate of the new answer; None if the changed evidence is impossible


@dataclass(frozen=True)
class Tolerance:
    """How far one entry of a conditional table may move before another assignment is as probable as the answer.

    The other entries of its row are scaled so that the row still adds to 1; all other rows stay.
    """

    variable: str  # the entry: P(variable = state | given)
    given: dict[str, Label]
    state: Label
    value: float  # the entry's present value
    # the answer stays the most probable from `low` to `high`; 0 or 1 if no value on that side changes it
    low: float
    high: float
    # the assignments that win below `low` and above `high`, by the states that differ; None if there is none
    rivals: tuple[dict[str, Label] | None, dict[str, Label] | None]
    kind: CertificateKind  # the certificate of the searches that found no better rival inside: exact, or weaker

    def __str__(self) -> str:
        return " ".join(self.cells())

    def cells(self) -> tuple[str, str, str]:
        """Return the entry, its value, and the range."""
        given = ", ".join(f"{name}={label}" for name, label in self.given.items())
        entry = f"P({self.variable}={self.state}{' | ' if given else ''}{given})"
        return entry, f"= {self.value:.4g}", f"in [{self.low:.4g}, {self.high:.4g}] (proved: {self.kind})"


@dataclass(frozen=True)
class Explanation:
    """The explanation of an answer; every part carries its certificate.

    - `answer`: the result that is explained.
    - `lead`: the lead over the runner-up; None if there is no other assignment.
    - `removed`: a `Swing` for each observation, removed in turn.
    - `changed`: a `Swing` for each alternative state of an observation that changes the answer.
    - `log_odds_free`: any one entry of any table may move by this much in log-odds (nats) without changing the
      answer: the lead, by the bound of Chan and Darwiche (2002). 0 where the runner-up is not proved, and for
      models without conditional tables.
    - `tolerances`: the exact range of the entries that matter most, for Bayesian networks.
    - `superseded`: the assignment to be explained, if another one, which is the answer here, proved to be more
      probable.
    """

    answer: MapResult
    lead: Lead | None
    removed: list[Swing]
    changed: list[Swing]
    log_odds_free: float
    tolerances: list[Tolerance]
    superseded: dict[str, Label] | None = None

    def to_dict(self) -> Record:
        """Return JSON-ready data: the answer's own under `answer`, and what `beside` returns."""
        return {"answer": self.answer.to_dict()} | self.beside()

    def beside(self) -> Record:
        """Return the part of `to_dict` without the answer; infinite numbers are None."""
        parts = asdict(replace(self, answer=None))
        return json_ready({name: part for name, part in parts.items() if name != "answer"})

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, *, with_answer: bool = True) -> Iterable[str]:
        """Return the lines of the explanation, a section per question; `with_answer` includes the answer."""
        if self.superseded is not None:
            yield "Another assignment is more probable than the one to be explained; it is explained here."
            yield ""
        if with_answer or self.superseded is not None:
            origin = self.answer.origin
            model = None if origin is None else origin.model
            done = isinstance(model, Model) and model.domain.done
            yield f"The answer after {done}" if done else "The answer"
            yield from aligned(((name, "=", str(label)) for name, label in self.answer.assignment.items()), "  ")
            yield f"  proved: {self.answer.certificate.kind}"
        yield from (f"Under {rule!r}" for rule in self.answer.constraints)
        if self.lead is not None and self.lead.nats < math.inf:
            times = math.exp(min(self.lead.nats, 700.0))
            yield ""
            yield f"Lead over the runner-up: {times:.6g} times as probable (proved: {self.lead.kind})"
            other, own = self.lead.runner_up, self.answer.assignment.items()
            yield from aligned(((n, str(s), "->", str(other[n])) for n, s in own if other[n] != s), "  ")
        elif not self.answer.is_density:
            yield ""
            yield "No other assignment is possible" + (" under them" if self.answer.constraints else "")
        yield ""
        yield "Observations that the answer hangs on"
        turning = [s for s in self.removed if s.changes]
        yield from _swings(turning, "without") if turning else ("  none: without any one of them it stays",)
        if self.changed:
            yield ""
            yield "Other states that would change it"
            yield from _swings(self.changed, "with")
        if self.log_odds_free > 0.0:
            yield ""
            yield f"Any one table entry may move by {self.log_odds_free:.4g} in log-odds"
        if self.tolerances:
            yield "Ranges of single entries in which the answer stays (the tightest first)"
            yield from aligned((t.cells() for t in self.tolerances), "  ")


def _swings(swings: Iterable[Swing], word: str) -> Iterable[str]:
    def row(swing: Swing) -> tuple[str, str, str]:
        what = swing.variable if swing.state is None else f"{swing.variable}={swing.state}"
        changes = ", ".join(f"{name}={label}" for name, label in swing.changes.items())
        return f"{word} {what}", changes, f"(proved: {swing.kind})"

    return aligned((row(s) for s in swings), "  ")


EDGE = 1e-9  # from 0 and 1: there a row may make the evidence impossible
CLOSE = 1e-9  # nats by which a rival must beat the answer; smaller leads are rounding
ROUNDING = 1e-12  # of logs of values that are compared, relative
N_ENTRIES = 8  # table entries whose exact range is found unless told otherwise
MAX_STEPS = 50  # lines tried per side; every step crosses closer in, so a handful suffices


End = tuple[
    float, dict[str, Label] | None, CertificateKind
]  # of a range: where, the rival beyond it, and what is proved


@dataclass(frozen=True)
class Asking:
    """Asks MAP queries about one model, or a variant of it, with one request and seed."""

    model: Model
    variables: Sequence[str]
    request: Request
    seed: int

    def __call__(self, evidence: Evidence, model: Model | None = None, top_k: int | None = None) -> MapResult:
        """Return the answer given evidence; Ctrl-C, which ends a search early, ends the whole explanation."""
        session = Session(self.model if model is None else model, replace(self.request, top_k=top_k))
        found = session.answer(lambda: (self.variables, evidence), self.seed, False)
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return found


@dataclass(frozen=True)
class TableEntry:
    """P(variable = state | parents at `row`), by positions."""

    variable: int
    row: tuple[int, ...]
    state: int

    def value(self, network: BayesianNetwork) -> float:
        return float(network.factors[self.variable].table[(*self.row, self.state)])

    def moved(self, network: BayesianNetwork, theta: float) -> BayesianNetwork:
        """Return the network with this entry at theta and the rest of its row scaled along."""
        table = network.factors[self.variable].table.copy()
        row = table[self.row]
        rest = 1.0 - row[self.state]
        row *= (1.0 - theta) / rest
        row[self.state] = theta
        factors = list(network.factors)
        factors[self.variable] = Factor(network.factors[self.variable].scope, table)
        return BayesianNetwork(network.domain, factors, network.hidden)


@dataclass(frozen=True)
class Sensitivity:
    """An answer to a query of a Bayesian network whose table entries move; `now` is ln p(answer, evidence)."""

    ask: Asking
    network: BayesianNetwork
    evidence: Evidence
    answer: Mapping[str, Label]
    now: float

    def telling(self, lead: Lead, n: int) -> list[TableEntry]:
        """Return the n entries whose log-odds change the lead fastest, as far as single marginals tell."""
        if n == 0:
            return []
        network = self.network
        possible = [self.answer] if lead.nats == math.inf else [self.answer, lead.runner_up]
        with_each = [_chances(network, {**self.evidence, **q}) for q in possible]
        scored: list[tuple[float, TableEntry]] = []
        for i, factor in enumerate(network.factors):
            above = factor.scope[:-1]
            for row in itertools.product(*(range(int(network.domain.n_states[p])) for p in above)):
                reached = [math.prod(c[p][s] for p, s in zip(above, row, strict=True)) for c in with_each]
                if max(reached) == 0.0:
                    continue
                for state, theta in enumerate(factor.table[row].tolist()):
                    if EDGE < theta < 1.0 - EDGE:
                        first, *second = (
                            r * (c[i][state] - theta) for r, c in zip(reached, with_each, strict=True)
                        )
                        scored.append((abs(first - sum(second)), TableEntry(i, row, state)))
        scored.sort(key=lambda pair: -pair[0])
        return [entry for score, entry in scored[:n] if score > 0.0]

    def side(self, entry: TableEntry, far: float) -> End:
        """Return where a rival overtakes the answer on one side, the rival's changes, and the last certificate."""
        start, theta = entry.value(self.network), far
        rival: dict[str, Label] | None = None
        far_network = entry.moved(self.network, far)
        own = (self.now, _log_joint(far_network, self.evidence, self.answer))
        kind = CertificateKind.NONE
        for _ in range(MAX_STEPS):
            try:
                best = self.ask(self.evidence, entry.moved(self.network, theta))
            except (ImpossibleEvidence, NoAnswer):
                return theta, rival, CertificateKind.EXACT
            kind, ahead = best.certificate.kind, _between(own, (theta - start) / (far - start)) + CLOSE
            if best.log_joint is None or best.log_joint <= ahead or best.assignment == rival:
                break
            rival = best.assignment
            other = _log_joint(self.network, self.evidence, rival), _log_joint(far_network, self.evidence, rival)
            theta = start + (far - start) * _crossing(own, other)
        changes = None if rival is None else {k: v for k, v in rival.items() if self.answer[k] != v}
        return theta, changes, kind


def tolerance(network: BayesianNetwork, entry: TableEntry, side: Callable[[TableEntry, float], End]) -> Tolerance:
    """Return an entry's range, given what finds an end of it."""
    variables = network.domain.variables
    parents = [variables[p] for p in network.parents[entry.variable]]
    given = {p.name: _states(p)[s] for p, s in zip(parents, entry.row, strict=True)}
    (low, below, kind_low), (high, above, kind_high) = (side(entry, far) for far in (EDGE, 1.0 - EDGE))
    kind = CertificateKind.EXACT if kind_low == kind_high == CertificateKind.EXACT else CertificateKind.NONE
    ends = 0.0 if below is None else low, 1.0 if above is None else high
    variable, value = variables[entry.variable], entry.value(network)
    return Tolerance(variable.name, given, _states(variable)[entry.state], value, *ends, (below, above), kind)


def _chances(network: BayesianNetwork, evidence: Evidence) -> list[Floats]:
    """Return P(state | evidence) of every variable, observed ones included."""
    found = marginals(network, network.domain.names, evidence)
    return [np.array([found[v.name][s] for s in _states(v)]) for v in network.domain]


def _states(variable: Categorical | Real) -> tuple[Label, ...]:
    assert isinstance(variable, Categorical)  # a network has no other
    return variable.states


def _between(ends: tuple[float, float], share: float) -> float:
    """Return ln of the value on a line a share of the way between its ends, which are given as logs."""
    top = max(ends)
    if top == -math.inf:
        return top
    return top + math.log((1.0 - share) * math.exp(ends[0] - top) + share * math.exp(ends[1] - top))


def _crossing(own: tuple[float, float], other: tuple[float, float]) -> float:
    """Return where two lines cross, as a share of the way; each is given by ln of its values at both ends."""
    top = max(*own, *other)
    a, b, c, d = (math.exp(v - top) for v in (*own, *other))
    ahead, behind = a - c, d - b  # the answer leads at the start, the rival at the end
    return max(ahead, 0.0) / (max(ahead, 0.0) + behind)


def _log_joint(network: BayesianNetwork, evidence: Evidence, assignment: Mapping[str, Label]) -> float:
    """Return ln p(assignment, evidence), on the scale of `MapResult.log_joint`; -inf where it is impossible."""
    # the assignment replaces evidence on the query variables; the log weights of its states are added
    soft = make_query(network.domain, list(assignment), {k: v for k, v in evidence.items() if k in assignment})
    states = soft.query_domain.encode(dict(assignment))
    own = math.fsum(soft.log_weights[network.domain.offsets[soft.variables] + states])
    if own == -math.inf:
        return own
    try:
        return own + log_evidence(network, {**evidence, **assignment})
    except ImpossibleEvidence:
        return -math.inf


@keywords_hinted()
def explain(
    model: Any, variables: Sequence[str] | str | None = None, evidence: Evidence | None = None, *,
    n_entries: int = N_ENTRIES, rng: int = 0, time_limit: float | None = None, workers: int | None = None,
    answer: MapResult | None = None, constraints: Sequence[Constraint | Record] = (),
) -> Explanation:  # fmt: skip
    """Answer a MAP query and explain the answer.

    - `model`, `variables`, `evidence`: as for `map_query`; the evidence is one assignment. Only hard evidence is
      removed or changed: sets, likelihoods and intervals stay.
    - `n_entries`: for Bayesian networks: number of table entries whose exact range is computed, the ones that
      separate answer and runner-up most; 0 for none.
    - `rng`, `time_limit`, `workers`: as for `map_query`; the time limit applies to each query separately.
    - `answer`: an existing answer to this query, to be explained (`result.explain()` passes its own). If another
      proves to be more probable, that one is explained, and `superseded` holds this one's assignment.
    - `constraints`: as for `map_query`: all assignments that are compared satisfy them.

    The explanation has the lead over the runner-up, the observations that change the answer when taken away or
    changed, and how far table entries may move. Cost: one query per observation and per state of one, and two or
    more per table entry and side. Raises what `map_query` does, and QueryError for a posterior, whose evidence is
    fixed.

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
    n_entries = check_whole("n_entries", n_entries, "a whole number from 0", QueryError)
    given = dict(items_of(settled(source, evidence, Limits())))
    query = make_query(source.domain, variables, given, hidden=source.hidden)
    names = [source.domain.names[int(i)] for i in query.variables]
    if answer is not None:
        _check_answer(answer, query, names, source)
        constraints = constraints or answer.constraints
    request = Request.of(epsilon=0.0, delta=0.0, time_limit=time_limit, workers=workers, constraints=constraints)
    ask = Asking(source, names, request, seed_of(rng))
    is_real = not query.query_domain.is_discrete  # the next best point of a density lies beside the best
    if is_real:
        both = asked_for = answer = answer if answer is not None and answer.certified else ask(given)
        lead = None
    else:
        has_both = answer is not None and _is_exact(answer) and len(answer.top or ()) > 1  # and certifies both
        both = answer if answer is not None and has_both else ask(given, top_k=2)
        asked_for, answer = answer, _best_of(ask, given, both, answer)
        lead = _lead(both, answer)
    observed = [source.domain.names[i] for i in sorted(query.observed) if source.domain.names[i] in given]
    removed = [_swing(ask, answer, given, name, None) for name in observed]
    changed = [
        _swing(ask, answer, given, name, label)
        for name in observed
        if isinstance(kind := source.domain[name], Categorical)
        for label in kind.states
        if label != given[name]
    ]
    free, found = 0.0, []
    if lead is not None and isinstance(source, BayesianNetwork):
        free = lead.nats if lead.kind is CertificateKind.EXACT else 0.0
        now = _log_joint(source, given, answer.assignment)
        moving = Sensitivity(ask, source, given, answer.assignment, now)
        found = [tolerance(source, entry, moving.side) for entry in moving.telling(lead, n_entries)]
        found.sort(key=lambda t: min(t.value - t.low, t.high - t.value))  # the tightest first
    kept = [s for s in changed if s.changes]
    gone = None if asked_for is None or asked_for.assignment == answer.assignment else asked_for.assignment
    return Explanation(answer, lead, removed, kept, free, found, gone)


def _check_answer(answer: MapResult, query: Query, names: list[str], model: Model) -> None:
    """Raise QueryError unless `answer` is one to the query."""
    if not isinstance(answer, MapResult):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise QueryError(f"the answer is {shown(answer)}; expected a result of map_query")
    own = sorted(answer.assignment)
    if own != sorted(names):
        raise QueryError(f"the answer is to a query of {shown(own)}, and the query is of {shown(names)}")
    if answer.origin is None:
        return
    if make_query(query.domain, names, settled(model, answer.origin.ask()[1], Limits())).key != query.key:
        raise QueryError("the answer is to a query with other evidence; leave answer out to find it anew")


def _is_exact(result: MapResult) -> bool:
    return result.certificate.kind is CertificateKind.EXACT


def _best_of(ask: Asking, evidence: Evidence, both: MapResult, known: MapResult | None) -> MapResult:
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


def _swing(ask: Asking, answer: MapResult, evidence: Evidence, name: str, state: Label | None) -> Swing:
    """Repeat the query without an observation, or with another state in its place."""
    other = {k: v for k, v in evidence.items() if k != name} | ({} if state is None else {name: state})
    try:
        result = ask(other)
    except (ImpossibleEvidence, NoAnswer):
        return Swing(name, state, {}, None)
    changes = {k: v for k, v in result.assignment.items() if answer.assignment[k] != v}
    if changes and _is_as_good(ask, other, answer.assignment, result):
        changes = {}
    return Swing(name, state, changes, result.certificate.kind)


def _is_as_good(ask: Asking, evidence: Evidence, assignment: Mapping[str, Label], best: MapResult) -> bool:
    """Whether an assignment is worth as much as the best: a tie, or a value beside a density's peak."""
    try:
        posterior = condition(ask.model, ask.variables, evidence)
    except TooLarge:
        return False
    points = np.stack([posterior.domain.encode(dict(a)) for a in (assignment, best.assignment)])
    own, top = posterior.log_prob(points).tolist()
    return own >= top - best.certificate.tolerance - ROUNDING * (1.0 + abs(top))
