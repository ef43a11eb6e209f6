"""The door to decisions: the best policy of an influence diagram, between two sides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from certimap.core.arguments import check_number, keywords_hinted
from certimap.core.control import Control
from certimap.decisions.network import DecisionNetwork
from certimap.decisions.policy import Moment, Policy, search_policy
from certimap.errors import ModelError, QueryError
from certimap.interop import as_model
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
    model = as_model(network)
    if not isinstance(model, DecisionNetwork):
        raise ModelError(f"a {type(model).__name__} has no decisions; decide expected a DecisionNetwork")
    for name, value in (("epsilon", epsilon), ("tolerance", tolerance)):
        if not 0.0 <= check_number(name, value, "a number that is not negative", QueryError) < math.inf:
            raise QueryError(f"{name} is {value}; expected a number that is not negative")
    control = Control.starting_now(time_limit, max_memory=max_memory)
    with interruptible(control):
        control.busy = True  # the search asks for Ctrl-C itself
        return search_policy(model, evidence, epsilon, tolerance, control, progress or (lambda moment: None))
