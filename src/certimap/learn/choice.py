"""How much a model tells of rows that it was not learned from, and the choice among methods by that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from certimap.core.domain import Domain
from certimap.core.named import at
from certimap.errors import DataError, did_you_mean
from certimap.learn.estimator import DensityEstimator, Seed, score_samples, split_rows
from certimap.learn.table import DataTable

INDEPENDENCE = "independence"
SHARE = 0.1  # of the rows, held out
METHODS = {
    "learnspn": "spn:LearnSPN",
    "chow-liu": "tree:ChowLiuTree",
    "clt-mixture": "tree:ChowLiuMixture",
    "hclt": "hidden_tree:HiddenChowLiuTree",
    "mixture": "product_mixture:ProductMixture",
    "gaussian-mixture": "full_mixture:FullMixture",
    "region-graph": "region_circuit:RegionGraphCircuit",
    "auto": "choice:AutoLearner",
}


def learner(method: str, **settings: Any) -> DensityEstimator:
    """Return an estimator by the name of its method, such as "hclt"; DataError for other names and settings."""
    if method == INDEPENDENCE:
        return learner("mixture", n_components=1, **settings)
    if method not in METHODS:
        told = f"{method!r} is no method; expected one of {', '.join(METHODS)}"
        raise DataError(told + did_you_mean(method, METHODS))
    return at(f"certimap.learn.{METHODS[method]}")().set_params(**settings)


def held_out_scores(estimator: DensityEstimator, table: Any, share: float = SHARE) -> tuple[float, float, int]:
    """Return the mean log-likelihood (nats) of held-out rows, the same with independent columns, and their number.

    A copy of the estimator learns from the others; a random `share` of 20 rows or more is held out. Of fewer rows,
    none are, and the likelihoods are NaN. Cost: that of learning once.
    """
    rows, _ = estimator._read(table, None, None)  # pyright: ignore[reportPrivateUsage]
    part, held = split_rows(rows, None, share, 0)
    if held is None:
        return np.nan, np.nan, 0
    copy, plain = type(estimator)(**estimator.get_params()), learner(INDEPENDENCE, random_state=0)
    return _score(copy.fit(part), held), _score(plain.fit(part), held), len(held)


def _score(fitted: DensityEstimator, held: DataTable) -> float:
    return float(np.mean(score_samples(fitted.model_, held)))


@dataclass(eq=False, repr=False)
class AutoLearner(DensityEstimator):
    """Learn by each of a few methods within a time budget, and keep the best on held-out rows.

    A random tenth of the rows (of 20 or more), or `valid`, judges. Cost: that of all methods, and of one again.

    Parameters
    ----------
    methods
        Names of the methods to try, in this order; "gaussian-mixture" is tried on real columns alone.
    time_limit
        Seconds for all of it. A method is given half of the time that is left.
    kinds, domain, random_state, progress
        As in `LearnSPN`.

    Attributes
    ----------
    model_, method_
        The best model, learned again from all rows, and the name of its method.
    scores_
        Mean log-likelihood of the held-out rows by method, in nats; "independence" is that of independent columns.
    timed_out_
        Whether the time limit cut a method short or left it out; the choice may then depend on the machine.
    """

    methods: Sequence[str] = ("mixture", "learnspn", "gaussian-mixture", "hclt")
    _: KW_ONLY
    time_limit: float | None = 60.0

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        rows, held_out = self._read(table, valid, domain)
        part, held = split_rows(rows, held_out, SHARE, self.seed_)
        suits = [m for m in self.methods if m != "gaussian-mixture" or not rows.domain.n_states.any()]
        if not suits or "auto" in suits:
            raise DataError(f"methods is {self.methods!r}; expected names of methods that suit the columns")
        self.scores_: dict[str, float] = {}
        fitted: dict[str, DensityEstimator] = {}
        for name in (INDEPENDENCE, *suits):
            if len(fitted) < 2 or not self._is_late():
                fitted[name] = self._learner(name).fit(part)
                self.scores_[name] = _score(fitted[name], part if held is None else held)
        self.timed_out_ = len(fitted) <= len(suits) or any(vars(one).get("timed_out_") for one in fitted.values())
        self.method_ = max(list(fitted)[1:], key=self.scores_.__getitem__)
        again = part is not rows and not self._is_late()
        self.model_ = (self._learner(self.method_).fit(rows) if again else fitted[self.method_]).model_

    def _learner(self, name: str) -> DensityEstimator:
        left = None if self._deadline is None else max(0.5 * (self._deadline - time.monotonic()), 1e-3)
        return learner(name, random_state=self.seed_, time_limit=left, progress=self.progress)


def auto(data: Any, *, valid: Any = None, rng: Seed = None, **settings: Any) -> Any:
    """Return a model (a circuit, a network or a learned model) by the best of a few methods; see `AutoLearner`.

    `data`, `valid`, `rng`: as in `learnspn`. `settings`: parameters of `AutoLearner`.
    """
    return AutoLearner(random_state=rng, **settings).fit(data, valid=valid).model_
