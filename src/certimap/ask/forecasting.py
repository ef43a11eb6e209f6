"""Forecasts a query before a long run: bounds on its best answer's probability, and the cost of draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.certify.bounds import draws_between, min_entropy_bits
from certimap.certify.draw_record import Lipschitz
from certimap.core.arguments import check_number, keywords_hinted, seed_checked
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Label
from certimap.core.posterior import Bounds, Decodes, Draws, Masses, Posterior, Probes
from certimap.core.probing import log_bounds, log_probs_of_neighbours
from certimap.errors import QueryError
from certimap.solvers.baselines.local_search import first_points
from certimap.solvers.registry import choose, make

LN2 = math.log(2.0)
N_DRAWS = 256  # draws from the posterior


@dataclass(frozen=True)
class Forecast:
    """Facts about a query before it is solved; none of them is a certificate.

    - `assignment`: the best assignment found so far, by names and labels.
    - `log_found`: natural log of its probability (density in real variables), a lower bound on ln p*.
    - `log_upper`: natural log of a proved upper bound on p*; if none is known, 0 for a probability, inf for a
      density.
    - `min_entropy_bits`: bounds on -log2 p*: (-log2 of the upper bound, -log2 of the probability found); None for
      densities.
    - `draws`: how many draws `pac` would need for (epsilon, delta): at least the first number (if ln p* is
      `log_upper`), about the second if `assignment` is the best. None if draws certify nothing. For a density, how
      many draws `smooth_pac` would need under the given Lipschitz constant.
    - `no_draws`: why draws certify nothing, and which method to use instead, in words; None if they do.
    - `work`: cost of one evaluation, in edge visits.
    - `log_space`: natural log of the number of assignments; inf with a real variable.
    - `solver`: the solver that `auto` takes.
    """

    assignment: dict[str, Label]
    log_found: float
    log_upper: float
    min_entropy_bits: tuple[float, float] | None
    draws: tuple[float, float] | None
    work: float
    log_space: float
    solver: str
    no_draws: str | None = None


@dataclass(frozen=True)
class LipschitzEstimate:
    """How fast the probability falls off around an assignment: a measurement, not a bound.

    - `bits`: the largest log2(p / p') over possible neighbours that differ in one variable, in bits. If the
      assignment is the mode, the modal Lipschitz constant is at least this; p may fall faster farther off.
    - `median_bits`: the median of log2(p / p').
    - `n_neighbours`, `n_impossible`: the numbers of neighbours, and of those with probability 0; if any is
      impossible, no finite constant holds.
    - `n_better`: the number of neighbours more probable than the assignment; if any is, it is not the mode.
    """

    bits: float
    median_bits: float
    n_neighbours: int
    n_impossible: int
    n_better: int

    @property
    def sentence(self) -> str:
        """The estimate and its limits, in one sentence."""
        if self.n_better:
            return f"{self.n_better} neighbours are more probable: the assignment is not the mode, nothing follows"
        if self.n_impossible:
            return (
                f"{self.n_impossible} of {self.n_neighbours} neighbours have probability 0: no Lipschitz constant "
                "holds with radius 1"
            )
        return (
            f"L is at least {self.bits:.4g} bits per changed variable (median {self.median_bits:.4g}); only "
            f"{self.n_neighbours} neighbours of one assignment were looked at, so this proves no L"
        )


@keywords_hinted()
def forecast(
    posterior: Posterior,
    *,
    epsilon: float = 0.01,
    delta: float = 0.01,
    rng: Any = 0,
    lipschitz: float | None = None,
    radius: float = math.inf,
) -> Forecast:
    """Forecast a query: bounds on the min-entropy, draws that `pac` would need, the solver of `auto`.

    - `posterior`: a conditioned query; see `certimap.condition`.
    - `epsilon`, `delta`: the tolerance and failure probability that draws would have to certify.
    - `rng`: a seed or a numpy Generator, for a few draws.
    - `lipschitz`, `radius`: for a density: assume that its log2 falls by at most `lipschitz` bits per unit of
      Euclidean distance from the mode, within the radius, as for `smooth_pac`.

    Cost: a few heuristics, 256 draws and one bound; linear in the size of the posterior. Raises QueryError for
    epsilon or delta out of range, and SolverError for a Lipschitz constant that is not positive, or over variables
    of both kinds.

    >>> import certimap as cm
    >>> weather = {"rain": ["no", "yes"], "wet": ["no", "yes"]}
    >>> model = cm.BayesianNetwork.from_cpts(
    ...     weather, {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": [[0.9, 0.1], [0.3, 0.7]]}
    ... )
    >>> cm.forecast(cm.condition(model)).assignment
    {'rain': 'no', 'wet': 'no'}
    """
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0.0 <= check_number(name, value, expected := "a number from 0 to below 1", QueryError) < 1.0:
            raise QueryError(f"{name} is {value!r}; expected {expected}")
    seed_checked(rng, QueryError)
    _check_posterior(posterior)
    domain, facts = posterior.domain, posterior.facts
    looked = list(_first_look(posterior, np.random.default_rng(rng)))
    if not looked:
        raise QueryError(f"a {type(posterior).__name__} has no draws to forecast from; map_query answers it")
    points = np.concatenate(looked)
    log_probs = posterior.log_prob(points)
    best = int(np.argmax(log_probs))
    log_found = float(log_probs[best])
    log_upper = 0.0 if facts.has_masses else math.inf
    if isinstance(posterior, Probes | Bounds):
        log_upper = min(log_upper, float(log_bounds(posterior, Boxes.full(domain))[0]))
    log_upper = max(log_upper, log_found)
    entropy = draws = None
    if facts.has_masses:
        entropy = min_entropy_bits(log_upper, log_found)
        if isinstance(posterior, Draws) and delta > 0.0:
            draws = draws_between(log_upper, log_found, epsilon, delta)
    elif facts.is_density and lipschitz is not None and isinstance(posterior, Draws) and delta > 0.0:
        promise = Lipschitz(domain, lipschitz, radius)
        draws = promise.draws_needed(epsilon, delta, log_upper), promise.draws_needed(epsilon, delta, log_found)
    return Forecast(
        domain.decode(points[best]),
        log_found,
        log_upper,
        entropy,
        draws,
        facts.work,
        domain.log_size if domain.is_discrete else math.inf,
        choose(posterior).name,
        None if draws is not None else make("pac").unsuited(posterior),
    )


def estimate_lipschitz(posterior: Posterior, assignment: dict[str, Label]) -> LipschitzEstimate:
    """Measure how fast p(q | e) falls off around an `assignment` of categorical variables, in bits per change.

    The `posterior` is a conditioned query (see `certimap.condition`), and the assignment has a label for each
    query variable. Cost: two passes over the posterior. It proves nothing, because a Lipschitz constant concerns a
    whole ball. Raises QueryError for a real query variable, or an assignment that does not match the query
    variables.
    """
    _check_posterior(posterior)
    domain = posterior.domain
    if not domain.is_discrete:
        raise QueryError("a Lipschitz constant is measured on categorical query variables; one is real")
    point = domain.encode(assignment)[None, :]
    log_probs = log_probs_of_neighbours(posterior, point)[0]
    own = domain.offsets[:-1] + point[0].astype(np.int64)
    falls: Floats = (float(log_probs[own[0]]) - np.delete(log_probs, own)) / LN2
    possible = falls[np.isfinite(falls)]
    return LipschitzEstimate(
        float(np.max(possible, initial=0.0)),
        float(np.median(possible)) if len(possible) else 0.0,
        len(falls),
        int(np.sum(falls == np.inf)),
        int(np.sum(falls < -1e-9)),
    )


def _check_posterior(given: Any) -> None:
    """Raise QueryError unless a posterior is given."""
    if not isinstance(given, Posterior):
        raise QueryError(f"a {type(given).__name__} is no posterior; cm.condition(model, ...) makes one")


def _first_look(posterior: Posterior, rng: np.random.Generator) -> Iterator[Points]:
    """Yield points that are worth scoring."""
    if isinstance(posterior, Decodes):
        yield posterior.modes()
        yield posterior.max_product()
    elif isinstance(posterior, Masses) and posterior.domain.is_discrete:
        from certimap.solvers.baselines.decoding import modes_of

        yield modes_of(posterior)
    if isinstance(posterior, Draws) or posterior.domain.is_discrete:
        yield first_points(posterior, N_DRAWS, rng)
