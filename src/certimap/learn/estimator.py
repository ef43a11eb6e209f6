"""Base class of the estimators, with the interface of scikit-learn, and log-likelihoods of rows of any model."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Self, TypedDict, TypeVar, cast

import numpy as np

from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arguments import check_ranges, flag_checked, is_iterable, is_path, seed_checked
from certimap.core.arrays import Flags, Floats
from certimap.core.box import Boxes, Points
from certimap.core.columns import ColumnNote
from certimap.core.domain import Domain
from certimap.core.posterior import BoxPosterior
from certimap.core.query import make_query
from certimap.errors import DataError
from certimap.learn.datasets import Dataset
from certimap.learn.preparation import prepare
from certimap.learn.table import AsLabels, DataTable, Kind, decode, encode, read_table

Seed = int | np.random.Generator | None
M = TypeVar("M")
E = TypeVar("E", bound="DensityEstimator")
HELD_OUT = 0.2  # share of the rows by which mixtures are judged
BATCH = 4096


def several(value: Any) -> list[Any]:
    """Return the values of a setting that may be one or several."""
    return list(value) if is_iterable(value) else [value]


class LearnerSettings(TypedDict, total=False):
    """Settings of learners; each takes the parameters of its class, and refuses others with DataError."""

    kinds: Mapping[str, Kind] | None
    domain: Domain | None
    time_limit: float | None
    progress: bool | None
    smoothing: float | Sequence[float] | None
    leaves: Mapping[str, str | Sequence[str]] | None
    n_components: int | Sequence[int]
    n_starts: int
    max_steps: int
    tolerance: float
    batch_rows: int | None
    patience: int
    workers: int | None
    threshold: float | Sequence[float]
    min_rows: int | Sequence[int]
    n_clusters: int | Sequence[int]
    clusters: Any
    step: int | None


@dataclass(kw_only=True, eq=False, repr=False)
class DensityEstimator:
    """Base class: parameters (see `LearnSPN`), scoring and sampling. Subclasses implement `_fit` and set `model_`.

    A subclass is a dataclass, whose fields are the parameters that scikit-learn reads from the constructor.
    `ranges` are those of numbers among them (`check_ranges`).
    """

    ranges: ClassVar[str] = ""

    kinds: Mapping[str, Kind] | None = None
    domain: Domain | None = None
    random_state: Seed = None
    time_limit: float | None = None
    progress: bool | None = None

    model_: Any = field(init=False)  # the fitted model
    domain_: Domain = field(init=False)  # its variables
    seed_: int = field(init=False)  # of the run; as `random_state` it repeats the run
    timed_out_: bool = field(init=False)  # whether the time limit cut learning short
    _as_frame: bool = field(init=False)
    _columns: Sequence[ColumnNote] = field(init=False)
    _posterior: Any = field(init=False)
    _deadline: float | None = field(init=False)

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings given to the constructor."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change settings; raise DataError for one that does not exist."""
        names = self._parameter_names()
        for name, value in params.items():
            if name not in names:
                raise DataError(f"{name!r} is no parameter of {type(self).__name__}; they are {', '.join(names)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        signature, own = inspect.signature(type(self).__init__).parameters, self.get_params()
        changed = [f"{name}={own[name]!r}" for name in own if own[name] is not signature[name].default]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn's searches and pipelines."""
        from sklearn.utils import InputTags, Tags, TargetTags  # pyright: ignore[reportMissingTypeStubs]

        return Tags(
            estimator_type="density_estimator",
            target_tags=TargetTags(required=False),
            input_tags=InputTags(categorical=True, string=True, allow_nan=True),
        )

    def fit(self, X: Any, y: Any = None, *, valid: Any = None) -> Self:
        """Learn from a table.

        `X`: a 2-D array, a frame, a mapping of columns, a list of mappings, the path of a text table (see
        `prepare`), or a `Dataset`, which gives training and validation rows.
        `y`: ignored. `valid`: rows that choose settings (or the best step); by default a tenth of the rows. Raises
        DataError for an empty table, and for columns or missing values that the method cannot take.
        """
        self._as_frame = hasattr(X, "columns") or hasattr(X, "__dataframe__")
        domain: Domain | None = getattr(self, "domain", None)
        table = X
        if isinstance(X, Dataset):
            domain, valid, table = X.domain, X.validation if valid is None else valid, X.train
        self.seed_ = draw_seed(self.random_state)
        check_ranges(self, f"time_limit (0, inf); {self.ranges}", DataError)
        self._fit(table, valid, domain)
        self.n_features_in_ = len(self.domain_)
        self.feature_names_in_ = np.array(self.domain_.names, object)
        self._posterior = None
        vars(self.model_)["source_columns"] = self._columns
        return self

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        raise NotImplementedError

    def _read(
        self, table: Any, valid: Any, domain: Domain | None, as_labels: AsLabels | None = None
    ) -> tuple[DataTable, DataTable | None]:
        """Start the time limit, set `domain_`, and return the rows and the given validation rows."""
        if self.progress is not None:
            flag_checked("progress", self.progress, DataError)
        self._deadline = None if self.time_limit is None else time.monotonic() + self.time_limit
        from certimap.learn.leaves import are_labels  # the default of learners of mixed tables

        also = [] if valid is None else [valid]
        as_labels = are_labels if as_labels is None else as_labels
        table = prepare(table, kinds=self.kinds) if is_path(table) else table
        rows = read_table(table, domain=domain, kinds=self.kinds, also=also, as_labels=as_labels)
        self.domain_, self._columns = rows.domain, rows.columns
        return rows, None if valid is None else encode(valid, rows.domain)

    def _is_late(self) -> bool:
        return is_late(self._deadline)

    @property
    def _key(self) -> int:
        return self.seed_ & ((1 << 64) - 1)

    def _fitted(self) -> Any:
        if not hasattr(self, "model_"):
            raise DataError(f"this {type(self).__name__} is not fitted; call fit first")
        return self.model_

    def score_samples(self, X: Any) -> Floats:
        """Return the natural-log likelihood of each row, shape (n_rows,), missing values summed out.

        Raises DataError for a value that is not a state of its variable.
        """
        return score_samples(self._fitted(), X, self._posterior_over_all)

    def _posterior_over_all(self) -> Any:
        if self._posterior is None:
            self._posterior = posterior_over_all(self._fitted())
        return self._posterior

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean natural-log likelihood of the rows."""
        return float(np.mean(self.score_samples(X)))

    def sample(self, n_samples: int = 1, *, rng: Seed = None) -> Any:
        """Return rows drawn from the model: an array of labels, shape (n_samples, n_variables).

        It is a pandas frame if the estimator was fitted on one (or on another frame, if pandas is installed).
        """
        model = self._fitted()
        seed_checked(rng, DataError)
        points = self._draw(model, n_samples, np.random.default_rng(rng))
        columns = decode(points, self.domain_)
        with suppress(ImportError):
            if self._as_frame:
                import pandas as pd

                return pd.DataFrame(columns)
        kinds = {column.dtype.kind for column in columns.values()}
        stacked = list(columns.values()) if len(kinds) == 1 else [c.astype(object) for c in columns.values()]
        return np.stack(stacked, axis=1)

    def _draw(self, model: Any, n: int, rng: np.random.Generator) -> Points:
        return self._posterior_over_all().sample(n, rng)

    def to_circuit(self) -> Any:
        """Return the learned model as a `Circuit`."""
        return self._fitted()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_posterior": None}


@dataclass(eq=False, repr=False)
class MixtureEstimator(DensityEstimator):
    """Base class of learners of mixtures, which try several settings on validation rows.

    - `n_components`: the number of components, or several to choose from.
    - `smoothing`: see the learner; one number, or several to choose from.
    - `n_starts`: starts (k-means clusters) of each setting; the best on its own rows is kept.
    - `max_steps`: maximum number of steps per start.
    - `tolerance`: a start ends when a step gains less than this, in nats per row.
    """

    n_components: int | Sequence[int] = 1
    _: KW_ONLY
    smoothing: float | Sequence[float] | None = 1.0
    n_starts: int = 2
    max_steps: int = 100
    tolerance: float = 1e-3
    ranges: ClassVar[str] = "n_components, n_starts, max_steps [1, inf); smoothing (0, inf)"

    def _best_of_starts(self, k: int, attempt: Callable[[int], tuple[float, M]]) -> M:
        """Return the best of several starts, each a function of a key, judged on the training rows."""
        from certimap.learn.clusters import mix  # loads compiled code, which scoring rows does not need

        best: tuple[float, M] | None = None
        for start in range(self.n_starts if k > 1 else 1):
            if best is not None and self._is_late():
                break
            found = attempt(mix(self._key, start))
            if best is None or found[0] > best[0]:
                best = found
        assert best is not None
        return best[1]


def learned_by(kind: Callable[..., E], data: Any, valid: Any, rng: Seed, /, **settings: Any) -> E:
    """Return a fitted estimator of a class with some settings."""
    return kind(random_state=rng, **settings).fit(data, valid=valid)


def draw_seed(rng: Seed) -> int:
    """Return a given integer seed, or draw one from a generator or from the system's entropy."""
    seed_checked(rng, DataError)
    if isinstance(rng, int | np.integer):
        return int(rng)
    return int(np.random.default_rng(rng).integers(1 << 63))


def is_late(deadline: float | None) -> bool:
    """Return whether a moment of `time.monotonic` has passed."""
    return deadline is not None and time.monotonic() > deadline


def single_threaded_blas() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread, if threadpoolctl is there: products are small, and sums must not depend on it."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return nullcontext()
    return threadpool_limits(1, user_api="blas")


def split_rows(
    rows: DataTable, held_out: DataTable | None, share: float, rng: np.random.Generator | int, least: int = 20
) -> tuple[DataTable, DataTable | None]:
    """Hold out a random share of `least` or more rows, unless there are validation rows already."""
    if held_out is not None or len(rows) < least:
        return rows, held_out
    order = np.random.default_rng(rng).permutation(len(rows))
    n_held = max(1, round(share * len(rows)))
    return rows.rows(np.sort(order[n_held:])), rows.rows(np.sort(order[:n_held]))


def score_samples(model: Any, data: Any, posterior: Callable[[], BoxPosterior] | None = None) -> Floats:
    """Return the natural-log likelihood of each row of a table under any model, missing values summed out.

    `model`: a circuit, a network, or a learned model. `data`: a table (see `certimap.learn.table`); frames are
    matched by column name. Returns float64, shape (n_rows,), in nats; their mean is the usual measure of a model's
    quality. Raises DataError for an absent column, a value that is not a state of its variable, or a row so far
    out that the log of its density is beyond floats. `posterior`: returns the model's distribution, if it is kept.
    """
    table = encode(data, model.domain, model.hidden)
    missing = table.missing
    if not model.domain.is_discrete and missing.any():
        out = _by_pattern(model, table.points, missing)
    else:
        out = _log_likelihoods(posterior() if posterior else posterior_over_all(model), table.points, missing)
    beyond = np.flatnonzero((out <= 0.5 * LEAST_LOG) & np.isfinite(out))
    if len(beyond):
        raise DataError(
            f"row {beyond[0]} lies so far from the model that the log of its density is beyond floats; look for a "
            "number in another unit"
        )
    return out


def posterior_over_all(model: Any) -> BoxPosterior:
    """Return the model's distribution over all its variables, without evidence."""
    from certimap.conversions import condition

    return cast("BoxPosterior", condition(model, make_query(model.domain), wants=()))


def _log_likelihoods(posterior: BoxPosterior, points: Points, missing: Flags) -> Floats:
    """Return ln p of the known cells of each row, by a distribution over all variables."""
    out = np.empty(len(points))
    partial = missing.any(axis=1)
    whole = np.flatnonzero(~partial)
    if len(whole):
        out[whole] = posterior.log_prob(np.ascontiguousarray(points[whole]))
    rows = np.flatnonzero(partial)
    domain = posterior.domain
    for start in range(0, len(rows), BATCH):
        chunk = rows[start : start + BATCH]
        mask = Boxes.of_points(domain, np.where(missing[chunk], 0, points[chunk])).mask
        mask |= np.repeat(missing[chunk], domain.n_states, axis=1)
        out[chunk] = posterior.log_mass(Boxes(domain, mask))
    return out


def _by_pattern(model: Any, points: Points, missing: Flags) -> Floats:
    """Return ln of the density of each row's known cells (0 without any), by one posterior per pattern of them."""
    from certimap.conversions import condition

    out = np.zeros(len(points))
    patterns, which = np.unique(missing, axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        rows = np.flatnonzero(which.ravel() == k)
        known = np.flatnonzero(~pattern)
        if len(known):
            query = make_query(model.domain, [model.domain.names[i] for i in known])
            subset = np.ascontiguousarray(points[np.ix_(rows, known)])
            out[rows] = condition(model, query, wants=()).log_prob(subset.astype(query.query_domain.point_dtype))
    return out
