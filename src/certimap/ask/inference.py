"""Other inference than MAP: marginals, the probability of evidence, samples, likelihoods of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np

from certimap.ask.conflicts import SUMMED, cheapest_query, with_conflict
from certimap.ask.conflicts import conflict as contradiction
from certimap.ask.session import Session, joined, settled
from certimap.core.arguments import check_whole, flag_checked, is_missing, keywords_hinted, seed_checked, shown
from certimap.core.arrays import Array, Floats
from certimap.core.box import Boxes
from certimap.core.control import Limits
from certimap.core.domain import Categorical, Domain, Label
from certimap.core.model import Model
from certimap.core.named import needed
from certimap.core.posterior import Draws, Masses, Posterior
from certimap.core.query import Evidence, Query, items_of, make_query, names_of
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, TooLarge
from certimap.interop import as_model
from certimap.solvers.registry import made
from certimap.solvers.request import Budget, Request

BYTES_PER_CELL = 16  # of a table of draws: positions, and labels

if TYPE_CHECKING:
    from certimap.networks.sum_elimination import EvidenceBounds


@keywords_hinted()
def marginals(
    model: Any,
    variables: Sequence[str] | str | None = None,
    evidence: Any = None,
    *,
    workers: int | None = None,
    virtual_evidence: Any = None,
    time_limit: float | None = None,
    max_memory: int | None = None,
) -> dict[str, dict[Label, float]]:
    """Return the marginals P(variable = label | evidence) of several variables at once.

    - `model`: a circuit, a network or a learned model; a model from another library is converted first (see
      `certimap.from_object`).
    - `variables`: names; None: every categorical variable without hard evidence.
    - `evidence`: as for `map_query`.
    - `workers`: threads; None uses every core.
    - `virtual_evidence`: as for `map_query`: tables of pgmpy over single variables, which join `evidence` as
      likelihoods.
    - `time_limit`: seconds; TimeUp is raised if they do not suffice.
    - `max_memory`: bytes; None: the machine's default limit. A network whose tables do not fit together is summed
      in pieces.

    The probabilities of each variable's labels add up to 1; exact up to rounding. Cost: conditioning, and one
    upward and one downward pass. Raises QueryError for an unknown name, or a real variable (it has a density, not
    a table), ImpossibleEvidence when p(e) = 0, and ModelError when the model does not fit its limits.
    """
    model, limits = as_model(model), limits_of(workers, time_limit, max_memory)
    evidence, domain = settled(model, joined(evidence, virtual_evidence), limits), model.domain
    everything = make_query(domain, None, evidence)
    names = _asked(domain, variables, everything.observed | {domain.index(name) for name in model.hidden})
    known = {name: _observed(domain, name, everything.log_weights) for name in names}
    open_names = [name for name, state in known.items() if state is None]
    found: dict[str, Floats] = {}
    if not open_names:
        _log_evidence(model, evidence, limits)  # refuses impossible evidence
    else:
        posterior = summed(model, open_names, evidence, limits)
        if not isinstance(posterior, Masses):
            raise QueryError(
                f"the marginals of this {type(model).__name__} are out of reach: it is too wide to sum exactly"
            )
        each = posterior.log_mass_each(Boxes.full(posterior.domain))[0]
        for logs, name in zip(np.split(each, posterior.domain.offsets[1:-1]), posterior.domain.names, strict=True):
            row = np.exp(logs - logs.max())
            found[name] = row / row.sum()
    for name, state in known.items():
        if state is not None:
            found[name] = np.eye(domain[name].n_states)[state]
    chosen = [v for v in map(domain.__getitem__, names) if isinstance(v, Categorical)]  # all of them
    return {v.name: dict(zip(v.states, found[v.name].tolist(), strict=True)) for v in chosen}


def limits_of(workers: int | None, time_limit: float | None, max_memory: int | None) -> Limits:
    """Return the limits of a sum; refuse limits that are not numbers of at least 0."""
    request = Request.of(workers=workers, time_limit=time_limit, max_memory=max_memory).raising("max_memory")
    return replace(request.limits, control=request.budget.start())


def summed(model: Model, variables: Any, evidence: Any, limits: Limits) -> Posterior:
    """Condition a model in an exactly summing representation; one that streams if no other fits."""
    session = Session(model, Request(made(SUMMED), limits=limits))
    try:
        return session.conditioned_on(variables, evidence)
    except TooLarge:
        session.wants = (Draws, Masses)
        return session.conditioned_on(variables, evidence)


@keywords_hinted()
def log_evidence(
    model: Any,
    evidence: Any = None,
    *,
    workers: int | None = None,
    virtual_evidence: Any = None,
    time_limit: float | None = None,
    max_memory: int | None = None,
) -> float:
    """Return ln p(evidence) in nats; a log density if real variables are observed.

    For a Markov network it is the log of the unnormalised sum, so that a difference of two such values is the log
    of a conditional probability. `model`, `evidence`, `workers`, `virtual_evidence`, `time_limit`, `max_memory`
    and the exceptions are as in `marginals`. Likelihoods weight the sum: the result is the log of their mean under
    p.
    """
    model, limits = as_model(model), limits_of(workers, time_limit, max_memory)
    return _log_evidence(model, settled(model, joined(evidence, virtual_evidence), limits), limits)


def _log_evidence(model: Any, evidence: Any, limits: Limits) -> float:
    from certimap.networks.network import Network

    query = make_query(model.domain, None, evidence)
    log_mass = _log_mass(model, query) if query.intervals else None
    if log_mass is not None:
        return log_mass
    if isinstance(model, Network) and type(model).condition is Model.condition:
        from certimap.networks.sum_elimination import log_evidence_of

        try:
            return log_evidence_of(model, query, limits.control)
        except ImpossibleEvidence as error:
            raise with_conflict(error, model, evidence, limits) from None
        except TooLarge as error:
            raise TooLarge(f"{error}; log_evidence_bounds() gives two sides of ln p(e)") from None
    asked = cheapest_query(model, evidence).query_domain.names
    found = summed(model, list(asked) or None, evidence, limits).facts.log_evidence
    if found is None:
        raise QueryError(f"ln p(e) of this {type(model).__name__} is out of reach: it is too wide to sum exactly")
    return found


def _log_mass(model: Any, query: Query) -> float | None:
    """Return ln p(e) of intervals under a Gaussian density; None for models where any query gives it."""
    from certimap.densities.conditioned import log_evidence_of
    from certimap.densities.gaussian_mixture import GaussianMixture
    from certimap.densities.linear_gaussian import LinearGaussianNetwork

    try:
        if isinstance(model, GaussianMixture):
            return log_evidence_of(model, query)
        if isinstance(model, LinearGaussianNetwork):
            return model.components(replace(query, variables=np.zeros(0, np.int64))).log_evidence
        return None
    except TooLarge:
        raise
    except ModelError:
        names = ", ".join(repr(query.domain.names[i]) for i in sorted(query.intervals))
        raise QueryError(
            f"ln p(e) has no closed form: the evidence has intervals of {names}, some of which depend on each "
            "other; give values for all but one of them"
        ) from None


@dataclass(frozen=True)
class Conflict:
    """How much the observations e_i of some evidence e contradict each other; all logs in nats.

    - `observations`: a smallest part of the evidence with probability 0 by itself; empty for possible evidence.
    - `is_minimal`, `is_smallest`: False if time ran out, or 500 sums, before it was clear that no one of the
      observations can be left out, and that no part with fewer observations has probability 0.
    - `score`: ln p(e) - sum of ln p(e_i): below 0 where the observations are rarer together than independent ones
      would be (Jensen et al. 1990, with the other sign); -inf for impossible evidence.
    - `contributions`: ln p(e_i | the others) - ln p(e_i) by name, the observation that contradicts the others most
      first; empty for impossible evidence.
    """

    observations: Evidence
    is_minimal: bool
    is_smallest: bool
    score: float
    contributions: Mapping[str, float]

    def to_frame(self) -> Any:
        """Return the contributions as a pandas DataFrame with the columns `variable` and `contribution`."""
        pandas = needed("pandas", "a frame of contributions needs pandas: pip install certimap[pandas]")
        return pandas.DataFrame(list(self.contributions.items()), columns=["variable", "contribution"])


@keywords_hinted()
def conflict(
    model: Any,
    evidence: Any,
    *,
    workers: int | None = None,
    time_limit: float | None = None,
    max_memory: int | None = None,
) -> Conflict:
    """Return which observations have probability 0 together, or else which of them contradict the others most.

    `model`, `evidence`, `workers`, `time_limit`, `max_memory` and the exceptions are as in `marginals`, but
    impossible evidence raises none. Cost: two sums per observation; if impossible, about k ln n sums for k of n,
    and some times as many to prove that no set is smaller.
    """
    model, limits = as_model(model), limits_of(workers, time_limit, max_memory)
    found = contradiction(model, evidence, limits.control)
    if found is not None:
        return Conflict(*found, -math.inf, {})
    given = {name: x for name, x in items_of(settled(model, evidence, limits)) if not is_missing(x)}
    total = _log_evidence(model, {}, limits)
    whole = _log_evidence(model, given, limits) - total
    alone = {name: _log_evidence(model, {name: x}, limits) - total for name, x in given.items()}
    rest = {name: _log_evidence(model, {n: x for n, x in given.items() if n != name}, limits) for name in given}
    swings = {name: whole - (rest[name] - total) - alone[name] for name in given}
    score = whole - math.fsum(alone.values())
    return Conflict({}, True, True, score, dict(sorted(swings.items(), key=lambda s: s[1])))


@keywords_hinted()
def log_evidence_bounds(
    model: Any, evidence: Any = None, *, i_bound: int = 10, iterations: int = 30, time_limit: float | None = None
) -> EvidenceBounds:
    """Return (lower, upper) bounds on ln p(evidence) in nats for a network of any width; equal if it is summed.

    `model` is a network, `evidence` as in `marginals`; p(e) is the unnormalised sum of a Markov network. A message
    of the relaxation for the upper bound has at most `i_bound` variables; more is tighter and slower. `iterations`
    steps tighten it, and none starts after `time_limit` seconds. Raises QueryError for a model that is not a
    network, or settings out of range, and ImpossibleEvidence when the evidence is found to have probability 0.
    """
    from certimap.networks.network import Network
    from certimap.networks.problem import problem_of
    from certimap.networks.sum_elimination import log_partition

    model = as_model(model)
    if not isinstance(model, Network):
        raise QueryError(
            f"log_evidence_bounds() is of networks, and a {type(model).__name__} is none; log_evidence() gives "
            "its ln p(e) where that has a closed form"
        )
    i_bound = check_whole("i_bound", i_bound, "a whole number from 1", QueryError, low=1)
    iterations = check_whole("iterations", iterations, "a whole number from 0", QueryError)
    control = Budget(time_limit).start()
    evidence = settled(model, evidence, Limits(control=control))
    try:
        problem = problem_of(model, make_query(model.domain, None, evidence)).problem
    except ImpossibleEvidence as error:
        raise with_conflict(error, model, evidence, Limits()) from None
    return log_partition(problem, i_bound=i_bound, iterations=iterations, control=control)


class _Drawing(TypedDict, total=False):
    """Settings of `sample`; see there."""

    rng: int | np.random.Generator | None
    workers: int | None
    time_limit: float | None
    max_memory: int | None


@overload
def sample(
    model: Any,
    n: int,
    evidence: Any = None,
    variables: Sequence[str] | str | None = None,
    *,
    as_frame: Literal[False] = False,
    **settings: Unpack[_Drawing],
) -> dict[str, Array]: ...
@overload
def sample(
    model: Any,
    n: int,
    evidence: Any = None,
    variables: Sequence[str] | str | None = None,
    *,
    as_frame: bool,
    **settings: Unpack[_Drawing],
) -> Any: ...
@keywords_hinted()
def sample(
    model: Any,
    n: int,
    evidence: Any = None,
    variables: Sequence[str] | str | None = None,
    *,
    rng: int | np.random.Generator | None = None,
    as_frame: bool = False,
    workers: int | None = None,
    time_limit: float | None = None,
    max_memory: int | None = None,
) -> Any:
    """Return `n` independent assignments drawn from p(variables | evidence), all other variables summed out.

    `model`, `evidence`, `workers`, `time_limit` and `max_memory` are as in `marginals`. `variables` are names;
    None: all variables without hard evidence. `rng` is a seed or a generator; the same seed gives the same rows
    for any number of workers. Returns a dictionary from names to arrays of labels (numbers of a real variable),
    shape (n,) each, or with `as_frame` a pandas DataFrame of them.
    """
    n = check_whole("n", n, "a whole number of samples from 0", QueryError)
    seed_checked(rng)
    flag_checked("as_frame", as_frame)
    model, limits = as_model(model), limits_of(workers, time_limit, max_memory)
    evidence = settled(model, evidence, limits)
    posterior = summed(model, variables, evidence, limits)
    if not isinstance(posterior, Draws):
        cut = [model.domain.names[i] for i in make_query(model.domain, variables, evidence).intervals]
        why = "it is too wide to sum exactly; sample fewer variables"
        if cut:
            why = f"the evidence restricts {', '.join(map(repr, cut))} to intervals; give values instead"
        raise QueryError(f"this {type(model).__name__} cannot be sampled: {why}")
    width = len(posterior.domain)
    limits.control.reserve(BYTES_PER_CELL * n * width, f"the table of n={shown(n)} rows of {width} variables")
    points = posterior.sample(n, np.random.default_rng(rng))
    from certimap.learn.table import decode

    columns = decode(points, posterior.domain)
    if not as_frame:
        return columns
    pandas = needed("pandas", "a frame of samples needs pandas: pip install certimap[pandas]")
    return pandas.DataFrame(columns)


def log_likelihood(model: Any, rows: Any) -> Floats:
    """Return the log likelihood of each row of a table in nats, shape (n_rows,), missing cells summed out.

    `model` is as in `marginals`. `rows` are a frame whose columns are variables, a dictionary of columns, or an
    array with one column per variable; None and NaN are missing, and a row without any known cell scores 0. Raises
    DataError for a missing column, or a value that is not a state of its variable.
    """
    from certimap.learn.estimator import score_samples

    return score_samples(as_model(model), rows)


def _asked(domain: Domain, variables: Sequence[str] | str | None, observed: frozenset[int]) -> list[str]:
    """Return the names of the requested marginals; refuse named real variables."""
    if variables is None:
        return [v.name for i, v in enumerate(domain) if v.n_states and i not in observed]
    names = names_of(variables)
    for name in names:
        if not domain[name].n_states:
            raise QueryError(
                f"variable {name!r} is real and has no table of probabilities; categorical variables are expected"
            )
    return list(dict.fromkeys(names))


def _observed(domain: Domain, name: str, log_weights: Floats) -> int | None:
    """Return the only state that the evidence allows, or None."""
    i = domain.index(name)
    left = np.flatnonzero(log_weights[domain.offsets[i] : domain.offsets[i + 1]] > -np.inf)
    return int(left[0]) if len(left) == 1 else None
