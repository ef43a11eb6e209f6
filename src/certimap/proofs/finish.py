"""Proof files: completed from the record of a run, or found anew, and handed to the checker."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from certimap.checker import Proof, Verdict, check_arrays
from certimap.checker.buckets import BucketLayout, ProofBuckets
from certimap.checker.constraints import PlainRules
from certimap.checker.file import read_within
from certimap.checker.leaves import NAMES
from certimap.checker.models import BYTES, SECONDS, CheckBudget, ReducedModel, Rejected, reduce, tables_of
from certimap.checker.models import Question as Asked
from certimap.checker.network import boxes_beside, value_at, work_of_a_point
from certimap.checker.numbers import UNIT
from certimap.checker.verdict import LARGEST_TOLERANCE
from certimap.circuits.circuit import Circuit, NodeKind, supports
from certimap.circuits.leaves import leaf_kind
from certimap.core.arguments import Record, check_number, is_path, keywords_hinted
from certimap.core.arrays import Array, Floats
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Label, Real
from certimap.core.model import Model
from certimap.core.posterior import Capability, Facts
from certimap.core.query import Query
from certimap.core.result import CertificateKind, MapResult, Rule
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import ModelError, ParseError, QueryError, SolverError, TooLarge
from certimap.interop import as_model
from certimap.io.files import suffix_of
from certimap.io.formats import FORMATS
from certimap.io.native import encoded_label, exported, fingerprint
from certimap.proofs.script import Arrays
from certimap.solvers.base import Solver
from certimap.solvers.record import unproved


def answers_of(result: MapResult) -> list[dict[str, Label]]:
    """Return all answers of a result, the best one first."""
    return [result.assignment] if result.top is None else [answer for answer, _ in result.top]


def _least_log(result: MapResult) -> float:
    """Return ln of the density or probability of the worst answer."""
    log_value = result.log_prob if result.top is None else result.top[-1][1]
    return -math.inf if log_value is None else log_value


MAX_SEARCHES = 5  # per proof; a search that finds a better answer is repeated


def searched(model: Circuit, query: Query, result: MapResult, max_bytes: int, seconds: float) -> Proof | None:
    """Search a circuit by boxes, starting from another solver's answer; None if the search does not end."""
    from certimap.circuits.posterior import CircuitPosterior
    from certimap.circuits.prober import PlanProber
    from certimap.core.constrained import ConstrainedPosterior
    from certimap.solvers.box_search.frontier import Frontier
    from certimap.solvers.driver import run
    from certimap.solvers.request import Request

    class Plain(CircuitPosterior):
        """Uses only bounds that the checker computes as well: no masses of counts, for example."""

        @property
        def facts(self) -> Facts:
            known = super().facts
            return replace(known, has_masses=known.has_masses and self.domain.is_discrete)

        def prober(self) -> PlanProber:
            return PlanProber(self.plan, self.workers)

    control, certificate = Control.starting_now(seconds), result.certificate
    answers, log_value, epsilon = answers_of(result), _least_log(result), certificate.epsilon
    ask = partial(Request, Frontier(first_draws=0), delta=0.0, tolerance=certificate.tolerance)
    for _ in range(MAX_SEARCHES):
        try:
            top_k = None if result.top is None else len(answers)
            request = ask(epsilon=epsilon, top_k=top_k, warm_start=answers, proof_bytes=max_bytes)
            whole = Plain.from_circuit(model, query, control=control)
            posterior = whole if query.rules is None else ConstrainedPosterior(whole, query.rules)
            found = run(posterior, request, control=control)
        except (TimeUp, TooLarge):
            return None
        if not found.certified or found.proof is None or not found.proof.arrays:
            return None
        gain, proof = _least_log(found) - log_value, found.proof
        if gain <= 0.0 or certificate.epsilon == 0.0:
            is_discrete = query.query_domain.is_discrete
            return proof if is_discrete else Proof(proof.meta, _at_ends(model, query, proof.arrays))
        # the search closed boxes around a better answer; the answer to be proved needs a smaller epsilon there
        answers = [found.assignment, *answers][: 1 if result.top is None else len(result.top)]
        log_value += gain
        epsilon = -math.expm1(math.log1p(-epsilon) + gain)
        if not epsilon > 0.0:
            return None
    return None


def _at_ends(model: Circuit, query: Query, arrays: Arrays) -> Arrays:
    """Cut the cells of real variables also where densities end, so that no cell holds two bars of a histogram."""
    ends: dict[int, set[float]] = {}
    low, high = supports(model)
    for v, a, b in zip(model.leaf_var.tolist(), low.tolist(), high.tolist(), strict=True):
        ends.setdefault(v, set()).update((math.nextafter(a, -math.inf), b))
    whole, ptr = intervals_of(query)["intervals"], arrays["cut_ptr"]
    cuts, n_columns = list[Floats](), 0
    columns: list[Array] = []  # for each new column of a variable, the old column that contains it
    for k, v in enumerate(query.variables.tolist()):
        old = arrays["cuts"][ptr[k] : ptr[k + 1]]
        inside = [x for x in ends.get(v, ()) if -math.inf < x and whole[v, 0] <= x < whole[v, 1]]
        cuts.append(np.union1d(old, np.array(inside, np.float64)))
        is_real = isinstance(query.domain.variables[v], Real)
        size = len(old) + 1 if is_real else int(query.query_domain.n_states[k])
        parts = np.searchsorted(old, np.array([*cuts[-1], np.inf])) if is_real else np.arange(size)
        columns.append(n_columns + parts)
        n_columns += size
    at = arrays["at"].copy()
    for node in np.flatnonzero(at):
        k = int(arrays["splits"][node])
        at[node] = np.searchsorted(cuts[k], arrays["cuts"][ptr[k] + at[node] - 1]) + 1
    rows = arrays["kept"].reshape(-1, (n_columns + 7) // 8)
    kept = np.unpackbits(rows, axis=1, count=n_columns)[:, np.concatenate(columns)]
    return {
        **arrays,
        "at": at,
        "kept": np.packbits(kept, axis=1).reshape(-1),
        "cuts": np.concatenate(cuts),
        "cut_ptr": np.cumsum([0, *(len(inner) for inner in cuts)]).astype(np.int64),
    }


def intervals_of(query: Query) -> Arrays:
    """Return the interval of each real variable (one value if observed); nothing if all are discrete."""
    if query.domain.is_discrete:
        return {}
    intervals = np.tile([-np.inf, np.inf], (len(query.domain), 1))
    for v, variable in enumerate(query.domain):
        if isinstance(variable, Real):
            value = query.values.get(v)
            whole = (variable.low, variable.high) if value is None else (value, value)
            intervals[v] = query.intervals.get(v, whole)
    n = len(query.variables) + 1
    return {"intervals": intervals, "cuts": np.zeros(0), "cut_ptr": np.zeros(n, np.int64)}


WITH_PROOFS = "'frontier' and 'exhaustive' on circuits, and any solver on networks whose tables fit"
NOT_CLOSED = "no steps that were found in {:.0f} s prove it; a higher time_limit may find some"
NOT_ELIMINATED = "no elimination of {:.0f} s and {:,} bytes proves it; a higher time_limit or max_proof may help"
EASY = 0.5  # seconds of solving; below, the checker finds the relevant vectors itself
MOST_LISTED = 1e9  # assignments that the checker evaluates, times table entries: 10 to 20 s
STEPS_SHARE = 0.7  # of the time for a proof of a wide network; relaxations get the rest


def reduced_network(model: Model, query: Query) -> ReducedModel:
    """Return a network's tables under the evidence, and those of the constraints, in the checker's form."""
    return with_answers(model, query, [])[0]


def with_answers(
    model: Model, query: Query, answers: Sequence[Mapping[str, Label]]
) -> tuple[ReducedModel, list[list[int]]]:
    """Return a network in the checker's form, and answers as states of what it queries: counters too."""
    kind, variables, arrays, _ = exported(model)
    sizes = query.domain.n_states.astype(np.int64)
    asked = Asked(sizes, query.variables, query.log_weights)
    points = np.array([query.query_domain.encode(dict(answer)) for answer in answers], np.int64)
    rules = PlainRules.of(_constraints(query), variables, asked, CheckBudget())
    free = reduce(*tables_of(kind, sizes, arrays), asked)
    problem, points = rules.extended(free, points.reshape(len(answers), len(query.variables)))
    return problem, points.tolist()


def _constraints(query: Query) -> list[Record]:
    """Return the constraints of a query as JSON."""
    return [] if query.rules is None else [constraint.to_dict() for constraint in query.rules.constraints]


def of_network(
    model: Model, query: Query, result: MapResult, draft: Proof, max_bytes: int, seconds: float
) -> Proof:
    """Return the proof of an answer to a network, given the run's draft, or the reason why there is none."""
    from certimap.networks.orders import looks_too_wide  # loads numba

    is_drawn = draft.meta["method"] == "draws"
    try:
        checked, points = with_answers(model, query, answers_of(result))
        budget = CheckBudget.starting_now(seconds)
        scopes = [t.scope for t in checked.tables]
        if not is_drawn and looks_too_wide(scopes, {v: int(checked.sizes[v]) for scope in scopes for v in scope}):
            return wide(model, query, result, max_bytes, seconds)
        layout = BucketLayout.of(checked, budget)
        has_sums = bool({v for scope in scopes for v in scope} - set(checked.queried))
        own = _own_value(result, value_at(checked, points[0], -1, layout.order)) if has_sums else {}
    except (Rejected, ModelError) as reason:
        if not is_drawn:
            return wide(model, query, result, max_bytes, seconds)
        return unproved(f"{reason}; {WITH_PROOFS} can write a proof")
    if "no_proof" in draft.meta:
        return draft
    if is_drawn:
        return Proof(draft.meta | own, draft.arrays)
    arrays: Arrays | None = {}
    if has_sums and result.seconds >= EASY:
        from certimap.proofs.vectors import recorded

        claim = result.certificate.epsilon, result.certificate.tolerance
        arrays = recorded(ProofBuckets.of(checked, layout, budget), points, *claim, max_bytes)
    if arrays is None:
        return unproved(NOT_ELIMINATED.format(seconds, max_bytes))
    return Proof({**draft.meta, **own, "method": "vectors"}, arrays)


def _own_value(result: MapResult, log_value: float) -> Record:
    """Return the claim of an answer between two sides: the value that the checker finds, not the lower side."""
    log_joint = result.log_joint
    is_equal = log_joint is not None and abs(log_value - log_joint) <= 1e-9 * (1.0 + abs(log_value))
    return {} if is_equal else {"claim": {"log_joint": log_value}}


def wide(model: Model, query: Query, result: MapResult, max_bytes: int, seconds: float) -> Proof:
    """Prove an answer by steps; if it is not certified, prove an upper bound on all assignments."""
    from certimap.proofs.relaxations import bounded, covered, order_of_values
    from certimap.proofs.script import Script
    from certimap.proofs.steps import steps_of

    control = Control.starting_now(seconds)
    certificate = result.certificate
    try:
        checked, points = with_answers(model, query, answers_of(result))
        order = {"order": np.array(order_of_values(checked, control), np.int32)}
        values = [value_at(checked, point, -1, order["order"].tolist()) for point in points]
        log_value = min(values)
        draft = Proof({"method": "steps", **_own_value(result, values[0])}, {})
        is_listed = query.rules is not None and certificate.rule is Rule.ENUMERATION
        if is_listed:
            free = reduced_network(model, replace(query, rules=None))
            if result.n_evaluations * work_of_a_point(free, order["order"].tolist())[1] <= MOST_LISTED:
                return Proof({**draft.meta, "method": "listing"}, order)
        if certificate.kind is CertificateKind.NONE:
            found, stated = bounded(checked, Script(math.inf, control, max_bytes)), {}
        else:
            threshold = log_value - math.log1p(-certificate.epsilon) + math.log1p(certificate.tolerance)
            boxes = boxes_beside(checked, points)
            limits = Control.starting_now(STEPS_SHARE * seconds)
            point = points[0] if len(points) == 1 else None
            steps = steps_of(checked, boxes, Script(threshold, limits, max_bytes), point)
            if steps is not None:
                return Proof(draft.meta, order | steps)
            found = covered(checked, boxes, Script(threshold, control, max_bytes))
            if found is not None and found[1] <= threshold:
                return Proof(draft.meta, order | found[0])
            stated = {"certified": {"kind": certificate.kind.value, "epsilon": certificate.epsilon}}
        if found is not None and found[1] < math.inf:
            claim = {"kind": "bound", "epsilon": 0.0, "delta": 0.0, "log_upper": found[1]}
            claim |= draft.meta.get("claim", {})
            return Proof({"method": "steps", "claim": claim, **stated}, order | found[0])
    except (Rejected, ModelError, TooLarge) as reason:
        return unproved(f"{reason}; {WITH_PROOFS} can write a proof")
    return unproved(NOT_CLOSED.format(seconds))


NORMALS = (GaussianMixture, LinearGaussianNetwork)


def is_smooth(model: Circuit, query: Query, result: MapResult) -> bool:
    """Whether a circuit may be proved as a mixture: its query has curved densities, and no counts."""
    if query.query_domain.is_discrete or result.certificate.delta > 0.0:
        return False
    kinds = model.kind[np.isin(model.leaf_var, query.variables) & (model.kind < NodeKind.PRODUCT)]
    kinds = kinds[kinds != NodeKind.CATEGORICAL]
    poisson, geometric, uniform = (leaf_kind(name)[0] for name in ("poisson", "geometric", "uniform"))
    return not np.any(np.isin(kinds, [poisson, geometric])) and bool(np.any(kinds != uniform))


LEAST_SECONDS = 10.0  # for a search for the proof alone; it may also take 4 times the solving, or the time left


def wants_for_proof(
    model: Any, solver: str | Solver, wants: Sequence[Capability] | None
) -> Sequence[Capability] | None:
    """Return the capabilities to request for a query with a proof: on circuits, boxes that can be retraced."""
    if not isinstance(model, Model):
        name = type(model).__name__
        raise SolverError(f"a {name} has no model that a proof could be about; ask a model instead")
    from certimap.circuits.posterior import CircuitPosterior
    from certimap.solvers.box_search.frontier import Frontier

    searches = solver in ("auto", "frontier") or isinstance(solver, Frontier)
    if isinstance(model, Circuit) and searches and wants in (None, Frontier.needs):
        return (CircuitPosterior,)
    return wants


def finished(
    model: Model, query: Query, result: MapResult, max_bytes: int, time_limit: float | None = None
) -> MapResult:
    """Return a result with its completed proof, or with the reason for its absence.

    `time_limit` (seconds) is the query's; a search for the proof alone may use the rest of it.
    """
    if result.proof is None:
        return result
    seconds = max(LEAST_SECONDS, 4.0 * result.seconds, (time_limit or 0.0) - result.seconds)
    certificate, control = result.certificate, Control.starting_now(4.0 * seconds)
    tolerance, needed = certificate.tolerance, _rounding(query, result)
    while True:
        weaker = replace(result, certificate=replace(certificate, tolerance=tolerance))
        proved = replace(
            _completed(model, query, weaker, result.proof, max_bytes, seconds), certificate=certificate
        )
        if proved.proof is None or certificate.delta > 0.0 or needed <= certificate.tolerance:
            return proved
        if _verdict(model, proved.proof, CheckBudget.starting_now(seconds)).accepted:
            if tolerance == certificate.tolerance:
                return proved
            note = f"it is of a relative tolerance of {tolerance:.2g}, which the rounding of its check needs"
            return replace(proved, no_proof=proved.no_proof or note)
        tolerance, needed = needed, 16.0 * needed
        if tolerance > LARGEST_TOLERANCE or control.is_late:
            return replace(proved, proof=None, no_proof="what a check may lose to rounding exceeds the tolerance")


def _rounding(query: Query, result: MapResult) -> float:
    """Return what a check may need of a tolerance: errors grow with the variables, and the size of the logs."""
    return UNIT * (64.0 + len(query.domain)) * (64.0 + abs(result.log_joint or 0.0)) / 16.0


def _completed(
    model: Model, query: Query, result: MapResult, draft: Proof, max_bytes: int, seconds: float
) -> MapResult:
    """Return the result with a proof of its certificate, or with the reason why there is none."""
    if isinstance(model, NORMALS) and "no_proof" not in draft.meta:
        draft = Proof({**draft.meta, "method": "mixture"}, {})
    is_table = not isinstance(model, (Circuit, *NORMALS))
    if is_table and len(query.variables):
        draft = of_network(model, query, result, draft, max_bytes, seconds)
    reason = _refusal(model, query, result, draft)
    without = partial(replace, result, proof=None)
    if reason is not None:
        return without(no_proof=reason)
    if isinstance(model, NORMALS) or (isinstance(model, Circuit) and is_smooth(model, query, result)):
        given = _asked(query)  # a proof of a mixture of Gaussians cuts no variable into cells
        arrays = given if isinstance(model, Circuit) else {k: given[k] for k in ("log_weights", "intervals")}
        proof = Proof({**_meta(model, query, result, draft), "method": "mixture"}, arrays)
        verdict = _verdict(model, proof, CheckBudget.starting_now(seconds))
        if verdict.accepted:
            return replace(result, proof=proof, no_proof=None)
        if isinstance(model, NORMALS):
            return without(no_proof=f"the checker found no proof: {verdict.message}")
    is_discrete = query.query_domain.is_discrete  # bounds of densities, in a search, are closer than the checker's
    if isinstance(model, Circuit) and (draft.meta["method"] == "bound" or not is_discrete):
        found = searched(model, query, result, max_bytes, seconds)
        if found is None:
            text = f"a search for a proof did not end in time; {WITH_PROOFS} write one as they go"
            return without(no_proof=text)
        draft = found
    meta = _meta(model, query, result, draft)
    short = f"it is of a bound alone, for {NOT_CLOSED.format(seconds)}" if "certified" in meta else None
    proof = Proof(meta, _asked(query) | draft.arrays)
    if proof.n_bytes > max_bytes:
        size = f"{proof.n_bytes:,} bytes"
        return without(no_proof=f"the proof would take {size}, and max_proof={max_bytes:,} accepts fewer")
    if isinstance(model, Circuit) and not model.domain.is_discrete:  # the checker's logs may be too coarse for it
        verdict = _verdict(model, proof, CheckBudget.starting_now(seconds))
        if not verdict.accepted:
            return without(no_proof=f"the checker found no proof: {verdict.message}")
    return replace(result, proof=proof, no_proof=short)


def _asked(query: Query) -> Arrays:
    """Return the arrays of every proof: the evidence."""
    return {"log_weights": query.log_weights, **intervals_of(query)}


def _meta(model: Model, query: Query, result: MapResult, draft: Proof) -> Record:
    """Return a proof's data on its model, answer and claim."""
    answers = answers_of(result)
    encoded = [{name: encoded_label(label, name) for name, label in answer.items()} for answer in answers]
    numbers = {name: getattr(result.certificate, name) for name in ("epsilon", "delta", "tolerance")}
    claim = {"kind": result.certificate.kind.value, **numbers, "log_joint": result.log_joint}
    return {
        **draft.meta,
        "model": fingerprint(model),
        "answer": encoded[0],
        "others": encoded[1:],
        "claim": claim | draft.meta.get("claim", {}),
        **({"constraints": constraints} if (constraints := _constraints(query)) else {}),
        "solver": result.solver,
        "written_by": f"certimap {result.version}",
        "seed": result.seed,
    }


def _refusal(model: Model, query: Query, result: MapResult, draft: Proof) -> str | None:
    """Return a sentence on why there is no proof, or None."""
    if "no_proof" in draft.meta:
        return draft.meta["no_proof"]
    if not len(query.variables):
        return "a query without variables has nothing to prove"
    try:
        exported(model)
    except ModelError as error:
        return f"the model cannot be handed to the checker: {error}"
    if isinstance(model, Circuit):
        real = [NodeKind.GAUSSIAN, *(leaf_kind(name)[0] for name in NAMES)]
        if not np.all(np.isin(model.kind, [NodeKind.CATEGORICAL, NodeKind.PRODUCT, NodeKind.SUM, *real])):
            return "the circuit has leaves of a kind that the checker does not know: it knows this package's own"
        if result.top is not None and len(result.top) > 1 and not query.query_domain.is_discrete:
            return "a proof covers one answer where a variable is real; leave top_k out"
        return None
    if not isinstance(model, NORMALS):
        return None
    if result.certificate.delta > 0.0:
        return "of a mixture of Gaussians what holds for certain is proved; ask with delta=0"
    if result.top is not None and len(result.top) > 1:
        return "a proof covers one answer of a mixture of Gaussians; leave top_k out"
    if set(query.intervals) - set(query.variables.tolist()):
        return "the checker knows no masses of intervals of Gaussians with covariances; query their variables"
    return None


@keywords_hinted()
def check(
    model: Any, proof: Proof | MapResult | str | os.PathLike[str], *, exact: bool = False,
    time_limit: float | None = SECONDS, max_memory: int | None = BYTES,
) -> Verdict:  # fmt: skip
    """Check a proof by code that shares nothing with the solvers; see `docs/proofs.md`.

    - `model`: the model of the query, or a model of another library (see `certimap.from_object`).
    - `proof`: a proof (`result.proof`), a result that has one, or the path of a proof file.
    - `exact`: check a small model by enumeration in exact numbers too.
    - `time_limit`: seconds after which the check gives up and rejects the proof. None: no limit. By default ten
      minutes.
    - `max_memory`: bytes that the check may use beside the model; a proof that needs more is rejected before they
      are allocated. None: no limit. By default 2 GB.

    The verdict is true if the claim is proved; its `message` gives the statement proved, or the step that fails.
    Raises ParseError if the file is no proof (one that would unpack to more than `max_memory` is rejected),
    ModelError for a model that has no plain arrays, and QueryError if `model` is no model, or a limit is no
    positive number.
    """
    model = as_model(model)
    for name, value, unit in (("time_limit", time_limit, "seconds"), ("max_memory", max_memory, "bytes")):
        expected = f"{unit} above 0, or None for no limit"
        if value is not None and check_number(name, value, expected, QueryError) <= 0.0:
            raise QueryError(f"{name} is {value}; expected {expected}")
    budget = CheckBudget.starting_now(time_limit, max_memory)
    try:
        found = _proof_of(proof, budget)
    except Rejected as reason:
        return Verdict(False, f"rejected: {reason}")
    return _verdict(model, found, budget, exact)


def _verdict(model: Model, proof: Proof, budget: CheckBudget, exact: bool = False) -> Verdict:
    kind, variables, arrays, hidden = exported(model)
    return check_arrays(kind, variables, arrays, proof, hidden=hidden, exact=exact, budget=budget)


def _proof_of(given: Any, budget: CheckBudget) -> Proof:
    """Return the proof meant by the user; name the mistake for a model file or a result without a proof."""
    if isinstance(given, MapResult):
        given = given.proof
    if given is None:
        raise QueryError("there is no proof to check; map_query(..., proof=True) asks for one")
    if isinstance(given, Proof):
        return given
    if not is_path(given):
        raise QueryError(f"a {type(given).__name__} is no proof; expected result.proof, or the path of its file")
    try:
        return read_within(given, budget)
    except ParseError:
        known = FORMATS.get(suffix_of(given))
        if known is None or not known.is_text or not os.path.isfile(given):
            raise
        text = f"is a model file (.{known.name}: {known.holds}), and no proof; expected what proof.write() wrote"
        raise ParseError(text, given) from None
