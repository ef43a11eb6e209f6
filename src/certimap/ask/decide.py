"""Doors to decisions: the best policy of an influence diagram, and the worth of seeing more, between two sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from certimap.core.arguments import check_number, keywords_hinted
from certimap.core.control import Control
from certimap.core.query import items_of, names_of
from certimap.core.result import Status
from certimap.core.summary import aligned
from certimap.decisions.network import DecisionNetwork
from certimap.decisions.policy import Moment, Policy, search_policy
from certimap.errors import ModelError, QueryError
from certimap.interop import as_model
from certimap.networks.factor import Factor
from certimap.solvers.driver import interruptible


@keywords_hinted()
def decide(
    network: Any, evidence: Any = None, *, epsilon: float = 0.0, tolerance: float = 0.0,
    time_limit: float | None = None, max_memory: int | None = None,
    progress: Callable[[Moment], object] | None = None,
) -> Policy:  # fmt: skip
    """Return the `Policy` of largest expected utility, with a bound on every policy's.

    - `network`: a `DecisionNetwork`, or an object of a library that is read as one.
    - `evidence`: what is known before the first decision, in the forms of `map_query`; not of a variable that
      an open decision may change. An observed decision has been made; a set of labels leaves these options.
    - `epsilon`, `tolerance`: the search ends when both sides differ by at most a share `epsilon` of the larger
      one, or by `tolerance` in units of utility. With 0 it ends when they agree within rounding.
    - `time_limit`, `max_memory`: seconds and bytes; the best policy and bound so far are returned. Ctrl-C too ends
      the search with these.
    - `progress`: called with every `Moment` at which a side has moved.

    Cost: with perfect recall, backward induction over tables of all that matters to a decision. Where they do not
    fit, and with limited memory, policies are improved one table at a time, and bounded by induction in which
    decisions know more. Raises QueryError for evidence on what a decision causes, and ImpossibleEvidence.
    """
    model = _model(network)
    for name, value in (("epsilon", epsilon), ("tolerance", tolerance)):
        if not 0.0 <= check_number(name, value, "a number that is not negative", QueryError) < math.inf:
            raise QueryError(f"{name} is {value}; expected a number that is not negative")
    control = Control.starting_now(time_limit, max_memory=max_memory)
    with interruptible(control):
        control.busy = True  # the search asks for Ctrl-C itself
        return search_policy(model, evidence, epsilon, tolerance, control, progress or (lambda moment: None))


def _model(network: Any) -> DecisionNetwork:
    """Return a network with decisions, converted if it is one of another library."""
    model = as_model(network)
    if not isinstance(model, DecisionNetwork):
        raise ModelError(f"a {type(model).__name__} has no decisions; expected a DecisionNetwork")
    return model


class InformationValue(NamedTuple):
    """What seeing a variable adds to the best expected utility: at least `low`, at most `high`."""

    low: float
    high: float


class InformationValues(dict[str, InformationValue]):
    """The worth of seeing each variable before a decision, the largest first."""

    def __repr__(self) -> str:
        rows = [("seeing", "is worth")]
        for name, worth in self.items():
            low, high = (f"{side:.6g}" for side in worth)
            rows.append((name, high if low == high or worth.high < 1e-9 else f"{low} to {high}"))
        return "\n".join(aligned(rows))


@keywords_hinted()
def value_of_information(
    network: Any, decision: str, variables: Sequence[str] | str | None = None, evidence: Any = None, *,
    time_limit: float | None = None, max_memory: int | None = None,
) -> InformationValues:  # fmt: skip
    """Return the `InformationValue` of seeing each of the `variables` just before a `decision`, the largest first.

    - `network`, `evidence`, `max_memory`: as for `decide`. `time_limit`: seconds of each `decide`.
    - `variables`: names; None for every chance variable that is not known then, and that no decision from then on
      bears on.

    The worth is the difference of two best expected utilities, in their units; each has two sides. Raises
    QueryError for a variable that is known or observed, or that depends on the decision. Cost: one `decide` for
    each variable, and one more.
    """
    model = _model(network)
    known = {*model.information(decision), *model.decisions, *(name for name, _ in items_of(evidence))}
    asked = names_of(variables, "variables", QueryError) if variables is not None else ()
    informed: dict[str, DecisionNetwork] = {}
    for name in asked or [name for name in model.domain.names if name not in known | model.hidden]:
        if model.domain[name] and name in known:
            raise QueryError(f"{name!r} is a decision, observed, or known at {decision!r} already")
        try:
            seen = {**model.decisions, decision: (*model.decisions[decision], name)}
            informed[name] = like(model, model.cpts, seen)
        except ModelError:
            if asked:
                text = f"{name!r} depends on decision {decision!r} or a later one, and cannot be seen before it"
                raise QueryError(text) from None
    now = decided(model, evidence, time_limit, max_memory)
    found: dict[str, InformationValue] = {}
    for name, more in informed.items():
        then = decided(more, evidence, time_limit, max_memory)
        sides = then.expected_utility - now.upper_bound, then.upper_bound - now.expected_utility
        found[name] = InformationValue(max(0.0, sides[0]), max(0.0, sides[1]))
    return InformationValues(sorted(found.items(), key=lambda item: -item[1].high))


def like(model: DecisionNetwork, cpts: Iterable[Factor], seen: Mapping[str, Sequence[str]]) -> DecisionNetwork:
    """Return a network with other tables, or other decisions."""
    return DecisionNetwork(model.domain, cpts, seen, model.utilities, model.limited_memory, model.hidden)


def decided(
    network: DecisionNetwork, evidence: Any, time_limit: float | None, max_memory: int | None = None
) -> Policy:
    """Return the best policy; Ctrl-C is passed on, as one search of many is no answer."""
    policy = decide(network, evidence, time_limit=time_limit, max_memory=max_memory)
    if policy.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return policy
