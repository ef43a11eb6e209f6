"""Which observation to make next: what each one is expected to tell about a query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from certimap.ask.inference import limits_of, summed
from certimap.ask.session import Session, settled
from certimap.core.arguments import check_number, keywords_hinted
from certimap.core.arrays import Floats
from certimap.core.box import Points
from certimap.core.cached import cached_property
from certimap.core.control import Limits, TimeUp
from certimap.core.domain import Categorical, Label
from certimap.core.model import Model
from certimap.core.named import needed
from certimap.core.posterior import Posterior, TwoSided
from certimap.core.query import Evidence, items_of, make_query, names_of
from certimap.core.result import MapResult
from certimap.core.summary import aligned
from certimap.errors import QueryError, TooLarge
from certimap.interop import as_model
from certimap.networks.network import Network
from certimap.solvers.exhaustive import listed
from certimap.solvers.request import Request

LISTED = math.log(2**16) + 1e-9  # ln of joint states: up to here a table of all of them is made
CLOSE = 1e-8  # nats; values closer than this count as equal
_OUT = (TooLarge, TimeUp)


@dataclass(frozen=True)
class Gain:
    """What observing one variable is expected to bring; both sides of a value are equal where it is exact.

    - `information`, `information_at_most`: of the variable about all query variables together: the expected fall
      of their entropy, in nats.
    - `change`, `change_at_most`: the probability that the best answer is another one than now when the variable is
      observed.
    - `cost`: as given, or None.
    """

    information: float
    information_at_most: float
    change: float
    change_at_most: float
    cost: float | None = None


class NextTest(dict[str, Gain]):
    """The gain of observing each variable: most `information` first, per cost where costs are given."""

    def to_frame(self) -> Any:
        """Return a pandas DataFrame: a row per variable, a column per field of `Gain`."""
        pd = needed("pandas", "a data frame needs pandas; pip install 'certimap[pandas]'")
        return pd.DataFrame([asdict(gain) for gain in self.values()], index=list(self))

    def __repr__(self) -> str:
        rows = [("variable", "information (nats)", "P(answer changes)", "cost")]
        for name, g in self.items():
            sides = (g.information, g.information_at_most), (g.change, g.change_at_most)
            told = [f"{a:.6f}" if a == b else f"{a:.6f} to {b:.6f}" for a, b in sides]
            rows.append((name, told[0], told[1], "" if g.cost is None else f"{g.cost:g}"))
        return "\n".join(aligned(rows))


@keywords_hinted()
def next_test(
    model: Any, query: Sequence[str] | str, candidates: Sequence[str] | str | None = None, evidence: Any = None, *,
    costs: Mapping[str, float] | None = None, workers: int | None = None, time_limit: float | None = None,
    max_memory: int | None = None,
) -> NextTest:  # fmt: skip
    """Return the `Gain` of observing each candidate, the most information about the query (per cost) first.

    `query` and `candidates` are names of categorical variables: of what is of interest, taken together, and of
    what may be observed (None: all that is neither queried nor observed). `costs` has a positive number for each
    candidate. `model`, `evidence`, `workers` and `max_memory` are as in `marginals`. What is not exact after
    `time_limit` seconds in all lies between two sides. Raises QueryError for a candidate that is unknown, real,
    queried or observed, for a real query variable and for a cost that is missing or not positive; and
    ImpossibleEvidence.

    Up to 65,536 joint states of query and candidate are listed. Beyond, entropies come from a tree of tables, and
    changes from an exact answer for each state. Where no tree fits, information lies between that about a part of
    the query and the candidate's entropy, and changes count as far as bounds decide them.
    """
    source, limits, names = as_model(model), limits_of(workers, time_limit, max_memory), list[str](names_of(query))
    given = dict(items_of(settled(source, evidence, limits)))
    tests, accepted = _candidates(source, names, candidates, given), "a positive number for each candidate"
    listed_costs = {source.domain[name].name: price for name, price in items_of(costs)}
    prices = {name: listed_costs.get(name) for name in tests if costs is not None}
    for name, price in prices.items():
        if not 0.0 < check_number(f"the cost of {name!r}", price, accepted, QueryError) < math.inf:
            raise QueryError(f"the cost of {name!r} is {price}; expected {accepted}")
    expected = _Expected(source, names, given, limits)
    gains = {name: Gain(*expected.information(name), *expected.change(name), prices.get(name)) for name in tests}
    return NextTest(sorted(gains.items(), key=lambda item: -item[1].information / (item[1].cost or 1.0)))


def _candidates(model: Model, names: list[str], candidates: Any, evidence: Evidence) -> list[str]:
    """Return the names of the candidates; refuse what cannot be one, and a real query variable."""
    domain, asked = model.domain, make_query(model.domain, names, evidence)
    taken = asked.observed | set(asked.variables.tolist())
    free = [v.name for i, v in enumerate(domain) if v.n_states and i not in taken and v.name not in model.hidden]
    found = free if candidates is None else list(dict.fromkeys(names_of(candidates, "the list of candidates")))
    for name in (*names, *found):
        if not domain[name].n_states:
            raise QueryError(f"variable {name!r} is real; expected categorical variables")
        if domain.index(name) in taken and name in found:
            what = "queried" if name in names else "observed"
            raise QueryError(f"candidate {name!r} is {what} already; expected a variable that is neither")
    return found


@dataclass
class _Expected:
    """Expectations about a query, by candidate; entropies are kept by the names of their variables."""

    model: Model
    names: list[str]
    evidence: Evidence
    limits: Limits
    known: dict[tuple[str, ...], float] = field(default_factory=dict[tuple[str, ...], float])

    def table(self, *names: str) -> Floats | None:
        """Return p(names | e) of all joint states, the last name varying fastest; None if they are too many."""
        if sum(math.log(self.model.domain[name].n_states) for name in names) > LISTED:
            return None
        posterior = summed(self.model, names, self.evidence, self.limits)
        logs = posterior.log_prob(listed(posterior.domain, 0, math.prod(posterior.domain.n_states.tolist())))
        return np.exp(logs - np.logaddexp.reduce(logs))

    def entropy(self, *names: str) -> float:
        """Return H(names | e) in nats; raises TooLarge where no table and no tree of them alone fits."""
        if names not in self.known:
            p, query = self.table(*names), make_query(self.model.domain, names, self.evidence)
            if p is not None:
                self.known[names] = -float(np.sum(p * np.log(np.where(p > 0.0, p, 1.0))))
            elif isinstance(self.model, Network):
                from certimap.conversions.from_networks import visible_tree  # loads numba

                self.known[names] = visible_tree(self.model, query, self.limits).region_tree.entropy()
            else:
                raise TooLarge(f"{len(names)} variables have too many joint states to list")
        return self.known[names]

    def information(self, test: str) -> tuple[float, float]:
        """Return both sides of I(query; test | e)."""
        try:
            most = self.entropy(test)
        except _OUT:
            return 0.0, math.log(self.model.domain[test].n_states)
        low, is_exact = self.shared(self.names, test)
        return min(low, most), min(low, most) if is_exact else most

    def shared(self, names: Sequence[str], test: str) -> tuple[float, bool]:
        """Return I(names; test | e) and True, or False with that of a part, which is at most as large."""
        try:
            return max(0.0, self.entropy(*names) + self.entropy(test) - self.entropy(*names, test)), True
        except _OUT:
            parts = (names[: len(names) // 2], names[len(names) // 2 :]) if len(names) > 1 else ()
            return max((self.shared(part, test)[0] for part in parts), default=0.0), False

    def change(self, test: str) -> tuple[float, float]:
        """Return both sides of the probability that the answer changes."""
        variable = self.model.domain[test]
        assert isinstance(variable, Categorical)
        try:
            weights, joint = self.table(test), self.table(*self.names, test)
            if weights is None:
                return 0.0, 1.0
            if joint is not None:
                joint = joint.reshape(-1, len(weights))
                now = joint[int(np.argmax(joint.sum(axis=1)))]
                changes = [bool(c) for c in joint.max(axis=0) > now * (1.0 + CLOSE)]
            else:
                pairs = zip(weights.tolist(), variable.states, strict=True)
                changes = [weight > 0.0 and self.differs({test: state}) for weight, state in pairs]
        except _OUT:
            return 0.0, 1.0
        low, more = (math.fsum(weights[[c is told for c in changes]]) for told in (True, None))
        return min(low, 1.0), min(low + more, 1.0)

    def differs(self, more: Mapping[str, Label]) -> bool | None:
        """Whether more evidence makes another assignment more probable than the answer now; None: unknown."""
        now, (posterior, found) = self.now, self.answered(more)
        low = high = float(posterior.log_prob(now)[0])
        if isinstance(posterior, TwoSided):
            high = float(posterior.log_prob_interval(now).upper[0])
        best, most = found.log_prob, found.log_upper_bound
        if not posterior.facts.is_normalised:
            best, most = found.log_joint, found.log_joint_upper_bound
        if best is not None and best > high + CLOSE:
            return True
        return False if most is not None and most <= low + CLOSE else None

    @cached_property
    def now(self) -> Points:
        """The answer now, shape (1, n)."""
        posterior, found = self.answered({})
        return posterior.domain.encode(found.assignment)[None]

    def answered(self, more: Mapping[str, Label]) -> tuple[Posterior, MapResult]:
        """Return the posterior of the query given more evidence, and its answer."""
        session = Session(self.model, Request(epsilon=0.0, delta=0.0, limits=self.limits))
        posterior = session.conditioned_on(self.names, {**self.evidence, **more})
        return posterior, session.run(posterior, self.limits.control, 0, False)
