"""How much a model tells of rows that it was not learned from, and the choice among methods by that."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import certimap.learn
from certimap.core.arguments import Record, is_path
from certimap.errors import DataError, did_you_mean
from certimap.learn.estimator import Seed, draw_seed, is_late, score_samples, split_rows
from certimap.learn.leaves import are_labels
from certimap.learn.preparation import prepare
from certimap.learn.table import AsLabels, Kind, read_table

INDEPENDENCE = "independence"
TRIED = ("mixture", "learnspn", "gaussian-mixture", "hclt")
METHODS = (*TRIED, "chow-liu", "clt-mixture", "region-graph", "bic", "fit")
_AS_LABELS: dict[str, AsLabels] = {"gaussian-mixture": False, "region-graph": True, "bic": True, "fit": True}


class Best(NamedTuple):
    """The best of some methods."""

    model: Any  # learned from all rows
    method: str
    scores: dict[str, float]  # mean log-likelihood (nats) of held-out rows; "independence": of independent columns


def learned(method: str, data: Any, **settings: Any) -> Any:
    """Learn by the method of a name, such as "hclt"; DataError for other names, and for other settings."""
    if method == INDEPENDENCE:
        return learned("mixture", data, n_components=1, **settings)
    if method not in METHODS:
        told = f"{method!r} is no method; expected one of {', '.join(METHODS)}"
        raise DataError(told + did_you_mean(method, METHODS))
    function = getattr(certimap.learn, method.replace("-", "_"))
    try:
        return function(data=data, **settings)
    except TypeError as error:
        if found := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
            told = f"has no setting {found[1]!r}; see certimap.learn.{function.__name__}"
            raise DataError(f"method {method!r} {told}") from None
        raise


def best_of(
    data: Any,
    methods: Sequence[str] = TRIED,
    *,
    kinds: Mapping[str, Kind] | None = None,
    rng: Seed = None,
    time_limit: float | None = 60.0,
    **settings: Any,
) -> Best:
    """Learn by each of some methods from nine tenths of the rows; keep the one by which the others score best.

    `data`, `kinds`: as every learner takes them. `methods`: names, such as "hclt"; "gaussian-mixture" is tried on
    real columns alone. `rng`: a seed. `time_limit`: seconds for all of it, of which each method is given half of
    what is left (one method: all, twice); None for no limit. When time runs out, the methods left are not tried,
    and the choice depends on the machine. `settings`: those of each method. Returns the `Best`; fewer than 20 rows
    judge themselves. Raises DataError as learners do.
    """
    labels = _AS_LABELS.get(methods[0], are_labels) if len(methods) == 1 else are_labels
    data = prepare(data, kinds=kinds) if is_path(data) else data
    rows = read_table(data, kinds=kinds, as_labels=labels)
    seed = draw_seed(rng)
    deadline = None if time_limit is None or len(methods) == 1 else time.monotonic() + time_limit
    part, held = split_rows(rows, None, 0.1, seed)
    suits = [m for m in methods if len(methods) == 1 or m != "gaussian-mixture" or not rows.domain.n_states.any()]
    if not suits:
        raise DataError(f"methods is {methods!r}; expected names of methods that suit the columns")

    def model_of(method: str, table: Any) -> Any:
        left = time_limit if deadline is None else max(0.5 * (deadline - time.monotonic()), 1e-3)
        return learned(method, table, rng=seed, time_limit=left, **(settings if method != INDEPENDENCE else {}))

    models = Record()
    for name in (INDEPENDENCE, *suits):
        if len(models) < 2 or not is_late(deadline):
            models[name] = model_of(name, part)
    scores = {m: float(np.mean(score_samples(x, part if held is None else held))) for m, x in models.items()}
    best = max(suits[: len(models) - 1], key=scores.__getitem__)
    again = held is not None and not is_late(deadline)
    return Best(model_of(best, rows) if again else models[best], best, scores)
