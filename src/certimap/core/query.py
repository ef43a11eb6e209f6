"""Turning a user's query and evidence into positions, weights and values."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real as RealNumber
from typing import TYPE_CHECKING, Any

import numpy as np

from certimap.core.arguments import Record, is_iterable, is_mapping, is_missing, is_sequence, is_set, shown
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Categorical, Domain, Label, Real, as_real
from certimap.errors import CertimapError, ImpossibleEvidence, QueryError

if TYPE_CHECKING:
    from certimap.core.constraints import Constraint
    from certimap.core.rules import Rules

Evidence = Mapping[str, Any]  # by name, in the forms that `make_query` accepts
LARGEST = float(np.finfo(np.float64).max)
_FORMS = ("states", "likelihood", "log_likelihood", "probability")


@dataclass(frozen=True, eq=False)
class Query:
    """A MAP query over a model's domain, in positions.

    - `domain`: the model's domain.
    - `variables`: int64: positions of the query variables, in the user's order.
    - `log_weights`: float64, shape (total_states,): natural-log evidence weight of every state: 0 without
      evidence, -inf for excluded states, ln of the likelihood for soft evidence.
    - `values`: observed real variables, position to value (they contribute a density).
    - `intervals`: real variables restricted to an interval, position to (low, high).
    - `observed`: positions with hard evidence (one state, or one real value).
    - `rules`: constraints on the query variables; None without any.
    """

    domain: Domain
    variables: Ints
    log_weights: Floats
    values: Mapping[int, float]
    intervals: Mapping[int, tuple[float, float]]
    observed: frozenset[int]
    rules: Rules | None = None

    @property
    def key(self) -> Hashable:
        """A hashable key; equal queries over one domain have equal keys."""
        real = (tuple(sorted(self.values.items())), tuple(sorted(self.intervals.items())))
        rules = None if self.rules is None else self.rules.constraints
        return (self.variables.tobytes(), self.log_weights.tobytes(), self.observed, real, rules)

    @property
    def query_domain(self) -> Domain:
        """The domain of the query variables, in the user's order."""
        return self.domain.subset(int(i) for i in self.variables)

    @property
    def nuisance(self) -> list[int]:
        """Positions that are neither queried nor observed."""
        queried = {int(i) for i in self.variables}
        return [i for i in range(len(self.domain)) if i not in queried and i not in self.observed]


def make_query(
    domain: Domain,
    variables: Sequence[str] | str | None = None,
    evidence: Any = None,
    *,
    hidden: Collection[str] = (),
    constraints: Sequence[Constraint] = (),
) -> Query:
    """Check a query against a domain.

    `domain`: the model's variables. `variables`: names of the query variables; None means all variables without
    hard evidence and not `hidden` (see `Model.hidden`), possibly none. `constraints`: on query variables and
    observed ones. `evidence`: a mapping or a pandas Series from names to values. For a real variable a value is a
    number, or (low, high) for an interval. For a categorical variable a value is

    - a label: hard evidence; None and NaN mean unobserved;
    - a set of labels, `{"states": [...]}`, or a list that names states: the state is one of them;
    - `{"likelihood": [...]}` with one weight p(observation | state) per state, or a bare list of weights that are
      not all states, or a mapping from labels to weights (0 for a missing label);
    - `{"log_likelihood": ...}`: natural logs of weights, as a list or a mapping (-inf for a missing label).

    `{"probability": ...}` takes a model, as `map_query` has, and is refused here. So is a list that could be
    either states or weights. Raises QueryError for an unknown name or state, a query variable with hard evidence,
    an empty query, weights that are negative, not finite, or all zero, and for a constraint on a variable that is
    neither queried nor observed; NoAnswer for a constraint that no assignment satisfies; ImpossibleEvidence for a
    state that `do` excludes.
    """
    log_weights = np.zeros(domain.total_states)
    values: dict[int, float] = {}
    intervals: dict[int, tuple[float, float]] = {}
    observed: set[int] = set()
    labelled: dict[int, int] = {}  # states observed by label, set together at the end
    for name, value in items_of(evidence):
        i = domain.index(name)
        if is_missing(value):
            continue
        variable = domain.variables[i]
        if isinstance(variable, Real):
            if is_sequence(value):
                intervals[i] = _interval(variable, value)
            else:
                values[i] = as_real(variable, value)
                observed.add(i)
            continue
        if isinstance(value, str | int):
            labelled[i] = variable.index(value)
            continue
        labelled.pop(i, None)
        weights, hard = _state_weights(variable, value)
        log_weights[domain.offsets[i] : domain.offsets[i + 1]] = weights
        if hard:
            observed.add(i)
    observed.update(labelled)
    _set_labelled(log_weights, domain, labelled)
    for name, label in domain.interventions.items():
        if name not in domain or not isinstance(variable := domain[name], Categorical):  # a real one is cut out
            continue
        if log_weights[domain.offsets[domain.index(name)] + variable.index(label)] == -math.inf:
            given = shown(dict(items_of(evidence))[name])
            raise ImpossibleEvidence(f"the evidence {given} on variable {name!r} contradicts {domain.done}")
    positions = _query_positions(domain, variables, observed, hidden)
    query = Query(domain, positions, log_weights, values, intervals, frozenset(observed))
    return _under(query, constraints) if constraints else query


def _under(query: Query, constraints: Sequence[Constraint]) -> Query:
    """Return a query under constraints; labels of observed variables are checked here."""
    from certimap.core.rules import Rules, categorical

    known: list[Categorical] = []
    for name in dict.fromkeys(name for constraint in constraints for name in constraint.order):
        variable, i = categorical(query.domain, name), query.domain.index(name)
        if i in query.observed:
            weights = query.log_weights[query.domain.offsets[i] : query.domain.offsets[i + 1]]
            known.append(Categorical(name, (variable.states[int(np.argmax(weights))],)))
    for constraint in constraints:
        for name, label in constraint.labels:
            categorical(query.domain, name).index(label)
    offsets, variables = query.domain.offsets, query.variables
    own = [query.log_weights[offsets[i] : offsets[i + 1]] > -math.inf for i in variables]
    rules = Rules.of(query.query_domain, constraints, known, np.concatenate([np.empty(0, np.bool_), *own]))
    return replace(query, rules=rules)


def names_of(variables: Any, what: str = "the query", error: type[CertimapError] = QueryError) -> list[Any]:
    """Return names of variables as a list, a single name as a list of one; raise `error` for anything else."""
    if isinstance(variables, str):
        return [variables]
    if is_iterable(variables):
        return list(variables)
    raise error(f"{what} is {variables!r}; expected a name, or a list of names, of variables")


def _set_labelled(log_weights: Floats, domain: Domain, states: Mapping[int, int]) -> None:
    """Allow only the given state of each variable in `states`, in place."""
    variables = np.fromiter(states, np.int64, len(states))
    is_labelled = np.zeros(len(domain), np.bool_)
    is_labelled[variables] = True
    log_weights[np.repeat(is_labelled, domain.n_states)] = -math.inf
    log_weights[domain.offsets[variables] + np.fromiter(states.values(), np.int64, len(states))] = 0.0


def check_names(domain: Domain, variables: Sequence[str] | str | None, observed: Iterable[Any]) -> None:
    """Raise QueryError if a query variable or an evidence column is unknown, before any row is read."""
    if variables is not None:
        _query_positions(domain, variables, set())
    for name in observed:
        domain.index(name)


def items_of(evidence: Any) -> Iterable[tuple[Any, Any]]:
    """Return the names and values of evidence; raises QueryError unless it is a mapping or Series."""
    if evidence is None:
        return ()
    if is_mapping(evidence):
        return evidence.items()
    if hasattr(evidence, "columns"):
        raise QueryError(f"a {type(evidence).__name__} was given as evidence; only map_query takes rows")
    if hasattr(evidence, "items") and hasattr(evidence, "index"):
        refuse_doubled(list(evidence.index), "the evidence has two values")
        return evidence.items()
    raise QueryError(
        f"evidence of type {type(evidence).__name__} was given; expected a mapping from names to values or a "
        "pandas Series"
    )


def refuse_doubled(names: Sequence[Any], what: str, error: type[CertimapError] = QueryError) -> None:
    """Raise `error` for names that are equal as text: one would hide another unnoticed."""
    texts = [str(name) for name in names]
    if len(set(texts)) < len(texts):
        doubled = next(name for name, text in zip(names, texts, strict=True) if texts.count(text) > 1)
        raise error(f"{what} named {doubled!r}; expected one of each name")


def _interval(variable: Real, value: Sequence[Any]) -> tuple[float, float]:
    if len(value) == 2 and all(_is_number(x) for x in value):
        low, high = (_as_float(x) for x in value)
        low, high = max(low, variable.low), min(high, variable.high)
        if low < high:
            return low, high
    raise QueryError(
        f"the interval {value!r} of variable {variable.name!r} is empty or no pair; "
        f"expected (low, high) with low < high inside [{variable.low}, {variable.high}]"
    )


def _state_weights(variable: Categorical, value: Any) -> tuple[Floats, bool]:
    """Return the log weight of each state, and whether the evidence is hard."""
    if isinstance(value, np.ndarray):
        return _state_weights(variable, value.tolist())
    if is_set(value):
        return _of_states(variable, value), False
    form = explicit_form(value)
    if form is not None:
        if form == "states":
            return _of_states(variable, list(value[form])), False
        if form == "probability":
            raise QueryError(
                f"the probability of {variable.name!r} takes a model; expected a likelihood without one"
            )
        return _of_likelihood(variable, value[form], form), False
    if isinstance(value, Mapping):
        return _of_likelihood(variable, value), False
    if is_sequence(value) and (isinstance(value, list) or not _is_state(variable, value)):
        return _of_sequence(variable, list(value)), False
    weights = np.full(variable.n_states, -math.inf)
    weights[variable.index(value)] = 0.0
    return weights, True


def stated(domain: Domain, evidence: Any) -> dict[str, Floats]:
    """Return the probability of each state of the variables with evidence {"probability": ...}, by name."""
    found: dict[str, Floats] = {}
    for name, value in items_of(evidence):
        if explicit_form(value) != "probability" or not isinstance(variable := domain[name], Categorical):
            continue
        given = np.exp(_of_likelihood(variable, value["probability"], "probability"))
        if not abs(total := float(given.sum()) - 1.0) <= 1e-6:
            raise QueryError(f"the probabilities of variable {name!r} add up to {total + 1.0:.9g}; expected 1")
        found[name] = given / given.sum()
    return found


def interventions_of(domain: Domain, states: Any, more: Mapping[str, Label]) -> Record:
    """Return the label or finite number, by name, that `do(states, **more)` sets; raise QueryError for another."""
    found: Record = {}
    for name, value in [*items_of(states), *more.items()]:
        if name in found:
            raise QueryError(f"do() sets variable {name!r} twice; expected once")
        if isinstance(variable := domain[name], Real):
            found[name] = as_real(Real(name, -LARGEST, LARGEST), value)
        else:
            found[name] = variable.states[variable.index(value)]
    return found


def explicit_form(value: Any) -> str | None:
    """Return the key of {"states": [...]}, {"likelihood": ...} and their kind (`_FORMS`), else None."""
    # the content must be a container, unlike a single weight, so that a state may have such a name too
    if is_mapping(value) and len(value) == 1:
        name, content = next(iter(value.items()))
        if name in _FORMS and isinstance(content, list | tuple | set | frozenset | Mapping | np.ndarray):
            return name
    return None


def _of_states(variable: Categorical, labels: Iterable[Label]) -> Floats:
    """Return log weights: 0 for the given states, -inf for the others."""
    weights = np.full(variable.n_states, -math.inf)
    for label in labels:
        weights[variable.index(label)] = 0.0
    if not np.any(weights == 0.0):
        raise QueryError(f"the evidence on variable {variable.name!r} names no state; one at least is needed")
    return weights


def _of_sequence(variable: Categorical, items: list[Any]) -> Floats:
    """Read a bare list as states or as one likelihood per state; refuse a list that could be both."""
    are_states = bool(items) and all(_is_state(variable, item) for item in items)
    are_weights = len(items) == variable.n_states and all(_is_number(item) for item in items)
    if are_states and are_weights:
        raise QueryError(
            f"{items!r} for variable {variable.name!r} may be states or likelihoods; "
            f"give {{'states': {items!r}}} or {{'likelihood': {items!r}}}"
        )
    if are_weights:
        return _of_likelihood(variable, items)
    if are_states or any(isinstance(item, str) for item in items):
        return _of_states(variable, items)
    raise QueryError(
        f"{items!r} for variable {variable.name!r} is neither a list of its states nor one likelihood for each of "
        f"its {variable.n_states} states"
    )


def _is_state(variable: Categorical, value: Any) -> bool:
    try:
        return value in variable
    except TypeError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, RealNumber | np.number) and not isinstance(value, bool | np.bool_)


def _as_float(value: Any) -> float:
    """Return a number as a float, possibly infinite; NaN if it is not a number."""
    if not _is_number(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _of_likelihood(variable: Categorical, content: Any, form: str = "likelihood") -> Floats:
    """Return log weights of all states from weights in order or by label; a missing label has weight 0."""
    name, in_logs = form.replace("_", " "), form == "log_likelihood"
    weights = np.full(variable.n_states, -math.inf if in_logs else 0.0)
    if is_mapping(content):
        places, items = [variable.index(label) for label in content], list(content.values())
    else:
        places, items = list(range(variable.n_states)), list(content)
    if len(items) != len(places):
        raise QueryError(
            f"the {name} of variable {variable.name!r} has {len(items)} numbers; "
            f"expected one for each of its {variable.n_states} states"
        )
    for place, item in zip(places, items, strict=True):
        weight = _as_float(item)
        if math.isnan(weight) or weight == math.inf or (weight < 0 and not in_logs):
            accepted = "numbers below infinity" if in_logs else "finite numbers that are not negative"
            shown = repr(item) if weight < math.inf or not isinstance(item, int) else "a number beyond floats"
            raise QueryError(
                f"the {name} of variable {variable.name!r} has the entry {shown}; expected {accepted}"
            )
        weights[place] = weight
    if not np.any(weights > (-math.inf if in_logs else 0.0)):
        way = "; numbers too small for a float can be given as {'log_likelihood': [...]}"
        raise QueryError(
            f"the {name} of variable {variable.name!r} excludes every state ({items!r}); one must remain"
            f"{way if form == 'likelihood' else ''}"
        )
    if in_logs:
        return weights
    with np.errstate(divide="ignore"):
        return np.log(weights)


def _query_positions(
    domain: Domain, variables: Sequence[str] | str | None, observed: set[int], hidden: Collection[str] = ()
) -> Ints:
    if variables is None:
        left_out = observed | {domain.index(name) for name in hidden}
        return np.array([i for i in range(len(domain)) if i not in left_out], np.int64)
    names = names_of(variables)
    if not names:
        raise QueryError("the query names no variable; at least one is needed")
    positions = [domain.index(name) for name in names]
    for i in positions:
        if i in observed:
            raise QueryError(
                f"variable {domain.names[i]!r} is queried and has evidence; it can be one or the other"
            )
    if len(set(positions)) != len(positions):
        doubled = next(n for n in names if names.count(n) > 1)
        raise QueryError(f"variable {doubled!r} is queried twice; name it once")
    return np.array(positions, np.int64)
